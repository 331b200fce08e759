package host

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"moerail/kernels"
	"moerail/kernels/abi"
)

// launch is one entry of the ring: the params of the stage that it is.
type launch struct {
	stage        uint32
	dispatchSend abi.DispatchSendParams
	dispatchRecv abi.DispatchRecvParams
	combineSend  abi.CombineSendParams
	combineRecv  abi.CombineRecvParams
}

// Who runs the stages: nobody, someone (the stream goroutine or a caller in
// Sync), or nobody ever again.
const (
	runnerNone = iota
	runnerBusy
	runnerClosed
)

// Stream runs stages in order. See kernels.Stream for who may call what.
type Stream struct {
	cfg  Config
	bump func()

	ring     []launch
	launched atomic.Uint64 // written by the launching goroutine
	done     atomic.Uint64 // written by the runner
	runner   atomic.Uint32
	closed   atomic.Bool

	wake   chan struct{} // to the stream goroutine: there is work, or the end
	asleep atomic.Bool   // the stream goroutine waits on wake
	ended  chan struct{} // the stream goroutine has returned
	once   sync.Once

	idle    chan struct{} // to Sync or a launch: the runner let go, or made room
	waiting atomic.Bool   // someone waits on idle

	notify chan struct{} // to a stage that waits
	parked atomic.Bool   // a stage waits on notify
	timer  *time.Timer   // owned by the runner

	run stageRun // owned by the runner
}

var _ kernels.Stream = (*Stream)(nil)

func newTimer() *time.Timer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// DispatchSend launches the stage of that name. It fails, with nothing launched,
// when the params cannot be right or the stream is closed.
func (s *Stream) DispatchSend(p *abi.DispatchSendParams) error {
	if err := checkDispatchSend(p); err != nil {
		return err
	}
	e, err := s.entry(abi.StageDispatchSend)
	if err != nil {
		return err
	}
	e.dispatchSend = *p
	s.publish()
	return nil
}

// DispatchRecv launches the stage of that name; see DispatchSend for errors.
func (s *Stream) DispatchRecv(p *abi.DispatchRecvParams) error {
	if err := checkDispatchRecv(p); err != nil {
		return err
	}
	e, err := s.entry(abi.StageDispatchRecv)
	if err != nil {
		return err
	}
	e.dispatchRecv = *p
	s.publish()
	return nil
}

// CombineSend launches the stage of that name; see DispatchSend for errors.
func (s *Stream) CombineSend(p *abi.CombineSendParams) error {
	if err := checkCombineSend(p); err != nil {
		return err
	}
	e, err := s.entry(abi.StageCombineSend)
	if err != nil {
		return err
	}
	e.combineSend = *p
	s.publish()
	return nil
}

// CombineRecv launches the stage of that name; see DispatchSend for errors.
func (s *Stream) CombineRecv(p *abi.CombineRecvParams) error {
	if err := checkCombineRecv(p); err != nil {
		return err
	}
	e, err := s.entry(abi.StageCombineRecv)
	if err != nil {
		return err
	}
	e.combineRecv = *p
	s.publish()
	return nil
}

// entry is the ring's next free entry; it waits for room.
func (s *Stream) entry(stage uint32) (*launch, error) {
	n := s.launched.Load()
	for n-s.done.Load() >= uint64(len(s.ring)) {
		if s.closed.Load() {
			return nil, errClosed
		}
		s.runOrWait(n - uint64(len(s.ring)) + 1)
	}
	if s.closed.Load() {
		return nil, errClosed
	}
	e := &s.ring[n%uint64(len(s.ring))]
	e.stage = stage
	return e, nil
}

func (s *Stream) publish() {
	s.launched.Add(1)
	if !s.cfg.Passive && s.asleep.Load() {
		poke(s.wake)
	}
}

// Sync returns when every stage launched before has ended, or was dropped by
// Close. Stages that have not begun it runs itself: no hand-over.
func (s *Stream) Sync() {
	s.runOrWait(s.launched.Load())
}

// runOrWait returns when done has reached target, or the stream is closed.
func (s *Stream) runOrWait(target uint64) {
	for spin := 0; s.done.Load() < target; {
		if s.runAll() {
			continue
		}
		if s.runner.Load() == runnerClosed {
			return
		}
		if spin < s.cfg.Spin {
			spin++
			runtime.Gosched()
			continue
		}
		s.waiting.Store(true)
		if s.done.Load() < target && s.runner.Load() == runnerBusy {
			<-s.idle
		}
		s.waiting.Store(false)
	}
}

// runAll becomes the runner and runs what is launched; false when someone else is
// the runner. After Close it drops what is launched.
func (s *Stream) runAll() bool {
	if !s.runner.CompareAndSwap(runnerNone, runnerBusy) {
		return false
	}
	for s.done.Load() < s.launched.Load() {
		if s.closed.Load() {
			s.done.Store(s.launched.Load())
			break
		}
		s.execute(&s.ring[s.done.Load()%uint64(len(s.ring))])
		s.done.Add(1)
		if s.waiting.Load() {
			poke(s.idle)
		}
	}
	s.runner.Store(runnerNone)
	if s.waiting.Load() {
		poke(s.idle)
	}
	return true
}

func (s *Stream) execute(e *launch) {
	switch e.stage {
	case abi.StageDispatchSend:
		s.run.dispatchSend(&e.dispatchSend)
	case abi.StageDispatchRecv:
		s.run.dispatchRecv(&e.dispatchRecv)
	case abi.StageCombineSend:
		s.run.combineSend(&e.combineSend)
	case abi.StageCombineRecv:
		s.run.combineRecv(&e.combineRecv)
	}
}

// work is the stream goroutine.
func (s *Stream) work() {
	defer close(s.ended)
	for !s.closed.Load() {
		s.asleep.Store(true)
		// A launch either sees asleep, or is seen here. A runner that is busy is the
		// caller in Sync, who launches nothing meanwhile and runs all there is.
		if s.cfg.Passive || s.done.Load() == s.launched.Load() || s.runner.Load() == runnerBusy {
			<-s.wake
		}
		s.asleep.Store(false)
		s.runAll()
	}
}

// Notify wakes a stage that waits for a word.
func (s *Stream) Notify() {
	if s.parked.Load() {
		poke(s.notify)
	}
}

// Close ends a running stage with CodeStopped, drops those queued, and returns
// when nothing runs and the stream goroutine has ended.
func (s *Stream) Close() error {
	s.once.Do(func() {
		s.closed.Store(true)
		poke(s.notify)
		poke(s.wake)
		<-s.ended
		for !s.runner.CompareAndSwap(runnerNone, runnerClosed) {
			// A caller in Sync runs a stage: it sees closed at its next look.
			poke(s.notify)
			runtime.Gosched()
		}
		poke(s.idle)
	})
	return nil
}
