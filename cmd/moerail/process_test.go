package main

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// endless is a run over processes that a test ends.
func endless(t *testing.T) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	cmd := command(t, "run", "--launch", "processes", "--ranks", "3", "--experts", "6", "--top-k", "2", "--hidden", "64",
		"--tokens", "4", "--rounds", "1000000", "--deadline", "500ms")
	var errs bytes.Buffer
	cmd.Stderr = &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
	return cmd, &errs
}

// children waits until process pid has n children that are well under way, and
// returns them by rank.
func children(t *testing.T, pid, n int) map[int]int {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		found := map[int]int{}
		stats, _ := filepath.Glob("/proc/[0-9]*/stat")
		for _, file := range stats {
			text, err := os.ReadFile(file)
			if err != nil {
				continue
			}
			_, rest, _ := strings.Cut(string(text), ") ")
			fields := strings.Fields(rest)
			if len(fields) < 13 || fields[1] != strconv.Itoa(pid) {
				continue
			}
			child, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", child))
			if ticks, _ := strconv.Atoi(fields[11]); err != nil || ticks < 5 {
				continue // not yet 50 ms of work: it may still be joining
			}
			for _, kv := range strings.Split(string(env), "\x00") {
				if rank, ok := strings.CutPrefix(kv, "RANK="); ok {
					r, _ := strconv.Atoi(rank)
					found[r] = child
				}
			}
		}
		if len(found) == n {
			return found
		}
	}
	t.Fatalf("process %d has not %d busy children", pid, n)
	return nil
}

func alive(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	return !strings.HasPrefix(rest, "Z")
}

