// Package abi holds the structs that a device kernel and Go both read. The C
// side of every struct is in moe_abi.h; names, order and sizes are the same
// there, and a test compares the two.
//
// Addresses are uint64 device addresses (host addresses where the device is the
// CPU). Strides and sizes are bytes unless the name says rows or counts. All
// words that one side writes while the other polls are 8 bytes, aligned to 64
// where they stand alone, and written with release, read with acquire order.
//
// # A slot's words
//
//	device -> proxy  DispatchWords[q], CombineWords[q]   rows<<32 | uint32(round+1)
//	proxy -> device  Control: DispatchArrived, CombineArrived, ..TxDone, Abort   round+1
//	peer -> device   DirectDispatch[parity][p], DirectCombine[p]  round+1 (same-node stores)
//
// Rounds are tagged with round+1 so that zeroed memory means "no round yet".
package abi

import "structs"

// DType is an element type.
type DType uint32

const (
	FP32 DType = iota
	BF16
	FP16
	FP8 // e4m3fn; dispatch only
)

// Layout says how received rows are handed to the experts.
type Layout uint32

const (
	// LayoutGrouped: expert-major, one row per pick, each expert's first row a
	// multiple of ExpertAlignment.
	LayoutGrouped Layout = iota
	// LayoutBatched: [local expert, ExpertCapacity, Hidden], one row per pick.
	LayoutBatched
	// LayoutRows: the rows as they arrived, in the windows, with their local picks;
	// nothing is copied. Expert outputs are one row per pick, in (source, row,
	// pick) order.
	LayoutRows
)

// IDType is the type of the expert ids that a caller passes.
type IDType uint32

const (
	IDInt32  IDType = iota // -1 is no expert
	IDInt64                // -1 is no expert
	IDUint32               // all ones is no expert
)

// Flags of a block header.
const (
	FlagAborted = 1 << iota // the source's input was refused; it sends no rows
)

// Codes in Status.Code.
const (
	CodeOK            = iota
	CodeInvalidExpert // Token, Pick, Value
	CodeTooManyTokens // Value tokens, Limit
	CodeBadHeader     // a block header that cannot be true: Peer, Value, Limit
	CodeBadRow        // a row whose metadata cannot be true: Peer, Token is the row
	CodeOverflow      // received rows do not fit: Value, Limit
	CodeAborted       // the proxy gave the round up; Late says whose data had not come
	CodeStopped       // the stream was closed
)

// Stages in Status.Stage.
const (
	StageNone = iota
	StageDispatchSend
	StageDispatchRecv
	StageCombineSend
	StageCombineRecv
)

// MaxRanks bounds the number of ranks: Status.Late has a bit for each.
const MaxRanks = 1024

// Status is what a stage leaves behind; one per slot. The first fault of a round
// stays until the next dispatch_send clears it. Round is set by dispatch_send also
// when nothing is wrong: the combine stages of a round that has ended meanwhile
// (Control.Overflow) know by it that they have nothing to do.
type Status struct {
	_     structs.HostLayout
	Code  uint32
	Stage uint32
	Round uint64
	Peer  uint32 // rank at fault, or this rank
	Token uint32
	Pick  uint32
	_     uint32
	Value int64
	Limit int64
	Late  [MaxRanks / 64]uint64
}

// Control is written by the proxy and polled by the device; one per slot, each
// word on its own cache line. Every value is round+1, and a wait ends with any value
// that is not lower: a communicator whose first round is n starts with n in both
// TxDone words. The proxy raises those also for a round that sent nothing, was given
// up, or ended with Overflow, else the next round would wait for them.
type Control struct {
	_               structs.HostLayout
	DispatchArrived uint64 // every block of that round is in this rank's memory
	_               [7]uint64
	CombineArrived  uint64 // every return block of that round is here
	_               [7]uint64
	DispatchTxDone  uint64 // the send blocks of that round may be written again
	_               [7]uint64
	CombineTxDone   uint64 // the return send blocks of that round may be written again
	_               [7]uint64
	Abort           uint64 // give up that round: every wait of it ends with CodeAborted
	_               [7]uint64
	Stop            uint64 // not 0: every wait ends with CodeStopped
	_               [7]uint64
	Overflow        uint64 // dispatch_recv ends that round with CodeOverflow on every rank
	_               [7]uint64
}

// Source is what dispatch_recv keeps of each source for combine_send.
type Source struct {
	_          structs.HostLayout
	Rows       uint32 // rows to read; 0 when its block, or the round here, was refused
	ReturnRows uint32 // rows that it is sent back: Rows, or its picks when ReduceAtHome
	Faulty     uint32 // 1: every returned value is NaN, its rows are not read
	_          uint32
}

