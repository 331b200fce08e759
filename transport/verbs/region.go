//go:build verbs && cgo && linux

package verbs

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"moerail/internal/ibv"
	"moerail/internal/mem"
	"moerail/transport"
)

// region is registered memory: a piece for each MaxRegion bytes.
type region struct {
	d      *domain
	lkey   transport.LKey
	host   []byte // nil for device memory
	base   uint64
	size   uint64
	piece  uint64
	device bool // memory that the CPU can not read: nothing of it goes inline
	mrs    []*ibv.MR
	keys   []uint32 // lkeys of mrs
	closed bool
	key    transport.RemoteKey
}

func (x *region) LKey() transport.LKey           { return x.lkey }
func (x *region) Size() uint64                   { return x.size }
func (x *region) RemoteKey() transport.RemoteKey { return append(transport.RemoteKey(nil), x.key...) }

// Register implements transport.Domain. Device memory with a descriptor is
// registered as a DMA buffer; if the library, kernel or driver has none of that,
// by its address, which needs the peer-memory module of the device's driver.
func (d *domain) Register(m transport.Memory, access transport.Access) (transport.Region, error) {
	if !d.enter() {
		return nil, transport.ErrClosed
	}
	defer d.leave()
	x, err := d.register(m, access)
	if err != nil {
		return nil, fmt.Errorf("%w: verbs %s: %w", transport.ErrRegister, d.where(), err)
	}
	d.stats.registrations.Add(1)
	return x, nil
}

func (d *domain) register(m transport.Memory, access transport.Access) (*region, error) {
	x := &region{d: d, size: m.Size, piece: d.pieceBytes()}
	switch {
	case access&^transport.AccessAll != 0:
		return nil, fmt.Errorf("unknown access bits %#x", access&^transport.AccessAll)
	case m.Size == 0 || m.Size > mem.MaxBytes:
		return nil, fmt.Errorf("memory of %d bytes, want 1 to %d", m.Size, uint64(mem.MaxBytes))
	case m.Kind == transport.MemoryHost:
		if uint64(len(m.Host)) != m.Size {
			return nil, fmt.Errorf("memory of %d bytes says its size is %d", len(m.Host), m.Size)
		}
		x.base, x.host = mem.Addr(m.Host), m.Host
	case m.Kind == transport.MemoryDevice:
		if m.Device == 0 || m.Device+m.Size < m.Device {
			return nil, fmt.Errorf("device memory of %d bytes at %#x", m.Size, m.Device)
		}
		x.base, x.device = m.Device, true
	default:
		return nil, fmt.Errorf("memory of kind %d: %w", m.Kind, transport.ErrUnsupported)
	}
	if n := (m.Size-1)/x.piece + 1; n > maxPieces {
		return nil, fmt.Errorf("%d bytes need %d registrations of %d, the limit is %d", m.Size, n, x.piece, maxPieces)
	}
	k := regionKey{generation: d.id.generation, base: x.base, size: x.size, piece: x.piece, access: access}
	for off := uint64(0); off < x.size; off += x.piece {
		r, err := d.registerPiece(m, x.base+off, off, min(x.piece, x.size-off), access)
		if err != nil {
			return nil, errors.Join(err, x.deregister())
		}
		x.mrs, x.keys, k.rkeys = append(x.mrs, r), append(x.keys, r.LKey), append(k.rkeys, r.RKey)
	}
	h, err := d.regions.Add(x)
	if err != nil {
		return nil, errors.Join(err, x.deregister())
	}
	x.lkey, x.key = transport.LKey(h), k.encode()
	return x, nil
}

func (d *domain) registerPiece(m transport.Memory, addr, off, size uint64, access transport.Access) (*ibv.MR, error) {
	flags := ibv.LocalWrite
	if access&transport.AccessRemoteWrite != 0 {
		flags |= ibv.RemoteWrite
	}
	if access&transport.AccessRemoteRead != 0 {
		flags |= ibv.RemoteRead
	}
	if access&transport.AccessRemoteAtomic != 0 && d.limits.Atomic {
		flags |= ibv.RemoteAtomic
	}
	if d.relaxed {
		flags |= ibv.RelaxedOrdering
	}
	var dma error
	if m.Kind == transport.MemoryDevice {
		if m.FD < 0 {
			dma = errors.New("as a DMA buffer: the memory has no descriptor")
		} else if !d.lib.HasDMABuf() {
			dma = errors.New("as a DMA buffer: this libibverbs has no ibv_reg_dmabuf_mr")
		} else {
			r, err := d.pd.RegisterDMABuf(m.FDOffset+off, size, addr, m.FD, flags)
			if err == nil {
				return r, nil
			}
			dma = fmt.Errorf("as a DMA buffer: %w", err)
		}
	}
	r, err := d.pd.Register(addr, size, flags)
	if err == nil {
		return r, nil
	}
	err = fmt.Errorf("%d bytes at %#x: %w", size, addr, err)
	if dma != nil {
		return nil, errors.Join(dma, fmt.Errorf("by address, through the driver's peer memory: %w", err))
	}
	if errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EPERM) {
		err = fmt.Errorf("%w; %s", err, memlockText(size))
	}
	return nil, err
}

// memlockText tells the limit on locked memory, and what to do about it.
func memlockText(need uint64) string {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l); err != nil {
		return fmt.Sprintf("the limit on locked memory can not be read: %v", err)
	}
	if l.Cur == unix.RLIM_INFINITY {
		return "the limit on locked memory is not it: there is none"
	}
	return fmt.Sprintf("locked memory is limited to %d bytes and %d are needed at once: raise it with ulimit -l, LimitMEMLOCK= of systemd, or --ulimit memlock=-1 of a container", l.Cur, need)
}

func (x *region) deregister() error {
	var errs []error
	for i := len(x.mrs) - 1; i >= 0; i-- {
		if err := x.mrs[i].Close(); err != nil {
			errs = append(errs, err)
		}
	}
	x.mrs = nil
	return errors.Join(errs...)
}

// Close revokes the keys. Requests out of the region that have not been carried
// out end as flushed.
func (x *region) Close() error {
	d := x.d
	if !d.enter() {
		return nil // regions close with their domain
	}
	defer d.leave()
	if x.closed {
		return nil
	}
	x.closed = true
	d.dropTemplates(func(e *templateEntry) bool { return e.local == x })
	d.regions.Remove(int32(x.lkey))
	d.flushRegion(x)
	if err := x.deregister(); err != nil {
		return fmt.Errorf("verbs: %s: close a region: %w", d.where(), err)
	}
	return nil
}
