package engine

import (
	"fmt"
	"math/bits"
)

// shardGranule is what shard sizes are rounded up to: below a few packets a
// second NIC costs more than it brings, and shards that end on a page keep
// their neighbours aligned.
const shardGranule = 4096

// shardBytes is the size of each shard but the last of length bytes over n NICs.
// ceil(length/shardBytes) is the number of shards, at most n; together they are
// the length exactly.
func shardBytes(length uint64, n int) uint64 {
	size := length / uint64(n)
	if length%uint64(n) != 0 {
		size++
	}
	if up := (size + shardGranule - 1) / shardGranule * shardGranule; up > size {
		size = up
	}
	return max(size, 1)
}

func ceilDiv(a, b uint64) uint64 {
	q := a / b
	if a%b != 0 {
		q++
	}
	return q
}

// shard is the half-open byte range that shard i of n covers, empty if there is
// no such shard.
func shard(length uint64, n, i int) (lo, hi uint64) {
	size := shardBytes(length, n)
	over, lo := bits.Mul64(size, uint64(i))
	if over != 0 || lo >= length {
		return length, length
	}
	if length-lo < size {
		return lo, length
	}
	return lo, lo + size
}

// WriteImms is the number of immediates that the receiver of a write of length
// bytes over nics NICs of this engine counts: one per shard, cut further where
// the NICs carry fewer bytes in one operation. It is 1 for length 0.
func (e *Engine) WriteImms(length uint64, nics int) uint64 {
	return writeOps(length, nics, e.maxMsg)
}

func writeOps(length uint64, nics int, maxMsg uint64) uint64 {
	if length == 0 || nics < 1 {
		return 1
	}
	var n uint64
	for i := 0; i < nics; i++ {
		lo, hi := shard(length, nics, i)
		n += ceilDiv(hi-lo, maxMsg)
	}
	return n
}

// NICs chooses the NICs of a transfer. The zero value is AnyNIC.
type NICs int16

const (
	AnyNIC  NICs = 0  // one, in rotation
	AllNICs NICs = -1 // split over all of them

	noNIC NICs = -1 << 15 // a choice that no engine can meet
)

// OnNIC pins a transfer to NIC i.
func OnNIC(i int) NICs {
	if i < 0 || i >= MaxNICs {
		return noNIC
	}
	return NICs(i + 1)
}

// OverNICs splits a transfer over n NICs, which rotate.
func OverNICs(n int) NICs {
	if n < 1 || n > MaxNICs {
		return noNIC
	}
	return NICs(-1 - n)
}

// pick returns the first NIC and how many, in ring order.
func (e *Engine) pick(c NICs) (first, n int, err error) {
	total := len(e.limits)
	switch {
	case c == noNIC:
		return 0, 0, fmt.Errorf("%w: no such choice of NICs, have %d", ErrArgument, total)
	case c > 0:
		if int(c) > total {
			return 0, 0, fmt.Errorf("%w: NIC %d, want 0 to %d", ErrArgument, c-1, total-1)
		}
		return int(c) - 1, 1, nil
	case c == AnyNIC:
		n = 1
	case c == AllNICs:
		n = total
	default:
		n = int(-1 - c)
		if n > total {
			return 0, 0, fmt.Errorf("%w: transfer over %d NICs, have %d", ErrArgument, n, total)
		}
	}
	if total == 1 {
		return 0, 1, nil
	}
	return int(e.rotate.Add(1) % uint32(total)), n, nil
}

// run is the part of a list of length items that NIC k of n serves: contiguous,
// of equal length but the last.
func run(length, n, k int) (lo, hi int) {
	size := (length + n - 1) / n
	return min(k*size, length), min((k+1)*size, length)
}
