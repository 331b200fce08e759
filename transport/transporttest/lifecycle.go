package transporttest

import (
	"errors"
	"sync/atomic"
	"testing"

	"moerail/transport"
)

func testRemovePeer(t *testing.T, h Harness) {
	w := newWorld(t, h, 3, pageBytes, transport.DomainConfig{})
	a, b := w.ranks[0], w.ranks[1]
	tp := a.template(1, 2)
	other := a.template(2)
	old := a.write(1, 0, 8)
	if err := a.RemovePeer(a.peers[1]); err != nil {
		t.Fatal(err)
	}
	a.refused(old, transport.ErrBadHandle)
	if n, err := a.PostScatter(tp, 0, []transport.ScatterOp{{Entry: 1, NoImm: true}}); n != 0 || !errors.Is(err, transport.ErrBadHandle) {
		t.Errorf("a template that names the removed peer: %d, %v", n, err)
	}
	if err := a.Release(a.remote[1]); !errors.Is(err, transport.ErrBadHandle) {
		t.Errorf("a remote of the removed peer: %v", err)
	}
	if err := a.RemovePeer(a.peers[1]); !errors.Is(err, transport.ErrBadHandle) {
		t.Errorf("removing twice: %v", err)
	}
	a.scatter(other, 3, []transport.ScatterOp{{NoImm: true, Len: 8}})
	a.ok(3, transport.OpWrite, a.peers[2], 8)
	a.works(2)
	a.peers[1], a.remote[1] = a.know(b)
	if a.peers[1] == old.Peer || a.remote[1] == old.Remote {
		t.Error("added again, the peer has its old handles")
	}
	a.refused(old, transport.ErrBadHandle)
	a.works(1)

	// In flight while removed: each ends once, in some way.
	const n = 20
	for range n {
		a.post(a.write(1, 0, 8))
	}
	a.RemovePeer(a.peers[1])
	for range n {
		if c := a.end(); c.Status != transport.StatusOK && c.Status != transport.StatusFlushed {
			t.Errorf("in flight while its peer was removed: %+v", c)
		}
	}
	a.peers[1], a.remote[1] = a.know(b)
	a.works(1)
}

func testCloseTwice(t *testing.T, h Harness) {
	w := newWorld(t, h, 2, pageBytes, transport.DomainConfig{})
	a := w.ranks[0]
	wr := a.write(1, 0, 8)
	tp := a.template(1)
	for range 2 {
		if err := a.Close(); err != nil {
			t.Fatalf("close: %v", err)
		}
	}
	a.refused(wr, transport.ErrClosed)
	closed := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, transport.ErrClosed) {
			t.Errorf("%s on a closed domain: %v", what, err)
		}
	}
	_, err := a.PostScatter(tp, 0, []transport.ScatterOp{{NoImm: true}})
	closed("PostScatter", err)
	_, err = a.PostRecv([]transport.RecvRequest{{Local: a.region.LKey(), Len: 8}})
	closed("PostRecv", err)
	_, err = a.Poll(a.out[:])
	closed("Poll", err)
	_, err = a.Register(h.Alloc(t, pageBytes), transport.AccessAll)
	closed("Register", err)
	_, err = a.AddPeer(w.ranks[1].Addr())
	closed("AddPeer", err)
	if err := a.region.Close(); err != nil {
		t.Errorf("closing a region after its domain: %v", err)
	}
	a.Stats()
	a.Addr()
	a.Limits()
}

