package rounds

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"moerail/cmd/moerail/internal/fabrics"
	"moerail/peergroup"
)

// envListener tells the process of rank 0 that it inherits a listening socket,
// as descriptor inheritedFD: nobody can take the port in between.
const (
	envListener = "MOERAIL_LISTEN_INHERITED"
	inheritedFD = 3
)

// childGrace, and two phases' deadlines, is what children get to end by
// themselves.
const childGrace = 5 * time.Second

// ChildError is a rank's process that did not end well.
type ChildError struct {
	Rank   int
	Code   int      // its exit code, -1 if a signal ended it
	Reason string   // what it said, or how it ended
	Others []string // what the others said that failed after it
}

func (e *ChildError) Error() string { return fmt.Sprintf("rank %d: %s", e.Rank, e.Reason) }

// Processes runs every rank as a process of its own: program with the flags of
// o, launched by environment. It returns the report that rank 0 wrote. No child
// outlives this process, nor ctx.
//
// When a child fails the others have their own deadlines to notice by
// themselves and say so; then they are killed.
func Processes(ctx context.Context, program string, o *Options) (*Report, error) {
	// What is sure to fail in every child fails here once, in one line.
	if _, err := o.openFabric(ctx, nil); err != nil {
		return nil, err
	}
	out, failed, err := Spawn(ctx, Job{Program: program, Args: o.childArgs(), Ranks: o.Ranks, Grace: childGrace + 2*time.Duration(o.Deadline)})
	if err != nil {
		return nil, err
	}
	rep := new(Report)
	err = json.Unmarshal(out, rep)
	switch {
	case err != nil && failed != nil:
		return nil, failed
	case err != nil:
		return nil, fmt.Errorf("rank 0 wrote no report: %w", err)
	case failed != nil && rep.Error == "":
		rep.Verified, rep.Error = false, failed.Error()
	}
	rep.Config.Launch = o.Launch
	return rep, nil
}

var errInterrupted = errors.New("interrupted")

type child struct {
	rank int
	cmd  *exec.Cmd
	said tail
	err  error
}

// waitAll starts the children, waits for all of them and returns the one that
// failed first, nil if none did. kill is called grace after that, or at once if
// that one could not even start.
func waitAll(children []*child, kill func(), grace time.Duration) *child {
	ended := make(chan *child)
	for _, c := range children {
		go func() {
			// One thread starts the child and stays until it has ended, since its
			// own end would be taken for the parent's.
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			c.err = c.cmd.Run()
			ended <- c
		}()
	}
	var first *child
	for range children {
		c := <-ended
		if c.err == nil || first != nil {
			continue
		}
		first = c
		if c.cmd.Process == nil { // never started: the others wait for nothing
			kill()
		}
		timer := time.AfterFunc(grace, kill)
		defer timer.Stop()
	}
	return first
}

// blame describes the child that failed first, and what the others said.
func blame(children []*child, first *child) *ChildError {
	e := &ChildError{Rank: first.rank}
	e.Code, e.Reason = first.reason()
	for _, c := range children {
		if c == first || c.err == nil {
			continue
		}
		if code, said := c.reason(); code >= 0 {
			e.Others = append(e.Others, fmt.Sprintf("rank %d: %s", c.rank, said))
		}
	}
	return e
}

func (c *child) reason() (code int, text string) {
	var exit *exec.ExitError
	if !errors.As(c.err, &exit) {
		return 1, c.err.Error()
	}
	code = exit.ExitCode()
	said, spoke := strings.CutPrefix(c.said.lastLine(), "moerail: ")
	switch {
	case code >= 0 && said != "" && !spoke: // Go's own last words; its exit code is that of bad arguments
		return exitCrashed, "its process crashed: " + c.said.crash()
	case code < 0:
		return code, "its process ended: " + exit.String()
	case said == "":
		return code, fmt.Sprintf("its process ended with exit code %d and said nothing", code)
	}
	return code, said
}

// exitCrashed is the exit code that stands for a crash.
const exitCrashed = 1

// tail keeps the start and the end of what a child wrote to standard error.
type tail struct {
	mu   sync.Mutex
	head []byte // guarded by mu
	text []byte // guarded by mu
}

const headBytes, tailBytes = 4 << 10, 16 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.head = append(t.head, p[:min(len(p), headBytes-len(t.head))]...)
	t.text = append(t.text, p...)
	if extra := len(t.text) - tailBytes; extra > 0 {
		t.text = append(t.text[:0], t.text[extra:]...)
	}
	return len(p), nil
}

