package routing

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"moerail/kernels/abi"
)

// decode is a configuration that every test may change a field of.
func decode() Params {
	return Params{
		NumRanks: 8, NumExperts: 64, TopK: 8, Hidden: 2048, MaxTokens: 128,
		In: abi.BF16, Wire: abi.BF16, Out: abi.BF16, ExpertAlignment: 1,
		Replicas: 1, Slots: 2, NumNICs: 2,
	}
}

func plan(t testing.TB, p Params) *Plan {
	t.Helper()
	pl, err := NewPlan(p)
	if err != nil {
		t.Fatal(err)
	}
	return pl
}

func faults(t testing.TB, p Params) []string {
	t.Helper()
	_, err := NewPlan(p)
	if err == nil {
		return nil
	}
	var ce *ConfigError
	if !errors.As(err, &ce) || len(ce.Faults) == 0 {
		t.Fatalf("%T %v, want a *ConfigError with faults", err, err)
	}
	return ce.Faults
}

// big numbers, computed by nobody's rules but the wire format's.

func num(v uint64) *big.Int      { return new(big.Int).SetUint64(v) }
func mul(a, b *big.Int) *big.Int { return new(big.Int).Mul(a, b) }
func add(a *big.Int, n ...*big.Int) *big.Int {
	s := new(big.Int).Set(a)
	for _, b := range n {
		s.Add(s, b)
	}
	return s
}
func up(n *big.Int, to int64) *big.Int {
	q, m := new(big.Int).DivMod(n, big.NewInt(to), new(big.Int))
	if m.Sign() > 0 {
		q.Add(q, big.NewInt(1))
	}
	return q.Mul(q, big.NewInt(to))
}
func smaller(a, b *big.Int) *big.Int {
	if a.Cmp(b) < 0 {
		return a
	}
	return b
}

// sizes are what a plan must come to, in unlimited arithmetic.
type sizes struct {
	row, header, returnRow      *big.Int
	window, send, back          *big.Int // one block each
	recv, expertRows            *big.Int
	picks                       *big.Int
	inbox, outbox, expertBuffer *big.Int
}

func independent(p Params, mostLocal int) sizes {
	n := func(v int) *big.Int { return big.NewInt(int64(v)) }
	elem := map[abi.DType]int{abi.FP32: 4, abi.BF16: 2, abi.FP16: 2, abi.FP8: 1}
	var z sizes
	scale := n(p.ScaleBytes)
	if p.In != abi.FP8 && p.Wire == abi.FP8 {
		scale = mul(new(big.Int).Div(up(n(p.Hidden), int64(p.ScaleBlock)), n(p.ScaleBlock)), n(4))
	}
	payload := mul(n(p.Hidden), n(elem[p.Wire]))
	result := mul(n(p.Hidden), n(elem[p.Out]))
	z.row = add(up(payload, 16), up(scale, 16), up(add(n(8), mul(n(12), n(p.TopK))), 16))
	z.header = up(add(n(24), mul(n(4), n(mostLocal))), 64)
	z.returnRow = up(result, 16)
	windowRows := n(p.WindowRows)
	if p.WindowRows == 0 {
		windowRows = n(p.MaxTokens)
	}
	z.window = up(add(z.header, mul(windowRows, z.row)), 64)
	z.send = up(add(z.header, mul(n(p.MaxTokens), z.row)), 64)
	returned := n(p.MaxTokens)
	if p.ReduceAtHome {
		returned = mul(returned, n(p.TopK))
	}
	z.back = up(mul(returned, z.returnRow), 64)
	z.picks = mul(mul(n(p.NumRanks), n(p.MaxTokens)), n(p.TopK))
	z.recv = mul(n(p.NumRanks/p.Replicas), n(p.MaxTokens))
	if p.MaxRecvRows > 0 {
		z.recv = smaller(z.recv, n(p.MaxRecvRows))
	}
	rows := func(experts int) *big.Int {
		if p.Layout == abi.LayoutBatched {
			c := n(p.ExpertCapacity)
			if p.ExpertCapacity == 0 {
				c = mul(z.recv, n(p.TopK))
			}
			return mul(c, n(max(experts, 1)))
		}
		v := add(mul(z.recv, n(p.TopK)), mul(n(experts), n(p.ExpertAlignment-1)))
		if p.MaxExpertRows > 0 {
			v = smaller(v, n(p.MaxExpertRows))
		}
		return v
	}
	z.expertRows = rows(mostLocal)
	r := n(p.NumRanks)
	in := mul(n(2), mul(r, z.window))
	if p.WindowRows > 0 && p.WindowRows < p.MaxTokens {
		in = add(in, up(mul(z.recv, z.row), 64))
	}
	in = add(in, mul(r, z.back), mul(n(3*64), r))
	z.inbox = mul(n(p.Slots), up(in, 4096))
	z.outbox = mul(n(p.Slots), up(mul(r, add(z.send, z.back)), 4096))
	expertRow := result
	if p.Layout != abi.LayoutRows {
		expertRow = add(result, payload, scale)
	}
	z.expertBuffer = mul(n(p.Slots), mul(z.expertRows, expertRow))
	return z
}

