package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// testHosts makes TestTwoHosts run: it needs root and takes a while.
const testHosts = "MOERAIL_TEST_HOSTS"

// host is a network namespace: another machine, as far as the network can tell. It
// has no name; it ends with the process that holds it, and that with this one,
// however this one ends.
type host struct {
	holder *exec.Cmd
	addr   string // on the link, without its length
}

const link = "link0"

func newHost(t *testing.T, addr string) *host {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "cat") // reads a pipe of ours until it ends
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if err := cmd.Start(); err != nil {
		t.Skipf("network namespaces: %v", err)
	}
	t.Cleanup(func() { stdin.Close(); cmd.Process.Kill(); cmd.Wait() })
	h := &host{cmd, addr}
	h.must(t, "ip", "link", "set", "lo", "up")
	return h
}

// enter moves the calling thread into the namespace for good; it must be locked
// and is to end with its goroutine.
func (h *host) enter() error {
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/ns/net", h.holder.Process.Pid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Setns(fd, unix.CLONE_NEWNET)
}

// start starts a command on the host; wait is Cmd.Wait. The kernel kills it when
// this test process ends.
func (h *host) start(cmd *exec.Cmd) (wait func() error, err error) {
	started, ended := make(chan error), make(chan error, 1)
	go func() {
		// Not unlocked: the thread is of the other namespace and ends with this
		// goroutine, and it is the child's parent until then.
		runtime.LockOSThread()
		err := h.enter()
		if err == nil {
			cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			err = cmd.Start()
		}
		started <- err
		if err == nil {
			ended <- cmd.Wait()
		}
	}()
	return func() error { return <-ended }, <-started
}

func (h *host) run(cmd *exec.Cmd) error {
	wait, err := h.start(cmd)
	if err != nil {
		return err
	}
	return wait()
}

func (h *host) must(t *testing.T, name string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := h.run(cmd); err != nil {
		t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, &out)
	}
}

// twoHosts are joined by nothing yet.
func twoHosts(t *testing.T) [2]*host {
	t.Helper()
	if os.Getenv(testHosts) == "" {
		t.Skipf("%s is not set (make test-hosts)", testHosts)
	}
	if os.Getuid() != 0 {
		t.Skip("needs root, to make network namespaces")
	}
	for _, tool := range []string{"ip", "cat"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s (Debian: iproute2)", tool)
		}
	}
	return [2]*host{newHost(t, "198.51.100.1"), newHost(t, "198.51.100.2")}
}

