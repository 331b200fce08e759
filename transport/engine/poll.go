package engine

import (
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// PollPolicy says what an idle worker does. A turn is one look at everything.
// The zero value takes the defaults.
type PollPolicy struct {
	// Spin is the number of idle turns in a row with nothing in between; default
	// 10000 for a pinned worker, which has its core for itself and for which a
	// yield costs microseconds, and 20 for an ordinary goroutine; 1 while ordinary
	// goroutines are as many workers as there are processors, or more: then nothing
	// else runs before one yields. -1 means none.
	Spin int
	// Yield is the number of further turns with a yield in between; default 200,
	// and 8 while ordinary goroutines outnumber the processors as workers: then a
	// yield takes the time of their turns, and waking costs less. -1 means none.
	Yield int
	// OSYield adds sched_yield to each yield, for machines where more pinned
	// workers of several processes than cores must make progress. Where the worker
	// can sleep on its NICs (transport.Waiter) it does so after a few yields.
	OSYield bool
	// MaxPark bounds a park while something can only be found by looking: an
	// attached poller, a domain that is no transport.Waker or Waiter, a full queue.
	// Default 100 us, at most 1 s. Without such a thing a worker parks until woken;
	// with a transport.Waiter it still looks every 5 ms.
	MaxPark time.Duration
	// NoPark keeps the worker yielding for ever.
	NoPark bool
}

const maxMaxPark = time.Second

// crowd is how many workers of this process are ordinary goroutines.
var crowd atomic.Int32

// crowdedYield is the default of Yield in a crowd.
const crowdedYield = 8

func (p PollPolicy) withDefaults(pinned bool) PollPolicy {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		} else if *v < 0 {
			*v = 0
		}
	}
	spin := 20
	if pinned {
		spin = 10000
	}
	def(&p.Spin, spin)
	def(&p.Yield, 200)
	if p.MaxPark == 0 {
		p.MaxPark = 100 * time.Microsecond
	}
	return p
}

// A worker that always finds something to do yields now and then all the same, so
// that others move on. An ordinary goroutine counts turns. The yield of a locked
// thread is two thread switches, so a pinned worker goes by time, idle or not; it
// must be less than 10 ms. From then on Go's scheduler takes a goroutine for one
// that keeps others waiting: its monitor then takes the processor away from each C
// call of a domain that it finds, every 20 us, for nobody's benefit.
const (
	busyTurnsPerYield = 64
	turnsPerClock     = 256 // between looks at the clock
	pinnedYieldEvery  = 4 * time.Millisecond
)

func (w *Worker) yield() {
	runtime.Gosched()
	if w.e.cfg.Poll.OSYield {
		// Raw: it returns when it is this thread's turn again, and must not cost
		// the hand-over of a call that may block.
		_, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
	}
}

// loop is the life of the worker between start and shutdown.
func (w *Worker) loop() {
	asked := w.e.cfg.Poll
	pinned, yielded := w.e.cfg.CPU >= 0, time.Now()
	adaptive, procs := w.e.cfg.CPU < 0 && w.e.adaptive, int32(runtime.GOMAXPROCS(0))
	if w.e.cfg.CPU < 0 {
		crowd.Add(1)
		defer crowd.Add(-1)
	}
	if asked.OSYield && w.doze.enabled() {
		asked.Yield = min(asked.Yield, crowdedYield) // sleeping gives the core away better
	}
	p := asked
	idle, busy := 0, 0
	for turns := uint64(1); !w.e.stop.Load(); turns++ {
		if pinned && turns%turnsPerClock == 0 {
			if now := time.Now(); now.Sub(yielded) >= pinnedYieldEvery {
				w.yield()
				yielded = now
			}
		}
		if w.turn() {
			idle = 0
			if busy++; !pinned && busy%busyTurnsPerYield == 0 {
				w.yield()
			}
			continue
		}
		if adaptive && idle == 0 {
			p = asked
			switch workers := crowd.Load(); {
			case workers > procs:
				p.Spin, p.Yield = min(p.Spin, 1), crowdedYield
			case workers == procs: // applications run only while a worker yields
				p.Spin = min(p.Spin, 1)
			}
		}
		switch idle++; {
		case idle <= p.Spin:
		case idle <= p.Spin+p.Yield || p.NoPark:
			w.yield()
		default:
			if w.park() {
				idle = 0
			} else {
				idle = p.Spin + p.Yield // look once, then park again
			}
		}
	}
}

// park sleeps until Wake or, where nobody would call it, for MaxPark. It tells
// whether there is reason to look closely.
func (w *Worker) park() bool {
	e := w.e
	e.parked.Store(true)
	// Whoever handed something over before the store did not see a parked worker.
	if w.turn() || e.stop.Load() {
		e.parked.Store(false)
		return true
	}
	e.stats.parks.Add(1)
	var woken bool
	if w.doze.enabled() {
		woken = w.doze.sleep(w)
	} else if w.mustLook() {
		w.timer.Reset(e.cfg.Poll.MaxPark)
		select {
		case <-e.wake:
			woken = true
		case <-w.timer.C:
		}
		w.timer.Stop()
	} else {
		<-e.wake
		woken = true
	}
	e.parked.Store(false)
	return woken
}

// mustLook reports whether work can appear without a Wake.
func (w *Worker) mustLook() bool {
	for _, n := range w.nics {
		if n.failed == nil && (!n.wakes && n.waiter == nil || n.queued()) {
			return true
		}
	}
	for _, p := range w.pollers {
		if s, ok := p.(Sleeper); !ok || !s.MaySleep() {
			return true
		}
	}
	return false
}

// Wake rouses a parked worker. It costs one load when the worker is not parked.
func (e *Engine) Wake() {
	if e.parked.Load() && e.parked.CompareAndSwap(true, false) {
		e.stats.wakes.Add(1)
		if e.w.doze.enabled() {
			e.w.doze.rouse()
			return
		}
		select {
		case e.wake <- struct{}{}:
		default:
		}
	}
}
