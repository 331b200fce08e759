package shm

import (
	"bytes"
	"errors"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"moerail/internal/mem"
	"moerail/transport"
)

func mappings(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Skip("no /proc:", err)
	}
	return bytes.Count(b, []byte("moerail-"))
}

func TestNothingIsLeftBehind(t *testing.T) {
	cycle := func() {
		p, _ := New(Config{})
		var sides [2]side
		for i := range sides {
			s := &sides[i]
			dom, err := p.Open("shm0", transport.DomainConfig{})
			if err != nil {
				t.Fatal(err)
			}
			s.t, s.d = t, dom.(*domain)
			s.d.SetWake(func() {})
			if s.mem, err = p.Alloc(10000); err != nil {
				t.Fatal(err)
			}
			if s.reg, err = dom.Register(s.mem, transport.AccessAll); err != nil {
				t.Fatal(err)
			}
		}
		a, b := &sides[0], &sides[1]
		a.meet(b)
		b.meet(a)
		if _, err := a.d.Import(a.peer, b.reg.RemoteKey(), 10000); err != nil {
			t.Fatal(err)
		}
		a.post(a.wr(transport.OpWriteImm, 0, 0, 8))
		a.post(a.wr(transport.OpSend, 0, 0, 8))
		// One order of closing, then the other, with everything still there.
		for _, s := range []*side{b, a} {
			if err := s.d.Close(); err != nil {
				t.Fatal(err)
			}
			if err := s.d.Close(); err != nil {
				t.Fatal("second close:", err)
			}
			if err := s.reg.Close(); err != nil {
				t.Fatal("region after its domain:", err)
			}
			if err := p.Free(s.mem); err != nil {
				t.Fatal(err)
			}
		}
	}
	cycle()
	fds, maps, routines := openFDs(t), mappings(t), runtime.NumGoroutine()
	for range 100 {
		cycle()
	}
	if n := openFDs(t); n > fds {
		t.Errorf("%d descriptors, %d before", n, fds)
	}
	if n := mappings(t); n > maps {
		t.Errorf("%d mappings, %d before", n, maps)
	}
	until(t, "end of goroutines", func() bool { return runtime.NumGoroutine() <= routines })
}

func TestPeersComeAndGo(t *testing.T) {
	a, b := newSide(t, transport.DomainConfig{}, 4096), newSide(t, transport.DomainConfig{}, 4096)
	a.meet(b)
	fds, maps := openFDs(t), mappings(t)
	for i := range 50 {
		if again, err := a.d.AddPeer(b.d.Addr()); err != nil || again != a.peer {
			t.Fatalf("adding the same address: %d, %v, want %d", again, err, a.peer)
		}
		a.post(a.wr(transport.OpWriteImm, 0, 0, 8))
		a.next()
		old, oldRemote := a.peer, a.remote
		if err := a.d.RemovePeer(a.peer); err != nil {
			t.Fatal(err)
		}
		wr := a.wr(transport.OpWrite, 0, 0, 8)
		if n, err := a.d.Post([]transport.WorkRequest{wr}); n != 0 || !errors.Is(err, transport.ErrBadHandle) {
			t.Fatalf("post to a removed peer: %d, %v", n, err)
		}
		a.meet(b)
		if a.peer == old || a.remote == oldRemote {
			t.Fatal("a handle came back")
		}
		// What the former connection left is delivered.
		got := 0
		until(t, "arrival", func() bool { got += len(b.poll()); return got == 1 })
		until(t, "end of the old lane", func() bool { b.poll(); return b.d.occupied[0].Load()&(b.d.occupied[0].Load()-1) == 0 })
		_ = i
	}
	until(t, "descriptors back", func() bool { return openFDs(t) <= fds })
	if n := mappings(t); n > maps {
		t.Errorf("%d mappings, %d before", n, maps)
	}
}

func TestCloseWhileOwnersWork(t *testing.T) {
	for range 20 {
		a, b := newPair(t, transport.DomainConfig{}, 1<<20)
		var wg sync.WaitGroup
		var turns atomic.Int64
		for _, s := range []*side{a, b} {
			wr := s.wr(transport.OpWriteImm, 0, 0, 200000)
			send := s.wr(transport.OpSend, 0, 0, 300)
			rr := []transport.RecvRequest{{Local: s.reg.LKey(), Off: 1 << 19, Len: 300}}
			wrs := []transport.WorkRequest{wr, send}
			d := s.d
			wg.Add(1)
			go func() {
				defer wg.Done()
				out := make([]transport.Completion, 8)
				for {
					_, err1 := d.Post(wrs)
					_, err2 := d.PostRecv(rr)
					_, err3 := d.Poll(out)
					turns.Add(1)
					for _, err := range []error{err1, err2, err3} {
						if errors.Is(err, transport.ErrClosed) {
							return
						}
						if err != nil && err != transport.ErrAgain {
							t.Error(err)
							return
						}
					}
					runtime.Gosched()
				}
			}()
		}
		until(t, "work", func() bool { return turns.Load() > 20 })
		for _, s := range []*side{b, a} {
			if err := s.d.Close(); err != nil {
				t.Error(err)
			}
		}
		wg.Wait()
	}
}

