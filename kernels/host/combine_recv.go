package host

import "moerail/kernels/abi"

// combineRecv: see abi.CombineRecvParams. Each token is
//
//	round(((0 + w*row) + w*row) + ...  [+ what Out holds])
//
// over its pairs in Home, in their order. It ends the round: Round is advanced
// whatever became of it, so that the slot can start the next, except when the
// stream was stopped, or dispatch_recv ended the round already. Where the round
// was given up (CodeAborted, CodeStopped), Out is left as it was. Late then names
// the same-node ranks whose flag had not come, and all others that owe rows:
// return blocks carry no header to tell them apart by.
func (r *stageRun) combineRecv(p *abi.CombineRecvParams) {
	r.begin(abi.StageCombineRecv, &p.Shape, &p.Slot)
	if r.ended() {
		return
	}
	code := r.awaitReturns()
	switch code {
	case abi.CodeOK:
		r.sumTokens(p)
	case abi.CodeAborted:
		r.fault(abi.Status{Code: code, Peer: r.sh.Rank, Late: r.lateReturns()})
	default:
		r.fault(abi.Status{Code: code, Peer: r.sh.Rank})
		return
	}
	word(r.sl.Round).Store(r.tag)
}

func (r *stageRun) awaitReturns() uint32 {
	if code, over := r.interrupted(false); over {
		return code
	}
	remote := false
	for q, rows := range view[uint32](r.sl.ReturnRows, r.ranks()) {
		switch {
		case q == r.self() || rows == 0:
		case r.returnsTo(q) != 0:
			r.waits = append(r.waits, waitFor{word(r.combineFlag(q)), r.tag})
		default:
			remote = true
		}
	}
	if remote {
		r.waits = append(r.waits, waitFor{control(r.sl.Control, ctlCombineArrived), r.tag})
	}
	return r.await(false)
}

func (r *stageRun) lateReturns() (late [abi.MaxRanks / 64]uint64) {
	arrived := control(r.sl.Control, ctlCombineArrived).Load() >= r.tag
	for q, rows := range view[uint32](r.sl.ReturnRows, r.ranks()) {
		if q == r.self() || rows == 0 {
			continue
		}
		if r.returnsTo(q) != 0 {
			if word(r.combineFlag(q)).Load() >= r.tag {
				continue
			}
		} else if arrived {
			continue
		}
		late[q/64] |= 1 << (q % 64)
	}
	return late
}

func (r *stageRun) sumTokens(p *abi.CombineRecvParams) {
	sh := r.sh
	k, size := int(sh.TopK), int(sh.OutRowBytes)
	tokens := int(min(view[uint32](r.sl.Tokens, 1)[0], sh.MaxTokens))
	home := view[uint32](r.sl.Home, tokens*(1+2*k))
	var weights []float32
	if sh.ReduceAtHome != 0 {
		weights = view[float32](r.sl.HomeWeights, tokens*k)
	}
	for t := range tokens {
		h := home[t*(1+2*k) : (t+1)*(1+2*k)]
		r.rows, r.w = r.rows[:0], r.w[:0]
		for j := range int(h[0]) {
			q, row := uint64(h[1+2*j]), uint64(h[2+2*j])
			r.rows = append(r.rows, view[byte](r.sl.ReturnWindow+q*sh.ReturnStride+row*uint64(sh.ReturnRowBytes), size))
			w := float32(1)
			if weights != nil {
				w = weights[t*k+j]
			}
			r.w = append(r.w, w)
		}
		out := view[byte](p.Out+uint64(t)*p.OutStride, size)
		if p.Accumulate != 0 {
			r.rows, r.w = append(r.rows, out), append(r.w, 1)
		}
		r.sum(out)
	}
}
