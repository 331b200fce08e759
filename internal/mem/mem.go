// Package mem provides the memory that NICs, devices and other processes see:
// mapped outside the Go heap, page aligned, zeroed, never moved.
//
// Words that someone else writes are read through Word32 and Word64 only, which
// check bounds and alignment once and give atomics.
package mem

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"moerail/transport"
)

// MaxBytes bounds one allocation: above it the request is a mistake, since no
// machine has that much.
const MaxBytes = 1 << 46

// ErrSize reports an allocation of zero, or more than MaxBytes, bytes.
var ErrSize = errors.New("mem: size out of range")

func roundUp(n, to uint64) uint64 { return (n + to - 1) / to * to }

// Alloc maps size bytes of private memory. Pages cost nothing until touched.
// The caller owns it until Free.
func Alloc(size uint64) (transport.Memory, error) {
	if size == 0 || size > MaxBytes {
		return transport.Memory{}, fmt.Errorf("%w: %d bytes, want 1 to %d", ErrSize, size, uint64(MaxBytes))
	}
	if b, ok := heapForRace(size); ok {
		return transport.Memory{Host: b, FD: -1, Size: size}, nil
	}
	n := roundUp(size, uint64(unix.Getpagesize()))
	b, err := unix.Mmap(-1, 0, int(n), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return transport.Memory{}, fmt.Errorf("mem: map %d bytes: %w", n, err)
	}
	return transport.Memory{Host: b[:size:n], FD: -1, Size: size}, nil
}

// AdviseHuge asks for huge pages behind m, which read and write about a tenth
// faster when more is touched than the processor has small pages at hand. Only
// for memory that is filled from its start: a page of 2 MiB is taken at once.
// Where the kernel has none it changes nothing.
func AdviseHuge(m transport.Memory) {
	if len(m.Host) >= hugeBytes && m.FD < 0 {
		_ = unix.Madvise(m.Host[:cap(m.Host)], unix.MADV_HUGEPAGE)
	}
}

const hugeBytes = 4 << 20

// Unmap ends a mapping made by MapShared or MapReadOnly.
func Unmap(b []byte) error { return unix.Munmap(b[:cap(b)]) }

// Free unmaps what Alloc, AllocShared or AllocPublished returned and closes its descriptor.
func Free(m transport.Memory) error {
	if m.Host == nil {
		return nil
	}
	if isRaceHeap(m.Host) {
		return nil
	}
	err := Unmap(m.Host)
	if m.FD >= 0 {
		err = errors.Join(err, unix.Close(m.FD))
	}
	return err
}
