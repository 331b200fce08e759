package routing

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestShardsCoverOnce(t *testing.T) {
	sizes := []uint64{0, 1, 63, 64, 65, 127, 128, 129, 191, 192, 193, 767, 768, 769, 65535, 65536, 65537, 131072, 131073, 262145, 1<<20 + 1, 1<<32 - 1, 1 << 32, 1<<40 + 7, MaxArenaBytes}
	r := rand.New(rand.NewPCG(3, 4))
	for range 2000 {
		sizes = append(sizes, r.Uint64N(1<<(1+r.UintN(45))))
	}
	for nics := 1; nics <= MaxNICs; nics++ {
		for _, shard := range []int{0, 1, 64, 100, 4096, MaxShardBytes} {
			p := decode()
			p.NumNICs, p.ShardBytes = nics, shard
			pl := plan(t, p)
			for _, bytes := range sizes {
				n := pl.Shards(bytes)
				if n < 1 || n > uint32(nics) {
					t.Fatalf("%d shards over %d NICs", n, nics)
				}
				if whole := bytes <= pl.ShardBytes; whole && n != 1 {
					t.Fatalf("%d bytes, at most %d a shard, cut into %d", bytes, pl.ShardBytes, n)
				}
				if pl.ShardBytes >= 1024 && bytes > uint64(nics)*pl.ShardBytes && n != uint32(nics) {
					t.Fatalf("%d bytes in shards of %d use %d of %d NICs", bytes, pl.ShardBytes, n, nics)
				}
				var end uint64
				for i := range n {
					off, length := ShardRange(bytes, n, i)
					if off != end || off%64 != 0 || length == 0 && bytes != 0 {
						t.Fatalf("%d bytes: shard %d of %d is %d bytes at %d, the one before ends at %d", bytes, i, n, length, off, end)
					}
					if n > 1 && pl.ShardBytes >= 4096 && i < n-1 && length < pl.ShardBytes/2 {
						t.Fatalf("%d bytes: shard %d of %d has %d bytes, less than half of %d", bytes, i, n, length, pl.ShardBytes)
					}
					end = off + length
				}
				if end != bytes {
					t.Fatalf("%d shards cover %d of %d bytes", n, end, bytes)
				}
			}
		}
	}
}

func FuzzShardRange(f *testing.F) {
	f.Add(uint64(65536), 4, 0)
	f.Add(uint64(129), 4, 1)
	f.Fuzz(func(t *testing.T, bytes uint64, nics, shard int) {
		bytes %= MaxArenaBytes + 1
		p := decode()
		p.NumNICs, p.ShardBytes = nics, shard
		pl, err := NewPlan(p)
		if err != nil {
			return
		}
		n := pl.Shards(bytes)
		var end uint64
		for i := range n {
			off, length := ShardRange(bytes, n, i)
			if off != end || length == 0 && bytes > 0 {
				t.Fatal(off, length, end)
			}
			end += length
		}
		if end != bytes || n > uint32(nics) {
			t.Fatal(end, bytes, n)
		}
	})
}

// TestBothSidesCountShards: what the sender cuts a block into is what a receiver
// with another rank's plan expects.
func TestBothSidesCountShards(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 200 {
		p := randomParams(r)
		p.Rank = 0
		a, err := NewPlan(p)
		if err != nil {
			continue
		}
		p.Rank = p.NumRanks - 1
		b := plan(t, p)
		for range 20 {
			rows := r.Uint32N(a.Shape.MaxTokens + 1)
			if a.BlockBytes(rows) != b.BlockBytes(rows) || a.ReturnBytes(rows) != b.ReturnBytes(rows) ||
				a.Shards(a.BlockBytes(rows)) != b.Shards(b.BlockBytes(rows)) || a.Shards(a.ReturnBytes(rows)) != b.Shards(b.ReturnBytes(rows)) {
				t.Fatalf("%+v: ranks disagree on %d rows", p, rows)
			}
		}
	}
}

