package main

import (
	"math"
	"slices"
	"time"

	"moerail/internal/casefile"
)

// collection gathers entries.
type collection []entry

func (l *collection) add(id, file, shows string, b *builder) {
	*l = append(*l, entry{id: id, name: file, shows: shows, c: b.c})
}

func entries() []entry {
	var l collection
	l.routing()
	l.shapes()
	l.protocol()
	l.grid()
	l.refused()
	l.mismatches()
	return l
}

// routing is what the contents of ids and weights can do.
func (l *collection) routing() {
	b := newCase("ep01", 4, 8, 6, 64)
	b.full(0, 4, 4, 4)
	b.full(0, 0, 0, 0)
	for zero := range 4 {
		tokens := []int{2, 1, 3, 2}
		tokens[zero] = 0
		b.full(tokens...)
	}
	l.add("EP-01", "ep01_empty_ranks", "a rank without tokens, all of them, then each rank in turn", b)

	b = newCase("ep03", 2, 4, 2, 5)
	picks := [][]int32{{0, -1}, {-1, -1}, {3, 1}, {-1, 2}}
	b.round([]int{4, 0}, func(_, t int) []int32 { return picks[t] })
	b.round([]int{4, 4}, func(p, t int) []int32 { return picks[(t+p)%4] })
	l.add("EP-03", "ep03_missing_picks", "picks of -1: four rows move, the row of a token without picks is zero", b)

	b = newCase("ep04", 3, 4, 2, 4)
	bad := []int32{4, math.MaxInt32, -7, math.MinInt32, -2}
	for i, e := range bad {
		b.full(2, 2, 3)
		b.c.Rounds[i].Ranks[i%3].IDs[1][i%2] = e
	}
	b.full(2, 2, 3)
	l.add("EP-04", "ep04_invalid_ids", "ids E, 2^31-1, -7, -2^31, -2 on one rank: it is refused with token and pick, its experts serve the others; the next round is right", b)

	b = newCase("ep05", 2, 4, 2, 4)
	b.round([]int{1, 2}, func(p, t int) []int32 { return []int32{3, 3} })
	b.c.Rounds[0].Ranks[0].Weights = [][]float32{{.25, .75}}
	l.add("EP-05", "ep05_same_expert_twice", "the same expert twice for one token adds up", b)
	b = newCase("ep05b", 2, 6, 8, 4)
	b.round([]int{3, 2}, func(_, t int) []int32 {
		return [][]int32{{0, 1, 2, 3, 0, 1, 2, 3}, {5, 5, 5, 5, 5, 5, 5, 5}, {4, 0, 4, -1, 4, 5, 0, 0}}[t]
	})
	l.add("EP-05", "ep05_four_repeated", "top-8 with four experts repeated, and one expert eight times", b)

	b = newCase("ep07", 16, 16, 2, 4)
	b.c.MaxTokens, b.c.SendDepth = 40, 16
	b.round(same(16, 40), func(_, t int) []int32 { return []int32{int32(t % 2), int32(1 - t%2)} })
	b.round(same(16, 40), func(p, t int) []int32 { return []int32{0, 0} })
	l.add("EP-07", "ep07_all_to_one", "all tokens of 16 ranks to two experts, then to one, with a send queue of 16", b)
	b = newCase("ep07b", 4, 4, 2, 1)
	b.c.MaxTokens, b.c.SendDepth = 1024, 2
	b.round(same(4, 1024), func(_, t int) []int32 { return []int32{int32(t % 2), int32(1 - t%2)} })
	l.add("EP-07", "ep07_long_queue", "1,024 tokens a rank to one place with a send queue of 2", b)

	for _, weighted := range []bool{true, false} {
		for _, reduce := range []string{"expert", "home"} {
			on := map[bool]string{true: "on", false: "off"}[weighted]
			b = newCase("ep18", 2, 4, 2, 4)
			b.c.ApplyWeights, b.c.Reduce = weighted, reduce
			b.full(3, 2)
			for p := range b.c.Rounds[0].Ranks {
				for t := range b.c.Rounds[0].Ranks[p].Weights {
					b.c.Rounds[0].Ranks[p].Weights[t] = []float32{.5, .25}
				}
			}
			l.add("EP-18", name("ep18_weights_%s_%s", on, reduce), "weights .5 and .25 with apply_weights "+on+", sums at "+reduce, b)
		}
	}

	b = newCase("ep22", 4, 10, 3, 2)
	b.c.MaxTokens = 9
	for range 20 {
		b.mixed(b.r.IntN(10), b.r.IntN(10), b.r.IntN(10), b.r.IntN(10))
	}
	l.add("EP-22", "ep22_counts", "20 ragged rounds: counts per expert and rows per source agree with the ids", b)

	b = newCase("ep24", 4, 12, 2, 4)
	b.c.Placement = [][]int32{{0, 8, 4}, {9, 1, 5}, {2, 10, 6}, {3, 7, 11}} // 8 logical experts and 4 copies
	b.full(2, 3, 0, 1)
	b.full(2, 3, 0, 1)
	b.c.Rounds[1].Ranks[1].IDs[2][1] = 12
	b.full(2, 3, 0, 1)
	l.add("EP-24", "ep24_redundant_experts", "12 physical experts placed out of order; id 12 is refused", b)
}

