package engine

import (
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"moerail/transport"
	"moerail/transport/counting"
	"moerail/transport/loopback"
)

// timedDomain notes when the first request after arm was posted.
type timedDomain struct {
	transport.Domain
	at atomic.Int64 // nanoseconds since start, 0 while armed
}

var processStart = time.Now()

func (d *timedDomain) Post(wrs []transport.WorkRequest) (int, error) {
	if d.at.Load() == 0 {
		d.at.Store(int64(time.Since(processStart)))
	}
	return d.Domain.Post(wrs)
}

// countingEngine is an engine on NICs that only count, and a group of peers.
func countingEngine(t testing.TB, nics, peers int, wrap func(transport.Domain) transport.Domain, p PollPolicy) (*Engine, *Region, []Descriptor) {
	t.Helper()
	var prov counting.Provider
	open := func(n int) (doms []transport.Domain) {
		for i := 0; i < n; i++ {
			doms = append(doms, must[transport.Domain](t)(prov.Open(fmt.Sprint("c", i), transport.DomainConfig{})))
		}
		return doms
	}
	mine := open(nics)
	if wrap != nil {
		for i := range mine {
			mine[i] = wrap(mine[i])
		}
	}
	e := must[*Engine](t)(New(Config{Provider: prov, Domains: mine, CPU: -1, Poll: p}))
	m := must[transport.Memory](t)(e.Alloc(1 << 20))
	reg, _, err := e.Register(m, transport.AccessAll)
	if err != nil {
		t.Fatal(err)
	}
	var descs []Descriptor
	for i := 0; i < peers; i++ {
		d := Descriptor{Size: 1 << 20}
		for _, dom := range open(nics) {
			r := must[transport.Region](t)(dom.Register(m, transport.AccessAll))
			d.NICs = append(d.NICs, NICKey{Addr: dom.Addr(), Key: r.RemoteKey()})
			t.Cleanup(func() { dom.Close() })
		}
		descs = append(descs, d)
	}
	t.Cleanup(func() {
		e.Close()
		<-e.Drained()
		_ = prov.Free(m)
	})
	return e, reg, descs
}

// scatterRound is what a proxy does per round, on the worker.
func scatterRound(tb testing.TB, w *Worker, g *PeerGroup, tr *Tracker, ops []GroupOp) {
	if err := w.Scatter(g, tr, ops); err != nil {
		tb.Fatal(err)
	}
	for tr.Outstanding() > 0 {
		for _, n := range w.nics {
			if n.queued() {
				n.flush(w)
			}
			n.poll(w)
		}
	}
}

func roundOps(peers, nics int) []GroupOp {
	ops := make([]GroupOp, peers)
	for i := range ops {
		ops[i] = GroupOp{Entry: int32(i), NIC: int8(i % nics), Imm: 7, LocalOff: uint64(i) * 4096, RemoteOff: uint64(i) * 4096, Len: 4096}
	}
	return ops
}

// BenchmarkScatter63 posts to 63 peers from the worker, completions polled
// outside the measured part.
func BenchmarkScatter63(b *testing.B) {
	for _, nics := range []int{1, 4} {
		b.Run(fmt.Sprintf("templated/nics-%d", nics), func(b *testing.B) {
			e, reg, descs := countingEngine(b, nics, 63, nil, PollPolicy{})
			g := must[*PeerGroup](b)(e.AddPeerGroup(reg, descs))
			ops := roundOps(63, nics)
			b.ReportAllocs()
			_ = e.Call(func(w *Worker) {
				tr := w.NewTracker()
				scatterRound(b, w, g, tr, ops)
				b.ResetTimer()
				for i := 0; i < b.N; i++ {
					if err := w.Scatter(g, tr, ops); err != nil {
						b.Fatal(err)
					}
					if i%8 == 7 {
						b.StopTimer()
						for tr.Outstanding() > 0 {
							for _, n := range w.nics {
								n.flush(w)
								n.poll(w)
							}
						}
						b.StartTimer()
					}
				}
				b.StopTimer()
			})
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/63, "ns/peer")
		})
	}
	b.Run("templated-with-completions/nics-1", func(b *testing.B) {
		e, reg, descs := countingEngine(b, 1, 63, nil, PollPolicy{})
		g := must[*PeerGroup](b)(e.AddPeerGroup(reg, descs))
		ops := roundOps(63, 1)
		b.ReportAllocs()
		_ = e.Call(func(w *Worker) {
			tr := w.NewTracker()
			for b.Loop() {
				scatterRound(b, w, g, tr, ops)
			}
		})
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/63, "ns/peer")
	})
	// The same as single writes, submitted and posted on the same thread.
	b.Run("untemplated/nics-1", func(b *testing.B) {
		e, reg, descs := countingEngine(b, 1, 63, nil, PollPolicy{})
		var remotes []*RemoteRegion
		for _, d := range descs {
			remotes = append(remotes, must[*RemoteRegion](b)(e.Import(d)))
		}
		b.ReportAllocs()
		_ = e.Call(func(w *Worker) {
			for b.Loop() {
				for i, r := range remotes {
					if _, err := e.Write(WriteRequest{Local: reg, LocalOff: uint64(i) * 4096, Remote: r, RemoteOff: uint64(i) * 4096, Len: 4096, Imm: 7}, Done{}); err != nil {
						b.Fatal(err)
					}
				}
				for !e.cmds.idle() {
					e.cmds.pop().owner.onWorker(w)
				}
				for w.nics[0].queued() {
					w.nics[0].flush(w)
				}
				b.StopTimer()
				for w.nics[0].poll(w) {
				}
				b.StartTimer()
			}
		})
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/63, "ns/peer")
	})
}

