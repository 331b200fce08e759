package engine

import (
	"bytes"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"moerail/transport"
)

func TestMessagesOfEverySizeArriveOnceAndThePoolRefillsItself(t *testing.T) {
	for _, nics := range []int{1, 2} {
		r := newRig(t, 5, 2, nics, 4, 64)
		a, b := r.engines[0], r.engines[1]
		pa := must[*Peer](t)(b.AddPeer(a.Addr()))
		sizes := []int{0, 1, 255, 256, 257, 1023, 1024, 1025, 65535, 65536}
		const rounds = 5
		var mu sync.Mutex
		got := map[int]int{}
		var arrived Counter
		if err := b.PostRecvs(65536, 3, func(m Message) {
			if m.Err != nil {
				if !errors.Is(m.Err, ErrClosed) {
					t.Error(m.Err)
				}
				return
			}
			if m.From != pa {
				t.Errorf("message from %v, want %v", m.From, pa)
			}
			want := make([]byte, len(m.Bytes))
			fill(want, byte(len(want)))
			if !bytes.Equal(m.Bytes, want) {
				t.Errorf("message of %d bytes is damaged", len(m.Bytes))
			}
			mu.Lock()
			got[len(m.Bytes)]++
			mu.Unlock()
			arrived.ended(nil)
		}); err != nil {
			t.Fatal(err)
		}
		pb := must[*Peer](t)(a.AddPeer(b.Addr()))
		if again := must[*Peer](t)(a.AddPeer(b.Addr())); again != pb {
			t.Error("the same address gives two peers")
		}
		var sent Counter
		buf := make([]byte, 65536)
		for i := 0; i < rounds; i++ {
			for _, n := range sizes {
				fill(buf[:n], byte(n))
				must[Handle](t)(a.Send(pb, buf[:n], Done{Counter: &sent}))
				clear(buf) // the caller's again
			}
		}
		total := uint64(rounds * len(sizes))
		if err := errors.Join(sent.Wait(soon(t), total), arrived.Wait(soon(t), total)); err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		for _, n := range sizes {
			if got[n] != rounds {
				t.Errorf("%d messages of %d bytes arrived, want %d", got[n], n, rounds)
			}
		}
		mu.Unlock()
		if _, err := a.Send(pb, make([]byte, 65537), Done{}); !errors.Is(err, ErrArgument) {
			t.Errorf("message over the limit: %v", err)
		}
	}
}

