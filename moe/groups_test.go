package moe

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"moerail/peergroup"
	"moerail/transport"
	"moerail/transport/engine"
	"moerail/transport/loopback"
)

// TestTwoMicroBatches: EP-28. A second micro-batch goes its way while the first is
// under way, in the order that serving stacks use; a third is refused.
func TestTwoMicroBatches(t *testing.T) {
	for _, node := range []int{1, 2} {
		w := small(t, 4, func(s *setting) {
			s.cfg.Slots, s.cfg.RanksPerNode = 2, node
			s.fabric = unkind(newRand(28))
		})
		for range 10 {
			toks := [2][]tokens{w.ragged(8), w.ragged(8)}
			outs := [2][][]byte{make([][]byte, 4), make([][]byte, 4)}
			w.each(func(r int, c *Communicator) error {
				send := func(slot int) error { return c.DispatchSend(slot, toks[slot][r].input()) }
				work := func(slot int) error {
					b, err := c.DispatchRecv(slot)
					if err != nil {
						return err
					}
					if err := w.experts(c, b); err != nil {
						return err
					}
					return c.CombineSend(slot, nil, 0)
				}
				recv := func(slot int) error {
					outs[slot][r] = w.nanOut(toks[slot][r].n)
					return c.CombineRecv(slot, outs[slot][r], 0)
				}
				third := func() error {
					for _, slot := range []int{0, 1, 2} {
						if err := c.DispatchSend(slot, Input{}); !errors.Is(err, ErrBusy) {
							return fmt.Errorf("third micro-batch in slot %d: %v", slot, err)
						}
					}
					return nil
				}
				return errors.Join(send(0), send(1), third(), work(0), work(1), third(), recv(0), recv(1))
			})
			for slot := range toks {
				for r, tk := range toks[slot] {
					w.checkOut(r, tk, outs[slot][r])
				}
			}
		}
	}
}

