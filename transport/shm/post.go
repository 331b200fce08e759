package shm

import (
	"encoding/binary"
	"fmt"

	"moerail/internal/mem"
	"moerail/transport"
)

// completions is the queue of what this domain's own posts have come to. Posts
// end at once, save immediates that wait for room (parkedImms), so its room
// is what bounds the operations in flight.
type completions struct {
	ring []transport.Completion // a power of two long
	head uint64
	tail uint64
}

func (q *completions) init(n int) {
	size := 1
	for size < n {
		size *= 2
	}
	q.ring = make([]transport.Completion, size)
}

func (q *completions) len() int { return int(q.tail - q.head) }

// next is the place of one more completion; the caller has seen to the room.
func (q *completions) next() *transport.Completion {
	c := &q.ring[q.tail&uint64(len(q.ring)-1)]
	q.tail++
	return c
}

func (q *completions) take(out []transport.Completion) int {
	n := min(q.len(), len(out))
	for i := range n {
		out[i] = q.ring[q.head&uint64(len(q.ring)-1)]
		q.head++
	}
	return n
}

func (d *domain) finish(op transport.Opcode, id transport.WRID, p *peer, bytes uint64, st transport.Status) {
	c := d.done.next()
	*c = transport.Completion{ID: id, Op: op, Peer: p.handle, Bytes: bytes, Status: st}
	if st == transport.StatusOK {
		d.guard.stat.messages++
		d.guard.stat.bytes += bytes
	} else {
		c.Bytes = 0
	}
}

func (d *domain) full() bool { return d.done.len()+d.parked.used >= d.limits.MaxSend }

// Post implements transport.Domain.
func (d *domain) Post(wrs []transport.WorkRequest) (int, error) {
	if !d.enter() {
		return 0, transport.ErrClosed
	}
	n, err := 0, error(nil)
	for n < len(wrs) {
		if d.full() {
			err = transport.ErrAgain
			break
		}
		if err = d.execute(&wrs[n]); err != nil {
			break
		}
		n++
	}
	d.countPost(n, err)
	d.leave()
	return n, err
}

func (d *domain) countPost(n int, err error) {
	if n > 0 {
		d.guard.stat.doorbells++
	}
	if err == transport.ErrAgain {
		d.guard.stat.again++
	}
}

func (d *domain) execute(wr *transport.WorkRequest) error {
	p := d.peers.get(int32(wr.Peer))
	if p == nil {
		return fmt.Errorf("%w: peer %d", transport.ErrBadHandle, wr.Peer)
	}
	if wr.Inline && wr.Len > maxInline {
		return fmt.Errorf("%w: inline %s of %d bytes, the limit is %d", transport.ErrOutOfRange, wr.Op, wr.Len, maxInline)
	}
	local, err := d.local(wr.Local, wr.LocalOff, wr.Len)
	if err != nil {
		return err
	}
	if wr.Op == transport.OpSend {
		return d.send(wr.ID, p, local)
	}
	r, err := d.remote(p, wr.Remote, wr.RemoteOff, wr.Len)
	if err != nil {
		return err
	}
	switch wr.Op {
	case transport.OpWrite:
		d.write(wr.ID, p, r, wr.RemoteOff, local)
	case transport.OpWriteImm:
		d.writeImm(wr.ID, p, r, wr.RemoteOff, local, wr.Imm)
	case transport.OpRead:
		st := access(p, r, transport.AccessRemoteRead)
		if st == transport.StatusOK && len(local) > 0 {
			copyBytes(local, r.host[wr.RemoteOff:wr.RemoteOff+uint64(len(local))])
		}
		d.finish(wr.Op, wr.ID, p, wr.Len, st)
	case transport.OpCompareSwap, transport.OpFetchAdd:
		return d.atomic(wr, p, r, local)
	default:
		return fmt.Errorf("%w: posting %s (%d)", transport.ErrUnsupported, wr.Op, wr.Op)
	}
	return nil
}

// local checks a range of this domain's memory.
func (d *domain) local(k transport.LKey, off, n uint64) ([]byte, error) {
	if n == 0 && k == transport.NoKey {
		return nil, nil
	}
	x := d.regions.get(int32(k))
	if x == nil {
		return nil, fmt.Errorf("%w: local key %d", transport.ErrBadHandle, k)
	}
	return x.slice(off, n)
}

func (x *region) slice(off, n uint64) ([]byte, error) {
	size := uint64(len(x.host))
	if off > size || n > size-off || n > maxMessage {
		return nil, fmt.Errorf("%w: %d bytes at %d of a local region of %d, messages of at most %d", transport.ErrOutOfRange, n, off, size, maxMessage)
	}
	return x.host[off : off+n], nil
}

