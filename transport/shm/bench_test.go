package shm

import (
	"fmt"
	"testing"

	"moerail/transport"
)

// One write with immediate, its local completion, and the immediate's arrival,
// both ends in one thread: what an operation costs the two of them together.
func BenchmarkWriteImm(b *testing.B) {
	for _, n := range []uint64{8, 7 << 10, 64 << 10} {
		for _, batch := range []int{1, 32} {
			b.Run(fmt.Sprintf("bytes=%d/batch=%d", n, batch), func(b *testing.B) {
				s, r := newPair(b, transport.DomainConfig{}, 1<<20)
				wrs := make([]transport.WorkRequest, batch)
				for i := range wrs {
					wrs[i] = s.wr(transport.OpWriteImm, 0, uint64(i%8)*n, n)
				}
				out := make([]transport.Completion, 64)
				b.ReportAllocs()
				b.SetBytes(int64(n) * int64(batch))
				for b.Loop() {
					if k, err := s.d.Post(wrs); k != batch || err != nil {
						b.Fatal(k, err)
					}
					if k, _ := s.d.Poll(out); k != batch {
						b.Fatal(k)
					}
					if k, _ := r.d.Poll(out); k != batch {
						b.Fatal(k)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*batch), "ns/write")
			})
		}
	}
}

func BenchmarkIdlePoll(b *testing.B) {
	s, _ := newPair(b, transport.DomainConfig{}, 4096)
	out := make([]transport.Completion, 64)
	b.ReportAllocs()
	for b.Loop() {
		s.d.Poll(out)
	}
}

// A templated scatter of 8-byte writes with immediates to many peers, without
// their polling.
func BenchmarkScatter(b *testing.B) {
	const peers = 63
	s := newSide(b, transport.DomainConfig{}, 1<<20)
	entries := make([]transport.TemplateEntry, peers)
	ops := make([]transport.ScatterOp, peers)
	others := make([]*side, peers)
	for i := range entries {
		others[i] = newSide(b, transport.DomainConfig{}, 4096)
		s.meet(others[i])
		entries[i] = transport.TemplateEntry{Peer: s.peer, Local: s.reg.LKey(), Remote: s.remote}
		ops[i] = transport.ScatterOp{Entry: int32(i), Len: 8}
	}
	t, err := s.d.NewTemplate(entries)
	if err != nil {
		b.Fatal(err)
	}
	out := make([]transport.Completion, 64)
	b.ReportAllocs()
	for b.Loop() {
		if n, err := s.d.PostScatter(t, 1, ops); n != peers {
			b.Fatal(n, err)
		}
		s.d.Poll(out)
		for _, o := range others {
			o.d.Poll(out)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*peers), "ns/peer")
}
