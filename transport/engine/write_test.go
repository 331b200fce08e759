package engine

import (
	"encoding/binary"
	"errors"
	"math"
	"testing"

	"moerail/transport"
)

func fill(b []byte, seed byte) {
	for i := range b {
		b[i] = byte(i)*31 + byte(i>>8)*7 + seed
	}
}

// only checks that dst equals src in [dstOff, dstOff+n) and is untouched elsewhere.
func only(t *testing.T, dst, src []byte, dstOff, srcOff, n int) {
	t.Helper()
	for i, b := range dst {
		want := byte(0)
		if i >= dstOff && i < dstOff+n {
			want = src[srcOff+i-dstOff]
		}
		if b != want {
			t.Fatalf("byte %d is %#x, want %#x", i, b, want)
		}
	}
}

func TestWriteIsByteExactForEveryLengthAndChoiceOfNICs(t *testing.T) {
	const size = 80000
	for nics := 1; nics <= MaxNICs; nics++ {
		r := newRig(t, int64(nics), 2, nics, 3, size)
		e := r.engines[0]
		remote := r.importTo(t, 0, 1)
		fill(r.mems[0].Host, 1)
		imm := transport.Imm(0)
		try := func(length uint64, choice NICs, n int) {
			clear(r.mems[1].Host)
			imm++
			ic := must[*ImmCounter](t)(r.engines[1].ImmCounter(imm))
			var c Counter
			must[Handle](t)(e.Write(WriteRequest{Local: r.regions[0], LocalOff: 5, Remote: remote, RemoteOff: 11, Len: length, Imm: imm, NICs: choice}, Done{Counter: &c}))
			if err := c.Wait(soon(t), 1); err != nil {
				t.Fatal(err)
			}
			want := e.WriteImms(length, n)
			if err := ic.Wait(soon(t), want); err != nil {
				t.Fatal(err)
			}
			if ic.Total() != want {
				t.Fatalf("%d bytes over %d: %d immediates, WriteImms says %d", length, n, ic.Total(), want)
			}
			only(t, r.mems[1].Host, r.mems[0].Host, 11, 5, int(length))
		}
		for _, length := range []uint64{0, 1, 2, 3, 4, 4095, 4096, 4097, 8192, 8193, 16384, 16385, 32768, 32769, 65536, 77777} {
			try(length, AllNICs, nics)
			try(length, AnyNIC, 1)
			try(length, OverNICs(1+int(length)%nics), 1+int(length)%nics)
		}
		for k := 0; k < nics; k++ {
			before := r.doms[0][k].posts.Load()
			try(20000, OnNIC(k), 1)
			if got := r.doms[0][k].posts.Load() - before; got != 1 {
				t.Fatalf("a write pinned to NIC %d posted %d operations there", k, got)
			}
		}
	}
}

func TestRotationUsesEveryNIC(t *testing.T) {
	r := newRig(t, 3, 2, 4, 0, 4096)
	remote := r.importTo(t, 0, 1)
	var c Counter
	for i := 0; i < 8; i++ {
		must[Handle](t)(r.engines[0].Write(WriteRequest{Local: r.regions[0], Remote: remote, Len: 8, NoImm: true}, Done{Counter: &c}))
	}
	if err := c.Wait(soon(t), 8); err != nil {
		t.Fatal(err)
	}
	for k, d := range r.doms[0] {
		if d.posts.Load() != 2 {
			t.Errorf("NIC %d posted %d of 8 writes, want 2", k, d.posts.Load())
		}
	}
}

