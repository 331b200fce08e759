package host

import (
	"moerail/internal/numeric"
	"moerail/internal/simd"
	"moerail/kernels/abi"
)

// stageRun is the state of the stage that runs, and scratch that lives from one
// to the next. Scratch only grows: after a round of a shape nothing is allocated.
type stageRun struct {
	s *Stream

	stage uint32
	sh    *abi.Shape
	sl    *abi.Slot
	round uint64
	tag   uint64 // round+1
	waits []waitFor

	plan plan      // dispatch_send
	recv recvState // dispatch_recv
	meta []uint32  // one row's metadata, copied out of memory that a peer writes
	rows [][]byte  // the rows of one weighted sum
	w    []float32 // and their weights
	dsts []uint64  // where one return block goes
	row  []byte    // one return row on its way around the caches

	around bool // this stage writes its rows around the caches
}

// begin sets the run up for a stage of the round that the slot is in.
func (r *stageRun) begin(stage uint32, sh *abi.Shape, sl *abi.Slot) {
	r.stage, r.sh, r.sl = stage, sh, sl
	r.round = word(sl.Round).Load()
	r.tag = r.round + 1
	r.waits = r.waits[:0]
	r.around = false
	r.meta = grow(r.meta, (abi.RowMetaBytes+int(sh.TopK)*abi.PickBytes)/4)
	if cap(r.rows) < int(sh.TopK)+1 {
		r.rows = make([][]byte, 0, sh.TopK+1)
		r.w = make([]float32, 0, sh.TopK+1)
	}
	if n := int(sh.NumRanks) + 1; cap(r.waits) < n {
		r.waits = make([]waitFor, 0, n)
		r.dsts = make([]uint64, 0, n)
	}
}

// grow returns s with length n; its content is lost when it must be made anew.
func grow[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}

// fault records a fault of this stage unless the round has one already.
func (r *stageRun) fault(f abi.Status) {
	st := statusAt(r.sl.Status)
	if st.Code != abi.CodeOK {
		return
	}
	f.Stage = r.stage
	f.Round = r.round
	*st = f
}

// ended reports whether dispatch_recv ended the round already, with overflow on
// every rank, so that the combine stages launched for it have nothing to do.
func (r *stageRun) ended() bool { return statusAt(r.sl.Status).Round != r.round }

// awaitWord is await for a word of Control.
func (r *stageRun) awaitWord(offset uintptr, want uint64) uint32 {
	if code, over := r.interrupted(false); over {
		return code
	}
	r.waits = append(r.waits[:0], waitFor{control(r.sl.Control, offset), want})
	return r.await(false)
}

func (r *stageRun) self() int  { return int(r.sh.Rank) }
func (r *stageRun) ranks() int { return int(r.sh.NumRanks) }

// exact reports whether blocks may be larger than a window.
func (r *stageRun) exact() bool { return r.sh.WindowRows < r.sh.MaxTokens }

// storesTo returns where this rank's block lies in rank q's window of this
// round, when it stores there itself, else 0.
func (r *stageRun) storesTo(q int) uint64 {
	if r.sl.PeerWindow == 0 || q == r.self() || r.exact() {
		return 0
	}
	return view[uint64](r.sl.PeerWindow, 2*r.ranks())[int(r.round&1)*r.ranks()+q]
}

// returnsTo is storesTo for return blocks.
func (r *stageRun) returnsTo(q int) uint64 {
	if r.sl.PeerReturn == 0 || q == r.self() {
		return 0
	}
	return view[uint64](r.sl.PeerReturn, r.ranks())[q]
}

// dispatchFlag is the word by which rank p says that its block lies in this
// rank's window, where it stores it itself.
func (r *stageRun) dispatchFlag(p int) uint64 {
	return r.sl.DirectDispatch + 64*uint64(int(r.round&1)*r.ranks()+p)
}

func (r *stageRun) combineFlag(p int) uint64 { return r.sl.DirectCombine + 64*uint64(p) }

// block is where the block of this round from src lies.
func (r *stageRun) block(src int) uint64 {
	if src == r.self() {
		return r.sl.Send + uint64(src)*r.sh.SendStride
	}
	return r.sl.Window[r.round&1] + uint64(src)*r.sh.WindowStride
}

// rowAddr is where row i of a block lies: in the block, or in the overflow area
// where over is the number of the block's first row there. This rank's own rows
// never overflow.
func (r *stageRun) rowAddr(src, i int, over uint64) uint64 {
	if src != r.self() && i >= int(r.sh.WindowRows) {
		return r.sl.Overflow + (over+uint64(i)-uint64(r.sh.WindowRows))*uint64(r.sh.RowBytes)
	}
	return r.block(src) + uint64(r.sh.HeaderBytes) + uint64(i)*uint64(r.sh.RowBytes)
}

// overflowRows is how many of rows go to the overflow area.
func (r *stageRun) overflowRows(src int, rows uint32) uint64 {
	if src == r.self() || rows <= r.sh.WindowRows {
		return 0
	}
	return uint64(rows - r.sh.WindowRows)
}

// readMeta copies a row's metadata out, once, and returns its picks as triples
// (expert, index, weight bits); ok is false when their number cannot be true.
func (r *stageRun) readMeta(row uint64) (picks []uint32, ok bool) {
	copy(r.meta, view[uint32](row+uint64(r.sh.MetaOffset), len(r.meta)))
	n := r.meta[1]
	if n == 0 || n > r.sh.TopK {
		return nil, false
	}
	return r.meta[2 : 2+3*n], true
}

// writes says how many bytes of rows this stage is going to write.
func (r *stageRun) writes(bytes uint64) { r.around = bytes > r.s.cfg.CacheBytes }

// copyRow copies a row, or what is large of one.
func (r *stageRun) copyRow(dst, src []byte) {
	if r.around {
		simd.CopyAround(dst, src)
		return
	}
	copy(dst, src)
}

// sum writes round(sum of w[j]*rows[j]) to dst in the type Out.
func (r *stageRun) sum(dst []byte) {
	switch r.sh.Out {
	case abi.BF16:
		simd.SumBF16(dst, r.rows, r.w)
	case abi.FP16:
		simd.SumFP16(dst, r.rows, r.w)
	default:
		simd.SumFP32(dst, r.rows, r.w)
	}
}

// fillNaN writes NaN of the type Out all over dst.
func (r *stageRun) fillNaN(dst []byte) {
	lo, hi := byte(numeric.NaNBF16&0xff), byte(numeric.NaNBF16>>8)
	switch r.sh.Out {
	case abi.FP16:
		hi = numeric.NaNFP16 >> 8
	case abi.FP32:
		for i := 0; i+4 <= len(dst); i += 4 {
			dst[i], dst[i+1], dst[i+2], dst[i+3] = 0, 0, numeric.NaN32>>16&0xff, numeric.NaN32>>24
		}
		return
	}
	for i := 0; i+2 <= len(dst); i += 2 {
		dst[i], dst[i+1] = lo, hi
	}
}

// bumper calls bump when enough was written since the last time to be worth it.
type bumper struct {
	bump  func()
	bytes uint64
}

const bumpBytes = 64 << 10

func (b *bumper) wrote(n uint64) {
	if b.bytes += n; b.bytes >= bumpBytes {
		b.flush()
	}
}

func (b *bumper) flush() {
	b.bump()
	b.bytes = 0
}
