//go:build verbs && cgo && linux

package ibv

import (
	"structs"
	"unsafe"
)

// The structures of the hot path, in the layout of struct ibv_send_wr, ibv_sge,
// ibv_recv_wr and ibv_wc; step.c holds them to it. Pointers into C memory are
// kept as numbers: the collector has no business with them.

type sendWR struct {
	_          structs.HostLayout
	id         uint64
	next       uintptr
	sges       uintptr
	numSGE     int32
	opcode     uint32
	flags      uint32
	imm        uint32 // network byte order
	remoteAddr uint64
	rkeyOrCmp  uint64 // a write's rkey, or an atomic's operand to compare or add
	swap       uint64
	atomicRKey uint32
	_          [60]byte
}

type sge struct {
	_      structs.HostLayout
	addr   uint64
	length uint32
	lkey   uint32
}

type recvWR struct {
	_      structs.HostLayout
	id     uint64
	next   uintptr
	sges   uintptr
	numSGE int32
	_      int32
}

// WC is one completion as the device wrote it. Except for ID, Status, Vendor and
// QP it says nothing when Status is not WCSuccess.
type WC struct {
	_      structs.HostLayout
	ID     uint64
	Status WCStatus
	Opcode uint32
	Vendor uint32
	Bytes  uint32
	imm    uint32
	QP     uint32 // number of our queue pair
	Source uint32 // UD: number of the sender's
	flags  uint32
	_      [8]byte
}

const (
	_ = -(unsafe.Sizeof(sendWR{}) ^ 128) // stops compiling when the layouts part
	_ = -(unsafe.Sizeof(sge{}) ^ 16)
	_ = -(unsafe.Sizeof(recvWR{}) ^ 32)
	_ = -(unsafe.Sizeof(WC{}) ^ 48)
	_ = -(unsafe.Offsetof(sendWR{}.imm) ^ 36)
	_ = -(unsafe.Offsetof(sendWR{}.atomicRKey) ^ 64)
	_ = -(unsafe.Offsetof(WC{}.imm) ^ 24)
	_ = -(unsafe.Offsetof(WC{}.flags) ^ 36)
)

// swap32 turns network byte order into host order and back; every platform of
// this provider is little endian.
func swap32(v uint32) uint32 { return v<<24 | v>>24 | v<<8&0xff0000 | v>>8&0xff00 }

// Imm is the immediate, and whether the completion brought one.
func (w *WC) Imm() (uint32, bool) { return swap32(w.imm), w.flags&wcWithImm != 0 }
