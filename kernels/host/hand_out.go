package host

import (
	"math"

	"moerail/kernels/abi"
)

// handOut writes the outputs of dispatch_recv: headers are read and everything fits.
func (r *stageRun) handOut(p *abi.DispatchRecvParams) {
	sh := r.sh
	el := int(sh.NumLocalExperts)
	copy(view[int32](p.Counts, el), r.recv.counts)
	copy(view[int32](p.Starts, el+1), r.recv.starts)
	if p.TotalRows != 0 {
		for e, n := range r.recv.counts {
			if n != 0 { // as words: whoever gathers figures reads them at any time
				w := word(p.TotalRows + 8*uint64(e))
				w.Store(w.Load() + uint64(n))
			}
		}
	}
	if sh.Layout == abi.LayoutRows {
		r.listRows(p)
		return
	}
	r.describePadding(p)
	var all uint64
	for _, c := range r.recv.counts {
		all += uint64(c)
	}
	r.writes(all * uint64(sh.PayloadBytes))
	var rows, picks, over uint64
	srcRows := view[uint32](p.SourceRows, r.ranks())
	for s, src := range r.sources() {
		if src.Rows != 0 {
			rows += uint64(src.Rows)
			n := r.placeRows(p, s, over)
			if claimed := r.claimedPicks(s); n != claimed {
				r.fault(abi.Status{Code: abi.CodeBadHeader, Peer: uint32(s), Value: int64(claimed), Limit: int64(n)})
			}
			picks += n
		}
		over += r.overflowRows(s, src.Rows)
		if srcRows != nil {
			srcRows[s] = src.Rows
		}
	}
	setNumRows(p, rows, picks)
}

func setNumRows(p *abi.DispatchRecvParams, rows, picks uint64) {
	if n := view[uint32](p.NumRows, 2); n != nil {
		n[0], n[1] = uint32(rows), uint32(picks)
	}
}

// describePadding fills RowExpert and zeroes the rows that hold no pick.
func (r *stageRun) describePadding(p *abi.DispatchRecvParams) {
	sh := r.sh
	rowExpert := view[int32](p.RowExpert, int(sh.MaxExpertRows))
	for e, count := range r.recv.counts {
		from, end := int(r.recv.starts[e]), int(r.recv.starts[e+1])
		filled := from + int(count)
		if rowExpert != nil && sh.Layout == abi.LayoutGrouped {
			for i := from; i < filled; i++ {
				rowExpert[i] = int32(e)
			}
		}
		if p.ZeroFill == 0 {
			continue
		}
		for i := filled; i < end; i++ {
			clear(view[byte](p.ExpertX+uint64(i)*p.ExpertStride, int(sh.PayloadBytes)))
			if p.ExpertScales != 0 {
				clear(view[byte](p.ExpertScales+uint64(i)*uint64(sh.ScaleBytes), int(sh.ScaleBytes)))
			}
		}
	}
}

// picksOf returns the picks of the row at addr of source s when each lies among
// those that the source's header counted; else it records CodeBadRow.
func (r *stageRun) picksOf(s, row int, addr uint64, before, next []uint32) []uint32 {
	picks, ok := r.readMeta(addr)
	for j := 0; ok && j < len(picks); j += 3 {
		e := picks[j]
		ok = e < uint32(len(before)) && picks[j+1] < next[e]-before[e]
	}
	if !ok {
		r.fault(abi.Status{Code: abi.CodeBadRow, Peer: uint32(s), Token: uint32(row)})
		return nil
	}
	return picks
}

// claimedPicks is how many picks the header of source s counted.
func (r *stageRun) claimedPicks(s int) (n uint64) {
	before, next := r.before(s), r.before(s+1)
	for e := range next {
		n += uint64(next[e] - before[e])
	}
	return n
}

// placeRows copies the rows of source s to their places and returns their picks.
func (r *stageRun) placeRows(p *abi.DispatchRecvParams, s int, over uint64) (placed uint64) {
	sh := r.sh
	before, next := r.before(s), r.before(s+1)
	payload, scale := int(sh.PayloadBytes), int(sh.ScaleBytes)
	if p.ExpertScales == 0 {
		scale = 0
	}
	for i := range int(r.sources()[s].Rows) {
		addr := r.rowAddr(s, i, over)
		picks := r.picksOf(s, i, addr, before, next)
		src := view[byte](addr, payload)
		side := view[byte](addr+uint64(sh.ScaleOffset), scale)
		for j := 0; j < len(picks); j += 3 {
			e := picks[j]
			slot := uint64(r.recv.starts[e]) + uint64(before[e]) + uint64(picks[j+1])
			r.copyRow(view[byte](p.ExpertX+slot*p.ExpertStride, payload), src)
			if scale != 0 {
				copy(view[byte](p.ExpertScales+slot*uint64(scale), scale), side)
			}
		}
		placed += uint64(len(picks) / 3)
	}
	return placed
}

// listRows describes the rows where they lie (rows layout).
func (r *stageRun) listRows(p *abi.DispatchRecvParams) {
	sh := r.sh
	k, limit := int(sh.TopK), int(sh.MaxRecvRows)
	start := view[uint32](r.sl.PickStart, limit+1)
	addrs := view[uint64](p.RowAddr, limit)
	topK := view[int32](p.RowTopK, limit*k)
	weights := view[float32](p.RowWeights, limit*k)
	srcRows := view[uint32](p.SourceRows, r.ranks())
	var over, picks uint64
	row := 0
	start[0] = 0
	for s, src := range r.sources() {
		before, next := r.before(s), r.before(s+1)
		left := int(r.claimedPicks(s)) // picks that no row has had yet
		for i := range int(src.Rows) {
			addr := r.rowAddr(s, i, over)
			ids := r.picksOf(s, i, addr, before, next)
			if len(ids)/3 > left {
				r.fault(abi.Status{Code: abi.CodeBadRow, Peer: uint32(s), Token: uint32(i)})
				ids = nil
			}
			left -= len(ids) / 3
			picks += uint64(len(ids) / 3)
			for j := range k {
				e, w := int32(-1), float32(0)
				if 3*j < len(ids) {
					e, w = int32(ids[3*j]), math.Float32frombits(ids[3*j+2])
				}
				if topK != nil {
					topK[row*k+j] = e
				}
				if weights != nil {
					weights[row*k+j] = w
				}
			}
			if addrs != nil {
				addrs[row] = addr
			}
			row++
			start[row] = uint32(picks)
		}
		if left != 0 {
			r.fault(abi.Status{Code: abi.CodeBadHeader, Peer: uint32(s), Value: int64(left)})
		}
		over += r.overflowRows(s, src.Rows)
		if srcRows != nil {
			srcRows[s] = src.Rows
		}
	}
	setNumRows(p, uint64(row), picks)
}
