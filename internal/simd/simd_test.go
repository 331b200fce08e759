package simd

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"moerail/internal/numeric"
)

type sumFn struct {
	name     string
	elem     int
	sum      func([]byte, [][]byte, []float32)
	portable func([]byte, [][]byte, []float32, int)
}

var sums = []sumFn{
	{"bf16", 2, SumBF16, sumBF16}, {"fp16", 2, SumFP16, sumFP16}, {"fp32", 4, SumFP32, sumFP32},
}

// special values of each type, as bits: zeros, denormals, the ends, infinities, NaNs.
var specials = map[string][]uint32{
	"bf16": {0, 0x8000, 1, 0x8001, 0x7f, 0x80, 0x7f7f, 0xff7f, 0x7f80, 0xff80, 0x7f81, 0xffff, 0x7fc0, 0x3f80},
	"fp16": {0, 0x8000, 1, 0x8001, 0x3ff, 0x400, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7c01, 0xffff, 0x7e00, 0x3c00},
	"fp32": {0, 1 << 31, 1, 1<<31 | 1, 0x7fffff, 0x800000, 0x7f7fffff, 0xff7fffff, 0x7f800000, 0xff800000, 0x7f800001, 0xffffffff, 0x3f800000},
}

func (f *sumFn) randomRow(r *rand.Rand, n int) []byte {
	row := make([]byte, n*f.elem)
	for i := range n {
		v := r.Uint32()
		switch r.IntN(4) {
		case 0:
			v = specials[f.name][r.IntN(len(specials[f.name]))]
		case 1: // near one, so that sums are ordinary
			v = map[string]uint32{"bf16": 0x3f00, "fp16": 0x3c00, "fp32": 0x3f000000}[f.name] + v%(1<<(8*f.elem-8))
		}
		if f.elem == 2 {
			binary.LittleEndian.PutUint16(row[2*i:], uint16(v))
		} else {
			binary.LittleEndian.PutUint32(row[4*i:], v)
		}
	}
	return row
}

func randomWeight(r *rand.Rand) float32 {
	switch r.IntN(4) {
	case 0:
		return math.Float32frombits(specials["fp32"][r.IntN(len(specials["fp32"]))])
	case 1:
		return 1
	}
	return r.Float32()*2 - 1
}

func TestSumsGiveThePortableBits(t *testing.T) {
	eachKind(t, testSums)
}

func testSums(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for fi := range sums {
		f := &sums[fi]
		for n := 0; n <= 130; n++ {
			for _, k := range []int{0, 1, 2, 3, 4, 7, 8, 9, 33} {
				src, w := make([][]byte, k), make([]float32, k)
				for j := range src {
					off := r.IntN(64)
					src[j] = append(make([]byte, off), f.randomRow(r, n)...)[off:]
					w[j] = randomWeight(r)
				}
				off := r.IntN(64)
				buf := bytes.Repeat([]byte{0x5a}, off+n*f.elem+64)
				want := make([]byte, n*f.elem)
				f.portable(want, src, w, 0)
				f.sum(buf[off:off+n*f.elem], src, w)
				if !bytes.Equal(buf[off:off+n*f.elem], want) {
					t.Fatalf("%s: %d elements of %d rows:\n%x\nwant\n%x", f.name, n, k, buf[off:off+n*f.elem], want)
				}
				for i, b := range buf {
					if (i < off || i >= off+n*f.elem) && b != 0x5a {
						t.Fatalf("%s: %d elements of %d rows: byte %d outside was written", f.name, n, k, i-off)
					}
				}
			}
		}
	}
}

// The portable form against the definition in plain words.
func TestSumIsRoundedAsDefined(t *testing.T) {
	row := func(fs ...float32) []byte {
		var b []byte
		for _, f := range fs {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(f))
		}
		return b
	}
	got := make([]byte, 16)
	for _, c := range []struct {
		a, b, d, wa, wb, wd, want float32
	}{
		{1, 0x1p-24, 0x1p-24, 1, 1, 1, 1},                    // each small term is rounded away: the order counts
		{0x1p-24, 0x1p-24, 1, 1, 1, 1, 1 + 0x1p-23},          // and the other order keeps them
		{1 + 0x1p-11, 1 + 0x1p-12, 0, -1, 1 + 0x1p-12, 1, 0}, // fused, this would be 2^-24
		{float32(math.Copysign(0, -1)), 0, 0, 1, 1, 1, 0},    // sums start from +0
		{3, 5, 7, 2, 4, 8, 82},
	} {
		SumFP32(got, [][]byte{row(c.a, c.a, c.a, c.a), row(c.b, c.b, c.b, c.b), row(c.d, c.d, c.d, c.d)}, []float32{c.wa, c.wb, c.wd})
		if want := row(c.want, c.want, c.want, c.want); !bytes.Equal(got, want) {
			t.Fatalf("%+v: %x, want %x", c, got, want)
		}
	}
	SumFP32(got, nil, nil)
	if !bytes.Equal(got, make([]byte, 16)) {
		t.Fatalf("no rows: %x", got)
	}
}

func TestCopyAroundCopies(t *testing.T) {
	eachKind(t, testCopyAround)
}

