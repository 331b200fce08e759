package loopback

import (
	"fmt"

	"moerail/transport"
)

// action is a work request whose handles are resolved and whose ranges are
// checked against what the caller was told; what the target thinks of it is
// checked when it is carried out.
type action struct {
	templateEntry
	op        transport.Opcode
	inline    bool
	id        transport.WRID
	imm       transport.Imm
	localOff  uint64
	remoteOff uint64
	len       uint64
	operand   uint64
	compare   uint64
}

// completion is the end of a at its poster.
func (a *action) completion(st transport.Status, bytes uint64) transport.Completion {
	return transport.Completion{ID: a.id, Op: a.op, Status: st, Peer: a.peer.handle, Bytes: bytes}
}

// source is the local range of a, nil when empty.
func (a *action) source() []byte {
	if a.local == nil {
		return nil
	}
	return a.local.bytes[a.localOff : a.localOff+a.len]
}

func rangeError(what string, off, n, size uint64) error {
	return fmt.Errorf("%w: %s, %d bytes at offset %d of %d", transport.ErrOutOfRange, what, n, off, size)
}

// checkRange refuses ranges outside either region. A range needs a region
// unless it is empty.
func (a *action) checkRange() error {
	if a.local == nil {
		if a.len > 0 {
			return errLocalHandle
		}
	} else if !a.local.holds(a.localOff, a.len) {
		return rangeError("local", a.localOff, a.len, a.local.Size())
	}
	if a.remote == nil {
		if a.len > 0 && a.op != transport.OpSend {
			return errRemoteHandle
		}
	} else if !within(a.remoteOff, a.len, a.remote.key.size) {
		return rangeError("remote", a.remoteOff, a.len, a.remote.key.size)
	}
	return nil
}

// admit checks wr and fills a.
func (d *Domain) admit(wr *transport.WorkRequest, a *action) (err error) {
	rk := wr.Remote
	if wr.Op == transport.OpSend {
		rk = transport.NoRemote
	}
	if a.templateEntry, err = d.resolve(wr.Peer, wr.Local, rk); err != nil {
		return err
	}
	a.op, a.inline, a.id, a.imm = wr.Op, wr.Inline, wr.ID, wr.Imm
	a.localOff, a.remoteOff, a.len = wr.LocalOff, wr.RemoteOff, wr.Len
	a.operand, a.compare = wr.Operand, wr.Compare
	limit := d.lim.MaxMessage
	switch wr.Op {
	case transport.OpWrite:
	case transport.OpWriteImm:
		if d.lim.ImmBytes == 0 {
			return fmt.Errorf("%w: immediates", transport.ErrUnsupported)
		}
	case transport.OpRead:
		if !d.lim.Read {
			return fmt.Errorf("%w: reads", transport.ErrUnsupported)
		}
	case transport.OpCompareSwap, transport.OpFetchAdd:
		if !d.lim.Atomic {
			return fmt.Errorf("%w: atomics", transport.ErrUnsupported)
		}
		if wr.Len != 8 || wr.RemoteOff%8 != 0 {
			return fmt.Errorf("%w: atomic of %d bytes at offset %d, want 8 bytes at a multiple of 8",
				transport.ErrOutOfRange, wr.Len, wr.RemoteOff)
		}
	case transport.OpSend:
		limit = d.lim.MaxRecvSize
	default:
		return fmt.Errorf("%w: posting opcode %d", transport.ErrUnsupported, wr.Op)
	}
	if limit > 0 && wr.Len > limit {
		return fmt.Errorf("%w: %v of %d bytes, the limit is %d", transport.ErrOutOfRange, wr.Op, wr.Len, limit)
	}
	if wr.Inline && wr.Len > uint64(d.lim.MaxInline) {
		return fmt.Errorf("%w: %d bytes inline, the limit is %d", transport.ErrOutOfRange, wr.Len, d.lim.MaxInline)
	}
	return a.checkRange()
}

// post starts a; false means that a queue is full.
func (d *Domain) post(a *action) bool {
	if d.owner.inFlight >= d.lim.MaxSend {
		return false
	}
	if d.fab.air != nil {
		d.fab.air.launch(d, a)
	} else if !d.carry(a) {
		return false
	}
	d.owner.inFlight++
	return true
}

