package rounds

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"runtime"
	"time"

	"moerail/cmd/moerail/internal/affine"
	"moerail/internal/workload"
	"moerail/moe"
)

// phases of a round, as they index phaseNanos.
const (
	dispatchSend = iota
	dispatchRecv
	combineSend
	combineRecv
	numPhases
)

var phaseNames = [numPhases]string{"dispatch_send", "dispatch_recv", "combine_send", "combine_recv"}

// phaseNanos is one round on one rank.
type phaseNanos [numPhases]int64

// rank is one rank's loop. Everything it touches in a step is made before the
// first step; a step allocates nothing.
type rank struct {
	opt     *Options
	comm    *moe.Communicator
	p       int // rank number
	owner   int // whose tokens it brings
	n       int // tokens
	model   *model
	load    *payload
	routing workload.Source
	experts *affine.Experts
	judge   *judge // nil: nothing is checked
	checked bool   // the experts run, and their results are checked, in this step
	barrier func() error
	// between is called by rank 0 in the untimed part of each step with the
	// number of rounds done; it tells how many allocations it made itself.
	between func(done int) (mallocs uint64)

	ids     [][]int32   // per slot
	weights [][]float32 // per slot
	out     [][]byte    // per slot
	outRow  int         // bytes
	started []phaseNanos
	times   []phaseNanos // [rounds], rounds outside the measurement excepted

	outstanding int    // most seen; asking allocates, so not within the measured rounds
	excused     uint64 // allocations made by between
}

// newRank prepares a rank around an open communicator.
func newRank(o *Options, c *moe.Communicator, m *model, barrier func() error) (*rank, error) {
	r := &rank{opt: o, comm: c, p: c.Rank(), model: m, load: m.load, barrier: barrier}
	r.owner = o.owner(r.p)
	r.n = o.Tokens[r.p]
	r.routing = m.routing
	r.experts = m.experts(o, r.p)
	var err error
	if o.Verify != "off" {
		if r.judge, err = newJudge(o, m, r.p); err != nil {
			return nil, err
		}
	}
	elem := 4
	if o.OutDType != "fp32" {
		elem = 2
	}
	r.outRow = o.Hidden * elem
	for range o.Slots {
		r.ids = append(r.ids, make([]int32, r.n*o.TopK))
		r.weights = append(r.weights, make([]float32, r.n*o.TopK))
		r.out = append(r.out, make([]byte, r.n*r.outRow))
	}
	r.started = make([]phaseNanos, o.Slots)
	r.times = make([]phaseNanos, 0, o.steps(o.Rounds)*o.Slots)
	return r, nil
}

// run does the warm-up and the measured rounds. What it found is in the result
// also when it fails.
func (r *rank) run() (*RankResult, error) {
	res := &RankResult{Rank: r.p}
	round := 0
	step := func() error {
		err := r.step(round)
		round += r.opt.Slots
		return err
	}
	r.checked = true
	for range r.opt.steps(r.opt.Warmup) {
		if err := step(); err != nil {
			return res, err
		}
		r.outstanding = max(r.outstanding, r.comm.Outstanding())
	}
	r.checked = r.opt.Verify == "all"
	r.times, r.excused = r.times[:0], 0
	before := r.comm.Stats()
	first, err := r.mallocs()
	if err != nil {
		return res, err
	}
	for range r.opt.steps(r.opt.Rounds) {
		if err = step(); err != nil {
			break
		}
	}
	last := first
	if err == nil {
		last, err = r.mallocs()
	}
	r.outstanding = max(r.outstanding, r.comm.Outstanding())
	res.fill(r, before, last-first-r.excused)
	if err == nil && r.opt.Verify == "sample" {
		r.checked = true
		err = step()
		res.judged(r)
	}
	return res, err
}

