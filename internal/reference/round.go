package reference

import (
	"fmt"
	"math"
	"slices"
)

// Output is one round as the definition gives it.
type Output struct {
	Ranks []RankOutput // [Ranks]

	UniqueRows  int // (token, destination rank) pairs, own rank included: what dispatch moves
	RemoteRows  int // those whose destination is another rank
	ExpertRows  int // picks served: rows of all expert inputs together
	ReturnPairs int // ordered pairs of different ranks with at least one row between them
}

// RankOutput is one rank's share of an Output.
type RankOutput struct {
	// Out is [T][Hidden], values of OutDType. It is empty for a refused input
	// and nil when the round failed on this rank.
	Out [][]float32

	// Bound is [T][Hidden] from Real and nil from Exact: how far a right answer
	// may be from Out. +Inf marks an element that no finite bound can judge.
	Bound [][]float64

	ExpertCounts []int64 // [local experts] picks served, in the rank's own order
	SourceRows   []int64 // [Ranks] rows received from each rank, the own one included

	Err *InputError // why the input was refused or the round failed; nil if neither
}

// Exact evaluates one round in the stated arithmetic and order: fp32
// multiplication, fp32 addition, no fused step, sums from +0 over the picks of
// a token in pick order, and over partial rows in ascending rank order. What it
// returns is new memory. The error is about c or the number of inputs, or, with
// Replicas, about a group whose ranks do not hold the same tokens; a rank's bad
// input is in its RankOutput.
func Exact(c Config, in []Input) (*Output, error) {
	return run(c, in, func(c *Config, owner []int, x []float32, ids []int32, w []float32) ([]float32, []float64) {
		return c.exactToken(owner, x, ids, w), nil
	})
}

// Real evaluates one round with float64 sums. Expert outputs are as in Exact:
// they are inputs of the sums. Bound states what rounding may add; see
// realToken for the arithmetic.
func Real(c Config, in []Input) (*Output, error) {
	return run(c, in, (*Config).realToken)
}

type evaluate func(c *Config, owner []int, x []float32, ids []int32, w []float32) ([]float32, []float64)

func run(c Config, in []Input, eval evaluate) (*Output, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if len(in) != c.Ranks {
		return nil, fmt.Errorf("reference: %d inputs, Ranks is %d", len(in), c.Ranks)
	}
	if err := c.sameTokens(in); err != nil {
		return nil, err
	}
	place := c.experts()
	owner, local := make([]int, c.Experts), make([]int, c.Experts)
	for q, list := range place {
		for i, e := range list {
			owner[e], local[e] = q, i
		}
	}
	out := &Output{Ranks: make([]RankOutput, c.Ranks)}
	for p := range out.Ranks {
		out.Ranks[p].ExpertCounts = make([]int64, len(place[p]))
		out.Ranks[p].SourceRows = make([]int64, c.Ranks)
		out.Ranks[p].Out = [][]float32{}
		out.Ranks[p].Err = c.check(p, in[p])
	}
	for p := range out.Ranks {
		if out.Ranks[p].Err == nil {
			out.count(&c, p, in[p], owner, local)
		}
	}
	if out.overflow(&c) {
		return out, nil
	}
	for p := range out.Ranks {
		me := &out.Ranks[p]
		if me.Err != nil {
			continue
		}
		for t, ids := range in[p].IDs {
			var w []float32
			if c.ApplyWeights {
				w = in[p].Weights[t]
			}
			row, bound := eval(&c, owner, in[p].X[t], ids, w)
			me.Out = append(me.Out, row)
			if bound != nil {
				me.Bound = append(me.Bound, bound)
			}
		}
	}
	return out, nil
}

