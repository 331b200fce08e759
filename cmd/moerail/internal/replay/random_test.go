package replay

import (
	"bytes"
	"flag"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"moerail/internal/casefile"
)

var (
	randomSeed  = flag.Uint64("random.seed", 1, "seed of the first case of TestRandomCases")
	randomCases = flag.Int("random.cases", 0, "how many cases TestRandomCases carries out; 0 is 200, 50 with -short")
)

// TestRandomCases carries out small cases with every setting drawn, refused
// inputs and faults among them, and judges each by the definition. A case that
// fails is kept as a file; its number as -random.seed, with -random.cases 1,
// draws it again.
func TestRandomCases(t *testing.T) {
	n := *randomCases
	if n == 0 {
		n = 200
		if testing.Short() {
			n = 50
		}
	}
	for i := range n {
		seed := *randomSeed + uint64(i)
		text, err := playRandom(t, seed)
		if err != nil {
			at := filepath.Join(os.TempDir(), "moerail-random-case.json")
			if werr := os.WriteFile(at, text, 0o600); werr != nil {
				t.Error(werr)
			}
			t.Fatalf("seed %d, kept as %s: %v", seed, at, err)
		}
	}
}

func playRandom(t *testing.T, seed uint64) (text []byte, err error) {
	var file bytes.Buffer
	if err := casefile.Write(&file, randomCase(seed)); err != nil {
		return nil, err
	}
	text = bytes.Clone(file.Bytes())
	c, err := casefile.Decode(&file)
	if err != nil {
		return text, err
	}
	got, arrivals, err := Run(t.Context(), c)
	if err != nil {
		return text, err
	}
	for _, a := range arrivals {
		t.Errorf("seed %d: the fabric refused: %s", seed, a)
	}
	return text, casefile.Check(c, got)
}

// dice draws a case.
type dice struct {
	*rand.Rand
	c *casefile.Case
}

func (d dice) oneIn(n int) bool { return d.IntN(n) == 0 }

func pick[T any](d dice, of ...T) T { return of[d.IntN(len(of))] }

func randomCase(seed uint64) *casefile.Case {
	d := dice{rand.New(rand.NewPCG(seed, 0x72616e646f6d)), &casefile.Case{Fabric: "loopback", Deadline: 20 * time.Second, OnFailure: "stop"}}
	c := d.c
	c.Ranks = pick(d, 1, 2, 2, 3, 4, 4, 5, 6, 8)
	c.Params = casefile.Params{
		Experts: 1 + d.IntN(2*c.Ranks+3), TopK: 1 + d.IntN(5), Hidden: pick(d, 1, 2, 3, 7, 8, 16, 17, 33, 128, 130),
		MaxTokens: 1 + d.IntN(9), DType: pick(d, "fp32", "fp32", "bf16", "fp16", "fp8"), OutDType: pick(d, "fp32", "fp32", "bf16", "fp16"),
		Layout: pick(d, "grouped", "batched", "rows"), ExpertAlignment: pick(d, 1, 1, 1, 2, 3, 16),
		Reduce: pick(d, "expert", "home"), ApplyWeights: !d.oneIn(3), Replicas: 1,
		NICs: 1 + d.IntN(4), Slots: pick(d, 1, 1, 2, 3),
		SendDepth: pick(d, 0, 0, 1, 2, 5),
	}
	if c.DType == "fp8" {
		c.ScaleBlock = pick(d, 1, 2, 16, 128, c.Hidden)
	}
	if d.oneIn(3) {
		for c.Replicas = 1 + d.IntN(c.Ranks); c.Ranks%c.Replicas != 0; c.Replicas-- {
		}
	}
	if d.oneIn(2) {
		c.RanksPerNode = 1 + d.IntN(c.Ranks)
	}
	if d.oneIn(2) {
		c.WindowRows = 1 + d.IntN(c.MaxTokens)
	}
	if d.oneIn(3) {
		c.MaxRecvRows = 1 + d.IntN(c.MaxTokens*c.Ranks)
	}
	for range c.Experts {
		c.Scale = append(c.Scale, d.value())
		c.Bias = append(c.Bias, d.value())
	}
	if d.oneIn(3) {
		c.Placement = slices.Repeat([][]int32{{}}, c.Ranks)
		for _, e := range d.Perm(c.Experts) {
			q := d.IntN(c.Ranks)
			c.Placement[q] = append(c.Placement[q], int32(e))
		}
	}
	for range 1 + d.IntN(4) {
		c.Rounds = append(c.Rounds, d.round())
	}
	d.faults()
	return c
}

