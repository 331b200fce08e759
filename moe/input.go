package moe

import (
	"fmt"

	"moerail/internal/mem"
)

// Input is what a rank dispatches. The slices stay the caller's; they may be
// reused when DispatchRecv has returned. Values are carried as they are, NaN and
// infinities too.
type Input struct {
	X       []byte // [NumTokens, Hidden] of InDType, row-major
	XStride int    // bytes from row to row; 0 = packed
	Scales  []byte // [NumTokens, ScaleBytes], when the config has ScaleBytes
	// Expert ids, [NumTokens, TopK], in one of the three types. -1 (all ones in the
	// unsigned type) is no expert; the same expert twice counts twice.
	IDs     []int32
	IDs64   []int64
	IDsU32  []uint32
	Weights []float32 // [NumTokens, TopK]; nil = all ones
	// NumTokens may be 0, and differs between ranks.
	NumTokens int
	// TokenCount, if set, is read when the stage runs: the number of tokens, at
	// most NumTokens; more is refused with too_many_tokens by DispatchRecv.
	TokenCount *uint32
}

func (c *Communicator) checkInput(s *slot, in *Input) error {
	sh := &c.plan.Shape
	k, t := int(sh.TopK), in.NumTokens
	refuse := func(code Code, format string, args ...any) error {
		return &RoundError{Code: code, Phase: PhaseDispatchSend, Round: s.round.Load(), Ranks: []int{c.rank},
			Token: -1, Pick: -1, What: fmt.Sprintf(format, args...)}
	}
	if t < 0 {
		return refuse(CodeShape, "%d tokens", t)
	}
	if t > int(sh.MaxTokens) {
		return refuse(CodeTooManyTokens, "%d tokens, the limit is %d", t, sh.MaxTokens)
	}
	stride := in.XStride
	if stride == 0 {
		stride = int(sh.InRowBytes)
	}
	if what := checkMatrix(in.X, stride, t, int(sh.InRowBytes), int(sh.InRowBytes/sh.Hidden)); what != "" {
		return refuse(CodeShape, "x %s", what)
	}
	n, kinds := 0, 0
	for _, l := range []int{len(in.IDs), len(in.IDs64), len(in.IDsU32)} {
		if l > 0 {
			n, kinds = l, kinds+1
		}
	}
	if kinds > 1 || n < t*k {
		return refuse(CodeShape, "%d ids in %d types, %d tokens with top-k %d need %d in one", n, kinds, t, k, t*k)
	}
	if in.Weights != nil && len(in.Weights) < t*k {
		return refuse(CodeShape, "%d weights, %d tokens with top-k %d need %d", len(in.Weights), t, k, t*k)
	}
	if c.cfg.ScaleBytes > 0 && len(in.Scales) < t*c.cfg.ScaleBytes {
		return refuse(CodeShape, "%d scale bytes, %d tokens need %d", len(in.Scales), t, t*c.cfg.ScaleBytes)
	}
	return nil
}

func (c *Communicator) checkRows(s *slot, phase, what string, b []byte, stride, rows int) error {
	row := int(c.plan.Shape.OutRowBytes)
	fault := checkMatrix(b, stride, rows, row, row/int(c.plan.Shape.Hidden))
	if fault == "" {
		return nil
	}
	return &RoundError{Code: CodeShape, Phase: phase, Round: s.round.Load(), Ranks: []int{c.rank}, Token: -1, Pick: -1, What: what + " " + fault}
}

// checkMatrix says what is wrong with b as a number of rows of so many bytes, of
// elements of elem bytes, stride bytes apart; "" if nothing is.
func checkMatrix(b []byte, stride, rows, row, elem int) string {
	switch {
	case stride < row:
		return fmt.Sprintf("has rows %d bytes apart, a row has %d", stride, row)
	case mem.Addr(b)%uint64(elem) != 0 || stride%elem != 0:
		return fmt.Sprintf("starts at an address, or has rows %d bytes apart, not a multiple of its elements' %d bytes", stride, elem)
	case rows > 0 && (len(b) < row || (len(b)-row)/stride < rows-1):
		return fmt.Sprintf("has %d bytes with rows %d apart, %d rows of %d bytes are needed", len(b), stride, rows, row)
	}
	return ""
}
