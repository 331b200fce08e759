package shm

import (
	"errors"
	"testing"

	"moerail/transport"
)

// A sender that fills every poll must not keep others out.
func TestEverySenderGetsItsTurn(t *testing.T) {
	b := newSide(t, transport.DomainConfig{}, 4096)
	var senders [3]*side
	for i := range senders {
		senders[i] = newSide(t, transport.DomainConfig{}, 4096)
		senders[i].meet(b)
		for range 100 {
			wr := senders[i].wr(transport.OpWriteImm, 0, 0, 0)
			wr.Imm = transport.Imm(i)
			senders[i].post(wr)
		}
	}
	var seen [3]int
	out := make([]transport.Completion, 10)
	for range 6 {
		n, err := b.d.Poll(out)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range out[:n] {
			seen[c.Imm]++
		}
	}
	for i, n := range seen {
		if n != 20 {
			t.Errorf("sender %d had %d of 60 places, want 20", i, n)
		}
	}
}

// The very next poll after a receive was posted delivers what waited for it.
func TestWaitingMessageComesWithItsReceive(t *testing.T) {
	a, b := newPair(t, transport.DomainConfig{}, 4096)
	for range 5 {
		a.post(a.wr(transport.OpSend, 0, 0, 8))
		a.poll()
		b.quiet()
		b.d.PostRecv([]transport.RecvRequest{{Local: b.reg.LKey(), Len: 8}})
		if cs := b.poll(); len(cs) != 1 || cs[0].Op != transport.OpRecv {
			t.Fatalf("%+v", cs)
		}
	}
}

func TestOriginFollowsThePeerHandle(t *testing.T) {
	a, b := newSide(t, transport.DomainConfig{}, 4096), newSide(t, transport.DomainConfig{}, 4096)
	a.meet(b)
	from := func() transport.Peer {
		t.Helper()
		a.post(a.wr(transport.OpWriteImm, 0, 0, 0))
		a.next()
		return b.next().Peer
	}
	if p := from(); p != transport.NoPeer {
		t.Errorf("origin is %d before it was added", p)
	}
	b.meet(a)
	if p := from(); p != b.peer {
		t.Errorf("origin is %d, want %d", p, b.peer)
	}
	if err := b.d.RemovePeer(b.peer); err != nil {
		t.Fatal(err)
	}
	if p := from(); p != transport.NoPeer {
		t.Errorf("origin is %d after it was removed", p)
	}
}

// The region table's places come back.
func TestRegionsComeAndGo(t *testing.T) {
	s := newSide(t, transport.DomainConfig{}, 4096)
	for i := range maxRegions + 10 {
		r, err := s.d.Register(s.mem, transport.AccessAll)
		if err != nil {
			t.Fatalf("registration %d: %v", i, err)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A local region's key has nothing to fetch; it still must be the peer's.
func TestLocalKeyOfAnotherDomain(t *testing.T) {
	a, _ := newPair(t, transport.DomainConfig{}, 4096)
	c := newSide(t, transport.DomainConfig{}, 4096)
	r, err := c.d.Register(c.mem, transport.AccessLocal)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.d.Import(a.peer, r.RemoteKey(), 4096); !errors.Is(err, transport.ErrBadKey) {
		t.Error(err)
	}
}