// shapes is sizes that others refuse or mishandle.
func (l *collection) shapes() {
	for _, experts := range []int{513, 768, 896, 1032, 2048} {
		b := newCase("ep09", 4, experts, 4, 16)
		b.mixed(4, 0, 5, 3)
		ids := b.c.Rounds[0].Ranks[0].IDs
		ids[0] = []int32{int32(experts - 1), 0, 511, 512}
		l.add("EP-09", name("ep09_experts_%d", experts), name("%d experts", experts), b)
	}
	for _, k := range []int{1, 9, 10, 12, 16, 22, 32} {
		b := newCase(name("ep10 %d", k), 4, 64, k, 16)
		b.full(3, 0, 2, 4)
		b.mixed(1, 2, 3, 0)
		l.add("EP-10", name("ep10_topk_%d", k), name("top-%d of 64 experts", k), b)
	}
	for _, hidden := range []int{1, 8, 100, 1536, 2880, 3072, 3584, 12288} {
		for _, dtype := range []string{"bf16", "fp8"} {
			b := newCase(name("ep12 %d", hidden), 2, 4, 2, hidden)
			b.c.DType, b.c.OutDType = dtype, "bf16"
			if dtype == "fp8" {
				b.c.ScaleBlock = 128
			}
			b.full(1, min(1, 4000/hidden))
			l.add("EP-12", name("ep12_hidden_%d_%s", hidden, dtype), name("hidden %d in %s", hidden, dtype), b)
		}
	}
	b := newCase("ep14", 2, 4, 2, 3)
	b.c.MaxTokens = 1025
	b.full(1025, 1024)
	l.add("EP-14", "ep14_1025_tokens", "1,025 tokens a rank", b)

	b = newCase("one rank", 1, 3, 2, 4)
	b.mixed(5)
	b.mixed(0)
	l.add("ranks", "ranks_1", "one rank alone: nothing crosses the fabric", b)
	b = newCase("more ranks than experts", 7, 3, 2, 4)
	b.full(1, 2, 0, 3, 1, 0, 2)
	l.add("ranks", "ranks_7_experts_3", "fewer experts than ranks: four ranks have none", b)
	b = newCase("64 ranks", 64, 128, 4, 4)
	b.c.MaxTokens = 2
	tokens := same(64, 1)
	tokens[0], tokens[17], tokens[63] = 2, 0, 2
	b.mixed(tokens...)
	l.add("ranks", "ranks_64", "64 ranks", b)
	b = newCase("uneven split", 4, 9, 3, 4)
	b.full(2, 2, 1, 3)
	l.add("placement", "placement_uneven", "9 experts on 4 ranks: 3, 3, 3 and none", b)
	b = newCase("placement", 3, 7, 3, 4)
	b.c.Placement = [][]int32{{6, 0}, {}, {3, 1, 5, 2, 4}}
	b.full(2, 2, 3)
	b.mixed(0, 4, 1)
	l.add("placement", "placement_permuted", "experts placed out of order, a rank without any", b)
	for _, align := range []int{16, 128} {
		b = newCase("alignment", 3, 6, 2, 4)
		b.c.ExpertAlignment = align
		b.mixed(5, 3, 8)
		l.add("layout", name("alignment_%d", align), name("expert starts aligned to %d rows", align), b)
	}
}

