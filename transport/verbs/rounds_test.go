//go:build verbs && cgo && linux

package verbs

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"moerail/internal/ibv/ibvfake"
	"moerail/moe"
)

// rounds takes ranks, each with NICs of its own node, through rounds of dispatch
// and combine. Expert e multiplies by e+1, so that each output says which
// experts have seen its token.
func rounds(t *testing.T, p *Provider, ranks, nodes, nics, times int) {
	t.Helper()
	const experts, hidden, tokens = 16, 96, 24
	ctx, cancel := context.WithTimeout(context.Background(), 4*patience)
	defer cancel()
	comms, err := moe.NewLocal(ctx, ranks, moe.Config{
		Provider: p, NumExperts: experts, TopK: 2, Hidden: hidden, MaxTokens: tokens, DType: moe.FP32, OutDType: moe.FP32,
	}, func(r int, c *moe.Config) {
		c.NICs = nil
		for k := range nics {
			c.NICs = append(c.NICs, p.nics[r%nodes*nics+k].Name)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	errs := make([]error, ranks)
	var wg sync.WaitGroup
	for r, c := range comms {
		wg.Go(func() {
			for n := range times {
				if errs[r] = round(c, r, n, experts, hidden, (tokens+r+n)%(tokens+1)); errs[r] != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	for r, err := range errs {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
		if err := comms[r].Close(); err != nil {
			t.Errorf("rank %d: close: %v", r, err)
		}
	}
}

func round(c *moe.Communicator, r, n, experts, hidden, tokens int) error {
	x, out := make([]byte, 4*hidden*tokens), make([]byte, 4*hidden*tokens)
	var ids []int32
	var weights []float32
	value := func(tok, i int) float32 { return float32(r*1000 + n*100 + tok*4 + i%4) }
	for tok := range tokens {
		for i := range hidden {
			binary.LittleEndian.PutUint32(x[4*(tok*hidden+i):], math.Float32bits(value(tok, i)))
		}
		a := (r + n + tok) % experts
		ids = append(ids, int32(a), int32((a+1+tok%(experts-1))%experts))
		weights = append(weights, 0.5, 0.25)
	}
	b, err := c.Dispatch(0, moe.Input{X: x, IDs: ids, Weights: weights, NumTokens: tokens})
	if err != nil {
		return err
	}
	for row, local := range b.RowExpert {
		if local < 0 {
			continue
		}
		scale := float32(b.Experts[local] + 1)
		for i := range hidden {
			v := math.Float32frombits(binary.LittleEndian.Uint32(b.X[row*b.XStride+4*i:]))
			binary.LittleEndian.PutUint32(b.Y[row*b.YStride+4*i:], math.Float32bits(scale*v))
		}
	}
	if err := c.Combine(0, nil, 0, out, 0); err != nil {
		return err
	}
	for tok := range tokens {
		for i := range hidden { // small integers and powers of two: exact
			scale := 0.5*float32(ids[2*tok]+1) + 0.25*float32(ids[2*tok+1]+1)
			if got, want := math.Float32frombits(binary.LittleEndian.Uint32(out[4*(tok*hidden+i):])), scale*value(tok, i); got != want {
				return fmt.Errorf("round %d, token %d, element %d: %v, want %v", n, tok, i, got, want)
			}
		}
	}
	return nil
}

func TestRoundsOnFakeDevices(t *testing.T) {
	for _, nics := range []int{1, 2} {
		p := fakeProvider(t, 4*nics, DefaultConfig())
		rounds(t, p, 4, 4, nics, 20)
		// Every rank sends a block to three others each way: it went over the NICs.
		if n := ibvfake.Count(ibvfake.CallNamed("ibv_post_send")); n < 4*20*2 {
			t.Errorf("%d posts for 20 rounds of 4 ranks", n)
		}
	}
}

func TestRounds_RDMA(t *testing.T) {
	p := needDevices(t, DefaultConfig())
	nodes, nics := topology(t, p)
	for _, ranks := range []int{8, 4} {
		start, before := time.Now(), p.NICs()
		rounds(t, p, ranks, nodes, nics, 10)
		t.Logf("%d ranks on %d nodes of %d devices (%s, ...): %v", ranks, nodes, nics, before[0].Name, time.Since(start))
	}
}
