package host

import (
	"math"

	"moerail/kernels/abi"
)

// recvState is dispatch_recv's scratch.
type recvState struct {
	starts  []int32  // [E_l+1], of this round
	counts  []int32  // [E_l]
	claimed []uint32 // [E_l]: the counts of one header
}

// dispatchRecv: see abi.DispatchRecvParams. How it ends:
//
//   - CodeOK: the outputs hold every source's rows.
//   - A header that cannot be true (CodeBadHeader): that source's rows are left
//     out, the others are whole. On the exact path nothing is handed out, since
//     the others' places in the overflow area depend on every header.
//   - A row whose metadata cannot be true (CodeBadRow): its picks are left out, so
//     that the places its header claimed stay unwritten; other rows are whole.
//   - A header that counts more picks than its rows have (CodeBadHeader): the rows
//     are whole, the places that no pick has stay unwritten.
//   - More rows than the limits of this rank (CodeOverflow): nothing is handed out.
//   - Control.Overflow: nothing is handed out and the round ends here on every rank:
//     Round is advanced, and the combine stages do nothing.
//   - CodeAborted, CodeStopped: nothing is handed out.
//
// A source whose rows were left out is returned NaN by combine_send, in the number
// that its header claims (none when it claims more than the limits), so that no
// peer waits for rows that never come. "Nothing is handed out" means zeros in
// Counts, Starts, SourceRows and NumRows, and -1 in RowExpert.
func (r *stageRun) dispatchRecv(p *abi.DispatchRecvParams) {
	r.begin(abi.StageDispatchRecv, &p.Shape, &p.Slot)
	r.handOutNothing(p)
	clear(r.sources())
	if code := r.awaitBlocks(); code != abi.CodeOK {
		f := abi.Status{Code: code, Peer: r.sh.Rank}
		if code == abi.CodeAborted {
			f.Late = r.lateBlocks()
		}
		r.fault(f)
		if code == abi.CodeOverflow {
			word(r.sl.Round).Store(r.tag)
		}
		return
	}
	if !r.readHeaders() || !r.fits() {
		for s := range r.sources() {
			r.sources()[s].Rows, r.sources()[s].Faulty = 0, 1
		}
		return
	}
	r.handOut(p)
}

func (r *stageRun) sources() []abi.Source { return view[abi.Source](r.sl.Sources, r.ranks()) }

// before is row s of Before: picks of sources below s for each local expert.
func (r *stageRun) before(s int) []uint32 {
	n := int(r.sh.NumLocalExperts)
	return view[uint32](r.sl.Before+4*uint64(s*n), n)
}

func (r *stageRun) awaitBlocks() uint32 {
	if code, over := r.interrupted(true); over {
		return code
	}
	remote := false
	for q := range r.ranks() {
		switch {
		case q == r.self():
		case r.storesTo(q) != 0:
			r.waits = append(r.waits, waitFor{word(r.dispatchFlag(q)), r.tag})
		default:
			remote = true
		}
	}
	if remote {
		r.waits = append(r.waits, waitFor{control(r.sl.Control, ctlDispatchArrived), r.tag})
	}
	return r.await(true)
}

func (r *stageRun) lateBlocks() (late [abi.MaxRanks / 64]uint64) {
	for q := range r.ranks() {
		if q == r.self() {
			continue
		}
		if r.storesTo(q) != 0 {
			if word(r.dispatchFlag(q)).Load() >= r.tag {
				continue
			}
		} else if round, gen := peekHeader(r.block(q)); round == r.round && gen == r.sh.Generation {
			continue
		}
		late[q/64] |= 1 << (q % 64)
	}
	return late
}

// readHeaders copies every header out, once, and fills Sources and Before; false
// when the round cannot be handed out.
func (r *stageRun) readHeaders() bool {
	src := r.sources()
	clear(r.before(0))
	ok := true
	for s := range src {
		here, next := r.before(s), r.before(s+1)
		copy(next, here)
		var h [abi.HeaderFixedBytes / 4]uint32
		copy(h[:], view[uint32](r.block(s), len(h)))
		if !r.readHeader(s, &h, next) {
			src[s].Rows, src[s].Faulty = 0, 1
			copy(next, here)
			ok = ok && !r.exact()
		}
	}
	return ok
}