// protocol is what time and order can do.
func (l *collection) protocol() {
	const ms = time.Millisecond
	b := newCase("ep17", 3, 6, 2, 8)
	inf := float32(math.Inf(1))
	odd := []float32{float32(math.NaN()), inf, -inf, float32(math.Copysign(0, -1)), math.SmallestNonzeroFloat32, math.MaxFloat32, -math.MaxFloat32, 0x1p-126}
	b.mixed(2, 0, 3)
	b.c.Rounds[0].Ranks[0].X[1] = odd
	b.c.Rounds[0].Ranks[0].IDs[1] = []int32{0, 5}
	b.mixed(2, 3, 1)
	l.add("EP-17", "ep17_nan_inf", "NaN, infinities, -0, subnormal and largest values are carried; the same places are clean in the next round", b)
	for _, dtype := range []string{"bf16", "fp16", "fp8"} {
		c := *b.c
		c.DType, c.OutDType = dtype, map[string]string{"bf16": "bf16", "fp16": "fp16", "fp8": "bf16"}[dtype]
		if dtype == "fp8" {
			c.ScaleBlock = 4
		}
		l.add("EP-17", "ep17_nan_inf_"+dtype, "the same in "+dtype, &builder{c: &c})
	}
	b = newCase("ep17b", 3, 6, 2, 4)
	b.c.Layout, b.c.MaxTokens, b.c.ExpertAlignment = "batched", 32, 16
	b.mixed(1, 0, 2)
	l.add("EP-17", "ep17_mostly_unwritten", "few rows in big buffers: what nobody wrote never reaches a sum", b)

	b = newCase("ep20", 4, 8, 4, 6)
	b.c.OutDType = "bf16"
	b.unordered(20, 400*time.Microsecond)
	b.full(3, 2, 1, 3).Repeat = 10
	own := b.c.Rounds[0].Ranks[0]
	for _, others := range [][]int{{3, 0, 0, 0}, {3, 8, 8, 8}, {3, 1, 5, 0}} {
		b.full(others...).Ranks[0] = own
	}
	l.add("EP-20", "ep20_reproducible", "one round ten times under random delays, then rank 0's tokens beside other batch sizes: its output never changes", b)

	for _, nics := range []int{2, 3, 4} {
		b = newCase("ep26", 4, 8, 4, 96)
		b.c.NICs = nics
		b.unordered(uint64(26+nics), 300*time.Microsecond)
		b.full(4, 3, 0, 4).Repeat = 3
		l.add("EP-26", name("ep26_unordered_%d_nics", nics), name("delivery in any order over %d NICs", nics), b)
	}
	b = newCase("ep25", 4, 8, 2, 3)
	b.unordered(25, 200*time.Microsecond)
	picks := make([][]int32, 12)
	for i := range picks {
		picks[i] = b.distinct(false)
	}
	for range 40 {
		b.round(same(4, 3), func(p, t int) []int32 { return picks[3*p+t] })
	}
	for i, phase := range []string{"dispatch_send", "dispatch_recv", "experts", "combine_send", "combine_recv"} {
		b.c.Faults.Pause = append(b.c.Faults.Pause, casefile.Pause{Rank: 2, Round: 3 + 7*i, Phase: phase, Length: 20 * ms})
	}
	l.add("EP-25", "ep25_slow_rank", "the same routing with another payload 40 times, rank 2 held up in each phase: nobody laps it", b)

	b = newCase("ep28", 4, 8, 2, 4)
	b.c.Slots = 2
	b.unordered(28, 200*time.Microsecond)
	for range 4 {
		b.mixed(3, 2, 0, 4)
		b.mixed(1, 0, 5, 2)
	}
	l.add("EP-28", "ep28_two_slots", "two micro-batches on two slots take turns", b)

	b = newCase("ep61", 3, 6, 2, 1)
	b.unordered(61, 50*time.Microsecond)
	b.mixed(1, 2, 0).Repeat = 60
	l.add("EP-61", "ep61_balanced_books", "60 rounds with late completions: nothing is outstanding at the end", b)

	b = newCase("ep62", 2, 4, 2, 4)
	b.c.RanksPerNode = 2
	for range 4 {
		b.full(3, 3)
	}
	b.c.Faults.Pause = []casefile.Pause{{Rank: 1, Round: 0, Phase: "dispatch_recv", Length: 30 * ms}, {Rank: 1, Round: 2, Phase: "combine_recv", Length: 30 * ms}}
	l.add("EP-62", "ep62_same_node_slow_reader", "one node; rank 1 reads late while rank 0 wants to go on", b)

	b = newCase("ep42", 3, 6, 2, 4)
	b.c.Deadline, b.c.FirstDeadline = 1000*ms, 5000*ms
	b.full(2, 2, 2)
	b.full(2, 2, 2)
	b.c.Faults.Pause = []casefile.Pause{{Rank: 1, Round: 0, Phase: "experts", Length: 100 * ms}, {Rank: 2, Round: 1, Phase: "dispatch_send", Length: 50 * ms}}
	l.add("EP-42", "ep42_pause_within_deadline", "pauses that the deadlines outlast, with a limit of its own for the first round", b)
	b = newCase("ep42b", 3, 6, 2, 4)
	b.c.Deadline = 150 * ms
	b.full(2, 2, 2)
	b.full(2, 2, 2)
	b.c.Faults.Pause = []casefile.Pause{{Rank: 1, Round: 1, Phase: "dispatch_send", Length: 600 * ms}}
	l.add("EP-42", "ep42_pause_beyond_deadline", "rank 1 is late for longer than the deadline: the others' error is deadline and names it", b)
	(*l)[len(*l)-1].open = true

	l.nodes()
	l.windows()
}

