package engine

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"moerail/transport"
)

// wait returns how a transfer ended; it fails the test if it ended twice.
func ending(t testing.TB, do func(Done) (Handle, error)) error {
	t.Helper()
	ch := make(chan error, 2)
	if _, err := do(Done{Func: func(err error) { ch <- err }}); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ch:
		return err
	case <-soon(t).Done():
		t.Fatal("the transfer does not end")
		return nil
	}
}

func TestAFailedShardFailsItsTransferOnceAndNoOther(t *testing.T) {
	r := newRig(t, 4, 2, 4, 2, 1<<20)
	e := r.engines[0]
	remote := r.importTo(t, 0, 1)
	var n atomic.Int32
	r.net.set(func() {
		r.net.fail = func(d *fakeDomain, op *fakeOp) transport.Status {
			if op.wr.Imm == 13 && n.Add(1) == 3 {
				return transport.StatusRemoteAccess
			}
			return transport.StatusOK
		}
	})
	write := func(imm transport.Imm) func(Done) (Handle, error) {
		return func(d Done) (Handle, error) {
			return e.Write(WriteRequest{Local: r.regions[0], Remote: remote, Len: 1 << 20, Imm: imm, NICs: AllNICs}, d)
		}
	}
	err := ending(t, write(13))
	var te *TransferError
	if !errors.As(err, &te) || !errors.Is(err, ErrRemoteAccess) || te.Status != transport.StatusRemoteAccess || te.Op != transport.OpWriteImm {
		t.Fatalf("%v", err)
	}
	if !strings.HasPrefix(te.NIC, "r0-nic") || !strings.Contains(err.Error(), te.NIC) || !strings.Contains(err.Error(), "write-imm") {
		t.Errorf("error does not tell where: %v", err)
	}
	for i := 0; i < 4; i++ {
		if err := ending(t, write(14)); err != nil {
			t.Fatalf("later transfer: %v", err)
		}
	}
	if s := e.Stats(); s.TransfersFailed != 1 || s.OpsFailed != 1 || s.TransfersDone != 4 {
		t.Errorf("failed %d (%d operations), done %d", s.TransfersFailed, s.OpsFailed, s.TransfersDone)
	}
}

func TestScatterErrorsNameTheEntry(t *testing.T) {
	r := newRig(t, 4, 4, 2, 1, 4096)
	e := r.engines[0]
	g := must[*PeerGroup](t)(e.AddPeerGroup(r.regions[0], []Descriptor{{}, r.descs[1], r.descs[2], r.descs[3]}))
	r.net.set(func() {
		r.net.fail = func(d *fakeDomain, op *fakeOp) transport.Status {
			if strings.HasPrefix(d.peers[op.wr.Peer], "r2") {
				return transport.StatusPeerLost
			}
			return transport.StatusOK
		}
	})
	err := ending(t, func(d Done) (Handle, error) { return e.Barrier(g, 1, AllNICs, d) })
	var te *TransferError
	if !errors.As(err, &te) || te.Entry != 2 || !errors.Is(err, transport.ErrPeerLost) {
		t.Fatalf("%v", err)
	}
	var tr *Tracker
	_ = e.Call(func(w *Worker) {
		tr = w.NewTracker()
		if err := w.Scatter(g, tr, []GroupOp{{Entry: 1}, {Entry: 2, NIC: 1}, {Entry: 3}}); err != nil {
			t.Error(err)
		}
	})
	eventually(t, "completions", func() (ok bool) {
		_ = e.Call(func(*Worker) { ok = tr.Outstanding() == 0 })
		return ok
	})
	_ = e.Call(func(w *Worker) {
		if te := tr.Err(); te == nil || te.Entry != 2 || te.NIC != "r0-nic1" {
			t.Errorf("tracker says %v", te)
		}
		tr.Reset()
		if tr.Err() != nil {
			t.Error("an error after Reset")
		}
	})
}

