//go:build race

package mem

import "sync"

// The race detector only watches the Go heap, so under -race small buffers are
// allocated there: a missing hand-over between a host "device", a proxy and a
// NIC then shows as a data race. The limit is well above what a slot of a test
// takes: a slot's words outside the heap, whose atomics the detector does not
// see, beside a window inside it would look like a missing hand-over.
const raceHeapMax = 64 << 20

var raceHeap sync.Map // address of the first byte -> true

func heapForRace(size uint64) ([]byte, bool) {
	if size > raceHeapMax {
		return nil, false
	}
	n := roundUp(size, 64<<10) // large objects are page aligned
	b := make([]byte, n)[:size:n]
	raceHeap.Store(Addr(b), true)
	return b, true
}

func isRaceHeap(b []byte) bool {
	_, ok := raceHeap.LoadAndDelete(Addr(b))
	return ok
}
