package host

import (
	"errors"
	"fmt"
	"math"

	"moerail/kernels/abi"
)

// ErrParams reports params that no stage can run on. The message says which.
var ErrParams = errors.New("host: params")

func bad(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrParams, fmt.Sprintf(format, args...))
}

// checker collects the first thing that is wrong; it allocates only then.
type checker struct{ err error }

func (c *checker) in(name string, v, lo, hi uint64) {
	if c.err == nil && (v < lo || v > hi) {
		c.err = bad("%s is %d, want %d to %d", name, v, lo, hi)
	}
}

func (c *checker) multiple(name string, v, of uint64) {
	if c.err == nil && v%of != 0 {
		c.err = bad("%s is %d, want a multiple of %d", name, v, of)
	}
}

// address wants addr aligned, and not 0 where it is needed.
func (c *checker) address(name string, addr, align uint64, needed bool) {
	if c.err != nil {
		return
	}
	if needed && addr == 0 {
		c.err = bad("%s is 0", name)
	} else if addr%align != 0 {
		c.err = bad("%s is %#x, want a multiple of %d", name, addr, align)
	}
}

func elemBytes(t abi.DType) uint64 {
	switch t {
	case abi.FP32:
		return 4
	case abi.FP8:
		return 1
	}
	return 2
}

func roundUp(n, to uint64) uint64 { return (n + to - 1) / to * to }

// shape checks that sh describes blocks and rows that hold what it says.
func (c *checker) shape(sh *abi.Shape) {
	const max32 = math.MaxUint32
	c.in("NumRanks", uint64(sh.NumRanks), 1, abi.MaxRanks)
	c.in("Rank", uint64(sh.Rank), 0, uint64(sh.NumRanks)-1)
	c.in("NumExperts", uint64(sh.NumExperts), 1, math.MaxInt32)
	c.in("NumLocalExperts", uint64(sh.NumLocalExperts), 0, uint64(sh.MaxLocalExperts))
	c.in("MaxLocalExperts", uint64(sh.MaxLocalExperts), 1, uint64(sh.NumExperts))
	c.in("TopK", uint64(sh.TopK), 1, 1<<16)
	c.in("Hidden", uint64(sh.Hidden), 1, 1<<24)
	c.in("Replicas", uint64(sh.Replicas), 1, uint64(sh.NumRanks))
	c.in("In", uint64(sh.In), 0, uint64(abi.FP8))
	c.in("Wire", uint64(sh.Wire), 0, uint64(abi.FP8))
	c.in("Out", uint64(sh.Out), 0, uint64(abi.FP16))
	c.in("Layout", uint64(sh.Layout), 0, uint64(abi.LayoutRows))
	c.in("NumRanks*MaxTokens", uint64(sh.NumRanks)*uint64(sh.MaxTokens), 0, max32)
	if c.err != nil {
		return
	}
	c.in("NumRanks*MaxTokens*TopK", uint64(sh.NumRanks)*uint64(sh.MaxTokens)*uint64(sh.TopK), 0, max32)
	c.multiple("NumRanks", uint64(sh.NumRanks), uint64(sh.Replicas))
	payload := uint64(sh.Hidden) * elemBytes(sh.Wire)
	c.in("InRowBytes", uint64(sh.InRowBytes), uint64(sh.Hidden)*elemBytes(sh.In), uint64(sh.Hidden)*elemBytes(sh.In))
	c.in("PayloadBytes", uint64(sh.PayloadBytes), payload, payload)
	if sh.In != sh.Wire {
		c.in("Wire (of a type other than In)", uint64(sh.Wire), uint64(abi.FP8), uint64(abi.FP8))
		c.in("ScaleBlock", uint64(sh.ScaleBlock), 1, max32)
		if c.err == nil {
			n := 4 * ((uint64(sh.Hidden) + uint64(sh.ScaleBlock) - 1) / uint64(sh.ScaleBlock))
			c.in("ScaleBytes", uint64(sh.ScaleBytes), n, n)
		}
	}
	c.in("ScaleOffset", uint64(sh.ScaleOffset), payload, max32)
	c.multiple("ScaleOffset", uint64(sh.ScaleOffset), 4)
	c.in("MetaOffset", uint64(sh.MetaOffset), uint64(sh.ScaleOffset)+uint64(sh.ScaleBytes), max32)
	c.multiple("MetaOffset", uint64(sh.MetaOffset), 4)
	c.in("RowBytes", uint64(sh.RowBytes), uint64(sh.MetaOffset)+abi.RowMetaBytes+uint64(sh.TopK)*abi.PickBytes, max32)
	c.multiple("RowBytes", uint64(sh.RowBytes), 16)
	out := uint64(sh.Hidden) * elemBytes(sh.Out)
	c.in("OutRowBytes", uint64(sh.OutRowBytes), out, out)
	c.in("ReturnRowBytes", uint64(sh.ReturnRowBytes), out, max32)
	c.multiple("ReturnRowBytes", uint64(sh.ReturnRowBytes), 16)
	c.in("HeaderBytes", uint64(sh.HeaderBytes), abi.HeaderFixedBytes+4*uint64(sh.MaxLocalExperts), max32)
	c.multiple("HeaderBytes", uint64(sh.HeaderBytes), 64)
	row, header := uint64(sh.RowBytes), uint64(sh.HeaderBytes)
	c.in("WindowStride", sh.WindowStride, header+uint64(min(sh.WindowRows, sh.MaxTokens))*row, math.MaxInt64)
	c.in("SendStride", sh.SendStride, header+uint64(sh.MaxTokens)*row, math.MaxInt64)
	returned := uint64(sh.MaxTokens)
	if sh.ReduceAtHome != 0 {
		returned *= uint64(sh.TopK)
	}
	c.in("ReturnStride", sh.ReturnStride, returned*uint64(sh.ReturnRowBytes), math.MaxInt64)
	c.in("ReturnSendStride", sh.ReturnSendStride, returned*uint64(sh.ReturnRowBytes), math.MaxInt64)
	c.multiple("strides", sh.WindowStride|sh.SendStride|sh.ReturnStride|sh.ReturnSendStride, 16)
	c.in("MaxExpertRows", uint64(sh.MaxExpertRows), 0, math.MaxInt32)
	switch sh.Layout {
	case abi.LayoutGrouped:
		c.in("ExpertAlignment", uint64(sh.ExpertAlignment), 1, math.MaxInt32)
	case abi.LayoutBatched:
		c.in("NumLocalExperts*ExpertCapacity", uint64(sh.NumLocalExperts)*uint64(sh.ExpertCapacity), 0, math.MaxInt32)
	}
}

