package host

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"moerail/kernels/abi"
)

func allDirect(p, q int) bool { return true }
func sameNode2(p, q int) bool { return p/2 == q/2 }
func sameNode3(p, q int) bool { return p/3 == q/3 }

// randomConfig draws a communicator; every choice is independent of the others.
func randomConfig(r *rand.Rand) worldConfig {
	c := worldConfig{ranks: 1 + r.IntN(5), topK: 1 + r.IntN(4), hidden: 1 + r.IntN(70), maxTokens: 1 + r.IntN(9)}
	c.experts = 1 + r.IntN(12)
	types := []abi.DType{abi.FP32, abi.BF16, abi.FP16}
	c.in = types[r.IntN(3)]
	c.wire, c.out = c.in, types[r.IntN(3)]
	switch r.IntN(4) {
	case 0:
		c.wire, c.scaleBlock = abi.FP8, 1+r.IntN(40)
	case 1:
		c.in, c.wire, c.sideBytes = abi.FP8, abi.FP8, 1+r.IntN(9)
	}
	c.layout = abi.Layout(r.IntN(3))
	c.atHome, c.unweighted, c.zeroFill, c.accum = r.IntN(2) == 0, r.IntN(4) == 0, r.IntN(2) == 0, r.IntN(3) == 0
	c.align = 1 + r.IntN(5)
	if r.IntN(3) == 0 {
		c.windowRows = 1 + r.IntN(c.maxTokens)
	}
	c.direct = []func(int, int) bool{nil, allDirect, sameNode2, sameNode3}[r.IntN(4)]
	c.idType = abi.IDType(r.IntN(3))
	c.tokensFromMemory = r.IntN(2) == 0
	if c.ranks%2 == 0 && r.IntN(3) == 0 {
		c.replicas = 2
	}
	c.firstRound = []uint64{0, 1, 255, 1<<16 - 2, 1<<31 - 2, 1<<32 - 2, 1<<40 + 1}[r.IntN(7)]
	if r.IntN(2) == 0 {
		c.device.CacheBytes = 1 // every stage writes around the caches
	}
	if r.IntN(8) == 0 {
		c.hidden += 1000 // rows large enough for it
	}
	return c
}

func TestRoundsOfRandomShapes(t *testing.T) {
	n := 300
	if testing.Short() {
		n = 60
	}
	for seed := range uint64(n) {
		r := rand.New(rand.NewPCG(seed, 1))
		c := randomConfig(r)
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			defer func() {
				if t.Failed() {
					t.Logf("%+v", c)
				}
			}()
			w := newWorld(t, c, seed)
			for range 4 {
				w.randomTokens()
				w.runRound()
			}
		})
	}
}
