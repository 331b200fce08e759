package shm

import "moerail/internal/simd"

// copyBytes moves a payload between local memory and a peer's. It is the one
// place to try another way of copying; dst and src have the same length.
func copyBytes(dst, src []byte) { simd.CopyPayload(dst, src) }
