package tools_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// These tests drive rxe-vm without booting anything: a script stands for QEMU and
// plays the guest.

const (
	exitNoBoot  = 123
	exitTimeout = 124
	exitOurs    = 125
)

// rig is a folder with commands that stand for the host's, and an image.
type rig struct {
	bin, image, tmp string
}

func newRig(t *testing.T, qemu string) *rig {
	t.Helper()
	if _, err := exec.LookPath("bash"); err != nil || runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		t.Skip("rxe-vm is for x86-64 Linux with bash")
	}
	if _, err := exec.LookPath("setpriv"); err != nil {
		t.Skip("there is no setpriv here (Debian: util-linux)")
	}
	dir := t.TempDir()
	r := &rig{filepath.Join(dir, "bin"), filepath.Join(dir, "image"), filepath.Join(dir, "tmp")}
	for _, d := range []string{r.bin, r.image, r.tmp} {
		if err := os.Mkdir(d, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{"vmlinux", "initrd"} {
		if err := os.WriteFile(filepath.Join(r.image, f), nil, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	r.script(t, "dpkg-query", `case "$*" in *absent*) exit 1 ;; esac; echo installed`)
	r.script(t, "apt-get", `echo "E: Unable to locate package" >&2; exit 100`)
	r.script(t, "qemu-system-x86_64", `
dir='' append='' shared=''
for a; do
  case $a in
    file,id=ctl,path=*) dir=${a#file,id=ctl,path=} dir=${dir%/ctl} ;;
    console=ttyS0*) append=$a ;;
    local,id=rw*) shared+=" $a" ;;
  esac
done
`+qemu)
	return r
}

func (r *rig) script(t *testing.T, name, body string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(r.bin, name), []byte("#!/bin/bash\n"+body+"\n"), 0o777); err != nil {
		t.Fatal(err)
	}
}

func (r *rig) command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	return r.commandOf(t, "rxe-vm", args...)
}

func (r *rig) commandOf(t *testing.T, script string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "bash", append([]string{script}, args...)...)
	cmd.Env = append(os.Environ(), "PATH="+r.bin+":"+os.Getenv("PATH"), "TMPDIR="+r.tmp, "XDG_CACHE_HOME="+filepath.Join(r.tmp, "cache"))
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// run runs rxe-vm to its end, on the rig's image if there is a command for it.
func (r *rig) run(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	return r.runScript(t, "rxe-vm", args...)
}

func (r *rig) runScript(t *testing.T, script string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	cmd := r.commandOf(t, script, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	left, _ := filepath.Glob(filepath.Join(r.tmp, "rxe-vm.*"))
	if len(left) > 0 {
		t.Errorf("%q left %v behind", args, left)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// A guest that never comes: any test that gets so far as to start it would wait.
const never = `exec sleep 60`

func TestArgumentErrors(t *testing.T) {
	r := newRig(t, never)
	for _, c := range []struct {
		args []string
		says string
	}{
		{nil, "there is no command"},
		{[]string{"--"}, "there is no command"},
		{[]string{"--frobnicate", "true"}, "unknown option '--frobnicate'"},
		{[]string{"--nodes"}, "--nodes wants a value"},
		{[]string{"--nodes", "0", "true"}, "--nodes wants a whole number from 1 to 32, not '0'"},
		{[]string{"--nodes=two", "true"}, "not 'two'"},
		{[]string{"--nodes", "1e1", "true"}, "not '1e1'"},
		{[]string{"--nodes", "8", "--devices", "5", "true"}, "at most 32"},
		{[]string{"--timeout", "-1", "true"}, "not '-1'"},
		{[]string{"--boot-timeout", "0", "true"}, "--boot-timeout wants"},
		{[]string{"--mem", "1", "true"}, "--mem wants"},
		{[]string{"--mtu", "99999", "true"}, "--mtu wants"},
		{[]string{"--accel", "xen", "true"}, "--accel wants"},
		{[]string{"--rw", "/nowhere/at/all", "true"}, "/nowhere/at/all"},
		{[]string{"--image", "/nowhere/at/all", "true"}, "/nowhere/at/all"},
		{[]string{"--image", r.image, "--update", "true"}, "--update"},
		{[]string{"--with", "--yes", "true"}, "--with wants"},
		{[]string{"--prepare", "true"}, "--prepare runs no command"},
	} {
		code, out, errs := r.run(t, c.args...)
		if code != exitOurs || out != "" || !strings.Contains(errs, c.says) {
			t.Errorf("%q: exit status %d, standard output %q, standard error %q; want %d, nothing, %q", c.args, code, out, errs, exitOurs, c.says)
		}
	}
}

func TestHelpAndNoKernel(t *testing.T) {
	r := newRig(t, never)
	code, out, errs := r.run(t, "--help")
	if code != 0 || errs != "" || !strings.HasPrefix(out, "Usage: rxe-vm") {
		t.Errorf("--help: exit status %d, %q, %q", code, out, errs)
	}
	// The help names every option that the script takes.
	script, err := os.ReadFile("rxe-vm")
	if err != nil {
		t.Fatal(err)
	}
	_, loop, _ := strings.Cut(string(script), "while (($#)); do")
	loop, _, _ = strings.Cut(loop, "\ndone\n")
	options := 0
	for line := range strings.Lines(loop) {
		name, _, ok := strings.Cut(strings.TrimSpace(line), ")")
		if !ok || !strings.HasPrefix(name, "--") || strings.ContainsAny(name, "|?*") || name == "--" {
			continue
		}
		options++
		if !strings.Contains(out, "\n  "+name+" ") {
			t.Errorf("the help does not describe %s", name)
		}
	}
	if options < 14 {
		t.Errorf("only %d options are to be seen in the script", options)
	}
	r.script(t, "apt-cache", "exit 0")
	code, _, errs = r.run(t, "--prepare")
	if code != exitNoBoot || !strings.Contains(errs, "linux-image-amd64") {
		t.Errorf("without a kernel package: exit status %d, %q", code, errs)
	}
	code, _, errs = r.run(t, "--image", r.image, "--with", "absent", "true")
	if code != exitNoBoot || !strings.Contains(errs, "cannot install absent") {
		t.Errorf("without a package: exit status %d, %q", code, errs)
	}
}

// The command's status, output and order of arguments come through.
func TestGuestThatRuns(t *testing.T) {
	r := newRig(t, `
[[ $append == *panic=-1* && $shared == *path=* ]] || exit 1
echo "to the output" >>"$dir/out"; echo "to the errors" >>"$dir/err"
grep -q "exec -- sh -c 'exit 7'\|exec -- sh -c exit\\\\ 7" "$dir/job/exec" || exit 1
grep -q "RXE_NODE_1_DEVICES='rxe2 rxe3'" "$dir/job/exec" || exit 1
echo "ready 1.5" >"$dir/ctl"; sleep 0.5; echo "exit 7 0" >"$dir/ctl"`)
	code, out, errs := r.run(t, "--image", r.image, "--accel", "tcg", "--nodes", "2", "--devices=2", "--", "sh", "-c", "exit 7")
	if code != 7 || out != "to the output\n" || errs != "to the errors\n" {
		t.Errorf("exit status %d, standard output %q, standard error %q", code, out, errs)
	}
}

func TestGuestThatDoesNotCome(t *testing.T) {
	for name, c := range map[string]struct{ qemu, says string }{
		"dies":        {`echo "kernel panic" >"$dir/console"; exit 1`, "kernel panic"},
		"says why":    {`echo "fail no rxe module" >"$dir/ctl"; exec sleep 60`, "no rxe module"},
		"is too late": {never, "no boot within 1 s"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, c.qemu)
			began := time.Now()
			code, out, errs := r.run(t, "--image", r.image, "--accel", "tcg", "--boot-timeout", "1", "true")
			if code != exitNoBoot || out != "" || !strings.Contains(errs, c.says) {
				t.Errorf("exit status %d, standard output %q, standard error %q; want %d and %q", code, out, errs, exitNoBoot, c.says)
			}
			if took := time.Since(began); took > 30*time.Second {
				t.Errorf("it took %v to give up", took)
			}
		})
	}
}

// A VM that stops after it came up is another matter than one that never came.
func TestGuestThatStops(t *testing.T) {
	r := newRig(t, `echo "ready 1" >"$dir/ctl"; exit 1`)
	if code, _, errs := r.run(t, "--image", r.image, "--accel", "tcg", "true"); code != exitOurs || !strings.Contains(errs, "stopped unexpectedly") {
		t.Errorf("exit status %d, %q", code, errs)
	}
	r = newRig(t, `echo "ready 1" >"$dir/ctl"; sleep 1; echo "exit 124 1" >"$dir/ctl"`)
	if code, _, errs := r.run(t, "--image", r.image, "--accel", "tcg", "--timeout", "1", "true"); code != exitTimeout || !strings.Contains(errs, "stopped after 1 s") {
		t.Errorf("exit status %d, %q", code, errs)
	}
}

// Ended from outside, rxe-vm leaves neither a VM nor files; killed outright, the
// VM ends all the same and the next run clears the files.
func TestKilled(t *testing.T) {
	r := newRig(t, `echo $$ >"$dir/../qemu"; exec sleep 60`)
	pidFile := filepath.Join(r.tmp, "qemu")
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGKILL} {
		if signal.Ignored(sig) {
			continue // a script cannot catch what its parent ignores, as under nohup
		}
		_ = os.Remove(pidFile)
		cmd := r.command(t, "--image", r.image, "--accel", "tcg", "true")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		pid := 0
		wait(t, "the VM's process", func() bool {
			b, _ := os.ReadFile(pidFile)
			n, _ := fmt.Sscan(string(b), &pid)
			return n == 1
		})
		if err := cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		if sig != syscall.SIGKILL && cmd.ProcessState.ExitCode() != 128+int(sig) {
			t.Errorf("%v: exit status %d", sig, cmd.ProcessState.ExitCode())
		}
		wait(t, "the end of the VM", func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) || zombie(pid) })
	}
	if code, _, errs := r.run(t, "--image", r.image, "--boot-timeout", "1", "--accel", "tcg", "true"); code != exitNoBoot {
		t.Errorf("after all that: exit status %d, %q", code, errs)
	}
}

