package loopback

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"moerail/transport"
)

// site is one process with one domain and one region.
type site struct {
	t      *testing.T
	proc   *Process
	d      *Domain
	mem    transport.Memory
	region transport.Region
	peer   transport.Peer
	remote transport.Remote
	got    []transport.Completion
}

const siteBytes = 1 << 20

func newSite(t *testing.T, f *Fabric, name, host string) *site {
	t.Helper()
	s := &site{t: t, proc: f.Process(name, host)}
	d, err := s.proc.Open("lo0", transport.DomainConfig{})
	if err != nil {
		t.Fatal(err)
	}
	s.d = d.(*Domain)
	if s.mem, err = f.Alloc(siteBytes); err != nil {
		t.Fatal(err)
	}
	if s.region, err = d.Register(s.mem, transport.AccessAll); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close(); f.Free(s.mem) })
	return s
}

func (s *site) knows(o *site) {
	s.t.Helper()
	var err error
	if s.peer, err = s.d.AddPeer(o.d.Addr()); err != nil {
		s.t.Fatal(err)
	}
	if s.remote, err = s.d.Import(s.peer, o.region.RemoteKey(), o.region.Size()); err != nil {
		s.t.Fatal(err)
	}
}

func pair(t *testing.T, cfg Config) (f *Fabric, a, b *site) {
	t.Helper()
	f, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	a, b = newSite(t, f, "a", "host"), newSite(t, f, "b", "host")
	a.knows(b)
	b.knows(a)
	return f, a, b
}

func (s *site) write(n uint64, imm transport.Imm) transport.WorkRequest {
	return transport.WorkRequest{Op: transport.OpWriteImm, Peer: s.peer, Local: s.region.LKey(), Remote: s.remote, Len: n, Imm: imm, ID: transport.WRID(imm)}
}

func (s *site) post(wrs ...transport.WorkRequest) {
	s.t.Helper()
	if n, err := s.d.Post(wrs); n != len(wrs) || err != nil {
		s.t.Fatalf("posted %d of %d: %v", n, len(wrs), err)
	}
}

func (s *site) poll() {
	s.t.Helper()
	var out [64]transport.Completion
	n, err := s.d.Poll(out[:])
	if err != nil {
		s.t.Fatal(err)
	}
	s.got = append(s.got, out[:n]...)
}

// take returns what polling brings next, which must come within some polls.
func (s *site) take() transport.Completion {
	s.t.Helper()
	for range 1000 {
		if len(s.got) > 0 {
			c := s.got[0]
			s.got = s.got[1:]
			return c
		}
		s.poll()
	}
	s.t.Fatal("nothing came")
	return transport.Completion{}
}

func (s *site) quiet() {
	s.t.Helper()
	for range 50 {
		s.poll()
	}
	if len(s.got) > 0 {
		s.t.Fatalf("came too early: %+v", s.got)
	}
}

func statusAfter(t *testing.T, a *site) transport.Status {
	t.Helper()
	a.post(a.write(8, 1))
	return a.take().Status
}

func TestOrderDependsOnTheSeedAlone(t *testing.T) {
	const n = 40
	run := func(seed uint64) []transport.Imm {
		_, a, b := pair(t, Config{Clock: new(VirtualClock), Faults: &Faults{Seed: seed, Reorder: true, PacketBytes: 3}})
		for i := range n {
			a.post(a.write(8, transport.Imm(i)))
		}
		var order []transport.Imm
		for len(order) < n {
			order = append(order, b.take().Imm)
		}
		return order
	}
	one, again, two := run(1), run(1), run(2)
	if !slices.Equal(one, again) {
		t.Errorf("seed 1 gave %v, then %v", one, again)
	}
	if slices.Equal(one, two) {
		t.Error("seeds 1 and 2 give the same order")
	}
	if slices.IsSorted(one) {
		t.Error("nothing was reordered")
	}
}

