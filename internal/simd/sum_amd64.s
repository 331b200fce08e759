//go:build !purego && !race

#include "textflag.h"

// func sumBF16AVX2(dst *byte, n int, src *[]byte, k int, w *float32)
// func sumFP16AVX2(dst *byte, n int, src *[]byte, k int, w *float32)
// func sumFP32AVX2(dst *byte, n int, src *[]byte, k int, w *float32)
//
// n elements, a multiple of 8, of k > 0 rows. src is an array of slice headers: 24
// bytes, of which the first 8 are the address. Columns are taken 32 (then 8) at a
// time, all rows of them before the next, so that the sums stay in registers.
//
//	DI dst   CX elements left   SI src   DX k   BX w   AX byte offset in every row
//	R8, R9, R10 the row's header, weight and how many are left   Y0-Y3 the sums

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
	VXORPS Y0, Y0, Y0 \
	VXORPS Y1, Y1, Y1 \
	VXORPS Y2, Y2, Y2 \
	VXORPS Y3, Y3, Y3

// acc += Y8 * x, rounded twice.
#define MULADD(x, acc) \
	VMULPS Y8, x, x    \
	VADDPS x, acc, acc

// x becomes the one NaN (Y15) where it is not a number.
#define FIXNAN(x) \
	VCMPPS    $3, x, x, Y9   \
	VBLENDVPS Y9, Y15, x, x

// x, float32 that is no other NaN than Y15, becomes bfloat16 in 32-bit lanes.
#define TOBF16(x) \
	FIXNAN(x)              \
	VPSRLD $16, x, Y9      \
	VPAND  Y14, Y9, Y9     \
	VPADDD Y13, Y9, Y9     \
	VPADDD Y9, x, x        \
	VPSRLD $16, x, x

#define CONSTANTS \
	MOVL $0x7fc00000, R11   \
	VMOVD R11, X15          \
	VPBROADCASTD X15, Y15   \
	MOVL $1, R11            \
	VMOVD R11, X14          \
	VPBROADCASTD X14, Y14   \
	MOVL $0x7fff, R11       \
	VMOVD R11, X13          \
	VPBROADCASTD X13, Y13

TEXT ·sumBF16AVX2(SB), NOSPLIT, $0-40
	ARGS
	CONSTANTS
	SUBQ $32, CX
	JLT  bf8

bf32:
	ZERO4
	FIRSTROW

bf32row:
	MOVQ (R8), R11
	VBROADCASTSS (R9), Y8
	VPMOVZXWD (R11)(AX*1), Y4
	VPMOVZXWD 16(R11)(AX*1), Y5
	VPMOVZXWD 32(R11)(AX*1), Y6
	VPMOVZXWD 48(R11)(AX*1), Y7
	VPSLLD $16, Y4, Y4
	VPSLLD $16, Y5, Y5
	VPSLLD $16, Y6, Y6
	VPSLLD $16, Y7, Y7
	MULADD(Y4, Y0)
	MULADD(Y5, Y1)
	MULADD(Y6, Y2)
	MULADD(Y7, Y3)
	NEXTROW
	JNZ bf32row

	TOBF16(Y0)
	TOBF16(Y1)
	TOBF16(Y2)
	TOBF16(Y3)
	VPACKUSDW Y1, Y0, Y0
	VPERMQ    $0xd8, Y0, Y0
	VPACKUSDW Y3, Y2, Y2
	VPERMQ    $0xd8, Y2, Y2
	VMOVDQU   Y0, (DI)(AX*1)
	VMOVDQU   Y2, 32(DI)(AX*1)
	ADDQ $64, AX
	SUBQ $32, CX
	JGE  bf32

bf8:
	ADDQ $32, CX
	JZ   bfdone

bf8next:
	VXORPS Y0, Y0, Y0
	FIRSTROW

bf8row:
	MOVQ (R8), R11
	VBROADCASTSS (R9), Y8
	VPMOVZXWD (R11)(AX*1), Y4
	VPSLLD $16, Y4, Y4
	MULADD(Y4, Y0)
	NEXTROW
	JNZ bf8row

	TOBF16(Y0)
	VEXTRACTI128 $1, Y0, X1
	VPACKUSDW X1, X0, X0
	VMOVDQU X0, (DI)(AX*1)
	ADDQ $16, AX
	SUBQ $8, CX
	JNZ  bf8next

