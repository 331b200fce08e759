package counting

import (
	"errors"
	"testing"

	"moerail/transport"
)

const peers = 63

type bench struct {
	d    transport.Domain
	tp   transport.Template
	wrs  []transport.WorkRequest
	ops  []transport.ScatterOp
	out  []transport.Completion
	size uint64
}

func newBench(t testing.TB) *bench {
	t.Helper()
	must := func(err error) {
		if err != nil {
			t.Helper()
			t.Fatal(err)
		}
	}
	var p Provider
	m, err := p.Alloc(1 << 20)
	must(err)
	t.Cleanup(func() { p.Free(m) })
	d, err := p.Open("count0", transport.DomainConfig{MaxSend: 128})
	must(err)
	r, err := d.Register(m, transport.AccessAll)
	must(err)
	b := &bench{d: d, out: make([]transport.Completion, 64), size: m.Size}
	var es []transport.TemplateEntry
	for i := range peers {
		o, err := p.Open("count0", transport.DomainConfig{})
		must(err)
		or, err := o.Register(m, transport.AccessAll)
		must(err)
		ph, err := d.AddPeer(o.Addr())
		must(err)
		rem, err := d.Import(ph, or.RemoteKey(), or.Size())
		must(err)
		es = append(es, transport.TemplateEntry{Peer: ph, Local: r.LKey(), Remote: rem})
		b.ops = append(b.ops, transport.ScatterOp{Entry: int32(i), Imm: 7, LocalOff: uint64(i * 128), RemoteOff: uint64(i * 64), Len: 100})
		b.wrs = append(b.wrs, transport.WorkRequest{ID: 1, Op: transport.OpWriteImm, Peer: ph, Local: r.LKey(), Remote: rem,
			Imm: 7, LocalOff: uint64(i * 128), RemoteOff: uint64(i * 64), Len: 100})
	}
	b.tp, err = d.NewTemplate(es)
	must(err)
	return b
}

func (b *bench) drain(t testing.TB) {
	for got := 0; got < peers; {
		n, err := b.d.Poll(b.out)
		if err != nil || n == 0 {
			t.Fatal(n, err)
		}
		got += n
	}
}

func (b *bench) scatter(t testing.TB) {
	if n, err := b.d.PostScatter(b.tp, 1, b.ops); n != peers || err != nil {
		t.Fatal(n, err)
	}
}

func (b *bench) post(t testing.TB) {
	if n, err := b.d.Post(b.wrs); n != peers || err != nil {
		t.Fatal(n, err)
	}
}

func TestCountsAreExactAndBothWaysGiveTheSame(t *testing.T) {
	b := newBench(t)
	for name, post := range map[string]func(testing.TB){"scatter": b.scatter, "post": b.post} {
		before := b.d.Stats()
		post(t)
		n, err := b.d.Poll(b.out)
		if n != peers || err != nil {
			t.Fatal(name, n, err)
		}
		for i, c := range b.out[:n] {
			want := transport.Completion{ID: 1, Op: transport.OpWriteImm, Peer: b.wrs[i].Peer, Bytes: 100}
			if c != want {
				t.Fatalf("%s: completion %d is %+v, want %+v", name, i, c, want)
			}
		}
		s := b.d.Stats()
		if s.Messages-before.Messages != peers || s.Bytes-before.Bytes != peers*100 || s.ImmsSent-before.ImmsSent != peers || s.Doorbells-before.Doorbells != 1 {
			t.Errorf("%s: counted %+v after %+v", name, s, before)
		}
	}
}