func TestWritesLongerThanAMessageAreCut(t *testing.T) {
	net := newFakeNet(5)
	r := &rig{net: net}
	for i := 0; i < 2; i++ {
		d := net.domain(string(rune('a'+i)), 0)
		d.limits.MaxMessage = 1000
		e := must[*Engine](t)(New(Config{Provider: net, Domains: []transport.Domain{d}, CPU: -1}))
		defer e.Close()
		m := must[transport.Memory](t)(e.Alloc(20000))
		reg, desc, err := e.Register(m, transport.AccessAll)
		if err != nil {
			t.Fatal(err)
		}
		r.engines, r.regions, r.descs, r.mems = append(r.engines, e), append(r.regions, reg), append(r.descs, desc), append(r.mems, m)
	}
	fill(r.mems[0].Host, 2)
	e := r.engines[0]
	ic := must[*ImmCounter](t)(r.engines[1].ImmCounter(1))
	remote := r.importTo(t, 0, 1)
	if got := e.WriteImms(12345, 1); got != 13 {
		t.Fatalf("WriteImms says %d, want 13", got)
	}
	must[Handle](t)(e.Write(WriteRequest{Local: r.regions[0], Remote: remote, Len: 12345, Imm: 1}, Done{}))
	if err := ic.Wait(soon(t), 13); err != nil {
		t.Fatal(err)
	}
	only(t, r.mems[1].Host, r.mems[0].Host, 0, 0, 12345)

	g := must[*PeerGroup](t)(e.AddPeerGroup(r.regions[0], r.descs[1:]))
	_ = e.Call(func(w *Worker) {
		if err := w.Scatter(g, w.NewTracker(), []GroupOp{{Len: 1001}}); !errors.Is(err, ErrArgument) {
			t.Errorf("scatter of more than a message: %v", err)
		}
	})
	must[Handle](t)(e.Scatter(ScatterRequest{Group: g, Targets: []Target{{Len: 2001}}, Imm: 1}, Done{}))
	if err := ic.Wait(soon(t), 13+e.WriteImms(2001, 1)); err != nil {
		t.Fatal(err)
	}
	if _, err := e.WritePages(PagesRequest{Local: r.regions[0], Remote: remote, LocalPages: []uint32{0}, RemotePages: []uint32{0}, PageLen: 1001}, Done{}); !errors.Is(err, ErrArgument) {
		t.Errorf("page of more than a message: %v", err)
	}
}

func TestWritePages(t *testing.T) {
	const page, count = 96, 50
	for nics := 1; nics <= MaxNICs; nics++ {
		r := newRig(t, int64(nics), 2, nics, 2, 64<<10)
		e := r.engines[0]
		fill(r.mems[0].Host, 9)
		remote := r.importTo(t, 0, 1)
		ic := must[*ImmCounter](t)(r.engines[1].ImmCounter(7))
		var from, to []uint32
		for i := uint32(0); i < count; i++ {
			from, to = append(from, i*7%count), append(to, count-1-i)
		}
		req := PagesRequest{Local: r.regions[0], LocalOff: 3, LocalStride: 128, LocalPages: from,
			Remote: remote, RemoteOff: 40, RemoteStride: 100, RemotePages: to, PageLen: page, Imm: 7, NICs: AllNICs}
		want := make([]byte, 64<<10)
		for i := range from {
			copy(want[40+int(to[i])*100:][:page], r.mems[0].Host[3+int(from[i])*128:])
		}
		var c Counter
		must[Handle](t)(e.WritePages(req, Done{Counter: &c}))
		clear(from) // the caller's again
		clear(to)
		if err := errors.Join(c.Wait(soon(t), 1), ic.Wait(soon(t), count)); err != nil {
			t.Fatal(err)
		}
		if ic.Total() != count {
			t.Fatalf("%d immediates for %d pages", ic.Total(), count)
		}
		only(t, r.mems[1].Host, want, 0, 0, len(want))
		for k, d := range r.doms[0] {
			if n := d.posts.Load(); n == 0 || n > (count+uint64(nics)-1)/uint64(nics) {
				t.Errorf("NIC %d of %d posted %d of %d pages", k, nics, n, count)
			}
		}
	}
}

