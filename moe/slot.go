package moe

import (
	"sync/atomic"

	"moerail/combine"
	"moerail/dispatch"
	"moerail/internal/mem"
	"moerail/kernels"
	"moerail/kernels/abi"
	"moerail/moe/routing"
	"moerail/transport"
	"moerail/transport/engine"
	"moerail/uvmwatch"
)

// phase is where a slot stands between two calls of its user.
type phase int32

const (
	phaseIdle phase = iota
	phaseSent
	phaseReceived
	phaseCombined
)

var phaseNeeds = [...]string{
	phaseIdle:     "no round is under way: call DispatchSend",
	phaseSent:     "the dispatch was sent: call DispatchRecv",
	phaseReceived: "the dispatch was received: call CombineSend",
	phaseCombined: "the combine was sent: call CombineRecv",
}

// slot is one micro-batch's buffers, stream and proxy halves. Its user calls from
// one goroutine at a time; the proxy halves belong to the worker.
type slot struct {
	index  int
	stream kernels.Stream
	local  transport.Memory // scratch, outputs and words; see slotMemory
	mem    slotMemory
	abi    abi.Slot
	ctl    *kernels.Control
	status *abi.Status
	words  [2]*uvmwatch.Block // dispatch, combine

	dispatch *dispatch.Side // worker
	combine  *combine.Side  // worker
	trackers [2]*engine.Tracker

	place  atomic.Pointer[placed] // of the round under way, or the last one; written by the user
	inCall atomic.Bool            // the fields below are those of the goroutine in a call
	phase  phase
	round  atomic.Uint64
	tokens int
	in     Input // keeps the caller's memory alive while a stage reads it
	out    []byte
	y      []byte
	batch  Batch
	// outRows is the batch's OutRows.
	outRows int
	input   *RoundError // this round's own refused input
	// abandoned takes the sums of a round that Abort gave up.
	abandoned []byte

	// waiting is when the user began to wait for the phase in waitPhase, in
	// nanoseconds since the communicator's epoch, 0 while it does not wait.
	waiting   atomic.Int64
	waitPhase atomic.Int32
	// directTold is the value of waiting for which the stream was told that every
	// direct rank's flag is there, directFor that for which directNext is the first
	// flag not seen yet; worker.
	directTold, directFor int64
	directNext            int

	totals totals

	send  abi.DispatchSendParams
	recv  abi.DispatchRecvParams
	csend abi.CombineSendParams
	crecv abi.CombineRecvParams
}

// totals add up over a slot's rounds; written by its user, read by Stats.
type totals struct {
	uniqueRows, localBytes, rows, picks atomic.Uint64
	source                              []atomic.Uint64
}

// slotMemory is the layout of a slot's local memory: offsets from its start.
type slotMemory struct {
	bytes uint64

	peerWindow, peerReturn, peerDispatchFlag, peerCombineFlag uint64
	control, status, returnRows, round, tokens                uint64
	home, homeWeights, before, pickStart, sources             uint64
	counts, starts, rowExpert, sourceRows, numRows, totalRows uint64
	rowAddr, rowTopK, rowWeights                              uint64
	expertX, expertScales, y                                  uint64

	xStride, yStride uint64
	maxLocal         uint64 // experts that the areas by local expert have room for
}

