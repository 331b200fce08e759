package mem

import (
	"fmt"
	"sync/atomic"
	"unsafe"
)

// Addr is the address of b's first byte, 0 for an empty slice. It is only
// meaningful for memory off the Go heap.
func Addr(b []byte) uint64 {
	if len(b) == 0 {
		return 0
	}
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b))))
}

// Word64 is the 8-byte word at off in b. It panics when off is outside b or not
// a multiple of 8: offsets come from layouts checked at set-up, never from peers.
func Word64(b []byte, off uint64) *atomic.Uint64 {
	p := wordAt(b, off, 8)
	return (*atomic.Uint64)(p)
}

// Word32 is the 4-byte word at off in b; see Word64.
func Word32(b []byte, off uint64) *atomic.Uint32 {
	p := wordAt(b, off, 4)
	return (*atomic.Uint32)(p)
}

func wordAt(b []byte, off, size uint64) unsafe.Pointer {
	if off > uint64(len(b)) || uint64(len(b))-off < size {
		panic(fmt.Sprintf("mem: word of %d bytes at %d of %d", size, off, len(b)))
	}
	p := unsafe.Pointer(&b[off])
	if uintptr(p)%uintptr(size) != 0 {
		panic(fmt.Sprintf("mem: word of %d bytes at %d is not aligned", size, off))
	}
	return p
}
