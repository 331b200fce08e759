// Package affine is the model behind the runtime in runs and cases: expert e
// computes scale[e]*x + bias[e], element by element, so that an output tells
// which experts made it and with which weights.
//
//	moe.Batch X (wire dtype, fp8 scales) --widen--> fp32 --a*x+b--> round once --> Batch.Y
//
// The judge of the result, internal/reference, shares no code with this.
package affine

import (
	"encoding/binary"
	"math"

	"moerail/internal/numeric"
	"moerail/moe"
)

// Experts computes the experts of one rank. One goroutine at a time uses it.
type Experts struct {
	cfg Config
	x   []float32 // one row, widened
}

// Config describes the rows; it is immutable after New.
type Config struct {
	Scale, Bias []float32 // of each local expert, in the rank's own order
	Layout      moe.Layout
	TopK        int
	Hidden      int       // elements of a row
	In          moe.DType // of received rows
	Out         moe.DType // of expert outputs: fp32, bf16 or fp16
	ScaleBlock  int       // elements per fp32 scale of an FP8 row; 0 is none
}

// New prepares a scratch row; Apply then allocates nothing.
func New(cfg Config) *Experts {
	return &Experts{cfg: cfg, x: make([]float32, cfg.Hidden)}
}

// Apply writes the experts' outputs for all picks of b to b.Y, under the row
// numbers of b's layout. Padding rows are left alone.
func (x *Experts) Apply(b *moe.Batch) {
	switch x.cfg.Layout {
	case moe.LayoutRows:
		out := 0
		for r := range b.NumRows {
			x.widen(b.Row(r), b.RowScales(r))
			for _, e := range b.TopK[r*x.cfg.TopK : (r+1)*x.cfg.TopK] {
				if e < 0 {
					break
				}
				x.compute(int(e), b.Y[out*b.YStride:])
				out++
			}
		}
	case moe.LayoutBatched:
		for e, n := range b.Counts {
			x.expert(b, e, e*b.Capacity, int(n))
		}
	default:
		for e, n := range b.Counts {
			x.expert(b, e, int(b.Starts[e]), int(n))
		}
	}
}

// expert computes n rows of expert e, which start at row first.
func (x *Experts) expert(b *moe.Batch, e, first, n int) {
	for r := first; r < first+n; r++ {
		var scales []byte
		if x.cfg.ScaleBlock > 0 {
			scales = b.Scales[r*b.ScaleStride:]
		}
		x.widen(b.X[r*b.XStride:], scales)
		x.compute(e, b.Y[r*b.YStride:])
	}
}

// widen decodes a row to fp32.
func (x *Experts) widen(row, scales []byte) {
	dst := x.x
	switch x.cfg.In {
	case moe.FP32:
		for i := range dst {
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(row[4*i:]))
		}
	case moe.BF16:
		row = row[:2*len(dst)]
		for i := range dst {
			dst[i] = numeric.BF16ToFloat32(binary.LittleEndian.Uint16(row[2*i:]))
		}
	case moe.FP16:
		for i := range dst {
			dst[i] = numeric.FP16ToFloat32(binary.LittleEndian.Uint16(row[2*i:]))
		}
	case moe.FP8:
		if x.cfg.ScaleBlock == 0 {
			for i := range dst {
				dst[i] = numeric.E4M3ToFloat32(row[i])
			}
			return
		}
		for from := 0; from < len(dst); from += x.cfg.ScaleBlock {
			scale := math.Float32frombits(binary.LittleEndian.Uint32(scales[from/x.cfg.ScaleBlock*4:]))
			for i := from; i < min(from+x.cfg.ScaleBlock, len(dst)); i++ {
				dst[i] = numeric.E4M3ToFloat32(row[i]) * scale
			}
		}
	}
}

// compute writes expert e's output for the widened row, each element rounded
// once: to fp32 after the product, after the sum, and to the output type.
func (x *Experts) compute(e int, row []byte) {
	a, b := x.cfg.Scale[e], x.cfg.Bias[e]
	switch x.cfg.Out {
	case moe.BF16:
		row = row[:2*len(x.x)]
		for i, v := range x.x {
			binary.LittleEndian.PutUint16(row[2*i:], numeric.Float32ToBF16(float32(a*v)+b))
		}
	case moe.FP16:
		row = row[:2*len(x.x)]
		for i, v := range x.x {
			binary.LittleEndian.PutUint16(row[2*i:], numeric.Float32ToFP16(float32(a*v)+b))
		}
	default:
		row = row[:4*len(x.x)]
		for i, v := range x.x {
			binary.LittleEndian.PutUint32(row[4*i:], math.Float32bits(float32(a*v)+b))
		}
	}
}
