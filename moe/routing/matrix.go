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

// Check fails with *BadRowCountError if an entry cannot be true: more rows than a
// rank has tokens, or any for a rank of another lane.
func (m *Matrix) Check() error {
	r, rep := int(m.plan.Shape.NumRanks), int(m.plan.Shape.Replicas)
	for i, n := range m.Rows {
		p, q := i/r, i%r
		limit := m.plan.Shape.MaxTokens
		if p%rep != q%rep {
			limit = 0
		}
		if n > limit {
			return &BadRowCountError{From: p, To: q, Rows: n, Limit: limit}
		}
	}
	return nil
}

// Received is how many rows rank q would get, its own included.
func (m *Matrix) Received(q int) uint64 {
	r := int(m.plan.Shape.NumRanks)
	var sum uint64
	for p := range r {
		sum += uint64(m.Rows[p*r+q])
	}
	return sum
}

// Overflowing appends to over the ranks that would receive more than MaxRecvRows.
func (m *Matrix) Overflowing(over []int) []int {
	for q := range int(m.plan.Shape.NumRanks) {
		if m.Received(q) > uint64(m.plan.Shape.MaxRecvRows) {
			over = append(over, q)
		}
	}
	return over
}

// beyond is how many of p's rows for q no window holds; q's own never leave q.
func (m *Matrix) beyond(p, q int) uint32 {
	if p == q {
		return 0
	}
	n := m.Rows[p*int(m.plan.Shape.NumRanks)+q]
	return n - min(n, m.plan.Shape.WindowRows)
}

// OverflowRow is the row of q's overflow area where p's rows beyond the window
// start, and how many there are. Sources follow each other in rank order.
func (m *Matrix) OverflowRow(p, q int) (start uint64, rows uint32) {
	for s := range p {
		start += uint64(m.beyond(s, q))
	}
	return start, m.beyond(p, q)
}

// DueFrom is how many PAYLOAD immediates rank p's block brings to rank q:
// none where p is q.
func (m *Matrix) DueFrom(p, q int) uint32 {
	if p == q {
		return 0
	}
	n := m.Rows[p*int(m.plan.Shape.NumRanks)+q]
	due := m.plan.Shards(m.plan.BlockBytes(min(n, m.plan.Shape.WindowRows)))
	if b := m.beyond(p, q); b > 0 {
		due += m.plan.Shards(uint64(b) * uint64(m.plan.Shape.RowBytes))
	}
	return due
}
