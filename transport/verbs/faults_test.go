//go:build verbs && cgo && linux

package verbs

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"moerail/internal/ibv"
	"moerail/internal/ibv/ibvfake"
	"moerail/internal/mem"
	"moerail/transport"
)

func pair(t testing.TB, cfg Config) (a, b *side) {
	t.Helper()
	cfg.GIDIndex = -1
	p := fakeProvider(t, 2, cfg)
	a, b = newSide(t, p, 0, transport.DomainConfig{}, 4096), newSide(t, p, 1, transport.DomainConfig{}, 4096)
	a.meet(b)
	b.meet(a)
	return a, b
}

// raised lets both sides look for events.
func (s *side) raised() {
	s.d.looked = time.Time{}
	for range lookEvery {
		s.poll()
	}
}

func TestPortDownAndUp(t *testing.T) {
	a, b := pair(t, Config{})
	a.works(b)
	ibvfake.Link(0, false)
	ibvfake.Raise(0, int(ibv.EventPortError))
	a.post(a.wr(transport.OpWrite, 0, 8)) // before the event is seen
	a.raised()
	if _, err := a.d.Post([]transport.WorkRequest{a.wr(transport.OpWrite, 0, 8)}); !errors.Is(err, transport.ErrPeerLost) ||
		!strings.Contains(err.Error(), "fake0 port 1") {
		t.Fatalf("a post while the port is down: %v", err)
	}
	if c := a.end(b); c.Status != transport.StatusPeerLost || ibv.WCStatus(c.Vendor>>24) != ibv.WCRetryExceeded {
		t.Fatalf("what was under way ended as %+v: %s", c, VendorText(c.Vendor))
	}
	ibvfake.Link(0, true)
	ibvfake.Raise(0, int(ibv.EventPortActive))
	a.raised()
	until(t, "a post that is taken again", func() bool { return a.d.sendable(a.link()) == nil }, a, b)
	a.works(b)
	until(t, "the way back", func() bool { return b.d.sendable(b.link()) == nil }, a, b)
	b.works(a)
}

func (s *side) link() *link { return *s.d.peers.Get(int32(s.peer)) }

func TestFatalEventsNameThePort(t *testing.T) {
	for _, e := range []ibv.EventType{ibv.EventDeviceFatal, ibv.EventCQError, ibv.EventSRQError, ibv.EventGIDChange} {
		t.Run(fmt.Sprint(int(e)), func(t *testing.T) {
			a, b := pair(t, Config{})
			a.works(b)
			if e == ibv.EventGIDChange {
				ibvfake.Raise(0, int(e))
				if a.raised(); a.err != nil {
					t.Fatalf("our GID is as it was: %v", a.err)
				}
				ibvfake.MoveGID(0)
			}
			ibvfake.Raise(0, int(e))
			a.raised()
			if a.err == nil || !strings.Contains(a.err.Error(), "fake0 port 1") {
				t.Fatalf("Poll says %v", a.err)
			}
			if _, err := a.d.Post([]transport.WorkRequest{a.wr(transport.OpWrite, 0, 8)}); err == nil || err.Error() != a.err.Error() {
				t.Errorf("Post says %v, Poll said %v", err, a.err)
			}
		})
	}
}

// A peer that vanishes without a word: what is under way ends as lost with what
// the device said, what waits too, and posts are refused with the reason.
func TestPeerVanishes(t *testing.T) {
	a, b := pair(t, Config{SendDepth: 4})
	a.works(b)
	ibvfake.Drop(0, true) // its farewell is lost
	if err := b.d.Close(); err != nil {
		t.Fatal(err)
	}
	const n = 20
	for range n {
		a.post(a.wr(transport.OpWrite, 0, 8))
	}
	first := true
	for range n {
		c := a.end()
		if c.Status != transport.StatusPeerLost || ibv.WCStatus(c.Vendor>>24) != ibv.WCRetryExceeded {
			t.Fatalf("ended as %+v: %s", c, VendorText(c.Vendor))
		}
		first = false
	}
	_, err := a.d.Post([]transport.WorkRequest{a.wr(transport.OpWrite, 0, 8)})
	if first || !errors.Is(err, transport.ErrPeerLost) || !strings.Contains(err.Error(), "retries exceeded") || !strings.Contains(err.Error(), "10.0.0.2") {
		t.Errorf("a post to a lost peer: %v", err)
	}
	if err := a.d.RemovePeer(a.peer); err != nil {
		t.Error(err)
	}
}

