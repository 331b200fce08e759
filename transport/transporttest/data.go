package transporttest

import (
	"fmt"
	"testing"

	"moerail/internal/mem"
	"moerail/transport"
)

func testIdentity(t *testing.T, h Harness) {
	w := newWorld(t, h, 2, pageBytes, transport.DomainConfig{})
	a, b := w.ranks[0], w.ranks[1]
	if a.Name() == "" {
		t.Error("the domain has no name")
	}
	for _, r := range w.ranks {
		if n := len(r.Addr()); n == 0 || n > transport.MaxAddressBytes {
			t.Errorf("address of %d bytes, want 1 to %d", n, transport.MaxAddressBytes)
		}
		if n := len(r.region.RemoteKey()); n == 0 || n > transport.MaxKeyBytes {
			t.Errorf("key of %d bytes, want 1 to %d", n, transport.MaxKeyBytes)
		}
		if r.region.Size() != pageBytes {
			t.Errorf("region of %d bytes, registered %d", r.region.Size(), pageBytes)
		}
	}
	if string(a.Addr()) == string(b.Addr()) {
		t.Error("two domains share an address")
	}
	if p, err := a.AddPeer(b.Addr()); err != nil || p != a.peers[1] {
		t.Errorf("adding the same address again gives %#x, %v, want %#x", p, err, a.peers[1])
	}
	if l := a.Limits(); l.MaxSend < 1 || l.MaxRecv < 1 || l.ImmBytes > 0 && l.ImmBytes < 4 {
		t.Errorf("limits %+v", l)
	}
}

func testWriteSizes(t *testing.T, h Harness) {
	sizes := []uint64{0, 1, 7, 8, 255, 4096, 65536, 1<<20 + 3}
	if !testing.Short() {
		sizes = append(sizes, 64<<20)
	}
	for _, n := range sizes {
		if n > h.MaxBytes {
			continue
		}
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			w := newWorld(t, h, 2, n+64, transport.DomainConfig{})
			a, b := w.ranks[0], w.ranks[1]
			if l := a.Limits().MaxMessage; l > 0 && n > l {
				t.Skipf("writes have at most %d bytes (Limits.MaxMessage)", l)
			}
			src, dst := a.mem.Host[32:32+n], b.mem.Host[29:29+n]
			fill(src, 1)
			wr := a.write(1, 0, n)
			wr.ID, wr.LocalOff, wr.RemoteOff = 9, 32, 29
			a.post(wr)
			a.ok(9, transport.OpWrite, a.peers[1], n)
			w.until("payload", func() bool { return same(dst, 1) == nil })
			w.settle()
			if err := untouched(b.mem.Host[:29]); err != nil {
				t.Errorf("before the target range: %v", err)
			}
			if err := untouched(b.mem.Host[29+n:]); err != nil {
				t.Errorf("after the target range: %v", err)
			}
			if len(b.imms)+len(b.recvs)+len(b.ends) > 0 {
				t.Errorf("a plain write told its target: %v %v %v", b.imms, b.recvs, b.ends)
			}
		})
	}
}

// testImmediates writes with every edge of the 32 bits, many under way at
// once, and looks at each payload the moment its immediate is polled.
func testImmediates(t *testing.T, h Harness) {
	const slot, rounds = 2048, 8
	values := []transport.Imm{0, 1, 0x7fffffff, 0x80000000, 0xffffffff}
	w := newWorld(t, h, 2, uint64(slot*len(values)), transport.DomainConfig{})
	a, b := w.ranks[0], w.ranks[1]
	h.needImm(t, a)
	for round := range rounds {
		var wrs []transport.WorkRequest
		for i, v := range values {
			fill(a.mem.Host[i*slot:(i+1)*slot], round*8+i)
			wr := a.writeImm(1, uint64(i*slot), slot, v)
			wr.ID = transport.WRID(v)
			wrs = append(wrs, wr)
		}
		a.post(wrs...)
		seen := make(map[transport.Imm]bool)
		for range values {
			c := b.imm()
			i := -1
			for k, v := range values {
				if v == c.Imm {
					i = k
				}
			}
			if i < 0 || seen[c.Imm] {
				t.Fatalf("round %d: immediate %#x was not sent, or came twice", round, c.Imm)
			}
			seen[c.Imm] = true
			if err := same(b.mem.Host[i*slot:(i+1)*slot], round*8+i); err != nil {
				t.Fatalf("round %d: immediate %#x came before its payload: %v", round, c.Imm, err)
			}
		}
		for range values {
			if c := a.end(); c.Status != transport.StatusOK || c.Op != transport.OpWriteImm || c.Bytes != slot {
				t.Fatalf("round %d: completion %+v", round, c)
			}
		}
	}
	w.settle()
	if len(b.imms) > 0 {
		t.Errorf("immediates too many: %v", b.imms)
	}
}

