package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// shape is a small job: emulation is some ten times slower than the machine.
func shape(ranks, nics int) []string {
	return []string{"run", "--json", "--fabric", "verbs", "--ranks", fmt.Sprint(ranks), "--experts", fmt.Sprint(2 * ranks), "--top-k", "3",
		"--hidden", "256", "--tokens", "16", "--dtype", "bf16", "--nics", fmt.Sprint(nics)}
}

// report is what is read of moerail run's document.
type report struct {
	Format      string
	Verified    bool
	Rounds      int
	Error       string
	Outstanding int
	Config      struct {
		Fabric string
		NICs   int
	}
	Round struct{ P50 float64 }
	Paths []struct{ Path string }
}

// judge wants a verified run that went over the fabric alone.
func (r *report) judge(ranks, nics, rounds int) error {
	switch {
	case r.Format != "moerail-run/1" || !r.Verified || r.Error != "":
		return fmt.Errorf("format %q, verified %v, error %q", r.Format, r.Verified, r.Error)
	case r.Rounds != rounds:
		return fmt.Errorf("%d rounds, want %d", r.Rounds, rounds)
	case r.Config.Fabric != "verbs" || r.Config.NICs != nics:
		return fmt.Errorf("fabric %q with %d NICs, want verbs with %d", r.Config.Fabric, r.Config.NICs, nics)
	case r.Outstanding != 0:
		return fmt.Errorf("%d operations are outstanding after the rounds", r.Outstanding)
	case len(r.Paths) != ranks*(ranks-1):
		return fmt.Errorf("%d paths between %d ranks", len(r.Paths), ranks)
	}
	for _, p := range r.Paths {
		if !strings.HasPrefix(p.Path, "verbs") {
			return fmt.Errorf("a path is %q, want verbs", p.Path)
		}
	}
	return nil
}

// rounds runs a job of processes, with devices in turn, and wants it verified and
// its packets on the devices.
func (s *suite) rounds(ctx context.Context, ranks, nics int) (string, error) {
	const rounds = 10
	before := s.packets()
	var r report
	args := append(shape(ranks, nics), "--launch", "processes", "--rounds", fmt.Sprint(rounds), "--warmup", "2")
	if err := s.document(ctx, nil, &r, args...); err != nil {
		return "", err
	}
	if err := r.judge(ranks, nics, rounds); err != nil {
		return "", err
	}
	used := 0
	for i, n := range s.packets() {
		if n > before[i] {
			used++
		}
	}
	if want := min(ranks*nics, len(s.devices)); used < want {
		return "", fmt.Errorf("packets left by %d devices, want %d", used, want)
	}
	return fmt.Sprintf("%d rounds verified, p50 %.1f ms a round, %d devices used", r.Rounds, r.Round.P50/1000, used), nil
}

// packets counts what each device has sent. One whose driver does not count gives
// 0 for ever.
func (s *suite) packets() []uint64 {
	out := make([]uint64, len(s.devices))
	for i, d := range s.devices {
		b, _ := os.ReadFile(filepath.Join(s.lookDir, "class/infiniband", d.name, "ports/1/hw_counters/sent_pkts"))
		out[i], _ = strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	}
	return out
}

// rank is one process of a job that the suite launches itself.
type rank struct {
	cmd       *exec.Cmd
	out, errs bytes.Buffer
	end       ended
	err       error
	done      chan struct{}
}

// launch starts one process for each rank, as a launcher of another kind would:
// there is no common parent that could know of a rank's end.
func (s *suite) launch(ctx context.Context, ranks int, args []string) ([]*rank, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	job := make([]*rank, ranks)
	for i := range job {
		r := &rank{done: make(chan struct{})}
		env := []string{"RANK=" + fmt.Sprint(i), "LOCAL_RANK=" + fmt.Sprint(i), "WORLD_SIZE=" + fmt.Sprint(ranks), "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + port,
			"MOERAIL_SECRET=of this VM"}
		r.cmd = s.command(ctx, env, "moerail", append(args, "--launch", "env")...)
		r.cmd.Stdout, r.cmd.Stderr = &r.out, &r.errs
		// The kernel takes the end of a thread for the parent's, and Go ends
		// threads; the context, and the VM's end, are enough.
		r.cmd.SysProcAttr.Pdeathsig = 0
		if err := r.cmd.Start(); err != nil {
			return nil, err // the context ends those that run
		}
		go func() {
			defer close(r.done)
			r.end, r.err = finish(ctx, r.cmd, r.cmd.Wait(), &r.out, &r.errs)
		}()
		job[i] = r
	}
	return job, nil
}

func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, errors.Join(err, l.Close())
}

// What devices send until the ranks are connected, and until rounds have been
// running for a while.
const (
	connected = 300
	midRounds = 3000
)

