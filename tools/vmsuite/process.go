package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// ended is how a program came to its end.
type ended struct {
	code           int // -1 if a signal ended it
	stdout, stderr string
}

// command is a program of the suite's folder, or else of the machine. It and all
// that it starts are killed when ctx ends.
func (s *suite) command(ctx context.Context, env []string, name string, args ...string) *exec.Cmd {
	if own := filepath.Join(s.bin, name); exists(own) {
		name = own
	}
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// run runs a program to its end. The error says that it could not run, or was
// stopped; a bad exit code is none.
func (s *suite) run(ctx context.Context, env []string, name string, args ...string) (ended, error) {
	cmd := s.command(ctx, env, name, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	return finish(ctx, cmd, cmd.Run(), &out, &errs)
}

func finish(ctx context.Context, cmd *exec.Cmd, err error, out, errs *bytes.Buffer) (ended, error) {
	e := ended{stdout: out.String(), stderr: errs.String()}
	if cmd.ProcessState == nil {
		return e, err
	}
	e.code = cmd.ProcessState.ExitCode()
	if ctx.Err() != nil {
		return e, fmt.Errorf("%s was stopped; it said %s", filepath.Base(cmd.Path), lastLines(e.stderr+e.stdout, 5))
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return e, err
	}
	return e, nil
}

// lastLines is the end of a text, in one line.
func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], " | ")
}
