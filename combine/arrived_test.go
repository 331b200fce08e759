package combine

import (
	"errors"
	"slices"
	"testing"

	"moerail/kernels/abi"
	"moerail/moe/routing"
)

func newSide(t *testing.T, replicas int, owed []uint32, direct ...bool) *Side {
	t.Helper()
	pl, err := routing.NewPlan(routing.Params{
		Rank: 1, NumRanks: 4, NumExperts: 8, TopK: 2, Hidden: 16, MaxTokens: 8, Layout: abi.LayoutRows,
		ExpertAlignment: 1, Replicas: replicas, Slots: 1, NumNICs: 2, ShardBytes: 64,
	})
	if err != nil {
		t.Fatal(err)
	}
	return New(Config{Plan: pl, Direct: append(direct, make([]bool, 4)...)[:4], Round: 6, Owed: func(q int) uint32 { return owed[q] }})
}

// TestReturnsThatAreNotOwed: a shard too many is refused with the rank that sent
// it, whether it comes before or after this rank knows what it is owed.
func TestReturnsThatAreNotOwed(t *testing.T) {
	owed := []uint32{0, 0, 3, 1} // rows of 32 bytes: no shard, two, one
	for _, c := range []struct {
		name      string
		src, fine int // shards that are owed
	}{{"nothing owed", 0, 0}, {"two shards", 2, 2}, {"one shard", 3, 1}} {
		s := newSide(t, 1, owed)
		if err := s.learn(); err != nil {
			t.Fatal(err)
		}
		for i := range c.fine + 1 {
			err := s.Arrived(c.src)
			var fe *FaultError
			if i == c.fine && (!errors.As(err, &fe) || fe.Rank != c.src || fe.Owed != uint32(c.fine)) || i < c.fine && err != nil {
				t.Errorf("%s, shard %d: %v", c.name, i, err)
			}
		}
		s = newSide(t, 1, owed)
		for range c.fine + 1 {
			if err := s.Arrived(c.src); err != nil {
				t.Errorf("%s, before it is known: %v", c.name, err)
			}
		}
		var fe *FaultError
		if err := s.learn(); !errors.As(err, &fe) || fe.Rank != c.src {
			t.Errorf("%s, early: %v", c.name, err)
		}
	}
	s := newSide(t, 1, owed, true)
	for _, src := range []int{0, 1} { // stored directly, and itself
		var fe *FaultError
		if err := s.Arrived(src); !errors.As(err, &fe) || fe.Rank != src {
			t.Errorf("from rank %d over the fabric: %v", src, err)
		}
	}
	if err := newSide(t, 1, []uint32{0, 0, 9, 0}).learn(); err == nil {
		t.Error("more rows owed than a rank has tokens")
	}
}

// TestBlocksGoToTheWholeGroup: with replicas one block serves every rank of the
// source's group, the group after the own one first, as the device makes them.
func TestBlocksGoToTheWholeGroup(t *testing.T) {
	s := newSide(t, 2, make([]uint32, 4))
	if len(s.fan) != 2 || s.fan[0].source != 3 || !slices.Equal(s.fan[0].to, []int{2, 3}) ||
		s.fan[1].source != 1 || !slices.Equal(s.fan[1].to, []int{0}) {
		t.Errorf("blocks %+v", s.fan)
	}
	s = newSide(t, 1, make([]uint32, 4), true)
	if len(s.fan) != 2 || s.fan[0].source != 2 || s.fan[1].source != 3 {
		t.Errorf("blocks %+v", s.fan)
	}
}

// TestLateNamesWhoOwes.
func TestLateNamesWhoOwes(t *testing.T) {
	s := newSide(t, 1, []uint32{1, 0, 3, 0})
	if late := s.Late(6, nil); late != nil {
		t.Errorf("late %v before anything is known to be owed", late)
	}
	if err := s.learn(); err != nil {
		t.Fatal(err)
	}
	for _, want := range [][]int{{2, 0}, {2, 0}, {0}} {
		if late := s.Late(6, nil); !slices.Equal(late, want) {
			t.Errorf("late %v, want %v", late, want)
		}
		if err := s.Arrived(2); err != nil && len(want) > 1 {
			t.Fatal(err)
		}
	}
	if late := s.Late(5, nil); late != nil {
		t.Errorf("late in the round before: %v", late)
	}
}
