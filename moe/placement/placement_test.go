package placement

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
)

func TestMap(t *testing.T) {
	// 3 logical experts, 6 physical: the first has three replicas, the last two.
	m, err := New([]int32{0, 2, 0, 1, 2, 0}, 3)
	if err != nil {
		t.Fatal(err)
	}
	if m.Logical() != 3 || m.Physical() != 6 {
		t.Errorf("%d logical and %d physical experts", m.Logical(), m.Physical())
	}
	for l, want := range [][]int32{{0, 2, 5}, {3}, {1, 4}} {
		if got := m.Replicas(int32(l)); !slices.Equal(got, want) {
			t.Errorf("replicas of %d: %v, want %v", l, got, want)
		}
	}
	ids := []int32{0, 1, 0, 2, -1, 0, 0, 2, 2, -1}
	if err := m.IDs(ids, ids, 2, 1); err != nil {
		t.Fatal(err)
	}
	// tokens 1..5 of the turn
	if want := []int32{2, 3, 5, 1, -1, 0, 2, 1, 4, -1}; !slices.Equal(ids, want) {
		t.Errorf("ids %v, want %v", ids, want)
	}
}

// TestTokensTakeTurns: every replica serves as many tokens as the others.
func TestTokensTakeTurns(t *testing.T) {
	m, err := New([]int32{1, 0, 1, 1}, 2)
	if err != nil {
		t.Fatal(err)
	}
	served := make(map[int32]int)
	for token := range 300 {
		e, err := m.Expert(1, token)
		if err != nil {
			t.Fatal(err)
		}
		served[e]++
	}
	if len(served) != 3 || served[0] != 100 || served[2] != 100 || served[3] != 100 {
		t.Errorf("served %v", served)
	}
	if e, err := m.Expert(1, -1); err != nil || e < 0 { // any number is a turn
		t.Errorf("token -1: %d, %v", e, err)
	}
}

func TestBadMaps(t *testing.T) {
	for _, c := range []struct {
		of      []int32
		logical int
		words   []string
	}{
		{nil, 1, []string{"1 logical", "0 physical"}},
		{[]int32{0}, 0, []string{"0 logical"}},
		{[]int32{0}, -3, []string{"-3 logical"}},
		{[]int32{0, 1}, 3, []string{"3 logical"}},
		{[]int32{0, 0, -1, 5}, 3, []string{"physical expert 2", "replica of 5", "logical expert 1 has no", "logical expert 2 has no"}},
		{make([]int32, 100), 100, []string{"and 79 more"}},
	} {
		m, err := New(c.of, c.logical)
		var pe *Error
		if m != nil || !errors.As(err, &pe) {
			t.Errorf("%v: %v, %v", c.of, m, err)
			continue
		}
		for _, w := range c.words {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%q does not say %q", err, w)
			}
		}
	}
}

func TestBadIDs(t *testing.T) {
	m, err := New([]int32{0, 1, 1}, 2)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []int32{2, -2, math.MaxInt32, math.MinInt32} {
		err := m.IDs(make([]int32, 4), []int32{0, 1, 1, id}, 2, 0)
		if err == nil || !strings.Contains(err.Error(), "token 1, pick 1") {
			t.Errorf("id %d: %v", id, err)
		}
		if m.Replicas(id) != nil {
			t.Errorf("id %d has replicas", id)
		}
	}
	for _, c := range [][2]int{{3, 3}, {4, 3}, {2, 4}} { // ids in, room
		if err := m.IDs(make([]int32, c[1]), make([]int32, c[0]), 2, 0); (err == nil) != (c[0] == 2) {
			t.Errorf("%d ids into %d: %v", c[0], c[1], err)
		}
	}
	if err := m.IDs(nil, nil, 0, 0); err == nil {
		t.Error("top-k 0 is accepted")
	}
}
