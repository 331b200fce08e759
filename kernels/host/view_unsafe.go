package host

import (
	"sync/atomic"
	"unsafe"

	"moerail/kernels/abi"
)

// element is what slot memory is read and written as. None holds a pointer.
type element interface {
	byte | int32 | int64 | uint32 | uint64 | float32 | abi.Source
}

// pointer turns a host address into a pointer. Slot memory lies off the Go heap
// and outlives every launch that names it, so the collector need not know. (It is
// read through &addr because the race build keeps small blocks on the Go heap,
// where a conversion from an integer would be refused.)
func pointer(addr uint64) unsafe.Pointer {
	a := uintptr(addr)
	return *(*unsafe.Pointer)(unsafe.Pointer(&a))
}

// view is the n elements at addr; nil when n or addr is 0. The caller has checked
// that they are the slot's.
func view[T element](addr uint64, n int) []T {
	if addr == 0 || n <= 0 {
		return nil
	}
	return unsafe.Slice((*T)(pointer(addr)), n)
}

// word is the 8-byte word at addr, which someone else polls or writes.
func word(addr uint64) *atomic.Uint64 { return (*atomic.Uint64)(pointer(addr)) }

// word32 is the 4-byte word at addr.
func word32(addr uint64) *atomic.Uint32 { return (*atomic.Uint32)(pointer(addr)) }

func statusAt(addr uint64) *abi.Status { return (*abi.Status)(pointer(addr)) }

// control is the word at that offset of the Control at addr.
func control(addr uint64, offset uintptr) *atomic.Uint64 { return word(addr + uint64(offset)) }

// Offsets of Control's words.
const (
	ctlDispatchArrived = unsafe.Offsetof(abi.Control{}.DispatchArrived)
	ctlCombineArrived  = unsafe.Offsetof(abi.Control{}.CombineArrived)
	ctlDispatchTxDone  = unsafe.Offsetof(abi.Control{}.DispatchTxDone)
	ctlCombineTxDone   = unsafe.Offsetof(abi.Control{}.CombineTxDone)
	ctlAbort           = unsafe.Offsetof(abi.Control{}.Abort)
	ctlStop            = unsafe.Offsetof(abi.Control{}.Stop)
	ctlOverflow        = unsafe.Offsetof(abi.Control{}.Overflow)
)

// peekHeader reads the round and generation of a block that a NIC may be writing
// at this moment, only to say whose block had not come. The torn value that this
// allows names a rank as late, which it is; hence no race instrumentation.
//
//go:norace
func peekHeader(addr uint64) (round uint64, generation uint32) {
	h := (*abi.Header)(pointer(addr))
	return h.Round, h.Generation
}
