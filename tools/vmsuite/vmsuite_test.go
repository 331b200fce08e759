package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// A script stands for moerail, and a folder for sysfs, so that every step is seen
// to fail where it should.

func newSuite(t *testing.T, script string) *suite {
	t.Helper()
	if _, err := os.Stat("/bin/sh"); err != nil {
		t.Skip("there is no shell here")
	}
	s := &suite{bin: t.TempDir(), out: &bytes.Buffer{}, lookDir: t.TempDir(), deadline: 100 * time.Millisecond, slack: time.Minute, patience: 1}
	for i := range 4 {
		s.devices = append(s.devices, device{fmt.Sprintf("rxe%d", i), fmt.Sprintf("roce%d", i), fmt.Sprintf("10.77.%d.%d", i/2, i%2+1), i / 2})
		dir := filepath.Join(s.lookDir, "class/infiniband", s.devices[i].name, "ports/1/hw_counters")
		if err := os.MkdirAll(dir, 0o777); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, "sent_pkts"), "0\n")
		write(t, filepath.Join(s.lookDir, "class/infiniband", s.devices[i].name, "ports/1/state"), "4: ACTIVE\n")
	}
	program(t, s, "moerail", "cd "+s.lookDir+"/class/infiniband\n"+script)
	return s
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
}

func program(t *testing.T, s *suite, name, script string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(s.bin, name), []byte("#!/bin/sh\n"+script+"\n"), 0o777); err != nil {
		t.Fatal(err)
	}
}

// does runs one step and wants the error to hold says; "" for none.
func does(t *testing.T, s *suite, name, says string) string {
	t.Helper()
	todo, err := choose([]string{name})
	if err != nil {
		t.Fatal(err)
	}
	r := s.runAll(t.Context(), todo, time.Minute)
	got := r.Steps[0]
	if got.Passed != (says == "") || r.Passed != got.Passed || !strings.Contains(got.Error, says) {
		t.Errorf("step %s: passed %v, error %q; want %q", name, got.Passed, got.Error, says)
	}
	return got.Saw
}

func goodDoctor() string {
	var list []string
	for i := range 4 {
		list = append(list, fmt.Sprintf(`{"name":"rxe%d","error":"","ports":[{"num":1,"state":"active"}]}`, i))
	}
	return `{"verbs":{"built":true,"library":"libibverbs.so.1","version":"44","error":"","devices":[` + strings.Join(list, ",") + `]},"findings":[{"name":"a","state":"poor"}]}`
}

func TestDoctorStep(t *testing.T) {
	good := goodDoctor()
	for says, doc := range map[string]string{
		"":                       good,
		"built in: false":        strings.Replace(good, `"built":true`, `"built":false`, 1),
		"rxe3 is not in":         strings.Replace(good, "rxe3", "mlx5_0", 1),
		"rxe0: error \"denied\"": strings.Replace(good, `"error":"","ports"`, `"error":"denied","ports"`, 1),
		"rxe0: error \"\"":       strings.Replace(good, `"active"`, `"down"`, 1),
		"lists 5 devices":        strings.Replace(good, `"devices":[`, `"devices":[{"name":"x"},`, 1),
		"a is broken":            strings.Replace(good, "poor", "broken", 1),
		"not one JSON document":  good + good,
	} {
		does(t, newSuite(t, "cat <<'X'\n"+doc+"\nX"), "doctor", says)
	}
	does(t, newSuite(t, "echo 'moerail: no library' >&2; exit 1"), "doctor", "exit code 1: moerail: no library")
}

func goodTopo() string {
	var list, spares []string
	for i := range 4 {
		list = append(list, fmt.Sprintf(`{"name":"rxe%d","software":true,"interfaces":["roce%d"],"char_device":"uverbs%d","ports":[{"state":"ACTIVE","link_layer":"Ethernet","rate":1e9,`+
			`"gids":[{"type":"RoCE v2","address":"::ffff:10.77.%d.%d","interface":"roce%d"}]}]}`, i, i, i, i/2, i%2+1, i))
		spares = append(spares, fmt.Sprintf(`{"device":"rxe%d"}`, i))
	}
	return `{"system":{"devices":[` + strings.Join(list, ",") + `],"problems":[]},"map":{"spares":[` + strings.Join(spares, ",") + `]}}`
}