// After a region's Close returned, no byte of it changes, whatever senders do.
func TestRegionCloseWaitsForWriters(t *testing.T) {
	a, b := newPair(t, transport.DomainConfig{}, 4<<20)
	for i := range a.mem.Host {
		a.mem.Host[i] = 0xee
	}
	var stop atomic.Bool
	var ok, refused atomic.Int64
	done := make(chan struct{})
	wr := []transport.WorkRequest{a.wr(transport.OpWrite, 0, 0, 4<<20)}
	go func() {
		defer close(done)
		out := make([]transport.Completion, 4)
		for !stop.Load() {
			a.d.Post(wr)
			n, _ := a.d.Poll(out)
			for _, c := range out[:n] {
				if c.Status == transport.StatusOK {
					ok.Add(1)
				} else {
					refused.Add(1)
				}
			}
			runtime.Gosched()
		}
	}()
	until(t, "a write", func() bool { return ok.Load() > 2 })
	if err := b.reg.Close(); err != nil {
		t.Fatal(err)
	}
	clear(b.mem.Host)
	until(t, "refusals", func() bool { return refused.Load() > 10 })
	stop.Store(true)
	<-done
	for i, x := range b.mem.Host {
		if x != 0 {
			t.Fatalf("byte %d was written after the close", i)
		}
	}
}

// A sender that stops in the middle of a write is reported, not waited for.
func TestRegionCloseNamesAStuckSender(t *testing.T) {
	a := newSide(t, transport.DomainConfig{}, 4096)
	b := newSideOf(t, Config{PeerTimeout: 50 * time.Millisecond}, transport.DomainConfig{}, 4096)
	a.meet(b)
	a.d.enter()
	err := b.reg.Close()
	a.d.leave()
	if err == nil || !strings.Contains(err.Error(), "middle of a write") {
		t.Fatal(err)
	}
}

func TestRegisterRefusals(t *testing.T) {
	s := newSide(t, transport.DomainConfig{}, 8192)
	private, err := mem.Alloc(4096)
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Free(private)
	loose := unsealed(t)
	with := func(m transport.Memory, change func(*transport.Memory)) transport.Memory {
		change(&m)
		return m
	}
	for name, c := range map[string]struct {
		m      transport.Memory
		access transport.Access
		says   string
	}{
		"no descriptor":   {private, transport.AccessRemoteWrite, "Provider.Alloc"},
		"unsealed":        {with(s.mem, func(m *transport.Memory) { m.FD = loose }), transport.AccessAll, "not sealed"},
		"bad descriptor":  {with(s.mem, func(m *transport.Memory) { m.FD = 1 << 20 }), transport.AccessAll, "bad file"},
		"device":          {transport.Memory{Kind: transport.MemoryDevice, Size: 10, FD: -1}, transport.AccessLocal, "only host"},
		"empty":           {transport.Memory{FD: -1}, transport.AccessLocal, "0 bytes"},
		"wrong size":      {with(s.mem, func(m *transport.Memory) { m.Size++ }), transport.AccessLocal, "8192 bytes"},
		"beyond object":   {with(s.mem, func(m *transport.Memory) { m.FDOffset = 4096 }), transport.AccessAll, "outside"},
		"wrapping offset": {with(s.mem, func(m *transport.Memory) { m.FDOffset = ^uint64(0) - 7 }), transport.AccessAll, "outside"},
		"odd atomics": {with(s.mem, func(m *transport.Memory) { m.Host, m.Size, m.FDOffset = m.Host[4:100], 96, 4 }),
			transport.AccessRemoteAtomic, "multiple of 8"},
		"unknown access": {s.mem, 0x40, "access bits"},
	} {
		_, err := s.d.Register(c.m, c.access)
		if !errors.Is(err, transport.ErrRegister) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want ErrRegister with %q", name, err, c.says)
		}
	}
	if r, err := s.d.Register(private, transport.AccessLocal); err != nil {
		t.Error("local use of private memory:", err)
	} else if _, err := s.d.Import(0, r.RemoteKey(), 4096); err == nil {
		t.Error("imported with a foreign peer")
	}
}