// underWay waits until the devices of the job's ranks have sent many packets.
func (s *suite) underWay(ctx context.Context, job []*rank, before []uint64, many uint64) error {
	for {
		ready := true
		for i, n := range s.packets()[:min(len(job), len(s.devices))] {
			ready = ready && n >= before[i]+many
		}
		if ready {
			return nil
		}
		for i, r := range job {
			select {
			case <-r.done:
				return fmt.Errorf("rank %d ended before the rounds were under way: exit code %d: %s", i, r.end.code, lastLines(r.end.stderr, 3))
			default:
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the rounds were not under way in time: packets %v, before %v", s.packets(), before)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

const endless = "1000000"

// kill ends rank 2 of a job without a word, in mid-rounds. Every other rank has to end with exit
// code 1 and an error that names rank 2, within two deadlines.
func (s *suite) kill(ctx context.Context) (string, error) {
	const ranks, victim = 4, 2
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	before := s.packets()
	job, err := s.launch(ctx, ranks, append(shape(ranks, 1), "--rounds", endless, "--deadline", s.patient(s.deadline).String()))
	if err != nil {
		return "", err
	}
	if err := s.underWay(ctx, job, before, midRounds); err != nil {
		return "", err
	}
	if err := syscall.Kill(job[victim].cmd.Process.Pid, syscall.SIGKILL); err != nil {
		return "", err
	}
	killed := time.Now()
	grace := s.patient(2*s.deadline + s.slack)
	var slowest time.Duration
	said := ""
	for i, r := range job {
		select {
		case <-r.done:
		case <-time.After(time.Until(killed.Add(grace))):
			return "", fmt.Errorf("rank %d has not ended %v after rank %d was killed", i, grace, victim)
		}
		slowest = max(slowest, time.Since(killed))
		if i == victim {
			continue
		}
		if r.end.code != 1 || !strings.Contains(r.end.stderr, fmt.Sprintf("rank %d", victim)) {
			return "", fmt.Errorf("rank %d ended with exit code %d and said %q, want 1 and the name of rank %d", i, r.end.code, lastLines(r.end.stderr, 3), victim)
		}
		said = lastLines(r.end.stderr, 1)
		if strings.Contains(said, "round 0") {
			return "", fmt.Errorf("rank %d was killed in round 0, before the rounds were under way: %q", victim, said)
		}
	}
	return fmt.Sprintf("all ended %.1f s after it: %q", slowest.Seconds(), said), nil
}

// link takes the link of one device down for a moment while rounds run. The run
// has to end verified, or at once with an error that names the device; it must not
// hang or give wrong results. Afterwards the same job has to run again.
func (s *suite) link(ctx context.Context) (string, error) {
	const ranks, rounds = 4, 150
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	victim := s.devices[min(1, len(s.devices)-1)]
	before := s.packets()
	job, err := s.launch(ctx, ranks, append(shape(ranks, 1), "--rounds", fmt.Sprint(rounds), "--deadline", s.patient(s.deadline).String()))
	if err != nil {
		return "", err
	}
	if err := s.underWay(ctx, job, before, connected); err != nil {
		return "", err
	}
	if err := s.protodown(ctx, victim, "on"); err != nil {
		return "", err
	}
	// Whatever comes, the link is up again for the steps to follow.
	defer func() { _ = s.protodown(context.WithoutCancel(ctx), victim, "off") }()
	if state := s.portState(victim); strings.Contains(state, "ACTIVE") {
		return "", fmt.Errorf("%s is %s although its link was taken down", victim.name, state)
	}
	select {
	case <-time.After(300 * time.Millisecond): // how long the link is down, not a wait for something
	case <-ctx.Done():
	}
	if err := s.protodown(ctx, victim, "off"); err != nil {
		return "", err
	}
	verified, named := false, ""
	for i, r := range job {
		select {
		case <-r.done:
		case <-ctx.Done():
			return "", fmt.Errorf("rank %d has not ended", i)
		}
		switch {
		case r.err != nil:
			return "", r.err
		case r.end.code == 0 && i == 0:
			var doc report
			if err := json.Unmarshal([]byte(r.end.stdout), &doc); err != nil {
				return "", fmt.Errorf("rank 0: its output is not one JSON document: %w", err)
			}
			if err := doc.judge(ranks, 1, rounds); err != nil {
				return "", fmt.Errorf("rank 0: %w", err)
			}
			verified = true
		case r.end.code == 1:
			if strings.Contains(r.end.stderr, victim.name) {
				named = lastLines(r.end.stderr, 1)
			}
		case r.end.code != 0:
			return "", fmt.Errorf("rank %d ended with exit code %d: %s", i, r.end.code, lastLines(r.end.stderr, 3))
		}
	}
	outcome := "the run went on, verified"
	if !verified {
		if named == "" {
			var said []string
			for i, r := range job {
				said = append(said, fmt.Sprintf("rank %d: %d %q", i, r.end.code, lastLines(r.end.stderr, 3)))
			}
			return "", fmt.Errorf("the run ended and no rank named %s; exit codes and last words: %s", victim.name, strings.Join(said, "; "))
		}
		outcome = fmt.Sprintf("the run ended: %q", named)
	}
	again, err := s.rounds(ctx, ranks, 1)
	if err != nil {
		return outcome, fmt.Errorf("with the link up again: %w", err)
	}
	return outcome + "; with the link up again: " + again, nil
}

func (s *suite) protodown(ctx context.Context, d device, to string) error {
	e, err := s.run(ctx, nil, "ip", "link", "set", d.iface, "protodown", to)
	if err == nil && e.code != 0 {
		err = fmt.Errorf("ip link set %s protodown %s: exit code %d: %s", d.iface, to, e.code, lastLines(e.stderr, 3))
	}
	return err
}

func (s *suite) portState(d device) string {
	b, err := os.ReadFile(filepath.Join(s.lookDir, "class/infiniband", d.name, "ports/1/state"))
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(b))
}
