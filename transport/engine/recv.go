package engine

import (
	"fmt"

	"moerail/transport"
)

// Message is what a peer sent. Bytes are valid until the function that got the
// message returns.
type Message struct {
	Bytes []byte
	From  *Peer // nil if the fabric does not tell, or it was not added
	// Err is set for a message that did not fit (ErrTruncated) or was lost, and
	// is ErrClosed in the very last one, when the engine is closed. Bytes is nil
	// then.
	Err error
}

// recvPool is n receive buffers on NIC 0 that return to the NIC after each
// message. A buffer belongs to the NIC while it is posted, then to the callback
// goroutine, then to the worker, which posts it again.
type recvPool struct {
	e     *Engine
	mem   transport.Memory
	lkey  transport.LKey
	size  uint64
	step  uint64
	fn    func(Message)
	slots []recvSlot
	reqs  [postBatch]transport.RecvRequest
}

type recvSlot struct {
	node  node
	pool  *recvPool
	index int32
	lent  bool // to the callbacks; worker
	msg   Message
}

const (
	maxRecvBuffers = 1 << 20
	recvAlign      = 64
)

// PostRecvs gives the engine n buffers of size bytes for messages and has fn
// called for each message, on the callback goroutine; the buffer is posted again
// when fn returns. An engine has one pool, which lasts until Close.
func (e *Engine) PostRecvs(size uint64, n int, fn func(Message)) error {
	limits := e.limits[messageNIC]
	if fn == nil || n < 1 || n > maxRecvBuffers || size == 0 || size > limits.MaxRecvSize {
		return fmt.Errorf("%w: %d receives of %d bytes, want 1 to %d of 1 to %d and a function", ErrArgument, n, size, maxRecvBuffers, limits.MaxRecvSize)
	}
	p := &recvPool{e: e, size: size, step: (size + recvAlign - 1) / recvAlign * recvAlign, fn: fn}
	var err error
	if callErr := e.Call(func(w *Worker) {
		if w.recvs != nil {
			err = fmt.Errorf("%w: receives are posted already", ErrArgument)
			return
		}
		if p.mem, err = e.cfg.Provider.Alloc(p.step * uint64(n)); err != nil {
			err = fmt.Errorf("engine: %d receive buffers of %d bytes: %w", n, size, err)
			return
		}
		d := w.nics[messageNIC]
		r, e1 := d.dom.Register(p.mem, transport.AccessLocal)
		if e1 != nil {
			err = fmt.Errorf("engine: %d receive buffers of %d bytes on NIC %s: %w", n, size, d.name, e1)
			_ = e.cfg.Provider.Free(p.mem)
			return
		}
		p.lkey = r.LKey()
		p.slots = make([]recvSlot, n)
		d.recvs = make([]int32, 0, n)
		for i := range p.slots {
			s := &p.slots[i]
			s.pool, s.index = p, int32(i)
			s.node.owner = s
			d.recvs = append(d.recvs, int32(i))
		}
		w.recvs = p
		d.postRecvs(w)
	}); callErr != nil {
		return callErr
	}
	return err
}

// postRecvs shows waiting buffers to the NIC, as many as it takes.
func (n *nic) postRecvs(w *Worker) {
	p := w.recvs
	for len(n.recvs) > 0 && n.failed == nil {
		c := min(len(n.recvs), postBatch)
		for i, s := range n.recvs[:c] {
			p.reqs[i] = transport.RecvRequest{ID: recvBit | transport.WRID(s), Local: p.lkey, Off: uint64(s) * p.step, Len: p.size}
		}
		k, err := n.dom.PostRecv(p.reqs[:c])
		if k < 0 || k > c {
			w.failNIC(n, fmt.Errorf("%w: post of %d receives took %d", ErrNICFailed, c, k))
			return
		}
		n.recvs = n.recvs[:copy(n.recvs, n.recvs[k:])]
		if k == c {
			continue
		}
		if !isAgain(err) {
			w.failNIC(n, fmt.Errorf("%w: receive refused: %w", ErrNICFailed, err))
		}
		return
	}
}

// received passes one filled, or failed, buffer to the callbacks.
func (w *Worker) received(n *nic, c *transport.Completion) {
	p := w.recvs
	i := uint64(c.ID &^ recvBit)
	if p == nil || i >= uint64(len(p.slots)) || n.index != messageNIC {
		w.e.stats.stray.Add(1)
		return
	}
	s := &p.slots[i]
	if s.lent {
		w.e.stats.stray.Add(1)
		return
	}
	s.lent = true
	s.msg = Message{From: w.origin[c.Peer]}
	switch {
	case c.Status != transport.StatusOK:
		s.msg.Err = &TransferError{Op: transport.OpRecv, Entry: NoEntry, Peer: c.Peer, NIC: n.name, Status: c.Status, Vendor: c.Vendor, Err: statusError(c.Status)}
	case c.Bytes > p.size:
		s.msg.Err = &TransferError{Op: transport.OpRecv, Entry: NoEntry, Peer: c.Peer, NIC: n.name, Status: transport.StatusTruncated, Err: ErrTruncated}
	default:
		at := i * p.step
		s.msg.Bytes = p.mem.Host[at : at+c.Bytes : at+c.Bytes]
		w.e.stats.messages.Add(1)
	}
	w.e.done.deliver(&s.node)
}

func (s *recvSlot) onCallback() {
	s.pool.fn(s.msg)
	s.msg = Message{}
	s.pool.e.submit(&s.node)
}

// onWorker has the buffer posted again.
func (s *recvSlot) onWorker(w *Worker) {
	s.lent = false
	n := w.nics[messageNIC]
	if n.failed == nil {
		n.recvs = append(n.recvs, s.index)
	}
}

// close tells the function that no more messages come.
func (p *recvPool) close() {
	if p != nil {
		p.e.done.deliverFunc(func() { p.fn(Message{Err: ErrClosed}) })
	}
}

func (p *recvPool) release() {
	if p != nil {
		_ = p.e.cfg.Provider.Free(p.mem)
	}
}