func testEmptyWriteImm(t *testing.T, h Harness) {
	w := newWorld(t, h, 2, pageBytes, transport.DomainConfig{})
	a, b := w.ranks[0], w.ranks[1]
	h.needImm(t, a)
	named := a.writeImm(1, pageBytes, 0, 3) // empty, at the very end
	bare := transport.WorkRequest{Op: transport.OpWriteImm, Peer: a.peers[1], Local: transport.NoKey, Remote: transport.NoRemote, Imm: 4}
	for _, wr := range []transport.WorkRequest{named, bare} {
		a.post(wr)
		if c := b.imm(); c.Imm != wr.Imm {
			t.Fatalf("immediate %d, want %d", c.Imm, wr.Imm)
		}
		a.ok(0, transport.OpWriteImm, a.peers[1], 0)
	}
	if err := untouched(b.mem.Host); err != nil {
		t.Error(err)
	}
}

// testInline changes the source right after Post, which inline allows.
func testInline(t *testing.T, h Harness) {
	w := newWorld(t, h, 2, pageBytes, transport.DomainConfig{})
	a, b := w.ranks[0], w.ranks[1]
	max := a.Limits().MaxInline
	if max == 0 {
		t.Skip("the provider takes nothing inline (Limits.MaxInline is 0)")
	}
	n := uint64(min(max, 64))
	fill(a.mem.Host[:n], 5)
	wr := a.write(1, 0, n)
	wr.Inline = true
	a.post(wr)
	fill(a.mem.Host[:n], 6)
	w.until("payload", func() bool { return same(b.mem.Host[:n], 5) == nil })
	a.ok(0, transport.OpWrite, a.peers[1], n)

	fill(a.mem.Host[:n], 7)
	b.recv(1, 1024, n)
	a.post(transport.WorkRequest{Op: transport.OpSend, Peer: a.peers[1], Local: a.region.LKey(), Len: n, Inline: true})
	fill(a.mem.Host[:n], 8)
	if c := b.received(); c.Bytes != n || same(b.mem.Host[1024:1024+n], 7) != nil {
		t.Errorf("inline send gave %+v, %v", c, same(b.mem.Host[1024:1024+n], 7))
	}
	a.end()

	wr.Len, wr.RemoteOff = uint64(max)+1, 0
	if wr.Len <= pageBytes {
		a.refused(wr, transport.ErrOutOfRange)
	}
}

func testRead(t *testing.T, h Harness) {
	for _, n := range []uint64{0, 1, 8, 4095, 65536, 1<<20 + 3} {
		if n > h.MaxBytes {
			continue
		}
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			w := newWorld(t, h, 2, n+64, transport.DomainConfig{})
			a, b := w.ranks[0], w.ranks[1]
			h.needRead(t, a)
			fill(b.mem.Host[16:16+n], 2)
			wr := a.write(1, 0, n)
			wr.Op, wr.ID, wr.LocalOff, wr.RemoteOff = transport.OpRead, 4, 24, 16
			a.post(wr)
			a.ok(4, transport.OpRead, a.peers[1], n)
			// A read has no other news than its completion.
			if err := same(a.mem.Host[24:24+n], 2); err != nil {
				t.Fatal(err)
			}
			if err := untouched(a.mem.Host[:24]); err != nil {
				t.Error(err)
			}
			if err := untouched(a.mem.Host[24+n:]); err != nil {
				t.Error(err)
			}
		})
	}
}