func (d dice) round() casefile.Round {
	r := casefile.Round{Repeat: pick(d, 1, 1, 1, 3)}
	refusals := d.oneIn(3)
	for p := range d.c.Ranks {
		if first := p - p%d.c.Replicas; first != p {
			r.Ranks = append(r.Ranks, r.Ranks[first])
			continue
		}
		in := d.input(d.IntN(d.c.MaxTokens + 1))
		if refusals && d.oneIn(2) {
			d.spoil(&in)
		}
		r.Ranks = append(r.Ranks, in)
	}
	return r
}

// value is small most of the time, and now and then what sums are broken by.
func (d dice) value() float32 {
	if d.oneIn(300) {
		return pick[float32](d, 0, 0x1p-149, 0x1p-130, 60000, 448, -448, 1e30, math.MaxFloat32)
	}
	return float32(d.NormFloat64())
}

func (d dice) input(tokens int) casefile.RankInput {
	var in casefile.RankInput
	hot := int32(d.IntN(d.c.Experts))
	skewed := d.oneIn(3)
	for range tokens {
		x, ids, weights := make([]float32, d.c.Hidden), make([]int32, d.c.TopK), make([]float32, d.c.TopK)
		for h := range x {
			x[h] = d.value()
		}
		for k := range ids {
			ids[k], weights[k] = int32(d.IntN(d.c.Experts)), d.value()
			if skewed {
				ids[k] = hot
			}
			if d.oneIn(6) {
				ids[k] = -1
			}
		}
		in.X, in.IDs, in.Weights = append(in.X, x), append(in.IDs, ids), append(in.Weights, weights)
	}
	return in
}

// spoil makes an input one that must be refused.
func (d dice) spoil(in *casefile.RankInput) {
	kind := d.IntN(6)
	if kind == 0 {
		*in = d.input(d.c.MaxTokens + 1 + d.IntN(5))
		return
	}
	if len(in.IDs) == 0 {
		*in = d.input(1 + d.IntN(d.c.MaxTokens))
	}
	t := d.IntN(len(in.IDs))
	switch kind {
	case 1:
		in.X[t] = in.X[t][:d.IntN(d.c.Hidden)]
	case 2:
		in.IDs[t] = append(in.IDs[t], 0)
	case 3:
		in.X = in.X[1:]
	default:
		in.IDs[t][d.IntN(d.c.TopK)] = pick(d, int32(d.c.Experts), -2, math.MaxInt32, math.MinInt32, int32(d.c.Experts)+7)
		if t > 0 && d.oneIn(2) { // the first one counts
			in.IDs[t-1][0] = -3
		}
	}
}

func (d dice) faults() {
	f := &d.c.Faults
	if d.oneIn(2) {
		f.Seed, f.Reorder = d.Uint64N(1000), true
		if d.oneIn(2) {
			f.DelayMin = time.Duration(d.IntN(20)) * time.Microsecond
			f.DelayMax = f.DelayMin + time.Duration(d.IntN(300))*time.Microsecond
		}
	}
	if d.oneIn(8) {
		f.Pause = append(f.Pause, casefile.Pause{Rank: d.IntN(d.c.Ranks), Round: d.IntN(d.c.NumRounds()),
			Phase: pick(d, casefile.Phases...), Length: time.Duration(1+d.IntN(15)) * time.Millisecond})
	}
}
