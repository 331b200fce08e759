package engine

import (
	"sync/atomic"

	"moerail/transport"
)

// Done says who is told when a transfer has ended: nobody, a function, a
// counter, or both. It ends once, well or not, and never before its memory may
// be reused.
type Done struct {
	// Func runs on the callback goroutine. err is nil, a *TransferError,
	// ErrCancelled, ErrClosed or what made the transfer unusable.
	Func func(err error)
	// Counter is increased by one.
	Counter *Counter
}

// Handle names a transfer so that it can be cancelled. It stays valid, and
// harmless, after the transfer has ended.
type Handle struct {
	x   *transfer
	gen uint64
}

// Cancel drops what has not been posted. What is in flight drains, then the
// transfer ends with ErrCancelled; any part of its bytes may have arrived. It
// reports false if the transfer has ended already.
func (h Handle) Cancel() bool {
	if h.x == nil {
		return false
	}
	if !h.x.state.CompareAndSwap(h.gen<<1, h.gen<<1|1) {
		return h.x.state.Load() == h.gen<<1|1
	}
	e := h.x.e
	e.recall.Store(true)
	e.Wake()
	return true
}

type shape uint8

const (
	shapeRange  shape = iota // one range, jobs have bytes of it
	shapePages               // jobs have pages
	shapeAtomic              // one job of one operation
	shapeSend                // one job of one message
	shapeScatter
)

// transfer is one request of an application, from the call to its end. It is
// pooled: the caller fills it, then the worker owns it, then the callbacks.
type transfer struct {
	node  node
	tr    Tracker
	state atomic.Uint64 // generation << 1 | cancelled
	e     *Engine
	done  Done
	err   error

	shape   shape
	op      transport.Opcode
	imm     transport.Imm
	local   *Region
	remote  *RemoteRegion
	group   *PeerGroup
	peer    *Peer
	jobs    [MaxNICs]job // by NIC
	operand uint64
	compare uint64

	localOff, remoteOff       uint64
	localStride, remoteStride uint64
	pageLen                   uint64
	localPages, remotePages   []uint32

	msg []byte
	buf *sendBuffer // worker
}

func newTransfer(e *Engine) *transfer {
	x := &transfer{e: e}
	x.node.owner = x
	x.tr.x = x
	for i := range x.jobs {
		x.jobs[i].t, x.jobs[i].x = &x.tr, x
	}
	return x
}

// keepCap bounds what a pooled transfer holds on to, in elements of a list.
const keepCap = 1 << 16

func kept[T any](s []T) []T {
	if cap(s) > keepCap {
		return nil
	}
	return s[:0]
}

func (e *Engine) newTransfer(s shape, op transport.Opcode, done Done) *transfer {
	x := e.pool.Get().(*transfer)
	x.shape, x.op, x.done = s, op, done
	return x
}

func (e *Engine) recycle(x *transfer) {
	x.done, x.err = Done{}, nil
	x.tr.err = nil
	x.local, x.remote, x.group, x.peer = nil, nil, nil, nil
	x.localPages, x.remotePages, x.msg = kept(x.localPages), kept(x.remotePages), kept(x.msg)
	for i := range x.jobs {
		j := &x.jobs[i]
		j.pos, j.count, j.group, j.next = 0, 0, nil, nil
		j.ops = kept(j.ops)
	}
	e.pool.Put(x)
}

// start hands a filled transfer over. One without operations ends at once.
func (e *Engine) start(x *transfer) (Handle, error) {
	if e.stop.Load() {
		e.recycle(x)
		return Handle{}, ErrClosed
	}
	h := Handle{x: x, gen: x.state.Load() >> 1}
	for i := range x.jobs {
		if x.jobs[i].count > 0 {
			e.submit(&x.node)
			return h, nil
		}
	}
	e.w.finish(x, nil) // touches nothing of the worker's: the tracker was never entered
	return h, nil
}

