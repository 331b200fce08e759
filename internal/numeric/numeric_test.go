package numeric

import (
	"math"
	"math/rand/v2"
	"testing"
)

// format describes a narrow format well enough to find the nearest value by
// search, which shares nothing with the conversions under test.
type format struct {
	name   string
	inf    int // code one above the largest finite positive value
	decode func(code int) float64
	encode func(float32) int
	nan    func(sign int) int
	// over is what a finite or infinite value beyond the range becomes.
	over func(inf bool) int
	top  int // sign bit
}

// decodeIEEE is the definition: (-1)^s * 2^(e-bias) * 1.m, subnormals below.
func decodeIEEE(code, expBits, manBits int) float64 {
	bias := 1<<(expBits-1) - 1
	e, m := code>>manBits, code&(1<<manBits-1)
	if e == 0 {
		return math.Ldexp(float64(m), 1-bias-manBits)
	}
	return math.Ldexp(float64(m+1<<manBits), e-bias-manBits)
}

var formats = []format{
	{"bf16", 0x7f80, func(c int) float64 { return decodeIEEE(c, 8, 7) }, func(f float32) int { return int(Float32ToBF16(f)) },
		func(int) int { return NaNBF16 }, func(bool) int { return 0x7f80 }, 0x8000},
	{"fp16", 0x7c00, func(c int) float64 { return decodeIEEE(c, 5, 10) }, func(f float32) int { return int(Float32ToFP16(f)) },
		func(int) int { return NaNFP16 }, func(bool) int { return 0x7c00 }, 0x8000},
	{"e4m3", 0x7f, func(c int) float64 { return decodeIEEE(c, 4, 3) }, func(f float32) int { return int(Float32ToE4M3(f)) },
		func(s int) int { return s | 0x7f }, func(inf bool) int {
			if inf {
				return 0x7f
			}
			return 0x7e
		}, 0x80},
}

// nearest finds the code by binary search over the positive values.
func (f *format) nearest(x float64) int {
	lo, hi := 0, f.inf // decode(lo) <= x < decode(hi), where inf stands for the next binade
	for hi-lo > 1 {
		if mid := (lo + hi) / 2; f.decode(mid) <= x {
			lo = mid
		} else {
			hi = mid
		}
	}
	a, b := f.decode(lo), f.decode(hi)
	if f.name == "e4m3" && lo == f.inf-1 {
		return lo
	}
	switch d := (x - a) - (b - x); {
	case d < 0:
		return lo
	case d > 0:
		return hi
	}
	return lo + lo&1
}

func (f *format) check(t *testing.T, bits uint32) {
	t.Helper()
	x := math.Float32frombits(bits)
	sign := 0
	if bits>>31 == 1 {
		sign = f.top
	}
	var want int
	switch a := math.Abs(float64(x)); {
	case math.IsNaN(a):
		want = f.nan(sign)
	case math.IsInf(a, 0):
		want = sign | f.over(true)
	case a >= f.decode(f.inf):
		want = sign | f.over(false)
	default:
		want = sign | f.nearest(a)
	}
	if got := f.encode(x); got != want {
		t.Fatalf("%s of %g (%#08x): %#x, want %#x", f.name, x, bits, got, want)
	}
}

func TestEveryCodeDecodesAsDefinedAndBack(t *testing.T) {
	for c := 0; c < 1<<16; c++ {
		b := BF16ToFloat32(uint16(c))
		if math.Float32bits(b) != uint32(c)<<16 {
			t.Fatalf("bf16 %#x -> %g", c, b)
		}
		h := FP16ToFloat32(uint16(c))
		sign := 1 - 2*float64(c>>15)
		switch m := c & 0x7fff; {
		case m > 0x7c00:
			if h == h {
				t.Fatalf("fp16 NaN %#x -> %g", c, h)
			}
		case m == 0x7c00:
			if !math.IsInf(float64(h), int(sign)) {
				t.Fatalf("fp16 inf %#x -> %g", c, h)
			}
		default:
			if float64(h) != sign*decodeIEEE(m, 5, 10) || math.Signbit(float64(h)) != (c>>15 == 1) || int(Float32ToFP16(h)) != c {
				t.Fatalf("fp16 %#x -> %g -> %#x", c, h, Float32ToFP16(h))
			}
		}
		if b == b && int(Float32ToBF16(b)) != c {
			t.Fatalf("bf16 %#x -> %g -> %#x", c, b, Float32ToBF16(b))
		}
	}
	for c := 0; c < 256; c++ {
		f := E4M3ToFloat32(uint8(c))
		if c&0x7f == 0x7f {
			if f == f {
				t.Fatalf("e4m3 NaN %#x -> %g", c, f)
			}
			continue
		}
		if want := (1 - 2*float64(c>>7)) * decodeIEEE(c&0x7f, 4, 3); float64(f) != want || int(Float32ToE4M3(f)) != c {
			t.Fatalf("e4m3 %#x -> %g -> %#x, want %g", c, f, Float32ToE4M3(f), want)
		}
	}
}

// Around every representable value and every midpoint between two: the value
// itself and its float32 neighbours on both sides.
func TestRoundingAtEveryBoundary(t *testing.T) {
	for i := range formats {
		f := &formats[i]
		for c := 0; c < f.inf; c++ {
			for _, x := range []float64{f.decode(c), (f.decode(c) + f.decode(c+1)) / 2} {
				u := math.Float32bits(float32(x))
				for _, v := range []uint32{u - 1, u, u + 1} {
					f.check(t, v&0x7fffffff)
					f.check(t, v|0x80000000)
				}
			}
		}
		for _, u := range []uint32{0, 1, 0x7f7fffff, 0x7f800000, 0x7f800001, 0x7fc00000, 0x7fffffff} {
			f.check(t, u)
			f.check(t, u|0x80000000)
		}
	}
}

func TestRoundingOfRandomBits(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200_000 {
		u := r.Uint32()
		for i := range formats {
			formats[i].check(t, u)
		}
	}
}
