//go:build libfabric && cgo

package efa

import (
	"fmt"

	"moerail/internal/fabric"
	"moerail/transport"
)

// send posts a message. Its tag is the life that it is meant for; the data beside
// it says which it comes from.
func (d *domain) send(w *write) error {
	if w.len > d.limits.MaxRecvSize {
		return fmt.Errorf("%w: send of %d bytes, the limit is %d", transport.ErrOutOfRange, w.len, d.limits.MaxRecvSize)
	}
	if err := w.local.check(w.localOff, w.len); err != nil {
		return err
	}
	crosses := d.crosses(w.local, w.localOff, w.len)
	if crosses && w.local.mem.Kind == transport.MemoryDevice {
		return d.crossing(w.local, w.localOff, w.len)
	}
	if d.full() {
		return transport.ErrAgain
	}
	var stage *region
	if crosses {
		var err error
		if stage, err = d.takeStage(); err != nil {
			return err
		}
	}
	slot, op := d.take()
	op.Kind, op.Peer, op.Len = fabric.Send, w.peer.number, w.len
	op.Raddr, op.Rkey, op.Data = w.peer.id.generation, 0, uint64(d.id.life())
	if stage == nil {
		d.source(slot, op, w)
	} else {
		copy(stage.mem.Host[:w.len], w.local.mem.Host[w.localOff:])
		op.Src, op.Desc = stage.addr, stage.regs[0].Desc
	}
	d.launch(slot, w)
	d.flights[slot].stage = stage
	return nil
}

// takeStage gives memory for a message that one descriptor of its own memory does
// not cover. It comes back when the message has ended. There are as many as such
// messages were ever in flight at once.
func (d *domain) takeStage() (*region, error) {
	if n := len(d.stages); n > 0 {
		r := d.stages[n-1]
		d.stages = d.stages[:n-1]
		return r, nil
	}
	r, err := d.own(maxMessageBytes, transport.AccessLocal)
	if err != nil {
		return nil, fmt.Errorf("efa: %s: memory for a message across a seam: %w", d.name, err)
	}
	d.allStages = append(d.allStages, r)
	return r, nil
}

// maxMessageBytes bounds messages, which are for control and small payloads. A
// receive always has room for the longest, in memory of the domain's own, and its
// bytes are copied to where they belong when they have come: tcp tears the
// connection down, with all that follows on it, at a message that is longer than
// its receive, and no provider then touches memory of a region that closed.
const maxMessageBytes = 64 << 10

// landingOff is where a receive's bytes arrive.
func (d *domain) landingOff(slot uint32) uint64 { return uint64(int(slot)-d.txSlots) * maxMessageBytes }

// crosses tells whether one descriptor does not cover a range that needs one.
func (d *domain) crosses(r *region, off, n uint64) bool {
	return n > 0 && d.info.MRMode&fabric.MRLocal != 0 && r.seam(off, n)
}

func (d *domain) crossing(r *region, off, n uint64) error {
	return fmt.Errorf("%w: a message of %d bytes at %d of device memory crosses a seam between registrations of %d bytes",
		transport.ErrUnsupported, n, off, r.key.piece)
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
		if r.mem.Kind == transport.MemoryDevice && d.crosses(r, rr.Off, rr.Len) {
			return d.crossing(r, rr.Off, rr.Len)
		}
	}
	if d.posted >= d.limits.MaxRecv || len(d.freeRecv) == 0 {
		return transport.ErrAgain
	}
	n := len(d.freeRecv) - 1
	slot := d.freeRecv[n]
	d.freeRecv = d.freeRecv[:n]
	op := &d.f.Slots[slot].Op
	op.Kind, op.Flags, op.Raddr = fabric.Recv, 0, d.id.generation
	fl := flight{id: rr.ID, op: transport.OpRecv, bytes: rr.Len, peer: transport.NoPeer, used: true, local: r}
	if r != nil && r.mem.Kind == transport.MemoryDevice {
		op.Src, op.Desc, op.Len = r.addr+rr.Off, r.regs[min(rr.Off/r.key.piece, uint64(len(r.regs)-1))].Desc, rr.Len
	} else {
		op.Src, op.Desc, op.Len = d.landing.addr+d.landingOff(slot), d.landing.regs[0].Desc, maxMessageBytes
		if r != nil {
			fl.result = r.mem.Host[rr.Off : rr.Off+rr.Len]
		}
	}
	d.flights[slot] = fl
	d.f.RecvRing[d.recvTail&uint32(len(d.f.RecvRing)-1)] = slot
	d.recvTail++
	d.posted++
	return nil
}
