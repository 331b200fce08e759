//go:build verbs && cgo && linux

package verbs

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"moerail/internal/ibv"
	"moerail/transport"
)

// lookEvery is how many polls go by between two looks at the clock while
// nothing depends on it; eventPause how much time between two looks for events.
const (
	lookEvery  = 64
	eventPause = 10 * time.Millisecond
)

// Poll implements transport.Domain.
func (d *domain) Poll(out []transport.Completion) (int, error) {
	if !d.enter() {
		return 0, transport.ErrClosed
	}
	if d.fatal != nil {
		n := d.takeDone(out)
		d.leave()
		return n, d.fatal
	}
	if d.polls++; d.unsettled > 0 || len(d.dying) > 0 || d.polls%lookEvery == 0 {
		d.look()
	}
	n := d.takeDone(out)
	if len(d.mail.out) > 0 {
		d.flushMail()
	}
	d.refill()
	d.handRecvs()
	d.handSends()
	room := len(out) - n
	k := d.step(room)
	var arrived uint64
	for i := range k {
		w := d.queue.Completion(i)
		switch index := w.ID &^ idKind; w.ID & idKind {
		case idOp:
			d.completed(index, w)
		case idImm:
			d.immsOut--
			if v, ok := w.Imm(); ok && w.Status == ibv.WCSuccess {
				out[n] = transport.Completion{Op: transport.OpImm, Peer: d.origin(w.QP), Imm: transport.Imm(v), Bytes: uint64(w.Bytes)}
				n++
				arrived++
			}
		case idRecv:
			if d.received(index, w, &out[n]) {
				n++
			}
		case idMailRecv:
			d.mailed(index, w)
		case idMailSend:
			d.sent(index)
		}
	}
	if arrived > 0 {
		d.stats.immsReceived.Add(arrived)
		if d.immsOut == 0 { // senders may have met an empty queue
			d.stats.stalls.Add(1)
		}
	}
	if room > 0 && k < min(room, stepWCs) && len(d.dying)+len(d.given) > 0 {
		d.reap()
	}
	n += d.takeDone(out[n:])
	err := d.fatal
	d.leave()
	return n, err
}

// look reads the clock, and does what depends on it.
func (d *domain) look() {
	now := time.Now()
	if d.unsettled > 0 {
		d.tick(now)
	}
	if now.Sub(d.looked) >= eventPause {
		d.looked = now
		d.events(now)
	}
}

// refill puts receives for immediates into the step, in batches.
func (d *domain) refill() {
	if missing := d.cfg.ImmDepth - d.immsOut; missing >= stepImms || 2*missing >= d.cfg.ImmDepth {
		d.queue.Refill(min(missing, stepImms), idImm)
	}
}

func (d *domain) handRecvs() {
	r := &d.recvs
	for r.count > 0 {
		i := r.queue[r.head]
		b := &r.all[i]
		if !d.queue.AddRecv(idRecv|uint64(i), b.addr, b.len, b.lkey) {
			return
		}
		r.head = (r.head + 1) % len(r.queue)
		r.count--
	}
}

// handSends puts what waits on ready links into the step. A link of which
// something is left stays on the list and goes to its end, so that all have
// their turn.
func (d *domain) handSends() {
	k, kept := len(d.dirty), 0
	if k == 0 {
		return
	}
	full := false
	for i := range k {
		l := d.dirty[i]
		if !full {
			full = d.handLink(l)
		}
		if l.state == linkReady && (!l.lists[listSend].empty() || !l.lists[listWrite].empty() || !l.lists[listRead].empty()) {
			d.dirty[kept] = l
			kept++
		} else {
			l.dirty = false
		}
	}
	clear(d.dirty[kept:])
	d.dirty = d.dirty[:kept]
	if kept > 1 {
		first := d.dirty[0]
		copy(d.dirty, d.dirty[1:])
		d.dirty[kept-1] = first
	}
}

// handLink hands over what fits; it tells whether the step or the completion
// queue is full.
func (d *domain) handLink(l *link) (full bool) {
	if l.state != linkReady {
		return false
	}
	for k := range l.lists {
		s, q := &l.lists[k], l.chans[chanOf[k]].qp
		for !s.empty() && q != nil && q.inFlight < d.cfg.SendDepth && (k != listRead || q.reads < q.maxReads) {
			if d.queue.Room() == 0 || d.sendsIn >= d.maxIn {
				return true
			}
			d.hand(s, q, k == listRead)
		}
	}
	return false
}

