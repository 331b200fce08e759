package main

import (
	"fmt"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// newRoot builds the command tree; a test builds its own.
func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "moerail",
		Short:         "Expert-parallel dispatch and combine: run it, check it, see what a machine can do",
		Version:       version(),
		Args:          cobra.NoArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		Long: `moerail carries the tokens of a mixture-of-experts layer to their experts and
brings the weighted results back.

Exit codes: 0 done and right; 1 it ran and something was wrong; 2 bad arguments
or a bad file.`,
	}
	root.SetVersionTemplate("moerail {{.Version}}\n")
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetHelpCommand(&cobra.Command{Use: "no-help-command", Hidden: true})
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageError{fmt.Errorf("%s: %w", cmd.CommandPath(), err)}
	})
	root.AddCommand(newRun(), newExec(), newBench(), newDoctor(), newTopo())
	checkUsage(root)
	return root
}

// checkUsage makes wrong arguments of c and of all commands below it usage errors.
func checkUsage(c *cobra.Command) {
	for _, below := range c.Commands() {
		checkUsage(below)
	}
	check := c.Args
	if check == nil {
		return
	}
	c.Args = func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return usageError{fmt.Errorf("%s: %w", cmd.CommandPath(), err)}
		}
		return nil
	}
}

// version is what the go command knew when it built this binary.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	v := info.Main.Version
	if v == "" {
		v = "(devel)"
	}
	revision, modified := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = " " + s.Value[:min(12, len(s.Value))]
		case s.Key == "vcs.modified" && s.Value == "true":
			modified = "+changes"
		}
	}
	return v + revision + modified
}
