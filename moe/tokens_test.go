package moe

import (
	"encoding/binary"
	"math"
	"math/rand/v2"

	"moerail/internal/numeric"
	"moerail/internal/reference"
)

// tokens are one rank's input to a round, as values and as bytes.
type tokens struct {
	n      int
	x      []float32 // [n, hidden], as the input type holds them
	ids    []int32
	w      []float32
	xb     []byte
	stride int
	scales []byte
	idType int // 0, 1, 2: int32, int64, uint32
}

func (tk *tokens) input() Input {
	in := Input{X: tk.xb, XStride: tk.stride, Scales: tk.scales, Weights: tk.w, NumTokens: tk.n}
	switch tk.idType {
	case 1:
		for _, id := range tk.ids {
			in.IDs64 = append(in.IDs64, int64(id))
		}
	case 2:
		for _, id := range tk.ids {
			in.IDsU32 = append(in.IDsU32, uint32(id))
		}
	default:
		in.IDs = tk.ids
	}
	return in
}

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 41)) }

// drawIDs are k distinct experts a token, some left out, sometimes one twice.
func drawIDs(rng *rand.Rand, n, k, experts int) []int32 {
	ids := make([]int32, n*k)
	for t := range n {
		row := ids[t*k : (t+1)*k]
		for j := range row {
			row[j] = int32(rng.IntN(experts))
			for try := 0; try < 4 && j > 0 && row[j] == row[j-1]; try++ {
				row[j] = int32(rng.IntN(experts))
			}
			if rng.IntN(10) == 0 {
				row[j] = -1
			}
		}
	}
	return ids
}

// draw makes tokens with the given ids.
func (w *world) draw(n int, ids []int32) tokens {
	c := &w.cs[0].cfg
	tk := tokens{n: n, ids: ids, x: make([]float32, n*c.Hidden), w: make([]float32, len(ids))}
	for i := range tk.x {
		// Cheap, uneven, and with all bits of the fraction in use.
		tk.x[i] = reference.Round(float32(int32(w.rng.Uint32()))/(1<<29), reference.DType(c.InDType))
	}
	for i := range tk.w {
		tk.w[i] = w.rng.Float32()*1.75 - 0.375
	}
	tk.encode(c)
	return tk
}

func (tk *tokens) encode(c *Config) {
	tk.xb = encode(nil, tk.x, c.InDType)
	if c.ScaleBytes > 0 {
		tk.scales = make([]byte, 0, tk.n*c.ScaleBytes)
		row := len(tk.xb) / max(tk.n, 1)
		for t := range tk.n {
			tk.scales = append(tk.scales, sideBytes(tk.xb[t*row:(t+1)*row], c.ScaleBytes)...)
		}
	}
}

// sideBytes are opaque bytes that belong to a payload.
func sideBytes(payload []byte, n int) []byte {
	h := uint64(14695981039346656037)
	for _, b := range payload {
		h = (h ^ uint64(b)) * 1099511628211
	}
	out := make([]byte, n)
	for i := range out {
		out[i] = byte(h >> (i % 8 * 8) >> (i / 8 % 3))
	}
	return out
}

// ragged draws every rank's tokens: between 0 and the limit, all equal within a
// replica group.
func (w *world) ragged(limit int) []tokens {
	toks := make([]tokens, w.s.ranks)
	c := &w.cs[0].cfg
	for r := range toks {
		if g := r - r%c.Replicas; g != r {
			toks[r] = toks[g]
			continue
		}
		n := w.rng.IntN(limit + 1)
		switch w.rng.IntN(8) {
		case 0:
			n = 0
		case 1:
			n = limit
		}
		toks[r] = w.draw(n, drawIDs(w.rng, n, c.TopK, c.NumExperts))
		toks[r].idType = w.rng.IntN(3)
	}
	return toks
}

func encode(dst []byte, v []float32, d DType) []byte {
	if dst == nil {
		dst = make([]byte, 0, 4*len(v)+16)
	}
	for _, f := range v {
		switch d {
		case FP32:
			dst = binary.LittleEndian.AppendUint32(dst, math.Float32bits(f))
		case BF16:
			dst = binary.LittleEndian.AppendUint16(dst, numeric.Float32ToBF16(f))
		case FP16:
			dst = binary.LittleEndian.AppendUint16(dst, numeric.Float32ToFP16(f))
		default:
			dst = append(dst, numeric.Float32ToE4M3(f))
		}
	}
	return dst
}

// decode is the inverse of encode, into dst.
func decode(dst []float32, b []byte, d DType) []float32 {
	dst = dst[:0]
	for len(b) > 0 {
		switch d {
		case FP32:
			dst = append(dst, math.Float32frombits(binary.LittleEndian.Uint32(b)))
			b = b[4:]
		case BF16:
			dst = append(dst, numeric.BF16ToFloat32(binary.LittleEndian.Uint16(b)))
			b = b[2:]
		case FP16:
			dst = append(dst, numeric.FP16ToFloat32(binary.LittleEndian.Uint16(b)))
			b = b[2:]
		default:
			dst = append(dst, numeric.E4M3ToFloat32(b[0]))
			b = b[1:]
		}
	}
	return dst
}