// Header starts each block. It is followed by NumLocalExperts(peer) uint32
// counts of picks, and padding to Shape.HeaderBytes.
type Header struct {
	_          structs.HostLayout
	Round      uint64
	Generation uint32
	Rows       uint32
	Shards     uint32
	Flags      uint32
}

// HeaderFixedBytes is the size of Header; the counts start there.
const HeaderFixedBytes = 24

// RowMeta starts a row's metadata; NumPicks Picks follow.
type RowMeta struct {
	_        structs.HostLayout
	Token    uint32 // at the source
	NumPicks uint32
}

// Pick is one of a row's experts, local to the receiving rank.
type Pick struct {
	_      structs.HostLayout
	Expert uint32  // local expert
	Index  uint32  // position among this source's picks of that expert, in (token, pick) order
	Weight float32 // 1 when weights are not applied
}

const (
	RowMetaBytes = 8
	PickBytes    = 12
)

// Shape is what does not change over a communicator's life. moe/routing computes
// it; see there for the arithmetic.
type Shape struct {
	_                structs.HostLayout
	Rank             uint32
	NumRanks         uint32
	NumExperts       uint32 // physical, over all ranks
	NumLocalExperts  uint32 // of this rank
	MaxLocalExperts  uint32 // largest over all ranks: sizes the headers
	TopK             uint32
	Hidden           uint32
	MaxTokens        uint32
	Replicas         uint32 // 1 = none
	Generation       uint32
	In               DType  // of X; differs from Wire only when Wire is FP8 and ScaleBlock > 0
	Wire             DType  // of a dispatched row
	Out              DType  // of expert outputs, return rows and the result
	ScaleBlock       uint32 // > 0: dispatch_send quantises X to FP8, one fp32 scale per so many values
	Layout           Layout
	ReduceAtHome     uint32 // 1: one unweighted return row per pick, summed at the source
	ApplyWeights     uint32 // 0: picks are summed unweighted
	ExpertAlignment  uint32 // rows, >= 1 (grouped)
	ExpertCapacity   uint32 // rows per expert (batched)
	MaxExpertRows    uint32 // rows of the expert buffer (grouped) or of the expert output (rows)
	WindowRows       uint32 // rows of one window block; < MaxTokens: the rest of a block goes to Overflow
	MaxRecvRows      uint32 // received rows, over all sources
	InRowBytes       uint32 // one row of X, unpadded
	PayloadBytes     uint32 // of a wire row, unpadded
	ScaleBytes       uint32 // side bytes of a row, unpadded, 0 = none
	ScaleOffset      uint32 // in a row; PayloadBytes padded to 16
	MetaOffset       uint32 // in a row
	RowBytes         uint32 // a whole row, a multiple of 16
	OutRowBytes      uint32 // one expert output or result row, unpadded
	ReturnRowBytes   uint32 // OutRowBytes padded to 16
	HeaderBytes      uint32 // a multiple of 64
	_                uint32
	WindowStride     uint64 // from one source's window block to the next
	SendStride       uint64 // from one peer's send block to the next
	ReturnStride     uint64 // from one peer's return window block to the next
	ReturnSendStride uint64
}

