package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// row is one figure of one program. Emulation makes absolute figures worthless;
// programs of one row of the table ran in turn, so that ratios say something.
type row struct {
	What    string    `json:"what"`  // "latency" in us, p50 one way; "bandwidth" in MB/s, 1e6 bytes
	Bytes   int       `json:"bytes"` // of a write
	Program string    `json:"program"`
	Median  float64   `json:"median"`
	Turns   []float64 `json:"turns"`
}

const (
	latency   = "latency"
	bandwidth = "bandwidth"
	turns     = 3
)

// The sizes of perftest's own figures, and of a token's row.
var (
	latencySizes   = []int{2, 4096}
	bandwidthSizes = []int{4096, 65536}
)

// figures runs perftest, the raw library and moerail in turn.
func (s *suite) figures(ctx context.Context) (string, error) {
	if len(s.devices) < 2 {
		return "", errors.New("needs two devices")
	}
	all := map[string]*row{}
	var order []string
	add := func(what string, bytes int, program string, v float64) {
		key := fmt.Sprint(what, bytes, program)
		r := all[key]
		if r == nil {
			r = &row{What: what, Bytes: bytes, Program: program}
			all[key] = r
			order = append(order, key)
		}
		r.Turns = append(r.Turns, v)
	}
	for range turns {
		for _, n := range latencySizes {
			v, err := s.perftest(ctx, "ib_write_lat", n, 500, "t_typical[usec]")
			if err != nil {
				return "", err
			}
			add(latency, n, "ib_write_lat", v)
		}
		for _, n := range bandwidthSizes {
			// Its bandwidths have two digits; the rate of messages has more.
			v, err := s.perftest(ctx, "ib_write_bw", n, 500, "MsgRate[Mpps]")
			if err != nil {
				return "", err
			}
			add(bandwidth, n, "ib_write_bw", v*float64(n))
		}
		for _, p := range []struct{ program, level string }{{"raw_write_verbs", ""}, {"domain", "domain"}, {"worker", "worker"}, {"engine", "engine"}} {
			got, err := s.writes(ctx, p.level)
			if err != nil {
				return "", fmt.Errorf("%s: %w", p.program, err)
			}
			for _, size := range got.Sizes {
				if slices.Contains(latencySizes, size.Bytes) {
					add(latency, size.Bytes, p.program, size.Latency.P50)
				}
				if slices.Contains(bandwidthSizes, size.Bytes) {
					add(bandwidth, size.Bytes, p.program, size.Bandwidth.Rate/1e6)
				}
			}
		}
	}
	for _, key := range order {
		r := all[key]
		sorted := slices.Clone(r.Turns)
		slices.Sort(sorted)
		r.Median = sorted[len(sorted)/2]
		s.rows = append(s.rows, *r)
	}
	slices.SortStableFunc(s.rows, func(a, b row) int {
		if c := strings.Compare(b.What, a.What); c != 0 { // latency first
			return c
		}
		return a.Bytes - b.Bytes
	})
	return fmt.Sprintf("%d figures, %d turns each", len(s.rows), turns), nil
}

// written is what is read of the documents of bench write and raw_write.
type written struct {
	Verified bool
	Sizes    []writtenSize
}

type writtenSize struct {
	Bytes   int
	Latency struct {
		P50 float64 `json:"p50"`
	} `json:"latency_us"`
	Bandwidth struct {
		Rate float64 `json:"bytes_per_second"`
	}
}

// writes measures writes with immediate between the first devices of two nodes:
// level says by what of moerail, "" by the raw library.
func (s *suite) writes(ctx context.Context, level string) (*written, error) {
	a, b := s.pair()
	sizes := strings.Trim(strings.ReplaceAll(fmt.Sprint(union(latencySizes, bandwidthSizes)), " ", ","), "[]")
	var e ended
	var err error
	if level == "" {
		e, err = s.run(ctx, nil, "raw_write_verbs", "-p", a.name+","+b.name, "-I", "1", "-s", sizes, "-n", "300", "-b", "300", "-r", "3", "-w", "20", "-T", "60")
	} else {
		e, err = s.run(ctx, []string{"MOERAIL_NICS=" + a.name + "," + b.name}, "moerail", "bench", "write", "--json", "--fabric", "verbs", "--level", level,
			"--sizes", sizes, "--samples", "300", "--burst", "300", "--bursts", "3", "--warmup", "20")
	}
	if err != nil {
		return nil, err
	}
	if e.code != 0 {
		return nil, fmt.Errorf("exit code %d: %s", e.code, lastLines(e.stderr, 3))
	}
	var w written
	if err := json.Unmarshal([]byte(e.stdout), &w); err != nil {
		return nil, fmt.Errorf("its output is not one JSON document: %w", err)
	}
	if level != "" && !w.Verified {
		return nil, errors.New("the bytes were not verified")
	}
	for _, want := range union(latencySizes, bandwidthSizes) {
		if !slices.ContainsFunc(w.Sizes, func(size writtenSize) bool {
			return size.Bytes == want && size.Latency.P50 > 0 && size.Bandwidth.Rate > 0
		}) {
			return nil, fmt.Errorf("it has no figures of %d bytes", want)
		}
	}
	return &w, nil
}