// Closing ends in any state, also with a word left to say to a lost peer.
func TestCloseWhileProbing(t *testing.T) {
	p := fakeProvider(t, 2, Config{GIDIndex: -1, HandshakeTimeout: time.Millisecond})
	a, b := newSide(t, p, 0, transport.DomainConfig{}, 4096), newSide(t, p, 1, transport.DomainConfig{}, 4096)
	a.meet(b)
	until(t, "the loss", func() bool { return a.link().state == linkLost }, a)
	a.d.mail.send(a.link(), kindHello)
	ended := make(chan error, 1)
	go func() { ended <- a.d.Close() }()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Fatal("Close does not end")
	}
}

func TestNobodyAnswers(t *testing.T) {
	p := fakeProvider(t, 2, Config{GIDIndex: -1, HandshakeTimeout: 30 * time.Millisecond})
	a, b := newSide(t, p, 0, transport.DomainConfig{}, 4096), newSide(t, p, 1, transport.DomainConfig{}, 4096)
	a.meet(b)
	a.post(a.wr(transport.OpWrite, 0, 8))
	if c := a.end(); c.Status != transport.StatusPeerLost { // b does not poll
		t.Fatalf("ended as %+v", c)
	}
	_, err := a.d.Post([]transport.WorkRequest{a.wr(transport.OpWrite, 0, 8)})
	if !errors.Is(err, transport.ErrPeerLost) || !strings.Contains(err.Error(), "30ms") {
		t.Errorf("a post to a peer that does not answer: %v", err)
	}
	until(t, "the peer to come back", func() bool { return a.d.sendable(a.link()) == nil }, a, b)
	a.works(b)
}

// A peer that removed us is reached again by the next request.
func TestRemovedByThePeer(t *testing.T) {
	a, b := pair(t, Config{})
	a.works(b)
	for range 3 {
		if err := b.d.RemovePeer(b.peer); err != nil {
			t.Fatal(err)
		}
		for range 20 {
			b.poll()
			a.poll()
		}
		a.works(b)
		if n := len(b.d.links); n != 1 {
			t.Fatalf("%d links at a domain with one passive peer", n)
		}
		b.meet(a)
		b.works(a)
	}
}

// More peers at once than there are buffers for handshakes, everybody dialling
// everybody, and some of it lost.
func TestManyPeersAtOnce(t *testing.T) {
	const n = 200
	p := fakeProvider(t, 1, Config{GIDIndex: -1, ImmDepth: 8, SendDepth: 2})
	ibvfake.Drop(5, false)
	hub := newSide(t, p, 0, transport.DomainConfig{MaxSend: n}, 4096)
	var rim []*side
	for range n {
		rim = append(rim, newSide(t, p, 0, transport.DomainConfig{MaxSend: 4, MaxRecv: 4}, 64))
	}
	for i, s := range rim {
		s.meet(hub)
		hub.meet(s)
		hub.post(hub.wr(transport.OpWriteImm, 0, 8))
		w := s.wr(transport.OpWriteImm, 0, 8)
		w.Imm = transport.Imm(i)
		s.post(w)
	}
	all := append([]*side{hub}, rim...)
	until(t, "all immediates", func() bool {
		for _, s := range rim {
			if len(s.imms) != 1 {
				return false
			}
		}
		return len(hub.imms) == n
	}, all...)
	seen := map[transport.Imm]bool{}
	for _, c := range hub.imms {
		if seen[c.Imm] = true; c.Peer == transport.NoPeer {
			t.Fatalf("immediate %d comes from nobody", c.Imm)
		}
	}
	if len(seen) != n {
		t.Errorf("%d different immediates, want %d", len(seen), n)
	}
}

