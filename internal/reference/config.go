package reference

import (
	"errors"
	"fmt"
)

// Config describes one communicator as the definition sees it. It must be the
// same for every rank; a case in which ranks disagree has no rounds to judge.
type Config struct {
	Ranks   int // number of ranks, > 0
	Experts int // number of physical experts over all ranks, > 0
	TopK    int // picks per token, > 0
	Hidden  int // elements per token, > 0

	// Placement lists the physical experts of each rank in the rank's own
	// order. nil places them consecutively, ceil(Experts/Ranks) on each rank
	// until they run out, so the last ranks may have fewer or none.
	Placement [][]int32

	DType      DType // format in which tokens travel to the experts
	OutDType   DType // format of expert outputs and of the result; not FP8
	ScaleBlock int   // elements per fp32 scale; > 0 exactly when DType is FP8

	ReduceAtHome bool // sum at the token's own rank instead of at the experts
	ApplyWeights bool // multiply expert outputs by the router weights

	// Replicas > 1: ranks g*Replicas .. g*Replicas+Replicas-1 hold the same
	// tokens, and rank p sends only to the ranks q with q and p equal modulo
	// Replicas. 0 means 1. Must divide Ranks.
	Replicas int

	MaxTokens   int // tokens per rank and round; 0 is no limit
	MaxRecvRows int // rows one rank can receive in a round, its own included; 0 is no limit

	Scale, Bias []float32 // [Experts]: expert e computes Scale[e]*x + Bias[e]
}

// experts returns the placement, filling in the default.
func (c *Config) experts() [][]int32 {
	if c.Placement != nil {
		return c.Placement
	}
	place := make([][]int32, c.Ranks)
	each := (c.Experts + c.Ranks - 1) / c.Ranks
	for e := range c.Experts {
		place[e/each] = append(place[e/each], int32(e))
	}
	return place
}

func (c *Config) replicas() int { return max(c.Replicas, 1) }

// Validate reports every fault of c at once.
func (c *Config) Validate() error {
	var faults []error
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("reference: "+format, args...))
	}
	for _, f := range []struct {
		name  string
		value int
	}{{"Ranks", c.Ranks}, {"Experts", c.Experts}, {"TopK", c.TopK}, {"Hidden", c.Hidden}} {
		if f.value < 1 {
			fault("%s is %d, the least is 1", f.name, f.value)
		}
	}
	if len(faults) > 0 {
		return errors.Join(faults...)
	}
	if c.DType < FP32 || c.DType > FP8 {
		fault("DType %v is unknown", c.DType)
	}
	if c.OutDType < FP32 || c.OutDType >= FP8 {
		fault("OutDType %v is not one of fp32, bf16, fp16", c.OutDType)
	}
	if (c.DType == FP8) != (c.ScaleBlock > 0) || c.ScaleBlock < 0 {
		fault("ScaleBlock is %d with DType %v: it is above 0 for fp8 and 0 otherwise", c.ScaleBlock, c.DType)
	}
	if c.Replicas < 0 || c.Ranks%c.replicas() != 0 {
		fault("Replicas %d does not divide Ranks %d", c.Replicas, c.Ranks)
	}
	if len(c.Scale) != c.Experts || len(c.Bias) != c.Experts {
		fault("Scale has %d and Bias %d entries, Experts is %d", len(c.Scale), len(c.Bias), c.Experts)
	}
	if c.Placement != nil {
		faults = append(faults, placementFaults(c.Placement, c.Ranks, c.Experts)...)
	}
	return errors.Join(faults...)
}

func placementFaults(place [][]int32, ranks, experts int) (faults []error) {
	if len(place) != ranks {
		faults = append(faults, fmt.Errorf("reference: Placement has %d ranks, Ranks is %d", len(place), ranks))
	}
	seen := make([]int, experts)
	for q, list := range place {
		for _, e := range list {
			if e < 0 || int(e) >= experts {
				faults = append(faults, fmt.Errorf("reference: Placement[%d] names expert %d, the range is 0..%d", q, e, experts-1))
				continue
			}
			seen[e]++
		}
	}
	for e, n := range seen {
		if n != 1 {
			faults = append(faults, fmt.Errorf("reference: Placement names expert %d %d times, must be once", e, n))
		}
	}
	return faults
}

// Input is what one rank brings to one round: T tokens, T may be 0 and differs
// between ranks. Rows are [T][Hidden] and [T][TopK]; a row or a list of another
// length makes the rank's input refused, it is not a fault of the call.
type Input struct {
	X       [][]float32 // [T][Hidden], before conversion to DType
	IDs     [][]int32   // [T][TopK] physical experts; -1 is no expert
	Weights [][]float32 // [T][TopK]; not read, and may be nil, without ApplyWeights
}

// The codes of a refused input, as the runtime names them.
const (
	CodeShape         = "shape"
	CodeTooManyTokens = "too_many_tokens"
	CodeInvalidExpert = "invalid_expert"
	CodeOverflow      = "overflow"
)

// InputError says why a rank's input was refused, or why the round failed.
type InputError struct {
	Code   string
	Ranks  []int // the ranks at fault
	Token  int   // first bad token, row-major; -1 when it is not about one
	Pick   int   // its first bad pick; -1 when it is not about one
	Reason string
}

func (e *InputError) Error() string { return e.Code + ": " + e.Reason }

// check returns why rank p's input is refused, or nil. Shapes are looked at
// first, then the number of tokens, then the expert ids in row-major order.
func (c *Config) check(p int, in Input) *InputError {
	refuse := func(code string, token, pick int, format string, args ...any) *InputError {
		return &InputError{Code: code, Ranks: []int{p}, Token: token, Pick: pick, Reason: fmt.Sprintf(format, args...)}
	}
	tokens := len(in.IDs)
	if len(in.X) != tokens {
		return refuse(CodeShape, -1, -1, "x has %d tokens, ids %d", len(in.X), tokens)
	}
	if c.ApplyWeights && len(in.Weights) != tokens {
		return refuse(CodeShape, -1, -1, "weights have %d tokens, ids %d", len(in.Weights), tokens)
	}
	for t := range tokens {
		if len(in.X[t]) != c.Hidden {
			return refuse(CodeShape, t, -1, "x has %d values, hidden is %d", len(in.X[t]), c.Hidden)
		}
		if len(in.IDs[t]) != c.TopK {
			return refuse(CodeShape, t, -1, "%d ids, top_k is %d", len(in.IDs[t]), c.TopK)
		}
		if c.ApplyWeights && len(in.Weights[t]) != c.TopK {
			return refuse(CodeShape, t, -1, "%d weights, top_k is %d", len(in.Weights[t]), c.TopK)
		}
	}
	if c.MaxTokens > 0 && tokens > c.MaxTokens {
		return refuse(CodeTooManyTokens, -1, -1, "%d tokens, the limit is %d", tokens, c.MaxTokens)
	}
	for t, ids := range in.IDs {
		for k, e := range ids {
			if e < -1 || int(e) >= c.Experts {
				return refuse(CodeInvalidExpert, t, k, "expert %d, the range is 0..%d, -1 for none", e, c.Experts-1)
			}
		}
	}
	return nil
}
