package host

import (
	"fmt"
	"math"
	"testing"
	"time"

	"moerail/kernels/abi"
)

// servingWorld is a decode step of a large model: hidden 7168, top-8 of 256, with
// everything of one round delivered, so that each stage of rank 0 can run again
// and again.
func servingWorld(b *testing.B, ranks, tokens int, change func(c *worldConfig)) *world {
	c := worldConfig{ranks: ranks, experts: 256, topK: 8, hidden: 7168, maxTokens: tokens, in: abi.BF16, wire: abi.BF16, out: abi.BF16}
	if change != nil {
		change(&c)
	}
	w := newWorld(b, c, 1)
	w.fullTokens()
	w.launchDispatch()
	w.deliverDispatch()
	w.sync()
	w.launchCombine()
	w.deliverCombine()
	w.sync()
	for _, r := range w.r {
		word(r.sl.Round).Store(0)
		for _, at := range []uintptr{ctlDispatchTxDone, ctlDispatchArrived, ctlCombineTxDone, ctlCombineArrived} {
			control(r.sl.Control, at).Store(1 << 60)
		}
	}
	return w
}

// Bytes are those of the rows that the stage reads or writes once: rows sent,
// received, returned, and summed. All ranks take turns, so that caches hold what
// they would in one process with so many ranks.
func BenchmarkStages(b *testing.B) {
	for _, shape := range []struct{ ranks, tokens int }{{2, 128}, {8, 128}, {8, 1}} {
		w := servingWorld(b, shape.ranks, shape.tokens, nil)
		var sent, received, picks int
		for _, r := range w.r {
			for _, n := range view[uint32](r.sl.ReturnRows, shape.ranks) {
				sent += int(n)
			}
			received += int(view[uint32](r.recv.NumRows, 2)[0])
			picks += int(view[uint32](r.recv.NumRows, 2)[1])
		}
		row := int(w.r[0].sh.PayloadBytes)
		for _, stage := range []struct {
			name  string
			bytes int
			run   func(r *rank, s *stageRun)
		}{
			{"dispatch_send", 2 * sent * row, func(r *rank, s *stageRun) { s.dispatchSend(&r.send) }},
			{"dispatch_recv", (received + picks) * row, func(r *rank, s *stageRun) { s.dispatchRecv(&r.recv) }},
			{"combine_send", (received + picks) * row, func(r *rank, s *stageRun) { s.combineSend(&r.back) }},
			{"combine_recv", (sent + shape.ranks*shape.tokens) * row, func(r *rank, s *stageRun) {
				s.combineRecv(&r.sums)
				word(r.sl.Round).Store(0)
			}},
		} {
			b.Run(fmt.Sprintf("R=%d/T=%d/%s", shape.ranks, shape.tokens, stage.name), func(b *testing.B) {
				b.ReportAllocs()
				best := time.Duration(math.MaxInt64) // others may use the machine too
				for b.Loop() {
					start := time.Now()
					for _, r := range w.r {
						stage.run(r, &r.stream.(*Stream).run)
					}
					best = min(best, time.Since(start))
				}
				b.ReportMetric(float64(stage.bytes)/float64(best), "best-GB/s")
				b.ReportMetric(float64(best)/1e3, "best-us")
			})
		}
		for _, r := range w.r {
			if st := r.status(); st.Code != abi.CodeOK {
				b.Fatalf("%+v", st)
			}
		}
		w.close()
	}
}

// BenchmarkHandOver is what a stream costs when its stage has nothing to do.
func BenchmarkHandOver(b *testing.B) {
	for _, passive := range []bool{false, true} {
		b.Run(fmt.Sprint("passive=", passive), func(b *testing.B) {
			w := newWorld(b, worldConfig{ranks: 1, experts: 4, topK: 1, hidden: 8, maxTokens: 1, device: Config{Passive: passive}}, 1)
			w.setTokens(0, 0, nil)
			r := w.r[0]
			control(r.sl.Control, ctlDispatchTxDone).Store(1 << 60)
			b.ReportAllocs()
			for b.Loop() {
				if err := r.stream.DispatchSend(&r.send); err != nil {
					b.Fatal(err)
				}
				r.stream.Sync()
			}
		})
	}
}
