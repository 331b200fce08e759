package engine

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"moerail/transport"
)

// TestMain fails when goroutines of this package outlive the tests.
func TestMain(m *testing.M) {
	code := m.Run()
	if left := leaked(); code == 0 && left != "" {
		fmt.Fprintln(os.Stderr, "goroutines are left:\n"+left)
		code = 1
	}
	os.Exit(code)
}

func leaked() string {
	buf := make([]byte, 1<<20)
	for end := time.Now().Add(5 * time.Second); ; runtime.Gosched() {
		var mine []string
		for _, g := range strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
			if strings.Contains(g, "transport/engine.") && !strings.Contains(g, "engine.TestMain") {
				mine = append(mine, g)
			}
		}
		if len(mine) == 0 || time.Now().After(end) {
			return strings.Join(mine, "\n\n")
		}
	}
}

func TestConfigFaultsAreReportedTogether(t *testing.T) {
	net := newFakeNet(1)
	d := net.domain("a", 0)
	_, err := New(Config{Domains: []transport.Domain{d, nil, d}, CPU: -2, MaxEarlyImms: -1, Poll: PollPolicy{MaxPark: time.Hour}})
	if !errors.Is(err, ErrConfig) {
		t.Fatal(err)
	}
	for _, part := range []string{"Provider", "domain 1 is nil", "given twice", "CPU -2", "MaxEarlyImms -1", "MaxPark"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q is not in: %v", part, err)
		}
	}
	for _, n := range []int{0, 5} {
		if _, err := New(Config{Provider: net, Domains: make([]transport.Domain, n), CPU: -1}); !errors.Is(err, ErrConfig) {
			t.Errorf("%d domains: %v", n, err)
		}
	}
	if _, err := New(Config{Provider: net, Domains: []transport.Domain{d}, CPU: maxCPU - 1}); err == nil {
		t.Error("a CPU that this machine lacks was accepted")
	}
	if d.closed {
		t.Error("a failed New closed the caller's domain")
	}
}

func TestPinnedWorker(t *testing.T) {
	net := newFakeNet(1)
	e, err := New(Config{Provider: net, Domains: []transport.Domain{net.domain("a", 0)}, CPU: 0, Poll: PollPolicy{OSYield: true}})
	if err != nil {
		t.Skip("this process may not run on CPU 0: ", err)
	}
	defer e.Close()
	ran := false
	if err := e.Call(func(*Worker) { ran = true }); err != nil || !ran {
		t.Fatal(err, ran)
	}
}

// closeAll starts everything that can be pending, then closes in the order given.
func pendingEverything(t *testing.T, r *rig, ended *Counter) (want uint64) {
	t.Helper()
	r.net.set(func() { r.net.hold = true })
	for i, e := range r.engines {
		remote := r.importTo(t, i, 1-i)
		g := must[*PeerGroup](t)(e.AddPeerGroup(r.regions[i], []Descriptor{r.descs[1-i]}))
		if err := e.PostRecvs(128, 4, func(Message) {}); err != nil {
			t.Fatal(err)
		}
		p := must[*Peer](t)(e.AddPeer(r.engines[1-i].Addr()))
		must[*ImmCounter](t)(e.ExpectImm(9, 1000, func(err error) { ended.ended(err) }))
		must[*ImmClaim](t)(e.ClaimImms(50, 5, &immCounts{n: make([]int, 5)}))
		want++
		d := Done{Func: func(err error) { ended.ended(err) }}
		for k := 0; k < 5; k++ {
			must[Handle](t)(e.Write(WriteRequest{Local: r.regions[i], Remote: remote, Len: 1 << 15, NICs: AllNICs}, d))
			must[Handle](t)(e.Send(p, []byte("hello"), d))
			must[Handle](t)(e.Barrier(g, 1, AllNICs, d))
			must[Handle](t)(e.Read(WriteRequest{Local: r.regions[i], Remote: remote, Len: 100}, d))
			want += 4
		}
		_ = e.Call(func(w *Worker) {
			if err := w.Scatter(g, w.NewTracker(), make([]GroupOp, 20)); err != nil {
				t.Error(err)
			}
		})
	}
	return want
}

