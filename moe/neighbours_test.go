package moe

import (
	"testing"
	"time"

	"moerail/internal/mem"
	"moerail/kernels"
	"moerail/transport/engine"
)

// told is a stream that says when it is notified; Sync waits for that.
type told struct {
	kernels.Stream
	c chan struct{}
}

func (s *told) Notify() {
	select {
	case s.c <- struct{}{}:
	default:
	}
}

func (s *told) Sync() { <-s.c }

// TestFlagsAreLookedAtAnewInEachWait: a wait that ended while the proxy had seen
// some flags leaves nothing behind for the next one.
func TestFlagsAreLookedAtAnewInEachWait(t *testing.T) {
	c0 := small(t, 3, func(s *setting) { s.cfg.RanksPerNode = 3 }).cs[0]
	stream := &told{c: make(chan struct{}, 1)}
	s := &slot{stream: stream}
	c := &Communicator{plan: c0.plan, inbox: c0.inbox, device: c0.device, ranks: 3, slots: []*slot{s}}
	p := &proxy{c: c, direct: []int{1, 2}}
	flag := func(round uint64, q int) {
		mem.Word64(c.inbox.Host, c.plan.DirectDispatchOffset(0, int(round&1), q)).Store(round + 1)
	}
	look := func(want bool) {
		t.Helper()
		if got := p.pollDirect(s); got != want || len(stream.c) > 0 != want {
			t.Fatalf("round %d: told %v, notified %v, want %v", s.round.Load(), got, len(stream.c) > 0, want)
		}
		if p.MaySleep() != want {
			t.Fatalf("round %d: may sleep: %v, want %v", s.round.Load(), !want, want)
		}
	}
	s.waitPhase.Store(int32(phaseSent))
	s.waiting.Store(100)
	flag(0, 1)
	look(false) // rank 2 is late
	// The stage saw rank 2's flag itself, and the user waits again before the proxy looks.
	flag(0, 2)
	s.round.Store(1)
	s.waiting.Store(200)
	flag(1, 2)
	look(false) // now rank 1 is late
	flag(1, 1)
	look(true)
}

// TestAWaitWakesTheWorker: a parked worker has to be told that flags of other
// processes' ranks are to be looked at: those ranks wake nobody.
func TestAWaitWakesTheWorker(t *testing.T) {
	c := small(t, 2, func(s *setting) { s.cfg.RanksPerNode = 2 }).cs[0]
	s := c.slots[0]
	stream, own, mapped := &told{c: make(chan struct{}, 1)}, s.stream, c.proxy.direct
	swap := func(st kernels.Stream, direct []int) {
		parks := c.engine.Stats().Parks
		if err := c.engine.Call(func(*engine.Worker) { s.stream, c.proxy.direct = st, direct }); err != nil {
			t.Fatal(err)
		}
		for i := 0; c.engine.Stats().Parks == parks; i++ {
			pause(i)
		}
	}
	swap(stream, []int{1}) // as if rank 1 were another process's
	defer swap(own, mapped)
	mem.Word64(c.inbox.Host, c.plan.DirectDispatchOffset(0, 0, 1)).Store(1)
	done := make(chan struct{})
	go func() { c.wait(s, phaseSent); close(done) }()
	select {
	case <-done:
	case <-time.After(5 * time.Second):
		stream.Notify()
		<-done
		t.Error("nobody looked at the flag within 5 s")
	}
}
