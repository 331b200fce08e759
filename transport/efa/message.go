//go:build libfabric && cgo

package efa

import (
	"fmt"

	"moerail/internal/fabric"
	"moerail/transport"
)

// send posts a message. Its tag names the life that it is meant for and the one
// that it comes from.
func (d *domain) send(w *write) error {
	if w.len > d.limits.MaxRecvSize {
		return fmt.Errorf("%w: send of %d bytes, the limit is %d", transport.ErrOutOfRange, w.len, d.limits.MaxRecvSize)
	}
	if err := w.local.check(w.localOff, w.len); err != nil {
		return err
	}
	if err := d.oneDescriptor(w.local, w.localOff, w.len); err != nil {
		return err
	}
	if d.full() {
		return transport.ErrAgain
	}
	slot, op := d.take()
	op.Kind, op.Peer, op.Len = fabric.Send, w.peer.number, w.len
	op.Data = uint64(w.peer.id.life())<<32 | uint64(d.id.life())
	op.Raddr, op.Rkey = 0, 0
	d.source(slot, op, w)
	d.launch(slot, w)
	return nil
}

// oneDescriptor refuses a message that one descriptor does not cover.
func (d *domain) oneDescriptor(r *region, off, n uint64) error {
	if n > 0 && d.info.MRMode&fabric.MRLocal != 0 && r.seam(off, n) {
		return fmt.Errorf("%w: a message of %d bytes at %d crosses a seam between registrations of %d bytes", transport.ErrUnsupported, n, off, r.key.piece)
	}
	return nil
}

// PostRecv implements transport.Domain. A receive into a region that closes
// meanwhile ends as StatusFlushed.
func (d *domain) PostRecv(rrs []transport.RecvRequest) (int, error) {
	if !d.enter() {
		return 0, transport.ErrClosed
	}
	n, err := 0, error(nil)
	for n < len(rrs) {
		if err = d.receive(&rrs[n]); err != nil {
			break
		}
		n++
	}
	if err == transport.ErrAgain {
		d.stat.again.Add(1)
	}
	d.leave()
	return n, err
}

func (d *domain) receive(rr *transport.RecvRequest) error {
	var r *region
	if rr.Len > 0 || rr.Local != transport.NoKey {
		pp := d.regions.Get(int32(rr.Local))
		if pp == nil {
			return fmt.Errorf("%w: local key %d", transport.ErrBadHandle, rr.Local)
		}
		r = *pp
		if err := r.check(rr.Off, rr.Len); err != nil {
			return err
		}
		if err := d.oneDescriptor(r, rr.Off, rr.Len); err != nil {
			return err
		}
	}
	if d.posted >= d.limits.MaxRecv || len(d.freeRecv) == 0 {
		return transport.ErrAgain
	}
	n := len(d.freeRecv) - 1
	slot := d.freeRecv[n]
	d.freeRecv = d.freeRecv[:n]
	op := &d.f.Slots[slot].Op
	op.Kind, op.Flags, op.Len, op.Data = fabric.Recv, 0, rr.Len, uint64(d.id.life())<<32
	if rr.Len == 0 {
		op.Src, op.Desc = d.f.SlotBytes(slot), d.f.SlotsDesc
	} else {
		op.Src, op.Desc = r.addr+rr.Off, r.regs[min(rr.Off/r.key.piece, uint64(len(r.regs)-1))].Desc
	}
	d.flights[slot] = flight{id: rr.ID, op: transport.OpRecv, bytes: rr.Len, peer: transport.NoPeer, used: true, local: r}
	d.f.RecvRing[d.recvTail&uint32(len(d.f.RecvRing)-1)] = slot
	d.recvTail++
	d.posted++
	return nil
}