func TestCloseEndsEverythingPendingInAnyOrderAndTwice(t *testing.T) {
	for order := 0; order < 2; order++ {
		r := newRig(t, int64(order), 2, 2, 2, 1<<16)
		var ended Counter
		want := pendingEverything(t, r, &ended)
		ic := must[*ImmCounter](t)(r.engines[order].ImmCounter(77))
		waiter := make(chan error, 1)
		go func() { waiter <- ic.Wait(soon(t), 1) }()
		var wg sync.WaitGroup
		for i := 0; i < 2; i++ {
			e := r.engines[(order+i)%2]
			for k := 0; k < 3; k++ {
				wg.Add(1)
				go func() {
					defer wg.Done()
					if err := e.Close(); err != nil {
						t.Error(err)
					}
				}()
			}
			if i == 0 {
				wg.Wait()
			}
		}
		wg.Wait()
		for _, e := range r.engines {
			<-e.Drained()
		}
		if err := ended.Wait(soon(t), want); !errors.Is(err, ErrClosed) {
			t.Fatalf("ended with %v", err)
		}
		if ended.Count() != want || ended.Errors() != want {
			t.Fatalf("%d of %d ended, %d with an error", ended.Count(), want, ended.Errors())
		}
		if err := <-waiter; !errors.Is(err, ErrClosed) {
			t.Fatalf("waiter got %v", err)
		}
		checkClosed(t, r, r.engines[0])
	}
}

// checkClosed calls everything on a closed engine.
func checkClosed(t *testing.T, r *rig, e *Engine) {
	t.Helper()
	remote := &RemoteRegion{e: e, size: 100}
	g := &PeerGroup{e: e}
	_, err := e.Write(WriteRequest{Local: r.regions[0], Remote: remote, Len: 8}, Done{})
	errs := []error{err}
	add := func(err error) { errs = append(errs, err) }
	_, err = e.Barrier(g, 0, AnyNIC, Done{})
	add(err)
	_, err = e.Send(&Peer{e: e}, nil, Done{})
	add(err)
	_, _, err = e.Register(r.mems[0], transport.AccessAll)
	add(err)
	_, err = e.AddPeerGroup(r.regions[0], nil)
	add(err)
	_, err = e.Import(r.descs[1])
	add(err)
	_, err = e.AddPeer(r.engines[1].Addr())
	add(err)
	_, err = e.ImmCounter(1)
	add(err)
	_, err = e.ExpectImm(1, 1, func(error) {})
	add(err)
	_, err = e.ClaimImms(1, 1, &immCounts{})
	add(err)
	add(e.PostRecvs(10, 1, func(Message) {}))
	add(e.Attach(&countingPoller{}))
	add(e.Call(func(*Worker) { t.Error("ran") }))
	for i, err := range errs {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("call %d on a closed engine: %v", i, err)
		}
	}
	if err := errors.Join(e.Detach(&countingPoller{}), r.regions[0].Close(), e.Close()); err != nil {
		t.Error(err)
	}
	e.Wake()
	_ = e.Stats()
	_ = e.Addr()
}

func TestCloseWhileCallsComeFromEverywhere(t *testing.T) {
	for seed := int64(0); seed < 6; seed++ {
		r := newRig(t, seed, 2, 2, 4, 1<<14)
		e := r.engines[0]
		remote := r.importTo(t, 0, 1)
		var submitted, ended atomic.Int64
		var wg sync.WaitGroup
		for k := 0; k < 4; k++ {
			wg.Add(1)
			go func() {
				defer wg.Done()
				for {
					_, err := e.Write(WriteRequest{Local: r.regions[0], Remote: remote, Len: 64, NICs: AllNICs}, Done{Func: func(err error) {
						ended.Add(1)
						if err != nil && !errors.Is(err, ErrClosed) {
							t.Error(err)
						}
					}})
					if errors.Is(err, ErrClosed) {
						return
					}
					submitted.Add(1)
					if k == 0 {
						if _, err := e.ImmCounter(transport.Imm(k)); err != nil && !errors.Is(err, ErrClosed) {
							t.Error(err)
						}
					}
				}
			}()
		}
		eventually(t, "traffic", func() bool { return ended.Load() > 20 })
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		eventually(t, "callbacks", func() bool { return ended.Load() == submitted.Load() })
	}
}

