package loopback

import (
	"errors"

	"moerail/internal/mem"
	"moerail/transport"
)

// mappings counts who has a process's memory mapped: what a peer maps stays until
// the peer's domain closes, even when its owner has freed it. All of it is guarded
// by Fabric.mu and keyed by address.
type mappings struct {
	users map[uint64]int
	freed map[uint64]transport.Memory // freed by the owner, still mapped
}

// mapped adds a user of the memory at addr, unmapped takes one away.
func (f *Fabric) mapped(addr uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.maps.users[addr]++
}

func (f *Fabric) unmapped(addr uint64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.maps.users[addr]--; f.maps.users[addr] > 0 {
		return nil
	}
	delete(f.maps.users, addr)
	m, ok := f.maps.freed[addr]
	if !ok {
		return nil
	}
	delete(f.maps.freed, addr)
	return mem.Free(m)
}

// Free releases what Alloc returned, once no peer has it mapped any more.
func (f *Fabric) Free(m transport.Memory) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if addr := mem.Addr(m.Host); f.maps.users[addr] > 0 {
		f.maps.freed[addr] = m
		return nil
	}
	return mem.Free(m)
}

// keepMapped notes that remote h is mapped here, once however often it is; fresh
// is true the first time.
func (d *Domain) keepMapped(h transport.Remote, addr uint64) (fresh bool, err error) {
	d.ctl.Lock()
	defer d.ctl.Unlock()
	if d.closed.Load() {
		return false, d.errClosed
	}
	if _, ok := d.mapped[h]; ok {
		return false, nil
	}
	if d.mapped == nil {
		d.mapped = make(map[transport.Remote]uint64)
	}
	d.mapped[h] = addr
	d.fab.mapped(addr)
	return true, nil
}

func (d *Domain) unmap(h transport.Remote) error {
	d.ctl.Lock()
	defer d.ctl.Unlock()
	addr, ok := d.mapped[h]
	if !ok {
		return nil
	}
	delete(d.mapped, h)
	return d.fab.unmapped(addr)
}

// unmapAll is for a closed domain.
func (d *Domain) unmapAll() (err error) {
	d.ctl.Lock()
	defer d.ctl.Unlock()
	for _, addr := range d.mapped {
		err = errors.Join(err, d.fab.unmapped(addr))
	}
	d.mapped = nil
	return err
}
