package rounds

import (
	"encoding/binary"
	"math"
	"math/rand/v2"

	"moerail/internal/numeric"
	"moerail/internal/reference"
	"moerail/moe"
)

// payload is a pool of token rows that all rounds draw from. The tokens of a
// rank in a round are consecutive rows of it, starting at a place that depends
// on the rank and the round, so that a row that is stale, or another rank's or
// token's, is another row of the pool. Immutable after newPayload.
type payload struct {
	rowBytes int
	x        []byte    // [poolRows+tokens] rows of the input type; row i and i+poolRows are equal
	seen     []float32 // [poolRows][Hidden] as the experts see them
	hidden   int
}

const poolRows = 257 // prime, so that no stride of ranks and rounds meets itself early

func newPayload(o *Options) *payload {
	in, _ := reference.ParseDType(moe.DTypeName(o.inDType()))
	wire, _ := reference.ParseDType(o.DType)
	elem := 4
	if o.inDType() != moe.FP32 {
		elem = 2
	}
	p := &payload{rowBytes: o.Hidden * elem, hidden: o.Hidden, seen: make([]float32, poolRows*o.Hidden)}
	p.x = make([]byte, 0, (poolRows+o.maxTokens())*p.rowBytes)
	r := rand.New(rand.NewPCG(o.Seed, 0x70617964))
	row := make([]float32, o.Hidden)
	for i := range poolRows {
		for h := range row {
			row[h] = reference.Round(float32(r.NormFloat64()), in)
			bits := math.Float32bits(row[h])
			switch o.inDType() {
			case moe.FP32:
				p.x = binary.LittleEndian.AppendUint32(p.x, bits)
			case moe.BF16:
				p.x = binary.LittleEndian.AppendUint16(p.x, uint16(bits>>16))
			default:
				p.x = binary.LittleEndian.AppendUint16(p.x, numeric.Float32ToFP16(row[h]))
			}
		}
		copy(p.seen[i*o.Hidden:], reference.Convert(row, wire, o.scaleBlock()))
	}
	for i := range o.maxTokens() {
		p.x = append(p.x, p.x[i*p.rowBytes:(i+1)*p.rowBytes]...)
	}
	return p
}

func (p *payload) first(owner, round int) int { return (37*owner + 101*round) % poolRows }

// tokens returns n tokens of a rank in a round, packed.
func (p *payload) tokens(owner, round, n int) []byte {
	from := p.first(owner, round)
	return p.x[from*p.rowBytes : (from+n)*p.rowBytes]
}

// token returns token t as its experts see it.
func (p *payload) token(owner, round, t int) []float32 {
	i := (p.first(owner, round) + t) % poolRows
	return p.seen[i*p.hidden : (i+1)*p.hidden]
}
