package routing

import "moerail/kernels/abi"

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

// dtypeNames are for errors.
var dtypeNames = [...]string{abi.FP32: "fp32", abi.BF16: "bf16", abi.FP16: "fp16", abi.FP8: "fp8"}

// dtype adds a fault unless d is an element type up to last.
func (f *Faults) dtype(name string, d, last abi.DType, want string) {
	if d > last {
		f.Addf("%s is %d, want %s", name, d, want)
	}
}

// check finds every fault that a field alone, or two together, show.
func (p *Params) check(f *Faults) {
	f.Range("ranks", p.NumRanks, 1, MaxRanks)
	f.Range("rank", p.Rank, 0, max(min(p.NumRanks, MaxRanks)-1, 0))
	f.Range("experts", p.NumExperts, 1, MaxExperts)
	f.Range("top-k", p.TopK, 1, MaxTopK)
	f.Range("hidden", p.Hidden, 1, MaxHidden)
	f.Range("max tokens", p.MaxTokens, 1, MaxTokens)
	f.Range("expert alignment", p.ExpertAlignment, 1, MaxAlignment)
	f.Range("slots", p.Slots, 1, MaxSlots)
	f.Range("NICs", p.NumNICs, 1, MaxNICs)
	f.Range("replicas", p.Replicas, 1, MaxRanks)
	f.Range("scale bytes", p.ScaleBytes, 0, MaxSideBytes)
	f.Range("window rows", p.WindowRows, 0, max(min(p.MaxTokens, MaxTokens), 0))
	f.Range("max received rows", p.MaxRecvRows, 0, MaxIndexRows-1)
	f.Range("expert capacity", p.ExpertCapacity, 0, MaxIndexRows-1)
	f.Range("max expert rows", p.MaxExpertRows, 0, MaxIndexRows-1)
	f.Range("scale block", p.ScaleBlock, 0, MaxHidden)
	f.Range("max local experts", p.MaxLocalExperts, 0, max(min(p.NumExperts, MaxExperts), 0))
	f.Range("shard bytes", p.ShardBytes, 0, MaxShardBytes)
	if p.Replicas >= 1 && p.Replicas <= MaxRanks && p.NumRanks%p.Replicas != 0 {
		f.Addf("replicas is %d, want a divisor of %d ranks", p.Replicas, p.NumRanks)
	}
	f.dtype("in dtype", p.In, abi.FP8, "fp32, bf16, fp16 or fp8")
	f.dtype("dtype", p.Wire, abi.FP8, "fp32, bf16, fp16 or fp8")
	f.dtype("out dtype", p.Out, abi.FP16, "fp32, bf16 or fp16")
	if p.Layout > abi.LayoutRows {
		f.Addf("layout is %d, want grouped, batched or rows", p.Layout)
	}
	if p.In > abi.FP8 || p.Wire > abi.FP8 {
		return
	}
	if p.ScaleBlock > 0 && p.Wire != abi.FP8 {
		f.Addf("scale block is %d, want 0 with dtype %s: only fp8 has scales", p.ScaleBlock, dtypeNames[p.Wire])
	}
	if p.quantises() && p.ScaleBytes > 0 {
		f.Addf("scale bytes is %d, want 0 with scale block %d: the runtime makes the scales", p.ScaleBytes, p.ScaleBlock)
	}
	if p.In != p.Wire && !p.quantises() {
		f.Addf("in dtype is %s, want %s like dtype, or dtype fp8 with a scale block", dtypeNames[p.In], dtypeNames[p.Wire])
	}
}

// quantises tells whether dispatch makes FP8 of another type. A scale block with
// FP8 input says how the caller's own scales are laid out, and does nothing here.
func (p *Params) quantises() bool {
	return p.ScaleBlock > 0 && p.Wire == abi.FP8 && p.In != abi.FP8
}
