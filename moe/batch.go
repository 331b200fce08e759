package moe

import (
	"moerail/internal/mem"
	"moerail/kernels/abi"
)

// Batch is what a rank received. The slices are views into the communicator's
// memory, valid until the slot's next DispatchRecv, or Close; Y is to be filled
// before CombineSend.
type Batch struct {
	NumRows    int      // (token, rank) rows received, own ones included
	NumPicks   int      // (token, expert) pairs among them
	Experts    []int32  // physical expert of each local one, under this round's placement
	Counts     []int32  // picks of each local expert
	Starts     []int32  // grouped: first row of each local expert, and the end
	RowExpert  []int32  // grouped: local expert of each row, -1 in padding
	SourceRows []uint32 // rows from each rank

	// X holds the rows of grouped and batched layouts: row r at X[r*XStride:], in
	// batched row i of local expert e is number e*Capacity+i.
	X           []byte
	XStride     int
	Scales      []byte
	ScaleStride int
	Capacity    int

	// TopK and Weights are [NumRows, TopK] in the rows layout: local experts, -1
	// where there is none. Row gives the payloads.
	TopK    []int32
	Weights []float32

	// Y is where the experts may put their results, one row of OutDType for each
	// row of X, or in the rows layout one for each pick in (row, pick) order.
	Y       []byte
	YStride int
	OutRows int // rows of Y that combine may read

	rowAddr []byte
	payload int
	scaleAt int
	scales  int
}

// view fills the slot's batch from the outputs of dispatch_recv.
func (c *Communicator) view(s *slot) *Batch {
	sh, m := &c.plan.Shape, &s.mem
	own := s.place.Load().own
	el, k := uint64(len(own)), uint64(sh.TopK)
	b := &s.batch
	*b = Batch{
		Experts:  own,
		NumRows:  int(mem.Word32(s.local.Host, m.numRows).Load()),
		NumPicks: int(mem.Word32(s.local.Host, m.numRows+4).Load()),
		Counts:   int32s(s.at(m.counts, el*4)), SourceRows: uint32s(s.at(m.sourceRows, uint64(sh.NumRanks)*4)),
		XStride: int(m.xStride), ScaleStride: int(sh.ScaleBytes), Capacity: int(sh.ExpertCapacity),
		YStride: int(m.yStride),
	}
	switch sh.Layout {
	case abi.LayoutGrouped:
		b.Starts = int32s(s.at(m.starts, (el+1)*4))
		b.OutRows = int(b.Starts[el])
		b.RowExpert = int32s(s.at(m.rowExpert, uint64(b.OutRows)*4))
	case abi.LayoutBatched:
		b.OutRows = int(el) * b.Capacity
	case abi.LayoutRows:
		b.OutRows = b.NumPicks
		n := uint64(b.NumRows)
		b.TopK, b.Weights = int32s(s.at(m.rowTopK, n*k*4)), float32s(s.at(m.rowWeights, n*k*4))
		b.rowAddr = s.at(m.rowAddr, n*8)
		b.payload, b.scaleAt, b.scales = int(sh.PayloadBytes), int(sh.ScaleOffset), int(sh.ScaleBytes)
	}
	if sh.Layout != abi.LayoutRows {
		b.X = s.at(m.expertX, uint64(b.OutRows)*m.xStride)
		b.Scales = s.at(m.expertScales, uint64(b.OutRows)*uint64(sh.ScaleBytes))
	}
	b.Y = s.at(m.y, uint64(b.OutRows)*m.yStride)
	s.outRows = b.OutRows
	return b
}
