// Command compare runs moerail and the MPI peer in turn and states their ratio.
//
// Both carry out the same round: same shape, same layout, same copies and sums,
// both verified. In every turn each variant runs once, so that a noisy minute hits
// all alike; the figure of a variant is the median over the turns of its p50, and
// moerail is compared with the fastest MPI variant.
//
//	compare -tokens 1,128 -turns 5 -out bench/results/mpi.json
//	compare -tokens 1,128 -transports tcp -forms libfabric:tcp -out bench/results/mpi-tcp.json
//
// Build moerail first, and see bench/peers/mpi/README.md for what MPI needs.
// Exit codes: 0 compared, 1 a run failed or was wrong, 2 bad arguments.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"moerail/bench/peers/internal/turns"
)

// comparison is one shape: all variants, and moerail against the best peer.
type comparison struct {
	Shape    shape      `json:"shape"`
	Variants []*variant `json:"variants"`
	BestPeer string     `json:"best_peer"`
	// Peer is the best peer's median of p50 over the turns, in microseconds;
	// Ratios are it over that of each of moerail's forms, above 1 if moerail is faster.
	Peer   float64            `json:"peer_round_us"`
	Ratios map[string]float64 `json:"ratios"`
}

// record is the file that is kept.
type record struct {
	Format      string          `json:"format"`
	Date        string          `json:"date"`
	Commit      string          `json:"commit"`
	Command     []string        `json:"command"`
	Machine     turns.Machine   `json:"machine"`
	CopyBW      json.RawMessage `json:"copy_bandwidth,omitempty"`
	Comparisons []*comparison   `json:"comparisons"`
}

type options struct {
	shape          shape
	tokens         []int
	transports     []string
	forms          []string
	moerail        string
	script, out    string
	turns          int
	limit          time.Duration
	copyBW         bool
	stdout, stderr io.Writer
}

func main() {
	o, err := parse(os.Args[1:], os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		os.Exit(0)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "compare:", err)
		os.Exit(2)
	}
	o.stdout, o.stderr = os.Stdout, os.Stderr
	if err := compare(o); err != nil {
		fmt.Fprintln(os.Stderr, "compare:", err)
		os.Exit(1)
	}
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	f := flag.NewFlagSet("compare", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.IntVar(&o.shape.Ranks, "ranks", 8, "ranks")
	tokens := f.String("tokens", "1,128", "tokens per rank, one comparison each")
	f.IntVar(&o.shape.Experts, "experts", 256, "experts")
	f.IntVar(&o.shape.TopK, "top-k", 8, "experts per token")
	f.IntVar(&o.shape.Hidden, "hidden", 7168, "elements per token")
	f.StringVar(&o.shape.Layout, "layout", "rows", "rows or grouped")
	f.StringVar(&o.shape.Mode, "mode", "dedup", "dedup or per_expert")
	f.IntVar(&o.shape.Rounds, "rounds", 0, "rounds per run; 0 means 40 at 64 tokens and more, else 500")
	f.IntVar(&o.shape.Warmup, "warmup", 10, "untimed rounds before them")
	f.Uint64Var(&o.shape.Seed, "seed", 1, "routing seed")
	f.IntVar(&o.turns, "turns", 5, "runs of each variant")
	f.DurationVar(&o.limit, "limit", 2*time.Minute, "time limit of one run")
	f.StringVar(&o.moerail, "moerail", "bin/moerail", "the moerail binary")
	forms := f.String("forms", "direct,fabric,inproc-direct,inproc-fabric", "ways of moerail to try: "+formsHelp)
	f.StringVar(&o.script, "mpi", "bench/peers/mpi/run.sh", "the MPI peer's script")
	transports := f.String("transports", "vader,vader-copy,ucx", "MPI transports to try: vader, vader-copy, ucx, tcp")
	f.BoolVar(&o.copyBW, "copybw", true, "also measure this machine's copy bandwidth")
	f.StringVar(&o.out, "out", "", "write the record to this file")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	o.shape.Dtype = "bf16"
	for s := range strings.SplitSeq(*tokens, ",") {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			return o, fmt.Errorf("-tokens %q: want positive numbers", *tokens)
		}
		o.tokens = append(o.tokens, n)
	}
	o.transports = strings.Split(*transports, ",")
	o.forms = strings.Split(*forms, ",")
	for _, name := range o.forms {
		if _, ok := formOf(name); !ok {
			return o, fmt.Errorf("-forms %q: want %s", name, formsHelp)
		}
	}
	switch {
	case f.NArg() > 0:
		return o, fmt.Errorf("unexpected argument %q", f.Arg(0))
	case o.turns < 1:
		return o, fmt.Errorf("-turns %d: want at least 1", o.turns)
	case o.shape.Layout != "rows" && o.shape.Layout != "grouped":
		return o, fmt.Errorf("-layout %q: want rows or grouped", o.shape.Layout)
	case o.shape.Mode != "dedup" && o.shape.Mode != "per_expert":
		return o, fmt.Errorf("-mode %q: want dedup or per_expert", o.shape.Mode)
	}
	return o, nil
}

