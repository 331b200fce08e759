package host

import (
	"math"

	"moerail/internal/numeric"
	"moerail/kernels/abi"
)

// The experts: y = a_e*x + b_e, all different, in float32, rounded once to Out.
func expertFn(e int, x float32) float32 {
	a, b := 1+float32(e)/8, float32(e%5)-1.75
	return float32(a*x) + b
}

// wireToken is what a token's values are once they have crossed the wire.
func (w *world) wireToken(p, t int) []float32 {
	r, c := w.r[p], &w.c
	x := make([]float32, c.hidden)
	for i := range x {
		x[i] = get(c.in, r.send.X+uint64(t)*r.send.XStride+uint64(i*bytesOf(c.in)))
	}
	if c.in == c.wire {
		return x
	}
	for lo := 0; lo < c.hidden; lo += c.scaleBlock {
		block := x[lo:min(lo+c.scaleBlock, c.hidden)]
		amax := float32(0)
		for _, v := range block {
			if a := float32(math.Abs(float64(v))); a > amax && !math.IsInf(float64(a), 0) {
				amax = a
			}
		}
		scale := amax / 448
		if scale == 0 {
			scale = 1
		}
		for i, v := range block {
			block[i] = numeric.E4M3ToFloat32(numeric.Float32ToE4M3(v/scale)) * scale
		}
	}
	return x
}

// expected is the sum for token t of rank p, computed from its ids alone; was is
// what Out held.
func (w *world) expected(p, t int, was []float32) []float32 {
	r, c := w.r[p], &w.c
	x := w.wireToken(p, t)
	out := make([]float32, c.hidden)
	for i := range out {
		var total float32
		if c.atHome {
			for j := range c.topK {
				if e := r.ids[t*c.topK+j]; e >= 0 {
					total += float32(r.w[t*c.topK+j] * round1(c.out, expertFn(int(e), x[i])))
				}
			}
		} else {
			for q := range c.ranks {
				var part float32
				some := false
				for j := range c.topK {
					if e := r.ids[t*c.topK+j]; e >= 0 && w.place[e] == q {
						part += float32(r.w[t*c.topK+j] * round1(c.out, expertFn(int(e), x[i])))
						some = true
					}
				}
				if some {
					total += round1(c.out, part)
				}
			}
		}
		if c.accum {
			total += was[i]
		}
		out[i] = round1(c.out, total)
	}
	return out
}

// decodeRow is the values of a received row at addr with its scales at side.
func (w *world) decodeRow(addr, side uint64) []float32 {
	c := &w.c
	x := make([]float32, c.hidden)
	for i := range x {
		x[i] = get(c.wire, addr+uint64(i*bytesOf(c.wire)))
		if c.in != c.wire {
			x[i] *= view[float32](side, i/c.scaleBlock+1)[i/c.scaleBlock]
		}
	}
	return x
}

func (w *world) expertOf(q int, local int) int {
	for e := range w.place {
		if w.place[e] == q && w.local[e] == local {
			return e
		}
	}
	w.t.Fatalf("rank %d has no local expert %d", q, local)
	return -1
}

// runExperts reads what dispatch_recv handed out and writes Y.
func (w *world) runExperts() {
	c := &w.c
	for q, r := range w.r {
		write := func(e int, slot uint64, x []float32) {
			for i, v := range x {
				put(c.out, r.back.Y+slot*r.back.YStride+uint64(i*bytesOf(c.out)), expertFn(e, v))
			}
		}
		el := int(r.sh.NumLocalExperts)
		counts, starts := view[int32](r.recv.Counts, el), view[int32](r.recv.Starts, el+1)
		if c.layout == abi.LayoutRows {
			n := int(view[uint32](r.recv.NumRows, 2)[0])
			slot := uint64(0)
			for i := range n {
				addr := view[uint64](r.recv.RowAddr, n)[i]
				x := w.decodeRow(addr, addr+uint64(r.sh.ScaleOffset))
				for j := range c.topK {
					if l := view[int32](r.recv.RowTopK, n*c.topK)[i*c.topK+j]; l >= 0 {
						write(w.expertOf(q, int(l)), slot, x)
						slot++
					}
				}
			}
			continue
		}
		for l, count := range counts {
			for i := range uint64(count) {
				slot := uint64(starts[l]) + i
				x := w.decodeRow(r.recv.ExpertX+slot*r.recv.ExpertStride, r.recv.ExpertScales+slot*uint64(r.sh.ScaleBytes))
				write(w.expertOf(q, l), slot, x)
			}
		}
	}
}

// outs reads a rank's result.
func (w *world) outs(p int) [][]float32 {
	r, c := w.r[p], &w.c
	out := make([][]float32, min(r.tokens, c.maxTokens))
	for t := range out {
		for i := range c.hidden {
			out[t] = append(out[t], get(c.out, r.sums.Out+uint64(t)*r.sums.OutStride+uint64(i*bytesOf(c.out))))
		}
	}
	return out
}

