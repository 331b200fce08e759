package shm

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"moerail/internal/mem"
	"moerail/transport"
)

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for limit := time.Now().Add(5 * time.Second); !ok(); {
		if time.Now().After(limit) {
			t.Fatal(what, "did not happen within 5 s")
		}
		time.Sleep(50 * time.Microsecond)
	}
}

// What a sender can write into its lane must at worst end that lane.
func TestHostileSender(t *testing.T) {
	header := func(l *laneView, length, tail uint64) {
		mem.Word64(l.mapping, laneMsgOff).Store(length)
		l.msgTail.Store(tail)
	}
	for name, lie := range map[string]func(*laneView){
		"tail far ahead":       func(l *laneView) { header(l, 8, msgRingBytes+8) },
		"tail behind":          func(l *laneView) { header(l, 8, ^uint64(7)) },
		"tail odd":             func(l *laneView) { header(l, 1, 9) },
		"tail within a head":   func(l *laneView) { header(l, 0, 4) },
		"length beyond tail":   func(l *laneView) { header(l, 17, 24) },
		"length over limit":    func(l *laneView) { header(l, maxRecvSize+1, msgRingBytes) },
		"length that wraps":    func(l *laneView) { header(l, ^uint64(0), 16) },
		"length that wraps +8": func(l *laneView) { header(l, ^uint64(0)-7, 16) },
	} {
		t.Run(name, func(t *testing.T) {
			a, b := newPair(t, transport.DomainConfig{}, 4096)
			c := newSide(t, transport.DomainConfig{}, 4096)
			c.meet(b)
			b.d.PostRecv([]transport.RecvRequest{{ID: 1, Local: b.reg.LKey(), Len: 4096}})
			p := a.d.peers.get(int32(a.peer))
			lie(&p.laneView)
			p.ring()
			b.quiet()
			until(t, "the liar's loss", p.lost.Load)
			a.post(a.wr(transport.OpWriteImm, 0, 0, 8))
			a.want(transport.Completion{ID: 7, Op: transport.OpWriteImm, Peer: a.peer, Status: transport.StatusPeerLost})
			// b gives up on it as a peer too, and nobody else notices.
			b.post(b.wr(transport.OpWrite, 0, 0, 8))
			b.want(transport.Completion{ID: 7, Op: transport.OpWrite, Peer: b.peer, Status: transport.StatusPeerLost})
			c.post(c.wr(transport.OpSend, 0, 0, 100))
			b.want(transport.Completion{ID: 1, Op: transport.OpRecv, Peer: transport.NoPeer, Bytes: 100})
		})
	}
}

// A receiver that lies about what it took must not make its sender write
// anywhere else, nor wait for ever.
func TestHostileReceiver(t *testing.T) {
	t.Run("immediates", func(t *testing.T) {
		a, b := newPair(t, transport.DomainConfig{MaxSend: 8192}, 4096)
		b.d.lanes[0].Load().immHead.Store(1 << 40)
		wrs := make([]transport.WorkRequest, 2*immSlots)
		for i := range wrs {
			wrs[i] = transport.WorkRequest{Op: transport.OpWriteImm, Peer: a.peer, Local: transport.NoKey, Remote: transport.NoRemote}
		}
		if n, err := a.d.Post(wrs); n != len(wrs) {
			t.Fatal(n, err)
		}
		lost := 0
		for i := 0; i < 1000; i++ {
			for _, c := range a.poll() {
				if c.Status == transport.StatusPeerLost {
					lost++
				}
			}
		}
		if lost == 0 {
			t.Fatal("the receiver's nonsense went unnoticed")
		}
	})
	t.Run("messages", func(t *testing.T) {
		a, b := newPair(t, transport.DomainConfig{}, 4096)
		b.d.lanes[0].Load().msgHead.Store(8)
		a.post(a.wr(transport.OpSend, 0, 0, 8))
		a.want(transport.Completion{ID: 7, Op: transport.OpSend, Peer: a.peer, Status: transport.StatusPeerLost})
	})
}

