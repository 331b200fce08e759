package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"moerail/internal/casefile"
)

const folder = "../../../testdata/cases"

func files(t *testing.T) map[string][]byte {
	t.Helper()
	f, err := render(entries())
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestFilesAreCurrent fails when a committed case or expectation is not what
// the code and the reference give today.
func TestFilesAreCurrent(t *testing.T) {
	made := files(t)
	total := 0
	for name, want := range made {
		got, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			t.Error(err)
		} else if !bytes.Equal(got, want) {
			t.Errorf("%s differs: run go generate ./internal/casefile", name)
		}
		if total += len(want); len(want) > 300<<10 {
			t.Errorf("%s has %d bytes, at most 300 KiB is kept", name, len(want))
		}
	}
	if total > 3<<20 {
		t.Errorf("%d bytes of cases, at most 3 MiB is kept", total)
	}
	there, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range there {
		if made[f.Name()] == nil {
			t.Errorf("%s is made by no entry", f.Name())
		}
	}
}

func TestNamesAreUnique(t *testing.T) {
	seen := map[string]bool{}
	for _, e := range entries() {
		if seen[e.name] || strings.ToLower(e.name) != e.name || strings.HasSuffix(e.name, ".want") {
			t.Errorf("bad or doubled name %q", e.name)
		}
		seen[e.name] = true
	}
}

// TestExpectationsJudge makes sure that the cases can fail: with the functions
// of two experts swapped, a weight dropped or a token's rows shifted by one, the
// judge must refuse wherever such a fault changes the result at all.
func TestExpectationsJudge(t *testing.T) {
	mutants := map[string]func(c *casefile.Case){
		"swapped experts": func(c *casefile.Case) {
			for i := 0; i+1 < c.Experts; i += 2 {
				c.Scale[i], c.Scale[i+1] = c.Scale[i+1], c.Scale[i]
				c.Bias[i], c.Bias[i+1] = c.Bias[i+1], c.Bias[i]
			}
		},
		"weights ignored or applied": func(c *casefile.Case) { c.ApplyWeights = !c.ApplyWeights },
		"payload of the neighbour": func(c *casefile.Case) {
			for _, r := range c.Rounds {
				for _, in := range r.Ranks {
					if n := len(in.X); n > 1 {
						in.X[0], in.X[n-1] = in.X[n-1], in.X[0]
					}
				}
			}
		},
	}
	judged := map[string]int{}
	for name, text := range files(t) {
		if !strings.HasSuffix(name, ".want.json") {
			continue
		}
		source, err := os.ReadFile(filepath.Join(folder, strings.Replace(name, ".want.json", ".json", 1)))
		if err != nil {
			t.Fatal(err)
		}
		want, err := casefile.DecodeResult(bytes.NewReader(text))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		decode := func() *casefile.Case {
			c, err := casefile.Decode(bytes.NewReader(source))
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			return c
		}
		c := decode()
		if err := casefile.Check(c, want); err != nil {
			t.Errorf("%s: the kept expectation fails its own check: %v", name, err)
		}
		if want.SetupError != nil || len(source) > 30<<10 { // the small ones judge as well
			continue
		}
		for what, change := range mutants {
			m := decode()
			change(m)
			wrong, err := m.Expect()
			if err != nil {
				continue // the change broke the case itself, as with unequal replicas
			}
			if casefile.Match(want, wrong) == nil {
				continue // it changes nothing here
			}
			if judged[what]++; casefile.Check(c, wrong) == nil {
				t.Errorf("%s: a result with %s was accepted", name, what)
			}
		}
	}
	for what := range mutants {
		if judged[what] < 60 {
			t.Errorf("%s: only %d cases could show it", what, judged[what])
		}
	}
}