// hand puts the next work request of the first op of a list into the step.
func (d *domain) hand(s *opList, q *rcQP, read bool) {
	i := s.head
	o := &d.ops.all[i]
	n := min(o.len-o.done, d.maxMsg)
	r := ibv.Request{ID: idOp | uint64(i), Op: verbOf[o.op].op, Imm: o.imm, Operand: o.operand, Compare: o.compare}
	if n > 0 {
		if o.inline {
			r.Addr, r.LKey = d.ops.addr+uint64(i)*maxInline+o.done, d.ops.mr.LKey
		} else {
			at := o.localOff + o.done
			n = min(n, o.local.piece-at%o.local.piece)
			r.Addr, r.LKey = o.local.base+at, o.local.keys[at/o.local.piece]
		}
		if o.remote != nil {
			at := o.remoteOff + o.done
			n = min(n, o.remote.piece-at%o.remote.piece)
			r.RemoteAddr, r.RKey = o.remote.base+at, o.remote.rkeys[at/o.remote.piece]
		}
		r.Len = uint32(n)
		// What is short costs the device less inline than fetched, and the buffer
		// may well be read at once: the caller keeps it until the completion.
		r.Inline = !read && n <= uint64(d.inline) && (o.inline || !o.local.device)
	}
	o.done += n
	o.pieces++
	o.qp = q
	q.inFlight++
	d.sendsIn++
	if read {
		q.reads++
	}
	if o.done < o.len {
		if r.Op == ibv.WriteImm {
			r.Op = ibv.Write // only the last brings the immediate
		}
	} else {
		d.pop(s)
		o.handed = true
	}
	d.queue.Add(q.qp, &r)
}

// step crosses into C, and accounts for what was taken.
func (d *domain) step(max int) int {
	r := d.queue.Step(max)
	d.stats.crossings.Add(1)
	if r.Chains > 0 {
		d.stats.doorbells.Add(uint64(r.Chains))
	}
	d.immsOut += r.ImmsTaken
	if r.Refused {
		d.refused(r.Chains)
	}
	if r.ImmsTaken < r.ImmsPut && r.ImmErr != unix.ENOMEM {
		d.fail(&ibv.CallError{Call: "ibv_post_srq_recv", Errno: r.ImmErr})
	}
	if r.RecvsTaken < r.RecvsPut {
		d.recvsRefused(r)
	}
	if r.PollFailed {
		d.fail(&ibv.CallError{Call: "ibv_poll_cq", Errno: r.PollErr})
	}
	return r.Completions
}

// recvsRefused puts receives back in front of the queue, in order.
func (d *domain) recvsRefused(r ibv.StepResult) {
	if r.RecvErr != unix.ENOMEM {
		d.fail(&ibv.CallError{Call: "ibv_post_srq_recv", Errno: r.RecvErr})
	}
	q := &d.recvs
	for i := r.RecvsPut - 1; i >= r.RecvsTaken; i-- {
		q.head = (q.head + len(q.queue) - 1) % len(q.queue)
		q.queue[q.head] = int32(d.queue.RecvID(i) &^ idKind)
		q.count++
	}
}

// refused takes back work requests that the device did not take. A full queue
// means that they wait; anything else that the queue pair is of no use, and the
// request that was refused ends with the errno.
func (d *domain) refused(chains int) {
	for c := range chains {
		qp, accepted, count, errno := d.queue.Chain(c)
		if accepted == count {
			continue
		}
		q := d.byQP[qp.Number]
		ids := d.queue.Requests(c, accepted, nil)
		full := errno == unix.ENOMEM
		for k := len(ids) - 1; k >= 0; k-- {
			d.takeBack(int32(ids[k]&^idKind), q, k == 0 && !full, uint32(errno))
		}
		if !full && q != nil {
			d.rebuild(q)
			d.wake(q.link)
		}
	}
}

// takeBack undoes hand for one work request. An op of one piece waits again; one
// of several ends, since what it has done is not known piece by piece.
func (d *domain) takeBack(i int32, q *rcQP, guilty bool, errno uint32) {
	o := &d.ops.all[i]
	o.pieces--
	d.sendsIn--
	list := listWrite
	switch o.op {
	case transport.OpSend:
		list = listSend
	case transport.OpRead, transport.OpCompareSwap, transport.OpFetchAdd:
		list = listRead
	}
	if q != nil {
		q.inFlight--
		if list == listRead {
			q.reads--
		}
	}
	switch {
	case guilty:
		o.status, o.vendor = transport.StatusFault, errno
	case o.handed && o.pieces == 0 && !o.waiting && o.status == transport.StatusOK && o.single(d.maxMsg):
		o.done, o.handed = 0, false
		d.pushFront(&o.link.lists[list], i)
		d.wake(o.link)
		return
	case o.status == transport.StatusOK:
		o.status, o.vendor = transport.StatusFlushed, errno
	}
	if o.waiting { // the rest of it was to follow
		d.pop(&o.link.lists[list])
	}
	o.handed = true
	if o.pieces == 0 {
		d.ops.end(i)
	}
}

