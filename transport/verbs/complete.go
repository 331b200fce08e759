//go:build verbs && cgo && linux

package verbs

import (
	"errors"

	"moerail/internal/ibv"
	"moerail/transport"
)

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
