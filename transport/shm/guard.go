package shm

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"moerail/internal/mem"
	"moerail/transport"
)

// A guard is a word that its domain's owner makes odd while inside the data
// path. It answers two questions without a lock: may Close unmap what the owner
// uses (this process asks), and may a region be given back although this domain
// could still be writing to it (the region's owner asks, perhaps from another
// process). The counters lie beside it.
//
// All guards of the process lie in one published object that is never unmapped,
// so that a call which comes after Close finds its guard still there.
const (
	guardBytes = 256
	maxDomains = 1024
)

type guard struct {
	seq  *atomic.Uint64
	word *uint64 // seq, for its writer
	now  uint64  // what seq holds
	off  uint64  // of seq in the object
	stat *counters
}

type guardArea struct {
	mu   sync.Mutex
	mem  transport.Memory
	used int   // slots handed out at least once
	free []int // slots whose domain has been collected
}

var guards guardArea

// acquire gives a domain its guard. The slot comes back by release.
func (a *guardArea) acquire() (guard, int, error) {
	g, slot, ok, err := a.take()
	if err != nil || ok {
		return g, slot, err
	}
	// Closed domains may be waiting for the collector.
	for limit := time.Now().Add(time.Second); time.Now().Before(limit); {
		runtime.GC()
		if g, slot, ok, err = a.take(); err != nil || ok {
			return g, slot, err
		}
	}
	return guard{}, 0, fmt.Errorf("shm: %d domains are open in this process, which is the limit", maxDomains)
}

func (a *guardArea) take() (g guard, slot int, ok bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mem.Host == nil {
		if a.mem, err = mem.AllocPublished("moerail-guards", guardBytes*maxDomains); err != nil {
			return guard{}, 0, false, err
		}
	}
	switch n := len(a.free); {
	case n > 0:
		slot, a.free = a.free[n-1], a.free[:n-1]
	case a.used < maxDomains:
		slot = a.used
		a.used++
	default:
		return guard{}, 0, false, nil
	}
	off := uint64(slot) * guardBytes
	clear(a.mem.Host[off+64 : off+guardBytes])
	g = guard{seq: mem.Word64(a.mem.Host, off), word: plainWord(a.mem.Host, off), off: off, stat: newCounters(a.mem.Host[off+64:])}
	g.now = g.seq.Load()
	return g, slot, true, nil
}

// release takes a slot back. It must not be called while anything could still
// call the domain that had it.
func (a *guardArea) release(slot int) {
	a.mu.Lock()
	a.free = append(a.free, slot)
	a.mu.Unlock()
}

// guardPage is the range of the guards object that holds the guard at off.
func guardPage(off uint64) (start, within, size uint64) {
	page := uint64(os.Getpagesize())
	start = off / page * page
	return start, off - start, page
}

// awaitOutside returns once the guard was seen outside the data path after the
// call began, or gone says that its domain has ended; false after limit.
func awaitOutside(seq *atomic.Uint64, gone func() bool, limit time.Duration) bool {
	first := seq.Load()
	if first&1 == 0 {
		return true
	}
	start := time.Now()
	for i := 1; seq.Load() == first && !gone(); i++ {
		if i%256 == 0 && time.Since(start) > limit {
			return false
		}
		runtime.Gosched()
	}
	return true
}
