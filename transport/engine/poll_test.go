package engine

import (
	"runtime"
	"sync/atomic"
	"testing"
)

// turns counts the worker's turns.
type turns struct{ n atomic.Int64 }

func (p *turns) Poll(*Worker) bool { p.n.Add(1); return false }

// A worker that has the only processor lets applications run as soon as there is
// nothing to do, whether or not it may ever sleep: what it would wait for in idle
// turns may be theirs to do.
func TestWorkerOnTheOnlyProcessorYieldsAtOnce(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for _, policy := range []PollPolicy{{}, {NoPark: true}} {
		e, reg, descs := countingEngine(t, 1, 1, nil, policy)
		if n := crowd.Load(); n != 1 {
			t.Fatalf("%d workers are there, want the one of this test", n)
		}
		remote := must[*RemoteRegion](t)(e.Import(descs[0]))
		var p turns
		if err := e.Attach(&p); err != nil {
			t.Fatal(err)
		}
		const writes = 100
		var c Counter
		begin := p.n.Load()
		for i := uint64(1); i <= writes; i++ {
			if _, err := e.Write(WriteRequest{Local: reg, Remote: remote, Len: 8}, Done{Counter: &c}); err != nil {
				t.Fatal(err)
			}
			for c.Count() < i {
				runtime.Gosched()
			}
		}
		// A write takes a turn or two, and two more find nothing before the yield.
		if each := float64(p.n.Load()-begin) / writes; each > 6 {
			t.Errorf("policy %+v: %.1f turns of the worker for each write", policy, each)
		}
		e.Close()
		<-e.Drained()
	}
}
