package micro

import (
	"context"
	"errors"
	"fmt"
	"time"

	"moerail/peergroup"
	"moerail/transport"
)

// Rank is one of the ranks of a measurement. Nothing of it is owned.
type Rank struct {
	Group    peergroup.Group
	Provider transport.Provider
	NICs     []string // of the provider, Config.NICs of them
	// CPU is the core of the thread that polls, -1 for any. LevelEngine with -1 makes
	// the worker an ordinary goroutine.
	CPU int
}

// imm travels with every write. Its high bit is set, so that a provider which
// takes it for a signed number is found out.
const imm transport.Imm = 0xbe9c0001

// phaseLimit bounds one step of a measurement: a rank that is gone is noticed by
// the fabric or by this.
const phaseLimit = 2 * time.Minute

// sync returns once both ranks have called it.
type syncFunc func() error

// link is one level of one rank, ready to write to the other rank. Of both
// measurements, rank 0 is the side that takes the time.
//
// ready is called once this side would not miss anything that the other does; no
// write of the measurement is sent before it has returned.
type link interface {
	// pingpong exchanges skip+len(trips) writes of one size; rank 0 fills trips with
	// the nanoseconds there and back of all but the first skip.
	pingpong(ctx context.Context, l *layout, skip int, trips []int64, ready syncFunc) error
	// burst streams n writes from rank 0 to rank 1 with at most window in flight, and
	// one answer back; rank 0 returns how long that took.
	burst(ctx context.Context, l *layout, n, window int, ready syncFunc) (time.Duration, error)
	// await keeps the link going until fn has returned.
	await(fn func() error) error
	// region is this rank's memory, of two halves.
	region() []byte
	close() error
}

func newLink(ctx context.Context, cfg *Config, r Rank) (link, error) {
	switch cfg.Level {
	case LevelDomain:
		return newDomainLink(ctx, cfg, r)
	case LevelWorker:
		return newWorkerLink(ctx, cfg, r)
	}
	return newEngineLink(ctx, cfg, r)
}

// Write measures writes between the two ranks of r.Group; both must call it with
// the same cfg. Rank 0 gets a result for each size, in their order, rank 1 none.
// progress, which may be nil, is told how many sizes are done.
//
// A byte that came wrong is a *WrongError on the rank that has it, and fails the
// other one too. After an error the group is of no more use.
func Write(ctx context.Context, cfg Config, r Rank, progress func(done, of int)) (results []SizeResult, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if n := r.Group.Size(); n != 2 {
		return nil, fmt.Errorf("write is between 2 ranks, there are %d", n)
	}
	if len(r.NICs) != cfg.NICs {
		return nil, &ConfigError{"nics", fmt.Sprintf("is %d, provider %s has %d", cfg.NICs, r.Provider.Name(), len(r.NICs))}
	}
	setUp, cancel := context.WithTimeout(ctx, phaseLimit)
	defer cancel()
	l, err := newLink(setUp, &cfg, r)
	if err != nil {
		return nil, fmt.Errorf("rank %d: set up: %w", r.Group.Rank(), err)
	}
	defer func() { err = errors.Join(err, l.close()) }()
	for i, size := range cfg.Sizes {
		res, err := oneSize(ctx, &cfg, r, l, size)
		if err != nil {
			return nil, err
		}
		if r.Group.Rank() == 0 {
			results = append(results, res)
		}
		if progress != nil {
			progress(i+1, len(cfg.Sizes))
		}
	}
	return results, nil
}

// oneSize verifies and measures writes of one size.
func oneSize(ctx context.Context, cfg *Config, r Rank, l link, size uint64) (res SizeResult, err error) {
	ctx, cancel := context.WithTimeout(ctx, phaseLimit)
	defer cancel()
	me := r.Group.Rank()
	lay := cfg.layout(size)
	meet := func(said error) error {
		return l.await(func() error { return meet(ctx, r.Group, said) })
	}
	ready := func() error { return meet(nil) }

	lay.fill(l.region(), me)
	if err := l.pingpong(ctx, &lay, 0, make([]int64, 1), ready); err != nil {
		return res, measured(me, "first exchange", size, err)
	}
	if err := meet(lay.check(l.region(), 1-me, 1)); err != nil {
		return res, err
	}
	trips := make([]int64, cfg.samples(size))
	if err := l.pingpong(ctx, &lay, cfg.Warmup, trips, ready); err != nil {
		return res, measured(me, "latency", size, err)
	}
	n := cfg.burst(size)
	seconds := make([]float64, 0, cfg.Bursts)
	for b := -1; b < cfg.Bursts; b++ { // the first warms up
		if b == 0 {
			lay.clear(l.region())
		}
		took, err := l.burst(ctx, &lay, n, cfg.Window, ready)
		if err != nil {
			return res, measured(me, "stream", size, err)
		}
		if b >= 0 {
			seconds = append(seconds, took.Seconds())
		}
	}
	var wrong error
	if me == 1 {
		wrong = lay.check(l.region(), 0, min(n, lay.slots))
	}
	if err := meet(wrong); err != nil {
		return res, err
	}
	if me == 0 {
		res = SizeResult{Bytes: size, Latency: latencyOf(trips), Bandwidth: bandwidthOf(size, n, seconds)}
	}
	return res, nil
}

func measured(rank int, what string, size uint64, err error) error {
	return fmt.Errorf("rank %d: %s of %d bytes: %w", rank, what, size, err)
}

// meet waits for the other rank and fails on both where either has something to
// say against going on.
func meet(ctx context.Context, g peergroup.Group, said error) error {
	text := []byte{}
	if said != nil {
		text = []byte(said.Error())
	}
	all, err := g.AllGather(ctx, "micro/meet", text)
	switch {
	case said != nil:
		return said
	case err != nil:
		return err
	}
	for p, text := range all {
		if len(text) > 0 {
			return fmt.Errorf("rank %d: %s", p, text)
		}
	}
	return nil
}