func testCopyAround(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 9))
	src := make([]byte, 9000)
	for i := range src {
		src[i] = byte(r.Uint32())
	}
	for _, n := range []int{0, 1, 63, 1023, 1024, 1025, 1087, 1151, 4096, 8191} {
		for range 30 {
			so, do := r.IntN(65), r.IntN(65)
			buf := bytes.Repeat([]byte{0x5a}, do+n+100)
			CopyAround(buf[do:do+n], src[so:])
			if !bytes.Equal(buf[do:do+n], src[so:so+n]) {
				t.Fatalf("%d bytes from %d to %d differ", n, so, do)
			}
			for i, b := range buf {
				if (i < do || i >= do+n) && b != 0x5a {
					t.Fatalf("%d bytes from %d to %d: byte %d outside was written", n, so, do, i-do)
				}
			}
		}
	}
}

func TestSumMayOverwriteARow(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for fi := range sums {
		f := &sums[fi]
		a, b := f.randomRow(r, 100), f.randomRow(r, 100)
		w := []float32{0.5, 1}
		want := make([]byte, len(a))
		f.portable(want, [][]byte{a, b}, w, 0)
		f.sum(b, [][]byte{a, b}, w)
		if !bytes.Equal(b, want) {
			t.Fatalf("%s differs in place", f.name)
		}
	}
}

func TestShortRowsArePanics(t *testing.T) {
	for _, call := range []func(){
		func() { SumBF16(make([]byte, 8), [][]byte{make([]byte, 7)}, []float32{1}) },
		func() { SumFP16(make([]byte, 8), [][]byte{make([]byte, 8)}, nil) },
		func() { SumFP32(make([]byte, 7), nil, nil) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			call()
		}()
	}
}

func randomFloats(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	top := math.Ldexp(1, r.IntN(260)-140)
	for i := range x {
		x[i] = float32(r.NormFloat64() * top)
		switch r.IntN(8) {
		case 0:
			x[i] = math.Float32frombits(specials["fp32"][r.IntN(len(specials["fp32"]))])
		case 1:
			x[i] = math.Float32frombits(r.Uint32())
		}
	}
	return x
}

func checkBlock(t *testing.T, x []float32) {
	t.Helper()
	var amax float64
	for _, f := range x {
		if a := math.Abs(float64(f)); a > amax && !math.IsInf(a, 0) {
			amax = a
		}
	}
	want := float32(amax) / 448
	if want == 0 {
		want = 1
	}
	got := make([]byte, len(x))
	scale := BlockE4M3(got, x)
	if scale != want {
		t.Fatalf("scale %g, want %g of %v", scale, want, x)
	}
	for i, f := range x {
		if c := numeric.Float32ToE4M3(f / want); got[i] != c {
			t.Fatalf("value %d, %g (%#08x) at scale %g: %#x, want %#x", i, f, math.Float32bits(f), want, got[i], c)
		}
	}
}

func TestBlocksAreQuantisedAsDefined(t *testing.T) {
	eachKind(t, testBlocks)
}

func testBlocks(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	for n := 0; n <= 130; n++ {
		for range 20 {
			checkBlock(t, randomFloats(r, n))
		}
		checkBlock(t, make([]float32, n))
	}
}

func TestWidening(t *testing.T) {
	src := make([]byte, 2<<16)
	for i := range 1 << 16 {
		binary.LittleEndian.PutUint16(src[2*i:], uint16(i))
	}
	for _, lo := range []int{0, 1, 3} {
		for _, n := range []int{0, 1, 7, 8, 9, 1<<16 - 3} {
			bf, fh := make([]float32, n+1), make([]float32, n+1)
			bf[n], fh[n] = 42, 42
			WidenBF16(bf[:n], src[2*lo:])
			WidenFP16(fh[:n], src[2*lo:])
			for i := range n {
				if a, b := numeric.BF16ToFloat32(uint16(lo+i)), numeric.FP16ToFloat32(uint16(lo+i)); math.Float32bits(bf[i]) != math.Float32bits(a) ||
					math.Float32bits(fh[i]) != math.Float32bits(b) {
					t.Fatalf("%#x: %#x %#x, want %#x %#x", lo+i, math.Float32bits(bf[i]), math.Float32bits(fh[i]), math.Float32bits(a), math.Float32bits(b))
				}
			}
			if bf[n] != 42 || fh[n] != 42 {
				t.Fatal("wrote beyond the end")
			}
		}
	}
}

func FuzzSums(f *testing.F) {
	f.Add([]byte{1, 2, 3, 4, 0xff, 0x7f, 0xc0, 0x7f, 0, 0x7c}, uint8(3), uint8(33))
	f.Fuzz(func(t *testing.T, bits []byte, rows, n uint8) {
		k := int(rows % 12)
		for fi := range sums {
			fn := &sums[fi]
			size := int(n) * fn.elem
			at := 0
			fill := func(b []byte) {
				for i := range b {
					if len(bits) > 0 {
						b[i] = bits[at%len(bits)] + byte(at/len(bits))
					}
					at++
				}
			}
			src, w := make([][]byte, k), make([]float32, k)
			for j := range src {
				src[j] = make([]byte, size)
				fill(src[j])
				var b [4]byte
				fill(b[:])
				w[j] = math.Float32frombits(binary.LittleEndian.Uint32(b[:]))
			}
			got, want := make([]byte, size), make([]byte, size)
			fn.sum(got, src, w)
			fn.portable(want, src, w, 0)
			if !bytes.Equal(got, want) {
				t.Fatalf("%s: %x, want %x", fn.name, got, want)
			}
		}
	})
}

func FuzzBlockE4M3(f *testing.F) {
	f.Add([]byte{0, 0, 0x80, 0x7f, 0, 0, 0, 0x3f, 1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, bits []byte) {
		x := make([]float32, min(len(bits)/4, 4096))
		WidenFP32(x, bits)
		checkBlock(t, x)
	})
}
