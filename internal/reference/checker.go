package reference

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
)

// Checker judges single result rows by the sums and bounds of Real, fast enough
// for every row of a run: it works through a row in blocks and allocates
// nothing after NewChecker. One goroutine at a time uses a Checker.
type Checker struct {
	j       *Judge
	fp16    []float32 // value of every fp16 code
	ranks   []int
	sum     [checkBlock]float64
	partial [checkBlock]float64
	spread  [checkBlock]float64 // sum of |partial| over the finite ones
	size    [checkBlock]float64 // sum of |term|
}

const checkBlock = 512 // columns; four arrays of this stay in the first-level cache

// NewChecker prepares for rows of c. Its errors are those of Config.Validate.
func NewChecker(c Config) (*Checker, error) {
	j, err := NewJudge(c)
	if err != nil {
		return nil, err
	}
	k := &Checker{j: j, ranks: make([]int, 0, c.TopK)}
	if c.OutDType == FP16 {
		k.fp16 = make([]float32, 1<<16)
		for code := range k.fp16 {
			k.fp16[code] = formatFP16.decode(uint32(code))
		}
	}
	return k, nil
}

// RowError is the first wrong element of a row, or a row of the wrong size.
type RowError struct {
	Column    int // -1: the row has the wrong size
	Got, Want float32
	Tolerance float64
}

func (e *RowError) Error() string {
	if e.Column < 0 {
		return "reference: the row has the wrong size"
	}
	return fmt.Sprintf("column %d: got %v (0x%08x), want %v, tolerance %g",
		e.Column, e.Got, math.Float32bits(e.Got), e.Want, e.Tolerance)
}

// Row judges one token's result. got is [Hidden] little-endian elements of
// OutDType; seen is [Hidden], the token as its experts see it, which is what
// Convert returns; ids and w are [TopK]. w is not read without ApplyWeights.
// ids must be in range. The result is nil if every element is right.
//
// With ReduceAtHome and an OutDType of FP32 the sum must be right bit for bit.
func (k *Checker) Row(got []byte, seen []float32, ids []int32, w []float32) error {
	c := &k.j.c
	elem := 4
	if c.OutDType != FP32 {
		elem = 2
	}
	if len(got) != c.Hidden*elem || len(seen) != c.Hidden || len(ids) != c.TopK {
		return &RowError{Column: -1}
	}
	k.ranks = k.ranks[:0]
	picks := 0
	for _, e := range ids {
		if e < 0 {
			continue
		}
		picks++
		if !slices.Contains(k.ranks, k.j.owner[e]) {
			k.ranks = append(k.ranks, k.j.owner[e])
		}
	}
	for from := 0; from < c.Hidden; from += checkBlock {
		to := min(from+checkBlock, c.Hidden)
		if c.ReduceAtHome && c.OutDType == FP32 {
			if err := k.exactBlock(got[from*4:to*4], seen[from:to], ids, w, from); err != nil {
				return err
			}
			continue
		}
		k.sums(seen[from:to], ids, w)
		if err := k.judge(got[from*elem:to*elem], to-from, picks, from); err != nil {
			return err
		}
	}
	return nil
}

// sums fills the four arrays for one block of columns.
func (k *Checker) sums(seen []float32, ids []int32, w []float32) {
	c := &k.j.c
	sum, partial := k.sum[:len(seen)], k.partial[:len(seen)]
	spread, size := k.spread[:len(seen)], k.size[:len(seen)]
	clear(sum)
	clear(spread)
	clear(size)
	for _, q := range k.ranks {
		clear(partial)
		for i, e := range ids {
			if e < 0 || k.j.owner[e] != q {
				continue
			}
			weight := 1.0
			if c.ApplyWeights {
				weight = float64(w[i])
			}
			a, b := c.Scale[e], c.Bias[e]
			switch c.OutDType {
			case BF16:
				for h, x := range seen {
					term := weight * float64(quickBF16(float32(float32(a*x)+b)))
					partial[h] += term
					size[h] += math.Abs(term)
				}
			case FP16:
				for h, x := range seen {
					term := weight * float64(quickFP16(float32(float32(a*x)+b)))
					partial[h] += term
					size[h] += math.Abs(term)
				}
			default:
				for h, x := range seen {
					term := weight * float64(float32(float32(a*x)+b))
					partial[h] += term
					size[h] += math.Abs(term)
				}
			}
		}
		for h, p := range partial {
			sum[h] += p
			if !math.IsInf(p, 0) {
				spread[h] += math.Abs(p)
			}
		}
	}
}

