package rounds

import (
	"errors"
	"sync"
)

// errAbandoned is what a rank's loop ends with when another rank's has failed.
var errAbandoned = errors.New("abandoned: another rank failed")

// barrier joins the ranks of one process between phases. Waiting allocates
// nothing.
type barrier struct {
	mu     sync.Mutex
	cond   sync.Cond
	ranks  int
	waits  int    // guarded by mu
	turn   uint64 // guarded by mu
	broken bool   // guarded by mu
}

func newBarrier(ranks int) *barrier {
	b := &barrier{ranks: ranks}
	b.cond.L = &b.mu
	return b
}

// wait returns when all ranks wait, or errAbandoned once leave was called.
func (b *barrier) wait() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.broken {
		return errAbandoned
	}
	if b.waits++; b.waits == b.ranks {
		b.waits = 0
		b.turn++
		b.cond.Broadcast()
		return nil
	}
	for turn := b.turn; turn == b.turn && !b.broken; {
		b.cond.Wait()
	}
	if b.broken {
		return errAbandoned
	}
	return nil
}

// leave ends every wait, now and later.
func (b *barrier) leave() {
	b.mu.Lock()
	b.broken = true
	b.mu.Unlock()
	b.cond.Broadcast()
}
