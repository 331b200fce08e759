package shm

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"moerail/transport"
)

// side is one domain with one region of size bytes, and what it needs to write
// into the other side of a pair.
type side struct {
	t      testing.TB
	prov   *Provider
	d      *domain
	mem    transport.Memory
	reg    transport.Region
	peer   transport.Peer
	remote transport.Remote
}

func newSide(t testing.TB, cfg transport.DomainConfig, size uint64) *side {
	t.Helper()
	p, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	dom, err := p.Open("shm0", cfg)
	if err != nil {
		t.Fatal(err)
	}
	m, err := p.Alloc(size)
	if err != nil {
		t.Fatal(err)
	}
	r, err := dom.Register(m, transport.AccessAll)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := dom.Close(); err != nil {
			t.Error(err)
		}
		if err := p.Free(m); err != nil {
			t.Error(err)
		}
	})
	return &side{t: t, prov: p, d: dom.(*domain), mem: m, reg: r}
}

func (s *side) meet(o *side) {
	s.t.Helper()
	var err error
	if s.peer, err = s.d.AddPeer(o.d.Addr()); err != nil {
		s.t.Fatal(err)
	}
	if s.remote, err = s.d.Import(s.peer, o.reg.RemoteKey(), o.reg.Size()); err != nil {
		s.t.Fatal(err)
	}
}

func newPair(t testing.TB, cfg transport.DomainConfig, size uint64) (a, b *side) {
	t.Helper()
	a, b = newSide(t, cfg, size), newSide(t, cfg, size)
	a.meet(b)
	b.meet(a)
	return a, b
}

func (s *side) wr(op transport.Opcode, localOff, remoteOff, n uint64) transport.WorkRequest {
	return transport.WorkRequest{ID: 7, Op: op, Peer: s.peer, Local: s.reg.LKey(), LocalOff: localOff,
		Remote: s.remote, RemoteOff: remoteOff, Len: n}
}

func (s *side) post(wr transport.WorkRequest) {
	s.t.Helper()
	if n, err := s.d.Post([]transport.WorkRequest{wr}); n != 1 || err != nil {
		s.t.Fatalf("post %s: %d, %v", wr.Op, n, err)
	}
}

func (s *side) poll() []transport.Completion {
	s.t.Helper()
	out := make([]transport.Completion, 16)
	n, err := s.d.Poll(out)
	if err != nil {
		s.t.Fatal(err)
	}
	return out[:n]
}

// next polls until one completion comes, which must be the only one.
func (s *side) next() transport.Completion {
	s.t.Helper()
	for limit := time.Now().Add(5 * time.Second); time.Now().Before(limit); {
		if cs := s.poll(); len(cs) == 1 {
			return cs[0]
		} else if len(cs) > 1 {
			s.t.Fatalf("%d completions, want 1: %+v", len(cs), cs)
		}
	}
	s.t.Fatal("no completion within 5 s")
	panic("unreachable")
}

func (s *side) want(want transport.Completion) {
	s.t.Helper()
	if got := s.next(); got != want {
		s.t.Fatalf("completion %+v, want %+v", got, want)
	}
}

func (s *side) quiet() {
	s.t.Helper()
	if cs := s.poll(); len(cs) != 0 {
		s.t.Fatalf("unexpected completions %+v", cs)
	}
}

func fill(b []byte, seed byte) {
	for i := range b {
		b[i] = byte(i)*31 + byte(i>>8) + seed
	}
}