func TestShardsSpreadOverNICs(t *testing.T) {
	for nics := 1; nics <= MaxNICs; nics++ {
		p := decode()
		p.NumNICs, p.NumRanks = nics, 12
		pl := plan(t, p)
		first := make([]int, nics)
		for q := range 12 {
			used := make([]bool, nics)
			for i := range uint32(nics) {
				nic := pl.ShardNIC(q, i)
				if nic < 0 || int(nic) >= nics || used[nic] {
					t.Fatalf("%d NICs: shard %d for rank %d on NIC %d", nics, i, q, nic)
				}
				used[nic] = true
			}
			first[pl.ShardNIC(q, 0)]++
		}
		for nic, n := range first {
			if n != 12/nics {
				t.Errorf("%d NICs: NIC %d has %d of 12 first shards", nics, nic, n)
			}
		}
	}
}

// TestImmediates: every immediate that any rank may send for anything is one
// number of the range, and the number alone says what it was.
func TestImmediates(t *testing.T) {
	for _, c := range []struct{ ranks, nics, slots int }{{1, 1, 1}, {2, 1, 2}, {3, 2, 1}, {5, 3, 3}, {64, 4, 4}, {7, 4, MaxSlots}, {MaxRanks, 4, MaxSlots}} {
		p := decode()
		p.NumRanks, p.NumNICs, p.Slots = c.ranks, c.nics, c.slots
		pl := plan(t, p)
		meanings := pl.Meanings()
		if int(pl.NumImms()) != len(meanings)*c.ranks {
			t.Fatalf("%+v: %d immediates for %d meanings", c, pl.NumImms(), len(meanings))
		}
		var all []Meaning
		for slot := range uint8(c.slots) {
			all = append(all, Meaning{Kind: KindCombine, Slot: slot})
			for parity := range uint8(2) {
				all = append(all, Meaning{Kind: KindPayload, Parity: parity, Slot: slot}, Meaning{Kind: KindRoute, Parity: parity, Slot: slot})
				for k := range uint8(c.nics) {
					all = append(all, Meaning{Kind: KindDispatch, Parity: parity, Further: k, Slot: slot})
				}
			}
		}
		if len(all) != len(meanings) {
			t.Fatalf("%+v: %d meanings, want %d", c, len(meanings), len(all))
		}
		taken := make([]bool, pl.NumImms())
		for rank := range c.ranks {
			pl.Shape.Rank = uint32(rank)
			for _, m := range all {
				i := pl.ImmIndex(m)
				if i >= pl.NumImms() || taken[i] {
					t.Fatalf("%+v: rank %d %+v is number %d of %d, or taken", c, rank, m, i, pl.NumImms())
				}
				taken[i] = true
				if int(i)%c.ranks != rank || meanings[int(i)/c.ranks] != m {
					t.Fatalf("%+v: rank %d %+v decodes as rank %d %+v", c, rank, m, int(i)%c.ranks, meanings[int(i)/c.ranks])
				}
			}
		}
	}
}

func TestWords(t *testing.T) {
	for _, round := range []uint64{0, 1, 1<<32 - 2, 1<<32 - 1, 1 << 32, 1<<40 + 3, math.MaxUint64 - 1, math.MaxUint64} {
		if Tag(round) == Tag(round-1) {
			t.Errorf("round %d has the tag of the round before", round)
		}
		for _, rows := range []uint32{0, 1, MaxTokens, math.MaxUint32} {
			if w := Word(round, rows); uint32(w) != Tag(round) || uint32(w>>32) != rows {
				t.Errorf("round %d, %d rows: word %#x", round, rows, w)
			}
		}
	}
	if Tag(0) == 0 {
		t.Error("zeroed memory means round 0")
	}
}