func TestEmptyRequestsEndAtOnce(t *testing.T) {
	r := newRig(t, 1, 2, 2, 0, 4096)
	e := r.engines[0]
	remote := r.importTo(t, 0, 1)
	holes := must[*PeerGroup](t)(e.AddPeerGroup(r.regions[0], []Descriptor{{}, {}}))
	none := must[*PeerGroup](t)(e.AddPeerGroup(r.regions[0], nil))
	fired := make(chan error, 16)
	done := Done{Func: func(err error) { fired <- err }}
	must[Handle](t)(e.WritePages(PagesRequest{Local: r.regions[0], Remote: remote, PageLen: 8}, done))
	must[Handle](t)(e.Write(WriteRequest{Local: r.regions[0], Remote: remote, NoImm: true}, done))
	must[Handle](t)(e.Read(WriteRequest{Local: r.regions[0], Remote: remote}, done))
	must[Handle](t)(e.Scatter(ScatterRequest{Group: none}, done))
	must[Handle](t)(e.Scatter(ScatterRequest{Group: none, SplitBytes: true, NICs: AllNICs}, done))
	must[Handle](t)(e.Barrier(none, 1, AllNICs, done))
	must[Handle](t)(e.Barrier(holes, 1, AnyNIC, done))
	must[*ImmCounter](t)(e.ExpectImm(5, 0, func(err error) { fired <- err }))
	for i := 0; i < 8; i++ {
		select {
		case err := <-fired:
			if err != nil {
				t.Fatal(err)
			}
		case <-soon(t).Done():
			t.Fatalf("only %d of 8 empty requests ended", i)
		}
	}
	if n := r.doms[0][0].posts.Load() + r.doms[0][1].posts.Load(); n != 0 {
		t.Fatalf("empty requests posted %d operations", n)
	}
	_ = e.Call(func(w *Worker) {
		tr := w.NewTracker()
		if err := w.Scatter(none, tr, nil); err != nil || tr.Outstanding() != 0 {
			t.Errorf("empty worker scatter: %v, %d outstanding", err, tr.Outstanding())
		}
	})
}

func TestScatterAndBarrierOfApplications(t *testing.T) {
	const size = 40000
	for nics := 1; nics <= MaxNICs; nics++ {
		r := newRig(t, int64(nics), 4, nics, 2, size)
		e := r.engines[0]
		fill(r.mems[0].Host, 77)
		g := must[*PeerGroup](t)(e.AddPeerGroup(r.regions[0], []Descriptor{{}, r.descs[1], r.descs[2], r.descs[3]}))
		var ics []*ImmCounter
		for _, p := range r.engines[1:] {
			ics = append(ics, must[*ImmCounter](t)(p.ImmCounter(9)))
		}
		lens := []uint64{0, 3, 33333}
		totals := make([]uint64, 3)
		for _, split := range []bool{false, true} {
			var targets []Target
			for i, n := range lens {
				clear(r.mems[i+1].Host)
				targets = append(targets, Target{Entry: i + 1, LocalOff: uint64(i) * 10, RemoteOff: 6, Len: n})
			}
			var c Counter
			must[Handle](t)(e.Scatter(ScatterRequest{Group: g, Targets: targets, Imm: 9, NICs: AllNICs, SplitBytes: split}, Done{Counter: &c}))
			clear(targets)
			if err := c.Wait(soon(t), 1); err != nil {
				t.Fatal(err)
			}
			over := 1
			if split {
				over = nics
			}
			for i, n := range lens {
				totals[i] += e.WriteImms(n, over)
				if err := ics[i].Wait(soon(t), totals[i]); err != nil {
					t.Fatal(err)
				}
				only(t, r.mems[i+1].Host, r.mems[0].Host, 6, i*10, int(n))
			}
		}
		must[Handle](t)(e.Barrier(g, 9, AllNICs, Done{}))
		for i := range ics {
			totals[i]++
			if err := ics[i].Wait(soon(t), totals[i]); err != nil {
				t.Fatal(err)
			}
			if ics[i].Total() != totals[i] {
				t.Fatalf("peer %d: %d immediates, want %d", i+1, ics[i].Total(), totals[i])
			}
		}
		if _, err := e.Scatter(ScatterRequest{Group: g, Targets: []Target{{Entry: 0, Len: 1}}}, Done{}); !errors.Is(err, ErrHole) {
			t.Errorf("scatter to a hole: %v", err)
		}
	}
}

