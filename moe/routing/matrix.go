package routing

import "fmt"

// Matrix is the exact path's R x R row counts: Rows[p*R+q] rows go from p to q.
// Every rank sees the same one, so every rank draws the same conclusions.
type Matrix struct {
	plan *Plan
	Rows []uint32
}

// NewMatrix makes an empty matrix for a plan.
func NewMatrix(pl *Plan) *Matrix {
	r := int(pl.Shape.NumRanks)
	return &Matrix{plan: pl, Rows: make([]uint32, r*r)}
}

// BadRowCountError says that a rank announced more rows than a rank may send.
type BadRowCountError struct {
	From, To int
	Rows     uint32
	Limit    uint32
}

func (e *BadRowCountError) Error() string {
	return fmt.Sprintf("rank %d announces %d rows for rank %d, the limit is %d", e.From, e.Rows, e.To, e.Limit)
}

// Check fails if an entry cannot be true.
func (m *Matrix) Check() error {
	r, limit := int(m.plan.Shape.NumRanks), m.plan.Shape.MaxTokens
	for i, n := range m.Rows {
		if n > limit {
			return &BadRowCountError{From: i / r, To: i % r, Rows: n, Limit: limit}
		}
	}
	return nil
}

// Overflowing is the first rank that would receive more than MaxRecvRows, and
// how many; -1 if none would.
func (m *Matrix) Overflowing() (rank int, rows uint64) {
	r := int(m.plan.Shape.NumRanks)
	for q := range r {
		var sum uint64
		for p := range r {
			sum += uint64(m.Rows[p*r+q])
		}
		if sum > uint64(m.plan.Shape.MaxRecvRows) {
			return q, sum
		}
	}
	return -1, 0
}

func (m *Matrix) beyond(p, q int) uint32 {
	n := m.Rows[p*int(m.plan.Shape.NumRanks)+q]
	return n - min(n, m.plan.Shape.WindowRows)
}

// OverflowRow is the row of q's overflow area where p's rows beyond the window
// start, and how many there are. Sources follow each other in rank order; q's own
// rows never leave q.
func (m *Matrix) OverflowRow(p, q int) (start uint64, rows uint32) {
	for s := range p {
		if s != q {
			start += uint64(m.beyond(s, q))
		}
	}
	return start, m.beyond(p, q)
}

// DueFrom is how many PAYLOAD immediates rank p's block brings to rank q.
func (m *Matrix) DueFrom(p, q int) uint32 {
	n := m.Rows[p*int(m.plan.Shape.NumRanks)+q]
	due := m.plan.Shards(m.plan.BlockBytes(min(n, m.plan.Shape.WindowRows)))
	if b := m.beyond(p, q); b > 0 {
		due += m.plan.Shards(uint64(b) * uint64(m.plan.Shape.RowBytes))
	}
	return due
}
