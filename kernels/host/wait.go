package host

import (
	"runtime"
	"sync/atomic"
	"time"

	"moerail/kernels/abi"
)

// recheck bounds how long a parked stage believes that nothing changed, should
// nobody have called Notify.
const recheck = time.Millisecond

// waitFor is a word and the value that ends the wait for it.
type waitFor struct {
	word *atomic.Uint64
	want uint64
}

// await returns when every word of r.waits has reached its value, with CodeOK, or
// earlier with CodeAborted, CodeStopped or, where overflow counts, CodeOverflow.
func (r *stageRun) await(overflow bool) uint32 {
	s := r.s
	for spin := 0; ; spin++ {
		if code, over := r.look(overflow); over {
			return code
		}
		if spin < s.cfg.Spin {
			runtime.Gosched()
			continue
		}
		s.parked.Store(true)
		if code, over := r.look(overflow); over { // what came before parked was seen
			s.parked.Store(false)
			return code
		}
		s.timer.Reset(recheck)
		select {
		case <-s.notify:
			spin = 0 // things move: the next word may be close
		case <-s.timer.C:
		}
		s.parked.Store(false)
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