// BenchmarkCallToPost measures from an application's Write to the domain's Post.
func BenchmarkCallToPost(b *testing.B) {
	var d *timedDomain
	e, reg, descs := countingEngine(b, 1, 1, func(in transport.Domain) transport.Domain {
		d = &timedDomain{Domain: in}
		return d
	}, PollPolicy{Spin: 1 << 30})
	remote := must[*RemoteRegion](b)(e.Import(descs[0]))
	var c Counter
	samples := make([]int64, 0, 1<<20)
	n := uint64(0)
	b.ReportAllocs()
	for b.Loop() {
		n++
		d.at.Store(0)
		t0 := int64(time.Since(processStart))
		if _, err := e.Write(WriteRequest{Local: reg, Remote: remote, Len: 64, Imm: 1}, Done{Counter: &c}); err != nil {
			b.Fatal(err)
		}
		for spin := 0; c.Count() < n; spin++ {
			if spin > 1000 {
				runtime.Gosched()
			}
		}
		if len(samples) < cap(samples) {
			samples = append(samples, d.at.Load()-t0)
		}
	}
	slices.Sort(samples)
	for _, q := range []struct {
		name string
		at   float64
	}{{"p50-ns", 0.5}, {"p90-ns", 0.9}, {"p99-ns", 0.99}} {
		b.ReportMetric(float64(samples[int(q.at*float64(len(samples)-1))]), q.name)
	}
}

func TestNoAllocationInSteadyState(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector makes sync.Pool drop things")
	}
	// Scatters from the worker, through a full queue too.
	for _, nics := range []int{1, 4} {
		e, reg, descs := countingEngine(t, nics, 63, nil, PollPolicy{})
		g := must[*PeerGroup](t)(e.AddPeerGroup(reg, descs))
		ops := roundOps(63, nics)
		_ = e.Call(func(w *Worker) {
			tr := w.NewTracker()
			if n := testing.AllocsPerRun(200, func() { scatterRound(t, w, g, tr, ops) }); n != 0 {
				t.Errorf("%d NICs: a scatter to 63 peers allocates %v times", nics, n)
			}
		})
	}
	w := newWorld(t, loopback.Config{MaxSend: 4}, 2, 2, 64<<10)
	e := w.engines[0]
	ic := must[*ImmCounter](t)(w.engines[1].ImmCounter(1))
	g := must[*PeerGroup](t)(e.AddPeerGroup(w.regions[0], w.descs))
	pages := []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9}
	targets := []Target{{Entry: 1, RemoteOff: w.dst(0), Len: 20000}, {Entry: 1, RemoteOff: w.dst(0), Len: 9}}
	var got atomic.Uint64
	if err := w.engines[1].PostRecvs(64, 4, func(Message) { got.Add(1) }); err != nil {
		t.Fatal(err)
	}
	p := must[*Peer](t)(e.AddPeer(w.engines[1].Addr()))
	msg := []byte("a message")
	var c Counter
	var n, calls uint64
	fn := func(error) { calls++ }
	var imms uint64
	for name, do := range map[string]func(Done) (Handle, error){
		"write": func(d Done) (Handle, error) {
			imms += e.WriteImms(20000, 2)
			return e.Write(WriteRequest{Local: w.regions[0], Remote: w.remotes[0][1], RemoteOff: w.dst(0), Len: 20000, Imm: 1, NICs: AllNICs}, d)
		},
		"pages": func(d Done) (Handle, error) {
			imms += 9
			return e.WritePages(PagesRequest{Local: w.regions[0], LocalStride: 64, LocalPages: pages, Remote: w.remotes[0][1], RemoteOff: w.dst(0),
				RemoteStride: 64, RemotePages: pages, PageLen: 64, Imm: 1, NICs: AllNICs}, d)
		},
		"scatter": func(d Done) (Handle, error) {
			imms += e.WriteImms(20000, 2) + 1
			return e.Scatter(ScatterRequest{Group: g, Targets: targets, Imm: 1, NICs: AllNICs, SplitBytes: true}, d)
		},
		"send": func(d Done) (Handle, error) { return e.Send(p, msg, d) },
	} {
		run := func() {
			for k := 0; k < 8; k++ {
				if _, err := do(Done{Counter: &c, Func: fn}); err != nil {
					t.Fatal(err)
				}
				n++
			}
			for c.Count() < n || ic.Total() < imms {
				runtime.Gosched()
			}
		}
		for i := 0; i < 50; i++ {
			run()
		}
		if a := testing.AllocsPerRun(100, run); a != 0 {
			t.Errorf("8 x %s allocate %v times", name, a)
		}
	}
	e.Close()
	<-e.Drained()
	if calls != n || c.Err() != nil {
		t.Errorf("%d calls for %d transfers, %v", calls, n, c.Err())
	}
}
