package workload

import (
	"math"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
)

func open(t *testing.T, spec string, shape Shape) Source {
	t.Helper()
	s, err := Open(spec, shape)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func fill(t *testing.T, s Source, rank, round, tokens int) ([]int32, []float32) {
	t.Helper()
	ids, weights := make([]int32, tokens*s.Shape().TopK), make([]float32, tokens*s.Shape().TopK)
	if err := s.Fill(rank, round, ids, weights); err != nil {
		t.Fatal(err)
	}
	return ids, weights
}

func TestPicksAreDistinct(t *testing.T) {
	for _, spec := range []string{"uniform", "zipf:0", "zipf:1.2", "zipf:20"} {
		for _, shape := range []Shape{{Ranks: 2, Experts: 64, TopK: 8}, {Ranks: 2, Experts: 32, TopK: 32}, {Ranks: 2, Experts: 2048, TopK: 22}, {Ranks: 1, Experts: 1, TopK: 1}} {
			s := open(t, spec, shape)
			ids, _ := fill(t, s, shape.Ranks-1, 3, 200)
			for at := 0; at < len(ids); at += shape.TopK {
				row := slices.Sorted(slices.Values(ids[at : at+shape.TopK]))
				if row[0] < 0 || int(row[shape.TopK-1]) >= shape.Experts || len(slices.Compact(row)) != shape.TopK {
					t.Fatalf("%s %+v: picks %v", spec, shape, ids[at:at+shape.TopK])
				}
			}
		}
	}
}

func TestMorePicksThanExperts(t *testing.T) {
	ids, _ := fill(t, open(t, "uniform", Shape{Ranks: 1, Experts: 3, TopK: 5}), 0, 0, 20)
	for at := 0; at < len(ids); at += 5 {
		if row := slices.Sorted(slices.Values(ids[at : at+5])); !reflect.DeepEqual(row, []int32{-1, -1, 0, 1, 2}) {
			t.Fatalf("picks %v", ids[at:at+5])
		}
	}
}

// TestDrawnFrequencies compares first picks with their likelihood, and second
// picks with the sum over first picks of the likelihood among those left.
func TestDrawnFrequencies(t *testing.T) {
	const experts, tokens = 8, 200000
	for _, a := range []struct {
		spec     string
		exponent float64
	}{{"uniform", 0}, {"zipf:1.2", 1.2}, {"zipf:3", 3}} {
		s := open(t, a.spec, Shape{Ranks: 1, Experts: experts, TopK: 2, Seed: 7})
		ids, _ := fill(t, s, 0, 0, tokens)
		var first, second [experts]float64
		for at := 0; at < len(ids); at += 2 {
			first[ids[at]]++
			second[ids[at+1]]++
		}
		d := s.(*drawn)
		var p [experts]float64
		total := 0.0
		for i := range experts {
			total += math.Pow(float64(i+1), -a.exponent)
		}
		for i := range experts {
			p[d.expert[experts-1-i]] = math.Pow(float64(i+1), -a.exponent) / total
		}
		for e := range experts {
			want2 := 0.0
			for f := range experts {
				if f != e {
					want2 += p[f] * p[e] / (1 - p[f])
				}
			}
			for n, got := range []float64{first[e] / tokens, second[e] / tokens} {
				want := []float64{p[e], want2}[n]
				if sigma := math.Sqrt(want * (1 - want) / tokens); math.Abs(got-want) > 5*sigma {
					t.Errorf("%s: pick %d is expert %d in %.5f, want %.5f +- %.5f", a.spec, n, e, got, want, sigma)
				}
			}
		}
	}
}

func TestDeterministicAndSeeded(t *testing.T) {
	shape := Shape{Ranks: 4, Experts: 64, TopK: 8, MaxTokens: 16, Seed: 1}
	seen := map[int32]bool{}
	var all [][]int32
	for _, at := range [][2]int{{0, 0}, {1, 0}, {0, 1}, {3, 9}} {
		ids, weights := fill(t, open(t, "uniform", shape), at[0], at[1], 16)
		again, weightsAgain := fill(t, open(t, "uniform", shape), at[0], at[1], 16)
		if !reflect.DeepEqual(ids, again) || !reflect.DeepEqual(weights, weightsAgain) {
			t.Errorf("rank %d round %d: not the same twice", at[0], at[1])
		}
		all = append(all, ids)
	}
	shape.Seed = 2
	ids, _ := fill(t, open(t, "uniform", shape), 0, 0, 16)
	all = append(all, ids)
	for i := range all {
		seen[all[i][0]<<16|all[i][1]<<8|all[i][2]] = true
		for j := range i {
			if reflect.DeepEqual(all[i], all[j]) {
				t.Errorf("streams %d and %d are the same", i, j)
			}
		}
	}
	if len(seen) != len(all) {
		t.Errorf("streams start alike: %d of %d", len(seen), len(all))
	}
	// A shorter fill is the beginning of a longer one.
	s := open(t, "zipf:1", shape)
	short, _ := fill(t, s, 2, 2, 3)
	long, _ := fill(t, s, 2, 2, 9)
	if !reflect.DeepEqual(short, long[:len(short)]) {
		t.Error("the picks of a token depend on how many follow")
	}
}

func TestWeights(t *testing.T) {
	for _, spec := range []string{"uniform", "one:3", "../../testdata/routing/olmoe-1b-7b_book.u8"} {
		s := open(t, spec, Shape{Ranks: 2, Experts: 64, TopK: 8, MaxTokens: 50})
		_, w := fill(t, s, 1, 0, 50)
		kinds := map[float32]bool{}
		for at := 0; at < len(w); at += 8 {
			sum := float32(0)
			for _, v := range w[at : at+8] {
				if v < 1./16 || v >= 1 {
					t.Fatalf("%s: weight %v", spec, v)
				}
				kinds[v] = true
				sum += v
			}
			if sum == 1 {
				t.Errorf("%s: the weights of a token sum to one", spec)
			}
		}
		if len(kinds) < 390 {
			t.Errorf("%s: only %d different weights of 400", spec, len(kinds))
		}
	}
}

func TestSingle(t *testing.T) {
	ids, _ := fill(t, open(t, "one:5", Shape{Ranks: 1, Experts: 6, TopK: 3}), 0, 0, 4)
	for _, e := range ids {
		if e != 5 {
			t.Fatalf("picks %v", ids)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe") // that nobody writes to
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	good := Shape{Ranks: 2, Experts: 4, TopK: 2}
	for _, a := range []struct {
		spec  string
		shape Shape
		want  string
	}{
		{"zipf:", good, "exponent"}, {"zipf:-1", good, "0..20"}, {"zipf:NaN", good, "0..20"}, {"zipf:21", good, "0..20"},
		{"one:4", good, "0..3"}, {"one:-1", good, "0..3"}, {"one:x", good, "0..3"},
		{"unform", good, "neither uniform"}, {"", good, "neither uniform"}, {"no/such/file.jsonl", good, "no such file"},
		{"../../testdata/routing", good, "not a regular file"}, {pipe, good, "not a regular file"}, {"x.jsonl:3", good, "only a .u8 file has layers"},
		{"uniform", Shape{}, "Ranks is 0"}, {"uniform", Shape{}, "TopK is 0"}, {"uniform", Shape{Ranks: 1, Experts: 1 << 30, TopK: 1}, "Experts is 1073741824"},
		{"uniform", Shape{Ranks: 1, Experts: 1, TopK: 1, MaxTokens: -1}, "MaxTokens is -1"},
	} {
		if _, err := Open(a.spec, a.shape); err == nil || !strings.Contains(err.Error(), a.want) {
			t.Errorf("%q %+v: %v, want %q", a.spec, a.shape, err, a.want)
		}
	}
}

func TestFillRefuses(t *testing.T) {
	for _, spec := range []string{"uniform", "one:0", "../../testdata/routing/olmoe-1b-7b_book.u8:7"} {
		s := open(t, spec, Shape{Ranks: 2, Experts: 64, TopK: 8})
		for _, a := range []struct {
			rank, round, ids, weights int
			want                      error
		}{{0, 0, 8, 7, ErrFillShape}, {0, 0, 7, 7, ErrFillShape}, {2, 0, 8, 8, ErrFillRank}, {-1, 0, 8, 8, ErrFillRank}, {0, -1, 8, 8, ErrFillRank}, {1, 0, 0, 0, nil}} {
			if err := s.Fill(a.rank, a.round, make([]int32, a.ids), make([]float32, a.weights)); err != a.want {
				t.Errorf("%s %+v: %v", spec, a, err)
			}
		}
	}
}

func TestFillAllocatesNothingAndIsShared(t *testing.T) {
	for _, spec := range []string{"uniform", "zipf:1.5", "one:0", "../../testdata/routing/olmoe-1b-7b_book.u8:15"} {
		s := open(t, spec, Shape{Ranks: 4, Experts: 64, TopK: 8, MaxTokens: 32})
		want, _ := fill(t, s, 1, 5, 32)
		ids, weights := make([]int32, 32*8), make([]float32, 32*8)
		if n := testing.AllocsPerRun(20, func() { _ = s.Fill(1, 5, ids, weights) }); n != 0 {
			t.Errorf("%s: %v allocations", spec, n)
		}
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				ids, weights := make([]int32, 32*8), make([]float32, 32*8)
				for range 20 {
					if err := s.Fill(1, 5, ids, weights); err != nil || !slices.Equal(ids, want) {
						t.Errorf("%s: another answer beside other callers (%v)", spec, err)
						return
					}
				}
			})
		}
		all.Wait()
	}
}