// atomic does one atomic on word 8 of rank 1 and returns what was there.
func (r *rank) atomic(op transport.Opcode, operand, compare uint64) uint64 {
	r.w.t.Helper()
	wr := r.write(1, 16, 8)
	wr.Op, wr.RemoteOff, wr.Operand, wr.Compare = op, 64, operand, compare
	r.post(wr)
	r.ok(0, op, r.peers[1], 8)
	return mem.Word64(r.mem.Host, 16).Load()
}

func testCompareSwap(t *testing.T, h Harness) {
	w := newWorld(t, h, 2, pageBytes, transport.DomainConfig{})
	a, b := w.ranks[0], w.ranks[1]
	h.needAtomic(t, a)
	word := mem.Word64(b.mem.Host, 64)
	word.Store(1 << 63)
	for _, c := range []struct{ swap, compare, want, left uint64 }{
		{5, 4, 1 << 63, 1 << 63}, // differs: nothing happens
		{5, 1 << 63, 1 << 63, 5},
		{0, 5, 5, 0},
		{^uint64(0), 0, 0, ^uint64(0)},
	} {
		if got := a.atomic(transport.OpCompareSwap, c.swap, c.compare); got != c.want || word.Load() != c.left {
			t.Errorf("swap %d for %d: was %d, left %d; want %d, %d", c.compare, c.swap, got, word.Load(), c.want, c.left)
		}
	}
	if untouched(b.mem.Host[:64]) != nil || untouched(b.mem.Host[72:]) != nil {
		t.Error("bytes beside the word were written")
	}
}

func testFetchAdd(t *testing.T, h Harness) {
	w := newWorld(t, h, 2, pageBytes, transport.DomainConfig{})
	a, b := w.ranks[0], w.ranks[1]
	h.needAtomic(t, a)
	sum := uint64(0)
	for _, v := range []uint64{1, 0, 41, 1 << 63, 1 << 63, ^uint64(0)} {
		if got := a.atomic(transport.OpFetchAdd, v, 0); got != sum {
			t.Errorf("adding %d: was %d, want %d", v, got, sum)
		}
		sum += v
		if got := mem.Word64(b.mem.Host, 64).Load(); got != sum {
			t.Errorf("after adding %d: %d, want %d", v, got, sum)
		}
	}
	wr := a.write(1, 0, 8)
	wr.Op, wr.RemoteOff = transport.OpFetchAdd, 12
	a.refused(wr, transport.ErrOutOfRange)
	wr.RemoteOff, wr.Len = 8, 4
	a.refused(wr, transport.ErrOutOfRange)
}

func testAtomicsFromManyRanks(t *testing.T, h Harness) {
	const ranks, each = 4, 100
	w := newWorld(t, h, ranks, pageBytes, transport.DomainConfig{})
	h.needAtomic(t, w.ranks[0])
	seen := make(map[uint64]bool)
	for range each {
		for _, r := range w.ranks {
			wr := r.write(1, 16, 8)
			wr.Op, wr.RemoteOff, wr.Operand = transport.OpFetchAdd, 64, 1
			r.post(wr)
		}
		for _, r := range w.ranks {
			r.ok(0, transport.OpFetchAdd, r.peers[1], 8)
			v := mem.Word64(r.mem.Host, 16).Load()
			if seen[v] || v >= ranks*each {
				t.Fatalf("fetch-add returned %d twice, or too much", v)
			}
			seen[v] = true
		}
	}
	if got := mem.Word64(w.ranks[1].mem.Host, 64).Load(); got != ranks*each {
		t.Errorf("the word is %d after %d additions of 1", got, ranks*each)
	}
}
