package moe

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"moerail/transport/loopback"
)

// unkind is a fabric that does everything that the contract allows.
func unkind(rng *rand.Rand) loopback.Config {
	c := loopback.Config{MaxSend: 2 + rng.IntN(15), Faults: &loopback.Faults{
		Seed: rng.Uint64(), Reorder: true, Completion: loopback.CompletionMode(rng.IntN(4)), TrapSource: true,
	}}
	if rng.IntN(2) == 0 {
		c.Faults.PacketBytes = uint64(64 + rng.IntN(4000))
	}
	if rng.IntN(2) == 0 {
		c.Faults.DelayMax = time.Duration(rng.IntN(100)) * time.Microsecond
	}
	if rng.IntN(2) == 0 {
		c.Faults.ImmReceives = 1 + rng.IntN(4)
	}
	return c
}

// randomSetting draws a communicator; every choice is independent of the others.
func randomSetting(seed uint64) setting {
	rng := rand.New(rand.NewPCG(seed, 5))
	s := setting{ranks: 1 + rng.IntN(8), nics: 1 + rng.IntN(4), seed: seed}
	c := &s.cfg
	c.Deadline = 20 * time.Second
	c.TopK, c.Hidden, c.MaxTokens = 1+rng.IntN(6), 1+rng.IntN(90), 1+rng.IntN(12)
	c.NumExperts = 1 + rng.IntN(3*s.ranks)
	types := []DType{FP32, BF16, FP16}
	c.DType, c.OutDType = types[rng.IntN(3)], types[rng.IntN(3)]
	c.InDType = c.DType
	switch rng.IntN(4) {
	case 0:
		c.InDType, c.DType, c.ScaleBlock = types[rng.IntN(3)], FP8, 1+rng.IntN(40)
	case 1:
		c.InDType, c.DType, c.ScaleBytes = FP8, FP8, 1+rng.IntN(9)
	}
	c.Layout = Layout(rng.IntN(3))
	c.ExpertAlignment = 1 + rng.IntN(5)
	c.ZeroFill, c.ReduceAtHome, c.IgnoreWeights = rng.IntN(2) == 0, rng.IntN(2) == 0, rng.IntN(4) == 0
	c.Slots, c.RanksPerNode = 1+rng.IntN(3), []int{1, 1, 2, 3, 8}[rng.IntN(5)]
	if rng.IntN(3) == 0 {
		c.WindowRows = 1 + rng.IntN(c.MaxTokens)
	}
	if rng.IntN(3) == 0 {
		c.ShardBytes = 64 + rng.IntN(2000)
	}
	for _, rep := range []int{2, 4} {
		if s.ranks%rep == 0 && rng.IntN(3) == 0 {
			c.Replicas = rep
		}
	}
	if rng.IntN(3) == 0 {
		c.Placement = make([][]int32, s.ranks)
		for _, e := range rng.Perm(c.NumExperts) {
			q := rng.IntN(s.ranks)
			c.Placement[q] = append(c.Placement[q], int32(e))
		}
		if rng.IntN(2) == 0 {
			c.MaxLocalExperts = c.NumExperts
		}
	}
	c.FirstRound = []uint64{0, 0, 1, 254, 1<<32 - 2}[rng.IntN(5)]
	if rng.IntN(2) == 0 {
		s.fabric = unkind(rng)
	}
	return s
}

// TestRoundsOfRandomSettings runs rounds of every combination of options over
// kind and unkind fabrics.
func TestRoundsOfRandomSettings(t *testing.T) {
	n := 400
	if testing.Short() {
		n = 80
	}
	if raceEnabled {
		n /= 4
	}
	for seed := range uint64(n) {
		s := randomSetting(seed)
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			defer func() {
				if t.Failed() {
					t.Logf("ranks %d, NICs %d, %+v, fabric %+v", s.ranks, s.nics, s.cfg, s.fabric.Faults)
				}
			}()
			w := newWorld(t, s)
			for i := range 4 {
				w.round(i%max(s.cfg.Slots, 1), w.ragged(s.cfg.MaxTokens))
			}
		})
	}
}
