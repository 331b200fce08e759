package moe

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"moerail/transport/loopback"
)

// TestALateRankIsNamed: EP-02. Rank 3 makes two rounds and the rest make three;
// they are told whom they wait for, in which round and phase, within the deadline.
func TestALateRankIsNamed(t *testing.T) {
	for name, edit := range map[string]func(*Config){
		"fabric": nil,
		"direct": func(c *Config) { c.RanksPerNode = 4 },
		"pairs":  func(c *Config) { c.RanksPerNode = 2 },
		"exact":  func(c *Config) { c.WindowRows = 2 },
	} {
		t.Run(name, func(t *testing.T) {
			w := small(t, 4, func(s *setting) {
				s.cfg.Deadline, s.cfg.FirstDeadline, s.cfg.FirstRound = 150*time.Millisecond, 20*time.Second, 7
				if edit != nil {
					edit(&s.cfg)
				}
			})
			for range 2 {
				w.round(0, w.ragged(8))
			}
			start := time.Now()
			w.each(func(r int, c *Communicator) error {
				if r == 3 {
					return nil
				}
				_, err := c.Dispatch(0, Input{})
				re := wantCode(t, err, CodeDeadline, PhaseDispatchRecv)
				if re.Round != 9 || !slices.Equal(re.Ranks, []int{3}) || !strings.Contains(re.Error(), "rank 3") {
					t.Errorf("rank %d: %v (%+v), want rank 3 in round 9", r, re, re)
				}
				// It stays: every call says the same.
				_, err = c.DispatchRecv(0)
				wantCode(t, err, CodeDeadline, PhaseDispatchRecv)
				wantCode(t, c.Abort(0), CodeDeadline, PhaseDispatchRecv)
				if err := c.Barrier(context.Background()); !errors.Is(err, ErrDeadline) {
					t.Errorf("barrier: %v", err)
				}
				return nil
			})
			if took := time.Since(start); took < 150*time.Millisecond || took > 5*time.Second {
				t.Errorf("a deadline of 150 ms took %v", took)
			}
		})
	}
}

// TestALateRankIsToldEvenIfTheInputWasRefused: there is no batch when the others'
// blocks have not come, whatever this rank itself did wrong.
func TestALateRankIsToldEvenIfTheInputWasRefused(t *testing.T) {
	for _, node := range []int{1, 2} {
		w := small(t, 2, func(s *setting) { s.cfg.FirstDeadline, s.cfg.RanksPerNode = 150*time.Millisecond, node })
		toks := w.draw(1, []int32{0, 99})
		b, err := w.cs[0].Dispatch(0, toks.input())
		if re := wantCode(t, err, CodeDeadline, PhaseDispatchRecv); b != nil || !slices.Equal(re.Ranks, []int{1}) {
			t.Errorf("batch %v, error %v, want none and rank 1", b, err)
		}
	}
}

// TestALateCombineIsNamed: a rank that dispatches and never combines.
func TestALateCombineIsNamed(t *testing.T) {
	for _, node := range []int{1, 3} {
		w := small(t, 3, func(s *setting) {
			s.cfg.FirstDeadline, s.cfg.RanksPerNode = 150*time.Millisecond, node
		})
		toks := make([]tokens, 3)
		for r := range toks {
			toks[r] = w.draw(3, []int32{0, 2, 4, 5, 1, 2}) // every rank serves every token
		}
		w.each(func(r int, c *Communicator) error {
			b, err := c.Dispatch(0, toks[r].input())
			if err != nil || r == 1 {
				return err
			}
			if err := w.experts(c, b); err != nil {
				return err
			}
			re := wantCode(t, c.Combine(0, nil, 0, w.nanOut(3), 0), CodeDeadline, PhaseCombineRecv)
			if re.Round != 0 || !slices.Equal(re.Ranks, []int{1}) {
				t.Errorf("rank %d: %v, want rank 1 in round 0", r, re)
			}
			return nil
		})
	}
}

// TestTheFirstRoundHasItsOwnDeadline: EP-42.
func TestTheFirstRoundHasItsOwnDeadline(t *testing.T) {
	w := small(t, 2, func(s *setting) { s.cfg.FirstDeadline, s.cfg.Deadline = 20*time.Second, 50*time.Millisecond })
	toks := w.ragged(8)
	w.each(func(r int, c *Communicator) error {
		if r == 1 {
			time.Sleep(200 * time.Millisecond) // a warm-up, longer than Deadline
		}
		if _, err := c.Dispatch(0, toks[r].input()); err != nil {
			return err
		}
		return c.Combine(0, nil, 0, w.nanOut(toks[r].n), 0)
	})
	w.each(func(r int, c *Communicator) error {
		if r == 1 {
			return nil
		}
		_, err := c.Dispatch(0, Input{})
		wantCode(t, err, CodeDeadline, PhaseDispatchRecv)
		return nil
	})
}

