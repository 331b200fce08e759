package loopback

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"

	"moerail/internal/mem"
	"moerail/transport"
)

// region is registered memory of one domain. It is immutable but for closed.
type region struct {
	dom    *Domain
	id     uint64
	lkey   transport.LKey
	bytes  []byte
	access transport.Access
	piece  uint64   // bytes under one device key
	device []uint64 // one key per piece
	key    transport.RemoteKey
	closed atomic.Bool
}

func (r *region) LKey() transport.LKey           { return r.lkey }
func (r *region) Size() uint64                   { return uint64(len(r.bytes)) }
func (r *region) RemoteKey() transport.RemoteKey { return r.key }

// holds tells whether [off, off+n) lies inside.
func (r *region) holds(off, n uint64) bool { return within(off, n, uint64(len(r.bytes))) }

func within(off, n, size uint64) bool { return n <= size && off <= size-n }

// Close revokes the key and waits for accesses that are under way; when it
// returns the memory may be unmapped. Any goroutine may call it, but not from
// a wake function or OnFault.
func (r *region) Close() error {
	first := !r.closed.Swap(true)
	r.dom.fab.quiesce()
	if !first {
		return nil
	}
	r.dom.fab.revokeRegion(r)
	r.dom.ctl.Lock()
	r.dom.dead = append(r.dom.dead, r.lkey)
	r.dom.ctl.Unlock()
	return nil
}

// Register makes host memory accessible, in as many device registrations as
// Limits.MaxRegion demands. If one of them fails, those before are taken back.
func (d *Domain) Register(m transport.Memory, access transport.Access) (transport.Region, error) {
	if d.closed.Load() {
		return nil, fmt.Errorf("loopback: %s: register: %w", d.label, transport.ErrClosed)
	}
	fail := func(format string, args ...any) (transport.Region, error) {
		return nil, fmt.Errorf("%w: %s, %d bytes: %w", transport.ErrRegister, d.label, m.Size, fmt.Errorf(format, args...))
	}
	switch {
	case m.Kind != transport.MemoryHost:
		return fail("memory kind %d: %w", m.Kind, transport.ErrUnsupported)
	case m.Size == 0 || m.Size != uint64(len(m.Host)):
		return fail("the slice has %d bytes, want as many and at least 1", len(m.Host))
	case access&^transport.AccessAll != 0:
		return fail("unknown access bits %#x", access&^transport.AccessAll)
	case access&transport.AccessRemoteAtomic != 0 && mem.Addr(m.Host)%8 != 0:
		return fail("atomics need memory aligned to 8 bytes")
	}
	r := &region{dom: d, bytes: m.Host, access: access, piece: m.Size}
	if d.lim.MaxRegion > 0 && d.lim.MaxRegion < m.Size {
		r.piece = d.lim.MaxRegion
	}
	n := pieces(m.Size, r.piece)
	if n > maxPieces {
		return fail("needs %d device keys of %d bytes each, a remote key holds %d", n, r.piece, maxPieces)
	}
	d.buryRegions()
	if d.lim.MaxRegions > 0 && d.owner.numPieces+int(n) > d.lim.MaxRegions {
		return fail("needs %d device keys, %d of %d are in use", n, d.owner.numPieces, d.lim.MaxRegions)
	}
	for i := range n {
		if err := d.proc.registers(); err != nil {
			return fail("device registration %d of %d: %w", i+1, n, err)
		}
		r.device = append(r.device, rand.Uint64())
	}
	h, err := d.owner.regions.Add(r)
	if err != nil {
		return fail("%w", err)
	}
	r.lkey = transport.LKey(h)
	d.fab.addRegion(r)
	k := regionKey{location: d.at, region: r.id, size: m.Size, piece: r.piece, device: r.device}
	r.key = k.encode()
	d.owner.numPieces += int(n)
	d.counts.registrations.Add(n)
	return r, nil
}

// buryRegions frees the handles of closed regions. Region.Close can not: it may
// run on any goroutine, and the table is the owner's.
func (d *Domain) buryRegions() {
	d.ctl.Lock()
	defer d.ctl.Unlock()
	for _, k := range d.dead {
		if r := d.owner.regions.Get(int32(k)); r != nil {
			d.owner.numPieces -= len((*r).device)
			d.owner.regions.Remove(int32(k))
		}
	}
	d.dead = d.dead[:0]
}

// local returns the open region behind k, or nil.
func (d *Domain) local(k transport.LKey) *region {
	p := d.owner.regions.Get(int32(k))
	if p == nil || (*p).closed.Load() {
		return nil
	}
	return *p
}
