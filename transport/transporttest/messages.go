package transporttest

import (
	"errors"
	"fmt"
	"testing"

	"moerail/transport"
)

// recv posts a receive of n bytes at off of r's region.
func (r *rank) recv(id transport.WRID, off, n uint64) {
	r.w.t.Helper()
	if _, err := r.PostRecv([]transport.RecvRequest{{ID: id, Local: r.region.LKey(), Off: off, Len: n}}); err != nil {
		r.w.t.Fatalf("post receive: %v", err)
	}
}

// received waits for the next filled receive.
func (r *rank) received() transport.Completion {
	r.w.t.Helper()
	r.w.until("message", func() bool { return len(r.recvs) > 0 })
	c := r.recvs[0]
	r.recvs = r.recvs[1:]
	return c
}

// send is a send of n bytes at off of r's region to rank o.
func (r *rank) send(o int, off, n uint64) transport.WorkRequest {
	return transport.WorkRequest{Op: transport.OpSend, Peer: r.peers[o], Local: r.region.LKey(), LocalOff: off, Len: n}
}

func testMessageSizes(t *testing.T, h Harness) {
	for _, n := range []uint64{0, 1, 1023, 1024, 1025, 65536} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			w := newWorld(t, h, 2, n+128, transport.DomainConfig{})
			a, b := w.ranks[0], w.ranks[1]
			if l := a.Limits().MaxRecvSize; l > 0 && n > l {
				t.Skipf("messages have at most %d bytes (Limits.MaxRecvSize)", l)
			}
			fill(a.mem.Host[8:8+n], 3)
			b.recv(7, 32, n) // an exact fit
			wr := a.send(1, 8, n)
			wr.ID = 6
			a.post(wr)
			c := b.received()
			if c.ID != 7 || c.Status != transport.StatusOK || c.Bytes != n {
				t.Fatalf("receive ended as %+v", c)
			}
			if c.Peer != transport.NoPeer && c.Peer != b.peers[0] {
				t.Errorf("receive names peer %#x, want %#x or NoPeer", c.Peer, b.peers[0])
			}
			if err := same(b.mem.Host[32:32+n], 3); err != nil {
				t.Fatal(err)
			}
			a.ok(6, transport.OpSend, a.peers[1], n)
			if untouched(b.mem.Host[:32]) != nil || untouched(b.mem.Host[32+n:]) != nil {
				t.Error("bytes beside the receive buffer were written")
			}
		})
	}
}

func testMessageBeforeReceive(t *testing.T, h Harness) {
	const n = 200
	w := newWorld(t, h, 2, pageBytes, transport.DomainConfig{})
	a, b := w.ranks[0], w.ranks[1]
	fill(a.mem.Host[:n], 1)
	a.post(a.send(1, 0, n))
	w.settle()
	if len(b.recvs) > 0 {
		t.Fatal("a message arrived without a receive")
	}
	b.recv(1, 0, pageBytes)
	if c := b.received(); c.ID != 1 || c.Bytes != n || c.Status != transport.StatusOK {
		t.Fatalf("receive ended as %+v", c)
	}
	if err := same(b.mem.Host[:n], 1); err != nil {
		t.Error(err)
	}
	if c := a.end(); c.Status != transport.StatusOK {
		t.Errorf("the send ended as %+v", c)
	}
}

// testMessageSourceClosed closes the region of a message that waits for a
// receive, and uses the memory for something else: what arrives, if anything
// does, is what was sent.
func testMessageSourceClosed(t *testing.T, h Harness) {
	w := newWorld(t, h, 2, pageBytes, transport.DomainConfig{})
	a, b := w.ranks[0], w.ranks[1]
	m := h.Alloc(t, pageBytes)
	r, err := a.Register(m, transport.AccessLocal)
	if err != nil {
		t.Fatal(err)
	}
	fill(m.Host[:100], 1)
	wr := a.send(1, 0, 100)
	wr.Local = r.LKey()
	a.post(wr)
	w.settle()
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	fill(m.Host[:100], 2)
	b.recv(1, 0, 100)
	if c := a.end(); c.Status != transport.StatusOK && c.Status != transport.StatusFlushed {
		t.Errorf("the send ended as %+v", c)
	}
	w.settle()
	for _, c := range b.recvs {
		if c.Status == transport.StatusOK && same(b.mem.Host[:100], 1) != nil {
			t.Errorf("a message arrived that was never sent: %v", same(b.mem.Host[:100], 1))
		}
	}
	if len(b.recvs) == 0 { // the receive is for the next message
		fill(a.mem.Host[:50], 3)
		a.post(a.send(1, 0, 50))
		if c := b.received(); c.Status != transport.StatusOK || same(b.mem.Host[:50], 3) != nil {
			t.Errorf("the next message ended as %+v", c)
		}
	}
}

func testMessageTruncated(t *testing.T, h Harness) {
	w := newWorld(t, h, 2, pageBytes, transport.DomainConfig{})
	a, b := w.ranks[0], w.ranks[1]
	fill(a.mem.Host[:100], 1)
	b.recv(1, 0, 99)
	a.post(a.send(1, 0, 100))
	if c := b.received(); c.ID != 1 || c.Status != transport.StatusTruncated || c.Bytes > 99 {
		t.Fatalf("receive of 99 bytes ended as %+v for a message of 100", c)
	}
	if err := untouched(b.mem.Host[99:]); err != nil {
		t.Errorf("beyond the receive buffer: %v", err)
	}
	if c := a.end(); c.Status != transport.StatusOK && c.Status != transport.StatusTruncated {
		t.Errorf("the send ended as %+v", c)
	}
	fill(a.mem.Host[:100], 2)
	b.recv(2, 1024, 100)
	a.post(a.send(1, 0, 100))
	if c := b.received(); c.ID != 2 || c.Status != transport.StatusOK || same(b.mem.Host[1024:1124], 2) != nil {
		t.Errorf("the next message ended as %+v", c)
	}
}

func testReceiveDepth(t *testing.T, h Harness) {
	w := newWorld(t, h, 2, pageBytes, transport.DomainConfig{MaxRecv: 4})
	b := w.ranks[1]
	depth := b.Limits().MaxRecv
	rrs := make([]transport.RecvRequest, depth+3)
	for i := range rrs {
		rrs[i] = transport.RecvRequest{ID: transport.WRID(i), Local: b.region.LKey(), Len: 8}
	}
	n, err := b.PostRecv(rrs)
	if n != depth || !errors.Is(err, transport.ErrAgain) {
		t.Fatalf("posting %d receives took %d, %v; want %d and ErrAgain", len(rrs), n, err, depth)
	}
	a := w.ranks[0]
	for i := range depth {
		a.post(a.send(1, 0, 8))
		if c := b.received(); c.ID != transport.WRID(i) {
			t.Fatalf("receive %d was filled, want %d", c.ID, i)
		}
	}
	if n, err := b.PostRecv(rrs[:1]); n != 1 || err != nil {
		t.Errorf("a receive after draining: %d, %v", n, err)
	}
	bad := rrs[0]
	bad.Off, bad.Len = pageBytes-7, 8
	if n, err := b.PostRecv([]transport.RecvRequest{bad}); n != 0 || !errors.Is(err, transport.ErrOutOfRange) {
		t.Errorf("a receive past the region's end: %d, %v", n, err)
	}
	if n, err := b.PostRecv([]transport.RecvRequest{{Local: a.region.LKey(), Len: 8}}); n != 0 || !errors.Is(err, transport.ErrBadHandle) {
		t.Errorf("a receive into another domain's region: %d, %v", n, err)
	}
}
