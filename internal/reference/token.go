package reference

import "slices"

// Judge evaluates single tokens. It is immutable: any goroutine may use it.
type Judge struct {
	c            Config
	place        [][]int32 // [Ranks] experts in the rank's own order
	owner, local []int     // [Experts] rank of an expert, and its place there
}

// NewJudge checks c and returns its judge. The judge keeps c's slices.
func NewJudge(c Config) (*Judge, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	j := &Judge{c: c, place: c.experts(), owner: make([]int, c.Experts), local: make([]int, c.Experts)}
	for q, list := range j.place {
		for i, e := range list {
			j.owner[e], j.local[e] = q, i
		}
	}
	return j, nil
}

// expert is one expert's output for one element, a value of OutDType.
func (j *Judge) expert(e int32, x float32) float32 {
	scaled := float32(j.c.Scale[e] * x) // the conversion forbids a fused multiply-add
	return Round(float32(scaled+j.c.Bias[e]), j.c.OutDType)
}

// term is what one pick adds to a sum, rounded to fp32.
func (j *Judge) term(y float32, w []float32, k int) float32 {
	if j.c.ApplyWeights {
		return float32(w[k] * y)
	}
	return y
}

// Exact returns one token's result, [Hidden] new values, in the stated
// arithmetic and order; see the function Exact. x is [Hidden] before conversion,
// ids [TopK] within range, w [TopK] or nil without ApplyWeights.
func (j *Judge) Exact(x []float32, ids []int32, w []float32) []float32 {
	seen := Convert(x, j.c.DType, j.c.ScaleBlock)
	out := make([]float32, j.c.Hidden)
	if j.c.ReduceAtHome {
		for h := range out {
			var sum float32
			for k, e := range ids {
				if e >= 0 {
					sum = float32(sum + j.term(j.expert(e, seen[h]), w, k))
				}
			}
			out[h] = Round(sum, j.c.OutDType)
		}
		return out
	}
	ranks := j.destinations(ids)
	for h := range out {
		var sum float32
		for _, q := range ranks {
			var partial float32
			for k, e := range ids {
				if e >= 0 && j.owner[e] == q {
					partial = float32(partial + j.term(j.expert(e, seen[h]), w, k))
				}
			}
			sum = float32(sum + Round(partial, j.c.OutDType))
		}
		out[h] = Round(sum, j.c.OutDType)
	}
	return out
}

// destinations returns the ranks that serve a token, each once, ascending.
func (j *Judge) destinations(ids []int32) []int {
	var ranks []int
	for _, e := range ids {
		if e >= 0 && !slices.Contains(ranks, j.owner[e]) {
			ranks = append(ranks, j.owner[e])
		}
	}
	slices.Sort(ranks)
	return ranks
}
