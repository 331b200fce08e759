// Package simd holds the loops that a round spends its time in: the weighted sum
// of rows, and the FP8 quantisation of one. Each has a portable form and, on
// amd64, forms in assembly; all give the same bits.
//
//	dst[i] = round(((0 + w[0]*src[0][i]) + w[1]*src[1][i]) + ...)   all in float32
//
// A product and a sum are each rounded to float32: nothing is fused. A result that
// is not a number is the one NaN of internal/numeric.
package simd

import (
	"encoding/binary"
	"fmt"
	"math"

	"moerail/internal/numeric"
)

// check panics when a row is shorter than dst: the asm trusts it.
func check(dst []byte, elem int, src [][]byte, w []float32) {
	if len(src) != len(w) || len(dst)%elem != 0 {
		panic(fmt.Sprintf("simd: %d rows with %d weights into %d bytes", len(src), len(w), len(dst)))
	}
	for j := range src {
		if len(src[j]) < len(dst) {
			panic(fmt.Sprintf("simd: row %d has %d bytes, want %d", j, len(src[j]), len(dst)))
		}
	}
}

// SumBF16 sums rows of bfloat16: dst and every src hold the same elements, little
// endian, len(dst) bytes; w has one weight per row. dst may be one of the rows.
// No rows make zeros.
func SumBF16(dst []byte, src [][]byte, w []float32) {
	check(dst, 2, src, w)
	done := asmSumBF16(dst, src, w)
	sumBF16(dst, src, w, done)
}

// SumFP16 is SumBF16 for IEEE binary16.
func SumFP16(dst []byte, src [][]byte, w []float32) {
	check(dst, 2, src, w)
	done := asmSumFP16(dst, src, w)
	sumFP16(dst, src, w, done)
}

// SumFP32 is SumBF16 for float32.
func SumFP32(dst []byte, src [][]byte, w []float32) {
	check(dst, 4, src, w)
	done := asmSumFP32(dst, src, w)
	sumFP32(dst, src, w, done)
}

func sumBF16(dst []byte, src [][]byte, w []float32, from int) {
	for i := from; i < len(dst); i += 2 {
		var acc float32
		for j, row := range src {
			x := numeric.BF16ToFloat32(binary.LittleEndian.Uint16(row[i:]))
			acc += float32(w[j] * x) // the conversion forbids a fused multiply-add
		}
		binary.LittleEndian.PutUint16(dst[i:], numeric.Float32ToBF16(acc))
	}
}

func sumFP16(dst []byte, src [][]byte, w []float32, from int) {
	for i := from; i < len(dst); i += 2 {
		var acc float32
		for j, row := range src {
			x := numeric.FP16ToFloat32(binary.LittleEndian.Uint16(row[i:]))
			acc += float32(w[j] * x)
		}
		binary.LittleEndian.PutUint16(dst[i:], numeric.Float32ToFP16(acc))
	}
}

func sumFP32(dst []byte, src [][]byte, w []float32, from int) {
	for i := from; i < len(dst); i += 4 {
		var acc float32
		for j, row := range src {
			x := math.Float32frombits(binary.LittleEndian.Uint32(row[i:]))
			acc += float32(w[j] * x)
		}
		u := math.Float32bits(acc)
		if acc != acc {
			u = numeric.NaN32
		}
		binary.LittleEndian.PutUint32(dst[i:], u)
	}
}
