package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestEveryMutantApplies keeps the list true as the code moves on.
func TestEveryMutantApplies(t *testing.T) {
	names := make(map[string]bool)
	for _, m := range mutants {
		if names[m.name] || m.name == "" || m.what == "" || m.test == "" || !strings.HasPrefix(m.pkg, "./") || len(m.edits) == 0 {
			t.Errorf("mutant %+v: a name of its own, words, a test, a package and edits are needed", m)
		}
		names[m.name] = true
		files := make(map[string]string)
		for _, e := range m.edits {
			b, err := os.ReadFile(filepath.Join("../..", e.file))
			if err != nil {
				t.Error(err)
			}
			files[e.file] = string(b)
		}
		for _, e := range m.edits {
			if n := strings.Count(files[e.file], e.old); n != 1 || e.old == e.new {
				t.Errorf("%s: %s holds %q %d times, want once, and another text for it", m.name, e.file, e.old, n)
			}
		}
	}
	if len(mutants) < 14 {
		t.Errorf("%d mutants", len(mutants))
	}
}

// repository makes one with a package a whose test wants F() to be 1.
func repository(t *testing.T) string {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":      "module m\n\ngo 1.26\n",
		"a/a.go":      "package a\n\nfunc F() int { return 1 }\n\nfunc G() int { return 2 }\n",
		"a/a_test.go": "package a\n\nimport \"testing\"\n\nfunc TestF(t *testing.T) {\n\tif F() != 1 {\n\t\tt.Fatal(F())\n\t}\n}\n\nfunc TestBad(t *testing.T) { t.Fatal() }\n",
		"untracked":   "",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{{"init", "-q"}, {"add", "go.mod", "a"}} {
		if out, err := exec.Command("git", append([]string{"-C", dir}, args...)...).CombinedOutput(); err != nil {
			t.Skipf("no git: %v %s", err, out)
		}
	}
	return dir
}

func TestVerdicts(t *testing.T) {
	dir := repository(t)
	mut := func(test, old, new string) mutant {
		return mutant{name: test, what: "x", edits: []edit{{"a/a.go", old, new}}, test: test, pkg: "./a"}
	}
	list := []mutant{
		mut("^TestF$", "return 1", "return 3"),
		mut("^TestF$", "return 2", "return 3"),
		mut("^TestF$", "return 1", "return nil"),
		mut("^TestF$", "return ", "return 0+"),
		mut("^TestF$", "return 9", "return 3"),
		mut("^TestBad$", "return 1", "return 3"),
		mut("^TestNone$", "return 1", "return 3"),
		mut("^TestF$", "return 1", "select {}"),
		{name: "two", what: "x", edits: []edit{{"a/a.go", "return 1", "return G()"}, {"a/a.go", "return 2", "return 1"}}, test: "^TestF$", pkg: "./a"},
		mut("^TestF$", "return 1", "return 4"),
	}
	want := []verdict{caught, survived, invalid, invalid, invalid, invalid, invalid, hung, survived, caught}
	var log bytes.Buffer
	results, err := runAll(context.Background(), list, dir, 2, time.Second, &log)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range results {
		if r.verdict != want[i] {
			t.Errorf("%d: %s, want %s\n%s", i, r.verdict, want[i], r.output)
		}
	}
	if n := strings.Count(log.String(), "\n"); n != len(list) {
		t.Errorf("progress:\n%s", log.String())
	}
	var out bytes.Buffer
	if code := report(&out, results); code != 1 || !strings.Contains(out.String(), "3 of 10 mutants caught") {
		t.Errorf("exit code %d\n%s", code, out.String())
	}
	if code := report(&out, results[:1]); code != 0 {
		t.Errorf("exit code %d with every mutant caught", code)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "a/a.go")); err != nil || !strings.Contains(string(b), "return 1") {
		t.Errorf("the repository itself was changed: %v %s", err, b)
	}
}

func TestApplyIsUndone(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "f")
	text := func() string { b, _ := os.ReadFile(file); return string(b) }
	if err := os.WriteFile(file, []byte("one two"), 0o600); err != nil {
		t.Fatal(err)
	}
	undo, err := apply(dir, []edit{{"f", "one", "1"}, {"f", "two", "2"}})
	if err != nil || text() != "1 2" {
		t.Fatalf("%q, %v", text(), err)
	}
	if err := undo(); err != nil || text() != "one two" {
		t.Fatalf("%q, %v", text(), err)
	}
	for _, e := range []edit{{"f", "three", ""}, {"f", "", "x"}, {"g", "one", ""}} {
		if _, err := apply(dir, []edit{{"f", "one", "1"}, e}); err == nil || text() != "one two" {
			t.Errorf("%+v: %v, %q", e, err, text())
		}
	}
}

func TestOnlyAFailedTestIsACatch(t *testing.T) {
	failed := errors.New("exit status 1")
	for _, c := range []struct {
		out        string
		err, ended error
		want       verdict
	}{
		{"ok  \tm/a\t0.1s\n", nil, nil, survived},
		{"--- FAIL: TestF\nFAIL\nFAIL\tm/a\t0.1s\nFAIL\n", failed, nil, caught},
		{"panic: test timed out after 1s\nFAIL\tm/a\t1s\n", failed, nil, hung},
		{"# m/a\na.go:1: oh\nFAIL\tm/a [build failed]\n", failed, nil, invalid},
		{"FAIL\tm/a [setup failed]\n", failed, nil, invalid},
		{"go: cannot find main module\n", failed, nil, invalid},
		{"FAIL\tm/a\t0.1s\n", failed, context.Canceled, invalid},
	} {
		if got := judge(c.out, c.err, c.ended); got != c.want {
			t.Errorf("%q: %s, want %s", c.out, got, c.want)
		}
	}
}

func TestArguments(t *testing.T) {
	var out, log bytes.Buffer
	for _, args := range [][]string{{"-parallel", "0"}, {"-parallel", "65"}, {"-timeout", "1ms"}, {"-run", "("}, {"-run", "^no such$"}, {"x"}, {"-what"}} {
		if code := run(context.Background(), args, &out, &log); code != 2 || log.Len() == 0 || out.Len() != 0 {
			t.Errorf("%v: exit code %d, %q", args, code, log.String())
		}
		log.Reset()
	}
	if code := run(context.Background(), []string{"-list", "-run", "parity"}, &out, &log); code != 0 || strings.Count(out.String(), "\n") != 2 {
		t.Errorf("%d\n%s", code, out.String())
	}
	if code := run(context.Background(), []string{"-run", "parity", "-repo", os.TempDir()}, &out, &log); code != 2 {
		t.Errorf("no repository: exit code %d", code)
	}
}
