package moe

import (
	"fmt"
	"testing"
	"time"

	"moerail/transport"
)

// TestShapes goes to the ends of every size, and past the ones at which other
// systems stop.
func TestShapes(t *testing.T) {
	base := func(ranks, experts, k, hidden, tokens int) setting {
		return setting{ranks: ranks, seed: uint64(ranks + experts + k + hidden), cfg: Config{
			NumExperts: experts, TopK: k, Hidden: hidden, MaxTokens: tokens, DType: BF16, OutDType: BF16, Deadline: time.Minute,
		}}
	}
	type shape struct {
		name string
		s    setting
	}
	var shapes []shape
	add := func(name string, s setting) { shapes = append(shapes, shape{name, s}) }
	for _, e := range []int{1, 3, 513, 768, 896, 1032, 2048} { // EP-09
		add(fmt.Sprint("experts ", e), base(4, e, 4, 16, 12))
	}
	for _, k := range []int{1, 9, 10, 12, 16, 22, 32} { // EP-10
		add(fmt.Sprint("top-k ", k), base(4, 64, k, 16, 10))
	}
	for _, h := range []int{1, 7, 8, 100, 1536, 2880, 3072, 3584, 12288, 16384} { // EP-12
		add(fmt.Sprint("hidden ", h), base(3, 8, 2, h, 5))
		s := base(3, 8, 2, h, 5)
		s.cfg.InDType, s.cfg.DType, s.cfg.ScaleBlock, s.cfg.Layout = BF16, FP8, 128, LayoutRows
		add(fmt.Sprint("fp8 hidden ", h), s)
		s = base(3, 8, 2, h, 5)
		s.cfg.DType, s.cfg.OutDType, s.cfg.ReduceAtHome, s.cfg.RanksPerNode = FP32, FP32, true, 3
		add(fmt.Sprint("fp32 hidden ", h), s)
	}
	for _, n := range []int{1025, 4096, 70_000} { // EP-14
		s := base(2, 6, 2, 8, n)
		s.cfg.Layout = Layout(n % 3)
		add(fmt.Sprint("tokens ", n), s)
	}
	for _, r := range []int{1, 2, 3, 5, 12, 31, 64} {
		s := base(r, 2*r+1, 6, 40, 6)
		s.nics, s.cfg.RanksPerNode = 1+r%4, 1+r%5
		add(fmt.Sprint("ranks ", r), s)
	}
	few := base(64, 20, 3, 16, 6)
	few.fabric = unkind(newRand(64))
	add("ranks 64, fewer experts than ranks, unkind", few)
	wide := base(8, 256, 8, 7168, 16)
	wide.nics, wide.cfg.Layout = 4, LayoutRows
	add("wide", wide)
	small := base(6, 12, 3, 64, 512)
	small.cfg.WindowRows, small.nics = 17, 2
	add("prefill through small windows", small)
	for i, sh := range shapes {
		if testing.Short() && i%4 != 0 {
			continue
		}
		t.Run(sh.name, func(t *testing.T) {
			w := newWorld(t, sh.s)
			w.round(0, w.ragged(sh.s.cfg.MaxTokens))
			w.round(0, w.full())
			w.round(0, w.ragged(sh.s.cfg.MaxTokens))
		})
	}
}

// full draws as many tokens as are allowed, for every rank.
func (w *world) full() []tokens {
	c := &w.cs[0].cfg
	toks := make([]tokens, w.s.ranks)
	for r := range toks {
		toks[r] = w.draw(c.MaxTokens, drawIDs(w.rng, c.MaxTokens, c.TopK, c.NumExperts))
	}
	return toks
}

// TestRanksWithoutTokens: EP-01. A rank with none is a full participant, with nil
// for everything; the empty place goes round; then nobody has any.
func TestRanksWithoutTokens(t *testing.T) {
	for _, node := range []int{1, 2, 4} {
		w := newWorld(t, setting{ranks: 4, cfg: Config{NumExperts: 8, TopK: 6, Hidden: 64, MaxTokens: 4, RanksPerNode: node}})
		for empty := range 5 {
			toks := make([]tokens, 4)
			for r := range toks {
				if r == empty || empty == 4 {
					continue
				}
				ids := make([]int32, 24)
				for i := range ids {
					ids[i] = int32((i + r) % 8)
				}
				toks[r] = w.draw(4, ids)
			}
			w.round(0, toks)
		}
		if st := w.cs[0].Stats(); st.Rounds != 5 {
			t.Errorf("%d rounds of 5", st.Rounds)
		}
		var picks uint64
		for _, c := range w.cs {
			picks += c.Stats().ReceivedPicks
		}
		if picks != 4*72 {
			t.Errorf("%d rows arrived in rounds of 72, 4 times", picks)
		}
	}
}

// TestAllTokensToOnePlace: EP-07. Queues are shallow, everything goes to one rank.
func TestAllTokensToOnePlace(t *testing.T) {
	n := 2304
	if testing.Short() {
		n = 256
	}
	for _, depth := range []int{2, 16} {
		w := newWorld(t, setting{ranks: 16, nics: 4, cfg: Config{
			NumExperts: 16, TopK: 2, Hidden: 8, MaxTokens: n, DType: BF16, OutDType: BF16, Deadline: time.Minute,
			DomainConfig: transport.DomainConfig{MaxSend: depth},
		}})
		toks := make([]tokens, 16)
		for r := range toks {
			ids := make([]int32, 2*n)
			for i := range ids {
				ids[i] = int32(i % 2)
			}
			toks[r] = w.draw(n, ids)
		}
		w.round(0, toks)
	}
}

// TestStridesAndForeignOutputs: X, Y and the result may have rows apart, and the
// experts may write elsewhere than into the batch's Y.
func TestStridesAndForeignOutputs(t *testing.T) {
	w := newWorld(t, setting{ranks: 3, cfg: Config{NumExperts: 5, TopK: 2, Hidden: 20, MaxTokens: 9, OutDType: FP16, DType: BF16}})
	for range 3 {
		toks := w.ragged(9)
		outs := make([][]byte, 3)
		w.each(func(r int, c *Communicator) error {
			in := toks[r].input()
			in.X, in.XStride = spread(in.X, 40, 46), 46
			b, err := c.Dispatch(0, in)
			if err != nil {
				return err
			}
			if err := w.experts(c, b); err != nil {
				return err
			}
			y := spread(b.Y, 40, 58)
			for i := range b.Y {
				b.Y[i] = 0xff
			}
			wideOut := spread(w.nanOut(toks[r].n), 40, 64)
			if err := c.Combine(0, y, 58, wideOut, 64); err != nil {
				return err
			}
			for at := 0; at < len(wideOut); at += 64 {
				outs[r] = append(outs[r], wideOut[at:at+40]...)
				for _, b := range wideOut[at+40 : min(at+64, len(wideOut))] {
					if b != 0x5a {
						return fmt.Errorf("a byte between rows of the result was written")
					}
				}
			}
			return nil
		})
		for r := range toks {
			w.checkOut(r, toks[r], outs[r])
		}
	}
}

// spread puts rows of size bytes stride apart.
func spread(b []byte, size, stride int) []byte {
	var out []byte
	for at := 0; at < len(b); at += size {
		out = append(out, b[at:at+size]...)
		for i := size; i < stride; i++ {
			out = append(out, 0x5a)
		}
	}
	return out
}
