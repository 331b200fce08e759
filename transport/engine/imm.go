package engine

import (
	"fmt"
	"slices"
	"sort"

	"moerail/transport"
)

// ImmHandler is told of immediates of a claim. HandleImm runs on the worker
// thread, must not block, and may use the Worker. index counts from the claim's
// base.
type ImmHandler interface{ HandleImm(index uint32) }

// ImmClaim is a range of immediates that belongs to one handler.
type ImmClaim struct {
	e        *Engine
	base     transport.Imm
	n        uint32
	h        ImmHandler
	released bool // worker
}

// Base is the first immediate of the claim.
func (c *ImmClaim) Base() transport.Imm { return c.base }

// immTable says to whom an immediate belongs. Worker thread only.
//
// An immediate is claimed, counted, released, or was never heard of. Arrivals
// for the last kind are kept, since nothing orders a peer's first write behind
// this side's claim; arrivals for a released one are stale until it is claimed
// again.
type immTable struct {
	claims   []*ImmClaim // by base, disjoint
	last     *ImmClaim   // of the latest arrival
	counters map[transport.Imm]*ImmCounter
	early    map[transport.Imm]uint64
	maxEarly int
	released []immRange // by lo, disjoint, not adjacent
}

// immRange is [lo, hi) in 33 bits.
type immRange struct{ lo, hi uint64 }

func (w *Worker) dispatchImm(imm transport.Imm) {
	t := &w.imms
	if c := t.last; c != nil && uint32(imm-c.base) < c.n {
		w.e.stats.imms.Add(1)
		c.h.HandleImm(uint32(imm - c.base))
		return
	}
	if c := t.find(imm); c != nil {
		t.last = c
		w.e.stats.imms.Add(1)
		c.h.HandleImm(uint32(imm - c.base))
		return
	}
	if c := t.counters[imm]; c != nil {
		w.e.stats.imms.Add(1)
		c.arrived(1)
		return
	}
	if t.isReleased(imm) {
		w.e.stats.stale.Add(1)
		return
	}
	if n, known := t.early[imm]; known || len(t.early) < t.maxEarly {
		t.early[imm] = n + 1
		w.e.stats.early.Add(1)
		return
	}
	w.e.stats.lost.Add(1)
}

func (t *immTable) find(imm transport.Imm) *ImmClaim {
	i := sort.Search(len(t.claims), func(i int) bool { return t.claims[i].base > imm })
	if i > 0 && uint32(imm-t.claims[i-1].base) < t.claims[i-1].n {
		return t.claims[i-1]
	}
	return nil
}

func (t *immTable) isReleased(imm transport.Imm) bool {
	i := sort.Search(len(t.released), func(i int) bool { return t.released[i].lo > uint64(imm) })
	return i > 0 && uint64(imm) < t.released[i-1].hi
}

// taken reports somebody who holds part of the range.
func (t *immTable) taken(r immRange) error {
	for _, c := range t.claims {
		lo := uint64(c.base)
		if lo < r.hi && r.lo < lo+uint64(c.n) {
			return fmt.Errorf("%w: [%#x, %#x) overlaps [%#x, %#x)", ErrImmClaimed, r.lo, r.hi, lo, lo+uint64(c.n))
		}
	}
	if r.hi-r.lo == 1 {
		if t.counters[transport.Imm(r.lo)] != nil {
			return fmt.Errorf("%w: %#x is counted", ErrImmClaimed, r.lo)
		}
		return nil
	}
	for imm := range t.counters {
		if uint64(imm) >= r.lo && uint64(imm) < r.hi {
			return fmt.Errorf("%w: [%#x, %#x) holds %#x, which is counted", ErrImmClaimed, r.lo, r.hi, imm)
		}
	}
	return nil
}

// forget makes a range released; revive makes it fresh again.
func (t *immTable) forget(r immRange) {
	i := sort.Search(len(t.released), func(i int) bool { return t.released[i].hi >= r.lo })
	j := i
	for ; j < len(t.released) && t.released[j].lo <= r.hi; j++ {
		r.lo, r.hi = min(r.lo, t.released[j].lo), max(r.hi, t.released[j].hi)
	}
	t.released = slices.Replace(t.released, i, j, r)
}

func (t *immTable) revive(r immRange) {
	var keep []immRange
	for _, q := range t.released {
		if q.hi <= r.lo || q.lo >= r.hi {
			keep = append(keep, q)
			continue
		}
		if q.lo < r.lo {
			keep = append(keep, immRange{q.lo, r.lo})
		}
		if q.hi > r.hi {
			keep = append(keep, immRange{r.hi, q.hi})
		}
	}
	t.released = keep
}

// ClaimImms gives n immediates from base on to h. Arrivals that came before are
// replayed before it returns, at most Config.MaxEarlyImms different ones. A
// range that overlaps another claim or a counted immediate is refused with
// ErrImmClaimed.
func (e *Engine) ClaimImms(base transport.Imm, n uint32, h ImmHandler) (*ImmClaim, error) {
	r := immRange{uint64(base), uint64(base) + uint64(n)}
	if n == 0 || r.hi > 1<<32 || h == nil {
		return nil, fmt.Errorf("%w: claim of %d immediates from %#x, want 1 or more within 32 bits and a handler", ErrArgument, n, base)
	}
	c := &ImmClaim{e: e, base: base, n: n, h: h}
	var err error
	if callErr := e.Call(func(w *Worker) {
		t := &w.imms
		if err = t.taken(r); err != nil {
			return
		}
		t.revive(r)
		i := sort.Search(len(t.claims), func(i int) bool { return t.claims[i].base > base })
		t.claims = slices.Insert(t.claims, i, c)
		for imm, count := range t.early {
			if uint64(imm) < r.lo || uint64(imm) >= r.hi {
				continue
			}
			delete(t.early, imm)
			w.e.stats.imms.Add(count)
			for ; count > 0; count-- {
				h.HandleImm(uint32(imm - base))
			}
		}
	}); callErr != nil {
		return nil, callErr
	}
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Release ends the claim: the handler is not running when it returns and never
// runs again. Arrivals after it are counted as stale until the range is claimed
// anew. Releasing twice, or after Close, is harmless.
func (c *ImmClaim) Release() error {
	err := c.e.Call(func(w *Worker) {
		if c.released {
			return
		}
		c.released = true
		t := &w.imms
		if i := slices.Index(t.claims, c); i >= 0 {
			t.claims = slices.Delete(t.claims, i, i+1)
		}
		t.last = nil
		t.forget(immRange{uint64(c.base), uint64(c.base) + uint64(c.n)})
	})
	if err != nil {
		<-c.e.ended // the worker is on its way out; the promise holds once it is gone
	}
	return nil
}
