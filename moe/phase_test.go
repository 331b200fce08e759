package moe

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"
)

// small is a quick world of n ranks.
func small(t testing.TB, n int, edit func(*setting)) *world {
	t.Helper()
	s := setting{ranks: n, seed: 3, cfg: Config{
		NumExperts: 2 * n, TopK: 2, Hidden: 24, MaxTokens: 8, Deadline: 20 * time.Second,
	}}
	if edit != nil {
		edit(&s)
	}
	return newWorld(t, s)
}

func wantCode(t *testing.T, err error, code Code, phase string) *RoundError {
	t.Helper()
	var re *RoundError
	if !errors.As(err, &re) || re.Code != code || re.Phase != phase || CodeOf(err) != code {
		t.Fatalf("error %v (%#v), want code %s in phase %s", err, err, code, phase)
	}
	return re
}

// TestPhaseOrder: EP-29. A call out of order is an error at once and changes nothing.
func TestPhaseOrder(t *testing.T) {
	w := small(t, 1, nil)
	c := w.cs[0]
	tk := w.draw(3, drawIDs(w.rng, 3, 2, 2))
	out := w.nanOut(3)
	send := func() error { return c.DispatchSend(0, tk.input()) }
	recv := func() error { _, err := c.DispatchRecv(0); return err }
	csend := func() error { return c.CombineSend(0, nil, 0) }
	crecv := func() error { return c.CombineRecv(0, out, 0) }
	add := func() error { return c.CombineRecvAdd(0, out, 0) }
	type call struct {
		fn    func() error
		phase string
	}
	calls := []call{{send, PhaseDispatchSend}, {recv, PhaseDispatchRecv}, {csend, PhaseCombineSend}, {crecv, PhaseCombineRecv}, {add, PhaseCombineRecv}}
	wrong := func(right ...int) {
		t.Helper()
		for i, f := range calls {
			if i == right[0] || len(right) > 1 && i == right[1] {
				continue
			}
			code := CodePhaseOrder
			if i == 0 {
				code = CodeBusy
			}
			start := time.Now()
			err := f.fn()
			took := time.Since(start)
			wantCode(t, err, code, f.phase)
			if took > 50*time.Millisecond { // the machine may be busy
				t.Errorf("a call out of order took %v", took)
			}
		}
	}
	for range 3 {
		for i, f := range calls[:4] {
			if i == 3 {
				wrong(3, 4)
			} else {
				wrong(i)
			}
			if i == 2 {
				if err := w.experts(c, &c.slots[0].batch); err != nil {
					t.Fatal(err)
				}
			}
			if err := f.fn(); err != nil {
				t.Fatal(err)
			}
		}
		w.checkOut(0, tk, out)
	}
	for _, slot := range []int{-1, 1, math.MaxInt} {
		_, err := c.Dispatch(slot, tk.input())
		wantCode(t, err, CodeBusy, PhaseDispatchSend)
		if err := c.Abort(slot); !errors.Is(err, ErrBusy) {
			t.Errorf("abort of slot %d: %v", slot, err)
		}
	}
	if err := c.Abort(0); err != nil {
		t.Errorf("abort without a round: %v", err)
	}
}

