package moe

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
)

func TestOneRound(t *testing.T) {
	const ranks, experts, k, hidden, tokens = 4, 8, 3, 24, 16
	cs, err := NewLocal(context.Background(), ranks, Config{
		NumExperts: experts, TopK: k, Hidden: hidden, MaxTokens: tokens, DType: FP32, OutDType: FP32,
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for r, c := range cs {
		wg.Go(func() {
			defer c.Close()
			rng := rand.New(rand.NewPCG(1, uint64(r)))
			for round := range 20 {
				n := rng.IntN(tokens + 1)
				x := make([]float32, n*hidden)
				ids := make([]int32, n*k)
				w := make([]float32, n*k)
				for i := range x {
					x[i] = rng.Float32()
				}
				for i := range ids {
					ids[i] = int32(rng.IntN(experts+1)) - 1
					w[i] = rng.Float32()
				}
				b, err := c.Dispatch(0, Input{X: asBytes(x), IDs: ids, Weights: w, NumTokens: n})
				if err != nil {
					t.Error(err)
					return
				}
				in, out := asFloats(b.X), asFloats(b.Y)
				for i := range b.OutRows {
					e := b.RowExpert[i]
					if e < 0 {
						continue
					}
					g := float32(c.LocalExperts()[e] + 1)
					for h := range hidden {
						out[i*hidden+h] = in[i*hidden+h]*g + g
					}
				}
				y := make([]float32, n*hidden)
				if err := c.Combine(0, nil, 0, asBytes(y), 0); err != nil {
					t.Error(err)
					return
				}
				for tok := range n {
					for h := range hidden {
						var want float64
						for j := range k {
							if e := ids[tok*k+j]; e >= 0 {
								g := float64(e + 1)
								want += float64(w[tok*k+j]) * (float64(x[tok*hidden+h])*g + g)
							}
						}
						if got := float64(y[tok*hidden+h]); math.Abs(got-want) > 1e-4 {
							t.Error(fmt.Sprint(r, round, tok, h, got, want))
							return
						}
					}
				}
				if o := c.Outstanding(); o != 0 {
					t.Error("outstanding", o)
				}
			}
			t.Logf("%+v", c.Stats())
		})
	}
	wg.Wait()
}

func asBytes(f []float32) []byte {
	if len(f) == 0 {
		return nil
	}
	return bytesOf(f)
}
func asFloats(b []byte) []float32 { return float32s(b) }