// judge compares a block; the bound is that of realToken.
func (k *Checker) judge(got []byte, columns, picks, from int) error {
	c := &k.j.c
	unit, tiny, limit := c.OutDType.precision()
	n := float64(picks)
	for h := range columns {
		var g float32
		switch c.OutDType {
		case BF16:
			g = math.Float32frombits(uint32(binary.LittleEndian.Uint16(got[2*h:])) << 16)
		case FP16:
			g = k.fp16[binary.LittleEndian.Uint16(got[2*h:])]
		default:
			g = math.Float32frombits(binary.LittleEndian.Uint32(got[4*h:]))
		}
		sum, spread := k.sum[h], k.spread[h]
		if c.ReduceAtHome {
			spread = 0
		}
		fp32 := (2*n+2)*0x1p-24*k.size[h] + (2*n+2)*0x1p-150
		want := float32(sum)
		tolerance := fp32 + (1+4*unit)*unit*(spread+math.Abs(sum)+fp32) + (n+1)*tiny + math.Abs(float64(want)-sum)
		if d := math.Abs(float64(g) - sum); d <= fp32 && !math.IsInf(fp32, 0) {
			continue // the common case, decided without the finer questions
		}
		switch {
		case math.IsInf(sum, 0) && spread*(1+4*unit) >= limit: // to the other infinity, perhaps
			tolerance = math.Inf(1)
		case math.IsNaN(sum) || math.IsInf(sum, 0):
			tolerance = 0
		case k.size[h]+tolerance >= limit:
			tolerance = math.Inf(1)
		}
		if !accept(g, want, tolerance, false) {
			return &RowError{Column: from + h, Got: g, Want: want, Tolerance: tolerance}
		}
	}
	return nil
}

// exactBlock evaluates a block as exactToken does and wants the same bits.
func (k *Checker) exactBlock(got []byte, seen []float32, ids []int32, w []float32, from int) error {
	c := &k.j.c
	for h, x := range seen {
		var sum float32
		for i, e := range ids {
			if e >= 0 {
				sum = float32(sum + k.j.term(float32(float32(c.Scale[e]*x)+c.Bias[e]), w, i))
			}
		}
		if g := math.Float32frombits(binary.LittleEndian.Uint32(got[4*h:])); !accept(g, sum, 0, true) {
			return &RowError{Column: from + h, Got: g, Want: sum}
		}
	}
	return nil
}

// quickBF16 is Round(v, BF16).
func quickBF16(v float32) float32 {
	if v != v {
		return v
	}
	b := math.Float32bits(v)
	return math.Float32frombits((b + 0x7fff + b>>16&1) &^ 0xffff)
}

// quickFP16 is Round(v, FP16).
func quickFP16(v float32) float32 {
	b := math.Float32bits(v)
	switch exp := b >> 23 & 0xff; {
	case exp == 0xff:
		return v
	case exp < 127-14:
		// The steps of fp16's subnormals, 2^-24, are those of fp32 around 1/2:
		// the hardware's own rounding does it.
		return float32(math.Copysign(math.Abs(float64(float32(v+float32(math.Copysign(0.5, float64(v))))))-0.5, float64(v)))
	}
	b = (b + 0xfff + b>>13&1) &^ 0x1fff
	if b&0x7fffffff > 0x477fe000 { // 65504
		b = b&0x80000000 | 0x7f800000
	}
	return math.Float32frombits(b)
}
