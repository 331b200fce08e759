package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// withoutLibrary is the command on a machine whose libfabric cannot be opened: the
// first one on the loader's way is an empty file.
func withoutLibrary(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "libfabric.so.1"), nil, 0o666); err != nil {
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

// TestLibraryMissing: a build with libfabric, on a machine without it, has every
// other fabric and says what is missing.
func TestLibraryMissing(t *testing.T) {
	needLibfabric(t, "tcp")
	for _, launch := range []string{"inproc", "processes"} {
		for _, fabric := range []string{"auto", "shm"} {
			args := append([]string{}, smallRun...)
			if code, _, errs := withoutLibrary(t, append(args, "--launch", launch, "--fabric", fabric)...); code != 0 || errs != "" {
				t.Errorf("%s, %s: exit code %d, said %q", launch, fabric, code, errs)
			}
		}
		args := append([]string{}, smallRun...)
		code, out, errs := withoutLibrary(t, append(args, "--launch", launch, "--fabric", "libfabric:tcp")...)
		if code != 2 || out != "" || strings.Count(errs, "\n") != 1 || !strings.Contains(errs, "--fabric libfabric:tcp: ") || !strings.Contains(errs, "libfabric.so") {
			t.Errorf("%s: exit code %d, printed %q, said %q; want 2, nothing, one line about the library", launch, code, out, errs)
		}
	}
	code, out, errs := withoutLibrary(t, "doctor")
	if code != 0 || !strings.Contains(out, "fabric libfabric │ absent") || !strings.Contains(out, "libfabric1") {
		t.Errorf("doctor: exit code %d, said %q\n%s", code, errs, out)
	}
}