// Receives for immediates that ran out are counted, and none is lost.
func TestStallIsCounted(t *testing.T) {
	a, b := pair(t, Config{ImmDepth: 4})
	a.works(b)
	before := b.d.Stats().ReceiverStall
	for range 64 {
		a.post(a.wr(transport.OpWriteImm, 0, 8))
	}
	until(t, "all immediates", func() bool { return len(b.imms) == 64 }, a, b)
	if b.d.Stats().ReceiverStall == before || ibvfake.RNR() == 0 {
		t.Errorf("64 immediates met 4 receives: %d stalls counted, the device saw %d", b.d.Stats().ReceiverStall-before, ibvfake.RNR())
	}
}

// So is a receive queue that stays empty because the device takes no more.
func TestRefusedRefillIsCounted(t *testing.T) {
	a, b := pair(t, Config{ImmDepth: 1})
	a.works(b)
	before := b.d.Stats().ReceiverStall
	ibvfake.Fail(ibvfake.CallNamed("ibv_post_srq_recv"), 1, unix.ENOMEM)
	if b.poll(); b.d.Stats().ReceiverStall != before+1 || b.d.immsOut != 0 {
		t.Errorf("%d stalls counted with %d receives posted", b.d.Stats().ReceiverStall-before, b.d.immsOut)
	}
	a.works(b)
}

// A device whose queue is fuller than our account says gets the rest later.
func TestDeviceTakesPartOfAChain(t *testing.T) {
	a, b := pair(t, Config{})
	a.works(b)
	for _, e := range []unix.Errno{unix.ENOMEM, unix.EINVAL} {
		for range 10 {
			a.post(a.wr(transport.OpWriteImm, 0, 8))
		}
		ibvfake.Fail(ibvfake.CallNamed("ibv_post_send"), 1, e)
		counts := map[transport.Status]int{}
		for range 10 {
			c := a.end(b)
			counts[c.Status]++
			if c.Status != transport.StatusOK && c.Vendor != uint32(e) {
				t.Errorf("refused with %v, the completion says %s", e, VendorText(c.Vendor))
			}
		}
		want := map[unix.Errno]int{unix.ENOMEM: 10, unix.EINVAL: 9}[e]
		if counts[transport.StatusOK] != want {
			t.Errorf("after %v: %v, want %d to succeed", e, counts, want)
		}
		until(t, "immediates", func() bool { return len(b.imms) == want }, a, b)
		b.imms = nil
		a.works(b)
	}
}

func TestDeviceMemoryRegistration(t *testing.T) {
	a, b := pair(t, Config{})
	dma, plain := ibvfake.CallNamed("ibv_reg_dmabuf_mr"), ibvfake.CallNamed("ibv_reg_mr")
	back, err := a.p.Alloc(8192)
	if err != nil {
		t.Fatal(err)
	}
	defer a.p.Free(back)
	m := transport.Memory{Kind: transport.MemoryDevice, FD: 5, Device: mem.Addr(back.Host), Size: 8192}
	ibvfake.Fail(dma, 1, unix.EOPNOTSUPP)
	r, err := a.d.Register(m, transport.AccessAll)
	if err != nil {
		t.Fatalf("peer memory after a DMA buffer that failed: %v", err)
	}
	w := a.wr(transport.OpWrite, 0, 8)
	w.Local = r.LKey()
	a.post(w)
	if c := a.end(b); c.Status != transport.StatusOK {
		t.Errorf("a write out of device memory ended as %+v", c)
	}
	w.Inline = true
	if _, err := a.d.Post([]transport.WorkRequest{w}); !errors.Is(err, transport.ErrUnsupported) {
		t.Errorf("inline out of device memory: %v", err)
	}
	ibvfake.Fail(dma, 1, unix.EOPNOTSUPP)
	ibvfake.Fail(plain, 1, unix.EFAULT)
	_, err = a.d.Register(m, transport.AccessAll)
	for _, want := range []error{transport.ErrRegister, unix.EOPNOTSUPP, unix.EFAULT} {
		if !errors.Is(err, want) {
			t.Errorf("both ways fail: %v; want it to tell of %v", err, want)
		}
	}
	ibvfake.Fail(plain, 1, unix.ENOMEM)
	if _, err = a.d.Register(back, transport.AccessAll); !errors.Is(err, unix.ENOMEM) || !strings.Contains(err.Error(), "locked memory") {
		t.Errorf("registration fails with ENOMEM: %v", err)
	}
}