// A region need not start at a page, nor be written as well as read.
func TestPartOfAnObjectReadOnly(t *testing.T) {
	a, b := newPair(t, transport.DomainConfig{}, 16384)
	part := b.mem
	part.Host, part.FDOffset, part.Size = b.mem.Host[5000:6000], 5000, 1000
	r, err := b.d.Register(part, transport.AccessRemoteRead)
	if err != nil {
		t.Fatal(err)
	}
	if a.remote, err = a.d.Import(a.peer, r.RemoteKey(), 1000); err != nil {
		t.Fatal(err)
	}
	fill(part.Host, 3)
	a.post(a.wr(transport.OpRead, 0, 0, 1000))
	a.next()
	if !bytes.Equal(a.mem.Host[:1000], part.Host) {
		t.Error("read differs")
	}
	for _, op := range []transport.Opcode{transport.OpWrite, transport.OpFetchAdd} {
		a.post(a.wr(op, 0, 8, 8))
		a.want(transport.Completion{ID: 7, Op: op, Peer: a.peer, Status: transport.StatusRemoteAccess})
	}
	m, err := a.d.MapRemote(a.remote)
	if err != nil || m.Size != 1000 || !bytes.Equal(m.Host, part.Host) {
		t.Errorf("mapped %d bytes, %v", m.Size, err)
	}
	wr := a.wr(transport.OpRead, 0, 1, 1000)
	if n, err := a.d.Post([]transport.WorkRequest{wr}); n != 0 || !errors.Is(err, transport.ErrOutOfRange) {
		t.Errorf("one byte beyond: %d, %v", n, err)
	}
	if err := a.d.Release(a.remote); err != nil {
		t.Error(err)
	}
	if err := a.d.Release(a.remote); !errors.Is(err, transport.ErrBadHandle) {
		t.Error("second release:", err)
	}
}

