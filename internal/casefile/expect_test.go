package casefile

import (
	"math"
	"reflect"
	"strings"
	"testing"
)

const pair = `{"format":"moerail-case/1","ranks":2,"experts":2,"top_k":2,"hidden":2,"out_dtype":"bf16",
 "expert_fn":{"scale":[1,2],"bias":[0,0.5]},
 "rounds":[{"repeat":2,"ranks":[{"x":[[1,2]],"ids":[[0,1]],"weights":[[0.5,0.25]]},{"x":[[3,4]],"ids":[[0,2]],"weights":[[1,1]]}]}]}`

func TestExpect(t *testing.T) {
	want, err := decode(t, pair).Expect()
	if err != nil {
		t.Fatal(err)
	}
	if len(want.Rounds) != 2 {
		t.Fatalf("%d rounds, want 2", len(want.Rounds))
	}
	for i, r := range want.Rounds {
		if got := r.Ranks[0]; !reflect.DeepEqual(got.Out, Matrix{{1.125, 2.125}}) || !reflect.DeepEqual(got.Active, []bool{true, true}) || got.Error != nil {
			t.Errorf("round %d rank 0: %+v", i, got)
		}
		if got := r.Ranks[1]; len(got.Out) != 0 || got.Error.Code != "invalid_expert" || *got.Error.Round != i || *got.Error.Token != 0 || *got.Error.Pick != 1 ||
			!reflect.DeepEqual(got.SourceRows, []int64{1, 0}) {
			t.Errorf("round %d rank 1: %+v", i, got)
		}
		if *r.Wire.Messages != 3 { // two blocks, one return block
			t.Errorf("%d messages, want 3", *r.Wire.Messages)
		}
	}
}

func TestCheckJudges(t *testing.T) {
	c := decode(t, pair)
	good, err := c.Expect()
	if err != nil {
		t.Fatal(err)
	}
	if err := Check(c, good); err != nil {
		t.Errorf("the exact result: %v", err)
	}
	good.Rounds[1].Ranks[0].Out[0][1] = 2.15625 // two bf16 steps off
	if err := Check(c, good); err == nil || !strings.Contains(err.Error(), "round 1, rank 0: out: reference: rank 0, token 0, column 1") {
		t.Errorf("two steps off: %v", err)
	}
	// In reduce home with fp32 output one step is too much.
	c = decode(t, strings.Replace(pair, `"out_dtype":"bf16"`, `"reduce":"home"`, 1))
	if good, err = c.Expect(); err != nil {
		t.Fatal(err)
	}
	v := &good.Rounds[0].Ranks[0].Out[0][0]
	*v = math.Nextafter32(*v, 9)
	if err := Check(c, good); err == nil {
		t.Error("one step off in reduce home was accepted")
	}
}

func TestExpectMismatch(t *testing.T) {
	for _, a := range []struct {
		ranks, override, field string
		odd                    []int
	}{
		{"2", `"1":{"hidden":4}`, "hidden", []int{1}},
		{"4", `"0":{"nics":2}`, "nics", []int{0}},
		{"4", `"1":{"top_k":3},"3":{"top_k":3}`, "top_k", []int{1, 3}},
		{"2", `"1":{"placement":[[1],[0]]}`, "placement", []int{1}},
	} {
		c := decode(t, `{"format":"moerail-case/1","ranks":`+a.ranks+`,"experts":2,"top_k":1,"hidden":1,"rank_overrides":{`+a.override+`},"rounds":[]}`)
		r, err := c.Expect()
		if err != nil {
			t.Fatal(err)
		}
		if e := r.SetupError; e == nil || e.Code != "mismatch" || e.Phase != "setup" || e.Field != a.field || !reflect.DeepEqual(e.Ranks, a.odd) {
			t.Errorf("%s: %+v", a.override, e)
		}
	}
	same := decode(t, `{"format":"moerail-case/1","ranks":2,"experts":2,"top_k":1,"hidden":1,"rank_overrides":{"1":{"hidden":1}},"rounds":[]}`)
	if r, err := same.Expect(); err != nil || r.SetupError != nil {
		t.Errorf("an override to the same value: %+v, %v", r, err)
	}
}

func TestExpectKnowsItsLimits(t *testing.T) {
	for _, faults := range []string{`"absent":[0]`, `"kill":[{"rank":0,"round":0,"phase":"close"}]`, `"partition":[[0]]`,
		`"fail_register":[{"rank":0,"nth":1,"errno":"EIO"}]`, `"pause":[{"rank":0,"round":1,"phase":"experts","ms":2000}]`} {
		c := decode(t, strings.Replace(small, `"rounds"`, `"faults":{`+faults+`},"rounds"`, 1))
		if _, err := c.Expect(); err == nil {
			t.Errorf("%s: an outcome was foretold", faults)
		}
	}
	c := decode(t, strings.Replace(small, `"rounds"`, `"first_deadline_ms":3000,"faults":{"pause":[{"rank":0,"round":0,"phase":"experts","ms":2000}]},"rounds"`, 1))
	if _, err := c.Expect(); err != nil {
		t.Errorf("a pause within the first deadline: %v", err)
	}
}