// slot checks the addresses that every stage reads.
func (c *checker) slot(sh *abi.Shape, sl *abi.Slot) {
	c.address("Control", sl.Control, 64, true)
	c.address("Status", sl.Status, 8, true)
	c.address("Round", sl.Round, 8, true)
	c.address("PeerWindow", sl.PeerWindow, 8, false)
	c.address("PeerReturn", sl.PeerReturn, 8, false)
	c.address("PeerDispatchFlag", sl.PeerDispatchFlag, 8, sl.PeerWindow != 0)
	c.address("PeerCombineFlag", sl.PeerCombineFlag, 8, sl.PeerReturn != 0)
	c.address("DirectDispatch", sl.DirectDispatch, 64, sl.PeerWindow != 0)
	c.address("DirectCombine", sl.DirectCombine, 64, sl.PeerReturn != 0)
	c.address("Send", sl.Send, 16, true)
	c.address("ReturnRows", sl.ReturnRows, 4, true)
	c.address("ReturnWindow", sl.ReturnWindow, 16, true)
	c.address("Tokens", sl.Tokens, 4, true)
	c.address("Home", sl.Home, 4, sh.MaxTokens > 0)
	c.address("HomeWeights", sl.HomeWeights, 4, sh.ReduceAtHome != 0 && sh.MaxTokens > 0)
}

// received checks the addresses of what dispatch_recv and combine_send share.
func (c *checker) received(sh *abi.Shape, sl *abi.Slot) {
	c.address("Window[0]", sl.Window[0], 16, sh.NumRanks > 1)
	c.address("Window[1]", sl.Window[1], 16, sh.NumRanks > 1)
	c.address("Overflow", sl.Overflow, 16, sh.WindowRows < sh.MaxTokens && sh.NumRanks > 1)
	c.address("Before", sl.Before, 4, sh.NumLocalExperts > 0)
	c.address("PickStart", sl.PickStart, 4, sh.Layout == abi.LayoutRows)
	c.address("Sources", sl.Sources, 4, true)
}

