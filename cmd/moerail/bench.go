package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"moerail/bench/micro"
	"moerail/cmd/moerail/internal/bench"
)

// newBench is `moerail bench`.
func newBench() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure single operations between ranks, verified first",
		Args:  cobra.ArbitraryArgs,
		Long: `Measures single operations of the runtime. Nothing is timed before every byte of
it has been looked at.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{fmt.Errorf("bench: there is no %q, want write", args[0])}
			}
			return usageError{errors.New("bench: name what to measure: write")}
		},
	}
	cmd.AddCommand(newBenchWrite())
	return cmd
}

// newBenchWrite is `moerail bench write`.
func newBenchWrite() *cobra.Command {
	o := bench.Defaults()
	sizes, level, poll := "8,64,512,4k,32k,256k,1M", string(o.Level), string(o.Poll)
	asJSON := false
	cmd := &cobra.Command{
		Use:   "write",
		Short: "Latency and rate of writes with immediate between two ranks",
		Args:  cobra.NoArgs,
		Long: `Measures writes with immediate between two ranks.

latency  rank 0 writes, rank 1 answers with a write of the same size when it has
         seen the immediate; a sample is half the time there and back
rate     rank 0 writes a burst with at most --window writes in flight; rank 1
         counts immediates and answers once; the time ends with that answer

bench/peers/fabric and bench/peers/verbs measure the same of the raw libraries.

Levels: engine is what applications call, a goroutine that writes and waits; worker
is what a round does, on the engine's own thread; domain is the provider alone.
With several NICs engine splits each write over all, worker takes them in turn.`,
		Example: `  # over shared memory, a process and a core for each rank
  moerail bench write --fabric shm

  # what the engine adds to the provider
  moerail bench write --fabric libfabric:tcp --level worker
  moerail bench write --fabric libfabric:tcp --level domain`,
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&o.Fabric, "fabric", o.Fabric, "auto, loopback, shm, verbs, efa or libfabric:PROVIDER")
	f.StringVar(&sizes, "sizes", sizes, "bytes of a write, as 8,4k,1M")
	f.StringVar(&level, "level", level, "what is measured: engine, worker or domain")
	f.StringVar(&poll, "poll", poll, "what an engine's idle worker does: spin (never sleeps, as the raw programs), or default")
	f.IntVar(&o.NICs, "nics", o.NICs, "NICs of each rank")
	f.StringVar(&o.Launch, "launch", o.Launch, "processes (one for each rank), inproc (ranks are goroutines), or env (this process is one rank)")
	f.StringVar(&o.CPUs, "cpus", o.CPUs, "cores of each rank as 0,1, or as 0+2,1+3 with the last one for the thread that polls; auto or none")
	f.IntVar(&o.Window, "window", o.Window, "writes in flight, at most")
	f.Uint64Var(&o.Samples, "samples", o.Samples, "latencies of each size, less where they would move more than --sample-bytes")
	f.Uint64Var(&o.SampleBytes, "sample-bytes", o.SampleBytes, "see --samples; at least 100 are taken")
	f.Uint64Var(&o.Burst, "burst", o.Burst, "writes of a burst, less where they would move more than --burst-bytes")
	f.Uint64Var(&o.BurstBytes, "burst-bytes", o.BurstBytes, "see --burst; at least a window is written")
	f.IntVar(&o.Bursts, "bursts", o.Bursts, "bursts of each size, after one that is not timed; the figure is their median")
	f.IntVar(&o.Warmup, "warmup", o.Warmup, "exchanges before the first latency")
	f.Uint64Var(&o.Span, "span", o.Span, "bytes over which the writes of a burst rotate")
	f.BoolVar(&asJSON, "json", false, "print one JSON document")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if o.Sizes, err = micro.ParseSizes(sizes); err != nil {
			return err
		}
		o.Level, o.Poll = micro.Level(level), micro.Poll(poll)
		if err := o.Resolve(); err != nil {
			return err
		}
		rep, err := launchBench(cmd.Context(), &o, asJSON)
		if err != nil || rep == nil {
			return err
		}
		if !asJSON {
			printBench(cmd.OutOrStdout(), rep)
			return nil
		}
		out, err := json.Marshal(rep)
		if err != nil {
			return err
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%s\n", out)
		return nil
	}
	return cmd
}

// launchBench returns the report, nil on a rank that has none to print.
func launchBench(ctx context.Context, o *bench.Options, asJSON bool) (*bench.Report, error) {
	switch o.Launch {
	case "processes":
		self, err := os.Executable()
		if err != nil {
			return nil, err
		}
		return bench.Processes(ctx, self, o)
	case "env":
		return bench.OneRank(ctx, o, version())
	}
	bar := newProgress(asJSON)
	defer bar.finish()
	draw := bar.callback()
	return bench.InProcess(ctx, o, version(), func(done, of int) {
		if draw != nil {
			draw(done, of)
		}
	})
}

// printBench shows a report to people.
func printBench(w io.Writer, rep *bench.Report) {
	c := &rep.Config
	fmt.Fprintf(w, "writes with immediate over %s (%s), %s level, 2 ranks (%s), cores %s, %d NIC(s), window %d\n",
		c.Fabric, rep.Provider, c.Level, c.Launch, c.CPUs, c.NICs, c.Window)
	fmt.Fprintf(w, "%s, %d cores, Linux %s, %s; moerail %s\n\n", rep.Machine.CPU, rep.Machine.Cores, rep.Machine.Kernel, rep.Machine.Go, rep.Version)
	t := table.NewWriter()
	t.SetOutputMirror(w)
	t.SetStyle(table.StyleLight)
	t.AppendHeader(table.Row{"bytes", "one way, us: min", "p50", "p90", "p99", "p99.9", "max", "MB/s", "writes/s"})
	for _, s := range rep.Sizes {
		l := s.Latency
		t.AppendRow(table.Row{s.Bytes, fine(l.Min), fine(l.P50), fine(l.P90), fine(l.P99), fine(l.P999), fine(l.Max),
			fmt.Sprintf("%.1f", s.Bandwidth.BytesPerSecond/1e6), fmt.Sprintf("%.0f", s.Bandwidth.MessagesPerSecond)})
	}
	t.Render()
	fmt.Fprintln(w, "verified: every byte of the first exchange and of the last burst of each size is what was sent")
}

// fine prints microseconds of which a hundredth matters.
func fine(v float64) string { return fmt.Sprintf("%.2f", v) }
