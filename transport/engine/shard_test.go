package engine

import (
	"math"
	"math/rand"
	"testing"
)

func checkShards(t *testing.T, length uint64, n int, maxMsg uint64) {
	t.Helper()
	var next, ops uint64
	for i := 0; i < n; i++ {
		lo, hi := shard(length, n, i)
		if lo == length && hi == length {
			continue // no such shard
		}
		if lo != next || hi <= lo || hi > length {
			t.Fatalf("%d bytes over %d: shard %d is [%d, %d), bytes up to %d are covered", length, n, i, lo, hi, next)
		}
		if hi != length && hi%shardGranule != 0 {
			t.Fatalf("%d bytes over %d: shard %d ends at %d within a granule", length, n, i, hi)
		}
		next = hi
		ops += ceilDiv(hi-lo, maxMsg)
	}
	if next != length {
		t.Fatalf("%d bytes over %d: only %d are covered", length, n, next)
	}
	if length > 0 && writeOps(length, n, maxMsg) != ops {
		t.Fatalf("%d bytes over %d: writeOps says %d, shards make %d", length, n, writeOps(length, n, maxMsg), ops)
	}
}

func TestShardsCoverEveryByteOnce(t *testing.T) {
	for _, length := range []uint64{0, 1, 2, 3, 4, 5, 4095, 4096, 4097, 8191, 8192, 8193, 16384, 16385, 32768, 32769,
		1<<32 - 1, 1 << 32, 1<<32 + 1, math.MaxUint64 - 1, math.MaxUint64} {
		for n := 1; n <= MaxNICs; n++ {
			checkShards(t, length, n, 1<<62)
		}
	}
	rng := rand.New(rand.NewSource(7))
	for i := 0; i < 20000; i++ {
		checkShards(t, rng.Uint64()>>rng.Intn(64), 1+rng.Intn(MaxNICs), 1+rng.Uint64()>>(1+rng.Intn(40)))
	}
	for length := uint64(0); length < 3*shardGranule; length++ {
		for n := 1; n <= MaxNICs; n++ {
			checkShards(t, length, n, 1000)
		}
	}
}

func FuzzShard(f *testing.F) {
	f.Add(uint64(16385), uint8(2))
	f.Add(uint64(3), uint8(4))
	f.Fuzz(func(t *testing.T, length uint64, n uint8) {
		checkShards(t, length, 1+int(n)%MaxNICs, 1<<62)
	})
}

func TestRunsCoverAList(t *testing.T) {
	for length := 0; length < 40; length++ {
		for n := 1; n <= MaxNICs; n++ {
			next := 0
			for k := 0; k < n; k++ {
				lo, hi := run(length, n, k)
				if lo != next && lo != length || hi < lo {
					t.Fatalf("%d over %d: run %d is [%d, %d)", length, n, k, lo, hi)
				}
				next = hi
			}
			if next != length {
				t.Fatalf("%d over %d: %d covered", length, n, next)
			}
		}
	}
}

func TestWriteImmsSpecialCases(t *testing.T) {
	for _, c := range []struct {
		length uint64
		nics   int
		want   uint64
	}{{0, 1, 1}, {0, 4, 1}, {1, 2, 1}, {3, 4, 1}, {4096, 4, 1}, {4097, 4, 2}, {16385, 2, 2}, {32769, 4, 3}, {1 << 30, 4, 4}} {
		if got := writeOps(c.length, c.nics, 1<<62); got != c.want {
			t.Errorf("%d bytes over %d NICs: %d immediates, want %d", c.length, c.nics, got, c.want)
		}
	}
}
