package shm

// storeRelease publishes v after every load and store that came before it, and
// without the full barrier of an atomic store: a plain store is that on amd64
// (Intel SDM volume 3, 9.2.2: stores are not reordered with older loads or
// stores), and the compiler keeps stores in order. w is an aligned word off the
// heap that this thread alone writes.
func storeRelease(w *uint64, v uint64) { *w = v }
