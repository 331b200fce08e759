//go:build verbs && cgo && linux

package verbs

import (
	"moerail/internal/ibv"
)

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
