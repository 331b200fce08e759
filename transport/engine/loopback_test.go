package engine

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand"
	"testing"
	"time"

	"moerail/transport"
	"moerail/transport/loopback"
)

// fabrics lists configurations fabrics from the kindest to the worst.
func fabrics(seed uint64) map[string]loopback.Config {
	return map[string]loopback.Config{
		"plain":   {},
		"tiny":    {MaxSend: 2, MaxRecv: 2, MaxCQ: 2, MaxMessage: 5000},
		"reorder": {Faults: &loopback.Faults{Seed: seed, Reorder: true, PacketBytes: 700}},
		"early":   {MaxSend: 3, Faults: &loopback.Faults{Seed: seed, Reorder: true, PacketBytes: 4096, Completion: loopback.CompleteEarly}},
		"mixed": {MaxSend: 8, MaxRegion: 64 << 10, Faults: &loopback.Faults{Seed: seed, Reorder: true, PacketBytes: 1000,
			Completion: loopback.CompleteMixed, DelayMax: 200 * time.Microsecond, ImmReceives: 1, TrapSource: true}},
	}
}

// world is ranks with one region each: a half to write from, a half to be
// written to, cut into one part per source.
type world struct {
	engines []*Engine
	regions []*Region
	descs   []Descriptor
	mems    []transport.Memory
	remotes [][]*RemoteRegion
	part    uint64
}

func newWorld(t testing.TB, cfg loopback.Config, ranks, nics int, part uint64) *world {
	t.Helper()
	cfg.OnFault = func(f loopback.Fault) { t.Error(f) }
	fab := must[*loopback.Fabric](t)(loopback.New(cfg))
	w := &world{part: part}
	size := 2 * part * uint64(ranks)
	for i := 0; i < ranks; i++ {
		proc := fab.Process(fmt.Sprint("rank", i), "host")
		var doms []transport.Domain
		for k := 0; k < nics; k++ {
			doms = append(doms, must[transport.Domain](t)(proc.Open(fmt.Sprint("lo", k), transport.DomainConfig{})))
		}
		e := must[*Engine](t)(New(Config{Provider: proc, Domains: doms, CPU: -1}))
		m := must[transport.Memory](t)(e.Alloc(size))
		reg, desc, err := e.Register(m, transport.AccessAll)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := e.Close(); err != nil {
				t.Error(err)
			}
			<-e.Drained()
		})
		w.engines, w.regions, w.descs, w.mems = append(w.engines, e), append(w.regions, reg), append(w.descs, desc), append(w.mems, m)
	}
	t.Cleanup(func() { // before the engines close: nothing may be in flight over freed memory
		for i, e := range w.engines {
			_ = e.Close()
			_ = fab.Free(w.mems[i])
		}
	})
	for i, e := range w.engines {
		var row []*RemoteRegion
		for j := range w.engines {
			b, err := w.descs[j].MarshalBinary()
			if err != nil {
				t.Fatal(err)
			}
			row = append(row, must[*RemoteRegion](t)(e.Import(must[Descriptor](t)(ParseDescriptor(b)))))
		}
		w.remotes = append(w.remotes, row)
		fill(w.mems[i].Host[:size/2], byte(i+1))
	}
	return w
}

// src is where rank i keeps what it sends to rank j, dst where j gets it.
func (w *world) src(j int) uint64 { return uint64(j) * w.part }
func (w *world) dst(i int) uint64 { return uint64(len(w.engines)+i) * w.part }

func (w *world) check(t testing.TB, i, j int, off, n uint64) {
	t.Helper()
	got := w.mems[j].Host[w.dst(i)+off : w.dst(i)+off+n]
	want := w.mems[i].Host[w.src(j)+off : w.src(j)+off+n]
	if !bytes.Equal(got, want) {
		for k := range got {
			if got[k] != want[k] {
				t.Fatalf("rank %d to %d: byte %d of %d at %d is %#x, want %#x", i, j, k, n, off, got[k], want[k])
			}
		}
	}
}

func TestEverythingOverLoopback(t *testing.T) {
	for seed := uint64(1); seed <= 4; seed++ {
		for name, cfg := range fabrics(seed) {
			for _, nics := range []int{1, 2, 4} {
				t.Run(fmt.Sprintf("%s/%d-nics/seed-%d", name, nics, seed), func(t *testing.T) {
					everything(t, cfg, nics, int64(seed))
				})
			}
		}
	}
}

