package rounds

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"moerail/cmd/moerail/internal/fabrics"
	"moerail/moe"
	"moerail/peergroup"
	"moerail/transport/engine"
)

// setupDeadline bounds joining, setting up and handing in results. It is not
// --deadline, which is for a round: a machine with many ranks and few cores
// takes longer to make buffers than to use them.
const setupDeadline = 60 * time.Second

// Progress is called in untimed moments with how many of the measured rounds
// are done; it returns how many heap allocations it made itself.
type Progress func(done, of int) (mallocs uint64)

// InProcess runs all ranks as goroutines of this process and returns the
// results of those that were set up. The error is about set-up.
func InProcess(ctx context.Context, o *Options, progress Progress) ([]*RankResult, error) {
	return inProcess(ctx, o, progress, nil)
}

// inProcess is InProcess; tamper, of a test, is given each rank before it runs.
func inProcess(ctx context.Context, o *Options, progress Progress, tamper func(*rank)) ([]*RankResult, error) {
	m, err := newModel(o)
	if err != nil {
		return nil, err
	}
	set, err := o.openFabric(ctx, nil)
	if err != nil {
		return nil, err
	}
	groups := peergroup.NewLocal(o.Ranks)
	defer func() {
		for _, g := range groups {
			g.Close()
		}
	}()
	b := newBarrier(o.Ranks)
	stop := context.AfterFunc(ctx, b.leave)
	defer stop()

	ranks := make([]*rank, o.Ranks)
	errs := each(o.Ranks, func(p int) (err error) {
		ranks[p], err = open(ctx, o, m, groups[p], set, b.wait)
		return err
	})
	defer each(o.Ranks, func(p int) error {
		if ranks[p] == nil {
			return nil
		}
		return ranks[p].comm.Close()
	})
	if err := firstCause(errs); err != nil {
		return nil, err
	}
	ranks[0].between = between(o, progress)
	if tamper != nil {
		each(o.Ranks, func(p int) error { tamper(ranks[p]); return nil })
	}
	results := make([]*RankResult, o.Ranks)
	settle(o.Ranks)
	each(o.Ranks, func(p int) (err error) {
		if results[p], err = ranks[p].run(); err != nil {
			b.leave()
			results[p].fail(ctx, err)
		}
		return nil
	})
	results[0].Counts = true
	return results, nil
}

// OneRank makes this process the rank of its seat and returns all results on rank 0,
// nil elsewhere; own is why this rank's own rounds failed or were wrong. err is
// about set-up or about handing in the results.
func OneRank(ctx context.Context, o *Options, seat *Seat, progress Progress) (results []*RankResult, own, err error) {
	g := seat.Group
	if err := agree(ctx, o, g); err != nil {
		return nil, nil, err
	}
	m, err := newModel(o)
	if err != nil {
		return nil, nil, err
	}
	if err := sameHost(ctx, o, g); err != nil {
		return nil, nil, err
	}
	set, err := o.shareFabric(ctx, seat)
	if err != nil {
		return nil, nil, err
	}
	r, err := open(ctx, o, m, g, set, nil)
	if err != nil {
		return nil, nil, err
	}
	defer r.comm.Close()
	r.barrier = fabricBarrier(ctx, r.comm)
	if r.p == 0 {
		r.between = between(o, progress)
	}
	settle(4) // the group and the fabric have goroutines of their own
	res, err := r.run()
	res.Counts = true
	if err != nil {
		res.fail(ctx, err)
	}
	handIn := setupDeadline
	if err != nil {
		// The others notice within a phase or two; a rank that hangs never hands in.
		handIn = min(handIn, childGrace+2*time.Duration(o.Deadline))
	}
	gather, cancel := context.WithTimeout(ctx, handIn)
	defer cancel()
	results, gatherErr := gatherResults(gather, g, res)
	if gatherErr != nil {
		return nil, nil, errors.Join(err, gatherErr)
	}
	if err == nil && res.Wrong > 0 {
		err = fmt.Errorf("not verified: %s", res.WrongFirst)
	}
	return results, err, nil
}

