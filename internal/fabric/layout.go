//go:build libfabric && cgo

package fabric

import "structs"

// InlineBytes is how many bytes a slot itself can hold.
const InlineBytes = 128

// Op mirrors moe_op: one operation as its poster describes it.
type Op struct {
	_      structs.HostLayout
	Src    uint64 // local address, also where reads, receives and old values go
	Raddr  uint64 // what the provider wants: an address, or an offset; of a message: its tag
	Rkey   uint64 // or, with FlagTarget, the address of a Target
	Desc   uint64 // of the local memory, 0 where none is needed
	Len    uint64
	Data   uint64 // for the target's queue
	Peer   uint32
	Kind   Kind
	Flags  Flag
	State  State // C's
	status uint8
	next   uint32
	err    uint32
}

// Slot mirrors moe_slot: the context that a provider may use, the operation, and
// bytes of its own: an inline payload, or the operand and comparand of an atomic.
// Its owner fills it while State is Free; from Progress on it is C's until it
// comes back in a Completion.
type Slot struct {
	_       structs.HostLayout
	context [64]byte
	Op      Op
	Bytes   [InlineBytes]byte
}

// Completion mirrors moe_completion.
type Completion struct {
	_      structs.HostLayout
	Slot   uint32
	Kind   End
	Status Status
	Orphan bool // the provider still has the slot: it comes back as OrphanBack
	Marked bool // Data came beside a message
	Errno  uint32
	Vendor uint32
	Data   uint64 // of an immediate, or beside a message
	Len    uint64
}

// Kind says what a slot's operation does.
type Kind uint8

const (
	Write Kind = 1 + iota
	Read
	CompareSwap
	FetchAdd
	Send
	Recv
)

// Flag is a set of MOE_FLAG_*.
type Flag uint8

const (
	FlagImm     Flag = 1 << iota // Data goes with the write
	FlagTarget                   // Rkey is the address of a target of a template
	FlagDeliver                  // complete when it is in the target's memory
	FlagDrop                     // not to be posted any more
)

// State of a slot. Owners may fill a slot in state Free alone.
type State uint8

const (
	Free State = iota
	Queued
	Posted
	Ended
	Orphan
)

// Status says how an operation ended.
type Status uint8

const (
	OK Status = iota
	Failed
	Lost
	Flushed
)

// End says what a Completion is.
type End uint8

const (
	Done End = 1 + iota
	Received
	Immediate
	OrphanBack
)
