// Command mutants breaks moerail on purpose, one small fault at a time, and wants
// the tests to notice.
//
//	tracked files --copy--> temporary directory --edit--> go test -run X ./pkg --> must fail
//
// Each mutant of list.go names the test that is expected to catch it. That test
// must first pass on the copy as it is; a mutant that does not compile, or whose
// text is no longer found exactly once, is an error and not a catch. The exit code
// is 0 when every mutant was caught, 1 when one survived or was in error, 2 when
// nothing could be run.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"text/tabwriter"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("mutants", flag.ContinueOnError)
	flags.SetOutput(stderr)
	pattern := flags.String("run", "", "regular expression of the names of the mutants to run; all if empty")
	parallel := flags.Int("parallel", 1, "copies of the repository that are tested at the same time, 1 to 64")
	timeout := flags.Duration("timeout", time.Minute, "of one mutant's test, at least 1s; a test that hangs longer has caught it")
	root := flags.String("repo", ".", "a directory of the repository")
	names := flags.Bool("list", false, "print the mutants and run nothing")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	fail := func(err error) int {
		fmt.Fprintf(stderr, "mutants: %v\n", err)
		return 2
	}
	match, err := regexp.Compile(*pattern)
	if err != nil {
		return fail(err)
	}
	if *parallel < 1 || *parallel > 64 || *timeout < time.Second || flags.NArg() > 0 {
		return fail(fmt.Errorf("-parallel is %d, want 1 to 64; -timeout is %v, want 1s or more; %d arguments, want none", *parallel, *timeout, flags.NArg()))
	}
	var chosen []mutant
	for _, m := range mutants {
		if match.MatchString(m.name) {
			chosen = append(chosen, m)
		}
	}
	if len(chosen) == 0 {
		return fail(fmt.Errorf("no mutant matches -run %s", *pattern))
	}
	if *names {
		for _, m := range chosen {
			fmt.Fprintf(stdout, "%s: %s (%s)\n", m.name, m.what, m.command())
		}
		return 0
	}
	results, err := runAll(ctx, chosen, *root, *parallel, *timeout, stderr)
	if err != nil {
		return fail(err)
	}
	return report(stdout, results)
}

// report prints the table and returns the exit code.
func report(out io.Writer, results []result) int {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "mutant\tresult\tseconds\ttest")
	code, caught := 0, 0
	for _, r := range results {
		fmt.Fprintf(w, "%s\t%s\t%.1f\t%s\n", r.mutant.name, r.verdict, r.took.Seconds(), r.mutant.command())
		if r.verdict.caught() {
			caught++
		} else {
			code = 1
		}
	}
	w.Flush()
	fmt.Fprintf(out, "%d of %d mutants caught\n", caught, len(results))
	for _, r := range results {
		if !r.verdict.caught() {
			fmt.Fprintf(out, "\n%s (%s) %s:\n%s\n", r.mutant.name, r.mutant.what, r.verdict, r.output)
		}
	}
	return code
}
