// Package routing is the arithmetic of a round: which rank holds which expert,
// how rows, blocks and windows are laid out, how a block is cut over NICs, which
// immediates mean what, and what the row-count matrix of the exact path implies.
// It is pure: no I/O, no clock, no goroutine.
//
//	inbox   (peers write)  per slot: window[2][source] | overflow | return window[peer] | flags
//	outbox  (NIC reads)    per slot: send block[peer] | return send block[source]
//	block                  header, counts per local expert | rows
//	row                    payload | scales | token, picks
package routing

import (
	"moerail/kernels/abi"
)

// Plan is the layout of a communicator, immutable.
type Plan struct {
	Shape        abi.Shape
	ExpertRank   []uint32 // by physical expert
	ExpertLocal  []uint32
	LocalExperts [][]int32 // physical experts by rank
	Slots        int
	NumNICs      int
	ShardBytes   uint64
	// Exact: windows are smaller than MaxTokens, or a rank may be sent more than
	// MaxRecvRows, so row counts are exchanged before rows.
	Exact bool

	Inbox, Outbox Span // of the whole rank
	slotIn        slotInbox
	slotOut       slotOutbox
}

// Span is the size of a memory area.
type Span struct{ Bytes uint64 }

type slotInbox struct {
	window         [2]uint64
	overflow       uint64
	returnWindow   uint64
	directDispatch uint64
	directCombine  uint64
	bytes          uint64
}

type slotOutbox struct {
	send, returnSend uint64
	bytes            uint64
}

// FlagStride separates flag words written by different ranks: one cache line.
const FlagStride = 64

// NewPlan checks p and computes the layout. It fails with *ConfigError naming
// every fault. Whether it fails does not depend on p.Rank, so that ranks which
// agree on everything else agree on that too.
func NewPlan(p Params) (*Plan, error) {
	var f Faults
	p.check(&f)
	pl := &Plan{Slots: p.Slots, NumNICs: p.NumNICs, ShardBytes: uint64(p.ShardBytes)}
	if pl.ShardBytes == 0 {
		pl.ShardBytes = DefaultShardBytes
	}
	if p.NumRanks >= 1 && p.NumRanks <= MaxRanks && p.NumExperts >= 1 && p.NumExperts <= MaxExperts {
		pl.place(p, &f)
	}
	if err := f.Err(); err != nil {
		return nil, err
	}
	pl.rowLayout(p)
	pl.count(p, &f)
	if err := f.Err(); err != nil {
		return nil, err
	}
	pl.layout(p, &f)
	if err := f.Err(); err != nil {
		return nil, err
	}
	return pl, nil
}

// rowLayout fills in what follows from p's fields alone. Within the limits no
// size of a row or header comes near 32 bits: a row has 512 KiB of payload, as
// much of scales, and 3 KiB of picks at most.
func (pl *Plan) rowLayout(p Params) {
	s := &pl.Shape
	s.Rank, s.NumRanks = uint32(p.Rank), uint32(p.NumRanks)
	s.NumExperts, s.TopK = uint32(p.NumExperts), uint32(p.TopK)
	s.NumLocalExperts = uint32(len(pl.LocalExperts[p.Rank]))
	s.MaxLocalExperts = uint32(p.MaxLocalExperts)
	for _, l := range pl.LocalExperts {
		s.MaxLocalExperts = max(s.MaxLocalExperts, uint32(len(l)))
	}
	s.Hidden, s.MaxTokens = uint32(p.Hidden), uint32(p.MaxTokens)
	s.Replicas, s.Generation = uint32(p.Replicas), p.Generation
	s.In, s.Wire, s.Out = p.In, p.Wire, p.Out
	s.Layout = p.Layout
	s.ReduceAtHome = flag(p.ReduceAtHome)
	s.ApplyWeights = flag(!p.IgnoreWeights)
	s.ExpertAlignment = uint32(p.ExpertAlignment)

	scaleBytes := p.ScaleBytes
	if p.quantises() {
		s.ScaleBlock = uint32(p.ScaleBlock)
		scaleBytes = (p.Hidden + p.ScaleBlock - 1) / p.ScaleBlock * 4
	}
	s.InRowBytes = uint32(p.Hidden * elemBytes(p.In))
	s.PayloadBytes = uint32(p.Hidden * elemBytes(p.Wire))
	s.ScaleBytes = uint32(scaleBytes)
	s.ScaleOffset = uint32(roundUp(uint64(s.PayloadBytes), 16))
	s.MetaOffset = s.ScaleOffset + uint32(roundUp(uint64(scaleBytes), 16))
	s.RowBytes = s.MetaOffset + uint32(roundUp(abi.RowMetaBytes+uint64(p.TopK)*abi.PickBytes, 16))
	s.OutRowBytes = uint32(p.Hidden * elemBytes(p.Out))
	s.ReturnRowBytes = uint32(roundUp(uint64(s.OutRowBytes), 16))
	s.HeaderBytes = uint32(roundUp(abi.HeaderFixedBytes+4*uint64(s.MaxLocalExperts), 64))

	s.WindowRows = uint32(p.WindowRows)
	if s.WindowRows == 0 {
		s.WindowRows = s.MaxTokens
	}
}

