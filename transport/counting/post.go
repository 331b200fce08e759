package counting

import (
	"fmt"

	"moerail/transport"
)

// nowhere stands for NoKey and NoRemote: no bytes, never closed.
var (
	noRegion = &region{}
	noRemote = &remote{live: true}
)

func (d *Domain) resolve(ph transport.Peer, lh transport.LKey, rh transport.Remote) (*peer, *region, *remote, error) {
	p := d.peers.Get(int32(ph))
	if p == nil {
		return nil, nil, nil, fmt.Errorf("%w: peer handle %#x", transport.ErrBadHandle, int32(ph))
	}
	l, r := noRegion, noRemote
	if lh != transport.NoKey {
		lp := d.regions.Get(int32(lh))
		if lp == nil || (*lp).closed.Load() {
			return nil, nil, nil, fmt.Errorf("%w: local key %#x", transport.ErrBadHandle, int32(lh))
		}
		l = *lp
	}
	if rh != transport.NoRemote {
		rp := d.remotes.Get(int32(rh))
		if rp == nil || (*rp).peer != *p {
			return nil, nil, nil, fmt.Errorf("%w: remote %#x of peer %#x", transport.ErrBadHandle, int32(rh), int32(ph))
		}
		r = *rp
	}
	return *p, l, r, nil
}

func within(off, n, size uint64) bool { return n <= size && off <= size-n }

// rangeError tells a missing region from a range outside one.
func rangeError(off, n uint64, l *region, rOff uint64, r *remote) error {
	if n > 0 && (l == noRegion || r == noRemote) {
		return fmt.Errorf("%w: %d bytes without a region", transport.ErrBadHandle, n)
	}
	return fmt.Errorf("%w: %d bytes at offset %d of %d to offset %d of %d", transport.ErrOutOfRange, n, off, l.size, rOff, r.size)
}

// admit checks what the opcode demands beyond handles and ranges.
func admit(wr *transport.WorkRequest) error {
	switch wr.Op {
	case transport.OpWrite, transport.OpWriteImm, transport.OpRead, transport.OpSend:
	case transport.OpCompareSwap, transport.OpFetchAdd:
		if wr.Len != 8 || wr.RemoteOff%8 != 0 {
			return fmt.Errorf("%w: atomic of %d bytes at offset %d", transport.ErrOutOfRange, wr.Len, wr.RemoteOff)
		}
	default:
		return fmt.Errorf("%w: posting opcode %d", transport.ErrUnsupported, wr.Op)
	}
	if wr.Inline && wr.Len > maxInline {
		return fmt.Errorf("%w: %d bytes inline, the limit is %d", transport.ErrOutOfRange, wr.Len, maxInline)
	}
	return nil
}

func (d *Domain) full() bool { return d.tail-d.head >= uint64(d.lim.MaxSend) }

func (d *Domain) count(e end) {
	d.ends[d.tail&uint64(len(d.ends)-1)] = e
	d.tail++
	d.tally.messages++
	d.tally.bytes += e.bytes
	if e.op == transport.OpWriteImm {
		d.tally.imms++
	}
}

// Post checks and counts wrs.
func (d *Domain) Post(wrs []transport.WorkRequest) (int, error) {
	if d.closed.Load() {
		return 0, transport.ErrClosed
	}
	for i := range wrs {
		wr := &wrs[i]
		if err := admit(wr); err != nil {
			return d.posted(i, err)
		}
		rh := wr.Remote
		if wr.Op == transport.OpSend {
			rh = transport.NoRemote
		}
		p, l, r, err := d.resolve(wr.Peer, wr.Local, rh)
		if err != nil {
			return d.posted(i, err)
		}
		if !within(wr.LocalOff, wr.Len, l.size) && (l != noRegion || wr.Len > 0) ||
			wr.Op != transport.OpSend && !within(wr.RemoteOff, wr.Len, r.size) && (r != noRemote || wr.Len > 0) {
			return d.posted(i, rangeError(wr.LocalOff, wr.Len, l, wr.RemoteOff, r))
		}
		if d.full() {
			return d.posted(i, transport.ErrAgain)
		}
		d.count(end{wr.ID, wr.Len, p.handle, wr.Op})
	}
	return d.posted(len(wrs), nil)
}

// PostScatter checks and counts ops against a template.
func (d *Domain) PostScatter(t transport.Template, id transport.WRID, ops []transport.ScatterOp) (int, error) {
	if d.closed.Load() {
		return 0, transport.ErrClosed
	}
	tp := d.templates.Get(int32(t))
	if tp == nil {
		return d.posted(0, transport.ErrBadHandle)
	}
	entries := *tp
	for i := range ops {
		op := &ops[i]
		if uint(op.Entry) >= uint(len(entries)) {
			return d.posted(i, fmt.Errorf("%w: entry %d of a template of %d", transport.ErrBadHandle, op.Entry, len(entries)))
		}
		e := &entries[op.Entry]
		if e.local.closed.Load() || !e.remote.live {
			return d.posted(i, fmt.Errorf("%w: entry %d names a closed region", transport.ErrBadHandle, op.Entry))
		}
		if !within(op.LocalOff, op.Len, e.local.size) && (e.local != noRegion || op.Len > 0) ||
			!within(op.RemoteOff, op.Len, e.remote.size) && (e.remote != noRemote || op.Len > 0) {
			return d.posted(i, rangeError(op.LocalOff, op.Len, e.local, op.RemoteOff, e.remote))
		}
		if d.full() {
			return d.posted(i, transport.ErrAgain)
		}
		code := transport.OpWriteImm
		if op.NoImm {
			code = transport.OpWrite
		}
		d.count(end{id, op.Len, e.peer.handle, code})
	}
	return d.posted(len(ops), nil)
}

func (d *Domain) posted(n int, err error) (int, error) {
	s, t := &d.stats, &d.tally
	if n > 0 {
		s.doorbells.Store(s.doorbells.Load() + 1)
		s.messages.Store(s.messages.Load() + t.messages)
		s.bytes.Store(s.bytes.Load() + t.bytes)
		s.imms.Store(s.imms.Load() + t.imms)
		t.messages, t.bytes, t.imms = 0, 0, 0
	}
	switch {
	case err == nil:
	case err == transport.ErrAgain:
		s.again.Add(1)
	default:
		err = d.wrap(fmt.Sprintf("request %d", n), err)
	}
	return n, err
}

// PostRecv refuses every receive: none would ever be filled.
func (d *Domain) PostRecv(rrs []transport.RecvRequest) (int, error) {
	if len(rrs) > 0 {
		return 0, d.wrap("post receive", transport.ErrUnsupported)
	}
	return 0, nil
}

// Poll completes what was posted, in order, all with StatusOK.
func (d *Domain) Poll(out []transport.Completion) (int, error) {
	if d.closed.Load() {
		return 0, transport.ErrClosed
	}
	n := 0
	for ; n < len(out) && d.head != d.tail; n++ {
		e := &d.ends[d.head&uint64(len(d.ends)-1)]
		out[n] = transport.Completion{ID: e.id, Op: e.op, Peer: e.peer, Bytes: e.bytes}
		d.head++
	}
	return n, nil
}
