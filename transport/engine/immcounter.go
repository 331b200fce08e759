package engine

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"moerail/internal/mem"
	"moerail/transport"
)

// ImmCounter counts the arrivals of one immediate, from the first on, whether
// they came before the counter was made or after. It never goes back: for round
// r of n arrivals wait for r*n.
type ImmCounter struct {
	e      *Engine
	imm    transport.Imm
	total  atomic.Uint64
	over   atomic.Bool // released, or the engine is closed
	gate   gate
	mirror *atomic.Uint64 // worker

	every, left uint64      // worker; every is 0 without an expectation
	fn          func(error) // set once with every
	due         atomic.Uint64
	node        node
}

// Imm is what is counted.
func (c *ImmCounter) Imm() transport.Imm { return c.imm }

// Total is the number of arrivals so far.
func (c *ImmCounter) Total() uint64 { return c.total.Load() }

// Wait returns nil once Total is at least target; else ctx's error, or ErrClosed
// when the counter was released or the engine closed.
func (c *ImmCounter) Wait(ctx context.Context, target uint64) error {
	err := c.gate.wait(ctx, target, func() bool { return c.total.Load() >= target || c.over.Load() })
	if err == nil && c.total.Load() < target {
		err = ErrClosed
	}
	return err
}

// arrived counts on the worker.
func (c *ImmCounter) arrived(n uint64) {
	total := c.total.Load() + n // the worker is the only one who stores
	c.total.Store(total)
	if c.mirror != nil {
		c.mirror.Store(total)
	}
	c.gate.reached(total)
	if c.every == 0 {
		return
	}
	for ; n >= c.left; c.left = c.every {
		n -= c.left
		c.fire()
	}
	c.left -= n
}

// fire makes one more call of fn due. The node is in the callback queue exactly
// while due is not zero.
func (c *ImmCounter) fire() {
	if c.due.Add(1) == 1 {
		c.e.done.deliver(&c.node)
	}
}

func (c *ImmCounter) onWorker(*Worker) {}

func (c *ImmCounter) onCallback() {
	for {
		c.fn(nil)
		if c.due.Add(^uint64(0)) == 0 {
			return
		}
	}
}

func (c *ImmCounter) end() {
	c.over.Store(true)
	c.gate.release()
	if c.every != 0 {
		c.e.done.deliverFunc(func() { c.fn(ErrClosed) }) // behind those that are due
	}
}

// ImmCounter returns the counter of imm, made at the first call. An immediate
// within a claim is refused with ErrImmClaimed.
func (e *Engine) ImmCounter(imm transport.Imm) (*ImmCounter, error) {
	var c *ImmCounter
	var err error
	if callErr := e.Call(func(w *Worker) { c, err = w.immCounter(imm) }); callErr != nil {
		return nil, callErr
	}
	return c, err
}

func (w *Worker) immCounter(imm transport.Imm) (*ImmCounter, error) {
	t := &w.imms
	if c := t.counters[imm]; c != nil {
		return c, nil
	}
	r := immRange{uint64(imm), uint64(imm) + 1}
	if err := t.taken(r); err != nil {
		return nil, err
	}
	t.revive(r)
	c := &ImmCounter{e: w.e, imm: imm}
	c.node.owner = c
	t.counters[imm] = c
	if n := t.early[imm]; n > 0 {
		delete(t.early, imm)
		w.e.stats.imms.Add(n)
		c.arrived(n)
	}
	return c, nil
}

// ExpectImm has fn called on the callback goroutine, with nil, each time another
// n arrivals of imm are complete, those before the call included; and once with
// ErrClosed when the counter is released or the engine closed. n of 0 is
// complete at once, and only once. An immediate has one expectation at most.
func (e *Engine) ExpectImm(imm transport.Imm, n uint64, fn func(error)) (*ImmCounter, error) {
	if fn == nil {
		return nil, fmt.Errorf("%w: expectation without a function", ErrArgument)
	}
	var c *ImmCounter
	var err error
	if callErr := e.Call(func(w *Worker) {
		if c, err = w.immCounter(imm); err != nil {
			return
		}
		if n == 0 {
			e.done.deliverFunc(func() { fn(nil) })
			return
		}
		if c.every != 0 {
			err = fmt.Errorf("%w: %#x has an expectation", ErrImmClaimed, imm)
			return
		}
		c.every, c.left, c.fn = n, n, fn
		total := c.total.Load()
		for i := total / n; i > 0; i-- {
			c.fire()
		}
		c.left = n - total%n
	}); callErr != nil {
		return nil, callErr
	}
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Mirror has the worker store Total into the 8-byte word at off of m on each
// arrival, and once now, so that a device can poll it. The memory must be host
// memory, or device memory mapped into this process (Host set), and stay until
// the counter is released or the engine closed.
func (c *ImmCounter) Mirror(m transport.Memory, off uint64) error {
	if m.Host == nil {
		return fmt.Errorf("engine: mirror of immediate %#x in memory that is not mapped here: %w", c.imm, transport.ErrUnsupported)
	}
	if err := checkRange("mirror", off, 8, uint64(len(m.Host))); err != nil {
		return err
	}
	if (mem.Addr(m.Host)+off)%8 != 0 {
		return fmt.Errorf("%w: mirror at offset %d is not 8-byte aligned", ErrArgument, off)
	}
	word := mem.Word64(m.Host, off)
	return c.e.Call(func(*Worker) {
		c.mirror = word
		word.Store(c.total.Load())
	})
}

// Release ends the counting. Later arrivals are stale until the immediate is
// counted or claimed again, so a peer must not reuse it before. Releasing twice,
// or after Close, is harmless.
func (c *ImmCounter) Release() error {
	err := c.e.Call(func(w *Worker) {
		if c.over.Load() {
			return
		}
		delete(w.imms.counters, c.imm)
		w.imms.forget(immRange{uint64(c.imm), uint64(c.imm) + 1})
		c.end()
	})
	if errors.Is(err, ErrClosed) {
		<-c.e.ended
	}
	return nil
}

func (t *immTable) close() {
	for _, c := range t.counters {
		c.end()
	}
}
