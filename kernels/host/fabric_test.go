package host

import (
	"runtime"

	"moerail/kernels/abi"
)

// This file plays proxy and NIC: plain copies, in random order.

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) launchDispatch() {
	for _, p := range w.rng.Perm(len(w.r)) {
		r := w.r[p]
		w.must(r.stream.DispatchSend(&r.send))
		w.must(r.stream.DispatchRecv(&r.recv))
	}
}

func (w *world) launchCombine() {
	for _, p := range w.rng.Perm(len(w.r)) {
		r := w.r[p]
		w.must(r.stream.CombineSend(&r.back))
		w.must(r.stream.CombineRecv(&r.sums))
	}
}

func (w *world) sync() {
	for _, r := range w.r {
		r.stream.Sync()
	}
}

// words waits for word q of every rank's array at (address of it) to carry the
// round, and returns the rows: [p][q].
func (w *world) words(at func(r *rank) uint64) [][]int {
	m := make([][]int, len(w.r))
	for p, r := range w.r {
		for q := range w.r {
			for {
				v := word(at(r) + 8*uint64(q)).Load()
				if uint32(v) == uint32(w.round+1) {
					m[p] = append(m[p], int(v>>32))
					break
				}
				runtime.Gosched()
			}
		}
	}
	return m
}

// isRemote reports whether p's block for q goes through the fabric.
func (w *world) isRemote(p, q int) bool {
	return p != q && (!w.c.direct(p, q) || w.c.windowRows < w.c.maxTokens)
}

type transfer struct{ p, q, rows int }

// deliverDispatch moves every block, in random order, and reports overflow on
// every rank when the exact path finds it.
func (w *world) deliverDispatch() (overflow bool) {
	rows := w.words(func(r *rank) uint64 { return r.sl.DispatchWords })
	tag := w.round + 1
	over := make([][]uint64, len(w.r)) // [q][p]: first overflow row of p at q
	for q, o := range w.r {
		total, at := 0, uint64(0)
		for p := range w.r {
			over[q] = append(over[q], at)
			total += rows[p][q]
			if p != q {
				at += uint64(max(0, rows[p][q]-w.c.windowRows))
			}
		}
		overflow = overflow || w.c.windowRows < w.c.maxTokens && total > int(o.sh.MaxRecvRows)
	}
	if overflow {
		for _, r := range w.r {
			control(r.sl.Control, ctlDispatchTxDone).Store(tag)
			control(r.sl.Control, ctlCombineTxDone).Store(tag) // nothing was sent, nothing will be
			control(r.sl.Control, ctlOverflow).Store(tag)
			r.stream.Notify()
		}
		return true
	}
	var all []transfer
	for p := range w.r {
		for q := range w.r {
			if w.isRemote(p, q) {
				all = append(all, transfer{p, q, rows[p][q]})
			}
		}
	}
	w.rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for _, x := range all {
		src, dst := w.r[x.p], w.r[x.q]
		sh := &src.sh
		from := src.sl.Send + uint64(x.q)*sh.SendStride
		near := min(x.rows, w.c.windowRows)
		n := int(sh.HeaderBytes) + near*int(sh.RowBytes)
		copy(view[byte](dst.sl.Window[w.round&1]+uint64(x.p)*sh.WindowStride, n), view[byte](from, n))
		if far := (x.rows - near) * int(sh.RowBytes); far > 0 {
			copy(view[byte](dst.sl.Overflow+over[x.q][x.p]*uint64(sh.RowBytes), far), view[byte](from+uint64(n), far))
		}
	}
	for _, r := range w.r {
		control(r.sl.Control, ctlDispatchTxDone).Store(tag)
		control(r.sl.Control, ctlDispatchArrived).Store(tag)
		r.stream.Notify()
	}
	return false
}

func (w *world) deliverCombine() {
	rows := w.words(func(r *rank) uint64 { return r.sl.CombineWords })
	tag := w.round + 1
	var all []transfer
	for q := range w.r { // q returns to s
		for s := range w.r {
			want := int(view[uint32](w.r[s].sl.ReturnRows, len(w.r))[q])
			lane := s - s%w.c.replicas + q%w.c.replicas
			if rows[q][lane] != want || s != lane && rows[q][s] != 0 {
				w.t.Fatalf("rank %d returns %d rows (and %d) to rank %d, which expects %d", q, rows[q][lane], rows[q][s], s, want)
			}
			if s != q && !w.c.direct(q, s) {
				all = append(all, transfer{q, s, lane})
			}
		}
	}
	w.rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for _, x := range all {
		src, dst := w.r[x.p], w.r[x.q]
		n := rows[x.p][x.rows] * int(src.sh.ReturnRowBytes)
		copy(view[byte](dst.sl.ReturnWindow+uint64(x.p)*src.sh.ReturnStride, n),
			view[byte](src.sl.ReturnSend+uint64(x.rows)*src.sh.ReturnSendStride, n))
	}
	for _, r := range w.r {
		control(r.sl.Control, ctlCombineTxDone).Store(tag)
		control(r.sl.Control, ctlCombineArrived).Store(tag)
		r.stream.Notify()
	}
}

// poison fills what a round should write with NaN (all ones in every type).
func (w *world) poison() {
	fill := func(addr uint64, n int) {
		b := view[byte](addr, n)
		for i := range b {
			b[i] = 0xff
		}
	}
	for _, r := range w.r {
		rows := int(r.sh.MaxExpertRows)
		if w.c.layout == abi.LayoutBatched {
			rows = int(r.sh.NumLocalExperts * r.sh.ExpertCapacity)
		}
		fill(r.recv.ExpertX, rows*int(r.recv.ExpertStride))
		fill(r.recv.ExpertScales, rows*int(r.sh.ScaleBytes))
		fill(r.back.Y, rows*int(r.back.YStride))
		if !w.c.accum {
			fill(r.sums.Out, w.c.maxTokens*int(r.sums.OutStride))
		}
		for q := range w.r {
			fill(r.sl.ReturnWindow+uint64(q)*r.sh.ReturnStride, int(r.sh.ReturnStride))
			fill(r.sl.Window[w.round&1]+uint64(q)*r.sh.WindowStride, int(r.sh.WindowStride))
		}
	}
}
