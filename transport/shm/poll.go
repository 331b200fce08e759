package shm

import (
	"math/bits"

	"moerail/transport"
)

// lookAtAll is how many polls go by before one visits every lane, bell or not.
// A peer can only delay others by clearing their bits in the bell.
const lookAtAll = 1024

// Poll implements transport.Domain.
func (d *domain) Poll(out []transport.Completion) (int, error) {
	if !d.enter() {
		return 0, transport.ErrClosed
	}
	if d.parked.used > 0 {
		d.unpark()
	}
	n := d.done.take(out)
	if n < len(out) {
		n += d.arrivals(out[n:])
	}
	d.leave()
	return n, nil
}

// arrivals visits the lanes that have news, starting after the one that filled
// out last time.
func (d *domain) arrivals(out []transport.Completion) int {
	d.polls++
	n, words := 0, int(d.words.Load())
	if words == 0 {
		return 0
	}
	start := d.cursor / 64
	if start >= words {
		start = 0
	}
	for k := range words {
		w := start + k
		if w >= words {
			w -= words
		}
		news := d.pending[w]
		if d.bells[w].Load() != 0 {
			news |= d.bells[w].Swap(0)
		}
		if d.recvs.len() > 0 {
			news |= d.waiting[w]
		}
		if d.polls%lookAtAll == 0 {
			news |= d.occupied[w].Load()
		}
		d.pending[w] = news
		from := 0
		if k == 0 {
			from = d.cursor % 64
		}
		for news != 0 && n < len(out) {
			b := lowestFrom(news, from)
			news &^= 1 << b
			got, more := d.visit(w*64+b, out[n:])
			n += got
			if more {
				d.cursor = (w*64 + b + 1) % maxLanes
			} else {
				d.pending[w] &^= 1 << b
			}
		}
	}
	return n
}

// lowestFrom is the lowest set bit at or above from, else the lowest.
func lowestFrom(word uint64, from int) int {
	if high := word >> from << from; high != 0 {
		return bits.TrailingZeros64(high)
	}
	return bits.TrailingZeros64(word)
}

// visit takes what a lane has, until out is full: then more is true.
func (d *domain) visit(i int, out []transport.Completion) (n int, more bool) {
	l := d.lanes[i].Load()
	if l == nil {
		return 0, false
	}
	gone := l.gone.Load() // before looking: what was sent before is seen
	n, more = d.takeImms(l, out)
	if more {
		return n, true
	}
	got, left, nonsense := d.takeMessages(l, out[n:])
	n += got
	switch {
	case nonsense:
		d.expel(l)
		return n, false
	case left == messagesLeft:
		return n, true
	case left == messagesWait:
		return n, false
	}
	if gone {
		d.retire(l)
	}
	return n, false
}

func (d *domain) takeImms(l *inLane, out []transport.Completion) (n int, more bool) {
	origin := transport.Peer(l.origin.Load())
	read := l.immRead
	for {
		w := l.imms[read%immSlots].Load()
		if w>>63 != lapOf(read) {
			break
		}
		if n == len(out) {
			more = true
			break
		}
		out[n] = transport.Completion{Op: transport.OpImm, Peer: origin, Imm: transport.Imm(w), Bytes: w >> 32 & maxMessage}
		n++
		read++
	}
	if n > 0 {
		l.immRead = read
		storeRelease(l.immDone, read)
		d.guard.stat.immsReceived += uint64(n)
	}
	return n, more
}

const (
	messagesNone = iota
	messagesLeft // out was full
	messagesWait // for a receive to be posted
)

func (d *domain) takeMessages(l *inLane, out []transport.Completion) (n, left int, nonsense bool) {
	word, bit := l.index/64, uint64(1)<<(l.index%64)
	d.waiting[word] &^= bit
	for {
		length, ok, nonsense := l.nextMessage()
		if !ok {
			return n, messagesNone, nonsense
		}
		if d.recvs.len() == 0 {
			d.waiting[word] |= bit
			if !l.held {
				l.held = true
				d.guard.stat.stalled++
			}
			return n, messagesWait, false
		}
		if n == len(out) {
			return n, messagesLeft, false
		}
		r := d.recvs.at(d.recvs.head)
		d.recvs.head++
		c := transport.Completion{ID: r.id, Op: transport.OpRecv, Peer: transport.Peer(l.origin.Load())}
		if r.x != nil && r.x.closed.Load() {
			c.Status, c.Peer = transport.StatusFlushed, transport.NoPeer
		} else {
			c.Bytes, c.Status = l.takeMessage(length, r.buf)
			l.msgHead.Store(l.msgRead)
			l.held = false
		}
		*r = postedRecv{}
		out[n] = c
		n++
	}
}

// expel ends a lane whose sender wrote what no sender writes; if it is a peer
// too, that is lost with it.
func (d *domain) expel(l *inLane) {
	l.state.Store(laneClosed)
	if p := d.peers.get(l.origin.Load()); p != nil {
		p.fail()
	}
	l.conn.Close() // ends its goroutine, whose bell finds the lane gone already
	d.retire(l)
}
