package moe

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"moerail/internal/mem"
	"moerail/kernels/abi"
	"moerail/transport/engine"
)

// Input is what a rank dispatches. The slices stay the caller's; they may be
// reused when DispatchRecv has returned.
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
	// most NumTokens.
	TokenCount *uint32
}

// Batch is what a rank received. The slices are views into the communicator's
// memory, valid until the slot's next DispatchRecv; Y is to be filled before
// CombineSend.
type Batch struct {
	NumRows    int      // (token, rank) rows received, own ones included
	NumPicks   int      // (token, expert) pairs among them
	Counts     []int32  // picks of each local expert
	Starts     []int32  // grouped: first row of each local expert, and the end
	RowExpert  []int32  // grouped: local expert of each row, -1 in padding
	SourceRows []uint32 // rows from each rank

	// X holds the rows of grouped and batched layouts: row r at X[r*XStride:], in
	// batched row i of local expert e is number e*Capacity+i.
	X           []byte
	XStride     int
	Scales      []byte
	ScaleStride int
	Capacity    int

	// TopK and Weights are [NumRows, TopK] in the rows layout: local experts, -1
	// where there is none. Row gives the payloads.
	TopK    []int32
	Weights []float32

	// Y is where the experts may put their results, one row of OutDType for each
	// row of X, or in the rows layout one for each pick in (row, pick) order.
	Y       []byte
	YStride int
	OutRows int // rows of Y that combine may read

	rowAddr []byte
	payload int
	scaleAt int
	scales  int
}