// agree fails on every rank, naming flags and ranks, unless all were started
// alike: with other rounds, or tokens, or checks, a rank would not be where the
// others wait for it, or a report not say what ran.
func agree(ctx context.Context, o *Options, g peergroup.Group) error {
	limited, cancel := context.WithTimeout(ctx, setupDeadline)
	defer cancel()
	if err := peergroup.Agree(limited, g, "run", o.params()); err != nil {
		return err
	}
	if g.Size() != o.Ranks {
		return &OptionError{"ranks", fmt.Sprintf("is %d, the environment says %d", o.Ranks, g.Size())}
	}
	return nil
}

// settle brings the Go runtime into its steady state. What set-up left is
// collected now and not within a round; and the records with which the scheduler
// parks goroutines are made: it keeps them, but makes them only when more
// goroutines wait at once than ever before, which may otherwise be in any round.
func settle(ranks int) {
	runtime.GC()
	const waits = 16 // for each rank: its loop, worker, stream and watchdog, some in a select
	var waiting sync.WaitGroup
	release := make(chan struct{})
	for range ranks * waits {
		waiting.Go(func() { <-release })
	}
	for range 3 {
		runtime.Gosched() // let them all come to wait
	}
	close(release)
	waiting.Wait()
}

// open makes a rank's communicator and everything its loop needs.
func open(ctx context.Context, o *Options, m *model, g peergroup.Group, set *fabrics.Set, barrier func() error) (*rank, error) {
	cfg := o.config(m)
	cfg.Group, cfg.Provider, cfg.NICs = g, set.Provider(g.Rank()), set.NICs(g.Rank())
	o.shareCores(&cfg)
	c, err := moe.New(ctx, cfg)
	if err != nil {
		return nil, err
	}
	r, err := newRank(o, c, m, barrier)
	if err != nil {
		c.Close()
		return nil, err
	}
	return r, nil
}

// shareCores makes a rank that is a process of its own, on a host where ranks
// outnumber cores, hand its core to the other processes whenever it waits: a
// spinning or sleeping rank would keep them waiting for its time slice, or for a
// timer.
func (o *Options) shareCores(cfg *moe.Config) {
	if o.Launch != "inproc" {
		cfg.Poll = engine.PollPolicy{Spin: -1, Yield: 1 << 14, OSYield: true}
	}
}

// fail records why a rank stopped.
func (res *RankResult) fail(ctx context.Context, err error) {
	res.Abandoned = errors.Is(err, errAbandoned) || moe.CodeOf(err) == moe.CodeClosed
	if ctx.Err() != nil {
		err = errInterrupted
	}
	res.Error, res.FailedAt = err.Error(), time.Now().UnixNano()
}

func between(o *Options, progress Progress) func(int) uint64 {
	if progress == nil {
		return nil
	}
	of := o.steps(o.Rounds) * o.Slots
	return func(done int) uint64 { return progress(done, of) }
}

// each calls fn for every rank at once and returns their errors in rank order.
func each(ranks int, fn func(p int) error) []error {
	errs := make([]error, ranks)
	var all sync.WaitGroup
	for p := range ranks {
		all.Go(func() { errs[p] = fn(p) })
	}
	all.Wait()
	return errs
}

// firstCause is the first error that tells most: a fault of the configuration
// before a disagreement, and both before what followed from them.
func firstCause(errs []error) error {
	best, weight := error(nil), -1
	for _, err := range errs {
		if err == nil {
			continue
		}
		w := 0
		var config *moe.ConfigError
		var mismatch *peergroup.MismatchError
		switch {
		case errors.As(err, &config):
			w = 2
		case errors.As(err, &mismatch):
			w = 1
		}
		if w > weight {
			best, weight = err, w
		}
	}
	return best
}