func TestKeysAreChecked(t *testing.T) {
	a, b := newPair(t, transport.DomainConfig{}, 4096)
	c := newSide(t, transport.DomainConfig{}, 4096)
	forged := append(transport.RemoteKey(nil), b.reg.RemoteKey()...)
	forged[20] ^= 1 // nonce
	local, err := b.d.Register(b.mem, transport.AccessLocal)
	if err != nil {
		t.Fatal(err)
	}
	for name, k := range map[string]transport.RemoteKey{
		"of another domain": c.reg.RemoteKey(), "forged": forged, "empty": nil, "short": forged[:39],
	} {
		if _, err := a.d.Import(a.peer, k, 4096); !errors.Is(err, transport.ErrBadKey) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if a.remote, err = a.d.Import(a.peer, local.RemoteKey(), 4096); err != nil {
		t.Error("local region:", err)
	}
	if _, err := a.d.MapRemote(a.remote); !errors.Is(err, transport.ErrBadKey) {
		t.Error("mapping a local region:", err)
	}
	lift := append(transport.RemoteKey(nil), local.RemoteKey()...)
	lift[6] = byte(transport.AccessAll)
	if _, err := a.d.Import(a.peer, lift, 4096); !errors.Is(err, transport.ErrBadKey) {
		t.Error("local region with a key that says more:", err)
	}
	if _, err := a.d.Import(a.peer, b.reg.RemoteKey(), 4095); !errors.Is(err, transport.ErrBadKey) {
		t.Error("another size:", err)
	}
}

func TestTemplatesGoWithTheirHandles(t *testing.T) {
	a, b := newPair(t, transport.DomainConfig{}, 4096)
	extra, err := a.d.Register(a.mem, transport.AccessLocal)
	if err != nil {
		t.Fatal(err)
	}
	make1 := func(l transport.LKey, r transport.Remote) transport.Template {
		t.Helper()
		h, err := a.d.NewTemplate([]transport.TemplateEntry{{Peer: a.peer, Local: l, Remote: r}, {Peer: a.peer, Local: transport.NoKey, Remote: transport.NoRemote}})
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	h := make1(a.reg.LKey(), a.remote)
	a.mem.Host[5] = 99
	n, err := a.d.PostScatter(h, 11, []transport.ScatterOp{
		{Entry: 0, Imm: 1, LocalOff: 5, RemoteOff: 9, Len: 1}, {Entry: 1, Imm: 2}, {Entry: 0, NoImm: true, LocalOff: 5, RemoteOff: 10, Len: 1}})
	if n != 3 || err != nil || b.mem.Host[9] != 99 || b.mem.Host[10] != 99 || b.mem.Host[11] != 0 {
		t.Fatal(n, err, b.mem.Host[8:12])
	}
	for i, c := range a.poll() {
		if c.ID != 11 || c.Status != transport.StatusOK || (c.Op == transport.OpWrite) != (i == 2) {
			t.Errorf("completion %d: %+v", i, c)
		}
	}
	if cs := b.poll(); len(cs) != 2 || cs[0].Imm != 1 || cs[1].Imm != 2 {
		t.Errorf("arrivals %+v", cs)
	}
	for name, op := range map[string]transport.ScatterOp{
		"entry -1": {Entry: -1}, "entry 2": {Entry: 2}, "no memory": {Entry: 1, Len: 1},
		"local range": {LocalOff: 4096, Len: 1}, "remote range": {RemoteOff: ^uint64(0), Len: 1},
	} {
		if n, err := a.d.PostScatter(h, 1, []transport.ScatterOp{{Entry: 1}, op}); n != 1 || err == nil {
			t.Errorf("%s: %d, %v", name, n, err)
		}
	}
	a.poll()
	refused := func(why string, h transport.Template) {
		t.Helper()
		if n, err := a.d.PostScatter(h, 1, []transport.ScatterOp{{Entry: 1}}); n != 0 || !errors.Is(err, transport.ErrBadHandle) {
			t.Errorf("%s: %d, %v", why, n, err)
		}
	}
	closing := make1(extra.LKey(), a.remote)
	extra.Close()
	refused("a region closed", closing)
	a.d.FreeTemplate(h)
	refused("freed", h)
	h = make1(a.reg.LKey(), a.remote)
	a.d.Release(a.remote)
	refused("a remote released", h)
	h = make1(a.reg.LKey(), transport.NoRemote)
	a.d.RemovePeer(a.peer)
	refused("a peer removed", h)
}

func TestHandlesOfAnotherDomainAreRefused(t *testing.T) {
	a, b := newPair(t, transport.DomainConfig{}, 4096)
	good := a.wr(transport.OpWrite, 0, 0, 8)
	for name, change := range map[string]func(*transport.WorkRequest){
		"peer":      func(w *transport.WorkRequest) { w.Peer = b.peer },
		"local":     func(w *transport.WorkRequest) { w.Local = b.reg.LKey() },
		"remote":    func(w *transport.WorkRequest) { w.Remote = b.remote },
		"no peer":   func(w *transport.WorkRequest) { w.Peer = transport.NoPeer },
		"no key":    func(w *transport.WorkRequest) { w.Local = transport.NoKey },
		"no remote": func(w *transport.WorkRequest) { w.Remote = transport.NoRemote },
	} {
		wr := good
		change(&wr)
		if n, err := a.d.Post([]transport.WorkRequest{good, wr, good}); n != 1 || !errors.Is(err, transport.ErrBadHandle) {
			t.Errorf("%s: %d, %v", name, n, err)
		}
		a.poll()
	}
}

func TestRemovedPeerFlushesWhatWaits(t *testing.T) {
	a, _ := newPair(t, transport.DomainConfig{MaxSend: 4096}, 4096)
	wrs := make([]transport.WorkRequest, immSlots+3)
	for i := range wrs {
		wrs[i] = transport.WorkRequest{ID: transport.WRID(i), Op: transport.OpWriteImm, Peer: a.peer, Local: transport.NoKey, Remote: transport.NoRemote}
	}
	if n, err := a.d.Post(wrs); n != len(wrs) {
		t.Fatal(n, err)
	}
	if err := a.d.RemovePeer(a.peer); err != nil {
		t.Fatal(err)
	}
	seen := 0
	for cs := a.poll(); len(cs) > 0; cs = a.poll() {
		for _, c := range cs {
			want := transport.StatusOK
			if c.ID >= immSlots {
				want = transport.StatusFlushed
			}
			if c.Status != want {
				t.Fatalf("%+v, want %v", c, want)
			}
			seen++
		}
	}
	if seen != len(wrs) || a.d.parked.used != 0 {
		t.Fatalf("%d completions of %d, %d still parked", seen, len(wrs), a.d.parked.used)
	}
}

func TestReceiveIntoClosedRegionIsFlushed(t *testing.T) {
	a, b := newPair(t, transport.DomainConfig{}, 4096)
	gone, err := b.d.Register(b.mem, transport.AccessLocal)
	if err != nil {
		t.Fatal(err)
	}
	b.d.PostRecv([]transport.RecvRequest{{ID: 1, Local: gone.LKey(), Len: 64}, {ID: 2, Local: b.reg.LKey(), Len: 64}})
	gone.Close()
	a.post(a.wr(transport.OpSend, 0, 0, 8))
	if cs := b.poll(); len(cs) != 2 || cs[0].ID != 1 || cs[0].Status != transport.StatusFlushed || cs[1].ID != 2 || cs[1].Status != transport.StatusOK {
		t.Fatalf("%+v", cs)
	}
}

func TestSteadyStateDoesNotAllocate(t *testing.T) {
	a, b := newPair(t, transport.DomainConfig{}, 1<<20)
	tmpl, err := a.d.NewTemplate([]transport.TemplateEntry{{Peer: a.peer, Local: a.reg.LKey(), Remote: a.remote}})
	if err != nil {
		t.Fatal(err)
	}
	wrs := []transport.WorkRequest{a.wr(transport.OpWrite, 0, 0, 100), a.wr(transport.OpWriteImm, 0, 0, 70000), a.wr(transport.OpRead, 0, 0, 9),
		a.wr(transport.OpFetchAdd, 0, 0, 8), a.wr(transport.OpCompareSwap, 0, 0, 8), a.wr(transport.OpSend, 0, 0, 1000)}
	ops := []transport.ScatterOp{{Len: 8}, {Len: 100, NoImm: true}}
	rrs := []transport.RecvRequest{{Local: b.reg.LKey(), Len: 2000}}
	burst := make([]transport.WorkRequest, immSlots+1)
	for i := range burst {
		burst[i] = wrs[1]
		burst[i].Len = 0
	}
	out := make([]transport.Completion, 2*immSlots)
	if n := testing.AllocsPerRun(100, func() {
		b.d.PostRecv(rrs)
		a.d.Post(wrs)
		a.d.PostScatter(tmpl, 1, ops)
		a.d.Poll(out)
		b.d.Poll(out)
		a.d.Post(burst[:900])
		a.d.Post(burst[:immSlots]) // some wait, some are refused
		for range 3 {
			a.d.Poll(out)
			b.d.Poll(out)
		}
	}); n != 0 {
		t.Errorf("%v allocations a round", n)
	}
	if st := a.d.Stats(); st.Again == 0 || st.ImmsSent < 100*immSlots {
		t.Errorf("the burst did not fill the queue: %+v", st)
	}
}

func TestWakeOncePerPoll(t *testing.T) {
	a, b := newPair(t, transport.DomainConfig{}, 4096)
	var woken atomic.Int32 // connections that end wake too, at the end of the test
	wake := func() { woken.Add(1) }
	b.d.wake.Store(&wake) // without the watchman, who may come at any time
	for range 3 {
		a.post(a.wr(transport.OpWriteImm, 0, 0, 8))
	}
	if n := woken.Load(); n != 1 || len(b.poll()) != 3 {
		t.Fatalf("woken %d times", n)
	}
	a.post(a.wr(transport.OpSend, 0, 0, 8))
	if n := woken.Load(); n != 2 {
		t.Fatalf("woken %d times, want 2", n)
	}
}

func TestOpenRefusals(t *testing.T) {
	p, _ := New(Config{NumNICs: 2})
	for name, open := range map[string]func() error{
		"unknown NIC":  func() error { _, err := p.Open("shm2", transport.DomainConfig{}); return err },
		"MaxSend":      func() error { _, err := p.Open("shm1", transport.DomainConfig{MaxSend: -1}); return err },
		"MaxRecv":      func() error { _, err := p.Open("shm1", transport.DomainConfig{MaxRecv: maxQueue + 1}); return err },
		"NumNICs":      func() error { _, err := New(Config{NumNICs: 17}); return err },
		"PeerTimeout":  func() error { _, err := New(Config{PeerTimeout: -1}); return err },
		"Alloc(0)":     func() error { _, err := p.Alloc(0); return err },
		"size of Host": func() error { _, err := p.Alloc(mem.MaxBytes + 1); return err },
	} {
		if err := open(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	d, err := p.Open("shm1", transport.DomainConfig{MaxSend: 100, MaxCQ: 50})
	if err != nil {
		t.Fatal(err)
	}
	if l := d.Limits(); l.MaxSend != 50 || d.Name() != "shm1" || p.Name() != "shm" || len(p.NICs()) != 2 {
		t.Errorf("limits %+v", l)
	}
	d.Close()
	if _, err := d.AddPeer(d.Addr()); !errors.Is(err, transport.ErrClosed) {
		t.Error("AddPeer after close:", err)
	}
}
