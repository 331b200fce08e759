package host

import (
	"math"

	"moerail/kernels/abi"
)

// combineSend: see abi.CombineSendParams. A return block goes to every rank whose
// tokens the rows are: to the source, or with replicas to all ranks of its group,
//
//	group g = ranks g*Replicas .. g*Replicas+Replicas-1
//	rows of g reach this rank from g's rank of this rank's lane, g*Replicas + Rank%Replicas
//
// The block is written once to ReturnSend[that rank] if any rank of the group is
// behind a NIC (the proxy sends it to all that are), stored to each rank of the
// group that this rank stores to, and to the own return window for the own group.
// CombineWords of the lane's rank carries the rows; those of the others carry 0.
//
// A row that changed since dispatch_recv checked it is returned as NaN. In a round
// that was given up (CodeAborted, CodeStopped) nothing is written; in one that
// dispatch_recv ended, nothing is done at all.
func (r *stageRun) combineSend(p *abi.CombineSendParams) {
	r.begin(abi.StageCombineSend, &p.Shape, &p.Slot)
	if r.ended() {
		return
	}
	if code := r.awaitWord(ctlCombineTxDone, r.round); code != abi.CodeOK {
		r.fault(abi.Status{Code: code, Peer: r.sh.Rank})
		return
	}
	w := returnWriter{r: r, p: p, bump: bumper{bump: r.s.bump}, rowLimit: uint64(r.sh.MaxExpertRows)}
	if r.sh.Layout == abi.LayoutBatched {
		w.rowLimit = uint64(r.sh.NumLocalExperts) * uint64(r.sh.ExpertCapacity)
	}
	var rows uint64
	for _, src := range r.sources() {
		rows += uint64(src.ReturnRows)
	}
	r.writes(rows * uint64(r.sh.ReturnRowBytes))
	r.row = grow(r.row, int(r.sh.OutRowBytes))
	w.starts = view[int32](p.Starts, int(r.sh.NumLocalExperts)+1)
	w.writeAll()
}

// returnWriter writes the return blocks of one combine_send.
type returnWriter struct {
	r        *stageRun
	p        *abi.CombineSendParams
	starts   []int32
	rowLimit uint64 // rows of Y
	bump     bumper
	dsts     []uint64 // where the block of the group at hand goes
	over     uint64   // first row of the source at hand in the overflow area
	first    uint64   // number of its first row among all received
}

// writeAll goes through the groups, those with a rank behind a NIC first, each
// starting after the own group.
func (w *returnWriter) writeAll() {
	r := w.r
	groups := r.ranks() / int(r.sh.Replicas)
	own := r.self() / int(r.sh.Replicas)
	for i := 1; i <= groups; i++ {
		if g := (own + i) % groups; w.remote(g) {
			w.bump.wrote(w.writeGroup(g))
		}
	}
	w.bump.flush()
	for i := 1; i <= groups; i++ {
		if g := (own + i) % groups; !w.remote(g) {
			w.writeGroup(g)
		}
	}
	w.bump.flush()
}

// remote reports whether a rank of group g is behind a NIC.
func (w *returnWriter) remote(g int) bool {
	r := w.r
	for q := g * int(r.sh.Replicas); q < (g+1)*int(r.sh.Replicas); q++ {
		if q != r.self() && r.returnsTo(q) == 0 {
			return true
		}
	}
	return false
}

func (w *returnWriter) writeGroup(g int) (size uint64) {
	r, sh := w.r, w.r.sh
	lo, hi := g*int(sh.Replicas), (g+1)*int(sh.Replicas)
	s := lo + int(sh.Rank%sh.Replicas)
	w.dsts = r.dsts[:0]
	if w.remote(g) {
		w.dsts = append(w.dsts, r.sl.ReturnSend+uint64(s)*sh.ReturnSendStride)
	}
	for q := lo; q < hi; q++ {
		if q == r.self() {
			w.dsts = append(w.dsts, r.sl.ReturnWindow+uint64(q)*sh.ReturnStride)
		} else if dst := r.returnsTo(q); dst != 0 {
			w.dsts = append(w.dsts, dst)
		}
	}
	src := r.sources()[s]
	w.over, w.first = 0, 0
	for q, other := range r.sources()[:s] {
		w.over += r.overflowRows(q, other.Rows)
		w.first += uint64(other.Rows)
	}
	w.writeBlock(s, src)
	for q := lo; q < hi; q++ {
		rows := uint64(0)
		if q == s {
			rows = uint64(src.ReturnRows)
		}
		if q != r.self() && r.returnsTo(q) != 0 {
			word(view[uint64](r.sl.PeerCombineFlag, r.ranks())[q]).Store(r.tag)
		}
		word(r.sl.CombineWords + 8*uint64(q)).Store(rows<<32 | uint64(uint32(r.tag)))
	}
	return uint64(src.ReturnRows) * uint64(sh.ReturnRowBytes)
}