// single tells whether an op is one work request.
func (o *op) single(maxMsg uint64) bool {
	return o.len <= maxMsg && (o.inline || o.local == nil || !o.local.crosses(o.localOff, o.len)) &&
		(o.remote == nil || o.len == 0 || o.remoteOff/o.remote.piece == (o.remoteOff+o.len-1)/o.remote.piece)
}

// completed takes the end of one work request.
func (d *domain) completed(index uint64, w *ibv.WC) {
	if index >= uint64(len(d.ops.all)) {
		return
	}
	o := &d.ops.all[index]
	q := o.qp
	if o.pieces == 0 || q == nil || q.qp.Number != w.QP {
		return // of a queue pair that was abandoned
	}
	o.pieces--
	q.inFlight--
	d.sendsIn--
	if o.op == transport.OpRead || o.op == transport.OpCompareSwap || o.op == transport.OpFetchAdd {
		q.reads--
	}
	if w.Status != ibv.WCSuccess {
		d.broken(o, q, w)
	}
	if o.pieces == 0 && o.handed {
		d.ops.end(int32(index))
	}
	if l := q.link; !l.lists[listSend].empty() || !l.lists[listWrite].empty() || !l.lists[listRead].empty() {
		d.wake(l)
	}
}

// broken takes a completion in error: the queue pair is of no use any more.
func (d *domain) broken(o *op, q *rcQP, w *ibv.WC) {
	vendor := vendorOf(w.Status, w.Vendor)
	st := d.judge(o, q, w.Status)
	if o.status == transport.StatusOK {
		o.status, o.vendor = st, vendor
		if w.Status == ibv.WCFlushed && q.vendor != 0 {
			o.vendor = q.vendor
		}
	}
	if o.waiting { // a piece of it failed; the rest does not go
		list := listWrite
		if o.op == transport.OpRead {
			list = listRead
		}
		d.pop(&o.link.lists[list])
	}
	o.handed = true
	if q.failed {
		return
	}
	if st == transport.StatusPeerLost {
		d.lose(q.link, vendor, errors.New(VendorText(vendor)))
		d.retire(q, st, vendor) // of a link that was given up
		return
	}
	d.rebuild(q)
}

// judge makes a status of what the device says.
func (d *domain) judge(o *op, q *rcQP, s ibv.WCStatus) transport.Status {
	switch s {
	case ibv.WCFlushed:
		if q.failed {
			return q.cause
		}
		return transport.StatusFlushed
	case ibv.WCRemoteAccess:
		return transport.StatusRemoteAccess
	case ibv.WCRemoteOp:
		if d.soft && o.op == transport.OpSend {
			return transport.StatusTruncated
		}
	case ibv.WCRemoteInvalid:
		if o.op == transport.OpSend {
			return transport.StatusTruncated
		}
		return transport.StatusRemoteAccess
	case ibv.WCRetryExceeded, ibv.WCReceiverNotReady, ibv.WCResponseTimeout, ibv.WCRemoteAborted:
		return transport.StatusPeerLost
	case ibv.WCLocalProtection, ibv.WCLocalQPOp, ibv.WCLocalAccess:
		if o.local != nil && o.local.closed {
			return transport.StatusFlushed
		}
	}
	return transport.StatusFault
}

// received takes a filled receive.
func (d *domain) received(index uint64, w *ibv.WC, out *transport.Completion) bool {
	r := &d.recvs
	if index >= uint64(len(r.all)) {
		return false
	}
	b := &r.all[index]
	*out = transport.Completion{ID: b.id, Op: transport.OpRecv, Peer: d.origin(w.QP)}
	switch w.Status {
	case ibv.WCSuccess:
		out.Bytes = uint64(w.Bytes)
		if _, imm := w.Imm(); imm {
			out.Status, out.Bytes = transport.StatusFault, 0 // a write where messages belong
		}
	case ibv.WCLocalLength, ibv.WCRemoteInvalid:
		out.Status = transport.StatusTruncated
	case ibv.WCLocalQPOp:
		if out.Status = transport.StatusFault; b.x != nil && b.x.closed {
			out.Status = transport.StatusFlushed
		} else if d.soft { // so it calls a message that is too long
			out.Status = transport.StatusTruncated
		}
	case ibv.WCFlushed:
		out.Status = transport.StatusFlushed
	default:
		if out.Status = transport.StatusFault; b.x != nil && b.x.closed {
			out.Status = transport.StatusFlushed
		}
	}
	if w.Status != ibv.WCSuccess {
		out.Vendor = vendorOf(w.Status, w.Vendor)
		if q := d.byQP[w.QP]; q != nil && !q.failed {
			d.rebuild(q)
		}
	}
	*b = recv{}
	r.free = append(r.free, int32(index))
	return true
}

// origin is the peer behind one of our queue pairs.
func (d *domain) origin(qpn uint32) transport.Peer {
	if q := d.byQP[qpn]; q != nil {
		return q.link.peer
	}
	return transport.NoPeer
}
