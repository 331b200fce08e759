package peergroup

import (
	"errors"
	"fmt"
	"math/rand"
	"slices"
	"sync"
	"testing"

	"moerail/transport"
)

// Random allocations and frees against a map of what is taken.
func TestImmSpaceNeverOverlaps(t *testing.T) {
	rng := rand.New(rand.NewSource(1))
	s := NewImmSpace()
	taken := map[uint64]uint64{} // first -> end
	for range 5000 {
		if len(taken) > 0 && rng.Intn(3) == 0 {
			for first := range taken {
				if err := s.Free(transport.Imm(first)); err != nil {
					t.Fatal(err)
				}
				delete(taken, first)
				break
			}
			continue
		}
		n := uint32(1) << rng.Intn(24)
		base, err := s.Alloc(n)
		if err != nil {
			t.Fatal(err)
		}
		first, end := uint64(base), uint64(base)+uint64(n)
		if first < ReservedImms || end > immEnd {
			t.Fatalf("%d to %d", first, end)
		}
		for f, e := range taken {
			if f < end && first < e {
				t.Fatalf("%d-%d meets %d-%d", first, end, f, e)
			}
		}
		taken[first] = end
		if len(taken) > 200 {
			for f := range taken {
				s.Free(transport.Imm(f))
				delete(taken, f)
				if len(taken) < 100 {
					break
				}
			}
		}
	}
}