func TestWriteReadAtomicSend(t *testing.T) {
	a, b := newPair(t, transport.DomainConfig{}, 1<<20)
	fill(a.mem.Host[:100000], 1)

	a.post(a.wr(transport.OpWrite, 0, 4096, 100000))
	a.want(transport.Completion{ID: 7, Op: transport.OpWrite, Peer: a.peer, Bytes: 100000})
	if !bytes.Equal(b.mem.Host[4096:104096], a.mem.Host[:100000]) || b.mem.Host[104096] != 0 || b.mem.Host[4095] != 0 {
		t.Fatal("written bytes differ, or more was written")
	}
	b.quiet()

	wr := a.wr(transport.OpWriteImm, 0, 0, 64)
	wr.Imm = 0xfffffffe
	a.post(wr)
	a.want(transport.Completion{ID: 7, Op: transport.OpWriteImm, Peer: a.peer, Bytes: 64})
	b.want(transport.Completion{Op: transport.OpImm, Peer: b.peer, Imm: 0xfffffffe, Bytes: 64})

	a.post(transport.WorkRequest{Op: transport.OpWriteImm, Peer: a.peer, Local: transport.NoKey, Remote: transport.NoRemote, Imm: 3})
	a.want(transport.Completion{Op: transport.OpWriteImm, Peer: a.peer})
	b.want(transport.Completion{Op: transport.OpImm, Peer: b.peer, Imm: 3})

	fill(b.mem.Host[8192:9192], 9)
	a.post(a.wr(transport.OpRead, 500000, 8192, 1000))
	a.want(transport.Completion{ID: 7, Op: transport.OpRead, Peer: a.peer, Bytes: 1000})
	if !bytes.Equal(a.mem.Host[500000:501000], b.mem.Host[8192:9192]) {
		t.Fatal("read bytes differ")
	}

	clear(b.mem.Host[:64])
	add := a.wr(transport.OpFetchAdd, 16, 8, 8)
	add.Operand = 5
	a.post(add)
	a.next()
	a.post(add)
	a.next()
	if b.mem.Host[8] != 10 || a.mem.Host[16] != 5 {
		t.Fatalf("fetch-add: word %d, old %d, want 10, 5", b.mem.Host[8], a.mem.Host[16])
	}
	cas := a.wr(transport.OpCompareSwap, 16, 8, 8)
	cas.Compare, cas.Operand = 9, 77
	a.post(cas)
	a.next()
	if b.mem.Host[8] != 10 || a.mem.Host[16] != 10 {
		t.Fatal("a compare-swap that does not match swapped")
	}
	cas.Compare = 10
	a.post(cas)
	a.next()
	if b.mem.Host[8] != 77 {
		t.Fatal("a compare-swap that matches did not swap")
	}

	fill(a.mem.Host[:3000], 4)
	a.post(a.wr(transport.OpSend, 0, 0, 3000))
	a.want(transport.Completion{ID: 7, Op: transport.OpSend, Peer: a.peer, Bytes: 3000})
	b.quiet()
	if n, err := b.d.PostRecv([]transport.RecvRequest{{ID: 21, Local: b.reg.LKey(), Off: 600000, Len: 4096}}); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	b.want(transport.Completion{ID: 21, Op: transport.OpRecv, Peer: b.peer, Bytes: 3000})
	if !bytes.Equal(b.mem.Host[600000:603000], a.mem.Host[:3000]) || b.mem.Host[603000] != 0 {
		t.Fatal("message differs")
	}
	if st := b.d.Stats(); st.ReceiverStall != 1 || st.ImmsReceived != 2 {
		t.Errorf("receiver's stats %+v", st)
	}
	if st := a.d.Stats(); st.Messages != 9 || st.ImmsSent != 2 || st.Bytes != 100000+64+1000+4*8+3000 {
		t.Errorf("sender's stats %+v", st)
	}
}

func TestSelfPeer(t *testing.T) {
	a := newSide(t, transport.DomainConfig{}, 4096)
	a.meet(a)
	a.mem.Host[0] = 42
	a.post(a.wr(transport.OpWriteImm, 0, 100, 1))
	cs := a.poll()
	if len(cs) != 2 || a.mem.Host[100] != 42 || cs[1].Peer != a.peer {
		t.Fatalf("completions %+v, byte %d", cs, a.mem.Host[100])
	}
}

func TestClosedRegionAndClosedPeer(t *testing.T) {
	a, b := newPair(t, transport.DomainConfig{}, 4096)
	if err := b.reg.Close(); err != nil {
		t.Fatal(err)
	}
	if err := b.reg.Close(); err != nil {
		t.Fatal("second close:", err)
	}
	a.mem.Host[0] = 1
	for _, op := range []transport.Opcode{transport.OpWrite, transport.OpWriteImm, transport.OpRead, transport.OpFetchAdd, transport.OpCompareSwap} {
		a.post(a.wr(op, 0, 0, 8))
		a.want(transport.Completion{ID: 7, Op: op, Peer: a.peer, Status: transport.StatusRemoteAccess})
	}
	if b.mem.Host[0] != 0 {
		t.Fatal("a write landed in a closed region")
	}
	b.quiet()
	if st := a.d.Stats(); st.StaleWrites != 5 || st.Messages != 0 {
		t.Errorf("stats %+v, want 5 stale writes and no messages", st)
	}
	if _, err := a.d.Import(a.peer, b.reg.RemoteKey(), 4096); !errors.Is(err, transport.ErrBadKey) {
		t.Errorf("import of a closed region: %v", err)
	}

	if err := b.d.Close(); err != nil {
		t.Fatal(err)
	}
	// At once, before the socket's end has been noticed.
	for _, op := range []transport.Opcode{transport.OpWrite, transport.OpSend} {
		a.post(a.wr(op, 0, 0, 8))
		a.want(transport.Completion{ID: 7, Op: op, Peer: a.peer, Status: transport.StatusPeerLost})
	}
	if _, err := b.d.Poll(make([]transport.Completion, 1)); !errors.Is(err, transport.ErrClosed) {
		t.Errorf("poll after close: %v", err)
	}
	if _, err := a.d.Import(a.peer, b.reg.RemoteKey(), 4096); !errors.Is(err, transport.ErrPeerLost) {
		t.Errorf("import from a closed domain: %v", err)
	}
	if err := a.d.RemovePeer(a.peer); err != nil {
		t.Fatal(err)
	}
	if _, err := a.d.AddPeer(b.d.Addr()); !errors.Is(err, transport.ErrPeerLost) {
		t.Errorf("adding a closed domain: %v", err)
	}
}

