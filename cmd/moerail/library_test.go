package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"moerail/transport/efa"
	"moerail/transport/verbs"
)

// withoutLibrary is the command on a machine whose libfabric, or libibverbs, cannot
// be opened: the first one on the loader's way is an empty file.
func withoutLibrary(t *testing.T, library string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, library), nil, 0o666); err != nil {
		t.Fatal(err)
	}
	cmd := command(t, args...)
	cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+dir)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// TestLibraryMissing: a build with libfabric or libibverbs, on a machine without
// it, has every other fabric and says what is missing.
func TestLibraryMissing(t *testing.T) {
	for _, c := range []struct {
		library, fabric string
		built           bool
		finding         string
	}{
		{"libfabric.so.1", "libfabric:tcp", efa.Built, "fabric libfabric"},
		{"libibverbs.so.1", "verbs", verbs.Built, "fabric verbs"},
	} {
		t.Run(c.library, func(t *testing.T) {
			if !c.built {
				t.Skip("not in this build")
			}
			libraryMissing(t, c.library, c.fabric, c.finding)
		})
	}
}

func libraryMissing(t *testing.T, library, fabric, finding string) {
	for _, launch := range []string{"inproc", "processes"} {
		for _, other := range []string{"auto", "shm"} {
			args := append([]string{}, smallRun...)
			if code, _, errs := withoutLibrary(t, library, append(args, "--launch", launch, "--fabric", other)...); code != 0 || errs != "" {
				t.Errorf("%s, %s: exit code %d, said %q", launch, other, code, errs)
			}
		}
		args := append([]string{}, smallRun...)
		code, out, errs := withoutLibrary(t, library, append(args, "--launch", launch, "--fabric", fabric)...)
		if code != 2 || out != "" || strings.Count(errs, "\n") != 1 || !strings.Contains(errs, "--fabric "+fabric+": ") || !strings.Contains(errs, library) {
			t.Errorf("%s: exit code %d, printed %q, said %q; want 2, nothing, one line about the library", launch, code, out, errs)
		}
	}
	code, out, errs := withoutLibrary(t, library, "doctor", "--json")
	var doc struct {
		Findings []struct{ Name, State, Found, Remedy string }
	}
	if err := json.Unmarshal([]byte(out), &doc); err != nil || code != 0 {
		t.Fatalf("doctor: exit code %d, said %q, %v", code, errs, err)
	}
	said := false
	for _, f := range doc.Findings {
		said = said || f.Name == finding && f.State == "absent" && strings.Contains(f.Found, library) && strings.Contains(f.Remedy, "install")
	}
	if !said {
		t.Errorf("doctor does not say that %s is missing:\n%s", library, out)
	}
}
