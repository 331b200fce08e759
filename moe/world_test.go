package moe

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"

	"moerail/internal/reference"
	"moerail/transport/loopback"
)

// setting is what a world is made from.
type setting struct {
	ranks  int
	nics   int // 0 = 1
	seed   uint64
	cfg    Config
	fabric loopback.Config
	hosts  func(r int) string // nil: all on one
	mutate func(r int, c *Config)
	faulty bool // faults of the fabric are expected
}

// world is a communicator for each of some ranks in this process, with experts
// that differ, inputs that are drawn, and the oracle's view of it all.
type world struct {
	t      testing.TB
	s      setting
	fabric *loopback.Fabric
	procs  []*loopback.Process
	cs     []*Communicator
	judge  *reference.Judge
	ref    reference.Config
	rng    *rand.Rand
	faults []string   // guarded by mu
	mu     sync.Mutex // the fabric reports from any goroutine
}

func newWorld(t testing.TB, s setting) *world {
	t.Helper()
	w := &world{t: t, s: s, rng: rand.New(rand.NewPCG(s.seed, 77))}
	w.s.nics = max(s.nics, 1)
	s.fabric.OnFault = func(f loopback.Fault) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.faults = append(w.faults, f.String())
	}
	var err error
	if w.fabric, err = loopback.New(s.fabric); err != nil {
		t.Fatal(err)
	}
	for r := range s.ranks {
		host := "host"
		if s.hosts != nil {
			host = s.hosts(r)
		}
		w.procs = append(w.procs, w.fabric.Process(fmt.Sprintf("rank%d", r), host))
	}
	w.cs, err = NewLocal(context.Background(), s.ranks, s.cfg, func(r int, c *Config) {
		c.Provider, c.NICs = w.procs[r], []string{"lo0", "lo1", "lo2", "lo3"}[:w.s.nics]
		if s.mutate != nil {
			s.mutate(r, c)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.close)
	w.setJudge(s.cfg.Placement)
	return w
}

// setJudge makes the oracle for a placement.
func (w *world) setJudge(placement [][]int32) {
	c := &w.cs[0].cfg
	w.ref = reference.Config{
		Ranks: w.s.ranks, Experts: c.NumExperts, TopK: c.TopK, Hidden: c.Hidden, Placement: placement,
		DType: reference.DType(c.DType), OutDType: reference.DType(c.OutDType), ScaleBlock: c.ScaleBlock,
		ReduceAtHome: c.ReduceAtHome, ApplyWeights: !c.IgnoreWeights, Replicas: c.Replicas,
		MaxTokens: c.MaxTokens, MaxRecvRows: c.MaxRecvRows,
	}
	if c.DType == FP8 && c.InDType == FP8 { // opaque scales: the values are what counts
		w.ref.DType, w.ref.ScaleBlock = reference.FP32, 0
	}
	for e := range c.NumExperts {
		w.ref.Scale = append(w.ref.Scale, 0.3125+float32(e%97)/16+float32(e)/4096)
		w.ref.Bias = append(w.ref.Bias, float32(e%13)-5.625+float32(e)/1024)
	}
	var err error
	if w.judge, err = reference.NewJudge(w.ref); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) close() {
	for _, c := range w.cs {
		if err := c.Close(); err != nil {
			w.t.Errorf("close: %v", err)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.faults) > 0 && !w.s.faulty {
		w.t.Errorf("%d faults on the fabric, the first: %s", len(w.faults), w.faults[0])
	}
}

// each runs fn for every rank at once and waits for all.
func (w *world) each(fn func(r int, c *Communicator) error) {
	w.t.Helper()
	errs := make([]error, len(w.cs))
	var wg sync.WaitGroup
	for r, c := range w.cs {
		wg.Go(func() { errs[r] = fn(r, c) })
	}
	wg.Wait()
	for r, err := range errs {
		if err != nil {
			w.t.Fatalf("rank %d: %v", r, err)
		}
	}
}

// round is one round of every rank with every check; it returns the results.
func (w *world) round(slot int, toks []tokens) [][]byte {
	w.t.Helper()
	w.poison(slot)
	before := w.wire()
	outs := make([][]byte, len(w.cs))
	counts := w.count(toks)
	w.each(func(r int, c *Communicator) error {
		b, err := c.Dispatch(slot, toks[r].input())
		if err != nil {
			return err
		}
		if err := w.checkBatch(r, b, counts); err != nil {
			return err
		}
		if err := w.experts(c, b); err != nil {
			return err
		}
		outs[r] = w.nanOut(toks[r].n)
		if err := c.Combine(slot, nil, 0, outs[r], 0); err != nil {
			return err
		}
		if n := c.Outstanding(); n != 0 {
			return fmt.Errorf("%d operations outstanding after a round", n)
		}
		return nil
	})
	w.checkWire(before, toks)
	for r := range w.cs {
		w.checkOut(r, toks[r], outs[r])
	}
	return outs
}

// checkWire compares what a round has sent with what its rows make.
func (w *world) checkWire(before []wireCount, toks []tokens) {
	w.t.Helper()
	want := w.wireByHand(toks)
	for r, after := range w.wire() {
		got := wireCount{after.messages - before[r].messages, after.bytes - before[r].bytes}
		if got != want[r] {
			w.t.Fatalf("rank %d sent %d messages and %d bytes, want %d and %d", r, got.messages, got.bytes, want[r].messages, want[r].bytes)
		}
	}
}

// poison fills with NaN everything that peers, stages and experts write for a
// slot, as far as it may have been used. No round may be under way.
func (w *world) poison(slot int) {
	for _, c := range w.cs {
		pl, s := c.plan, c.slots[slot]
		sh := &pl.Shape
		fill := func(b []byte) {
			b = b[:min(len(b), 256<<10)]
			for i := range b {
				b[i] = 0xff
			}
		}
		for q := range int(sh.NumRanks) {
			for parity := range 2 {
				off := pl.WindowOffset(slot, parity, q)
				fill(c.inbox.Host[off : off+sh.WindowStride])
			}
			off := pl.ReturnOffset(slot, q)
			fill(c.inbox.Host[off : off+sh.ReturnStride])
			off = pl.SendOffset(slot, q)
			fill(c.outbox.Host[off : off+sh.SendStride])
			off = pl.ReturnSendOffset(slot, q)
			fill(c.outbox.Host[off : off+sh.ReturnSendStride])
		}
		if sh.WindowRows < sh.MaxTokens {
			off := pl.OverflowOffset(slot)
			fill(c.inbox.Host[off : off+uint64(sh.MaxRecvRows)*uint64(sh.RowBytes)])
		}
		m := &s.mem
		for _, a := range []uint64{m.expertX, m.expertScales, m.y, m.rowWeights, m.rowTopK} {
			if a != 0 {
				fill(s.local.Host[a:min(a+128, s.mem.bytes)])
			}
		}
		if sh.Layout != LayoutRows {
			fill(s.at(m.expertX, uint64(sh.MaxExpertRows)*m.xStride))
			fill(s.at(m.expertScales, uint64(sh.MaxExpertRows)*uint64(sh.ScaleBytes)))
		}
		fill(s.at(m.y, uint64(sh.MaxExpertRows)*m.yStride))
	}
}

func (w *world) nanOut(n int) []byte {
	return slices.Repeat([]byte{0xff}, n*int(w.cs[0].plan.Shape.OutRowBytes))
}

// settle lets goroutines that have been told to end do so.
func settle(goroutines int) int {
	n := 0
	for range 2000 {
		if n = runtime.NumGoroutine(); n <= goroutines {
			break
		}
		pause(1000)
	}
	return n
}
