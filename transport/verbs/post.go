//go:build verbs && cgo && linux

package verbs

import (
	"fmt"

	"moerail/transport"
)

// Post implements transport.Domain.
func (d *domain) Post(wrs []transport.WorkRequest) (int, error) {
	if !d.enter() {
		return 0, transport.ErrClosed
	}
	n, err := 0, d.fatal
	for err == nil && n < len(wrs) {
		if err = d.accept(&wrs[n]); err == nil {
			n++
		}
	}
	if err == transport.ErrAgain {
		d.stats.again.Add(1)
	}
	d.leave()
	return n, err
}

// accept checks a request and puts it on its link.
func (d *domain) accept(wr *transport.WorkRequest) error {
	if len(d.ops.free) == 0 {
		return transport.ErrAgain
	}
	lp := d.peers.Get(int32(wr.Peer))
	if lp == nil {
		return fmt.Errorf("%w: peer %d", transport.ErrBadHandle, wr.Peer)
	}
	l := *lp
	if wr.Op == 0 || int(wr.Op) >= len(verbOf) || verbOf[wr.Op].op == 0 && wr.Op != transport.OpWrite {
		return fmt.Errorf("%w: posting %s (%d)", transport.ErrUnsupported, wr.Op, wr.Op)
	}
	x, err := d.localRange(wr.Local, wr.LocalOff, wr.Len)
	if err != nil {
		return err
	}
	if wr.Inline && (wr.Len > maxInline || x != nil && x.device && wr.Len > 0) {
		return d.refuseInline(wr)
	}
	var r *remote
	list := listWrite
	switch wr.Op {
	case transport.OpSend:
		if wr.Len > d.limits.MaxRecvSize || x != nil && x.crosses(wr.LocalOff, wr.Len) {
			return fmt.Errorf("%w: a message of %d bytes at %d: the limit is %d, within one piece of the region", transport.ErrOutOfRange, wr.Len, wr.LocalOff, d.limits.MaxRecvSize)
		}
		list = listSend
	default:
		if r, err = d.remoteRange(l, wr); err != nil {
			return err
		}
	}
	switch wr.Op {
	case transport.OpRead, transport.OpCompareSwap, transport.OpFetchAdd:
		if list = listRead; wr.Inline {
			return fmt.Errorf("%w: an inline %s", transport.ErrUnsupported, wr.Op)
		}
		if err := d.checkRead(wr, x, r); err != nil {
			return err
		}
	}
	if err := d.sendable(l); err != nil {
		return err
	}
	i := d.take()
	o := &d.ops.all[i]
	o.id, o.op, o.link, o.peer, o.local, o.remote = wr.ID, wr.Op, l, wr.Peer, x, r
	o.localOff, o.remoteOff, o.len = wr.LocalOff, wr.RemoteOff, wr.Len
	o.imm, o.operand, o.compare = uint32(wr.Imm), wr.Operand, wr.Compare
	if o.inline = wr.Inline && wr.Len > 0; o.inline {
		copy(d.ops.inlined.Host[int(i)*maxInline:], x.host[wr.LocalOff:wr.LocalOff+wr.Len])
	}
	d.enqueue(i, list)
	return nil
}

func (d *domain) refuseInline(wr *transport.WorkRequest) error {
	if wr.Len > maxInline {
		return fmt.Errorf("%w: inline %s of %d bytes, the limit is %d", transport.ErrOutOfRange, wr.Op, wr.Len, maxInline)
	}
	return fmt.Errorf("%w: inline %s out of device memory", transport.ErrUnsupported, wr.Op)
}

