//go:build !purego && !race

#include "textflag.h"

#define BROADCAST(bits, x, y) \
	MOVL $bits, R11    \
	VMOVD R11, x       \
	VPBROADCASTD x, y

// func amaxAVX2(x *float32, n int) float32
// n is a positive multiple of 8. Magnitudes of finite floats order as their bits do.
TEXT ·amaxAVX2(SB), NOSPLIT, $0-20
	MOVQ x+0(FP), SI
	MOVQ n+8(FP), CX
	BROADCAST(0x7fffffff, X15, Y15)
	BROADCAST(0x7f800000, X14, Y14)
	VPXOR Y0, Y0, Y0

amax8:
	VPAND    (SI), Y15, Y1
	VPCMPGTD Y1, Y14, Y2   // finite
	VPAND    Y2, Y1, Y1
	VPMAXSD  Y1, Y0, Y0
	ADDQ     $32, SI
	SUBQ     $8, CX
	JNZ      amax8
	VEXTRACTI128 $1, Y0, X1
	VPMAXSD  X1, X0, X0
	VPSHUFD  $0x4e, X0, X1
	VPMAXSD  X1, X0, X0
	VPSHUFD  $0xb1, X0, X1
	VPMAXSD  X1, X0, X0
	VMOVD    X0, AX
	VZEROUPPER
	MOVL     AX, ret+16(FP)
	RET

// func e4m3AVX2(dst *byte, x *float32, n int, scale float32)
// n is a positive multiple of 8. See numeric.Float32ToE4M3.
TEXT ·e4m3AVX2(SB), NOSPLIT, $0-28
	MOVQ dst+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ n+16(FP), CX
	VBROADCASTSS scale+24(FP), Y8
	BROADCAST(0x7fffffff, X15, Y15)
	BROADCAST(0x7f7fffff, X14, Y14) // largest finite
	BROADCAST(0x3c800000, X13, Y13) // 2^-6
	BROADCAST(0x46800000, X12, Y12) // 2^14
	BROADCAST(1, X11, Y11)
	BROADCAST(0x0007ffff, X10, Y10)
	BROADCAST(960, X9, Y9)          // 120<<3
	BROADCAST(0x7e, X7, Y7)
	BROADCAST(0x7f, X6, Y6)

e4m3next:
	VMOVUPS  (SI), Y0
	VDIVPS   Y8, Y0, Y0
	VPAND    Y15, Y0, Y1   // magnitude
	VPXOR    Y1, Y0, Y0
	VPSRLD   $24, Y0, Y0   // sign
	VADDPS   Y12, Y1, Y2   // below 2^-6: the addition rounds
	VPSUBD   Y12, Y2, Y2
	VPSRLD   $20, Y1, Y3
	VPAND    Y11, Y3, Y3
	VPADDD   Y10, Y3, Y3
	VPADDD   Y1, Y3, Y3
	VPSRLD   $20, Y3, Y3
	VPSUBD   Y9, Y3, Y3
	VPMINSD  Y7, Y3, Y3    // saturate
	VPCMPGTD Y1, Y13, Y4
	VPBLENDVB Y4, Y2, Y3, Y3
	VPCMPGTD Y14, Y1, Y4   // infinite or not a number
	VPBLENDVB Y4, Y6, Y3, Y3
	VPOR     Y0, Y3, Y3
	VEXTRACTI128 $1, Y3, X4
	VPACKUSDW X4, X3, X3
	VPACKUSWB X3, X3, X3
	VMOVQ    X3, (DI)
	ADDQ     $32, SI
	ADDQ     $8, DI
	SUBQ     $8, CX
	JNZ      e4m3next
	VZEROUPPER
	RET

// func widenBF16AVX2(dst *float32, src *byte, n int)
// n is a positive multiple of 8.
TEXT ·widenBF16AVX2(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX

widenbf:
	VPMOVZXWD (SI), Y0
	VPSLLD    $16, Y0, Y0
	VMOVDQU   Y0, (DI)
	ADDQ      $16, SI
	ADDQ      $32, DI
	SUBQ      $8, CX
	JNZ       widenbf
	VZEROUPPER
	RET

// func widenFP16AVX2(dst *float32, src *byte, n int)
// n is a positive multiple of 8.
TEXT ·widenFP16AVX2(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX

widenfh:
	VCVTPH2PS (SI), Y0
	VMOVUPS   Y0, (DI)
	ADDQ      $16, SI
	ADDQ      $32, DI
	SUBQ      $8, CX
	JNZ       widenfh
	VZEROUPPER
	RET
