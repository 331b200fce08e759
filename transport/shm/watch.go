package shm

import (
	"sync"
	"time"
)

// A sender in this process rouses a parked owner itself. One in another process
// can not, and must not pay a system call per message for owners that are wide
// awake. So one goroutine of the process looks, every watchPeriod, at the
// domains whose owner wants to be roused: where the owner has not been in the
// data path since the last look and there is something for it, it is roused.
const watchPeriod = time.Millisecond

type watchman struct {
	mu      sync.Mutex
	walking bool
	domains map[*domain]uint64 // with what the guard was at the last look
}

var watch = watchman{domains: map[*domain]uint64{}}

func (w *watchman) add(d *domain) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.domains[d] = d.guard.seq.Load()
	if !w.walking {
		w.walking = true
		go w.walk()
	}
}

// remove returns when the watchman no longer looks at d.
func (w *watchman) remove(d *domain) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.domains, d)
}

func (w *watchman) walk() {
	tick := time.NewTicker(watchPeriod)
	defer tick.Stop()
	for range tick.C {
		if !w.look() {
			return
		}
	}
}

// look is false when there is nothing left to watch, and walk must end.
func (w *watchman) look() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for d, last := range w.domains {
		now := d.guard.seq.Load()
		if now == last && now&1 == 0 && d.wanted() {
			d.rouse()
		}
		w.domains[d] = now
	}
	w.walking = len(w.domains) > 0
	return w.walking
}

// wanted tells whether a Poll could bring something. Called while the bell is
// mapped, by any goroutine.
func (d *domain) wanted() bool {
	for w := range int(d.words.Load()) {
		if d.bells[w].Load() != 0 {
			return true
		}
	}
	return d.parking.Load()
}
