//go:build verbs && cgo && linux

package verbs

import (
	"fmt"

	"moerail/internal/ibv"
	"moerail/internal/mem"
	"moerail/transport"
)

const (
	mailRecvs = 256 // datagrams that may arrive between two polls; more are lost and come again
	mailSends = 64
	mailBytes = 256 // of a buffer; a datagram comes after a header of 40 bytes
	mailHead  = 40
)

// mailbox is the UD queue pair with its buffers: receives first, then sends.
type mailbox struct {
	qp     *ibv.QP
	qkey   uint32
	memory transport.Memory
	mr     *ibv.MR
	addr   uint64
	free   []int   // buffers for sends
	to     []*link // whose each of them is
	out    []*link // with something to say
}

func (m *mailbox) open(d *domain, port ibv.PortAttr) error {
	var err error
	if _, m.qkey, err = random(); err != nil {
		return err
	}
	if m.memory, err = mem.Alloc((mailRecvs + mailSends) * mailBytes); err != nil {
		return err
	}
	m.addr = mem.Addr(m.memory.Host)
	if m.mr, err = d.pd.Register(m.addr, m.memory.Size, ibv.LocalWrite); err != nil {
		return fmt.Errorf("%d bytes for handshakes: %w; %s", m.memory.Size, err, memlockText(m.memory.Size))
	}
	if m.qp, err = d.pd.CreateQP(ibv.UD, d.cq, nil, mailSends, mailRecvs, 0); err != nil {
		return err
	}
	if err = m.qp.Ready(d.port, d.cfg.PKeyIndex, m.qkey); err != nil {
		return err
	}
	for i := range mailRecvs {
		if err := m.receive(i); err != nil {
			return err
		}
	}
	m.to = make([]*link, mailSends)
	for i := range mailSends {
		m.free = append(m.free, i)
	}
	return m.probeInline(d)
}

// probeInline learns how much the device's queue pairs carry inline.
func (m *mailbox) probeInline(d *domain) error {
	for _, n := range []int{maxInline, 64, 0} {
		q, err := d.pd.CreateQP(ibv.RC, d.cq, d.imms, d.cfg.SendDepth, 0, n)
		if err == nil {
			d.inline = min(q.MaxInline, n)
			return q.Close()
		}
		if n == 0 {
			return err
		}
	}
	return nil
}

func (m *mailbox) receive(i int) error {
	return m.qp.RecvDatagram(idMailRecv|uint64(i), m.addr+uint64(i)*mailBytes, mailBytes, m.mr.LKey)
}

// send makes a link say something with the next flush.
func (m *mailbox) send(l *link, kind uint8) {
	l.outbox |= 1 << kind
	if !l.posted {
		l.posted = true
		m.out = append(m.out, l)
	}
}

// flush posts what is to be said, as far as there are buffers.
func (d *domain) flushMail() {
	m := &d.mail
	k := 0
	for ; k < len(m.out) && len(m.free) > 0; k++ {
		l := m.out[k]
		if l.outbox == 0 {
			l.posted = false
			continue
		}
		kind := uint8(kindHello)
		for l.outbox>>kind&1 == 0 {
			kind++
		}
		l.outbox &^= 1 << kind
		if !(l.given && kind == kindHello) {
			if err := d.post(l, kind); err != nil {
				d.fail(err)
				return
			}
		}
		if l.outbox != 0 {
			k-- // once more
			continue
		}
		l.posted = false
	}
	m.out = append(m.out[:0], m.out[k:]...)
}

func (d *domain) post(l *link, kind uint8) error {
	m := &d.mail
	i := m.free[len(m.free)-1]
	h := hello{kind: kind, to: l.id.generation}
	if kind == kindDrop {
		h.chans = l.drop
	} else {
		for i := range l.chans {
			c := &l.chans[i]
			h.answer = h.answer || !c.confirmed
			if c.qp != nil {
				h.chans[i] = record{epoch: c.epoch, seen: c.remote, qpn: c.qp.qp.Number, psn: c.psn}
			}
		}
	}
	at := (mailRecvs + i) * mailBytes
	h.put(m.memory.Host[at:at+helloBytes], d.addr)
	if err := m.qp.SendDatagram(l.ah, l.id.qpn, l.id.qkey, idMailSend|uint64(i), m.addr+uint64(at), helloBytes, m.mr.LKey); err != nil {
		return err
	}
	m.free = m.free[:len(m.free)-1]
	m.to[i] = l
	l.mails++
	return nil
}

// mailEnded looks at how a datagram ended, sent or received. No request of this
// queue pair fails by what is in it: where one did, no handshake goes through any
// more, and nobody can be told our address again.
func (d *domain) mailEnded(w *ibv.WC) {
	if w.Status != ibv.WCSuccess {
		d.fail(fmt.Errorf("the queue pair of handshakes has failed: %s", VendorText(vendorOf(w.Status, w.Vendor))))
	}
}

// sent takes back the buffer of a datagram.
func (d *domain) sent(i uint64, w *ibv.WC) {
	d.mailEnded(w)
	m := &d.mail
	if i >= mailSends || m.to[i] == nil {
		return
	}
	m.to[i].mails--
	m.to[i] = nil
	m.free = append(m.free, int(i))
}

// mailed takes a datagram that has arrived, from anybody.
func (d *domain) mailed(i uint64, w *ibv.WC) {
	m := &d.mail
	if d.mailEnded(w); i >= mailRecvs {
		return
	}
	if w.Status == ibv.WCSuccess && w.Bytes >= mailHead && w.Bytes <= mailBytes {
		at := i * mailBytes
		if h, err := decodeHello(m.memory.Host[at+mailHead : at+uint64(w.Bytes)]); err == nil && h.to == d.id.generation {
			d.greet(&h, [addressBytes]byte(m.memory.Host[at+mailHead+16:]))
		}
	}
	if d.fatal == nil {
		if err := m.receive(int(i)); err != nil {
			d.fail(err)
		}
	}
}

// greet passes a handshake on to its link, which it may be the first to ask for.
func (d *domain) greet(h *hello, from [addressBytes]byte) {
	l := d.links[from]
	switch {
	case h.from.ethernet != d.id.ethernet || h.from.generation == d.id.generation:
	case h.kind == kindHello && l == nil:
		var err error
		if l, err = d.newLink(h.from, from); err != nil {
			return // it asks again
		}
		d.dial(l)
		d.hear(l, h)
	case l == nil:
	case h.kind == kindHello:
		d.hear(l, h)
	case h.kind == kindDrop:
		d.dropped(l, h)
	case h.kind == kindBye:
		d.gone(l)
	}
}
