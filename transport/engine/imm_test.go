package engine

import (
	"context"
	"errors"
	"testing"
	"time"

	"moerail/internal/mem"
	"moerail/transport"
)

// send has engine 0 write n empty immediates to engine 1 and waits until
// engine 1 has seen them.
func (r *rig) sendImm(t testing.TB, imm transport.Imm, n int) {
	t.Helper()
	seen := func() uint64 {
		s := r.engines[1].Stats()
		return s.Imms + s.ImmsEarly + s.ImmsStale + s.ImmsLost
	}
	// Early ones are counted again when somebody claims them, so only growth by n counts.
	remote := r.importTo(t, 0, 1)
	before := seen()
	var c Counter
	for i := 0; i < n; i++ {
		must[Handle](t)(r.engines[0].Write(WriteRequest{Local: r.regions[0], Remote: remote, Imm: imm}, Done{Counter: &c}))
	}
	if err := c.Wait(soon(t), uint64(n)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "immediates", func() bool { return seen() >= before+uint64(n) })
}

func TestImmediatesOfEveryKindOfValue(t *testing.T) {
	r := newRig(t, 1, 2, 1, 0, 64)
	for _, imm := range []transport.Imm{0, 1, 0x7fffffff, 0x80000000, 0xffffffff} {
		c := must[*ImmCounter](t)(r.engines[1].ImmCounter(imm))
		if again := must[*ImmCounter](t)(r.engines[1].ImmCounter(imm)); again != c {
			t.Errorf("immediate %#x has two counters", imm)
		}
		r.sendImm(t, imm, 3)
		if c.Total() != 3 {
			t.Errorf("immediate %#x: %d arrivals, want 3", imm, c.Total())
		}
	}
}

func TestEarlyImmediatesAreKept(t *testing.T) {
	r := newRig(t, 1, 2, 1, 0, 64)
	e := r.engines[1]
	r.sendImm(t, 10, 5)
	r.sendImm(t, 21, 2)
	r.sendImm(t, 23, 1)
	c := must[*ImmCounter](t)(e.ImmCounter(10))
	if c.Total() != 5 {
		t.Fatalf("counter starts at %d, 5 came early", c.Total())
	}
	h := &immCounts{n: make([]int, 4)}
	must[*ImmClaim](t)(e.ClaimImms(20, 4, h))
	if h.n[1] != 2 || h.n[3] != 1 || h.n[0]+h.n[2] != 0 {
		t.Fatalf("replayed %v, want [0 2 0 1]", h.n)
	}
	r.sendImm(t, 22, 1)
	_ = e.Call(func(*Worker) {
		if h.n[2] != 1 {
			t.Errorf("arrivals %v after the claim", h.n)
		}
	})
}

func TestEarlyImmediatesAreBounded(t *testing.T) {
	net := newFakeNet(1)
	e := must[*Engine](t)(New(Config{Provider: net, Domains: []transport.Domain{net.domain("a", 0)}, CPU: -1, MaxEarlyImms: 2}))
	defer e.Close()
	_ = e.Call(func(w *Worker) {
		for i := transport.Imm(0); i < 5; i++ {
			w.dispatchImm(i)
			w.dispatchImm(i)
		}
	})
	if s := e.Stats(); s.ImmsEarly != 4 || s.ImmsLost != 6 {
		t.Fatalf("kept %d, lost %d, want 4 and 6", s.ImmsEarly, s.ImmsLost)
	}
}

func TestClaimsDoNotOverlapAndReleasedOnesAreStale(t *testing.T) {
	r := newRig(t, 1, 2, 1, 0, 64)
	e := r.engines[1]
	h := &immCounts{n: make([]int, 10)}
	c := must[*ImmClaim](t)(e.ClaimImms(100, 10, h))
	must[*ImmCounter](t)(e.ImmCounter(200))
	for _, q := range []struct {
		base transport.Imm
		n    uint32
	}{{100, 10}, {99, 2}, {109, 1}, {90, 100}, {150, 51}, {200, 1}} {
		if _, err := e.ClaimImms(q.base, q.n, h); !errors.Is(err, ErrImmClaimed) {
			t.Errorf("claim [%d, +%d): %v", q.base, q.n, err)
		}
	}
	if _, err := e.ImmCounter(105); !errors.Is(err, ErrImmClaimed) {
		t.Errorf("counter within a claim: %v", err)
	}
	for _, q := range []struct {
		base transport.Imm
		n    uint32
		h    ImmHandler
	}{{5, 0, h}, {0xffffffff, 2, h}, {5, 1, nil}} {
		if _, err := e.ClaimImms(q.base, q.n, q.h); !errors.Is(err, ErrArgument) {
			t.Errorf("claim [%d, +%d): %v", q.base, q.n, err)
		}
	}
	must[*ImmClaim](t)(e.ClaimImms(110, 1, &immCounts{n: make([]int, 1)}))
	must[*ImmClaim](t)(e.ClaimImms(0xffffffff, 1, &immCounts{n: make([]int, 1)}))

	r.sendImm(t, 103, 1)
	if err := errors.Join(c.Release(), c.Release()); err != nil {
		t.Fatal(err)
	}
	r.sendImm(t, 103, 2)
	if h.n[3] != 1 {
		t.Fatalf("handler ran %d times, once before the release", h.n[3])
	}
	if s := e.Stats(); s.ImmsStale != 2 {
		t.Fatalf("%d stale immediates, want 2", s.ImmsStale)
	}
	again := &immCounts{n: make([]int, 3)}
	must[*ImmClaim](t)(e.ClaimImms(102, 3, again))
	r.sendImm(t, 103, 1)
	r.sendImm(t, 105, 1) // still released
	if again.n[1] != 1 || e.Stats().ImmsStale != 3 {
		t.Fatalf("after a new claim: %v, %d stale", again.n, e.Stats().ImmsStale)
	}
}