func layoutSlot(pl *routing.Plan) slotMemory {
	s := &pl.Shape
	r, k, t := uint64(s.NumRanks), uint64(s.TopK), uint64(s.MaxTokens)
	el, rows, recv := uint64(s.MaxLocalExperts), uint64(s.MaxExpertRows), uint64(s.MaxRecvRows)
	m := slotMemory{maxLocal: el}
	take := func(n uint64) uint64 {
		at := m.bytes
		m.bytes += (n + 127) / 128 * 128 // words of different writers never share a line
		return at
	}
	m.peerWindow, m.peerReturn = take(2*r*8), take(r*8)
	m.peerDispatchFlag, m.peerCombineFlag = take(2*r*8), take(r*8)
	m.control, m.status = take(kernels.ControlBytes), take(kernels.StatusBytes)
	m.returnRows, m.round, m.tokens = take(r*4), take(8), take(8)
	m.home, m.homeWeights = take(t*(1+2*k)*4), take(t*k*4)
	m.before, m.pickStart = take((r+1)*el*4), take((recv+1)*4)
	m.sources = take(r * kernels.SourceBytes)
	m.counts, m.starts, m.sourceRows = take(el*4), take((el+1)*4), take(r*4)
	m.numRows, m.totalRows = take(8), take(el*8)
	m.yStride = uint64(s.OutRowBytes)
	if s.Layout == abi.LayoutRows {
		m.rowAddr, m.rowTopK, m.rowWeights = take(recv*8), take(recv*k*4), take(recv*k*4)
	} else {
		m.xStride = uint64(s.PayloadBytes)
		m.expertX, m.expertScales = take(rows*m.xStride), take(rows*uint64(s.ScaleBytes))
		if s.Layout == abi.LayoutGrouped {
			m.rowExpert = take(rows * 4)
		}
	}
	m.y = take(rows * m.yStride)
	return m
}

// newSlot allocates a slot's local memory and words. inbox and outbox are this
// rank's.
func newSlot(index int, pl *routing.Plan, inbox, outbox transport.Memory, firstRound uint64, zeroFill bool) (*slot, error) {
	s := &slot{index: index, mem: layoutSlot(pl)}
	s.totals.source = make([]atomic.Uint64, pl.Shape.NumRanks)
	var err error
	if s.local, err = mem.Alloc(s.mem.bytes); err != nil {
		return nil, err
	}
	if pl.Shape.Layout != abi.LayoutBatched { // whose experts' rows lie far apart
		mem.AdviseHuge(s.local)
	}
	for i := range s.words {
		if s.words[i], err = uvmwatch.AllocBlock(int(pl.Shape.NumRanks)); err != nil {
			return s, err
		}
		for q := range int(pl.Shape.NumRanks) {
			// A word that means the round before the first, never this one.
			s.words[i].Word(q).Store(routing.Word(firstRound-1, 0))
		}
	}
	s.round.Store(firstRound)
	s.ctl = kernels.NewControl(s.at(s.mem.control, kernels.ControlBytes))
	for _, w := range []*atomic.Uint64{s.ctl.DispatchArrived, s.ctl.CombineArrived, s.ctl.DispatchTxDone, s.ctl.CombineTxDone} {
		w.Store(firstRound)
	}
	s.status = kernels.StatusAt(s.at(s.mem.status, kernels.StatusBytes))
	mem.Word64(s.local.Host, s.mem.round).Store(firstRound)

	base, in, out := mem.Addr(s.local.Host), mem.Addr(inbox.Host), mem.Addr(outbox.Host)
	m, a := &s.mem, &s.abi
	a.Window = [2]uint64{in + pl.WindowOffset(index, 0, 0), in + pl.WindowOffset(index, 1, 0)}
	if pl.Shape.WindowRows < pl.Shape.MaxTokens {
		a.Overflow = in + pl.OverflowOffset(index)
	}
	a.ReturnWindow = in + pl.ReturnOffset(index, 0)
	a.Send, a.ReturnSend = out+pl.SendOffset(index, 0), out+pl.ReturnSendOffset(index, 0)
	a.PeerWindow, a.PeerReturn = base+m.peerWindow, base+m.peerReturn
	a.PeerDispatchFlag, a.PeerCombineFlag = base+m.peerDispatchFlag, base+m.peerCombineFlag
	a.DirectDispatch = in + pl.DirectDispatchOffset(index, 0, 0)
	a.DirectCombine = in + pl.DirectCombineOffset(index, 0)
	a.DispatchWords, a.CombineWords = s.words[0].Addr(0), s.words[1].Addr(0)
	a.ReturnRows = base + m.returnRows
	a.Control, a.Status = base+m.control, base+m.status
	a.Round, a.Tokens = base+m.round, base+m.tokens
	a.Home, a.HomeWeights = base+m.home, base+m.homeWeights
	a.Before, a.PickStart, a.Sources = base+m.before, base+m.pickStart, base+m.sources

	s.send = abi.DispatchSendParams{Shape: pl.Shape, Slot: s.abi}
	s.recv = abi.DispatchRecvParams{
		Shape: pl.Shape, Slot: s.abi,
		Counts: base + m.counts, Starts: base + m.starts,
		SourceRows: base + m.sourceRows, NumRows: base + m.numRows, TotalRows: base + m.totalRows,
	}
	if zeroFill {
		s.recv.ZeroFill = 1
	}
	switch pl.Shape.Layout {
	case abi.LayoutRows:
		s.recv.RowAddr, s.recv.RowTopK, s.recv.RowWeights = base+m.rowAddr, base+m.rowTopK, base+m.rowWeights
	case abi.LayoutGrouped:
		s.recv.RowExpert = base + m.rowExpert
		fallthrough
	default:
		s.recv.ExpertX, s.recv.ExpertStride = base+m.expertX, m.xStride
		if pl.Shape.ScaleBytes > 0 {
			s.recv.ExpertScales = base + m.expertScales
		}
	}
	s.csend = abi.CombineSendParams{Shape: pl.Shape, Slot: s.abi, Starts: base + m.starts}
	s.crecv = abi.CombineRecvParams{Shape: pl.Shape, Slot: s.abi}
	return s, nil
}