// joinByVeth puts a cable between the hosts.
func joinByVeth(t *testing.T, hosts [2]*host) {
	t.Helper()
	hosts[0].must(t, "ip", "link", "add", link, "type", "veth", "peer", "name", link, "netns", strconv.Itoa(hosts[1].holder.Process.Pid))
	for _, h := range hosts {
		h.up(t)
	}
	for _, h := range hosts { // an end has a carrier a moment after both are up; libfabric's net wants it
		for began := time.Now(); !h.carrier(t); {
			if time.Since(began) > 10*time.Second {
				t.Fatal("the cable has no carrier after 10 s")
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}

func (h *host) carrier(t *testing.T) bool {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "ip", "-o", "link", "show", link)
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := h.run(cmd); err != nil {
		t.Fatal(err)
	}
	return strings.Contains(out.String(), "LOWER_UP") && strings.Contains(out.String(), "state UP")
}

func (h *host) up(t *testing.T) {
	t.Helper()
	h.must(t, "ip", "addr", "add", h.addr+"/24", "dev", link)
	h.must(t, "ip", "link", "set", link, "up")
}

const (
	lineDelay = time.Millisecond
	lineLoss  = 0.01
)

// disturbByNetem makes both ends of the cable late and lossy, where the kernel can.
func disturbByNetem(t *testing.T, hosts [2]*host) {
	t.Helper()
	for _, h := range hosts {
		cmd := exec.CommandContext(t.Context(), "tc", "qdisc", "add", "dev", link, "root", "netem", "delay", "1ms", "loss", "1%")
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := h.run(cmd); err != nil {
			t.Skipf("this machine cannot delay or lose with tc netem: %v: %s", err, strings.TrimSpace(out.String()))
		}
	}
}

// jobOnTwoHosts is a job of 4 + 4 ranks.
type jobOnTwoHosts struct {
	cmds [8]*exec.Cmd
	wait [8]func() error
	out  bytes.Buffer // of rank 0
	errs [8]bytes.Buffer
}

func startOnTwoHosts(t *testing.T, hosts [2]*host, args ...string) *jobOnTwoHosts {
	t.Helper()
	j := new(jobOnTwoHosts)
	for r := range j.cmds {
		cmd := command(t, append([]string{"run", "--launch", "env", "--json", "--fabric", "libfabric:tcp", "--ranks", "8"}, args...)...)
		cmd.Env = append(cmd.Env, "RANK="+strconv.Itoa(r), "LOCAL_RANK="+strconv.Itoa(r%4), "WORLD_SIZE=8", "MASTER_ADDR="+hosts[0].addr,
			"MASTER_PORT=29500", "MOERAIL_SECRET=sesame", "GOMAXPROCS=1")
		cmd.Stderr = &j.errs[r]
		if r == 0 {
			cmd.Stdout = &j.out
		}
		wait, err := hosts[r/4].start(cmd)
		if err != nil {
			t.Fatal(err)
		}
		j.cmds[r], j.wait[r] = cmd, wait
	}
	return j
}

// verified waits for the job and wants a verified report.
func (j *jobOnTwoHosts) verified(t *testing.T) {
	t.Helper()
	for r, cmd := range j.cmds {
		j.wait[r]()
		if code := cmd.ProcessState.ExitCode(); code != 0 || j.errs[r].Len() > 0 {
			t.Errorf("rank %d: exit code %d, said %q", r, code, &j.errs[r])
		}
	}
	rep := new(runReport)
	if err := json.Unmarshal(j.out.Bytes(), rep); err != nil || !rep.Verified || rep.Outstanding != 0 || len(rep.Paths) != 56 {
		t.Fatalf("%v, %+v", err, rep)
	}
	for _, p := range rep.Paths {
		if !strings.HasPrefix(p.Path, "libfabric:") {
			t.Fatalf("a path is %q", p.Path)
		}
	}
}

var hostsRun = []string{"--experts", "32", "--top-k", "4", "--hidden", "1024", "--tokens", "33,0,64,1,7,128,2,16", "--rounds", "20", "--warmup", "2"}

// TestTwoHosts: ranks in two network namespaces, which only the link between them
// joins, over libfabric's TCP.
func TestTwoHosts(t *testing.T) {
	needLibfabric(t, "tcp")
	for name, join := range map[string]func(*testing.T, [2]*host){
		"cable":                       joinByVeth,
		"cable, 1 ms and 1%, netem":   func(t *testing.T, h [2]*host) { joinByVeth(t, h); disturbByNetem(t, h) },
		"tunnel":                      func(t *testing.T, h [2]*host) { joinByTunnel(t, h, 0, 0) },
		"tunnel, 1 ms and 1% of loss": func(t *testing.T, h [2]*host) { joinByTunnel(t, h, lineDelay, lineLoss) },
	} {
		t.Run(name, func(t *testing.T) {
			hosts := twoHosts(t)
			join(t, hosts)
			for _, nics := range []string{"1", "2"} {
				startOnTwoHosts(t, hosts, append(hostsRun, "--nics", nics, "--deadline", "30s")...).verified(t)
			}
		})
	}
}

// TestTwoHostsKilledRank: a rank that dies on one host ends those of both, and
// each names it.
func TestTwoHostsKilledRank(t *testing.T) {
	needLibfabric(t, "tcp")
	const victim = 5
	hosts := twoHosts(t)
	joinByVeth(t, hosts)
	j := startOnTwoHosts(t, hosts, "--experts", "32", "--top-k", "4", "--hidden", "256", "--tokens", "8", "--rounds", "1000000", "--deadline", "3s")
	pids := map[int]int{}
	for r, cmd := range j.cmds {
		pids[r] = cmd.Process.Pid
	}
	awaitWork(t, pids)
	j.cmds[victim].Process.Kill()
	j.lost(t, victim, 3*time.Second)
}

// TestTwoHostsCutLink: a link that goes down in mid-run ends the ranks of both
// sides, each naming ranks of the other one.
func TestTwoHostsCutLink(t *testing.T) {
	needLibfabric(t, "tcp")
	hosts := twoHosts(t)
	joinByVeth(t, hosts)
	j := startOnTwoHosts(t, hosts, "--experts", "32", "--top-k", "4", "--hidden", "256", "--tokens", "8", "--rounds", "1000000", "--deadline", "3s")
	pids := map[int]int{}
	for r, cmd := range j.cmds {
		pids[r] = cmd.Process.Pid
	}
	awaitWork(t, pids)
	hosts[0].must(t, "ip", "link", "set", link, "down")
	cut := time.Now()
	for r, cmd := range j.cmds {
		j.wait[r]()
		t.Logf("after %v rank %d: %s", time.Since(cut).Round(time.Millisecond), r, strings.TrimSpace(j.errs[r].String()))
		if code := cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(j.errs[r].String(), "rank") {
			t.Errorf("rank %d: exit code %d, said %q", r, code, &j.errs[r])
		}
	}
	if took := time.Since(cut); took > 90*time.Second {
		t.Errorf("they took %v to end", took)
	}
}

// lost waits for all and wants every other rank to have said that the victim is
// gone.
func (j *jobOnTwoHosts) lost(t *testing.T, victim int, deadline time.Duration) {
	t.Helper()
	began := time.Now()
	for r, cmd := range j.cmds {
		j.wait[r]()
		t.Logf("after %v rank %d: %s", time.Since(began).Round(time.Millisecond), r, strings.TrimSpace(j.errs[r].String()))
		if r == victim {
			continue
		}
		if code := cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(j.errs[r].String(), fmt.Sprintf("rank %d", victim)) {
			t.Errorf("rank %d: exit code %d, said %q; want 1, and rank %d named", r, code, &j.errs[r], victim)
		}
	}
	if took := time.Since(began); took > 2*deadline+15*time.Second {
		t.Errorf("they took %v to end", took)
	}
}