// One crossing posts whatever came together, one chain for each queue pair, tops
// up receives and polls.
func TestOneCrossingForATurn(t *testing.T) {
	const peers, each = 7, 5
	p := fakeProvider(t, 2, DefaultConfig())
	a := newSide(t, p, 0, transport.DomainConfig{}, 4096)
	var others []*side
	var entries []transport.TemplateEntry
	for range peers {
		o := newSide(t, p, 1, transport.DomainConfig{}, 4096)
		a.meet(o)
		a.works(o)
		others = append(others, o)
		entries = append(entries, transport.TemplateEntry{Peer: a.peer, Local: a.reg.LKey(), Remote: a.remote})
	}
	tp, err := a.d.NewTemplate(entries)
	if err != nil {
		t.Fatal(err)
	}
	crossings, bells := a.d.queue.Crossings(), a.d.Stats().Doorbells
	var ops []transport.ScatterOp
	for e := range peers {
		ops = append(ops, transport.ScatterOp{Entry: int32(e), Len: 64})
	}
	for range each {
		if n, err := a.d.PostScatter(tp, 1, ops); n != peers || err != nil {
			t.Fatal(n, err)
		}
	}
	if _, err := a.d.PostRecv([]transport.RecvRequest{{Local: a.reg.LKey(), Len: 64}}); err != nil {
		t.Fatal(err)
	}
	a.poll()
	if n := a.d.queue.Crossings() - crossings; n != 1 {
		t.Errorf("%d crossings for %d posts and a poll, want 1", n, peers*each)
	}
	if n := a.d.Stats().Doorbells - bells; n != peers {
		t.Errorf("%d doorbells, want one for each of %d queue pairs", n, peers)
	}
	if len(a.ends) != peers*each {
		t.Errorf("%d ends of %d", len(a.ends), peers*each)
	}
	_ = others
}

func TestDiscoverFakes(t *testing.T) {
	fakeProvider(t, 2, DefaultConfig())
	ibvfake.Limits(1<<30, 1<<20, 2)
	ibvfake.Link(1, false)
	d := discover(ibv.FromTable(ibvfake.Table(), "fake"))
	if d.Err != nil || len(d.Devices) != 2 || len(d.Devices[0].Ports) != 2 || d.Library != "fake" {
		t.Fatalf("%+v", d)
	}
	p := d.Devices[0].Ports[1]
	if !p.Active || p.MTU != 4096 || p.LinkLayer != "Ethernet" || p.BytesPerSecond != 12500e6 || len(p.GIDs) != 3 {
		t.Errorf("port %+v", p)
	}
	for _, g := range p.GIDs {
		if g.Chosen != (g.Type == "RoCE v2" && g.Address == "10.0.0.1") {
			t.Errorf("GID %+v", g)
		}
	}
	if q := d.Devices[1].Ports[0]; q.Active || q.State != "down" {
		t.Errorf("port %+v", q)
	}
	ibvfake.Reset(0)
	if d = discover(ibv.FromTable(ibvfake.Table(), "fake")); !errors.Is(d.Err, ErrNoDevice) || d.Remedy == "" {
		t.Errorf("without devices: %+v", d)
	}
}

func TestDevicesAreNamed(t *testing.T) {
	fakeProvider(t, 2, DefaultConfig())
	ibvfake.Limits(1<<30, 1<<20, 2)
	lib := ibv.FromTable(ibvfake.Table(), "fake")
	for _, c := range []struct {
		ask  []string
		want string
		err  string
	}{
		{nil, "fake0:1 fake0:2 fake1:1 fake1:2", ""},
		{[]string{"fake1:2"}, "fake1:2", ""},
		{[]string{"fake1", "fake0:1"}, "fake1:1 fake1:2 fake0:1", ""},
		{[]string{"mlx5_0"}, "", "fake0, fake1"},
		{[]string{"fake0:3"}, "", "2 ports"},
		{[]string{"fake0:x"}, "", `port "x"`},
		{[]string{""}, "", "no device"},
		{[]string{"fake1:2", "fake1:2"}, "", "named twice"},
		{[]string{"fake0:1", "fake0"}, "", "port 1 is named twice"},
	} {
		cfg, _ := Config{Devices: c.ask, GIDIndex: -1}.withDefaults()
		p, err := newProvider(lib, cfg)
		if c.err != "" {
			if !errors.Is(err, ErrNoDevice) || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%q: %v, want it to say %q", c.ask, err, c.err)
			}
			continue
		}
		var names []string
		for _, n := range p.NICs() {
			names = append(names, n.Name)
		}
		if got := strings.Join(names, " "); err != nil || got != c.want {
			t.Errorf("%q: %s, %v; want %s", c.ask, got, err, c.want)
		}
	}
}

