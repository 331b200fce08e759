package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"moerail/bench/peers/internal/turns"
)

// perftestSide runs ib_write_lat and ib_write_bw, one pair of processes for each
// size and each of the two.
func perftestSide(o *options) *side {
	p := perftest{gid: o.device, cpus: strings.Split(o.cpus, ","), counts: o}
	p.devices[0], p.devices[1], _ = strings.Cut(o.provider, ",")
	if p.devices[1] == "" {
		p.devices[1] = p.devices[0]
	}
	s := &side{Name: "perftest", sizes: o.counts.Sizes,
		Other: "plain writes: ib_write_lat looks at memory for the payload, ib_write_bw ends with the sender's completions"}
	s.Command = p.command("ib_write_lat", 1, "SIZE", "COUNT")
	s.measure = func(limit time.Duration) (figures []figure, err error) {
		for _, size := range o.counts.Sizes {
			f := figure{Bytes: size}
			if f.P50, err = p.run("ib_write_lat", size, fewer(o.counts.Samples, o.counts.SampleBytes, size, 100), limit, latencyColumn); err != nil {
				return nil, err
			}
			mib, err := p.run("ib_write_bw", size, fewer(o.counts.Burst, o.counts.BurstBytes, size, 100), limit, bandwidthColumn)
			if err != nil {
				return nil, err
			}
			f.BytesPerSecond = mib * (1 << 20)
			figures = append(figures, f)
		}
		return figures, nil
	}
	return s
}

func fewer(n, limit, size, least uint64) uint64 { return max(min(n, limit/size), least) }

type perftest struct {
	devices [2]string
	gid     string
	cpus    []string
	counts  *options
}

// Columns of perftest's line of results: #bytes #iterations t_min t_max t_typical ...
// and #bytes #iterations BW peak, BW average [MB/sec, of 2^20], ...
const (
	latencyColumn   = 4
	bandwidthColumn = 3
)

// command is that of the server (0) or the client (1), which talk over port.
func (p *perftest) command(program string, rank int, size, count string) []string {
	c := []string{program, "-d", p.devices[rank], "-x", p.gid, "-s", size, "-n", count, "-F"}
	if program == "ib_write_bw" {
		c = append(c, "-t", decimal(p.counts.counts.Window))
	}
	if len(p.cpus) == 2 {
		c = append([]string{"taskset", "-c", p.cpus[rank]}, c...)
	}
	return c
}

// run starts a server and a client for one size and reads one column of the
// client's result.
func (p *perftest) run(program string, size, count uint64, limit time.Duration, column int) (float64, error) {
	port, err := freePort()
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	args := func(rank int) []string {
		return append(p.command(program, rank, decimal(size), decimal(count)), "-p", strconv.Itoa(port))
	}
	server := args(0)
	cmd := exec.CommandContext(ctx, server[0], server[1:]...)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("%s, from the package perftest: %w", program, err)
	}
	out, err := clientOf(append(args(1), "127.0.0.1"), limit)
	if err != nil {
		cancel()
		_ = cmd.Wait()
		return 0, fmt.Errorf("%s of %d bytes: %w; the server said: %s", program, size, err, turns.LastLine(said.String()))
	}
	if err := cmd.Wait(); err != nil {
		return 0, fmt.Errorf("%s of %d bytes: server: %w: %s", program, size, err, turns.LastLine(said.String()))
	}
	v, err := parsePerftest(string(out), size, column)
	if err != nil {
		return 0, fmt.Errorf("%s of %d bytes: %w", program, size, err)
	}
	return v, nil
}

// clientOf tries again while the server is not yet there.
func clientOf(command []string, limit time.Duration) (out []byte, err error) {
	for range 50 {
		out, err = turns.Run(command, limit)
		if err == nil || !strings.Contains(err.Error()+string(out), "onnect") {
			return out, err
		}
		time.Sleep(100 * time.Millisecond)
	}
	return out, err
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// parsePerftest finds the line of results, which begins with the size.
func parsePerftest(out string, size uint64, column int) (float64, error) {
	for line := range strings.Lines(out) {
		fields := strings.Fields(line)
		if len(fields) <= column || fields[0] != decimal(size) {
			continue
		}
		if _, err := strconv.ParseUint(fields[1], 10, 64); err != nil {
			continue
		}
		v, err := strconv.ParseFloat(fields[column], 64)
		if err != nil || v <= 0 {
			return 0, fmt.Errorf("column %d of %q is no figure", column+1, strings.TrimSpace(line))
		}
		return v, nil
	}
	return 0, fmt.Errorf("no line of results for %d bytes", size)
}
