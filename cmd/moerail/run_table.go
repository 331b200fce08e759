package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"

	"moerail/cmd/moerail/internal/rounds"
)

// printReport shows a report to people.
func printReport(w io.Writer, rep *rounds.Report) {
	c := &rep.Config
	fmt.Fprintf(w, "%d ranks (%s, %s over %s), %d experts, top-%d, hidden %d, %s -> %s, %s, reduce at %s\n",
		c.Ranks, c.Launch, c.Device, c.Fabric, c.Experts, c.TopK, c.Hidden, c.DType, c.OutDType, c.Layout, c.Reduce)
	fmt.Fprintf(w, "%s tokens a rank, routing %s, %d slot(s), %d NIC(s), seed %d\n",
		tokenText(c.Tokens), c.Routing, c.Slots, c.NICs, c.Seed)
	fmt.Fprintf(w, "%s, %d cores, Linux %s, %s; moerail %s\n\n",
		rep.Machine.CPU, rep.Machine.Cores, rep.Machine.Kernel, rep.Machine.Go, rep.Version)
	if rep.Rounds > 0 {
		printTimes(w, rep)
		printWire(w, rep)
	}
	switch {
	case rep.Error != "":
		fmt.Fprintf(w, "FAILED after %d measured rounds\n", rep.Rounds)
	case rep.Verified:
		what := "every output of every round, warm-up included,"
		if c.Verify == "sample" {
			what = "a sample of the outputs of the warm-up and of a round after the measured ones"
		}
		fmt.Fprintf(w, "verified: %s is what the definition says\n", what)
	default:
		fmt.Fprintln(w, "not verified: --verify off")
	}
}

func printTimes(w io.Writer, rep *rounds.Report) {
	t := table.NewWriter()
	t.SetOutputMirror(w)
	t.SetStyle(table.StyleLight)
	t.AppendHeader(table.Row{"us, slowest rank", "p50", "p90", "p99", "max"})
	row := func(name string, v rounds.Times) {
		t.AppendRow(table.Row{name, micros(v.P50), micros(v.P90), micros(v.P99), micros(v.Max)})
	}
	for _, name := range []string{"dispatch_send", "dispatch_recv", "combine_send", "combine_recv"} {
		row(name, rep.Phases[name])
	}
	t.AppendSeparator()
	row("dispatch", rep.Dispatch)
	row("combine", rep.Combine)
	row("round", rep.Round)
	t.SetCaption("%d rounds", rep.Rounds)
	t.Render()
}

func printWire(w io.Writer, rep *rounds.Report) {
	wire := &rep.Wire
	fmt.Fprintf(w, "wire, a round: %.6g messages, %.6g bytes, %.6g rows of %d bytes", wire.Messages, wire.Bytes, wire.Rows, wire.RowBytes)
	if bound := rep.LowerBound(); bound > 0 {
		fmt.Fprintf(w, "; %.4f x the payload of these rows, both ways", wire.Bytes/bound)
	}
	fmt.Fprintf(w, "\nrows, a round: %.6g unique (own rank's included), %.6g picks, busiest expert %.2f x the mean; %.6g bytes stayed local\n",
		wire.UniqueRows, wire.ExpertRows, rep.ExpertLoad.MaxOverMean, wire.LocalBytes)
	p := &rep.Proxy
	fmt.Fprintf(w, "proxies, a round: %.6g steps, %v busy, %.6g posts, %.6g doorbells\n",
		p.Steps, time.Duration(p.BusyNanos).Round(time.Microsecond/10), p.Posts, p.Doorbells)
	fmt.Fprintf(w, "allocations, a round: %d; operations outstanding after rounds: %d; paths: %s\n",
		rep.AllocsPerRound, rep.Outstanding, pathText(rep.Paths))
}

func micros(v float64) string { return fmt.Sprintf("%.1f", v) }

// tokenText is "128", or the list where ranks differ.
func tokenText(tokens []int) string {
	text := make([]string, len(tokens))
	same := true
	for p, n := range tokens {
		text[p] = fmt.Sprint(n)
		same = same && n == tokens[0]
	}
	if same {
		return text[0]
	}
	return strings.Join(text, ",")
}

// pathText counts the pairs of ranks by path, in order of first appearance.
func pathText(paths []rounds.Path) string {
	var order []string
	count := map[string]int{}
	for _, p := range paths {
		if count[p.Path]++; count[p.Path] == 1 {
			order = append(order, p.Path)
		}
	}
	if len(order) == 0 {
		return "none, one rank"
	}
	for i, name := range order {
		order[i] = fmt.Sprintf("%s x%d", name, count[name])
	}
	return strings.Join(order, ", ")
}
