package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"moerail/cmd/moerail/internal/replay"
	"moerail/internal/casefile"
)

const casesDir = "../../testdata/cases"

// undetermined has no expectation, since who sees what depends on timing.
const undetermined = "ep42_pause_beyond_deadline"

// A rank that is late beyond the deadline is named by the others.
func TestPauseBeyondDeadline(t *testing.T) {
	c, err := readCase(filepath.Join(casesDir, undetermined+".json"), nil)
	if err != nil {
		t.Fatal(err)
	}
	got, _, err := replay.Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	late := c.Faults.Pause[0]
	for p, r := range got.Rounds[late.Round].Ranks {
		if p == late.Rank {
			continue
		}
		if e := r.Error; e == nil || e.Code != "deadline" || !slices.Equal(e.Ranks, []int{late.Rank}) || *e.Round != late.Round {
			t.Errorf("rank %d: error %+v, want a deadline in round %d that names rank %d", p, e, late.Round, late.Rank)
		}
		if before := got.Rounds[late.Round-1].Ranks[p]; before.Error != nil || len(before.Out) == 0 {
			t.Errorf("rank %d: the round before: %+v", p, before)
		}
	}
}

// TestCases carries out every case of the collection. Each must give what its
// .want.json says, as far as that is exact, and what the definition says.
func TestCases(t *testing.T) {
	for name, file := range caseFiles(t) {
		t.Run(name, func(t *testing.T) { replayCase(t, file, func(*casefile.Case) {}) })
	}
}

// TestCasesInEveryOrder carries out every case again and again over a fabric that
// delivers in another order each time, sometimes late. The answer stays.
func TestCasesInEveryOrder(t *testing.T) {
	seeds := uint64(20)
	if testing.Short() {
		seeds = 2
	}
	for name, file := range caseFiles(t) {
		t.Run(name, func(t *testing.T) {
			for seed := range seeds {
				replayCase(t, file, func(c *casefile.Case) {
					c.Faults.Seed, c.Faults.Reorder = seed, true
					if seed > 0 {
						c.Faults.Pause = nil // costs time and was seen
					}
					if seed%2 == 1 {
						c.Faults.DelayMax = max(c.Faults.DelayMax, 50*time.Microsecond)
					}
				})
			}
		})
	}
}

// caseFiles are the cases of the collection whose result is determined.
func caseFiles(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(casesDir, "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	cases := make(map[string]string)
	for _, file := range files {
		name, isCase := strings.CutSuffix(filepath.Base(file), ".json")
		if strings.HasSuffix(name, ".want") || !isCase || name == undetermined {
			continue
		}
		cases[name] = file
	}
	if len(cases) < 50 {
		t.Errorf("%d cases in %s, there were more", len(cases), casesDir)
	}
	return cases
}

// replayCase carries out a case that edit may change in what its result does not
// depend on.
func replayCase(t *testing.T, file string, edit func(*casefile.Case)) {
	t.Helper()
	c, err := readCase(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	edit(c)
	got, arrivals, err := replay.Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range arrivals {
		t.Errorf("the fabric refused: %s", a)
	}
	// What was printed must be what was meant: compare what reads back.
	var text bytes.Buffer
	if err := casefile.WriteResult(&text, got); err != nil {
		t.Fatal(err)
	}
	if got, err = casefile.DecodeResult(&text); err != nil {
		t.Fatal(err)
	}
	if err := casefile.Check(c, got); err != nil {
		t.Errorf("the definition: %v", err)
	}
	f, err := os.Open(strings.TrimSuffix(file, ".json") + ".want.json")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	want, err := casefile.DecodeResult(f)
	if err != nil {
		t.Fatal(err)
	}
	if err := casefile.Match(want, got); err != nil {
		t.Errorf("%s: %v", f.Name(), err)
	}
}

const tinyCase = `{"format":"moerail-case/1","ranks":2,"experts":2,"top_k":1,"hidden":2,` +
	`"rounds":[{"ranks":[{"x":[[1,2]],"ids":[[1]],"weights":[[0.5]]},{}]}]`

func TestExecFromStandardInput(t *testing.T) {
	code, out, errs := moerail(t, tinyCase+"}", "exec", "-")
	if code != 0 || errs != "" || !strings.Contains(out, `"out":[[0.5,1]]`) || !strings.Contains(out, `"rows":1`) {
		t.Errorf("exit code %d, said %q\n%s", code, errs, out)
	}
}

func TestBadCases(t *testing.T) {
	for name, c := range map[string]struct{ text, says string }{
		"empty":              {"", "standard input"},
		"truncated":          {tinyCase[:60], "line 1"},
		"not JSON":           {"ranks: 2", "line 1"},
		"unknown key":        {tinyCase + `,"rank":2}`, "rank: unknown key"},
		"wrong type":         {tinyCase + `,"slots":"two"}`, "slots"},
		"out of range":       {tinyCase + `,"deadline_ms":-1}`, "deadline_ms"},
		"trailing":           {tinyCase + `} {}`, "follows"},
		"fault not yet":      {tinyCase + `,"faults":{"kill":[{"rank":0,"round":0,"phase":"experts"}]}}`, "faults.kill: not yet"},
		"no such fabric":     {tinyCase + `,"fabric":"libfabric:no-such-provider"}`, "fabric: libfabric:no-such-provider: "},
		"masks not yet":      {tinyCase + `,"on_failure":"mask"}`, "on_failure: mask: not yet"},
		"beyond the runtime": {tinyCase + `,"nics":5}`, "NICs is 5, want 1 to 4"},
		"huge":               {`{"format":"moerail-case/1","pad":"` + strings.Repeat("x", 17<<20) + `"}`, "more than"},
		"deep":               {strings.Repeat("[", 100000), "line 1"},
	} {
		code, out, errs := moerail(t, c.text, "exec", "-")
		if code != 2 || out != "" || strings.Count(errs, "\n") != 1 || !strings.Contains(errs, c.says) {
			t.Errorf("%s: exit code %d, standard output %q, standard error %.300q; want 2, nothing, one line with %q", name, code, out, errs, c.says)
		}
	}
}
