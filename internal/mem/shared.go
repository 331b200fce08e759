package mem

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"moerail/transport"
)

// ErrUnsealed reports a shared object that its owner could still shrink: a
// process that maps it would die of SIGBUS when the owner does.
var ErrUnsealed = errors.New("mem: shared object is not sealed against shrinking")

// A shared object keeps the size it was born with, and keeps these seals.
const sizeSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW

// fSealFutureWrite allows no writable mapping beyond those that exist (Linux
// 5.1, fcntl.2); x/sys has no name for it.
const fSealFutureWrite = 0x10

// AllocShared maps size bytes of a new memfd, sealed in its size, so that the
// descriptor can be handed to another process. Free closes it.
func AllocShared(name string, size uint64) (transport.Memory, error) {
	return allocShared(name, size, 0)
}

// AllocPublished is AllocShared for memory that this process alone writes:
// whoever gets the descriptor can only map it with MapReadOnly. A kernel before
// 5.1 does not know that seal; there the memory is as open as AllocShared's.
func AllocPublished(name string, size uint64) (transport.Memory, error) {
	return allocShared(name, size, fSealFutureWrite)
}

func allocShared(name string, size uint64, seals int) (transport.Memory, error) {
	if size == 0 || size > MaxBytes {
		return transport.Memory{}, fmt.Errorf("%w: %d bytes, want 1 to %d", ErrSize, size, uint64(MaxBytes))
	}
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return transport.Memory{}, fmt.Errorf("mem: memfd_create: %w", err)
	}
	n := roundUp(size, uint64(unix.Getpagesize()))
	if err := unix.Ftruncate(fd, int64(n)); err != nil {
		unix.Close(fd)
		return transport.Memory{}, fmt.Errorf("mem: set memfd to %d bytes: %w", n, err)
	}
	b, err := MapShared(fd, 0, size)
	if err != nil {
		unix.Close(fd)
		return transport.Memory{}, err
	}
	if err := seal(fd, seals); err != nil {
		unix.Close(fd)
		return transport.Memory{}, errors.Join(err, Unmap(b))
	}
	return transport.Memory{Host: b, FD: fd, Size: size}, nil
}

func seal(fd, optional int) error {
	if optional != 0 {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, optional); err != nil && err != unix.EINVAL {
			return fmt.Errorf("mem: seal memfd against other writers: %w", err)
		}
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, sizeSeals|unix.F_SEAL_SEAL); err != nil {
		return fmt.Errorf("mem: seal memfd: %w", err)
	}
	return nil
}

// CheckSealed fails with ErrUnsealed unless fd is an object that can no longer
// shrink. Check before mapping what another process sent.
func CheckSealed(fd int) error {
	s, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err == unix.EINVAL {
		return fmt.Errorf("%w: it has no seals at all (not a memfd)", ErrUnsealed)
	}
	if err != nil {
		return fmt.Errorf("mem: read seals: %w", err)
	}
	if s&unix.F_SEAL_SHRINK == 0 {
		return fmt.Errorf("%w: seals are %#x", ErrUnsealed, s)
	}
	return nil
}

// MapShared maps size bytes at offset off (a multiple of the page size) of a
// shared object. The mapping outlives fd; Unmap ends it.
func MapShared(fd int, off, size uint64) ([]byte, error) {
	return mapShared(fd, off, size, unix.PROT_READ|unix.PROT_WRITE)
}

// MapReadOnly is MapShared without the right to store: a store faults.
func MapReadOnly(fd int, off, size uint64) ([]byte, error) {
	return mapShared(fd, off, size, unix.PROT_READ)
}

func mapShared(fd int, off, size uint64, prot int) ([]byte, error) {
	page := uint64(unix.Getpagesize())
	if size == 0 || size > MaxBytes || off > MaxBytes || off%page != 0 {
		return nil, fmt.Errorf("%w: %d bytes at offset %d", ErrSize, size, off)
	}
	n := roundUp(size, page)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("mem: fstat: %w", err)
	}
	// A mapping beyond the object's end would fault when touched.
	if st.Size < 0 || uint64(st.Size) < off+size {
		return nil, fmt.Errorf("%w: %d bytes at %d of an object of %d bytes", ErrSize, size, off, st.Size)
	}
	b, err := unix.Mmap(fd, int64(off), int(n), prot, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("mem: map %d shared bytes: %w", n, err)
	}
	return b[:size:n], nil
}
