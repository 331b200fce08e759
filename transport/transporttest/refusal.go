package transporttest

import (
	"bytes"
	"errors"
	"testing"

	"moerail/transport"
)

// refused posts wr, which must be refused with want and leave nothing behind.
func (r *rank) refused(wr transport.WorkRequest, want error) {
	r.w.t.Helper()
	if n, err := r.Post([]transport.WorkRequest{wr}); n != 0 || !errors.Is(err, want) {
		r.w.t.Errorf("%v of %d bytes, local offset %d, remote offset %d: took %d, %v; want %v",
			wr.Op, wr.Len, wr.LocalOff, wr.RemoteOff, n, err, want)
	}
}

// works proves that the pair still works, by a write from r to rank o.
func (r *rank) works(o int) {
	r.w.t.Helper()
	b := r.w.ranks[o]
	old := bytes.Clone(b.mem.Host[:64])
	fill(r.mem.Host[:64], 99)
	r.post(r.write(o, 0, 64))
	if c := r.end(); c.Status != transport.StatusOK {
		r.w.t.Fatalf("the next write ended as %+v", c)
	}
	r.w.until("the next write", func() bool { return same(b.mem.Host[:64], 99) == nil })
	copy(b.mem.Host, old)
}

func testOutOfRange(t *testing.T, h Harness) {
	const size = pageBytes
	w := newWorld(t, h, 2, size, transport.DomainConfig{})
	a, b := w.ranks[0], w.ranks[1]
	fill(a.mem.Host, 1)
	for _, c := range []struct{ local, remote, n uint64 }{
		{size - 7, 0, 8},
		{0, size - 7, 8},
		{0, 0, size + 1},
		{size, 0, 1},
		{0, size, 1},
		{size + 1, 0, 0},
		{0, size + 1, 0},
		{1 << 63, 0, 8},
		{0, ^uint64(0), 1},
		{0, ^uint64(0) - 7, 8},
		{8, 0, ^uint64(0) - 3},
	} {
		for _, op := range []transport.Opcode{transport.OpWrite, transport.OpWriteImm, transport.OpRead} {
			if op == transport.OpWriteImm && a.Limits().ImmBytes == 0 || op == transport.OpRead && !a.Limits().Read {
				continue
			}
			wr := a.write(1, 0, c.n)
			wr.Op, wr.LocalOff, wr.RemoteOff = op, c.local, c.remote
			a.refused(wr, transport.ErrOutOfRange)
		}
	}
	send := a.send(1, size-7, 8)
	a.refused(send, transport.ErrOutOfRange)
	w.settle()
	if err := untouched(b.mem.Host); err != nil {
		t.Error(err)
	}
	if err := same(a.mem.Host, 1); err != nil {
		t.Errorf("a refused read wrote: %v", err)
	}
	if len(a.ends)+len(b.imms)+len(b.recvs) > 0 {
		t.Errorf("refused requests had an effect: %v %v %v", a.ends, b.imms, b.recvs)
	}
	// The very last byte is fine.
	wr := a.write(1, size-1, 1)
	a.post(wr)
	w.until("last byte", func() bool { return b.mem.Host[size-1] == a.mem.Host[size-1] })
	a.ok(0, transport.OpWrite, a.peers[1], 1)
	a.works(1)
}