// writeBlock writes the return rows of source s, exactly src.ReturnRows of them.
func (w *returnWriter) writeBlock(s int, src abi.Source) {
	r := w.r
	n := uint64(0)
	if src.Faulty == 0 && w.p.Abandon == 0 {
		before, next := r.before(s), r.before(s+1)
		for i := range int(src.Rows) {
			ok := w.slots(s, i, before, next)
			if r.sh.ReduceAtHome == 0 {
				w.put(n, ok)
				n++
				continue
			}
			rows := r.rows
			for j := range rows {
				if n < uint64(src.ReturnRows) {
					r.rows = rows[j : j+1]
					w.put(n, ok)
					n++
				}
			}
			r.rows = rows
		}
	}
	for ; n < uint64(src.ReturnRows); n++ {
		w.put(n, false)
	}
}

// slots sets r.rows and r.w to the expert outputs of row i of source s and their
// weights. It reads the metadata anew, and so checks it anew.
func (w *returnWriter) slots(s, i int, before, next []uint32) bool {
	r := w.r
	r.rows, r.w = r.rows[:0], r.w[:0]
	picks := r.picksOf(s, i, r.rowAddr(s, i, w.over), before, next)
	if picks == nil {
		return false
	}
	var at uint64 // rows layout: the row's first output
	if r.sh.Layout == abi.LayoutRows {
		start := view[uint32](r.sl.PickStart+4*(w.first+uint64(i)), 2)
		at = uint64(start[0])
		if int(start[1]-start[0]) != len(picks)/3 {
			r.fault(abi.Status{Code: abi.CodeBadRow, Peer: uint32(s), Token: uint32(i)})
			return false
		}
	}
	for j := 0; j < len(picks); j += 3 {
		e, index := picks[j], uint64(picks[j+1])
		var slot uint64
		switch r.sh.Layout {
		case abi.LayoutRows:
			slot = at + uint64(j/3)
		case abi.LayoutBatched:
			slot = uint64(e)*uint64(r.sh.ExpertCapacity) + uint64(before[e]) + index
		default:
			slot = uint64(uint32(w.starts[e])) + uint64(before[e]) + index
		}
		if slot >= w.rowLimit { // Starts was altered
			r.fault(abi.Status{Code: abi.CodeBadRow, Peer: uint32(s), Token: uint32(i)})
			return false
		}
		r.rows = append(r.rows, view[byte](w.p.Y+slot*w.p.YStride, int(r.sh.OutRowBytes)))
		r.w = append(r.w, math.Float32frombits(picks[j+2]))
	}
	return true
}

// put writes return row n, made from r.rows, to every destination.
func (w *returnWriter) put(n uint64, ok bool) {
	r := w.r
	size := int(r.sh.OutRowBytes)
	offset := n * uint64(r.sh.ReturnRowBytes)
	made, rest := view[byte](w.dsts[0]+offset, size), w.dsts[1:]
	if r.around { // made in the nearest cache, then moved out
		made, rest = r.row, w.dsts
	}
	switch {
	case !ok:
		r.fillNaN(made)
	case r.sh.ReduceAtHome != 0 && r.around:
		made = r.rows[0]
	case r.sh.ReduceAtHome != 0:
		copy(made, r.rows[0])
	default:
		r.sum(made)
	}
	for _, d := range rest {
		r.copyRow(view[byte](d+offset, size), made)
	}
}
