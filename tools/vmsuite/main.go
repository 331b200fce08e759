// Command vmsuite runs the checks of the verbs fabric on a machine that has RDMA
// devices: the provider's own tests, doctor and topo, verified rounds between
// processes, a killed rank, a link that goes down and comes back, and figures
// beside those of perftest and of the raw library. tools/vm-suite builds what it
// needs and runs it in a VM with software RDMA.
//
//	vmsuite -bin FOLDER [-json FILE] [-limit 240s] [STEP...]
//
// FOLDER holds moerail and verbs.test, both built with -tags verbs, and, for the
// figures, comparewrite and raw_write_verbs. Steps run in the order of the list
// that -help prints; without names, all but the figures. It prints a table, and
// writes a JSON record.
//
// Exit status: 0 if every step passed, 1 if one did not, 2 on wrong arguments.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	f := flag.NewFlagSet("vmsuite", flag.ContinueOnError)
	f.SetOutput(stderr)
	bin := f.String("bin", ".", "folder with the programs")
	file := f.String("json", "", "file for the record")
	limit := f.Duration("limit", 240*time.Second, "time for all steps together")
	patience := f.Float64("patience", 1, "factor for the limits of steps and the deadlines of ranks, where the machine is busy")
	version := f.String("version", "", "what the programs were built from, for the record")
	f.Usage = func() {
		fmt.Fprintln(stderr, "usage: vmsuite [flags] [STEP...]")
		f.PrintDefaults()
		fmt.Fprintln(stderr, "steps:")
		for _, s := range steps {
			fmt.Fprintf(stderr, "  %-8s %s\n", s.name, s.what)
		}
	}
	if err := f.Parse(args); err != nil {
		return 2
	}
	todo, err := choose(f.Args())
	if err == nil && !(*patience >= 1 && *patience <= 100) {
		err = fmt.Errorf("-patience is %v, want 1 to 100", *patience)
	}
	if err != nil {
		fmt.Fprintf(stderr, "vmsuite: %v\n", err)
		return 2
	}
	if *bin, err = filepath.Abs(*bin); err != nil {
		fmt.Fprintf(stderr, "vmsuite: %v\n", err)
		return 2
	}
	devices, err := devicesFrom(os.Getenv)
	if err != nil {
		fmt.Fprintf(stderr, "vmsuite: %v\n", err)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	s := &suite{bin: *bin, devices: devices, out: stdout, lookDir: "/sys", deadline: 5 * time.Second, slack: 5 * time.Second, patience: *patience}
	r := s.runAll(ctx, todo, *limit)
	r.Version = *version
	r.print(stdout)
	if *file != "" {
		b, err := json.MarshalIndent(r, "", "\t")
		if err == nil {
			err = os.WriteFile(*file, append(b, '\n'), 0o666)
		}
		if err != nil {
			fmt.Fprintf(stderr, "vmsuite: the record: %v\n", err)
			return 1
		}
	}
	if !r.Passed {
		return 1
	}
	return 0
}

// step is one check. run says what it saw, in a line.
type step struct {
	name, what string
	limit      time.Duration
	run        func(*suite, context.Context) (string, error)
	extra      bool // it runs only when it is named
}

var steps = []step{
	{"doctor", "moerail doctor finds the library and every device, and nothing broken", 30 * time.Second, (*suite).doctor, false},
	{"topo", "moerail topo shows every device, port and GID as they are", 30 * time.Second, (*suite).topo, false},
	{"run4", "4 ranks, processes, every output verified", 60 * time.Second, func(s *suite, c context.Context) (string, error) { return s.rounds(c, 4, 1) }, false},
	{"run8", "8 ranks, processes, every output verified", 120 * time.Second, func(s *suite, c context.Context) (string, error) { return s.rounds(c, 8, 1) }, false},
	{"nics2", "4 ranks with two NICs each", 60 * time.Second, func(s *suite, c context.Context) (string, error) { return s.rounds(c, 4, 2) }, false},
	{"kill", "a rank is killed: every other one ends with an error that names it", 60 * time.Second, (*suite).kill, false},
	{"link", "a link goes down and comes up in mid-run", 90 * time.Second, (*suite).link, false},
	{"tests", "the tests of transport/verbs", 170 * time.Second, (*suite).tests, false},
	{"figures", "latency and bandwidth beside perftest and the raw library; only when named", 200 * time.Second, (*suite).figures, true},
}

// choose returns the named steps in the order of the list; for none, all that
// need not be named.
func choose(names []string) ([]step, error) {
	var out []step
	for _, s := range steps {
		if slices.Contains(names, s.name) || len(names) == 0 && !s.extra {
			out = append(out, s)
		}
	}
	for _, n := range names {
		if !slices.ContainsFunc(steps, func(s step) bool { return s.name == n }) {
			var known []string
			for _, s := range steps {
				known = append(known, s.name)
			}
			return nil, fmt.Errorf("there is no step %q; there are %s", n, strings.Join(known, ", "))
		}
	}
	return out, nil
}
