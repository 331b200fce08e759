//go:build libfabric && cgo

package efa

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"moerail/internal/fabric"
	"moerail/internal/mem"
	"moerail/transport"
)

// noPiece is the piece of a provider without a limit.
const noPiece = 1 << 63

// region is registered memory, under one key for each piece.
type region struct {
	d      *domain
	mem    transport.Memory
	addr   uint64
	size   uint64
	lkey   transport.LKey
	key    regionKey
	remote transport.RemoteKey
	regs   []fabric.Registration
	closed atomic.Bool
}

var _ transport.Region = (*region)(nil)

func (r *region) LKey() transport.LKey           { return r.lkey }
func (r *region) Size() uint64                   { return r.size }
func (r *region) RemoteKey() transport.RemoteKey { return r.remote }

// Register implements transport.Domain.
func (d *domain) Register(m transport.Memory, access transport.Access) (transport.Region, error) {
	if err := d.enterCold(); err != nil {
		return nil, err
	}
	defer d.leaveCold()
	fail := func(format string, args ...any) (transport.Region, error) {
		return nil, fmt.Errorf("%w: %s: "+format, append([]any{transport.ErrRegister, d.name}, args...)...)
	}
	switch {
	case access&^transport.AccessAll != 0:
		return fail("unknown access %#x", access)
	case m.Kind == transport.MemoryHost && (m.Size == 0 || m.Size != uint64(len(m.Host))):
		return fail("host memory of %d bytes, said to have %d", len(m.Host), m.Size)
	case m.Kind == transport.MemoryDevice && (m.Size == 0 || m.Device == 0 || m.Device+m.Size < m.Device):
		return fail("device memory of %d bytes at %#x", m.Size, m.Device)
	case m.Kind > transport.MemoryDevice:
		return fail("unknown kind of memory %d", m.Kind)
	case m.Kind == transport.MemoryDevice && d.info.Caps&fabric.CapHMEM == 0:
		return fail("device memory needs Config.DeviceMemory, and a provider with FI_HMEM (%s)", d.info.Provider)
	case d.regions.Len() >= d.limits.MaxRegions:
		return fail("%d regions are open, which is the limit", d.regions.Len())
	case pieces(m.Size, d.piece) > maxPieces:
		return fail("%d bytes in pieces of %d: more than %d pieces", m.Size, d.piece, maxPieces)
	}
	r, err := d.register(m, access)
	if err != nil {
		return fail("%d bytes: %w", m.Size, err)
	}
	h, err := d.regions.Add(r)
	if err != nil {
		return fail("%w", errors.Join(err, r.unregister()))
	}
	r.lkey = transport.LKey(h)
	return r, nil
}

func (d *domain) register(m transport.Memory, access transport.Access) (*region, error) {
	return d.registerIn(m, access, d.piece)
}

func (d *domain) registerIn(m transport.Memory, access transport.Access, piece uint64) (*region, error) {
	r := &region{d: d, mem: m, size: m.Size, addr: m.Device, lkey: transport.NoKey}
	if m.Kind == transport.MemoryHost {
		r.addr = mem.Addr(m.Host)
	}
	rights := uint64(fabric.LocalRights)
	if access&(transport.AccessRemoteWrite|transport.AccessRemoteAtomic) != 0 {
		rights |= fabric.RemoteWrite
	}
	if access&(transport.AccessRemoteRead|transport.AccessRemoteAtomic) != 0 {
		rights |= fabric.RemoteRead
	}
	r.key = regionKey{access: access, generation: d.id.generation, size: m.Size, piece: piece}
	if d.info.MRMode&fabric.MRVirtAddr != 0 {
		r.key.base = r.addr
	}
	for off := uint64(0); off < m.Size; off += piece {
		reg, err := d.registerPiece(fabric.Memory{
			Addr: r.addr + off, Len: min(piece, m.Size-off), Rights: rights, Device: m.Kind == transport.MemoryDevice,
		})
		if err != nil {
			return nil, errors.Join(err, r.unregister())
		}
		r.regs = append(r.regs, reg)
		r.key.keys = append(r.key.keys, reg.Key)
		d.stat.registrations.Add(1)
	}
	r.remote = r.key.encode()
	return r, nil
}