// Slot is the memory of one micro-batch, constant over a communicator's life.
type Slot struct {
	_            structs.HostLayout
	Window       [2]uint64 // by parity: NumRanks blocks of WindowStride
	Overflow     uint64    // MaxRecvRows rows; 0 without the exact path
	ReturnWindow uint64    // NumRanks blocks of ReturnStride: block q is what q returns
	Send         uint64    // NumRanks blocks of SendStride: block q goes to q
	ReturnSend   uint64    // NumRanks blocks of ReturnSendStride: block s goes back to s
	// PeerWindow is the address of uint64[2][NumRanks]: where this rank's block lies in the
	// window of each other rank that it stores to directly, 0 for the rest. The entry of
	// this rank is not read: its block for itself stays in Send, where dispatch_recv and
	// combine_send read it. Direct stores go both ways or not at all, and not on the
	// exact path, whose windows cannot hold a block: there all entries are 0.
	PeerWindow uint64
	// PeerReturn is the address of uint64[NumRanks]: this rank's block in the return
	// window of each other rank that it returns rows to directly, 0 for the rest. The
	// entry of this rank is not read.
	PeerReturn uint64
	// PeerDispatchFlag is the address of uint64[2][NumRanks], PeerCombineFlag of
	// uint64[NumRanks]: the flag words of this rank in each such rank's DirectDispatch
	// and DirectCombine, 0 for this rank itself and the others.
	PeerDispatchFlag uint64
	PeerCombineFlag  uint64
	DirectDispatch   uint64 // uint64[2][NumRanks][8], one word a cache line
	DirectCombine    uint64 // uint64[NumRanks][8]
	DispatchWords    uint64 // uint64[NumRanks]: rows sent to q
	// ReturnRows is uint32[NumRanks]: how many return rows q will send for this
	// rank's tokens, written before q's DispatchWord.
	ReturnRows   uint64
	CombineWords uint64 // uint64[NumRanks]: return rows for s
	Control      uint64 // Control
	Status       uint64 // Status
	// Round is one uint64: the round that is under way, or starts next. combine_recv
	// adds one at its end, dispatch_recv when it ends a round with CodeOverflow.
	Round  uint64
	Tokens uint64 // uint32: tokens of the round, 0 when the input was refused
	// Home is uint32[MaxTokens][1+2*TopK], written by dispatch_send for combine_recv:
	// n, then n pairs (rank, row in that rank's return block): ranks ascending, or picks in order when ReduceAtHome.
	Home        uint64
	HomeWeights uint64 // float32[MaxTokens][TopK]: weight of pair j when ReduceAtHome
	Before      uint64 // uint32[NumRanks+1][NumLocalExperts]: picks of lower sources, by dispatch_recv; the last row is the totals
	PickStart   uint64 // uint32[MaxRecvRows+1]: first output row of each received row (rows layout)
	Sources     uint64 // Source[NumRanks], by dispatch_recv for combine_send
	ExpertRank  uint64 // uint32[NumExperts]: rank of each physical expert
	ExpertLocal uint64 // uint32[NumExperts]: its number on that rank
}

// DispatchSendParams: counts, then blocks, then words, in that order; peers that
// are not stored to directly come first, starting after this rank.
type DispatchSendParams struct {
	_            structs.HostLayout
	Shape        Shape
	Slot         Slot
	X            uint64 // [NumTokens] rows of InRowBytes, XStride apart
	XStride      uint64
	Scales       uint64 // [NumTokens] x ScaleBytes, ScaleStride apart; 0 when quantised here or without scales
	ScaleStride  uint64
	IDs          uint64 // [NumTokens, TopK]
	Weights      uint64 // float32[NumTokens, TopK]; 0 = all ones
	NumTokensPtr uint64 // uint32 in device memory, read when the stage runs; 0 = use NumTokens
	NumTokens    uint32 // with NumTokensPtr the most that it may say: what X, IDs and Weights hold
	IDType       IDType
}

// DispatchRecvParams: outputs may be 0 where the layout has none.
type DispatchRecvParams struct {
	_            structs.HostLayout
	Shape        Shape
	Slot         Slot
	ExpertX      uint64 // grouped, batched: rows of ExpertStride
	ExpertStride uint64
	ExpertScales uint64 // grouped, batched, with scales: rows of ScaleBytes, packed
	Counts       uint64 // int32[NumLocalExperts]: picks
	Starts       uint64 // int32[NumLocalExperts+1]: first row of each expert, and the end (grouped, rows of padding included)
	RowExpert    uint64 // int32[MaxExpertRows]: expert of each row, -1 in padding (grouped); 0 = not wanted
	SourceRows   uint64 // uint32[NumRanks]
	RowAddr      uint64 // uint64[MaxRecvRows]: where each received row lies (rows layout)
	RowTopK      uint64 // int32[MaxRecvRows, TopK]: local experts, -1 beyond the row's picks (rows layout)
	RowWeights   uint64 // float32[MaxRecvRows, TopK] (rows layout)
	NumRows      uint64 // uint32[2]: received rows, received picks
	TotalRows    uint64 // uint64[NumLocalExperts]: running sum of Counts over rounds; 0 = not wanted
	ZeroFill     uint32 // 1: rows of padding are zeroed (grouped), unused capacity too (batched)
	_            uint32
}

// CombineSendParams: Y is what the experts made, by the slot numbers that the
// layout defines.
type CombineSendParams struct {
	_       structs.HostLayout
	Shape   Shape
	Slot    Slot
	Y       uint64
	YStride uint64
	Starts  uint64 // as DispatchRecv wrote it
	// Abandon 1: Y is not read, every returned value is NaN.
	Abandon uint32
	_       uint32
}

// CombineRecvParams: the sums of this rank's tokens.
type CombineRecvParams struct {
	_         structs.HostLayout
	Shape     Shape
	Slot      Slot
	Out       uint64 // [tokens of the round] rows of OutRowBytes, OutStride apart
	OutStride uint64
	// Accumulate 1: added to what Out holds, in fp32, rounded once.
	Accumulate uint32
	_          uint32
}
