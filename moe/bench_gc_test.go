package moe

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// BenchmarkBesideCollector is rounds of 8 ranks, alone and beside a goroutine
// that makes garbage with the collector set to run often. p50 and p99 are of
// whole rounds on rank 0. The two are run in turn, in slices, so that whatever
// else the machine does falls on both.
func BenchmarkBesideCollector(b *testing.B) {
	const ranks, tokens, turns = 8, 16, 20
	cs, rs := benchRanks(b, ranks, tokens, LayoutRows, 1)
	var took [2][]time.Duration
	round := func(n int, into *[]time.Duration) {
		var wg sync.WaitGroup
		for r, c := range cs {
			wg.Go(func() {
				for range n {
					start := time.Now()
					if _, err := c.Dispatch(0, rs[r].in); err != nil {
						b.Error(err)
						return
					}
					if err := c.Combine(0, nil, 0, rs[r].out, 0); err != nil {
						b.Error(err)
						return
					}
					if r == 0 && into != nil {
						*into = append(*into, time.Since(start))
					}
				}
			})
		}
		wg.Wait()
	}
	round(20, nil)
	for b.Loop() {
		for range turns {
			round(50, &took[0])
			stop := makeGarbage()
			round(50, &took[1])
			stop()
		}
	}
	for i, name := range []string{"alone", "gc"} {
		b.ReportMetric(float64(percentile(took[i], 50).Nanoseconds())/1e3, name+"-p50-us")
		b.ReportMetric(float64(percentile(took[i], 99).Nanoseconds())/1e3, name+"-p99-us")
	}
	b.ReportMetric(float64(percentile(took[1], 99))/float64(percentile(took[0], 99)), "gc/alone-p99")
}

func percentile(d []time.Duration, p int) time.Duration {
	slices.Sort(d)
	return d[min(len(d)*p/100, len(d)-1)]
}

// makeGarbage starts a goroutine that allocates some 100 MB/s and has the
// collector run at a tenth of growth; the returned function ends it.
func makeGarbage() (stop func()) {
	old := debug.SetGCPercent(10)
	var done atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		var keep [256][]byte
		for i := 0; !done.Load(); i++ {
			keep[i%len(keep)] = make([]byte, 16<<10)
			if i%64 == 63 {
				time.Sleep(10 * time.Millisecond)
			}
		}
	})
	return func() {
		done.Store(true)
		wg.Wait()
		debug.SetGCPercent(old)
	}
}

// BenchmarkManyRanks is rounds of 64 ranks in one process, on whatever cores there
// are: that they make progress, and what a round costs.
func BenchmarkManyRanks(b *testing.B) {
	for _, ranks := range []int{2, 8, 16, 32, 64} {
		b.Run(fmt.Sprintf("ranks=%d", ranks), func(b *testing.B) {
			benchRound(b, ranks, 8, LayoutRows, 1)
		})
	}
}

type benchRank struct {
	in  Input
	out []byte
}

// benchContext bounds the set-up of a benchmark.
func benchContext(b *testing.B) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	b.Cleanup(cancel)
	return ctx
}
