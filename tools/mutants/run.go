package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// edit replaces old, which must stand in the file exactly once.
type edit struct{ file, old, new string }

// mutant is one fault, and the test that is expected to see it.
type mutant struct {
	name, what string
	edits      []edit
	test       string // for go test -run
	pkg        string
}

func (m *mutant) command() string { return fmt.Sprintf("go test -run %s %s", m.test, m.pkg) }

// verdict is what became of a mutant.
type verdict string

const (
	caught   verdict = "caught"
	hung     verdict = "caught (hung)"
	survived verdict = "SURVIVED"
	invalid  verdict = "ERROR" // did not apply, did not build, or its test fails without it
)

func (v verdict) caught() bool { return v == caught || v == hung }

type result struct {
	mutant  mutant
	verdict verdict
	output  string
	took    time.Duration
}

// runAll tests the mutants, each in a copy of the repository that is otherwise as
// it was. Progress goes to log. The error is about the copies.
func runAll(ctx context.Context, list []mutant, repo string, parallel int, timeout time.Duration, log io.Writer) ([]result, error) {
	top, err := exec.CommandContext(ctx, "git", "-C", repo, "rev-parse", "--show-toplevel").Output()
	if err != nil {
		return nil, fmt.Errorf("%s is not in a git repository: %w", repo, err)
	}
	root := strings.TrimRight(string(top), "\n")
	temp, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(temp)

	b := bench{timeout: timeout, passed: make(map[string]*baseline)}
	results := make([]result, len(list))
	todo := make(chan int)
	parallel = min(parallel, len(list))
	errs := make([]error, parallel)
	var wg sync.WaitGroup
	for i := range parallel {
		dir := filepath.Join(temp, fmt.Sprint(i))
		if err := copyTracked(ctx, root, dir); err != nil {
			return nil, err
		}
		wg.Go(func() {
			for j := range todo {
				if errs[i] != nil || ctx.Err() != nil {
					continue
				}
				results[j], errs[i] = b.try(ctx, dir, list[j])
				b.mu.Lock()
				fmt.Fprintf(log, "%s: %s\n", list[j].name, results[j].verdict)
				b.mu.Unlock()
			}
		})
	}
	for j := range list {
		todo <- j
	}
	close(todo)
	wg.Wait()
	return results, errors.Join(append(errs, ctx.Err())...)
}

// copyTracked copies the files that git tracks, as they stand in the working tree.
func copyTracked(ctx context.Context, root, dir string) error {
	list, err := exec.CommandContext(ctx, "git", "-C", root, "ls-files", "-z").Output()
	if err != nil {
		return fmt.Errorf("git ls-files: %w", err)
	}
	for _, name := range strings.Split(strings.TrimRight(string(list), "\x00"), "\x00") {
		info, err := os.Lstat(filepath.Join(root, name))
		if err != nil {
			return err
		}
		if !info.Mode().IsRegular() {
			continue // links and submodules hold nothing that is compiled
		}
		b, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			return err
		}
		to := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(to, b, info.Mode().Perm()); err != nil {
			return err
		}
	}
	return nil
}

// apply makes the edits under dir, all or none; undo takes them back.
func apply(dir string, edits []edit) (undo func() error, err error) {
	before, after := make(map[string][]byte), make(map[string][]byte)
	for _, e := range edits {
		if _, ok := after[e.file]; !ok {
			b, err := os.ReadFile(filepath.Join(dir, e.file))
			if err != nil {
				return nil, err
			}
			before[e.file], after[e.file] = b, b
		}
		if n := bytes.Count(after[e.file], []byte(e.old)); n != 1 {
			return nil, fmt.Errorf("%s holds %q %d times, want once", e.file, e.old, n)
		}
		after[e.file] = bytes.Replace(after[e.file], []byte(e.old), []byte(e.new), 1)
	}
	write := func(files map[string][]byte) (err error) {
		for name, b := range files {
			err = errors.Join(err, os.WriteFile(filepath.Join(dir, name), b, 0o644))
		}
		return err
	}
	if err := write(after); err != nil {
		return nil, errors.Join(err, write(before))
	}
	return func() error { return write(before) }, nil
}

// bench runs tests and remembers which pass without a mutant.
type bench struct {
	timeout time.Duration
	mu      sync.Mutex // of passed, and of the log
	passed  map[string]*baseline
}

type baseline struct {
	once   sync.Once
	ok     bool
	output string
}

// try tests one mutant in dir and leaves dir as it was. Its error is about dir.
func (b *bench) try(ctx context.Context, dir string, m mutant) (result, error) {
	r := result{mutant: m, verdict: invalid}
	b.mu.Lock()
	base := b.passed[m.command()]
	if base == nil {
		base = new(baseline)
		b.passed[m.command()] = base
	}
	b.mu.Unlock()
	base.once.Do(func() {
		v, out := b.goTest(ctx, dir, m)
		base.ok, base.output = v == survived && !strings.Contains(out, "no tests to run"), out
	})
	if !base.ok {
		r.output = "its test does not pass without it:\n" + base.output
		return r, nil
	}
	undo, err := apply(dir, m.edits)
	if err != nil {
		r.output = err.Error()
		return r, nil
	}
	start := time.Now()
	r.verdict, r.output = b.goTest(ctx, dir, m)
	r.took = time.Since(start)
	return r, undo()
}

func (b *bench) goTest(ctx context.Context, dir string, m mutant) (verdict, string) {
	// go test ends a hanging test itself; the rest is for the compiler.
	ctx, cancel := context.WithTimeout(ctx, b.timeout+5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "test", "-vet=off", "-count=1", "-failfast", "-timeout", b.timeout.String(), "-run", m.test, m.pkg)
	cmd.Dir = dir
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.CombinedOutput()
	return judge(string(out), err, ctx.Err()), lastLines(string(out), 40)
}

// judge turns what go test said into a verdict. Only a test that ran and failed
// has caught anything.
func judge(out string, err, ended error) verdict {
	switch {
	case ended != nil:
		return invalid
	case err == nil:
		return survived
	case strings.Contains(out, "[build failed]") || strings.Contains(out, "[setup failed]"):
		return invalid
	case strings.Contains(out, "panic: test timed out"):
		return hung
	case strings.Contains(out, "\nFAIL\t") || strings.HasPrefix(out, "FAIL\t"):
		return caught
	}
	return invalid
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