func TestCloseFromACallback(t *testing.T) {
	r := newRig(t, 1, 1, 1, 0, 64)
	e := r.engines[0]
	remote := must[*RemoteRegion](t)(e.Import(r.descs[0]))
	closed := make(chan error, 1)
	must[Handle](t)(e.Write(WriteRequest{Local: r.regions[0], Remote: remote, Len: 8, NoImm: true}, Done{Func: func(error) { closed <- e.Close() }}))
	select {
	case err := <-closed:
		if err != nil {
			t.Fatal(err)
		}
	case <-soon(t).Done():
		t.Fatal("Close hangs in a callback")
	}
	<-e.Drained()
}

func TestTenThousandWritesBothWaysThroughQueuesOfTwo(t *testing.T) {
	const n = 10000
	r := newRig(t, 8, 2, 2, 2, 4096)
	var ended Counter
	var ics [2]*ImmCounter
	var remotes [2]*RemoteRegion
	for i, e := range r.engines {
		ics[i] = must[*ImmCounter](t)(e.ImmCounter(5))
		remotes[i] = r.importTo(t, i, 1-i)
	}
	// One thread submits both ways and polls nothing itself.
	for k := 0; k < n; k++ {
		for i, e := range r.engines {
			must[Handle](t)(e.Write(WriteRequest{Local: r.regions[i], LocalOff: uint64(k % 4000), Remote: remotes[i], RemoteOff: uint64(k % 4000), Len: 16, Imm: 5}, Done{Counter: &ended}))
		}
	}
	if err := errors.Join(ended.Wait(soon(t), 2*n), ics[0].Wait(soon(t), n), ics[1].Wait(soon(t), n)); err != nil {
		t.Fatal(err)
	}
}

func TestCallbacksMayCallTheEngine(t *testing.T) {
	const n, chains = 500, 40
	r := newRig(t, 8, 2, 1, 2, 4096)
	e := r.engines[0]
	remote := r.importTo(t, 0, 1)
	var ended Counter
	for c := 0; c < chains; c++ {
		left := n
		var step func(error)
		step = func(err error) {
			if err != nil {
				t.Error(err)
			}
			ended.ended(nil)
			if left--; left == 0 {
				return
			}
			if left%100 == 0 { // a call that waits for the worker
				if err := e.Call(func(*Worker) {}); err != nil {
					t.Error(err)
				}
			}
			if _, err := e.Write(WriteRequest{Local: r.regions[0], Remote: remote, Len: 16, NoImm: true}, Done{Func: step}); err != nil {
				t.Error(err)
			}
		}
		must[Handle](t)(e.Write(WriteRequest{Local: r.regions[0], Remote: remote, Len: 16, NoImm: true}, Done{Func: step}))
	}
	if err := ended.Wait(soon(t), n*chains); err != nil {
		t.Fatal(err)
	}
}

type countingPoller struct {
	n       atomic.Int64
	sleeps  bool
	running atomic.Int32
}

func (p *countingPoller) Poll(*Worker) bool {
	p.running.Add(1)
	p.n.Add(1)
	p.running.Add(-1)
	return false
}
func (p *countingPoller) MaySleep() bool { return p.sleeps }

func TestAttachAndDetach(t *testing.T) {
	r := newRig(t, 1, 1, 1, 0, 64)
	e := r.engines[0]
	p := &countingPoller{}
	if err := e.Attach(p); err != nil {
		t.Fatal(err)
	}
	if err := e.Attach(p); !errors.Is(err, ErrArgument) {
		t.Errorf("attached twice: %v", err)
	}
	if err := e.Attach(nil); !errors.Is(err, ErrArgument) {
		t.Errorf("nil: %v", err)
	}
	eventually(t, "polls", func() bool { return p.n.Load() > 1000 }) // also through timed parks
	if err := e.Detach(p); err != nil {
		t.Fatal(err)
	}
	at := p.n.Load()
	for i := 0; i < 50; i++ {
		_ = e.Call(func(*Worker) {})
	}
	if p.n.Load() != at {
		t.Fatal("polled after Detach")
	}
	if err := e.Detach(p); err != nil {
		t.Error(err)
	}
	_ = e.Attach(p)
	e.Close()
	at = p.n.Load()
	if err := e.Detach(p); err != nil || p.n.Load() != at {
		t.Errorf("detach from a closed engine: %v", err)
	}
}

