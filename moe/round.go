package moe

import (
	"fmt"
	"runtime"
	"time"

	"moerail/internal/mem"
)

// DispatchSend starts a round on a slot: it checks the input's shape and hands it
// to the device. It returns before anything has moved.
//
// A *RoundError with code shape or too_many_tokens means that the round has not
// started and the caller may call again; busy, that the slot's round is not
// finished. Bad expert ids are found by the device: see DispatchRecv.
func (c *Communicator) DispatchSend(slot int, in Input) error {
	s, err := c.enter(slot, PhaseDispatchSend, phaseIdle)
	if err != nil {
		return err
	}
	defer c.leaveSlot(s)
	s.use(c.place.Load())
	if err := c.checkInput(s, &in); err != nil {
		return err
	}
	s.in, s.tokens, s.input = in, in.NumTokens, nil
	p := &s.send
	p.X, p.XStride = s.addr(in.X), uint64(in.XStride)
	if p.XStride == 0 {
		p.XStride = uint64(p.Shape.InRowBytes)
	}
	p.Scales, p.ScaleStride = s.addr(in.Scales), uint64(p.Shape.ScaleBytes)
	if p.IDs, p.IDType = idsAddr(&in); p.IDs == 0 {
		p.IDs = s.addr(nil)
	}
	p.Weights = floatsAddr(in.Weights)
	p.NumTokens, p.NumTokensPtr = uint32(in.NumTokens), countAddr(in.TokenCount)
	if err := s.stream.DispatchSend(p); err != nil {
		return c.broken(s, PhaseDispatchSend, err)
	}
	s.phase = phaseSent
	return nil
}

// DispatchRecv waits until every rank's rows are here and placed.
//
// When the device refused this rank's own input (code invalid_expert, or
// too_many_tokens from a device-side count) it returns the error *and* a batch:
// the round is alive, the rank sent nothing but still serves the others, and the
// caller goes on to combine. An overflow ends the round on every rank: no batch,
// the slot is free. Any other error is sticky.
func (c *Communicator) DispatchRecv(slot int) (*Batch, error) {
	s, err := c.enter(slot, PhaseDispatchRecv, phaseSent)
	if err != nil {
		return nil, err
	}
	defer c.leaveSlot(s)
	return c.dispatchRecv(s)
}

func (c *Communicator) dispatchRecv(s *slot) (*Batch, error) {
	if err := s.stream.DispatchRecv(&s.recv); err != nil {
		return nil, c.broken(s, PhaseDispatchRecv, err)
	}
	c.wait(s, phaseSent)
	s.in = Input{}
	round := s.round.Load()
	if s.ctl.Overflow.Load() == round+1 {
		err := c.overflow(s, round)
		if qerr := c.quiesce(s, phaseSent); qerr != nil {
			return nil, qerr
		}
		s.phase = phaseIdle
		s.round.Store(round + 1)
		return nil, err
	}
	// The status tells only of stages that ran, and keeps the first fault of the
	// round: a stage that Close dropped, or a wait given up after this rank's input
	// was refused, shows here alone.
	if err := c.failed(); err != nil {
		return nil, err
	}
	if err := c.stageError(s); err != nil {
		return nil, err
	}
	s.phase = phaseReceived
	b := c.view(s)
	c.account(s, b)
	if s.input != nil {
		return b, s.input
	}
	return b, nil
}

// CombineSend hands the experts' results to the device: y in the row numbers of
// the batch, rows yStride bytes apart (0 = packed); nil takes the batch's Y. y may
// be reused when CombineRecv has returned.
func (c *Communicator) CombineSend(slot int, y []byte, yStride int) error {
	s, err := c.enter(slot, PhaseCombineSend, phaseReceived)
	if err != nil {
		return err
	}
	defer c.leaveSlot(s)
	if y == nil {
		// Not the batch's own fields: those the caller may have changed.
		yStride = int(s.mem.yStride)
		y = s.at(s.mem.y, uint64(s.outRows)*s.mem.yStride)
	} else if yStride == 0 {
		yStride = int(c.plan.Shape.OutRowBytes)
	}
	if err := c.checkRows(s, PhaseCombineSend, "y", y, yStride, s.outRows); err != nil {
		return err
	}
	return c.combineSend(s, y, yStride, false)
}

