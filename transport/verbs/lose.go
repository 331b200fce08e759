//go:build verbs && cgo && linux

package verbs

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"moerail/internal/ibv"
	"moerail/transport"
)

// retire takes a queue pair out of use. Its requests end with st as they are
// flushed.
func (d *domain) retire(q *rcQP, st transport.Status, vendor uint32) {
	if q == nil || q.failed {
		return
	}
	q.failed, q.cause, q.vendor, q.expires, q.retired = true, st, vendor, time.Now().Add(flushLimit), d.polls
	if err := q.qp.Fail(); err != nil {
		q.expires = time.Time{} // it can not be flushed: reap ends its requests
	}
	l := q.link
	l.left++
	c := &l.chans[q.kind]
	if c.qp == q {
		c.qp, c.epoch, c.remote, c.confirmed = nil, 0, 0, false
	}
	d.dying = append(d.dying, q)
	// A request that is partly under way can not go on elsewhere, and has failed
	// even if all that is under way succeeds.
	for i := range l.lists {
		if s := &l.lists[i]; chanOf[i] == q.kind && !s.empty() {
			if o := &d.ops.all[s.head]; o.pieces > 0 {
				d.pop(s)
				o.handed = true
				if o.status == transport.StatusOK {
					o.status, o.vendor = st, vendor
				}
			}
		}
	}
}

// rebuild replaces a queue pair that has failed by the fault of a request.
func (d *domain) rebuild(q *rcQP) {
	l := q.link
	d.retire(q, transport.StatusFlushed, 0)
	if l.given || l.state == linkGone {
		return
	}
	if l.chans[q.kind].qp == nil {
		if err := l.beginChannel(q.kind); err != nil {
			d.lose(l, 0, err)
			return
		}
	}
	if l.state != linkLost {
		d.dial(l)
	}
}

// lose ends all requests of a link, whose peer can not be reached, and goes on
// trying if the caller has the peer.
func (d *domain) lose(l *link, vendor uint32, reason error) {
	if l.given {
		return
	}
	var ce *ibv.CallError
	if vendor == 0 && errors.As(reason, &ce) {
		vendor = uint32(ce.Errno)
	}
	l.why = fmt.Errorf("%w: verbs: %s: peer %s: %w", transport.ErrPeerLost, d.where(), &l.id, reason)
	for i := range l.chans {
		d.retire(l.chans[i].qp, transport.StatusPeerLost, vendor)
	}
	d.endWaiting(l, transport.StatusPeerLost, vendor)
	if l.peer == transport.NoPeer {
		d.giveUp(l)
		return
	}
	d.setState(l, linkLost)
	l.next, l.pause = time.Now(), longPause
	if l.self {
		l.next = l.next.Add(longPause)
	} else {
		_ = l.begin() // if not, the next try does
	}
}

// endWaiting ends what was not handed to the device.
func (d *domain) endWaiting(l *link, st transport.Status, vendor uint32) {
	for i := range l.lists {
		for s := &l.lists[i]; !s.empty(); {
			k := d.pop(s)
			o := &d.ops.all[k]
			o.status, o.vendor, o.handed = st, vendor, true
			if o.pieces == 0 {
				d.ops.end(k)
			}
		}
	}
}

// flushRegion ends what waits to be sent out of a region.
func (d *domain) flushRegion(x *region) {
	for _, l := range d.links {
		for i := range l.lists {
			s := l.lists[i]
			l.lists[i] = opList{-1, -1}
			for !s.empty() {
				k := d.pop(&s)
				o := &d.ops.all[k]
				if o.local != x || o.inline {
					d.push(&l.lists[i], k)
					continue
				}
				o.status, o.handed = transport.StatusFlushed, true
				if o.pieces == 0 {
					d.ops.end(k)
				}
			}
		}
	}
}

// giveUp forgets a link; what is left of it goes as it is flushed.
func (d *domain) giveUp(l *link) {
	if l.given {
		return
	}
	for i := range l.chans {
		c := &l.chans[i]
		l.drop[i] = record{epoch: c.epoch, seen: c.remote}
		d.retire(c.qp, transport.StatusFlushed, 0)
	}
	d.endWaiting(l, transport.StatusFlushed, 0)
	d.setState(l, linkGone)
	l.given = true
	delete(d.links, l.addr)
	d.given = append(d.given, l)
}

// reap destroys queue pairs of which nothing is left. It is called when the
// completion queue has been seen empty, so that none of their completions, which
// a device may remove with them, goes missing. One that failed in this very poll
// may have completed something since.
func (d *domain) reap() {
	now := time.Now()
	d.dying = slices.DeleteFunc(d.dying, func(q *rcQP) bool {
		if q.retired == d.polls {
			return false
		}
		if q.inFlight > 0 {
			if now.Before(q.expires) {
				return false
			}
			d.abandon(q)
		}
		if err := q.qp.Close(); err != nil {
			d.fail(err)
		}
		delete(d.byQP, q.qp.Number)
		q.link.left--
		return true
	})
	if len(d.given) == 0 {
		return
	}
	d.given = slices.DeleteFunc(d.given, func(l *link) bool {
		if l.left > 0 || l.mails > 0 || l.outbox != 0 {
			return false
		}
		if err := l.ah.Close(); err != nil {
			d.fail(err)
		}
		return true
	})
}

// abandon ends the requests of a queue pair that was not flushed.
func (d *domain) abandon(q *rcQP) {
	for i := range d.ops.all {
		o := &d.ops.all[i]
		if o.qp != q || o.pieces == 0 {
			continue
		}
		d.sendsIn -= int(o.pieces)
		o.pieces, o.status, o.vendor = 0, q.cause, q.vendor
		if o.status == transport.StatusOK {
			o.status = transport.StatusFlushed
		}
		d.ops.end(int32(i))
	}
	q.inFlight, q.reads = 0, 0
}
