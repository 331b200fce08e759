package reference

import "math"

// Real sums one token in float64 and bounds the error of any evaluation that
// performs the stated roundings in some order. The arguments are those of Exact;
// both results are [Hidden].
//
// With u = 2^-24 the error of one fp32 rounding, v that of one rounding to
// OutDType, n the number of picks, S the sum of |w[k]*y[k]| and P_r the true
// partial sum of rank r:
//
//   - each product and each addition is rounded to fp32. Every term passes
//     through at most n+1 such roundings at the expert (one product, n sums)
//     and n more at home, so together they add at most about (2n+1)*u*S;
//   - in expert mode each partial row is rounded to OutDType once: at most
//     v*|P_r| each, P_r being off by (n+1)*u*S at most;
//   - the result is rounded to OutDType once: at most v*|result|.
//
// The second-order parts (u*v, u*u) are covered by one more u*S and the factor
// 1+4v on the terms in v. Where a value is subnormal the error of a rounding is
// absolute, half a smallest step, and is added for every rounding counted here.
// float64's own error, n*2^-53*S, is below the slack.
//
// If a partial sum might leave the range of fp32 or OutDType, an overflow may
// or may not happen on the way: the bound is then +Inf. A NaN or infinite term
// makes the float64 sum NaN or infinite by IEEE rules, whatever the order; the
// bound is then 0, unless the sum is infinite and a finite partial row might
// overflow to the other infinity, which makes it a NaN.
func (j *Judge) Real(x []float32, ids []int32, w []float32) ([]float32, []float64) {
	seen := Convert(x, j.c.DType, j.c.ScaleBlock)
	out, bound := make([]float32, j.c.Hidden), make([]float64, j.c.Hidden)
	ranks := j.destinations(ids)
	unit, tiny, limit := j.c.OutDType.precision()
	for h := range out {
		var sum, magnitude, partials, finite float64
		var picks int
		for _, q := range ranks {
			var partial float64
			for k, e := range ids {
				if e < 0 || j.owner[e] != q {
					continue
				}
				term := float64(j.expert(e, seen[h]))
				if j.c.ApplyWeights {
					term *= float64(w[k]) // exact: 24 + 24 bits
				}
				partial += term
				if !math.IsInf(term, 0) && !math.IsNaN(term) {
					magnitude += math.Abs(term)
				}
				picks++
			}
			sum += partial
			partials += math.Abs(partial)
			if !math.IsInf(partial, 0) {
				finite += math.Abs(partial)
			}
		}
		if j.c.ReduceAtHome {
			partials, finite = 0, 0
		}
		n := float64(picks)
		fp32 := (2*n+2)*0x1p-24*magnitude + (2*n+2)*0x1p-150
		round := (1+4*unit)*unit*(partials+math.Abs(sum)+fp32) + (n+1)*tiny
		out[h] = float32(sum) // its distance from sum is part of the bound
		bound[h] = fp32 + round + math.Abs(float64(out[h])-sum)
		special := math.IsNaN(sum) || math.IsInf(sum, 0)
		switch {
		case magnitude*(1+n*0x1p-23) >= math.MaxFloat32, !special && partials+math.Abs(sum)+bound[h] >= limit,
			math.IsInf(sum, 0) && finite*(1+4*unit)+fp32 >= limit:
			bound[h] = math.Inf(1)
		case special:
			bound[h] = 0
		}
	}
	return out, bound
}
