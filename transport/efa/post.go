//go:build libfabric && cgo

package efa

import (
	"encoding/binary"
	"fmt"

	"moerail/internal/fabric"
	"moerail/transport"
)

// write is a one-sided operation whose handles were resolved; reads and atomics
// too.
type write struct {
	id        transport.WRID
	op        transport.Opcode
	need      transport.Access
	inline    bool
	imm       transport.Imm
	peer      *peer
	local     *region // nil where there is no memory
	remote    *remote
	localOff  uint64
	remoteOff uint64
	len       uint64
}

// Post implements transport.Domain.
func (d *domain) Post(wrs []transport.WorkRequest) (int, error) {
	if !d.enter() {
		return 0, transport.ErrClosed
	}
	n, err := 0, error(nil)
	for n < len(wrs) {
		if err = d.execute(&wrs[n]); err != nil {
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

// full tells that nothing more may be in flight.
func (d *domain) full() bool { return d.inFlight >= d.limits.MaxSend || len(d.free) == 0 }

func (d *domain) execute(wr *transport.WorkRequest) error {
	w := write{id: wr.ID, op: wr.Op, inline: wr.Inline, imm: wr.Imm, localOff: wr.LocalOff, remoteOff: wr.RemoteOff, len: wr.Len}
	pp := d.peers.Get(int32(wr.Peer))
	if pp == nil {
		return fmt.Errorf("%w: peer %d", transport.ErrBadHandle, wr.Peer)
	}
	w.peer = *pp
	switch wr.Op {
	case transport.OpWrite, transport.OpSend:
		w.need = transport.AccessRemoteWrite
	case transport.OpWriteImm:
		w.need = transport.AccessRemoteWrite
		if d.limits.ImmBytes == 0 {
			return d.unsupported(wr.Op)
		}
	case transport.OpRead:
		w.need = transport.AccessRemoteRead
		if !d.limits.Read {
			return d.unsupported(wr.Op)
		}
	case transport.OpCompareSwap, transport.OpFetchAdd:
		w.need = transport.AccessRemoteAtomic
		if !d.limits.Atomic {
			return d.unsupported(wr.Op)
		}
	default:
		return fmt.Errorf("%w: posting %s (%d)", transport.ErrUnsupported, wr.Op, wr.Op)
	}
	if wr.Inline && wr.Len > fabric.InlineBytes {
		return fmt.Errorf("%w: inline %s of %d bytes, the limit is %d", transport.ErrOutOfRange, wr.Op, wr.Len, fabric.InlineBytes)
	}
	if wr.Len > 0 || wr.Local != transport.NoKey {
		r := d.regions.Get(int32(wr.Local))
		if r == nil {
			return fmt.Errorf("%w: local key %d", transport.ErrBadHandle, wr.Local)
		}
		w.local = *r
	}
	if wr.Op == transport.OpSend {
		return d.send(&w)
	}
	if wr.Len > 0 || wr.Remote != transport.NoRemote {
		r := d.remotes.Get(int32(wr.Remote))
		if r == nil || (*r).peer != w.peer {
			return fmt.Errorf("%w: remote %d of peer %d", transport.ErrBadHandle, wr.Remote, wr.Peer)
		}
		w.remote = *r
	}
	if err := d.checkWrite(&w); err != nil {
		return err
	}
	if w.need == transport.AccessRemoteAtomic {
		return d.atomic(&w, wr.Operand, wr.Compare)
	}
	if d.full() {
		return transport.ErrAgain
	}
	d.start(&w)
	return nil
}

func (d *domain) unsupported(op transport.Opcode) error {
	return fmt.Errorf("%w: %s over %s", transport.ErrUnsupported, op, d.info.Provider)
}

// checkWrite holds a write to the bounds of what it names. Providers do not.
func (d *domain) checkWrite(w *write) error {
	if m := d.limits.MaxMessage; m != 0 && w.len > m {
		return fmt.Errorf("%w: %s of %d bytes, the limit of %s is %d", transport.ErrOutOfRange, w.op, w.len, d.info.Provider, m)
	}
	if err := w.local.check(w.localOff, w.len); err != nil {
		return err
	}
	if w.remote == nil {
		if w.len > 0 {
			return fmt.Errorf("%w: %d bytes to no memory", transport.ErrBadHandle, w.len)
		}
		return nil
	}
	if size := w.remote.key.size; w.remoteOff > size || w.len > size-w.remoteOff {
		return fmt.Errorf("%w: %d bytes at %d of a remote region of %d", transport.ErrOutOfRange, w.len, w.remoteOff, size)
	}
	return nil
}

func (r *region) check(off, n uint64) error {
	if r == nil {
		if n > 0 {
			return fmt.Errorf("%w: %d bytes from no memory", transport.ErrBadHandle, n)
		}
		return nil
	}
	if off > r.size || n > r.size-off {
		return fmt.Errorf("%w: %d bytes at %d of a local region of %d", transport.ErrOutOfRange, n, off, r.size)
	}
	return nil
}

// take gives a free slot; the caller has seen that there is one.
func (d *domain) take() (uint32, *fabric.Op) {
	n := len(d.free) - 1
	slot := d.free[n]
	d.free = d.free[:n]
	op := &d.f.Slots[slot].Op
	op.Flags = 0
	return slot, op
}

// launch puts a filled slot into the ring: the next Poll posts it.
func (d *domain) launch(slot uint32, w *write) {
	d.flights[slot] = flight{id: w.id, op: w.op, bytes: w.len, peer: w.peer.handle, used: true, local: w.local}
	d.f.Ring[d.tail&uint32(len(d.f.Ring)-1)] = slot
	d.tail++
	d.inFlight++
}

// mark is what travels beside a write: the immediate, and where there is room the
// life that it is meant for.
func (d *domain) mark(p *peer, imm transport.Imm) uint64 {
	if d.id.immBytes == 8 {
		return uint64(p.id.life())<<32 | uint64(imm)
	}
	return uint64(imm)
}

// start posts a write or read of any length.
func (d *domain) start(w *write) {
	if w.remote != nil && w.remote.key.access&w.need == 0 {
		// The provider would tear the connection down, or say nothing.
		d.deny(w)
		return
	}
	if w.len > 0 && (w.local.seam(w.localOff, w.len) || w.remote.seam(w.remoteOff, w.len)) {
		d.startSplit(w)
		return
	}
	slot, op := d.take()
	d.fill(slot, op, w)
	d.launch(slot, w)
}

// fill describes a write or read that lies in one piece at both ends.
func (d *domain) fill(slot uint32, op *fabric.Op, w *write) {
	op.Kind, op.Peer, op.Len, op.Data = fabric.Write, w.peer.number, w.len, 0
	if w.op == transport.OpRead {
		op.Kind = fabric.Read
	} else if w.op == transport.OpWriteImm {
		op.Flags |= fabric.FlagImm
		op.Data = d.mark(w.peer, w.imm)
	}
	d.source(slot, op, w)
	switch {
	case w.remote == nil:
		op.Raddr, op.Rkey = w.peer.id.homeAddr, w.peer.id.homeKey
	case w.len == 0: // an empty range may lie past the last byte: what counts is the key
		op.Raddr, op.Rkey = w.remote.key.base, w.remote.key.keys[0]
	default:
		op.Raddr, op.Rkey = w.remote.at(w.remoteOff)
	}
}

// source describes the local end. An inline payload is copied into the slot, and
// what is empty points there too.
func (d *domain) source(slot uint32, op *fabric.Op, w *write) {
	if w.len == 0 || w.inline && w.local.mem.Kind == transport.MemoryHost && w.op != transport.OpRead {
		if w.len > 0 {
			copy(d.f.Slots[slot].Bytes[:w.len], w.local.mem.Host[w.localOff:])
		}
		op.Src, op.Desc = d.f.SlotBytes(slot), d.f.SlotsDesc
		return
	}
	op.Src, op.Desc = w.local.addr+w.localOff, w.local.regs[0].Desc
	if len(w.local.regs) > 1 {
		op.Desc = w.local.regs[w.localOff/w.local.key.piece].Desc
	}
}

// at is what the provider calls a byte of a peer's region.
func (r *remote) at(off uint64) (addr, key uint64) {
	if len(r.key.keys) == 1 {
		return r.key.base + off, r.key.keys[0]
	}
	i := off / r.key.piece
	if r.key.base == 0 {
		return off - i*r.key.piece, r.key.keys[i] // offsets count from the start of each key
	}
	return r.key.base + off, r.key.keys[i]
}

func (d *domain) atomic(w *write, operand, compare uint64) error {
	if w.len != 8 || w.remoteOff%8 != 0 {
		return fmt.Errorf("%w: %s of %d bytes at %d, want 8 at a multiple of 8", transport.ErrOutOfRange, w.op, w.len, w.remoteOff)
	}
	if w.local.mem.Kind != transport.MemoryHost {
		return fmt.Errorf("%w: %s whose old value goes to device memory", transport.ErrUnsupported, w.op)
	}
	if d.full() {
		return transport.ErrAgain
	}
	if w.remote.key.access&w.need == 0 {
		d.deny(w)
		return nil
	}
	slot, op := d.take()
	s := &d.f.Slots[slot]
	binary.NativeEndian.PutUint64(s.Bytes[0:], operand)
	binary.NativeEndian.PutUint64(s.Bytes[8:], compare)
	op.Kind, op.Peer, op.Len, op.Data = fabric.FetchAdd, w.peer.number, 8, 0
	if w.op == transport.OpCompareSwap {
		op.Kind = fabric.CompareSwap
	}
	// The old value lands in the slot, so that it may go anywhere afterwards.
	op.Src, op.Desc = d.f.SlotBytes(slot)+16, d.f.SlotsDesc
	op.Raddr, op.Rkey = w.remote.at(w.remoteOff)
	d.launch(slot, w)
	d.flights[slot].result = w.local.mem.Host[w.localOff : w.localOff+8]
	return nil
}

// deny ends an operation that the peer's region does not allow.
func (d *domain) deny(w *write) {
	d.inFlight++
	d.stash.push(transport.Completion{ID: w.id, Op: w.op, Peer: w.peer.handle, Status: transport.StatusRemoteAccess})
}
