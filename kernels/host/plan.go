package host

import "moerail/kernels/abi"

// plan is what dispatch_send works out before it writes a row. All of it follows
// from ids and placement in (token, pick) order: the same on every run.
type plan struct {
	expert []int32  // [T][K]: physical expert, -1 = none
	index  []uint32 // [T][K]: position among this rank's picks of that expert
	count  []uint32 // [E]
	rows   []uint32 // [R]: rows for each rank
	picks  []uint32 // [R]: picks for each rank

	// Rows for one rank, in token order: a list of row numbers into token and next.
	head  []int32 // [R], -1 = none
	tail  []int32 // [R]
	token []uint32
	next  []int32
	ranks []uint32 // of one token, ascending

	// Quantised tokens: codes and scales, and by which dispatch_send they were made.
	seq       uint64
	codes     []byte
	scales    []float32
	quantised []uint64
	wide      []float32 // one token as float32
}

// reset makes an empty plan for a round of shape sh.
func (p *plan) reset(sh *abi.Shape) {
	t, k, e, n := int(sh.MaxTokens), int(sh.TopK), int(sh.NumExperts), int(sh.NumRanks)
	p.expert = grow(p.expert, t*k)
	p.index = grow(p.index, t*k)
	p.count = grow(p.count, e)
	p.rows = grow(p.rows, n)
	p.picks = grow(p.picks, n)
	p.head = grow(p.head, n)
	p.tail = grow(p.tail, n)
	p.token = grow(p.token, t*min(k, n))
	p.next = grow(p.next, t*min(k, n))
	p.ranks = grow(p.ranks, k)
	p.seq++
	if sh.In != sh.Wire {
		h, block := int(sh.Hidden), int(sh.ScaleBlock)
		p.codes = grow(p.codes, t*h)
		p.scales = grow(p.scales, t*((h+block-1)/block))
		p.quantised = grow(p.quantised, t)
		p.wide = grow(p.wide, h)
	}
	clear(p.count)
	clear(p.rows)
	clear(p.picks)
	for q := range p.head {
		p.head[q], p.tail[q] = -1, -1
	}
}

// readIDs converts the ids of t tokens and refuses the first that is no expert.
func (r *stageRun) readIDs(p *abi.DispatchSendParams, t int) bool {
	pl := &r.plan
	k := int(r.sh.TopK)
	rank := view[uint32](r.sl.ExpertRank, int(r.sh.NumExperts))
	local := view[uint32](r.sl.ExpertLocal, int(r.sh.NumExperts))
	n := t * k
	ids32, ids64 := []int32(nil), []int64(nil)
	if p.IDType == abi.IDInt64 {
		ids64 = view[int64](p.IDs, n)
	} else {
		ids32 = view[int32](p.IDs, n)
	}
	for i := range n {
		var id int64
		switch p.IDType {
		case abi.IDInt64:
			id = ids64[i]
		case abi.IDUint32:
			id = int64(uint32(ids32[i]))
			if id == 1<<32-1 {
				id = -1
			}
		default:
			id = int64(ids32[i])
		}
		// An expert that the placement puts nowhere is refused like one that is not.
		if id != -1 && (uint64(id) >= uint64(len(rank)) || rank[id] >= r.sh.NumRanks || local[id] >= r.sh.MaxLocalExperts) {
			r.fault(abi.Status{Code: abi.CodeInvalidExpert, Peer: r.sh.Rank, Token: uint32(i / k),
				Pick: uint32(i % k), Value: id, Limit: int64(r.sh.NumExperts)})
			return false
		}
		pl.expert[i] = int32(id)
	}
	return true
}

// count fills the plan and Home for t tokens whose ids are read.
func (r *stageRun) count(p *abi.DispatchSendParams, t int) {
	pl := &r.plan
	k := int(r.sh.TopK)
	atHome := r.sh.ReduceAtHome != 0
	rank := view[uint32](r.sl.ExpertRank, int(r.sh.NumExperts))
	home := view[uint32](r.sl.Home, t*(1+2*k))
	var homeW, weights []float32
	if atHome {
		homeW = view[float32](r.sl.HomeWeights, t*k)
	}
	if r.sh.ApplyWeights != 0 {
		weights = view[float32](p.Weights, t*k)
	}
	last := int32(0)
	for tok := range t {
		h := home[tok*(1+2*k) : (tok+1)*(1+2*k)]
		n, nr := 0, 0
		for j := range k {
			i := tok*k + j
			e := pl.expert[i]
			if e < 0 {
				continue
			}
			pl.index[i] = pl.count[e]
			pl.count[e]++
			q := rank[e]
			if atHome {
				h[1+2*n], h[2+2*n] = q, pl.picks[q]
				homeW[tok*k+n] = 1
				if weights != nil {
					homeW[tok*k+n] = weights[i]
				}
				n++
			}
			pl.picks[q]++
			at := nr
			for at > 0 && pl.ranks[at-1] >= q {
				at--
			}
			if at < nr && pl.ranks[at] == q {
				continue
			}
			copy(pl.ranks[at+1:nr+1], pl.ranks[at:nr])
			pl.ranks[at] = q
			nr++
		}
		for _, q := range pl.ranks[:nr] {
			if !atHome {
				h[1+2*n], h[2+2*n] = q, pl.rows[q]
				n++
			}
			pl.rows[q]++
			pl.token[last], pl.next[last] = uint32(tok), -1
			if pl.tail[q] < 0 {
				pl.head[q] = last
			} else {
				pl.next[pl.tail[q]] = last
			}
			pl.tail[q] = last
			last++
		}
		h[0] = uint32(n)
	}
}
