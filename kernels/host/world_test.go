package host

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"moerail/internal/mem"
	"moerail/internal/numeric"
	"moerail/kernels"
	"moerail/kernels/abi"
	"moerail/transport"
)

// worldConfig is a communicator of ranks in this process.
type worldConfig struct {
	ranks, experts, topK, hidden, maxTokens int
	in, wire, out                           abi.DType
	scaleBlock                              int // quantise in dispatch_send
	sideBytes                               int // opaque scales that come with X
	layout                                  abi.Layout
	atHome, unweighted, zeroFill, accum     bool
	align, capacity                         int
	windowRows                              int // 0 = maxTokens
	maxRecvRows                             int // 0 = the worst case
	maxExpertRows                           int // 0 = the worst case
	replicas                                int // 0 = 1
	direct                                  func(p, q int) bool
	idType                                  abi.IDType
	tokensFromMemory                        bool
	firstRound                              uint64
	device                                  Config
	place                                   func(e int) int // nil: scattered
}

// arena carves zeroed memory with guard bytes around every piece.
type arena struct {
	t      testing.TB
	m      transport.Memory
	used   uint64
	guards []uint64 // offsets
}

const guardBytes = 64

func newArena(t testing.TB, size uint64) *arena {
	m, err := mem.Alloc(size)
	if err != nil {
		t.Fatal(err)
	}
	return &arena{t: t, m: m}
}

func (a *arena) guard() {
	a.guards = append(a.guards, a.used)
	for i := range uint64(guardBytes) {
		a.m.Host[a.used+i] = 0xa5
	}
	a.used += guardBytes
}

func (a *arena) alloc(size uint64) uint64 {
	size = roundUp(max(size, 1), 64)
	a.guard()
	if a.used+size+guardBytes > a.m.Size {
		a.t.Fatalf("arena of %d bytes is too small", a.m.Size)
	}
	at := mem.Addr(a.m.Host) + a.used
	a.used += size
	return at
}

func (a *arena) check(t testing.TB) {
	t.Helper()
	for _, g := range a.guards {
		for i := range uint64(guardBytes) {
			if a.m.Host[g+i] != 0xa5 {
				t.Fatalf("byte %d of the guard at %d was overwritten", i, g)
			}
		}
	}
}

type rank struct {
	sh     abi.Shape
	sl     abi.Slot
	stream kernels.Stream
	send   abi.DispatchSendParams
	recv   abi.DispatchRecvParams
	back   abi.CombineSendParams
	sums   abi.CombineRecvParams
	tokens int
	ids    []int64
	w      []float32
}

type world struct {
	t     testing.TB
	c     worldConfig
	a     *arena
	r     []*rank
	rng   *rand.Rand
	round uint64
	place []int // rank of expert
	local []int
}

func bytesOf(t abi.DType) int { return int(elemBytes(t)) }

