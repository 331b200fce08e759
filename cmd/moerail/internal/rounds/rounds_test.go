package rounds

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"moerail/internal/reference"
	"moerail/moe"
)

// small is a run that takes milliseconds.
func small() Options {
	o := Defaults()
	o.Ranks, o.Experts, o.TopK, o.Hidden, o.Tokens = 4, 10, 3, 200, []int{9}
	o.DType, o.Rounds, o.Warmup = "bf16", 6, 2
	return o
}

func runInProcess(t *testing.T, o Options, tamper func(*rank)) *Report {
	t.Helper()
	if err := o.Resolve(); err != nil {
		t.Fatal(err)
	}
	results, err := inProcess(t.Context(), &o, nil, tamper)
	if err != nil {
		t.Fatal(err)
	}
	return Merge(&o, "test", results)
}

func TestEveryKindOfRunIsVerified(t *testing.T) {
	for name, change := range map[string]func(*Options){
		"plain":         func(*Options) {},
		"fp32":          func(o *Options) { o.DType, o.OutDType = "fp32", "fp32" },
		"fp32 at home":  func(o *Options) { o.DType, o.OutDType, o.Reduce = "fp32", "fp32", "home" },
		"fp16":          func(o *Options) { o.DType, o.OutDType = "fp16", "fp16" },
		"fp8":           func(o *Options) { o.DType = "fp8" },
		"fp8, fp32 out": func(o *Options) { o.DType, o.OutDType = "fp8", "fp32" },
		"batched":       func(o *Options) { o.Layout = "batched" },
		"rows":          func(o *Options) { o.Layout = "rows" },
		"rows, fp8":     func(o *Options) { o.Layout, o.DType = "rows", "fp8" },
		"home":          func(o *Options) { o.Reduce = "home" },
		"two slots":     func(o *Options) { o.Slots = 2 },
		"three slots":   func(o *Options) { o.Slots = 3 },
		"three NICs":    func(o *Options) { o.NICs = 3 },
		"same node":     func(o *Options) { o.RanksPerNode = 2 },
		"replicas":      func(o *Options) { o.Replicas = 2 },
		"small windows": func(o *Options) { o.WindowRows, o.Routing = 2, "one:0" },
		"ragged":        func(o *Options) { o.Tokens = []int{5, 0, 300, 1} },
		"no tokens":     func(o *Options) { o.Tokens = []int{0} },
		"one rank":      func(o *Options) { o.Ranks = 1 },
		"few experts":   func(o *Options) { o.Experts, o.TopK = 2, 2 },
		"zipf":          func(o *Options) { o.Routing = "zipf:1.5" },
		"shm":           func(o *Options) { o.Fabric = "shm" },
		"sample":        func(o *Options) { o.Verify = "sample" },
		"hidden 1":      func(o *Options) { o.Hidden = 1 },
		"recorded": func(o *Options) {
			o.Experts, o.TopK, o.Routing = 64, 8, "../../../../testdata/routing/olmoe-1b-7b_book.u8:7"
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := small()
			change(&o)
			rep := runInProcess(t, o, nil)
			if !rep.Verified || rep.Error != "" {
				t.Fatalf("not verified: %s", rep.Error)
			}
			if rep.Rounds != 6 || rep.Outstanding != 0 {
				t.Errorf("%d rounds with %d operations outstanding, want 6 and 0", rep.Rounds, rep.Outstanding)
			}
			if rep.Round.P50 <= 0 || rep.Round.Max < rep.Round.P99 || rep.Round.P99 < rep.Round.P50 {
				t.Errorf("round times %+v are in no order", rep.Round)
			}
		})
	}
}

