package moe

import (
	"context"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"moerail/moe/routing"
	"moerail/transport"
	"moerail/transport/engine"
)

// Barrier returns when every rank has entered it. It uses the fabric, is not
// counted in Stats, and may be called between rounds or during them, by one
// goroutine at a time. It fails with ctx's error, with code deadline, or with the
// communicator's; this rank has entered all the same, and is not waited for.
func (c *Communicator) Barrier(ctx context.Context) error {
	if c.ranks == 1 {
		return c.failed()
	}
	b := c.barrier
	want := b.entered.Add(1)
	c.engine.Wake()
	b.timer.Reset(c.cfg.Deadline)
	defer b.timer.Stop()
	for {
		if err := c.failed(); err != nil {
			return err
		}
		if b.passed.Load() >= want {
			return nil
		}
		select {
		case <-b.wake:
		case <-ctx.Done():
			return ctx.Err()
		case <-b.timer.C:
			return c.barrierLate(want)
		}
	}
}

func (c *Communicator) barrierLate(want uint64) error {
	var late []int
	gone := c.engine.Call(func(*engine.Worker) {
		for q, n := range c.barrier.got {
			if q != c.rank && n < want {
				late = append(late, q)
			}
		}
	})
	if err := c.failed(); err != nil {
		return err
	}
	if gone != nil {
		return &RoundError{Code: CodeTransport, Phase: PhaseBarrier, Ranks: []int{c.rank}, Token: -1, Pick: -1,
			What: "the engine was closed", Err: gone}
	}
	if len(late) == 0 {
		return nil // the last one came just now
	}
	return &RoundError{Code: CodeDeadline, Phase: PhaseBarrier, Ranks: late, Token: -1, Pick: -1,
		What: fmt.Sprintf("deadline of %v passed, waiting for %s", c.cfg.Deadline, ranksText(late))}
}

// barrier is the state of Communicator.Barrier: empty immediates, counted.
type barrier struct {
	me      int
	tracker *engine.Tracker
	ops     []engine.GroupOp
	got     []uint64 // worker: barriers that each rank has entered
	posted  uint64   // worker: barriers announced to the others
	entered atomic.Uint64
	passed  atomic.Uint64 // barriers that every other rank has entered
	wake    chan struct{} // capacity 1: passed has changed, or nobody will
	timer   *time.Timer   // the user's
}

func newBarrier(me, ranks int, t *engine.Tracker, imm transport.Imm) *barrier {
	b := &barrier{me: me, tracker: t, got: make([]uint64, ranks), wake: make(chan struct{}, 1), timer: time.NewTimer(time.Hour)}
	b.timer.Stop()
	for _, q := range routing.Others(me, ranks) {
		b.ops = append(b.ops, engine.GroupOp{Entry: int32(q), Imm: imm})
	}
	return b
}

// arrived counts one immediate of rank src.
func (b *barrier) arrived(src int) {
	b.got[src]++
	least := uint64(math.MaxUint64)
	for q, n := range b.got {
		if q != b.me {
			least = min(least, n)
		}
	}
	if least != b.passed.Load() {
		b.passed.Store(least)
		b.rouse()
	}
}

func (b *barrier) rouse() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// step announces a barrier that this rank has entered.
func (b *barrier) step(w *engine.Worker, g *engine.PeerGroup) error {
	b.posted++
	return w.Scatter(g, b.tracker, b.ops)
}
