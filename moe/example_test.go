package moe_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"log"
	"math"
	"sync"

	"moerail/moe"
)

// pack and unpack are fp32 as bytes.
func pack(v ...float32) (b []byte) {
	for _, f := range v {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(f))
	}
	return b
}

func unpack(b []byte) (v []float32) {
	for ; len(b) > 0; b = b[4:] {
		v = append(v, math.Float32frombits(binary.LittleEndian.Uint32(b)))
	}
	return v
}

// runExperts is the model's part: expert e multiplies by e+1.
func runExperts(b *moe.Batch) {
	for row, local := range b.RowExpert {
		if local < 0 {
			continue // padding
		}
		scale := float32(b.Experts[local] + 1)
		y := b.Y[row*b.YStride:][:b.YStride]
		for i, x := range unpack(b.X[row*b.XStride:][:b.XStride]) {
			copy(y[4*i:], pack(scale*x))
		}
	}
}

// Two ranks in one process, two experts on each. A rank brings one token of two
// values and picks expert 0 (on rank 0) and expert 3 (on rank 1).
func Example() {
	ranks, err := moe.NewLocal(context.Background(), 2, moe.Config{
		NumExperts: 4, TopK: 2, Hidden: 2, MaxTokens: 8, DType: moe.FP32, OutDType: moe.FP32,
	}, nil)
	if err != nil {
		log.Fatal(err)
	}
	outs := make([][]byte, len(ranks))
	var wg sync.WaitGroup
	for r, c := range ranks {
		wg.Go(func() {
			defer c.Close()
			x := pack(float32(r+1), 10)
			b, err := c.Dispatch(0, moe.Input{X: x, IDs: []int32{0, 3}, Weights: []float32{0.5, 0.25}, NumTokens: 1})
			if err != nil {
				log.Fatal(err)
			}
			runExperts(b)
			outs[r] = make([]byte, 8)
			if err := c.Combine(0, nil, 0, outs[r], 0); err != nil {
				log.Fatal(err)
			}
		})
	}
	wg.Wait()
	for r, out := range outs {
		fmt.Println("rank", r, unpack(out))
	}
	// Output:
	// rank 0 [1.5 15]
	// rank 1 [3 15]
}

// Two micro-batches in flight: while the experts work on one, the other is on its
// way.
func Example_twoMicroBatches() {
	ranks, err := moe.NewLocal(context.Background(), 2, moe.Config{
		NumExperts: 2, TopK: 1, Hidden: 1, MaxTokens: 8, Slots: 2,
	}, nil)
	if err != nil {
		log.Fatal(err)
	}
	outs := make([][2][]byte, len(ranks))
	var wg sync.WaitGroup
	for r, c := range ranks {
		wg.Go(func() {
			defer c.Close()
			must := func(err error) {
				if err != nil {
					log.Fatal(err)
				}
			}
			other := int32(1 - r)
			must(c.DispatchSend(0, moe.Input{X: pack(1, 2), IDs: []int32{0, 1}, NumTokens: 2}))
			must(c.DispatchSend(1, moe.Input{X: pack(7), IDs: []int32{other}, NumTokens: 1}))
			for slot := range 2 {
				b, err := c.DispatchRecv(slot)
				must(err)
				runExperts(b)
				must(c.CombineSend(slot, nil, 0))
			}
			for slot, tokens := range []int{2, 1} {
				outs[r][slot] = make([]byte, 4*tokens)
				must(c.CombineRecv(slot, outs[r][slot], 0))
			}
		})
	}
	wg.Wait()
	for r := range ranks {
		fmt.Println("rank", r, unpack(outs[r][0]), unpack(outs[r][1]))
	}
	// Output:
	// rank 0 [1 4] [14]
	// rank 1 [1 4] [7]
}

// Experts move between ranks while the communicator lives on.
func ExampleCommunicator_SetPlacement() {
	ranks, err := moe.NewLocal(context.Background(), 2, moe.Config{
		NumExperts: 4, TopK: 1, Hidden: 8, MaxTokens: 8, MaxLocalExperts: 3,
	}, nil)
	if err != nil {
		log.Fatal(err)
	}
	var wg sync.WaitGroup
	for _, c := range ranks {
		wg.Go(func() {
			if err := c.SetPlacement(context.Background(), [][]int32{{3}, {0, 1, 2}}); err != nil {
				log.Fatal(err)
			}
		})
	}
	wg.Wait()
	for r, c := range ranks {
		fmt.Println("rank", r, "has experts", c.LocalExperts())
		c.Close()
	}
	// Output:
	// rank 0 has experts [3]
	// rank 1 has experts [0 1 2]
}