func newWorld(t testing.TB, c worldConfig, seed uint64) *world {
	t.Helper()
	w := &world{t: t, c: c, rng: rand.New(rand.NewPCG(seed, 99)), round: c.firstRound}
	if c.replicas == 0 {
		w.c.replicas = 1
	}
	if c.windowRows == 0 {
		w.c.windowRows = c.maxTokens
	}
	if c.direct == nil {
		w.c.direct = func(p, q int) bool { return false }
	}
	if c.align == 0 {
		w.c.align = 1
	}
	c = w.c
	n := make([]int, c.ranks)
	for e := range c.experts {
		q := (e*7 + 3) % c.ranks
		if c.place != nil {
			q = c.place(e)
		}
		w.place = append(w.place, q)
		w.local = append(w.local, n[q])
		n[q]++
	}
	maxLocal := 1
	for _, v := range n {
		maxLocal = max(maxLocal, v)
	}
	recvRows, exRows := c.maxRecvRows, c.maxExpertRows
	if recvRows == 0 {
		recvRows = c.ranks * c.maxTokens
	}
	if exRows == 0 {
		exRows = c.ranks*c.maxTokens*c.topK + maxLocal*c.align
	}
	if c.capacity == 0 {
		c.capacity = c.ranks * c.maxTokens * c.topK
		w.c.capacity = c.capacity
	}
	sh := abi.Shape{
		NumRanks: uint32(c.ranks), NumExperts: uint32(c.experts), MaxLocalExperts: uint32(maxLocal), TopK: uint32(c.topK),
		Hidden: uint32(c.hidden), MaxTokens: uint32(c.maxTokens), Replicas: uint32(c.replicas), Generation: 7,
		In: c.in, Wire: c.wire, Out: c.out, ScaleBlock: uint32(c.scaleBlock), Layout: c.layout,
		ExpertAlignment: uint32(c.align), ExpertCapacity: uint32(c.capacity), MaxExpertRows: uint32(exRows),
		WindowRows: uint32(c.windowRows), MaxRecvRows: uint32(recvRows),
		InRowBytes: uint32(c.hidden * bytesOf(c.in)), PayloadBytes: uint32(c.hidden * bytesOf(c.wire)),
		ScaleBytes: uint32(c.sideBytes), OutRowBytes: uint32(c.hidden * bytesOf(c.out)),
	}
	if c.in != c.wire {
		sh.ScaleBytes = uint32(4 * ((c.hidden + c.scaleBlock - 1) / c.scaleBlock))
	}
	if c.atHome {
		sh.ReduceAtHome = 1
	}
	if !c.unweighted {
		sh.ApplyWeights = 1
	}
	sh.ScaleOffset = uint32(roundUp(uint64(sh.PayloadBytes), 16))
	sh.MetaOffset = sh.ScaleOffset + uint32(roundUp(uint64(sh.ScaleBytes), 16))
	sh.RowBytes = uint32(roundUp(uint64(sh.MetaOffset)+abi.RowMetaBytes+uint64(c.topK)*abi.PickBytes, 16))
	sh.ReturnRowBytes = uint32(roundUp(uint64(sh.OutRowBytes), 16))
	sh.HeaderBytes = uint32(roundUp(abi.HeaderFixedBytes+4*uint64(maxLocal), 64))
	sh.WindowStride = uint64(sh.HeaderBytes) + uint64(min(c.windowRows, c.maxTokens))*uint64(sh.RowBytes)
	sh.SendStride = uint64(sh.HeaderBytes) + uint64(c.maxTokens)*uint64(sh.RowBytes)
	sh.ReturnStride = uint64(c.maxTokens) * uint64(sh.ReturnRowBytes)
	if c.atHome {
		sh.ReturnStride *= uint64(c.topK)
	}
	sh.ReturnSendStride = sh.ReturnStride

	R := uint64(c.ranks)
	expertRows := uint64(exRows)
	if c.layout == abi.LayoutBatched {
		expertRows = uint64(maxLocal * c.capacity)
	}
	xBytes := uint64(c.maxTokens+1) * uint64(c.hidden) * 4
	perRank := R*(2*sh.WindowStride+sh.SendStride+2*sh.ReturnStride) + uint64(recvRows+1)*uint64(sh.RowBytes+16*uint32(c.topK)+64) +
		expertRows*uint64(sh.PayloadBytes+sh.ScaleBytes+sh.OutRowBytes+128) + 3*xBytes +
		uint64(c.maxTokens+1)*uint64(c.topK*64+64+c.sideBytes) + R*uint64(maxLocal+64)*8 + uint64(c.experts+64)*16 + R*1024 + 256*64 + 1<<14
	w.a = newArena(t, perRank*R)
	dev, err := NewDevice(c.device)
	if err != nil {
		t.Fatal(err)
	}
	for p := range c.ranks {
		r := &rank{sh: sh}
		r.sh.Rank, r.sh.NumLocalExperts = uint32(p), uint32(n[p])
		el := uint64(n[p])
		al := w.a.alloc
		r.sl = abi.Slot{
			Window: [2]uint64{al(R * sh.WindowStride), al(R * sh.WindowStride)}, ReturnWindow: al(R * sh.ReturnStride),
			Send: al(R * sh.SendStride), ReturnSend: al(R * sh.ReturnSendStride),
			PeerWindow: al(16 * R), PeerReturn: al(8 * R), PeerDispatchFlag: al(16 * R), PeerCombineFlag: al(8 * R),
			DirectDispatch: al(128 * R), DirectCombine: al(64 * R), DispatchWords: al(8 * R), ReturnRows: al(4 * R), CombineWords: al(8 * R),
			Control: al(7 * 64), Status: al(256), Round: al(8), Tokens: al(4),
			Home: al(uint64(c.maxTokens * (1 + 2*c.topK) * 4)), HomeWeights: al(uint64(c.maxTokens * c.topK * 4)),
			Before: al((R + 1) * el * 4), PickStart: al(uint64(recvRows+1) * 4), Sources: al(R * 16),
			ExpertRank: al(4 * uint64(c.experts)), ExpertLocal: al(4 * uint64(c.experts)),
		}
		if c.windowRows < c.maxTokens {
			r.sl.Overflow = al(uint64(recvRows) * uint64(sh.RowBytes))
		}
		for e := range c.experts {
			view[uint32](r.sl.ExpertRank, c.experts)[e] = uint32(w.place[e])
			view[uint32](r.sl.ExpertLocal, c.experts)[e] = uint32(w.local[e])
		}
		word(r.sl.Round).Store(c.firstRound)
		control(r.sl.Control, ctlDispatchTxDone).Store(c.firstRound)
		control(r.sl.Control, ctlCombineTxDone).Store(c.firstRound)
		xs := uint64(sh.InRowBytes) + uint64(bytesOf(c.in)) // rows need not be packed
		os := uint64(sh.OutRowBytes) + uint64(bytesOf(c.out))
		r.send = abi.DispatchSendParams{Shape: r.sh, Slot: r.sl, X: al(uint64(c.maxTokens) * xs), XStride: xs,
			IDs: al(uint64(c.maxTokens * c.topK * 8)), Weights: al(uint64(c.maxTokens * c.topK * 4)), IDType: c.idType}
		if c.sideBytes > 0 {
			r.send.Scales, r.send.ScaleStride = al(uint64(c.maxTokens*c.sideBytes)), uint64(c.sideBytes)
		}
		if c.tokensFromMemory {
			r.send.NumTokensPtr, r.send.NumTokens = al(4), 0xffffffff
		}
		r.recv = abi.DispatchRecvParams{Shape: r.sh, Slot: r.sl, Counts: al(4 * el), Starts: al(4 * (el + 1)), SourceRows: al(4 * R),
			NumRows: al(8), TotalRows: al(8 * el)}
		if c.layout == abi.LayoutRows {
			r.recv.RowAddr, r.recv.RowTopK, r.recv.RowWeights = al(8*uint64(recvRows)), al(4*uint64(recvRows*c.topK)), al(4*uint64(recvRows*c.topK))
		} else {
			r.recv.ExpertStride = roundUp(uint64(sh.PayloadBytes), 16)
			r.recv.ExpertX = al(expertRows * r.recv.ExpertStride)
			if sh.ScaleBytes > 0 {
				r.recv.ExpertScales = al(expertRows * uint64(sh.ScaleBytes))
			}
			r.recv.RowExpert = al(4 * uint64(exRows))
		}
		if c.zeroFill {
			r.recv.ZeroFill = 1
		}
		r.back = abi.CombineSendParams{Shape: r.sh, Slot: r.sl, Y: al(expertRows * os), YStride: os, Starts: r.recv.Starts}
		r.sums = abi.CombineRecvParams{Shape: r.sh, Slot: r.sl, Out: al(uint64(c.maxTokens) * os), OutStride: os}
		if c.accum {
			r.sums.Accumulate = 1
		}
		if r.stream, err = dev.NewStream(nil); err != nil {
			t.Fatal(err)
		}
		w.r = append(w.r, r)
	}
	w.a.guard()
	for p, r := range w.r {
		for q, o := range w.r {
			if p == q || !c.direct(p, q) {
				continue
			}
			if c.windowRows >= c.maxTokens {
				for par := range 2 {
					view[uint64](r.sl.PeerWindow, 2*c.ranks)[par*c.ranks+q] = o.sl.Window[par] + uint64(p)*sh.WindowStride
					view[uint64](r.sl.PeerDispatchFlag, 2*c.ranks)[par*c.ranks+q] = o.sl.DirectDispatch + 64*uint64(par*c.ranks+p)
				}
			}
			view[uint64](r.sl.PeerReturn, c.ranks)[q] = o.sl.ReturnWindow + uint64(p)*sh.ReturnStride
			view[uint64](r.sl.PeerCombineFlag, c.ranks)[q] = o.sl.DirectCombine + 64*uint64(p)
		}
	}
	t.Cleanup(w.close)
	return w
}