// tooBig says whether a configuration whose fields are each within limits must be
// refused.
func (z *sizes) tooBig() bool {
	limit := num(MaxIndexRows)
	return z.recv.Cmp(limit) >= 0 || z.expertRows.Cmp(limit) >= 0 ||
		z.picks.Cmp(num(math.MaxUint32)) > 0 ||
		add(z.inbox, z.outbox, z.expertBuffer).Cmp(num(MaxArenaBytes)) > 0
}

type area struct {
	name      string
	at, bytes uint64
}

// checkAreas wants areas inside [0, size), aligned, and apart.
func checkAreas(t testing.TB, what string, areas []area, size uint64) {
	t.Helper()
	slices.SortFunc(areas, func(a, b area) int {
		if a.at < b.at {
			return -1
		}
		return 1
	})
	var end uint64
	last := "the start"
	for _, a := range areas {
		if a.at%64 != 0 {
			t.Fatalf("%s: %s at %d is not a multiple of 64", what, a.name, a.at)
		}
		if a.at < end {
			t.Fatalf("%s: %s at %d overlaps %s, which ends at %d", what, a.name, a.at, last, end)
		}
		end, last = a.at+a.bytes, a.name
	}
	if end > size {
		t.Fatalf("%s: %s ends at %d of %d", what, last, end, size)
	}
}

// some are all ranks, or of many the first, the last and two between.
func some(n int) []int {
	if n <= 6 {
		out := make([]int, n)
		for i := range out {
			out[i] = i
		}
		return out
	}
	return []int{0, 1, n / 2, n - 2, n - 1}
}

