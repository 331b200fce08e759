package moe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"moerail/kernels"
	"moerail/kernels/host"
	"moerail/peergroup"
	"moerail/transport"
	"moerail/transport/engine"
	"moerail/transport/loopback"
	"moerail/transport/shm"
)

func permutations(n int) (out [][]int) {
	if n == 0 {
		return [][]int{nil}
	}
	for _, p := range permutations(n - 1) {
		for i := 0; i <= len(p); i++ {
			q := append(append(append([]int(nil), p[:i]...), n-1), p[i:]...)
			out = append(out, q)
		}
	}
	return out
}

// TestCloseInEveryOrder: EP-43. Four ranks close in every order, twice, with
// rounds under way in every phase; nobody hangs, and whoever is in a call gets an
// error that says why.
func TestCloseInEveryOrder(t *testing.T) {
	for i, order := range permutations(4) {
		w := small(t, 4, func(s *setting) {
			s.cfg.RanksPerNode, s.cfg.Deadline = []int{1, 2, 4}[i%3], 3*time.Second
			s.cfg.WindowRows = 3 * (i % 2)
			s.faulty = true // writes to ranks that are gone
			if i%2 == 1 {
				s.fabric.Faults = &loopback.Faults{Seed: uint64(i), Reorder: true, DelayMax: 50 * time.Microsecond}
			}
		})
		toks := w.ragged(8)
		w.round(0, toks)
		var users sync.WaitGroup
		for r, c := range w.cs {
			users.Go(func() { w.roundsUntilClosed(c, toks[r]) })
		}
		for _, r := range order {
			if i%3 == 0 {
				time.Sleep(100 * time.Microsecond)
			}
			for range 2 {
				if err := w.cs[r].Close(); err != nil {
					t.Fatalf("order %v: close of rank %d: %v", order, r, err)
				}
			}
			_, err := w.cs[r].Dispatch(0, Input{})
			if CodeOf(err) == "" {
				t.Fatalf("order %v: dispatch on closed rank %d: %v", order, r, err)
			}
			if st := w.cs[r].Stats(); st.Rounds == 0 {
				t.Fatalf("order %v: statistics of closed rank %d: %+v", order, r, st)
			}
			if n := w.cs[r].Outstanding(); n != 0 {
				t.Fatalf("order %v: %d operations outstanding on closed rank %d", order, n, r)
			}
		}
		users.Wait()
	}
}

// roundsUntilClosed goes on until a call fails, as all must.
func (w *world) roundsUntilClosed(c *Communicator, tk tokens) {
	out := w.nanOut(tk.n)
	for i := 0; ; i++ {
		err := c.DispatchSend(0, tk.input())
		if err == nil {
			// What a Batch views may be gone by now, so the experts do not run.
			_, err = c.DispatchRecv(0)
		}
		if err == nil {
			err = c.CombineSend(0, nil, 0)
		}
		if err == nil {
			err = c.CombineRecv(0, out, 0)
		}
		switch CodeOf(err) {
		case "":
			if err == nil {
				continue
			}
			fallthrough
		default:
			w.t.Errorf("rank %d: %v", c.Rank(), err)
		case CodeClosed, CodePeerLost, CodeTransport, CodeDeadline:
		}
		return
	}
}

// TestCloseEndsEveryWait: a call that waits for ever otherwise ends at once.
func TestCloseEndsEveryWait(t *testing.T) {
	w := small(t, 2, func(s *setting) { s.cfg.Deadline, s.cfg.Slots = time.Hour, 2 })
	c := w.cs[0]
	if err := c.DispatchSend(0, Input{}); err != nil {
		t.Fatal(err)
	}
	errs := make(chan error, 3)
	go func() { _, err := c.DispatchRecv(0); errs <- err }()
	go func() { errs <- c.Barrier(context.Background()) }()
	go func() { errs <- c.SetPlacement(context.Background(), [][]int32{{0, 1}, {2, 3}}) }()
	time.Sleep(10 * time.Millisecond)
	start := time.Now()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := <-errs; err == nil {
			t.Error("a call ended well after close")
		}
	}
	if took := time.Since(start); took > 3*time.Second {
		t.Errorf("close took %v", took)
	}
}