// checkReceived compares counts and padding with the ids; refused ranks sent nothing.
func (w *world) checkReceived(refused map[int]bool) {
	c := &w.c
	for q, r := range w.r {
		el := int(r.sh.NumLocalExperts)
		want := make([]int32, el)
		var rows, picks int
		for p, src := range w.r {
			mine := 0
			if p%c.replicas == q%c.replicas && !refused[p] {
				for t := range src.tokens {
					hit := false
					for _, e := range src.ids[t*c.topK : (t+1)*c.topK] {
						if e >= 0 && w.place[e] == q {
							want[w.local[e]]++
							picks++
							hit = true
						}
					}
					if hit {
						mine++
					}
				}
			}
			if got := view[uint32](r.recv.SourceRows, c.ranks)[p]; int(got) != mine {
				w.t.Fatalf("rank %d reports %d rows of rank %d, want %d", q, got, p, mine)
			}
			rows += mine
		}
		if got := view[uint32](r.recv.NumRows, 2); int(got[0]) != rows || int(got[1]) != picks {
			w.t.Fatalf("rank %d reports %v rows and picks, want %d %d", q, got, rows, picks)
		}
		starts := view[int32](r.recv.Starts, el+1)
		end := int32(0)
		for l := range want {
			if got := view[int32](r.recv.Counts, el)[l]; got != want[l] {
				w.t.Fatalf("rank %d local expert %d: count %d, want %d", q, l, got, want[l])
			}
			switch c.layout {
			case abi.LayoutGrouped:
				if starts[l] != end {
					w.t.Fatalf("rank %d local expert %d starts at %d, want %d", q, l, starts[l], end)
				}
				end += int32(roundUp(uint64(want[l]), uint64(c.align)))
				w.checkPadding(r, l, int(starts[l]+want[l]), int(end))
			case abi.LayoutBatched:
				w.checkPadding(r, l, l*c.capacity+int(want[l]), (l+1)*c.capacity)
			}
		}
		if c.layout == abi.LayoutGrouped {
			if starts[el] != end {
				w.t.Fatalf("rank %d ends at %d, want %d", q, starts[el], end)
			}
			l := 0
			for i, e := range view[int32](r.recv.RowExpert, int(r.sh.MaxExpertRows)) {
				for l < el && i >= int(starts[l+1]) {
					l++
				}
				exp := int32(-1)
				if l < el && i < int(starts[l]+want[l]) {
					exp = int32(l)
				}
				if e != exp {
					w.t.Fatalf("rank %d RowExpert[%d] = %d, want %d", q, i, e, exp)
				}
			}
		}
	}
}

func (w *world) checkPadding(r *rank, l, from, to int) {
	want := byte(0xff)
	if w.c.zeroFill {
		want = 0
	}
	for i := from; i < to; i++ {
		for _, b := range view[byte](r.recv.ExpertX+uint64(i)*r.recv.ExpertStride, int(r.sh.PayloadBytes)) {
			if b != want {
				w.t.Fatalf("rank %d local expert %d: padding row %d holds %#x, want %#x", r.sh.Rank, l, i, b, want)
			}
		}
		for _, b := range view[byte](r.recv.ExpertScales+uint64(i)*uint64(r.sh.ScaleBytes), int(r.sh.ScaleBytes)) {
			if b != want {
				w.t.Fatalf("rank %d local expert %d: scales of padding row %d hold %#x, want %#x", r.sh.Rank, l, i, b, want)
			}
		}
	}
}

// checkSides compares the opaque scales of every received row with its source's:
// found by the token number in the row (rows layout), or by the payload's order.
func (w *world) checkOut(p int, was [][]float32) {
	got := w.outs(p)
	for t := range got {
		want := w.expected(p, t, was[t])
		for i := range want {
			if g := got[t][i]; math.Float32bits(g) != math.Float32bits(want[i]) && !(g != g && want[i] != want[i]) {
				w.t.Fatalf("round %d rank %d token %d value %d: %g, want %g (ids %v)", w.round, p, t, i, g, want[i],
					w.r[p].ids[t*w.c.topK:(t+1)*w.c.topK])
			}
		}
	}
}

// runRound is one whole round with every check.
func (w *world) runRound() {
	w.t.Helper()
	w.poison()
	was := make([][][]float32, len(w.r))
	for p := range w.r {
		was[p] = w.outs(p)
	}
	w.launchDispatch()
	if w.deliverDispatch() {
		w.t.Fatal("overflow")
	}
	w.sync()
	for p, r := range w.r {
		if st := r.status(); st.Code != abi.CodeOK {
			w.t.Fatalf("rank %d: status %+v", p, st)
		}
	}
	w.checkReceived(nil)
	w.runExperts()
	w.launchCombine()
	w.deliverCombine()
	w.sync()
	for p, r := range w.r {
		if st := r.status(); st.Code != abi.CodeOK {
			w.t.Fatalf("rank %d: status %+v", p, st)
		}
		if got := word(r.sl.Round).Load(); got != w.round+1 {
			w.t.Fatalf("rank %d: round word is %d after round %d", p, got, w.round)
		}
		w.checkOut(p, was[p])
	}
	w.a.check(w.t)
	w.round++
}
