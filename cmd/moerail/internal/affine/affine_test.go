package affine

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"moerail/internal/numeric"
	"moerail/internal/reference"
	"moerail/moe"
)

const hidden, topK, block = 37, 3, 16

// codec writes and reads elements of a type, by the runtime's conversions; what
// they should be is asked of the reference.
func put(b []byte, d moe.DType, v float32) []byte {
	switch d {
	case moe.FP32:
		return binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	case moe.BF16:
		return binary.LittleEndian.AppendUint16(b, numeric.Float32ToBF16(v))
	case moe.FP16:
		return binary.LittleEndian.AppendUint16(b, numeric.Float32ToFP16(v))
	}
	return append(b, numeric.Float32ToE4M3(v))
}

func get(b []byte, d moe.DType, i int) float32 {
	switch d {
	case moe.FP32:
		return math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	case moe.BF16:
		return numeric.BF16ToFloat32(binary.LittleEndian.Uint16(b[2*i:]))
	}
	return numeric.FP16ToFloat32(binary.LittleEndian.Uint16(b[2*i:]))
}

// grouped is a batch of n rows for two experts, rows 0..n-2 for the first, with a
// row of padding between them, and the values that the experts must see.
func grouped(d moe.DType, out moe.DType, n int) (*moe.Batch, [][]float32) {
	r := rand.New(rand.NewPCG(uint64(d), uint64(out)))
	b := &moe.Batch{Counts: []int32{int32(n - 1), 1}, Starts: []int32{0, int32(n), int32(n + 1)}}
	var seen [][]float32
	name, _ := reference.ParseDType(moe.DTypeName(d))
	for range n + 1 {
		x := make([]float32, hidden)
		for i := range x {
			x[i] = float32(r.NormFloat64() * 10)
		}
		if d == moe.FP8 {
			seen = append(seen, reference.Convert(x, reference.FP8, block))
			for from := 0; from < hidden; from += block {
				codes, scale := reference.Quantise(x[from:min(from+block, hidden)])
				b.X = append(b.X, codes...)
				b.Scales = binary.LittleEndian.AppendUint32(b.Scales, math.Float32bits(scale))
			}
			continue
		}
		seen = append(seen, reference.Convert(x, name, 0))
		for _, v := range x {
			b.X = put(b.X, d, v)
		}
	}
	b.XStride, b.ScaleStride = len(b.X)/(n+1), len(b.Scales)/(n+1)
	b.YStride = len(put(nil, out, 0)) * (hidden + 3)
	b.Y = make([]byte, (n+1)*b.YStride)
	return b, seen
}

func TestApplyIsTheDefinition(t *testing.T) {
	scale, bias := []float32{1.25, -3}, []float32{0.1, 7}
	for _, d := range []moe.DType{moe.FP32, moe.BF16, moe.FP16, moe.FP8} {
		for _, out := range []moe.DType{moe.FP32, moe.BF16, moe.FP16} {
			b, seen := grouped(d, out, 5)
			cfg := Config{Scale: scale, Bias: bias, TopK: topK, Hidden: hidden, In: d, Out: out}
			if d == moe.FP8 {
				cfg.ScaleBlock = block
			}
			x := New(cfg)
			x.Apply(b)
			outName, _ := reference.ParseDType(moe.DTypeName(out))
			check := func(layout string, row, source, e int) {
				for i, v := range seen[source] {
					want := reference.Round(float32(scale[e]*v)+bias[e], outName)
					if got := get(b.Y[row*b.YStride:], out, i); got != want {
						t.Fatalf("%s, %s to %s: row %d, element %d of expert %d is %v, want %v", layout, moe.DTypeName(d), moe.DTypeName(out), row, i, e, got, want)
					}
				}
			}
			for r := range 4 {
				check("grouped", r, r, 0)
			}
			check("grouped", 5, 5, 1)
			for _, v := range b.Y[4*b.YStride : 5*b.YStride] {
				if v != 0 {
					t.Fatal("a row of padding was written")
				}
			}
			cfg.Layout, b.Capacity = moe.LayoutBatched, 3
			b.Counts = []int32{2, 1}
			clear(b.Y)
			New(cfg).Apply(b)
			check("batched", 0, 0, 0)
			check("batched", 1, 1, 0)
			check("batched", 3, 3, 1)
			if n := testing.AllocsPerRun(10, func() { x.Apply(b) }); n != 0 {
				t.Errorf("%v allocations", n)
			}
		}
	}
}
