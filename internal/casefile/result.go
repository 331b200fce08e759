package casefile

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"
)

// Result is what carrying out a case gave.
type Result struct {
	SetupError  *Error // not nil: there are no rounds
	Rounds      []RoundResult
	Outstanding int64 // operations begun and not ended after the last round
}

// RoundResult is one round.
type RoundResult struct {
	Ranks []*RankResult `json:"ranks"` // [Ranks]; nil for a killed or absent rank
	Wire  *Wire         `json:"wire"`  // nil, and null in the file, only in expectations: not foretold
}

// RankResult is one rank's view of one round. Out, ExpertCounts and SourceRows
// are nil, and null in the file, when the round failed before there were any.
type RankResult struct {
	Out          Matrix  `json:"out"`           // [T][Hidden] values of out_dtype
	ExpertCounts []int64 `json:"expert_counts"` // [local experts] picks, in the rank's own order
	SourceRows   []int64 `json:"source_rows"`   // [Ranks] rows received, the own ones included
	Active       []bool  `json:"active"`        // [Ranks] true: takes part
	Error        *Error  `json:"error"`
}

// Wire is what crossed the fabric in a round, all ranks together. A field is
// nil only in expectations: not foretold.
type Wire struct {
	Messages *int64 `json:"messages"`
	Bytes    *int64 `json:"bytes"`
	Rows     *int64 `json:"rows"`
}

// NewWire returns a Wire with all three counts.
func NewWire(messages, bytes, rows int64) *Wire { return &Wire{&messages, &bytes, &rows} }

// Error is a failure as a result shows it. Round, Token and Pick are nil where
// the error is not about one.
type Error struct {
	Code    string `json:"code"`
	Phase   string `json:"phase"`
	Round   *int   `json:"round"`
	Ranks   []int  `json:"ranks"` // at fault
	Token   *int   `json:"token"`
	Pick    *int   `json:"pick"`
	Message string `json:"message"`
	Field   string `json:"field,omitempty"` // of a mismatch
}

// Codes is every code an Error can have.
var Codes = []string{"invalid_expert", "too_many_tokens", "shape", "overflow", "deadline", "peer_lost", "busy",
	"phase_order", "mismatch", "register", "transport", "closed"}

// At returns a pointer to v, for Error's Round, Token and Pick.
func At(v int) *int { return &v }

// Matrix is rows of fp32 values. In JSON each is the shortest decimal that
// reads back to the same fp32, or one of the strings NaN, Infinity, -Infinity.
// A nil Matrix is null, one without rows [].
type Matrix [][]float32

// MarshalJSON writes m as a list of lists.
func (m Matrix) MarshalJSON() ([]byte, error) {
	if m == nil {
		return []byte("null"), nil
	}
	b := []byte{'['}
	for t, row := range m {
		if t > 0 {
			b = append(b, ',')
		}
		b = append(b, '[')
		for h, v := range row {
			if h > 0 {
				b = append(b, ',')
			}
			b = appendNumber(b, v)
		}
		b = append(b, ']')
	}
	return append(b, ']'), nil
}

func appendNumber(b []byte, v float32) []byte {
	f := float64(v)
	switch {
	case math.IsNaN(f):
		return append(b, `"NaN"`...)
	case math.IsInf(f, 1):
		return append(b, `"Infinity"`...)
	case math.IsInf(f, -1):
		return append(b, `"-Infinity"`...)
	}
	format := byte('f')
	if a := math.Abs(f); a != 0 && (a < 1e-6 || a >= 1e9) {
		format = 'e'
	}
	return strconv.AppendFloat(b, f, format, -1, 32)
}

// UnmarshalJSON reads what MarshalJSON writes.
func (m *Matrix) UnmarshalJSON(data []byte) error {
	var raw [][]json.RawMessage
	if err := json.Unmarshal(data, &raw); err != nil {
		return err
	}
	if raw == nil {
		*m = nil
		return nil
	}
	*m = make(Matrix, len(raw))
	for t, row := range raw {
		(*m)[t] = make([]float32, len(row))
		for h, text := range row {
			v, ok := special(string(bytes.Trim(text, `"`)))
			if !ok {
				f, err := strconv.ParseFloat(string(text), 32)
				if err != nil {
					return fmt.Errorf("row %d, column %d: %s is not an fp32 number", t, h, shorten(string(text)))
				}
				v = float32(f)
			}
			(*m)[t][h] = v
		}
	}
	return nil
}

// WriteResult writes r as one JSON document, a line for each rank, so that two
// results can be compared line by line.
func WriteResult(w io.Writer, r *Result) error {
	b := bufio.NewWriter(w)
	put := func(v any) {
		text, err := json.Marshal(v)
		if err != nil { // cannot be: no type here has a value JSON lacks
			text = []byte("null")
		}
		b.Write(text)
	}
	fmt.Fprintf(b, "{\"format\":%q,\"setup_error\":", FormatResult)
	put(r.SetupError)
	b.WriteString(",\n \"rounds\":[")
	for i, round := range r.Rounds {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString("\n  {\"ranks\":[")
		for p, rank := range round.Ranks {
			if p > 0 {
				b.WriteByte(',')
			}
			b.WriteString("\n    ")
			put(rank)
		}
		b.WriteString("],\n   \"wire\":")
		put(round.Wire)
		b.WriteByte('}')
	}
	fmt.Fprintf(b, "],\n \"outstanding\":%d}\n", r.Outstanding)
	return b.Flush()
}

// DecodeResult reads a result of at most 64 MiB, for comparing.
func DecodeResult(r io.Reader) (*Result, error) {
	const limit = 64 << 20
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, err
	}
	if len(data) > limit {
		return nil, fmt.Errorf("result file: more than %d bytes", limit)
	}
	var doc struct {
		Format      string        `json:"format"`
		SetupError  *Error        `json:"setup_error"`
		Rounds      []RoundResult `json:"rounds"`
		Outstanding int64         `json:"outstanding"`
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&doc); err != nil {
		return nil, fmt.Errorf("result file: %w", err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, fmt.Errorf("result file: something follows the end of the document")
	}
	if doc.Format != FormatResult {
		return nil, fmt.Errorf("result file: format is %q, want %q", shorten(doc.Format), FormatResult)
	}
	return &Result{SetupError: doc.SetupError, Rounds: doc.Rounds, Outstanding: doc.Outstanding}, nil
}