func TestTopoStep(t *testing.T) {
	good := goodTopo()
	for says, doc := range map[string]string{
		"":                     good,
		"device 2 is":          strings.Replace(good, "rxe2", "rxe7", 1),
		"rxe0: port":           strings.Replace(good, "ACTIVE", "DOWN", 1),
		"for 10.77.1.2":        strings.Replace(good, "::ffff:10.77.1.2", "::1", 1),
		"device 0 is":          strings.Replace(good, `"software":true`, `"software":false`, 1),
		"problems: [{p a lot}": strings.Replace(good, `"problems":[]`, `"problems":[{"path":"p","text":"a lot"}]`, 1),
		"topo lists 4 devices": strings.Replace(good, `{"device":"rxe0"},`, ``, 1),
	} {
		does(t, newSuite(t, "cat <<'X'\n"+doc+"\nX"), "topo", says)
	}
}

// goodRun is the document of a run of 4 ranks.
func goodRun(rounds int) string {
	return fmt.Sprintf(`{"format":"moerail-run/1","verified":true,"rounds":%d,"outstanding":0,"config":{"fabric":"verbs","nics":1},"round":{"p50":1500},"paths":[%s]}`,
		rounds, strings.Repeat(`{"path":"verbs"},`, 11)+`{"path":"verbs"}`)
}

const count = "for d in rxe*; do echo 5000 >$d/ports/1/hw_counters/sent_pkts; done\n"

func TestRoundsStep(t *testing.T) {
	good := goodRun(10)
	for says, doc := range map[string]string{
		"":                       good,
		"verified false":         strings.Replace(good, "true", "false", 1),
		"9 rounds":               strings.Replace(good, `"rounds":10`, `"rounds":9`, 1),
		"fabric \"shm\"":         strings.Replace(good, `"fabric":"verbs"`, `"fabric":"shm"`, 1),
		"a path is \"shm\"":      strings.Replace(good, `"path":"verbs"`, `"path":"shm"`, 1),
		"3 operations are":       strings.Replace(good, `"outstanding":0`, `"outstanding":3`, 1),
		"error \"rank 1 lost\"":  strings.Replace(good, `"outstanding":0`, `"outstanding":0,"error":"rank 1 lost"`, 1),
		"11 paths":               strings.Replace(good, `{"path":"verbs"},`, "", 1),
		"with 2 NICs":            strings.Replace(good, `"nics":1`, `"nics":2`, 1),
		"packets left by 0 devi": "quiet" + good,
	} {
		doc, quiet := strings.CutPrefix(doc, "quiet")
		script := count
		if quiet {
			script = ""
		}
		does(t, newSuite(t, script+"cat <<'X'\n"+doc+"\nX"), "run4", says)
	}
}

// job is a script whose rank 2 sleeps, and whose other ranks do what survivors do
// when rank 2 is gone.
func job(survivors string) string {
	// Rank 2 counts the packets, or it could be killed before the others know it.
	return `if [ "$RANK" = 2 ]; then echo $$ >victim
` + count + `exec sleep 60; fi
until [ -s victim ]; do sleep 0.01; done
while kill -0 "$(cat victim)" 2>/dev/null; do sleep 0.01; done
` + survivors
}

func TestKillStep(t *testing.T) {
	saw := does(t, newSuite(t, job(`echo "moerail: peer lost: rank 2" >&2; exit 1`)), "kill", "")
	if !strings.Contains(saw, "peer lost: rank 2") {
		t.Errorf("it saw %q", saw)
	}
	does(t, newSuite(t, job(`echo "moerail: deadline" >&2; exit 1`)), "kill", "want 1 and the name of rank 2")
	does(t, newSuite(t, job(`echo "moerail: peer lost: rank 2" >&2; exit 0`)), "kill", "exit code 0")
	does(t, newSuite(t, job(`echo "moerail: rank 1, round 0: moe: barrier: rank 2 is lost" >&2; exit 1`)), "kill", "in round 0")
	does(t, newSuite(t, strings.Replace(count, "5000", "2000", 1)+"exit 3"), "kill", "ended before the rounds were under way: exit code 3")
	hangs := newSuite(t, job(`exec sleep 60`))
	hangs.slack = 100 * time.Millisecond
	does(t, hangs, "kill", "has not ended")
	does(t, newSuite(t, `echo "moerail: no device" >&2; exit 2`), "kill", "ended before the rounds were under way: exit code 2: moerail: no device")
	s := newSuite(t, `exec sleep 60`)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := s.kill(ctx); err == nil || !strings.Contains(err.Error(), "were not under way") {
		t.Errorf("a job that does nothing: %v", err)
	}
}