// mallocs reads the process's allocation count while all ranks are between
// steps, so that the reading itself and what led to it are outside the rounds.
func (r *rank) mallocs() (uint64, error) {
	if err := r.barrier(); err != nil {
		return 0, err
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.Mallocs, r.barrier()
}

// step carries out one round on every slot.
func (r *rank) step(round int) error {
	for slot, out := range r.out {
		if err := r.routing.Fill(r.owner, round+slot, r.ids[slot], r.weights[slot]); err != nil {
			return err
		}
		if r.judge != nil && r.checked {
			poison(out, r.opt.OutDType)
		}
	}
	if r.between != nil {
		r.excused += r.between(len(r.times))
	}
	if err := r.meet(round); err != nil {
		return err
	}
	for slot := range r.opt.Slots {
		in := moe.Input{X: r.load.tokens(r.owner, round+slot, r.n), IDs: r.ids[slot], Weights: r.weights[slot], NumTokens: r.n}
		start := time.Now()
		if err := r.comm.DispatchSend(slot, in); err != nil {
			return r.failed(round+slot, dispatchSend, err)
		}
		r.lap(slot, dispatchSend, start)
	}
	for slot := range r.opt.Slots {
		if err := r.serve(slot, round+slot); err != nil {
			return err
		}
	}
	for slot := range r.opt.Slots {
		start := time.Now()
		if err := r.comm.CombineRecv(slot, r.out[slot], r.outRow); err != nil {
			return r.failed(round+slot, combineRecv, err)
		}
		r.lap(slot, combineRecv, start)
	}
	for slot := range r.opt.Slots {
		if len(r.times) < cap(r.times) {
			r.times = append(r.times, r.started[slot])
		}
	}
	if err := r.meet(round); err != nil {
		return err
	}
	if r.judge != nil && r.checked {
		for slot := range r.opt.Slots {
			r.judge.round(r, slot, round+slot)
		}
	}
	return nil
}

// serve is the middle of a round: what came is run through the experts and sent
// back.
func (r *rank) serve(slot, round int) error {
	start := time.Now()
	batch, err := r.comm.DispatchRecv(slot)
	if err != nil {
		return r.failed(round, dispatchRecv, err)
	}
	r.lap(slot, dispatchRecv, start)
	if err := r.meet(round); err != nil {
		return err
	}
	// Where nobody looks at the sums, the batch's Y as earlier rounds left it does.
	if r.checked {
		r.experts.Apply(batch)
	}
	if err := r.meet(round); err != nil {
		return err
	}
	start = time.Now()
	if err := r.comm.CombineSend(slot, nil, 0); err != nil {
		return r.failed(round, combineSend, err)
	}
	r.lap(slot, combineSend, start)
	return nil
}

func (r *rank) lap(slot, phase int, start time.Time) {
	r.started[slot][phase] = int64(time.Since(start))
}

func (r *rank) failed(round, phase int, err error) error {
	return fmt.Errorf("rank %d, round %d, %s: %w", r.p, round, phaseNames[phase], err)
}

// meet waits for the other ranks, before, in or after a round.
func (r *rank) meet(round int) error {
	if err := r.barrier(); err != nil {
		return fmt.Errorf("rank %d, round %d: %w", r.p, round, err)
	}
	return nil
}

// poison fills out with NaNs, which no sum can turn back into a number.
func poison(out []byte, dtype string) {
	if len(out) == 0 {
		return
	}
	var nan [4]byte // one of fp32, two of the others: an output may be a single element
	switch dtype {
	case "fp32":
		binary.LittleEndian.PutUint32(nan[:], math.Float32bits(float32(math.NaN())))
	case "bf16":
		binary.LittleEndian.PutUint32(nan[:], 0x7fc07fc0)
	default:
		binary.LittleEndian.PutUint32(nan[:], 0x7e007e00)
	}
	for n := copy(out, nan[:]); n < len(out); n *= 2 {
		copy(out[n:], out[:n])
	}
}

// fabricBarrier is the barrier of ranks in several processes; the communicator's
// deadline ends it when a rank does not come.
func fabricBarrier(ctx context.Context, c *moe.Communicator) func() error {
	return func() error { return c.Barrier(ctx) }
}
