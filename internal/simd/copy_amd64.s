//go:build !purego && !race

#include "textflag.h"

// func copyAroundAVX2(dst, src *byte, n int)
// func copyAroundAVX512(dst, src *byte, n int)
//
// n is a positive multiple of 128, dst one of 64. The fence orders the stores,
// which the processor may otherwise delay, before the word that announces them.

TEXT ·copyAroundAVX2(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX

next32:
	VMOVDQU  (SI), Y0
	VMOVDQU  32(SI), Y1
	VMOVDQU  64(SI), Y2
	VMOVDQU  96(SI), Y3
	VMOVNTDQ Y0, (DI)
	VMOVNTDQ Y1, 32(DI)
	VMOVNTDQ Y2, 64(DI)
	VMOVNTDQ Y3, 96(DI)
	ADDQ $128, SI
	ADDQ $128, DI
	SUBQ $128, CX
	JNZ  next32
	SFENCE
	VZEROUPPER
	RET

TEXT ·copyAroundAVX512(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX

next64:
	VMOVDQU64 (SI), Z0
	VMOVDQU64 64(SI), Z1
	VMOVNTDQ  Z0, (DI)
	VMOVNTDQ  Z1, 64(DI)
	ADDQ $128, SI
	ADDQ $128, DI
	SUBQ $128, CX
	JNZ  next64
	SFENCE
	VZEROUPPER
	RET