func TestLinkStep(t *testing.T) {
	ip := `d=rxe${3#roce}; case $5 in on) s="1: DOWN"; : >LOOK/class/infiniband/was_down ;; *) s="4: ACTIVE" ;; esac; echo "$s" >LOOK/class/infiniband/$d/ports/1/state`
	run := func(rounds int) string { return "cat <<'X'\n" + goodRun(rounds) + "\nX\n" }
	// The run that follows has 10 rounds, and counts further.
	again := `case "$*" in *"--rounds 10 "*) for d in rxe*; do echo 9000 >$d/ports/1/hw_counters/sent_pkts; done
` + run(10) + `exit ;; esac
`
	down := count + "until [ -e was_down ]; do sleep 0.01; done\n"
	for name, c := range map[string]struct{ job, ip, says string }{
		"goes on":           {again + down + run(150), ip, ""},
		"ends with a name":  {again + down + `echo "moerail: rxe1 port 1: port error" >&2; exit 1`, ip, ""},
		"ends without one":  {again + down + `echo "moerail: deadline" >&2; exit 1`, ip, "no rank named rxe1"},
		"crashes":           {again + down + `echo "panic" >&2; exit 2`, ip, "exit code 2: panic"},
		"gives wrong":       {again + down + strings.Replace(run(150), "true", "false", 1), ip, "verified false"},
		"link stays up":     {again + count + "exec sleep 60", "true", "although its link was taken down"},
		"no ip":             {again + count + "exec sleep 60", "echo denied >&2; exit 1", "denied"},
		"never comes again": {down + run(150), ip, "with the link up again"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSuite(t, c.job)
			program(t, s, "ip", strings.ReplaceAll(c.ip, "LOOK", s.lookDir))
			does(t, s, "link", c.says)
			if b, _ := os.ReadFile(filepath.Join(s.lookDir, "class/infiniband/rxe1/ports/1/state")); !strings.Contains(string(b), "ACTIVE") {
				t.Errorf("the link is left %s", b)
			}
		})
	}
}

func TestTestsStep(t *testing.T) {
	for says, script := range map[string]string{
		"":                  "echo '--- PASS: TestA (0.1s)'; echo '    --- FAIL: TestA/sub'; echo '--- SKIP: TestB (0.0s)'",
		"failed: TestC;":    "echo '--- PASS: TestA (0.1s)'; echo '--- FAIL: TestC (0.0s)'; exit 1",
		"no test ran":       "echo PASS",
		"its end: panic: x": "echo 'panic: x' >&2; exit 2",
		"exit code 3":       `[ "$MOE_REQUIRE" = rdma ] && exit 3; echo '--- PASS: TestA (0.1s)'`,
	} {
		s := newSuite(t, "exit 0")
		program(t, s, "verbs.test", script)
		if saw := does(t, s, "tests", says); says == "" && saw != "1 passed, 1 skipped (TestB)" {
			t.Errorf("it saw %q", saw)
		}
	}
}

func TestFiguresStep(t *testing.T) {
	s := newSuite(t, "exit 0")
	program(t, s, "comparewrite", `for a; do f=$a; done; [ "$MOERAIL_NICS" = rxe0,rxe2 ] || exit 9
echo '{"format":"moerail-compare-write/1","sizes":[{}]}' >"$f"; echo "the table"`)
	does(t, s, "figures", "")
	r := &record{Steps: []stepRecord{}, Figures: s.comparison, table: s.table}
	var out bytes.Buffer
	r.print(&out)
	if b, err := json.Marshal(r); err != nil || !strings.Contains(string(b), `"figures":{"format"`) || !strings.Contains(out.String(), "the table") {
		t.Errorf("record %s, %v; printed %s", b, err, out.String())
	}
	program(t, s, "comparewrite", "echo 'comparewrite: no perftest' >&2; exit 1")
	does(t, s, "figures", "no perftest")
	program(t, s, "comparewrite", "exit 0")
	does(t, s, "figures", "comparewrite.json")
}

