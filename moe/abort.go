package moe

// Abort ends this rank's part in a slot's round without running the experts: the
// other ranks are answered with NaN, so that a token which needed this rank is
// seen to have no value, and nobody waits. The slot is free afterwards.
func (c *Communicator) Abort(slot int) error {
	s, err := c.hold(slot, PhaseClose)
	if err != nil {
		return err
	}
	defer c.leaveSlot(s)
	if s.phase == phaseSent {
		// Without a batch the round is over on every rank (overflow), or nothing works.
		if b, err := c.dispatchRecv(s); b == nil && s.phase != phaseIdle {
			return err
		}
	}
	if s.phase == phaseReceived {
		if err := c.combineSend(s, nil, 0, true); err != nil {
			return err
		}
	}
	if s.phase == phaseCombined {
		if len(s.abandoned) < s.tokens*int(c.plan.Shape.OutRowBytes) {
			s.abandoned = make([]byte, int(c.plan.Shape.MaxTokens)*int(c.plan.Shape.OutRowBytes))
		}
		if err := c.combineRecv(s, s.abandoned, 0, 0); err != nil && err != error(s.input) {
			return err
		}
	}
	return c.failed()
}