// count fills in how many rows a round can bring, and refuses what 32-bit row
// numbers cannot tell apart. All products here are below 2^63.
func (pl *Plan) count(p Params, f *Faults) {
	s := &pl.Shape
	r, t, k := uint64(p.NumRanks), uint64(p.MaxTokens), uint64(p.TopK)
	if r*t*k > MaxPicks {
		f.Addf("%d ranks x %d max tokens x top-k %d is %d picks, want at most %d: lower max tokens", r, t, k, r*t*k, uint64(MaxPicks))
	}
	// Only the ranks of this one's lane send rows.
	worst := r / uint64(p.Replicas) * t
	recv := worst
	if p.MaxRecvRows != 0 {
		recv = min(recv, uint64(p.MaxRecvRows))
	}
	pl.Exact = s.WindowRows < s.MaxTokens || recv < worst
	if recv >= MaxIndexRows {
		f.Addf("max received rows comes to %d, want at most %d: lower max tokens, or set max received rows", recv, uint64(MaxIndexRows)-1)
	}
	capacity := uint64(p.ExpertCapacity)
	if p.Layout == abi.LayoutBatched && capacity == 0 {
		capacity = recv * k // a token may name an expert k times
	}
	rows := func(experts uint32) uint64 {
		if p.Layout == abi.LayoutBatched {
			return capacity * max(1, uint64(experts))
		}
		n := recv*k + uint64(experts)*uint64(p.ExpertAlignment-1)
		if p.MaxExpertRows != 0 {
			n = min(n, uint64(p.MaxExpertRows))
		}
		return n
	}
	// The rank with the most experts decides for all.
	switch most := rows(s.MaxLocalExperts); {
	case most < MaxIndexRows:
	case p.Layout == abi.LayoutBatched:
		f.Addf("expert capacity comes to %d, with %d experts on a rank %d expert rows, want at most %d: set or lower expert capacity",
			capacity, s.MaxLocalExperts, most, uint64(MaxIndexRows)-1)
	default:
		f.Addf("max expert rows comes to %d, want at most %d: lower max tokens, or set max received rows or max expert rows",
			most, uint64(MaxIndexRows)-1)
	}
	s.MaxRecvRows, s.ExpertCapacity = uint32(recv), uint32(capacity)
	// Sized for as many experts as a later placement may bring.
	s.MaxExpertRows = uint32(rows(s.MaxLocalExperts))
}

// layout places the areas of inbox and outbox, and refuses what no address space
// holds.
func (pl *Plan) layout(p Params, f *Faults) {
	var sz size
	s := &pl.Shape
	r, t := uint64(p.NumRanks), uint64(p.MaxTokens)
	returnRows := t
	if p.ReduceAtHome {
		returnRows *= uint64(p.TopK)
	}
	s.WindowStride = roundUp(pl.BlockBytes(s.WindowRows), 64)
	s.SendStride = roundUp(pl.BlockBytes(s.MaxTokens), 64)
	s.ReturnStride = roundUp(returnRows*uint64(s.ReturnRowBytes), 64)
	s.ReturnSendStride = s.ReturnStride

	in := &pl.slotIn
	off := uint64(0)
	take := func(n uint64) (at uint64) {
		at = off
		off = roundUp(sz.add(off, n), 64)
		return at
	}
	in.window[0] = take(sz.mul(r, s.WindowStride))
	in.window[1] = take(sz.mul(r, s.WindowStride))
	if s.WindowRows < s.MaxTokens {
		in.overflow = take(sz.mul(uint64(s.MaxRecvRows), uint64(s.RowBytes)))
	}
	in.returnWindow = take(sz.mul(r, s.ReturnStride))
	in.directDispatch = take(2 * r * FlagStride)
	in.directCombine = take(r * FlagStride)
	in.bytes = roundUp(off, 4096)
	pl.Inbox.Bytes = sz.mul(uint64(p.Slots), in.bytes)

	out := &pl.slotOut
	off = 0
	out.send = take(sz.mul(r, s.SendStride))
	out.returnSend = take(sz.mul(r, s.ReturnSendStride))
	out.bytes = roundUp(off, 4096)
	pl.Outbox.Bytes = sz.mul(uint64(p.Slots), out.bytes)

	expertRow := uint64(s.OutRowBytes)
	if s.Layout != abi.LayoutRows { // there rows stay in the windows
		expertRow += uint64(s.PayloadBytes) + uint64(s.ScaleBytes)
	}
	experts := sz.mul(uint64(p.Slots), sz.mul(uint64(s.MaxExpertRows), expertRow))
	sz.add(sz.add(pl.Inbox.Bytes, pl.Outbox.Bytes), experts)
	if sz.overflow {
		f.Addf("buffers of %d slots for %d ranks x %d max tokens x %d row bytes, %d return rows x %d bytes and %d expert rows x %d bytes exceed the limit of %d bytes: lower max tokens or slots, or set window rows, max received rows, max expert rows or expert capacity",
			p.Slots, r, t, s.RowBytes, returnRows, s.ReturnRowBytes, uint64(s.MaxExpertRows), expertRow, uint64(MaxArenaBytes))
	}
}

func flag(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}