// twoGroups makes two communicators a rank over one engine and one group, created
// in different orders on different ranks.
func twoGroups(t *testing.T, sameImms bool) (worlds [2]*world, engines []*engine.Engine) {
	t.Helper()
	const ranks = 4
	fabric, err := loopback.New(loopback.Config{})
	if err != nil {
		t.Fatal(err)
	}
	groups := peergroup.NewLocal(ranks)
	for i := range worlds {
		worlds[i] = &world{t: t, s: setting{ranks: ranks, nics: 1}, rng: newRand(uint64(i)), fabric: fabric, cs: make([]*Communicator, ranks)}
	}
	configs := [2]Config{
		{Name: "low", NumExperts: 8, TopK: 2, Hidden: 24, MaxTokens: 8, Slots: 2},
		{Name: "high", NumExperts: 12, TopK: 3, Hidden: 40, MaxTokens: 30, Layout: LayoutRows, RanksPerNode: 2},
	}
	var wg sync.WaitGroup
	errs := make([]error, ranks)
	for r := range ranks {
		p := fabric.Process(fmt.Sprint("rank", r), "host")
		d, err := p.Open("lo0", transport.DomainConfig{})
		if err != nil {
			t.Fatal(err)
		}
		e, err := engine.New(engine.Config{Provider: p, Domains: []transport.Domain{d}, CPU: -1})
		if err != nil {
			t.Fatal(err)
		}
		engines = append(engines, e)
		t.Cleanup(func() { e.Close() })
		imms := peergroup.NewImmSpace()
		if !sameImms {
			_, _ = imms.Alloc(uint32(10 + 7*r)) // each rank has something of its own already
		}
		wg.Go(func() {
			// Even ranks make the one first, odd ranks the other; at once, since each
			// waits for the rest.
			var both sync.WaitGroup
			for j := range 2 {
				i := (j + r) % 2
				c := configs[i]
				c.Group, c.Engine, c.Imms = groups[r], e, imms
				both.Go(func() {
					var err error
					if worlds[i].cs[r], err = New(context.Background(), c); err != nil {
						errs[r] = errors.Join(errs[r], err)
					}
				})
				time.Sleep(time.Millisecond)
			}
			both.Wait()
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	for i, w := range worlds {
		w.s.cfg = configs[i]
		w.setJudge(nil)
		t.Cleanup(w.close)
	}
	return worlds, engines
}

// TestTwoCommunicatorsOnOneEngine: EP-31, EP-32. They do not meet in immediates,
// memory or errors; one goes on when the other is closed, or has failed.
func TestTwoCommunicatorsOnOneEngine(t *testing.T) {
	worlds, engines := twoGroups(t, false)
	for range 10 {
		var wg sync.WaitGroup
		for _, w := range worlds {
			wg.Go(func() {
				toks := w.ragged(8)
				w.quiet(0, toks)
			})
		}
		wg.Wait()
	}
	// Close one under way on the other.
	toks := worlds[1].ragged(8)
	outs := make([][]byte, 4)
	worlds[1].each(func(r int, c *Communicator) error {
		b, err := c.Dispatch(0, toks[r].input())
		if err != nil {
			return err
		}
		if err := worlds[0].cs[r].Close(); err != nil {
			return err
		}
		if _, err := worlds[0].cs[r].Dispatch(0, Input{}); !errors.Is(err, ErrClosed) {
			t.Errorf("dispatch after close: %v", err)
		}
		if err := worlds[1].experts(c, b); err != nil {
			return err
		}
		outs[r] = worlds[1].nanOut(toks[r].n)
		return c.Combine(0, nil, 0, outs[r], 0)
	})
	for r := range toks {
		worlds[1].checkOut(r, toks[r], outs[r])
	}
	for range 5 {
		worlds[1].quiet(0, worlds[1].ragged(8))
	}
	for r, e := range engines {
		if st := e.Stats(); st.ImmsStale != 0 || st.ImmsLost != 0 || st.StrayCompletions != 0 {
			t.Errorf("rank %d: %+v", r, st)
		}
	}
}

// quiet is round without poison and wire counts, for communicators that share.
func (w *world) quiet(slot int, toks []tokens) {
	outs := make([][]byte, len(w.cs))
	counts := w.count(toks)
	w.each(func(r int, c *Communicator) error {
		b, err := c.Dispatch(slot, toks[r].input())
		if err == nil {
			err = w.checkBatch(r, b, counts)
		}
		if err == nil {
			err = w.experts(c, b)
		}
		if err != nil {
			return err
		}
		outs[r] = w.nanOut(toks[r].n)
		return c.Combine(slot, nil, 0, outs[r], 0)
	})
	for r := range toks {
		w.checkOut(r, toks[r], outs[r])
	}
}

// TestAFailureStaysWithItsCommunicator: a deadline on one leaves the other alone.
func TestAFailureStaysWithItsCommunicator(t *testing.T) {
	worlds, _ := twoGroups(t, true)
	worlds[0].cs[1].fail(&RoundError{Code: CodeDeadline, Phase: PhaseDispatchRecv, What: "test"})
	if _, err := worlds[0].cs[1].Dispatch(0, Input{}); !errors.Is(err, &RoundError{Code: CodeDeadline}) {
		t.Errorf("failed communicator: %v", err)
	}
	for range 3 {
		worlds[1].quiet(0, worlds[1].ragged(8))
	}
}

// renamed is a provider of another fabric.
type renamed struct{ transport.Provider }

func (renamed) Name() string { return "another fabric" }

// TestRanksMustAgree: EP-33. A disagreement on any field fails New on every rank
// and names the field and the ranks.
func TestRanksMustAgree(t *testing.T) {
	base := Config{NumExperts: 8, TopK: 2, Hidden: 24, MaxTokens: 8, SetupDeadline: 20 * time.Second}
	edits := map[string]func(*Config){
		"fabric":  func(c *Config) { c.Provider = renamed{c.Provider} },
		"experts": func(c *Config) { c.NumExperts++ }, "top_k": func(c *Config) { c.TopK++ },
		"hidden": func(c *Config) { c.Hidden++ }, "max_tokens": func(c *Config) { c.MaxTokens++ },
		"dtype":       func(c *Config) { c.DType, c.InDType = BF16, FP32 },
		"out_dtype":   func(c *Config) { c.OutDType = FP16 },
		"in_dtype":    func(c *Config) { c.InDType = BF16 },
		"scale_block": func(c *Config) { c.ScaleBlock = 8 }, "scale_bytes": func(c *Config) { c.ScaleBytes = 8 },
		"layout":           func(c *Config) { c.Layout = LayoutRows },
		"expert_alignment": func(c *Config) { c.ExpertAlignment = 4 }, "expert_capacity": func(c *Config) { c.ExpertCapacity = 9 },
		"max_expert_rows": func(c *Config) { c.MaxExpertRows = 9 }, "reduce": func(c *Config) { c.ReduceAtHome = true },
		"apply_weights": func(c *Config) { c.IgnoreWeights = true }, "replicas": func(c *Config) { c.Replicas = 2 },
		"ranks_per_node": func(c *Config) { c.RanksPerNode = 2 }, "slots": func(c *Config) { c.Slots = 2 },
		"nics": func(c *Config) { c.NICs = []string{"lo0", "lo1"} }, "window_rows": func(c *Config) { c.WindowRows = 4 },
		"max_recv_rows": func(c *Config) { c.MaxRecvRows = 9 }, "shard_bytes": func(c *Config) { c.ShardBytes = 99 },
		"first_round":       func(c *Config) { c.FirstRound = 5 },
		"max_local_experts": func(c *Config) { c.MaxLocalExperts = 4 },
		"placement":         func(c *Config) { c.Placement = [][]int32{{0, 1}, {2, 3}, {4, 5}, {7, 6}} },
	}
	for _, p := range base.agreed() {
		if edits[p.Name] == nil {
			t.Errorf("no test of %s", p.Name)
		}
	}
	for field, edit := range edits {
		errs := newOnAll(t, 4, func(r int, c *Config) {
			mine := base
			mine.Group, mine.Provider, mine.NICs = c.Group, c.Provider, c.NICs
			*c = mine
			if r == 1 || r == 2 && field == "hidden" {
				edit(c)
			}
		})
		for r, err := range errs {
			var mm *peergroup.MismatchError
			if !errors.As(err, &mm) || CodeOf(err) != CodeMismatch {
				t.Fatalf("%s, rank %d: %v", field, r, err)
			}
			i := slices.IndexFunc(mm.Fields, func(f peergroup.FieldMismatch) bool { return f.Name == field })
			want := []int{1}
			if field == "hidden" {
				want = []int{1, 2}
			}
			if i < 0 || !slices.Equal(mm.Fields[i].AtFault, want) && field != "hidden" || !strings.Contains(err.Error(), field) {
				t.Errorf("%s, rank %d: %v, want it to name %s and ranks %v", field, r, err, field, want)
			}
		}
	}
}

// newOnAll calls New on every rank of a local group and returns the errors.
func newOnAll(t *testing.T, ranks int, edit func(r int, c *Config)) []error {
	t.Helper()
	fabric, err := loopback.New(loopback.Config{})
	if err != nil {
		t.Fatal(err)
	}
	errs := make([]error, ranks)
	var wg sync.WaitGroup
	for r, g := range peergroup.NewLocal(ranks) {
		c := Config{Group: g, Provider: fabric.Process(fmt.Sprint("rank", r), "host"), NICs: []string{"lo0"}}
		edit(r, &c)
		wg.Go(func() {
			made, err := New(context.Background(), c)
			if errs[r] = err; err == nil {
				errs[r] = made.Close()
			} else if made != nil {
				t.Errorf("rank %d: a communicator and an error", r)
			}
		})
	}
	wg.Wait()
	return errs
}