func checkPlan(t testing.TB, p Params, pl *Plan) {
	t.Helper()
	s := &pl.Shape
	most := 0
	for _, l := range pl.LocalExperts {
		most = max(most, len(l))
	}
	z := independent(p, most)
	for _, c := range []struct {
		name string
		got  uint64
		want *big.Int
	}{
		{"RowBytes", uint64(s.RowBytes), z.row}, {"HeaderBytes", uint64(s.HeaderBytes), z.header},
		{"ReturnRowBytes", uint64(s.ReturnRowBytes), z.returnRow}, {"WindowStride", s.WindowStride, z.window},
		{"SendStride", s.SendStride, z.send}, {"ReturnStride", s.ReturnStride, z.back},
		{"ReturnSendStride", s.ReturnSendStride, z.back}, {"MaxRecvRows", uint64(s.MaxRecvRows), z.recv},
		{"MaxExpertRows", uint64(s.MaxExpertRows), z.expertRows},
		{"Inbox", pl.Inbox.Bytes, z.inbox}, {"Outbox", pl.Outbox.Bytes, z.outbox},
	} {
		if num(c.got).Cmp(c.want) != 0 {
			t.Fatalf("%s is %d, want %d", c.name, c.got, c.want)
		}
	}
	if z.tooBig() {
		t.Fatalf("accepted: %d rows received, %d expert rows, %d + %d + %d bytes", z.recv, z.expertRows, z.inbox, z.outbox, z.expertBuffer)
	}
	if uint64(s.ScaleOffset) < uint64(s.PayloadBytes) || uint64(s.MetaOffset) < uint64(s.ScaleOffset)+uint64(s.ScaleBytes) ||
		uint64(s.RowBytes) < uint64(s.MetaOffset)+abi.RowMetaBytes+uint64(p.TopK)*abi.PickBytes ||
		s.ScaleOffset%16 != 0 || s.MetaOffset%16 != 0 || s.RowBytes%16 != 0 || s.HeaderBytes%64 != 0 {
		t.Fatalf("row layout: payload %d, scales %d at %d, meta at %d of %d", s.PayloadBytes, s.ScaleBytes, s.ScaleOffset, s.MetaOffset, s.RowBytes)
	}
	small := p.WindowRows > 0 && p.WindowRows < p.MaxTokens
	if want := small || p.MaxRecvRows > 0 && p.MaxRecvRows < p.NumRanks/p.Replicas*p.MaxTokens; pl.Exact != want {
		t.Fatalf("Exact is %v with %d of %d rows in a window, %d received", pl.Exact, p.WindowRows, p.MaxTokens, p.MaxRecvRows)
	}
	var in, out []area
	for _, slot := range some(p.Slots) {
		for _, q := range some(p.NumRanks) {
			for parity := range 2 {
				in = append(in,
					area{fmt.Sprint("window ", slot, parity, q), pl.WindowOffset(slot, parity, q), pl.BlockBytes(s.WindowRows)},
					area{fmt.Sprint("dispatch flag ", slot, parity, q), pl.DirectDispatchOffset(slot, parity, q), FlagStride})
			}
			in = append(in,
				area{fmt.Sprint("return window ", slot, q), pl.ReturnOffset(slot, q), s.ReturnStride},
				area{fmt.Sprint("combine flag ", slot, q), pl.DirectCombineOffset(slot, q), FlagStride})
			out = append(out,
				area{fmt.Sprint("send ", slot, q), pl.SendOffset(slot, q), pl.BlockBytes(s.MaxTokens)},
				area{fmt.Sprint("return send ", slot, q), pl.ReturnSendOffset(slot, q), s.ReturnSendStride})
		}
		if small {
			in = append(in, area{fmt.Sprint("overflow ", slot), pl.OverflowOffset(slot), uint64(s.MaxRecvRows) * uint64(s.RowBytes)})
		}
	}
	checkAreas(t, "inbox", in, pl.Inbox.Bytes)
	checkAreas(t, "outbox", out, pl.Outbox.Bytes)
	for e, r := range pl.ExpertRank {
		if pl.LocalExperts[r][pl.ExpertLocal[e]] != int32(e) {
			t.Fatalf("expert %d is %d on rank %d, where %v are", e, pl.ExpertLocal[e], r, pl.LocalExperts[r])
		}
	}
}