func everything(t *testing.T, cfg loopback.Config, nics int, seed int64) {
	const ranks, part = 3, 48 << 10
	rng := rand.New(rand.NewSource(seed))
	w := newWorld(t, cfg, ranks, nics, part)
	ctx := soon(t)
	const immWrite, immPage, immScatter, immBar, claimBase = 1, 2, 3, 4, 0x80000000
	var sent [ranks]Counter
	var submitted [ranks]uint64
	var want [ranks][5]uint64
	var msgs [ranks]Counter
	claims := make([]*immCounts, ranks)
	counters := make([][5]*ImmCounter, ranks)
	groups := make([]*PeerGroup, ranks)
	for i, e := range w.engines {
		for imm := transport.Imm(1); imm < 5; imm++ {
			if rng.Intn(2) == 0 { // the others count from what came early
				counters[i][imm] = must[*ImmCounter](t)(e.ImmCounter(imm))
			}
		}
		claims[i] = &immCounts{n: make([]int, ranks)}
		must[*ImmClaim](t)(e.ClaimImms(claimBase, ranks, claims[i]))
		list := append([]Descriptor(nil), w.descs...)
		list[i] = Descriptor{}
		groups[i] = must[*PeerGroup](t)(e.AddPeerGroup(w.regions[i], list))
		if err := e.PostRecvs(512, 3, func(m Message) {
			if m.Err == nil && (len(m.Bytes) != int(m.Bytes[0])+1 || m.Bytes[len(m.Bytes)-1] != m.Bytes[0]) {
				t.Errorf("damaged message %x", m.Bytes)
			}
			if m.Err == nil {
				msgs[i].ended(nil)
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	type sentRange struct {
		i, j   int
		off, n uint64
	}
	var checks []sentRange
	choose := func() NICs {
		n := 1 + rng.Intn(nics)
		return []NICs{OverNICs(n), OnNIC(n - 1), AllNICs, AnyNIC}[rng.Intn(4)]
	}
	width := func(c NICs) int {
		switch {
		case c == AllNICs:
			return nics
		case c < 0:
			return int(-1 - c)
		}
		return 1
	}
	var nmsgs [ranks]uint64
	for step := 0; step < 30; step++ {
		i := rng.Intn(ranks)
		j := (i + 1 + rng.Intn(ranks-1)) % ranks
		e, d := w.engines[i], Done{Counter: &sent[i]}
		choice := choose()
		off := uint64(rng.Intn(part))
		n := uint64(rng.Intn(int(part-off) + 1))
		submitted[i]++
		var err error
		switch rng.Intn(5) {
		case 0:
			_, err = e.Write(WriteRequest{Local: w.regions[i], LocalOff: w.src(j) + off, Remote: w.remotes[i][j], RemoteOff: w.dst(i) + off, Len: n, Imm: immWrite, NICs: choice}, d)
			want[j][immWrite] += e.WriteImms(n, width(choice))
			checks = append(checks, sentRange{i, j, off, n})
		case 1:
			const page = 512
			var pages []uint32
			for p := uint32(0); p < part/page; p++ {
				if rng.Intn(4) == 0 {
					pages = append(pages, p)
					checks = append(checks, sentRange{i, j, uint64(p) * page, page})
				}
			}
			_, err = e.WritePages(PagesRequest{Local: w.regions[i], LocalOff: w.src(j), LocalStride: page, LocalPages: pages, Remote: w.remotes[i][j],
				RemoteOff: w.dst(i), RemoteStride: page, RemotePages: pages, PageLen: page, Imm: immPage, NICs: choice}, d)
			want[j][immPage] += uint64(len(pages))
		case 2:
			split := rng.Intn(2) == 0
			var targets []Target
			for q := 0; q < ranks; q++ {
				if q != i {
					targets = append(targets, Target{Entry: q, LocalOff: w.src(q) + off, RemoteOff: w.dst(i) + off, Len: n})
					checks = append(checks, sentRange{i, q, off, n})
					over := 1
					if split {
						over = width(choice)
					}
					want[q][immScatter] += e.WriteImms(n, over)
				}
			}
			_, err = e.Scatter(ScatterRequest{Group: groups[i], Targets: targets, Imm: immScatter, NICs: choice, SplitBytes: split}, d)
		case 3:
			_, err = e.Barrier(groups[i], immBar, choice, d)
			for q := 0; q < ranks; q++ {
				if q != i {
					want[q][immBar]++
				}
			}
		case 4:
			p := must[*Peer](t)(e.AddPeer(w.engines[j].Addr()))
			_, err = e.Send(p, bytes.Repeat([]byte{byte(step)}, step+1), d)
			nmsgs[j]++
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	// And a scatter from the worker on every rank.
	trackers := make([]*Tracker, ranks)
	for i, e := range w.engines {
		_ = e.Call(func(wk *Worker) {
			trackers[i] = wk.NewTracker()
			var ops []GroupOp
			for q := 0; q < ranks; q++ {
				if q != i {
					ops = append(ops, GroupOp{Entry: int32(q), NIC: int8((q + i) % nics), Imm: claimBase + transport.Imm(i), LocalOff: w.src(q), RemoteOff: w.dst(i), Len: 3000})
					checks = append(checks, sentRange{i, q, 0, 3000})
				}
			}
			if err := wk.Scatter(groups[i], trackers[i], ops); err != nil {
				t.Error(err)
			}
		})
	}
	for i, e := range w.engines {
		if err := sent[i].Wait(ctx, submitted[i]); err != nil {
			t.Fatal(err)
		}
		if err := msgs[i].Wait(ctx, nmsgs[i]); err != nil {
			t.Fatalf("messages at rank %d: %d of %d: %v", i, msgs[i].Count(), nmsgs[i], err)
		}
		for imm := transport.Imm(1); imm < 5; imm++ {
			c := must[*ImmCounter](t)(e.ImmCounter(imm))
			if err := c.Wait(ctx, want[i][imm]); err != nil {
				t.Fatalf("rank %d immediate %d: %d of %d: %v", i, imm, c.Total(), want[i][imm], err)
			}
			if c.Total() != want[i][imm] {
				t.Fatalf("rank %d immediate %d: %d, want %d", i, imm, c.Total(), want[i][imm])
			}
		}
		eventually(t, "claimed immediates", func() (ok bool) {
			_ = e.Call(func(*Worker) {
				ok = trackers[i].Outstanding() == 0
				for q := range claims[i].n {
					ok = ok && (claims[i].n[q] == 1 || q == i)
				}
			})
			return ok
		})
	}
	for _, c := range checks {
		w.check(t, c.i, c.j, c.off, c.n)
	}
	// Every rank adds to one word of rank 0, then reads it.
	word := w.mems[0].Host[w.dst(0):][:8]
	binary.LittleEndian.PutUint64(word, 0)
	for i, e := range w.engines {
		at := AtomicRequest{Local: w.regions[i], LocalOff: w.dst(i), Remote: w.remotes[i][0], RemoteOff: w.dst(0), Operand: 5, NICs: OnNIC(0)}
		if i == 0 {
			at.LocalOff += 8
		}
		for k := 0; k < 4; k++ {
			must[Handle](t)(e.FetchAdd(at, Done{Counter: &sent[i]}))
			submitted[i]++
		}
	}
	for i := range w.engines {
		if err := sent[i].Wait(ctx, submitted[i]); err != nil {
			t.Fatal(err)
		}
	}
	var c Counter
	must[Handle](t)(w.engines[1].Read(WriteRequest{Local: w.regions[1], LocalOff: w.dst(1), Remote: w.remotes[1][0], RemoteOff: w.dst(0), Len: 8}, Done{Counter: &c}))
	if err := c.Wait(ctx, 1); err != nil {
		t.Fatal(err)
	}
	if n := binary.LittleEndian.Uint64(w.mems[1].Host[w.dst(1):]); n != ranks*4*5 {
		t.Fatalf("the word is %d after %d additions of 5", n, ranks*4)
	}
}

func TestDepthTwoBothWaysOverLoopback(t *testing.T) {
	w := newWorld(t, loopback.Config{MaxSend: 2, MaxCQ: 2}, 2, 1, 4096)
	// The workers hand over after every second write. Where other programs hold the
	// cores, each hand-over waits for a time slice of some milliseconds.
	const n = 2000
	var c [2]Counter
	var ics [2]*ImmCounter
	for i, e := range w.engines {
		ics[i] = must[*ImmCounter](t)(e.ImmCounter(1))
	}
	for k := 0; k < n; k++ {
		for i, e := range w.engines {
			must[Handle](t)(e.Write(WriteRequest{Local: w.regions[i], Remote: w.remotes[i][1-i], RemoteOff: w.dst(i), Len: 64, Imm: 1}, Done{Counter: &c[i]}))
		}
	}
	for i := range c {
		if err := errors.Join(c[i].Wait(soon(t), n), ics[i].Wait(soon(t), n)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestMapRemoteOverLoopback(t *testing.T) {
	w := newWorld(t, loopback.Config{}, 2, 2, 4096)
	region, err := w.engines[0].MapRemote(w.descs[1])
	if errors.Is(err, transport.ErrUnsupported) && !w.engines[0].Limits(0).SharesMemory {
		return // and said so
	}
	if err != nil {
		t.Fatal(err)
	}
	m := region.Memory()
	m.Host[7] = 0x5a
	if m.Size != w.mems[1].Size || w.mems[1].Host[7] != 0x5a {
		t.Fatal("the mapped memory is not the peer's")
	}
	for range 2 {
		if err := region.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