// remote checks a range of a peer's memory; the result is nil for NoRemote.
func (d *domain) remote(p *peer, h transport.Remote, off, n uint64) (*remote, error) {
	if n == 0 && h == transport.NoRemote {
		return nil, nil
	}
	r := d.remotes.get(int32(h))
	if r == nil || r.peer != p {
		return nil, fmt.Errorf("%w: remote %d of peer %d", transport.ErrBadHandle, h, p.handle)
	}
	return r, r.check(off, n)
}

func (r *remote) check(off, n uint64) error {
	if size := uint64(len(r.host)); off > size || n > size-off {
		return fmt.Errorf("%w: %d bytes at %d of a remote region of %d", transport.ErrOutOfRange, n, off, size)
	}
	return nil
}

// access tells whether an operation may go ahead. It is called inside the data
// path, where the region's Close waits for us once it said yes.
func access(p *peer, r *remote, want transport.Access) transport.Status {
	switch {
	case p.down():
		return transport.StatusPeerLost
	case r == nil:
		return transport.StatusOK
	case r.access&want == 0:
		return transport.StatusRemoteAccess
	case !r.open():
		p.d.guard.stat.staleWrites++
		return transport.StatusRemoteAccess
	}
	return transport.StatusOK
}

func (d *domain) write(id transport.WRID, p *peer, r *remote, off uint64, src []byte) {
	st := access(p, r, transport.AccessRemoteWrite)
	if st == transport.StatusOK && len(src) > 0 {
		copyBytes(r.host[off:off+uint64(len(src))], src)
	}
	d.finish(transport.OpWrite, id, p, uint64(len(src)), st)
}

func (d *domain) writeImm(id transport.WRID, p *peer, r *remote, off uint64, src []byte, imm transport.Imm) {
	st := access(p, r, transport.AccessRemoteWrite)
	if st != transport.StatusOK {
		d.finish(transport.OpWriteImm, id, p, 0, st)
		return
	}
	if len(src) > 0 {
		copyBytes(r.host[off:off+uint64(len(src))], src)
	}
	d.notify(id, p, imm, uint64(len(src)))
}

// notify delivers an immediate whose payload is in place, or parks it while the
// lane is full.
func (d *domain) notify(id transport.WRID, p *peer, imm transport.Imm, bytes uint64) {
	w := parkedImm{id: id, imm: imm, bytes: bytes}
	if p.firstWait >= 0 || !p.pushImm(imm, bytes) {
		d.parked.add(p, w)
		return
	}
	p.ring()
	d.delivered(p, &w)
}

func (d *domain) delivered(p *peer, w *parkedImm) {
	d.guard.stat.immsSent++
	d.finish(transport.OpWriteImm, w.id, p, w.bytes, transport.StatusOK)
}

// pushImm publishes an immediate; false while the lane is full.
func (p *peer) pushImm(imm transport.Imm, bytes uint64) bool {
	if p.immFree == 0 {
		waiting := p.immSent - p.immHead.Load()
		if waiting > immSlots { // more than was ever sent: the peer wrote nonsense
			p.fail()
			return false
		}
		if p.immFree = immSlots - waiting; p.immFree == 0 {
			return false
		}
	}
	p.imms[p.immSent%immSlots].Store(immWord(p.immSent, uint32(imm), bytes))
	p.immSent++
	p.immFree--
	return true
}

// ring tells the receiver that the lane has news. If the bit is still set, the
// receiver has yet to look and will see this too: its swap of the bell comes
// after our load, and its load of the lane after that.
func (p *peer) ring() {
	if p.bell.Load()&p.bellBit != 0 {
		return
	}
	p.bell.Or(p.bellBit)
	if p.target != nil {
		p.target.rouse()
	}
}

func (d *domain) atomic(wr *transport.WorkRequest, p *peer, r *remote, local []byte) error {
	if wr.Len != 8 || wr.RemoteOff%8 != 0 {
		return fmt.Errorf("%w: %s of %d bytes at %d, want 8 at a multiple of 8", transport.ErrOutOfRange, wr.Op, wr.Len, wr.RemoteOff)
	}
	st := access(p, r, transport.AccessRemoteAtomic)
	if st == transport.StatusOK {
		w := mem.Word64(r.host, wr.RemoteOff)
		var old uint64
		if wr.Op == transport.OpFetchAdd {
			old = w.Add(wr.Operand) - wr.Operand
		} else {
			for old = w.Load(); old == wr.Compare && !w.CompareAndSwap(old, wr.Operand); old = w.Load() {
			}
		}
		binary.NativeEndian.PutUint64(local, old)
	}
	d.finish(wr.Op, wr.ID, p, wr.Len, st)
	return nil
}
