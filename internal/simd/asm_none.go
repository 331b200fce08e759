//go:build !amd64 || purego || race

package simd

// Kind names the instructions in use.
func Kind() string { return "portable" }

func asmSumBF16([]byte, [][]byte, []float32) int { return 0 }
func asmSumFP16([]byte, [][]byte, []float32) int { return 0 }
func asmSumFP32([]byte, [][]byte, []float32) int { return 0 }
func asmAmax([]float32) (float32, int)           { return 0, 0 }
func asmE4M3([]byte, []float32, float32) int     { return 0 }
func asmWidenBF16([]float32, []byte) int         { return 0 }
func asmWidenFP16([]float32, []byte) int         { return 0 }
func asmCopyAround(_, _ []byte) (from, done int) { return 0, 0 }
