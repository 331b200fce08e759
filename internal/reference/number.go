package reference

import (
	"fmt"
	"math"
	"sync"
)

// DType names a number format of payloads. The zero value is FP32.
type DType int

// The number formats. FP8 is e4m3fn (no infinity, largest value 448) with one
// fp32 scale per block of elements; it is an input format only.
const (
	FP32 DType = iota
	BF16
	FP16
	FP8
)

// String returns the name a case file uses.
func (d DType) String() string {
	switch d {
	case FP32:
		return "fp32"
	case BF16:
		return "bf16"
	case FP16:
		return "fp16"
	case FP8:
		return "fp8"
	}
	return fmt.Sprintf("dtype(%d)", int(d))
}

// ParseDType is the inverse of String.
func ParseDType(name string) (DType, error) {
	for d := FP32; d <= FP8; d++ {
		if d.String() == name {
			return d, nil
		}
	}
	return 0, fmt.Errorf("reference: dtype %q is not one of fp32, bf16, fp16, fp8", name)
}

// minifloat is a binary format: sign, exponent of expBits with the usual bias,
// fraction of fracBits. finite formats have no infinity: the code of all ones
// is their only NaN, and they saturate.
type minifloat struct {
	expBits, fracBits int
	finite            bool
}

var (
	formatBF16 = minifloat{expBits: 8, fracBits: 7}
	formatFP16 = minifloat{expBits: 5, fracBits: 10}
	formatE4M3 = minifloat{expBits: 4, fracBits: 3, finite: true}
)

func (f minifloat) bias() int       { return 1<<(f.expBits-1) - 1 }
func (f minifloat) expOnes() int    { return 1<<f.expBits - 1 }
func (f minifloat) signBit() uint32 { return 1 << (f.expBits + f.fracBits) }

// largest is the code of the greatest finite value; infinity, where the format
// has one, is the code after it.
func (f minifloat) largest() uint32 {
	if f.finite {
		return f.signBit() - 2
	}
	return uint32(f.expOnes())<<f.fracBits - 1
}

// decode returns the value of a code: (-1)^s * 1.fraction * 2^(e-bias), or
// 0.fraction * 2^(1-bias) when the exponent field is zero.
func (f minifloat) decode(code uint32) float32 {
	sign := 1.0
	if code&f.signBit() != 0 {
		sign = -1
	}
	exp := int(code>>f.fracBits) & f.expOnes()
	frac := int(code & (1<<f.fracBits - 1))
	magnitude := code & (f.signBit() - 1)
	switch {
	case f.finite && magnitude == f.signBit()-1, !f.finite && exp == f.expOnes() && frac != 0:
		return math.Float32frombits(math.Float32bits(float32(math.Copysign(1, sign)))&(1<<31) | 0x7fc00000)
	case !f.finite && exp == f.expOnes():
		return float32(math.Inf(int(sign)))
	case exp == 0:
		return float32(math.Copysign(math.Ldexp(float64(frac), 1-f.bias()-f.fracBits), sign))
	}
	return float32(sign * math.Ldexp(float64(1<<f.fracBits+frac), exp-f.bias()-f.fracBits))
}

// encode rounds v to the format, to nearest, ties to even. A NaN gives a NaN
// of the same sign. A value too large gives infinity, or the greatest value
// where the format has no infinity; infinity itself gives NaN there.
func (f minifloat) encode(v float32) uint32 {
	bits := math.Float32bits(v)
	var sign uint32
	if bits>>31 != 0 {
		sign = f.signBit()
	}
	exp, frac := int(bits>>23)&0xff, uint64(bits&(1<<23-1))
	if exp == 0xff && (frac != 0 || f.finite) {
		if f.finite {
			return sign | (f.signBit() - 1)
		}
		return sign | (f.largest() + 1) | 1<<(f.fracBits-1)
	}
	if exp == 0xff {
		return sign | (f.largest() + 1)
	}
	// |v| = whole * 2^unit with whole < 2^24.
	whole, unit := frac|1<<23, exp-150
	if exp == 0 {
		whole, unit = frac, -149
	}
	// The target counts in steps of 2^step; step is that of the binade of v,
	// or of the subnormals below the smallest binade.
	lead := exp - 127
	step := max(lead, 1-f.bias()) - f.fracBits
	drop := step - unit
	if drop > 40 {
		whole = 0 // less than half a step however large the fraction
	} else { // drop >= 13: every format here is narrower than fp32
		half, low := uint64(1)<<(drop-1), whole&(1<<drop-1)
		whole >>= drop
		if low > half || low == half && whole&1 == 1 {
			whole++
		}
	}
	// whole counts steps; the code of a positive value is its rank among all
	// values, so adding the steps to the code of the binade's start carries
	// into the exponent by itself.
	var code uint32
	if lead < 1-f.bias() {
		code = uint32(whole)
	} else {
		code = uint32(lead+f.bias()-1)<<f.fracBits + uint32(whole)
	}
	if code > f.largest() {
		if f.finite {
			return sign | f.largest()
		}
		return sign | (f.largest() + 1)
	}
	return sign | code
}