// stride wants rows of size bytes, of elements of elem bytes, to fit.
func (c *checker) stride(name string, stride, size, elem uint64) {
	c.in(name, stride, size, math.MaxInt64)
	c.multiple(name, stride, elem)
}

func checkDispatchSend(p *abi.DispatchSendParams) error {
	if p == nil {
		return bad("nil")
	}
	var c checker
	sh, sl := &p.Shape, &p.Slot
	c.shape(sh)
	c.slot(sh, sl)
	c.address("DispatchWords", sl.DispatchWords, 8, true)
	c.address("ExpertRank", sl.ExpertRank, 4, true)
	c.address("ExpertLocal", sl.ExpertLocal, 4, true)
	c.in("IDType", uint64(p.IDType), 0, uint64(abi.IDUint32))
	c.address("NumTokensPtr", p.NumTokensPtr, 4, false)
	some := p.NumTokensPtr != 0 || p.NumTokens > 0
	if some { // a rank without tokens needs no data
		c.address("X", p.X, elemBytes(sh.In), true)
		c.stride("XStride", p.XStride, uint64(sh.InRowBytes), elemBytes(sh.In))
		idBytes := uint64(4)
		if p.IDType == abi.IDInt64 {
			idBytes = 8
		}
		c.address("IDs", p.IDs, idBytes, true)
		c.address("Weights", p.Weights, 4, false)
		if sh.In == sh.Wire && sh.ScaleBytes != 0 {
			c.address("Scales", p.Scales, 1, true)
			c.stride("ScaleStride", p.ScaleStride, uint64(sh.ScaleBytes), 1)
		}
	}
	return c.err
}

func checkDispatchRecv(p *abi.DispatchRecvParams) error {
	if p == nil {
		return bad("nil")
	}
	var c checker
	sh, sl := &p.Shape, &p.Slot
	c.shape(sh)
	c.slot(sh, sl)
	c.received(sh, sl)
	copied := sh.Layout != abi.LayoutRows
	if copied {
		c.address("ExpertX", p.ExpertX, elemBytes(sh.Wire), sh.NumLocalExperts > 0)
		c.stride("ExpertStride", p.ExpertStride, uint64(sh.PayloadBytes), elemBytes(sh.Wire))
	}
	c.address("Counts", p.Counts, 4, false)
	c.address("Starts", p.Starts, 4, false)
	c.address("RowExpert", p.RowExpert, 4, false)
	c.address("SourceRows", p.SourceRows, 4, false)
	c.address("RowAddr", p.RowAddr, 8, false)
	c.address("RowTopK", p.RowTopK, 4, false)
	c.address("RowWeights", p.RowWeights, 4, false)
	c.address("NumRows", p.NumRows, 4, false)
	c.address("TotalRows", p.TotalRows, 8, false)
	return c.err
}

func checkCombineSend(p *abi.CombineSendParams) error {
	if p == nil {
		return bad("nil")
	}
	var c checker
	sh, sl := &p.Shape, &p.Slot
	c.shape(sh)
	c.slot(sh, sl)
	c.received(sh, sl)
	c.address("ReturnSend", sl.ReturnSend, 16, sh.NumRanks > 1)
	c.address("CombineWords", sl.CombineWords, 8, true)
	if p.Abandon == 0 && sh.NumLocalExperts > 0 {
		c.address("Y", p.Y, elemBytes(sh.Out), true)
		c.stride("YStride", p.YStride, uint64(sh.OutRowBytes), elemBytes(sh.Out))
		c.address("Starts", p.Starts, 4, sh.Layout == abi.LayoutGrouped)
	}
	return c.err
}

func checkCombineRecv(p *abi.CombineRecvParams) error {
	if p == nil {
		return bad("nil")
	}
	var c checker
	c.shape(&p.Shape)
	c.slot(&p.Shape, &p.Slot)
	c.address("Out", p.Out, elemBytes(p.Shape.Out), p.Shape.MaxTokens > 0)
	c.stride("OutStride", p.OutStride, uint64(p.Shape.OutRowBytes), elemBytes(p.Shape.Out))
	return c.err
}
