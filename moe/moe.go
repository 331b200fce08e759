// Package moe is moerail's interface for a serving stack: a Communicator carries
// the tokens of one rank to their experts and brings the weighted results back.
//
//	c, err := moe.New(ctx, cfg)           // once, on every rank
//	b, err := c.Dispatch(slot, input)     // rows of all ranks for this rank's experts
//	... run the experts on b.X into b.Y ...
//	err = c.Combine(slot, nil, 0, out, 0) // sums for this rank's own tokens
//
// A slot is one micro-batch in flight. The calls of one slot come from one
// goroutine at a time and in order: DispatchSend, DispatchRecv, CombineSend,
// CombineRecv (Dispatch and Combine are pairs of them); a call while another is
// under way is refused with code busy. Different slots are independent. Every call that waits has a deadline.
//
// The package wires the layers below and holds no algorithm: routing has the
// arithmetic, dispatch and combine the proxy's halves, kernels the device's
// stages, transport/engine the wire.
package moe

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"moerail/internal/mem"
	"moerail/kernels"
	"moerail/moe/routing"
	"moerail/peergroup"
	"moerail/transport"
	"moerail/transport/engine"
)

// Communicator is one rank's end of a group of ranks that exchange tokens.
type Communicator struct {
	cfg   Config
	plan  *routing.Plan
	rank  int
	ranks int

	engine        *engine.Engine
	ownEngine     bool
	device        kernels.Device
	inbox, outbox transport.Memory
	route         transport.Memory
	regions       []*engine.Region
	groups        []*engine.PeerGroup
	imms          *peergroup.ImmSpace
	base          transport.Imm
	claim         *engine.ImmClaim
	place         atomic.Pointer[placed] // of rounds that start from now on
	places        []*placed              // all that may be in use; SetPlacement's and Close's
	mappings      []*engine.MappedRegion // inboxes of other ranks
	mapped        []*Communicator        // by rank: those of this process whose inbox is mapped
	neighbours    []*Communicator        // those of them that are stored to directly
	direct        []bool
	slots         []*slot
	proxy         *proxy
	barrier       *barrier

	epoch   time.Time
	failure atomic.Pointer[RoundError] // sticky: the first error of a wait, or of the fabric
	life    context.Context            // ends with Close
	end     context.CancelFunc
	watched sync.WaitGroup

	users    atomic.Int64 // calls that may look at memory which Close frees
	closed   atomic.Bool
	last     atomic.Pointer[Stats] // at Close
	closing  sync.Once
	closeErr error
}

// Rank is this rank's number, Ranks how many there are.
func (c *Communicator) Rank() int  { return c.rank }
func (c *Communicator) Ranks() int { return c.ranks }

// LocalExperts are the physical experts of this rank, in its own order, in rounds
// that start from now on; see Batch.Experts for those of a round under way.
func (c *Communicator) LocalExperts() []int32 { return c.place.Load().own }

// Path is how rows reach a rank.
type Path struct {
	To   int
	Name string // self, direct (this rank stores into its memory), or the fabric's name
}

// Paths lists how this rank's rows reach each rank.
func (c *Communicator) Paths() []Path {
	out := make([]Path, c.ranks)
	for q := range out {
		out[q] = Path{To: q, Name: c.cfg.fabricName()}
		switch {
		case q == c.rank:
			out[q].Name = "self"
		case c.direct[q]:
			out[q].Name = "direct"
		}
	}
	return out
}

// fabricName is the provider's name. There is an engine or a provider.
func (c *Config) fabricName() string {
	if c.Engine != nil {
		return c.Engine.Fabric()
	}
	return c.Provider.Name()
}

// fail makes err the communicator's error, if it is the first, and ends every
// wait of every slot.
func (c *Communicator) fail(err *RoundError) {
	if !c.failure.CompareAndSwap(nil, err) {
		return
	}
	c.endWaits()
}

func (c *Communicator) endWaits() {
	for _, s := range c.slots {
		s.ctl.Abort.Store(s.round.Load() + 1)
		s.stream.Notify()
	}
	if c.barrier != nil {
		c.barrier.rouse()
	}
}

// failed is the sticky error as an error, or nil.
func (c *Communicator) failed() error {
	if f := c.failure.Load(); f != nil {
		return f
	}
	return nil
}

