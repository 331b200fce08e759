package moe

// Abort ends this rank's part in a slot's round without running the experts: the
// other ranks are answered with NaN, so that a token which needed this rank is
// seen to have no value, and nobody waits. The slot is free afterwards.
func (c *Communicator) Abort(slot int) error {
	if slot < 0 || slot >= len(c.slots) {
		return c.noSlot(slot, PhaseClose)
	}
	c.users.Add(1)
	defer c.leave()
	if err := c.failed(); err != nil {
		return err
	}
	s := c.slots[slot]
	if s.phase == phaseSent {
		// Without a batch the round is over on every rank (overflow), or nothing works.
		if b, err := c.DispatchRecv(slot); b == nil && s.phase != phaseIdle {
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
		if err := c.CombineRecv(slot, s.abandoned, 0); err != nil && err != error(s.input) {
			return err
		}
	}
	return c.failed()
}
