//go:build verbs && cgo && linux

package ibv_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"moerail/internal/ibv"
	"moerail/internal/ibv/ibvfake"
	"moerail/internal/mem"
)

func TestOpenLoadsOrSaysWhy(t *testing.T) {
	l, err := ibv.Open()
	if err != nil {
		if !errors.Is(err, ibv.ErrNoLibrary) || !strings.Contains(err.Error(), "libibverbs.so.1") {
			t.Errorf("Open: %v", err)
		}
		t.Skipf("no library: %v", err)
	}
	if again, _ := ibv.Open(); again != l || !strings.Contains(l.Path(), "libibverbs") || l.Version() == "" {
		t.Errorf("loaded %q, version %q", l.Path(), l.Version())
	}
	// On a machine without devices, an empty list or an error of the call.
	if names, err := l.Devices(); err != nil {
		var ce *ibv.CallError
		if !errors.As(err, &ce) || ce.Call != "ibv_get_device_list" || ce.Errno == 0 {
			t.Errorf("Devices: %v, %v", names, err)
		}
	}
}

func TestErrorsNameCallAndErrno(t *testing.T) {
	ibvfake.Reset(1)
	l := ibv.FromTable(ibvfake.Table(), "fake")
	if _, err := l.OpenDevice("fake7"); !errors.Is(err, unix.ENODEV) || !strings.Contains(err.Error(), "ibv_open_device: no such device (ENODEV, errno 19)") {
		t.Errorf("a device that is not there: %v", err)
	}
	ibvfake.Fail(ibvfake.CallNamed("ibv_open_device"), 1, unix.EMFILE)
	if _, err := l.OpenDevice("fake0"); !errors.Is(err, unix.EMFILE) {
		t.Errorf("open fails with EMFILE: %v", err)
	}
}

// rig is a queue pair that is connected to itself, and a step to post with.
type rig struct {
	q    *ibv.Queue
	qp   *ibv.QP
	mr   *ibv.MR
	addr uint64
	host []byte
}

func newRig(t *testing.T, depth int) *rig {
	t.Helper()
	ibvfake.Reset(1)
	live := ibvfake.Live()
	l := ibv.FromTable(ibvfake.Table(), "fake")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	d, err := l.OpenDevice("fake0")
	must(err)
	pd, err := d.AllocPD()
	must(err)
	cq, err := d.CreateCQ(256)
	must(err)
	imms, err := pd.CreateSRQ(16)
	must(err)
	msgs, err := pd.CreateSRQ(4)
	must(err)
	m, err := mem.Alloc(4096)
	must(err)
	mr, err := pd.Register(mem.Addr(m.Host), 4096, ibv.LocalWrite|ibv.RemoteWrite|ibv.RemoteRead|ibv.RemoteAtomic)
	must(err)
	qp, err := pd.CreateQP(ibv.RC, cq, imms, depth, 0, 64)
	must(err)
	must(qp.Init(1, 0, ibv.RemoteWrite|ibv.RemoteRead|ibv.RemoteAtomic))
	gids, err := d.GIDs()
	must(err)
	must(qp.Connect(&ibv.Connect{Path: ibv.Path{GID: gids[2].GID, SGIDIndex: 2, Global: true, Port: 1}, QPN: qp.Number, RecvPSN: 7, SendPSN: 7, MTU: 5}))
	q, err := l.NewQueue(cq, imms, msgs, ibv.QueueSizes{Sends: 32, Recvs: 8, Imms: 8, Completions: 64})
	must(err)
	t.Cleanup(func() {
		q.Close()
		for _, c := range []interface{ Close() error }{qp, mr, msgs, imms, cq, pd, d} {
			must(c.Close())
			must(c.Close()) // twice is harmless
		}
		must(mem.Free(m))
		if n := ibvfake.Live() - live; n != 0 {
			t.Errorf("%d objects are left", n)
		}
	})
	return &rig{q: q, qp: qp, mr: mr, addr: mem.Addr(m.Host), host: m.Host}
}

func (r *rig) write(id uint64, from, to, n uint32) ibv.Request {
	return ibv.Request{ID: id, Op: ibv.Write, Addr: r.addr + uint64(from), RemoteAddr: r.addr + uint64(to), Len: n, LKey: r.mr.LKey, RKey: r.mr.RKey}
}

// The number of requests that a device took is found by walking to the one that
// it did not take.
func TestChainThatIsTakenInPart(t *testing.T) {
	const depth, posted = 5, 8
	r := newRig(t, depth)
	// Nothing completes while the far end has no receive: the queue fills.
	for id := range uint64(posted) {
		w := r.write(id, 0, 64, 8)
		w.Op, w.Imm = ibv.WriteImm, uint32(id)
		r.q.Add(r.qp, &w)
	}
	res := r.q.Step(64)
	if !res.Refused || res.Chains != 1 || res.Sends != depth || res.Completions != 0 {
		t.Fatalf("%+v", res)
	}
	qp, accepted, count, errno := r.q.Chain(0)
	if qp != r.qp || accepted != depth || count != posted || errno != unix.ENOMEM {
		t.Fatalf("chain: %d of %d, %v", accepted, count, errno)
	}
	if ids := r.q.Requests(0, accepted, nil); !slices.Equal(ids, []uint64{5, 6, 7}) {
		t.Errorf("not taken: %v", ids)
	}
	// Receives come: what was taken completes, in order, with its immediates.
	if n := r.q.Refill(100, 99); n != 8 {
		t.Fatalf("refill takes %d, want the 8 of the queue", n)
	}
	res = r.q.Step(64)
	if res.ImmsTaken != 8 || res.Completions != 2*depth {
		t.Fatalf("%+v", res)
	}
	next := uint32(0)
	for i := range res.Completions {
		w := r.q.Completion(i)
		if w.ID != 99 {
			continue
		}
		if v, ok := w.Imm(); !ok || v != next || w.Status != ibv.WCSuccess || w.QP != r.qp.Number {
			t.Errorf("arrival %d: %+v", next, w)
		}
		next++
	}
	if next != depth {
		t.Errorf("%d immediates of %d", next, depth)
	}
	if n := ibvfake.Overruns(); n != 1 {
		t.Errorf("the device counts %d overruns, want the one that was asked for", n)
	}
}

