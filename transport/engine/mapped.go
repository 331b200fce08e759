package engine

import (
	"fmt"

	"moerail/transport"
)

// MappedRegion is a peer's memory that this process loads and stores directly.
type MappedRegion struct {
	e      *Engine
	mem    transport.Memory
	nic    *nic
	remote transport.Remote
	closed bool // worker
}

// MapRemote maps a peer's memory, where this process can; elsewhere the error
// wraps transport.ErrUnsupported. The memory stays mapped until the MappedRegion
// or the engine is closed, whatever its owner does.
func (e *Engine) MapRemote(d Descriptor) (*MappedRegion, error) {
	if err := e.checkDescriptor(d); err != nil {
		return nil, err
	}
	m := &MappedRegion{e: e}
	err := fmt.Errorf("engine: map remote memory: %w", transport.ErrUnsupported)
	if callErr := e.Call(func(w *Worker) {
		for _, n := range w.nics {
			mapper, ok := n.dom.(transport.MemoryMapper)
			if !ok {
				continue
			}
			if err = m.mapOn(n, mapper, d); err == nil {
				return
			}
			err = fmt.Errorf("engine: map remote memory on NIC %s: %w", n.name, err)
		}
	}); callErr != nil {
		return nil, callErr
	}
	if err != nil {
		return nil, err
	}
	return m, nil
}

func (m *MappedRegion) mapOn(n *nic, mapper transport.MemoryMapper, d Descriptor) error {
	k := d.NICs[n.index]
	p, err := n.dom.AddPeer(k.Addr)
	if err != nil {
		return err
	}
	r, err := n.dom.Import(p, k.Key, d.Size)
	if err != nil {
		return err
	}
	if m.mem, err = mapper.MapRemote(r); err != nil {
		_ = n.dom.Release(r)
		return err
	}
	m.nic, m.remote = n, r
	return nil
}

// Memory is the mapping. It must not be touched after Close.
func (m *MappedRegion) Memory() transport.Memory { return m.mem }

// Close unmaps the memory. Closing twice, or after the engine, is harmless.
func (m *MappedRegion) Close() error {
	var err error
	_ = m.e.Call(func(*Worker) {
		if !m.closed {
			m.closed = true
			err = m.nic.dom.Release(m.remote)
		}
	})
	return err
}
