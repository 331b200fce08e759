package moe

import (
	"fmt"
	"testing"
	"time"

	"moerail/transport/loopback"
)

// TestCountersOverTheirEdges: EP-27. Sixteen rounds over every width that a
// counter could have.
func TestCountersOverTheirEdges(t *testing.T) {
	for _, edge := range []uint64{1 << 8, 1 << 15, 1 << 16, 1 << 31, 1 << 32, 1 << 40, 1 << 62} {
		for _, variant := range []struct {
			node, window int
			home         bool
		}{{1, 0, false}, {4, 0, true}, {2, 0, false}, {1, 2, false}} {
			w := small(t, 4, func(s *setting) {
				s.cfg.FirstRound, s.cfg.Slots = edge-8, 2
				s.cfg.RanksPerNode, s.cfg.WindowRows, s.cfg.ReduceAtHome = variant.node, variant.window, variant.home
			})
			for i := range 32 {
				w.round(i%2, w.ragged(5))
			}
			for _, s := range w.cs[0].slots {
				if got := s.round.Load(); got != edge+8 {
					t.Fatalf("slot %d stands at round %d, want %d", s.index, got, edge+8)
				}
			}
			w.close()
		}
	}
}

// TestManyRoundsBalance: EP-61. Every operation is waited for once, and no source
// is written while a send still reads it: the fabric completes late and looks.
func TestManyRoundsBalance(t *testing.T) {
	rounds := 1000
	if testing.Short() {
		rounds = 60
	}
	w := small(t, 3, func(s *setting) {
		s.nics, s.cfg.ShardBytes = 2, 256
		s.fabric.Faults = &loopback.Faults{Seed: 61, Reorder: true, DelayMax: 200 * time.Microsecond,
			Completion: loopback.CompleteLate, TrapSource: true, PacketBytes: 200}
	})
	toks := make([][]tokens, 8)
	for i := range toks {
		toks[i] = w.ragged(8)
	}
	for i := range rounds {
		w.round(0, toks[i%len(toks)])
	}
	for r, c := range w.cs {
		if st := c.engine.Stats(); st.StrayCompletions != 0 || st.ImmsLost != 0 || st.ImmsStale != 0 {
			t.Errorf("rank %d: %+v", r, st)
		}
		if st := c.Stats(); st.Rounds != uint64(rounds) {
			t.Errorf("rank %d counts %d rounds of %d", r, st.Rounds, rounds)
		}
	}
}

// TestDirectStoresWaitForTheReader: EP-62. A rank that pauses before it receives,
// and before it combines, finds its rows as they were sent: nobody stores into
// them meanwhile, though the others go on as far as they can.
func TestDirectStoresWaitForTheReader(t *testing.T) {
	for _, node := range []int{2, 4} {
		w := small(t, 4, func(s *setting) { s.cfg.RanksPerNode = node })
		const rounds = 12
		toks := make([][]tokens, rounds)
		outs := make([][][]byte, rounds)
		for i := range toks {
			toks[i], outs[i] = w.ragged(8), make([][]byte, 4)
		}
		w.each(func(r int, c *Communicator) error {
			for i := range rounds {
				rest := func(phase int) {
					if (i+phase)%4 == r {
						time.Sleep(5 * time.Millisecond)
					}
				}
				if err := c.DispatchSend(0, toks[i][r].input()); err != nil {
					return err
				}
				rest(0)
				b, err := c.DispatchRecv(0)
				if err != nil {
					return err
				}
				rest(1)
				if err := w.experts(c, b); err != nil {
					return err
				}
				if err := c.CombineSend(0, nil, 0); err != nil {
					return err
				}
				rest(2)
				outs[i][r] = w.nanOut(toks[i][r].n)
				if err := c.CombineRecv(0, outs[i][r], 0); err != nil {
					return err
				}
			}
			return nil
		})
		for i := range toks {
			for r := range 4 {
				w.checkOut(r, toks[i][r], outs[i][r])
			}
		}
	}
}

// TestTheSameBitsInEveryOrder: EP-20, EP-26. Results do not depend on the order
// of delivery, on how often it is run, on NICs, on paths, on slots, nor on what
// other ranks bring along.
func TestTheSameBitsInEveryOrder(t *testing.T) {
	for _, home := range []bool{false, true} {
		var first uint64
		run := func(name string, seed uint64, edit func(*setting), others int) {
			w := small(t, 4, func(s *setting) {
				s.cfg.Hidden, s.cfg.TopK, s.cfg.DType, s.cfg.OutDType = 40, 4, BF16, BF16
				s.cfg.ReduceAtHome, s.cfg.MaxTokens, s.cfg.Slots = home, 16, 2
				edit(s)
			})
			toks := w.ragged(8)
			if others >= 0 { // ranks 1 to 3 bring something else
				toks = append(toks[:1], toks...)[:4]
				w.rng = newRand(uint64(others))
				for r := 1; r < 4; r++ {
					n := w.rng.IntN(17)
					toks[r] = w.draw(n, drawIDs(w.rng, n, 4, 8))
				}
			}
			outs := w.round(int(seed%2), toks)
			got := hashOf(outs[0])
			if first == 0 {
				first = got
			}
			if got != first {
				t.Fatalf("%s, seed %d: other bits than the first run", name, seed)
			}
			w.close()
		}
		for seed := range uint64(20) {
			run("order", seed, func(s *setting) {
				s.nics = 1 + int(seed%4)
				s.cfg.ShardBytes = 200
				s.fabric = unkind(newRand(seed))
			}, -1)
			run("others", seed, func(*setting) {}, int(seed))
		}
		for i, layout := range []Layout{LayoutGrouped, LayoutBatched, LayoutRows} {
			run(fmt.Sprint("layout ", i), 0, func(s *setting) { s.cfg.Layout = layout }, -1)
		}
		run("direct", 0, func(s *setting) { s.cfg.RanksPerNode = 4 }, -1)
		run("exact", 0, func(s *setting) { s.cfg.WindowRows = 2 }, -1)
	}
}
