package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"moerail/cmd/moerail/internal/machine"
)

const root = "../.."

func readme(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

var testCommand = regexp.MustCompile(`(?m)^    go test (?:-run '?([^' ]+)'? )?(?:-bench '?([^' ]+)'? )?(?:-benchtime \S+ )?(\./[^#\n]+)`)

// TestReadmeNamesTests: every alternative of a -run or -bench of the README finds
// a test or benchmark in one of the packages named.
func TestReadmeNamesTests(t *testing.T) {
	text := readme(t)
	commands := testCommand.FindAllStringSubmatch(text, -1)
	if n := strings.Count(text, "\n    go test "); n < 20 || len(commands) != n {
		t.Errorf("%d of %d lines understood", len(commands), n)
	}
	for _, m := range commands {
		var source strings.Builder
		for pkg := range strings.FieldsSeq(m[3]) {
			files, err := filepath.Glob(filepath.Join(root, pkg, "*_test.go"))
			if err != nil || len(files) == 0 {
				t.Errorf("%s: no tests, %v", pkg, err)
			}
			for _, file := range files {
				b, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				source.Write(b)
			}
		}
		for _, names := range []struct{ pattern, prefix string }{{m[1], "Test"}, {m[2], "Benchmark"}} {
			for name := range strings.SplitSeq(names.pattern, "|") {
				if name == "" || name == "^$" {
					continue
				}
				name = strings.TrimPrefix(name, names.prefix)
				if !strings.Contains(source.String(), "\nfunc "+names.prefix+name) {
					t.Errorf("%s has no %s%s", m[3], names.prefix, name)
				}
			}
		}
	}
}

// TestReadmeProgram runs the program of the README as a newcomer would.
func TestReadmeProgram(t *testing.T) {
	_, program, _ := strings.Cut(readme(t), "```go\npackage main")
	program, _, ok := strings.Cut(program, "```")
	if !ok {
		t.Fatal("no program")
	}
	file := filepath.Join(t.TempDir(), "main.go")
	if err := os.WriteFile(file, []byte("package main"+program), 0o666); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "run", file)
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	// 0.25 + 0.5 of 1 and of 2, in fp32.
	for r := range 2 {
		if want := fmt.Sprintf("rank %d had 2 rows for its experts; its token came back as [0 0 64 63 0 0 192 63]\n", r); !strings.Contains(string(out), want) {
			t.Errorf("printed %q, want %q in it", out, want)
		}
	}
}

var limitRow = regexp.MustCompile(`(?m)^\| [^|]+ \| ([\d ]+) \| ([\d ]+) \|$`)

// TestReadmeLimits: the README's table is doctor's, in its order.
func TestReadmeLimits(t *testing.T) {
	_, section, found := strings.Cut(readme(t), "## Limits")
	if !found {
		t.Fatal("no section Limits")
	}
	rows := limitRow.FindAllStringSubmatch(section, -1)
	limits := machine.Limits()
	if len(rows) != len(limits) {
		t.Fatalf("%d rows, doctor has %d", len(rows), len(limits))
	}
	for i, l := range limits {
		got := strings.ReplaceAll(rows[i][1]+"-"+rows[i][2], " ", "")
		if want := fmt.Sprintf("%d-%d", l.Least, l.Most); got != want {
			t.Errorf("row %s, doctor says %s for %s", rows[i][0], want, l.Name)
		}
	}
}
