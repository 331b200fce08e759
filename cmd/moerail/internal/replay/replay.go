package replay

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"moerail/cmd/moerail/internal/fabrics"
	"moerail/internal/casefile"
	"moerail/moe"
	"moerail/peergroup"
	"moerail/transport"
	"moerail/transport/loopback"
)

// supported are the keys of faults that can be carried out.
var supported = []string{"seed", "reorder", "delay_us", "pause"}

// CaseError says that a case cannot be carried out here, and where in the file
// the reason stands.
type CaseError struct{ Path, Reason string }

func (e *CaseError) Error() string { return e.Path + ": " + e.Reason }

// leastSetup is the shortest deadline of set-up: making the buffers of many
// ranks on few cores takes longer than a round.
const leastSetup = 10 * time.Second

// slack is how long a rank may overstay all its deadlines before the watchdog
// gives the case up.
const slack = 10 * time.Second

// grace is how long an interrupted case may take to end by itself.
const grace = time.Second

// Run carries out c. It fails with *CaseError or *moe.ConfigError, before
// anything has run, if c asks for what is not there, and with *StuckError if a
// rank did not come back. arrivals are what the fabric dropped or found wrong,
// which no healthy round makes it do.
func Run(ctx context.Context, c *casefile.Case) (res *casefile.Result, arrivals []string, err error) {
	if err := check(c); err != nil {
		return nil, nil, err
	}
	p := &play{c: c, groups: peergroup.NewLocal(c.Ranks), ranks: make([]*player, c.Ranks),
		limit: slack + 2*max(c.Deadline, c.FirstDeadline, leastSetup)}
	for _, f := range c.Faults.Pause {
		p.limit += f.Length
	}
	if err := p.openFabric(ctx); err != nil {
		return nil, nil, err
	}
	for i := range p.ranks {
		p.ranks[i] = newPlayer(p, i)
	}
	defer func() {
		for _, g := range p.groups {
			g.Close()
		}
	}()
	for _, in := range c.Inputs {
		p.inputs = append(p.inputs, in)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan struct{})
	var outcome *casefile.Result // as failure, valid once done is closed
	var failure error
	go func() {
		defer close(done)
		outcome, failure = p.run(ctx)
	}()
	if err := p.watch(ctx, done); err != nil {
		return nil, nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return outcome, p.arrivals, failure
}

func check(c *casefile.Case) error {
	if keys := c.Faults.Unsupported(supported...); len(keys) > 0 {
		return &CaseError{"faults." + keys[0], "not yet, faults can be " + strings.Join(supported, ", ")}
	}
	if c.OnFailure != "stop" {
		return &CaseError{"on_failure", c.OnFailure + ": not yet, only stop"}
	}
	return nil
}

// play is one case under way.
type play struct {
	c      *casefile.Case
	fabric *loopback.Fabric // nil over any other
	set    *fabrics.Set     // that other
	groups []peergroup.Group
	ranks  []*player
	inputs [][]casefile.RankInput // by round
	limit  time.Duration          // of watch

	mu       sync.Mutex
	arrivals []string // guarded by mu
}

// openFabric opens the case's fabric, all ranks in this process. Only loopback
// disturbs what it carries, so auto is that where the case wants disturbance.
func (p *play) openFabric(ctx context.Context) (err error) {
	f := &p.c.Faults
	name := p.c.Fabric
	disturbs := f.Reorder || f.DelayMax > 0
	if name == "auto" && disturbs {
		name = "loopback"
	}
	if name, err = fabrics.Resolve(name, true); err != nil {
		return &CaseError{"fabric", err.Error()}
	}
	if name == "loopback" {
		p.fabric, err = loopback.New(p.fabricConfig())
		return err
	}
	if disturbs {
		return &CaseError{"faults", fmt.Sprintf("reorder and delay_us are for the loopback fabric, this case's is %s", name)}
	}
	cfg := fabrics.Config{Fabric: name, Getenv: os.Getenv}
	for i := range p.ranks {
		cfg.NICs = max(cfg.NICs, p.c.RankParams(i).NICs)
	}
	if p.set, err = fabrics.Open(ctx, cfg); err != nil {
		return &CaseError{"fabric", err.Error()}
	}
	return nil
}

// provider is rank i's, and nics the first n of its NICs.
func (p *play) provider(i, n int) (provider transport.Provider, nics []string) {
	if p.set != nil {
		nics = p.set.NICs(i)
		return p.set.Provider(i), nics[:n]
	}
	node := i
	if p.c.RanksPerNode > 0 {
		node = i / p.c.RanksPerNode
	}
	for n := range n {
		nics = append(nics, fmt.Sprintf("lo%d", n))
	}
	return p.fabric.Process(fmt.Sprintf("rank%d", i), fmt.Sprintf("node%d", node)), nics
}

// reorderPacket is into what pieces payloads are cut when deliveries are
// reordered.
const reorderPacket = 512

func (p *play) fabricConfig() loopback.Config {
	f := &p.c.Faults
	cfg := loopback.Config{OnFault: func(f loopback.Fault) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.arrivals = append(p.arrivals, f.String())
	}}
	if f.Reorder || f.DelayMax > 0 {
		cfg.Faults = &loopback.Faults{Seed: f.Seed, Reorder: f.Reorder, DelayMin: f.DelayMin, DelayMax: f.DelayMax}
	}
	if f.Reorder {
		cfg.Faults.PacketBytes = reorderPacket
		cfg.Faults.Completion = loopback.CompleteMixed
		cfg.Faults.TrapSource = true
	}
	return cfg
}

