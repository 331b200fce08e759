package loopback

import "moerail/transport"

// message is a send that waits in the receiver's mailbox for a posted receive.
// The receiver's Poll copies it and tells the sender, so the source buffer is
// the fabric's until then, unless data holds a copy.
type message struct {
	from   *Domain
	act    action
	data   []byte // the payload, if it was taken when posted
	silent bool   // the sender has had its completion
}

// mailTo puts a into t's mailbox; false means it is full.
func (d *Domain) mailTo(t *Domain, a *action) bool {
	if !t.mail.reserve() {
		t.counts.stall.Add(1)
		return false
	}
	m := message{from: d, act: *a}
	pos := t.mail.claim()
	if a.inline {
		// MaxInline is the same for every NIC of the fabric.
		at := (pos & t.mail.mask) * uint64(t.lim.MaxInline)
		m.data = t.inline[at : at+a.len]
		copy(m.data, a.source())
	}
	t.mail.publish(pos, m)
	t.rouse()
	return true
}

// end tells the sender how its message ended.
func (m *message) end(st transport.Status, bytes uint64) {
	if st == transport.StatusOK {
		m.from.counts.messages.Add(1)
		m.from.counts.bytes.Add(bytes)
	}
	if !m.silent {
		m.from.done.deliver(m.act.completion(st, bytes))
		m.from.rouse()
	}
}

// receive matches the oldest message with the oldest receive. It fills c and
// returns true if that ended a receive, and tells whether to go on.
func (d *Domain) receive(c *transport.Completion) (filled, more bool) {
	m := d.mail.peek()
	if m == nil {
		return false, false
	}
	if m.from.closed.Load() || !m.from.reaches(d) {
		// Its memory may be gone, and a cut link delivers nothing.
		m.end(transport.StatusPeerLost, 0)
		d.mail.pop()
		return false, true
	}
	if m.data == nil && m.act.local != nil && m.act.local.closed.Load() {
		m.end(transport.StatusFlushed, 0)
		d.mail.pop()
		return false, true
	}
	q := &d.owner.recvs
	if q.empty() {
		return false, false
	}
	rr := *q.front()
	q.drop()
	*c = transport.Completion{ID: rr.ID, Op: transport.OpRecv, Peer: transport.NoPeer}
	var buf []byte
	if rr.Local != transport.NoKey {
		r := d.local(rr.Local)
		if r == nil {
			c.Status = transport.StatusFlushed
			return true, true
		}
		buf = r.bytes[rr.Off : rr.Off+rr.Len]
	}
	src := m.data
	if src == nil {
		src = m.act.source()
	}
	c.Bytes = uint64(copy(buf, src))
	if c.Bytes < m.act.len {
		c.Status = transport.StatusTruncated
	}
	m.end(c.Status, c.Bytes)
	d.mail.pop()
	return true, true
}