func TestHostileBell(t *testing.T) {
	a, b := newPair(t, transport.DomainConfig{}, 4096)
	for w := range b.d.bells {
		b.d.bells[w].Store(^uint64(0))
	}
	b.quiet()
	// Someone silences a: it is heard all the same, a little later.
	a.post(a.wr(transport.OpWriteImm, 0, 0, 8))
	a.next()
	b.d.bells[0].Store(0)
	for range lookAtAll {
		if len(b.poll()) == 1 {
			return
		}
	}
	t.Fatalf("the immediate was not seen within %d polls", lookAtAll)
}

// Noise all over the lane, from both ends, while both use it.
func TestScribbledLane(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 1))
		a, b := newPair(t, transport.DomainConfig{}, 4096)
		c := newSide(t, transport.DomainConfig{}, 4096)
		c.meet(b)
		shared := a.d.peers.get(int32(a.peer)).mapping
		for range 200 {
			switch r.IntN(5) {
			case 0:
				off := r.Uint64N(300) &^ 7
				mem.Word64(shared, off).Store(r.Uint64() >> r.UintN(64))
			case 1:
				off := r.Uint64N(laneBytes) &^ 7
				mem.Word64(shared, off).Store(r.Uint64() >> r.UintN(64))
			case 2:
				b.d.PostRecv([]transport.RecvRequest{{Local: b.reg.LKey(), Len: 64}})
			case 3:
				b.d.bells[0].Or(1)
			case 4:
				a.d.Post([]transport.WorkRequest{a.wr(transport.OpSend, 0, 0, r.Uint64N(4097)), a.wr(transport.OpWriteImm, 0, 0, 8)})
			}
			a.poll()
			b.poll()
		}
		for b.d.recvs.len() == 0 {
			b.d.PostRecv([]transport.RecvRequest{{Local: b.reg.LKey(), Len: 64}})
		}
		c.post(c.wr(transport.OpWriteImm, 0, 0, 8))
		c.next()
		imms := b.d.Stats().ImmsReceived
		until(t, "an arrival from the honest peer", func() bool {
			b.poll()
			return b.d.Stats().ImmsReceived > imms
		})
		for _, s := range []*side{a, b, c} {
			s.d.Close()
		}
	}
}

func openFDs(t *testing.T) int {
	t.Helper()
	e, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("no /proc:", err)
	}
	return len(e)
}

func unsealed(t *testing.T) int {
	t.Helper()
	fd, err := unix.MemfdCreate("t", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Ftruncate(fd, 8<<20); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// Strangers at the socket are turned away, cost nothing and leave nothing.
func TestStrangersAreRefused(t *testing.T) {
	b := newSide(t, transport.DomainConfig{}, 4096)
	loose := unsealed(t)
	good := hello{secret: b.d.id.secret, generation: b.d.id.generation, from: [addressBytes]byte(b.d.addr)}
	bad := good
	bad.secret[3] ^= 1
	old := good
	old.generation += 2
	guardsFD := guards.mem.FD
	before := openFDs(t)
	for name, c := range map[string]struct {
		b   []byte
		fds []int
	}{
		"wrong secret":        {bad.encode(), []int{guardsFD}},
		"earlier life":        {old.encode(), []int{guardsFD}},
		"nothing passed":      {good.encode(), nil},
		"too much passed":     {good.encode(), []int{guardsFD, guardsFD}},
		"far too much passed": {good.encode(), []int{guardsFD, guardsFD, guardsFD, guardsFD, guardsFD, guardsFD}},
		"unsealed guards":     {good.encode(), []int{loose}},
		"not a memfd":         {good.encode(), []int{0}},
		"short":               {good.encode()[:50], []int{guardsFD}},
		"long":                {make([]byte, 4*maxPacket), []int{guardsFD}},
	} {
		conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: b.d.id.socketName(), Net: "unixpacket"})
		if err != nil {
			t.Fatal(err)
		}
		if err := sendPacket(conn, c.b, c.fds...); err != nil {
			t.Fatal(name, err)
		}
		conn.SetReadDeadline(time.Now().Add(5 * time.Second))
		if r, err := recvPacket(conn, make([]byte, maxPacket)); err == nil {
			r.drop()
			t.Errorf("%s: was let in", name)
		}
		conn.Close()
	}
	until(t, fmt.Sprintf("back to %d descriptors", before), func() bool { return openFDs(t) <= before })
	a := newSide(t, transport.DomainConfig{}, 4096)
	a.meet(b)
}