// run sets up, plays all rounds and closes.
func (p *play) run(ctx context.Context) (*casefile.Result, error) {
	errs := make([]error, len(p.ranks))
	each(p.ranks, func(i int, r *player) { errs[i] = r.open(ctx) })
	defer each(p.ranks, func(_ int, r *player) { r.close(ctx) })
	if err := errors.Join(errs...); err != nil {
		setup, err := setupError(errs)
		return &casefile.Result{SetupError: setup, Rounds: []casefile.RoundResult{}}, err
	}
	res := &casefile.Result{Rounds: make([]casefile.RoundResult, len(p.inputs))}
	each(p.ranks, func(_ int, r *player) { r.play(ctx) })
	for i := range res.Rounds {
		res.Rounds[i] = p.round(i)
	}
	for _, r := range p.ranks {
		res.Outstanding += int64(r.comm.Outstanding())
	}
	return res, ctx.Err()
}

func (p *play) round(i int) casefile.RoundResult {
	round := casefile.RoundResult{Ranks: make([]*casefile.RankResult, len(p.ranks))}
	var messages, bytes, rows int64
	for q, r := range p.ranks {
		round.Ranks[q] = r.results[i]
		messages += int64(r.wire[i].Messages)
		bytes += int64(r.wire[i].Bytes)
		rows += int64(r.wire[i].Rows)
	}
	round.Wire = casefile.NewWire(messages, bytes, rows)
	return round
}

func each(ranks []*player, fn func(i int, r *player)) {
	var all sync.WaitGroup
	for i, r := range ranks {
		all.Go(func() { fn(i, r) })
	}
	all.Wait()
}

// StuckError names ranks that did not come back from a call long after its
// deadline: a fault of the runtime, never of a case.
type StuckError struct {
	Limit time.Duration
	Where []string // rank and phase
}

func (e *StuckError) Error() string {
	return fmt.Sprintf("gave up after %v without progress: %s", e.Limit, strings.Join(e.Where, ", "))
}

// watch returns when the case is done, or when no rank has entered another
// phase for longer than every deadline and pause together allow.
//
// When ctx ends, ranks in the middle of a round have a moment to come out of it.
func (p *play) watch(ctx context.Context, done <-chan struct{}) error {
	limit := p.limit
	tick := time.NewTicker(limit / 8)
	defer tick.Stop()
	seen, since := uint64(0), time.Now()
	for {
		select {
		case <-done:
			return nil
		case <-tick.C:
		case <-ctx.Done():
			select {
			case <-done:
				return nil
			case <-time.After(grace):
				return ctx.Err()
			}
		}
		now := uint64(0)
		for _, r := range p.ranks {
			now += r.entered.Load()
		}
		if now != seen {
			seen, since = now, time.Now()
		} else if time.Since(since) > limit {
			e := &StuckError{Limit: limit}
			for i, r := range p.ranks {
				e.Where = append(e.Where, fmt.Sprintf("rank %d in %s", i, casefile.Phases[r.phase.Load()]))
			}
			return e
		}
	}
}

// config is rank i's configuration.
func (p *play) config(i int) moe.Config {
	c := p.c
	par := c.RankParams(i)
	provider, nics := p.provider(i, par.NICs)
	cfg := moe.Config{
		Group: p.groups[i], Provider: provider, NICs: nics,
		NumExperts: par.Experts, TopK: par.TopK, Hidden: par.Hidden, MaxTokens: par.MaxTokens,
		ScaleBlock: par.ScaleBlock, ExpertAlignment: par.ExpertAlignment,
		ReduceAtHome: par.Reduce == "home", IgnoreWeights: !par.ApplyWeights,
		Replicas: par.Replicas, RanksPerNode: max(par.RanksPerNode, 1), Slots: par.Slots,
		WindowRows: par.WindowRows, MaxRecvRows: par.MaxRecvRows, Placement: par.Placement,
		SetupDeadline: max(c.Deadline, leastSetup), Deadline: c.Deadline, FirstDeadline: c.FirstDeadline,
	}
	cfg.DType, _ = moe.ParseDType(par.DType) // the decoder knows the same words
	cfg.OutDType, _ = moe.ParseDType(par.OutDType)
	cfg.Layout, _ = moe.ParseLayout(par.Layout)
	cfg.InDType = cfg.DType
	if cfg.DType == moe.FP8 {
		cfg.InDType = moe.FP32 // quantised by the runtime
	}
	cfg.DomainConfig.MaxSend = par.SendDepth
	return cfg
}
