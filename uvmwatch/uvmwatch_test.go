package uvmwatch

import (
	"errors"
	"testing"
)

func TestBlockWordsAreWhereTheirAddressesSay(t *testing.T) {
	b, err := AllocBlock(3)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Free()
	for i := range 3 {
		b.Word(i).Store(uint64(10 + i))
		if b.Addr(i) != b.Addr(0)+uint64(8*i) || b.Word(i).Load() != uint64(10+i) {
			t.Fatalf("word %d: addr %#x", i, b.Addr(i))
		}
	}
	for _, n := range []int{0, -1, MaxWords + 1} {
		if _, err := AllocBlock(n); err == nil {
			t.Errorf("AllocBlock(%d) succeeded", n)
		}
	}
}

func TestBumpsCoalesceAndArriveOnce(t *testing.T) {
	s, err := NewSet(2)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var got [][2]uint64
	w, err := s.Alloc(func(old, new uint64) { got = append(got, [2]uint64{old, new}) })
	if err != nil {
		t.Fatal(err)
	}
	if s.Poll() {
		t.Fatal("a fresh word was reported")
	}
	for range 3 {
		w.Word().Add(1)
	}
	if !s.Poll() || s.Poll() {
		t.Fatal("three bumps must be found by one poll and no more")
	}
	w.Word().Add(2)
	s.Poll()
	if len(got) != 2 || got[0] != [2]uint64{0, 3} || got[1] != [2]uint64{3, 5} {
		t.Fatalf("callbacks: %v", got)
	}
}

func TestWordsAreReusedZeroedAndOldCallbacksStaySilent(t *testing.T) {
	s, _ := NewSet(1)
	defer s.Close()
	var first *Watcher
	calls := 0
	first, _ = s.Alloc(func(uint64, uint64) { calls++; first.Free() })
	if _, err := s.Alloc(func(uint64, uint64) {}); !errors.Is(err, ErrFull) {
		t.Fatalf("second word of one: %v", err)
	}
	first.Word().Store(9)
	s.Poll()
	first.Free()
	var seen uint64
	second, err := s.Alloc(func(_, new uint64) { seen = new })
	if err != nil {
		t.Fatal(err)
	}
	if second.Word().Load() != 0 || second.Addr() != s.block.Addr(0) {
		t.Fatal("a reused word must be zeroed")
	}
	second.Word().Store(4)
	s.Poll()
	if calls != 1 || seen != 4 {
		t.Fatalf("first called %d times, second saw %d", calls, seen)
	}
	for _, time := range []string{"first", "second"} {
		if err := s.Close(); err != nil {
			t.Fatalf("%s Close: %v", time, err)
		}
	}
	if _, err := s.Alloc(func(uint64, uint64) {}); !errors.Is(err, ErrClosed) {
		t.Fatalf("alloc after close: %v", err)
	}
	if s.Poll() {
		t.Fatal("poll after close found something")
	}
}

func TestPollAllocatesNothing(t *testing.T) {
	s, _ := NewSet(8)
	defer s.Close()
	var sum uint64
	w, _ := s.Alloc(func(old, new uint64) { sum += new - old })
	if n := testing.AllocsPerRun(100, func() { w.Word().Add(1); s.Poll() }); n != 0 {
		t.Fatalf("%v allocations per poll", n)
	}
	if sum != w.Word().Load() {
		t.Fatalf("callbacks saw %d, the word is %d", sum, w.Word().Load())
	}
}

func BenchmarkPollIdleWord(b *testing.B) {
	s, _ := NewSet(512)
	defer s.Close()
	for range 512 {
		s.Alloc(func(uint64, uint64) {})
	}
	for b.Loop() {
		s.Poll()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/512, "ns/word")
}
