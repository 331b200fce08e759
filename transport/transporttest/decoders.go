package transporttest

import (
	"bytes"
	"errors"
	"testing"

	"moerail/transport"
)

func testBadAddresses(t *testing.T, h Harness) {
	w := newWorld(t, h, 2, pageBytes, transport.DomainConfig{})
	a, b := w.ranks[0], w.ranks[1]
	good := b.Addr()
	for name, addr := range map[string]transport.Address{
		"nil":       nil,
		"one byte":  {1},
		"zeroes":    make(transport.Address, len(good)),
		"ones":      bytes.Repeat([]byte{0xff}, len(good)),
		"truncated": good[:len(good)-1],
		"too long":  append(bytes.Clone(good), make([]byte, transport.MaxAddressBytes)...),
	} {
		if p, err := a.AddPeer(addr); !errors.Is(err, transport.ErrBadAddress) {
			t.Errorf("%s: peer %#x, %v; want ErrBadAddress", name, p, err)
		}
	}
	for i := range good {
		bad := bytes.Clone(good)
		bad[i] ^= 0x55
		if p, err := a.AddPeer(bad); err == nil && p == a.peers[1] {
			t.Errorf("byte %d altered: still the same peer", i)
		} else if err == nil {
			a.RemovePeer(p)
		}
	}
	a.works(1)
}

func testBadKeys(t *testing.T, h Harness) {
	w := newWorld(t, h, 2, pageBytes, transport.DomainConfig{})
	a, b := w.ranks[0], w.ranks[1]
	good, size := b.region.RemoteKey(), b.region.Size()
	for name, c := range map[string]struct {
		key  transport.RemoteKey
		size uint64
	}{
		"nil":        {nil, size},
		"one byte":   {transport.RemoteKey{1}, size},
		"zeroes":     {make([]byte, len(good)), size},
		"truncated":  {good[:len(good)-1], size},
		"longer":     {append(bytes.Clone(good), 0), size},
		"too long":   {make([]byte, transport.MaxKeyBytes+1), size},
		"size 0":     {good, 0},
		"size + 1":   {good, size + 1},
		"size is -1": {good, ^uint64(0)},
	} {
		if r, err := a.Import(a.peers[1], c.key, c.size); !errors.Is(err, transport.ErrBadKey) {
			t.Errorf("%s: remote %#x, %v; want ErrBadKey", name, r, err)
		}
	}
	a.works(1)
}

// testAlteredKeys alters every byte of a good key. Each is refused at import, or
// else by the target, or has altered nothing that matters; none may write what
// the good key does not give.
func testAlteredKeys(t *testing.T, h Harness) {
	h.needRemoteErrors(t)
	w := newWorld(t, h, 2, pageBytes, transport.DomainConfig{})
	a, b := w.ranks[0], w.ranks[1]
	m, r, _ := second(w, transport.AccessAll)
	good := r.RemoteKey()
	fill(a.mem.Host[:64], 1)
	for i := range good[:min(len(good), 128)] {
		for _, flip := range []byte{1, 0x80, 0xff} {
			bad := bytes.Clone(good)
			bad[i] ^= flip
			rem, err := a.Import(a.peers[1], bad, r.Size())
			if err != nil {
				if !errors.Is(err, transport.ErrBadKey) {
					t.Errorf("byte %d: %v, want ErrBadKey", i, err)
				}
				continue
			}
			wr := a.write(1, 0, 64)
			wr.Remote = rem
			a.post(wr)
			switch c := a.end(); c.Status {
			case transport.StatusRemoteAccess:
			case transport.StatusOK:
				w.until("payload", func() bool { return same(m.Host[:64], 1) == nil })
				clear(m.Host[:64])
			default:
				t.Errorf("byte %d ^ %#x: a write by an altered key ended as %v", i, flip, c.Status)
			}
			a.Release(rem)
		}
	}
	w.settle()
	if err := errors.Join(untouched(m.Host), untouched(b.mem.Host)); err != nil {
		t.Error(err)
	}
	a.works(1)
}

func testBadRegistrations(t *testing.T, h Harness) {
	w := newWorld(t, h, 2, pageBytes, transport.DomainConfig{})
	a := w.ranks[0]
	m := h.Alloc(t, pageBytes)
	for name, c := range map[string]struct {
		m      transport.Memory
		access transport.Access
	}{
		"nothing":        {transport.Memory{FD: -1}, transport.AccessAll},
		"size too large": {transport.Memory{Host: m.Host, FD: m.FD, Size: m.Size + 1}, transport.AccessAll},
		"unknown kind":   {transport.Memory{Kind: 9, Host: m.Host, FD: m.FD, Size: m.Size}, transport.AccessAll},
		"unknown access": {m, 0x80},
	} {
		if r, err := a.Register(c.m, c.access); !errors.Is(err, transport.ErrRegister) {
			t.Errorf("%s: %v, %v; want ErrRegister", name, r, err)
		}
	}
	a.works(1)
}

// testSeams writes across each seam of a region of 5.5 device registrations.
func testSeams(t *testing.T, h Harness) {
	probe := newWorld(t, h, 1, pageBytes, transport.DomainConfig{}).ranks[0]
	piece := probe.Limits().MaxRegion
	if piece == 0 {
		t.Skip("regions are not split (Limits.MaxRegion is 0)")
	}
	size := piece*5 + piece/2
	if size > h.MaxBytes {
		t.Skipf("a region of 5.5 pieces has %d bytes (Limits.MaxRegion %d), more than this run tries", size, piece)
	}
	w := newWorld(t, h, 2, size, transport.DomainConfig{})
	a, b := w.ranks[0], w.ranks[1]
	fill(a.mem.Host, 1)
	type span struct{ off, n uint64 }
	spans := []span{{size - 1, 1}, {0, 1}}
	for seam := piece; seam < size; seam += piece {
		spans = append(spans, span{seam - 1, 2}, span{seam - 37, 100}, span{seam - 8, 8}, span{seam, 8})
	}
	spans = append(spans, span{piece - 5, 3*piece + 10})
	want := make([]byte, size)
	for i, s := range spans {
		copy(want[s.off:s.off+s.n], a.mem.Host[s.off:])
		wr := a.write(1, s.off, s.n)
		wr.ID = transport.WRID(i)
		a.post(wr)
		a.ok(wr.ID, transport.OpWrite, a.peers[1], s.n)
	}
	w.until("all spans", func() bool { return bytes.Equal(b.mem.Host, want) })
	if a.Limits().Read {
		clear(a.mem.Host)
		for i, s := range spans {
			wr := a.write(1, s.off, s.n)
			wr.Op, wr.ID = transport.OpRead, transport.WRID(i)
			a.post(wr)
			a.ok(wr.ID, transport.OpRead, a.peers[1], s.n)
		}
		if !bytes.Equal(a.mem.Host, want) {
			t.Error("reads across seams differ")
		}
	}
	a.refused(a.write(1, size-1, 2), transport.ErrOutOfRange)
}