// testCloseInFlight closes a sender with much under way; the other side lives.
func testCloseInFlight(t *testing.T, h Harness) {
	w := newWorld(t, h, 3, 1<<20, transport.DomainConfig{})
	a, b := w.ranks[0], w.ranks[1]
	for range 30 {
		a.post(a.write(1, 0, 1<<16))
		a.Post([]transport.WorkRequest{a.send(1, 0, 100)})
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	w.settle()
	clear(b.mem.Host)
	w.ranks[2].works(1)
	b.works(2)
	// A message of the closed domain must not fill a receive with anything else
	// than itself, nor stand in the way of the next one.
	for range 60 {
		b.PostRecv([]transport.RecvRequest{{ID: 1, Local: b.region.LKey(), Off: 4096, Len: 128}})
	}
	c := w.ranks[2]
	fill(c.mem.Host[:99], 9)
	c.post(c.send(1, 0, 99))
	w.until("a message of the living", func() bool {
		for _, r := range b.recvs {
			if r.Status == transport.StatusOK && r.Bytes == 99 {
				return true
			}
		}
		return false
	})
}

func testPeerCloses(t *testing.T, h Harness) {
	w := newWorld(t, h, 3, pageBytes, transport.DomainConfig{})
	a, b := w.ranks[0], w.ranks[1]
	a.works(1)
	// A message that waits for a receive, and writes, while the peer goes.
	a.post(a.send(1, 0, 8), a.write(1, 0, 8), a.write(1, 8, 8))
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if c := a.end(); c.Op == transport.OpSend && c.Status != transport.StatusPeerLost && c.Status != transport.StatusFlushed &&
			c.Status != transport.StatusOK { // an early completion
			t.Errorf("a send to a peer that closes ended as %+v", c)
		}
	}
	for _, wr := range []transport.WorkRequest{a.write(1, 0, 8), a.send(1, 0, 8)} {
		n, err := a.Post([]transport.WorkRequest{wr})
		switch {
		case errors.Is(err, transport.ErrPeerLost) && n == 0:
		case err != nil || n != 1:
			t.Errorf("%v to a closed peer: %d, %v", wr.Op, n, err)
		default:
			if c := a.end(); c.Status != transport.StatusPeerLost && c.Status != transport.StatusFlushed {
				t.Errorf("%v to a closed peer ended as %+v", wr.Op, c)
			}
		}
	}
	a.works(2)
	if err := a.RemovePeer(a.peers[1]); err != nil {
		t.Errorf("removing a closed peer: %v", err)
	}
}

// testReopened opens a rank again after closing it: another address, and the
// old one does not lead to the new domain.
func testReopened(t *testing.T, h Harness) {
	w := newWorld(t, h, 2, pageBytes, transport.DomainConfig{})
	a, b := w.ranks[0], w.ranks[1]
	oldAddr, oldKey, old := b.Addr(), b.region.RemoteKey(), a.write(1, 0, 8)
	b.Close()
	w.ranks = w.ranks[:1]
	b = w.add(h.Open(t, 1, 0, transport.DomainConfig{}), pageBytes)
	if string(b.Addr()) == string(oldAddr) {
		t.Fatal("the reopened domain has its old address")
	}
	fill(a.mem.Host[:8], 1)
	if n, err := a.Post([]transport.WorkRequest{old}); n == 1 {
		if c := a.end(); c.Status == transport.StatusOK {
			t.Error("a write to the former life succeeded")
		}
	} else if !errors.Is(err, transport.ErrPeerLost) {
		t.Errorf("a write to the former life: %v", err)
	}
	w.join()
	if rem, err := a.Import(a.peers[1], oldKey, pageBytes); err == nil {
		wr := a.write(1, 0, 8)
		wr.Remote = rem
		a.post(wr)
		if c := a.end(); h.NoRemoteErrors == "" && c.Status != transport.StatusRemoteAccess {
			t.Errorf("a key of the former life ended as %+v", c)
		}
	}
	w.settle()
	if err := untouched(b.mem.Host); err != nil {
		t.Error(err)
	}
	a.works(1)
}