// EFA devices are libibverbs' too, and have nothing that this provider could use.
func TestEFAIsNotOffered(t *testing.T) {
	fakeProvider(t, 2, DefaultConfig())
	lib := ibv.FromTable(ibvfake.Table(), "fake")
	ibvfake.Vendor(0, 0x1d0f)
	cfg, _ := DefaultConfig().withDefaults()
	p, err := newProvider(lib, cfg)
	if err != nil || len(p.NICs()) != 1 || p.NICs()[0].Name != "fake1" {
		t.Errorf("%+v, %v", p, err)
	}
	cfg.Devices = []string{"fake0"}
	if _, err := newProvider(lib, cfg); !errors.Is(err, ErrNoDevice) || !strings.Contains(err.Error(), "EFA") {
		t.Errorf("an EFA device that is asked for: %v", err)
	}
	if d := discover(lib); d.Err != nil {
		t.Errorf("beside another device: %+v", d)
	}
	ibvfake.Vendor(1, 0x1d0f)
	if d := discover(lib); !errors.Is(d.Err, ErrNoDevice) || !strings.Contains(d.Remedy, "EFA") {
		t.Errorf("EFA devices alone: %+v", d)
	}
}

// A request of which something was never sent has not succeeded, even if all that
// was sent has.
func TestPartOfARequestIsNoSuccess(t *testing.T) {
	const piece, pieces = 4096, 4
	p := fakeProvider(t, 2, Config{GIDIndex: -1, MaxRegion: piece, SendDepth: 2})
	a, b := newSide(t, p, 0, transport.DomainConfig{}, piece*pieces), newSide(t, p, 1, transport.DomainConfig{}, piece*pieces)
	a.meet(b)
	b.meet(a)
	a.works(b)
	for name, lose := range map[string]func() error{
		"replaced": func() error { a.d.retire(a.link().chans[chanRMA].qp, transport.StatusFlushed, 0); return nil },
		"removed":  func() error { return a.d.RemovePeer(a.peer) },
	} {
		a.post(a.wr(transport.OpWriteImm, 0, piece*pieces))
		if n, err := a.d.Poll(nil); n != 0 || err != nil { // posts what the queue pair holds, and takes no completion
			t.Fatal(n, err)
		}
		if err := lose(); err != nil {
			t.Fatal(err)
		}
		if c := a.end(b); c.Status != transport.StatusFlushed || c.Bytes != 0 {
			t.Errorf("%s: half of it was sent: %+v", name, c)
		}
		a.meet(b)
		a.d.dial(a.link())
		_ = a.link().begin()
		a.works(b)
	}
}

// What a queue pair has received since the completion queue was seen empty is not
// lost with it.
func TestReceivedBeforeTheEnd(t *testing.T) {
	a, b := pair(t, Config{})
	a.works(b)
	if _, err := b.d.PostRecv([]transport.RecvRequest{{ID: 7, Local: b.reg.LKey(), Len: 64}}); err != nil {
		t.Fatal(err)
	}
	b.poll() // hands it to the device
	a.post(a.wr(transport.OpSend, 0, 8))
	a.poll() // delivers
	// The same poll of b that saw the queue empty learns that the peer has begun anew.
	b.d.retire(b.link().chans[chanMsg].qp, transport.StatusFlushed, 0)
	b.d.reap()
	b.poll()
	if len(b.ends) != 1 || b.ends[0].ID != 7 || b.ends[0].Status != transport.StatusOK || b.ends[0].Bytes != 8 {
		t.Errorf("the message: %+v", b.ends)
	}
	until(t, "the queue pair's end", func() bool { return len(b.d.dying) == 0 }, b)
}