// sameTokens checks that the ranks of a replica group bring the same tokens.
func (c *Config) sameTokens(in []Input) error {
	for p := range in {
		first := p - p%c.replicas()
		same := slices.EqualFunc(in[p].X, in[first].X, equalBits) &&
			slices.EqualFunc(in[p].IDs, in[first].IDs, slices.Equal) &&
			(!c.ApplyWeights || slices.EqualFunc(in[p].Weights, in[first].Weights, equalBits))
		if !same {
			return fmt.Errorf("reference: ranks %d and %d are replicas of one group of %d but hold different tokens", first, p, c.Replicas)
		}
	}
	return nil
}

func equalBits(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) })
}

// count adds rank p's picks and rows to the statistics of those who receive
// them. Only the lane p of its replica group sends to ranks of the same lane.
func (out *Output) count(c *Config, p int, in Input, owner, local []int) {
	pair := make([]bool, c.Ranks)
	for _, ids := range in.IDs {
		wanted := make([]bool, c.Ranks)
		for _, e := range ids {
			if e < 0 || owner[e]%c.replicas() != p%c.replicas() {
				continue
			}
			q := owner[e]
			out.Ranks[q].ExpertCounts[local[e]]++
			out.ExpertRows++
			wanted[q] = true
		}
		for q, yes := range wanted {
			if !yes {
				continue
			}
			out.Ranks[q].SourceRows[p]++
			out.UniqueRows++
			if q != p {
				out.RemoteRows++
				pair[q] = true
			}
		}
	}
	for _, yes := range pair {
		if yes {
			out.ReturnPairs++
		}
	}
}

// overflow fails the round on every rank when some rank would receive more
// rows than MaxRecvRows: nothing has moved then, so nobody has results.
func (out *Output) overflow(c *Config) bool {
	var over []int
	for q := range out.Ranks {
		var rows int64
		for _, n := range out.Ranks[q].SourceRows {
			rows += n
		}
		if c.MaxRecvRows > 0 && rows > int64(c.MaxRecvRows) {
			over = append(over, q)
		}
	}
	if over == nil {
		return false
	}
	for p := range out.Ranks {
		err := &InputError{Code: CodeOverflow, Ranks: over, Token: -1, Pick: -1,
			Reason: fmt.Sprintf("ranks %v would receive more than %d rows", over, c.MaxRecvRows)}
		out.Ranks[p] = RankOutput{Err: err}
	}
	return true
}

// expert is one expert's output for one element, a value of OutDType.
func (c *Config) expert(e int32, x float32) float32 {
	scaled := float32(c.Scale[e] * x) // the conversion forbids a fused multiply-add
	return Round(float32(scaled+c.Bias[e]), c.OutDType)
}

// term is what one pick adds to a sum, rounded to fp32.
func (c *Config) term(y float32, w []float32, k int) float32 {
	if c.ApplyWeights {
		return float32(w[k] * y)
	}
	return y
}

func (c *Config) exactToken(owner []int, x []float32, ids []int32, w []float32) []float32 {
	seen := Convert(x, c.DType, c.ScaleBlock)
	out := make([]float32, c.Hidden)
	if c.ReduceAtHome {
		for h := range out {
			var sum float32
			for k, e := range ids {
				if e >= 0 {
					sum = float32(sum + c.term(c.expert(e, seen[h]), w, k))
				}
			}
			out[h] = Round(sum, c.OutDType)
		}
		return out
	}
	ranks := destinations(owner, ids)
	for h := range out {
		var sum float32
		for _, q := range ranks {
			var partial float32
			for k, e := range ids {
				if e >= 0 && owner[e] == q {
					partial = float32(partial + c.term(c.expert(e, seen[h]), w, k))
				}
			}
			sum = float32(sum + Round(partial, c.OutDType))
		}
		out[h] = Round(sum, c.OutDType)
	}
	return out
}

// destinations returns the ranks that serve a token, each once, ascending.
func destinations(owner []int, ids []int32) []int {
	var ranks []int
	for _, e := range ids {
		if e >= 0 && !slices.Contains(ranks, owner[e]) {
			ranks = append(ranks, owner[e])
		}
	}
	slices.Sort(ranks)
	return ranks
}