// posted ends a call that took n requests and books what it did.
func (d *Domain) posted(n int, err error) (int, error) {
	c, t := &d.counts, &d.owner.tally
	if n > 0 {
		c.doorbells.Store(c.doorbells.Load() + 1)
	}
	d.book(t)
	d.leave()
	if err == transport.ErrAgain {
		c.again.Add(1)
	} else if err != nil {
		err = fmt.Errorf("loopback: %s: request %d: %w", d.label, n, err)
	}
	return n, err
}

// book adds what was carried out to the counters. With faults the threads that
// move operations do that themselves, under the air's lock.
func (d *Domain) book(t *tally) {
	if t.messages == 0 {
		return
	}
	c := &d.counts
	c.messages.Add(t.messages)
	c.bytes.Add(t.bytes)
	if t.imms > 0 {
		c.immsSent.Add(t.imms)
	}
	*t = tally{}
}

// Post starts operations; see the contract.
func (d *Domain) Post(wrs []transport.WorkRequest) (int, error) {
	if err := d.enter(); err != nil {
		return 0, err
	}
	var a action
	for i := range wrs {
		if err := d.admit(&wrs[i], &a); err != nil {
			return d.posted(i, err)
		}
		if !d.post(&a) {
			return d.posted(i, transport.ErrAgain)
		}
	}
	return d.posted(len(wrs), nil)
}

// PostScatter starts writes against a template; see the contract.
func (d *Domain) PostScatter(t transport.Template, id transport.WRID, ops []transport.ScatterOp) (int, error) {
	if err := d.enter(); err != nil {
		return 0, err
	}
	tp := d.owner.templates.Get(int32(t))
	if tp == nil {
		return d.posted(0, transport.ErrBadHandle)
	}
	entries := (*tp).entries
	a := action{id: id}
	for i := range ops {
		op := &ops[i]
		if uint(op.Entry) >= uint(len(entries)) {
			return d.posted(i, fmt.Errorf("%w: entry %d of a template of %d", transport.ErrBadHandle, op.Entry, len(entries)))
		}
		if err := d.admitScatter(&entries[op.Entry], op, &a); err != nil {
			return d.posted(i, err)
		}
		if !d.post(&a) {
			return d.posted(i, transport.ErrAgain)
		}
	}
	return d.posted(len(ops), nil)
}

// admitScatter fills a for op. The regions may have closed since the template
// was made.
func (d *Domain) admitScatter(e *templateEntry, op *transport.ScatterOp, a *action) error {
	if e.local != nil && e.local.closed.Load() {
		return errLocalHandle
	}
	if e.remote != nil && !e.remote.valid {
		return errRemoteHandle
	}
	a.templateEntry = *e
	a.op = transport.OpWriteImm
	if op.NoImm {
		a.op = transport.OpWrite
	} else if d.lim.ImmBytes == 0 {
		return fmt.Errorf("%w: immediates", transport.ErrUnsupported)
	}
	a.imm, a.localOff, a.remoteOff, a.len = op.Imm, op.LocalOff, op.RemoteOff, op.Len
	if limit := d.lim.MaxMessage; limit > 0 && op.Len > limit {
		return fmt.Errorf("%w: write of %d bytes, the limit is %d", transport.ErrOutOfRange, op.Len, limit)
	}
	return a.checkRange()
}

// PostRecv posts buffers for incoming messages; they are filled in order.
func (d *Domain) PostRecv(rrs []transport.RecvRequest) (int, error) {
	if err := d.enter(); err != nil {
		return 0, err
	}
	q := &d.owner.recvs
	for i := range rrs {
		rr := &rrs[i]
		r := d.local(rr.Local)
		switch {
		case r == nil && (rr.Local != transport.NoKey || rr.Len > 0):
			return d.postedRecv(i, errLocalHandle)
		case r != nil && !r.holds(rr.Off, rr.Len):
			return d.postedRecv(i, rangeError("receive", rr.Off, rr.Len, r.Size()))
		case q.full():
			return d.postedRecv(i, transport.ErrAgain)
		}
		q.push(*rr)
	}
	return d.postedRecv(len(rrs), nil)
}

func (d *Domain) postedRecv(n int, err error) (int, error) {
	d.leave()
	if err == transport.ErrAgain {
		d.counts.again.Add(1)
	} else if err != nil {
		err = fmt.Errorf("loopback: %s: receive %d: %w", d.label, n, err)
	}
	return n, err
}
