package moe

import (
	"fmt"
	"runtime"
	"testing"
)

// TestRoundsDoNotAllocate: after a warm-up no rank allocates, also with two slots
// in flight, on any path.
func TestRoundsDoNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	for _, edit := range []func(*Config){
		func(*Config) {},
		func(c *Config) { c.RanksPerNode = 4 },
		func(c *Config) { c.RanksPerNode, c.Layout = 2, LayoutRows },
		func(c *Config) { c.WindowRows, c.ReduceAtHome = 3, true },
		func(c *Config) { c.Layout, c.DType, c.ScaleBlock, c.Replicas = LayoutBatched, FP8, 16, 2 },
	} {
		w := small(t, 4, func(s *setting) {
			s.nics, s.cfg.Slots, s.cfg.ShardBytes = 2, 2, 128
			edit(&s.cfg)
		})
		toks := w.ragged(8)
		ins, outs := make([]Input, 4), make([][2][]byte, 4)
		for r, tk := range toks {
			ins[r], outs[r] = tk.input(), [2][]byte{w.nanOut(tk.n), w.nanOut(tk.n)}
		}
		const rounds = 100
		span := func() (allocations uint64) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			w.each(func(r int, c *Communicator) error {
				for range rounds {
					if err := interleaved(c, ins[r], &outs[r]); err != nil {
						return err
					}
				}
				return nil
			})
			runtime.ReadMemStats(&after)
			return after.Mallocs - before.Mallocs
		}
		// A span itself starts goroutines, and the runtime grows its own caches for a
		// while; one allocation a round would show in every span.
		least := span()
		for i := 0; i < 10 && least > 20; i++ {
			least = min(least, span())
		}
		if least > 20 {
			t.Errorf("at least %d allocations in %d rounds of 4 ranks and 2 slots", least, rounds)
		}
	}
}

// interleaved is one round on each of two slots, under way at the same time.
func interleaved(c *Communicator, in Input, outs *[2][]byte) error {
	for slot := range 2 {
		if err := c.DispatchSend(slot, in); err != nil {
			return err
		}
	}
	for slot := range 2 {
		if _, err := c.DispatchRecv(slot); err != nil {
			return err
		}
		if err := c.CombineSend(slot, nil, 0); err != nil {
			return err
		}
	}
	for slot := range 2 {
		if err := c.CombineRecv(slot, outs[slot], 0); err != nil {
			return err
		}
	}
	return nil
}

// TestBytesOnTheWire: with windows that fit, at most two messages an ordered pair
// and round, and bytes within 3 % of payload and scales, both directions together.
func TestBytesOnTheWire(t *testing.T) {
	const ranks, hidden, n = 8, 7168, 32
	for _, d := range []struct {
		in, wire DType
		block    int
		payload  uint64 // of a row, with scales
	}{{BF16, BF16, 0, 2 * hidden}, {BF16, FP8, 128, hidden + 4*hidden/128}} {
		w := newWorld(t, setting{ranks: ranks, cfg: Config{
			NumExperts: 256, TopK: 8, Hidden: hidden, MaxTokens: n, InDType: d.in, DType: d.wire, ScaleBlock: d.block,
			OutDType: BF16, Layout: LayoutRows,
		}})
		toks := make([]tokens, ranks)
		var unique uint64
		for r := range toks {
			toks[r] = w.draw(n, drawIDs(w.rng, n, 8, 256))
		}
		rows, _ := w.rowsBetween(toks)
		before := w.wire()
		w.quiet(0, toks)
		var sent, messages uint64
		for r, after := range w.wire() {
			sent += after.bytes - before[r].bytes
			messages += after.messages - before[r].messages
			for q := range ranks {
				if q != r {
					unique += uint64(rows[r][q])
				}
			}
		}
		ideal := unique * (d.payload + 2*hidden)
		if messages > 2*ranks*(ranks-1) {
			t.Errorf("%d messages for %d pairs", messages, ranks*(ranks-1))
		}
		if ratio := float64(sent) / float64(ideal); ratio > 1.03 {
			t.Errorf("%s: %d bytes for %d, %.4f times", DTypeName(d.wire), sent, ideal, ratio)
		}
		checkStats(t, w, toks, rows)
	}
}

// checkStats compares the statistics of the one round that was made with the ids.
func checkStats(t *testing.T, w *world, toks []tokens, rows [][]int) {
	t.Helper()
	want := w.count(toks)
	for r, c := range w.cs {
		st := c.Stats()
		var unique, crossed, picks uint64
		for q, n := range rows[r] {
			unique += uint64(n)
			if q != r {
				crossed += uint64(n)
			}
		}
		for e, n := range want.picks[r] {
			picks += uint64(n)
			if st.ExpertPicks[e] != uint64(n) {
				t.Errorf("rank %d expert %d: %d picks, want %d", r, e, st.ExpertPicks[e], n)
			}
		}
		sh := &c.plan.Shape
		local := uint64(rows[r][r]) * uint64(sh.RowBytes+sh.ReturnRowBytes)
		got := fmt.Sprint(st.Rounds, st.UniqueRows, st.Rows, st.ReceivedPicks, st.LocalBytes, st.Messages == w.wire()[r].messages, st.Bytes == w.wire()[r].bytes)
		if wanted := fmt.Sprint(1, unique, crossed, picks, local, true, true); got != wanted {
			t.Errorf("rank %d: statistics %s, want %s", r, got, wanted)
		}
		for q := range rows {
			if st.SourceRows[q] != uint64(rows[q][r]) {
				t.Errorf("rank %d: %d rows from rank %d, want %d", r, st.SourceRows[q], q, rows[q][r])
			}
		}
	}
}

// TestLocalBytesOnOneNode: what is stored directly is counted apart, and nothing
// crosses the fabric.
func TestLocalBytesOnOneNode(t *testing.T) {
	for _, home := range []bool{false, true} {
		w := small(t, 4, func(s *setting) { s.cfg.RanksPerNode, s.cfg.ReduceAtHome, s.cfg.Replicas = 4, home, 2 })
		toks := w.ragged(8)
		w.round(0, toks)
		rows, picks := w.rowsBetween(toks)
		for r, c := range w.cs {
			sh := &c.plan.Shape
			var want uint64
			for q := range 4 {
				back := rows[q][r]
				if home {
					back = picks[q][r]
				}
				want += uint64(back) * uint64(sh.ReturnRowBytes)
				if w.sameLane(r, q) {
					want += uint64(rows[r][q]) * uint64(sh.RowBytes)
				}
			}
			if st := c.Stats(); st.LocalBytes != want || st.Messages != 0 || st.Rows != 0 {
				t.Errorf("rank %d: %d local bytes, %d messages, want %d and none", r, st.LocalBytes, st.Messages, want)
			}
			for _, p := range c.Paths() {
				if name := map[bool]string{true: "self", false: "direct"}[p.To == r]; p.Name != name {
					t.Errorf("rank %d: path %+v, want %s", r, p, name)
				}
			}
		}
	}
}
