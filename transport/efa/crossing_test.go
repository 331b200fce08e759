//go:build libfabric && cgo

package efa

import (
	"testing"

	"moerail/transport"
)

// A turn of a proxy posts a scatter, other requests and receives, and polls: one
// crossing to C, whatever it posts and whatever came.
func TestATurnIsOneCrossingAndAllocatesNothing(t *testing.T) {
	eachProvider(t, func(t *testing.T, provider string) {
		p := open(t, Config{Provider: provider})
		a, b := newSide(t, p, transport.DomainConfig{}, 1<<16), newSide(t, p, transport.DomainConfig{}, 1<<16)
		peer, remote := a.know(b.d.Addr(), b.reg.RemoteKey(), 1<<16)
		tp, err := a.d.NewTemplate([]transport.TemplateEntry{{Peer: peer, Local: a.reg.LKey(), Remote: remote}})
		if err != nil {
			t.Fatal(err)
		}
		ops := []transport.ScatterOp{{Len: 7168, Imm: 1}, {Len: 64, NoImm: true}, {Imm: 2}, {Len: 100, LocalOff: 3, RemoteOff: 5, Imm: 3}}
		wrs := []transport.WorkRequest{
			{Op: transport.OpWrite, Peer: peer, Local: a.reg.LKey(), Remote: remote, Len: 512},
			{Op: transport.OpWriteImm, Peer: peer, Local: transport.NoKey, Remote: transport.NoRemote, Imm: 4},
			{Op: transport.OpWrite, Inline: true, Peer: peer, Local: a.reg.LKey(), Remote: remote, Len: 100},
			{Op: transport.OpRead, Peer: peer, Local: a.reg.LKey(), Remote: remote, LocalOff: 8192, Len: 512},
			{Op: transport.OpSend, Peer: peer, Local: a.reg.LKey(), Len: 33},
		}
		rrs := []transport.RecvRequest{{Local: b.reg.LKey(), Off: 4096, Len: 64}}
		polls := [2]uint64{}
		poll := func(i int, s *side) int {
			polls[i]++
			n, err := s.d.Poll(s.out[:])
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range s.out[:n] {
				if c.Status != transport.StatusOK {
					t.Fatalf("%+v", c)
				}
			}
			return n
		}
		turn := func() {
			if _, err := b.d.PostRecv(rrs); err != nil {
				t.Fatal(err)
			}
			if _, err := a.d.PostScatter(tp, 9, ops); err != nil {
				t.Fatal(err)
			}
			if _, err := a.d.Post(wrs); err != nil {
				t.Fatal(err)
			}
			for left := len(ops) + len(wrs) + 4 + 1; left > 0; { // ends, immediates, the message
				n := poll(0, a) + poll(1, b)
				if left -= n; n == 0 {
					yield()
				}
			}
		}
		turn() // connects
		before, beforeB := a.d.f.Counters(), b.d.f.Counters()
		polls = [2]uint64{}
		if n := testing.AllocsPerRun(100, turn); n != 0 {
			t.Errorf("%v allocations for a turn", n)
		}
		if got := a.d.f.Counters().Crossings - before.Crossings; got != polls[0] {
			t.Errorf("%d crossings of the sender for %d polls and all its posts", got, polls[0])
		}
		if got := b.d.f.Counters().Crossings - beforeB.Crossings; got != polls[1] {
			t.Errorf("%d crossings of the receiver for %d polls", got, polls[1])
		}
		// With nothing to wait for, everything posted is shown by the next poll.
		if got := a.d.f.Posted(); got != a.d.tail {
			t.Errorf("%d of %d operations were shown", got, a.d.tail)
		}
	})
}

func BenchmarkTurn(b *testing.B) {
	for _, s := range softwareProviders {
		b.Run(s.name, func(b *testing.B) {
			p := open(b, Config{Provider: s.name})
			x, y := newSide(b, p, transport.DomainConfig{}, 4096), newSide(b, p, transport.DomainConfig{}, 4096)
			peer, _ := x.know(y.d.Addr(), y.reg.RemoteKey(), 4096)
			wr := []transport.WorkRequest{x.imm(peer, 1)}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := x.d.Post(wr); err != nil {
					b.Fatal(err)
				}
				for got := 0; got < 2; {
					n, _ := x.d.Poll(x.out[:])
					m, _ := y.d.Poll(y.out[:])
					got += n + m
				}
			}
		})
	}
}