// A burst larger than the lane must not block posts to others, and must arrive
// whole once the receiver polls.
func TestImmediatesBeyondTheLaneWait(t *testing.T) {
	a, b := newPair(t, transport.DomainConfig{MaxSend: 4096}, 4096)
	const burst = immSlots + 500
	wrs := make([]transport.WorkRequest, burst)
	for i := range wrs {
		wrs[i] = transport.WorkRequest{ID: transport.WRID(i), Op: transport.OpWriteImm, Peer: a.peer, Local: transport.NoKey, Remote: transport.NoRemote, Imm: transport.Imm(i)}
	}
	for round := range 5 {
		if n, err := a.d.Post(wrs); n != burst || err != nil {
			t.Fatal(n, err)
		}
		ends, imms := 0, 0
		for i := 0; i < 10000 && (ends < burst || imms < burst); i++ {
			for _, c := range a.poll() {
				if c.Status != transport.StatusOK {
					t.Fatalf("%+v", c)
				}
				ends++
			}
			if ends > imms+immSlots {
				t.Fatalf("round %d: %d ended with %d taken", round, ends, imms)
			}
			for _, c := range b.poll() {
				if c.Imm != transport.Imm(imms) {
					t.Fatalf("round %d: immediate %d came as number %d", round, c.Imm, imms)
				}
				imms++
			}
		}
		if ends != burst || imms != burst {
			t.Fatalf("round %d: %d ended, %d arrived of %d", round, ends, imms, burst)
		}
	}
}

func TestFullQueueSaysAgain(t *testing.T) {
	a, _ := newPair(t, transport.DomainConfig{MaxSend: 3, MaxRecv: 2}, 4096)
	wr := a.wr(transport.OpWrite, 0, 0, 8)
	n, err := a.d.Post([]transport.WorkRequest{wr, wr, wr, wr})
	if n != 3 || err != transport.ErrAgain {
		t.Fatalf("%d, %v", n, err)
	}
	if len(a.poll()) != 3 {
		t.Fatal("want three completions")
	}
	a.post(wr)
	rr := transport.RecvRequest{Local: a.reg.LKey(), Len: 8}
	if n, err := a.d.PostRecv([]transport.RecvRequest{rr, rr, rr}); n != 2 || err != transport.ErrAgain {
		t.Fatalf("%d, %v", n, err)
	}
	if st := a.d.Stats(); st.Again != 2 {
		t.Errorf("%d times again, want 2", st.Again)
	}
}

func TestMessagesWrapFillAndTruncate(t *testing.T) {
	a, b := newPair(t, transport.DomainConfig{}, 1<<20)
	for i, n := range []uint64{0, 1, 7, 8, 9, 100000, maxRecvSize, 31, maxRecvSize - 1, 200001, maxRecvSize, 5} {
		fill(a.mem.Host[:n], byte(i))
		a.post(a.wr(transport.OpSend, 0, 0, n))
		a.next()
		clear(b.mem.Host)
		if n, err := b.d.PostRecv([]transport.RecvRequest{{ID: 3, Local: b.reg.LKey(), Off: 64, Len: maxRecvSize}}); n != 1 {
			t.Fatal(err)
		}
		b.want(transport.Completion{ID: 3, Op: transport.OpRecv, Peer: b.peer, Bytes: n})
		if !bytes.Equal(b.mem.Host[64:64+n], a.mem.Host[:n]) || b.mem.Host[64+n] != 0 {
			t.Fatalf("message %d of %d bytes differs", i, n)
		}
	}
	// Nobody receives: the ring fills, then the sender is told.
	wr := a.wr(transport.OpSend, 0, 0, 100000)
	sent := 0
	for ; sent < 100; sent++ {
		if n, err := a.d.Post([]transport.WorkRequest{wr}); n == 0 {
			if err != transport.ErrAgain {
				t.Fatal(err)
			}
			break
		}
		a.next()
	}
	if sent != msgRingBytes/(100000+msgHeadBytes) {
		t.Fatalf("%d messages fit", sent)
	}
	clear(b.mem.Host)
	b.d.PostRecv([]transport.RecvRequest{{ID: 4, Local: b.reg.LKey(), Len: 99999}})
	b.want(transport.Completion{ID: 4, Op: transport.OpRecv, Peer: b.peer, Bytes: 99999, Status: transport.StatusTruncated})
	if b.mem.Host[99999] != 0 {
		t.Fatal("a truncated message ran over its buffer")
	}
	a.post(wr) // there is room again
}
