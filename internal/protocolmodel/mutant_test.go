package protocolmodel

import (
	"math/rand/v2"
	"strings"
	"testing"
)

// Each mutant must break a rule within a few sampled routings. With two ranks, where
// it is cheap, the unbroken protocol must hold for the very routing that convicts
// the mutant.
func TestMutantsAreCaught(t *testing.T) {
	const overwrites, wrongRound, otherRound, deadlock = "overwrites", "holds round", "another round", "deadlock"
	plain := Config{Shards: 1}
	exact := Config{Shards: 1, Exact: true, WindowRows: 1}
	refusing := Config{Shards: 1, Exact: true, WindowRows: 1, MaxRecvRows: 1}
	for _, tc := range []struct {
		mutant Mutant
		ranks  int
		rows   []int
		Config
		rules []string // the violation must be one of these
	}{
		{OneWindowParity, 2, []int{0, 1}, plain, []string{overwrites, wrongRound}},
		{OneWindowParity, 3, []int{0, 1}, plain, []string{overwrites, wrongRound}},
		{OneWindowParity, 2, []int{0, 1}, Config{Shards: 1, Node: []int{0, 0}}, []string{overwrites, wrongRound}},
		// On the exact path empty pairs send no rows and the others are answered, so
		// only a refused round needs the second parity.
		{OneWindowParity, 2, []int{0, 3}, refusing, []string{overwrites, wrongRound}},
		{OneCounterParity, 2, []int{0, 1}, plain, []string{otherRound, wrongRound}},
		{OneCounterParity, 3, []int{0, 1}, plain, []string{otherRound, wrongRound}},
		{OneCounterParity, 2, []int{0, 2}, Config{Shards: 2}, []string{otherRound, wrongRound}},
		{OneCounterParity, 3, []int{0, 1}, exact, []string{otherRound, wrongRound}},
		{OneRouteParity, 3, []int{0, 1}, exact, []string{overwrites, wrongRound}},
		{NoEmptyBlocks, 3, []int{0, 1}, plain, []string{otherRound, overwrites, wrongRound}},
		{EarlyNextDispatch, 2, []int{0, 1}, plain, []string{overwrites, wrongRound, otherRound}},
		{CombineOneShort, 2, []int{0, 1}, plain, []string{overwrites, wrongRound, otherRound}},
		{CombineOneShort, 2, []int{2}, Config{Shards: 2}, []string{overwrites, wrongRound, otherRound}},
		{SendBufferReuse, 2, []int{0, 1}, Config{Shards: 1, LateFetch: true}, []string{wrongRound}},
		{OverflowEarly, 3, []int{0, 2}, exact, []string{overwrites}},
		{RefusedNotDrained, 2, []int{0, 3}, refusing, []string{overwrites, otherRound, wrongRound}},
		{FlagBit, 2, []int{0, 1}, Config{Shards: 1, Node: []int{0, 0}}, []string{deadlock, wrongRound}},
		{FlagBit, 3, []int{0, 1}, Config{Shards: 1, Node: []int{0, 0, 1}}, []string{deadlock, wrongRound}},
		{FlagEqual, 3, []int{0, 1}, Config{Shards: 1, Node: []int{0, 0, 0}}, []string{deadlock}},
		{ImmediateFirst, 2, []int{0, 1}, plain, []string{wrongRound}},
	} {
		t.Run(tc.mutant.String(), func(t *testing.T) {
			r := rand.New(rand.NewPCG(5, uint64(tc.ranks)))
			for range 12 {
				c := tc.Config
				c.Mutant = tc.mutant
				c.Routing = sampleRouting(r, tc.ranks, 3, tc.rows)
				got, err := Explore(c, maxStates)
				if err != nil {
					t.Fatal(err)
				}
				if got.Violation == nil {
					continue
				}
				for _, rule := range tc.rules {
					if strings.Contains(got.Violation.Rule, rule) {
						t.Logf("%d ranks: after %d states, %d events: %s", tc.ranks, got.States, len(got.Violation.Trace), got.Violation.Rule)
						c.Mutant = None
						if tc.ranks == 2 {
							mustHold(t, c)
						}
						return
					}
				}
				t.Fatalf("broke an unexpected rule: %v", got.Violation)
			}
			t.Fatal("no violation found: the check proves nothing about this rule")
		})
	}
}

// A config outside the limits, or more states than allowed, is an error.
func TestExploreRefusesBadConfigs(t *testing.T) {
	good := sampleRouting(rand.New(rand.NewPCG(1, 1)), 2, 2, []int{0, 1})
	for name, c := range map[string]Config{
		"no rounds":        {Shards: 1},
		"one rank":         {Shards: 1, Routing: Routing{{{0}}}},
		"ragged":           {Shards: 1, Routing: Routing{{{0, 1}, {0}}}},
		"ragged rounds":    {Shards: 1, Routing: Routing{good[0], {{0}}}},
		"negative rows":    {Shards: 1, Routing: Routing{{{0, -1}, {0, 0}}}},
		"no shards":        {Routing: good},
		"three shards":     {Shards: 3, Routing: good},
		"no window":        {Shards: 1, Exact: true, Routing: good},
		"exact and direct": {Shards: 1, Exact: true, WindowRows: 1, Node: []int{0, 0}, Routing: good},
		"nodes":            {Shards: 1, Node: []int{0}, Routing: good},
		"mutant":           {Shards: 1, Mutant: numMutants, Routing: good},
	} {
		if _, err := Explore(c, 10); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := Explore(Config{Shards: 1, Routing: good}, 10); err == nil {
		t.Error("a partial exploration passed for a whole one")
	}
}
