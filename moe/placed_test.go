package moe

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"moerail/moe/placement"
	"moerail/peergroup"
)

// TestPlacementChangesUnderTraffic: EP-24. 8 logical experts on 12 physical ones
// on 4 ranks; the map changes while one micro-batch is under way, which ends on
// the old one; ids beyond the physical experts are refused under every map.
func TestPlacementChangesUnderTraffic(t *testing.T) {
	first := [][]int32{{0, 1, 2}, {3, 4, 5}, {6, 7, 8}, {9, 10, 11}}
	maps := [][][]int32{
		{{11, 0}, {1, 2, 3, 4, 5}, {}, {6, 7, 8, 9, 10}},
		{{5, 4, 3}, {2, 1, 0}, {9, 10, 11}, {6, 7, 8}},
		{{0, 1, 2, 3, 4}, {5, 6, 7, 8, 9}, {10}, {11}},
		first,
	}
	replicas, err := placement.New([]int32{0, 1, 2, 3, 4, 5, 6, 7, 0, 0, 3, 7}, 8)
	if err != nil {
		t.Fatal(err)
	}
	for i, layout := range []Layout{LayoutGrouped, LayoutBatched, LayoutRows, LayoutGrouped} {
		w := small(t, 4, func(s *setting) {
			s.cfg.NumExperts, s.cfg.Placement, s.cfg.MaxLocalExperts, s.cfg.Slots = 12, first, 5, 2
			s.cfg.Layout, s.cfg.RanksPerNode, s.cfg.WindowRows, s.cfg.ExpertAlignment = layout, 1+i, 3*(i/3), 3
		})
		drawn := func() []tokens {
			toks := w.ragged(8)
			for r := range toks {
				for j := range toks[r].ids {
					if toks[r].ids[j] >= 0 {
						toks[r].ids[j] %= 8
					}
				}
				if err := replicas.IDs(toks[r].ids, toks[r].ids, 2, r); err != nil {
					t.Fatal(err)
				}
			}
			return toks
		}
		w.round(0, drawn())
		for _, next := range maps {
			toks := drawn()
			outs := make([][]byte, 4)
			counts := w.count(toks)
			w.each(func(r int, c *Communicator) error {
				if err := c.DispatchSend(0, toks[r].input()); err != nil {
					return err
				}
				if r%2 == 0 { // received, or not, when the map changes
					_, err := c.DispatchRecv(0)
					return err
				}
				return nil
			})
			w.each(func(r int, c *Communicator) error {
				if err := c.SetPlacement(context.Background(), next); err != nil {
					return err
				}
				if got := c.LocalExperts(); !slices.Equal(got, next[r]) {
					return fmt.Errorf("local experts %v, want %v", got, next[r])
				}
				return nil
			})
			w.each(func(r int, c *Communicator) (err error) {
				b := &c.slots[0].batch
				if r%2 == 1 {
					if b, err = c.DispatchRecv(0); err != nil {
						return err
					}
				}
				if err := w.checkBatch(r, b, counts); err != nil {
					return err
				}
				if err := w.experts(c, b); err != nil {
					return err
				}
				outs[r] = w.nanOut(toks[r].n)
				return c.Combine(0, nil, 0, outs[r], 0)
			})
			for r := range toks {
				w.checkOut(r, toks[r], outs[r])
			}
			w.setJudge(next)
			w.round(1, drawn())
			w.round(0, drawn())
			for r, c := range w.cs {
				if st := c.Stats(); len(st.ExpertPicks) != len(next[r]) {
					t.Errorf("rank %d: picks of %d experts, it has %d", r, len(st.ExpertPicks), len(next[r]))
				}
				if len(c.places) > 1+len(c.slots) {
					t.Errorf("rank %d keeps %d placements", r, len(c.places))
				}
			}
			toks = drawn()
			w.each(func(r int, c *Communicator) error {
				in := toks[r].input()
				in.IDs, in.IDs64, in.IDsU32 = []int32{12, 0}, nil, nil
				in.NumTokens, in.X, in.Weights = 1, make([]byte, 96), nil
				_, err := c.Dispatch(0, in)
				wantCode(t, err, CodeInvalidExpert, PhaseDispatchSend)
				return c.Abort(0)
			})
		}
	}
}