// TestCloseWaitsForCalls: memory stays while a call may look at it.
func TestCloseWaitsForCalls(t *testing.T) {
	w := small(t, 1, nil)
	c := w.cs[0]
	if _, err := c.enter(0, PhaseDispatchSend, phaseIdle); err != nil {
		t.Fatal(err)
	}
	closed := make(chan error, 1)
	go func() { closed <- c.Close() }()
	for c.failed() == nil {
		pause(0)
	}
	select {
	case err := <-closed:
		t.Fatalf("close returned under a call: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	c.leave()
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

// usage is what a process holds.
func usage(t *testing.T) (goroutines, fds, mappings int) {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip(err)
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Skip(err)
	}
	return runtime.NumGoroutine(), len(entries), strings.Count(string(maps), "\n")
}

// TestNothingLeaks: EP-44. A hundred lives of a communicator leave nothing behind.
func TestNothingLeaks(t *testing.T) {
	life := func(i int) {
		w := &world{t: t}
		s := randomSetting(uint64(i % 10))
		s.ranks, s.cfg.Replicas, s.cfg.Placement, s.cfg.MaxLocalExperts = 3, 0, nil, 0
		s.cfg.RanksPerNode = 1 + i%3
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			w = newWorld(t, s)
			w.round(0, w.ragged(s.cfg.MaxTokens))
		})
	}
	for i := range 10 {
		life(i)
	}
	g, fds, maps := usage(t)
	lives := 100
	if testing.Short() {
		lives = 30
	}
	for i := range lives {
		life(i)
	}
	if n := settle(g); n > g {
		t.Errorf("%d goroutines, %d before", n, g)
	}
	_, fds2, maps2 := usage(t)
	if fds2 > fds {
		t.Errorf("%d descriptors, %d before", fds2, fds)
	}
	// One mapping left behind by each life would be lives of them; the Go heap, which
	// holds the buffers too under the race detector, grows by some tens.
	if maps2 > maps+lives*3/4 {
		t.Errorf("%d mappings, %d before", maps2, maps)
	}
}

