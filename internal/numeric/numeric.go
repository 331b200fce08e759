// Package numeric converts between float32 and the narrow formats that cross the
// wire: bfloat16, IEEE binary16 and FP8 e4m3fn.
//
//	        sign exponent mantissa  largest   NaN written
//	bf16       1        8        7  3.39e38   7fc0
//	fp16       1        5       10    65504   7e00
//	e4m3fn     1        4        3      448   7f, with the sign; no infinity
//
// Every conversion to a narrow format rounds to nearest, ties to even. A NaN
// becomes the one NaN of the table, so that results do not depend on which
// operand of an addition a processor takes a NaN's payload from.
package numeric

import "math"

// Canonical NaNs, as bits.
const (
	NaN32   = 0x7fc00000
	NaNBF16 = 0x7fc0
	NaNFP16 = 0x7e00
)

// MaxE4M3 is the largest finite e4m3fn value.
const MaxE4M3 = 448

// BF16ToFloat32 widens bfloat16 bits; exact.
func BF16ToFloat32(b uint16) float32 { return math.Float32frombits(uint32(b) << 16) }

// Float32ToBF16 rounds f to bfloat16 bits.
func Float32ToBF16(f float32) uint16 {
	u := math.Float32bits(f)
	if u&0x7fffffff > 0x7f800000 {
		return NaNBF16
	}
	return uint16((u + 0x7fff + u>>16&1) >> 16)
}

// FP16ToFloat32 widens binary16 bits; exact (a signalling NaN becomes quiet).
func FP16ToFloat32(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	u := uint32(h & 0x7fff)
	switch {
	case u > 0x7c00:
		return math.Float32frombits(sign | 0x7fc00000 | u<<13)
	case u == 0x7c00:
		return math.Float32frombits(sign | 0x7f800000)
	case u >= 0x0400:
		return math.Float32frombits(sign | (u<<13 + 112<<23))
	}
	// Below 2^-14 the value is u * 2^-24: exact in float32.
	return math.Float32frombits(sign | math.Float32bits(float32(u)*0x1p-24))
}

// Float32ToFP16 rounds f to binary16 bits; values beyond the range become infinite.
func Float32ToFP16(f float32) uint16 {
	u := math.Float32bits(f)
	sign := uint16(u >> 16 & 0x8000)
	u &= 0x7fffffff
	switch {
	case u > 0x7f800000:
		return NaNFP16
	case u >= 0x47800000: // 65536 and more
		return sign | 0x7c00
	case u >= 0x38800000: // normal: 2^-14 and more; a carry may make it infinite
		return sign | uint16((u+0xfff+u>>13&1)>>13-112<<10)
	}
	// The last place of 0.5 is 2^-24, the step of a subnormal: the addition rounds.
	return sign | uint16(math.Float32bits(math.Float32frombits(u)+0.5)-0x3f000000)
}

// E4M3ToFloat32 widens e4m3fn bits; exact.
func E4M3ToFloat32(c uint8) float32 {
	sign := uint32(c&0x80) << 24
	u := uint32(c & 0x7f)
	switch {
	case u == 0x7f:
		return math.Float32frombits(sign | NaN32)
	case u >= 8:
		return math.Float32frombits(sign | (u<<20 + 120<<23))
	}
	return math.Float32frombits(sign | math.Float32bits(float32(u)*0x1p-9))
}

// Float32ToE4M3 rounds f to e4m3fn bits. Finite values beyond 448 become 448;
// infinities and NaN become NaN. The sign is kept.
func Float32ToE4M3(f float32) uint8 {
	u := math.Float32bits(f)
	sign := uint8(u >> 24 & 0x80)
	u &= 0x7fffffff
	switch {
	case u >= 0x7f800000:
		return sign | 0x7f
	case u >= 0x3c800000: // normal: 2^-6 and more
		return sign | uint8(min((u+0x7ffff+u>>20&1)>>20-120<<3, 0x7e))
	}
	// The last place of 2^14 is 2^-9, the step of a subnormal.
	return sign | uint8(math.Float32bits(math.Float32frombits(u)+0x1p14)-0x46800000)
}