func TestDelaysArePaidOnTheClock(t *testing.T) {
	clock := new(VirtualClock)
	slow := func(from, to *Process) time.Duration {
		if from.name == "b" {
			return time.Hour
		}
		return 0
	}
	_, a, b := pair(t, Config{Clock: clock, Faults: &Faults{DelayMin: time.Second, DelayMax: time.Second, PairDelay: slow}})
	a.post(a.write(8, 1))
	b.post(b.write(8, 2))
	a.quiet()
	b.quiet()
	clock.Advance(time.Second - 1)
	b.quiet()
	clock.Advance(1) // the payload lands
	b.quiet()
	clock.Advance(time.Second) // its immediate comes
	if c := b.take(); c.Imm != 1 || c.Op != transport.OpImm {
		t.Fatalf("%+v", c)
	}
	a.got = nil
	a.take()
	a.quiet()
	clock.Advance(2*time.Hour + 2*time.Second)
	for range 10 {
		b.poll()
	}
	clock.Advance(2*time.Hour + 2*time.Second)
	if c := a.take(); c.Imm != 2 {
		t.Fatalf("%+v", c)
	}
}

func TestLocalCompletionBeforeAndAfterVisibility(t *testing.T) {
	for mode, early := range map[CompletionMode]bool{CompleteInline: true, CompleteEarly: false, CompleteLate: false} {
		clock := new(VirtualClock)
		_, a, b := pair(t, Config{Clock: clock, Faults: &Faults{DelayMin: time.Second, DelayMax: time.Second, Completion: mode}})
		a.mem.Host[0] = 7
		a.post(a.write(1, 1))
		if early {
			if c := a.take(); c.Status != transport.StatusOK || b.mem.Host[0] != 0 {
				t.Fatalf("mode %d: %+v, target %d", mode, c, b.mem.Host[0])
			}
			a.mem.Host[0] = 8 // ours again; the fabric took the payload
		} else {
			a.quiet()
		}
		clock.Advance(time.Second)
		b.quiet()
		if b.mem.Host[0] != 7 {
			t.Fatalf("mode %d: landed %d, want 7", mode, b.mem.Host[0])
		}
		if !early && mode == CompleteLate {
			a.quiet() // landed, but the news is a second away
			clock.Advance(time.Second)
		}
		if !early {
			if c := a.take(); c.Op != transport.OpWriteImm || c.Status != transport.StatusOK {
				t.Fatalf("mode %d: %+v", mode, c)
			}
		}
	}
}

func TestPauseHoldsBothDirections(t *testing.T) {
	clock := new(VirtualClock)
	_, a, b := pair(t, Config{Clock: clock, Faults: &Faults{}})
	b.proc.Pause(50 * time.Millisecond)
	a.post(a.write(8, 1))
	b.post(b.write(8, 2))
	a.quiet()
	b.quiet()
	clock.Advance(50 * time.Millisecond)
	if c := b.take(); c.Imm != 1 && c.ID != 2 {
		t.Fatalf("%+v", c)
	}
}

func TestOneImmediateReceiveStallsTheRest(t *testing.T) {
	const burst = 64
	_, a, b := pair(t, Config{Clock: new(VirtualClock), Faults: &Faults{ImmReceives: 1}})
	for i := range burst {
		a.post(a.write(8, transport.Imm(i)))
	}
	for range 10 { // only the sender polls: one immediate gets through
		a.poll()
	}
	if got := b.d.arrivals.reserved.Load(); got != 1 {
		t.Fatalf("%d immediates at the target, it has 1 receive", got)
	}
	if got := b.d.Stats().ReceiverStall; got != burst-1 {
		t.Errorf("%d stalls counted, want %d", got, burst-1)
	}
	seen := make(map[transport.Imm]bool)
	for range burst {
		seen[b.take().Imm] = true
	}
	if len(seen) != burst {
		t.Errorf("%d different immediates of %d", len(seen), burst)
	}
	if got := b.d.Stats().ReceiverStall; got != burst-1 {
		t.Errorf("stalls counted again while they waited: %d", got)
	}
}