// nodes is ranks that share a node, and replica groups.
func (l *collection) nodes() {
	for _, per := range []int{2, 4} {
		for _, reduce := range []string{"expert", "home"} {
			b := newCase(name("nodes %d", per), 4, 8, 3, 8)
			b.c.RanksPerNode, b.c.Reduce = per, reduce
			b.mixed(3, 0, 2, 4)
			b.mixed(1, 5, 0, 2)
			l.add("nodes", name("nodes_of_%d_%s", per, reduce), name("4 ranks on nodes of %d, sums at %s", per, reduce), b)
		}
	}
	b := newCase("ep23", 4, 128, 1, 4)
	b.c.Replicas, b.c.RanksPerNode, b.c.MaxTokens = 2, 4, 64
	b.copies(b.full(64, 64, 64, 64))
	l.add("EP-23", "ep23_replicas_one_node", "two replica groups of two on one node, top-1: both lanes are busy, both replicas get equal output", b)
	for _, reduce := range []string{"expert", "home"} {
		b = newCase("ep23b", 8, 16, 3, 4)
		b.c.Replicas, b.c.RanksPerNode, b.c.Reduce = 2, 4, reduce
		b.copies(b.mixed(3, 3, 0, 0, 2, 2, 4, 4))
		b.copies(b.mixed(0, 0, 5, 5, 1, 1, 2, 2))
		l.add("EP-23", "ep23_replicas_two_nodes_"+reduce, "replica groups of two, 8 ranks on two nodes, sums at "+reduce, b)
	}
	b = newCase("ep23c", 8, 8, 2, 4)
	b.c.Replicas = 4
	b.copies(b.full(2, 2, 2, 2, 3, 3, 3, 3))
	l.add("EP-23", "ep23_replicas_of_4", "replica groups of four over the fabric", b)
}

