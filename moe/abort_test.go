package moe

import (
	"math"
	"sync/atomic"
	"testing"

	"moerail/internal/reference"
	"moerail/kernels"
	"moerail/kernels/abi"
	"moerail/kernels/host"
)

// TestAbortInEveryPhase: the aborting rank is done at once, nobody hangs, whoever
// needed its experts gets NaN unless it had sent them, and the next round is right.
func TestAbortInEveryPhase(t *testing.T) {
	for _, node := range []int{1, 3} {
		for _, home := range []bool{false, true} {
			for _, layout := range []Layout{LayoutGrouped, LayoutRows} {
				w := small(t, 3, func(s *setting) {
					s.cfg.RanksPerNode, s.cfg.ReduceAtHome, s.cfg.Layout = node, home, layout
				})
				for _, at := range []phase{phaseSent, phaseReceived, phaseCombined} {
					abortAt(t, w, at)
					w.round(0, w.ragged(8))
				}
			}
		}
	}
}

func abortAt(t *testing.T, w *world, at phase) {
	t.Helper()
	const guilty = 1
	toks := make([]tokens, 3)
	for r := range toks {
		toks[r] = w.draw(8, drawIDs(w.rng, 8, 2, 6))
	}
	outs := make([][]byte, 3)
	w.each(func(r int, c *Communicator) error {
		in := toks[r].input()
		if err := c.DispatchSend(0, in); err != nil {
			return err
		}
		if r == guilty && at == phaseSent {
			return c.Abort(0)
		}
		b, err := c.DispatchRecv(0)
		if err != nil {
			return err
		}
		if r == guilty && at == phaseReceived {
			return c.Abort(0)
		}
		if err := w.experts(c, b); err != nil {
			return err
		}
		if err := c.CombineSend(0, nil, 0); err != nil {
			return err
		}
		if r == guilty {
			return c.Abort(0)
		}
		outs[r] = make([]byte, len(w.nanOut(8)))
		return c.CombineRecv(0, outs[r], 0)
	})
	for r := range toks {
		if n := w.cs[r].Outstanding(); n != 0 {
			t.Fatalf("rank %d: %d operations outstanding", r, n)
		}
		if r == guilty {
			continue
		}
		if at == phaseCombined { // its rows were on their way
			w.checkOut(r, toks[r], outs[r])
			continue
		}
		owner, _ := w.owners()
		got := reference.Rows(decode(nil, outs[r], FP32), 24)
		for tok, row := range got {
			needs := false
			for _, e := range toks[r].ids[2*tok : 2*tok+2] {
				needs = needs || e >= 0 && owner[e] == guilty
			}
			if !needs {
				want := w.judge.Exact(toks[r].x[tok*24:(tok+1)*24], toks[r].ids[2*tok:2*tok+2], toks[r].w[2*tok:2*tok+2])
				if err := reference.CompareRow(r, tok, row, want, nil); err != nil {
					t.Fatal(err)
				}
				continue
			}
			for _, v := range row {
				if !math.IsNaN(float64(v)) {
					t.Fatalf("rank %d token %d holds %v, it needed rank %d which gave up", r, tok, v, guilty)
				}
			}
		}
	}
}

// TestEverybodyAborts in the same round, in different phases.
func TestEverybodyAborts(t *testing.T) {
	w := small(t, 4, nil)
	for i := range 4 {
		toks := w.ragged(8)
		w.each(func(r int, c *Communicator) error {
			if err := c.DispatchSend(0, toks[r].input()); err != nil {
				return err
			}
			if (r+i)%3 > 0 {
				if _, err := c.DispatchRecv(0); err != nil {
					return err
				}
			}
			if (r+i)%3 > 1 {
				if err := c.CombineSend(0, nil, 0); err != nil {
					return err
				}
			}
			return c.Abort(0)
		})
		w.round(0, w.ragged(8))
	}
}

// TestCombineRecvAdds adds to what the output holds.
func TestCombineRecvAdds(t *testing.T) {
	w := small(t, 2, func(s *setting) { s.cfg.OutDType, s.cfg.IgnoreWeights = FP16, true })
	toks := w.ragged(8)
	outs := make([][]byte, 2)
	w.each(func(r int, c *Communicator) error {
		b, err := c.Dispatch(0, toks[r].input())
		if err != nil {
			return err
		}
		// Small whole numbers: the sum is exact in any order.
		y := make([]float32, len(b.Y)/2)
		for i := range y {
			y[i] = 3
		}
		if err := c.CombineSend(0, encode(nil, y, FP16), 0); err != nil {
			return err
		}
		was := make([]float32, toks[r].n*24)
		for i := range was {
			was[i] = float32(i % 50)
		}
		outs[r] = encode(nil, was, FP16)
		return c.CombineRecvAdd(0, outs[r], 0)
	})
	for r, tk := range toks {
		for i, got := range decode(nil, outs[r], FP16) {
			want := float32(i % 50)
			for _, e := range tk.ids[i/24*2 : i/24*2+2] {
				if e >= 0 {
					want += 3
				}
			}
			if got != want {
				t.Fatalf("rank %d value %d: %v, want %v", r, i, got, want)
			}
		}
	}
}

// reading is a device whose stages read the caller's memory until Sync.
type reading struct {
	kernels.Device
	now atomic.Bool
}

func (d *reading) NewStream(bump func()) (kernels.Stream, error) {
	s, err := d.Device.NewStream(bump)
	return &readingStream{s, d}, err
}

type readingStream struct {
	kernels.Stream
	d *reading
}

func (s *readingStream) DispatchSend(p *abi.DispatchSendParams) error {
	s.d.now.Store(true)
	return s.Stream.DispatchSend(p)
}

func (s *readingStream) Sync() {
	s.Stream.Sync()
	s.d.now.Store(false)
}

// TestNoStageReadsTheInputAfterAnError: an input may be reused when DispatchRecv
// has returned, also when it returns an error that came before it.
func TestNoStageReadsTheInputAfterAnError(t *testing.T) {
	for name, end := range map[string]func(c *Communicator){
		"failed": func(c *Communicator) { c.fail(&RoundError{Code: CodeDeadline, Phase: PhaseDispatchRecv}) },
		"closed": func(c *Communicator) { _ = c.Close() },
	} {
		d := &reading{}
		w := small(t, 2, func(s *setting) {
			s.mutate = func(r int, c *Config) {
				c.Device, _ = host.NewDevice(host.Config{})
				if r == 0 {
					d.Device = c.Device
					c.Device = d
				}
			}
		})
		c := w.cs[0]
		toks := w.draw(2, drawIDs(w.rng, 2, 2, 4))
		if err := c.DispatchSend(0, toks.input()); err != nil {
			t.Fatal(err)
		}
		end(c)
		if b, err := c.DispatchRecv(0); b != nil || err == nil {
			t.Errorf("%s: batch %v, error %v", name, b, err)
		}
		if d.now.Load() {
			t.Errorf("%s: the stages were not waited for", name)
		}
	}
}
