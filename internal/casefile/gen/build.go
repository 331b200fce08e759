package main

import (
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"time"

	"moerail/internal/casefile"
)

// builder makes one case. Numbers come from a stream of the case's own, named
// after it, so that adding a case changes no other.
type builder struct {
	c *casefile.Case
	r *rand.Rand
}

func newCase(name string, ranks, experts, topK, hidden int) *builder {
	h := fnv.New64a()
	h.Write([]byte(name))
	c := &casefile.Case{Ranks: ranks, Fabric: "loopback", Deadline: 10 * time.Second, OnFailure: "stop", Params: casefile.Params{
		Experts: experts, TopK: topK, Hidden: hidden, MaxTokens: 8, DType: "fp32", OutDType: "fp32", Layout: "grouped",
		ExpertAlignment: 1, Reduce: "expert", ApplyWeights: true, Replicas: 1, NICs: 1, Slots: 1}}
	for e := range experts {
		c.Scale = append(c.Scale, decimal(0.75+float64(e)*0.11, 2))
		c.Bias = append(c.Bias, decimal(float64(e)*0.3-0.7, 1))
	}
	return &builder{c: c, r: rand.New(rand.NewPCG(h.Sum64(), 0))}
}

// decimal rounds v to a number of decimals, for short files.
func decimal(v float64, places int) float32 {
	p := math.Pow(10, float64(places))
	return float32(math.Round(v*p) / p)
}

// x draws one token, of values that no 16-bit format holds exactly.
func (b *builder) x() []float32 {
	row := make([]float32, b.c.Hidden)
	for h := range row {
		row[h] = decimal(b.r.NormFloat64(), 3)
	}
	return row
}

// distinct draws TopK different experts; missing makes about one in six -1.
func (b *builder) distinct(missing bool) []int32 {
	row := make([]int32, b.c.TopK)
	for k, e := range b.r.Perm(b.c.Experts)[:min(b.c.TopK, b.c.Experts)] {
		row[k] = int32(e)
	}
	for k := range row {
		if k >= b.c.Experts || missing && b.r.IntN(6) == 0 {
			row[k] = -1
		}
	}
	return row
}

func (b *builder) weights() []float32 {
	row := make([]float32, b.c.TopK)
	for k := range row {
		row[k] = decimal(0.05+0.9*b.r.Float64(), 2)
	}
	return row
}

// token appends a token with the given picks.
func (b *builder) token(in *casefile.RankInput, ids ...int32) {
	in.X = append(in.X, b.x())
	in.IDs = append(in.IDs, ids)
	in.Weights = append(in.Weights, b.weights())
}

// round appends a round in which rank p brings tokens[p] tokens with the picks
// that pick gives.
func (b *builder) round(tokens []int, pick func(rank, token int) []int32) *casefile.Round {
	r := casefile.Round{Repeat: 1, Ranks: make([]casefile.RankInput, b.c.Ranks)}
	for p, n := range tokens {
		for t := range n {
			b.token(&r.Ranks[p], pick(p, t)...)
		}
	}
	b.c.Rounds = append(b.c.Rounds, r)
	return &b.c.Rounds[len(b.c.Rounds)-1]
}

// mixed appends a round of distinct picks, some of them missing.
func (b *builder) mixed(tokens ...int) *casefile.Round {
	return b.round(tokens, func(int, int) []int32 { return b.distinct(true) })
}

// full appends a round of distinct picks, none missing.
func (b *builder) full(tokens ...int) *casefile.Round {
	return b.round(tokens, func(int, int) []int32 { return b.distinct(false) })
}

// copies makes the ranks of each replica group bring what its first brings.
func (b *builder) copies(r *casefile.Round) {
	for p := range r.Ranks {
		r.Ranks[p] = r.Ranks[p-p%b.c.Replicas]
	}
}

func same(n, tokens int) []int {
	list := make([]int, n)
	for i := range list {
		list[i] = tokens
	}
	return list
}

// unordered turns on delivery in any order with delays.
func (b *builder) unordered(seed uint64, most time.Duration) {
	b.c.Faults.Seed, b.c.Faults.Reorder, b.c.Faults.DelayMax = seed, true, most
}

func name(format string, args ...any) string { return fmt.Sprintf(format, args...) }