func (c *Communicator) combineSend(s *slot, y []byte, yStride int, abandon bool) error {
	s.y = y
	s.csend.Y, s.csend.YStride, s.csend.Abandon = s.addr(y), uint64(yStride), 0
	if abandon {
		s.csend.Abandon = 1
	}
	if err := s.stream.CombineSend(&s.csend); err != nil {
		return c.broken(s, PhaseCombineSend, err)
	}
	s.phase = phaseCombined
	return nil
}

// CombineRecv waits for what the other ranks return and writes the sums of this
// rank's tokens to out: one row of OutDType a token, outStride bytes apart
// (0 = packed). It ends the round: the slot is free, and no operation of the
// round is outstanding. After an error that came with a batch it returns that
// error again: out is left alone if this rank's own input was refused; after any
// other such error it holds this rank's sums.
func (c *Communicator) CombineRecv(slot int, out []byte, outStride int) error {
	return c.enterCombineRecv(slot, out, outStride, 0)
}

// CombineRecvAdd is CombineRecv that adds to what out holds.
func (c *Communicator) CombineRecvAdd(slot int, out []byte, outStride int) error {
	return c.enterCombineRecv(slot, out, outStride, 1)
}

func (c *Communicator) enterCombineRecv(slot int, out []byte, outStride int, accumulate uint32) error {
	s, err := c.enter(slot, PhaseCombineRecv, phaseCombined)
	if err != nil {
		return err
	}
	defer c.leaveSlot(s)
	return c.combineRecv(s, out, outStride, accumulate)
}

func (c *Communicator) combineRecv(s *slot, out []byte, outStride int, accumulate uint32) error {
	if outStride == 0 {
		outStride = int(c.plan.Shape.OutRowBytes)
	}
	// The device's number: 0 when it refused the input, fewer than NumTokens with a
	// TokenCount. Its rows are what the stage writes.
	tokens := min(int(mem.Word32(s.local.Host, s.mem.tokens).Load()), s.tokens)
	if err := c.checkRows(s, PhaseCombineRecv, "out", out, outStride, tokens); err != nil {
		return err
	}
	s.out = out
	s.crecv.Out, s.crecv.OutStride, s.crecv.Accumulate = s.addr(out), uint64(outStride), accumulate
	if err := s.stream.CombineRecv(&s.crecv); err != nil {
		return c.broken(s, PhaseCombineRecv, err)
	}
	c.wait(s, phaseCombined)
	s.y, s.out = nil, nil
	if err := c.failed(); err != nil {
		return err
	}
	if s.input == nil {
		if err := c.stageError(s); err != nil {
			return err
		}
	}
	if err := c.quiesce(s, phaseCombined); err != nil {
		return err
	}
	s.phase = phaseIdle
	s.round.Add(1)
	if s.input != nil {
		return s.input
	}
	return nil
}

// Dispatch is DispatchSend and DispatchRecv.
func (c *Communicator) Dispatch(slot int, in Input) (*Batch, error) {
	if err := c.DispatchSend(slot, in); err != nil {
		return nil, err
	}
	return c.DispatchRecv(slot)
}

// Combine is CombineSend and CombineRecv.
func (c *Communicator) Combine(slot int, y []byte, yStride int, out []byte, outStride int) error {
	if err := c.CombineSend(slot, y, yStride); err != nil {
		return err
	}
	return c.CombineRecv(slot, out, outStride)
}

// leaveSlot ends a call that enter began.
func (c *Communicator) leaveSlot(s *slot) {
	s.inCall.Store(false)
	c.leave()
}

// leave ends the use of memory that Close frees.
func (c *Communicator) leave() { c.users.Add(-1) }

