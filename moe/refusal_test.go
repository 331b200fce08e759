package moe

import (
	"fmt"
	"math"
	"testing"

	"moerail/internal/reference"
)

// TestBadExpertIDs: EP-03, EP-04, EP-05. One rank's bad id refuses that rank's
// input, names token and pick, and harms nobody.
func TestBadExpertIDs(t *testing.T) {
	const ranks, experts = 4, 8
	w := small(t, ranks, nil)
	ids := [][]int64{{experts}, {math.MaxInt32}, {-2}, {-7}, {math.MinInt32}, {1 << 32}, {math.MaxInt64}, {math.MinInt64}, {1<<32 - 1}}
	for i, bad := range ids {
		guilty := i % ranks
		toks := w.ragged(8)
		toks[guilty] = w.draw(6, drawIDs(w.rng, 6, 2, experts))
		served := append([]tokens(nil), toks...)
		served[guilty] = w.draw(0, nil)
		want := w.count(served)
		outs := make([][]byte, ranks)
		w.each(func(r int, c *Communicator) error {
			in := toks[r].input()
			if r == guilty {
				in.IDs, in.IDsU32, in.IDs64 = nil, nil, make([]int64, 12)
				for j, id := range toks[r].ids {
					in.IDs64[j] = int64(id)
				}
				in.IDs64[7] = bad[0]
			}
			b, err := c.Dispatch(0, in)
			if r == guilty {
				re := wantCode(t, err, CodeInvalidExpert, PhaseDispatchSend)
				if re.Token != 3 || re.Pick != 1 || len(re.Ranks) != 1 || re.Ranks[0] != r {
					return fmt.Errorf("error %+v, want token 3, pick 1, rank %d", re, r)
				}
			} else if err != nil {
				return err
			}
			if err := w.checkBatch(r, b, want); err != nil {
				return err
			}
			if err := w.experts(c, b); err != nil {
				return err
			}
			outs[r] = w.nanOut(toks[r].n)
			if err = c.Combine(0, nil, 0, outs[r], 0); r == guilty {
				wantCode(t, err, CodeInvalidExpert, PhaseDispatchSend)
				return nil
			}
			return err
		})
		for r := range toks {
			if r == guilty {
				if string(outs[r]) != string(w.nanOut(6)) {
					t.Fatal("the output of a refused input was written")
				}
				continue
			}
			w.checkOut(r, toks[r], outs[r])
		}
		w.round(0, w.ragged(8))
	}
}

// TestOverflowOfWindowsIsToldEverywhere: EP-16. More than MaxRecvRows at one rank
// ends the round on every rank with the same error; the next is right.
func TestOverflowOfWindowsIsToldEverywhere(t *testing.T) {
	for i, ranks := range []int{2, 2, 5, 5} {
		w := small(t, ranks, func(s *setting) {
			s.cfg.MaxRecvRows, s.cfg.Slots, s.cfg.RanksPerNode = 4*ranks, 2, 1+i%3
			s.cfg.WindowRows = 3 * (i % 2) // 0 is windows that hold everything
		})
		for i := range 6 {
			slot := i % 2
			toks := make([]tokens, ranks)
			for r := range toks {
				ids := make([]int32, 16) // expert 0 for everybody
				toks[r] = w.draw(8, ids)
			}
			in := make([]reference.Input, ranks)
			for r, tk := range toks {
				in[r] = reference.Input{X: reference.Rows(tk.x, 24), IDs: reference.Rows(tk.ids, 2), Weights: reference.Rows(tk.w, 2)}
			}
			judged, err := reference.Count(w.ref, in)
			if err != nil || judged.Ranks[0].Err == nil {
				t.Fatalf("the oracle sees no overflow: %v", err)
			}
			w.each(func(r int, c *Communicator) error {
				b, err := c.Dispatch(slot, toks[r].input())
				re := wantCode(t, err, CodeOverflow, PhaseDispatchRecv)
				if b != nil || len(re.Ranks) != 1 || re.Ranks[0] != 0 {
					return fmt.Errorf("batch %v, error %+v", b, re)
				}
				if n := c.Outstanding(); n != 0 {
					return fmt.Errorf("%d operations outstanding", n)
				}
				wantCode(t, c.CombineSend(slot, nil, 0), CodePhaseOrder, PhaseCombineSend)
				return c.Abort(slot)
			})
			w.round(slot, w.ragged(4))
		}
	}
}

// TestOverflowOfExpertRows: a rank whose expert buffers are too small says so; the
// others get NaN for what they sent there, and right sums for the rest.
func TestOverflowOfExpertRows(t *testing.T) {
	for _, layout := range []Layout{LayoutGrouped, LayoutBatched, LayoutRows} {
		for _, home := range []bool{false, true} {
			w := small(t, 3, func(s *setting) {
				s.cfg.Layout, s.cfg.ReduceAtHome = layout, home
				s.cfg.MaxExpertRows, s.cfg.ExpertCapacity = 20, 20
			})
			var toks []tokens
			for range 3 {
				ids := make([]int32, 16)
				for i := range ids {
					ids[i] = 1 // 16 picks a rank, 48 at rank 0
					if i >= 8 {
						ids[i] = int32(2 + i%4) // the last four tokens go elsewhere
					}
				}
				toks = append(toks, w.draw(8, ids))
			}
			outs := make([][]byte, 3)
			w.each(func(r int, c *Communicator) error {
				b, err := c.Dispatch(0, toks[r].input())
				if r == 0 {
					wantCode(t, err, CodeOverflow, PhaseDispatchRecv)
				} else if err != nil {
					return err
				}
				if err := w.experts(c, b); err != nil {
					return err
				}
				if r == 0 { // the sums of this rank's own tokens are written: out must hold them
					if err := c.CombineSend(0, nil, 0); err != nil {
						return err
					}
					wantCode(t, c.CombineRecv(0, nil, 0), CodeShape, PhaseCombineRecv)
				}
				outs[r] = w.nanOut(8)
				for i := range outs[r] {
					outs[r][i] = 0x11
				}
				if r == 0 {
					wantCode(t, c.CombineRecv(0, outs[r], 0), CodeOverflow, PhaseDispatchRecv)
					return nil
				}
				return c.Combine(0, nil, 0, outs[r], 0)
			})
			for r := range toks {
				got := decode(nil, outs[r], FP32)
				for i, v := range got[:4*24] {
					if v == v {
						t.Fatalf("rank %d value %d is %v, want NaN", r, i, v)
					}
				}
				rest := toks[r]
				rest.n, rest.x, rest.ids, rest.w = 4, rest.x[4*24:], rest.ids[8:], rest.w[8:]
				w.checkOut(r, rest, outs[r][4*24*4:])
			}
			w.round(0, w.ragged(2))
		}
	}
}

// TestSpecialValuesAreCarried: NaN and infinities go through like any other value.
func TestSpecialValuesAreCarried(t *testing.T) {
	for _, d := range []DType{FP32, BF16, FP16} {
		w := small(t, 3, func(s *setting) { s.cfg.DType, s.cfg.OutDType = d, d })
		toks := w.ragged(8)
		for r := range toks {
			for i := range toks[r].x {
				switch w.rng.IntN(6) {
				case 0:
					toks[r].x[i] = float32(math.NaN())
				case 1:
					toks[r].x[i] = float32(math.Inf(1 - 2*w.rng.IntN(2)))
				case 2:
					toks[r].x[i] = float32(math.Copysign(0, -1))
				}
			}
			toks[r].encode(&w.cs[0].cfg)
		}
		w.round(0, toks)
	}
}
