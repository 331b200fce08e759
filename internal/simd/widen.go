package simd

import (
	"encoding/binary"
	"math"

	"moerail/internal/numeric"
)

// BlockE4M3 quantises one block of float32 values to e4m3fn: dst[i] is x[i]/scale,
// rounded to nearest even and saturated at 448, and scale is returned. It is the
// largest finite |x| divided by 448, or 1 when that is zero. NaN and infinities
// become NaN with their sign. len(dst) must be len(x).
func BlockE4M3(dst []byte, x []float32) float32 {
	dst = dst[:len(x)]
	amax, done := asmAmax(x)
	amax = max(amax, absMax(x[done:]))
	scale := amax / numeric.MaxE4M3
	if scale == 0 { // also when the quotient is below the smallest float32
		scale = 1
	}
	done = asmE4M3(dst, x, scale)
	for i := done; i < len(x); i++ {
		dst[i] = numeric.Float32ToE4M3(x[i] / scale)
	}
	return scale
}

func absMax(x []float32) float32 {
	var m uint32
	for _, f := range x {
		// The bits of finite magnitudes order as the values do.
		if u := math.Float32bits(f) &^ (1 << 31); u < 0x7f800000 {
			m = max(m, u)
		}
	}
	return math.Float32frombits(m)
}

// WidenBF16 writes the elements of src, bfloat16, to dst.
func WidenBF16(dst []float32, src []byte) {
	src = src[:2*len(dst)]
	for i := range dst {
		dst[i] = numeric.BF16ToFloat32(binary.LittleEndian.Uint16(src[2*i:]))
	}
}

// WidenFP16 writes the elements of src, IEEE binary16, to dst.
func WidenFP16(dst []float32, src []byte) {
	src = src[:2*len(dst)]
	for i := range dst {
		dst[i] = numeric.FP16ToFloat32(binary.LittleEndian.Uint16(src[2*i:]))
	}
}

// WidenFP32 copies the elements of src, float32, to dst.
func WidenFP32(dst []float32, src []byte) {
	src = src[:4*len(dst)]
	for i := range dst {
		dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
	}
}
