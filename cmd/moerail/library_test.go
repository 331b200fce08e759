package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"moerail/transport/efa"
)

// withoutLibrary is the command on a machine where nothing can be opened as the
// file library: a mount of its own hides it from this process alone.
func withoutLibrary(t *testing.T, library string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	cmd := command(t, args...)
	script := `mount --bind /dev/null "$0" && exec "$@"`
	cmd.Args = append([]string{"sh", "-c", script, library, cmd.Path}, args...)
	cmd.Path = "/bin/sh"
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if cmd.ProcessState == nil {
		t.Skipf("a mount namespace: %v", err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// TestLibraryMissing: a build with libfabric, on a machine without it, has every
// other fabric and says what is missing.
func TestLibraryMissing(t *testing.T) {
	needLibfabric(t, "tcp")
	if os.Getuid() != 0 {
		t.Skip("needs root, to hide the library from a process")
	}
	if _, err := exec.LookPath("mount"); err != nil {
		t.Skip(err)
	}
	library, err := filepath.EvalSymlinks(efa.Discover().Library)
	if err != nil {
		t.Fatal(err)
	}
	for _, launch := range []string{"inproc", "processes"} {
		args := append([]string{}, smallRun...)
		if code, _, errs := withoutLibrary(t, library, append(args, "--launch", launch)...); code != 0 || errs != "" {
			t.Errorf("%s: exit code %d, said %q; want a run over another fabric", launch, code, errs)
		}
		code, out, errs := withoutLibrary(t, library, append(args, "--launch", launch, "--fabric", "libfabric:tcp")...)
		if code != 2 || out != "" || strings.Count(errs, "\n") != 1 || !strings.Contains(errs, "--fabric libfabric:tcp: ") || !strings.Contains(errs, "libfabric.so") {
			t.Errorf("%s: exit code %d, printed %q, said %q; want 2, nothing, one line about the library", launch, code, out, errs)
		}
	}
	code, out, errs := withoutLibrary(t, library, "doctor")
	if code != 0 || !strings.Contains(out, "fabric libfabric │ absent") || !strings.Contains(out, "apt-get install libfabric1") {
		t.Errorf("doctor: exit code %d, said %q\n%s", code, errs, out)
	}
}