// windows is rounds that do not fit the window, and what does not fit at all.
func (l *collection) windows() {
	toOne := func(_, t int) []int32 { return []int32{0, int32(1 + t%2)} }
	for _, rows := range []int{1, 3} {
		for _, nics := range []int{1, 2} {
			b := newCase(name("window %d", rows), 4, 12, 2, 8)
			b.c.WindowRows, b.c.NICs = rows, nics
			b.mixed(4, 0, 8, 2)
			b.round(same(4, 8), toOne)
			b.mixed(1, 1, 1, 1)
			l.add("window", name("window_%d_nics_%d", rows, nics), name("windows of %d rows: fitting and exact rounds in turn, %d NICs", rows, nics), b)
		}
	}
	b := newCase("exact unordered", 4, 8, 2, 8)
	b.c.WindowRows, b.c.Slots = 2, 2
	b.unordered(4, 300*time.Microsecond)
	for range 3 {
		b.mixed(6, 8, 0, 3)
		b.round([]int{8, 2, 8, 0}, toOne)
	}
	l.add("window", "window_unordered_slots", "windows of 2 rows, two slots, delivery in any order", b)

	b = newCase("ep16", 3, 6, 2, 4)
	b.c.MaxTokens = 4
	b.full(4, 2, 3)
	b.full(4, 5, 3)
	b.full(4, 4, 4)
	l.add("EP-16", "ep16_too_many_tokens", "one token above max_tokens on rank 1: refused, the others are served, the next round is right", b)
	b = newCase("ep16b", 4, 12, 2, 4)
	b.c.WindowRows, b.c.MaxRecvRows = 2, 16
	b.full(3, 4, 2, 3)
	b.round(same(4, 8), toOne)
	b.full(3, 4, 2, 3)
	l.add("EP-16", "ep16_overflow", "32 rows for rank 0 with room for 16: overflow on every rank, and the next round is right", b)
	b = newCase("ep16c", 4, 12, 2, 4)
	b.c.WindowRows, b.c.MaxRecvRows = 2, 32
	b.round(same(4, 8), toOne)
	l.add("EP-16", "ep16_exact_fit", "32 rows for rank 0 with room for exactly 32", b)
	b = newCase("ep16d", 4, 4, 2, 4)
	b.c.MaxRecvRows, b.c.RanksPerNode = 5, 2
	b.full(1, 1, 1, 1)
	b.round(same(4, 3), func(_, t int) []int32 { return []int32{1, 3} })
	b.full(1, 0, 2, 1)
	b.c.MaxTokens = 3
	l.add("EP-16", "ep16_two_overflow", "12 rows for ranks 1 and 3 with room for 5, windows that hold all and ranks that share nodes: one error that names both on every rank, and the next round is right", b)
}

// grid is each layout with each format and each way to sum, the other settings
// taking turns.
func (l *collection) grid() {
	n := 0
	for _, layout := range []string{"grouped", "batched", "rows"} {
		for _, dtype := range []string{"fp32", "bf16", "fp16", "fp8"} {
			for _, reduce := range []string{"expert", "home"} {
				file := name("grid_%s_%s_%s", layout, dtype, reduce)
				b := newCase(file, 4, 7, 3, 21)
				b.c.Layout, b.c.DType, b.c.Reduce = layout, dtype, reduce
				b.c.OutDType = []string{"fp32", "bf16", "fp16"}[n%3]
				if dtype == "fp8" {
					b.c.ScaleBlock = 8 // the last block of 21 is shorter
				}
				b.c.NICs = 1 + n%4
				b.c.Slots = 1 + n%2
				b.c.RanksPerNode = []int{0, 2, 0, 0, 4}[n%5]
				b.c.WindowRows = []int{0, 0, 2}[(n/2)%3]
				b.c.ExpertAlignment = []int{1, 4, 16}[(n/3)%3]
				if n%2 == 1 {
					b.unordered(uint64(n), 100*time.Microsecond)
				}
				b.mixed(5, 0, 3, 1)
				b.mixed(2, 4, 0, 6)
				l.add("grid", file, name("%s layout, %s in, %s out, sums at %s, %d NICs, %d slots, ranks_per_node %d, window_rows %d",
					layout, dtype, b.c.OutDType, reduce, b.c.NICs, b.c.Slots, b.c.RanksPerNode, b.c.WindowRows), b)
				n++
			}
		}
	}
}

