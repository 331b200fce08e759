package casefile

import (
	"slices"
	"time"
)

// FormatCase and FormatResult are the values of the key format.
const (
	FormatCase   = "moerail-case/1"
	FormatResult = "moerail-result/1"
)

// Case is one explicit experiment. A Case from Decode is within all limits and
// consistent; the fields are those of the file under their Go names.
type Case struct {
	Ranks int
	Params

	Fabric        string        // auto, loopback, shm, verbs, efa or libfabric:PROVIDER
	Deadline      time.Duration // of every phase
	FirstDeadline time.Duration // of the first round; 0 is Deadline
	OnFailure     string        // stop or mask

	Scale, Bias []float32 // [Experts]: expert e computes Scale[e]*x + Bias[e]

	Overrides map[int]Override // by rank
	Faults    Faults
	Rounds    []Round // as in the file: not yet repeated
}

// Params are the settings a rank brings to a communicator: those that
// rank_overrides may change for one rank.
type Params struct {
	Experts, TopK, Hidden int
	MaxTokens             int    // tokens per rank and round
	DType                 string // fp32, bf16, fp16, fp8
	OutDType              string // fp32, bf16, fp16
	ScaleBlock            int    // elements per scale; above 0 exactly for fp8
	Layout                string // grouped, batched, rows
	ExpertAlignment       int    // rows
	Reduce                string // expert, home
	ApplyWeights          bool
	Replicas              int
	RanksPerNode          int // 0: every rank is a node of its own
	NICs                  int // per rank
	Slots                 int
	SendDepth             int // 0: the fabric's own
	WindowRows            int // 0: MaxTokens
	MaxRecvRows           int // 0: the worst case

	// Placement lists the physical experts of each rank in the rank's own
	// order; nil is consecutive with a ceil split.
	Placement [][]int32
}

// Override is what one rank has otherwise.
type Override struct {
	Keys   []string // the keys given, in the file's order
	Values Params   // of Keys only
}

// RankParams returns the settings of one rank: the case's, with its override.
func (c *Case) RankParams(rank int) Params {
	p := c.Params
	o := c.Overrides[rank]
	for _, f := range paramFields {
		if slices.Contains(o.Keys, f.key) {
			f.copy(&p, &o.Values)
		}
	}
	return p
}

// Round is one entry of rounds, carried out Repeat times.
type Round struct {
	Repeat int
	Ranks  []RankInput // [Ranks]
}

// RankInput is what one rank brings to a round. Nothing about its shape is
// checked: a ragged or too long list is what the runtime must refuse.
type RankInput struct {
	X       [][]float32 // decimals rounded once to fp32
	IDs     [][]int32
	Weights [][]float32
}

// NumRounds is the number of rounds to carry out, repeats counted.
func (c *Case) NumRounds() int {
	n := 0
	for _, r := range c.Rounds {
		n += r.Repeat
	}
	return n
}

// Inputs yields the inputs of round 0, 1, ... NumRounds-1, the same memory for
// each repeat.
func (c *Case) Inputs(yield func(round int, ranks []RankInput) bool) {
	n := 0
	for _, r := range c.Rounds {
		for range r.Repeat {
			if !yield(n, r.Ranks) {
				return
			}
			n++
		}
	}
}

// Phases are the phases a fault can name, in the order of a life.
var Phases = []string{"setup", "dispatch_send", "dispatch_recv", "experts", "combine_send", "combine_recv", "close"}

// Faults is what goes wrong on purpose. The zero value is nothing.
type Faults struct {
	Seed         uint64
	Reorder      bool
	DelayMin     time.Duration // every delivery takes between DelayMin and DelayMax longer
	DelayMax     time.Duration
	Pause        []Pause
	Kill         []Kill
	Absent       []int
	Partition    [][]int // groups of ranks that cannot reach each other; nil is none
	FailRegister []FailRegister
	RailDown     []Rail
	RailUp       []Rail

	used []string
}

// Pause stops a rank for Length when it enters Phase of Round.
type Pause struct {
	Rank, Round int
	Phase       string
	Length      time.Duration
}

// Kill ends a rank when it enters Phase of Round.
type Kill struct {
	Rank, Round int
	Phase       string
}

// FailRegister makes the Nth (from 1) memory registration of a rank fail.
type FailRegister struct {
	Rank, Nth int
	Errno     string // symbolic, ENOMEM
}

// Rail names one NIC of one rank, and the round at whose start it goes down or
// comes up again.
type Rail struct {
	Rank, NIC, Round int
}

// Used returns the keys that the file's faults object holds, in its order.
func (f *Faults) Used() []string { return slices.Clone(f.used) }

// Unsupported returns the used keys that are not among supported: those a
// caller that has only these must refuse as not there yet.
func (f *Faults) Unsupported(supported ...string) []string {
	var missing []string
	for _, key := range f.used {
		if !slices.Contains(supported, key) {
			missing = append(missing, key)
		}
	}
	return missing
}
