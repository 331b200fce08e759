package routing

// Tag is how a round is written in words that hold a row count too: never the
// value of the round before, and not 0 for round 0.
func Tag(round uint64) uint32 { return uint32(round + 1) }

// Word is what a device writes for a peer: rows and the tag of the round.
func Word(round uint64, rows uint32) uint64 { return uint64(rows)<<32 | uint64(Tag(round)) }

// Others lists every rank but me, starting after me: the order in which blocks
// are made and sent, so that not all ranks write to the same one first.
func Others(me, ranks int) []int {
	out := make([]int, 0, ranks)
	for i := 1; i < ranks; i++ {
		out = append(out, (me+i)%ranks)
	}
	return out
}