func union(a, b []int) []int {
	out := append(slices.Clone(a), b...)
	slices.Sort(out)
	return slices.Compact(out)
}

// pair is the first device and the first one of another node.
func (s *suite) pair() (a, b device) {
	a, b = s.devices[0], s.devices[1]
	if i := slices.IndexFunc(s.devices, func(d device) bool { return d.node != a.node }); i > 0 {
		b = s.devices[i]
	}
	return a, b
}

// perftest runs one of its programs, a server and a client, and returns a column.
func (s *suite) perftest(ctx context.Context, program string, size, iters int, column string) (float64, error) {
	if _, err := exec.LookPath(program); err != nil {
		return 0, fmt.Errorf("%s is not here (Debian: perftest)", program)
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	a, b := s.pair()
	port, err := freePort()
	if err != nil {
		return 0, err
	}
	args := []string{"-F", "-x", "1", "-s", fmt.Sprint(size), "-n", fmt.Sprint(iters), "-p", port}
	server := s.command(ctx, nil, program, append(args, "-d", b.name)...)
	server.SysProcAttr.Pdeathsig = 0
	if err := server.Start(); err != nil {
		return 0, err
	}
	defer func() {
		cancel()
		_ = server.Wait()
	}()
	// The client gives up at once if nobody listens yet.
	for {
		e, err := s.run(ctx, nil, program, append(args, "-d", a.name, "127.0.0.1")...)
		switch {
		case err != nil:
			return 0, err
		case e.code == 0:
			return perftestColumn(e.stdout, size, column)
		case !strings.Contains(e.stdout+e.stderr, "Couldn't connect"):
			return 0, fmt.Errorf("%s: exit code %d: %s", program, e.code, lastLines(e.stdout+e.stderr, 5))
		}
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("%s: no server: %s", program, lastLines(e.stdout+e.stderr, 3))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// perftestColumn finds the row of a size and the column of a name in a table whose
// columns are two or more spaces apart.
func perftestColumn(text string, size int, column string) (float64, error) {
	at := -1
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "#bytes") {
			at = slices.Index(columns(line), column)
			continue
		}
		fields := strings.Fields(line)
		if at < 0 || len(fields) <= at || fields[0] != strconv.Itoa(size) {
			continue
		}
		v, err := strconv.ParseFloat(fields[at], 64)
		if err != nil || !(v > 0) {
			return 0, fmt.Errorf("perftest says %q for %s of %d bytes", fields[at], column, size)
		}
		return v, nil
	}
	return 0, fmt.Errorf("perftest printed no column %s for %d bytes: %s", column, size, lastLines(text, 5))
}

// columns splits a head. Names hold single spaces; where they are only one space
// apart, as "#bytes #iterations", a # begins the next.
func columns(head string) []string {
	head = strings.ReplaceAll(strings.ReplaceAll(head, "\t", "  "), " #", "  #")
	var out []string
	for part := range strings.SplitSeq(head, "  ") {
		if part = strings.TrimSpace(part); part != "" {
			out = append(out, part)
		}
	}
	return out
}

func printFigures(w io.Writer, rows []row) {
	if len(rows) == 0 {
		return
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "figure\tbytes\tprogram\tmedian\tunit\tof perftest\tof raw\t")
	base := func(r row, suffix string) string {
		i := slices.IndexFunc(rows, func(o row) bool {
			return o.What == r.What && o.Bytes == r.Bytes && strings.HasPrefix(o.Program, suffix)
		})
		if i < 0 || rows[i].Median == 0 {
			return "-"
		}
		return fmt.Sprintf("%.2f x", r.Median/rows[i].Median)
	}
	for _, r := range rows {
		unit := "us"
		if r.What == bandwidth {
			unit = "MB/s"
		}
		fmt.Fprintf(t, "%s\t%d\t%s\t%.1f\t%s\t%s\t%s\t\n", r.What, r.Bytes, r.Program, r.Median, unit, base(r, "ib_write"), base(r, "raw_write"))
	}
	t.Flush()
}
