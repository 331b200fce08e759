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

// Params is what a plan is made from; every rank but Rank must pass the same.
type Params struct {
	Rank, NumRanks              int
	NumExperts, TopK            int
	Hidden, MaxTokens           int
	In, Wire, Out               abi.DType
	ScaleBlock                  int // quantise in dispatch: values per scale
	ScaleBytes                  int // opaque side bytes of a row
	Layout                      abi.Layout
	ExpertAlignment             int // rows
	ExpertCapacity              int // rows per expert, batched; 0 = worst case
	MaxExpertRows               int // 0 = worst case
	ReduceAtHome, IgnoreWeights bool
	Replicas                    int
	Slots                       int
	NumNICs                     int
	WindowRows                  int // 0 = MaxTokens
	MaxRecvRows                 int // 0 = worst case
	ShardBytes                  int // 0 = DefaultShardBytes
	Generation                  uint32
	Placement                   [][]int32 // nil = consecutive, ceil split
	// MaxLocalExperts is how many experts a rank may hold under this and later
	// placements; 0 = as many as Placement needs. It sizes headers and buffers.
	MaxLocalExperts int
}

// DefaultShardBytes is the size above which a block is worth cutting over NICs:
// below it the extra message costs more than the second link saves.
const DefaultShardBytes = 64 << 10