func TestImmSpaceLimits(t *testing.T) {
	s := NewImmSpace()
	var limit *LimitError
	if _, err := s.Alloc(0); !errors.As(err, &limit) {
		t.Errorf("0: %v", err)
	}
	if _, err := s.Alloc(1<<32 - ReservedImms + 0); err != nil {
		t.Errorf("all of it: %v", err)
	}
	if _, err := s.Alloc(1); !errors.Is(err, ErrImmsExhausted) {
		t.Errorf("one more: %v", err)
	}
	for _, base := range []transport.Imm{0, ReservedImms + 1, 1<<32 - 1} {
		if err := s.Free(base); err == nil {
			t.Errorf("freed %d, where no range starts", base)
		}
	}
	if err := s.Free(ReservedImms); err != nil {
		t.Error(err)
	}
	if err := s.Free(ReservedImms); err == nil {
		t.Error("freed twice")
	}
	// The freed range rests, but it is all there is.
	if base, err := s.Alloc(7); err != nil || base != ReservedImms {
		t.Error(base, err)
	}
	if _, err := s.Alloc(1<<32 - ReservedImms); !errors.Is(err, ErrImmsExhausted) {
		t.Errorf("too long a range: %v", err)
	}
	s = NewImmSpace()
	for range MaxImmRanges {
		if _, err := s.Alloc(1); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Alloc(1); !errors.Is(err, ErrImmsExhausted) {
		t.Errorf("more than MaxImmRanges: %v", err)
	}
}

// A freed range comes back only when the space around it is used up.
func TestImmsRestAfterFree(t *testing.T) {
	s := NewImmSpace()
	old, _ := s.Alloc(1 << 28)
	s.Free(old)
	oldEnd := uint64(old) + 1<<28
	n := 0
	for ; ; n++ {
		base, err := s.Alloc(1 << 28)
		if err != nil {
			t.Fatal(err)
		}
		if uint64(base) < oldEnd {
			break
		}
	}
	if n != 14 { // 2^32 holds 16, less the reserved ones and the freed one
		t.Errorf("used again after %d others, want 14", n)
	}
}

func agreeImms(t *testing.T, groups []Group, spaces []*ImmSpace, key string, n uint32) (transport.Imm, []error) {
	got := make([]transport.Imm, len(groups))
	errs := onAll(groups, func(g Group) (err error) {
		got[g.Rank()], err = AgreeImms(within(t), g, spaces[g.Rank()], key, n)
		return err
	})
	for r := range got {
		if errs[r] == nil && got[r] != got[0] {
			t.Errorf("rank %d has base %d, rank 0 %d", r, got[r], got[0])
		}
	}
	return got[0], errs
}

func newSpaces(n int) []*ImmSpace {
	spaces := make([]*ImmSpace, n)
	for i := range spaces {
		spaces[i] = NewImmSpace()
	}
	return spaces
}

// Ranks with different histories agree, also when only one gap is free on all.
func TestAgreeImms(t *testing.T) {
	bothKinds(t, 3, func(t *testing.T, groups []Group) {
		spaces := newSpaces(3)
		for i := range 5 {
			spaces[1].Alloc(uint32(1000 * (i + 1)))
		}
		spaces[2].Alloc(1 << 30)
		base, errs := agreeImms(t, groups, spaces, "a", 64)
		noErrors(t, errs)
		if uint64(base) < ReservedImms+1<<30 {
			t.Errorf("base %d is taken on rank 2", base)
		}
		again, errs := agreeImms(t, groups, spaces, "a", 64)
		noErrors(t, errs)
		if again == base {
			t.Errorf("base %d twice", base)
		}

		// Only [1000, 1100) is free on all three.
		spaces = newSpaces(3)
		spaces[0].tryTake(immRange{256, 1000})
		spaces[1].tryTake(immRange{1100, 1 << 31})
		spaces[2].tryTake(immRange{1 << 31, 1 << 32})
		if _, errs = agreeImms(t, groups, spaces, "a", 101); true {
			for r, err := range errs {
				if !errors.Is(err, ErrImmsExhausted) {
					t.Errorf("rank %d: %v, want exhausted", r, err)
				}
			}
		}
		base, errs = agreeImms(t, groups, spaces, "a", 100)
		noErrors(t, errs)
		if base != 1000 {
			t.Errorf("base %d, want 1000", base)
		}
	})
}

func TestAgreeImmsFaults(t *testing.T) {
	groups := NewLocal(3)
	defer closeGroups(groups)
	spaces := newSpaces(3)
	for _, n := range []uint32{0, 9} {
		for r, err := range onAll(groups, func(g Group) error {
			want := uint32(8)
			if g.Rank() == 2 {
				want = n
			}
			_, err := AgreeImms(within(t), g, spaces[g.Rank()], "k", want)
			return err
		}) {
			var mismatch *MismatchError
			var peer *PeerError
			if n == 0 && (!errors.As(err, &peer) || peer.Rank != 2) || n == 9 && (!errors.As(err, &mismatch) || !slices.Equal(mismatch.Ranks(), []int{2})) {
				t.Errorf("n %d: rank %d: %v", n, r, err)
			}
		}
	}
	for r := range 3 {
		if len(spaces[r].live) != 0 {
			t.Errorf("rank %d: a failed call left %v", r, spaces[r].live)
		}
	}
	for r, err := range onAll(groups[:2], func(g Group) error {
		_, err := AgreeImms(shortly(t), g, spaces[g.Rank()], "k", 8)
		return err
	}) {
		if m := asMissing(t, r, err); !slices.Equal(m.Missing, []int{2}) {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

// Several groups of the same processes allocate in one space per process at the
// same time, in another order on every rank and all under one key.
func TestAgreeImmsConcurrentGroups(t *testing.T) {
	const ranks, rivals, each = 3, 6, 4
	spaces := newSpaces(ranks)
	all := make([][]Group, rivals)
	for i := range all {
		all[i] = NewLocal(ranks)
		defer closeGroups(all[i])
	}
	bases := make([][]transport.Imm, ranks)
	errs := make([]error, ranks*rivals)
	var wg sync.WaitGroup
	for r := range ranks {
		bases[r] = make([]transport.Imm, rivals*each)
		for j := range rivals {
			i := (j + 3) % rivals
			if r == 1 {
				i = rivals - 1 - j
			} else if r == 2 {
				i = j
			}
			wg.Go(func() {
				for k := range each {
					var err error
					bases[r][i*each+k], err = AgreeImms(within(t), all[i][r], spaces[r], "moe", 100)
					if err != nil {
						errs[r*rivals+i] = fmt.Errorf("group %d: %w", i, err)
						return
					}
				}
			})
		}
	}
	wg.Wait()
	noErrors(t, errs)
	for r := 1; r < ranks; r++ {
		if !slices.Equal(bases[r], bases[0]) {
			t.Errorf("rank %d has %v, rank 0 %v", r, bases[r], bases[0])
		}
	}
	sorted := slices.Clone(bases[0])
	slices.Sort(sorted)
	for i := 1; i < len(sorted); i++ {
		if sorted[i]-sorted[i-1] < 100 {
			t.Errorf("ranges at %d and %d overlap", sorted[i-1], sorted[i])
		}
	}
	for r := range ranks {
		if len(spaces[r].live) != rivals*each {
			t.Errorf("rank %d holds %d ranges, want %d", r, len(spaces[r].live), rivals*each)
		}
	}
}
