package replay

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"moerail/cmd/moerail/internal/affine"
	"moerail/internal/casefile"
	"moerail/moe"
)

// phases, as indices of casefile.Phases.
const (
	setup = iota
	dispatchSend
	dispatchRecv
	experts
	combineSend
	combineRecv
	closing
)

// player is one rank of a case; one goroutine at a time plays it.
type player struct {
	p       *play
	rank    int
	params  casefile.Params
	comm    *moe.Communicator
	experts *affine.Experts
	results []*casefile.RankResult // by round
	wire    []moe.SlotWire         // by round
	last    []moe.SlotWire         // by slot, after its last round
	dead    *casefile.Error        // why the communicator is of no more use

	phase   atomic.Int32  // of casefile.Phases
	entered atomic.Uint64 // phases entered
}

func newPlayer(p *play, rank int) *player {
	n := p.c.NumRounds()
	return &player{p: p, rank: rank, params: p.c.RankParams(rank), wire: make([]moe.SlotWire, n),
		results: make([]*casefile.RankResult, n)}
}

// enter marks a phase and sits out the pauses that the case has there.
func (r *player) enter(ctx context.Context, phase, round int) {
	r.phase.Store(int32(phase))
	r.entered.Add(1)
	for _, f := range r.p.c.Faults.Pause {
		outside := phase == setup || phase == closing // of any round
		if f.Rank != r.rank || f.Phase != casefile.Phases[phase] || !outside && f.Round != round {
			continue
		}
		t := time.NewTimer(f.Length)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
		}
	}
}

func (r *player) open(ctx context.Context) error {
	r.enter(ctx, setup, 0)
	cfg := r.p.config(r.rank)
	c, err := moe.New(ctx, cfg)
	if err != nil {
		return err
	}
	r.comm, r.last = c, make([]moe.SlotWire, max(r.params.Slots, 1))
	e := affine.Config{Layout: cfg.Layout, TopK: cfg.TopK, Hidden: cfg.Hidden, In: cfg.DType, Out: cfg.OutDType, ScaleBlock: cfg.ScaleBlock}
	for _, id := range c.LocalExperts() {
		e.Scale = append(e.Scale, r.p.c.Scale[id])
		e.Bias = append(e.Bias, r.p.c.Bias[id])
	}
	r.experts = affine.New(e)
	return nil
}

func (r *player) close(ctx context.Context) {
	r.enter(ctx, closing, 0)
	if r.comm != nil {
		r.comm.Close() // its errors are not of any round
	}
}

// play goes through all rounds, Slots of them in flight together.
func (r *player) play(ctx context.Context) {
	slots := r.params.Slots
	for first := 0; first < len(r.results); first += slots {
		n := min(slots, len(r.results)-first)
		flights := make([]flight, n)
		for s := range flights {
			flights[s] = flight{slot: s, round: first + s, res: r.newResult(first + s)}
			r.send(ctx, &flights[s])
		}
		for s := range flights {
			r.serve(ctx, &flights[s])
		}
		for s := range flights {
			r.finish(ctx, &flights[s])
		}
	}
}

// flight is one round between its first call and its last.
type flight struct {
	slot, round int
	tokens      int
	over        bool // no further call belongs to it
	res         *casefile.RankResult
}

func (r *player) newResult(round int) *casefile.RankResult {
	res := &casefile.RankResult{Active: slices.Repeat([]bool{true}, r.p.c.Ranks)}
	r.results[round] = res
	return res
}

// failed ends a flight without a result.
func (r *player) failed(f *flight, phase int, err error) {
	f.over = true
	f.res.Error = roundError(err, phase, f.round, r.rank)
	f.res.Out = nil
	if ends(f.res.Error.Code) {
		r.dead = f.res.Error
	}
}

func (r *player) send(ctx context.Context, f *flight) {
	r.enter(ctx, dispatchSend, f.round)
	if r.dead != nil {
		f.over, f.res.Error = true, r.dead
		return
	}
	in := r.p.inputs[f.round][r.rank]
	if f.res.Error = ragged(in, &r.params, f.round, r.rank); f.res.Error == nil {
		f.tokens = len(in.IDs)
		err := r.comm.DispatchSend(f.slot, encodeInput(in, &r.params))
		if err == nil {
			return
		}
		f.tokens = 0
		if refused := roundError(err, dispatchSend, f.round, r.rank); refusal(refused.Code) {
			f.res.Error = refused
		} else {
			r.failed(f, dispatchSend, err)
			return
		}
	}
	// The input was refused on the host: the round has not begun, and takes place
	// without this rank's tokens.
	if err := r.comm.DispatchSend(f.slot, moe.Input{}); err != nil {
		r.failed(f, dispatchSend, err)
	}
}

// serve receives, computes and sends back.
func (r *player) serve(ctx context.Context, f *flight) {
	r.enter(ctx, dispatchRecv, f.round)
	if f.over {
		return
	}
	b, err := r.comm.DispatchRecv(f.slot)
	if b == nil {
		r.failed(f, dispatchRecv, err)
		return
	}
	if err != nil { // it has no batch of its own, but serves the others
		f.res.Error = roundError(err, dispatchRecv, f.round, r.rank)
		if refusal(f.res.Error.Code) {
			f.tokens = 0
		}
	}
	f.res.ExpertCounts = widen(b.Counts)
	f.res.SourceRows = widen(b.SourceRows)
	r.enter(ctx, experts, f.round)
	r.experts.Apply(b)
	r.enter(ctx, combineSend, f.round)
	if err := r.comm.CombineSend(f.slot, nil, 0); err != nil {
		r.failed(f, combineSend, err)
	}
}

func (r *player) finish(ctx context.Context, f *flight) {
	r.enter(ctx, combineRecv, f.round)
	if !f.over {
		out := newOutput(f.tokens, &r.params)
		err := r.comm.CombineRecv(f.slot, out, 0)
		switch {
		case err == nil:
			f.res.Out = decodeOutput(out, f.tokens, &r.params)
		case f.res.Error != nil && refusal(string(moe.CodeOf(err))):
			f.res.Out = casefile.Matrix{} // the refusal of before, said again
		default:
			r.failed(f, combineRecv, err)
		}
	}
	now, last := r.comm.SlotWire(f.slot), r.last[f.slot]
	r.wire[f.round] = moe.SlotWire{Messages: now.Messages - last.Messages, Bytes: now.Bytes - last.Bytes, Rows: now.Rows - last.Rows}
	r.last[f.slot] = now
}

func widen[T int32 | uint32](counts []T) []int64 {
	out := make([]int64, len(counts))
	for i, n := range counts {
		out[i] = int64(n)
	}
	return out
}