// Plan is the layout of a communicator, immutable.
type Plan struct {
	Shape        abi.Shape
	ExpertRank   []uint32 // by physical expert
	ExpertLocal  []uint32
	LocalExperts [][]int32 // physical experts by rank
	Slots        int
	NumNICs      int
	ShardBytes   uint64
	Exact        bool // windows are smaller than MaxTokens

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

// elemBytes is the size of an element.
func elemBytes(d abi.DType) int {
	switch d {
	case abi.FP32:
		return 4
	case abi.BF16, abi.FP16:
		return 2
	default:
		return 1
	}
}

// NewPlan checks p and computes the layout. It fails with *ConfigError naming
// every fault.
func NewPlan(p Params) (*Plan, error) {
	var f Faults
	f.Range("ranks", p.NumRanks, 1, MaxRanks)
	f.Range("rank", p.Rank, 0, max(p.NumRanks-1, 0))
	f.Range("experts", p.NumExperts, 1, MaxExperts)
	f.Range("top-k", p.TopK, 1, MaxTopK)
	f.Range("hidden", p.Hidden, 1, MaxHidden)
	f.Range("max tokens", p.MaxTokens, 1, MaxTokens)
	f.Range("expert alignment", p.ExpertAlignment, 1, MaxAlignment)
	f.Range("slots", p.Slots, 1, MaxSlots)
	f.Range("NICs", p.NumNICs, 1, MaxNICs)
	f.Range("replicas", p.Replicas, 1, MaxRanks)
	f.Range("scale bytes", p.ScaleBytes, 0, MaxSideBytes)
	f.Range("window rows", p.WindowRows, 0, max(p.MaxTokens, 0))
	f.Range("max received rows", p.MaxRecvRows, 0, MaxIndexRows-1)
	f.Range("expert capacity", p.ExpertCapacity, 0, MaxIndexRows-1)
	f.Range("max expert rows", p.MaxExpertRows, 0, MaxIndexRows-1)
	f.Range("scale block", p.ScaleBlock, 0, MaxHidden)
	f.Range("shard bytes", p.ShardBytes, 0, 1<<30)
	f.Range("max local experts", p.MaxLocalExperts, 0, max(p.NumExperts, 0))
	if p.Replicas >= 1 && p.NumRanks%p.Replicas != 0 {
		f.Addf("replicas is %d, want a divisor of %d ranks", p.Replicas, p.NumRanks)
	}
	if p.In > abi.FP8 || p.Wire > abi.FP8 {
		f.Addf("dtype is %d/%d, want fp32, bf16, fp16 or fp8", p.In, p.Wire)
	}
	if p.Out >= abi.FP8 {
		f.Addf("out dtype is %d, want fp32, bf16 or fp16", p.Out)
	}
	if p.Layout > abi.LayoutRows {
		f.Addf("layout is %d, want grouped, batched or rows", p.Layout)
	}
	switch {
	case p.ScaleBlock > 0 && p.Wire != abi.FP8:
		f.Addf("scale block is %d with dtype other than fp8, want 0", p.ScaleBlock)
	case p.ScaleBlock > 0 && p.In != abi.FP8 && p.ScaleBytes > 0:
		f.Addf("scale bytes is %d, want 0 when the runtime quantises", p.ScaleBytes)
	case p.In != p.Wire && !(p.Wire == abi.FP8 && p.ScaleBlock > 0):
		f.Addf("input dtype differs from dtype; only quantising to fp8 with a scale block converts")
	}
	if err := f.Err(); err != nil {
		return nil, err
	}
	pl := &Plan{Slots: p.Slots, NumNICs: p.NumNICs, ShardBytes: uint64(p.ShardBytes)}
	if pl.ShardBytes == 0 {
		pl.ShardBytes = DefaultShardBytes
	}
	pl.place(p, &f)
	if err := f.Err(); err != nil {
		return nil, err
	}
	pl.shape(p, &f)
	if err := f.Err(); err != nil {
		return nil, err
	}
	return pl, nil
}

// place fills the expert tables.
func (pl *Plan) place(p Params, f *Faults) {
	placement := p.Placement
	if placement == nil {
		placement = ConsecutivePlacement(p.NumRanks, p.NumExperts)
	}
	if len(placement) != p.NumRanks {
		f.Addf("placement has %d ranks, want %d", len(placement), p.NumRanks)
		return
	}
	const nowhere = ^uint32(0)
	pl.ExpertRank = make([]uint32, p.NumExperts)
	pl.ExpertLocal = make([]uint32, p.NumExperts)
	for e := range pl.ExpertRank {
		pl.ExpertRank[e] = nowhere
	}
	for r, list := range placement {
		for i, e := range list {
			switch {
			case e < 0 || int(e) >= p.NumExperts:
				f.Addf("placement rank %d names expert %d, want 0 to %d", r, e, p.NumExperts-1)
			case pl.ExpertRank[e] != nowhere:
				f.Addf("placement puts expert %d on rank %d and on rank %d", e, pl.ExpertRank[e], r)
			default:
				pl.ExpertRank[e], pl.ExpertLocal[e] = uint32(r), uint32(i)
			}
		}
		pl.LocalExperts = append(pl.LocalExperts, append([]int32(nil), list...))
	}
	for e, r := range pl.ExpertRank {
		if r == nowhere {
			f.Addf("placement leaves out expert %d", e)
		}
	}
}

// ConsecutivePlacement gives rank r the experts r*ceil(E/R) and up; with fewer
// experts than ranks the last ranks have none.
func ConsecutivePlacement(ranks, experts int) [][]int32 {
	per := (experts + ranks - 1) / ranks
	out := make([][]int32, ranks)
	for r := range out {
		for e := r * per; e < min((r+1)*per, experts); e++ {
			out[r] = append(out[r], int32(e))
		}
	}
	return out
}

func (pl *Plan) shape(p Params, f *Faults) {
	var sz size
	r, t, k := uint64(p.NumRanks), uint64(p.MaxTokens), uint64(p.TopK)
	s := &pl.Shape
	s.Rank, s.NumRanks = uint32(p.Rank), uint32(p.NumRanks)
	s.NumExperts, s.TopK = uint32(p.NumExperts), uint32(p.TopK)
	s.NumLocalExperts = uint32(len(pl.LocalExperts[p.Rank]))
	s.MaxLocalExperts = uint32(p.MaxLocalExperts)
	for q, l := range pl.LocalExperts {
		if p.MaxLocalExperts > 0 && len(l) > p.MaxLocalExperts {
			f.Addf("placement gives rank %d %d experts, max local experts is %d", q, len(l), p.MaxLocalExperts)
		}
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
	if p.ScaleBlock > 0 && p.In != abi.FP8 {
		s.ScaleBlock = uint32(p.ScaleBlock)
		scaleBytes = (p.Hidden + p.ScaleBlock - 1) / p.ScaleBlock * 4
	}
	s.InRowBytes = uint32(p.Hidden * elemBytes(p.In))
	s.PayloadBytes = uint32(p.Hidden * elemBytes(p.Wire))
	s.ScaleBytes = uint32(scaleBytes)
	s.ScaleOffset = uint32(roundUp(uint64(s.PayloadBytes), 16))
	s.MetaOffset = s.ScaleOffset + uint32(roundUp(uint64(scaleBytes), 16))
	s.RowBytes = s.MetaOffset + uint32(roundUp(abi.RowMetaBytes+k*abi.PickBytes, 16))
	s.OutRowBytes = uint32(p.Hidden * elemBytes(p.Out))
	s.ReturnRowBytes = uint32(roundUp(uint64(s.OutRowBytes), 16))
	s.HeaderBytes = uint32(roundUp(abi.HeaderFixedBytes+4*uint64(s.MaxLocalExperts), 64))

	s.WindowRows = uint32(p.WindowRows)
	if s.WindowRows == 0 {
		s.WindowRows = s.MaxTokens
	}
	pl.Exact = s.WindowRows < s.MaxTokens

	// Only the ranks of this one's lane send rows.
	worst := sz.mul(r/uint64(p.Replicas), t)
	recv := worst
	if p.MaxRecvRows != 0 {
		recv = min(recv, uint64(p.MaxRecvRows))
	}
	expertRows := sz.add(sz.mul(recv, k), uint64(s.MaxLocalExperts)*uint64(s.ExpertAlignment-1))
	if p.MaxExpertRows != 0 {
		expertRows = min(expertRows, uint64(p.MaxExpertRows))
	}
	capacity := uint64(p.ExpertCapacity)
	if p.Layout == abi.LayoutBatched {
		if capacity == 0 {
			capacity = sz.mul(recv, k) // a token may name an expert k times
		}
		expertRows = sz.mul(capacity, uint64(s.MaxLocalExperts))
	}
	if !sz.overflow && (recv >= MaxIndexRows || expertRows >= MaxIndexRows) {
		f.Addf("up to %d rows and %d expert rows may be received, want fewer than %d: lower max tokens, or set max received rows, max expert rows or expert capacity", recv, expertRows, uint64(MaxIndexRows))
		return
	}
	s.MaxRecvRows, s.MaxExpertRows, s.ExpertCapacity = uint32(recv), uint32(expertRows), uint32(capacity)

	returnRows := t
	if p.ReduceAtHome {
		returnRows = sz.mul(t, k)
	}
	s.WindowStride = roundUp(sz.add(uint64(s.HeaderBytes), sz.mul(uint64(s.WindowRows), uint64(s.RowBytes))), 64)
	s.SendStride = roundUp(sz.add(uint64(s.HeaderBytes), sz.mul(t, uint64(s.RowBytes))), 64)
	s.ReturnStride = roundUp(sz.mul(returnRows, uint64(s.ReturnRowBytes)), 64)
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
	if pl.Exact {
		in.overflow = take(sz.mul(recv, uint64(s.RowBytes)))
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

	sz.mul(expertRows, uint64(max(s.PayloadBytes, s.OutRowBytes)))
	if sz.overflow {
		f.Addf("buffers for %d ranks x %d tokens x %d row bytes exceed %d bytes of address space: lower max tokens, or set window rows, max received rows, max expert rows", r, t, s.RowBytes, uint64(MaxArenaBytes))
	}
}

func flag(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

// Offsets into the inbox of a rank.

// WindowOffset is where source src's block of a round of this parity lies.
func (pl *Plan) WindowOffset(slot, parity, src int) uint64 {
	return uint64(slot)*pl.slotIn.bytes + pl.slotIn.window[parity] + uint64(src)*pl.Shape.WindowStride
}

// OverflowOffset is the start of a slot's overflow area.
func (pl *Plan) OverflowOffset(slot int) uint64 {
	return uint64(slot)*pl.slotIn.bytes + pl.slotIn.overflow
}

// ReturnOffset is where peer q's return block lies.
func (pl *Plan) ReturnOffset(slot, q int) uint64 {
	return uint64(slot)*pl.slotIn.bytes + pl.slotIn.returnWindow + uint64(q)*pl.Shape.ReturnStride
}

// DirectDispatchOffset is the flag word that rank p writes after storing a block.
func (pl *Plan) DirectDispatchOffset(slot, parity, p int) uint64 {
	return uint64(slot)*pl.slotIn.bytes + pl.slotIn.directDispatch +
		uint64(parity)*uint64(pl.Shape.NumRanks)*FlagStride + uint64(p)*FlagStride
}

// DirectCombineOffset is the flag word that rank q writes after storing return rows.
func (pl *Plan) DirectCombineOffset(slot, q int) uint64 {
	return uint64(slot)*pl.slotIn.bytes + pl.slotIn.directCombine + uint64(q)*FlagStride
}

// Offsets into the outbox of this rank.

// SendOffset is the block for peer q.
func (pl *Plan) SendOffset(slot, q int) uint64 {
	return uint64(slot)*pl.slotOut.bytes + pl.slotOut.send + uint64(q)*pl.Shape.SendStride
}

// ReturnSendOffset is the return block for source s.
func (pl *Plan) ReturnSendOffset(slot, s int) uint64 {
	return uint64(slot)*pl.slotOut.bytes + pl.slotOut.returnSend + uint64(s)*pl.Shape.ReturnSendStride
}

// LaneSource is the rank of src's replica group whose rows this rank receives.
func (pl *Plan) LaneSource(src int) int {
	rep := int(pl.Shape.Replicas)
	return src/rep*rep + int(pl.Shape.Rank)%rep
}
