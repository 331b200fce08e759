package moe

import (
	"fmt"
	"slices"
	"time"

	"moerail/internal/mem"
	"moerail/transport/engine"
)

// watch ends waits whose deadline has passed. One goroutine a communicator, so
// that the hot path never touches a timer.
func (c *Communicator) watch() {
	defer c.watched.Done()
	least := min(c.cfg.Deadline, c.cfg.FirstDeadline)
	t := time.NewTicker(min(max(least/20, time.Millisecond), 100*time.Millisecond))
	defer t.Stop()
	for {
		select {
		case <-c.life.Done():
			return
		case <-t.C:
		}
		for _, s := range c.slots {
			c.checkDeadline(s)
		}
	}
}

func (c *Communicator) limit(round uint64) time.Duration {
	if round == c.cfg.FirstRound {
		return c.cfg.FirstDeadline
	}
	return c.cfg.Deadline
}

func (c *Communicator) checkDeadline(s *slot) {
	since := s.waiting.Load()
	if since == 0 || int64(time.Since(c.epoch))-since < int64(c.limit(s.round.Load())) {
		return
	}
	gone := c.engine.Call(func(*engine.Worker) {
		if s.waiting.Load() != since {
			return // it came just now
		}
		ph := phase(s.waitPhase.Load())
		err := &RoundError{Code: CodeDeadline, Phase: phaseName(ph), Round: s.round.Load(), Token: -1, Pick: -1}
		err.Ranks = c.late(s, ph)
		err.What = fmt.Sprintf("deadline of %v passed", c.limit(err.Round))
		if len(err.Ranks) > 0 {
			err.What += ", waiting for " + ranksText(err.Ranks)
		} else {
			err.What += ", waiting for this rank's own device or completions"
			err.Ranks = []int{c.rank}
		}
		c.fail(err)
	})
	if gone != nil { // nobody is left to bring what the wait is for, or to ask
		c.fail(&RoundError{Code: CodeTransport, Phase: phaseName(phase(s.waitPhase.Load())), Round: s.round.Load(),
			Ranks: []int{c.rank}, Token: -1, Pick: -1, What: "the engine was closed", Err: gone})
	}
}

// late lists the ranks that a wait of slot s is for. Worker thread.
func (c *Communicator) late(s *slot, ph phase) []int {
	late, round := []int(nil), s.round.Load()
	if ph == phaseSent {
		late = s.dispatch.Late(round, late)
	} else {
		late = s.combine.Late(round, late)
	}
	for q := range c.ranks {
		if c.direct[q] && q != c.rank && c.directLate(s, ph, q) {
			late = append(late, q)
		}
	}
	slices.Sort(late)
	return late
}

// directLate looks at the flag word of a rank that stores here itself.
func (c *Communicator) directLate(s *slot, ph phase, q int) bool {
	round := s.round.Load()
	if ph == phaseSent {
		return mem.Word64(c.inbox.Host, c.plan.DirectDispatchOffset(s.index, int(round&1), q)).Load() < round+1
	}
	return s.owed(q) > 0 && mem.Word64(c.inbox.Host, c.plan.DirectCombineOffset(s.index, q)).Load() < round+1
}

func phaseName(p phase) string {
	switch p {
	case phaseSent:
		return PhaseDispatchRecv
	case phaseReceived:
		return PhaseCombineSend
	default:
		return PhaseCombineRecv
	}
}
