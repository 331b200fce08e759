//go:build amd64 && !purego && !race

package simd

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

var (
	haveAVX2   = cpu.X86.HasAVX2 && cpu.X86.HasF16C
	haveAVX512 = haveAVX2 && cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512VL && cpu.X86.HasAVX512DQ
)

// Kind names the instructions in use.
func Kind() string {
	switch {
	case haveAVX512:
		return "avx512"
	case haveAVX2:
		return "avx2"
	}
	return "portable"
}

//go:noescape
func sumBF16AVX2(dst *byte, n int, src *[]byte, k int, w *float32)

//go:noescape
func sumFP16AVX2(dst *byte, n int, src *[]byte, k int, w *float32)

//go:noescape
func sumFP32AVX2(dst *byte, n int, src *[]byte, k int, w *float32)

//go:noescape
func sumBF16AVX512(dst *byte, n int, src *[]byte, k int, w *float32)

//go:noescape
func sumFP16AVX512(dst *byte, n int, src *[]byte, k int, w *float32)

//go:noescape
func sumFP32AVX512(dst *byte, n int, src *[]byte, k int, w *float32)

//go:noescape
func amaxAVX2(x *float32, n int) float32

//go:noescape
func e4m3AVX2(dst *byte, x *float32, n int, scale float32)

//go:noescape
func widenBF16AVX2(dst *float32, src *byte, n int)

//go:noescape
func widenFP16AVX2(dst *float32, src *byte, n int)

//go:noescape
func copyAroundAVX2(dst, src *byte, n int)

//go:noescape
func copyAroundAVX512(dst, src *byte, n int)

// The assembly works on whole vectors; what is left is done in Go.

func whole(n, lanes int) int {
	if !haveAVX2 {
		return 0
	}
	return n &^ (lanes - 1)
}

func asmSumBF16(dst []byte, src [][]byte, w []float32) (done int) {
	if len(src) == 0 {
		return 0
	}
	if n := whole(len(dst)/2, 16); haveAVX512 && n > 0 {
		sumBF16AVX512(&dst[0], n, &src[0], len(src), &w[0])
		return 2 * n
	}
	n := whole(len(dst)/2, 8)
	if n > 0 {
		sumBF16AVX2(&dst[0], n, &src[0], len(src), &w[0])
	}
	return 2 * n
}

func asmSumFP16(dst []byte, src [][]byte, w []float32) (done int) {
	if len(src) == 0 {
		return 0
	}
	if n := whole(len(dst)/2, 16); haveAVX512 && n > 0 {
		sumFP16AVX512(&dst[0], n, &src[0], len(src), &w[0])
		return 2 * n
	}
	n := whole(len(dst)/2, 8)
	if n > 0 {
		sumFP16AVX2(&dst[0], n, &src[0], len(src), &w[0])
	}
	return 2 * n
}

func asmSumFP32(dst []byte, src [][]byte, w []float32) (done int) {
	if len(src) == 0 {
		return 0
	}
	if n := whole(len(dst)/4, 16); haveAVX512 && n > 0 {
		sumFP32AVX512(&dst[0], n, &src[0], len(src), &w[0])
		return 4 * n
	}
	n := whole(len(dst)/4, 8)
	if n > 0 {
		sumFP32AVX2(&dst[0], n, &src[0], len(src), &w[0])
	}
	return 4 * n
}

func asmAmax(x []float32) (amax float32, done int) {
	n := whole(len(x), 8)
	if n == 0 {
		return 0, 0
	}
	return amaxAVX2(&x[0], n), n
}

func asmE4M3(dst []byte, x []float32, scale float32) (done int) {
	n := whole(len(x), 8)
	if n != 0 {
		e4m3AVX2(&dst[0], &x[0], n, scale)
	}
	return n
}

func asmWidenBF16(dst []float32, src []byte) (done int) {
	n := whole(len(dst), 8)
	if n != 0 {
		widenBF16AVX2(&dst[0], &src[0], n)
	}
	return n
}

func asmWidenFP16(dst []float32, src []byte) (done int) {
	n := whole(len(dst), 8)
	if n != 0 {
		widenFP16AVX2(&dst[0], &src[0], n)
	}
	return n
}

// asmCopyAround copies from the first place in dst that starts a cache line.
func asmCopyAround(dst, src []byte) (from, done int) {
	from = int(-uintptr(unsafe.Pointer(&dst[0])) & 63)
	if from > len(dst) {
		return 0, 0
	}
	n := whole(len(dst)-from, 128)
	switch {
	case n == 0:
	case haveAVX512:
		copyAroundAVX512(&dst[from], &src[from], n)
	default:
		copyAroundAVX2(&dst[from], &src[from], n)
	}
	return from, n
}
