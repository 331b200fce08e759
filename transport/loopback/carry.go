package loopback

import (
	"encoding/binary"

	"moerail/internal/mem"
	"moerail/internal/simd"
	"moerail/transport"
)

// granted tells whether the domain that r's key is from still honours it for
// [off, off+n): known, open, inside, and the device key of every piece right.
func (r *remote) granted(off, n uint64) bool {
	g := r.region
	if g == nil || g.closed.Load() || !g.holds(off, n) {
		return false
	}
	if g.piece != r.key.piece || len(g.device) != len(r.key.device) {
		return false
	}
	last := off
	if n > 0 {
		last += n - 1
	}
	for i := off / g.piece; i <= last/g.piece && i < uint64(len(g.device)); i++ {
		if g.device[i] != r.key.device[i] {
			return false
		}
	}
	return true
}

// rights is what an opcode needs at the target.
func rights(op transport.Opcode) transport.Access {
	switch op {
	case transport.OpRead:
		return transport.AccessRemoteRead
	case transport.OpCompareSwap, transport.OpFetchAdd:
		return transport.AccessRemoteAtomic
	}
	return transport.AccessRemoteWrite
}

// refused tells whether the target refuses [off, off+n) of a's remote range,
// and books why. The caller is inside a domain.
func (d *Domain) refused(a *action, off, n uint64) bool {
	r := a.remote
	if r == nil {
		return false // an empty write that names no region
	}
	ok := r.granted(off, n)
	if ok && r.region.access&rights(a.op) != 0 {
		return false
	}
	kind := FaultAccess
	if g := r.region; !ok && (g == nil || g.closed.Load() || g.holds(off, n)) {
		kind = FaultStale
		r.peer.dom.counts.stale.Add(1)
	}
	d.fab.report(Fault{Kind: kind, From: d.label, To: r.peer.dom.label,
		Op: a.op.String(), ID: uint64(a.id), Off: off, Len: n})
	return true
}

// carry does a at once, on the poster's thread; false means a full queue, and
// nothing done. The end is on the poster's own queue, except that of a send,
// which the receiver tells.
func (d *Domain) carry(a *action) bool {
	t := a.peer.dom
	st := transport.StatusOK
	switch {
	case !d.reaches(t):
		st = transport.StatusPeerLost
	case a.op == transport.OpSend:
		return d.mailTo(t, a)
	case d.refused(a, a.remoteOff, a.len):
		st = transport.StatusRemoteAccess
	}
	if st != transport.StatusOK {
		d.owner.own.push(a.completion(st, 0))
		return true
	}
	imm := a.op == transport.OpWriteImm
	if imm && !t.arrivals.reserve() {
		t.counts.stall.Add(1)
		return false
	}
	a.move(0, a.len)
	if imm {
		t.arrivals.deliver(arrival{a.imm, a.len})
		t.rouse()
		d.owner.tally.imms++
	}
	d.owner.tally.messages++
	d.owner.tally.bytes += a.len
	d.owner.own.push(a.completion(transport.StatusOK, a.len))
	return true
}

// move does the memory's part of a for n bytes from at on. Ranges and rights
// were checked, and the caller is inside a domain.
func (a *action) move(at, n uint64) {
	if n == 0 {
		return
	}
	local := a.source()[at : at+n]
	there := a.remote.region.bytes[a.remoteOff+at : a.remoteOff+at+n]
	switch a.op {
	case transport.OpRead:
		copyWords(local, there)
	case transport.OpCompareSwap:
		binary.NativeEndian.PutUint64(local, compareSwap(there, a.compare, a.operand))
	case transport.OpFetchAdd:
		w := mem.Word64(there, 0)
		binary.NativeEndian.PutUint64(local, w.Add(a.operand)-a.operand)
	default:
		copyWords(there, local)
	}
}

func compareSwap(b []byte, old, new uint64) uint64 {
	w := mem.Word64(b, 0)
	for {
		v := w.Load()
		if v != old || w.CompareAndSwap(old, new) {
			return v
		}
	}
}

// copyWords copies, a single aligned word at once: what is also the target of
// atomics must not be torn.
func copyWords(dst, src []byte) {
	if len(dst) == 8 && (mem.Addr(dst)|mem.Addr(src))%8 == 0 {
		mem.Word64(dst, 0).Store(mem.Word64(src, 0).Load())
		return
	}
	simd.CopyPayload(dst, src)
}