// FuzzNewPlan: any parameters give an error that says what is wrong, or a plan in
// which nothing overlaps. The two must not depend on the rank.
func FuzzNewPlan(f *testing.F) {
	addSeed := func(p Params) {
		f.Add(p.Rank, p.NumRanks, p.NumExperts, p.TopK, p.Hidden, p.MaxTokens, uint32(p.In), uint32(p.Wire), uint32(p.Out), uint32(p.Layout),
			p.ScaleBlock, p.ScaleBytes, p.ExpertAlignment, p.ExpertCapacity, p.MaxExpertRows, false, p.Replicas, p.Slots, p.NumNICs, p.WindowRows, p.MaxRecvRows, p.ShardBytes)
	}
	addSeed(decode())
	p := decode()
	p.NumRanks, p.MaxTokens, p.Hidden, p.WindowRows, p.MaxRecvRows = 256, 8192, 16384, 256, 1<<17
	addSeed(p)
	p.In, p.Wire, p.ScaleBlock, p.Layout = abi.FP32, abi.FP8, 128, abi.LayoutRows
	addSeed(p)
	p = decode()
	p.NumRanks, p.NumExperts, p.TopK, p.Hidden, p.MaxTokens, p.Slots = MaxRanks, MaxExperts, MaxTopK, MaxHidden, MaxTokens, MaxSlots
	addSeed(p)
	p.NumRanks, p.Layout, p.ExpertCapacity = 1, abi.LayoutBatched, MaxIndexRows-1
	addSeed(p)
	p = decode()
	p.NumRanks, p.MaxTokens, p.Hidden, p.Replicas, p.ScaleBytes = math.MaxInt, math.MinInt, -1, 3, 1<<40
	addSeed(p)
	f.Fuzz(func(t *testing.T, rank, ranks, experts, topK, hidden, tokens int, in, wire, out, layout uint32, scaleBlock, scaleBytes, align, capacity, expertRows int,
		home bool, replicas, slots, nics, windowRows, recvRows, shardBytes int) {
		p := Params{Rank: rank, NumRanks: ranks, NumExperts: experts, TopK: topK, Hidden: hidden, MaxTokens: tokens,
			In: abi.DType(in), Wire: abi.DType(wire), Out: abi.DType(out), Layout: abi.Layout(layout),
			ScaleBlock: scaleBlock, ScaleBytes: scaleBytes, ExpertAlignment: align, ExpertCapacity: capacity, MaxExpertRows: expertRows,
			ReduceAtHome: home, Replicas: replicas, Slots: slots, NumNICs: nics, WindowRows: windowRows, MaxRecvRows: recvRows, ShardBytes: shardBytes}
		checkAny(t, p)
	})
}

func checkAny(t testing.TB, p Params) {
	t.Helper()
	list := faults(t, p)
	if len(list) > maxFaults+1 {
		t.Fatalf("%d faults", len(list))
	}
	for _, s := range list {
		checkFault(t, s)
	}
	for _, rank := range []int{0, p.NumRanks / 2, p.NumRanks - 1} {
		if p.Rank < 0 || p.Rank >= p.NumRanks || p.NumRanks > MaxRanks {
			break
		}
		q := p
		q.Rank = rank
		pl, err := NewPlan(q)
		if (err == nil) != (len(list) == 0) || err != nil && !slices.Equal(faults(t, q), list) {
			t.Fatalf("rank %d: %v; rank %d: %v", p.Rank, list, rank, err)
		}
		if err == nil {
			checkPlan(t, q, pl)
		}
	}
}

// checkFault wants a fault to say the value and the limit.
func checkFault(t testing.TB, s string) {
	t.Helper()
	if !strings.Contains(s, "want") && !strings.Contains(s, "limit") && !strings.HasPrefix(s, "and ") || !strings.ContainsAny(s, "0123456789") {
		t.Errorf("fault %q names no value and limit", s)
	}
}

// randomParams draws parameters of which about half make a plan; sizes are spread
// over their orders of magnitude.
func randomParams(r *rand.Rand) Params {
	upTo := func(n int) int { return 1 + int(math.Pow(float64(n), r.Float64())) - 1 }
	p := Params{
		NumRanks: upTo(MaxRanks), NumExperts: upTo(4096), TopK: upTo(MaxTopK), Hidden: upTo(MaxHidden), MaxTokens: upTo(MaxTokens),
		ExpertAlignment: upTo(MaxAlignment), Slots: upTo(MaxSlots), NumNICs: 1 + r.IntN(MaxNICs), Replicas: 1,
		Layout: abi.Layout(r.IntN(3)), ReduceAtHome: r.IntN(2) == 0,
		In: abi.DType(r.IntN(4)), Out: abi.DType(r.IntN(3)), ShardBytes: r.IntN(3) * upTo(1<<20),
	}
	p.Wire = p.In
	if p.In != abi.FP8 && r.IntN(3) == 0 {
		p.Wire, p.ScaleBlock = abi.FP8, upTo(p.Hidden)
	} else if r.IntN(2) == 0 {
		p.ScaleBytes = upTo(MaxSideBytes)
	}
	if r.IntN(2) == 0 {
		p.WindowRows = upTo(p.MaxTokens)
	}
	if r.IntN(2) == 0 {
		p.MaxRecvRows = upTo(1 << 20)
	}
	if r.IntN(2) == 0 {
		p.ExpertCapacity, p.MaxExpertRows = upTo(1<<16), upTo(1<<24)
	}
	for d := 2; d < 9; d++ {
		if p.NumRanks%d == 0 && r.IntN(3) == 0 {
			p.Replicas = d
		}
	}
	p.Rank = r.IntN(p.NumRanks)
	return p
}