func awaitEnd(t *testing.T, pids map[int]int) {
	t.Helper()
	end := time.Now().Add(10 * time.Second)
	for rank, pid := range pids {
		for alive(pid) {
			if time.Now().After(end) {
				t.Fatalf("rank %d's process outlives its parent", rank)
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
}

// A rank whose process dies ends the run with exit code 1 and its number.
func TestKilledRankEndsTheRun(t *testing.T) {
	cmd, errs := endless(t)
	pids := children(t, cmd.Process.Pid, 3)
	if err := syscall.Kill(pids[2], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	if took := time.Since(killed); took > 20*time.Second {
		t.Errorf("it took %v to notice", took)
	}
	if !strings.Contains(errs.String(), "rank 2: its process ended: signal: killed") {
		t.Errorf("it said %q", errs)
	}
	awaitEnd(t, pids)
}

// A crash is not a fault of the arguments, and its reason is told.
func TestCrashedRankIsToldApart(t *testing.T) {
	cmd, errs := endless(t)
	pids := children(t, cmd.Process.Pid, 3)
	if err := syscall.Kill(pids[1], syscall.SIGABRT); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(errs.String(), "rank 1: its process crashed: SIGABRT") {
		t.Errorf("exit code %d, said %q", code, errs)
	}
	awaitEnd(t, pids)
}

// A rank that stands still is noticed within the deadlines of rounds, not of
// set-up.
func TestStoppedRankEndsTheRun(t *testing.T) {
	cmd, errs := endless(t)
	pids := children(t, cmd.Process.Pid, 3)
	if err := syscall.Kill(pids[1], syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	stopped := time.Now()
	cmd.Wait()
	if took := time.Since(stopped); took > 30*time.Second {
		t.Errorf("it took %v to end", took)
	}
	// On a slow machine the rank may be stopped while they still connect.
	said := errs.String()
	if code := cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(said, "waiting for rank 1") && !strings.Contains(said, "group entry 1") {
		t.Errorf("exit code %d, said %q", code, said)
	}
	awaitEnd(t, pids)
}

// No rank outlives the process that started it, however that ended.
func TestRanksDieWithTheirParent(t *testing.T) {
	for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGINT} {
		cmd, _ := endless(t)
		pids := children(t, cmd.Process.Pid, 3)
		if err := cmd.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
		cmd.Wait()
		if code := cmd.ProcessState.ExitCode(); signal == syscall.SIGINT && code != 1 {
			t.Errorf("%v: exit code %d, want 1", signal, code)
		}
		awaitEnd(t, pids)
	}
}

// byEnvironment starts n ranks as a launcher would; change may alter one's
// environment or arguments. It returns exit codes and what was printed.
func byEnvironment(t *testing.T, n int, change func(rank int, cmd *exec.Cmd)) (codes []int, out, errs []*bytes.Buffer) {
	t.Helper()
	port := freePort(t)
	cmds := make([]*exec.Cmd, n)
	for r := range n {
		cmd := command(t, append(append([]string{}, smallRun...), "--ranks", strconv.Itoa(n), "--launch", "env", "--json")...)
		cmd.Env = append(cmd.Env, "RANK="+strconv.Itoa(r), "WORLD_SIZE="+strconv.Itoa(n), "MASTER_ADDR=127.0.0.1",
			"MASTER_PORT="+strconv.Itoa(port), "MOERAIL_SECRET=sesame")
		if change != nil {
			change(r, cmd)
		}
		out, errs = append(out, new(bytes.Buffer)), append(errs, new(bytes.Buffer))
		cmd.Stdout, cmd.Stderr = out[r], errs[r]
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		cmds[r] = cmd
	}
	for _, cmd := range cmds {
		cmd.Wait()
		codes = append(codes, cmd.ProcessState.ExitCode())
	}
	return codes, out, errs
}

func TestLaunchByEnvironment(t *testing.T) {
	codes, out, errs := byEnvironment(t, 3, nil)
	for r := range codes {
		if codes[r] != 0 || errs[r].Len() > 0 || (out[r].Len() > 0) != (r == 0) {
			t.Errorf("rank %d: exit code %d, %d bytes printed, said %q", r, codes[r], out[r].Len(), errs[r])
		}
	}
	if !strings.Contains(out[0].String(), `"verified":true`) {
		t.Errorf("rank 0 printed %s", out[0])
	}
}

func TestLaunchWithAnotherWorldSize(t *testing.T) {
	codes, _, errs := byEnvironment(t, 1, nil)
	if codes[0] != 0 {
		t.Errorf("one rank: exit code %d, said %q", codes[0], errs[0])
	}
	code, _, said := moerail(t, "", append(append([]string{}, smallRun...), "--launch", "env")...)
	if code != 2 || !strings.Contains(said, "RANK is not set") {
		t.Errorf("no environment: exit code %d, said %q", code, said)
	}
}

// Ranks that were started differently say so, all of them.
func TestRanksAgreeOnFlags(t *testing.T) {
	for flag, value := range map[string]string{"rounds": "9", "warmup": "0", "seed": "77", "verify": "off", "routing": "one:1",
		"tokens": "1,2,1", "deadline": "7s", "hidden": "24"} {
		codes, _, errs := byEnvironment(t, 3, func(rank int, cmd *exec.Cmd) {
			if rank == 1 {
				cmd.Args = append(cmd.Args, "--"+flag, value)
			}
		})
		for r := range codes {
			if said := errs[r].String(); codes[r] != 1 || !strings.Contains(said, "disagree on "+flag+":") || !strings.Contains(said, value+`" on rank 1`) {
				t.Errorf("%s: rank %d: exit code %d, said %q", flag, r, codes[r], said)
			}
		}
	}
}

// What could not be written is not a success.
func TestFullDisk(t *testing.T) {
	small := filepath.Join(casesDir, "ep05_same_expert_twice.json")
	for _, args := range [][]string{smallRun, append([]string{"--json"}, smallRun...), {"exec", small}, {"doctor"}, {"--help"}, {"run", "--help"}} {
		if args[0] == "--json" {
			args = append(append([]string{}, args[1:]...), args[0])
		}
		full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		if err != nil {
			t.Skip(err)
		}
		var errs bytes.Buffer
		cmd := command(t, args...)
		cmd.Stdout, cmd.Stderr = full, &errs
		cmd.Run()
		full.Close()
		if code := cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(errs.String(), "no space left") || strings.Count(errs.String(), "\n") != 1 {
			t.Errorf("%v: exit code %d, said %q", args, code, &errs)
		}
	}
}

// A signal ends the wait for a case that nobody writes.
func TestInterruptedWhileReading(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"-", pipe} {
		cmd := command(t, "exec", name)
		if name == "-" {
			stdin, err := os.OpenFile(pipe, os.O_RDWR, 0) // which needs no other end
			if err != nil {
				t.Fatal(err)
			}
			defer stdin.Close()
			cmd.Stdin = stdin
		}
		var errs bytes.Buffer
		cmd.Stderr = &errs
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		awaitReader(t, cmd.Process.Pid, pipe)
		cmd.Process.Signal(syscall.SIGTERM)
		cmd.Wait()
		if code := cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(errs.String(), "interrupted") {
			t.Errorf("%s: exit code %d, said %q", name, code, &errs)
		}
	}
}

// awaitReader waits until process pid has taken the byte that it writes to pipe.
func awaitReader(t *testing.T, pid int, pipe string) {
	t.Helper()
	w, err := os.OpenFile(pipe, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	if _, err := w.WriteString("{"); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if n, err := unix.IoctlGetInt(int(w.Fd()), unix.TIOCINQ); err != nil {
			t.Fatal(err)
		} else if n == 0 {
			return
		}
	}
	t.Fatalf("process %d does not read", pid)
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}