// A receive queue that is full takes the first ones; the links between the
// prepared receives survive.
func TestReceivesThatAreTakenInPart(t *testing.T) {
	r := newRig(t, 4)
	for range 6 {
		r.q.AddRecv(1, r.addr, 8, r.mr.LKey)
	}
	res := r.q.Step(0)
	if res.RecvsPut != 6 || res.RecvsTaken != 4 || res.RecvErr != unix.ENOMEM {
		t.Fatalf("messages: %+v", res)
	}
	for i, want := range []int{8, 8, 0} { // of 16
		r.q.Refill(8, 2)
		if res = r.q.Step(0); res.ImmsTaken != want {
			t.Fatalf("refill %d: %+v, want %d taken", i, res, want)
		}
	}
	n := 0
	for r.q.AddRecv(1, r.addr, 8, r.mr.LKey) {
		n++
	}
	if n != 8 {
		t.Errorf("a step takes %d receives, want 8", n)
	}
}

// A call that fails as a whole, and so names no request, has taken none.
func TestFailureThatNamesNoRequest(t *testing.T) {
	r := newRig(t, 4)
	ibvfake.NameNone()
	ibvfake.Fail(ibvfake.CallNamed("ibv_post_send"), 1, unix.EOPNOTSUPP)
	w := r.write(7, 0, 64, 8)
	r.q.Add(r.qp, &w)
	res := r.q.Step(64)
	if _, accepted, count, errno := r.q.Chain(0); !res.Refused || res.Sends != 0 || accepted != 0 || count != 1 || errno != unix.EOPNOTSUPP {
		t.Errorf("sends: %+v; %d of %d, %v", res, accepted, count, errno)
	}
	for _, imms := range []bool{true, false} {
		ibvfake.Fail(ibvfake.CallNamed("ibv_post_srq_recv"), 1, unix.EOPNOTSUPP)
		if imms {
			r.q.Refill(8, 2)
		} else {
			r.q.AddRecv(1, r.addr, 8, r.mr.LKey)
		}
		if res := r.q.Step(0); res.ImmsTaken != 0 || res.RecvsTaken != 0 || res.ImmErr+res.RecvErr != unix.EOPNOTSUPP {
			t.Errorf("receives, immediates %v: %+v", imms, res)
		}
	}
}

func TestEveryOpcode(t *testing.T) {
	r := newRig(t, 16)
	copy(r.host, "eight by")
	r.host[128] = 40
	w := r.write(1, 0, 64, 8)
	w.Inline = true
	read := r.write(2, 256, 0, 8)
	read.Op = ibv.Read
	add := r.write(3, 512, 128, 8)
	add.Op, add.Operand = ibv.FetchAdd, 2
	swap := r.write(4, 520, 128, 8)
	swap.Op, swap.Compare, swap.Operand = ibv.CompareSwap, 42, 7
	for _, q := range []ibv.Request{w, read, add, swap} {
		r.q.Add(r.qp, &q)
	}
	if res := r.q.Step(64); res.Completions != 4 || res.Sends != 4 || res.Chains != 1 {
		t.Fatalf("%+v", res)
	}
	for i := range 4 {
		if c := r.q.Completion(i); c.Status != ibv.WCSuccess || c.ID != uint64(i+1) {
			t.Errorf("completion %d: %+v", i, c)
		}
	}
	if string(r.host[64:72]) != "eight by" || string(r.host[256:264]) != "eight by" || r.host[128] != 7 || r.host[512] != 40 || r.host[520] != 42 {
		t.Errorf("%q %q %d %d %d", r.host[64:72], r.host[256:264], r.host[128], r.host[512], r.host[520])
	}
	bad := r.write(5, 0, 4090, 8)
	r.q.Add(r.qp, &bad)
	if res := r.q.Step(64); res.Completions != 1 || r.q.Completion(0).Status != ibv.WCRemoteAccess {
		t.Errorf("a write past the region: %+v, %+v", res, r.q.Completion(0))
	}
	if n := r.q.Crossings(); n != 2 {
		t.Errorf("%d crossings, want 2", n)
	}
}

func TestFailingPoll(t *testing.T) {
	r := newRig(t, 4)
	ibvfake.Fail(ibvfake.CallNamed("ibv_poll_cq"), 1, unix.EIO)
	if res := r.q.Step(64); !res.PollFailed || res.PollErr != unix.EIO || res.Completions != 0 {
		t.Errorf("%+v", res)
	}
	w := r.write(1, 0, 64, 8)
	if n := testing.AllocsPerRun(100, func() {
		r.q.Add(r.qp, &w)
		r.q.Step(64)
	}); n != 0 {
		t.Errorf("%v allocations for a step", n)
	}
}
