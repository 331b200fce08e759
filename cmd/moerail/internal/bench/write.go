package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"moerail/bench/micro"
	"moerail/cmd/moerail/internal/fabrics"
	"moerail/cmd/moerail/internal/machine"
	"moerail/cmd/moerail/internal/rounds"
	"moerail/peergroup"
)

// Options is a measurement of writes as it was asked for, and after Resolve as it
// will be; its JSON is the config of the report.
type Options struct {
	Fabric string `json:"fabric"`
	Launch string `json:"launch"` // processes, inproc or env
	CPUs   string `json:"cpus"`   // see ParseCPUs
	micro.Config

	cpus [][]int // by rank, nil: not bound
}

// Defaults are the values of flags not given.
func Defaults() Options {
	return Options{Fabric: "auto", Launch: "processes", CPUs: "auto", Config: micro.Defaults()}
}

const ranks = 2

// setupDeadline bounds joining and opening.
const setupDeadline = 60 * time.Second

// grace is how long a rank may go on when the other one has failed.
const grace = 10 * time.Second

// Resolve checks the options and replaces the word auto.
func (o *Options) Resolve() error {
	if err := o.Validate(); err != nil {
		return err
	}
	switch o.Launch {
	case "processes", "inproc", "env":
	default:
		return &micro.ConfigError{Field: "launch", Reason: fmt.Sprintf("is %q, want processes, inproc or env", o.Launch)}
	}
	name, err := fabrics.Resolve(o.Fabric, o.Launch == "inproc")
	if err != nil {
		return &rounds.OptionError{Flag: "fabric", Reason: err.Error()}
	}
	o.Fabric = name
	return o.resolveCPUs()
}

// Report is the JSON document.
type Report struct {
	Format   string             `json:"format"` // moerail-bench/1
	Scenario string             `json:"scenario"`
	Version  string             `json:"version"`
	Provider string             `json:"provider"` // as the fabric calls it
	Config   Options            `json:"config"`
	Machine  machine.Info       `json:"machine"`
	Verified bool               `json:"verified"` // always: what is wrong ends the measurement
	Sizes    []micro.SizeResult `json:"sizes"`
}

func (o *Options) report(version, provider string, sizes []micro.SizeResult) *Report {
	return &Report{Format: "moerail-bench/1", Scenario: "write", Version: version, Provider: provider, Config: *o,
		Machine: machine.Describe(), Verified: true, Sizes: sizes}
}

// InProcess runs both ranks as goroutines of this process.
func InProcess(ctx context.Context, o *Options, version string, progress func(done, of int)) (*Report, error) {
	set, err := fabrics.Open(ctx, fabrics.Config{Fabric: o.Fabric, NICs: o.NICs, Getenv: os.Getenv})
	if err != nil {
		return nil, &rounds.OptionError{Flag: "fabric", Reason: err.Error()}
	}
	groups := peergroup.NewLocal(ranks)
	var sizes []micro.SizeResult
	var errs [ranks]error
	var both sync.WaitGroup
	for p := range ranks {
		both.Go(func() {
			// A rank that fails leaves, and the other one does not wait for it.
			defer groups[p].Close()
			r := micro.Rank{Group: groups[p], Provider: set.Provider(p), NICs: set.NICs(p), CPU: o.pollCPU(p)}
			if p == 0 {
				sizes, errs[p] = micro.Write(ctx, o.Config, r, progress)
				return
			}
			_, errs[p] = micro.Write(ctx, o.Config, r, nil)
		})
	}
	both.Wait()
	if err := cause(errs[:]); err != nil {
		return nil, err
	}
	return o.report(version, set.Name(), sizes), nil
}

// cause is the error that tells most: one that does not only follow from the other
// rank's having left.
func cause(errs []error) error {
	var first error
	for _, err := range errs {
		var lost *peergroup.LostError
		if err != nil && !errors.As(err, &lost) {
			return err
		}
		if first == nil {
			first = err
		}
	}
	return first
}

// Processes runs both ranks as processes of their own.
func Processes(ctx context.Context, program string, o *Options) (*Report, error) {
	out, failed, err := rounds.Spawn(ctx, rounds.Job{Program: program, Args: o.args(), Ranks: ranks, Grace: grace})
	switch {
	case err != nil:
		return nil, err
	case failed != nil:
		return nil, failed
	}
	rep := new(Report)
	if err := json.Unmarshal(out, rep); err != nil {
		return nil, fmt.Errorf("rank 0 wrote no report: %w", err)
	}
	rep.Config.Launch = o.Launch
	return rep, nil
}

// args is the command line of a rank's process.
func (o *Options) args() []string {
	args := []string{"bench", "write", "--json", "--launch", "env"}
	for _, p := range o.params() {
		args = append(args, "--"+p.Name, p.Value)
	}
	return args
}

// params are the options that both ranks must have alike, as flags.
func (o *Options) params() []peergroup.Param {
	sizes := make([]string, len(o.Sizes))
	for i, n := range o.Sizes {
		sizes[i] = strconv.FormatUint(n, 10)
	}
	number := func(name string, n uint64) peergroup.Param {
		return peergroup.Param{Name: name, Value: strconv.FormatUint(n, 10)}
	}
	return []peergroup.Param{
		{Name: "fabric", Value: o.Fabric}, {Name: "cpus", Value: o.CPUs}, {Name: "level", Value: string(o.Level)},
		{Name: "poll", Value: string(o.Poll)},
		{Name: "sizes", Value: strings.Join(sizes, ",")},
		number("nics", uint64(o.NICs)), number("samples", o.Samples), number("sample-bytes", o.SampleBytes),
		number("burst", o.Burst), number("burst-bytes", o.BurstBytes), number("bursts", uint64(o.Bursts)),
		number("warmup", uint64(o.Warmup)), number("window", uint64(o.Window)), number("span", o.Span),
	}
}

// OneRank makes this process the rank that its environment says; the report is nil
// on rank 1.
func OneRank(ctx context.Context, o *Options, version string) (*Report, error) {
	seat, err := rounds.Join(ctx, os.Getenv)
	if err != nil {
		return nil, err
	}
	g := seat.Group
	defer g.Close()
	setUp, cancel := context.WithTimeout(ctx, setupDeadline)
	defer cancel()
	if g.Size() != ranks {
		return nil, fmt.Errorf("a write is between %d ranks, the job has %d", ranks, g.Size())
	}
	if err := peergroup.Agree(setUp, g, "bench", o.params()); err != nil {
		return nil, err
	}
	if err := bindProcess(o.cpusOf(g.Rank())); err != nil {
		return nil, err
	}
	set, err := rounds.OpenShared(setUp, o.Fabric, o.NICs, seat)
	if err != nil {
		return nil, err
	}
	r := micro.Rank{Group: g, Provider: set.Provider(g.Rank()), NICs: set.NICs(g.Rank()), CPU: o.pollCPU(g.Rank())}
	sizes, err := micro.Write(ctx, o.Config, r, nil)
	if err != nil || g.Rank() != 0 {
		return nil, err
	}
	return o.report(version, set.Name(), sizes), nil
}
