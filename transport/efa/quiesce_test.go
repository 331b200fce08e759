//go:build libfabric && cgo

package efa

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"moerail/internal/fabric"
	"moerail/internal/mem"
	"moerail/transport"
)

// A region that closes gives its memory back: what a read of it brings comes before
// that, however slow the peer is to answer, or never.
func TestAReadDoesNotOutliveItsRegion(t *testing.T) {
	eachProvider(t, func(t *testing.T, provider string) {
		p := open(t, Config{Provider: provider, ConnectTimeout: 20 * time.Second})
		a, b := newSide(t, p, transport.DomainConfig{}, 4096), newSide(t, p, transport.DomainConfig{}, 4096)
		peer, remote := a.know(b.d.Addr(), b.reg.RemoteKey(), 4096)
		a.post(a.imm(peer, 1))
		b.await("a first immediate", []*side{a}, isImm(1))
		for i := range b.mem.Host {
			b.mem.Host[i] = 0x77
		}
		a.post(transport.WorkRequest{Op: transport.OpRead, Peer: peer, Local: a.reg.LKey(), Remote: remote, Len: 64})
		a.poll()
		stop := b.pollLater(3 * smallPatience)
		if err := a.reg.Close(); err != nil {
			t.Fatal(err)
		}
		word := mem.Word64(a.mem.Host, 0)
		word.Store(1) // the memory is this test's again
		for start := time.Now(); time.Since(start) < 5*smallPatience; {
			a.poll()
			if w := word.Load(); w != 1 {
				t.Errorf("%#x was read into memory whose region had closed", w)
				break
			}
		}
		stop()
	})
}

// pollLater has s polled by nobody for a while, then by a goroutine until stop is
// called.
func (s *side) pollLater(after time.Duration) (stop func()) {
	ended, quit := make(chan error, 1), make(chan struct{})
	go func() {
		<-time.After(after)
		for out := make([]transport.Completion, 8); ; yield() {
			select {
			case <-quit:
				ended <- nil
				return
			default:
			}
			if _, err := s.d.Poll(out); err != nil {
				ended <- err
				return
			}
		}
	}()
	return func() {
		s.t.Helper()
		close(quit)
		if err := <-ended; err != nil {
			s.t.Error(err)
		}
	}
}

// fillUp writes to a peer that is not polled until nothing moves any more.
func (s *side) fillUp(peer transport.Peer, remote transport.Remote, room uint64) {
	for i := range s.mem.Host {
		s.mem.Host[i] = 0x11
	}
	wr := transport.WorkRequest{Op: transport.OpWrite, Peer: peer, Local: s.reg.LKey(), Remote: remote, Len: smallBytes}
	for moved := time.Now(); time.Since(moved) < smallPatience && wr.RemoteOff < room; {
		if n, _ := s.d.Post([]transport.WorkRequest{wr}); n == 1 {
			wr.RemoteOff += smallBytes
		}
		if len(s.poll()) > 0 {
			moved = time.Now()
		}
	}
}

// What a provider does not give back, whatever is asked of it, is said.
func TestMemoryThatAProviderKeepsIsNamed(t *testing.T) {
	const room = 48 << 20
	p := open(t, Config{Provider: "net", ConnectTimeout: 20 * time.Second})
	a, b := newSide(t, p, transport.DomainConfig{}, smallBytes), newSide(t, p, transport.DomainConfig{}, room)
	peer, remote := a.know(b.d.Addr(), b.reg.RemoteKey(), room)
	a.post(a.imm(peer, 1))
	b.await("a first immediate", []*side{a}, isImm(1))
	a.fillUp(peer, remote, room)
	if err := a.d.RemovePeer(peer); err != nil {
		t.Fatal(err)
	}
	other, err := a.d.Register(b.mem, transport.AccessLocal)
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Close(); err != nil {
		t.Errorf("a region that nothing uses: %v", err)
	}
	again, err := a.d.Register(a.mem, transport.AccessLocal)
	if err != nil {
		t.Fatal(err)
	}
	wants(t, a.reg.Close(), transport.ErrRegister, "net still holds", "4096 bytes", "until the domain is closed")
	for start := time.Now(); a.d.orphans > 0; { // the peer answers again
		b.poll()
		a.poll()
		if time.Since(start) > childPatience {
			t.Fatalf("%d operations never came back", a.d.orphans)
		}
	}
	if err := again.Close(); err != nil {
		t.Errorf("once the provider has given all back: %v", err)
	}
}

