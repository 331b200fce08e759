//go:build !purego && !race

#include "textflag.h"

// func sumBF16AVX512(dst *byte, n int, src *[]byte, k int, w *float32)
// func sumFP16AVX512(dst *byte, n int, src *[]byte, k int, w *float32)
// func sumFP32AVX512(dst *byte, n int, src *[]byte, k int, w *float32)
//
// As the AVX2 forms, 64 columns at a time, then 16: n is a multiple of 16. k > 0.
// Registers as there: Z0-Z3 the sums, Z16-Z18 the constants. Rows lie far apart
// and come from memory, or another core's cache: each is fetched 1 KiB ahead, which
// the processor does not do by itself across pages.

#define ARGS \
	MOVQ dst+0(FP), DI \
	MOVQ n+8(FP), CX   \
	MOVQ src+16(FP), SI \
	MOVQ k+24(FP), DX  \
	MOVQ w+32(FP), BX  \
	XORQ AX, AX

#define FIRSTROW \
	MOVQ SI, R8 \
	MOVQ BX, R9 \
	MOVQ DX, R10

#define NEXTROW \
	ADDQ $24, R8 \
	ADDQ $4, R9  \
	DECQ R10

#define ZERO4 \
	VPXORD Z0, Z0, Z0 \
	VPXORD Z1, Z1, Z1 \
	VPXORD Z2, Z2, Z2 \
	VPXORD Z3, Z3, Z3

#define MULADD(x, acc) \
	VMULPS Z8, x, x    \
	VADDPS x, acc, acc

#define FIXNAN(x) \
	VCMPPS    $3, x, x, K1  \
	VMOVDQA32 Z16, K1, x

#define TOBF16(x) \
	FIXNAN(x)              \
	VPSRLD $16, x, Z9      \
	VPANDD Z17, Z9, Z9     \
	VPADDD Z18, Z9, Z9     \
	VPADDD Z9, x, x        \
	VPSRLD $16, x, x

#define CONSTANTS \
	MOVL $0x7fc00000, R11   \
	VPBROADCASTD R11, Z16   \
	MOVL $1, R11            \
	VPBROADCASTD R11, Z17   \
	MOVL $0x7fff, R11       \
	VPBROADCASTD R11, Z18

TEXT ·sumBF16AVX512(SB), NOSPLIT, $0-40
	ARGS
	CONSTANTS
	SUBQ $64, CX
	JLT  bf16

bf64:
	ZERO4
	FIRSTROW

bf64row:
	MOVQ (R8), R11
	VBROADCASTSS (R9), Z8
	PREFETCHT0 1024(R11)(AX*1)
	PREFETCHT0 1088(R11)(AX*1)
	VPMOVZXWD (R11)(AX*1), Z4
	VPMOVZXWD 32(R11)(AX*1), Z5
	VPMOVZXWD 64(R11)(AX*1), Z6
	VPMOVZXWD 96(R11)(AX*1), Z7
	VPSLLD $16, Z4, Z4
	VPSLLD $16, Z5, Z5
	VPSLLD $16, Z6, Z6
	VPSLLD $16, Z7, Z7
	MULADD(Z4, Z0)
	MULADD(Z5, Z1)
	MULADD(Z6, Z2)
	MULADD(Z7, Z3)
	NEXTROW
	JNZ bf64row
	TOBF16(Z0)
	TOBF16(Z1)
	TOBF16(Z2)
	TOBF16(Z3)
	VPMOVDW Z0, (DI)(AX*1)
	VPMOVDW Z1, 32(DI)(AX*1)
	VPMOVDW Z2, 64(DI)(AX*1)
	VPMOVDW Z3, 96(DI)(AX*1)
	ADDQ $128, AX
	SUBQ $64, CX
	JGE  bf64

bf16:
	ADDQ $64, CX
	JZ   bfdone

bf16next:
	VPXORD Z0, Z0, Z0
	FIRSTROW

bf16row:
	MOVQ (R8), R11
	VBROADCASTSS (R9), Z8
	VPMOVZXWD (R11)(AX*1), Z4
	VPSLLD $16, Z4, Z4
	MULADD(Z4, Z0)
	NEXTROW
	JNZ bf16row
	TOBF16(Z0)
	VPMOVDW Z0, (DI)(AX*1)
	ADDQ $32, AX
	SUBQ $16, CX
	JNZ  bf16next