// TestLivesOnASharedEngineLeaveNothingMapped: the inboxes of same-node ranks are
// unmapped when their communicator closes, not when the engine does.
func TestLivesOnASharedEngineLeaveNothingMapped(t *testing.T) {
	const ranks, lives = 2, 40
	// Each memory of this fabric is a mapping of its own, which the kernel does not
	// merge with others.
	p, err := shm.New(shm.Config{})
	if err != nil {
		t.Fatal(err)
	}
	engines := make([]*engine.Engine, ranks)
	for r := range engines {
		d, err := p.Open(p.NICs()[0].Name, transport.DomainConfig{})
		if err != nil {
			t.Fatal(err)
		}
		if engines[r], err = engine.New(engine.Config{Provider: p, Domains: []transport.Domain{d}, CPU: -1}); err != nil {
			t.Fatal(err)
		}
		defer engines[r].Close()
	}
	groups, imms := peergroup.NewLocal(ranks), [ranks]*peergroup.ImmSpace{peergroup.NewImmSpace(), peergroup.NewImmSpace()}
	life := func() {
		cs := make([]*Communicator, ranks)
		var wg sync.WaitGroup
		for r := range ranks {
			wg.Go(func() {
				var err error
				if cs[r], err = New(t.Context(), Config{NumExperts: 4, TopK: 2, Hidden: 16, MaxTokens: 8, RanksPerNode: ranks,
					Group: groups[r], Engine: engines[r], Imms: imms[r]}); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		for r, c := range cs {
			if c == nil {
				t.FailNow()
			}
			if path := c.Paths()[1-r].Name; path != "direct" {
				t.Fatalf("rank %d reaches the other by %s: nothing is mapped, so the test says nothing", r, path)
			}
		}
		for _, c := range cs {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	for range 5 {
		life()
	}
	_, _, before := usage(t)
	for range lives {
		life()
	}
	if _, _, after := usage(t); after > before+lives/2 {
		t.Errorf("%d mappings, %d before %d lives", after, before, lives)
	}
}

// TestPeerThatDiesIsNamed: EP-36, in process.
func TestPeerThatDiesIsNamed(t *testing.T) {
	for i, node := range []int{1, 2} {
		w := small(t, 4, func(s *setting) {
			s.faulty, s.cfg.Deadline, s.cfg.RanksPerNode = true, 500*time.Millisecond, node
			s.hosts = func(r int) string { return fmt.Sprint(r / node) }
		})
		w.round(0, w.ragged(8))
		w.procs[3].Kill()
		w.each(func(r int, c *Communicator) error {
			if r == 3 {
				return nil
			}
			_, err := c.Dispatch(0, Input{})
			var re *RoundError
			if !errors.As(err, &re) || re.Code != CodePeerLost && re.Code != CodeDeadline || len(re.Ranks) != 1 || re.Ranks[0] != 3 {
				t.Errorf("case %d, rank %d: %v, want rank 3 lost", i, r, err)
			}
			return nil
		})
	}
}

// TestPeerThatDiesBeforeABarrierIsNamed: the barrier's own messages tell, long
// before its deadline.
func TestPeerThatDiesBeforeABarrierIsNamed(t *testing.T) {
	w := small(t, 4, func(s *setting) { s.faulty, s.cfg.Deadline = true, time.Minute })
	w.round(0, w.ragged(8))
	w.procs[3].Kill()
	w.each(func(r int, c *Communicator) error {
		if r == 3 {
			return nil
		}
		err := c.Barrier(t.Context())
		var re *RoundError
		if !errors.As(err, &re) || re.Code != CodePeerLost || re.Phase != PhaseBarrier || len(re.Ranks) != 1 || re.Ranks[0] != 3 {
			t.Errorf("rank %d: %v, want rank 3 lost", r, err)
		}
		return nil
	})
}

// closing is a device whose stream is closed, by the Close of its communicator,
// between the launch of a stage and Sync.
type closing struct {
	kernels.Device
	c      *Communicator
	ended  chan struct{} // the stream is closed
	closed chan error    // Close has returned
}

func (d *closing) NewStream(bump func()) (kernels.Stream, error) {
	s, err := d.Device.NewStream(bump)
	return &closingStream{s, d}, err
}

type closingStream struct {
	kernels.Stream
	d *closing
}

func (s *closingStream) Sync() {
	go func() { s.d.closed <- s.d.c.Close() }()
	<-s.d.ended
	s.Stream.Sync()
}

func (s *closingStream) Close() error {
	defer close(s.d.ended)
	return s.Stream.Close()
}

// TestADroppedStageMakesNoBatch: a stage that Close dropped leaves no fault of its
// own, and what it would have written is of an earlier round, or nothing.
func TestADroppedStageMakesNoBatch(t *testing.T) {
	passive, err := host.NewDevice(host.Config{Passive: true})
	if err != nil {
		t.Fatal(err)
	}
	d := &closing{Device: passive, ended: make(chan struct{}), closed: make(chan error, 1)}
	w := small(t, 1, func(s *setting) { s.cfg.Device = d })
	d.c = w.cs[0]
	toks := w.draw(2, drawIDs(w.rng, 2, 2, 2))
	b, err := d.c.Dispatch(0, toks.input())
	if wantCode(t, err, CodeClosed, PhaseClose); b != nil {
		t.Error("a batch of a closed communicator")
	}
	if err := <-d.closed; err != nil {
		t.Error(err)
	}
}
