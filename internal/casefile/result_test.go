package casefile

import (
	"bytes"
	"encoding/json"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

func TestWriteResult(t *testing.T) {
	r := &Result{Rounds: []RoundResult{{
		Ranks: []*RankResult{
			{Out: Matrix{{1, 0.1, float32(math.Copysign(0, -1))}, {float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1))}},
				ExpertCounts: []int64{3}, SourceRows: []int64{2, 0}, Active: []bool{true, false}},
			{Out: Matrix{}, ExpertCounts: []int64{}, SourceRows: []int64{0, 0}, Active: []bool{true, false},
				Error: &Error{Code: "invalid_expert", Phase: "dispatch_send", Round: At(0), Ranks: []int{1}, Token: At(1), Pick: At(0), Message: "m"}},
			nil,
			{Error: &Error{Code: "overflow", Round: At(0), Ranks: []int{2}, Message: "m"}},
		},
		Wire: NewWire(2, 300, 4)}},
		Outstanding: 5}
	want := `{"format":"moerail-result/1","setup_error":null,
 "rounds":[
  {"ranks":[
    {"out":[[1,0.1,-0],["NaN","Infinity","-Infinity"]],"expert_counts":[3],"source_rows":[2,0],"active":[true,false],"error":null},
    {"out":[],"expert_counts":[],"source_rows":[0,0],"active":[true,false],"error":{"code":"invalid_expert","phase":"dispatch_send","round":0,"ranks":[1],"token":1,"pick":0,"message":"m"}},
    null,
    {"out":null,"expert_counts":null,"source_rows":null,"active":null,"error":{"code":"overflow","phase":"","round":0,"ranks":[2],"token":null,"pick":null,"message":"m"}}],
   "wire":{"messages":2,"bytes":300,"rows":4}}],
 "outstanding":5}
`
	var b bytes.Buffer
	if err := WriteResult(&b, r); err != nil {
		t.Fatal(err)
	}
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}
	back, err := DecodeResult(&b)
	if err != nil {
		t.Fatal(err)
	}
	if err := Match(r, back); err != nil {
		t.Error(err)
	}
	b.Reset()
	setup := &Result{SetupError: &Error{Code: "mismatch", Phase: "setup", Ranks: []int{1}, Field: "hidden"}}
	if err := WriteResult(&b, setup); err != nil {
		t.Fatal(err)
	}
	if !json.Valid(b.Bytes()) || !strings.Contains(b.String(), `"message":"","field":"hidden"}`) || !strings.Contains(b.String(), `"rounds":[]`) {
		t.Errorf("%s", b.String())
	}
}

func TestNumbersReadBack(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	m := Matrix{make([]float32, 4096)}
	for i := range m[0] {
		m[0][i] = math.Float32frombits(r.Uint32())
	}
	m[0][0], m[0][1], m[0][2] = math.SmallestNonzeroFloat32, math.MaxFloat32, 16777216
	text, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	var back Matrix
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	for i, v := range m[0] {
		if got := back[0][i]; math.Float32bits(got) != math.Float32bits(v) && (v == v || got == got) {
			t.Fatalf("%v came back as %v", v, got)
		}
	}
}

func TestDecodeResultRefuses(t *testing.T) {
	for _, text := range []string{``, `{}`, `{"format":"moerail-case/1"}`, `{"format":"moerail-result/1","extra":1}`,
		`{"format":"moerail-result/1"} 1`, `{"format":"moerail-result/1","rounds":[{"ranks":[{"out":[["x"]]}]}]}`} {
		if _, err := DecodeResult(strings.NewReader(text)); err == nil {
			t.Errorf("%s was accepted", text)
		}
	}
}

// TestMatchSeesEveryDifference changes one thing at a time.
func TestMatchSeesEveryDifference(t *testing.T) {
	build := func() *Result {
		return &Result{Rounds: []RoundResult{{Ranks: []*RankResult{
			{Out: Matrix{{1}}, ExpertCounts: []int64{1}, SourceRows: []int64{1, 0}, Active: []bool{true, true}},
			{Out: Matrix{}, ExpertCounts: []int64{0}, SourceRows: []int64{0, 0}, Active: []bool{true, true},
				Error: &Error{Code: "shape", Phase: "dispatch_send", Round: At(0), Ranks: []int{1}, Token: At(1)}}},
			Wire: NewWire(2, 3, 4)}}}
	}
	for name, change := range map[string]func(r *Result){
		"out":         func(r *Result) { r.Rounds[0].Ranks[0].Out[0][0] = math.Nextafter32(1, 2) },
		"rows":        func(r *Result) { r.Rounds[0].Ranks[0].Out = Matrix{} },
		"columns":     func(r *Result) { r.Rounds[0].Ranks[0].Out[0] = []float32{1, 1} },
		"extra row":   func(r *Result) { r.Rounds[0].Ranks[1].Out = Matrix{{1}} },
		"counts":      func(r *Result) { r.Rounds[0].Ranks[0].ExpertCounts[0] = 2 },
		"source rows": func(r *Result) { r.Rounds[0].Ranks[0].SourceRows[1] = 1 },
		"active":      func(r *Result) { r.Rounds[0].Ranks[0].Active[1] = false },
		"null":        func(r *Result) { r.Rounds[0].Ranks[0] = nil },
		"no error":    func(r *Result) { r.Rounds[0].Ranks[1].Error = nil },
		"new error":   func(r *Result) { r.Rounds[0].Ranks[0].Error = &Error{Code: "closed"} },
		"code":        func(r *Result) { r.Rounds[0].Ranks[1].Error.Code = "busy" },
		"phase":       func(r *Result) { r.Rounds[0].Ranks[1].Error.Phase = "setup" },
		"error round": func(r *Result) { r.Rounds[0].Ranks[1].Error.Round = At(1) },
		"ranks":       func(r *Result) { r.Rounds[0].Ranks[1].Error.Ranks = []int{0} },
		"token":       func(r *Result) { r.Rounds[0].Ranks[1].Error.Token = At(0) },
		"pick":        func(r *Result) { r.Rounds[0].Ranks[1].Error.Pick = At(0) },
		"messages":    func(r *Result) { *r.Rounds[0].Wire.Messages++ },
		"bytes":       func(r *Result) { *r.Rounds[0].Wire.Bytes++ },
		"wire rows":   func(r *Result) { *r.Rounds[0].Wire.Rows++ },
		"no wire":     func(r *Result) { r.Rounds[0].Wire = nil },
		"rank count":  func(r *Result) { r.Rounds[0].Ranks = r.Rounds[0].Ranks[:1] },
		"rounds":      func(r *Result) { r.Rounds = nil },
		"outstanding": func(r *Result) { r.Outstanding = 1 },
		"setup":       func(r *Result) { r.SetupError = &Error{Code: "mismatch"} },
	} {
		got := build()
		change(got)
		if err := Match(build(), got); err == nil {
			t.Errorf("%s: not seen", name)
		}
	}
	got := build()
	got.Rounds[0].Ranks[1].Error.Message = "in other words"
	if err := Match(build(), got); err != nil {
		t.Errorf("a message is compared: %v", err)
	}
	if err := Match(&Result{Rounds: []RoundResult{{Wire: &Wire{}}}}, &Result{Rounds: []RoundResult{{Wire: NewWire(1, 2, 3)}}}); err != nil {
		t.Errorf("an open wire is compared: %v", err)
	}
}
