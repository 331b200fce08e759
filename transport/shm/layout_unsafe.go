package shm

import (
	"sync/atomic"
	"unsafe"

	"moerail/internal/mem"
)

// laneView is a lane as mapped here, by its receiver or its sender.
type laneView struct {
	state   *atomic.Uint64
	immHead *atomic.Uint64
	immDone *uint64 // immHead, for its writer
	msgHead *atomic.Uint64
	msgTail *atomic.Uint64
	imms    *[immSlots]atomic.Uint64
	msgs    []byte // msgRingBytes
	mapping []byte // nil once unmapped
}

func newLaneView(b []byte) laneView {
	return laneView{
		state:   mem.Word64(b, laneStateOff),
		immHead: mem.Word64(b, laneImmHeadOff),
		immDone: plainWord(b, laneImmHeadOff),
		msgHead: mem.Word64(b, laneMsgHeadOff),
		msgTail: mem.Word64(b, laneMsgTailOff),
		imms:    (*[immSlots]atomic.Uint64)(unsafe.Pointer(&b[laneImmOff : laneImmOff+8*immSlots][0])),
		msgs:    b[laneMsgOff : laneMsgOff+msgRingBytes],
		mapping: b,
	}
}

// plainWord is the word at off for storeRelease.
func plainWord(b []byte, off uint64) *uint64 {
	return (*uint64)(unsafe.Pointer(mem.Word64(b, off)))
}

// counters are a domain's statistics. They lie off the heap: the owner adds to
// them plainly, anyone reads them with atomic loads, and an aligned word is
// never torn.
type counters struct {
	messages, bytes         uint64
	immsSent, immsReceived  uint64
	doorbells, again        uint64
	staleWrites, stalled    uint64
	registrations, reserved uint64
}

const counterBytes = 80

func newCounters(b []byte) *counters {
	return (*counters)(unsafe.Pointer(&b[:counterBytes][0]))
}
