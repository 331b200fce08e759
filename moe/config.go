package moe

import (
	"fmt"
	"strings"
	"time"

	"moerail/kernels"
	"moerail/kernels/abi"
	"moerail/moe/routing"
	"moerail/peergroup"
	"moerail/transport"
	"moerail/transport/engine"
)

// DType is an element type.
type DType = abi.DType

// Element types. FP8 is e4m3 and travels in dispatch only.
const (
	FP32 = abi.FP32
	BF16 = abi.BF16
	FP16 = abi.FP16
	FP8  = abi.FP8
)

// Layout says how received rows are handed to the experts.
type Layout = abi.Layout

// Layouts; see abi.
const (
	LayoutGrouped = abi.LayoutGrouped
	LayoutBatched = abi.LayoutBatched
	LayoutRows    = abi.LayoutRows
)

// Config describes a communicator. Every field that is not marked *local* must
// be the same on every rank; New checks that, and fails on every rank otherwise.
type Config struct {
	// Name tells apart communicators over the same group; "" is "moe".
	Name string
	// Group is who the ranks are. It stays the caller's. *local*
	Group peergroup.Group
	// Imms gives out immediates; one per process and rank, shared by all its
	// communicators. nil takes a fresh one, right for a single communicator. *local*
	Imms *peergroup.ImmSpace

	// Engine is used and left open. Without it one is made over Provider's NICs
	// and closed with the communicator. *local*, but for the number of NICs and the
	// name of the provider
	Engine       *engine.Engine
	Provider     transport.Provider     // ranks must have one of the same name
	NICs         []string               // 1 to 4 names to open
	DomainConfig transport.DomainConfig // *local*
	CPUs         []int                  // *local*; the worker is pinned to the first; nil leaves it to the scheduler
	Poll         engine.PollPolicy      // *local*
	// Device runs the stages; nil is the host. *local*
	Device kernels.Device

	NumExperts int // physical experts, over all ranks
	TopK       int // picks per token
	Hidden     int // elements of a token
	MaxTokens  int // of one rank in one round

	DType    DType // of a dispatched row
	OutDType DType // of expert outputs and results
	// InDType is the type of Input.X. It may differ from DType only where DType is
	// FP8 and ScaleBlock is set: then dispatch quantises.
	InDType DType
	// ScaleBlock is the number of values that share an fp32 scale when dispatch
	// quantises.
	ScaleBlock int
	// ScaleBytes is the size of the side bytes that a caller passes with each
	// token, opaque to moerail.
	ScaleBytes int

	Layout          Layout
	ExpertAlignment int  // rows; 0 is 1
	ExpertCapacity  int  // rows per expert in the batched layout; 0 is the worst case
	MaxExpertRows   int  // rows of the expert buffer; 0 is the worst case
	ZeroFill        bool // *local*; rows of X that hold no pick are zeroed

	// ReduceAtHome returns one unweighted row per pick and sums at the source; it
	// costs up to TopK times the bytes.
	ReduceAtHome bool
	// IgnoreWeights sums picks unweighted, for callers whose experts apply the weights.
	IgnoreWeights bool

	Replicas     int // ranks that hold the same tokens; 0 is 1
	RanksPerNode int // ranks that may store into each other's memory; 0 is none
	Slots        int // micro-batches in flight; 0 is 1
	WindowRows   int // rows a peer can send without asking; 0 is MaxTokens
	// MaxRecvRows is how many rows a rank can receive in a round; 0 is the worst case.
	// Below that the ranks exchange their row counts first, as they do with small
	// windows, so that too many rows are an overflow on every rank.
	MaxRecvRows int
	Placement   [][]int32 // physical experts by rank; nil is consecutive
	// MaxLocalExperts is how many experts a rank may hold under any placement that
	// SetPlacement will be given; 0 is as many as Placement needs.
	MaxLocalExperts int
	ShardBytes      int // blocks above are cut over the NICs; 0 is 64 KiB

	// Deadlines are *local*.
	SetupDeadline time.Duration // 0 is 30 s
	Deadline      time.Duration // of each phase of a round; 0 is 10 s
	FirstDeadline time.Duration // in the first round; 0 is Deadline
	// FirstRound is the number of the first round, at most 1<<62, for tests of the
	// counters' edges.
	FirstRound uint64
}

const defaultSetupDeadline = 30 * time.Second

func (c Config) withDefaults() Config {
	def := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	def(&c.ExpertAlignment, 1)
	def(&c.Replicas, 1)
	def(&c.Slots, 1)
	def(&c.RanksPerNode, 1)
	if c.Name == "" {
		c.Name = "moe"
	}
	if c.InDType == FP32 && c.DType != FP32 && !(c.DType == FP8 && c.ScaleBlock > 0) {
		c.InDType = c.DType
	}
	if c.SetupDeadline == 0 {
		c.SetupDeadline = defaultSetupDeadline
	}
	if c.Deadline == 0 {
		c.Deadline = 10 * time.Second
	}
	if c.FirstDeadline == 0 {
		c.FirstDeadline = c.Deadline
	}
	return c
}