// hold checks that a slot exists and that no other goroutine is in a call of it.
// After nil the slot is the caller's and the communicator's memory stays until
// leaveSlot.
func (c *Communicator) hold(slot int, name string) (*slot, error) {
	if slot < 0 || slot >= len(c.slots) {
		return nil, c.noSlot(slot, name)
	}
	c.users.Add(1)
	s := c.slots[slot]
	if err := c.failed(); err != nil {
		if s.inCall.CompareAndSwap(false, true) {
			// What the caller passed to the calls before is its own again with this
			// error: no stage may read it any more. All end soon: the round is given up.
			s.stream.Sync()
			s.inCall.Store(false)
		}
		c.leave()
		return nil, err
	}
	if !s.inCall.CompareAndSwap(false, true) {
		c.leave()
		return nil, &RoundError{Code: CodeBusy, Phase: name, Round: s.round.Load(), Ranks: []int{c.rank}, Token: -1, Pick: -1,
			What: fmt.Sprintf("slot %d: another goroutine is in a call of it", slot)}
	}
	return s, nil
}

// enter is hold that also checks that the slot stands where the call needs it.
func (c *Communicator) enter(slot int, name string, want phase) (*slot, error) {
	s, err := c.hold(slot, name)
	if err != nil || s.phase == want {
		return s, err
	}
	at := s.phase
	c.leaveSlot(s)
	code := CodePhaseOrder
	if want == phaseIdle {
		code = CodeBusy
	}
	return nil, &RoundError{Code: code, Phase: name, Round: s.round.Load(), Ranks: []int{c.rank}, Token: -1, Pick: -1,
		What: fmt.Sprintf("slot %d: %s", slot, phaseNeeds[at])}
}

func (c *Communicator) noSlot(slot int, name string) error {
	return &RoundError{Code: CodeBusy, Phase: name, Ranks: []int{c.rank}, Token: -1, Pick: -1,
		What: fmt.Sprintf("slot %d of %d: no further micro-batch can be in flight", slot, len(c.slots))}
}

// broken is the error of a launch that the device refused: the stream is gone.
func (c *Communicator) broken(s *slot, phase string, err error) error {
	re := &RoundError{Code: CodeTransport, Phase: phase, Round: s.round.Load(), Ranks: []int{c.rank}, Token: -1, Pick: -1, What: "the device refused a stage", Err: err}
	c.fail(re)
	s.stream.Sync() // the stages before it still read the caller's memory
	return c.failed()
}

// wait returns when the slot's stages have ended; the watchdog ends them when
// the deadline passes.
func (c *Communicator) wait(s *slot, ph phase) {
	s.waitPhase.Store(int32(ph))
	s.waiting.Store(max(1, int64(time.Since(c.epoch))))
	// A failure that came before the round's number was visible to endWaits.
	if c.failure.Load() != nil {
		s.ctl.Abort.Store(s.round.Load() + 1)
		s.stream.Notify()
	}
	if len(c.proxy.direct) > 0 {
		c.engine.Wake() // a parked worker does not see that flags are to be looked at
	}
	s.stream.Sync()
	s.waiting.Store(0)
}

// quiesce waits until every operation of the slot's round has completed.
func (c *Communicator) quiesce(s *slot, ph phase) error {
	want := s.round.Load() + 1
	done := func() bool { return s.ctl.DispatchTxDone.Load() >= want && s.ctl.CombineTxDone.Load() >= want }
	if done() {
		return nil
	}
	s.waitPhase.Store(int32(ph))
	s.waiting.Store(max(1, int64(time.Since(c.epoch))))
	defer s.waiting.Store(0)
	for i := 0; !done(); i++ {
		if err := c.failed(); err != nil {
			return err
		}
		pause(i)
	}
	return nil
}

// pause yields, and sleeps when that has not helped for long.
func pause(i int) {
	if i < 1000 {
		runtime.Gosched()
	} else {
		time.Sleep(50 * time.Microsecond)
	}
}