func TestPlansOfRandomParams(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	accepted := 0
	for range 4000 {
		p := randomParams(r)
		checkAny(t, p)
		place := ConsecutivePlacement(p.NumRanks, p.NumExperts)
		z := independent(p, len(place[0]))
		_, err := NewPlan(p)
		if (err != nil) != z.tooBig() {
			t.Fatalf("%+v: %v, but too big is %v", p, err, z.tooBig())
		}
		if err == nil {
			accepted++
		}
	}
	if accepted < 1000 || accepted > 3900 {
		t.Fatalf("%d of 4000 accepted: the draw tells little", accepted)
	}
}

func TestPrefillOfManyRanks(t *testing.T) {
	p := decode()
	p.NumRanks, p.NumExperts, p.Hidden, p.MaxTokens = 256, 256, 16384, 8192
	for _, window := range []int{0, 1, 64, 8191, 8192} {
		for _, rank := range []int{0, 255} {
			p.WindowRows, p.Rank = window, rank
			checkPlan(t, p, plan(t, p))
		}
	}
	// 25 times 69 GB are described, and next to nothing of them is touched.
	if n := testing.AllocsPerRun(5, func() { _, _ = NewPlan(p) }); n > 2000 {
		t.Errorf("%v allocations", n)
	}
}

func TestLimits(t *testing.T) {
	for _, c := range []struct {
		name   string
		set    func(p *Params, v int)
		lo, hi int
	}{
		{"ranks", func(p *Params, v int) { p.NumRanks = v }, 1, MaxRanks},
		{"rank", func(p *Params, v int) { p.Rank = v }, 0, 7},
		{"experts", func(p *Params, v int) { p.NumExperts = v }, 1, MaxExperts},
		{"top-k", func(p *Params, v int) { p.TopK = v }, 1, MaxTopK},
		{"hidden", func(p *Params, v int) { p.Hidden = v }, 1, MaxHidden},
		{"max tokens", func(p *Params, v int) { p.MaxTokens, p.NumRanks, p.TopK, p.Hidden = v, 1, 1, 16 }, 1, MaxTokens},
		{"scale bytes", func(p *Params, v int) { p.ScaleBytes = v }, 0, MaxSideBytes},
		{"expert alignment", func(p *Params, v int) { p.ExpertAlignment = v }, 1, MaxAlignment},
		{"slots", func(p *Params, v int) { p.Slots = v }, 1, MaxSlots},
		{"NICs", func(p *Params, v int) { p.NumNICs = v }, 1, MaxNICs},
		{"window rows", func(p *Params, v int) { p.WindowRows = v }, 0, 128},
		{"max received rows", func(p *Params, v int) { p.MaxRecvRows = v }, 0, MaxIndexRows - 1},
		{"expert capacity", func(p *Params, v int) { p.ExpertCapacity = v }, 0, MaxIndexRows - 1},
		{"max expert rows", func(p *Params, v int) { p.MaxExpertRows = v }, 0, MaxIndexRows - 1},
		{"shard bytes", func(p *Params, v int) { p.ShardBytes = v }, 0, MaxShardBytes},
		{"scale block", func(p *Params, v int) { p.ScaleBlock, p.Wire = v, abi.FP8 }, 1, MaxHidden},
		{"replicas", func(p *Params, v int) { p.Replicas, p.NumRanks = v, max(v, 1) }, 1, MaxRanks},
		{"dtype", func(p *Params, v int) { p.Wire, p.In = abi.DType(v), abi.DType(v) }, 0, int(abi.FP8)},
		{"out dtype", func(p *Params, v int) { p.Out = abi.DType(v) }, 0, int(abi.FP16)},
		{"layout", func(p *Params, v int) { p.Layout = abi.Layout(v) }, 0, int(abi.LayoutRows)},
	} {
		for _, v := range []int{c.lo, c.hi} {
			p := decode()
			c.set(&p, v)
			if list := faults(t, p); list != nil {
				t.Errorf("%s %d: %q", c.name, v, list)
			}
		}
		for _, v := range []int{c.lo - 1, c.hi + 1} {
			p := decode()
			c.set(&p, v)
			name := func(s string) bool {
				return strings.HasPrefix(s, c.name+" is "+shown(c.name, v)) && strings.Contains(s, "want")
			}
			if c.name == "scale block" && v == 0 {
				name = func(s string) bool { return strings.Contains(s, "with a scale block") }
			}
			if list := faults(t, p); !slices.ContainsFunc(list, name) {
				t.Errorf("%s %d: %q", c.name, v, list)
			}
		}
	}
}

