//go:build !amd64 || amd64

package simd

func asmSumBF16([]byte, [][]byte, []float32) int { return 0 }
func asmSumFP16([]byte, [][]byte, []float32) int { return 0 }
func asmSumFP32([]byte, [][]byte, []float32) int { return 0 }
func asmAmax([]float32) (float32, int)           { return 0, 0 }
func asmE4M3([]byte, []float32, float32) int     { return 0 }

// Kind names the instructions in use.
func Kind() string { return "portable" }
