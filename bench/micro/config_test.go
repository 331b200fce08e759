package micro

import (
	"math"
	"slices"
	"testing"
)

func TestParseSizes(t *testing.T) {
	got, err := ParseSizes("8, 4k,1M,4294967295")
	if want := []uint64{8, 4096, 1 << 20, 1<<32 - 1}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	for _, list := range []string{"", "8,", "x", "-1", "4K", "1.5k", "99999999999", "8 8", "k"} {
		if got, err := ParseSizes(list); err == nil {
			t.Errorf("%q gave %v", list, got)
		}
	}
}

// The slots of a size do not overlap, lie within the halves and end where they should.
func TestLayout(t *testing.T) {
	c := Defaults()
	for _, size := range []uint64{1, 8, 63, 64, 65, 4096, 100_001, 1 << 20, 5 << 20, MaxSize} {
		c.Sizes = []uint64{8, size}
		l := c.layout(size)
		if l.slots < 1 || l.slots > c.Window || l.stride < size || l.stride%slotAlign != 0 {
			t.Fatalf("%d bytes: %+v", size, l)
		}
		if end := l.local(l.slots-1) + size; end > l.half {
			t.Errorf("%d bytes: the last slot ends at %d, the half at %d", size, end, l.half)
		}
		if l.slots > 1 && uint64(l.slots)*l.stride > c.Span {
			t.Errorf("%d bytes: %d slots are more than the span", size, l.slots)
		}
		if l.remote(0) != l.half {
			t.Errorf("%d bytes: peers write to %d", size, l.remote(0))
		}
	}
}

// check finds any byte that differs, and nothing behind the slots it was told of.
func TestCheck(t *testing.T) {
	c := Defaults()
	c.Sizes, c.Span, c.Window = []uint64{300}, 1024, 8
	l := c.layout(300)
	from, to := make([]byte, 2*c.half()), make([]byte, 2*c.half())
	l.fill(from, 0)
	l.fill(to, 1)
	for s := range l.slots {
		copy(to[l.remote(s):][:300], from[l.local(s):])
	}
	if err := l.check(to, 0, l.slots); err != nil {
		t.Fatal(err)
	}
	if err := l.check(to, 1, l.slots); err == nil {
		t.Error("the own bytes pass for the other rank's")
	}
	for s := range l.slots {
		for i := range 300 {
			at := l.remote(s) + uint64(i)
			to[at]++
			if err := l.check(to, 0, l.slots); err == nil {
				t.Fatalf("byte %d of slot %d is wrong and was not found", i, s)
			}
			if err := l.check(to, 0, s); err != nil {
				t.Fatalf("looked beyond slot %d: %v", s, err)
			}
			to[at]--
		}
	}
}

func TestCounts(t *testing.T) {
	c := Config{Samples: 1000, SampleBytes: 1 << 20, Burst: 500, BurstBytes: 1 << 20, Window: 64}
	for size, want := range map[uint64][2]int{8: {1000, 500}, 2048: {512, 500}, 8192: {128, 128}, 65536: {100, 64}} {
		if got := [2]int{c.samples(size), c.burst(size)}; got != want {
			t.Errorf("%d bytes: %v samples and writes, want %v", size, got, want)
		}
	}
}

func TestPercentiles(t *testing.T) {
	trips := make([]int64, 1000)
	for i := range trips {
		trips[i] = int64(2000 * (1000 - i)) // one way: 1000 us down to 1
	}
	if got, want := latencyOf(trips), (Latency{1000, 1, 500, 900, 990, 999, 1000}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got, want := latencyOf([]int64{5000}), (Latency{1, 2.5, 2.5, 2.5, 2.5, 2.5, 2.5}); got != want {
		t.Errorf("one sample: got %+v, want %+v", got, want)
	}
	b := bandwidthOf(100, 50, []float64{2, 1, 4})
	if b.MessagesPerSecond != 25 || b.BytesPerSecond != 2500 || b.Best != 5000 || b.Bursts != 3 || b.Messages != 50 {
		t.Errorf("three bursts: %+v", b)
	}
	if b := bandwidthOf(1, 8, []float64{1, 2}); b.MessagesPerSecond != 4 { // of two, the slower
		t.Errorf("two bursts: %+v", b)
	}
	if nearestRank([]float64{1, 2, 3}, math.SmallestNonzeroFloat64) != 1 {
		t.Error("the smallest share is not the smallest value")
	}
}
