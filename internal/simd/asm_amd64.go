//go:build !purego

package simd

import "golang.org/x/sys/cpu"

// The assembly works on multiples of lanes elements; what is left is done in Go.
const lanes = 8

var haveAVX2 = cpu.X86.HasAVX2 && cpu.X86.HasF16C

// Kind names the instructions in use.
func Kind() string {
	if haveAVX2 {
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
func amaxAVX2(x *float32, n int) float32

//go:noescape
func e4m3AVX2(dst *byte, x *float32, n int, scale float32)

//go:noescape
func widenBF16AVX2(dst *float32, src *byte, n int)

//go:noescape
func widenFP16AVX2(dst *float32, src *byte, n int)

// whole is how many of n elements the assembly takes.
func whole(n int) int {
	if !haveAVX2 {
		return 0
	}
	return n &^ (lanes - 1)
}

func asmSumBF16(dst []byte, src [][]byte, w []float32) (done int) {
	n := whole(len(dst) / 2)
	if n == 0 || len(src) == 0 {
		return 0
	}
	sumBF16AVX2(&dst[0], n, &src[0], len(src), &w[0])
	return 2 * n
}

func asmSumFP16(dst []byte, src [][]byte, w []float32) (done int) {
	n := whole(len(dst) / 2)
	if n == 0 || len(src) == 0 {
		return 0
	}
	sumFP16AVX2(&dst[0], n, &src[0], len(src), &w[0])
	return 2 * n
}

func asmSumFP32(dst []byte, src [][]byte, w []float32) (done int) {
	n := whole(len(dst) / 4)
	if n == 0 || len(src) == 0 {
		return 0
	}
	sumFP32AVX2(&dst[0], n, &src[0], len(src), &w[0])
	return 4 * n
}

func asmAmax(x []float32) (amax float32, done int) {
	n := whole(len(x))
	if n == 0 {
		return 0, 0
	}
	return amaxAVX2(&x[0], n), n
}

func asmE4M3(dst []byte, x []float32, scale float32) (done int) {
	n := whole(len(x))
	if n != 0 {
		e4m3AVX2(&dst[0], &x[0], n, scale)
	}
	return n
}

func asmWidenBF16(dst []float32, src []byte) (done int) {
	n := whole(len(dst))
	if n != 0 {
		widenBF16AVX2(&dst[0], &src[0], n)
	}
	return n
}

func asmWidenFP16(dst []float32, src []byte) (done int) {
	n := whole(len(dst))
	if n != 0 {
		widenFP16AVX2(&dst[0], &src[0], n)
	}
	return n
}
