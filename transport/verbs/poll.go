//go:build verbs && cgo && linux

package verbs

import (
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
			d.sent(index, w)
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
	switch {
	case r.ImmsTaken == r.ImmsPut:
	case r.ImmErr != unix.ENOMEM:
		d.fail(&ibv.CallError{Call: "ibv_post_srq_recv", Errno: r.ImmErr})
	case d.immsOut == 0: // senders wait, and nothing that arrives will say so
		d.stats.stalls.Add(1)
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
