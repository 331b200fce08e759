package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"moerail/cmd/moerail/internal/replay"
	"moerail/internal/casefile"
)

// newExec is `moerail exec`.
func newExec() *cobra.Command {
	return &cobra.Command{
		Use:   "exec CASE.json",
		Short: "Carry out one explicit case and print exact results",
		Args:  cobra.ExactArgs(1),
		Long: `Carries out a moerail-case/1 file, every rank in this process over the case's
fabric, loopback where it names none, and prints a moerail-result/1 document.
"-" reads standard input.

The exit code is 0 when the case was carried out, whatever its rounds say, and 2
when the file is bad or asks for what is not there: the faults seed, reorder,
delay_us and pause are, reorder and delay_us over loopback alone. Rounds go over
the slots round-robin, as many in flight as there are slots.`,
		Example: `  moerail exec testdata/cases/ep05_same_expert_twice.json
  generate-a-case | moerail exec -`,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := awaitCase(cmd.Context(), args[0], cmd.InOrStdin())
			if err != nil {
				return err
			}
			res, arrivals, err := replay.Run(cmd.Context(), c)
			var unfit *replay.CaseError
			switch {
			case errors.As(err, &unfit):
				return usageError{fmt.Errorf("%s: %w", args[0], err)}
			case err != nil:
				return fmt.Errorf("%s: %w", args[0], err)
			}
			if err := casefile.WriteResult(cmd.OutOrStdout(), res); err != nil {
				return err
			}
			if len(arrivals) > 0 {
				return &wrongError{fmt.Sprintf("%s: the fabric refused %d operations, the first: %s", args[0], len(arrivals), arrivals[0])}
			}
			return nil
		},
	}
}

// awaitCase is readCase that a signal ends: opening or reading a pipe may wait
// for a writer that never comes.
func awaitCase(ctx context.Context, name string, stdin io.Reader) (c *casefile.Case, err error) {
	done := make(chan struct{})
	var read *casefile.Case // as fault, valid once done is closed
	var fault error
	go func() {
		defer close(done)
		read, fault = readCase(name, stdin)
	}()
	select {
	case <-done:
	case <-ctx.Done():
		return nil, fmt.Errorf("%s: interrupted", name)
	}
	if fault != nil {
		return nil, usageError{fault}
	}
	return read, nil
}

// readCase reads a case file; name "-" is standard input.
func readCase(name string, stdin io.Reader) (*casefile.Case, error) {
	if name == "-" {
		c, err := casefile.Decode(stdin)
		if err != nil {
			return nil, fmt.Errorf("standard input: %w", err)
		}
		return c, nil
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	c, err := casefile.Decode(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return c, nil
}