// The same for small writes that a full socket holds up.
func TestASmallWriteDoesNotOutliveItsRegion(t *testing.T) {
	eachProvider(t, func(t *testing.T, provider string) {
		const room = 48 << 20
		p := open(t, Config{Provider: provider, ConnectTimeout: 20 * time.Second})
		a, b := newSide(t, p, transport.DomainConfig{}, smallBytes), newSide(t, p, transport.DomainConfig{}, room)
		peer, remote := a.know(b.d.Addr(), b.reg.RemoteKey(), room)
		a.post(a.imm(peer, 1))
		b.await("a first immediate", []*side{a}, isImm(1))
		a.fillUp(peer, remote, room)
		stop := b.pollLater(3 * smallPatience)
		if err := a.reg.Close(); err != nil {
			t.Fatal(err)
		}
		for i := range a.mem.Host {
			a.mem.Host[i] = 0x99 // the memory is this test's again
		}
		for start := time.Now(); time.Since(start) < 5*smallPatience; {
			a.poll()
		}
		stop()
		if n := bytes.Count(b.mem.Host, []byte{0x99}); n > 0 {
			t.Errorf("%d bytes were sent from memory whose region had closed", n)
		}
	})
}

// A write in pieces whose region closes posts no more of them.
func TestASplitWriteEndsWithItsRegion(t *testing.T) {
	p := open(t, Config{Provider: "net", MaxRegion: 4096})
	s := newSide(t, p, transport.DomainConfig{}, 16<<10)
	peer, remote := s.know(s.d.Addr(), s.reg.RemoteKey(), s.reg.Size())
	pp, rp := s.d.peers.Get(int32(peer)), s.d.remotes.Get(int32(remote))
	x := split{w: write{op: transport.OpWrite, peer: *pp, local: s.reg.(*region), remote: *rp, len: 16 << 10}}
	if err := s.reg.Close(); err != nil {
		t.Fatal(err)
	}
	x.w.local.regs = make([]fabric.Registration, 4) // as while Close waits
	if s.d.advance(&x); x.parts != 0 || x.status != transport.StatusFlushed {
		t.Errorf("%d parts of closed memory were posted, status %v", x.parts, x.status)
	}
}

// Slots that the provider keeps make the queue shorter, and end the domain when it
// has them all.
func TestOrphansShortenTheQueue(t *testing.T) {
	p := open(t, Config{Provider: "net"})
	const window = 4
	s := newSide(t, p, transport.DomainConfig{MaxSend: window}, 4096)
	peer, _ := s.know(s.d.Addr(), s.reg.RemoteKey(), 4096)
	kept := s.d.free[window:]
	s.d.free, s.d.orphans = s.d.free[:window:window], len(kept)
	for i := range window {
		s.post(s.imm(peer, transport.Imm(i)))
	}
	if n, err := s.d.Post([]transport.WorkRequest{s.imm(peer, 0)}); n != 0 || !errors.Is(err, transport.ErrAgain) {
		t.Errorf("posted %d beyond the queue, %v", n, err)
	}
	ended := 0
	s.await("the end of a full queue", nil, func(c transport.Completion) bool {
		if c.Op != transport.OpImm && c.Status == transport.StatusOK {
			ended++
		}
		return ended == window
	})
	s.d.free, s.d.orphans = nil, s.d.txSlots
	if _, err := s.d.Poll(s.out[:]); err == nil {
		t.Error("a domain that can post nothing any more says nothing")
	}
}