// usable checks, on the worker, what may have been closed meanwhile.
func (x *transfer) usable() error {
	if x.local != nil && x.local.closed || x.remote != nil && x.remote.closed ||
		x.group != nil && x.group.closed || x.peer != nil && x.peer.removed {
		return ErrForeign
	}
	return nil
}

// onWorker queues the transfer's jobs; the turn that does so posts them.
func (x *transfer) onWorker(w *Worker) {
	w.e.stats.commands.Add(1)
	if w.e.dead.Load() {
		w.finish(x, ErrClosed)
		return
	}
	err := x.usable()
	if err == nil && x.state.Load()&1 == 0 && x.shape == shapeSend {
		err = w.fillSend(x)
	}
	if err != nil || x.state.Load()&1 != 0 {
		w.finish(x, err)
		return
	}
	w.enter(&x.tr)
	for i := range w.nics {
		if n := x.jobs[i].count; n > 0 {
			x.tr.add(i, n)
		}
	}
	for i, n := range w.nics {
		if x.jobs[i].count > 0 {
			n.bulk.push(&x.jobs[i])
		}
	}
}

// finish ends a transfer: the one place where that happens.
func (w *Worker) finish(x *transfer, err error) {
	e := w.e
	if x.tr.slot != 0 {
		w.leave(&x.tr)
	}
	if x.buf != nil {
		w.sends.put(x.buf)
		x.buf = nil
	}
	if err == nil && x.tr.err != nil {
		err = x.tr.err
	}
	for {
		s := x.state.Load()
		if x.state.CompareAndSwap(s, (s>>1+1)<<1) {
			if s&1 != 0 {
				err = ErrCancelled
			}
			break
		}
	}
	switch err {
	case nil:
		e.stats.done.Add(1)
	case ErrCancelled:
		e.stats.cancelled.Add(1)
	default:
		e.stats.failed.Add(1)
	}
	if c := x.done.Counter; c != nil {
		c.ended(err)
	}
	if x.done.Func == nil {
		e.recycle(x)
		return
	}
	x.err = err
	e.done.deliver(&x.node)
}

func (x *transfer) onCallback() {
	fn, err := x.done.Func, x.err
	x.e.recycle(x)
	fn(err)
}

// dropCancelled takes the jobs of cancelled transfers out of the queues.
func (w *Worker) dropCancelled() {
	for _, n := range w.nics {
		all := n.bulk
		n.bulk = jobList{}
		for all.head != nil {
			j := all.pop()
			if j.t.x.state.Load()&1 == 0 {
				n.bulk.push(j)
				continue
			}
			w.end(j.t, n.index, j.count-j.pos, nil)
		}
	}
}

// request writes operation i of a job into wr.
func (x *transfer) request(j *job, nic, i int, wr *transport.WorkRequest) {
	*wr = transport.WorkRequest{ID: x.tr.wrid(nil), Op: x.op, Imm: x.imm}
	if x.shape == shapeSend {
		wr.Peer, wr.Local, wr.Remote = x.peer.handle[nic], x.buf.lkey, transport.NoRemote
		wr.LocalOff, wr.Len = x.buf.off, uint64(len(x.msg))
		return
	}
	wr.Peer, wr.Remote, wr.Local = x.remote.peer[nic], x.remote.remote[nic], x.local.lkey[nic]
	switch x.shape {
	case shapeRange:
		at := j.lo + uint64(i)*x.e.maxMsg
		wr.Len = min(x.e.maxMsg, j.hi-at)
		wr.LocalOff, wr.RemoteOff = x.localOff+at, x.remoteOff+at
	case shapePages:
		p := j.lo + uint64(i)
		wr.Len = x.pageLen
		wr.LocalOff = x.localOff + uint64(x.localPages[p])*x.localStride
		wr.RemoteOff = x.remoteOff + uint64(x.remotePages[p])*x.remoteStride
	case shapeAtomic:
		wr.Len, wr.LocalOff, wr.RemoteOff = 8, x.localOff, x.remoteOff
		wr.Operand, wr.Compare = x.operand, x.compare
	}
}