// TestBarrier holds everybody until the last has come, and names who does not.
func TestBarrier(t *testing.T) {
	w := small(t, 4, func(s *setting) { s.cfg.Deadline = 200 * time.Millisecond })
	var mu sync.Mutex
	entered := 0
	for round := 1; round <= 5; round++ {
		before := w.cs[0].Stats()
		w.each(func(r int, c *Communicator) error {
			mu.Lock()
			entered++
			mu.Unlock()
			if err := c.Barrier(context.Background()); err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			if entered < 4*round {
				t.Errorf("rank %d passed barrier %d when %d had entered", r, round, entered)
			}
			return nil
		})
		if after := w.cs[0].Stats(); after.Messages != before.Messages {
			t.Error("a barrier counts as messages of rounds")
		}
	}
	w.each(func(r int, c *Communicator) error {
		if r == 2 {
			return nil
		}
		if r == 1 {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
			defer cancel()
			if err := c.Barrier(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("barrier under a context: %v", err)
			}
			return nil
		}
		var re *RoundError
		if err := c.Barrier(context.Background()); !errors.As(err, &re) || re.Code != CodeDeadline || !slices.Equal(re.Ranks, []int{2}) {
			t.Errorf("rank %d: %v, want a deadline that names rank 2", r, err)
		}
		return nil
	})
}

// TestAWaitEndsWithoutAnEngine: an engine that its owner closed too early takes
// nobody's deadline along.
func TestAWaitEndsWithoutAnEngine(t *testing.T) {
	c := small(t, 2, func(s *setting) { s.cfg.FirstDeadline = 100 * time.Millisecond }).cs[0]
	if err := c.engine.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := c.Dispatch(0, Input{})
	wantCode(t, err, CodeTransport, PhaseDispatchRecv)
}

// TestBarriersAreNotOutstanding: a barrier is over when everybody has entered it,
// which a fabric that completes late tells before it completes.
func TestBarriersAreNotOutstanding(t *testing.T) {
	w := small(t, 3, func(s *setting) {
		s.fabric.Faults = &loopback.Faults{Seed: 5, Reorder: true, DelayMax: 2 * time.Millisecond, Completion: loopback.CompleteLate}
	})
	var late atomic.Int64
	for i := 0; i < 20 || late.Load() == 0; i++ {
		if i == 1000 {
			t.Fatal("no message of 1000 barriers was late to complete: nothing was tested")
		}
		w.each(func(r int, c *Communicator) error {
			if err := c.Barrier(context.Background()); err != nil {
				return err
			}
			rounds, barriers := c.outstanding()
			late.Add(int64(barriers))
			if n := c.Outstanding(); n != 0 || rounds != 0 {
				t.Errorf("rank %d: %d and %d operations outstanding after a barrier", r, rounds, n)
			}
			return nil
		})
	}
}

// TestABarrierAtTheDeadline: whoever finds that all have come passes, whoever finds
// its engine gone does not.
func TestABarrierAtTheDeadline(t *testing.T) {
	c := small(t, 2, nil).cs[0]
	if err := c.barrierLate(0); err != nil {
		t.Errorf("nobody is late: %v", err)
	}
	if err := c.engine.Close(); err != nil {
		t.Fatal(err)
	}
	wantCode(t, c.barrierLate(0), CodeTransport, PhaseBarrier)
}

// TestASlowRankIsNeverLapped: EP-25. The same routing for many rounds, payloads
// that change, one rank behind at random, no barrier.
func TestASlowRankIsNeverLapped(t *testing.T) {
	rounds := 200
	if testing.Short() {
		rounds = 40
	}
	for _, node := range []int{1, 2, 4} {
		w := small(t, 4, func(s *setting) {
			s.cfg.RanksPerNode = node
			s.fabric.Faults = &loopback.Faults{Seed: uint64(node), Reorder: true, PacketBytes: 100, Completion: loopback.CompleteMixed, TrapSource: true}
		})
		ids := make([][]int32, 4)
		for r := range ids {
			ids[r] = drawIDs(w.rng, 6, 2, 8)
		}
		toks := make([][]tokens, rounds)
		for i := range toks {
			for r := range 4 {
				toks[i] = append(toks[i], w.draw(6, ids[r]))
			}
		}
		pause := make([]time.Duration, rounds)
		for i := range pause {
			if w.rng.IntN(4) == 0 {
				pause[i] = time.Duration(w.rng.IntN(3000)) * time.Microsecond
			}
		}
		outs := make([][][]byte, rounds)
		for i := range outs {
			outs[i] = make([][]byte, 4)
		}
		w.each(func(r int, c *Communicator) error {
			for i := range rounds {
				if r == 2 {
					time.Sleep(pause[i])
				}
				b, err := c.Dispatch(0, toks[i][r].input())
				if err != nil {
					return err
				}
				if r == 2 {
					time.Sleep(pause[(i+7)%rounds] / 2)
				}
				if err := w.experts(c, b); err != nil {
					return err
				}
				outs[i][r] = w.nanOut(6)
				if err := c.Combine(0, nil, 0, outs[i][r], 0); err != nil {
					return err
				}
			}
			return nil
		})
		for i := range outs {
			for r := range 4 {
				w.checkOut(r, toks[i][r], outs[i][r])
			}
		}
	}
}