func testForeignHandles(t *testing.T, h Harness) {
	w := newWorld(t, h, 3, pageBytes, transport.DomainConfig{})
	a, b := w.ranks[0], w.ranks[1]
	set := func(change func(*transport.WorkRequest)) transport.WorkRequest {
		wr := a.write(1, 0, 8)
		change(&wr)
		return wr
	}
	for name, wr := range map[string]transport.WorkRequest{
		"NoPeer":                 set(func(w *transport.WorkRequest) { w.Peer = transport.NoPeer }),
		"huge peer":              set(func(w *transport.WorkRequest) { w.Peer = 1<<31 - 1 }),
		"foreign peer":           set(func(w *transport.WorkRequest) { w.Peer = b.peers[1] }),
		"foreign local":          set(func(w *transport.WorkRequest) { w.Local = b.region.LKey() }),
		"NoKey with bytes":       set(func(w *transport.WorkRequest) { w.Local = transport.NoKey }),
		"foreign remote":         set(func(w *transport.WorkRequest) { w.Remote = b.remote[1] }),
		"NoRemote with bytes":    set(func(w *transport.WorkRequest) { w.Remote = transport.NoRemote }),
		"remote of another peer": set(func(w *transport.WorkRequest) { w.Remote = a.remote[2] }),
	} {
		t.Run(name, func(*testing.T) { a.refused(wr, transport.ErrBadHandle) })
	}
	for name, err := range map[string]error{
		"RemovePeer":   a.RemovePeer(b.peers[0]),
		"Release":      a.Release(b.remote[0]),
		"FreeTemplate": a.FreeTemplate(12345),
	} {
		if !errors.Is(err, transport.ErrBadHandle) {
			t.Errorf("%s of a foreign handle: %v", name, err)
		}
	}
	if _, err := a.Import(b.peers[2], b.region.RemoteKey(), b.region.Size()); !errors.Is(err, transport.ErrBadHandle) {
		t.Errorf("import for a foreign peer: %v", err)
	}
	if err := a.Release(a.remote[2]); err != nil {
		t.Fatal(err)
	}
	a.refused(a.write(2, 0, 8), transport.ErrBadHandle)
	if err := a.Release(a.remote[2]); !errors.Is(err, transport.ErrBadHandle) {
		t.Errorf("releasing twice: %v", err)
	}
	w.settle()
	for _, r := range w.ranks {
		if err := untouched(r.mem.Host); err != nil {
			t.Error(err)
		}
	}
	a.works(1)
}

func testBadRequests(t *testing.T, h Harness) {
	w := newWorld(t, h, 2, pageBytes, transport.DomainConfig{})
	a := w.ranks[0]
	for _, op := range []transport.Opcode{0, transport.OpRecv, transport.OpImm, 77} {
		wr := a.write(1, 0, 8)
		wr.Op = op
		a.refused(wr, transport.ErrUnsupported)
	}
	l := a.Limits()
	for op, has := range map[transport.Opcode]bool{
		transport.OpWriteImm: l.ImmBytes > 0, transport.OpRead: l.Read,
		transport.OpCompareSwap: l.Atomic, transport.OpFetchAdd: l.Atomic,
	} {
		if !has {
			wr := a.write(1, 0, 8)
			wr.Op = op
			a.refused(wr, transport.ErrUnsupported)
		}
	}
	if n, err := a.Post(nil); n != 0 || err != nil {
		t.Errorf("posting nothing: %d, %v", n, err)
	}
	if n, err := a.PostRecv(nil); n != 0 || err != nil {
		t.Errorf("posting no receive: %d, %v", n, err)
	}
	if n, err := a.Poll(nil); n != 0 || err != nil {
		t.Errorf("polling into nothing: %d, %v", n, err)
	}
	// What comes before the bad one is taken, what comes after is not.
	bad := a.write(1, pageBytes, 8)
	n, err := a.Post([]transport.WorkRequest{a.write(1, 0, 8), bad, a.write(1, 0, 8)})
	if n != 1 || !errors.Is(err, transport.ErrOutOfRange) {
		t.Errorf("a bad request between two good ones: took %d, %v", n, err)
	}
	a.end()
	w.settle()
	if len(a.ends) > 0 {
		t.Errorf("completions too many: %v", a.ends)
	}
	a.works(1)
}

// second registers a second region of rank 1 and imports it at rank 0.
func second(w *world, access transport.Access) (transport.Memory, transport.Region, transport.Remote) {
	w.t.Helper()
	a, b := w.ranks[0], w.ranks[1]
	m := w.h.Alloc(w.t, pageBytes)
	r, err := b.Register(m, access)
	if err != nil {
		w.t.Fatalf("register: %v", err)
	}
	rem, err := a.Import(a.peers[1], r.RemoteKey(), r.Size())
	if err != nil {
		w.t.Fatalf("import: %v", err)
	}
	return m, r, rem
}

// remotelyRefused posts wr, which the target must refuse.
func (r *rank) remotelyRefused(what string, wr transport.WorkRequest) {
	r.w.t.Helper()
	r.post(wr)
	if c := r.end(); c.Status != transport.StatusRemoteAccess || c.Op != wr.Op || c.ID != wr.ID {
		r.w.t.Errorf("%s: ended as %+v, want %v", what, c, transport.StatusRemoteAccess)
	}
}

