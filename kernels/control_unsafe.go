package kernels

import (
	"sync/atomic"
	"unsafe"

	"moerail/internal/mem"
	"moerail/kernels/abi"
)

// Control is a slot's abi.Control as the proxy writes it: every value is round+1.
type Control struct {
	DispatchArrived, CombineArrived *atomic.Uint64
	DispatchTxDone, CombineTxDone   *atomic.Uint64
	Abort, Stop, Overflow           *atomic.Uint64
}

// ControlBytes and StatusBytes are the sizes of the two structs.
const (
	ControlBytes = uint64(unsafe.Sizeof(abi.Control{}))
	StatusBytes  = uint64(unsafe.Sizeof(abi.Status{}))
	SourceBytes  = uint64(unsafe.Sizeof(abi.Source{}))
)

// NewControl looks at b, at least ControlBytes long and aligned to 8, as an
// abi.Control.
func NewControl(b []byte) *Control {
	var c abi.Control
	return &Control{
		DispatchArrived: mem.Word64(b, uint64(unsafe.Offsetof(c.DispatchArrived))),
		CombineArrived:  mem.Word64(b, uint64(unsafe.Offsetof(c.CombineArrived))),
		DispatchTxDone:  mem.Word64(b, uint64(unsafe.Offsetof(c.DispatchTxDone))),
		CombineTxDone:   mem.Word64(b, uint64(unsafe.Offsetof(c.CombineTxDone))),
		Abort:           mem.Word64(b, uint64(unsafe.Offsetof(c.Abort))),
		Stop:            mem.Word64(b, uint64(unsafe.Offsetof(c.Stop))),
		Overflow:        mem.Word64(b, uint64(unsafe.Offsetof(c.Overflow))),
	}
}

// StatusAt is the abi.Status at the start of b. The device writes it; read it
// only after the stage ended.
func StatusAt(b []byte) *abi.Status {
	mem.Word64(b, StatusBytes-8) // bounds and alignment
	return (*abi.Status)(unsafe.Pointer(&b[0]))
}
