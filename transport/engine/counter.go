package engine

import (
	"context"
	"runtime"
	"sync/atomic"
)

// gate lets goroutines wait for a number that only grows, without a lock on the
// side that makes it grow.
type gate struct {
	want atomic.Uint64 // lowest awaited value, 0 if none
	ch   atomic.Pointer[chan struct{}]
}

// spins before a waiter parks; most waits of a running system end within them.
const gateSpins = 128

// reached is called after the value has been stored.
func (g *gate) reached(value uint64) {
	if want := g.want.Load(); want != 0 && value >= want {
		g.release()
	}
}

// release rouses every waiter; those that are not satisfied wait again.
func (g *gate) release() {
	g.want.Store(0)
	if c := g.ch.Swap(nil); c != nil {
		close(*c)
	}
}

// wait returns nil once ok says so, or the context's error. target is the value
// that the next reached must have for ok to be worth asking again.
func (g *gate) wait(ctx context.Context, target uint64, ok func() bool) error {
	for i := 0; i < gateSpins; i++ {
		if ok() {
			return nil
		}
		runtime.Gosched()
	}
	for {
		// The channel first: a release that loses our target closes this channel.
		c := g.ch.Load()
		if c == nil {
			fresh := make(chan struct{})
			if !g.ch.CompareAndSwap(nil, &fresh) {
				continue
			}
			c = &fresh
		}
		for {
			want := g.want.Load()
			if want != 0 && want <= target || g.want.CompareAndSwap(want, target) {
				break
			}
		}
		if ok() {
			return nil
		}
		select {
		case <-*c:
		case <-ctx.Done():
			return ctx.Err()
		}
		if ok() {
			return nil
		}
	}
}

// Counter counts transfers that have ended. One counter may serve any number of
// transfers of any engines; its zero value is ready. It must not be copied.
type Counter struct {
	n     atomic.Uint64
	errs  atomic.Uint64
	first atomic.Pointer[error]
	gate  gate
}

// Count is the number of transfers that have ended, failed ones included.
func (c *Counter) Count() uint64 { return c.n.Load() }

// Errors is the number of those that failed.
func (c *Counter) Errors() uint64 { return c.errs.Load() }

// Err is the error of the first transfer that failed, nil if none.
func (c *Counter) Err() error {
	if p := c.first.Load(); p != nil {
		return *p
	}
	return nil
}

// Wait returns when n transfers have ended since the counter was made: with Err,
// or with ctx's error if that comes first. Transfers of an engine that is closed
// end too, so a wait for transfers that were submitted always ends.
func (c *Counter) Wait(ctx context.Context, n uint64) error {
	if err := c.gate.wait(ctx, n, func() bool { return c.n.Load() >= n }); err != nil {
		return err
	}
	return c.Err()
}

func (c *Counter) ended(err error) {
	if err != nil {
		p := new(error)
		*p = err
		c.first.CompareAndSwap(nil, p)
		c.errs.Add(1)
	}
	c.gate.reached(c.n.Add(1))
}
