package loopback

import (
	"container/heap"
	"hash/maphash"
	"math/rand/v2"
	"sync"
	"time"

	"moerail/transport"
)

// air is where operations are between Post and the target, on a fabric with
// faults. An operation becomes a flight: packets, then its immediate, and its
// completion, each an event that becomes due by itself.
//
//	launch ─> packet, packet, packet ─ all landed ─> immediate
//	      └─> completion (early)                 └─> completion (late)
//
// Whoever polls a domain of the fabric delivers what is due, one at a time.
type air struct {
	fab *Fabric
	Faults
	hashSeed maphash.Seed

	mu      sync.Mutex // guards what follows
	rng     *rand.Rand
	seq     uint64
	flying  events        // by due time
	ready   []*event      // due, if Reorder; in no order
	held    []*event      // due, but the target has no room
	alarmAt time.Duration // when the clock will next rouse everybody
	rouse   []*Domain     // to be roused once mu is released
}

type eventKind uint8

const (
	packetEvent eventKind = iota
	immEvent
	endEvent
)

type event struct {
	due     time.Duration
	seq     uint64
	kind    eventKind
	stalled bool // was held back before
	flight  *flight
	at, n   uint64 // of a packet, within the payload
}

// flight is one operation in the air.
type flight struct {
	action
	from    *Domain
	data    []byte // the payload if it was taken at Post, else nil
	sum     uint64 // of the source at Post, if trapped
	trapped bool
	packets int  // yet to land
	ended   bool // its completion is made, or under way
	failed  bool // nothing further happens at the target
}

type events []*event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].due < e[j].due || e[i].due == e[j].due && e[i].seq < e[j].seq
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(*event)) }
func (e *events) Pop() any {
	old := *e
	x := old[len(old)-1]
	old[len(old)-1] = nil
	*e = old[:len(old)-1]
	return x
}

func newAir(f *Fabric, cfg Faults) *air {
	return &air{fab: f, Faults: cfg, hashSeed: maphash.MakeSeed(),
		rng: rand.New(rand.NewPCG(cfg.Seed, 0x6d6f657261696c))}
}

// launch puts a into the air. The caller has entered d and found room for one
// more operation in flight.
func (s *air) launch(d *Domain, a *action) {
	fl := &flight{action: *a, from: d}
	s.mu.Lock()
	now := s.fab.cfg.Clock.Now()
	mode := s.Completion
	if mode == CompleteMixed {
		mode = CompletionMode(s.rng.IntN(int(CompleteMixed)))
	}
	oneWay := a.op == transport.OpWrite || a.op == transport.OpWriteImm || a.op == transport.OpSend
	if !oneWay {
		mode = CompleteLate
	}
	// What completes early can not tell later that it failed, so look now.
	st := transport.StatusOK
	if mode != CompleteLate {
		if !d.reaches(a.peer.dom) {
			st = transport.StatusPeerLost
		} else if oneWay && a.op != transport.OpSend && d.refused(a, a.remoteOff, a.len) {
			st = transport.StatusRemoteAccess
		}
	}
	if oneWay && (a.inline || mode != CompleteLate) {
		fl.data = append(make([]byte, 0, a.len), a.source()...)
	} else if oneWay && s.TrapSource {
		fl.trapped, fl.sum = true, maphash.Bytes(s.hashSeed, a.source())
	}
	switch {
	case st != transport.StatusOK:
		fl.failed, fl.ended = true, true
		d.owner.own.push(fl.completion(st, 0))
	case mode == CompleteInline:
		fl.ended = true
		d.owner.own.push(fl.completion(transport.StatusOK, a.len))
	case mode == CompleteEarly:
		fl.ended = true
		s.add(now, &event{kind: endEvent, flight: fl})
	}
	if !fl.failed {
		s.addPackets(now, fl)
	}
	s.alarm(now)
	s.unlock()
}