// The verification must catch a runtime, or a model, that is wrong in one place.
func TestMutantsAreNotVerified(t *testing.T) {
	for name, mutant := range map[string]func(*rank){
		"two experts swapped": func(r *rank) {
			m := *r.model
			m.scale, m.bias = slices.Clone(m.scale), slices.Clone(m.bias)
			m.scale[3], m.scale[4] = m.scale[4], m.scale[3]
			m.bias[3], m.bias[4] = m.bias[4], m.bias[3]
			r.experts = m.experts(r.opt, r.p)
		},
		"tokens one place off": func(r *rank) {
			if r.p == 1 {
				load := *r.load
				load.x = slices.Concat(load.x[load.rowBytes:], load.x[:load.rowBytes])
				r.load = &load
			}
		},
		"weights not applied": func(r *rank) {
			cfg, _ := r.model.reference(r.opt)
			cfg.ApplyWeights = false
			r.judge.check, _ = reference.NewChecker(cfg)
		},
	} {
		t.Run(name, func(t *testing.T) {
			rep := runInProcess(t, small(), mutant)
			if rep.Verified || !strings.Contains(rep.Error, "not verified: rank ") {
				t.Fatalf("verified %v, error %q", rep.Verified, rep.Error)
			}
		})
	}
}

// The loop, the experts and the checks must not allocate: what a run reports
// would be theirs.
func TestRoundsDoNotAllocate(t *testing.T) {
	for slots := 1; slots <= 2; slots++ {
		o := small()
		o.Rounds, o.Warmup, o.Slots = 300, 20, slots
		if rep := runInProcess(t, o, nil); rep.AllocsPerRound != 0 || !rep.Verified {
			t.Errorf("%d slots: %d allocations a round, verified %v", slots, rep.AllocsPerRound, rep.Verified)
		}
	}
}

func TestUnverifiedRunSaysSo(t *testing.T) {
	o := small()
	o.Verify = "off"
	if rep := runInProcess(t, o, nil); rep.Verified || rep.Error != "" {
		t.Fatalf("verified %v, error %q", rep.Verified, rep.Error)
	}
}

// A rank that fails in mid-run ends the run, with its error and not with one of
// those that were left behind.
func TestFailingRankEndsTheRun(t *testing.T) {
	o := small()
	o.Deadline = Duration(300 * time.Millisecond)
	rep := runInProcess(t, o, func(r *rank) {
		if r.p == 2 {
			r.n = r.opt.maxTokens() + 1 // more than the communicator was made for
			r.ids[0] = make([]int32, r.n*r.opt.TopK)
			r.weights[0] = make([]float32, r.n*r.opt.TopK)
		}
	})
	if rep.Verified || !strings.Contains(rep.Error, "rank 2, round 0, dispatch_send") {
		t.Fatalf("verified %v, error %q", rep.Verified, rep.Error)
	}
	if _, err := json.Marshal(rep); err != nil {
		t.Fatal(err)
	}
}

