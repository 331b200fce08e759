//go:build !amd64

package shm

import "sync/atomic"

// storeRelease publishes v after every load and store that came before it. w is
// an aligned word off the heap that this thread alone writes.
func storeRelease(w *uint64, v uint64) { atomic.StoreUint64(w, v) }