// addPackets cuts fl's payload at PacketBytes and at the target's seams.
func (s *air) addPackets(now time.Duration, fl *flight) {
	whole := fl.len == 0 || fl.remote == nil
	for at := uint64(0); at < fl.len || at == 0; {
		n := fl.len - at
		if !whole {
			if s.PacketBytes > 0 && (fl.op == transport.OpWrite || fl.op == transport.OpWriteImm || fl.op == transport.OpRead) {
				n = min(n, s.PacketBytes)
			}
			piece := fl.remote.key.piece
			n = min(n, piece-(fl.remoteOff+at)%piece)
		}
		fl.packets++
		s.add(now, &event{kind: packetEvent, flight: fl, at: at, n: n})
		if at += n; n == 0 {
			break
		}
	}
}

// add lets e fly from now on.
func (s *air) add(now time.Duration, e *event) {
	e.due = now + s.DelayMin
	if w := s.DelayMax - s.DelayMin; w > 0 {
		e.due += time.Duration(s.rng.Int64N(int64(w) + 1))
	}
	if s.PairDelay != nil {
		e.due += max(0, s.PairDelay(e.flight.from.proc, e.flight.peer.dom.proc))
	}
	s.seq++
	e.seq = s.seq
	heap.Push(&s.flying, e)
}

// drive delivers what is due, unless another thread is doing so. The caller has
// entered a domain, so no region it touches can go away meanwhile.
func (s *air) drive() {
	if !s.mu.TryLock() {
		return
	}
	now := s.fab.cfg.Clock.Now()
	if s.Reorder {
		for len(s.flying) > 0 && s.flying[0].due <= now {
			s.ready = append(s.ready, heap.Pop(&s.flying).(*event))
		}
	}
	s.retryHeld(now)
	// What a delivery sets off waits for the next drive, so this ends.
	for budget := len(s.ready) + len(s.flying); budget > 0; budget-- {
		e := s.next(now)
		if e == nil {
			break
		}
		s.deliver(now, e)
		if s.Reorder && s.rng.IntN(8) == 0 {
			break
		}
	}
	s.alarm(now)
	s.unlock()
}

func (s *air) retryHeld(now time.Duration) {
	held := s.held
	s.held = nil
	for _, e := range held {
		if s.Reorder {
			s.ready = append(s.ready, e)
		} else {
			s.deliver(now, e)
		}
	}
}

// next takes an event that is due.
func (s *air) next(now time.Duration) *event {
	if !s.Reorder {
		if len(s.flying) == 0 || s.flying[0].due > now {
			return nil
		}
		return heap.Pop(&s.flying).(*event)
	}
	n := len(s.ready)
	if n == 0 {
		return nil
	}
	i := s.rng.IntN(n)
	e := s.ready[i]
	s.ready[i] = s.ready[n-1]
	s.ready[n-1] = nil
	s.ready = s.ready[:n-1]
	return e
}

// alarmLead is how late a parked owner may learn that something is due; one
// that polls learns at once.
const alarmLead = time.Millisecond

// alarm has the clock rouse parked owners when the next event is due.
func (s *air) alarm(now time.Duration) {
	if !s.fab.wakers.Load() || len(s.ready)+len(s.held)+len(s.flying) == 0 {
		return
	}
	at := now + alarmLead
	if len(s.ready)+len(s.held) == 0 {
		at = max(at, s.flying[0].due)
	}
	if s.alarmAt > now && s.alarmAt <= at {
		return
	}
	s.alarmAt = at
	s.fab.cfg.Clock.AfterFunc(at-now, func() {
		for _, d := range *s.fab.domains.Load() {
			d.rouse()
		}
	})
}

// unlock ends a turn, and then rouses, which must not be done under the lock.
func (s *air) unlock() {
	rouse := s.rouse
	s.rouse = nil
	s.mu.Unlock()
	for _, d := range rouse {
		d.rouse()
	}
}