func (w *world) close() {
	for _, r := range w.r {
		r.stream.Close()
	}
	if w.a.m.Host != nil {
		w.a.check(w.t)
		mem.Free(w.a.m)
		w.a.m.Host = nil
	}
}

// put and get are one element of a type at an address.
func put(t abi.DType, addr uint64, f float32) {
	b := view[byte](addr, bytesOf(t))
	switch t {
	case abi.FP32:
		binary.LittleEndian.PutUint32(b, math.Float32bits(f))
	case abi.BF16:
		binary.LittleEndian.PutUint16(b, numeric.Float32ToBF16(f))
	case abi.FP16:
		binary.LittleEndian.PutUint16(b, numeric.Float32ToFP16(f))
	default:
		b[0] = numeric.Float32ToE4M3(f)
	}
}

func get(t abi.DType, addr uint64) float32 {
	b := view[byte](addr, bytesOf(t))
	switch t {
	case abi.FP32:
		return math.Float32frombits(binary.LittleEndian.Uint32(b))
	case abi.BF16:
		return numeric.BF16ToFloat32(binary.LittleEndian.Uint16(b))
	case abi.FP16:
		return numeric.FP16ToFloat32(binary.LittleEndian.Uint16(b))
	}
	return numeric.E4M3ToFloat32(b[0])
}

