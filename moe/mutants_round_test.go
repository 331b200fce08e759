package moe

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"moerail/internal/reference"
	"moerail/moe/routing"
	"moerail/transport/loopback"
)

// The rounds here are small and unkind: few ranks with ragged tokens, experts that
// all compute something else, sums that must be right to the bit, over a fabric
// that reorders, splits and delays. tools/mutants relies on them to see a fault
// anywhere between dispatch_send and combine_recv.

// unkindRound is one configuration of such rounds; every value is fp32.
type unkindRound struct {
	cfg   Config
	ranks int
	nics  []string
	delay func(from, to int) time.Duration // beyond the usual, between ranks
	// ids draws a token's picks; nil draws any, missing and repeated ones too.
	ids func(r *rand.Rand, round, rank int) int32
}

func mutantRounds() map[string]unkindRound {
	base := Config{
		NumExperts: 7, TopK: 4, Hidden: 33, MaxTokens: 7, Slots: 2, ShardBytes: 256, ExpertAlignment: 3,
		Placement: [][]int32{{6, 0}, {3, 1, 5}, {2, 4}}, Deadline: 4 * time.Second,
	}
	with := func(set func(c *Config)) unkindRound {
		u := unkindRound{cfg: base, ranks: 3, nics: []string{"lo0"}}
		set(&u.cfg)
		return u
	}
	m := map[string]unkindRound{
		"expert":  with(func(c *Config) {}),
		"home":    with(func(c *Config) { c.ReduceAtHome, c.Layout, c.FirstRound = true, LayoutRows, 1<<32-3 }),
		"batched": with(func(c *Config) { c.Layout, c.IgnoreWeights = LayoutBatched, true }),
		"exact":   with(func(c *Config) { c.WindowRows = 2 }),
		"direct":  with(func(c *Config) { c.RanksPerNode = 2 }),
		"replicas": with(func(c *Config) {
			c.Replicas, c.Placement = 2, [][]int32{{6, 0}, {3, 1}, {2, 4}, {5}}
		}),
	}
	u := m["replicas"]
	u.ranks = 4
	m["replicas"] = u
	u = m["exact"]
	u.nics = []string{"lo0", "lo1", "lo2"}
	m["exact"] = u
	u = m["home"]
	u.nics = []string{"lo0", "lo1"}
	m["home"] = u

	// Rank 2 is slow to rank 0, which asks nothing of it and so starts every round in
	// time. In even rounds rank 1 asks nothing of anybody: it is in the next round
	// while rank 0 still waits in this one.
	u = with(func(c *Config) { c.Slots = 1 })
	u.delay = func(from, to int) time.Duration {
		if from == 2 && to == 0 {
			return 8 * time.Millisecond
		}
		return 0
	}
	u.ids = selfishInEvenRounds(1)
	m["ahead"] = u

	// In even rounds rank 2's blocks for rank 0 are empty, and no answer says that they
	// have left: only their completions do.
	u.ids = selfishInEvenRounds(2)
	m["behind"] = u
	return m
}

// selfishInEvenRounds has a rank pick its own experts only in even rounds; rank 0
// never picks those of rank 2.
func selfishInEvenRounds(selfish int) func(r *rand.Rand, round, rank int) int32 {
	own := [][]int32{{6, 0}, {3, 1, 5}, {2, 4}}
	return func(r *rand.Rand, round, rank int) int32 {
		list := []int32{6, 0, 3, 1, 5}
		switch {
		case rank == selfish && round%2 == 0:
			list = own[rank]
		case rank != 0:
			list = append(list, own[2]...)
		}
		return list[r.IntN(len(list))]
	}
}

func TestMutantRounds(t *testing.T) {
	for name, u := range mutantRounds() {
		for seed := range uint64(4) {
			t.Run(fmt.Sprintf("%s/%d", name, seed), func(t *testing.T) { u.run(t, seed, 6) })
		}
	}
}

func (u *unkindRound) run(t *testing.T, seed uint64, rounds int) {
	ranks := make(map[*loopback.Process]int)
	fabric, err := loopback.New(loopback.Config{
		NICs: u.nics,
		Faults: &loopback.Faults{Seed: seed, Reorder: true, PacketBytes: 64, DelayMax: 300 * time.Microsecond,
			Completion: loopback.CompleteLate, TrapSource: true,
			PairDelay: func(from, to *loopback.Process) time.Duration {
				if u.delay == nil {
					return 0
				}
				return u.delay(ranks[from], ranks[to])
			}},
		OnFault: func(f loopback.Fault) { t.Errorf("fabric: %+v", f) },
	})
	if err != nil {
		t.Fatal(err)
	}
	procs := make([]*loopback.Process, u.ranks)
	for r := range procs {
		procs[r] = fabric.Process(fmt.Sprintf("rank%d", r), "host")
		ranks[procs[r]] = r
	}
	cs, err := NewLocal(context.Background(), u.ranks, u.cfg, func(r int, c *Config) {
		c.Provider, c.NICs = procs[r], u.nics
	})
	if err != nil {
		t.Fatal(err)
	}
	ins := u.inputs(seed, rounds)
	wants := make([][]*reference.Output, rounds)
	for i := range ins {
		for _, in := range ins[i] {
			want, err := reference.Exact(u.reference(), in)
			if err != nil {
				t.Fatal(err)
			}
			wants[i] = append(wants[i], want)
		}
	}
	var wg sync.WaitGroup
	for r, c := range cs {
		wg.Go(func() {
			for i := range ins {
				if err := u.round(c, ins[i], wants[i]); err != nil {
					t.Errorf("rank %d, round %d: %v", r, i, err)
					return
				}
			}
		})
	}
	wg.Wait()
	closeAll(t, cs)
}

