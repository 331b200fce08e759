package tree_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"moerail/internal/tree"
)

const root = "../.."

func TestRepository(t *testing.T) {
	findings, err := tree.Check(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range findings {
		t.Error(f)
	}
}

func TestRepositoryWords(t *testing.T) {
	cmd := exec.Command("git", "ls-files", "-z")
	cmd.Dir = root
	list, err := cmd.Output()
	if err != nil {
		t.Skipf("not a git checkout, so which files are tracked is not known: %v", err)
	}
	files := strings.Split(strings.TrimRight(string(list), "\x00"), "\x00")
	findings, err := tree.CheckWords(root, files)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range findings {
		t.Error(f)
	}
}

// Every rule must be seen to fail on a tree that breaks it, once per rule and
// file, and on nothing else.
func TestPlantedViolations(t *testing.T) {
	for _, tc := range []struct {
		name, file, src string
		want            string // rule, "" for none
	}{
		{"standard library in the contract", "transport/a.go", "// Package transport.\npackage transport\nimport _ \"errors\"", ""},
		{"internal in the contract", "transport/a.go", "// Package transport.\npackage transport\nimport _ \"moerail/internal/mem\"", "layer"},
		{"dependency in the contract", "transport/a.go", "// Package transport.\npackage transport\nimport _ \"golang.org/x/sys/unix\"", "dependency"},
		{"provider uses the contract", "transport/shm/a.go", "// Package shm.\npackage shm\nimport _ \"moerail/transport\"\nimport _ \"golang.org/x/sys/unix\"", ""},
		{"provider uses the engine", "transport/shm/a.go", "// Package shm.\npackage shm\nimport _ \"moerail/transport/engine\"", "layer"},
		{"provider uses another", "transport/shm/a.go", "// Package shm.\npackage shm\nimport _ \"moerail/transport/loopback\"", "layer"},
		{"engine uses a provider", "transport/engine/a.go", "// Package engine.\npackage engine\nimport _ \"moerail/transport/loopback\"", "layer"},
		{"engine test uses a provider", "transport/engine/a_test.go", "package engine\nimport _ \"moerail/transport/loopback\"", ""},
		{"dispatch uses combine", "dispatch/a.go", "// Package dispatch.\npackage dispatch\nimport _ \"moerail/combine\"", "layer"},
		{"combine uses dispatch", "combine/a.go", "// Package combine.\npackage combine\nimport _ \"moerail/dispatch\"", "layer"},
		{"dispatch uses routing", "dispatch/a.go", "// Package dispatch.\npackage dispatch\nimport _ \"moerail/moe/routing\"", ""},
		{"dispatch uses moe", "dispatch/a.go", "// Package dispatch.\npackage dispatch\nimport _ \"moerail/moe\"", "layer"},
		{"moe uses cmd", "moe/a.go", "// Package moe.\npackage moe\nimport _ \"moerail/cmd/moerail\"", "layer"},
		{"moe uses bench", "moe/a.go", "// Package moe.\npackage moe\nimport _ \"moerail/bench\"", "layer"},
		{"oracle uses the runtime", "internal/reference/a.go", "// Package reference.\npackage reference\nimport _ \"moerail/kernels/abi\"", "layer"},
		{"case files use the runtime", "internal/casefile/a.go", "// Package casefile.\npackage casefile\nimport _ \"moerail/moe\"", "layer"},
		{"routing uses the ABI", "moe/routing/a.go", "// Package routing.\npackage routing\nimport _ \"moerail/kernels/abi\"", ""},
		{"routing has a clock", "moe/routing/a.go", "// Package routing.\npackage routing\nimport _ \"time\"", "pure"},
		{"routing has I/O", "moe/routing/a.go", "// Package routing.\npackage routing\nimport _ \"io/fs\"", "pure"},
		{"routing has a goroutine", "moe/routing/a.go", "// Package routing.\npackage routing\nfunc f() { go f() }", "pure"},
		{"routing has a channel", "moe/routing/a.go", "// Package routing.\npackage routing\nvar c chan int", "pure"},
		{"command uses anything", "cmd/moerail/a.go", "// Command moerail.\npackage main\nimport _ \"example.org/cli\"\nimport _ \"moerail/moe\"", ""},
		{"example uses the insides", "examples/a/a.go", "// Command a.\npackage main\nimport _ \"moerail/internal/mem\"", "layer"},
		{"unsafe at large", "internal/mem/a.go", "// Package mem.\npackage mem\nimport _ \"unsafe\"", "unsafe"},
		{"unsafe in a test", "internal/mem/a_test.go", "package mem\nimport _ \"unsafe\"", "unsafe"},
		{"unsafe behind its fence", "internal/mem/a_unsafe.go", "// Package mem.\npackage mem\nimport _ \"unsafe\"", ""},
		{"unsafe test behind its fence", "internal/mem/a_unsafe_test.go", "package mem\nimport _ \"unsafe\"", ""},
		{"cgo", "internal/mem/a_cgo.go", "// Package mem.\npackage mem\nimport \"C\"", "cgo"},
		{"no package comment", "internal/mem/a.go", "package mem", "package-comment"},
		{"unknown folder", "kvcash/a.go", "// Package kvcash.\npackage kvcash", "layer"},
		{"testdata is not code", "internal/mem/testdata/a.go", "package x\nimport _ \"moerail/cmd/moerail\"", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			plant(t, dir, tc.file, tc.src)
			findings, err := tree.Check(dir)
			if err != nil {
				t.Fatal(err)
			}
			if tc.want == "" {
				if len(findings) > 0 {
					t.Fatalf("found %v in a tree that keeps the rules", findings)
				}
				return
			}
			if len(findings) != 1 || findings[0].Rule != tc.want {
				t.Fatalf("found %v, want one finding of rule %q", findings, tc.want)
			}
			if !strings.HasPrefix(tc.file, findings[0].File) {
				t.Errorf("finding is about %s, planted in %s", findings[0].File, tc.file)
			}
		})
	}
}

func TestPlantedWord(t *testing.T) {
	dir := t.TempDir()
	plant(t, dir, "doc.md", "first\nsee ../"+"shared/design\n")
	plant(t, dir, "data.bin", "\x00../"+"shared")
	findings, err := tree.CheckWords(dir, []string{"doc.md", "data.bin", "gone.md"})
	if err != nil {
		t.Fatal(err)
	}
	if len(findings) != 1 || findings[0].File != "doc.md" || findings[0].Line != 2 {
		t.Fatalf("found %v, want doc.md line 2", findings)
	}
}

func TestUnparsableFileIsAnError(t *testing.T) {
	dir := t.TempDir()
	plant(t, dir, "moe/a.go", "package")
	if _, err := tree.Check(dir); err == nil {
		t.Fatal("a file that does not parse was passed over")
	}
}

func plant(t *testing.T, dir, file, src string) {
	t.Helper()
	p := filepath.Join(dir, filepath.FromSlash(file))
	if err := os.MkdirAll(filepath.Dir(p), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p, []byte(src), 0o666); err != nil {
		t.Fatal(err)
	}
}
