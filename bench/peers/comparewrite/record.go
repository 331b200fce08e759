package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"moerail/bench/peers/internal/turns"
)

// record is the file that is kept.
type record struct {
	Format  string        `json:"format"` // moerail-compare-write/1
	Date    string        `json:"date"`
	Commit  string        `json:"commit"`
	Command []string      `json:"command"`
	Machine turns.Machine `json:"machine"`
	Fabric  string        `json:"fabric"`
	Turns   int           `json:"turns"`
	// Sizes has the medians over the turns; ratios are moerail over raw, so that
	// latency is better below 1 and bandwidth above.
	Sizes []sizeRow `json:"sizes"`
	Bars  bars      `json:"bars"`
	Sides []*side   `json:"sides"`
}

type bars struct {
	LatencyAtMost    float64 `json:"latency_at_most"`
	BandwidthAtLeast float64 `json:"bandwidth_at_least"`
}

type sizeRow struct {
	Bytes uint64  `json:"bytes"`
	Sides []entry `json:"sides"`
}

type entry struct {
	Side           string  `json:"side"`
	P50            float64 `json:"p50_us"`
	BytesPerSecond float64 `json:"bytes_per_second"`
	LatencyRatio   float64 `json:"latency_ratio,omitempty"`
	BandwidthRatio float64 `json:"bandwidth_ratio,omitempty"`
}

// newRecord takes the medians. It fails if two sides did not measure the same
// counts.
func newRecord(o options, sides []*side) (*record, error) {
	rec := &record{Format: "moerail-compare-write/1", Date: time.Now().UTC().Format(time.RFC3339), Commit: turns.Commit(),
		Command: turns.Portable(append([]string{"comparewrite"}, os.Args[1:]...)), Machine: turns.ThisMachine(),
		Fabric: o.fabric, Turns: o.turns, Bars: bars{latencyAtMost, bandwidthAtLeast}, Sides: sides}
	raw := sides[0]
	for i, size := range o.counts.Sizes {
		row := sizeRow{Bytes: size}
		base := raw.Runs[0][i]
		for _, s := range sides {
			f := s.Runs[0][i]
			if s.Other == "" && (f.Samples != base.Samples || f.Messages != base.Messages) {
				return nil, fmt.Errorf("%d bytes: %s took %d samples and bursts of %d, %s %d and %d", size, s.Name, f.Samples, f.Messages, raw.Name, base.Samples, base.Messages)
			}
			e := entry{Side: s.Name, P50: s.median(i, func(f figure) float64 { return f.P50 }),
				BytesPerSecond: s.median(i, func(f figure) float64 { return f.BytesPerSecond })}
			if s != raw {
				e.LatencyRatio = e.P50 / row.Sides[0].P50
				e.BandwidthRatio = e.BytesPerSecond / row.Sides[0].BytesPerSecond
			}
			row.Sides = append(row.Sides, e)
		}
		rec.Sizes = append(rec.Sizes, row)
	}
	for _, s := range sides {
		s.Command = turns.Portable(s.Command)
	}
	return rec, nil
}

// missed lists where a side is beyond the bars.
func (r *record) missed(side string) (out []string) {
	for _, row := range r.Sizes {
		for _, e := range row.Sides {
			if e.Side != side {
				continue
			}
			if e.LatencyRatio > latencyAtMost {
				out = append(out, fmt.Sprintf("%d bytes: latency %.2f x", row.Bytes, e.LatencyRatio))
			}
			if e.BandwidthRatio < bandwidthAtLeast {
				out = append(out, fmt.Sprintf("%d bytes: bandwidth %.2f x", row.Bytes, e.BandwidthRatio))
			}
		}
	}
	return out
}

func (r *record) print(w io.Writer) {
	fmt.Fprintf(w, "%s beside %s: medians of %d turns, ratio to raw\n", r.Fabric, r.Sides[0].Library, r.Turns)
	for _, part := range []struct {
		title string
		cell  func(entry) (value, ratio float64)
	}{
		{"p50 one way, us", func(e entry) (float64, float64) { return e.P50, e.LatencyRatio }},
		{"bandwidth, MB/s", func(e entry) (float64, float64) { return e.BytesPerSecond / 1e6, e.BandwidthRatio }},
	} {
		fmt.Fprintf(w, "  %-16s", part.title)
		for _, s := range r.Sides {
			fmt.Fprintf(w, " %20s", s.Name)
		}
		fmt.Fprintln(w)
		for _, row := range r.Sizes {
			fmt.Fprintf(w, "  %-16d", row.Bytes)
			for _, e := range row.Sides {
				value, ratio := part.cell(e)
				text := fmt.Sprintf("%.2f", value)
				if ratio > 0 {
					text = fmt.Sprintf("%.2f (%.2f)", value, ratio)
				}
				fmt.Fprintf(w, " %20s", text)
			}
			fmt.Fprintln(w)
		}
	}
	for _, s := range r.Sides {
		if s.Other != "" {
			fmt.Fprintf(w, "  %s: %s\n", s.Name, s.Other)
		}
	}
}