bfdone:
	VZEROUPPER
	RET

TEXT ·sumFP16AVX512(SB), NOSPLIT, $0-40
	ARGS
	CONSTANTS
	SUBQ $64, CX
	JLT  fh16

fh64:
	ZERO4
	FIRSTROW

fh64row:
	MOVQ (R8), R11
	VBROADCASTSS (R9), Z8
	PREFETCHT0 1024(R11)(AX*1)
	PREFETCHT0 1088(R11)(AX*1)
	VCVTPH2PS (R11)(AX*1), Z4
	VCVTPH2PS 32(R11)(AX*1), Z5
	VCVTPH2PS 64(R11)(AX*1), Z6
	VCVTPH2PS 96(R11)(AX*1), Z7
	MULADD(Z4, Z0)
	MULADD(Z5, Z1)
	MULADD(Z6, Z2)
	MULADD(Z7, Z3)
	NEXTROW
	JNZ fh64row
	FIXNAN(Z0)
	FIXNAN(Z1)
	FIXNAN(Z2)
	FIXNAN(Z3)
	VCVTPS2PH $0, Z0, (DI)(AX*1)
	VCVTPS2PH $0, Z1, 32(DI)(AX*1)
	VCVTPS2PH $0, Z2, 64(DI)(AX*1)
	VCVTPS2PH $0, Z3, 96(DI)(AX*1)
	ADDQ $128, AX
	SUBQ $64, CX
	JGE  fh64

fh16:
	ADDQ $64, CX
	JZ   fhdone

fh16next:
	VPXORD Z0, Z0, Z0
	FIRSTROW

fh16row:
	MOVQ (R8), R11
	VBROADCASTSS (R9), Z8
	VCVTPH2PS (R11)(AX*1), Z4
	MULADD(Z4, Z0)
	NEXTROW
	JNZ fh16row
	FIXNAN(Z0)
	VCVTPS2PH $0, Z0, (DI)(AX*1)
	ADDQ $32, AX
	SUBQ $16, CX
	JNZ  fh16next

fhdone:
	VZEROUPPER
	RET

TEXT ·sumFP32AVX512(SB), NOSPLIT, $0-40
	ARGS
	CONSTANTS
	SUBQ $64, CX
	JLT  fs16

fs64:
	ZERO4
	FIRSTROW

fs64row:
	MOVQ (R8), R11
	VBROADCASTSS (R9), Z8
	PREFETCHT0 1024(R11)(AX*1)
	PREFETCHT0 1088(R11)(AX*1)
	VMULPS (R11)(AX*1), Z8, Z4
	VMULPS 64(R11)(AX*1), Z8, Z5
	VMULPS 128(R11)(AX*1), Z8, Z6
	VMULPS 192(R11)(AX*1), Z8, Z7
	VADDPS Z4, Z0, Z0
	VADDPS Z5, Z1, Z1
	VADDPS Z6, Z2, Z2
	VADDPS Z7, Z3, Z3
	NEXTROW
	JNZ fs64row
	FIXNAN(Z0)
	FIXNAN(Z1)
	FIXNAN(Z2)
	FIXNAN(Z3)
	VMOVUPS Z0, (DI)(AX*1)
	VMOVUPS Z1, 64(DI)(AX*1)
	VMOVUPS Z2, 128(DI)(AX*1)
	VMOVUPS Z3, 192(DI)(AX*1)
	ADDQ $256, AX
	SUBQ $64, CX
	JGE  fs64

fs16:
	ADDQ $64, CX
	JZ   fsdone

fs16next:
	VPXORD Z0, Z0, Z0
	FIRSTROW

fs16row:
	MOVQ (R8), R11
	VBROADCASTSS (R9), Z8
	VMULPS (R11)(AX*1), Z8, Z4
	VADDPS Z4, Z0, Z0
	NEXTROW
	JNZ fs16row
	FIXNAN(Z0)
	VMOVUPS Z0, (DI)(AX*1)
	ADDQ $64, AX
	SUBQ $16, CX
	JNZ  fs16next

fsdone:
	VZEROUPPER
	RET
