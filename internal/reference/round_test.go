package reference

import (
	"errors"
	"math"
	"math/rand/v2"
	"reflect"
	"testing"
)

// distinct gives every expert a function of its own.
func distinct(experts int) (scale, bias []float32) {
	for e := range experts {
		scale = append(scale, 1+float32(e)*0.25)
		bias = append(bias, float32(e)*0.5-1)
	}
	return scale, bias
}

func TestMissingPicks(t *testing.T) {
	// Two ranks, four experts, and the picks of cases.md EP-03: four rows move.
	c := Config{Ranks: 2, Experts: 4, TopK: 2, Hidden: 1, ApplyWeights: true,
		Scale: []float32{1, 2, 3, 4}, Bias: []float32{10, 20, 30, 40}}
	in := []Input{
		{X: [][]float32{{1}, {2}, {3}, {4}}, IDs: [][]int32{{0, -1}, {-1, -1}, {3, 1}, {-1, 2}},
			Weights: [][]float32{{0.5, 9}, {9, 9}, {0.25, 2}, {9, 0.5}}},
		{},
	}
	for _, home := range []bool{false, true} {
		c.ReduceAtHome = home
		out, err := Exact(c, in)
		if err != nil {
			t.Fatal(err)
		}
		want := [][]float32{{5.5}, {0}, {0.25*52 + 2*26}, {0.5 * 42}}
		if !reflect.DeepEqual(out.Ranks[0].Out, want) {
			t.Errorf("home %v: out is %v, want %v", home, out.Ranks[0].Out, want)
		}
		if out.UniqueRows != 4 || out.RemoteRows != 2 || out.ExpertRows != 4 || out.ReturnPairs != 1 {
			t.Errorf("rows %d remote %d expert %d pairs %d, want 4 2 4 1", out.UniqueRows, out.RemoteRows, out.ExpertRows, out.ReturnPairs)
		}
		if got := out.Ranks[1].SourceRows; !reflect.DeepEqual(got, []int64{2, 0}) {
			t.Errorf("rank 1 source rows %v, want [2 0]", got)
		}
		if got := out.Ranks[1].ExpertCounts; !reflect.DeepEqual(got, []int64{1, 1}) {
			t.Errorf("rank 1 counts %v, want [1 1]", got)
		}
		if len(out.Ranks[1].Out) != 0 || out.Ranks[1].Err != nil {
			t.Errorf("the empty rank has %v, %v", out.Ranks[1].Out, out.Ranks[1].Err)
		}
	}
}

func TestRoundingOrder(t *testing.T) {
	// In bf16 the partial rows 256 and 1 are exact but 257 is not, so home and
	// expert reduction differ exactly where the definition says.
	c := Config{Ranks: 2, Experts: 4, TopK: 3, Hidden: 1, OutDType: BF16, ApplyWeights: true,
		Scale: []float32{1, 1, 1, 1}, Bias: make([]float32, 4)}
	in := []Input{{X: [][]float32{{1}}, IDs: [][]int32{{0, 1, 2}}, Weights: [][]float32{{256, 1, 1}}}, {}}
	out, err := Exact(c, in)
	if err != nil {
		t.Fatal(err)
	}
	// Rank 0: 257 rounds to 256 (even); rank 1: 1; 257 rounds to 256 again.
	if got := out.Ranks[0].Out[0][0]; got != 256 {
		t.Errorf("expert mode gives %v, want 256", got)
	}
	c.ReduceAtHome = true
	if out, err = Exact(c, in); err != nil {
		t.Fatal(err)
	}
	if got := out.Ranks[0].Out[0][0]; got != 258 { // rounded once
		t.Errorf("home mode gives %v, want 258", got)
	}
}

func TestNoFusedStep(t *testing.T) {
	// (1+2^-12)^2 = 1 + 2^-11 + 2^-24: the last bit is lost when the product is
	// rounded before -1 is added, and kept by a fused multiply-add.
	a := float32(1 + 0x1p-12)
	c := Config{Ranks: 1, Experts: 1, TopK: 1, Hidden: 1, Scale: []float32{a}, Bias: []float32{-1}}
	out, err := Exact(c, []Input{{X: [][]float32{{a}}, IDs: [][]int32{{0}}}})
	if err != nil {
		t.Fatal(err)
	}
	if got := out.Ranks[0].Out[0][0]; got != 0x1p-11 {
		t.Errorf("got %v, want %v", got, 0x1p-11)
	}
}

