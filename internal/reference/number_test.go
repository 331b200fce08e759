package reference

import (
	"math"
	"math/big"
	"math/rand/v2"
	"sort"
	"testing"
)

// valueOf is the second method: the value of a code as an exact rational,
// straight from the definition, with no floating point.
func valueOf(f minifloat, magnitude uint32) *big.Rat {
	exp, frac := int64(magnitude>>f.fracBits), int64(magnitude&(1<<f.fracBits-1))
	if exp == 0 {
		exp = 1
	} else {
		frac += 1 << f.fracBits
	}
	power := exp - int64(f.bias()) - int64(f.fracBits)
	v := new(big.Rat).SetInt64(frac)
	scale := new(big.Int).Lsh(big.NewInt(1), uint(max(power, -power)))
	if power < 0 {
		return v.Quo(v, new(big.Rat).SetInt(scale))
	}
	return v.Mul(v, new(big.Rat).SetInt(scale))
}

// values holds every finite non-negative value of a format in code order, as
// float64: they are all exact in it.
func values(f minifloat) []float64 {
	list := make([]float64, 0, f.largest()+1)
	for c := uint32(0); c <= f.largest(); c++ {
		v, exact := valueOf(f, c).Float64()
		if !exact {
			panic("a value is not exact in float64")
		}
		list = append(list, v)
	}
	return list
}

// nearest rounds by search: the closest listed value, of two equally close
// ones the even code. Past the last one it applies the format's overflow rule,
// as if the list went on by one step.
func nearest(f minifloat, list []float64, v float32) uint32 {
	var sign uint32
	if math.Signbit(float64(v)) {
		sign = f.signBit()
	}
	a := math.Abs(float64(v))
	above := sort.SearchFloat64s(list, a)
	if above == len(list) {
		if f.finite {
			return sign | f.largest()
		}
		last := list[len(list)-1]
		if a-last < (last-list[len(list)-2])/2 {
			return sign | f.largest()
		}
		return sign | (f.largest() + 1)
	}
	if list[above] == a {
		return sign | uint32(above)
	}
	low, high := a-list[above-1], list[above]-a
	if low < high || low == high && (above-1)%2 == 0 {
		above--
	}
	return sign | uint32(above)
}

var formats = map[string]minifloat{"bf16": formatBF16, "fp16": formatFP16, "e4m3": formatE4M3}

func TestDecodeEveryCode(t *testing.T) {
	for name, f := range formats {
		list := values(f)
		for c := uint32(0); c < 2*f.signBit(); c++ {
			got, magnitude := float64(f.decode(c)), c&(f.signBit()-1)
			negative := c >= f.signBit()
			switch {
			case magnitude <= f.largest():
				want := list[magnitude]
				if negative {
					want = math.Copysign(want, -1)
				}
				if math.Float64bits(got) != math.Float64bits(want) {
					t.Fatalf("%s: code %#x is %v, want %v", name, c, got, want)
				}
			case !f.finite && magnitude == f.largest()+1:
				if !math.IsInf(got, 0) || math.Signbit(got) != negative {
					t.Fatalf("%s: code %#x is %v, want an infinity", name, c, got)
				}
			default:
				if !math.IsNaN(got) || math.Signbit(got) != negative {
					t.Fatalf("%s: code %#x is %v, want NaN of its sign", name, c, got)
				}
			}
		}
	}
	// Anchors from the published tables of the formats.
	for _, a := range []struct {
		f    minifloat
		code uint32
		want float32
	}{
		{formatBF16, 0x3f80, 1}, {formatBF16, 0x4049, 3.140625}, {formatFP16, 0x3c00, 1}, {formatFP16, 0x7bff, 65504},
		{formatFP16, 0x0001, 0x1p-24}, {formatE4M3, 0x38, 1}, {formatE4M3, 0x7e, 448}, {formatE4M3, 0x01, 0x1p-9}, {formatE4M3, 0x08, 0x1p-6},
	} {
		if got := a.f.decode(a.code); got != a.want {
			t.Errorf("code %#x of %+v is %v, want %v", a.code, a.f, got, a.want)
		}
	}
}