func TestOthers(t *testing.T) {
	for ranks := 1; ranks < 10; ranks++ {
		first := make(map[int]bool)
		for me := range ranks {
			seen := map[int]bool{me: true}
			list := Others(me, ranks)
			for _, q := range list {
				if q < 0 || q >= ranks || seen[q] {
					t.Fatalf("others of %d of %d: %v", me, ranks, list)
				}
				seen[q] = true
			}
			if len(seen) != ranks {
				t.Fatalf("others of %d of %d: %v", me, ranks, list)
			}
			if ranks > 1 {
				first[list[0]] = true
			}
		}
		if ranks > 1 && len(first) != ranks {
			t.Errorf("%d ranks start with the same %d", ranks, len(first))
		}
	}
}

func TestLaneSource(t *testing.T) {
	p := decode()
	p.NumRanks, p.Replicas = 6, 3
	for rank, want := range [][]int{{0, 0, 0, 3, 3, 3}, {1, 1, 1, 4, 4, 4}, {2, 2, 2, 5, 5, 5}} {
		for _, p.Rank = range []int{rank, rank + 3} {
			pl := plan(t, p)
			for src, w := range want {
				if got := pl.LaneSource(src); got != w {
					t.Errorf("rank %d gets rows of the group of %d from %d, want %d", p.Rank, src, got, w)
				}
			}
		}
	}
}

// randomMatrix is a plan on the exact path, and rows that its ranks may announce.
func randomMatrix(t testing.TB, r *rand.Rand) *Matrix {
	p := decode()
	p.NumRanks, p.MaxTokens = 1+r.IntN(9), 2+r.IntN(40)
	p.WindowRows, p.NumNICs, p.ShardBytes = 1+r.IntN(p.MaxTokens-1), 1+r.IntN(4), 1+r.IntN(20000)
	if p.NumRanks%2 == 0 && r.IntN(2) == 0 {
		p.Replicas = 2
	}
	p.MaxRecvRows = r.IntN(2) * (1 + r.IntN(p.NumRanks*p.MaxTokens))
	p.Rank = r.IntN(p.NumRanks)
	m := NewMatrix(plan(t, p))
	for i := range m.Rows {
		if (i/p.NumRanks)%p.Replicas == (i%p.NumRanks)%p.Replicas && r.IntN(4) > 0 {
			m.Rows[i] = r.Uint32N(uint32(p.MaxTokens) + 1)
		}
	}
	return m
}

// TestOverflowTiles: the rows beyond the windows of all sources lie in a rank's
// overflow area one after the other, with neither gap nor overlap, inside it
// unless the round is refused.
func TestOverflowTiles(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	refused := 0
	for range 3000 {
		m := randomMatrix(t, r)
		s := &m.plan.Shape
		n := int(s.NumRanks)
		if err := m.Check(); err != nil {
			t.Fatal(err)
		}
		over := m.Overflowing(nil)
		if len(over) > 0 {
			refused++
		}
		var want []int
		for q := range n {
			var next, received uint64
			for p := range n {
				start, beyond := m.OverflowRow(p, q)
				want := m.Rows[p*n+q] - min(m.Rows[p*n+q], s.WindowRows)
				if p == q {
					want = 0
				}
				if start != next || beyond != want {
					t.Fatalf("rows %v, window %d: %d to %d has %d at %d, want %d at %d", m.Rows, s.WindowRows, p, q, beyond, start, want, next)
				}
				next += uint64(beyond)
				received += uint64(m.Rows[p*n+q])
			}
			if got := m.Received(q); got != received {
				t.Fatalf("rank %d would receive %d rows, reported %d", q, received, got)
			}
			if received > uint64(s.MaxRecvRows) {
				want = append(want, q)
			} else if next > uint64(s.MaxRecvRows) {
				t.Fatalf("rank %d: %d rows in an overflow area of %d", q, next, s.MaxRecvRows)
			}
		}
		if !slices.Equal(want, over) {
			t.Fatalf("ranks %d overflow, reported %d", want, over)
		}
	}
	if refused < 100 || refused > 2900 {
		t.Fatalf("%d of 3000 rounds refused: the draw tells little", refused)
	}
}