func zombie(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && strings.Contains(string(b), ") Z ")
}

func wait(t *testing.T, what string, is func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !is() {
		if time.Now().After(deadline) {
			t.Fatalf("waited 20 s for %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// vm-suite refuses wrong arguments before it builds anything.
func TestSuiteArguments(t *testing.T) {
	r := newRig(t, never)
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"--frobnicate"}, "unknown option '--frobnicate'"},
		{[]string{"--nodes"}, "--nodes wants"},
		{[]string{"--nodes", "0"}, "not '0'"},
		{[]string{"--nodes=8", "--devices=8"}, "at most 32"},
		{[]string{"--patience", "21"}, "at most 20"},
		{[]string{"dance"}, "no step 'dance'"},
		{[]string{"topo", "Usage:"}, "no step 'Usage:'"},
	} {
		code, out, errs := r.runScript(t, "vm-suite", c.args...)
		if code != 2 || out != "" || !strings.Contains(errs, c.says) || strings.Contains(errs, "building") {
			t.Errorf("%q: exit status %d, standard output %q, standard error %q; want 2, nothing, %q", c.args, code, out, errs, c.says)
		}
	}
	code, out, _ := r.runScript(t, "vm-suite", "--help")
	if code != 0 || !strings.HasPrefix(out, "Usage: vm-suite") {
		t.Errorf("--help: exit status %d, %q", code, out)
	}
}
