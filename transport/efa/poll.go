//go:build libfabric && cgo

package efa

import (
	"fmt"

	"moerail/internal/fabric"
	"moerail/transport"
)

// stash holds completions that were read before their owner asked for them.
type stash struct {
	items []transport.Completion
	head  int
}

func (s *stash) init(n int) { s.items = make([]transport.Completion, 0, n) }

func (s *stash) push(c transport.Completion) { s.items = append(s.items, c) }

func (s *stash) take(out []transport.Completion) int {
	n := copy(out, s.items[s.head:])
	if s.head += n; s.head == len(s.items) {
		s.items, s.head = s.items[:0], 0
	}
	return n
}

// Poll implements transport.Domain: one crossing.
func (d *domain) Poll(out []transport.Completion) (int, error) {
	if !d.enter() {
		return 0, transport.ErrClosed
	}
	d.watchSiblings()
	n := 0
	if len(d.stash.items) > 0 {
		n = d.stash.take(out)
	}
	k, err := d.progress(len(out) - n)
	for i := range k {
		if d.translate(&d.f.Out[i], &out[n]) {
			n++
		}
	}
	d.account(out[:n])
	d.leave()
	if err != nil && n == 0 {
		return 0, err
	}
	return n, nil
}

// progress crosses to C once.
func (d *domain) progress(room int) (int, error) {
	if d.tail != d.shown {
		d.shown = d.tail
		d.stat.doorbells.Add(1)
	}
	k, err := d.f.Progress(d.tail, d.recvTail, room)
	if err != nil {
		return 0, fmt.Errorf("efa: %s: %w", d.name, err)
	}
	if d.orphans >= d.txSlots { // fewer only make the queue shorter
		return k, fmt.Errorf("efa: %s: %s still holds %d operations to lost peers, and nothing is left to post with", d.name, d.info.Provider, d.orphans)
	}
	return k, nil
}

// collect makes progress outside Poll, and keeps what comes for the next one.
func (d *domain) collect() error {
	d.watchSiblings()
	k, err := d.progress(len(d.f.Out))
	var c transport.Completion
	for i := range k {
		if d.translate(&d.f.Out[i], &c) {
			d.stash.push(c)
		}
	}
	return err
}

// account counts completions that the owner gets.
func (d *domain) account(out []transport.Completion) {
	var messages, bytes, sent, received uint64
	for i := range out {
		switch c := &out[i]; {
		case c.Op == transport.OpImm:
			received++
		case c.Op == transport.OpRecv:
			d.posted--
		default:
			d.inFlight--
			if c.Status == transport.StatusOK {
				messages++
				bytes += c.Bytes
				if c.Op == transport.OpWriteImm {
					sent++
				}
			}
		}
	}
	if messages > 0 {
		d.stat.messages.Add(messages)
		d.stat.bytes.Add(bytes)
		d.stat.immsSent.Add(sent)
	}
	if received > 0 {
		d.stat.immsReceived.Add(received)
	}
}

// translate turns what the shim reports into a completion; false if the owner
// need not know.
func (d *domain) translate(c *fabric.Completion, out *transport.Completion) bool {
	switch c.Kind {
	case fabric.Immediate:
		if d.id.immBytes == 8 && uint32(c.Data>>32) != d.id.life() {
			d.stat.stale.Add(1) // meant for whoever had this address before
			return false
		}
		*out = transport.Completion{Op: transport.OpImm, Peer: transport.NoPeer, Imm: transport.Imm(uint32(c.Data)), Bytes: c.Len}
		return true
	case fabric.OrphanBack:
		d.orphans--
		d.free = append(d.free, c.Slot)
		return false
	case fabric.Received:
		return d.received(c, out)
	case fabric.Done:
		return d.finished(c, out)
	}
	return false
}

func (d *domain) received(c *fabric.Completion, out *transport.Completion) bool {
	fl := &d.flights[c.Slot]
	*out = transport.Completion{ID: fl.id, Op: transport.OpRecv, Peer: transport.NoPeer}
	switch {
	case c.Status == fabric.Flushed || c.Status == fabric.Failed && c.Errno == fabric.ErrnoCanceled || fl.local != nil && fl.local.closed.Load():
		out.Status = transport.StatusFlushed
	case c.Status != fabric.OK:
		if out.Status = status(c); out.Status == transport.StatusPeerLost {
			out.Status = transport.StatusFault
		}
		out.Vendor = vendor(c)
	default:
		out.Bytes = min(c.Len, fl.bytes, maxMessageBytes)
		if c.Len > fl.bytes {
			out.Status = transport.StatusTruncated
		}
		off := d.landingOff(c.Slot)
		copy(fl.result, d.landing.mem.Host[off:off+out.Bytes])
		if c.Marked {
			if p, ok := d.byLife[uint32(c.Data)]; ok {
				out.Peer = p
			}
		}
	}
	*fl = flight{}
	d.freeRecv = append(d.freeRecv, c.Slot)
	return true
}

func (d *domain) finished(c *fabric.Completion, out *transport.Completion) bool {
	fl := &d.flights[c.Slot]
	*out = transport.Completion{ID: fl.id, Op: fl.op, Peer: fl.peer, Bytes: fl.bytes}
	if c.Status != fabric.OK {
		out.Bytes, out.Status, out.Vendor = 0, status(c), vendor(c)
	} else if fl.result != nil {
		copy(fl.result, d.f.Slots[c.Slot].Bytes[16:24])
	}
	s := fl.split
	if fl.stage != nil && !c.Orphan { // of an orphan it may still be read
		d.stages = append(d.stages, fl.stage)
	}
	if fl.tmpl != nil {
		fl.tmpl.unuse()
	}
	*fl = flight{}
	if c.Orphan {
		d.orphans++
	} else {
		d.free = append(d.free, c.Slot)
	}
	return s == nil || d.partEnded(s, out)
}

func vendor(c *fabric.Completion) uint32 {
	if c.Vendor != 0 {
		return c.Vendor
	}
	return c.Errno
}

// status classifies an error.
func status(c *fabric.Completion) transport.Status {
	switch c.Status {
	case fabric.OK:
		return transport.StatusOK
	case fabric.Lost:
		return transport.StatusPeerLost
	case fabric.Flushed:
		return transport.StatusFlushed
	}
	return fabric.Classify(c.Errno)
}