func TestStepsAreBounded(t *testing.T) {
	s := newSuite(t, "exec sleep 60")
	slow := step{"slow", "", 50 * time.Millisecond, (*suite).doctor, false}
	r := s.runAll(t.Context(), []step{slow, slow}, 20*time.Second)
	if len(r.Steps) != 2 || r.Passed || !strings.Contains(r.Steps[1].Error, "not done in 50ms") {
		t.Errorf("steps %+v", r.Steps)
	}
	slow.limit = time.Minute
	r = s.runAll(t.Context(), []step{slow, slow}, 50*time.Millisecond)
	if len(r.Steps) != 2 || r.Passed || !strings.Contains(r.Steps[1].Error, "for all steps were over") {
		t.Errorf("steps %+v", r.Steps)
	}
}

// Figures take longer than the rest leaves of five minutes.
func TestFiguresAreNamed(t *testing.T) {
	names := func(ask ...string) (out []string) {
		todo, err := choose(ask)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range todo {
			out = append(out, s.name)
		}
		return out
	}
	if got := names(); slices.Contains(got, "figures") || len(got) != len(steps)-1 {
		t.Errorf("without names: %v", got)
	}
	if got := names("figures", "topo"); !slices.Equal(got, []string{"topo", "figures"}) {
		t.Errorf("figures and topo: %v", got)
	}
}

func TestArguments(t *testing.T) {
	for _, c := range []struct {
		args, env []string
		says      string
	}{
		{[]string{"-frobnicate"}, nil, "frobnicate"},
		{[]string{"dance"}, nil, `no step "dance"`},
		{[]string{"-patience", "0.5"}, nil, "-patience is 0.5"},
		{nil, nil, "RXE_VM is not set"},
		{nil, []string{"RXE_VM", "1", "RXE_NODES", "x"}, "RXE_NODES"},
		{nil, []string{"RXE_VM", "1", "RXE_NODES", "1"}, "node 0 has devices"},
		{nil, []string{"RXE_VM", "1", "RXE_NODES", "1", "RXE_NODE_0_DEVICES", "mlx5_0", "RXE_NODE_0_ADDRS", "10.0.0.1"}, "mlx5_0"},
	} {
		for _, name := range []string{"RXE_VM", "RXE_NODES", "RXE_NODE_0_DEVICES", "RXE_NODE_0_ADDRS"} {
			t.Setenv(name, "")
		}
		for i := 0; i < len(c.env); i += 2 {
			t.Setenv(c.env[i], c.env[i+1])
		}
		var out, errs bytes.Buffer
		if code := run(c.args, &out, &errs); code != 2 || out.Len() > 0 || !strings.Contains(errs.String(), c.says) {
			t.Errorf("%v: exit code %d, %q, %q; want 2 and %q", c.args, code, out.String(), errs.String(), c.says)
		}
	}
}

// Status, table and record of a whole run.
func TestRun(t *testing.T) {
	s := newSuite(t, "cat <<'X'\n"+goodDoctor()+"\nX")
	for k, v := range map[string]string{"RXE_VM": "1", "RXE_NODES": "2", "RXE_NODE_0_DEVICES": "rxe0 rxe1", "RXE_NODE_0_ADDRS": "10.77.0.1 10.77.0.2",
		"RXE_NODE_1_DEVICES": "rxe2 rxe3", "RXE_NODE_1_ADDRS": "10.77.1.1 10.77.1.2"} {
		t.Setenv(k, v)
	}
	file := filepath.Join(s.bin, "record.json")
	var out, errs bytes.Buffer
	if code := run([]string{"-bin", s.bin, "-json", file, "-version", "v7", "topo", "doctor"}, &out, &errs); code != 1 {
		t.Errorf("exit code %d, %s", code, errs.String())
	}
	b, err := os.ReadFile(file)
	var r record
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	if err != nil || r.Format != "moerail-vm/1" || r.Version != "v7" || r.Passed || len(r.Steps) != 2 || r.Steps[0].Name != "doctor" || !r.Steps[0].Passed || r.Steps[1].Passed ||
		r.Machine.Devices != 4 || r.Machine.Nodes != 2 {
		t.Errorf("record %+v, %v", r, err)
	}
	if !strings.Contains(out.String(), "FAILED: 2 steps") || !strings.Contains(out.String(), "libibverbs.so.1 44, 4 devices active") {
		t.Errorf("printed %s", out.String())
	}
}