func TestRefusedPostsFailTheirTransfers(t *testing.T) {
	r := newRig(t, 4, 2, 2, 2, 1<<16)
	e := r.engines[0]
	remote := r.importTo(t, 0, 1)
	g := must[*PeerGroup](t)(e.AddPeerGroup(r.regions[0], r.descs[1:]))
	bad := errors.New("the device says no")
	r.net.set(func() { r.doms[0][1].postErr = bad })
	write := func(c NICs) error {
		return ending(t, func(d Done) (Handle, error) {
			return e.Write(WriteRequest{Local: r.regions[0], Remote: remote, Len: 1 << 16, NoImm: true, NICs: c}, d)
		})
	}
	if err := write(AllNICs); !errors.Is(err, bad) {
		t.Errorf("write: %v", err)
	}
	if err := write(OnNIC(0)); err != nil {
		t.Errorf("write on the good NIC: %v", err)
	}
	err := ending(t, func(d Done) (Handle, error) {
		return e.Scatter(ScatterRequest{Group: g, Targets: []Target{{Len: 5}, {Len: 6}}, NICs: OnNIC(1)}, d)
	})
	var te *TransferError
	if !errors.As(err, &te) || !errors.Is(err, bad) || te.Entry != 0 || te.NIC != "r0-nic1" {
		t.Errorf("scatter: %v", err)
	}
	_ = e.Call(func(w *Worker) {
		tr := w.NewTracker()
		if err := w.Scatter(g, tr, []GroupOp{{NIC: 1}, {NIC: 1}}); err != nil {
			t.Error(err)
		}
		if tr.Outstanding() != 0 || !errors.Is(tr.Err(), bad) {
			t.Errorf("worker scatter: %d outstanding, %v", tr.Outstanding(), tr.Err())
		}
	})
	r.net.set(func() { r.doms[0][1].postErr = nil })
	if err := write(AllNICs); err != nil {
		t.Errorf("after the fault: %v", err)
	}
}

func TestAFailedNICEndsItsTransfersAndLeavesTheOthers(t *testing.T) {
	r := newRig(t, 4, 2, 2, 2, 1<<16)
	e := r.engines[0]
	remote := r.importTo(t, 0, 1)
	dead := errors.New("device removed")
	r.net.set(func() { r.net.hold = true })
	ch := make(chan error, 64)
	// In flight, and queued behind a full queue of 2.
	for i := 0; i < 20; i++ {
		must[Handle](t)(e.Write(WriteRequest{Local: r.regions[0], Remote: remote, Len: 100, NoImm: true, NICs: OnNIC(i % 2)}, Done{Func: func(err error) { ch <- err }}))
	}
	eventually(t, "a full queue", func() bool { return e.Stats().Requeued > 0 })
	r.net.set(func() { r.doms[0][1].pollErr = dead })
	for i := 0; i < 10; i++ {
		if err := <-ch; !errors.Is(err, ErrNICFailed) || !errors.Is(err, dead) {
			t.Fatalf("transfer on the failed NIC: %v", err)
		}
	}
	r.net.set(func() { r.net.hold = false })
	for i := 0; i < 10; i++ {
		if err := <-ch; err != nil {
			t.Fatalf("transfer on the other NIC: %v", err)
		}
	}
	if err := ending(t, func(d Done) (Handle, error) {
		return e.Write(WriteRequest{Local: r.regions[0], Remote: remote, Len: 100, NICs: OnNIC(1)}, d)
	}); !errors.Is(err, ErrNICFailed) {
		t.Errorf("later transfer on the failed NIC: %v", err)
	}
	_ = e.Call(func(*Worker) {}) // a turn more, in which nothing may end again
	if s := e.Stats(); s.TransfersFailed != 11 || s.OpsFailed != 11 || s.TransfersDone != 10 {
		t.Errorf("%d failed with %d operations, %d done, want 11, 11 and 10", s.TransfersFailed, s.OpsFailed, s.TransfersDone)
	}
	if s := e.Stats(); !s.NICs[1].Failed || s.NICs[0].Failed {
		t.Errorf("failed flags %v %v", s.NICs[0].Failed, s.NICs[1].Failed)
	}
}

func TestStrayCompletionsAreCountedAndIgnored(t *testing.T) {
	r := newRig(t, 4, 2, 1, 2, 4096)
	e := r.engines[0]
	r.net.set(func() {
		for _, id := range []transport.WRID{0, 1, 77, 1 << 40, recvBit, recvBit | 5, ^transport.WRID(0)} {
			r.doms[0][0].comps = append(r.doms[0][0].comps, transport.Completion{ID: id, Op: transport.OpWrite})
		}
	})
	e.Wake()
	eventually(t, "strays", func() bool { return e.Stats().StrayCompletions == 7 })
	remote := r.importTo(t, 0, 1)
	if err := ending(t, func(d Done) (Handle, error) {
		return e.Write(WriteRequest{Local: r.regions[0], Remote: remote, Len: 9}, d)
	}); err != nil {
		t.Fatal(err)
	}
}