// DispatchSend starts a round on a slot: it checks the input's shape and hands it
// to the device. It returns before anything has moved.
//
// A *RoundError with code shape or too_many_tokens means that the round has not
// started and the caller may call again; busy, that the slot's round is not
// finished. Bad expert ids are found by the device: see DispatchRecv.
func (c *Communicator) DispatchSend(slot int, in Input) error {
	s, err := c.enter(slot, PhaseDispatchSend, phaseIdle)
	if err != nil {
		return err
	}
	if err := c.checkInput(s, &in); err != nil {
		return err
	}
	s.in, s.tokens, s.input = in, in.NumTokens, nil
	p := &s.send
	p.X, p.XStride = s.addr(in.X), uint64(in.XStride)
	if p.XStride == 0 {
		p.XStride = uint64(p.Shape.InRowBytes)
	}
	p.Scales, p.ScaleStride = mem.Addr(in.Scales), uint64(p.Shape.ScaleBytes)
	if p.IDs, p.IDType = idsAddr(&in); p.IDs == 0 {
		p.IDs = s.addr(nil)
	}
	p.Weights = floatsAddr(in.Weights)
	p.NumTokens, p.NumTokensPtr = uint32(in.NumTokens), countAddr(in.TokenCount)
	if err := s.stream.DispatchSend(p); err != nil {
		return c.broken(s, PhaseDispatchSend, err)
	}
	s.phase = phaseSent
	return nil
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
	if stride < int(sh.InRowBytes) {
		return refuse(CodeShape, "x rows are %d bytes apart, a row has %d", stride, sh.InRowBytes)
	}
	if elem := uint64(sh.InRowBytes / sh.Hidden); mem.Addr(in.X)%elem != 0 || uint64(stride)%elem != 0 {
		return refuse(CodeShape, "x starts at an address, or has rows %d bytes apart, not a multiple of its elements' %d bytes", stride, elem)
	}
	if need := (t-1)*stride + int(sh.InRowBytes); t > 0 && len(in.X) < need {
		return refuse(CodeShape, "x has %d bytes, %d tokens of hidden %d need %d", len(in.X), t, sh.Hidden, need)
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

// DispatchRecv waits until every rank's rows are here and placed.
//
// When the device refused this rank's own input (code invalid_expert, or
// too_many_tokens from a device-side count) it returns the error *and* a batch:
// the round is alive, the rank sent nothing but still serves the others, and the
// caller goes on to combine. An overflow ends the round on every rank: no batch,
// the slot is free. Any other error is sticky.
func (c *Communicator) DispatchRecv(slot int) (*Batch, error) {
	s, err := c.enter(slot, PhaseDispatchRecv, phaseSent)
	if err != nil {
		return nil, err
	}
	if err := s.stream.DispatchRecv(&s.recv); err != nil {
		return nil, c.broken(s, PhaseDispatchRecv, err)
	}
	c.wait(s, phaseSent)
	s.in = Input{}
	round := s.round.Load()
	if s.ctl.Overflow.Load() == round+1 {
		rank := int(s.dispatch.OverflowRank.Load())
		err := &RoundError{Code: CodeOverflow, Phase: PhaseDispatchRecv, Round: round, Ranks: []int{rank}, Token: -1, Pick: -1,
			What: fmt.Sprintf("rank %d would receive %d rows, the limit is %d; nothing beyond the windows was sent",
				rank, s.dispatch.OverflowRows.Load(), c.plan.Shape.MaxRecvRows)}
		if qerr := c.quiesce(s, phaseSent); qerr != nil {
			return nil, qerr
		}
		s.phase = phaseIdle
		s.round.Store(round + 1)
		return nil, err
	}
	if err := c.stageError(s); err != nil {
		return nil, err
	}
	s.phase = phaseReceived
	b := c.view(s)
	c.account(s, b)
	if s.input != nil {
		return b, s.input
	}
	return b, nil
}

// stageError turns the device's status into an error, or into s.input where the
// round goes on.
func (c *Communicator) stageError(s *slot) error {
	st := s.status
	if st.Code == abi.CodeOK {
		return nil
	}
	re := &RoundError{Phase: stagePhase(st.Stage), Round: s.round.Load(), Ranks: []int{c.rank}, Token: -1, Pick: -1}
	switch st.Code {
	case abi.CodeInvalidExpert:
		re.Code, re.Token, re.Pick = CodeInvalidExpert, int(st.Token), int(st.Pick)
		re.What = fmt.Sprintf("token %d, pick %d names expert %d, want -1 or 0 to %d", st.Token, st.Pick, st.Value, c.plan.Shape.NumExperts-1)
		s.input = re
		return nil
	case abi.CodeTooManyTokens:
		re.Code = CodeTooManyTokens
		re.What = fmt.Sprintf("%d tokens, the limit is %d", st.Value, st.Limit)
		s.input = re
		return nil
	case abi.CodeOverflow:
		re.Code = CodeOverflow
		re.What = fmt.Sprintf("%d rows received, %d fit; the others get NaN for what they sent here", st.Value, st.Limit)
		s.input = re
		return nil
	case abi.CodeBadHeader, abi.CodeBadRow:
		re.Code, re.Ranks = CodeTransport, []int{int(st.Peer)}
		re.What = fmt.Sprintf("rank %d sent a block that cannot be true (%s, value %d, limit %d); it gets NaN", st.Peer,
			map[uint32]string{abi.CodeBadHeader: "header", abi.CodeBadRow: "row"}[st.Code], st.Value, st.Limit)
		s.input = re
		return nil
	}
	if err := c.failed(); err != nil {
		return err
	}
	re.Code, re.What = CodeTransport, fmt.Sprintf("the device stopped with code %d", st.Code)
	c.fail(re)
	return re
}

func stagePhase(stage uint32) string {
	switch stage {
	case abi.StageDispatchSend:
		return PhaseDispatchSend
	case abi.StageDispatchRecv:
		return PhaseDispatchRecv
	case abi.StageCombineSend:
		return PhaseCombineSend
	default:
		return PhaseCombineRecv
	}
}

// view fills the slot's batch from the outputs of dispatch_recv.
func (c *Communicator) view(s *slot) *Batch {
	sh, m := &c.plan.Shape, &s.mem
	el, k := uint64(sh.NumLocalExperts), uint64(sh.TopK)
	b := &s.batch
	*b = Batch{
		NumRows:  int(mem.Word32(s.local.Host, m.numRows).Load()),
		NumPicks: int(mem.Word32(s.local.Host, m.numRows+4).Load()),
		Counts:   int32s(s.at(m.counts, el*4)), SourceRows: uint32s(s.at(m.sourceRows, uint64(sh.NumRanks)*4)),
		XStride: int(m.xStride), ScaleStride: int(sh.ScaleBytes), Capacity: int(sh.ExpertCapacity),
		YStride: int(m.yStride),
	}
	switch sh.Layout {
	case abi.LayoutGrouped:
		b.Starts = int32s(s.at(m.starts, (el+1)*4))
		b.OutRows = int(b.Starts[el])
		b.RowExpert = int32s(s.at(m.rowExpert, uint64(b.OutRows)*4))
	case abi.LayoutBatched:
		b.OutRows = int(el) * b.Capacity
	case abi.LayoutRows:
		b.OutRows = b.NumPicks
		n := uint64(b.NumRows)
		b.TopK, b.Weights = int32s(s.at(m.rowTopK, n*k*4)), float32s(s.at(m.rowWeights, n*k*4))
		b.rowAddr = s.at(m.rowAddr, n*8)
		b.payload, b.scaleAt, b.scales = int(sh.PayloadBytes), int(sh.ScaleOffset), int(sh.ScaleBytes)
	}
	if sh.Layout != abi.LayoutRows {
		b.X = s.at(m.expertX, uint64(b.OutRows)*m.xStride)
		b.Scales = s.at(m.expertScales, uint64(b.OutRows)*uint64(sh.ScaleBytes))
	}
	b.Y = s.at(m.y, uint64(b.OutRows)*m.yStride)
	return b
}

// CombineSend hands the experts' results to the device: y in the row numbers of
// the batch, rows yStride bytes apart (0 = packed); nil takes the batch's Y. y may
// be reused when CombineRecv has returned.
func (c *Communicator) CombineSend(slot int, y []byte, yStride int) error {
	s, err := c.enter(slot, PhaseCombineSend, phaseReceived)
	if err != nil {
		return err
	}
	if y == nil {
		y, yStride = s.batch.Y, s.batch.YStride
	} else if yStride == 0 {
		yStride = int(c.plan.Shape.OutRowBytes)
	}
	if err := c.checkRows(s, PhaseCombineSend, "y", y, yStride, s.batch.OutRows); err != nil {
		return err
	}
	return c.combineSend(s, y, yStride, false)
}

func (c *Communicator) combineSend(s *slot, y []byte, yStride int, abandon bool) error {
	s.y = y
	s.csend.Y, s.csend.YStride, s.csend.Abandon = s.addr(y), uint64(yStride), 0
	if abandon {
		s.csend.Abandon = 1
	}
	if err := s.stream.CombineSend(&s.csend); err != nil {
		return c.broken(s, PhaseCombineSend, err)
	}
	s.phase = phaseCombined
	return nil
}

func (c *Communicator) checkRows(s *slot, phase, what string, b []byte, stride, rows int) error {
	row := int(c.plan.Shape.OutRowBytes)
	elem := row / int(c.plan.Shape.Hidden)
	fault := ""
	if need := (rows-1)*stride + row; rows > 0 && (stride < row || len(b) < need) {
		fault = fmt.Sprintf("%s has %d bytes with rows %d apart, %d rows of %d bytes are needed", what, len(b), stride, rows, row)
	} else if mem.Addr(b)%uint64(elem) != 0 || stride%elem != 0 {
		fault = fmt.Sprintf("%s starts at an address, or has rows %d bytes apart, not a multiple of its elements' %d bytes", what, stride, elem)
	}
	if fault == "" {
		return nil
	}
	return &RoundError{Code: CodeShape, Phase: phase, Round: s.round.Load(), Ranks: []int{c.rank}, Token: -1, Pick: -1, What: fault}
}

// CombineRecv waits for what the other ranks return and writes the sums of this
// rank's tokens to out: one row of OutDType a token, outStride bytes apart
// (0 = packed). It ends the round: the slot is free, and no operation of the
// round is outstanding. If this rank's input was refused it returns that error
// and leaves out alone.
func (c *Communicator) CombineRecv(slot int, out []byte, outStride int) error {
	return c.combineRecv(slot, out, outStride, 0)
}

// CombineRecvAdd is CombineRecv that adds to what out holds.
func (c *Communicator) CombineRecvAdd(slot int, out []byte, outStride int) error {
	return c.combineRecv(slot, out, outStride, 1)
}

func (c *Communicator) combineRecv(slot int, out []byte, outStride int, accumulate uint32) error {
	s, err := c.enter(slot, PhaseCombineRecv, phaseCombined)
	if err != nil {
		return err
	}
	if outStride == 0 {
		outStride = int(c.plan.Shape.OutRowBytes)
	}
	tokens := s.tokens
	if s.input != nil {
		tokens = 0
	}
	if err := c.checkRows(s, PhaseCombineRecv, "out", out, outStride, tokens); err != nil {
		return err
	}
	s.out = out
	s.crecv.Out, s.crecv.OutStride, s.crecv.Accumulate = s.addr(out), uint64(outStride), accumulate
	if err := s.stream.CombineRecv(&s.crecv); err != nil {
		return c.broken(s, PhaseCombineRecv, err)
	}
	c.wait(s, phaseCombined)
	s.y, s.out = nil, nil
	if err := c.failed(); err != nil {
		return err
	}
	if s.input == nil {
		if err := c.stageError(s); err != nil {
			return err
		}
	}
	if err := c.quiesce(s, phaseCombined); err != nil {
		return err
	}
	s.phase = phaseIdle
	s.round.Add(1)
	if s.input != nil {
		return s.input
	}
	return nil
}

// Dispatch is DispatchSend and DispatchRecv.
func (c *Communicator) Dispatch(slot int, in Input) (*Batch, error) {
	if err := c.DispatchSend(slot, in); err != nil {
		return nil, err
	}
	return c.DispatchRecv(slot)
}

// Combine is CombineSend and CombineRecv.
func (c *Communicator) Combine(slot int, y []byte, yStride int, out []byte, outStride int) error {
	if err := c.CombineSend(slot, y, yStride); err != nil {
		return err
	}
	return c.CombineRecv(slot, out, outStride)
}

// Abort ends this rank's part in a slot's round without running the experts: the
// other ranks are answered with NaN, so that a token which needed this rank is
// seen to have no value, and nobody waits. The slot is free afterwards.
func (c *Communicator) Abort(slot int) error {
	if slot < 0 || slot >= len(c.slots) {
		return c.noSlot(slot, PhaseClose)
	}
	s := c.slots[slot]
	if s.phase == phaseSent {
		if b, err := c.DispatchRecv(slot); b == nil {
			return err
		}
	}
	if s.phase == phaseReceived {
		if err := c.combineSend(s, nil, 0, true); err != nil {
			return err
		}
	}
	if s.phase == phaseCombined {
		if len(s.abandoned) < s.tokens*int(c.plan.Shape.OutRowBytes) {
			s.abandoned = make([]byte, int(c.plan.Shape.MaxTokens)*int(c.plan.Shape.OutRowBytes))
		}
		if err := c.CombineRecv(slot, s.abandoned, 0); err != nil && err != error(s.input) {
			return err
		}
	}
	return c.failed()
}

// enter checks that a slot exists and stands where the call needs it.
func (c *Communicator) enter(slot int, name string, want phase) (*slot, error) {
	if slot < 0 || slot >= len(c.slots) {
		return nil, c.noSlot(slot, name)
	}
	if err := c.failed(); err != nil {
		return nil, err
	}
	s := c.slots[slot]
	if s.phase == want {
		return s, nil
	}
	code := CodePhaseOrder
	if want == phaseIdle {
		code = CodeBusy
	}
	return nil, &RoundError{Code: code, Phase: name, Round: s.round.Load(), Ranks: []int{c.rank}, Token: -1, Pick: -1,
		What: fmt.Sprintf("slot %d: %s", slot, phaseNeeds[s.phase])}
}

func (c *Communicator) noSlot(slot int, name string) error {
	return &RoundError{Code: CodeBusy, Phase: name, Ranks: []int{c.rank}, Token: -1, Pick: -1,
		What: fmt.Sprintf("slot %d of %d: no further micro-batch can be in flight", slot, len(c.slots))}
}

// broken is the error of a launch that the device refused: the stream is gone.
func (c *Communicator) broken(s *slot, phase string, err error) error {
	re := &RoundError{Code: CodeTransport, Phase: phase, Round: s.round.Load(), Ranks: []int{c.rank}, Token: -1, Pick: -1, What: "the device refused a stage", Err: err}
	c.fail(re)
	return c.failed()
}

// wait returns when the slot's stages have ended; the watchdog ends them when
// the deadline passes.
func (c *Communicator) wait(s *slot, ph phase) {
	s.waitPhase.Store(int32(ph))
	s.waiting.Store(max(1, int64(time.Since(c.epoch))))
	// A failure that came before the round's number was visible to endWaits.
	if c.failure.Load() != nil {
		s.ctl.Abort.Store(s.round.Load() + 1)
		s.stream.Notify()
	}
	s.stream.Sync()
	s.waiting.Store(0)
}

// quiesce waits until every operation of the slot's round has completed.
func (c *Communicator) quiesce(s *slot, ph phase) error {
	want := s.round.Load() + 1
	done := func() bool { return s.ctl.DispatchTxDone.Load() >= want && s.ctl.CombineTxDone.Load() >= want }
	if done() {
		return nil
	}
	s.waitPhase.Store(int32(ph))
	s.waiting.Store(max(1, int64(time.Since(c.epoch))))
	defer s.waiting.Store(0)
	for i := 0; !done(); i++ {
		if err := c.failed(); err != nil {
			return err
		}
		pause(i)
	}
	return nil
}

// pause yields, and sleeps when that has not helped for long.
func pause(i int) {
	if i < 1000 {
		runtime.Gosched()
	} else {
		time.Sleep(50 * time.Microsecond)
	}
}

// Barrier returns when every rank has entered it. It uses the fabric, is not
// counted in Stats, and may be called between rounds or during them, by one
// goroutine at a time.
func (c *Communicator) Barrier(ctx context.Context) error {
	if c.ranks == 1 {
		return c.failed()
	}
	b := c.barrier
	want := b.entered.Add(1)
	c.engine.Wake()
	limit := time.Now().Add(c.cfg.Deadline)
	for i := 0; b.passed.Load() < want; i++ {
		if err := c.failed(); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if i%64 == 63 && time.Now().After(limit) {
			var late []int
			_ = c.engine.Call(func(*engine.Worker) {
				for q, n := range b.got {
					if q != c.rank && n < want {
						late = append(late, q)
					}
				}
			})
			return &RoundError{Code: CodeDeadline, Phase: PhaseBarrier, Ranks: late, Token: -1, Pick: -1,
				What: fmt.Sprintf("deadline of %v passed, waiting for %s", c.cfg.Deadline, ranksText(late))}
		}
		pause(i)
	}
	return nil
}
