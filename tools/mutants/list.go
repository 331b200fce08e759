package main

// Tests that several mutants name.
const (
	stages = "^TestRoundsOfRandomShapes$" // of ./kernels/host
	rounds = "^TestMutantRounds$"         // of ./moe
)

// mutants is the list. Each is a fault that somebody could make, in the code that
// a round goes through.
var mutants = []mutant{
	{
		name: "expert-tables", what: "each rank numbers its experts backwards",
		edits: []edit{{"moe/placed.go", "Store(pl.ExpertLocal[e])",
			"Store(uint32(len(pl.LocalExperts[pl.ExpertRank[e]])-1) - pl.ExpertLocal[e])"}},
		test: rounds, pkg: "./moe",
	}, {
		name: "expert-of-pick", what: "a row's picks all name the expert of the first one",
		edits: []edit{{"kernels/host/dispatch_send.go", "pick[0], pick[1], pick[2] = local[e], ",
			"pick[0], pick[1], pick[2] = local[max(pl.expert[tok*k], 0)], "}},
		test: stages, pkg: "./kernels/host",
	}, {
		name: "dropped-scale", what: "the scales of quantised tokens are not sent",
		edits: []edit{{"kernels/host/dispatch_send.go", "copy(view[float32](dst+uint64(sh.ScaleOffset), len(scales)), scales)", "_ = scales"}},
		test:  stages, pkg: "./kernels/host",
	}, {
		name: "dropped-side-bytes", what: "one side byte fewer is copied to the experts' rows",
		edits: []edit{{"kernels/host/hand_out.go", "side := view[byte](addr+uint64(sh.ScaleOffset), scale)",
			"side := view[byte](addr+uint64(sh.ScaleOffset), scale)[:max(scale-1, 0)]"}},
		test: stages, pkg: "./kernels/host",
	}, {
		name: "window-parity", what: "both parities use one window",
		edits: []edit{{"moe/routing/offset.go", "pl.slotIn.window[parity]", "pl.slotIn.window[0&parity]"}},
		test:  rounds + "/^ahead$", pkg: "./moe",
	}, {
		name: "counter-parity", what: "both parities count arrivals in one place",
		edits: []edit{
			{"dispatch/dispatch.go", "a := &s.in[m.Parity]", "a := &s.in[0&m.Parity]"},
			{"dispatch/dispatch.go", "s.in[s.round&1].reset()", "s.in[0].reset()"},
			{"dispatch/dispatch.go", "return s.in[s.round&1].complete", "return s.in[0].complete"},
		},
		test: rounds + "/^ahead$", pkg: "./moe",
	}, {
		name: "shard-offset", what: "shards after the first start a byte late",
		edits: []edit{{"moe/routing/shard.go", "off = min(uint64(i)*chunk, bytes)", "off = min(uint64(i)*(chunk+1), bytes)"}},
		test:  "^TestShardsCoverOnce$", pkg: "./moe/routing",
	}, {
		name: "shard-length", what: "the last byte of a block is not sent",
		edits: []edit{{"moe/routing/shard.go", "return off, min(chunk, bytes-off)", "return off, min(chunk, bytes-off-1)"}},
		test:  "^TestShardsCoverOnce$", pkg: "./moe/routing",
	}, {
		name: "shards-not-awaited", what: "a block counts as here when it is announced",
		edits: []edit{{"dispatch/dispatch.go", "if a.payload[src] == a.further[src] {", "if m.Kind == routing.KindDispatch {"}},
		test:  rounds, pkg: "./moe",
	}, {
		name: "return-row", what: "a token looks for its partial sum one row too far",
		edits: []edit{{"kernels/host/plan.go", "h[1+2*n], h[2+2*n] = q, pl.rows[q]\n", "h[1+2*n], h[2+2*n] = q, pl.rows[q]+1\n"}},
		test:  stages, pkg: "./kernels/host",
	}, {
		name: "pick-index", what: "picks of an expert are numbered from 1",
		edits: []edit{{"kernels/host/plan.go", "pl.index[i] = pl.count[e]\n\t\t\tpl.count[e]++", "pl.count[e]++\n\t\t\tpl.index[i] = pl.count[e]"}},
		test:  stages, pkg: "./kernels/host",
	}, {
		name: "weights-ignored", what: "the sum at the experts takes every weight for 1",
		edits: []edit{{"kernels/host/combine_send.go", "math.Float32frombits(picks[j+2])", "math.Float32frombits(0x3f800000)"}},
		test:  rounds, pkg: "./moe",
	}, {
		name: "home-weights-ignored", what: "the sum at home takes every weight for 1",
		edits: []edit{{"kernels/host/combine_recv.go", "w = weights[t*k+j]", "_ = weights[t*k+j]"}},
		test:  rounds, pkg: "./moe",
	}, {
		name: "sum-order", what: "partial sums are added in descending rank order",
		edits: []edit{{"kernels/host/plan.go", "for at > 0 && pl.ranks[at-1] >= q {", "for at > 0 && pl.ranks[at-1] <= q {"}},
		test:  rounds, pkg: "./moe",
	}, {
		name: "dispatch-buffer-reused", what: "dispatch_send does not wait until its last blocks have left",
		edits: []edit{{"kernels/host/dispatch_send.go", "r.awaitWord(ctlDispatchTxDone, r.round)", "r.awaitWord(ctlDispatchTxDone, 0)"}},
		test:  "^TestSendBuffersAreAwaited$", pkg: "./kernels/host",
	}, {
		name: "return-buffer-reused", what: "combine_send does not wait until its last blocks have left",
		edits: []edit{{"kernels/host/combine_send.go", "r.awaitWord(ctlCombineTxDone, r.round)", "r.awaitWord(ctlCombineTxDone, 0)"}},
		test:  "^TestSendBuffersAreAwaited$", pkg: "./kernels/host",
	}, {
		name: "sends-done-early", what: "the proxy says that blocks have left when they are posted",
		edits: []edit{{"dispatch/dispatch.go", "if s.posted && !s.txDone && s.cfg.Tracker.Outstanding() == 0 {", "if s.posted && !s.txDone {"}},
		test:  rounds + "/^behind$", pkg: "./moe",
	}, {
		name: "tag-ignored", what: "the proxy takes the device's word of an earlier round",
		edits: []edit{{"dispatch/dispatch.go", "if uint32(v) != routing.Tag(s.round) {", "if uint32(v) == 0 {"}},
		test:  rounds, pkg: "./moe",
	}, {
		name: "combine-tag-ignored", what: "the proxy takes combine's word of an earlier round",
		edits: []edit{{"combine/combine.go", "if uint32(v) != routing.Tag(s.round) {", "if uint32(v) == 0 {"}},
		test:  rounds, pkg: "./moe",
	}, {
		name: "combine-count", what: "the last return shard of a rank is not waited for",
		edits: []edit{{"combine/combine.go", "if s.got[q] != s.owed[q] {", "if s.got[q]+1 < s.owed[q] {"}},
		test:  rounds, pkg: "./moe",
	}, {
		name: "empty-return", what: "a return block without rows is sent",
		edits: []edit{{"combine/combine.go", "if rows == 0 {", "if rows == 1<<31 {"}},
		test:  rounds, pkg: "./moe",
	}, {
		name: "overflow-offset", what: "rows beyond the window lie one row further on",
		edits: []edit{{"dispatch/exact.go", "pl.OverflowOffset(s.cfg.Slot) + start*rowBytes", "pl.OverflowOffset(s.cfg.Slot) + (start+1)*rowBytes"}},
		test:  rounds + "/^exact$", pkg: "./moe",
	}, {
		name: "overflow-own-rows", what: "a rank's own rows take room in its overflow area, says the matrix",
		edits: []edit{{"moe/routing/matrix.go", "func (m *Matrix) beyond(p, q int) uint32 {\n\tif p == q {", "func (m *Matrix) beyond(p, q int) uint32 {\n\tif p < 0 {"}},
		test:  rounds + "/^exact$", pkg: "./moe",
	}, {
		name: "overflow-own-rows-device", what: "a rank's own rows take room in its overflow area, says the device",
		edits: []edit{{"kernels/host/run.go", "if src == r.self() || rows <= r.sh.WindowRows {", "if rows <= r.sh.WindowRows {"}},
		test:  rounds + "/^exact$", pkg: "./moe",
	}, {
		name: "overflow-limit", what: "one row more than a rank can receive is let through",
		edits: []edit{{"moe/routing/matrix.go", "if m.Received(q) > uint64(m.plan.Shape.MaxRecvRows) {",
			"if m.Received(q) > uint64(m.plan.Shape.MaxRecvRows)+1 {"}},
		test: "^TestOverflowTiles$", pkg: "./moe/routing",
	}, {
		name: "replica-lane", what: "with replicas every rank sends to every lane",
		edits: []edit{{"kernels/host/dispatch_send.go", "if uint32(q)%sh.Replicas == sh.Rank%sh.Replicas {", "if q >= 0 {"}},
		test:  rounds + "/^replicas$", pkg: "./moe",
	}, {
		name: "immediate-collision", what: "the slots' immediates overlap",
		edits: []edit{{"moe/routing/shard.go", "(uint32(m.Slot)*pl.kinds()+k)", "(uint32(m.Slot)*(pl.kinds()-1)+k)"}},
		test:  "^TestImmediates$", pkg: "./moe/routing",
	}, {
		name: "immediate-counted-twice", what: "an ImmCounter counts each arrival twice",
		edits: []edit{{"transport/engine/immcounter.go", "total := c.total.Load() + n ", "total := c.total.Load() + 2*n "}},
		test:  "^TestCounterIsMirrored$|^TestEarlyImmediatesAreKept$|^TestExpectationsRepeatAndEndOnce$", pkg: "./transport/engine",
	}, {
		name: "direct-flag", what: "the flag of a block that was stored directly says 1, not the round",
		edits: []edit{{"kernels/host/dispatch_send.go", "word(flags[int(r.round&1)*n+q]).Store(r.tag)", "word(flags[int(r.round&1)*n+q]).Store(1)"}},
		test:  rounds + "/^direct$", pkg: "./moe",
	}, {
		name: "direct-flag-early", what: "a flag of an earlier round is taken for this one's",
		edits: []edit{{"kernels/host/dispatch_recv.go", "waitFor{word(r.dispatchFlag(q)), r.tag}", "waitFor{word(r.dispatchFlag(q)), 1}"}},
		test:  "^TestAnEarlierRoundsFlagIsNoFlag$", pkg: "./kernels/host",
	}, {
		name: "padding-unmarked", what: "padding says that it is of expert 0",
		edits: []edit{{"kernels/host/dispatch_recv.go", "tail[i] = -1", "tail[i] = 0"}},
		test:  rounds, pkg: "./moe",
	}, {
		name: "alignment", what: "experts' first rows are not aligned",
		edits: []edit{{"kernels/host/dispatch_recv.go", "end += (c + align - 1) / align * align", "end += c / align * align + c%align"}},
		test:  rounds, pkg: "./moe",
	}, {
		name: "old-header", what: "a header's generation is not looked at",
		edits: []edit{{"kernels/host/dispatch_recv.go", "case gen != sh.Generation:", "case gen != sh.Generation && sh.NumRanks == 0:"}},
		test:  "^TestHeadersThatCannotBeTrue$", pkg: "./kernels/host",
	}, {
		name: "fp8-nan", what: "NaN becomes the largest number in fp8",
		edits: []edit{{"internal/numeric/numeric.go", "return sign | 0x7f\n", "return sign | 0x7e\n"}},
		test:  "^TestRoundingOfRandomBits$|^TestEveryCodeDecodesAsDefinedAndBack$", pkg: "./internal/numeric",
	}, {
		name: "bf16-truncated", what: "bf16 is cut off and not rounded",
		edits: []edit{{"internal/numeric/numeric.go", "return uint16((u + 0x7fff + u>>16&1) >> 16)", "return uint16(u >> 16)"}},
		test:  "^TestRoundingAtEveryBoundary$", pkg: "./internal/numeric",
	}, {
		name: "uneven-placement", what: "a rank looks at its own experts only when it refuses a configuration",
		edits: []edit{{"moe/routing/plan.go", "switch most := rows(s.MaxLocalExperts); {", "switch most := rows(s.NumLocalExperts); {"}},
		test:  "^TestUnevenPlacementIsRefusedEverywhere$", pkg: "./moe",
	},
}
