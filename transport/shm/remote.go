package shm

import (
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"moerail/internal/mem"
	"moerail/transport"
)

// remote is a peer's region, mapped here.
type remote struct {
	peer    *peer
	host    []byte // the region; read-only memory unless peers may write or use atomics
	mapping []byte
	access  transport.Access
	valid   *atomic.Uint64 // equals nonce while the region is open
	nonce   uint64
}

func (r *remote) unmap() error {
	if r.mapping == nil {
		return nil
	}
	b := r.mapping
	r.mapping = nil
	return mem.Unmap(b)
}

func (r *remote) open() bool { return r.valid.Load() == r.nonce }

// Import implements transport.Domain. It asks the peer's process for the memory
// and maps it. A key whose region has closed is ErrBadKey.
func (d *domain) Import(h transport.Peer, key transport.RemoteKey, size uint64) (transport.Remote, error) {
	if err := d.enterCold(); err != nil {
		return transport.NoRemote, err
	}
	defer d.leaveCold()
	p := d.peers.get(int32(h))
	if p == nil {
		return transport.NoRemote, fmt.Errorf("%w: peer %d", transport.ErrBadHandle, h)
	}
	k, err := decodeKey(key)
	if err != nil {
		return transport.NoRemote, err
	}
	if k.generation != p.id.generation {
		return transport.NoRemote, fmt.Errorf("%w: made by generation %#x, the peer is generation %#x", transport.ErrBadKey, k.generation, p.id.generation)
	}
	if k.size != size {
		return transport.NoRemote, fmt.Errorf("%w: of a region of %d bytes, told %d", transport.ErrBadKey, k.size, size)
	}
	g, err := p.request(k)
	if err != nil {
		return transport.NoRemote, err
	}
	if g.status != grantOK {
		return transport.NoRemote, fmt.Errorf("%w: the region has closed, or is not open to peers", transport.ErrBadKey)
	}
	defer unix.Close(g.fd)
	r, err := p.mapRegion(k, g)
	if err != nil {
		return transport.NoRemote, fmt.Errorf("%w: %w", transport.ErrBadKey, err)
	}
	rh, ok := d.remotes.add(r)
	if !ok {
		r.unmap()
		return transport.NoRemote, fmt.Errorf("shm: %d keys are imported, which is the limit", handleSlots)
	}
	return transport.Remote(rh), nil
}

// request asks the peer's process for a region.
func (p *peer) request(k regionKey) (granted, error) {
	p.asked++
	a := ask{id: p.asked, nonce: k.nonce, index: k.index}
	p.conn.SetWriteDeadline(time.Now().Add(p.d.timeout))
	if err := sendPacket(p.conn, a.encode()); err != nil {
		return granted{}, fmt.Errorf("%w: ask process %d for a region: %w", transport.ErrPeerLost, p.id.pid, err)
	}
	limit := time.NewTimer(p.d.timeout)
	defer limit.Stop()
	for {
		select {
		case g, ok := <-p.grants:
			if !ok {
				return granted{}, fmt.Errorf("%w: process %d ended while asked for a region", transport.ErrPeerLost, p.id.pid)
			}
			if g.id == a.id {
				return g, nil
			}
			if g.fd >= 0 { // the answer to a question given up
				unix.Close(g.fd)
			}
		case <-limit.C:
			return granted{}, fmt.Errorf("%w: process %d did not answer for a region within %v", transport.ErrPeerLost, p.id.pid, p.d.timeout)
		}
	}
}

func (p *peer) mapRegion(k regionKey, g granted) (*remote, error) {
	if g.size != k.size {
		return nil, fmt.Errorf("granted %d bytes for a key of %d", g.size, k.size)
	}
	if g.access&transport.AccessRemoteAtomic != 0 && g.offset%8 != 0 {
		return nil, fmt.Errorf("atomics at odd offset %d", g.offset)
	}
	if g.size > mem.MaxBytes || g.offset > mem.MaxBytes {
		return nil, fmt.Errorf("granted %d bytes at %d, the limit is %d", g.size, g.offset, uint64(mem.MaxBytes))
	}
	if err := mem.CheckSealed(g.fd); err != nil {
		return nil, err
	}
	page := uint64(os.Getpagesize())
	start := g.offset / page * page
	within := g.offset - start
	mapper := mem.MapReadOnly
	if g.access&(transport.AccessRemoteWrite|transport.AccessRemoteAtomic) != 0 {
		mapper = mem.MapShared
	}
	b, err := mapper(g.fd, start, within+g.size)
	if err != nil {
		return nil, err
	}
	return &remote{
		peer: p, host: b[within:], mapping: b, access: g.access,
		valid: mem.Word64(p.validMap, uint64(k.index)*8), nonce: k.nonce,
	}, nil
}

// Release implements transport.Domain.
func (d *domain) Release(h transport.Remote) error {
	if err := d.enterCold(); err != nil {
		return err
	}
	defer d.leaveCold()
	r := d.remotes.get(int32(h))
	if r == nil {
		return fmt.Errorf("%w: remote %d", transport.ErrBadHandle, h)
	}
	d.dropTemplates(func(e *templateEntry) bool { return e.remote == r })
	d.remotes.remove(int32(h))
	return r.unmap()
}

// MapRemote implements transport.MemoryMapper. The memory is read-only, and a
// store into it faults, where peers may only read the region. The peer's close
// of the region does not unmap it.
func (d *domain) MapRemote(h transport.Remote) (transport.Memory, error) {
	if err := d.enterCold(); err != nil {
		return transport.Memory{}, err
	}
	defer d.leaveCold()
	r := d.remotes.get(int32(h))
	if r == nil {
		return transport.Memory{}, fmt.Errorf("%w: remote %d", transport.ErrBadHandle, h)
	}
	if !r.open() {
		return transport.Memory{}, fmt.Errorf("%w: the region has closed", transport.ErrBadKey)
	}
	return transport.Memory{Host: r.host, FD: -1, Size: uint64(len(r.host))}, nil
}