func TestDuplicatesAndWeights(t *testing.T) {
	c := Config{Ranks: 2, Experts: 4, TopK: 2, Hidden: 1, ApplyWeights: true,
		Scale: []float32{1, 1, 1, 2}, Bias: []float32{0, 0, 0, 3}}
	in := []Input{{X: [][]float32{{5}}, IDs: [][]int32{{3, 3}}, Weights: [][]float32{{.25, .75}}}, {}}
	for _, a := range []struct {
		apply bool
		want  float32
	}{{true, 13}, {false, 26}} {
		c.ApplyWeights = a.apply
		out, err := Exact(c, in)
		if err != nil {
			t.Fatal(err)
		}
		if got := out.Ranks[0].Out[0][0]; got != a.want {
			t.Errorf("apply %v: %v, want %v", a.apply, got, a.want)
		}
		if got := out.Ranks[1]; got.ExpertCounts[1] != 2 || got.SourceRows[0] != 1 {
			t.Errorf("counts %v rows %v, want two picks in one row", got.ExpertCounts, got.SourceRows)
		}
	}
}

func TestRefusedInput(t *testing.T) {
	c := Config{Ranks: 2, Experts: 2, TopK: 1, Hidden: 1, MaxTokens: 2, ApplyWeights: true, Scale: []float32{1, 1}, Bias: []float32{0, 0}}
	good := Input{X: [][]float32{{1}}, IDs: [][]int32{{0}}, Weights: [][]float32{{1}}}
	for _, a := range []struct {
		name        string
		in          Input
		code        string
		token, pick int
	}{
		{"id E", Input{X: [][]float32{{1}, {2}}, IDs: [][]int32{{1}, {2}}, Weights: [][]float32{{1}, {1}}}, CodeInvalidExpert, 1, 0},
		{"id -7", Input{X: [][]float32{{1}}, IDs: [][]int32{{-7}}, Weights: [][]float32{{1}}}, CodeInvalidExpert, 0, 0},
		{"id 2^31-1", Input{X: [][]float32{{1}}, IDs: [][]int32{{math.MaxInt32}}, Weights: [][]float32{{1}}}, CodeInvalidExpert, 0, 0},
		{"too many", Input{X: [][]float32{{1}, {1}, {1}}, IDs: [][]int32{{0}, {0}, {0}}, Weights: [][]float32{{1}, {1}, {1}}}, CodeTooManyTokens, -1, -1},
		{"no x", Input{IDs: [][]int32{{0}}, Weights: [][]float32{{1}}}, CodeShape, -1, -1},
		{"short x row", Input{X: [][]float32{{}}, IDs: [][]int32{{0}}, Weights: [][]float32{{1}}}, CodeShape, 0, -1},
		{"two picks", Input{X: [][]float32{{1}}, IDs: [][]int32{{0, 1}}, Weights: [][]float32{{1}}}, CodeShape, 0, -1},
		{"no weights", Input{X: [][]float32{{1}}, IDs: [][]int32{{0}}}, CodeShape, -1, -1},
		{"short weights row", Input{X: [][]float32{{1}}, IDs: [][]int32{{0}}, Weights: [][]float32{{}}}, CodeShape, 0, -1},
	} {
		out, err := Exact(c, []Input{a.in, good})
		if err != nil {
			t.Fatal(err)
		}
		got := out.Ranks[0].Err
		if got == nil || got.Code != a.code || got.Token != a.token || got.Pick != a.pick || got.Ranks[0] != 0 {
			t.Errorf("%s: %+v", a.name, got)
			continue
		}
		// The refused rank's expert still serves the other rank, and gets nothing from itself.
		if !reflect.DeepEqual(out.Ranks[0].SourceRows, []int64{0, 1}) || out.Ranks[0].ExpertCounts[0] != 1 || len(out.Ranks[0].Out) != 0 {
			t.Errorf("%s: refused rank has %+v", a.name, out.Ranks[0])
		}
		if out.Ranks[1].Err != nil || out.Ranks[1].Out[0][0] != 1 {
			t.Errorf("%s: other rank has %+v", a.name, out.Ranks[1])
		}
	}
}

func TestReplicas(t *testing.T) {
	// Four ranks in two groups of two; expert e lives on rank e. Lane 0 sends to
	// ranks 0 and 2, lane 1 to 1 and 3; both replicas get the whole sum.
	c := Config{Ranks: 4, Experts: 4, TopK: 2, Hidden: 1, Replicas: 2, Scale: []float32{1, 10, 100, 1000}, Bias: make([]float32, 4)}
	group := Input{X: [][]float32{{1}}, IDs: [][]int32{{1, 2}}}
	other := Input{X: [][]float32{{2}}, IDs: [][]int32{{0, 3}}}
	out, err := Exact(c, []Input{group, group, other, other})
	if err != nil {
		t.Fatal(err)
	}
	for p, want := range []float32{110, 110, 2002, 2002} {
		if got := out.Ranks[p].Out[0][0]; got != want {
			t.Errorf("rank %d: %v, want %v", p, got, want)
		}
	}
	for q, want := range [][]int64{{0, 0, 1, 0}, {0, 1, 0, 0}, {1, 0, 0, 0}, {0, 0, 0, 1}} {
		if got := out.Ranks[q].SourceRows; !reflect.DeepEqual(got, want) {
			t.Errorf("rank %d rows %v, want %v", q, got, want)
		}
	}
	if out.UniqueRows != 4 || out.RemoteRows != 2 {
		t.Errorf("%d rows, %d remote", out.UniqueRows, out.RemoteRows)
	}
	if _, err := Exact(c, []Input{group, other, other, other}); err == nil {
		t.Error("replicas with different tokens were accepted")
	}
}

