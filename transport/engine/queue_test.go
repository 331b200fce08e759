package engine

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"moerail/transport"
)

type numbered struct {
	node node
	from int
	n    int
	seen func(*numbered)
}

func (x *numbered) onWorker(*Worker) {}
func (x *numbered) onCallback()      { x.seen(x) }

func newNumbered(from, n int, seen func(*numbered)) *numbered {
	x := &numbered{from: from, n: n, seen: seen}
	x.node.owner = x
	return x
}

func TestQueueKeepsEachProducersOrderAndLosesNothing(t *testing.T) {
	const producers, each = 4, 5000
	var q queue
	q.init()
	if q.pop() != nil || !q.idle() {
		t.Fatal("a new queue is not empty")
	}
	var wg sync.WaitGroup
	for p := 0; p < producers; p++ {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := 0; i < each; i++ {
				q.push(&newNumbered(p, i, nil).node)
			}
		}()
	}
	var next [producers]int
	for got := 0; got < producers*each; {
		n := q.pop()
		if n == nil {
			runtime.Gosched()
			continue
		}
		x := n.owner.(*numbered)
		if x.n != next[x.from] {
			t.Fatalf("producer %d: item %d after %d", x.from, x.n, next[x.from]-1)
		}
		next[x.from]++
		got++
	}
	wg.Wait()
	if q.pop() != nil || !q.idle() {
		t.Fatal("something is left")
	}
}

func TestQueueNodesMayBeReusedAtOnce(t *testing.T) {
	var q queue
	q.init()
	a, b := newNumbered(0, 0, nil), newNumbered(0, 1, nil)
	q.push(&a.node)
	for i := 0; i < 1000; i++ {
		q.push(&b.node)
		if q.pop() != &a.node {
			t.Fatal("wrong node")
		}
		a, b = b, a
	}
	if q.pop() != &a.node || q.pop() != nil {
		t.Fatal("wrong end")
	}
}

// The callback goroutine goes when it has nothing to do; what comes at that very
// moment must still run, and never two at once.
func TestCallbacksComeAndGo(t *testing.T) {
	var c callbacks
	c.init()
	var ran, inside atomic.Int64
	seen := func(*numbered) {
		if inside.Add(1) != 1 {
			t.Error("two callbacks at once")
		}
		ran.Add(1)
		inside.Add(-1)
	}
	const n = 20000
	for i := int64(0); i < n; i++ {
		c.deliver(&newNumbered(0, 0, seen).node)
		eventually(t, "callback", func() bool { return ran.Load() == i+1 })
		for k := int64(0); k < callbackLinger-4+i%8; k++ {
			runtime.Gosched()
		}
	}
	eventually(t, "the end of the goroutine", func() bool { return !c.running.Load() })
}

func TestTheCallbackGoroutineStaysForWhatCameAtTheLastMoment(t *testing.T) {
	var c callbacks
	c.init()
	c.running.Store(true) // this test is the goroutine
	if !c.leave() || c.running.Load() {
		t.Fatal("stays for nothing")
	}
	c.running.Store(true)
	c.deliver(&newNumbered(0, 0, nil).node)
	if c.leave() || !c.running.Load() {
		t.Fatal("leaves a callback behind")
	}
}

func TestWhatIsHandedOverWhileTheWorkerGoesToSleepIsSeen(t *testing.T) {
	r := newRig(t, 1, 1, 1, 0, 64)
	e := r.engines[0]
	_ = e.Call(func(w *Worker) {
		x := e.newTransfer(shapePages, transport.OpWrite, Done{})
		e.cmds.push(&x.node) // as by a caller that did not see the worker parked yet
		w.timer.Reset(0)
		if !w.park() {
			t.Error("parked in front of a command")
		}
		if !e.cmds.idle() {
			t.Error("the command was not taken")
		}
	})
}

func TestWhatIsSubmittedBehindCloseEnds(t *testing.T) {
	r := newRig(t, 1, 1, 1, 0, 64)
	e := r.engines[0]
	e.Close()
	var c Counter
	x := e.newTransfer(shapePages, transport.OpWrite, Done{Counter: &c}) // past the check of stop
	e.submit(&x.node)
	if c.Count() != 1 || !errors.Is(c.Err(), ErrClosed) {
		t.Fatalf("%d ended, %v", c.Count(), c.Err())
	}
}