// Outstanding is the number of operations of rounds posted and not completed; it
// is zero between rounds. Messages of Barrier, which are empty, count as little
// here as in Stats: one that all ranks have passed may have some on their way to
// completion. After Close it is zero.
func (c *Communicator) Outstanding() int {
	rounds, _ := c.outstanding()
	return rounds
}

func (c *Communicator) outstanding() (rounds, barriers int) {
	_ = c.engine.Call(func(*engine.Worker) {
		for _, s := range c.slots {
			for _, t := range s.trackers {
				if t != nil {
					rounds += t.Outstanding()
				}
			}
		}
		if c.barrier != nil {
			barriers = c.barrier.tracker.Outstanding()
		}
	})
	return rounds, barriers
}

// Close releases everything. It is not collective: peers notice at their next
// wait. Closing twice, in any order among ranks and with rounds under way is fine:
// this rank's waits end with code closed. What a Batch views is gone afterwards.
func (c *Communicator) Close() error {
	c.closing.Do(func() { c.closeErr = c.close() })
	return c.closeErr
}

func (c *Communicator) close() error {
	healthy := c.failure.CompareAndSwap(nil, &RoundError{Code: CodeClosed, Phase: PhaseClose, Token: -1, Pick: -1, What: "the communicator is closed"})
	var errs []error
	note := func(err error) {
		if err != nil && !errors.Is(err, engine.ErrClosed) {
			errs = append(errs, err)
		}
	}
	c.closed.Store(true)
	c.end()
	if c.barrier != nil {
		c.barrier.rouse()
	}
	c.watched.Wait()
	for _, s := range c.slots {
		if s.stream != nil {
			s.ctl.Stop.Store(1)
			note(s.stream.Close())
		}
	}
	// Calls under way see the failure at their next step and touch nothing after.
	for i := 0; c.users.Load() > 0; i++ {
		pause(i)
	}
	if c.proxy != nil {
		st := c.stats()
		c.last.Store(&st)
	}
	if c.proxy != nil {
		note(c.engine.Detach(c.proxy))
	}
	if c.claim != nil {
		note(c.claim.Release())
	}
	note(c.imms.Free(c.base))
	if healthy || !c.ownEngine {
		// What this rank has posted, an empty barrier message even, peers wait for.
		c.settle()
	}
	if c.ownEngine && c.engine != nil {
		// Nothing reads or writes the memory once the domains are closed.
		note(c.engine.Close())
	} else if c.engine != nil {
		c.freeTrackers()
		for _, g := range c.groups {
			note(g.Close())
		}
		for _, r := range c.regions {
			note(r.Close())
		}
	}
	c.beForgotten()
	for _, s := range c.slots {
		for _, err := range s.free() {
			note(err)
		}
	}
	for _, m := range c.mappings { // nothing stores into them any more
		note(m.Close())
	}
	for _, m := range []transport.Memory{c.inbox, c.outbox, c.route} {
		if m.Host != nil {
			note(c.cfg.free(c.engine, m))
		}
	}
	for _, p := range c.places {
		note(mem.Free(p.memory))
	}
	return errors.Join(errs...)
}

// settleLimit bounds how long Close waits for posted writes to complete.
const settleLimit = time.Second

// settle waits until the engine has finished what this communicator posted.
func (c *Communicator) settle() {
	if c.proxy == nil {
		return // nothing was ever posted
	}
	for end := time.Now().Add(settleLimit); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if rounds, barriers := c.outstanding(); rounds+barriers == 0 {
			return
		}
	}
}

// freeTrackers gives a shared engine its trackers back.
func (c *Communicator) freeTrackers() {
	_ = c.engine.Call(func(w *engine.Worker) {
		for _, s := range c.slots {
			for _, t := range s.trackers {
				if t != nil {
					_ = w.FreeTracker(t)
				}
			}
		}
		if c.barrier != nil {
			_ = w.FreeTracker(c.barrier.tracker)
		}
	})
}

func (c *Config) free(e *engine.Engine, m transport.Memory) error {
	if c.Provider != nil {
		return c.Provider.Free(m)
	}
	return e.Free(m)
}

// deadlineContext bounds a set-up step.
func (c *Config) deadlineContext(ctx context.Context) (context.Context, context.CancelFunc) {
	limit := c.SetupDeadline
	if limit <= 0 {
		limit = defaultSetupDeadline // a fault, which checkLocal tells; the others wait to hear of it
	}
	return context.WithTimeout(ctx, limit)
}
