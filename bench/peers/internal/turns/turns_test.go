package turns

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestMedian(t *testing.T) {
	xs := []float64{9, 1, 5}
	for _, c := range []struct {
		xs   []float64
		want float64
	}{{nil, 0}, {[]float64{7}, 7}, {xs, 5}, {[]float64{4, 1, 3, 2}, 2.5}} {
		if got := Median(c.xs); got != c.want {
			t.Errorf("median of %v is %v, want %v", c.xs, got, c.want)
		}
	}
	if !slices.Equal(xs, []float64{9, 1, 5}) {
		t.Error("the samples were put in another order")
	}
}

func TestRun(t *testing.T) {
	out, err := Run([]string{"sh", "-c", "echo out; echo err >&2"}, time.Minute)
	if err != nil || string(out) != "out\n" {
		t.Errorf("got %q, %v", out, err)
	}
	if _, err := Run([]string{"sh", "-c", "echo first >&2; echo why >&2; exit 3"}, time.Minute); err == nil || !strings.HasSuffix(err.Error(), "exit status 3: why") {
		t.Errorf("a failure said %v", err)
	}
	if _, err := Run([]string{"sleep", "1000"}, 10*time.Millisecond); err == nil || !strings.Contains(err.Error(), "no result within 10ms") {
		t.Errorf("an endless program: %v", err)
	}
	if _, err := Run([]string{filepath.Join(t.TempDir(), "none")}, time.Minute); err == nil {
		t.Error("a program that is not there ran")
	}
}

func TestRecordsNameNoMachine(t *testing.T) {
	dir := t.TempDir()
	command := []string{filepath.Join(dir, "moerail"), "bench", "-out", "bench/r.json", "--cpus", "0,1"}
	got := Portable(command)
	if want := []string{"moerail", "bench", "-out", "bench/r.json", "--cpus", "0,1"}; !slices.Equal(got, want) {
		t.Errorf("got %v", got)
	}
	file := filepath.Join(dir, "a", "b.json")
	if err := Save(file, got); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(file); err != nil || strings.Contains(string(b), dir) || !strings.HasSuffix(string(b), "]\n") {
		t.Errorf("the record: %q, %v", b, err)
	}
}
