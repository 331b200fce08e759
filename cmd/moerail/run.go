package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"moerail/cmd/moerail/internal/fabrics"
	"moerail/cmd/moerail/internal/rounds"
)

// newRun is `moerail run`.
func newRun() *cobra.Command {
	o := rounds.Defaults()
	deadline := time.Duration(o.Deadline)
	tokens := "128"
	asJSON := false
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run MoE rounds, check every output, print times and what crossed the wire",
		Args:  cobra.NoArgs,
		Long: `Runs rounds of dispatch, experts and combine, checks the outputs against the
definition, and prints the time of each phase and what crossed the fabric.

A round is one micro-batch; with --slots 2 two are in flight together. A phase
takes as long as its slowest rank. Experts, checks and the barriers around them
are not in any time. fp8 rows are quantised by the runtime, one scale for 128
values. Only rank 0 prints with --launch env.

--fabric auto is the best NIC found (EFA, then RDMA through verbs), else shm
between processes and loopback inside one; libfabric:PROVIDER is one of libfabric's,
such as libfabric:tcp. libfabric's TCP goes by the interface that leads to rank 0,
which is loopback where this command starts all ranks. ` + fabrics.EnvNICs + ` in the
environment names others: an interface (eth0) or, for verbs, devices
(mlx5_0:1,mlx5_1); ` + fabrics.EnvGID + ` is an entry of a RoCE port's table.
libfabric's own variables, FI_TCP_IFACE say, do what they always do. "moerail
doctor" lists what there is.`,
		Example: `  # 8 ranks in this process, DeepSeek-V3's shape, drawn routing
  moerail run

  # recorded routing of one layer, a process for each rank
  moerail run --launch processes --experts 64 --hidden 2048 --dtype bf16 --routing testdata/routing/olmoe-1b-7b_book.u8:7

  # different numbers of tokens, skewed routing, two micro-batches in flight
  moerail run --ranks 4 --experts 16 --top-k 2 --hidden 512 --tokens 128,0,64,1 --routing zipf:1.2 --slots 2`,
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.IntVar(&o.Ranks, "ranks", o.Ranks, "ranks")
	f.IntVar(&o.RanksPerNode, "ranks-per-node", o.RanksPerNode, "ranks that store into each other's memory directly; 0: none, the fabric carries everything")
	f.IntVar(&o.Experts, "experts", o.Experts, "experts over all ranks")
	f.IntVar(&o.TopK, "top-k", o.TopK, "picks of a token")
	f.IntVar(&o.Hidden, "hidden", o.Hidden, "elements of a token")
	f.StringVar(&tokens, "tokens", tokens, "tokens of each rank in a round: one number, or one for each rank as 128,0,64,...")
	f.StringVar(&o.DType, "dtype", o.DType, "dispatched rows: fp8, bf16, fp16 or fp32")
	f.StringVar(&o.OutDType, "out-dtype", o.OutDType, "expert outputs and results: bf16, fp16 or fp32")
	f.StringVar(&o.Layout, "layout", o.Layout, "what experts get: grouped, batched or rows")
	f.StringVar(&o.Reduce, "reduce", o.Reduce, "where picks are summed: expert (one row back for each rank) or home (one for each pick)")
	f.StringVar(&o.Routing, "routing", o.Routing, "uniform, zipf:S, one:EXPERT or FILE[:LAYER] (.u8 with its manifest.json, or JSON Lines)")
	f.StringVar(&o.Placement, "placement", o.Placement, "file with the physical experts of each rank; default is consecutive")
	f.IntVar(&o.Replicas, "replicas", o.Replicas, "ranks that hold the same tokens")
	f.IntVar(&o.Slots, "slots", o.Slots, "micro-batches in flight")
	f.IntVar(&o.NICs, "nics", o.NICs, "NICs of each rank")
	f.IntVar(&o.WindowRows, "window-rows", o.WindowRows, "rows a rank may send to another without asking; 0: all its tokens")
	f.IntVar(&o.Rounds, "rounds", o.Rounds, "measured rounds, rounded up to a multiple of --slots")
	f.IntVar(&o.Warmup, "warmup", o.Warmup, "rounds before them")
	f.Uint64Var(&o.Seed, "seed", o.Seed, "seed of tokens, weights and drawn routing")
	f.StringVar(&o.Fabric, "fabric", o.Fabric, fabrics.Words)
	f.StringVar(&o.Device, "device", o.Device, "auto, host or cuda")
	f.StringVar(&o.Launch, "launch", o.Launch, "inproc (ranks are goroutines), processes (one for each rank), or env (this process is one rank)")
	f.DurationVar(&deadline, "deadline", deadline, "longest wait of a phase")
	f.StringVar(&o.Verify, "verify", o.Verify, "outputs to check: all, sample (4 tokens of each rank, in the warm-up and in a round after the measured ones; only there experts run) or off")
	f.BoolVar(&asJSON, "json", false, "print one JSON document")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		o.Deadline = rounds.Duration(deadline)
		if f.Changed("tokens") {
			var err error
			if o.Tokens, err = parseTokens(tokens); err != nil {
				return usageError{err}
			}
		}
		if err := o.Resolve(); err != nil {
			return err
		}
		rep, err := launch(cmd.Context(), &o, asJSON)
		if err != nil || rep == nil {
			return err
		}
		if asJSON {
			return finishJSON(cmd, rep)
		}
		printReport(cmd.OutOrStdout(), rep)
		return verdict(rep)
	}
	return cmd
}

func parseTokens(list string) ([]int, error) {
	var tokens []int
	for i, part := range strings.Split(list, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(part))
		if err != nil {
			return nil, fmt.Errorf("--tokens: entry %d is %q, want a number", i, part)
		}
		tokens = append(tokens, n)
	}
	return tokens, nil
}

// launch runs the rounds and returns the report, nil on a rank that has none to
// print.
func launch(ctx context.Context, o *rounds.Options, asJSON bool) (*rounds.Report, error) {
	bar := newProgress(asJSON)
	defer bar.finish()
	switch o.Launch {
	case "processes":
		self, err := os.Executable()
		if err != nil {
			return nil, err
		}
		rep, err := rounds.Processes(ctx, self, o)
		var child *rounds.ChildError
		if errors.As(err, &child) && child.Code != exitUsage {
			for _, said := range child.Others {
				fmt.Fprintf(os.Stderr, "moerail: %s\n", oneLine(said))
			}
		}
		return rep, err
	case "env":
		return oneRank(ctx, o, bar)
	}
	results, err := rounds.InProcess(ctx, o, bar.callback())
	if err != nil {
		return nil, err
	}
	return rounds.Merge(o, version(), results), nil
}

func oneRank(ctx context.Context, o *rounds.Options, bar *progress) (*rounds.Report, error) {
	seat, err := rounds.Join(ctx, os.Getenv)
	if err != nil {
		return nil, err
	}
	g := seat.Group
	defer g.Close()
	if g.Rank() != 0 {
		bar = nil
	}
	results, own, err := rounds.OneRank(ctx, o, seat, bar.callback())
	if err != nil {
		return nil, err
	}
	if g.Rank() == 0 {
		return rounds.Merge(o, version(), results), nil
	}
	return nil, own
}

func finishJSON(cmd *cobra.Command, rep *rounds.Report) error {
	out, err := json.Marshal(rep)
	if err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s\n", out)
	return verdict(rep)
}

// verdict is the error behind exit code 1, nil if the run was right.
func verdict(rep *rounds.Report) error {
	if rep.Error != "" {
		return &wrongError{rep.Error}
	}
	return nil
}