func TestEveryCheckIsMade(t *testing.T) {
	b := newBench(t)
	other := newBench(t)
	for name, c := range map[string]struct {
		change func(*transport.WorkRequest)
		want   error
	}{
		"foreign peer":           {func(w *transport.WorkRequest) { w.Peer = other.wrs[0].Peer }, transport.ErrBadHandle},
		"foreign local":          {func(w *transport.WorkRequest) { w.Local = other.wrs[0].Local }, transport.ErrBadHandle},
		"foreign remote":         {func(w *transport.WorkRequest) { w.Remote = other.wrs[0].Remote }, transport.ErrBadHandle},
		"remote of another peer": {func(w *transport.WorkRequest) { w.Remote = b.wrs[1].Remote }, transport.ErrBadHandle},
		"local end":              {func(w *transport.WorkRequest) { w.LocalOff = b.size - 99 }, transport.ErrOutOfRange},
		"remote end":             {func(w *transport.WorkRequest) { w.RemoteOff = b.size - 99 }, transport.ErrOutOfRange},
		"wraps":                  {func(w *transport.WorkRequest) { w.RemoteOff = ^uint64(0) - 50 }, transport.ErrOutOfRange},
		"no region":              {func(w *transport.WorkRequest) { w.Local = transport.NoKey }, transport.ErrBadHandle},
		"opcode":                 {func(w *transport.WorkRequest) { w.Op = transport.OpImm }, transport.ErrUnsupported},
		"inline":                 {func(w *transport.WorkRequest) { w.Inline = true }, transport.ErrOutOfRange},
		"atomic":                 {func(w *transport.WorkRequest) { w.Op = transport.OpFetchAdd }, transport.ErrOutOfRange},
	} {
		wr := b.wrs[0]
		c.change(&wr)
		if n, err := b.d.Post([]transport.WorkRequest{wr}); n != 0 || !errors.Is(err, c.want) {
			t.Errorf("%s: took %d, %v; want %v", name, n, err, c.want)
		}
	}
	for name, c := range map[string]struct {
		op   transport.ScatterOp
		want error
	}{
		"entry":      {transport.ScatterOp{Entry: peers}, transport.ErrBadHandle},
		"entry -1":   {transport.ScatterOp{Entry: -1}, transport.ErrBadHandle},
		"local end":  {transport.ScatterOp{LocalOff: b.size - 7, Len: 8}, transport.ErrOutOfRange},
		"remote end": {transport.ScatterOp{RemoteOff: b.size - 7, Len: 8}, transport.ErrOutOfRange},
	} {
		if n, err := b.d.PostScatter(b.tp, 0, []transport.ScatterOp{c.op}); n != 0 || !errors.Is(err, c.want) {
			t.Errorf("scatter %s: took %d, %v; want %v", name, n, err, c.want)
		}
	}
	if n, err := b.d.Poll(b.out); n != 0 || err != nil {
		t.Errorf("refused requests completed: %d, %v", n, err)
	}
	b.scatter(t)
	b.post(t)
	if n, err := b.d.Post(b.wrs); n != 2 || err != transport.ErrAgain {
		t.Errorf("with 126 of 128 in flight: took %d, %v", n, err)
	}
	b.d.Close()
	if n, err := b.d.Post(b.wrs); n != 0 || !errors.Is(err, transport.ErrClosed) {
		t.Errorf("closed: %d, %v", n, err)
	}
}

func TestRevokedThingsAreRefused(t *testing.T) {
	b := newBench(t)
	if err := b.d.Release(b.wrs[3].Remote); err != nil {
		t.Fatal(err)
	}
	if n, err := b.d.PostScatter(b.tp, 0, b.ops); n != 3 || !errors.Is(err, transport.ErrBadHandle) {
		t.Errorf("released remote in a template: %d, %v", n, err)
	}
	if err := b.d.RemovePeer(b.wrs[0].Peer); err != nil {
		t.Fatal(err)
	}
	if n, err := b.d.PostScatter(b.tp, 0, b.ops[1:2]); n != 0 || !errors.Is(err, transport.ErrBadHandle) {
		t.Errorf("template that names a removed peer: %d, %v", n, err)
	}
	if n, err := b.d.Post(b.wrs[:1]); n != 0 || !errors.Is(err, transport.ErrBadHandle) {
		t.Errorf("removed peer: %d, %v", n, err)
	}
}

func TestPostingAllocatesNothing(t *testing.T) {
	b := newBench(t)
	if n := testing.AllocsPerRun(100, func() { b.scatter(t); b.drain(t); b.post(t); b.drain(t) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// The two benchmarks report ns for one entry of 63; polling is not timed.
func BenchmarkPostScatter(b *testing.B) { measure(b, (*bench).scatter) }
func BenchmarkPost(b *testing.B)        { measure(b, (*bench).post) }

func measure(b *testing.B, post func(*bench, testing.TB)) {
	w := newBench(b)
	d := w.d.(*Domain)
	b.ReportAllocs()
	for b.Loop() {
		post(w, b)
		d.head = d.tail // polled
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/peers, "ns/entry")
}

func FuzzDecodeAddress(f *testing.F) {
	f.Add([]byte(encodeAddress(1)))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, a []byte) {
		if id, err := decodeAddress(a); err == nil && string(encodeAddress(id)) != string(a) {
			t.Errorf("%x decodes to %d, which encodes otherwise", a, id)
		}
	})
}

func FuzzDecodeKey(f *testing.F) {
	f.Add([]byte(regionKey{1, 2, 3}.encode()))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		if k, err := decodeKey(b); err == nil && string(k.encode()) != string(b) {
			t.Errorf("%x decodes to %+v, which encodes otherwise", b, k)
		}
	})
}