func TestAFullTargetIsAgainWithoutFaults(t *testing.T) {
	_, a, b := pair(t, Config{MaxCQ: 2})
	wrs := []transport.WorkRequest{a.write(8, 1), a.write(8, 2), a.write(8, 3)}
	copy(a.mem.Host, "newvalue")
	a.mem.Host[100] = 9
	wrs[2].LocalOff, wrs[2].RemoteOff, wrs[2].Len = 100, 100, 1
	if n, err := a.d.Post(wrs); n != 2 || err != transport.ErrAgain {
		t.Fatalf("took %d, %v; want 2 and ErrAgain", n, err)
	}
	if b.mem.Host[100] != 0 {
		t.Error("a write that was not taken had an effect")
	}
	if s, r := a.d.Stats(), b.d.Stats(); s.Again != 1 || s.Messages != 2 || r.ReceiverStall != 1 {
		t.Errorf("counted %+v and %+v", s, r)
	}
	b.take()
	b.take()
	a.post(wrs[2])
	if c := b.take(); c.Imm != 3 || b.mem.Host[100] != 9 {
		t.Errorf("%+v", c)
	}
}

func TestKillPartitionAndLink(t *testing.T) {
	for name, faults := range map[string]*Faults{"fast": nil, "late": {}, "early": {Completion: CompleteEarly}} {
		t.Run(name, func(t *testing.T) {
			f, a, b := pair(t, Config{Clock: new(VirtualClock), Faults: faults})
			c := newSite(t, f, "c", "host")
			c.knows(b)
			expect := func(what string, s *site, want transport.Status) {
				t.Helper()
				if got := statusAfter(t, s); got != want {
					t.Errorf("%s: %v, want %v", what, got, want)
				}
				for range 5 {
					b.poll()
				}
			}
			expect("at first", a, transport.StatusOK)
			f.Partition([]*Process{a.proc}, []*Process{b.proc, c.proc})
			expect("across the cut", a, transport.StatusPeerLost)
			expect("within a side", c, transport.StatusOK)
			f.Partition()
			expect("healed", a, transport.StatusOK)
			b.proc.SetLink("lo0", false)
			expect("link down", a, transport.StatusPeerLost)
			b.proc.SetLink("lo0", true)
			expect("link up", a, transport.StatusOK)
			b.proc.SetLink("lo9", false)
			expect("another NIC's link down", a, transport.StatusOK)
			b.proc.Kill()
			b.d.Close()
			if got := statusAfter(t, a); got != transport.StatusPeerLost {
				t.Errorf("killed: %v", got)
			}
			if _, err := b.d.Post(nil); !errors.Is(err, transport.ErrClosed) {
				t.Errorf("the killed process posts: %v", err)
			}
			if _, err := b.proc.Open("lo0", transport.DomainConfig{}); !errors.Is(err, transport.ErrClosed) {
				t.Errorf("the killed process opens: %v", err)
			}
		})
	}
}

func TestFlyingPacketsMeetACut(t *testing.T) {
	clock := new(VirtualClock)
	f, a, b := pair(t, Config{Clock: clock, Faults: &Faults{DelayMin: time.Second, DelayMax: time.Second}})
	a.post(a.write(8, 1), a.write(8, 2))
	f.Partition([]*Process{a.proc}, []*Process{b.proc})
	clock.Advance(time.Second)
	for range 2 {
		if c := a.take(); c.Status != transport.StatusPeerLost || c.Bytes != 0 {
			t.Errorf("%+v", c)
		}
	}
	f.Partition()
	clock.Advance(time.Hour)
	b.quiet()
	if s := a.d.Stats(); s.Messages != 0 || s.Bytes != 0 || s.ImmsSent != 0 {
		t.Errorf("what did not arrive was counted: %+v", s)
	}
}