func TestCancelledRunEnds(t *testing.T) {
	o := small()
	o.Rounds = maxRounds
	if err := o.Resolve(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	results, err := inProcess(ctx, &o, func(done, of int) uint64 {
		if done == 4 {
			cancel()
		}
		return 0
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if rep := Merge(&o, "test", results); rep.Verified || rep.Error != errInterrupted.Error() {
		t.Fatalf("verified %v, error %q", rep.Verified, rep.Error)
	}
}

func TestConfigurationFaultsComeFromTheRuntime(t *testing.T) {
	o := small()
	o.WindowRows = 10
	if err := o.Resolve(); err != nil {
		t.Fatal(err)
	}
	_, err := InProcess(t.Context(), &o, nil)
	var config *moe.ConfigError
	if !errors.As(err, &config) || !strings.Contains(err.Error(), "window rows is 10") {
		t.Fatalf("got %v", err)
	}
}

func TestResolveRefuses(t *testing.T) {
	for flag, change := range map[string]func(*Options){
		"ranks":          func(o *Options) { o.Ranks = 0 },
		"experts":        func(o *Options) { o.Experts = -1 },
		"top-k":          func(o *Options) { o.TopK = 1 << 20 },
		"hidden":         func(o *Options) { o.Hidden = 0 },
		"replicas":       func(o *Options) { o.Replicas = 3 },
		"slots":          func(o *Options) { o.Slots = 0 },
		"nics":           func(o *Options) { o.NICs = 9 },
		"window-rows":    func(o *Options) { o.WindowRows = -1 },
		"ranks-per-node": func(o *Options) { o.RanksPerNode = -1 },
		"rounds":         func(o *Options) { o.Rounds = 0 },
		"warmup":         func(o *Options) { o.Warmup = -1 },
		"dtype":          func(o *Options) { o.DType = "int8" },
		"out-dtype":      func(o *Options) { o.OutDType = "fp8" },
		"layout":         func(o *Options) { o.Layout = "" },
		"reduce":         func(o *Options) { o.Reduce = "Home" },
		"launch":         func(o *Options) { o.Launch = "mpi" },
		"verify":         func(o *Options) { o.Verify = "yes" },
		"deadline":       func(o *Options) { o.Deadline = 0 },
		"device":         func(o *Options) { o.Device = "cuda" },
		"fabric":         func(o *Options) { o.Fabric = "libfabric:" },
		"routing":        func(o *Options) { o.Routing = "one:10" },
		"tokens":         func(o *Options) { o.Tokens = []int{1, 2} },
	} {
		o := small()
		change(&o)
		var option *OptionError
		if err := o.Resolve(); !errors.As(err, &option) || option.Flag != flag {
			t.Errorf("%s: got %v", flag, err)
		}
	}
	o := small()
	o.Tokens, o.Hidden = []int{1 << 22}, 1<<17
	var option *OptionError
	if err := o.Resolve(); !errors.As(err, &option) || option.Flag != "tokens" {
		t.Errorf("two terabytes: got %v", err)
	}
	o = small()
	o.Replicas, o.Tokens = 2, []int{1, 2, 3, 3}
	if err := o.Resolve(); !errors.As(err, &option) || option.Flag != "tokens" {
		t.Errorf("unequal replicas: got %v", err)
	}
}

func TestPercentilesAreNearestRanks(t *testing.T) {
	var nanos []int64
	for n := 100; n >= 1; n-- {
		nanos = append(nanos, int64(n)*1000)
	}
	if got, want := percentiles(nanos), (Times{50, 90, 99, 100}); got != want {
		t.Errorf("of 1 to 100: %v, want %v", got, want)
	}
	if got, want := percentiles([]int64{7000}), (Times{7, 7, 7, 7}); got != want {
		t.Errorf("of one: %v, want %v", got, want)
	}
	if got, want := percentiles([]int64{3000, 1000, 2000}), (Times{2, 3, 3, 3}); got != want {
		t.Errorf("of three: %v, want %v", got, want)
	}
	if got := percentiles(nil); got != (Times{}) {
		t.Errorf("of none: %v", got)
	}
}

// Merge against figures worked out by hand.
func TestMerge(t *testing.T) {
	o := small()
	o.Ranks = 2
	if err := o.Resolve(); err != nil {
		t.Fatal(err)
	}
	a := &RankResult{Rank: 0, Times: []phaseNanos{{1000, 2000, 3000, 4000}, {1000, 1000, 1000, 1000}}, Counts: true, Mallocs: 5,
		Wire: wireCounts{Messages: 4, Bytes: 200, Rows: 6, UniqueRows: 8}, ExpertRows: []uint64{6, 2}, Paths: []moe.Path{{To: 0, Name: "self"}, {To: 1, Name: "x"}}}
	b := &RankResult{Rank: 1, Times: []phaseNanos{{2000, 1500, 1000, 1000}, {9000, 1000, 1000, 1000}}, Mallocs: 99,
		Wire: wireCounts{Messages: 2, Bytes: 100, Rows: 2, UniqueRows: 4}, ExpertRows: []uint64{0, 0}, Outstanding: 3}
	rep := Merge(&o, "v", []*RankResult{a, b})
	if rep.Phases["dispatch_send"] != (Times{2, 9, 9, 9}) || rep.Dispatch != (Times{3.5, 10, 10, 10}) || rep.Round != (Times{10, 12, 12, 12}) {
		t.Errorf("times %v, %v, %v", rep.Phases["dispatch_send"], rep.Dispatch, rep.Round)
	}
	if rep.Wire.Messages != 3 || rep.Wire.Bytes != 150 || rep.Wire.Rows != 4 || rep.Wire.UniqueRows != 6 {
		t.Errorf("wire %+v", rep.Wire)
	}
	if rep.AllocsPerRound != 2 || rep.Outstanding != 3 || rep.ExpertLoad.MaxOverMean != 3 {
		t.Errorf("allocations %d, outstanding %d, load %v", rep.AllocsPerRound, rep.Outstanding, rep.ExpertLoad)
	}
	if len(rep.Paths) != 1 || rep.Paths[0] != (Path{0, 1, "x"}) {
		t.Errorf("paths %v", rep.Paths)
	}
}

// Row sizes worked out by hand from the protocol.
func TestRowBytes(t *testing.T) {
	for _, c := range []struct {
		dtype          string
		hidden, topK   int
		row, low, back int
	}{
		{"bf16", 7168, 8, 14336 + 112, 14336, 14336}, // 8+12*8 = 104, padded to 112
		{"fp8", 7168, 8, 7168 + 224 + 112, 7168 + 224, 14336},
		{"fp8", 100, 1, 112 + 16 + 32, 100 + 4, 200},
		{"fp32", 3, 2, 16 + 32, 12, 6},
	} {
		o := Options{DType: c.dtype, OutDType: "bf16", Hidden: c.hidden, TopK: c.topK}
		if got := o.rowBytes(); got != c.row {
			t.Errorf("%+v: row of %d bytes", c, got)
		}
		if o.payloadBytes() != c.low || o.resultBytes() != c.back {
			t.Errorf("%+v: payload %d, result %d", c, o.payloadBytes(), o.resultBytes())
		}
	}
}

func TestPoisonIsNaNEverywhere(t *testing.T) {
	for _, dtype := range []string{"fp32", "bf16", "fp16"} {
		for _, n := range []int{0, 4, 12, 1000} {
			b := make([]byte, n)
			poison(b, dtype)
			o := Options{Ranks: 1, Experts: 1, TopK: 1, Hidden: max(n/4, 1)}
			if dtype != "fp32" {
				o.Hidden = max(n/2, 1)
			}
			if n == 0 {
				continue
			}
			d, _ := reference.ParseDType(dtype)
			k, err := reference.NewChecker(reference.Config{Ranks: 1, Experts: 1, TopK: 1, Hidden: o.Hidden, OutDType: d, Scale: []float32{1}, Bias: []float32{0}})
			if err != nil {
				t.Fatal(err)
			}
			nan := slices.Repeat([]float32{float32(math.NaN())}, o.Hidden)
			if err := k.Row(b, nan, []int32{0}, nil); err != nil {
				t.Errorf("%s, %d bytes: %v", dtype, n, err)
			}
		}
	}
}

func TestBarrier(t *testing.T) {
	b := newBarrier(3)
	var log [3][]int
	turns := each(3, func(p int) error {
		for i := range 50 {
			log[p] = append(log[p], i)
			if err := b.wait(); err != nil {
				return err
			}
			for q := range log {
				if len(log[q]) < i+1 {
					return fmt.Errorf("rank %d passed turn %d before rank %d came", p, i, q)
				}
			}
			if err := b.wait(); err != nil {
				return err
			}
		}
		return nil
	})
	if err := errors.Join(turns...); err != nil {
		t.Fatal(err)
	}
	errs := each(3, func(p int) error {
		if p == 1 {
			b.leave()
			return nil
		}
		return b.wait()
	})
	for p, err := range errs {
		if p != 1 && !errors.Is(err, errAbandoned) {
			t.Errorf("rank %d: %v, want %v", p, err, errAbandoned)
		}
	}
}

// The barriers between phases know no round: who waits there says which.
func TestBarrierErrorsNameTheRound(t *testing.T) {
	late := &moe.RoundError{Code: moe.CodeDeadline, Phase: moe.PhaseBarrier, What: "waiting for rank 2"}
	r := &rank{p: 1, barrier: func() error { return late }}
	if err := r.meet(7); !errors.Is(err, late) || err.Error() != "rank 1, round 7: moe: barrier: waiting for rank 2" {
		t.Errorf("%v", err)
	}
	r.opt = &Options{}
	if err := r.step(7); err == nil || !strings.Contains(err.Error(), "round 7:") {
		t.Errorf("a round that ends at its first barrier: %v", err)
	}
}

// TestPoisonFillsAnySize: a single 16-bit element too.
func TestPoisonFillsAnySize(t *testing.T) {
	for _, dtype := range []string{"bf16", "fp16"} {
		for n := 0; n < 40; n += 2 {
			out := make([]byte, n)
			poison(out, dtype)
			for i, b := range out {
				if i%2 == 1 && b&0x7c != 0x7c {
					t.Fatalf("%s, %d bytes: byte %d is %#x, no NaN", dtype, n, i, b)
				}
			}
		}
	}
}