// shown is how an error writes a value: enumerations are unsigned.
func shown(name string, v int) string {
	if v < 0 && (strings.HasSuffix(name, "dtype") || name == "layout") {
		return fmt.Sprint(uint32(v))
	}
	return fmt.Sprint(v)
}

func TestLimitsOfProducts(t *testing.T) {
	for _, c := range []struct {
		name string
		p    func(p *Params, over int) // over 0 is the largest that is right, 1 the next
		want string
	}{
		{"received rows", func(p *Params, over int) {
			p.NumRanks, p.MaxTokens, p.TopK, p.Hidden = 512, MaxTokens-1+over, 1, 1
			p.MaxExpertRows = 1
		},
			"max received rows comes to 2147483648, want at most 2147483647"},
		{"picks", func(p *Params, over int) {
			p.NumRanks, p.MaxTokens, p.TopK, p.Hidden = 256, 1<<16-1+over, 256, 1
			p.MaxRecvRows, p.MaxExpertRows, p.WindowRows = 1000, 1000, 1
		}, "is 4294967296 picks, want at most 4294967295"},
		{"expert rows", func(p *Params, over int) {
			p.NumRanks, p.NumExperts, p.TopK, p.Hidden, p.Slots = 1, 1, 1, 1, 1
			p.MaxTokens = 1 << 22
			p.NumRanks, p.MaxRecvRows = 1024, MaxIndexRows-1
			p.ExpertAlignment, p.WindowRows, p.MaxTokens = 1+over, 1, 1<<21
		}, "max expert rows comes to 2147483648, want at most 2147483647"},
		{"capacity", func(p *Params, over int) {
			p.Layout, p.Hidden, p.NumRanks, p.NumExperts, p.ExpertCapacity = abi.LayoutBatched, 1, 1, 2, 1<<30-1+over
		}, "expert capacity comes to 1073741824, with 2 experts on a rank 2147483648 expert rows, want at most 2147483647"},
	} {
		p := decode()
		c.p(&p, 0)
		if list := faults(t, p); list != nil {
			t.Errorf("%s at the limit: %q", c.name, list)
		}
		p = decode()
		c.p(&p, 1)
		if list := faults(t, p); !slices.ContainsFunc(list, func(s string) bool { return strings.Contains(s, c.want) }) {
			t.Errorf("%s beyond the limit: %q, want %q", c.name, list, c.want)
		}
	}
	p := decode()
	p.Hidden, p.MaxTokens, p.NumRanks, p.Slots = MaxHidden, 1<<20, 64, 4
	list := faults(t, p)
	if len(list) != 1 || !strings.Contains(list[0], fmt.Sprint("the limit of ", uint64(MaxArenaBytes), " bytes")) || !strings.Contains(list[0], "lower max tokens") {
		t.Errorf("address space: %q", list)
	}
}