func TestNthRegistrationFails(t *testing.T) {
	const pieceCount = 6
	for nth := 1; nth <= pieceCount+1; nth++ {
		f, err := New(Config{MaxRegion: 4096, MaxRegions: pieceCount})
		if err != nil {
			t.Fatal(err)
		}
		p := f.Process("rank3", "")
		d, _ := p.Open("lo0", transport.DomainConfig{})
		m, _ := f.Alloc(4096*5 + 2048)
		p.FailRegistration(nth, syscall.ENOMEM)
		r, err := d.Register(m, transport.AccessAll)
		if nth > pieceCount {
			if err != nil {
				t.Fatalf("failure %d of %d pieces: %v", nth, pieceCount, err)
			}
		} else {
			if !errors.Is(err, transport.ErrRegister) || !errors.Is(err, syscall.ENOMEM) || r != nil {
				t.Fatalf("failure %d: %v, %v", nth, r, err)
			}
			for _, want := range []string{"rank3/lo0", fmt.Sprint("registration ", nth, " of 6"), fmt.Sprint(m.Size)} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the error lacks %q: %v", want, err)
				}
			}
			// Nothing of the failed one is left: there is room for all of it.
			if r, err = d.Register(m, transport.AccessAll); err != nil {
				t.Fatalf("after failure %d: %v", nth, err)
			}
		}
		if got := d.Stats().Registrations; got != pieceCount {
			t.Errorf("%d registrations counted, want %d", got, pieceCount)
		}
		small, _ := f.Alloc(10)
		if _, err := d.Register(small, transport.AccessAll); !errors.Is(err, transport.ErrRegister) {
			t.Errorf("piece %d of %d: %v", pieceCount+1, pieceCount, err)
		}
		r.Close()
		p.FailRegistration(0, 0)
		if _, err := d.Register(small, transport.AccessAll); err != nil {
			t.Errorf("after closing a region: %v", err)
		}
		d.Close()
		f.Free(m)
		f.Free(small)
	}
}

func TestTooManyPiecesForAKey(t *testing.T) {
	f, _ := New(Config{MaxRegion: 8})
	d, _ := f.Open("lo0", transport.DomainConfig{})
	defer d.Close()
	m, _ := f.Alloc(8 * (maxPieces + 1))
	defer f.Free(m)
	if _, err := d.Register(m, transport.AccessAll); !errors.Is(err, transport.ErrRegister) {
		t.Errorf("%d pieces: %v", maxPieces+1, err)
	}
	m.Host, m.Size = m.Host[:8*maxPieces], 8*maxPieces
	if r, err := d.Register(m, transport.AccessAll); err != nil || len(r.RemoteKey()) > transport.MaxKeyBytes {
		t.Errorf("%d pieces: %v", maxPieces, err)
	}
}

func TestLateWritesAreStaleAndReported(t *testing.T) {
	for _, mode := range []CompletionMode{CompleteLate, CompleteInline} {
		clock := new(VirtualClock)
		var seen []Fault
		_, a, b := pair(t, Config{Clock: clock, Faults: &Faults{DelayMin: time.Second, DelayMax: time.Second, Completion: mode},
			OnFault: func(f Fault) { seen = append(seen, f) }})
		a.mem.Host[0] = 1
		a.post(a.write(8, 5))
		b.region.Close()
		clock.Advance(time.Second)
		want := transport.StatusRemoteAccess
		if mode == CompleteInline {
			want = transport.StatusOK // said before anybody could know
		}
		if c := a.take(); c.Status != want {
			t.Errorf("mode %d: %+v, want %v", mode, c, want)
		}
		a.quiet()
		b.quiet()
		if b.mem.Host[0] != 0 {
			t.Error("a late write landed")
		}
		if s := b.d.Stats(); s.StaleWrites != 1 || s.ImmsReceived != 0 {
			t.Errorf("counted %+v", s)
		}
		if len(seen) != 1 || seen[0].Kind != FaultStale || seen[0].ID != 5 || seen[0].Len != 8 ||
			seen[0].From != a.d.String() || seen[0].To != b.d.String() {
			t.Errorf("reported %v", seen)
		}
	}
}