// round1 is f rounded once to t.
func round1(t abi.DType, f float32) float32 {
	switch t {
	case abi.BF16:
		return numeric.BF16ToFloat32(numeric.Float32ToBF16(f))
	case abi.FP16:
		return numeric.FP16ToFloat32(numeric.Float32ToFP16(f))
	}
	return f
}

// setTokens gives rank p n tokens with those ids (row-major, topK each), random
// weights and payload.
func (w *world) setTokens(p, n int, ids []int64) {
	r, c := w.r[p], &w.c
	r.tokens, r.ids = n, ids
	r.send.NumTokens = uint32(n)
	if c.tokensFromMemory {
		r.send.NumTokens = 0xffffffff
		word32(r.send.NumTokensPtr).Store(uint32(n))
	}
	r.w = make([]float32, n*c.topK)
	if n > c.maxTokens {
		return
	}
	for i, id := range ids {
		r.w[i] = w.rng.Float32()*2 - 0.5
		view[float32](r.send.Weights, len(ids))[i] = r.w[i]
		if c.unweighted {
			r.w[i] = 1
		}
		switch c.idType {
		case abi.IDInt64:
			view[int64](r.send.IDs, len(ids))[i] = id
		default:
			view[int32](r.send.IDs, len(ids))[i] = int32(id)
		}
	}
	for t := range n {
		for i := range c.hidden {
			put(c.in, r.send.X+uint64(t)*r.send.XStride+uint64(i*bytesOf(c.in)), float32(w.rng.NormFloat64()*3))
		}
		for i := range c.sideBytes {
			view[byte](r.send.Scales, (t+1)*c.sideBytes)[t*c.sideBytes+i] = byte(w.rng.Uint32())
		}
	}
}

// randomTokens gives every rank a random number of tokens and random ids, some -1,
// some twice; with replicas every rank of a group gets the same.
func (w *world) randomTokens() {
	c := &w.c
	for g := 0; g < c.ranks; g += c.replicas {
		n := w.rng.IntN(c.maxTokens + 1)
		switch w.rng.IntN(6) {
		case 0:
			n = 0
		case 1:
			n = c.maxTokens
		}
		ids := make([]int64, n*c.topK)
		for i := range ids {
			ids[i] = int64(w.rng.IntN(c.experts))
			if w.rng.IntN(8) == 0 {
				ids[i] = -1
			}
			if i%c.topK > 0 && w.rng.IntN(8) == 0 {
				ids[i] = ids[i-1]
			}
		}
		w.setTokens(g, n, ids)
		for q := g + 1; q < g+c.replicas; q++ {
			w.copyTokens(q, g)
		}
	}
}

func (w *world) copyTokens(q, g int) {
	a, b := w.r[g], w.r[q]
	b.tokens, b.ids, b.w = a.tokens, a.ids, a.w
	b.send.NumTokens = a.send.NumTokens
	if w.c.tokensFromMemory {
		word32(b.send.NumTokensPtr).Store(uint32(a.tokens))
	}
	k := a.tokens * w.c.topK
	copy(view[byte](b.send.IDs, 8*k), view[byte](a.send.IDs, 8*k))
	copy(view[byte](b.send.Weights, 4*k), view[byte](a.send.Weights, 4*k))
	n := a.tokens * int(a.send.XStride)
	copy(view[byte](b.send.X, n), view[byte](a.send.X, n))
	n = a.tokens * w.c.sideBytes
	copy(view[byte](b.send.Scales, n), view[byte](a.send.Scales, n))
}

func (r *rank) status() abi.Status { return *statusAt(r.sl.Status) }
