package dispatch

import (
	"errors"
	"strings"
	"testing"

	"moerail/kernels/abi"
	"moerail/moe/routing"
)

func newSide(t *testing.T, windowRows int, direct ...bool) *Side {
	t.Helper()
	pl, err := routing.NewPlan(routing.Params{
		Rank: 1, NumRanks: 4, NumExperts: 8, TopK: 2, Hidden: 16, MaxTokens: 8, Layout: abi.LayoutRows,
		ExpertAlignment: 1, Replicas: 1, Slots: 1, NumNICs: 4, WindowRows: windowRows,
	})
	if err != nil {
		t.Fatal(err)
	}
	return New(Config{Plan: pl, Direct: append(direct, make([]bool, 4)...)[:4], Round: 6})
}

// TestArrivalsThatNoPeerMakes: each is refused with the rank that made it.
func TestArrivalsThatNoPeerMakes(t *testing.T) {
	type step struct {
		m   routing.Meaning
		src int
	}
	announce := func(src, further int) step {
		return step{routing.Meaning{Kind: routing.KindDispatch, Further: uint8(further)}, src}
	}
	payload := func(src int) step { return step{routing.Meaning{Kind: routing.KindPayload}, src} }
	route := func(src int) step { return step{routing.Meaning{Kind: routing.KindRoute}, src} }
	for _, c := range []struct {
		name   string
		window int
		steps  []step // the last one is refused
		what   string
	}{
		{"from itself", 0, []step{announce(1, 0)}, "none is due"},
		{"from a direct peer", 0, []step{announce(0, 0)}, "none is due"},
		{"twice", 0, []step{announce(2, 1), announce(2, 1)}, "second block"},
		{"twice after all came", 0, []step{announce(2, 0), announce(2, 0)}, "second block"},
		{"a shard too many", 0, []step{announce(2, 1), payload(2), payload(2)}, "more shards"},
		{"a shard too many, early", 0, []step{payload(2), payload(2), announce(2, 1)}, "more shards"},
		{"route without an exact path", 0, []step{route(3)}, "without an exact path"},
		{"announcement on the exact path", 4, []step{announce(2, 0)}, "second block"},
		{"route twice", 4, []step{route(3), route(3)}, "second route row"},
	} {
		s := newSide(t, c.window, true)
		for i, st := range c.steps {
			err := s.Arrived(st.m, st.src)
			if i < len(c.steps)-1 {
				if err != nil {
					t.Errorf("%s: step %d: %v", c.name, i, err)
				}
				continue
			}
			var fe *FaultError
			if !errors.As(err, &fe) || fe.Rank != st.src || !strings.Contains(err.Error(), c.what) {
				t.Errorf("%s: %v, want rank %d and %q", c.name, err, st.src, c.what)
			}
		}
	}
}

// TestLateNamesWhoIsMissing, shard by shard, and nobody for a round that is over.
func TestLateNamesWhoIsMissing(t *testing.T) {
	s := newSide(t, 0)
	want := func(ranks string) {
		t.Helper()
		got := ""
		for _, q := range s.Late(6, nil) {
			got += string(rune('0' + q))
		}
		if got != ranks {
			t.Errorf("late %q, want %q", got, ranks)
		}
	}
	want("230") // in sending order, after rank 1
	arrive := func(m routing.Meaning, src int) {
		t.Helper()
		if err := s.Arrived(m, src); err != nil {
			t.Fatal(err)
		}
	}
	arrive(routing.Meaning{Kind: routing.KindDispatch, Further: 2}, 2)
	want("230")
	arrive(routing.Meaning{Kind: routing.KindPayload}, 2)
	arrive(routing.Meaning{Kind: routing.KindPayload}, 2)
	want("30")
	arrive(routing.Meaning{Kind: routing.KindDispatch, Parity: 1}, 3) // of the next round
	want("30")
	if late := s.Late(5, nil); late != nil {
		t.Errorf("late in the round before: %v", late)
	}
}
