package moe

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
)

// BenchmarkRound is whole rounds of every rank in this process, without experts.
func BenchmarkRound(b *testing.B) {
	for _, tokens := range []int{1, 128} {
		for _, layout := range []Layout{LayoutRows, LayoutGrouped} {
			for _, node := range []int{1, 8} {
				b.Run(fmt.Sprintf("tokens=%d/%s/node=%d", tokens, LayoutName(layout), node), func(b *testing.B) {
					benchRound(b, 8, tokens, layout, node)
				})
			}
		}
	}
}

// benchRanks makes communicators, and an input and an output for each.
func benchRanks(b *testing.B, ranks, tokens int, layout Layout, node int) ([]*Communicator, []benchRank) {
	const experts, k, hidden = 256, 8, 7168
	cs, err := NewLocal(benchContext(b), ranks, Config{
		NumExperts: experts, TopK: k, Hidden: hidden, MaxTokens: tokens, DType: BF16, OutDType: BF16,
		Layout: layout, RanksPerNode: node,
	}, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		for _, c := range cs {
			c.Close()
		}
	})
	rs := make([]benchRank, ranks)
	for r := range rs {
		rng := rand.New(rand.NewPCG(1, uint64(r)))
		in := Input{X: make([]byte, tokens*hidden*2), IDs: make([]int32, tokens*k), Weights: make([]float32, tokens*k), NumTokens: tokens}
		for t := range tokens {
			copy(in.IDs[t*k:], perm32(rng, experts)[:k])
		}
		for i := range in.Weights {
			in.Weights[i] = rng.Float32()
		}
		rs[r] = benchRank{in, make([]byte, tokens*hidden*2)}
	}
	return cs, rs
}

func benchRound(b *testing.B, ranks, tokens int, layout Layout, node int) {
	cs, rs := benchRanks(b, ranks, tokens, layout, node)
	round := func(n int) {
		var wg sync.WaitGroup
		for r, c := range cs {
			wg.Go(func() {
				for range n {
					if _, err := c.Dispatch(0, rs[r].in); err != nil {
						b.Error(err)
						return
					}
					if err := c.Combine(0, nil, 0, rs[r].out, 0); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
	}
	round(3)
	b.ReportAllocs()
	b.ResetTimer()
	round(b.N)
}

func perm32(rng *rand.Rand, n int) []int32 {
	p := make([]int32, n)
	for i, v := range rng.Perm(n) {
		p[i] = int32(v)
	}
	return p
}