// TestRanksAgree: with experts spread unevenly, the rank that has fewest must
// refuse what the rank that has most refuses.
func TestRanksAgree(t *testing.T) {
	p := decode()
	p.NumRanks, p.NumExperts, p.Layout, p.ExpertCapacity, p.Hidden = 2, 3, abi.LayoutBatched, 1<<30, 1
	p.Placement = [][]int32{{0, 1, 2}, {}}
	first := faults(t, p)
	p.Rank = 1
	if second := faults(t, p); len(first) != 1 || !slices.Equal(first, second) {
		t.Errorf("rank 0: %q, rank 1: %q", first, second)
	}
}

func TestEveryFaultAtOnce(t *testing.T) {
	p := Params{Rank: 9, NumRanks: 4, NumExperts: 3, In: 9, Wire: 8, Out: 7, Layout: 6, Replicas: 3,
		Placement: [][]int32{{0, 0}, {5}, {-1}, nil}}
	list := faults(t, p)
	for _, want := range []string{
		"rank is 9, want 0 to 3", "top-k is 0, want 1 to 256", "hidden is 0, want 1 to 131072", "max tokens is 0, want 1 to 4194304",
		"expert alignment is 0", "slots is 0", "NICs is 0", "replicas is 3, want a divisor of 4 ranks",
		"in dtype is 9", "dtype is 8", "out dtype is 7", "layout is 6",
		"placement puts expert 0 on rank 0 and on rank 0", "placement rank 1 names expert 5, want 0 to 2",
		"placement rank 2 names expert -1, want 0 to 2", "placement leaves out expert 1", "placement leaves out expert 2",
	} {
		if !slices.ContainsFunc(list, func(s string) bool { return strings.HasPrefix(s, want) }) {
			t.Errorf("no fault %q in %q", want, list)
		}
	}
	for _, s := range list {
		checkFault(t, s)
	}
}

func TestManyFaultsAreCounted(t *testing.T) {
	p := decode()
	p.NumExperts = 1000
	p.Placement = make([][]int32, p.NumRanks)
	list := faults(t, p)
	if len(list) != maxFaults+1 || list[maxFaults] != "and 936 more" {
		t.Errorf("%d faults, last %q", len(list), list[len(list)-1])
	}
	p.Placement = make([][]int32, 3)
	if list := faults(t, p); len(list) != 1 || list[0] != "placement has 3 ranks, want 8" {
		t.Errorf("%q", list)
	}
	var f Faults
	if f.Err() != nil {
		t.Error("an error without a fault")
	}
}

func TestTypes(t *testing.T) {
	for _, c := range []struct {
		in, wire             abi.DType
		block, side          int
		want                 string
		scaleBytes, rowBytes uint32
	}{
		{abi.BF16, abi.BF16, 0, 0, "", 0, 200 + 8 + 112},
		{abi.FP32, abi.FP32, 0, 5, "", 5, 400 + 16 + 112},
		{abi.FP8, abi.FP8, 0, 4, "", 4, 112 + 16 + 112},
		{abi.FP8, abi.FP8, 32, 16, "", 16, 112 + 16 + 112}, // the caller's scales; nothing to quantise
		{abi.BF16, abi.FP8, 32, 0, "", 16, 112 + 16 + 112},
		{abi.FP16, abi.FP8, 33, 0, "", 16, 112 + 16 + 112},
		{abi.FP32, abi.FP8, 34, 0, "", 12, 112 + 16 + 112},
		{abi.FP32, abi.FP8, 1, 0, "", 400, 112 + 400 + 112},
		{abi.BF16, abi.FP8, 0, 0, "in dtype is bf16, want fp8", 0, 0},
		{abi.FP32, abi.BF16, 0, 0, "in dtype is fp32, want bf16", 0, 0},
		{abi.FP8, abi.BF16, 0, 0, "in dtype is fp8, want bf16", 0, 0},
		{abi.BF16, abi.BF16, 32, 0, "scale block is 32, want 0 with dtype bf16", 0, 0},
		{abi.FP32, abi.FP8, 32, 1, "scale bytes is 1, want 0 with scale block 32", 0, 0},
	} {
		p := decode()
		p.Hidden, p.In, p.Wire, p.ScaleBlock, p.ScaleBytes = 100, c.in, c.wire, c.block, c.side
		if c.want != "" {
			if list := faults(t, p); len(list) != 1 || !strings.HasPrefix(list[0], c.want) {
				t.Errorf("%+v: %q", c, list)
			}
			continue
		}
		pl := plan(t, p)
		if s := pl.Shape; s.ScaleBytes != c.scaleBytes || s.RowBytes != c.rowBytes || (s.ScaleBlock > 0) != (c.in != c.wire) {
			t.Errorf("%+v: scales %d, block %d, row %d", c, s.ScaleBytes, s.ScaleBlock, s.RowBytes)
		}
	}
}