// TestEncodeEveryCode rounds, for every code, its own value, the midpoint to
// the next and the fp32 neighbours of both.
func TestEncodeEveryCode(t *testing.T) {
	for name, f := range formats {
		list := values(f)
		check := func(v float32) {
			for _, v := range []float32{v, -v} {
				if got, want := f.encode(v), nearest(f, list, v); got != want {
					t.Fatalf("%s: %v (%#x) gives code %#x, want %#x", name, v, math.Float32bits(v), got, want)
				}
			}
		}
		for c, v := range list {
			next := v + (v - list[max(c-1, 0)])
			if c+1 < len(list) {
				next = list[c+1]
			}
			for _, p := range []float64{v, (v + next) / 2} {
				x := float32(p)
				check(x)
				check(math.Nextafter32(x, 0))
				if y := math.Nextafter32(x, float32(math.Inf(1))); !math.IsInf(float64(y), 0) {
					check(y)
				}
			}
		}
		r := rand.New(rand.NewPCG(1, 2))
		for range 200000 {
			if v := math.Float32frombits(r.Uint32()); v-v == 0 {
				check(v)
			}
		}
	}
}

func TestEncodeSpecials(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	negNaN := math.Float32frombits(0xffc00001)
	for _, a := range []struct {
		f    minifloat
		v    float32
		want uint32
	}{
		{formatBF16, inf, 0x7f80}, {formatBF16, -inf, 0xff80}, {formatFP16, inf, 0x7c00}, {formatFP16, -inf, 0xfc00},
		{formatE4M3, inf, 0x7f}, {formatE4M3, -inf, 0xff}, {formatE4M3, nan, 0x7f}, {formatE4M3, negNaN, 0xff},
		{formatE4M3, 1e30, 0x7e}, {formatE4M3, -1e30, 0xfe}, {formatFP16, 65519.996, 0x7bff}, {formatFP16, 65520, 0x7c00},
		{formatBF16, math.MaxFloat32, 0x7f80}, {formatE4M3, 464, 0x7e},
	} {
		if got := a.f.encode(a.v); got != a.want {
			t.Errorf("%v gives code %#x in %+v, want %#x", a.v, got, a.f, a.want)
		}
	}
	for name, f := range formats {
		for _, bits := range []uint32{0x7f800001, 0x7fc00000, 0xff800001, 0xffffffff} {
			v := math.Float32frombits(bits)
			if got := f.decode(f.encode(v)); got == got || math.Signbit(float64(got)) != math.Signbit(float64(v)) {
				t.Errorf("%s: NaN %#x comes back as %v", name, bits, got)
			}
		}
	}
}

func TestQuantise(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, a := range []struct {
		name  string
		block []float32
		codes []byte
		scale float32
	}{
		{"largest becomes 448", []float32{-896, 448, 2, 0}, []byte{0xfe, 0x76, 0x38, 0x00}, 2},
		{"all zero", []float32{0, float32(math.Copysign(0, -1))}, []byte{0x00, 0x80}, 1},
		{"specials leave the scale alone", []float32{448, nan, inf, -inf, 1}, []byte{0x7e, 0x7f, 0x7f, 0xff, 0x38}, 1},
		{"only specials", []float32{inf, nan}, []byte{0x7f, 0x7f}, 1},
		{"scale underflows to zero", []float32{1e-45, 0, -1e-45}, []byte{0x00, 0x00, 0x80}, 1},
		{"scale is subnormal and too small", []float32{627 * 0x1p-149, 0}, []byte{0x7e, 0x00}, 0x1p-149},
	} {
		codes, scale := Quantise(a.block)
		if scale != a.scale || string(codes) != string(a.codes) {
			t.Errorf("%s: %v gives codes %x scale %v, want %x and %v", a.name, a.block, codes, scale, a.codes, a.scale)
		}
	}
	// The last block is shorter; each block has its own scale.
	got := Convert([]float32{896, 2, 1, 448, 3}, FP8, 2)
	for i, want := range []float32{896, 2, 1, 448, 3} {
		if math.Abs(float64(got[i]-want)) > 1e-6*float64(want) {
			t.Errorf("value %d comes back as %v, want %v", i, got[i], want)
		}
	}
}
