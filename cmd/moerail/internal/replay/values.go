package replay

import (
	"encoding/binary"
	"fmt"
	"math"

	"moerail/internal/casefile"
	"moerail/internal/numeric"
	"moerail/moe"
)

// ragged finds lists that are no matrix. The runtime takes packed memory, in
// which rows of wrong lengths that add up to the right size cannot be seen, so
// what a caller with ragged rows would have to notice is noticed here.
func ragged(in casefile.RankInput, par *casefile.Params, round, rank int) *casefile.Error {
	shape := func(token int, format string, args ...any) *casefile.Error {
		e := &casefile.Error{Code: string(moe.CodeShape), Phase: moe.PhaseDispatchSend, Round: casefile.At(round),
			Ranks: []int{rank}, Message: fmt.Sprintf(format, args...)}
		if token >= 0 {
			e.Token = casefile.At(token)
		}
		return e
	}
	tokens := len(in.IDs)
	if len(in.X) != tokens {
		return shape(-1, "x has %d tokens, ids %d", len(in.X), tokens)
	}
	if par.ApplyWeights && len(in.Weights) != tokens {
		return shape(-1, "weights have %d tokens, ids %d", len(in.Weights), tokens)
	}
	for t := range tokens {
		if len(in.X[t]) != par.Hidden {
			return shape(t, "x has %d values, hidden is %d", len(in.X[t]), par.Hidden)
		}
		if len(in.IDs[t]) != par.TopK {
			return shape(t, "%d ids, top_k is %d", len(in.IDs[t]), par.TopK)
		}
		if par.ApplyWeights && len(in.Weights[t]) != par.TopK {
			return shape(t, "%d weights, top_k is %d", len(in.Weights[t]), par.TopK)
		}
	}
	return nil
}

// encodeInput packs lists that are not ragged.
func encodeInput(in casefile.RankInput, par *casefile.Params) moe.Input {
	out := moe.Input{NumTokens: len(in.IDs)}
	for t := range in.IDs {
		out.IDs = append(out.IDs, in.IDs[t]...)
		if par.ApplyWeights {
			out.Weights = append(out.Weights, in.Weights[t]...)
		}
		for _, v := range in.X[t] {
			switch par.DType {
			case "bf16":
				out.X = binary.LittleEndian.AppendUint16(out.X, numeric.Float32ToBF16(v))
			case "fp16":
				out.X = binary.LittleEndian.AppendUint16(out.X, numeric.Float32ToFP16(v))
			default: // fp32, and fp8, which the runtime makes
				out.X = binary.LittleEndian.AppendUint32(out.X, math.Float32bits(v))
			}
		}
	}
	return out
}

func outBytes(par *casefile.Params) int {
	if par.OutDType == "fp32" {
		return 4
	}
	return 2
}

// newOutput is memory for tokens results, of NaNs: what nobody writes shows.
func newOutput(tokens int, par *casefile.Params) []byte {
	out := make([]byte, tokens*par.Hidden*outBytes(par))
	for i := range out {
		out[i] = 0xff // a NaN in each of the three types
	}
	return out
}

func decodeOutput(out []byte, tokens int, par *casefile.Params) casefile.Matrix {
	m := make(casefile.Matrix, tokens)
	for t := range m {
		m[t] = make([]float32, par.Hidden)
		for h := range m[t] {
			at := (t*par.Hidden + h) * outBytes(par)
			switch par.OutDType {
			case "bf16":
				m[t][h] = numeric.BF16ToFloat32(binary.LittleEndian.Uint16(out[at:]))
			case "fp16":
				m[t][h] = numeric.FP16ToFloat32(binary.LittleEndian.Uint16(out[at:]))
			default:
				m[t][h] = math.Float32frombits(binary.LittleEndian.Uint32(out[at:]))
			}
		}
	}
	return m
}
