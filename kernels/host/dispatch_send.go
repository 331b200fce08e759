package host

import (
	"math"
	"sync/atomic"

	"moerail/internal/simd"
	"moerail/kernels/abi"
)

// dispatchSend: see abi.DispatchSendParams. What it leaves in every case but one:
// each peer gets exactly one block and each DispatchWord the round's tag, also
// when the input is refused (then all blocks are empty and flagged). The case is a
// round that ends before the send buffer is free (CodeAborted, CodeStopped): then
// nothing is written.
//
// With replicas, rows go only to the ranks of this rank's lane, q%Replicas ==
// Rank%Replicas, and the others get an empty block. Home and ReturnRows cover all
// ranks: the lanes send the rows of the same tokens, so row numbers are equal on
// every replica, and each of them is returned the rows of all lanes.
func (r *stageRun) dispatchSend(p *abi.DispatchSendParams) {
	r.begin(abi.StageDispatchSend, &p.Shape, &p.Slot)
	*statusAt(r.sl.Status) = abi.Status{Round: r.round}
	r.plan.reset(r.sh)
	returnRows := view[uint32](r.sl.ReturnRows, r.ranks())
	storeRows(returnRows, nil)
	tokens := &view[uint32](r.sl.Tokens, 1)[0]
	*tokens = 0

	refused := true
	n, limit := p.NumTokens, r.sh.MaxTokens
	if p.NumTokensPtr != 0 {
		limit = min(limit, p.NumTokens)
		n = word32(p.NumTokensPtr).Load()
	}
	switch {
	case n > limit:
		r.fault(abi.Status{Code: abi.CodeTooManyTokens, Peer: r.sh.Rank, Value: int64(n), Limit: int64(limit)})
	case r.readIDs(p, int(n)):
		refused = false
		r.count(p, int(n))
		*tokens = n
	}

	if code := r.awaitWord(ctlDispatchTxDone, r.round); code != abi.CodeOK {
		*tokens = 0
		r.fault(abi.Status{Code: code, Peer: r.sh.Rank})
		return
	}
	if r.sh.ReduceAtHome != 0 {
		storeRows(returnRows, r.plan.picks)
	} else {
		storeRows(returnRows, r.plan.rows)
	}
	var rows uint64
	for _, n := range r.plan.rows {
		rows += uint64(n)
	}
	r.writes(rows * uint64(r.sh.RowBytes))
	w := blockWriter{r: r, p: p, bump: bumper{bump: r.s.bump}}
	if refused {
		w.flags = abi.FlagAborted
	}
	w.writeAll()
}

// blockWriter writes the blocks of one dispatch_send.
type blockWriter struct {
	r     *stageRun
	p     *abi.DispatchSendParams
	flags uint32
	bump  bumper
}

// writeAll goes through the peers, those behind a NIC first, so that it works
// while the rest is written; each starts with the rank after this one, so that
// not all ranks write to the same one at once. This rank's own block is last.
func (w *blockWriter) writeAll() {
	r := w.r
	self, n := r.self(), r.ranks()
	for i := 1; i < n; i++ {
		q := (self + i) % n
		if r.storesTo(q) != 0 {
			continue
		}
		rows, size := w.write(r.sl.Send+uint64(q)*r.sh.SendStride, q)
		w.publish(q, rows)
		w.bump.wrote(size)
	}
	w.bump.flush()
	for i := 1; i < n; i++ {
		q := (self + i) % n
		if dst := r.storesTo(q); dst != 0 {
			rows, _ := w.write(dst, q)
			flags := view[uint64](r.sl.PeerDispatchFlag, 2*n)
			word(flags[int(r.round&1)*n+q]).Store(r.tag)
			w.publish(q, rows)
		}
	}
	rows, _ := w.write(r.sl.Send+uint64(self)*r.sh.SendStride, self)
	w.publish(self, rows)
	w.bump.flush()
}

func (w *blockWriter) publish(q int, rows uint32) {
	word(w.r.sl.DispatchWords + 8*uint64(q)).Store(uint64(rows)<<32 | uint64(uint32(w.r.tag)))
}