// A peer that was let in and then asks nonsense is cut off.
func TestNonsenseQuestion(t *testing.T) {
	a, b := newPair(t, transport.DomainConfig{}, 4096)
	p := a.d.peers.get(int32(a.peer))
	if err := sendPacket(p.conn, []byte("what?")); err != nil {
		t.Fatal(err)
	}
	until(t, "loss", p.lost.Load)
	b.quiet()
	if b.d.lanes[0].Load() != nil {
		t.Error("the lane is still there")
	}
}

// A fake domain that answers wrongly.
func TestHostileDomain(t *testing.T) {
	a := newSideOf(t, Config{PeerTimeout: 300 * time.Millisecond}, transport.DomainConfig{}, 4096)
	lane, err := mem.AllocShared("t", laneBytes)
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Free(lane)
	small, err := mem.AllocShared("t", 4096)
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Free(small)
	loose := unsealed(t)
	far := welcome{lane: maxLanes}
	ok := welcome{}
	full := []int{lane.FD, lane.FD, lane.FD}
	askFor := regionKey{nonce: 1, size: 4096, access: transport.AccessAll}
	for name, c := range map[string]struct {
		b      []byte
		fds    []int
		grants []grant // then, for each question, these
		gfds   []int
	}{
		"silence":             {},
		"lane out of range":   {b: far.encode(), fds: full},
		"few descriptors":     {b: ok.encode(), fds: full[:2]},
		"unsealed lane":       {b: ok.encode(), fds: []int{loose, lane.FD, lane.FD}},
		"small lane":          {b: ok.encode(), fds: []int{small.FD, lane.FD, lane.FD}},
		"small region table":  {b: ok.encode(), fds: []int{lane.FD, lane.FD, small.FD}},
		"no welcome":          {b: []byte("go away")},
		"another size":        {b: ok.encode(), fds: full, grants: []grant{{id: 1, size: 8192}}, gfds: []int{lane.FD}},
		"unsealed region":     {b: ok.encode(), fds: full, grants: []grant{{id: 1, size: 4096}}, gfds: []int{loose}},
		"region beyond end":   {b: ok.encode(), fds: full, grants: []grant{{id: 1, size: 4096, offset: 1 << 20}}, gfds: []int{lane.FD}},
		"offset that wraps":   {b: ok.encode(), fds: full, grants: []grant{{id: 1, size: 4096, offset: ^uint64(0) - 100}}, gfds: []int{lane.FD}},
		"granted, not passed": {b: ok.encode(), fds: full, grants: []grant{{id: 1, size: 4096}}},
		"many answers":        {b: ok.encode(), fds: full, grants: make([]grant, 9), gfds: []int{lane.FD}},
		"answer to another":   {b: ok.encode(), fds: full, grants: []grant{{id: 9, size: 4096}}, gfds: []int{lane.FD}},
	} {
		t.Run(name, func(t *testing.T) {
			before := openFDs(t)
			id, err := newIdentity()
			if err != nil {
				t.Fatal(err)
			}
			ln, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: id.socketName(), Net: "unixpacket"})
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan struct{})
			go func() {
				defer close(done)
				conn, err := ln.AcceptUnix()
				if err != nil {
					return
				}
				defer conn.Close()
				buf := make([]byte, maxPacket)
				if r, err := recvPacket(conn, buf); err == nil {
					r.drop()
				}
				if c.b != nil {
					sendPacket(conn, c.b, c.fds...)
				}
				for {
					if _, err := recvPacket(conn, buf); err != nil {
						return
					}
					for _, g := range c.grants {
						sendPacket(conn, g.encode(), c.gfds...)
					}
				}
			}()
			p, err := a.d.AddPeer(id.encode())
			if err == nil {
				key := askFor
				key.generation = id.generation
				if r, err := a.d.Import(p, key.encode(), 4096); err == nil {
					t.Errorf("import of %d succeeded", r)
				} else {
					t.Log(err)
				}
				if err := a.d.RemovePeer(p); err != nil {
					t.Error(err)
				}
			} else {
				t.Log(err)
				if c.grants != nil {
					t.Error("want a failure of Import only")
				}
			}
			ln.Close()
			<-done
			until(t, fmt.Sprintf("back to %d descriptors", before), func() bool { return openFDs(t) <= before })
		})
	}
}
