package moe

// wireCount is what one rank's NICs sent.
type wireCount struct{ messages, bytes uint64 }

func (w *world) wire() []wireCount {
	out := make([]wireCount, len(w.cs))
	for r, c := range w.cs {
		for _, n := range c.engine.Stats().NICs {
			out[r].messages += n.Messages
			out[r].bytes += n.Bytes
		}
	}
	return out
}

func up(n, to uint64) uint64 { return (n + to - 1) / to * to }

// wireByHand is what every rank must send for a round, from the protocol's text.
func (w *world) wireByHand(toks []tokens) []wireCount {
	c := &w.cs[0].cfg
	size := map[DType]uint64{FP32: 4, BF16: 2, FP16: 2, FP8: 1}
	maxLocal := uint64(c.MaxLocalExperts)
	owner, local := w.owners()
	for e := range owner {
		maxLocal = max(maxLocal, uint64(local[e])+1)
	}
	for _, l := range w.s.cfg.Placement { // sized for the first one
		maxLocal = max(maxLocal, uint64(len(l)))
	}
	h := uint64(c.Hidden)
	side := uint64(c.ScaleBytes)
	if c.InDType != c.DType {
		side = 4 * ((h + uint64(c.ScaleBlock) - 1) / uint64(c.ScaleBlock))
	}
	header := up(24+4*maxLocal, 64)
	row := up(h*size[c.DType], 16) + up(side, 16) + up(8+12*uint64(c.TopK), 16)
	back := up(h*size[c.OutDType], 16)
	limit := uint64(c.ShardBytes)
	if limit == 0 {
		limit = 64 << 10
	}
	shards := func(bytes uint64) uint64 { return max(1, min((bytes+limit-1)/limit, uint64(w.s.nics))) }
	window := uint64(c.WindowRows)
	if window == 0 {
		window = uint64(c.MaxTokens)
	}
	exact := window < uint64(c.MaxTokens) ||
		c.MaxRecvRows > 0 && c.MaxRecvRows < c.MaxTokens*len(w.cs)/c.Replicas

	rows, picks := w.rowsBetween(toks)
	returned := rows
	if c.ReduceAtHome {
		returned = picks
	}
	out := make([]wireCount, len(w.cs))
	for p := range out {
		send := func(bytes uint64) {
			out[p].messages += shards(bytes)
			out[p].bytes += bytes
		}
		for q := range out {
			if p == q || w.cs[p].direct[q] {
				continue
			}
			n := uint64(0)
			if w.sameLane(p, q) {
				n = uint64(rows[p][q])
			}
			if exact {
				send(4 * uint64(len(out)))
				send(header + min(n, window)*row)
				if n > window {
					send((n - window) * row)
				}
			} else {
				send(header + n*row)
			}
			// q's tokens reach p through the rank of q's group that is of p's lane, and
			// their sums go to every rank of the group.
			if n := uint64(returned[q][p]); n > 0 {
				send(n * back)
			}
		}
	}
	return out
}