func TestReadAndAtomics(t *testing.T) {
	for nics := 1; nics <= 2; nics++ {
		r := newRig(t, 2, 2, nics, 2, 40000)
		e := r.engines[0]
		remote := r.importTo(t, 0, 1)
		fill(r.mems[1].Host, 4)
		var c Counter
		must[Handle](t)(e.Read(WriteRequest{Local: r.regions[0], LocalOff: 1, Remote: remote, RemoteOff: 2, Len: 33001, NICs: AllNICs}, Done{Counter: &c}))
		if err := c.Wait(soon(t), 1); err != nil {
			t.Fatal(err)
		}
		only(t, r.mems[0].Host, r.mems[1].Host, 1, 2, 33001)

		word := r.mems[1].Host[64:72]
		binary.LittleEndian.PutUint64(word, 40)
		at := AtomicRequest{Local: r.regions[0], LocalOff: 8, Remote: remote, RemoteOff: 64, Operand: 2}
		for i, step := range []struct {
			do   func(AtomicRequest, Done) (Handle, error)
			cmp  uint64
			old  uint64
			want uint64
		}{{e.FetchAdd, 0, 40, 42}, {e.CompareSwap, 41, 42, 42}, {e.CompareSwap, 42, 42, 2}} {
			at.Compare = step.cmp
			must[Handle](t)(step.do(at, Done{Counter: &c}))
			if err := c.Wait(soon(t), uint64(i)+2); err != nil {
				t.Fatal(err)
			}
			if old, now := binary.LittleEndian.Uint64(r.mems[0].Host[8:]), binary.LittleEndian.Uint64(word); old != step.old || now != step.want {
				t.Fatalf("step %d: old %d now %d, want %d and %d", i, old, now, step.old, step.want)
			}
		}
		for _, bad := range []AtomicRequest{
			{Local: r.regions[0], Remote: remote, RemoteOff: 4},
			{Local: r.regions[0], LocalOff: 1, Remote: remote},
			{Local: r.regions[0], Remote: remote, RemoteOff: 40000},
			{Local: r.regions[0], Remote: remote, RemoteOff: math.MaxUint64 - 7},
			{Local: r.regions[0]},
		} {
			if _, err := e.FetchAdd(bad, Done{}); err == nil {
				t.Errorf("%+v was accepted", bad)
			}
		}
		if nics > 1 {
			at.NICs = AllNICs
			if _, err := e.FetchAdd(at, Done{}); !errors.Is(err, ErrArgument) {
				t.Errorf("atomic over all NICs: %v", err)
			}
		}
	}
}

func TestWhatTheNICsCanNotDoIsSaid(t *testing.T) {
	net := newFakeNet(1)
	d := net.domain("plain", 0)
	d.limits.Read, d.limits.Atomic = false, false
	e := must[*Engine](t)(New(Config{Provider: net, Domains: []transport.Domain{d}, CPU: -1}))
	defer e.Close()
	m := must[transport.Memory](t)(e.Alloc(64))
	reg, desc, err := e.Register(m, transport.AccessAll)
	if err != nil {
		t.Fatal(err)
	}
	remote := must[*RemoteRegion](t)(e.Import(desc))
	if _, err := e.Read(WriteRequest{Local: reg, Remote: remote, Len: 1}, Done{}); !errors.Is(err, transport.ErrUnsupported) {
		t.Errorf("read: %v", err)
	}
	if _, err := e.FetchAdd(AtomicRequest{Local: reg, Remote: remote}, Done{}); !errors.Is(err, transport.ErrUnsupported) {
		t.Errorf("fetch-add: %v", err)
	}
	if _, err := e.MapRemote(desc); !errors.Is(err, transport.ErrUnsupported) {
		t.Errorf("map: %v", err)
	}
	d2 := net.domain("mute", 0)
	d2.limits.ImmBytes = 0
	if _, err := New(Config{Provider: net, Domains: []transport.Domain{d2}, CPU: -1}); !errors.Is(err, transport.ErrUnsupported) || !errors.Is(err, ErrConfig) {
		t.Errorf("NIC without immediates: %v", err)
	}
}