func TestTrapTellsAModifiedSource(t *testing.T) {
	for _, touch := range []bool{false, true} {
		clock := new(VirtualClock)
		var seen []Fault
		_, a, _ := pair(t, Config{Clock: clock, Faults: &Faults{DelayMin: time.Second, DelayMax: time.Second, TrapSource: true},
			OnFault: func(f Fault) { seen = append(seen, f) }})
		a.post(a.write(64, 1))
		a.mem.Host[64] = 1 // beside it
		if touch {
			a.mem.Host[63] = 1
		}
		clock.Advance(time.Second)
		a.quiet()
		if got := len(seen) == 1 && seen[0].Kind == FaultSourceModified; got != touch || len(seen) > 1 {
			t.Errorf("modified %v: reported %v", touch, seen)
		}
	}
}

func TestMapRemoteStaysOnItsHost(t *testing.T) {
	f, _ := New(Config{})
	a, b, c := newSite(t, f, "a", "h1"), newSite(t, f, "b", "h1"), newSite(t, f, "c", "h2")
	a.knows(b)
	if _, err := a.d.MapRemote(a.remote); err != nil {
		t.Errorf("same host: %v", err)
	}
	b.region.Close()
	if _, err := a.d.MapRemote(a.remote); !errors.Is(err, transport.ErrBadKey) {
		t.Errorf("revoked: %v", err)
	}
	a.knows(c)
	if _, err := a.d.MapRemote(a.remote); !errors.Is(err, transport.ErrUnsupported) {
		t.Errorf("another host: %v", err)
	}
}

// TestManyNICsAreCheap opens what 64 ranks with 4 NICs each open.
func TestManyNICsAreCheap(t *testing.T) {
	f, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	var ds []transport.Domain
	for rank := range 64 {
		p := f.Process(fmt.Sprint(rank), "")
		for _, nic := range f.NICs() {
			d, err := p.Open(nic.Name, transport.DomainConfig{})
			if err != nil {
				t.Fatal(err)
			}
			ds = append(ds, d)
		}
	}
	runtime.ReadMemStats(&after)
	if got, limit := after.TotalAlloc-before.TotalAlloc, uint64(len(ds))<<19; got > limit {
		t.Errorf("%d NICs take %d bytes, want at most %d", len(ds), got, limit)
	}
	t.Logf("%d bytes a NIC", (after.TotalAlloc-before.TotalAlloc)/uint64(len(ds)))
	for _, d := range ds {
		d.Close()
	}
}

// TestParkedOwnersAreRoused has both owners parked while something flies: the
// clock must rouse somebody, or nothing would ever arrive.
func TestParkedOwnersAreRoused(t *testing.T) {
	clock := new(VirtualClock)
	_, a, b := pair(t, Config{Clock: clock, Faults: &Faults{DelayMin: time.Second, DelayMax: time.Second}})
	woken := 0
	a.d.SetWake(func() { woken++ })
	b.d.SetWake(func() { woken++ })
	a.post(a.write(8, 1))
	clock.Advance(time.Second - 1)
	if woken != 0 {
		t.Error("roused before anything was due")
	}
	clock.Advance(1)
	if woken == 0 {
		t.Error("nobody was roused when the payload was due")
	}
	b.poll()
	clock.Advance(time.Second)
	woken = 0
	a.poll() // delivers the immediate
	if woken == 0 {
		t.Error("the target was not roused by the delivery")
	}
	if c := b.take(); c.Imm != 1 {
		t.Errorf("%+v", c)
	}
}

func TestConcurrentEntryIsRefused(t *testing.T) {
	_, a, b := pair(t, Config{})
	var err error
	b.d.SetWake(func() { _, err = a.d.Poll(nil) }) // runs within a's Post
	a.post(a.write(8, 1))
	if !errors.Is(err, ErrConcurrent) {
		t.Errorf("entering a domain that is entered: %v", err)
	}
}
