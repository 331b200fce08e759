package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"moerail/bench/micro"
	"moerail/bench/peers/internal/turns"
)

// figure is one size in one run. A side that has one of the two only has 0 for the
// other.
type figure struct {
	Bytes          uint64  `json:"bytes"`
	P50            float64 `json:"p50_us"`
	P99            float64 `json:"p99_us,omitempty"`
	BytesPerSecond float64 `json:"bytes_per_second"`
	Messages       int     `json:"messages,omitempty"` // of a burst
	Samples        int     `json:"samples,omitempty"`  // of latency
}

// side is one way of doing the writes.
type side struct {
	Name    string     `json:"name"`
	Command []string   `json:"command"`
	Library string     `json:"library,omitempty"`
	Runs    [][]figure `json:"runs"`
	// Other says that a side measures something a little different: it is shown, and
	// is no peer for bars.
	Other string `json:"differs,omitempty"`

	sizes   []uint64
	measure func(limit time.Duration) ([]figure, error)
}

// run carries the side out once and keeps its figures.
func (s *side) run(limit time.Duration) error {
	figures, err := s.measure(limit)
	if err != nil {
		return err
	}
	if len(figures) != len(s.sizes) {
		return fmt.Errorf("%d sizes in the result, want %d", len(figures), len(s.sizes))
	}
	for i, f := range figures {
		if f.Bytes != s.sizes[i] || f.P50 <= 0 || f.BytesPerSecond <= 0 {
			return fmt.Errorf("size %d in the result is %+v, want figures of %d bytes", i, f, s.sizes[i])
		}
	}
	s.Runs = append(s.Runs, figures)
	return nil
}

// median is over the runs, of one figure of size i.
func (s *side) median(i int, of func(figure) float64) float64 {
	xs := make([]float64, len(s.Runs))
	for r, run := range s.Runs {
		xs[r] = of(run[i])
	}
	return turns.Median(xs)
}

const rawSide = "raw"

func newSides(o *options) ([]*side, error) {
	var sides []*side
	for _, level := range o.levels {
		sides = append(sides, moerailSide(o, level))
	}
	if o.provider == "" {
		// moerail knows which of the library's providers stands behind a name.
		provider, err := reportedProvider(o)
		if err != nil {
			return nil, err
		}
		o.provider = rawName(provider)
	}
	if o.device == "" && overTCP(o.provider) {
		o.device = "lo"
	}
	sides = append([]*side{newRawSide(o)}, sides...)
	if o.perftest {
		sides = append(sides, perftestSide(o))
	}
	return sides, nil
}

func moerailCommand(o *options, level string, sizes string) []string {
	c := &o.counts
	return []string{o.moerail, "bench", "write", "--json", "--fabric", o.fabric, "--level", level, "--sizes", sizes, "--cpus", o.cpus,
		"--window", decimal(c.Window), "--samples", decimal(c.Samples), "--sample-bytes", decimal(c.SampleBytes),
		"--burst", decimal(c.Burst), "--burst-bytes", decimal(c.BurstBytes), "--bursts", decimal(c.Bursts),
		"--warmup", decimal(c.Warmup), "--span", decimal(c.Span)}
}

func moerailSide(o *options, level string) *side {
	s := &side{Name: "moerail " + level, Command: moerailCommand(o, level, o.sizes), sizes: o.counts.Sizes}
	s.measure = func(limit time.Duration) ([]figure, error) {
		out, err := turns.Run(s.Command, limit)
		if err != nil {
			return nil, err
		}
		figures, provider, err := decode(out, "moerail-bench/1")
		s.Library = provider
		return figures, err
	}
	return s
}

func newRawSide(o *options) *side {
	c := &o.counts
	sizes := make([]string, len(c.Sizes))
	for i, n := range c.Sizes {
		sizes[i] = decimal(n)
	}
	s := &side{Name: rawSide, sizes: c.Sizes}
	s.Command = []string{o.raw, "-p", o.provider, "-s", strings.Join(sizes, ","), "-c", o.cpus, "-W", decimal(c.Window),
		"-n", decimal(c.Samples), "-N", decimal(c.SampleBytes), "-b", decimal(c.Burst), "-B", decimal(c.BurstBytes), "-r", decimal(c.Bursts),
		"-w", decimal(c.Warmup), "-S", decimal(c.Span), "-T", decimal(int(o.limit.Seconds()))}
	if o.device != "" {
		s.Command = append(s.Command, "-I", o.device)
	}
	s.measure = func(limit time.Duration) ([]figure, error) {
		out, err := turns.Run(s.Command, limit)
		if err != nil {
			return nil, err
		}
		figures, library, err := decode(out, "raw-write/1")
		s.Library = library
		return figures, err
	}
	return s
}

// reportedProvider makes a run of one size to hear which provider it was.
func reportedProvider(o *options) (string, error) {
	small := *o
	small.counts.Samples, small.counts.Burst, small.counts.Bursts = 100, uint64(o.counts.Window), 1
	out, err := turns.Run(moerailCommand(&small, string(micro.LevelDomain), "8"), o.limit)
	if err != nil {
		return "", fmt.Errorf("moerail: %w", err)
	}
	_, provider, err := decode(out, "moerail-bench/1")
	return provider, err
}

// decode reads what moerail or a raw program printed, and which library or provider
// it names.
func decode(b []byte, format string) ([]figure, string, error) {
	var r struct {
		Format   string             `json:"format"`
		Verified bool               `json:"verified"`
		Provider string             `json:"provider"`
		Library  string             `json:"library"`
		Device   string             `json:"device"`
		Sizes    []micro.SizeResult `json:"sizes"`
	}
	if err := json.Unmarshal(b, &r); err != nil {
		return nil, "", fmt.Errorf("its JSON: %w", err)
	}
	switch {
	case r.Format != format:
		return nil, "", fmt.Errorf("format %q, want %q", r.Format, format)
	case !r.Verified:
		return nil, "", fmt.Errorf("the run was not verified; its times mean nothing")
	}
	figures := make([]figure, len(r.Sizes))
	for i, s := range r.Sizes {
		figures[i] = figure{s.Bytes, s.Latency.P50, s.Latency.P99, s.Bandwidth.BytesPerSecond, s.Bandwidth.Messages, s.Latency.Samples}
	}
	name := r.Provider
	if r.Library != "" {
		name = strings.TrimSpace(r.Library + ", " + r.Provider + " on " + r.Device)
	}
	return figures, name, nil
}