func TestOverflow(t *testing.T) {
	c := Config{Ranks: 2, Experts: 2, TopK: 1, Hidden: 1, MaxRecvRows: 3, Scale: []float32{1, 1}, Bias: []float32{0, 0}}
	two := Input{X: [][]float32{{1}, {2}}, IDs: [][]int32{{1}, {1}}}
	out, err := Exact(c, []Input{two, two})
	if err != nil {
		t.Fatal(err)
	}
	for p, r := range out.Ranks {
		if r.Err == nil || r.Err.Code != CodeOverflow || !reflect.DeepEqual(r.Err.Ranks, []int{1}) || r.Out != nil {
			t.Errorf("rank %d: %+v", p, r)
		}
	}
	c.MaxRecvRows = 4 // exact fit
	if out, _ = Exact(c, []Input{two, two}); out.Ranks[0].Err != nil {
		t.Error(out.Ranks[0].Err)
	}
}

func TestSpecialValues(t *testing.T) {
	nan, inf, zero := float32(math.NaN()), float32(math.Inf(1)), float32(math.Copysign(0, -1))
	c := Config{Ranks: 1, Experts: 1, TopK: 1, Hidden: 5, Scale: []float32{1}, Bias: []float32{zero}}
	for _, eval := range []func(Config, []Input) (*Output, error){Exact, Real} {
		out, err := eval(c, []Input{{X: [][]float32{{nan, inf, -inf, zero, 1}}, IDs: [][]int32{{0}}}})
		if err != nil {
			t.Fatal(err)
		}
		row := out.Ranks[0].Out[0]
		if row[0] == row[0] || row[1] != inf || row[2] != -inf || math.Float32bits(row[3]) != 0 || row[4] != 1 {
			t.Errorf("row %v; sums start from +0, so -0 comes back as +0", row)
		}
	}
}

// randomRound draws a configuration and inputs that touch every branch.
func randomRound(r *rand.Rand) (Config, []Input) {
	c := Config{Ranks: 1 + r.IntN(5), Experts: 1 + r.IntN(12), TopK: 1 + r.IntN(6), Hidden: 1 + r.IntN(9),
		DType: DType(r.IntN(4)), OutDType: DType(r.IntN(3)), ReduceAtHome: r.IntN(2) == 0, ApplyWeights: r.IntN(2) == 0}
	if c.DType == FP8 {
		c.ScaleBlock = 1 + r.IntN(5)
	}
	c.Scale, c.Bias = distinct(c.Experts)
	in := make([]Input, c.Ranks)
	for p := range in {
		for range r.IntN(5) {
			x, ids, w := make([]float32, c.Hidden), make([]int32, c.TopK), make([]float32, c.TopK)
			for h := range x {
				x[h] = float32(r.NormFloat64())
			}
			for k := range ids {
				ids[k], w[k] = int32(r.IntN(c.Experts+1)-1), float32(r.NormFloat64())
			}
			in[p].X, in[p].IDs, in[p].Weights = append(in[p].X, x), append(in[p].IDs, ids), append(in[p].Weights, w)
		}
	}
	return c, in
}

func rows(out *Output) [][][]float32 {
	var all [][][]float32
	for _, r := range out.Ranks {
		all = append(all, r.Out)
	}
	return all
}

