package casefile

import (
	"bytes"
	"errors"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// full holds every key of the format, with values other than the defaults.
const full = `{"format":"moerail-case/1",
 "ranks":4,"experts":8,"top_k":2,"hidden":4,"max_tokens":9,
 "dtype":"fp8","out_dtype":"bf16","scale_block":3,
 "layout":"rows","expert_alignment":16,"reduce":"home","apply_weights":false,
 "replicas":2,"ranks_per_node":2,"nics":2,"slots":2,"send_depth":16,"window_rows":3,"max_recv_rows":30,
 "placement":[[7,6],[5],[4,3,2,1,0],[]],
 "fabric":"libfabric:tcp","deadline_ms":1500,"first_deadline_ms":3000,"on_failure":"mask",
 "expert_fn":{"scale":[1,2,3,4,5,6,7,8],"bias":[0,0,0,0,0,0,0,-1.5e-3]},
 "rank_overrides":{"1":{"hidden":128,"placement":[[0]]},"3":{"apply_weights":true}},
 "faults":{"seed":18446744073709551615,"reorder":true,"delay_us":[0,500],
   "pause":[{"rank":2,"round":1,"phase":"dispatch_recv","ms":50}],
   "kill":[{"rank":2,"round":0,"phase":"combine_send"}],
   "absent":[3],"partition":[[0,1],[2,3]],
   "fail_register":[{"rank":1,"nth":3,"errno":"ENOMEM"}],
   "rail_down":[{"rank":0,"nic":1,"round":2}],"rail_up":[{"rank":0,"nic":1,"round":3}]},
 "rounds":[{"repeat":2,"ranks":[
   {"x":[[1,-0.0,"NaN","-Infinity"]],"ids":[[0,-1]],"weights":[[0.5]]},
   {"x":[[1,-0.0,"NaN","-Infinity"]],"ids":[[0,-1]],"weights":[]},
   {"x":[[1],[]],"ids":[[2147483647,-2147483648,3]]},{"x":[[1],[]],"ids":[[2147483647,-2147483648,3]],"weights":null}]}]}`

const small = `{"format":"moerail-case/1","ranks":1,"experts":1,"top_k":1,"hidden":1,"rounds":[{"ranks":[{"x":[[2]],"ids":[[0]],"weights":[[1]]}]}]}`

func decode(t *testing.T, text string) *Case {
	t.Helper()
	c, err := Decode(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestDecodeEveryKey(t *testing.T) {
	c := decode(t, full)
	x := c.Rounds[0].Ranks[0].X[0]
	if x[0] != 1 || math.Float32bits(x[1]) != 1<<31 || x[2] == x[2] || !math.IsInf(float64(x[3]), -1) {
		t.Errorf("x is %v", x)
	}
	if got := c.Rounds[0].Ranks[2]; !reflect.DeepEqual(got.X, [][]float32{{1}, {}}) || !reflect.DeepEqual(got.IDs, [][]int32{{math.MaxInt32, math.MinInt32, 3}}) {
		t.Errorf("a ragged input came as %+v", got)
	}
	if c.NumRounds() != 2 {
		t.Errorf("%d rounds, want 2", c.NumRounds())
	}
	rounds := 0
	for n := range c.Inputs {
		if n != rounds {
			t.Errorf("round %d comes as %d", rounds, n)
		}
		rounds++
	}
	if rounds != 2 {
		t.Errorf("%d rounds of inputs, want 2", rounds)
	}
	base := Params{Experts: 8, TopK: 2, Hidden: 4, MaxTokens: 9, DType: "fp8", OutDType: "bf16", ScaleBlock: 3, Layout: "rows",
		ExpertAlignment: 16, Reduce: "home", Replicas: 2, RanksPerNode: 2, NICs: 2, Slots: 2, SendDepth: 16, WindowRows: 3,
		MaxRecvRows: 30, Placement: [][]int32{{7, 6}, {5}, {4, 3, 2, 1, 0}, {}}}
	for rank, change := range []func(*Params){func(*Params) {}, func(p *Params) { p.Hidden, p.Placement = 128, [][]int32{{0}} },
		func(*Params) {}, func(p *Params) { p.ApplyWeights = true }} {
		want := base
		change(&want)
		if got := c.RankParams(rank); !reflect.DeepEqual(got, want) {
			t.Errorf("rank %d has %+v, want %+v", rank, got, want)
		}
	}
	faults := Faults{Seed: math.MaxUint64, Reorder: true, DelayMax: 500 * time.Microsecond,
		Pause: []Pause{{2, 1, "dispatch_recv", 50 * time.Millisecond}}, Kill: []Kill{{2, 0, "combine_send"}}, Absent: []int{3},
		Partition: [][]int{{0, 1}, {2, 3}}, FailRegister: []FailRegister{{1, 3, "ENOMEM"}}, RailDown: []Rail{{0, 1, 2}}, RailUp: []Rail{{0, 1, 3}},
		used: []string{"seed", "reorder", "delay_us", "pause", "kill", "absent", "partition", "fail_register", "rail_down", "rail_up"}}
	if !reflect.DeepEqual(c.Faults, faults) {
		t.Errorf("faults are %+v, want %+v", c.Faults, faults)
	}
	if got := c.Faults.Unsupported("seed", "reorder", "delay_us", "pause"); !reflect.DeepEqual(got, faults.used[4:]) {
		t.Errorf("unsupported: %v", got)
	}
	if got := c.Faults.Used(); !reflect.DeepEqual(got, faults.used) {
		t.Errorf("used: %v", got)
	}
	if c.Ranks != 4 || c.Fabric != "libfabric:tcp" || c.Deadline != 1500*time.Millisecond || c.FirstDeadline != 3*time.Second || c.OnFailure != "mask" {
		t.Errorf("got %+v", c)
	}
	if !reflect.DeepEqual(c.Scale, []float32{1, 2, 3, 4, 5, 6, 7, 8}) || c.Bias[7] != -1.5e-3 {
		t.Errorf("expert_fn %v %v", c.Scale, c.Bias)
	}
}

func TestDecodeDefaults(t *testing.T) {
	c := decode(t, small)
	want := Params{Experts: 1, TopK: 1, Hidden: 1, MaxTokens: 8, DType: "fp32", OutDType: "fp32", Layout: "grouped",
		ExpertAlignment: 1, Reduce: "expert", ApplyWeights: true, Replicas: 1, NICs: 1, Slots: 1}
	if !reflect.DeepEqual(c.Params, want) {
		t.Errorf("%+v, want %+v", c.Params, want)
	}
	if c.Fabric != "loopback" || c.Deadline != 2*time.Second || c.FirstDeadline != 0 || c.OnFailure != "stop" ||
		c.Scale[0] != 1 || c.Bias[0] != 0 || c.Rounds[0].Repeat != 1 || c.Faults.Used() != nil {
		t.Errorf("%+v", c)
	}
	long := strings.Replace(small, `"x":[[2]]`, `"x":[[2],[2],[2],[2],[2],[2],[2],[2],[2],[2]]`, 1)
	if c := decode(t, long); c.MaxTokens != 10 {
		t.Errorf("max_tokens is %d for a case with 10 tokens", c.MaxTokens)
	}
}

// TestDecodeFaults changes one thing in a good file and expects one fault.
func TestDecodeFaults(t *testing.T) {
	for _, a := range []struct{ old, new, path, reason string }{
		{`"ranks":4`, `"ranks":0`, "ranks", "is 0, the range is 1..256"},
		{`"ranks":4`, `"ranks":1000000000000000000000`, "ranks", "is 1000000000000000000000, the range is 1..256"},
		{`"ranks":4`, `"ranks":"4"`, "ranks", `is "4", want a whole number`},
		{`"ranks":4`, `"ranks":4.5`, "ranks", "is 4.5, want a whole number"},
		{`"ranks":4`, `"ranks":null`, "ranks", "is null, want a whole number"},
		{`"ranks":4,`, ``, "ranks", "is missing"},
		{`"format":"moerail-case/1",`, ``, "format", "is missing"},
		{`moerail-case/1`, `moerail-case/2`, "format", `is "moerail-case/2", want one of moerail-case/1`},
		{`"max_tokens":9`, `"max_tokens":1000000000`, "max_tokens", "is 1000000000, the range is 1..1048576"},
		{`"max_tokens":9,`, `"max_tokens":1048576,"rank":1,`, "rank", "unknown key"},
		{`"hidden":4,`, `"hidden":4,"hidden":4,`, "hidden", "the key is there twice"},
		{`"dtype":"fp8"`, `"dtype":"int4"`, "dtype", `is "int4", want one of fp32, bf16, fp16, fp8`},
		{`"out_dtype":"bf16"`, `"out_dtype":"fp8"`, "out_dtype", `is "fp8", want one of fp32, bf16, fp16`},
		{`"scale_block":3`, `"scale_block":0`, "scale_block", "is 0 with dtype fp8: it is above 0 for fp8 and 0 otherwise"},
		{`"apply_weights":false`, `"apply_weights":0`, "apply_weights", "is 0, want true or false"},
		{`"replicas":2`, `"replicas":3`, "replicas", "is 3, does not divide ranks 4"},
		{`[[7,6],[5]`, `[[7,8],[5]`, "placement[0][1]", "is expert 8, the range is 0..7"},
		{`[[7,6],[5]`, `[[7,6],[7]`, "placement[1][0]", "expert 7 is already at placement[0][0]"},
		{`[[7,6],[5]`, `[[7,6],[]`, "placement", "expert 5 is on no rank"},
		{`[[7,6],[5]`, `[[7,6],5`, "placement[1]", "is 5, want a list"},
		{`0,0,-1.5e-3]`, `0,-1.5e-3]`, "expert_fn.bias", "has 7 numbers, experts is 8"},
		{`-1.5e-3`, `1e39`, "expert_fn.bias[7]", "beyond fp32"},
		{`-1.5e-3`, `"nan"`, "expert_fn.bias[7]", `is "nan", want a number`},
		{`"libfabric:tcp"`, `"ib"`, "fabric", `is "ib", want one of`},
		{`{"1":{`, `{"x1":{`, "rank_overrides.x1", "is not a rank number"},
		{`{"1":{`, `{"4":{`, "rank_overrides.4", "is rank 4, the range is 0..3"},
		{`{"hidden":128`, `{"fabric":"shm"`, "rank_overrides.1.fabric", "unknown key"},
		{`[0,500]`, `[500,0]`, "faults.delay_us", "want two numbers, the lesser first"},
		{`"dispatch_recv"`, `"recv"`, "faults.pause[0].phase", `is "recv", want one of setup`},
		{`,"ms":50`, ``, "faults.pause[0]", "ms is missing"},
		{`"absent":[3]`, `"absent":[4]`, "faults.absent[0]", "is rank 4, the range is 0..3"},
		{`[[0,1],[2,3]]`, `[[0,1],[1,3]]`, "faults.partition[1][0]", "rank 1 is there twice"},
		{`"ENOMEM"`, `"out of memory"`, "faults.fail_register[0].errno", "want the symbol of an errno"},
		{`"nic":1,"round":2`, `"nic":2,"round":2`, "faults.rail_down[0].nic", "is 2, the range is 0..1"},
		{`"repeat":2`, `"repeat":10001`, "rounds[0].repeat", "is 10001, the range is 1..10000"},
		{`2147483647,-2147483648,3]]},`, `2147483648,-2147483648,3]]},`, "rounds[0].ranks[2].ids[0][0]", "is 2147483648, the range is -2147483648..2147483647"},
		{`"ids":[[0,-1]],"weights":[[0.5]]}`, `"ids":[[0,[-1]]],"weights":[[0.5]]}`, "rounds[0].ranks[0].ids[0][1]", "is a list, want a whole number"},
		{`"weights":[[0.5]]},`, `"weights":[[0.5]]},{},`, "rounds[0].ranks", "has 5 entries, ranks is 4"},
		{`{"x":[[1,-0.0`, `{"x":[[2,-0.0`, "rounds[0].ranks[1]", "differs from rank 0, of the same group of 2 replicas"},
	} {
		text := strings.Replace(full, a.old, a.new, 1)
		if text == full {
			t.Fatalf("%q is not in the file", a.old)
		}
		_, err := Decode(strings.NewReader(text))
		var e *FileError
		if !errors.As(err, &e) {
			t.Errorf("%s: %v", a.new, err)
			continue
		}
		if e.Faults[0].Path != a.path || !strings.Contains(e.Faults[0].Reason, a.reason) {
			t.Errorf("%s: %v, want %s: %s", a.new, err, a.path, a.reason)
		}
		if len(e.Faults) > 1 && !strings.HasPrefix(a.path, "placement[") { // there an expert is missing besides
			t.Errorf("%s: more than one fault: %v", a.new, err)
		}
	}
}

func TestDecodeReportsAllFaults(t *testing.T) {
	_, err := Decode(strings.NewReader(`{"format":"x","ranks":0,"experts":[],"top_k":true,"rounds":{"a":[{}]},"colour":{"deep":[1,{"b":null}]}}`))
	var e *FileError
	if !errors.As(err, &e) || len(e.Faults) != 7 || strings.Contains(err.Error(), "\n") {
		t.Errorf("want 7 faults on one line, got: %v", err)
	}
	many := `{"format":"moerail-case/1","placement":[[` + strings.Repeat(`-1,`, 200) + `-1]]}`
	if _, err = Decode(strings.NewReader(many)); !errors.As(err, &e) || len(e.Faults) != maxFaults || e.More < 150 {
		t.Errorf("got %d faults and %d more", len(e.Faults), e.More)
	}
}

func TestDecodeBrokenText(t *testing.T) {
	for name, a := range map[string]struct{ text, want string }{
		"empty":         {"", "ends too early"},
		"truncated":     {full[:len(full)/2], "ends too early"},
		"trailing":      {small + "{}", "something follows"},
		"trailing junk": {small + "]", "something follows"},
		"not JSON":      {"\n\n  ranks: 4", "line 3, column 3"},
		"a list":        {"[1,2]", "is a list, want an object"},
		"NaN token":     {strings.Replace(small, "[[2]]", "[[NaN]]", 1), "rounds[0].ranks[0].x[0][0]: line 1"},
		"deep unknown":  {`{"a":` + strings.Repeat("[", 1000000), "nested deeper than 64"},
		"deep known":    {`{"rounds":` + strings.Repeat("[", 1000000), "nested deeper than 64"},
		"leading zero":  {strings.Replace(small, `"ranks":1`, `"ranks":01`, 1), "line 1"},
		"huge file":     {`{"format":"` + strings.Repeat("a", maxFileBytes) + `"}`, "more than 8388608 bytes"},
		"long word":     {`{"format":"` + strings.Repeat("a", 1000) + `"}`, strings.Repeat("a", 40) + "..."},
		"comma":         {`{"format":"moerail-case/1",}`, "line 1"},
	} {
		_, err := Decode(strings.NewReader(a.text))
		if err == nil || !strings.Contains(err.Error(), a.want) || len(err.Error()) > 2000 {
			t.Errorf("%s: %v, want %q in it", name, err, a.want)
		}
	}
}

func TestDecodeBoundsTheWhole(t *testing.T) {
	for name, a := range map[string]struct{ old, new, want string }{
		"windows": {`"hidden":1`, `"hidden":65536,"max_tokens":1048576`, "max_tokens: ranks x ranks"},
		"repeats": {`"rounds":[`, `"rounds":[{"repeat":10000,"ranks":[{}]},`, "rounds: 10001 rounds"},
		"outputs": {`"hidden":1,"rounds":[{`, `"hidden":65536,"rounds":[{"repeat":2000,`, "rounds: 131072000 output values"},
	} {
		if _, err := Decode(strings.NewReader(strings.Replace(small, a.old, a.new, 1))); err == nil || !strings.Contains(err.Error(), a.want) {
			t.Errorf("%s: %v, want %q", name, err, a.want)
		}
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("disk on fire") }

func TestDecodeReadError(t *testing.T) {
	if _, err := Decode(failing{}); err == nil || !strings.Contains(err.Error(), "disk on fire") {
		t.Error(err)
	}
}

func TestWriteReadsBack(t *testing.T) {
	for _, text := range []string{small, full, pair} {
		want := decode(t, text)
		var b bytes.Buffer
		if err := Write(&b, want); err != nil {
			t.Fatal(err)
		}
		got := decode(t, b.String())
		slices.Sort(got.Faults.used) // an object's keys are written in another order
		slices.Sort(want.Faults.used)
		for _, c := range []*Case{got, want} { // NaN is not DeepEqual to itself, nor absent to empty
			for _, in := range c.Rounds[0].Ranks {
				for _, row := range in.X {
					for h, v := range row {
						if v != v {
							row[h] = 12345
						}
					}
				}
			}
			for p := range c.Rounds[0].Ranks {
				in := &c.Rounds[0].Ranks[p]
				if len(in.Weights) == 0 {
					in.Weights = nil
				}
			}
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("wrote\n%s\nwhich reads as %+v\nnot %+v", b.String(), got, want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(full))
	f.Add([]byte(small))
	f.Add([]byte(full[:200]))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Decode(bytes.NewReader(data))
		if err != nil {
			if c != nil || err.Error() == "" {
				t.Errorf("a case beside the error, or an empty one: %v", err)
			}
			return
		}
		// What Decode lets through, the reference can evaluate.
		if work := c.NumRounds() * c.Hidden * c.TopK * c.Experts * c.Ranks; work > 1<<16 {
			return
		}
		want, err := c.Expect()
		if err != nil {
			return
		}
		if err := Check(c, want); err != nil {
			t.Errorf("the exact result fails its own check: %v", err)
		}
	})
}