// registerPiece chooses a key where the provider does not: at random, so that
// the key of a former life, or of another region, opens nothing.
func (d *domain) registerPiece(m fabric.Memory) (fabric.Registration, error) {
	const attempts = 8
	var err error
	for range attempts {
		var b [8]byte
		if _, err := rand.Read(b[:]); err != nil {
			return fabric.Registration{}, err
		}
		m.Key = binary.LittleEndian.Uint64(b[:])
		if n := d.info.KeyBytes; n < 8 {
			m.Key &= 1<<(8*n) - 1
		}
		var r fabric.Registration
		if r, err = d.f.Register(m); err == nil {
			return r, nil
		}
		if e := (*fabric.Error)(nil); d.info.MRMode&fabric.MRProvKey != 0 || !errors.As(err, &e) || e.Errno != fabric.ErrnoNoKey {
			break // the key is not to blame
		}
	}
	return fabric.Registration{}, err
}

func (r *region) unregister() error {
	var errs []error
	for _, reg := range r.regs {
		errs = append(errs, reg.Close())
	}
	r.regs = nil
	return errors.Join(errs...)
}

// Close implements transport.Region. What uses the memory ends first: as it would
// anyway if it does so soon, otherwise as StatusFlushed. ErrRegister says that the
// provider goes on with it all the same, and that the memory must stay until the
// domain is closed.
func (r *region) Close() error {
	d := r.d
	if err := d.enterCold(); err != nil {
		return nil // the domain closed it
	}
	defer d.leaveCold()
	if !r.closed.CompareAndSwap(false, true) {
		return nil
	}
	d.regions.Remove(int32(r.lkey))
	d.dropTemplates(func(e *templateEntry) bool { return e.local == r })
	d.quiesce(r)
	if err := r.unregister(); err != nil {
		return fmt.Errorf("efa: %s: close a region of %d bytes: %w", d.name, r.size, err)
	}
	if n := d.held(r); n > 0 {
		return fmt.Errorf("%w: %s: %s still holds %d operations of a closed region of %d bytes, to peers that do not answer: its memory must stay until the domain is closed",
			transport.ErrRegister, d.name, d.info.Provider, n, r.size)
	}
	return nil
}

// held counts the operations whose end was reported, and which the provider may
// carry out with r's memory all the same if their peer comes back: over sockets
// nothing takes them from it, not even fi_av_remove.
func (d *domain) held(r *region) (n int) {
	if d.copiesSmall {
		return 0
	}
	for i := range d.txSlots {
		if op := &d.f.Slots[i].Op; op.State == fabric.Orphan && op.Src-r.addr < r.size {
			n++
		}
	}
	return n
}

const (
	// Operations that the provider has taken get this long to end by themselves
	// when their memory goes away.
	smallPatience = 100 * time.Millisecond
	// Up to here shm has copied the bytes of a write when it takes it, and a NIC ends
	// its operations. Providers over sockets (1.17) keep a pointer to those of any
	// write while the socket is full, and what a read brings is written into the
	// memory whenever the peer answers.
	smallBytes = 4096
)

// quiesce ends every operation that uses r's memory.
func (d *domain) quiesce(r *region) {
	using := func(visit func(slot uint32)) (large bool) {
		for i := range d.flights {
			if fl := &d.flights[i]; fl.used && fl.local == r {
				large = large || fl.bytes > smallBytes || fl.op == transport.OpRead || !d.copiesSmall && fl.op != transport.OpRecv
				visit(uint32(i))
			}
		}
		return large
	}
	large := using(func(slot uint32) {
		d.f.Slots[slot].Op.Flags |= fabric.FlagDrop
		if int(slot) >= d.txSlots && d.f.Slots[slot].Op.State == fabric.Posted {
			_ = d.f.Cancel(slot) // the receive's end says whether it worked
		}
	})
	d.f.DropMarked()
	patience := smallPatience
	if large {
		patience = d.timeout + smallPatience
	}
	start := time.Now()
	for {
		d.collect()
		left := 0
		using(func(uint32) { left++ })
		if left == 0 {
			return
		}
		if time.Since(start) > patience {
			break
		}
	}
	using(func(slot uint32) { d.f.OrphanSlot(slot) })
	d.collect()
}