// TestExactWithinBound also turns the pick order round: Real must accept any
// order, and must refuse a result that is off by two steps of OutDType.
func TestExactWithinBound(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	judged := 0
	for i := range 1500 {
		c, in := randomRound(r)
		want, err := Real(c, in)
		if err != nil {
			t.Fatal(err)
		}
		exact, _ := Exact(c, in)
		if err := Compare(rows(exact), want); err != nil {
			t.Fatalf("round %d, %+v: %v", i, c, err)
		}
		for p := range in {
			for tok := range in[p].IDs {
				for k, j := 0, c.TopK-1; k < j; k, j = k+1, j-1 {
					ids, w := in[p].IDs[tok], in[p].Weights[tok]
					ids[k], ids[j], w[k], w[j] = ids[j], ids[k], w[j], w[k]
				}
			}
		}
		turned, _ := Exact(c, in)
		if err := Compare(rows(turned), want); err != nil {
			t.Fatalf("round %d turned, %+v: %v", i, c, err)
		}
		for p := range want.Ranks {
			for tok, bounds := range want.Ranks[p].Bound {
				for h, b := range bounds {
					v := &exact.Ranks[p].Out[tok][h]
					kept := *v
					*v = float32(float64(want.Ranks[p].Out[tok][h]) + 1.01*b + 1e-6*(1+math.Abs(float64(kept))))
					var m *Mismatch
					if err := Compare(rows(exact), want); !errors.As(err, &m) || m.Rank != p || m.Token != tok || m.Column != h {
						t.Fatalf("a value outside its bound: %v", err)
					}
					*v = kept
					judged++
				}
			}
		}
	}
	if judged < 1000 {
		t.Errorf("only %d elements judged", judged)
	}
}

// TestBoundIsTight keeps the bound honest: for two picks of like sign it is
// within a few roundings of the result.
func TestBoundIsTight(t *testing.T) {
	c := Config{Ranks: 2, Experts: 2, TopK: 2, Hidden: 1, OutDType: BF16, Scale: []float32{1, 1}, Bias: []float32{0, 0}}
	out, err := Real(c, []Input{{X: [][]float32{{1.5}}, IDs: [][]int32{{0, 1}}}, {}})
	if err != nil {
		t.Fatal(err)
	}
	if got := out.Ranks[0].Bound[0][0]; got > 2.1*3*0x1p-8 || got < 3*0x1p-8 {
		t.Errorf("bound %g of the value 3, want between one and about two bf16 roundings", got)
	}
}

func TestValidateNamesEveryFault(t *testing.T) {
	c := Config{Ranks: 3, Experts: 2, TopK: 1, Hidden: 1, DType: FP8, OutDType: FP8, Replicas: 2, Placement: [][]int32{{0, 0}, {5}}}
	_, err := Exact(c, nil)
	var joined interface{ Unwrap() []error }
	if !errors.As(err, &joined) || len(joined.Unwrap()) != 8 {
		t.Errorf("want 8 faults, got: %v", err)
	}
	if _, err := Exact(Config{}, nil); err == nil {
		t.Error("the zero Config was accepted")
	}
}

func TestFewerExpertsThanRanks(t *testing.T) {
	scale, bias := distinct(2)
	c := Config{Ranks: 5, Experts: 2, TopK: 1, Hidden: 1, Scale: scale, Bias: bias}
	in := make([]Input, 5)
	in[4] = Input{X: [][]float32{{2}}, IDs: [][]int32{{1}}}
	out, err := Exact(c, in)
	if err != nil {
		t.Fatal(err)
	}
	if out.Ranks[4].Out[0][0] != 2*1.25-0.5 || len(out.Ranks[2].ExpertCounts) != 0 || out.Ranks[1].SourceRows[4] != 1 {
		t.Errorf("%+v", out.Ranks)
	}
}

func TestRows(t *testing.T) {
	got := Rows([]int{1, 2, 3, 4, 5}, 2)
	if !reflect.DeepEqual(got, [][]int{{1, 2}, {3, 4}, {5}}) {
		t.Errorf("%v", got)
	}
}

func TestCount(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 50 {
		c, in := randomRound(r)
		exact, err := Exact(c, in)
		if err != nil {
			t.Fatal(err)
		}
		count, err := Count(c, in)
		if err != nil {
			t.Fatal(err)
		}
		for p := range exact.Ranks {
			exact.Ranks[p].Out = [][]float32{}
		}
		if !reflect.DeepEqual(exact, count) {
			t.Fatalf("%+v, want %+v", count, exact)
		}
	}
}

// BenchmarkExact is one round of the size that runs verify by default.
func BenchmarkExact(b *testing.B) {
	scale, bias := distinct(64)
	c := Config{Ranks: 8, Experts: 64, TopK: 8, Hidden: 2048, DType: BF16, OutDType: BF16, ApplyWeights: true, Scale: scale, Bias: bias}
	r := rand.New(rand.NewPCG(7, 8))
	in := make([]Input, 8)
	for p := range in {
		for range 16 {
			x, ids, w := make([]float32, 2048), make([]int32, 8), make([]float32, 8)
			for h := range x {
				x[h] = float32(r.NormFloat64())
			}
			for k, e := range r.Perm(64)[:8] {
				ids[k], w[k] = int32(e), r.Float32()
			}
			in[p].X, in[p].IDs, in[p].Weights = append(in[p].X, x), append(in[p].IDs, ids), append(in[p].Weights, w)
		}
	}
	for b.Loop() {
		if _, err := Exact(c, in); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/(8*16*8*2048), "ns/term")
}
