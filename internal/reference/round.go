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
	return run(c, in, func(j *Judge, me *RankOutput, x []float32, ids []int32, w []float32) {
		me.Out = append(me.Out, j.Exact(x, ids, w))
	})
}

// Real evaluates one round with float64 sums. Expert outputs are as in Exact:
// they are inputs of the sums. Bound states what rounding may add; see
// Judge.Real for the arithmetic.
func Real(c Config, in []Input) (*Output, error) {
	return run(c, in, func(j *Judge, me *RankOutput, x []float32, ids []int32, w []float32) {
		row, bound := j.Real(x, ids, w)
		me.Out, me.Bound = append(me.Out, row), append(me.Bound, bound)
	})
}

// Count is Exact without the outputs: errors, counts and rows only, for callers
// who judge a sample of the tokens. Every Out is empty.
func Count(c Config, in []Input) (*Output, error) {
	return run(c, in, func(*Judge, *RankOutput, []float32, []int32, []float32) {})
}

// run checks and counts all inputs, then hands each token of the accepted ones
// to eval, in order.
func run(c Config, in []Input, eval func(j *Judge, me *RankOutput, x []float32, ids []int32, w []float32)) (*Output, error) {
	j, err := NewJudge(c)
	if err != nil {
		return nil, err
	}
	if len(in) != c.Ranks {
		return nil, fmt.Errorf("reference: %d inputs, Ranks is %d", len(in), c.Ranks)
	}
	if err := c.sameTokens(in); err != nil {
		return nil, err
	}
	out := &Output{Ranks: make([]RankOutput, c.Ranks)}
	for p := range out.Ranks {
		out.Ranks[p].ExpertCounts = make([]int64, len(j.place[p]))
		out.Ranks[p].SourceRows = make([]int64, c.Ranks)
		out.Ranks[p].Out = [][]float32{}
		out.Ranks[p].Err = c.check(p, in[p])
	}
	for p := range out.Ranks {
		if out.Ranks[p].Err == nil {
			out.count(j, p, in[p])
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
			eval(j, me, in[p].X[t], ids, w)
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
func (out *Output) count(j *Judge, p int, in Input) {
	lanes := j.c.replicas()
	pair := make([]bool, j.c.Ranks)
	for _, ids := range in.IDs {
		wanted := make([]bool, j.c.Ranks)
		for _, e := range ids {
			if e < 0 || j.owner[e]%lanes != p%lanes {
				continue
			}
			q := j.owner[e]
			out.Ranks[q].ExpertCounts[j.local[e]]++
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