// TestPlacementsThatAreRefused: on every rank, and nothing changes.
func TestPlacementsThatAreRefused(t *testing.T) {
	w := small(t, 4, func(s *setting) { s.cfg.MaxLocalExperts, s.cfg.SetupDeadline, s.cfg.Slots = 3, 20*time.Second, 2 })
	good := [][]int32{{0, 1}, {2, 3}, {4, 5}, {6, 7}}
	for name, bad := range map[string][][]int32{
		"placement is nil":    nil,
		"3 ranks":             {{0, 1, 2}, {3, 4, 5}, {6, 7}},
		"expert 8":            {{0, 1}, {2, 3}, {4, 5}, {6, 7, 8}},
		"leaves out expert 7": {{0, 1}, {2, 3}, {4, 5}, {6}},
		"on rank 0 and on":    {{0, 1}, {1, 2, 3}, {4, 5}, {6, 7}},
		"expert -1":           {{0, 1, -1}, {2, 3}, {4, 5}, {6, 7}},
		"max local experts":   {{0, 1, 2, 3}, {}, {4, 5}, {6, 7}},
	} {
		w.each(func(r int, c *Communicator) error {
			err := c.SetPlacement(context.Background(), bad)
			var ce *ConfigError
			if !errors.As(err, &ce) || !strings.Contains(err.Error(), name) {
				return fmt.Errorf("%s: %w", name, err)
			}
			return nil
		})
	}
	w.each(func(r int, c *Communicator) error {
		mine := good
		if r == 2 {
			mine = [][]int32{{1, 0}, {2, 3}, {4, 5}, {6, 7}}
		}
		err := c.SetPlacement(context.Background(), mine)
		var mm *peergroup.MismatchError
		if !errors.As(err, &mm) || !slices.Equal(mm.Ranks(), []int{2}) || mm.Fields[0].Name != "placement" {
			return fmt.Errorf("want a mismatch of rank 2: %w", err)
		}
		return nil
	})
	// A rank that has started a round which the others have not.
	w.each(func(r int, c *Communicator) error {
		if r == 1 {
			if err := c.DispatchSend(1, Input{}); err != nil {
				return err
			}
		}
		err := c.SetPlacement(context.Background(), good)
		var mm *peergroup.MismatchError
		if !errors.As(err, &mm) || !slices.Equal(mm.Ranks(), []int{1}) || mm.Fields[0].Name != "next round of slot 1" {
			return fmt.Errorf("want a mismatch of rank 1: %w", err)
		}
		if r != 1 {
			err = c.DispatchSend(1, Input{})
		} else {
			err = nil
		}
		return errors.Join(err, c.Abort(1))
	})
	w.round(0, w.ragged(8))
	// A rank that has failed, and one that does not come.
	w.cs[3].fail(&RoundError{Code: CodeDeadline, Phase: PhaseDispatchRecv, What: "made up"})
	w.each(func(r int, c *Communicator) error {
		err := c.SetPlacement(context.Background(), good)
		var se *SetupError
		if !errors.As(err, &se) || !slices.Equal(se.Ranks, []int{3}) || !strings.Contains(err.Error(), "made up") {
			return fmt.Errorf("want rank 3 named: %w", err)
		}
		return nil
	})
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	defer cancel()
	w.each(func(r int, c *Communicator) error {
		if r == 0 {
			return nil
		}
		err := c.SetPlacement(ctx, good)
		var me *peergroup.MissingError
		if !errors.As(err, &me) || !slices.Contains(me.Missing, 0) {
			return fmt.Errorf("want rank 0 missing: %w", err)
		}
		return nil
	})
}