func TestMessagesThatDoNotFitAreReportedOnBothSidesAndTheBufferReturns(t *testing.T) {
	r := newRig(t, 5, 2, 1, 4, 64)
	a, b := r.engines[0], r.engines[1]
	var bad, good, closed atomic.Int32
	if err := b.PostRecvs(100, 1, func(m Message) {
		switch {
		case errors.Is(m.Err, ErrTruncated):
			bad.Add(1)
		case m.Err == nil:
			good.Add(1)
		case errors.Is(m.Err, ErrClosed):
			closed.Add(1)
		default:
			t.Error(m.Err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if err := b.PostRecvs(100, 1, func(Message) {}); !errors.Is(err, ErrArgument) {
		t.Errorf("second pool: %v", err)
	}
	pb := must[*Peer](t)(a.AddPeer(b.Addr()))
	var c Counter
	for i := 0; i < 4; i++ {
		must[Handle](t)(a.Send(pb, make([]byte, 100+i%2), Done{Counter: &c}))
	}
	if err := c.Wait(soon(t), 4); !errors.Is(err, ErrTruncated) {
		t.Fatalf("sender sees %v", err)
	}
	if c.Errors() != 2 {
		t.Fatalf("sender sees %d errors, want 2", c.Errors())
	}
	eventually(t, "messages", func() bool { return bad.Load() == 2 && good.Load() == 2 })
	b.Close()
	<-b.Drained()
	if closed.Load() != 1 {
		t.Fatalf("the pool was told of the end %d times", closed.Load())
	}
}

func TestPostRecvsArguments(t *testing.T) {
	r := newRig(t, 5, 1, 1, 4, 64)
	e := r.engines[0]
	fn := func(Message) {}
	for _, c := range []struct {
		size uint64
		n    int
		fn   func(Message)
	}{{0, 1, fn}, {65537, 1, fn}, {^uint64(0), 1, fn}, {10, 0, fn}, {10, -1, fn}, {10, 1 << 30, fn}, {10, 1, nil}} {
		if err := e.PostRecvs(c.size, c.n, c.fn); !errors.Is(err, ErrArgument) {
			t.Errorf("%d of %d bytes: %v", c.n, c.size, err)
		}
	}
	// More than the NIC holds: the rest waits for its turn.
	if err := e.PostRecvs(10, 1000, fn); err != nil {
		t.Fatal(err)
	}
}

func TestPeersAreToldApart(t *testing.T) {
	r := newRig(t, 5, 2, 1, 4, 64)
	a := r.engines[0]
	addr := r.engines[1].Addr()
	p := must[*Peer](t)(a.AddPeer(addr))
	old := addr
	old.Generation++
	if q := must[*Peer](t)(a.AddPeer(old)); q == p {
		t.Error("another life of a peer is the same peer")
	}
	addr.NICs = append(addr.NICs, addr.NICs[0])
	if _, err := a.AddPeer(addr); !errors.Is(err, ErrNICMismatch) {
		t.Errorf("address of 2 NICs: %v", err)
	}
	if err := errors.Join(a.RemovePeer(p), a.RemovePeer(p)); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	must[Handle](t)(a.Send(p, []byte("x"), Done{Func: func(err error) { ended <- err }}))
	if err := <-ended; !errors.Is(err, ErrForeign) {
		t.Errorf("send to a removed peer: %v", err)
	}
	if err := a.RemovePeer(nil); !errors.Is(err, ErrForeign) {
		t.Errorf("remove nil: %v", err)
	}
}

func TestOtherNumbersOfNICsAreRefused(t *testing.T) {
	net := newFakeNet(1)
	a := must[*Engine](t)(New(Config{Provider: net, Domains: []transport.Domain{net.domain("a", 0)}, CPU: -1}))
	defer a.Close()
	b := must[*Engine](t)(New(Config{Provider: net, Domains: []transport.Domain{net.domain("b0", 0), net.domain("b1", 0)}, CPU: -1}))
	defer b.Close()
	m := must[transport.Memory](t)(a.Alloc(64))
	ra, _, err := a.Register(m, transport.AccessAll)
	if err != nil {
		t.Fatal(err)
	}
	_, db, err := b.Register(m, transport.AccessAll)
	if err != nil {
		t.Fatal(err)
	}
	_, e1 := a.Import(db)
	_, e2 := a.AddPeerGroup(ra, []Descriptor{db})
	_, e3 := a.MapRemote(db)
	for _, err := range []error{e1, e2, e3} {
		if !errors.Is(err, ErrNICMismatch) || !bytes.Contains([]byte(err.Error()), []byte("has 2, this engine has 1")) {
			t.Errorf("%v", err)
		}
	}
	// NIC 1's key with NIC 0's address: a rail crossed. Nothing stays imported.
	db.NICs[0], db.NICs[1] = db.NICs[1], NICKey{Addr: db.NICs[0].Addr, Key: db.NICs[1].Key}
	if _, err := b.Import(db); !errors.Is(err, transport.ErrBadKey) {
		t.Errorf("crossed rails: %v", err)
	}
}

func TestReceivesThatTheNICRefusesLeaveItUsable(t *testing.T) {
	e, reg, descs := countingEngine(t, 1, 1, nil, PollPolicy{}) // has no receives at all
	if err := e.PostRecvs(64, 4, func(Message) { t.Error("called") }); err == nil {
		t.Fatal("receives were accepted")
	}
	remote := must[*RemoteRegion](t)(e.Import(descs[0]))
	if err := ending(t, func(d Done) (Handle, error) {
		return e.Write(WriteRequest{Local: reg, Remote: remote, Len: 8}, d)
	}); err != nil {
		t.Fatal(err)
	}
}
