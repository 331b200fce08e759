package routing

// place fills the expert tables.
func (pl *Plan) place(p Params, f *Faults) {
	placement := p.Placement
	if placement == nil {
		placement = ConsecutivePlacement(p.NumRanks, p.NumExperts)
	}
	if len(placement) != p.NumRanks {
		f.Addf("placement has %d ranks, want %d", len(placement), p.NumRanks)
		return
	}
	const nowhere = ^uint32(0)
	pl.ExpertRank = make([]uint32, p.NumExperts)
	pl.ExpertLocal = make([]uint32, p.NumExperts)
	for e := range pl.ExpertRank {
		pl.ExpertRank[e] = nowhere
	}
	for r, list := range placement {
		for i, e := range list {
			switch {
			case e < 0 || int(e) >= p.NumExperts:
				f.Addf("placement rank %d names expert %d, want 0 to %d", r, e, p.NumExperts-1)
			case pl.ExpertRank[e] != nowhere:
				f.Addf("placement puts expert %d on rank %d and on rank %d, want one", e, pl.ExpertRank[e], r)
			default:
				pl.ExpertRank[e], pl.ExpertLocal[e] = uint32(r), uint32(i)
			}
		}
		if p.MaxLocalExperts > 0 && len(list) > p.MaxLocalExperts {
			f.Addf("placement gives rank %d %d experts, want at most max local experts, %d", r, len(list), p.MaxLocalExperts)
		}
		pl.LocalExperts = append(pl.LocalExperts, append([]int32(nil), list...))
	}
	for e, r := range pl.ExpertRank {
		if r == nowhere {
			f.Addf("placement leaves out expert %d, want each of 0 to %d on one rank", e, p.NumExperts-1)
		}
	}
}

// ConsecutivePlacement gives rank r the experts r*ceil(E/R) and up; with fewer
// experts than ranks the last ranks have none.
func ConsecutivePlacement(ranks, experts int) [][]int32 {
	if ranks < 1 {
		return nil
	}
	per := (experts + ranks - 1) / ranks
	out := make([][]int32, ranks)
	for r := range out {
		for e := r * per; e < min((r+1)*per, experts); e++ {
			out[r] = append(out[r], int32(e))
		}
	}
	return out
}