// TestDueFrom counts the writes that a sender makes, byte by byte, against what
// the receiver's plan says is due.
func TestDueFrom(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	for range 1000 {
		m := randomMatrix(t, r)
		pl, n := m.plan, int(m.plan.Shape.NumRanks)
		for p := range n {
			for q := range n {
				rows := m.Rows[p*n+q]
				var posts uint32
				if p != q {
					straight := pl.BlockBytes(min(rows, pl.Shape.WindowRows))
					posts = writes(pl, straight)
					if rows > pl.Shape.WindowRows {
						posts += writes(pl, pl.BlockBytes(rows)-pl.BlockBytes(pl.Shape.WindowRows))
					}
				}
				if due := m.DueFrom(p, q); due != posts {
					t.Fatalf("%d rows, window %d: %d due, %d posted", rows, pl.Shape.WindowRows, due, posts)
				}
			}
		}
	}
}

// writes is the number of non-empty writes that cover bytes.
func writes(pl *Plan, bytes uint64) (n uint32) {
	for i := range pl.Shards(bytes) {
		if _, length := ShardRange(bytes, pl.Shards(bytes), i); length > 0 {
			n++
		}
	}
	return n
}

// TestRanksDrawSameConclusions: with their own plans of one configuration and the
// same rows, all ranks see the same overflow and the same places.
func TestRanksDrawSameConclusions(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	for range 200 {
		m := randomMatrix(t, r)
		n := int(m.plan.Shape.NumRanks)
		over := m.Overflowing(nil)
		for rank := range n {
			p := decode()
			s := &m.plan.Shape
			p.Rank, p.NumRanks, p.MaxTokens, p.WindowRows = rank, n, int(s.MaxTokens), int(s.WindowRows)
			p.NumNICs, p.ShardBytes, p.Replicas, p.MaxRecvRows = m.plan.NumNICs, int(m.plan.ShardBytes), int(s.Replicas), int(s.MaxRecvRows)
			o := NewMatrix(plan(t, p))
			copy(o.Rows, m.Rows)
			if got := o.Overflowing(nil); !slices.Equal(got, over) {
				t.Fatalf("rank %d sees %d; another %d", rank, got, over)
			}
			for p := range n {
				for q := range n {
					a, an := m.OverflowRow(p, q)
					b, bn := o.OverflowRow(p, q)
					if a != b || an != bn || m.DueFrom(p, q) != o.DueFrom(p, q) {
						t.Fatalf("rank %d disagrees on %d to %d", rank, p, q)
					}
				}
			}
		}
	}
}

func TestMatrixRefuses(t *testing.T) {
	p := decode()
	p.NumRanks, p.WindowRows, p.Replicas = 4, 5, 2
	for _, c := range []struct {
		from, to    int
		rows, limit uint32
		ok          bool
	}{
		{1, 3, 128, 128, true},
		{1, 3, 129, 128, false},
		{2, 2, math.MaxUint32, 128, false},
		{3, 0, 1, 0, false}, // another lane
		{3, 0, 0, 0, true},
	} {
		m := NewMatrix(plan(t, p))
		m.Rows[c.from*4+c.to] = c.rows
		err := m.Check()
		var bad *BadRowCountError
		if c.ok && err != nil || !c.ok && (!errors.As(err, &bad) || *bad != BadRowCountError{c.from, c.to, c.rows, c.limit}) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	// Sums that do not fit in 32 bits.
	p = decode()
	p.NumRanks, p.MaxTokens, p.TopK, p.Hidden, p.WindowRows, p.MaxRecvRows = 1000, MaxTokens, 1, 1, 1, 1000
	m := NewMatrix(plan(t, p))
	for i := range m.Rows {
		m.Rows[i] = MaxTokens
	}
	if over := m.Overflowing(nil); len(over) != 1000 || m.Received(999) != 1000*MaxTokens {
		t.Errorf("%d ranks overflow, the last by %d rows", len(over), m.Received(999))
	}
	if start, rows := m.OverflowRow(999, 998); start != 998*(MaxTokens-1) || rows != MaxTokens-1 {
		t.Errorf("%d rows at %d", rows, start)
	}
}
