package peergroup

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestAgree(t *testing.T) {
	bothKinds(t, 4, func(t *testing.T, groups []Group) {
		noErrors(t, onAll(groups, func(g Group) error {
			params := []Param{{"hidden", "256"}, {"top_k", "8"}, {"dtype", "bf16"}}
			if g.Rank()%2 == 1 {
				slices.Reverse(params) // the order does not matter
			}
			if err := Agree(within(t), g, "config", params); err != nil {
				return err
			}
			return Agree(within(t), g, "nothing", nil)
		}))
	})
}

// One parameter at a time differs on one rank: every rank names it and the rank.
func TestAgreeMismatch(t *testing.T) {
	names := []string{"hidden", "top_k", "experts", "max_tokens", "dtype", "nics"}
	bothKinds(t, 4, func(t *testing.T, groups []Group) {
		for i, odd := range names {
			wrong := i % 4
			for r, err := range onAll(groups, func(g Group) error {
				var params []Param
				for _, n := range names {
					v := "256"
					if n == odd && g.Rank() == wrong {
						v = "128"
					}
					params = append(params, Param{n, v})
				}
				return Agree(within(t), g, "config", params)
			}) {
				var m *MismatchError
				if !errors.As(err, &m) {
					t.Fatalf("%s: rank %d: %v", odd, r, err)
				}
				if len(m.Fields) != 1 || m.Fields[0].Name != odd || !slices.Equal(m.Ranks(), []int{wrong}) {
					t.Errorf("%s: rank %d: fields %+v", odd, r, m.Fields)
				}
				for _, text := range []string{"config", odd, fmt.Sprintf(`"128" on rank %d`, wrong), `"256" on ranks`} {
					if !strings.Contains(err.Error(), text) {
						t.Errorf("%q does not say %q", err, text)
					}
				}
			}
		}
		noErrors(t, onAll(groups, func(g Group) error { return Agree(within(t), g, "config", nil) }))
	})
}

func TestCompareParams(t *testing.T) {
	p := func(kv ...string) (list []Param) {
		for i := 0; i < len(kv); i += 2 {
			list = append(list, Param{kv[i], kv[i+1]})
		}
		return list
	}
	for name, c := range map[string]struct {
		lists [][]Param
		want  []FieldMismatch
	}{
		"equal":      {[][]Param{p("a", "1"), p("a", "1")}, nil},
		"single":     {[][]Param{p("a", "1")}, nil},
		"tie":        {[][]Param{p("a", "1"), p("a", "2")}, []FieldMismatch{{"a", []HeldValue{{"1", false, []int{0}}, {"2", false, []int{1}}}, []int{1}}}},
		"rank 0 odd": {[][]Param{p("a", "1"), p("a", "2"), p("a", "2")}, []FieldMismatch{{"a", []HeldValue{{"2", false, []int{1, 2}}, {"1", false, []int{0}}}, []int{0}}}},
		"absent is not empty": {[][]Param{p("a", ""), p(), p("a", "")},
			[]FieldMismatch{{"a", []HeldValue{{"", false, []int{0, 2}}, {"", true, []int{1}}}, []int{1}}}},
		"extra name": {[][]Param{p(), p("b", "x"), p()}, []FieldMismatch{{"b", []HeldValue{{"", true, []int{0, 2}}, {"x", false, []int{1}}}, []int{1}}}},
		"two fields, three values": {[][]Param{p("a", "1", "b", "1"), p("a", "2", "b", "1"), p("b", "9", "a", "3"), p("a", "3", "b", "1")},
			[]FieldMismatch{
				{"a", []HeldValue{{"3", false, []int{2, 3}}, {"1", false, []int{0}}, {"2", false, []int{1}}}, []int{0, 1}},
				{"b", []HeldValue{{"1", false, []int{0, 1, 3}}, {"9", false, []int{2}}}, []int{2}}}},
	} {
		err := compareParams("w", c.lists)
		if c.want == nil {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		var m *MismatchError
		if !errors.As(err, &m) || !reflect.DeepEqual(m.Fields, c.want) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if err := compareParams("w", [][]Param{p("a", strings.Repeat("x", 5000)), p("a", "1")}); len(err.Error()) > 300 {
		t.Errorf("a long value makes a text of %d bytes", len(err.Error()))
	}
}

// A rank whose own list is no good does not leave the others waiting.
func TestAgreeFaultyRank(t *testing.T) {
	for name, bad := range map[string][]Param{
		"stands twice": {{"a", "1"}, {"a", "1"}},
		"has no name":  {{"", "1"}},
		"allowed are":  make([]Param, MaxParams+1),
		"more than":    {{"a", strings.Repeat("x", MaxBlobBytes)}},
	} {
		groups := NewLocal(3)
		for r, err := range onAll(groups, func(g Group) error {
			params := []Param{{"a", "1"}}
			if g.Rank() == 1 {
				params = bad
			}
			return Agree(within(t), g, "config", params)
		}) {
			var p *PeerError
			if !errors.As(err, &p) || p.Rank != 1 || !strings.Contains(err.Error(), name) {
				t.Errorf("rank %d: %v, want rank 1: %s", r, err, name)
			}
		}
		closeGroups(groups)
	}
}

func TestGeneration(t *testing.T) {
	bothKinds(t, 3, func(t *testing.T, groups []Group) {
		seen := map[uint32]bool{}
		for range 8 {
			got := make([]uint32, 3)
			noErrors(t, onAll(groups, func(g Group) (err error) {
				got[g.Rank()], err = Generation(within(t), g, "moe")
				return err
			}))
			if got[0] == 0 || got[1] != got[0] || got[2] != got[0] || seen[got[0]] {
				t.Errorf("generations %v after %v", got, seen)
			}
			seen[got[0]] = true
		}
	})
}

func TestRankList(t *testing.T) {
	for want, ranks := range map[string][]int{
		"no rank": nil, "rank 3": {3}, "ranks 0, 1": {0, 1}, "ranks 0-2": {0, 1, 2}, "ranks 0, 2, 4-7, 9, 10": {0, 2, 4, 5, 6, 7, 9, 10},
	} {
		if got := rankList(ranks); got != want {
			t.Errorf("%v: %q, want %q", ranks, got, want)
		}
	}
}