func testSeveralNICs(t *testing.T, h Harness) {
	if h.NICs < 2 {
		t.Skip("the provider opens one NIC for a rank (Harness.NICs)")
	}
	n := min(h.NICs, 4)
	w := &world{t: t, h: h}
	for rank := range 2 {
		for nic := range n {
			w.add(h.Open(t, rank, nic, transport.DomainConfig{}), pageBytes)
		}
	}
	w.join()
	for nic := range n {
		a, b := w.ranks[nic], w.ranks[n+nic]
		fill(a.mem.Host[:64], nic)
		a.post(a.write(n+nic, 0, 64))
		a.ok(0, transport.OpWrite, a.peers[n+nic], 64)
		w.until("payload", func() bool { return same(b.mem.Host[:64], nic) == nil })
	}
	// Whatever is of another NIC is refused.
	a, b := w.ranks[0], w.ranks[1]
	wr := a.write(n, 0, 8)
	for name, change := range map[string]func(*transport.WorkRequest){
		"peer":   func(wr *transport.WorkRequest) { wr.Peer = b.peers[n] },
		"local":  func(wr *transport.WorkRequest) { wr.Local = b.region.LKey() },
		"remote": func(wr *transport.WorkRequest) { wr.Remote = b.remote[n] },
	} {
		bad := wr
		change(&bad)
		t.Run(name+" of another NIC", func(*testing.T) { a.refused(bad, transport.ErrBadHandle) })
	}
	for i, r := range w.ranks {
		if got, want := r.Stats().Messages, uint64(1); i < n && h.Approximate == "" && got != want {
			t.Errorf("NIC %d counts %d messages, want %d", i, got, want)
		}
	}
}

func testMapRemote(t *testing.T, h Harness) {
	w := newWorld(t, h, 2, pageBytes, transport.DomainConfig{})
	a, b := w.ranks[0], w.ranks[1]
	mm, ok := a.Domain.(transport.MemoryMapper)
	if !ok || !a.Limits().SharesMemory {
		t.Skip("peers' memory can not be mapped (Limits.SharesMemory)")
	}
	m, err := mm.MapRemote(a.remote[1])
	if err != nil {
		t.Fatal(err)
	}
	if m.Size != pageBytes || len(m.Host) != pageBytes {
		t.Fatalf("mapped %d bytes, the region has %d", len(m.Host), pageBytes)
	}
	m.Host[77] = 5
	b.mem.Host[78] = 6
	if b.mem.Host[77] != 5 || m.Host[78] != 6 {
		t.Error("the mapping is not the peer's memory")
	}
	if _, err := mm.MapRemote(b.remote[0]); !errors.Is(err, transport.ErrBadHandle) {
		t.Errorf("mapping a foreign handle: %v", err)
	}
}

func testWake(t *testing.T, h Harness) {
	w := newWorld(t, h, 2, pageBytes, transport.DomainConfig{})
	a, b := w.ranks[0], w.ranks[1]
	waker, ok := b.Domain.(transport.Waker)
	if !ok {
		t.Skip("the domain is no transport.Waker")
	}
	h.needImm(t, a)
	var woken atomic.Int32
	waker.SetWake(func() { woken.Add(1) })
	a.post(a.writeImm(1, 0, 8, 1))
	// Only the sender polls: b is parked.
	w.ranks = w.ranks[:1]
	w.until("wake", func() bool { return woken.Load() > 0 })
	w.ranks = append(w.ranks, b)
	b.imm()
}