func TestClosedRegionsAndGroupsFailWhatNamesThem(t *testing.T) {
	r := newRig(t, 4, 2, 1, 2, 4096)
	e := r.engines[0]
	remote := r.importTo(t, 0, 1)
	g := must[*PeerGroup](t)(e.AddPeerGroup(r.regions[0], r.descs[1:]))
	if err := errors.Join(remote.Close(), remote.Close(), g.Close(), g.Close()); err != nil {
		t.Fatal(err)
	}
	if err := ending(t, func(d Done) (Handle, error) {
		return e.Write(WriteRequest{Local: r.regions[0], Remote: remote, Len: 9}, d)
	}); !errors.Is(err, ErrForeign) {
		t.Errorf("closed remote region: %v", err)
	}
	if err := ending(t, func(d Done) (Handle, error) { return e.Barrier(g, 1, AnyNIC, d) }); !errors.Is(err, ErrForeign) {
		t.Errorf("closed group: %v", err)
	}
	_ = e.Call(func(w *Worker) {
		if err := w.Scatter(g, w.NewTracker(), []GroupOp{{}}); !errors.Is(err, ErrForeign) {
			t.Errorf("worker scatter to a closed group: %v", err)
		}
	})
	// The peer revokes its region: the write fails at its sender.
	remote = r.importTo(t, 0, 1)
	if err := errors.Join(r.regions[1].Close(), r.regions[1].Close()); err != nil {
		t.Fatal(err)
	}
	if err := ending(t, func(d Done) (Handle, error) {
		return e.Write(WriteRequest{Local: r.regions[0], Remote: remote, Len: 9}, d)
	}); !errors.Is(err, ErrRemoteAccess) {
		t.Errorf("revoked region: %v", err)
	}
}

func TestCancelDropsTheQueuedPartAndWaitsForTheRest(t *testing.T) {
	r := newRig(t, 4, 2, 2, 2, 1<<16)
	e := r.engines[0]
	remote := r.importTo(t, 0, 1)
	r.net.set(func() { r.net.hold = true })
	pages := make([]uint32, 100)
	for i := range pages {
		pages[i] = uint32(i)
	}
	ch := make(chan error, 4)
	h := must[Handle](t)(e.WritePages(PagesRequest{Local: r.regions[0], LocalStride: 64, LocalPages: pages, Remote: remote,
		RemoteStride: 64, RemotePages: pages, PageLen: 64, NICs: AllNICs}, Done{Func: func(err error) { ch <- err }}))
	behind := must[Handle](t)(e.Write(WriteRequest{Local: r.regions[0], Remote: remote, Len: 8, NICs: OnNIC(0)}, Done{Func: func(err error) { ch <- err }}))
	eventually(t, "a full queue", func() bool { return r.doms[0][0].posts.Load() == 2 && r.doms[0][1].posts.Load() == 2 })
	for _, time := range []string{"first", "second"} {
		if !h.Cancel() {
			t.Fatalf("the %s Cancel of a running transfer was refused", time)
		}
	}
	_ = e.Call(func(*Worker) {})
	if len(ch) != 0 {
		t.Fatal("the transfer ended with operations in flight")
	}
	r.net.set(func() { r.net.hold = false })
	first, second := <-ch, <-ch
	if !errors.Is(first, ErrCancelled) {
		first, second = second, first
	}
	if !errors.Is(first, ErrCancelled) || second != nil {
		t.Fatalf("ended with %v and %v", first, second)
	}
	if n := r.doms[0][0].posts.Load() + r.doms[0][1].posts.Load(); n != 5 {
		t.Errorf("%d operations were posted, want 4 of the cancelled transfer and 1 behind it", n)
	}
	if h.Cancel() || behind.Cancel() || (Handle{}).Cancel() {
		t.Error("an ended transfer can be cancelled")
	}
	if e.Stats().TransfersCanceled != 1 {
		t.Error("not counted")
	}
}

func TestCancelAtAnyMomentEndsATransferOnce(t *testing.T) {
	r := newRig(t, 4, 2, 2, 2, 1<<16)
	e := r.engines[0]
	remote := r.importTo(t, 0, 1)
	var ended, cancelled, accepted Counter
	const n = 2000
	for i := 0; i < n; i++ {
		h := must[Handle](t)(e.Write(WriteRequest{Local: r.regions[0], Remote: remote, Len: 1 << 14, NoImm: true, NICs: AllNICs},
			Done{Counter: &ended, Func: func(err error) {
				if errors.Is(err, ErrCancelled) {
					cancelled.ended(nil)
				} else if err != nil {
					t.Error(err)
				}
			}}))
		if i%3 == 0 && h.Cancel() {
			accepted.ended(nil)
		}
	}
	_ = ended.Wait(soon(t), n)
	eventually(t, "callbacks", func() bool { return cancelled.Count() == accepted.Count() })
	_ = e.Call(func(w *Worker) {
		for _, tr := range w.slots {
			if tr != nil {
				t.Error("a tracker is left")
			}
		}
	})
	if ended.Count() != n {
		t.Fatalf("%d transfers ended, want %d", ended.Count(), n)
	}
}
