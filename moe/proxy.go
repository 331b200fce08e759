package moe

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"moerail/combine"
	"moerail/dispatch"
	"moerail/moe/routing"
	"moerail/transport"
	"moerail/transport/engine"
)

// proxy is the poller of one communicator on its engine's worker: it lets both
// halves of every slot do what can be done, and turns immediates into arrivals.
type proxy struct {
	c        *Communicator
	meanings []routing.Meaning
	ranks    uint32
	direct   []int // ranks of other processes that store into this one's memory themselves
	halted   bool  // after a failure it posts nothing more

	// now is the time of this worker turn, read at most once, by the first arrival.
	now time.Duration

	steps, busyNanos atomic.Uint64
	wait             []sourceWait // by slot and parity
	waited           []atomic.Uint64
}

// sourceWait is when the first block of a round came.
type sourceWait struct {
	first time.Duration
	count int
}

func newProxy(c *Communicator) *proxy {
	p := &proxy{c: c, meanings: c.plan.Meanings(), ranks: uint32(c.ranks),
		wait: make([]sourceWait, 2*c.plan.Slots), waited: make([]atomic.Uint64, c.ranks)}
	for q, direct := range c.direct {
		if direct && c.mapped[q] == nil {
			p.direct = append(p.direct, q)
		}
	}
	return p
}

// Poll is the worker's turn.
func (p *proxy) Poll(w *engine.Worker) (busy bool) {
	p.now = 0
	if b := p.c.barrier; !p.halted && b.posted < b.entered.Load() {
		busy = true
		if err := b.step(w, p.c.groups[0]); err != nil {
			p.fail(p.c.slots[0], PhaseBarrier, err)
		}
	}
	if !p.halted {
		p.lookForFailures()
	}
	for _, s := range p.c.slots {
		if len(p.direct) > 0 && p.pollDirect(s) {
			busy = true
		}
		round := s.combine.Round()
		if p.halted || !s.dispatch.Pending() && !s.combine.Pending(s.dispatch.Posted(round)) {
			continue
		}
		start := time.Now()
		p.step(w, s)
		p.steps.Add(1)
		p.busyNanos.Add(uint64(time.Since(start)))
		busy = true
	}
	return busy
}

// MaySleep says that the worker may park: whatever the proxy waits for comes as an
// immediate or a completion, or the device, Barrier and wait wake the engine. Only
// a rank of another process that stores here itself wakes nobody.
func (p *proxy) MaySleep() bool {
	if !p.c.device.Bumps() {
		return false
	}
	for _, s := range p.c.slots {
		if len(p.direct) > 0 && s.waiting.Load() != s.directTold {
			return false
		}
	}
	return true
}

// pollDirect looks, while the slot's user waits, at the flags of the ranks that
// store here themselves, in the device's place: one thread of a process that
// polls is enough. It tells the stream when all are there.
func (p *proxy) pollDirect(s *slot) (told bool) {
	since := s.waiting.Load()
	if since == s.directTold {
		return false
	}
	if since != s.directFor { // what was seen of another wait's flags says nothing of this one's
		s.directFor, s.directNext = since, 0
	}
	if since == 0 {
		s.directTold = 0
		return false
	}
	for ph := phase(s.waitPhase.Load()); s.directNext < len(p.direct); s.directNext++ {
		if p.c.directLate(s, ph, p.direct[s.directNext]) {
			return false
		}
	}
	s.directTold = since
	s.stream.Notify()
	return true
}

func (p *proxy) step(w *engine.Worker, s *slot) {
	if _, err := s.dispatch.Step(w); err != nil {
		p.fail(s, PhaseDispatchSend, err)
		return
	}
	round := s.combine.Round()
	if s.dispatch.Overflowing(round) {
		s.combine.Skip()
	} else if _, err := s.combine.Step(w, s.dispatch.Posted(round)); err != nil {
		p.fail(s, PhaseCombineSend, err)
		return
	}
	s.stream.Notify()
}

// lookForFailures ends the communicator with the first operation that failed,
// also while no half has anything to do: whoever waits for the rank that is lost
// should not have to wait for a deadline.
func (p *proxy) lookForFailures() {
	for _, s := range p.c.slots {
		for i, t := range s.trackers {
			if err := t.Err(); err != nil {
				p.fail(s, [...]string{PhaseDispatchSend, PhaseCombineSend}[i], err)
				return
			}
		}
	}
	if b := p.c.barrier; b != nil {
		if err := b.tracker.Err(); err != nil {
			p.fail(p.c.slots[0], PhaseBarrier, err)
		}
	}
}

// HandleImm takes one immediate of the communicator's range.
func (p *proxy) HandleImm(index uint32) {
	kind, src := index/p.ranks, int(index%p.ranks)
	if kind >= uint32(len(p.meanings)) {
		p.c.barrier.arrived(src)
		return
	}
	m := p.meanings[kind]
	s := p.c.slots[m.Slot]
	var err error
	if m.Kind == routing.KindCombine {
		err = s.combine.Arrived(src)
	} else {
		err = s.dispatch.Arrived(m, src)
		if m.Kind == routing.KindDispatch || m.Kind == routing.KindRoute { // a round's first word from src
			p.noteArrival(m, src, s)
		}
	}
	if err != nil {
		p.fail(s, PhaseDispatchRecv, err)
	}
}

// noteArrival adds up how long after the first block of a round each other came:
// a source that is always late is a slow node.
func (p *proxy) noteArrival(m routing.Meaning, src int, s *slot) {
	if p.now == 0 {
		p.now = time.Since(p.c.epoch)
	}
	w := &p.wait[2*int(m.Slot)+int(m.Parity)]
	if w.count == 0 {
		w.first = p.now
	}
	p.waited[src].Add(uint64(p.now - w.first))
	if w.count++; w.count >= s.dispatch.Remote() {
		w.count = 0
	}
}

// fail makes err sticky; the slot's round is the one it happened in.
func (p *proxy) fail(s *slot, phase string, err error) {
	p.halted = true
	re := &RoundError{Code: CodeTransport, Phase: phase, Round: s.round.Load(), Token: -1, Pick: -1, Err: err, What: "the fabric failed"}
	var te *engine.TransferError
	var df *dispatch.FaultError
	var cf *combine.FaultError
	var rows *routing.BadRowCountError
	switch {
	case errors.As(err, &te):
		if te.Entry >= 0 {
			re.Ranks = []int{te.Entry}
		}
		if errors.Is(err, transport.ErrPeerLost) {
			re.Code, re.What = CodePeerLost, fmt.Sprintf("%s is lost", ranksText(re.Ranks))
		}
	case errors.As(err, &df):
		re.Ranks = []int{df.Rank}
	case errors.As(err, &cf):
		re.Ranks = []int{cf.Rank}
	case errors.As(err, &rows):
		re.Ranks = []int{rows.From}
	default:
		re.Ranks = []int{p.c.rank}
	}
	p.c.fail(re)
}