func testAccessRights(t *testing.T, h Harness) {
	h.needRemoteErrors(t)
	w := newWorld(t, h, 2, pageBytes, transport.DomainConfig{})
	a, b := w.ranks[0], w.ranks[1]
	l := a.Limits()
	for access := transport.AccessLocal; access <= transport.AccessAll; access++ {
		m, _, rem := second(w, access)
		for _, c := range []struct {
			op   transport.Opcode
			need transport.Access
			has  bool
		}{
			{transport.OpWrite, transport.AccessRemoteWrite, true},
			{transport.OpWriteImm, transport.AccessRemoteWrite, l.ImmBytes > 0},
			{transport.OpRead, transport.AccessRemoteRead, l.Read},
			{transport.OpCompareSwap, transport.AccessRemoteAtomic, l.Atomic},
			{transport.OpFetchAdd, transport.AccessRemoteAtomic, l.Atomic},
		} {
			if !c.has {
				continue
			}
			wr := a.write(1, 0, 8)
			wr.Op, wr.Remote, wr.ID, wr.Operand = c.op, rem, 5, 1
			if access&c.need == 0 {
				a.remotelyRefused(c.op.String(), wr)
				continue
			}
			a.post(wr)
			a.ok(5, c.op, a.peers[1], 8)
		}
		if access&(transport.AccessRemoteWrite|transport.AccessRemoteAtomic) == 0 {
			w.settle()
			if err := untouched(m.Host); err != nil {
				t.Errorf("access %#x: %v", access, err)
			}
		}
	}
	w.settle()
	if want := 4; l.ImmBytes > 0 && len(b.imms) != want {
		t.Errorf("%d immediates arrived, want only the %d of allowed writes", len(b.imms), want)
	}
	a.works(1)
}

func testRevokedRegion(t *testing.T, h Harness) {
	w := newWorld(t, h, 2, pageBytes, transport.DomainConfig{})
	a, b := w.ranks[0], w.ranks[1]
	m, r, rem := second(w, transport.AccessAll)
	wr := a.write(1, 0, 64)
	wr.Remote = rem
	fill(a.mem.Host[:64], 1)
	a.post(wr)
	a.ok(0, transport.OpWrite, a.peers[1], 64)
	w.until("payload", func() bool { return same(m.Host[:64], 1) == nil })
	for range 2 { // closing twice is harmless
		if err := r.Close(); err != nil {
			t.Fatalf("close region: %v", err)
		}
	}
	if _, err := b.Post([]transport.WorkRequest{{Op: transport.OpWrite, Peer: b.peers[0], Local: r.LKey(), Remote: b.remote[0], Len: 8}}); !errors.Is(err, transport.ErrBadHandle) {
		t.Errorf("posting from a closed region: %v", err)
	}
	h.needRemoteErrors(t)
	fill(a.mem.Host[:64], 2)
	for _, op := range []transport.Opcode{transport.OpWrite, transport.OpWriteImm, transport.OpRead} {
		if op == transport.OpWriteImm && a.Limits().ImmBytes == 0 || op == transport.OpRead && !a.Limits().Read {
			continue
		}
		wr.Op = op
		a.remotelyRefused(op.String()+" to a revoked region", wr)
	}
	// A new region over the same memory has another key.
	again, err := b.Register(m, transport.AccessAll)
	if err != nil {
		t.Fatal(err)
	}
	wr.Op = transport.OpWrite
	a.remotelyRefused("the old key after a new registration", wr)
	if err := same(m.Host[:64], 1); err != nil {
		t.Errorf("the revoked region was written: %v", err)
	}
	if len(b.imms) > 0 {
		t.Errorf("a refused write delivered its immediate: %v", b.imms)
	}
	if wr.Remote, err = a.Import(a.peers[1], again.RemoteKey(), again.Size()); err != nil {
		t.Fatal(err)
	}
	a.post(wr)
	a.ok(0, transport.OpWrite, a.peers[1], 64)
	w.until("payload by the new key", func() bool { return same(m.Host[:64], 2) == nil })
	a.works(1)
}

func testForeignKey(t *testing.T, h Harness) {
	w := newWorld(t, h, 3, pageBytes, transport.DomainConfig{})
	a, c := w.ranks[0], w.ranks[2]
	rem, err := a.Import(a.peers[1], c.region.RemoteKey(), c.region.Size())
	if err != nil {
		if !errors.Is(err, transport.ErrBadKey) {
			t.Errorf("import another NIC's key: %v, want ErrBadKey", err)
		}
	} else {
		h.needRemoteErrors(t)
		wr := a.write(1, 0, 8)
		wr.Remote = rem
		fill(a.mem.Host[:8], 1)
		a.remotelyRefused("another NIC's key", wr)
	}
	for _, r := range w.ranks[1:] {
		if err := untouched(r.mem.Host); err != nil {
			t.Error(err)
		}
	}
	a.works(1)
	a.works(2)
}
