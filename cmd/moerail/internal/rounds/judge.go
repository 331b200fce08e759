package rounds

import (
	"fmt"

	"moerail/internal/reference"
)

// judge checks a rank's outputs. Checking allocates nothing until the first
// wrong row.
type judge struct {
	check   *reference.Checker
	sample  bool
	rows    uint64 // checked
	wrong   uint64
	message string // about the first wrong row
}

// sampleRows is how many tokens of a rank `--verify sample` checks in each round of
// the warm-up and in one after the measured ones.
const sampleRows = 4

func newJudge(o *Options, m *model, p int) (*judge, error) {
	cfg, err := m.reference(o)
	if err != nil {
		return nil, err
	}
	check, err := reference.NewChecker(cfg)
	if err != nil {
		return nil, err
	}
	return &judge{check: check, sample: o.Verify == "sample"}, nil
}

// round checks the output of one round: every token, or some that the seed and
// the round choose.
func (j *judge) round(r *rank, slot, round int) {
	if !j.sample || r.n <= sampleRows {
		for t := range r.n {
			j.row(r, slot, round, t)
		}
		return
	}
	h := r.opt.Seed ^ uint64(round)<<20 ^ uint64(r.p)
	for range sampleRows {
		// One step of splitmix64.
		h += 0x9e3779b97f4a7c15
		z := (h ^ h>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		j.row(r, slot, round, int((z^z>>31)%uint64(r.n)))
	}
}

func (j *judge) row(r *rank, slot, round, t int) {
	k := r.opt.TopK
	got := r.out[slot][t*r.outRow : (t+1)*r.outRow]
	err := j.check.Row(got, r.load.token(r.owner, round, t), r.ids[slot][t*k:(t+1)*k], r.weights[slot][t*k:(t+1)*k])
	j.rows++
	if err == nil {
		return
	}
	if j.wrong == 0 {
		j.message = fmt.Sprintf("rank %d, round %d, token %d, %v", r.p, round, t, err)
	}
	j.wrong++
}
