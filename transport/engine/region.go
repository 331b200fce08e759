package engine

import (
	"errors"
	"fmt"

	"moerail/transport"
)

// Region is memory registered with every NIC of an engine.
type Region struct {
	e      *Engine
	mem    transport.Memory
	size   uint64
	regs   []transport.Region
	lkey   [MaxNICs]transport.LKey
	desc   Descriptor
	closed bool // worker
}

// Size is in bytes.
func (r *Region) Size() uint64 { return r.size }

// Memory is what was registered. It stays the caller's.
func (r *Region) Memory() transport.Memory { return r.mem }

// Descriptor is what peers need to access the region.
func (r *Region) Descriptor() Descriptor { return r.desc }

// Register makes memory usable for transfers and, as far as access allows, for
// peers that get the descriptor. The memory must stay until the region or the
// engine is closed. The worker does the registering, so transfers wait for it.
func (e *Engine) Register(m transport.Memory, access transport.Access) (*Region, Descriptor, error) {
	if m.Size == 0 || m.Kind == transport.MemoryHost && uint64(len(m.Host)) != m.Size {
		return nil, Descriptor{}, fmt.Errorf("%w: memory of %d bytes with a host slice of %d", ErrArgument, m.Size, len(m.Host))
	}
	r := &Region{e: e, mem: m, size: m.Size}
	var err error
	if callErr := e.Call(func(w *Worker) {
		for _, n := range w.nics {
			var reg transport.Region
			if reg, err = n.dom.Register(m, access); err != nil {
				err = fmt.Errorf("engine: register %d bytes on NIC %s: %w", m.Size, n.name, err)
				for _, done := range r.regs {
					err = errors.Join(err, done.Close())
				}
				return
			}
			r.lkey[n.index] = reg.LKey()
			r.regs = append(r.regs, reg)
			r.desc.NICs = append(r.desc.NICs, NICKey{Addr: e.addr.NICs[n.index], Key: append(transport.RemoteKey(nil), reg.RemoteKey()...)})
		}
		r.desc.Size = m.Size
		w.regions[r] = struct{}{}
	}); callErr != nil {
		return nil, Descriptor{}, callErr
	}
	if err != nil {
		return nil, Descriptor{}, err
	}
	return r, r.desc, nil
}

// Close revokes the region on every NIC; late writes of peers then fail at the
// peers. The caller sees to it that nothing of its own is in flight. Closing
// twice, or after the engine, is harmless. After an error the memory must stay until
// the engine is closed.
func (r *Region) Close() error {
	var errs []error
	_ = r.e.Call(func(w *Worker) {
		if r.closed {
			return
		}
		r.closed = true
		delete(w.regions, r)
		for _, reg := range r.regs {
			errs = append(errs, reg.Close())
		}
	})
	return errors.Join(errs...)
}

// RemoteRegion is a peer's region, resolved on every NIC.
type RemoteRegion struct {
	e      *Engine
	size   uint64
	peer   [MaxNICs]transport.Peer
	remote [MaxNICs]transport.Remote
	closed bool // worker
}

// Size is the region's size in bytes as the peer declared it.
func (r *RemoteRegion) Size() uint64 { return r.size }

// Import resolves a descriptor that a peer sent, so that transfers can name it.
func (e *Engine) Import(d Descriptor) (*RemoteRegion, error) {
	if err := e.checkDescriptor(d); err != nil {
		return nil, err
	}
	r := &RemoteRegion{e: e, size: d.Size}
	var err error
	if callErr := e.Call(func(w *Worker) { r.peer, r.remote, err = w.importAll(d) }); callErr != nil {
		return nil, callErr
	}
	if err != nil {
		return nil, err
	}
	return r, nil
}

// Close forgets the region. Transfers that are queued for it fail, those in
// flight end as usual. Closing twice, or after the engine, is harmless.
func (r *RemoteRegion) Close() error {
	var err error
	_ = r.e.Call(func(w *Worker) {
		if !r.closed {
			r.closed = true
			err = w.releaseAll(r.remote)
		}
	})
	return err
}

func (e *Engine) checkDescriptor(d Descriptor) error {
	if len(d.NICs) != len(e.limits) {
		return fmt.Errorf("%w: descriptor has %d, this engine has %d", ErrNICMismatch, len(d.NICs), len(e.limits))
	}
	return d.validate()
}

// importAll resolves a descriptor on every NIC; on error none stays imported.
func (w *Worker) importAll(d Descriptor) (peers [MaxNICs]transport.Peer, remotes [MaxNICs]transport.Remote, err error) {
	for i := range remotes {
		remotes[i] = transport.NoRemote
	}
	for _, n := range w.nics {
		k := d.NICs[n.index]
		p, err := n.dom.AddPeer(k.Addr)
		if err == nil {
			peers[n.index] = p
			remotes[n.index], err = n.dom.Import(p, k.Key, d.Size)
		}
		if err != nil {
			remotes[n.index] = transport.NoRemote
			_ = w.releaseAll(remotes)
			return peers, remotes, fmt.Errorf("engine: import on NIC %s: %w", n.name, err)
		}
	}
	return peers, remotes, nil
}

func (w *Worker) releaseAll(remotes [MaxNICs]transport.Remote) error {
	var errs []error
	for _, n := range w.nics {
		if r := remotes[n.index]; r != transport.NoRemote {
			errs = append(errs, n.dom.Release(r))
		}
	}
	return errors.Join(errs...)
}
