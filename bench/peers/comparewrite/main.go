// Command comparewrite runs writes with immediate of moerail and of the raw library
// in turn and states their ratios, per size.
//
// Both sides measure the same (bench/peers/pair.h says what), with the same counts,
// window and cores, verified. In every turn each side runs once, another one first
// each time; a figure is the median over the turns, of the p50 of latency and of the
// median burst.
//
//	comparewrite -fabric libfabric:tcp -turns 5 -out bench/results/write-tcp.json
//	comparewrite -fabric verbs -perftest          within a machine that has RDMA devices
//
// Build moerail with the fabric first, and the raw program with `make -C bench/peers
// raw-fabric raw-verbs`.
//
// Exit codes: 0 compared, 1 a run failed or, with -check, a bar was missed, 2 bad
// arguments.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"moerail/bench/micro"
	"moerail/bench/peers/internal/turns"
)

// The bars: against the raw library.
const (
	latencyAtMost    = 1.15
	bandwidthAtLeast = 0.95
)

type options struct {
	fabric           string
	levels           []string
	moerail, raw     string
	provider, device string // of the raw program
	counts           micro.Config
	sizes, cpus      string
	turns            int
	limit            time.Duration
	perftest         bool
	check            string // level
	out              string
	stdout, stderr   io.Writer
}

func main() {
	o, err := parse(os.Args[1:], os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		os.Exit(0)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "comparewrite:", err)
		os.Exit(2)
	}
	o.stdout, o.stderr = os.Stdout, os.Stderr
	if err := compare(o); err != nil {
		fmt.Fprintln(os.Stderr, "comparewrite:", err)
		os.Exit(1)
	}
}

func parse(args []string, stderr io.Writer) (options, error) {
	o := options{counts: micro.Defaults()}
	f := flag.NewFlagSet("comparewrite", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&o.fabric, "fabric", "libfabric:tcp", "moerail's fabric: libfabric:PROVIDER or verbs")
	levels := f.String("levels", "worker,engine,domain", "moerail's levels to measure")
	f.StringVar(&o.moerail, "moerail", "bin/moerail", "the moerail binary")
	f.StringVar(&o.raw, "raw", "", "the raw program; empty is the one in bench/peers/build for the fabric")
	f.StringVar(&o.provider, "provider", "", "the raw program's -p; empty is the provider that moerail reports, or rxe0,rxe1 for verbs")
	f.StringVar(&o.device, "device", "", "the raw program's -I; empty is lo for providers over TCP, 1 (a GID) for verbs, else the library's first")
	f.StringVar(&o.sizes, "sizes", "8,64,512,4096,32768,262144,1048576", "bytes of a write")
	f.StringVar(&o.cpus, "cpus", "0,1", "core of each rank, or none")
	f.IntVar(&o.counts.Window, "window", o.counts.Window, "writes in flight")
	f.Uint64Var(&o.counts.Samples, "samples", o.counts.Samples, "latencies of a size")
	f.Uint64Var(&o.counts.SampleBytes, "sample-bytes", o.counts.SampleBytes, "fewer where they would move more than this")
	f.Uint64Var(&o.counts.Burst, "burst", o.counts.Burst, "writes of a burst")
	f.Uint64Var(&o.counts.BurstBytes, "burst-bytes", o.counts.BurstBytes, "fewer where they would move more than this")
	f.IntVar(&o.counts.Bursts, "bursts", o.counts.Bursts, "bursts of a size")
	f.IntVar(&o.turns, "turns", 5, "runs of each side")
	f.DurationVar(&o.limit, "limit", 2*time.Minute, "time limit of one run")
	f.BoolVar(&o.perftest, "perftest", false, "also ib_write_lat and ib_write_bw, which write without immediates (verbs)")
	f.StringVar(&o.check, "check", "", "exit 1 if this level misses a bar at any size: latency 1.15 x, bandwidth 0.95 x of the raw program")
	f.StringVar(&o.out, "out", "", "write the record to this file")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	var err error
	if o.counts.Sizes, err = micro.ParseSizes(o.sizes); err != nil {
		return o, err
	}
	for level := range strings.SplitSeq(*levels, ",") {
		o.counts.Level = micro.Level(level)
		if err := o.counts.Validate(); err != nil {
			return o, err
		}
		o.levels = append(o.levels, level)
	}
	switch {
	case o.turns < 1:
		return o, fmt.Errorf("-turns %d: want at least 1", o.turns)
	case o.fabric != "verbs" && !strings.HasPrefix(o.fabric, "libfabric:") && o.fabric != "efa":
		return o, fmt.Errorf("-fabric %q: want libfabric:PROVIDER, efa or verbs; others have no raw library", o.fabric)
	case o.perftest && o.fabric != "verbs":
		return o, fmt.Errorf("-perftest goes with -fabric verbs")
	case o.check != "" && !strings.Contains(","+*levels+",", ","+o.check+","):
		return o, fmt.Errorf("-check %s is not among -levels %s", o.check, *levels)
	}
	if o.raw == "" {
		o.raw = "bench/peers/build/raw_write_fabric"
		if o.fabric == "verbs" {
			o.raw = "bench/peers/build/raw_write_verbs"
		}
	}
	if o.fabric == "verbs" {
		o.provider, o.device = orElse(o.provider, "rxe0,rxe1"), orElse(o.device, "1")
	}
	return o, nil
}

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

// rawName is what the raw program calls the provider that moerail reports.
func rawName(provider string) string { return strings.TrimPrefix(provider, "libfabric:") }

// overTCP says whether a provider of libfabric goes by network interfaces.
func overTCP(provider string) bool {
	core, _, _ := strings.Cut(provider, ";")
	return core == "tcp" || core == "net" || core == "sockets" || core == "udp"
}

// compare runs all sides in turn.
func compare(o options) error {
	sides, err := newSides(&o)
	if err != nil {
		return err
	}
	for turn := range o.turns {
		for i := range sides {
			s := sides[(i+turn)%len(sides)]
			fmt.Fprintf(o.stderr, "turn %d of %d: %s\n", turn+1, o.turns, s.Name)
			if err := s.run(o.limit); err != nil {
				return fmt.Errorf("%s: %w", s.Name, err)
			}
		}
	}
	rec, err := newRecord(o, sides)
	if err != nil {
		return err
	}
	rec.print(o.stdout)
	if o.out != "" {
		if err := turns.Save(o.out, rec); err != nil {
			return err
		}
	}
	if missed := rec.missed("moerail " + o.check); o.check != "" && len(missed) > 0 {
		return fmt.Errorf("bars missed: %s", strings.Join(missed, "; "))
	}
	return nil
}

func decimal[T int | uint64](n T) string { return strconv.FormatUint(uint64(n), 10) }
