package shm

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"moerail/internal/mem"
	"moerail/transport"
)

// region is registered memory. Local regions need only host bytes; one that
// peers may access has a descriptor of its own and a word in the region table.
type region struct {
	d        *domain
	lkey     transport.LKey
	host     []byte
	access   transport.Access
	fd       int // -1 for a local region
	fdOffset uint64
	index    uint32
	nonce    uint64
	closed   atomic.Bool
	key      transport.RemoteKey
}

func (x *region) LKey() transport.LKey           { return x.lkey }
func (x *region) Size() uint64                   { return uint64(len(x.host)) }
func (x *region) RemoteKey() transport.RemoteKey { return append(transport.RemoteKey(nil), x.key...) }

// Register implements transport.Domain. Any host memory can be a source or take
// what is read; peers can only get at memory with a descriptor of a sealed memfd,
// such as Provider.Alloc returns.
func (d *domain) Register(m transport.Memory, access transport.Access) (transport.Region, error) {
	if err := d.enterCold(); err != nil {
		return nil, err
	}
	defer d.leaveCold()
	x, err := d.newRegion(m, access)
	if err != nil {
		return nil, fmt.Errorf("%w: shm %s: %w", transport.ErrRegister, d.name, err)
	}
	d.guard.stat.registrations++
	return x, nil
}

func (d *domain) newRegion(m transport.Memory, access transport.Access) (*region, error) {
	switch {
	case m.Kind != transport.MemoryHost:
		return nil, fmt.Errorf("memory of kind %d: %w, only host memory is", m.Kind, transport.ErrUnsupported)
	case len(m.Host) == 0 || uint64(len(m.Host)) != m.Size || m.Size > mem.MaxBytes:
		return nil, fmt.Errorf("memory of %d bytes says its size is %d, want 1 to %d", len(m.Host), m.Size, uint64(mem.MaxBytes))
	case access&^transport.AccessAll != 0:
		return nil, fmt.Errorf("unknown access bits %#x", access&^transport.AccessAll)
	}
	var random [8]byte
	if _, err := rand.Read(random[:]); err != nil {
		return nil, fmt.Errorf("random numbers: %w", err)
	}
	x := &region{d: d, host: m.Host, access: access, fd: -1, nonce: binary.LittleEndian.Uint64(random[:]) | 1}
	if access != transport.AccessLocal {
		if err := x.takeDescriptor(m); err != nil {
			return nil, err
		}
	}
	h, ok := d.regions.add(x)
	if !ok {
		x.dropDescriptor()
		return nil, fmt.Errorf("%d regions are registered, which is the limit", handleSlots)
	}
	x.lkey = transport.LKey(h)
	if x.fd >= 0 {
		if err := d.publish(x); err != nil {
			d.regions.remove(h)
			return nil, errors.Join(err, x.dropDescriptor())
		}
	}
	k := regionKey{generation: d.id.generation, nonce: x.nonce, size: m.Size, index: x.index, access: access}
	x.key = k.encode()
	return x, nil
}

// takeDescriptor duplicates m's descriptor: peers may ask for it at any time,
// and the caller may close its own.
func (x *region) takeDescriptor(m transport.Memory) error {
	if m.FD < 0 {
		return errors.New("peers can only access memory that has a descriptor: take it from Provider.Alloc, or register with AccessLocal")
	}
	if err := mem.CheckSealed(m.FD); err != nil {
		return fmt.Errorf("descriptor %d: %w; take memory for peers from Provider.Alloc", m.FD, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(m.FD, &st); err != nil {
		return fmt.Errorf("descriptor %d: fstat: %w", m.FD, err)
	}
	if end := m.FDOffset + m.Size; end < m.Size || st.Size < 0 || end > uint64(st.Size) {
		return fmt.Errorf("%d bytes at %d lie outside their object of %d bytes", m.Size, m.FDOffset, st.Size)
	}
	if x.access&transport.AccessRemoteAtomic != 0 && m.FDOffset%8 != 0 {
		return fmt.Errorf("offset %d in the object is not a multiple of 8, so there can be no atomics", m.FDOffset)
	}
	fd, err := unix.FcntlInt(uintptr(m.FD), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("duplicate descriptor %d: %w", m.FD, err)
	}
	x.fd, x.fdOffset = fd, m.FDOffset
	return nil
}

func (x *region) dropDescriptor() error {
	if x.fd < 0 {
		return nil
	}
	fd := x.fd
	x.fd = -1
	return unix.Close(fd)
}

func (d *domain) publish(x *region) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, e := range d.exports {
		if e == nil {
			x.index = uint32(i)
			d.exports[i] = x
			mem.Word64(d.valid.Host, uint64(i)*8).Store(x.nonce)
			return nil
		}
	}
	return fmt.Errorf("%d regions are open to peers, which is the limit", maxRegions)
}

// revoke makes later writes fail at their senders.
func (d *domain) revoke(x *region) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.exports[x.index] = nil
	mem.Word64(d.valid.Host, uint64(x.index)*8).Store(0)
	return x.dropDescriptor()
}

// Close revokes the key and waits until no sender can still be writing, at most
// Config.PeerTimeout: then the memory is the caller's alone.
func (x *region) Close() error {
	d := x.d
	d.cold.Lock()
	defer d.cold.Unlock()
	if !x.closed.CompareAndSwap(false, true) {
		return nil
	}
	d.regions.remove(int32(x.lkey))
	d.dropTemplates(func(e *templateEntry) bool { return e.local == x })
	if x.fd < 0 {
		return nil
	}
	return errors.Join(d.revoke(x), d.awaitSenders())
}

// closeRegions is Close for all of them.
func (d *domain) closeRegions() error {
	var err error
	d.regions.all(func(h int32, x *region) {
		x.closed.Store(true)
		if x.fd >= 0 {
			err = errors.Join(err, d.revoke(x))
		}
		d.regions.remove(h)
	})
	return errors.Join(err, d.awaitSenders())
}

// awaitSenders returns once every sender has been seen outside its data path. A
// sender reads the region table inside it, so afterwards all have seen it as it
// is now. A sender that is stopped in the middle (SIGSTOP, a debugger) makes it
// fail after Config.PeerTimeout.
func (d *domain) awaitSenders() error {
	for i := range d.lanes {
		l := d.lanes[i].Load()
		if l == nil {
			continue
		}
		if !awaitOutside(l.guard, l.gone.Load, d.timeout) {
			return fmt.Errorf("shm: %s: a sender stays in the middle of a write for more than %v and may still finish it", d.name, d.timeout)
		}
	}
	return nil
}