func (c *Config) params(rank, ranks int, generation uint32) routing.Params {
	return routing.Params{
		Rank: rank, NumRanks: ranks,
		NumExperts: c.NumExperts, TopK: c.TopK, Hidden: c.Hidden, MaxTokens: c.MaxTokens,
		In: c.InDType, Wire: c.DType, Out: c.OutDType,
		ScaleBlock: c.ScaleBlock, ScaleBytes: c.ScaleBytes,
		Layout: c.Layout, ExpertAlignment: c.ExpertAlignment,
		ExpertCapacity: c.ExpertCapacity, MaxExpertRows: c.MaxExpertRows,
		ReduceAtHome: c.ReduceAtHome, IgnoreWeights: c.IgnoreWeights,
		Replicas: c.Replicas, Slots: c.Slots, NumNICs: c.numNICs(),
		WindowRows: c.WindowRows, MaxRecvRows: c.MaxRecvRows, ShardBytes: c.ShardBytes,
		Generation: generation, Placement: c.Placement, MaxLocalExperts: c.MaxLocalExperts,
	}
}

func (c *Config) numNICs() int {
	if c.Engine != nil {
		return c.Engine.NumNICs()
	}
	return len(c.NICs)
}

// agreed lists what the ranks must agree on, by the names that errors use.
func (c *Config) agreed() []peergroup.Param {
	var out []peergroup.Param
	add := func(name string, v any) { out = append(out, peergroup.Param{Name: name, Value: fmt.Sprint(v)}) }
	add("experts", c.NumExperts)
	add("top_k", c.TopK)
	add("hidden", c.Hidden)
	add("max_tokens", c.MaxTokens)
	add("dtype", DTypeName(c.DType))
	add("out_dtype", DTypeName(c.OutDType))
	add("in_dtype", DTypeName(c.InDType))
	add("scale_block", c.ScaleBlock)
	add("scale_bytes", c.ScaleBytes)
	add("layout", LayoutName(c.Layout))
	add("expert_alignment", c.ExpertAlignment)
	add("expert_capacity", c.ExpertCapacity)
	add("max_expert_rows", c.MaxExpertRows)
	add("reduce", map[bool]string{false: "expert", true: "home"}[c.ReduceAtHome])
	add("apply_weights", !c.IgnoreWeights)
	add("replicas", c.Replicas)
	add("ranks_per_node", c.RanksPerNode)
	add("slots", c.Slots)
	add("nics", c.numNICs())
	add("window_rows", c.WindowRows)
	add("max_recv_rows", c.MaxRecvRows)
	add("shard_bytes", c.ShardBytes)
	add("first_round", c.FirstRound)
	add("max_local_experts", c.MaxLocalExperts)
	add("placement", placementText(c.Placement))
	return out
}

func placementText(placement [][]int32) string {
	if placement == nil {
		return "consecutive"
	}
	var b strings.Builder
	for _, l := range placement {
		fmt.Fprint(&b, l)
	}
	return b.String()
}

var dtypeNames = [...]string{FP32: "fp32", BF16: "bf16", FP16: "fp16", FP8: "fp8"}

// DTypeName is the name of an element type on the command line and in case files.
func DTypeName(d DType) string {
	if int(d) < len(dtypeNames) {
		return dtypeNames[d]
	}
	return fmt.Sprintf("dtype %d", d)
}

// ParseDType is the inverse of DTypeName.
func ParseDType(s string) (DType, error) {
	for d, n := range dtypeNames {
		if n == s {
			return DType(d), nil
		}
	}
	return 0, fmt.Errorf("dtype %q, want fp32, bf16, fp16 or fp8", s)
}

var layoutNames = [...]string{LayoutGrouped: "grouped", LayoutBatched: "batched", LayoutRows: "rows"}

// LayoutName is the name of a layout on the command line and in case files.
func LayoutName(l Layout) string {
	if int(l) < len(layoutNames) {
		return layoutNames[l]
	}
	return fmt.Sprintf("layout %d", l)
}

// ParseLayout is the inverse of LayoutName.
func ParseLayout(s string) (Layout, error) {
	for l, n := range layoutNames {
		if n == s {
			return Layout(l), nil
		}
	}
	return 0, fmt.Errorf("layout %q, want grouped, batched or rows", s)
}

// ConfigError lists every fault of a configuration.
type ConfigError = routing.ConfigError