func closeAll(t *testing.T, cs []*Communicator) {
	for _, c := range cs {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

// reference is the communicator as the definition sees it.
func (u *unkindRound) reference() reference.Config {
	c := reference.Config{
		Ranks: u.ranks, Experts: u.cfg.NumExperts, TopK: u.cfg.TopK, Hidden: u.cfg.Hidden, Placement: u.cfg.Placement,
		ReduceAtHome: u.cfg.ReduceAtHome, ApplyWeights: !u.cfg.IgnoreWeights, Replicas: u.cfg.Replicas, MaxTokens: u.cfg.MaxTokens,
	}
	for e := range c.Experts {
		s, b := expertOf(e)
		c.Scale, c.Bias = append(c.Scale, s), append(c.Bias, b)
	}
	return c
}

func expertOf(e int) (scale, bias float32) { return float32(e)*0.7 + 1.1, float32(e)*0.3 - 1 }

// inputs are [round][slot][rank]; the ranks of a replica group hold the same.
func (u *unkindRound) inputs(seed uint64, rounds int) [][][]reference.Input {
	r := rand.New(rand.NewPCG(seed, 17))
	out := make([][][]reference.Input, rounds)
	for i := range out {
		out[i] = make([][]reference.Input, u.cfg.Slots)
		for s := range out[i] {
			for p := range u.ranks {
				if p%max(1, u.cfg.Replicas) != 0 {
					out[i][s] = append(out[i][s], out[i][s][p-1])
					continue
				}
				n := r.IntN(u.cfg.MaxTokens + 1)
				if p == i%u.ranks {
					n = u.cfg.MaxTokens
				}
				x, w, ids := make([]float32, n*u.cfg.Hidden), make([]float32, n*u.cfg.TopK), make([]int32, n*u.cfg.TopK)
				for j := range x {
					x[j] = r.Float32()*2 - 1
				}
				for j := range ids {
					ids[j], w[j] = int32(r.IntN(u.cfg.NumExperts+1))-1, r.Float32()
					if u.ids != nil {
						ids[j] = u.ids(r, i, p)
					}
				}
				out[i][s] = append(out[i][s], reference.Input{X: reference.Rows(x, u.cfg.Hidden), IDs: reference.Rows(ids, u.cfg.TopK), Weights: reference.Rows(w, u.cfg.TopK)})
			}
		}
	}
	return out
}

func flat[T any](rows [][]T) (out []T) {
	for _, row := range rows {
		out = append(out, row...)
	}
	return out
}

// round runs one round of every slot, all in flight together.
func (u *unkindRound) round(c *Communicator, ins [][]reference.Input, wants []*reference.Output) error {
	me := c.Rank()
	for s, in := range ins {
		var w []float32
		if !u.cfg.IgnoreWeights {
			w = flat(in[me].Weights)
		}
		if err := c.DispatchSend(s, Input{X: bytesOf(flat(in[me].X)), IDs: flat(in[me].IDs), Weights: w, NumTokens: len(in[me].IDs)}); err != nil {
			return err
		}
	}
	for s := range ins {
		b, err := c.DispatchRecv(s)
		if err != nil {
			return err
		}
		want := &wants[s].Ranks[me]
		for e, n := range want.ExpertCounts {
			if int64(b.Counts[e]) != n {
				return fmt.Errorf("counts %v, want %v", b.Counts, want.ExpertCounts)
			}
		}
		for p, n := range want.SourceRows {
			if int64(b.SourceRows[p]) != n {
				return fmt.Errorf("source rows %v, want %v", b.SourceRows, want.SourceRows)
			}
		}
		if err := u.experts(c, b); err != nil {
			return err
		}
		if err := c.CombineSend(s, nil, 0); err != nil {
			return err
		}
	}
	for s, in := range ins {
		y := make([]float32, len(in[me].IDs)*u.cfg.Hidden)
		if err := c.CombineRecv(s, bytesOf(y), 0); err != nil {
			return err
		}
		if err := reference.CompareRank(me, reference.Rows(y, u.cfg.Hidden), &wants[s].Ranks[me]); err != nil {
			return err
		}
	}
	if n := c.Outstanding(); n != 0 {
		return fmt.Errorf("%d operations outstanding after the round", n)
	}
	return nil
}

// experts fills the batch's Y, and NaN where there is nothing to compute.
func (u *unkindRound) experts(c *Communicator, b *Batch) error {
	local := c.LocalExperts()
	eval := func(row int, expert int32, x []byte) error {
		y := b.Y[row*b.YStride:]
		scale, bias := float32(math.NaN()), float32(0)
		if expert >= 0 {
			if int(expert) >= len(local) {
				return fmt.Errorf("row %d is for local expert %d of %d", row, expert, len(local))
			}
			scale, bias = expertOf(int(local[expert]))
		}
		for h := range u.cfg.Hidden {
			v := math.Float32frombits(binary.LittleEndian.Uint32(x[4*h:]))
			binary.LittleEndian.PutUint32(y[4*h:], math.Float32bits(float32(scale*v)+bias))
		}
		return nil
	}
	var errs []error
	switch u.cfg.Layout {
	case LayoutGrouped:
		seen := make([]int32, len(local))
		for i, e := range b.RowExpert {
			errs = append(errs, eval(i, e, b.X[i*b.XStride:]))
			if e >= 0 {
				seen[e]++
			}
		}
		for e, n := range seen {
			if n != b.Counts[e] || b.Starts[e]%int32(u.cfg.ExpertAlignment) != 0 {
				errs = append(errs, fmt.Errorf("expert %d has %d rows from %d, counts say %d", e, n, b.Starts[e], b.Counts[e]))
			}
		}
	case LayoutBatched:
		for i := range b.OutRows {
			e := int32(i / b.Capacity)
			if int32(i%b.Capacity) >= b.Counts[e] {
				e = -1
			}
			errs = append(errs, eval(i, e, b.X[i*b.XStride:]))
		}
	case LayoutRows:
		at := 0
		for i := range b.NumRows {
			for _, e := range b.TopK[i*u.cfg.TopK:][:u.cfg.TopK] {
				if e >= 0 {
					errs = append(errs, eval(at, e, b.Row(i)))
					at++
				}
			}
		}
		if at != b.OutRows {
			errs = append(errs, fmt.Errorf("%d picks in the rows, %d in all", at, b.OutRows))
		}
	}
	return errors.Join(errs...)
}

// TestOverflowIsOneErrorOnEveryRank: all ranks refuse the same round, and the next
// one is right.
func TestOverflowIsOneErrorOnEveryRank(t *testing.T) {
	u := mutantRounds()["exact"]
	u.cfg.MaxRecvRows, u.cfg.Slots = 8, 1
	all := make([][]reference.Input, 1)
	one := make([][]reference.Input, 1)
	for p := range u.ranks {
		n := 4
		x := reference.Rows(make([]float32, n*u.cfg.Hidden), u.cfg.Hidden)
		w := reference.Rows(make([]float32, n*u.cfg.TopK), u.cfg.TopK)
		many, few := make([][]int32, n), make([][]int32, n)
		for i := range n {
			many[i], few[i] = []int32{1, -1, 1, -1}, []int32{-1, -1, -1, u.cfg.Placement[p][0]}
		}
		all[0] = append(all[0], reference.Input{X: x, IDs: many, Weights: w})
		one[0] = append(one[0], reference.Input{X: x, IDs: few, Weights: w})
	}
	want, err := reference.Exact(u.reference(), one[0])
	if err != nil {
		t.Fatal(err)
	}
	cs, err := NewLocal(context.Background(), u.ranks, u.cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for _, c := range cs {
		wg.Go(func() {
			for range 3 {
				err := u.round(c, all, nil)
				var re *RoundError
				if !errors.As(err, &re) || re.Code != CodeOverflow || len(re.Ranks) != 1 || re.Ranks[0] != 1 {
					t.Errorf("rank %d: %v, want rank 1 to overflow", c.Rank(), err)
					return
				}
				if err := u.round(c, one, []*reference.Output{want}); err != nil {
					t.Errorf("rank %d: %v", c.Rank(), err)
					return
				}
			}
		})
	}
	wg.Wait()
	closeAll(t, cs)
}

// TestUnevenPlacementIsRefusedEverywhere: what only the rank with most experts
// cannot hold, no rank may take for right.
func TestUnevenPlacementIsRefusedEverywhere(t *testing.T) {
	_, err := NewLocal(context.Background(), 2, Config{
		NumExperts: 3, TopK: 1, Hidden: 1, MaxTokens: 1, Layout: LayoutBatched, ExpertCapacity: 1 << 30,
		Placement: [][]int32{{0, 1, 2}, nil}, SetupDeadline: 2 * time.Second,
	}, nil)
	var joined interface{ Unwrap() []error }
	if !errors.As(err, &joined) || len(joined.Unwrap()) != 2 {
		t.Fatalf("%v, want an error of each rank", err)
	}
	for _, err := range joined.Unwrap() {
		var ce *routing.ConfigError
		if !errors.As(err, &ce) {
			t.Errorf("%v, want a *ConfigError", err)
		}
	}
}
