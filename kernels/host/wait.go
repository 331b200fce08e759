package host

import (
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"moerail/kernels/abi"
)

// recheck bounds how long a parked stage believes that nothing changed;
// directRecheck is for waits for a peer that stores its flag here itself, without
// a Notify.
const (
	recheck       = time.Millisecond
	directRecheck = 50 * time.Microsecond
)

// waitFor is a word and the value that ends the wait for it.
type waitFor struct {
	word *atomic.Uint64
	want uint64
}

// await returns when every word of r.waits has reached its value, with CodeOK, or
// earlier with CodeAborted, CodeStopped or, where overflow counts, CodeOverflow.
func (r *stageRun) await(overflow bool) uint32 {
	s := r.s
	limit, again := s.cfg.Spin, recheck
	if r.direct {
		limit, again = s.cfg.DirectSpin, directRecheck
	}
	for spin := 0; ; spin++ {
		if code, over := r.look(overflow); over {
			return code
		}
		if spin < limit {
			s.yield(r.direct)
			continue
		}
		s.parked.Store(true)
		if code, over := r.look(overflow); over { // what came before parked was seen
			s.parked.Store(false)
			return code
		}
		s.timer.Reset(again)
		select {
		case <-s.notify:
			spin = 0 // things move: the next word may be close
		case <-s.timer.C:
		}
		s.parked.Store(false)
	}
}

// yield lets other goroutines run, and, where this process shares its cores with
// others whose stores it waits for, those. Other waits end by this process's own
// proxy, which yields its core itself.
func (s *Stream) yield(direct bool) {
	runtime.Gosched()
	if direct && s.cfg.OSYield {
		_, _, _ = unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
	}
}

// look drops the words that are there from r.waits; over says that the wait ends.
func (r *stageRun) look(overflow bool) (code uint32, over bool) {
	for len(r.waits) > 0 {
		last := len(r.waits) - 1
		if w := r.waits[last]; w.word.Load() < w.want {
			return r.interrupted(overflow)
		}
		r.waits = r.waits[:last]
	}
	return abi.CodeOK, true
}

// interrupted looks at the words that end a round early.
func (r *stageRun) interrupted(overflow bool) (code uint32, over bool) {
	switch {
	case r.s.closed.Load() || control(r.sl.Control, ctlStop).Load() != 0:
		return abi.CodeStopped, true
	case control(r.sl.Control, ctlAbort).Load() >= r.tag:
		return abi.CodeAborted, true
	case overflow && control(r.sl.Control, ctlOverflow).Load() == r.tag:
		return abi.CodeOverflow, true
	}
	return abi.CodeOK, false
}