func TestReleasedRangesMergeAndSplit(t *testing.T) {
	var tab immTable
	model := map[uint64]bool{}
	check := func() {
		t.Helper()
		for i := uint64(0); i < 64; i++ {
			if tab.isReleased(transport.Imm(i)) != model[i] {
				t.Fatalf("%d: released %v, want %v in %v", i, !model[i], model[i], tab.released)
			}
		}
		for i := 1; i < len(tab.released); i++ {
			if tab.released[i-1].hi >= tab.released[i].lo {
				t.Fatalf("ranges touch: %v", tab.released)
			}
		}
	}
	x := uint64(12345)
	for i := 0; i < 3000; i++ {
		x = x*6364136223846793005 + 1442695040888963407
		lo := x >> 40 % 60
		hi := lo + 1 + x>>50%5
		if x>>60&1 == 0 {
			tab.forget(immRange{lo, hi})
		} else {
			tab.revive(immRange{lo, hi})
		}
		for j := lo; j < hi; j++ {
			model[j] = x>>60&1 == 0
		}
		check()
	}
}

func TestExpectationsRepeatAndEndOnce(t *testing.T) {
	r := newRig(t, 1, 2, 1, 0, 64)
	e := r.engines[1]
	r.sendImm(t, 3, 7)
	events := make(chan error, 64)
	c := must[*ImmCounter](t)(e.ExpectImm(3, 3, func(err error) { events <- err })) // 7 early: 2 calls, 1 over
	if _, err := e.ExpectImm(3, 1, func(error) {}); !errors.Is(err, ErrImmClaimed) {
		t.Errorf("second expectation: %v", err)
	}
	next := func(want error) {
		t.Helper()
		select {
		case err := <-events:
			if !errors.Is(err, want) {
				t.Fatalf("called with %v, want %v", err, want)
			}
		case <-soon(t).Done():
			t.Fatal("not called")
		}
	}
	next(nil)
	next(nil)
	r.sendImm(t, 3, 1)
	if len(events) != 0 {
		t.Fatal("called after 8 of 9")
	}
	r.sendImm(t, 3, 1)
	next(nil)
	r.sendImm(t, 3, 6)
	next(nil)
	next(nil)
	if err := c.Release(); err != nil {
		t.Fatal(err)
	}
	next(ErrClosed)
	if err := c.Wait(soon(t), 1000); !errors.Is(err, ErrClosed) {
		t.Errorf("wait on a released counter: %v", err)
	}
	if err := c.Wait(soon(t), 15); err != nil {
		t.Errorf("wait for what had arrived: %v", err)
	}
	must[*ImmCounter](t)(e.ExpectImm(4, 1, func(err error) { events <- err }))
	e.Close()
	next(ErrClosed)
	<-e.Drained()
	if len(events) != 0 {
		t.Fatalf("%d calls too many", len(events))
	}
}

func TestCounterIsMirrored(t *testing.T) {
	r := newRig(t, 1, 2, 1, 0, 64)
	e := r.engines[1]
	r.sendImm(t, 3, 2)
	c := must[*ImmCounter](t)(e.ImmCounter(3))
	m := must[transport.Memory](t)(mem.Alloc(32))
	defer mem.Free(m)
	if err := c.Mirror(m, 8); err != nil {
		t.Fatal(err)
	}
	word := mem.Word64(m.Host, 8)
	if word.Load() != 2 {
		t.Fatalf("mirror starts at %d, want 2", word.Load())
	}
	r.sendImm(t, 3, 4)
	eventually(t, "mirror", func() bool { return word.Load() == 6 })
	for _, off := range []uint64{4, 25, 32, ^uint64(0) - 7} {
		if err := c.Mirror(m, off); err == nil {
			t.Errorf("mirror at %d of 32 bytes was accepted", off)
		}
	}
	if err := c.Mirror(transport.Memory{Kind: transport.MemoryDevice, Device: 1, Size: 64}, 0); !errors.Is(err, transport.ErrUnsupported) {
		t.Errorf("mirror in unmapped device memory: %v", err)
	}
	e.Close() // the worker is gone before m is freed
}

func TestWaitsHonourTheirContext(t *testing.T) {
	r := newRig(t, 1, 2, 1, 0, 64)
	c := must[*ImmCounter](t)(r.engines[1].ImmCounter(3))
	for i := 0; i < 3; i++ {
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		if err := c.Wait(ctx, 1); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("wait for nothing: %v", err)
		}
		cancel()
	}
	// Waiters with different targets, behind targets nobody waits for any more.
	errs := make(chan error, 4)
	for i := 4; i > 0; i-- {
		go func() { errs <- c.Wait(soon(t), uint64(i)) }()
	}
	for i := 1; i <= 4; i++ {
		r.sendImm(t, 3, 1)
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	var n Counter
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := n.Wait(ctx, 1); !errors.Is(err, context.Canceled) {
		t.Fatalf("wait with a cancelled context: %v", err)
	}
}