// TestShapesAreRefused: an input or output that does not fit is refused with the
// reason, and the slot stays usable.
func TestShapesAreRefused(t *testing.T) {
	w := small(t, 2, func(s *setting) { s.cfg.InDType, s.cfg.DType, s.cfg.ScaleBytes = FP8, FP8, 3 })
	c := w.cs[0]
	tk := w.draw(4, drawIDs(w.rng, 4, 2, 4))
	good := tk.input()
	bad := []struct {
		name string
		code Code
		edit func(*Input)
	}{
		{"tokens", CodeShape, func(in *Input) { in.NumTokens = -1 }},
		{"limit is 8", CodeTooManyTokens, func(in *Input) { in.NumTokens = 9 }},
		{"limit is 8", CodeTooManyTokens, func(in *Input) { in.NumTokens = math.MaxInt }},
		{"x", CodeShape, func(in *Input) { in.X = in.X[:len(in.X)-1] }},
		{"x", CodeShape, func(in *Input) { in.X = nil }},
		{"x", CodeShape, func(in *Input) { in.XStride = 23 }},
		{"x", CodeShape, func(in *Input) { in.XStride = 25 }},
		{"x", CodeShape, func(in *Input) { in.XStride = -24 }},
		{"x", CodeShape, func(in *Input) { in.XStride = math.MaxInt }},
		{"x", CodeShape, func(in *Input) { in.XStride = math.MaxInt/3 + 1 }},
		{"ids", CodeShape, func(in *Input) { in.IDs = in.IDs[:7] }},
		{"ids", CodeShape, func(in *Input) { in.IDs = nil }},
		{"ids", CodeShape, func(in *Input) { in.IDs64 = make([]int64, 8) }},
		{"weights", CodeShape, func(in *Input) { in.Weights = in.Weights[:7] }},
		{"scale", CodeShape, func(in *Input) { in.Scales = in.Scales[:11] }},
		{"scale", CodeShape, func(in *Input) { in.Scales = nil }},
	}
	for _, b := range bad {
		in := good
		b.edit(&in)
		re := wantCode(t, c.DispatchSend(0, in), b.code, PhaseDispatchSend)
		if !strings.Contains(re.Error(), b.name) {
			t.Errorf("%q does not speak of %s", re, b.name)
		}
	}
	toks := []tokens{tk, w.draw(2, drawIDs(w.rng, 2, 2, 4))}
	outs := [][]byte{w.nanOut(4), w.nanOut(2)}
	w.each(func(r int, c *Communicator) error {
		b, err := c.Dispatch(0, toks[r].input())
		if err != nil {
			return err
		}
		if err := w.experts(c, b); err != nil {
			return err
		}
		y := append([]byte(nil), b.Y...)
		if b.OutRows > 0 {
			wantCode(t, c.CombineSend(0, y[:len(y)-1], 0), CodeShape, PhaseCombineSend)
			wantCode(t, c.CombineSend(0, y[1:], 0), CodeShape, PhaseCombineSend)
			wantCode(t, c.CombineSend(0, []byte{}, 0), CodeShape, PhaseCombineSend)
		}
		for _, stride := range []int{-96, 95, 97, math.MaxInt, math.MaxInt - 3} {
			if stride > 96 && b.OutRows < 2 {
				continue
			}
			wantCode(t, c.CombineSend(0, y, stride), CodeShape, PhaseCombineSend)
		}
		if err := c.CombineSend(0, y, b.YStride); err != nil {
			return err
		}
		wantCode(t, c.CombineRecv(0, outs[r][:len(outs[r])-1], 0), CodeShape, PhaseCombineRecv)
		wantCode(t, c.CombineRecv(0, nil, 0), CodeShape, PhaseCombineRecv)
		wantCode(t, c.CombineRecvAdd(0, outs[r], 92), CodeShape, PhaseCombineRecv)
		return c.CombineRecv(0, outs[r], 0)
	})
	for r := range toks {
		w.checkOut(r, toks[r], outs[r])
	}
	// Without tokens odd strides and empty slices are shape errors too, never worse.
	w.each(func(r int, c *Communicator) error {
		wantCode(t, c.DispatchSend(0, Input{XStride: 5}), CodeShape, PhaseDispatchSend)
		if _, err := c.Dispatch(0, Input{}); err != nil {
			return err
		}
		wantCode(t, c.CombineSend(0, []byte{}, -4), CodeShape, PhaseCombineSend)
		if err := c.CombineSend(0, []byte{}, 0); err != nil {
			return err
		}
		wantCode(t, c.CombineRecv(0, nil, 4), CodeShape, PhaseCombineRecv)
		return c.CombineRecv(0, nil, 0)
	})
	w.round(0, w.ragged(8))
}

// TestTokenCountFromMemory: the number of tokens is what memory says when the
// stage runs, never more than the slices hold.
func TestTokenCountFromMemory(t *testing.T) {
	w := small(t, 2, nil)
	count := []uint32{3, 0}
	for _, n := range []uint32{3, 0, 5, 8} {
		full := []tokens{w.draw(8, drawIDs(w.rng, 8, 2, 4)), w.draw(5, drawIDs(w.rng, 5, 2, 4))}
		count[0], count[1] = n, min(n, 5)
		used := make([]tokens, 2)
		outs := make([][]byte, 2)
		for r := range used {
			m := int(count[r])
			used[r] = tokens{n: m, x: full[r].x[:m*24], ids: full[r].ids[:m*2], w: full[r].w[:m*2]}
		}
		want := w.count(used)
		w.each(func(r int, c *Communicator) error {
			in := full[r].input()
			in.TokenCount = &count[r]
			b, err := c.Dispatch(0, in)
			if err != nil {
				return err
			}
			if err := w.checkBatch(r, b, want); err != nil {
				return err
			}
			if err := w.experts(c, b); err != nil {
				return err
			}
			outs[r] = w.nanOut(used[r].n) // only as many as there are
			return c.Combine(0, nil, 0, outs[r], 0)
		})
		for r := range used {
			w.checkOut(r, used[r], outs[r])
		}
	}
	// A count beyond the slices refuses this rank's input and nothing else.
	for _, n := range []uint32{4, 9, math.MaxUint32} {
		toks := []tokens{w.draw(3, drawIDs(w.rng, 3, 2, 4)), w.draw(5, drawIDs(w.rng, 5, 2, 4))}
		outs := [][]byte{w.nanOut(3), w.nanOut(5)}
		w.each(func(r int, c *Communicator) error {
			in := toks[r].input()
			if r == 0 {
				in.TokenCount = &n
			}
			b, err := c.Dispatch(0, in)
			if r == 0 {
				wantCode(t, err, CodeTooManyTokens, PhaseDispatchSend)
			} else if err != nil {
				return err
			}
			if err := w.experts(c, b); err != nil {
				return err
			}
			err = c.Combine(0, nil, 0, outs[r], 0)
			if r == 0 {
				wantCode(t, err, CodeTooManyTokens, PhaseDispatchSend)
				return nil
			}
			return err
		})
		if string(outs[0]) != string(w.nanOut(3)) {
			t.Error("the output of a refused input was written")
		}
		w.checkOut(1, toks[1], outs[1])
	}
	// No tokens and no slices, with a count: legal.
	zero := uint32(0)
	w.each(func(r int, c *Communicator) error {
		if _, err := c.Dispatch(0, Input{TokenCount: &zero}); err != nil {
			return err
		}
		return c.Combine(0, nil, 0, nil, 0)
	})
	w.round(0, w.ragged(8))
}
