package casefile

import (
	"fmt"
	"math"
	"slices"
)

// Bounds of what a case may ask for as a whole; a bigger experiment is not a
// case file but a run.
const (
	maxWindowValues = 1 << 28 // ranks x ranks x rows of a window x hidden
	maxOutputValues = 1 << 26 // tokens x hidden over all ranks and all rounds
)

// check reports what single values cannot show.
func (c *Case) check(w *walker) {
	if (c.DType == "fp8") != (c.ScaleBlock > 0) {
		w.faultAt("scale_block", "is %d with dtype %s: it is above 0 for fp8 and 0 otherwise", c.ScaleBlock, c.DType)
	}
	if c.Ranks%c.Replicas != 0 {
		w.faultAt("replicas", "is %d, does not divide ranks %d", c.Replicas, c.Ranks)
	}
	if len(c.Scale) != c.Experts {
		w.faultAt("expert_fn.scale", "has %d numbers, experts is %d", len(c.Scale), c.Experts)
	}
	if len(c.Bias) != c.Experts {
		w.faultAt("expert_fn.bias", "has %d numbers, experts is %d", len(c.Bias), c.Experts)
	}
	if c.Placement != nil {
		c.checkPlacement(w)
	}
	for _, rank := range sortedKeys(c.Overrides) {
		c.checkRank(w, fmt.Sprintf("rank_overrides.%d", rank), rank)
	}
	c.checkFaults(w)
	c.checkRounds(w)
	window := c.MaxTokens
	if c.WindowRows > 0 {
		window = min(window, c.WindowRows)
	}
	if n := c.Ranks * c.Ranks * window * c.Hidden; n > maxWindowValues { // at most 2^52
		w.faultAt("max_tokens", "ranks x ranks x window rows x hidden is %d values, the limit is %d", n, maxWindowValues)
	}
}

func sortedKeys(m map[int]Override) []int {
	var keys []int
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func (c *Case) checkRank(w *walker, path string, rank int) {
	if rank >= c.Ranks {
		w.faultAt(path, "is rank %d, the range is 0..%d", rank, c.Ranks-1)
	}
}

func (c *Case) checkPlacement(w *walker) {
	if len(c.Placement) != c.Ranks {
		w.faultAt("placement", "has %d lists, ranks is %d", len(c.Placement), c.Ranks)
	}
	at := make([]string, c.Experts)
	for q, experts := range c.Placement {
		for i, e := range experts {
			path := fmt.Sprintf("placement[%d][%d]", q, i)
			switch {
			case int(e) >= c.Experts:
				w.faultAt(path, "is expert %d, the range is 0..%d", e, c.Experts-1)
			case at[e] != "":
				w.faultAt(path, "expert %d is already at %s", e, at[e])
			default:
				at[e] = path
			}
		}
	}
	for e, path := range at {
		if path == "" {
			w.faultAt("placement", "expert %d is on no rank", e)
		}
	}
}

func (c *Case) checkFaults(w *walker) {
	f := &c.Faults
	entry := func(key string, i int) string { return fmt.Sprintf("faults.%s[%d]", key, i) }
	for i, p := range f.Pause {
		c.checkRank(w, entry("pause", i)+".rank", p.Rank)
	}
	for i, k := range f.Kill {
		c.checkRank(w, entry("kill", i)+".rank", k.Rank)
	}
	for i, r := range f.Absent {
		c.checkRank(w, entry("absent", i), r)
	}
	for i, r := range f.FailRegister {
		c.checkRank(w, entry("fail_register", i)+".rank", r.Rank)
	}
	rails := func(key string, list []Rail) {
		for i, r := range list {
			c.checkRank(w, entry(key, i)+".rank", r.Rank)
			if r.NIC >= c.RankParams(r.Rank).NICs {
				w.faultAt(entry(key, i)+".nic", "is %d, the range is 0..%d", r.NIC, c.RankParams(r.Rank).NICs-1)
			}
		}
	}
	rails("rail_down", f.RailDown)
	rails("rail_up", f.RailUp)
	side := map[int]bool{}
	for i, group := range f.Partition {
		for j, r := range group {
			path := fmt.Sprintf("faults.partition[%d][%d]", i, j)
			c.checkRank(w, path, r)
			if side[r] {
				w.faultAt(path, "rank %d is there twice", r)
			}
			side[r] = true
		}
	}
}

func (c *Case) checkRounds(w *walker) {
	if n := c.NumRounds(); n > maxRepeat {
		w.faultAt("rounds", "%d rounds with their repeats, the limit is %d", n, maxRepeat)
	}
	var values int64
	for i, r := range c.Rounds {
		path := fmt.Sprintf("rounds[%d]", i)
		if len(r.Ranks) != c.Ranks {
			w.faultAt(path+".ranks", "has %d entries, ranks is %d", len(r.Ranks), c.Ranks)
			continue
		}
		for p, in := range r.Ranks {
			values += int64(len(in.X)) * int64(c.Hidden) * int64(r.Repeat)
			if first := p - p%c.Replicas; c.Ranks%c.Replicas == 0 && !in.equal(r.Ranks[first], c.ApplyWeights) {
				w.faultAt(fmt.Sprintf("%s.ranks[%d]", path, p), "differs from rank %d, of the same group of %d replicas", first, c.Replicas)
			}
		}
	}
	if values > maxOutputValues {
		w.faultAt("rounds", "%d output values over all rounds, the limit is %d", values, maxOutputValues)
	}
}

func (in RankInput) equal(other RankInput, weights bool) bool {
	same := func(a, b []float32) bool {
		return slices.EqualFunc(a, b, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) })
	}
	return slices.EqualFunc(in.X, other.X, same) && slices.EqualFunc(in.IDs, other.IDs, slices.Equal) &&
		(!weights || slices.EqualFunc(in.Weights, other.Weights, same))
}