// checkRead checks what only reads and atomics need. Devices do not say that an
// atomic is misaligned; some never answer it.
func (d *domain) checkRead(wr *transport.WorkRequest, x *region, r *remote) error {
	if wr.Op == transport.OpRead {
		if !d.limits.Read {
			return fmt.Errorf("%w: %s has no reads", transport.ErrUnsupported, d.device)
		}
		return nil
	}
	if !d.limits.Atomic {
		return fmt.Errorf("%w: %s has no atomics", transport.ErrUnsupported, d.device)
	}
	if x.crosses(wr.LocalOff, wr.Len) {
		return fmt.Errorf("%w: %s into %d bytes at %d, in two pieces of the region", transport.ErrOutOfRange, wr.Op, wr.Len, wr.LocalOff)
	}
	if wr.Len != 8 || wr.RemoteOff%8 != 0 || (r.base+wr.RemoteOff)%8 != 0 {
		return fmt.Errorf("%w: %s of %d bytes at offset %d of a region at %#x, want 8 at a multiple of 8", transport.ErrOutOfRange, wr.Op, wr.Len, wr.RemoteOff, remoteBase(r))
	}
	return nil
}

func remoteBase(r *remote) uint64 {
	if r == nil {
		return 0
	}
	return r.base
}

// localRange checks a range of this domain's memory; nil for NoKey.
func (d *domain) localRange(k transport.LKey, off, n uint64) (*region, error) {
	if n == 0 && k == transport.NoKey {
		return nil, nil
	}
	x := d.regions.Get(int32(k))
	if x == nil {
		return nil, fmt.Errorf("%w: local key %d", transport.ErrBadHandle, k)
	}
	return *x, (*x).check(off, n)
}

func (x *region) check(off, n uint64) error {
	if off > x.size || n > x.size-off || n > maxMessage {
		return fmt.Errorf("%w: %d bytes at %d of a local region of %d, at most %d at once", transport.ErrOutOfRange, n, off, x.size, uint64(maxMessage))
	}
	return nil
}

// crosses tells whether a range lies in more than one piece.
func (x *region) crosses(off, n uint64) bool {
	return n > 0 && off/x.piece != (off+n-1)/x.piece
}

// remoteRange checks a range of a peer's memory; nil for NoRemote.
func (d *domain) remoteRange(l *link, wr *transport.WorkRequest) (*remote, error) {
	if wr.Len == 0 && wr.Remote == transport.NoRemote {
		return nil, nil
	}
	r := d.remotes.Get(int32(wr.Remote))
	if r == nil || (*r).link != l {
		return nil, fmt.Errorf("%w: remote %d of peer %d", transport.ErrBadHandle, wr.Remote, wr.Peer)
	}
	return *r, (*r).check(wr.RemoteOff, wr.Len)
}

func (r *remote) check(off, n uint64) error {
	if off > r.size || n > r.size-off {
		return fmt.Errorf("%w: %d bytes at %d of a remote region of %d", transport.ErrOutOfRange, n, off, r.size)
	}
	return nil
}

// sendable tells why requests to a link can not go now. Its errors are made when
// the reason arises.
func (d *domain) sendable(l *link) error {
	switch {
	case l.state == linkLost || l.state == linkGone:
		return l.why
	case d.down != nil:
		return d.down
	}
	return nil
}

// take takes a free op; the caller has seen that there is one.
func (d *domain) take() int32 {
	k := len(d.ops.free) - 1
	i := d.ops.free[k]
	d.ops.free = d.ops.free[:k]
	o := &d.ops.all[i]
	o.done, o.pieces, o.status, o.vendor, o.handed, o.inline = 0, 0, transport.StatusOK, 0, false, false
	return i
}

// enqueue puts a checked op on its link. What the key does not allow ends here:
// the device at the other end would refuse it, and break the connection.
func (d *domain) enqueue(i int32, list int) {
	o := &d.ops.all[i]
	l := o.link
	if o.remote != nil && o.remote.access&verbOf[o.op].access == 0 {
		o.status, o.handed = transport.StatusRemoteAccess, true
		d.ops.end(i)
		return
	}
	d.push(&l.lists[list], i)
	if l.state == linkIdle {
		d.dial(l)
	}
	d.wake(l)
}

