//go:build verbs && cgo && linux

package verbs

import (
	"errors"
	"runtime"
	"testing"
	"time"

	"moerail/transport"
)

// side is a domain with a region, for tests that are about one thing.
type side struct {
	t      testing.TB
	p      *Provider
	d      *domain
	mem    transport.Memory
	reg    transport.Region
	peer   transport.Peer
	remote transport.Remote
	out    [64]transport.Completion
	ends   []transport.Completion
	imms   []transport.Completion
	err    error // of Poll
}

func newSide(t testing.TB, p *Provider, nic int, cfg transport.DomainConfig, size uint64) *side {
	t.Helper()
	x, err := p.Open(p.nics[nic].Name, cfg)
	if err != nil {
		t.Fatal(err)
	}
	s := &side{t: t, p: p, d: x.(*domain)}
	t.Cleanup(func() {
		if err := s.d.Close(); err != nil {
			t.Error(err)
		}
		p.Free(s.mem)
	})
	if s.mem, err = p.Alloc(size); err != nil {
		t.Fatal(err)
	}
	if s.reg, err = s.d.Register(s.mem, transport.AccessAll); err != nil {
		t.Fatal(err)
	}
	return s
}

// meet makes o the peer of s.
func (s *side) meet(o *side) {
	s.t.Helper()
	s.join(o.d.Addr(), o.reg.RemoteKey(), o.reg.Size())
}

func (s *side) join(a transport.Address, k transport.RemoteKey, size uint64) {
	s.t.Helper()
	var err error
	if s.peer, err = s.d.AddPeer(a); err != nil {
		s.t.Fatal(err)
	}
	if s.remote, err = s.d.Import(s.peer, k, size); err != nil {
		s.t.Fatal(err)
	}
}

func (s *side) wr(op transport.Opcode, off, n uint64) transport.WorkRequest {
	return transport.WorkRequest{Op: op, Peer: s.peer, Local: s.reg.LKey(), Remote: s.remote, LocalOff: off, RemoteOff: off, Len: n}
}

func (s *side) poll() int {
	n, err := s.d.Poll(s.out[:])
	if err != nil && s.err == nil {
		s.err = err
	}
	for _, c := range s.out[:n] {
		if c.Op == transport.OpImm {
			s.imms = append(s.imms, c)
		} else {
			s.ends = append(s.ends, c)
		}
	}
	if n == 0 {
		runtime.Gosched()
	}
	return n
}

const patience = 60 * time.Second // Soft-RoCE in an emulated machine is slow

func until(t testing.TB, what string, cond func() bool, sides ...*side) {
	t.Helper()
	for limit := time.Now().Add(patience); !cond(); {
		if time.Now().After(limit) {
			t.Fatalf("%s: not within %v", what, patience)
		}
		for _, s := range sides {
			s.poll()
		}
	}
}

// post posts requests, polling others too while the queue is full.
func (s *side) post(wrs ...transport.WorkRequest) {
	s.t.Helper()
	for len(wrs) > 0 {
		n, err := s.d.Post(wrs)
		if err != nil && !errors.Is(err, transport.ErrAgain) {
			s.t.Fatal(err)
		}
		if wrs = wrs[n:]; len(wrs) > 0 {
			s.poll()
		}
	}
}

// end waits for the end of one request.
func (s *side) end(others ...*side) transport.Completion {
	s.t.Helper()
	until(s.t, "completion", func() bool { return len(s.ends) > 0 || s.err != nil }, append(others, s)...)
	if s.err != nil {
		s.t.Fatal(s.err)
	}
	c := s.ends[0]
	s.ends = s.ends[1:]
	return c
}

// works proves that s can write to o.
func (s *side) works(o *side) {
	s.t.Helper()
	s.post(s.wr(transport.OpWriteImm, 0, 8))
	if c := s.end(o); c.Status != transport.StatusOK {
		s.t.Fatalf("a write ended as %+v: %s", c, VendorText(c.Vendor))
	}
	until(s.t, "immediate", func() bool { return len(o.imms) > 0 }, o, s)
	o.imms = o.imms[1:]
}