func testAllocatesNothing(t *testing.T, h Harness) {
	if h.Allocates != "" {
		t.Skip("posting or polling may allocate: " + h.Allocates)
	}
	w := newWorld(t, h, 2, pageBytes, transport.DomainConfig{})
	a, b := w.ranks[0], w.ranks[1]
	tp := a.template(1)
	ops := []transport.ScatterOp{{Len: 64, NoImm: a.Limits().ImmBytes == 0}, {Len: 64, NoImm: true}}
	wrs := []transport.WorkRequest{a.write(1, 0, 64), a.write(1, 64, 8), a.send(1, 0, 64)}
	wrs[1].Inline = a.Limits().MaxInline >= 8
	rrs := []transport.RecvRequest{{Local: b.region.LKey(), Off: 128, Len: 64}}
	if a.Limits().Read {
		rd := a.write(1, 0, 64)
		rd.Op = transport.OpRead
		wrs = append(wrs, rd)
	}
	want := len(ops) + len(wrs) + 1 // ends and the receive
	if !ops[0].NoImm {
		want++
	}
	turn := func() {
		if _, err := b.PostRecv(rrs); err != nil {
			t.Fatal(err)
		}
		if n, err := a.PostScatter(tp, 1, ops); n != len(ops) || err != nil {
			t.Fatal(n, err)
		}
		if n, err := a.Post(wrs); n != len(wrs) || err != nil {
			t.Fatal(n, err)
		}
		for got := 0; got < want; {
			na, err1 := a.Poll(a.out[:])
			nb, err2 := b.Poll(b.out[:])
			if err1 != nil || err2 != nil {
				t.Fatal(err1, err2)
			}
			if got += na + nb; na+nb == 0 {
				w.idle()
			}
		}
	}
	for range 100 {
		turn()
	}
	if n := testing.AllocsPerRun(200, turn); n != 0 {
		t.Errorf("%v allocations for a turn of posts and polls", n)
	}
}

func testStats(t *testing.T, h Harness) {
	if h.Approximate != "" {
		t.Skip("statistics are not exact: " + h.Approximate)
	}
	w := newWorld(t, h, 3, pageBytes, transport.DomainConfig{})
	a := w.ranks[0]
	l := a.Limits()
	wrs := []transport.WorkRequest{a.write(1, 0, 100), a.write(2, 0, 11), a.write(1, 0, 0), a.send(2, 0, 33)}
	w.ranks[2].recv(1, 512, 64)
	want := transport.Stats{Messages: 4, Bytes: 100 + 11 + 33}
	imms := 0
	if l.ImmBytes > 0 {
		wrs = append(wrs, a.writeImm(1, 0, 1000, 1), a.writeImm(1, 0, 0, 2))
		want.Messages, want.Bytes, want.ImmsSent = want.Messages+2, want.Bytes+1000, 2
		imms = 2
	}
	if l.Read {
		rd := a.write(2, 0, 500)
		rd.Op = transport.OpRead
		wrs = append(wrs, rd)
		want.Messages, want.Bytes = want.Messages+1, want.Bytes+500
	}
	if l.Atomic {
		fa := a.write(2, 0, 8)
		fa.Op = transport.OpFetchAdd
		wrs = append(wrs, fa)
		want.Messages, want.Bytes = want.Messages+1, want.Bytes+8
	}
	a.post(wrs...)
	for range wrs {
		if c := a.end(); c.Status != transport.StatusOK {
			t.Fatalf("completion %+v", c)
		}
	}
	w.until("immediates", func() bool { return len(w.ranks[1].imms) == imms })
	w.ranks[2].received()
	w.until("counters", func() bool {
		got := a.Stats()
		return got.Messages == want.Messages && got.Bytes == want.Bytes && got.ImmsSent == want.ImmsSent
	})
	w.settle()
	got := a.Stats()
	if got.Messages != want.Messages || got.Bytes != want.Bytes || got.ImmsSent != want.ImmsSent {
		t.Errorf("counted %+v, want messages, bytes and immediates of %+v", got, want)
	}
	if got.Doorbells == 0 || got.Registrations == 0 || got.StaleWrites != 0 {
		t.Errorf("counted %+v", got)
	}
	if n := w.ranks[1].Stats().ImmsReceived; n != uint64(imms) {
		t.Errorf("rank 1 counts %d immediates, %d came", n, imms)
	}
	for i, r := range w.ranks[1:] {
		if s := r.Stats(); s.Messages != 0 || s.Bytes != 0 {
			t.Errorf("rank %d started nothing and counts %+v", i+1, s)
		}
	}
}