// refused is inputs of a wrong shape: the rank is refused, nothing else is harmed.
func (l *collection) refused() {
	for _, f := range []struct {
		file, shows string
		spoil       func(in *casefile.RankInput)
	}{
		{"shape_short_x_row", "a row of x one value short", func(in *casefile.RankInput) { in.X[1] = in.X[1][:3] }},
		{"shape_long_x_row", "a row of x one value long", func(in *casefile.RankInput) { in.X[1] = append(slices.Clone(in.X[1]), 1) }},
		{"shape_missing_x_row", "one row of x fewer than tokens", func(in *casefile.RankInput) { in.X = in.X[:1] }},
		{"shape_ids_too_wide", "three ids with top-2", func(in *casefile.RankInput) { in.IDs[0] = []int32{0, 1, 2} }},
		{"shape_no_ids", "x and weights without ids", func(in *casefile.RankInput) { in.IDs = nil }},
		{"shape_weights_too_narrow", "one weight with top-2", func(in *casefile.RankInput) { in.Weights[1] = in.Weights[1][:1] }},
		{"shape_no_weights", "no weights with apply_weights", func(in *casefile.RankInput) { in.Weights = nil }},
	} {
		b := newCase(f.file, 3, 6, 2, 4)
		b.full(2, 2, 1)
		f.spoil(&b.c.Rounds[0].Ranks[0])
		b.full(2, 2, 1)
		l.add("shape", f.file, f.shows+": that rank is refused, the others are served", b)
	}
}

// mismatches is EP-33: one rank with another value of one field.
func (l *collection) mismatches() {
	for _, f := range []struct {
		key string
		set func(p *casefile.Params)
	}{
		{"experts", func(p *casefile.Params) { p.Experts = 12 }},
		{"top_k", func(p *casefile.Params) { p.TopK = 3 }},
		{"hidden", func(p *casefile.Params) { p.Hidden = 128 }},
		{"max_tokens", func(p *casefile.Params) { p.MaxTokens = 16 }},
		{"dtype", func(p *casefile.Params) { p.DType = "bf16" }},
		{"out_dtype", func(p *casefile.Params) { p.OutDType = "bf16" }},
		{"reduce", func(p *casefile.Params) { p.Reduce = "home" }},
		{"replicas", func(p *casefile.Params) { p.Replicas = 2 }},
		{"ranks_per_node", func(p *casefile.Params) { p.RanksPerNode = 2 }},
		{"nics", func(p *casefile.Params) { p.NICs = 2 }},
		{"slots", func(p *casefile.Params) { p.Slots = 2 }},
		{"window_rows", func(p *casefile.Params) { p.WindowRows = 4 }},
		{"placement", func(p *casefile.Params) { p.Placement = [][]int32{{0, 1}, {2, 3}, {4, 5}, {7, 6}} }},
	} {
		b := newCase("ep33", 4, 8, 2, 256)
		b.full(1, 0, 0, 0)
		o := casefile.Override{Keys: []string{f.key}}
		f.set(&o.Values)
		b.c.Overrides = map[int]casefile.Override{1: o}
		l.add("EP-33", "ep33_mismatch_"+f.key, "rank 1 has another "+f.key+": set-up fails on every rank and names field and rank", b)
	}
	b := newCase("ep33b", 5, 10, 2, 8)
	b.full(1, 1, 1, 1, 1)
	o := casefile.Override{Keys: []string{"hidden"}, Values: casefile.Params{Hidden: 16}}
	b.c.Overrides = map[int]casefile.Override{0: o, 3: o}
	l.add("EP-33", "ep33_mismatch_two_ranks", "ranks 0 and 3 differ from the other three: both are named", b)
}