// wake puts a link on the list of those with something to hand over.
func (d *domain) wake(l *link) {
	if !l.dirty {
		l.dirty = true
		d.dirty = append(d.dirty, l)
	}
}

// PostScatter implements transport.Domain.
func (d *domain) PostScatter(h transport.Template, id transport.WRID, ops []transport.ScatterOp) (int, error) {
	if !d.enter() {
		return 0, transport.ErrClosed
	}
	n, err := d.scatter(h, id, ops)
	if err == transport.ErrAgain {
		d.stats.again.Add(1)
	}
	d.leave()
	return n, err
}

func (d *domain) scatter(h transport.Template, id transport.WRID, ops []transport.ScatterOp) (int, error) {
	tp := d.templates.Get(int32(h))
	if tp == nil {
		return 0, fmt.Errorf("%w: template %d", transport.ErrBadHandle, h)
	}
	if d.fatal != nil {
		return 0, d.fatal
	}
	entries := (*tp).entries
	for n := range ops {
		s := &ops[n]
		if len(d.ops.free) == 0 {
			return n, transport.ErrAgain
		}
		if s.Entry < 0 || int(s.Entry) >= len(entries) {
			return n, fmt.Errorf("%w: entry %d of a template with %d", transport.ErrBadHandle, s.Entry, len(entries))
		}
		e := &entries[s.Entry]
		if e.local != nil {
			if err := e.local.check(s.LocalOff, s.Len); err != nil {
				return n, err
			}
		}
		if e.remote != nil {
			if err := e.remote.check(s.RemoteOff, s.Len); err != nil {
				return n, err
			}
		}
		if s.Len > 0 && (e.local == nil || e.remote == nil) {
			return n, fmt.Errorf("%w: %d bytes for entry %d, which has no memory", transport.ErrBadHandle, s.Len, s.Entry)
		}
		if err := d.sendable(e.link); err != nil {
			return n, err
		}
		i := d.take()
		o := &d.ops.all[i]
		o.id, o.op, o.link, o.peer, o.local, o.remote = id, transport.OpWriteImm, e.link, e.peer, e.local, e.remote
		o.localOff, o.remoteOff, o.len, o.imm = s.LocalOff, s.RemoteOff, s.Len, uint32(s.Imm)
		if s.NoImm {
			o.op = transport.OpWrite
		}
		d.enqueue(i, listWrite)
	}
	return len(ops), nil
}

// PostRecv implements transport.Domain.
func (d *domain) PostRecv(rrs []transport.RecvRequest) (int, error) {
	if !d.enter() {
		return 0, transport.ErrClosed
	}
	n, err := 0, d.fatal
	for err == nil && n < len(rrs) {
		if err = d.acceptRecv(&rrs[n]); err == nil {
			n++
		}
	}
	if err == transport.ErrAgain {
		d.stats.again.Add(1)
	}
	d.leave()
	return n, err
}

func (d *domain) acceptRecv(rr *transport.RecvRequest) error {
	r := &d.recvs
	if len(r.free) == 0 {
		return transport.ErrAgain
	}
	x, err := d.localRange(rr.Local, rr.Off, rr.Len)
	if err != nil {
		return err
	}
	if rr.Len > d.maxMsg || x != nil && x.crosses(rr.Off, rr.Len) {
		return fmt.Errorf("%w: a receive of %d bytes at %d: the limit is %d, within one piece of the region", transport.ErrOutOfRange, rr.Len, rr.Off, d.maxMsg)
	}
	i := r.free[len(r.free)-1]
	r.free = r.free[:len(r.free)-1]
	b := &r.all[i]
	*b = recv{id: rr.ID, x: x, len: uint32(rr.Len)}
	if x != nil && rr.Len > 0 {
		b.addr, b.lkey = x.base+rr.Off, x.keys[rr.Off/x.piece]
	}
	r.queue[(r.head+r.count)%len(r.queue)] = i
	r.count++
	return nil
}
