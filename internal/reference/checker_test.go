package reference

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

func TestQuickRoundingIsRound(t *testing.T) {
	check := func(bits uint32) {
		v := math.Float32frombits(bits)
		for _, f := range []struct {
			d     DType
			quick float32
		}{{BF16, quickBF16(v)}, {FP16, quickFP16(v)}} {
			want := Round(v, f.d)
			if !accept(f.quick, want, 0, true) {
				t.Fatalf("%v of %v (0x%08x): got %v, want %v", f.d, v, bits, f.quick, want)
			}
		}
	}
	for hi := range uint32(1 << 16) { // every sign, exponent and leading fraction, at every tie and beside it
		for _, lo := range []uint32{0, 1, 0x0fff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001, 0xffff} {
			check(hi<<16 | lo)
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 200_000 {
		check(r.Uint32())
	}
}

// checkerCase is one token with everything needed to judge it.
func checkerCase(seed uint64, d, out DType, home bool) (Config, Input, []float32) {
	r := rand.New(rand.NewPCG(seed, 3))
	c := Config{Ranks: 3, Experts: 7, TopK: 5, Hidden: checkBlock + 9, DType: d, OutDType: out,
		ReduceAtHome: home, ApplyWeights: seed%4 != 0}
	if d == FP8 {
		c.ScaleBlock = 100
	}
	for e := range c.Experts {
		c.Scale = append(c.Scale, 0.5+float32(e)/8)
		c.Bias = append(c.Bias, float32(e)-3)
	}
	x := make([]float32, c.Hidden)
	for h := range x {
		x[h] = float32(r.NormFloat64())
	}
	ids, w := make([]int32, c.TopK), make([]float32, c.TopK)
	for k := range ids {
		ids[k], w[k] = int32(r.IntN(c.Experts+1))-1, r.Float32()
	}
	in := Input{X: [][]float32{x}, IDs: [][]int32{ids}, Weights: [][]float32{w}}
	return c, in, Convert(x, d, c.ScaleBlock)
}

func rowBytes(row []float32, d DType) []byte {
	var b []byte
	for _, v := range row {
		switch d {
		case BF16:
			b = binary.LittleEndian.AppendUint16(b, uint16(formatBF16.encode(v)))
		case FP16:
			b = binary.LittleEndian.AppendUint16(b, uint16(formatFP16.encode(v)))
		default:
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
		}
	}
	return b
}

// The checker must accept what Exact gives, and refuse exactly the rows that
// CompareRank refuses against Real: a row with one element moved by a number of
// units in the last place.
func TestCheckerAgreesWithReal(t *testing.T) {
	for seed := range uint64(24) {
		for _, d := range []DType{FP32, BF16, FP16, FP8} {
			for _, out := range []DType{FP32, BF16, FP16} {
				for _, home := range []bool{false, true} {
					c, in, seen := checkerCase(seed, d, out, home)
					t.Run(fmt.Sprintf("%d/%v/%v/home=%v", seed, d, out, home), func(t *testing.T) {
						agree(t, seed, c, in, seen)
					})
				}
			}
		}
	}
}

func agree(t *testing.T, seed uint64, c Config, in Input, seen []float32) {
	k, err := NewChecker(c)
	if err != nil {
		t.Fatal(err)
	}
	all := []Input{in, {}, {}}
	exact, err := Exact(c, all)
	if err != nil {
		t.Fatal(err)
	}
	real, err := Real(c, all)
	if err != nil {
		t.Fatal(err)
	}
	judge := &real.Ranks[0]
	if c.ReduceAtHome && c.OutDType == FP32 {
		judge = &exact.Ranks[0]
	}
	row := exact.Ranks[0].Out[0]
	if err := k.Row(rowBytes(row, c.OutDType), seen, in.IDs[0], in.Weights[0]); err != nil {
		t.Fatalf("the exact row: %v", err)
	}
	r := rand.New(rand.NewPCG(seed, 4))
	refused := 0
	for range 40 {
		h := r.IntN(c.Hidden)
		bad := append([]float32(nil), row...)
		size := math.Abs(float64(bad[h])) + 0x1p-20
		unit, _, _ := c.OutDType.precision()
		bad[h] = Round(float32(float64(bad[h])+size*unit*float64(r.IntN(13)-6)), c.OutDType)
		got := k.Row(rowBytes(bad, c.OutDType), seen, in.IDs[0], in.Weights[0])
		want := CompareRank(0, [][]float32{bad}, judge)
		if (got == nil) != (want == nil) {
			t.Fatalf("column %d as %v: checker says %v, CompareRank %v", h, bad[h], got, want)
		}
		var e *RowError
		if got != nil {
			refused++
			if !errors.As(got, &e) || e.Column != h {
				t.Fatalf("refused with %v, the wrong column is %d", got, h)
			}
		}
	}
	if refused == 0 && c.OutDType != FP32 {
		t.Fatal("no moved element was refused: the test does not bite")
	}
}

func TestCheckerSpecialValues(t *testing.T) {
	c, in, seen := checkerCase(1, FP32, FP32, false)
	in.IDs[0] = []int32{0, 1, 2, 3, 4}
	k, err := NewChecker(c)
	if err != nil {
		t.Fatal(err)
	}
	exact, _ := Exact(c, []Input{in, {}, {}})
	good := rowBytes(exact.Ranks[0].Out[0], FP32)
	nan := append([]byte(nil), good...)
	binary.LittleEndian.PutUint32(nan[40:], 0x7fc00000)
	if k.Row(nan, seen, in.IDs[0], in.Weights[0]) == nil {
		t.Error("a NaN where a number belongs was accepted")
	}
	seen[10] = float32(math.NaN())
	if err := k.Row(nan, seen, in.IDs[0], in.Weights[0]); err != nil {
		t.Errorf("a carried NaN: %v", err)
	}
	if k.Row(good, seen, in.IDs[0], in.Weights[0]) == nil {
		t.Error("a number where a NaN belongs was accepted")
	}
	if k.Row(good[:8], seen, in.IDs[0], in.Weights[0]) == nil {
		t.Error("a short row was accepted")
	}
}

func TestCheckerDoesNotAllocate(t *testing.T) {
	c, in, seen := checkerCase(2, BF16, BF16, false)
	k, _ := NewChecker(c)
	exact, _ := Exact(c, []Input{in, {}, {}})
	row := rowBytes(exact.Ranks[0].Out[0], BF16)
	if n := testing.AllocsPerRun(20, func() { k.Row(row, seen, in.IDs[0], in.Weights[0]) }); n != 0 {
		t.Errorf("%v allocations a row", n)
	}
}

func BenchmarkCheckerRow(b *testing.B) {
	c, in, seen := checkerCase(2, BF16, BF16, false)
	k, _ := NewChecker(c)
	exact, _ := Exact(c, []Input{in, {}, {}})
	row := rowBytes(exact.Ranks[0].Out[0], BF16)
	for b.Loop() {
		k.Row(row, seen, in.IDs[0], in.Weights[0])
	}
}

// One infinite term makes the sum infinite and nothing else will do, unless a
// finite partial row overflows to the other infinity.
func TestInfiniteTerms(t *testing.T) {
	c := Config{Ranks: 2, Experts: 2, TopK: 3, Hidden: 1, OutDType: FP16, ApplyWeights: true,
		Scale: []float32{1, 2}, Bias: []float32{0, 0}}
	inf := float32(math.Inf(1))
	for _, run := range []struct {
		weights      []float32
		right, wrong []float32
	}{
		{[]float32{.25, .25, -1}, []float32{-inf}, []float32{inf, 0, -65504, float32(math.NaN())}},
		{[]float32{1, 1, -1}, []float32{-inf, float32(math.NaN())}, nil}, // 120,000 is +Inf on its way home
	} {
		x, ids := []float32{60000}, []int32{0, 0, 1}
		all := []Input{{X: [][]float32{x}, IDs: [][]int32{ids}, Weights: [][]float32{run.weights}}, {}}
		exact, err := Exact(c, all)
		if err != nil {
			t.Fatal(err)
		}
		real, err := Real(c, all)
		if err != nil {
			t.Fatal(err)
		}
		k, err := NewChecker(c)
		if err != nil {
			t.Fatal(err)
		}
		judge := func(v float32) (row, rank error) {
			return k.Row(rowBytes([]float32{v}, FP16), x, ids, run.weights), CompareRank(0, [][]float32{{v}}, &real.Ranks[0])
		}
		for _, v := range append(run.right, exact.Ranks[0].Out[0][0]) {
			if row, rank := judge(v); row != nil || rank != nil {
				t.Errorf("weights %v: %v is refused: %v, %v", run.weights, v, row, rank)
			}
		}
		for _, v := range run.wrong {
			if row, rank := judge(v); row == nil || rank == nil {
				t.Errorf("weights %v: %v passes: %v, %v", run.weights, v, row, rank)
			}
		}
	}
}
