package engine

import (
	"errors"
	"fmt"
	"math/bits"

	"moerail/transport"
)

// Messages travel on NIC 0: they are for control, and one NIC keeps the receive
// pool in one place.
const messageNIC = 0

// Peer is another engine, known by its address.
type Peer struct {
	e       *Engine
	addr    Address
	key     string
	handle  [MaxNICs]transport.Peer
	removed bool // worker
}

// Addr is the peer's address.
func (p *Peer) Addr() Address { return p.addr.clone() }

// AddPeer makes an address a target of Send. The same address gives the same
// Peer; a restarted engine has another address and is another Peer.
func (e *Engine) AddPeer(a Address) (*Peer, error) {
	if len(a.NICs) != len(e.limits) {
		return nil, fmt.Errorf("%w: address has %d, this engine has %d", ErrNICMismatch, len(a.NICs), len(e.limits))
	}
	key, err := a.MarshalBinary()
	if err != nil {
		return nil, err
	}
	var p *Peer
	if callErr := e.Call(func(w *Worker) {
		if p = w.peers[string(key)]; p != nil {
			return
		}
		p = &Peer{e: e, addr: a.clone(), key: string(key)}
		for _, n := range w.nics {
			if p.handle[n.index], err = n.dom.AddPeer(a.NICs[n.index]); err != nil {
				err = fmt.Errorf("engine: add peer on NIC %s: %w", n.name, err)
				return
			}
		}
		w.peers[p.key] = p
		w.origin[p.handle[messageNIC]] = p
	}); callErr != nil {
		return nil, callErr
	}
	if err != nil {
		return nil, err
	}
	return p, nil
}

// RemovePeer forgets a peer on every NIC, with every region and group entry of
// it. Removing twice, or after Close, is harmless.
func (e *Engine) RemovePeer(p *Peer) error {
	if p == nil || p.e != e {
		return fmt.Errorf("%w: peer", ErrForeign)
	}
	var errs []error
	_ = e.Call(func(w *Worker) {
		if p.removed {
			return
		}
		p.removed = true
		delete(w.peers, p.key)
		delete(w.origin, p.handle[messageNIC])
		for _, n := range w.nics {
			errs = append(errs, n.dom.RemovePeer(p.handle[n.index]))
		}
	})
	return errors.Join(errs...)
}

// Send copies msg and sends it into a receive buffer of the peer, over NIC 0.
// msg is the caller's again at return. The peer must have posted receives that
// are long enough; until it has, the transfer waits. A message is at most
// Limits(0).MaxRecvSize bytes, and 0 bytes are a message.
func (e *Engine) Send(p *Peer, msg []byte, done Done) (Handle, error) {
	if p == nil || p.e != e {
		return Handle{}, fmt.Errorf("%w: peer", ErrForeign)
	}
	if l := e.limits[messageNIC].MaxRecvSize; uint64(len(msg)) > l {
		return Handle{}, fmt.Errorf("%w: message of %d bytes, NIC %s carries at most %d", ErrArgument, len(msg), e.w.nics[messageNIC].name, l)
	}
	x := e.newTransfer(shapeSend, transport.OpSend, done)
	x.peer = p
	x.msg = append(x.msg[:0], msg...)
	x.jobs[messageNIC].count = 1
	return e.start(x)
}

// sendBuffers are registered buffers of powers of two, taken and given back by
// the worker. They grow with the number of messages in flight and shrink at
// Close.
type sendBuffers struct {
	free  [64]*sendBuffer // by log2 of the size
	slabs []transport.Memory
}

type sendBuffer struct {
	next  *sendBuffer
	class int
	lkey  transport.LKey
	off   uint64
	bytes []byte
}

const (
	minSendClass = 8       // 256 bytes
	sendSlab     = 1 << 16 // bytes registered at once, at least
)

// fillSend copies a message into registered memory.
func (w *Worker) fillSend(x *transfer) error {
	class := max(minSendClass, bits.Len(uint(max(len(x.msg), 1)-1)))
	b := w.sends.free[class]
	if b == nil {
		if err := w.growSends(class); err != nil {
			return err
		}
		b = w.sends.free[class]
	}
	w.sends.free[class] = b.next
	copy(b.bytes, x.msg)
	x.buf = b
	return nil
}

func (s *sendBuffers) put(b *sendBuffer) {
	b.next = s.free[b.class]
	s.free[b.class] = b
}

func (w *Worker) growSends(class int) error {
	size := uint64(1) << class
	m, err := w.e.cfg.Provider.Alloc(max(size, sendSlab))
	if err != nil {
		return fmt.Errorf("engine: send buffers of %d bytes: %w", size, err)
	}
	r, err := w.nics[messageNIC].dom.Register(m, transport.AccessLocal)
	if err != nil {
		return errors.Join(fmt.Errorf("engine: send buffers of %d bytes: %w", size, err), w.e.cfg.Provider.Free(m))
	}
	w.sends.slabs = append(w.sends.slabs, m)
	for off := uint64(0); off+size <= m.Size; off += size {
		w.sends.put(&sendBuffer{class: class, lkey: r.LKey(), off: off, bytes: m.Host[off : off+size : off+size]})
	}
	return nil
}

// release gives the memory back; the domains are closed.
func (s *sendBuffers) release(e *Engine) {
	for _, m := range s.slabs {
		_ = e.cfg.Provider.Free(m)
	}
	*s = sendBuffers{}
}
