package loopback

import (
	"container/heap"
	"hash/maphash"
	"time"

	"moerail/transport"
)

// deliver lets e happen, or puts it back if it can not happen yet.
func (s *air) deliver(now time.Duration, e *event) {
	fl := e.flight
	from, to := fl.from, fl.peer.dom
	if from.closed.Load() {
		return // a closed domain's operations are dropped
	}
	if e.kind == endEvent {
		s.end(fl, transport.StatusOK)
		return
	}
	if fl.failed {
		return
	}
	if until := time.Duration(max(from.proc.paused.Load(), to.proc.paused.Load())); until > now {
		s.seq++
		e.due, e.seq = until, s.seq
		heap.Push(&s.flying, e)
		return
	}
	if !from.reaches(to) {
		s.fail(fl, transport.StatusPeerLost)
		return
	}
	switch {
	case e.kind == immEvent:
		if !to.arrivals.reserve() {
			s.hold(e)
			return
		}
		to.arrivals.deliver(arrival{fl.imm, fl.len})
		s.rouse = append(s.rouse, to)
		from.counts.immsSent.Add(1)
	case fl.data == nil && fl.local != nil && fl.local.closed.Load():
		s.fail(fl, transport.StatusFlushed)
	case fl.op == transport.OpSend:
		if !to.mail.reserve() {
			s.hold(e)
			return
		}
		m := message{from: from, act: fl.action, data: fl.data, silent: fl.ended}
		fl.ended = true // by the receiver
		s.checkSource(fl)
		to.mail.deliver(m)
		s.rouse = append(s.rouse, to)
	default:
		s.land(now, e)
	}
}

// hold keeps e until the target has room, and counts it once.
func (s *air) hold(e *event) {
	if !e.stalled {
		e.stalled = true
		e.flight.peer.dom.counts.stall.Add(1)
	}
	s.held = append(s.held, e)
}

// land applies one packet.
func (s *air) land(now time.Duration, e *event) {
	fl := e.flight
	if fl.from.refused(&fl.action, fl.remoteOff+e.at, e.n) {
		s.fail(fl, transport.StatusRemoteAccess)
		return
	}
	if fl.data != nil {
		at := fl.remoteOff + e.at
		if e.n > 0 {
			copyWords(fl.remote.region.bytes[at:at+e.n], fl.data[e.at:e.at+e.n])
		}
	} else {
		fl.move(e.at, e.n)
	}
	if fl.packets--; fl.packets > 0 {
		return
	}
	s.checkSource(fl)
	fl.from.counts.messages.Add(1)
	fl.from.counts.bytes.Add(fl.len)
	if fl.op == transport.OpWriteImm {
		s.add(now, &event{kind: immEvent, flight: fl})
	}
	if !fl.ended {
		fl.ended = true
		s.add(now, &event{kind: endEvent, flight: fl})
	}
}

// fail ends fl, of which a part may have landed, with st.
func (s *air) fail(fl *flight, st transport.Status) {
	fl.failed = true
	if !fl.ended {
		fl.ended = true
		s.end(fl, st)
	}
}

// end tells the poster.
func (s *air) end(fl *flight, st transport.Status) {
	bytes := fl.len
	if st != transport.StatusOK {
		bytes = 0
	}
	fl.from.done.deliver(fl.completion(st, bytes))
	s.rouse = append(s.rouse, fl.from)
}

// checkSource tells if a trapped source is not what it was at Post. The
// completion is yet to come, so its owner had no business to change it.
func (s *air) checkSource(fl *flight) {
	if !fl.trapped || fl.failed || maphash.Bytes(s.hashSeed, fl.source()) == fl.sum {
		return
	}
	s.fab.report(Fault{Kind: FaultSourceModified, From: fl.from.label, To: fl.peer.dom.label,
		Op: fl.op.String(), ID: uint64(fl.id), Off: fl.localOff, Len: fl.len})
}