// write writes the block for rank q at dst and returns its rows and bytes.
func (w *blockWriter) write(dst uint64, q int) (rows uint32, size uint64) {
	r := w.r
	sh, pl := r.sh, &r.plan
	head := view[uint32](dst, int(sh.HeaderBytes)/4)
	counts := head[abi.HeaderFixedBytes/4:]
	clear(counts)
	k := int(sh.TopK)
	entry := int32(-1)
	if uint32(q)%sh.Replicas == sh.Rank%sh.Replicas {
		entry = pl.head[q]
	}
	rank := view[uint32](r.sl.ExpertRank, int(sh.NumExperts))
	local := view[uint32](r.sl.ExpertLocal, int(sh.NumExperts))
	// As many as there are tokens: beyond them the memory is not the caller's promise.
	weights := view[float32](w.p.Weights, int(view[uint32](r.sl.Tokens, 1)[0])*k)
	if sh.ApplyWeights == 0 {
		weights = nil
	}
	at := dst + uint64(sh.HeaderBytes)
	for ; entry >= 0; entry = pl.next[entry] {
		tok := int(pl.token[entry])
		w.copyToken(at, tok)
		meta := view[uint32](at+uint64(sh.MetaOffset), (abi.RowMetaBytes+k*abi.PickBytes)/4)
		n := 0
		for i := tok * k; i < (tok+1)*k; i++ {
			e := pl.expert[i]
			if e < 0 || rank[e] != uint32(q) {
				continue
			}
			weight := float32(1)
			if weights != nil {
				weight = weights[i]
			}
			pick := meta[2+3*n : 5+3*n]
			pick[0], pick[1], pick[2] = local[e], pl.index[i], math.Float32bits(weight)
			counts[local[e]]++
			n++
		}
		meta[0], meta[1] = uint32(tok), uint32(n)
		at += uint64(sh.RowBytes)
		rows++
	}
	head[0], head[1] = uint32(r.round), uint32(r.round>>32)
	head[2], head[3], head[4], head[5] = sh.Generation, rows, 0, w.flags
	return rows, at - dst
}

// copyToken writes the payload and scales of a token to the row at dst.
func (w *blockWriter) copyToken(dst uint64, tok int) {
	r, p, sh := w.r, w.p, w.r.sh
	payload := view[byte](dst, int(sh.PayloadBytes))
	if sh.In != sh.Wire {
		codes, scales := w.quantise(tok)
		r.copyRow(payload, codes)
		copy(view[float32](dst+uint64(sh.ScaleOffset), len(scales)), scales)
		return
	}
	r.copyRow(payload, view[byte](p.X+uint64(tok)*p.XStride, int(sh.PayloadBytes)))
	if sh.ScaleBytes != 0 {
		copy(view[byte](dst+uint64(sh.ScaleOffset), int(sh.ScaleBytes)),
			view[byte](p.Scales+uint64(tok)*p.ScaleStride, int(sh.ScaleBytes)))
	}
}

// quantise returns a token as FP8 with its block scales, made on first use.
func (w *blockWriter) quantise(tok int) (codes []byte, scales []float32) {
	sh, pl := w.r.sh, &w.r.plan
	h, block := int(sh.Hidden), int(sh.ScaleBlock)
	blocks := (h + block - 1) / block
	codes, scales = pl.codes[tok*h:(tok+1)*h], pl.scales[tok*blocks:(tok+1)*blocks]
	if pl.quantised[tok] == pl.seq {
		return codes, scales
	}
	pl.quantised[tok] = pl.seq
	x := view[byte](w.p.X+uint64(tok)*w.p.XStride, int(sh.InRowBytes))
	switch sh.In {
	case abi.BF16:
		simd.WidenBF16(pl.wide, x)
	case abi.FP16:
		simd.WidenFP16(pl.wide, x)
	default:
		simd.WidenFP32(pl.wide, x)
	}
	for b := range scales {
		lo, hi := b*block, min((b+1)*block, h)
		scales[b] = simd.BlockE4M3(codes[lo:hi], pl.wide[lo:hi])
	}
	return codes, scales
}

// storeRows writes how many rows each rank owes, zeros if rows is nil. A proxy that
// is about to leave the last round's wait may be looking at them.
func storeRows(to, rows []uint32) {
	for q := range to {
		var n uint32
		if rows != nil {
			n = rows[q]
		}
		atomic.StoreUint32(&to[q], n)
	}
}