// crash is the line in which Go says why it ended the process, else the first.
func (t *tail) crash() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(string(t.head)), "\n")
	for _, line := range lines {
		for _, start := range []string{"panic:", "fatal error:", "runtime:", "SIG"} {
			if strings.HasPrefix(line, start) {
				return line
			}
		}
	}
	return lines[0]
}

func (t *tail) lastLine() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	last := ""
	for s := bufio.NewScanner(strings.NewReader(string(t.text))); s.Scan(); {
		if line := strings.TrimSpace(s.Text()); line != "" {
			last = line
		}
	}
	return last
}

// cleanEnv leaves out what would tell a child another place in another job.
func cleanEnv(env []string) []string {
	var kept []string
	for _, kv := range env {
		name, _, _ := strings.Cut(kv, "=")
		switch {
		case name == fabrics.EnvNICs, name == fabrics.EnvGID:
			kept = append(kept, kv)
		case name == "RANK", name == "LOCAL_RANK", name == "WORLD_SIZE", name == "GOMAXPROCS",
			strings.HasPrefix(name, "MASTER_"), strings.HasPrefix(name, "OMPI_"),
			strings.HasPrefix(name, "SLURM_"), strings.HasPrefix(name, "MOERAIL_"):
		default:
			kept = append(kept, kv)
		}
	}
	return kept
}

// childArgs is the command line of a rank's process.
func (o *Options) childArgs() []string {
	args := []string{"run", "--json", "--launch", "env"}
	for _, p := range o.params() {
		args = append(args, "--"+p.Name, p.Value)
	}
	return args
}

// params are the options that all ranks of a run must have alike, as flags.
func (o *Options) params() []peergroup.Param {
	tokens := make([]string, len(o.Tokens))
	for p, n := range o.Tokens {
		tokens[p] = strconv.Itoa(n)
	}
	params := []peergroup.Param{
		{Name: "tokens", Value: strings.Join(tokens, ",")},
		{Name: "dtype", Value: o.DType}, {Name: "out-dtype", Value: o.OutDType},
		{Name: "layout", Value: o.Layout}, {Name: "reduce", Value: o.Reduce},
		{Name: "routing", Value: o.Routing}, {Name: "placement", Value: o.Placement},
		{Name: "fabric", Value: o.Fabric}, {Name: "device", Value: o.Device},
		{Name: "deadline", Value: time.Duration(o.Deadline).String()}, {Name: "verify", Value: o.Verify},
		{Name: "seed", Value: strconv.FormatUint(o.Seed, 10)},
	}
	for _, f := range []struct {
		name  string
		value int
	}{
		{"ranks", o.Ranks}, {"ranks-per-node", o.RanksPerNode}, {"experts", o.Experts}, {"top-k", o.TopK},
		{"hidden", o.Hidden}, {"replicas", o.Replicas}, {"slots", o.Slots}, {"nics", o.NICs},
		{"window-rows", o.WindowRows}, {"rounds", o.Rounds}, {"warmup", o.Warmup},
	} {
		params = append(params, peergroup.Param{Name: f.name, Value: strconv.Itoa(f.value)})
	}
	return params
}

// Seat is a process's place in a job.
type Seat struct {
	Group     peergroup.Group
	Addr      string // host:port of rank 0
	LocalRank int    // among the ranks of its host, 0 where the launcher does not say
}

// Join makes this process the rank that its environment says. The number of
// ranks there must be that of the run.
func Join(ctx context.Context, getenv func(string) string) (*Seat, error) {
	cfg, err := peergroup.FromEnv(getenv)
	if err != nil {
		return nil, err
	}
	cfg.Timeout = setupDeadline
	if getenv(envListener) != "" && cfg.Rank == 0 {
		f := os.NewFile(inheritedFD, "rendezvous")
		unix.CloseOnExec(inheritedFD)
		cfg.Listener, err = net.FileListener(f)
		err = errors.Join(err, f.Close())
		if err != nil {
			return nil, fmt.Errorf("rendezvous: inherited socket: %w", err)
		}
	}
	g, err := peergroup.JoinTCP(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return &Seat{Group: g, Addr: cfg.Addr, LocalRank: max(cfg.LocalRank, 0)}, nil
}
