package loopback

import (
	"fmt"
	"testing"

	"moerail/internal/mem"
	"moerail/transport"
)

// BenchmarkWrite is one write with immediate and the polls on both sides, by
// one thread; "copy" is the bare copy of as many bytes.
func BenchmarkWrite(b *testing.B) {
	for _, n := range []uint64{8, 7168, 65536} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			f, _ := New(Config{})
			src, _ := f.Alloc(n)
			dst, _ := f.Alloc(n)
			defer f.Free(src)
			defer f.Free(dst)
			x, _ := f.Open("lo0", transport.DomainConfig{})
			y, _ := f.Open("lo0", transport.DomainConfig{})
			defer x.Close()
			defer y.Close()
			rx, _ := x.Register(src, transport.AccessAll)
			ry, _ := y.Register(dst, transport.AccessAll)
			p, _ := x.AddPeer(y.Addr())
			rem, err := x.Import(p, ry.RemoteKey(), n)
			if err != nil {
				b.Fatal(err)
			}
			tp, _ := x.NewTemplate([]transport.TemplateEntry{{Peer: p, Local: rx.LKey(), Remote: rem}})
			ops := []transport.ScatterOp{{Len: n}}
			var out [8]transport.Completion
			b.SetBytes(int64(n))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := x.PostScatter(tp, 1, ops); err != nil {
					b.Fatal(err)
				}
				nx, _ := x.Poll(out[:])
				ny, _ := y.Poll(out[:])
				if nx != 1 || ny != 1 {
					b.Fatal(nx, ny)
				}
			}
		})
		b.Run(fmt.Sprint(n, "/copy"), func(b *testing.B) {
			src, _ := mem.Alloc(n)
			dst, _ := mem.Alloc(n)
			defer mem.Free(src)
			defer mem.Free(dst)
			b.SetBytes(int64(n))
			for b.Loop() {
				copy(dst.Host, src.Host)
			}
		})
	}
}

// BenchmarkScatter63 reports ns for one of 63 entries of 256 bytes.
func BenchmarkScatter63(b *testing.B) {
	const peers = 63
	f, _ := New(Config{})
	m, _ := f.Alloc(peers * 256)
	defer f.Free(m)
	x, _ := f.Open("lo0", transport.DomainConfig{})
	rx, _ := x.Register(m, transport.AccessAll)
	var es []transport.TemplateEntry
	var ops []transport.ScatterOp
	var ys []transport.Domain
	for i := range peers {
		d, _ := f.Alloc(256)
		defer f.Free(d)
		y, _ := f.Open("lo0", transport.DomainConfig{})
		ry, _ := y.Register(d, transport.AccessAll)
		p, _ := x.AddPeer(y.Addr())
		rem, err := x.Import(p, ry.RemoteKey(), 256)
		if err != nil {
			b.Fatal(err)
		}
		es = append(es, transport.TemplateEntry{Peer: p, Local: rx.LKey(), Remote: rem})
		ops = append(ops, transport.ScatterOp{Entry: int32(i), Len: 256, LocalOff: uint64(i * 256)})
		ys = append(ys, y)
	}
	tp, _ := x.NewTemplate(es)
	var out [64]transport.Completion
	b.ReportAllocs()
	for b.Loop() {
		if n, err := x.PostScatter(tp, 1, ops); n != peers {
			b.Fatal(n, err)
		}
		x.Poll(out[:])
		for _, y := range ys {
			y.Poll(out[:])
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/peers, "ns/entry")
}
