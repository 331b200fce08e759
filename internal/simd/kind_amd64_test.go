//go:build !purego && !race

package simd

import "testing"

// eachKind runs f with every set of instructions that this processor has.
func eachKind(t *testing.T, f func(t *testing.T)) {
	a, b := haveAVX2, haveAVX512
	defer func() { haveAVX2, haveAVX512 = a, b }()
	t.Run(Kind(), f)
	haveAVX512 = false
	if b {
		t.Run(Kind(), f)
	}
	haveAVX2 = false
	t.Run(Kind(), f)
}