func compare(o options) error {
	dir, err := os.MkdirTemp("", "compare")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if out, err := exec.Command(o.script, "build").CombinedOutput(); err != nil {
		return fmt.Errorf("building the MPI peer: %w: %s", err, turns.LastLine(string(out)))
	}
	rec := record{Format: "moerail-compare/1", Date: time.Now().UTC().Format(time.RFC3339), Commit: turns.Commit(),
		Command: turns.Portable(append([]string{"compare"}, os.Args[1:]...)), Machine: turns.ThisMachine()}
	if o.copyBW {
		out, err := exec.Command(o.script, "copybw").Output()
		if err != nil || !json.Valid(out) {
			return fmt.Errorf("measuring the copy bandwidth: %v: %q", err, out)
		}
		rec.CopyBW = out
	}
	for _, tokens := range o.tokens {
		s := o.shape
		s.Tokens = tokens
		if s.Rounds == 0 {
			s.Rounds = 500
			if tokens >= 64 {
				s.Rounds = 40
			}
		}
		c, err := compareShape(o, dir, s)
		if err != nil {
			return err
		}
		rec.Comparisons = append(rec.Comparisons, c)
		printTable(o.stdout, c)
	}
	if o.out == "" {
		return nil
	}
	for _, c := range rec.Comparisons {
		for _, v := range c.Variants {
			v.Command = turns.Portable(v.Command)
		}
	}
	return turns.Save(o.out, rec)
}

func compareShape(o options, dir string, s shape) (*comparison, error) {
	var ours []*variant
	for _, name := range o.forms {
		f, _ := formOf(name)
		ours = append(ours, moerailVariant(o.moerail, f, s))
	}
	peers := mpiVariants(o.script, dir, o.transports, s)
	c := &comparison{Shape: s, Variants: append(slices.Clone(ours), peers...), Ratios: map[string]float64{}}
	for turn := range o.turns {
		for i := range c.Variants { // a different one begins each turn
			v := c.Variants[(i+turn)%len(c.Variants)]
			fmt.Fprintf(o.stderr, "%d tokens, turn %d of %d: %s\n", s.Tokens, turn+1, o.turns, v.Name)
			if err := v.run(o.limit); err != nil {
				return nil, err
			}
		}
	}
	round := func(s sample) float64 { return s.Round.P50 }
	for _, v := range peers {
		if m := v.median(round); c.BestPeer == "" || m < c.Peer {
			c.BestPeer, c.Peer = v.Name, m
		}
	}
	for _, v := range ours {
		c.Ratios[v.Name] = c.Peer / v.median(round)
	}
	return c, nil
}

func printTable(w io.Writer, c *comparison) {
	s := c.Shape
	fmt.Fprintf(w, "%d ranks, %d tokens, top-%d of %d, hidden %d, %s, %s, %s\n", s.Ranks, s.Tokens, s.TopK, s.Experts, s.Hidden, s.Dtype, s.Mode, s.Layout)
	fmt.Fprintf(w, "  %-22s %12s %12s %12s\n", "p50, us, median of runs", "dispatch", "combine", "round")
	for _, v := range c.Variants {
		fmt.Fprintf(w, "  %-23s %12.1f %12.1f %12.1f\n", v.Name,
			v.median(func(s sample) float64 { return s.Dispatch.P50 }),
			v.median(func(s sample) float64 { return s.Combine.P50 }),
			v.median(func(s sample) float64 { return s.Round.P50 }))
	}
	for _, v := range c.Variants {
		if r, ok := c.Ratios[v.Name]; ok {
			fmt.Fprintf(w, "  %s / %s = %.2f\n", c.BestPeer, v.Name, r)
		}
	}
}