// Round returns v rounded once to d and read back: to nearest, ties to even.
// For FP8 it is the value of the e4m3fn code alone, without a scale.
func Round(v float32, d DType) float32 {
	switch d {
	case BF16:
		return valuesBF16()[formatBF16.encode(v)]
	case FP16:
		return valuesFP16()[formatFP16.encode(v)]
	case FP8:
		return formatE4M3.decode(formatE4M3.encode(v))
	}
	return v
}

// The values of all codes, since rounding is most of what an evaluation does.
var (
	valuesBF16 = sync.OnceValue(formatBF16.all)
	valuesFP16 = sync.OnceValue(formatFP16.all)
)

func (f minifloat) all() []float32 {
	list := make([]float32, 2*f.signBit())
	for code := range list {
		list[code] = f.decode(uint32(code))
	}
	return list
}

// unit is the relative error of one rounding to d, and tiny half of its
// smallest step: |Round(v)-v| <= max(unit*|v|, tiny) for all v that do not
// overflow. limit is the greatest finite value.
func (d DType) precision() (unit, tiny, limit float64) {
	switch d {
	case BF16:
		return 0x1p-8, 0x1p-134, 0x1.fep127
	case FP16:
		return 0x1p-11, 0x1p-25, 65504
	}
	return 0x1p-24, 0x1p-150, math.MaxFloat32
}

// Convert converts one token of this rank to what its experts see: each value
// rounded once to d and read back as fp32. x is not changed; the result is a
// new slice of the same length.
//
// For FP8, scaleBlock consecutive values share one scale, the last block may
// be shorter: amax is the largest |x| over the finite values of the block,
// scale = amax/448 by fp32 division (1 if that is 0), code = e4m3fn of x/scale,
// saturating, and NaN for a NaN or an infinity; the value is code*scale in fp32.
func Convert(x []float32, d DType, scaleBlock int) []float32 {
	out := make([]float32, len(x))
	if d != FP8 {
		for i, v := range x {
			out[i] = Round(v, d)
		}
		return out
	}
	for from := 0; from < len(x); from += scaleBlock {
		block := x[from:min(from+scaleBlock, len(x))]
		codes, scale := Quantise(block)
		for i, c := range codes {
			out[from+i] = float32(formatE4M3.decode(uint32(c)) * scale)
		}
	}
	return out
}

// Quantise returns the e4m3fn codes of one block and its scale; see Convert.
func Quantise(block []float32) (codes []byte, scale float32) {
	var amax float32
	for _, v := range block {
		a := float32(math.Abs(float64(v)))
		if a <= math.MaxFloat32 && a > amax { // false for NaN
			amax = a
		}
	}
	scale = amax / 448
	if scale == 0 {
		scale = 1
	}
	codes = make([]byte, len(block))
	for i, v := range block {
		if v-v != 0 { // NaN or infinity: NaN of that sign, whatever the scale
			codes[i] = byte(formatE4M3.encode(v))
			continue
		}
		q := float32(v / scale)
		if math.IsInf(float64(q), 0) {
			q = float32(math.Copysign(448, float64(v))) // the quotient overflowed, x did not
		}
		codes[i] = byte(formatE4M3.encode(q))
	}
	return codes, scale
}
