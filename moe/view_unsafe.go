package moe

import (
	"unsafe"

	"moerail/kernels/abi"
)

// The views below are of memory laid out by layoutSlot, whose areas start at
// multiples of 128.

func int32s(b []byte) []int32 {
	return unsafe.Slice((*int32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}

func uint32s(b []byte) []uint32 {
	return unsafe.Slice((*uint32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}

func float32s(b []byte) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}

// idsAddr is the address and type of the ids that the caller passed. The slot
// keeps the Input, and so the memory, while a stage may read it; the Go heap does
// not move objects.
func idsAddr(in *Input) (uint64, abi.IDType) {
	switch {
	case len(in.IDs64) > 0:
		return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(in.IDs64)))), abi.IDInt64
	case len(in.IDsU32) > 0:
		return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(in.IDsU32)))), abi.IDUint32
	case len(in.IDs) > 0:
		return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(in.IDs)))), abi.IDInt32
	}
	return 0, abi.IDInt32
}

func floatsAddr(f []float32) uint64 {
	if len(f) == 0 {
		return 0
	}
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(f))))
}

func countAddr(p *uint32) uint64 { return uint64(uintptr(unsafe.Pointer(p))) }

// Row is the payload of received row i in the rows layout.
func (b *Batch) Row(i int) []byte { return b.part(i, 0, b.payload) }

// RowScales are the side bytes of received row i in the rows layout.
func (b *Batch) RowScales(i int) []byte { return b.part(i, b.scaleAt, b.scales) }

func (b *Batch) part(i, off, n int) []byte {
	addrs := unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(b.rowAddr))), len(b.rowAddr)/8)
	// The device wrote the address of a row in a window of this communicator; it is
	// memory off the Go heap.
	p := *(*unsafe.Pointer)(unsafe.Pointer(&addrs[i]))
	return unsafe.Slice((*byte)(unsafe.Add(p, off)), n)
}
