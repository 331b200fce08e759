package moe

import (
	"fmt"
	"hash/fnv"
	"slices"

	"moerail/internal/reference"
)

// counted is what each rank must receive.
type counted struct {
	picks  [][]int32  // [rank][local expert]
	source [][]uint32 // [rank][source]
}

// owners are the rank and local number of every expert.
func (w *world) owners() (rank, local []int) {
	rank, local = make([]int, w.ref.Experts), make([]int, w.ref.Experts)
	per := (w.ref.Experts + w.ref.Ranks - 1) / w.ref.Ranks
	for e := range rank {
		rank[e], local[e] = e/per, e%per
	}
	for r, list := range w.ref.Placement {
		for i, e := range list {
			rank[e], local[e] = r, i
		}
	}
	return rank, local
}

// rowsBetween is [from][to]: tokens of from that to serves, lanes not looked at,
// and picks likewise.
func (w *world) rowsBetween(toks []tokens) (rows, picks [][]int) {
	owner, _ := w.owners()
	k := w.ref.TopK
	for _, tk := range toks {
		to, pk := make([]int, w.ref.Ranks), make([]int, w.ref.Ranks)
		for t := range tk.n {
			var hit []int
			for _, e := range tk.ids[t*k : (t+1)*k] {
				if e >= 0 {
					pk[owner[e]]++
					if !slices.Contains(hit, owner[e]) {
						hit = append(hit, owner[e])
						to[owner[e]]++
					}
				}
			}
		}
		rows, picks = append(rows, to), append(picks, pk)
	}
	return rows, picks
}

func (w *world) sameLane(p, q int) bool {
	lanes := max(w.ref.Replicas, 1)
	return p%lanes == q%lanes
}

func (w *world) count(toks []tokens) counted {
	owner, local := w.owners()
	rows, _ := w.rowsBetween(toks)
	var c counted
	for q := range w.ref.Ranks {
		held := 0
		for _, o := range owner {
			if o == q {
				held++
			}
		}
		picks, source := make([]int32, held), make([]uint32, w.ref.Ranks)
		for p, tk := range toks {
			if !w.sameLane(p, q) {
				continue
			}
			source[p] = uint32(rows[p][q])
			for _, e := range tk.ids {
				if e >= 0 && owner[e] == q {
					picks[local[e]]++
				}
			}
		}
		c.picks, c.source = append(c.picks, picks), append(c.source, source)
	}
	return c
}

func (w *world) checkBatch(r int, b *Batch, want counted) error {
	if !slices.Equal(b.Counts, want.picks[r]) {
		return fmt.Errorf("counts %v, want %v", b.Counts, want.picks[r])
	}
	if !slices.Equal(b.SourceRows, want.source[r]) {
		return fmt.Errorf("rows by source %v, want %v", b.SourceRows, want.source[r])
	}
	rows, picks := 0, 0
	for _, n := range b.SourceRows {
		rows += int(n)
	}
	for _, n := range b.Counts {
		picks += int(n)
	}
	if b.NumRows != rows || b.NumPicks != picks {
		return fmt.Errorf("%d rows and %d picks, want %d and %d", b.NumRows, b.NumPicks, rows, picks)
	}
	return nil
}

// judged is how many products a check computes at most for one rank.
const judged = 150_000

// checkOut compares one rank's result with the oracle, bit for bit: the stated
// arithmetic and order hold in every mode. Large results are judged by a sample.
func (w *world) checkOut(r int, tk tokens, out []byte) {
	w.t.Helper()
	if err := w.outFault(r, tk, out); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) outFault(r int, tk tokens, out []byte) error {
	k, h := w.ref.TopK, w.ref.Hidden
	if tk.n == 0 {
		return nil
	}
	row := len(out) / tk.n
	step := max(1, tk.n*h*k/judged)
	var got []float32
	for t := w.rng.IntN(step); t < tk.n; t += step {
		x, ids, weights := tk.x[t*h:(t+1)*h], tk.ids[t*k:(t+1)*k], tk.w[t*k:(t+1)*k]
		want := w.judge.Exact(x, ids, weights)
		got = decode(got, out[t*row:(t+1)*row], w.cs[0].cfg.OutDType)
		if err := reference.CompareRow(r, t, got, want, nil); err != nil {
			real, bound := w.judge.Real(x, ids, weights)
			return fmt.Errorf("%w; against the bound: %v; ids %v", err, reference.CompareRow(r, t, got, real, bound), ids)
		}
	}
	return nil
}

func hashOf(outs ...[]byte) uint64 {
	h := fnv.New64a()
	for _, o := range outs {
		h.Write(o)
	}
	return h.Sum64()
}