func TestAnIdleWorkerParksUntilWoken(t *testing.T) {
	r := newRig(t, 1, 2, 1, 0, 64)
	e := r.engines[0]
	p := &countingPoller{sleeps: true}
	_ = e.Attach(p)
	parked := func() bool { return e.parked.Load() }
	quiet := func() { // parked for good: the poller is not called any more
		t.Helper()
		eventually(t, "a long park", func() bool {
			at := p.n.Load()
			if !parked() {
				return false
			}
			for i := 0; i < 1000; i++ {
				runtime.Gosched()
			}
			return parked() && p.n.Load() == at
		})
	}
	quiet()
	at := p.n.Load()
	e.Wake()
	eventually(t, "a turn after Wake", func() bool { return p.n.Load() > at })
	quiet()
	// A peer's immediate wakes through the domain, a command by itself.
	c := must[*ImmCounter](t)(e.ImmCounter(1))
	quiet()
	remote := must[*RemoteRegion](t)(r.engines[1].Import(r.descs[0]))
	must[Handle](t)(r.engines[1].Write(WriteRequest{Local: r.regions[1], Remote: remote, Imm: 1}, Done{}))
	if err := c.Wait(soon(t), 1); err != nil {
		t.Fatal(err)
	}
	quiet()
	if err := ending(t, func(d Done) (Handle, error) {
		return e.Write(WriteRequest{Local: r.regions[0], Remote: r.importTo(t, 0, 1), Len: 8, NoImm: true}, d)
	}); err != nil {
		t.Fatal(err)
	}
	quiet()
	if s := e.Stats(); s.Parks == 0 || s.Wakes == 0 {
		t.Errorf("parks %d, wakes %d", s.Parks, s.Wakes)
	}
}

func TestSixtyFourEnginesMakeProgress(t *testing.T) {
	const n = 64
	r := newRig(t, 1, n, 1, 8, 4096)
	ics := make([]*ImmCounter, n)
	groups := make([]*PeerGroup, n)
	for i, e := range r.engines {
		ics[i] = must[*ImmCounter](t)(e.ImmCounter(1))
		list := append([]Descriptor(nil), r.descs...)
		list[i] = Descriptor{}
		groups[i] = must[*PeerGroup](t)(e.AddPeerGroup(r.regions[i], list))
	}
	for round := uint64(1); round <= 3; round++ {
		for i, e := range r.engines {
			must[Handle](t)(e.Barrier(groups[i], 1, AllNICs, Done{}))
		}
		for _, c := range ics {
			if err := c.Wait(soon(t), round*(n-1)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// leaver detaches itself, and a second poller, from within Poll.
type leaver struct {
	n     int
	other *countingPoller
}

func (p *leaver) Poll(w *Worker) bool {
	p.n++
	w.Detach(p)
	w.Detach(p.other)
	return true
}

func TestAPollerMayDetachItselfAndOthers(t *testing.T) {
	r := newRig(t, 1, 1, 1, 0, 64)
	e := r.engines[0]
	other := &countingPoller{}
	p := &leaver{other: other}
	_ = e.Call(func(w *Worker) { w.pollers = append(w.pollers, p, other) })
	for i := 0; i < 20; i++ {
		_ = e.Call(func(*Worker) {})
	}
	_ = e.Call(func(w *Worker) {
		if p.n != 1 || len(w.pollers) != 0 {
			t.Errorf("polled %d times, %d pollers left", p.n, len(w.pollers))
		}
	})
	if other.n.Load() != 0 {
		t.Error("a poller was called after it was detached")
	}
}

func TestTrackersAreOfOneWorker(t *testing.T) {
	r := newRig(t, 1, 2, 1, 0, 64)
	g := must[*PeerGroup](t)(r.engines[1].AddPeerGroup(r.regions[1], r.descs))
	var foreign *Tracker
	_ = r.engines[0].Call(func(w *Worker) { foreign = w.NewTracker() })
	_ = r.engines[1].Call(func(w *Worker) {
		freed := w.NewTracker()
		if err := w.FreeTracker(freed); err != nil {
			t.Error(err)
		}
		for _, tr := range []*Tracker{nil, {}, foreign, freed} {
			if err := w.Scatter(g, tr, []GroupOp{{}}); !errors.Is(err, ErrForeign) {
				t.Errorf("scatter: %v", err)
			}
			if err := w.FreeTracker(tr); !errors.Is(err, ErrArgument) {
				t.Errorf("free: %v", err)
			}
		}
		if err := w.Scatter(nil, w.NewTracker(), nil); !errors.Is(err, ErrForeign) {
			t.Errorf("no group: %v", err)
		}
	})
}