// readHeader checks the header h of source s and adds its counts to next.
func (r *stageRun) readHeader(s int, h *[abi.HeaderFixedBytes / 4]uint32, next []uint32) bool {
	sh := r.sh
	src := &r.sources()[s]
	round, gen, rows, flags := uint64(h[0])|uint64(h[1])<<32, h[2], h[3], h[5]
	bad := func(value, limit uint64) bool {
		r.fault(abi.Status{Code: abi.CodeBadHeader, Peer: uint32(s), Value: int64(value), Limit: int64(limit)})
		return false
	}
	limit := sh.MaxTokens
	if uint32(s)%sh.Replicas != sh.Rank%sh.Replicas {
		limit = 0 // ranks of another lane send no rows
	}
	if rows > limit {
		return bad(uint64(rows), uint64(limit))
	}
	picks, ok := r.readCounts(s, rows, next)
	src.Rows, src.ReturnRows = rows, rows
	if sh.ReduceAtHome != 0 {
		src.ReturnRows = uint32(picks)
	}
	switch {
	case round != r.round:
		return bad(round, r.round)
	case gen != sh.Generation:
		return bad(uint64(gen), uint64(sh.Generation))
	case flags&^abi.FlagAborted != 0:
		return bad(uint64(flags), abi.FlagAborted)
	case flags&abi.FlagAborted != 0 && rows != 0:
		return bad(uint64(rows), 0)
	case !ok:
		return bad(picks, uint64(rows)*uint64(sh.TopK))
	}
	return true
}

// readCounts adds the counts of source s to next and returns their sum, at most
// TopK for each row; ok is false when it is more, or less than one for each.
func (r *stageRun) readCounts(s int, rows uint32, next []uint32) (picks uint64, ok bool) {
	r.recv.claimed = grow(r.recv.claimed, len(next))
	copy(r.recv.claimed, view[uint32](r.block(s)+abi.HeaderFixedBytes, len(next)))
	room := uint64(rows) * uint64(r.sh.TopK)
	for e, c := range r.recv.claimed {
		if picks += uint64(c); picks > room {
			return room, false
		}
		next[e] += c
	}
	return picks, picks >= uint64(rows)
}

// fits checks the totals against this rank's limits.
func (r *stageRun) fits() bool {
	sh := r.sh
	over := func(value, limit uint64) bool {
		r.fault(abi.Status{Code: abi.CodeOverflow, Peer: sh.Rank, Value: int64(value), Limit: int64(limit)})
		return false
	}
	var rows uint64
	for _, s := range r.sources() {
		rows += uint64(s.Rows)
	}
	if rows > uint64(sh.MaxRecvRows) {
		return over(rows, uint64(sh.MaxRecvRows))
	}
	rs := &r.recv
	el := int(sh.NumLocalExperts)
	rs.counts, rs.starts = grow(rs.counts, el), grow(rs.starts, el+1)
	var end, largest uint64
	for e, c := range r.before(r.ranks()) {
		c := uint64(c)
		rs.counts[e] = int32(c)
		switch sh.Layout {
		case abi.LayoutGrouped:
			rs.starts[e] = int32(min(end, math.MaxInt32))
			align := uint64(sh.ExpertAlignment)
			end += (c + align - 1) / align * align
		case abi.LayoutBatched:
			rs.starts[e] = int32(uint64(e) * uint64(sh.ExpertCapacity))
			largest = max(largest, c)
		default:
			rs.starts[e] = int32(min(end, math.MaxInt32))
			end += c
		}
	}
	if sh.Layout == abi.LayoutBatched {
		end = uint64(el) * uint64(sh.ExpertCapacity)
		rs.starts[el] = int32(end)
		if largest > uint64(sh.ExpertCapacity) {
			return over(largest, uint64(sh.ExpertCapacity))
		}
		return true
	}
	rs.starts[el] = int32(min(end, math.MaxInt32))
	if end > uint64(sh.MaxExpertRows) {
		return over(end, uint64(sh.MaxExpertRows))
	}
	return true
}

func (r *stageRun) handOutNothing(p *abi.DispatchRecvParams) {
	el := int(r.sh.NumLocalExperts)
	clear(view[int32](p.Counts, el))
	clear(view[int32](p.Starts, el+1))
	clear(view[uint32](p.SourceRows, r.ranks()))
	clear(view[uint32](p.NumRows, 2))
	r.fillRowExpert(p, 0)
}

// fillRowExpert writes -1 from the given row to the end.
func (r *stageRun) fillRowExpert(p *abi.DispatchRecvParams, from int) {
	if r.sh.Layout != abi.LayoutGrouped || p.RowExpert == 0 {
		return
	}
	tail := view[int32](p.RowExpert, int(r.sh.MaxExpertRows))[from:]
	for i := range tail {
		tail[i] = -1
	}
}