func TestRangesAreCheckedBeforeAnythingIsPosted(t *testing.T) {
	r := newRig(t, 1, 2, 2, 0, 4096)
	e, l := r.engines[0], r.regions[0]
	remote := r.importTo(t, 0, 1)
	const top = math.MaxUint64
	for _, q := range []WriteRequest{
		{Local: l, Remote: remote, Len: 4097},
		{Local: l, LocalOff: 1, Remote: remote, Len: 4096},
		{Local: l, Remote: remote, RemoteOff: 1, Len: 4096},
		{Local: l, LocalOff: top, Remote: remote, Len: 1},
		{Local: l, Remote: remote, RemoteOff: top, Len: 2},
		{Local: l, Remote: remote, RemoteOff: 4097},
		{Local: l, Remote: remote, Len: top},
	} {
		if _, err := e.Write(q, Done{}); !errors.Is(err, transport.ErrOutOfRange) {
			t.Errorf("%+v: %v", q, err)
		}
	}
	foreign := r.importTo(t, 1, 0)
	for _, q := range []WriteRequest{{Local: l}, {Remote: remote}, {Local: r.regions[1], Remote: remote}, {Local: l, Remote: foreign}} {
		if _, err := e.Write(q, Done{}); !errors.Is(err, ErrForeign) {
			t.Errorf("%+v: %v", q, err)
		}
	}
	for _, n := range []NICs{OnNIC(2), OnNIC(-1), OnNIC(1 << 20), OverNICs(3), OverNICs(0), OverNICs(-5), NICs(77), NICs(-77)} {
		if _, err := e.Write(WriteRequest{Local: l, Remote: remote, Len: 1, NICs: n}, Done{}); !errors.Is(err, ErrArgument) {
			t.Errorf("NICs %d: %v", n, err)
		}
	}
	page := func(f func(*PagesRequest)) PagesRequest {
		q := PagesRequest{Local: l, LocalStride: 64, LocalPages: []uint32{1}, Remote: remote, RemoteStride: 64, RemotePages: []uint32{1}, PageLen: 64}
		f(&q)
		return q
	}
	for i, q := range []PagesRequest{
		page(func(q *PagesRequest) { q.LocalPages = []uint32{64} }),
		page(func(q *PagesRequest) { q.RemotePages = []uint32{64} }),
		page(func(q *PagesRequest) { q.LocalPages, q.RemotePages = []uint32{64, 1}, []uint32{1, 2} }),
		page(func(q *PagesRequest) { q.RemotePages = []uint32{math.MaxUint32}; q.RemoteStride = top }),
		page(func(q *PagesRequest) { q.RemoteOff = top }),
		page(func(q *PagesRequest) { q.LocalOff = top - 64 }),
		page(func(q *PagesRequest) { q.LocalPages = nil }),
	} {
		if _, err := e.WritePages(q, Done{}); !errors.Is(err, transport.ErrOutOfRange) && !errors.Is(err, ErrArgument) {
			t.Errorf("pages %d: %v", i, err)
		}
	}
	if n := r.doms[0][0].posts.Load() + r.doms[0][1].posts.Load(); n != 0 {
		t.Fatalf("%d operations were posted", n)
	}
}
