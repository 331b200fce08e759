package reference

import (
	"fmt"
	"math"
)

// Mismatch is the first element in which a result is wrong.
type Mismatch struct {
	Rank, Token, Column int
	Got, Want           float32
	Tolerance           float64 // largest |Got-Want| that would have been accepted
}

func (m *Mismatch) Error() string {
	return fmt.Sprintf("reference: rank %d, token %d, column %d: got %v (0x%08x), want %v (0x%08x), tolerance %g",
		m.Rank, m.Token, m.Column, m.Got, math.Float32bits(m.Got), m.Want, math.Float32bits(m.Want), m.Tolerance)
}

// CompareRank checks rank p's rows, [T][Hidden], against want, element by
// element in row-major order, and returns nil, a *Mismatch, or an error about
// the number of rows or columns.
//
// Where want has no Bound the values must be equal bit for bit, except that any
// NaN matches any NaN: IEEE leaves its payload open. Where it has one, |got-want|
// must not exceed it; NaN matches NaN only, and an infinity only itself, unless
// the bound is +Inf, which accepts everything.
func CompareRank(p int, got [][]float32, want *RankOutput) error {
	if len(got) != len(want.Out) {
		return fmt.Errorf("reference: rank %d: %d rows, want %d", p, len(got), len(want.Out))
	}
	for t, row := range want.Out {
		var bound []float64
		if want.Bound != nil {
			bound = want.Bound[t]
		}
		if err := CompareRow(p, t, got[t], row, bound); err != nil {
			return err
		}
	}
	return nil
}

// CompareRow is CompareRank for token t alone; bound is nil to compare bits.
func CompareRow(p, t int, got, want []float32, bound []float64) error {
	if len(got) != len(want) {
		return fmt.Errorf("reference: rank %d, token %d: %d columns, want %d", p, t, len(got), len(want))
	}
	for h, w := range want {
		tolerance := 0.0
		if bound != nil {
			tolerance = bound[h]
		}
		if !accept(got[h], w, tolerance, bound == nil) {
			return &Mismatch{Rank: p, Token: t, Column: h, Got: got[h], Want: w, Tolerance: tolerance}
		}
	}
	return nil
}

func accept(got, want float32, tolerance float64, exact bool) bool {
	g, w := float64(got), float64(want)
	switch {
	case math.IsInf(tolerance, 1):
		return true
	case math.IsNaN(w):
		return math.IsNaN(g)
	case exact:
		return math.Float32bits(got) == math.Float32bits(want)
	case math.IsInf(w, 0) || math.IsInf(g, 0) || math.IsNaN(g):
		return g == w
	}
	return math.Abs(g-w) <= tolerance
}

// Compare checks the rows of every rank, got[rank][T][Hidden], and returns the
// first fault; see CompareRank. A rank whose round failed must have no rows.
func Compare(got [][][]float32, want *Output) error {
	if len(got) != len(want.Ranks) {
		return fmt.Errorf("reference: %d ranks, want %d", len(got), len(want.Ranks))
	}
	for p := range got {
		if err := CompareRank(p, got[p], &want.Ranks[p]); err != nil {
			return err
		}
	}
	return nil
}

// Rows views row-major memory [T, columns] as rows without copying, for
// handing flat buffers to Input and Compare. A tail that is no whole row is a
// row of its own, so that its length is seen as wrong.
func Rows[T any](flat []T, columns int) [][]T {
	if columns < 1 {
		return nil
	}
	rows := make([][]T, 0, (len(flat)+columns-1)/columns)
	for from := 0; from < len(flat); from += columns {
		to := min(from+columns, len(flat))
		rows = append(rows, flat[from:to:to])
	}
	return rows
}