// at is n bytes of the slot's local memory.
func (s *slot) at(off, n uint64) []byte { return s.local.Host[off : off+n : off+n] }

// addr is the device address of b; of something valid where b is empty, since
// stages take no zero addresses.
func (s *slot) addr(b []byte) uint64 {
	if len(b) == 0 {
		return mem.Addr(s.local.Host)
	}
	return mem.Addr(b)
}

// owed is how many return rows rank q will send, as dispatch_send counted them.
func (s *slot) owed(q int) uint32 {
	return mem.Word32(s.local.Host, s.mem.returnRows+uint64(q)*4).Load()
}

// returned is how many rows rank q is sent back, as dispatch_recv counted them.
func (s *slot) returned(q int) uint64 {
	return uint64(mem.Word32(s.local.Host, s.mem.sources+uint64(q)*kernels.SourceBytes+4).Load())
}

// setPeer tells the device where rank q's memory lies in this process.
func (s *slot) setPeer(pl *routing.Plan, q int, inbox uint64) {
	me, r := int(pl.Shape.Rank), uint64(pl.Shape.NumRanks)
	put := func(off, v uint64) { mem.Word64(s.local.Host, off).Store(v) }
	for parity := range 2 {
		i := (uint64(parity)*r + uint64(q)) * 8
		put(s.mem.peerWindow+i, inbox+pl.WindowOffset(s.index, parity, me))
		put(s.mem.peerDispatchFlag+i, inbox+pl.DirectDispatchOffset(s.index, parity, me))
	}
	put(s.mem.peerReturn+uint64(q)*8, inbox+pl.ReturnOffset(s.index, me))
	put(s.mem.peerCombineFlag+uint64(q)*8, inbox+pl.DirectCombineOffset(s.index, me))
}

// free releases the slot's memory; nothing may use it any more.
func (s *slot) free() (errs []error) {
	for _, w := range s.words {
		if w != nil {
			errs = append(errs, w.Free())
		}
	}
	return append(errs, mem.Free(s.local))
}

// clearPeer takes back what setPeer said.
func (s *slot) clearPeer(pl *routing.Plan, q int) {
	r := uint64(pl.Shape.NumRanks)
	for parity := range uint64(2) {
		mem.Word64(s.local.Host, s.mem.peerWindow+(parity*r+uint64(q))*8).Store(0)
		mem.Word64(s.local.Host, s.mem.peerDispatchFlag+(parity*r+uint64(q))*8).Store(0)
	}
	mem.Word64(s.local.Host, s.mem.peerReturn+uint64(q)*8).Store(0)
	mem.Word64(s.local.Host, s.mem.peerCombineFlag+uint64(q)*8).Store(0)
}
