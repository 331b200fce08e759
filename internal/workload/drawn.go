package workload

import (
	"math"
	"math/rand/v2"
	"slices"
)

// drawn picks distinct experts by popularity, one after the other: each pick has
// the likelihood of its popularity among the experts not yet picked.
type drawn struct {
	spec  string
	shape Shape

	// expert[i] is the expert of popularity i; the least popular comes first, so
	// that sums run from small to large and rare experts keep their likelihood.
	expert []int32
	// below[i] is the popularity of expert[0..i-1] together; [Experts+1].
	below []float64
}

func newDrawn(spec string, shape Shape, exponent float64) *drawn {
	d := &drawn{spec: spec, shape: shape, expert: make([]int32, shape.Experts), below: make([]float64, shape.Experts+1)}
	for i := range d.expert {
		d.expert[i] = int32(i)
	}
	var pcg rand.PCG
	shape.stream(&pcg, 0, 0, usePopularity)
	rand.New(&pcg).Shuffle(len(d.expert), func(i, j int) { d.expert[i], d.expert[j] = d.expert[j], d.expert[i] })
	for i := range d.expert {
		d.below[i+1] = d.below[i] + math.Pow(float64(shape.Experts-i), -exponent)
	}
	return d
}

func (d *drawn) Tokens(int) int { return -1 }
func (d *drawn) Shape() Shape   { return d.shape }
func (d *drawn) String() string { return d.spec }

func (d *drawn) Fill(rank, round int, ids []int32, weights []float32) error {
	if err := d.shape.check(rank, round, ids, weights); err != nil {
		return err
	}
	var pcg rand.PCG
	d.shape.stream(&pcg, rank, round, usePicks)
	k := d.shape.TopK
	for at := 0; at < len(ids); at += k {
		d.token(&pcg, ids[at:at+k])
	}
	d.shape.fillWeights(rank, round, weights)
	return nil
}

// token draws one token's picks. taken holds the places already drawn in
// ascending order; they cut the line of all experts into pieces, and a draw
// falls on the pieces that are left.
func (d *drawn) token(pcg *rand.PCG, ids []int32) {
	var room [MaxTopK + 1]int32
	taken := room[:0]
	for k := range ids {
		if k >= len(d.expert) {
			ids[k] = -1
			continue
		}
		left := 0.0
		from := int32(0)
		for _, t := range taken {
			left += d.below[t] - d.below[from]
			from = t + 1
		}
		left += d.below[len(d.expert)] - d.below[from]
		place := d.find(taken, float64(pcg.Uint64()>>11)*0x1p-53*left)
		ids[k] = d.expert[place]
		at, _ := slices.BinarySearch(taken, place)
		taken = slices.Insert(taken, at, place) // within room: no allocation
	}
}

// find returns the untaken place on which u falls, u counting popularity over
// untaken places only. Rounding may carry u past the end: the last untaken
// place is the answer then.
func (d *drawn) find(taken []int32, u float64) int32 {
	from, last := int32(0), int32(-1)
	for i := 0; i <= len(taken); i++ {
		to := int32(len(d.expert))
		if i < len(taken) {
			to = taken[i]
		}
		if from < to {
			piece := d.below[to] - d.below[from]
			if u < piece {
				target := d.below[from] + u
				n, _ := slices.BinarySearch(d.below[from+1:to+1], target)
				if n < int(to-from) && d.below[from+1+int32(n)] == target {
					n++ // target is the end of place n, so it lies in the next
				}
				return min(from+int32(n), to-1)
			}
			u -= piece
			last = to - 1
		}
		from = to + 1
	}
	return last
}
