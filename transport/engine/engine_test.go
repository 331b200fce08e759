package engine

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"moerail/transport"
)

// rig is n engines on one fabric, each with a region of size bytes.
type rig struct {
	net     *fakeNet
	doms    [][]*fakeDomain
	engines []*Engine
	regions []*Region
	descs   []Descriptor
	mems    []transport.Memory
}

func newRig(t testing.TB, seed int64, engines, nics, depth int, size uint64) *rig {
	t.Helper()
	r := &rig{net: newFakeNet(seed)}
	for i := 0; i < engines; i++ {
		var doms []transport.Domain
		var fakes []*fakeDomain
		for k := 0; k < nics; k++ {
			d := r.net.domain(fmt.Sprintf("r%d-nic%d", i, k), depth)
			doms, fakes = append(doms, d), append(fakes, d)
		}
		e, err := New(Config{Provider: r.net, Domains: doms, CPU: -1})
		if err != nil {
			t.Fatal(err)
		}
		m, err := e.Alloc(size)
		if err != nil {
			t.Fatal(err)
		}
		reg, desc, err := e.Register(m, transport.AccessAll)
		if err != nil {
			t.Fatal(err)
		}
		r.doms, r.engines = append(r.doms, fakes), append(r.engines, e)
		r.regions, r.descs, r.mems = append(r.regions, reg), append(r.descs, desc), append(r.mems, m)
	}
	t.Cleanup(func() {
		for i, e := range r.engines {
			if err := e.Close(); err != nil {
				t.Errorf("close engine %d: %v", i, err)
			}
			<-e.Drained()
			_ = r.net.Free(r.mems[i])
		}
		if n := r.net.allocs.Load(); n != 0 {
			t.Errorf("%d allocations of the provider are left", n)
		}
	})
	return r
}

func (r *rig) importTo(t testing.TB, from, to int) *RemoteRegion {
	t.Helper()
	rr, err := r.engines[from].Import(r.descs[to])
	if err != nil {
		t.Fatal(err)
	}
	return rr
}

func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// eventually spins until ok, with the test's deadline.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatalf("%s: not within 20 s", what)
		}
	}
}

func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

type immCounts struct{ n []int }

func (c *immCounts) HandleImm(i uint32) { c.n[i]++ }

func TestScatterFromThePollerReachesEveryPeerOnEveryNIC(t *testing.T) {
	for _, depth := range []int{0, 2} {
		for nics := 1; nics <= MaxNICs; nics++ {
			const peers, block = 5, 64
			r := newRig(t, int64(depth*10+nics), peers, nics, depth, 4096)
			claims := make([]*immCounts, peers)
			for i, e := range r.engines {
				claims[i] = &immCounts{n: make([]int, 8)}
				must[*ImmClaim](t)(e.ClaimImms(0x100, 8, claims[i]))
			}
			e := r.engines[0]
			for i := range r.mems[0].Host {
				r.mems[0].Host[i] = byte(i * 7)
			}
			list := append([]Descriptor(nil), r.descs...)
			list[0] = Descriptor{}
			g := must[*PeerGroup](t)(e.AddPeerGroup(r.regions[0], list))
			var tr *Tracker
			var ops []GroupOp
			for p := 1; p < peers; p++ {
				for k := 0; k < nics; k++ {
					at := uint64(p*nics+k) * block
					ops = append(ops, GroupOp{Entry: int32(p), NIC: int8(k), Imm: 0x100 + transport.Imm(k), LocalOff: at, RemoteOff: at, Len: block})
				}
			}
			if err := e.Call(func(w *Worker) {
				tr = w.NewTracker()
				if err := w.Scatter(g, tr, ops); err != nil {
					t.Error(err)
				}
				if tr.Outstanding() != len(ops) {
					t.Errorf("outstanding %d, want %d", tr.Outstanding(), len(ops))
				}
				clear(ops) // they were copied
			}); err != nil {
				t.Fatal(err)
			}
			eventually(t, "completions", func() (ok bool) {
				_ = e.Call(func(*Worker) { ok = tr.Outstanding() == 0 })
				return ok
			})
			_ = e.Call(func(*Worker) {
				if tr.Err() != nil {
					t.Error(tr.Err())
				}
			})
			for p := 1; p < peers; p++ {
				eventually(t, "immediates", func() (ok bool) {
					_ = r.engines[p].Call(func(*Worker) {
						ok = true
						for k := 0; k < nics; k++ {
							ok = ok && claims[p].n[k] == 1
						}
					})
					return ok
				})
				lo, hi := p*nics*block, (p+1)*nics*block
				for i, b := range r.mems[p].Host {
					want := byte(0)
					if i >= lo && i < hi {
						want = byte(i * 7)
					}
					if b != want {
						t.Fatalf("%d NICs, peer %d byte %d: %#x, want %#x", nics, p, i, b, want)
					}
				}
			}
		}
	}
}

func TestScatterRefusesWholeRequestsWithoutPosting(t *testing.T) {
	r := newRig(t, 1, 2, 2, 0, 4096)
	e := r.engines[0]
	g := must[*PeerGroup](t)(e.AddPeerGroup(r.regions[0], []Descriptor{{}, r.descs[1]}))
	good := GroupOp{Entry: 1, Len: 8}
	with := func(f func(*GroupOp)) GroupOp { o := good; f(&o); return o }
	for name, c := range map[string]struct {
		op   GroupOp
		want error
	}{
		"hole":             {with(func(o *GroupOp) { o.Entry = 0 }), ErrHole},
		"entry -1":         {with(func(o *GroupOp) { o.Entry = -1 }), ErrArgument},
		"entry 2":          {with(func(o *GroupOp) { o.Entry = 2 }), ErrArgument},
		"NIC -1":           {with(func(o *GroupOp) { o.NIC = -1 }), ErrArgument},
		"NIC 2":            {with(func(o *GroupOp) { o.NIC = 2 }), ErrArgument},
		"local end":        {with(func(o *GroupOp) { o.LocalOff = 4089 }), transport.ErrOutOfRange},
		"remote end":       {with(func(o *GroupOp) { o.RemoteOff = 4089 }), transport.ErrOutOfRange},
		"local overflow":   {with(func(o *GroupOp) { o.LocalOff = ^uint64(0) - 3 }), transport.ErrOutOfRange},
		"remote overflow":  {with(func(o *GroupOp) { o.RemoteOff = ^uint64(0) - 3 }), transport.ErrOutOfRange},
		"length overflow":  {with(func(o *GroupOp) { o.Len = ^uint64(0) }), transport.ErrOutOfRange},
		"empty beyond end": {with(func(o *GroupOp) { o.Len = 0; o.RemoteOff = 4097 }), transport.ErrOutOfRange},
	} {
		err := e.Call(func(w *Worker) {
			tr := w.NewTracker()
			if err := w.Scatter(g, tr, []GroupOp{good, c.op}); !errors.Is(err, c.want) {
				t.Errorf("%s: %v, want %v", name, err, c.want)
			}
			if tr.Outstanding() != 0 {
				t.Errorf("%s: %d operations outstanding after a refusal", name, tr.Outstanding())
			}
			if err := w.FreeTracker(tr); err != nil {
				t.Error(err)
			}
			for _, n := range w.nics {
				if len(n.stage) != 0 {
					t.Errorf("%s: something is still staged", name)
				}
			}
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if n := r.doms[0][0].posts.Load() + r.doms[0][1].posts.Load(); n != 0 {
		t.Fatalf("%d operations were posted", n)
	}
}
