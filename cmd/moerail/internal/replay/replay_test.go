package replay

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"moerail/internal/casefile"
	"moerail/moe"
	"moerail/peergroup"
	"moerail/transport/loopback"
)

func decode(t *testing.T, extra string) *casefile.Case {
	t.Helper()
	c, err := casefile.Decode(strings.NewReader(`{"format":"moerail-case/1","ranks":2,"experts":4,"top_k":2,"hidden":3,"max_tokens":2,
	"expert_fn":{"scale":[1,2,3,4],"bias":[10,20,30,40]},
	"rounds":[{"repeat":5,"ranks":[
		{"x":[[1,2,3]],"ids":[[0,3]],"weights":[[0.5,0.25]]},
		{"x":[[4,5,6],[7,8,9]],"ids":[[1,2],[3,3]],"weights":[[2,1],[1,3]]}]}]` + extra + `}`))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// The same case in every way of carrying it out must give the same.
func TestVariantsAgree(t *testing.T) {
	for _, extra := range []string{
		``, `,"slots":2`, `,"slots":3`, `,"layout":"batched"`, `,"layout":"rows"`, `,"nics":4`, `,"ranks_per_node":2`, `,"window_rows":1`,
		`,"fabric":"auto"`, `,"send_depth":2`, `,"fabric":"shm"`, `,"fabric":"shm","nics":2,"slots":2`, `,"fabric":"shm","ranks_per_node":2`,
		`,"faults":{"seed":3,"reorder":true,"delay_us":[0,300]}`,
		`,"slots":2,"faults":{"seed":4,"reorder":true,"delay_us":[0,300],"pause":[{"rank":1,"round":3,"phase":"experts","ms":20}]}`,
	} {
		c := decode(t, extra)
		got, arrivals, err := Run(t.Context(), c)
		if err != nil || len(arrivals) > 0 {
			t.Fatalf("%s: %v, arrivals %v", extra, err, arrivals)
		}
		if err := casefile.Check(c, got); err != nil {
			t.Errorf("%s: %v", extra, err)
		}
	}
}

func TestNotYet(t *testing.T) {
	for extra, path := range map[string]string{
		`,"fabric":"shm","faults":{"seed":1,"reorder":true}`:     "faults",
		`,"fabric":"libfabric:no-such-provider"`:                 "fabric",
		`,"on_failure":"mask"`:                                   "on_failure",
		`,"faults":{"absent":[1]}`:                               "faults.absent",
		`,"faults":{"partition":[[0],[1]]}`:                      "faults.partition",
		`,"faults":{"rail_down":[{"rank":0,"nic":0,"round":1}]}`: "faults.rail_down",
	} {
		var e *CaseError
		if _, _, err := Run(t.Context(), decode(t, extra)); !errors.As(err, &e) || e.Path != path {
			t.Errorf("%s: %v", extra, err)
		}
	}
}

// A late write of an old life is dropped by the fabric and must still be told.
func TestArrivalsAreReported(t *testing.T) {
	p := &play{c: decode(t, ``)}
	cfg := p.fabricConfig()
	cfg.OnFault(loopback.Fault{Kind: loopback.FaultStale})
	if len(p.arrivals) != 1 {
		t.Errorf("%v", p.arrivals)
	}
}

func TestSetupErrors(t *testing.T) {
	mismatch := &peergroup.MismatchError{What: "moe", Fields: []peergroup.FieldMismatch{{Name: "hidden", AtFault: []int{1}}}}
	missing := &peergroup.MissingError{Rank: 0, Size: 3, Key: "moe", Missing: []int{2}}
	config := &moe.ConfigError{Faults: []string{"hidden is 0"}}
	for _, c := range []struct {
		errs        []error
		code, field string
		ranks       string
	}{
		{[]error{fmt.Errorf("x: %w", mismatch), mismatch}, "mismatch", "hidden", "[1]"},
		{[]error{missing, nil, mismatch}, "mismatch", "hidden", "[1]"},
		{[]error{missing, nil}, "deadline", "", "[2]"},
		{[]error{nil, &moe.SetupError{Code: moe.CodeRegister, Ranks: []int{1}, Err: errors.New("no memory")}}, "register", "", "[1]"},
		{[]error{nil, errors.New("odd")}, "transport", "", "[1]"},
	} {
		e, err := setupError(c.errs)
		if err != nil || e.Code != c.code || e.Field != c.field || fmt.Sprint(e.Ranks) != c.ranks || e.Phase != "setup" {
			t.Errorf("%v: %+v, %v", c.errs, e, err)
		}
	}
	if _, err := setupError([]error{mismatch, config}); !errors.Is(err, config) {
		t.Errorf("a fault of the configuration: %v", err)
	}
}

func TestRoundErrors(t *testing.T) {
	e := roundError(&moe.RoundError{Code: moe.CodeInvalidExpert, Phase: "dispatch_send", Round: 9, Ranks: []int{2, 0}, Token: 1, Pick: 0}, dispatchRecv, 4, 2)
	if e.Code != "invalid_expert" || *e.Round != 4 || *e.Token != 1 || *e.Pick != 0 || fmt.Sprint(e.Ranks) != "[0 2]" {
		t.Errorf("%+v", e)
	}
	e = roundError(errors.New("odd"), combineRecv, 4, 2)
	if e.Code != "transport" || e.Phase != "combine_recv" || e.Token != nil || fmt.Sprint(e.Ranks) != "[2]" {
		t.Errorf("%+v", e)
	}
	if ends("overflow") || ends("shape") || !ends("deadline") || !ends("peer_lost") {
		t.Error("which codes end a communicator")
	}
}

// A rank that never comes back must not hang the command.
func TestWatchGivesUp(t *testing.T) {
	c := decode(t, ``)
	p := &play{c: c}
	for i := range c.Ranks {
		p.ranks = append(p.ranks, newPlayer(p, i))
	}
	p.ranks[1].phase.Store(combineRecv)
	p.limit = 20 * time.Millisecond
	var stuck *StuckError
	if err := p.watch(t.Context(), make(chan struct{})); !errors.As(err, &stuck) || !strings.Contains(err.Error(), "rank 1 in combine_recv") {
		t.Errorf("got %v", err)
	}
}

// A rank that is late beyond the deadline, and no other, is named by all others,
// whether it stores directly or sends over the fabric.
func TestOnlyTheLateRankIsNamed(t *testing.T) {
	const late = 1
	for _, extra := range []string{``, `,"ranks_per_node":2`, `,"ranks_per_node":2,"slots":2`, `,"window_rows":1`} {
		for _, phase := range []string{"dispatch_send", "dispatch_recv", "combine_recv"} {
			t.Run(phase+extra, func(t *testing.T) {
				t.Parallel()
				everywhere := `{"x":[[1],[2]],"ids":[[0,1,2],[2,1,0]],"weights":[[1,1,1],[1,1,1]]}`
				c, err := casefile.Decode(strings.NewReader(`{"format":"moerail-case/1","ranks":3,"experts":3,"top_k":3,"hidden":1,"max_tokens":2,
					"deadline_ms":300,"faults":{"pause":[{"rank":1,"round":2,"phase":"` + phase + `","ms":900}]},
					"rounds":[{"repeat":6,"ranks":[` + everywhere + "," + everywhere + "," + everywhere + `]}]` + extra + `}`))
				if err != nil {
					t.Fatal(err)
				}
				got, _, err := Run(t.Context(), c)
				if err != nil {
					t.Fatal(err)
				}
				for p := range 3 {
					last := got.Rounds[5].Ranks[p].Error
					if p != late && (last == nil || last.Code != "deadline" || fmt.Sprint(last.Ranks) != "[1]") {
						t.Errorf("rank %d: %+v, want a deadline that names rank %d", p, last, late)
					}
				}
			})
		}
	}
}