func TestLargestRow(t *testing.T) {
	p := decode()
	p.NumRanks, p.NumExperts, p.TopK, p.Hidden, p.MaxTokens = 1, MaxExperts, MaxTopK, MaxHidden, 1
	p.In, p.Wire, p.ScaleBytes = abi.FP32, abi.FP32, MaxSideBytes
	pl := plan(t, p)
	checkPlan(t, p, pl)
	if s := pl.Shape; s.RowBytes != 4*MaxHidden+MaxSideBytes+3088 || s.HeaderBytes != 262208 {
		t.Errorf("row %d, header %d", s.RowBytes, s.HeaderBytes)
	}
	p.Wire, p.ScaleBytes, p.ScaleBlock = abi.FP8, 0, 1
	checkPlan(t, p, plan(t, p))
}

func TestExpertRows(t *testing.T) {
	for _, c := range []struct {
		set  func(p *Params)
		rows uint32
	}{
		{func(p *Params) {}, 8 * 128 * 8},
		{func(p *Params) { p.ExpertAlignment = 16 }, 8*128*8 + 8*15},
		{func(p *Params) { p.MaxExpertRows = 1000 }, 1000},
		{func(p *Params) { p.MaxExpertRows = 1 << 30 }, 8 * 128 * 8},
		{func(p *Params) { p.Replicas = 4 }, 2 * 128 * 8},
		{func(p *Params) { p.MaxRecvRows = 10 }, 80},
		{func(p *Params) { p.Layout = abi.LayoutBatched }, 8 * 8 * 128 * 8},
		{func(p *Params) { p.Layout, p.ExpertCapacity = abi.LayoutBatched, 7 }, 56},
		{func(p *Params) { p.Layout, p.ExpertCapacity, p.NumExperts, p.Rank = abi.LayoutBatched, 7, 3, 7 }, 7},
		{func(p *Params) { p.Layout = abi.LayoutRows }, 8 * 128 * 8},
	} {
		p := decode()
		c.set(&p)
		if pl := plan(t, p); pl.Shape.MaxExpertRows != c.rows {
			t.Errorf("%+v: %d expert rows, want %d", p, pl.Shape.MaxExpertRows, c.rows)
		}
	}
}

func TestConsecutivePlacement(t *testing.T) {
	if ConsecutivePlacement(0, 3) != nil || ConsecutivePlacement(-1, 3) != nil {
		t.Error("a placement on no ranks")
	}
	for ranks := 1; ranks < 20; ranks++ {
		for experts := range 40 {
			next := int32(0)
			for r, l := range ConsecutivePlacement(ranks, experts) {
				if per := (experts + ranks - 1) / ranks; len(l) > per || len(l) < per && int(next)+len(l) != experts {
					t.Fatalf("%d experts on %d ranks: rank %d has %v", experts, ranks, r, l)
				}
				for _, e := range l {
					if e != next {
						t.Fatalf("%d experts on %d ranks: rank %d has %v", experts, ranks, r, l)
					}
					next++
				}
			}
			if int(next) != experts {
				t.Fatalf("%d of %d experts placed", next, experts)
			}
		}
	}
}