bfdone:
	VZEROUPPER
	RET

TEXT ·sumFP16AVX2(SB), NOSPLIT, $0-40
	ARGS
	CONSTANTS
	SUBQ $32, CX
	JLT  fh8

fh32:
	ZERO4
	FIRSTROW

fh32row:
	MOVQ (R8), R11
	VBROADCASTSS (R9), Y8
	VCVTPH2PS (R11)(AX*1), Y4
	VCVTPH2PS 16(R11)(AX*1), Y5
	VCVTPH2PS 32(R11)(AX*1), Y6
	VCVTPH2PS 48(R11)(AX*1), Y7
	MULADD(Y4, Y0)
	MULADD(Y5, Y1)
	MULADD(Y6, Y2)
	MULADD(Y7, Y3)
	NEXTROW
	JNZ fh32row

	FIXNAN(Y0)
	FIXNAN(Y1)
	FIXNAN(Y2)
	FIXNAN(Y3)
	VCVTPS2PH $0, Y0, (DI)(AX*1)
	VCVTPS2PH $0, Y1, 16(DI)(AX*1)
	VCVTPS2PH $0, Y2, 32(DI)(AX*1)
	VCVTPS2PH $0, Y3, 48(DI)(AX*1)
	ADDQ $64, AX
	SUBQ $32, CX
	JGE  fh32

fh8:
	ADDQ $32, CX
	JZ   fhdone

fh8next:
	VXORPS Y0, Y0, Y0
	FIRSTROW

fh8row:
	MOVQ (R8), R11
	VBROADCASTSS (R9), Y8
	VCVTPH2PS (R11)(AX*1), Y4
	MULADD(Y4, Y0)
	NEXTROW
	JNZ fh8row

	FIXNAN(Y0)
	VCVTPS2PH $0, Y0, (DI)(AX*1)
	ADDQ $16, AX
	SUBQ $8, CX
	JNZ  fh8next

fhdone:
	VZEROUPPER
	RET

TEXT ·sumFP32AVX2(SB), NOSPLIT, $0-40
	ARGS
	CONSTANTS
	SUBQ $32, CX
	JLT  fs8

fs32:
	ZERO4
	FIRSTROW

fs32row:
	MOVQ (R8), R11
	VBROADCASTSS (R9), Y8
	VMULPS (R11)(AX*1), Y8, Y4
	VMULPS 32(R11)(AX*1), Y8, Y5
	VMULPS 64(R11)(AX*1), Y8, Y6
	VMULPS 96(R11)(AX*1), Y8, Y7
	VADDPS Y4, Y0, Y0
	VADDPS Y5, Y1, Y1
	VADDPS Y6, Y2, Y2
	VADDPS Y7, Y3, Y3
	NEXTROW
	JNZ fs32row

	FIXNAN(Y0)
	FIXNAN(Y1)
	FIXNAN(Y2)
	FIXNAN(Y3)
	VMOVUPS Y0, (DI)(AX*1)
	VMOVUPS Y1, 32(DI)(AX*1)
	VMOVUPS Y2, 64(DI)(AX*1)
	VMOVUPS Y3, 96(DI)(AX*1)
	ADDQ $128, AX
	SUBQ $32, CX
	JGE  fs32

fs8:
	ADDQ $32, CX
	JZ   fsdone

fs8next:
	VXORPS Y0, Y0, Y0
	FIRSTROW

fs8row:
	MOVQ (R8), R11
	VBROADCASTSS (R9), Y8
	VMULPS (R11)(AX*1), Y8, Y4
	VADDPS Y4, Y0, Y0
	NEXTROW
	JNZ fs8row

	FIXNAN(Y0)
	VMOVUPS Y0, (DI)(AX*1)
	ADDQ $32, AX
	SUBQ $8, CX
	JNZ  fs8next

fsdone:
	VZEROUPPER
	RET
