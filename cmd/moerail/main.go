// Command moerail runs expert-parallel rounds, carries out case files and says
// what a machine can do.
//
//	moerail run     rounds on this machine, or as one rank of a job, verified and timed
//	moerail exec    one explicit case, exact results
//	moerail doctor  what this machine and build can do
//	moerail topo    where GPUs, NICs and cores are, and which NIC serves which GPU
//
// Exit codes: 0 done and right; 1 it ran and something was wrong; 2 bad
// arguments or a bad file, with one line that says what and where.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

const (
	exitWrong = 1
	exitUsage = 2
)

// output is standard output; it keeps the first error, which printing to people
// does not look at: a result that could not be written must not pass for one.
type output struct {
	file *os.File
	err  error
}

func (o *output) Write(p []byte) (int, error) {
	n, err := o.file.Write(p)
	if err != nil && o.err == nil {
		o.err = err
	}
	return n, err
}

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	root := newRoot()
	out := &output{file: os.Stdout}
	root.SetOut(out)
	err := root.ExecuteContext(ctx)
	if err == nil {
		err = out.err
	}
	if err == nil {
		return 0
	}
	var quiet *wrongError
	if !errors.As(err, &quiet) || quiet.text != "" {
		fmt.Fprintf(os.Stderr, "moerail: %s\n", oneLine(err.Error()))
	}
	return exitCode(err)
}