// Where no handshake can go through any more, the domain says so.
func TestHandshakesFail(t *testing.T) {
	a, b := pair(t, Config{})
	a.works(b)
	if err := a.d.mail.qp.Fail(); err != nil {
		t.Fatal(err)
	}
	a.d.mail.send(a.link(), kindHello)
	for range 3 {
		a.poll()
	}
	if a.err == nil || !strings.Contains(a.err.Error(), "fake0 port 1") || !strings.Contains(a.err.Error(), "queue pair of handshakes has failed: work request flushed") {
		t.Errorf("Poll says %v", a.err)
	}
}

// An atomic is one request, so its result does not lie in two pieces of a region.
func TestAtomicAcrossASeam(t *testing.T) {
	p := fakeProvider(t, 2, Config{GIDIndex: -1, MaxRegion: 4096})
	a, b := newSide(t, p, 0, transport.DomainConfig{}, 8192), newSide(t, p, 1, transport.DomainConfig{}, 8192)
	a.meet(b)
	w := a.wr(transport.OpFetchAdd, 0, 8)
	w.LocalOff, w.Operand = 4092, 1
	if _, err := a.d.Post([]transport.WorkRequest{w}); !errors.Is(err, transport.ErrOutOfRange) {
		t.Errorf("a result across a seam: %v", err)
	}
	w.LocalOff = 4088
	a.post(w)
	if c := a.end(b); c.Status != transport.StatusOK || b.mem.Host[0] != 1 {
		t.Errorf("ended as %+v, the counter is %d", c, b.mem.Host[0])
	}
}

// A queue pair to ourselves that could not be connected is not used.
func TestConnectionToOneselfFails(t *testing.T) {
	p := fakeProvider(t, 1, DefaultConfig())
	a := newSide(t, p, 0, transport.DomainConfig{}, 4096)
	a.meet(a)
	a.works(a)
	modify := ibvfake.CallNamed("ibv_modify_qp")
	ibvfake.Fail(modify, 3, unix.ETIMEDOUT) // ERR, INIT, then RTR
	a.d.rebuild(a.link().chans[chanRMA].qp)
	if a.link().state != linkLost {
		t.Fatalf("the link is in state %d", a.link().state)
	}
	ibvfake.Fail(modify, 5, unix.ETIMEDOUT) // three of the first channel, INIT of the second, then RTR
	until(t, "the link", func() bool { return a.d.sendable(a.link()) == nil }, a)
	a.works(a)
}

// A turn of the owner allocates nothing.
func TestTurnsAllocateNothing(t *testing.T) {
	a, b := pair(t, DefaultConfig())
	a.works(b)
	tp, err := a.d.NewTemplate([]transport.TemplateEntry{{Peer: a.peer, Local: a.reg.LKey(), Remote: a.remote}})
	if err != nil {
		t.Fatal(err)
	}
	recv := []transport.RecvRequest{{Local: b.reg.LKey(), Len: 64}}
	send := []transport.WorkRequest{a.wr(transport.OpSend, 0, 8), a.wr(transport.OpRead, 64, 8)}
	send[0].Inline = true
	ops := []transport.ScatterOp{{Len: 8}, {Len: 2048, Imm: 1}}
	poll := func(s *side) {
		if _, err := s.d.Poll(s.out[:]); err != nil {
			t.Fatal(err)
		}
	}
	if n := testing.AllocsPerRun(500, func() {
		if _, err := b.d.PostRecv(recv); err != nil {
			t.Fatal(err)
		}
		poll(b)
		if n, err := a.d.PostScatter(tp, 1, ops); n != 2 || err != nil {
			t.Fatal(n, err)
		}
		if n, err := a.d.Post(send); n != 2 || err != nil {
			t.Fatal(n, err)
		}
		poll(a)
		poll(a)
		poll(b)
	}); n != 0 {
		t.Errorf("%v allocations for a turn", n)
	}
}
