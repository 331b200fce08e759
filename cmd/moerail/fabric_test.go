package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"moerail/internal/casefile"
	"moerail/transport/efa"
)

// software are libfabric's providers that need no NIC.
var software = []string{"tcp", "shm"}

// needLibfabric skips where the build, or the library here, has no such provider.
func needLibfabric(t *testing.T, provider string) {
	t.Helper()
	if !efa.Built {
		t.Skip("libfabric is not in this build (-tags libfabric)")
	}
	if _, err := efa.New(efa.Config{Provider: provider}); err != nil {
		t.Skipf("libfabric:%s: %v", provider, err)
	}
}

// runReport is what tests look at in the report of a run.
type runReport struct {
	Verified    bool
	Rounds      int
	Outstanding int
	Allocs      uint64 `json:"allocs_per_round"`
	Config      struct{ Fabric string }
	Wire        struct {
		Messages float64 `json:"messages_per_round"`
	}
	Paths []struct{ Path string }
	Error string
}

// verified runs the command with --json and wants a verified report over the
// fabric.
func verified(t *testing.T, fabric string, args ...string) *runReport {
	t.Helper()
	args = append([]string{"run", "--json", "--fabric", fabric}, args...)
	code, out, errs := moerail(t, "", args...)
	rep := new(runReport)
	if err := json.Unmarshal([]byte(out), rep); err != nil || code != 0 || !rep.Verified || rep.Outstanding != 0 || rep.Config.Fabric != fabric {
		t.Fatalf("%q: exit code %d, said %q; %v in %.600s", args, code, errs, err, out)
	}
	for _, p := range rep.Paths {
		if !strings.HasPrefix(p.Path, "libfabric:") {
			t.Fatalf("%q: a path is %q, want the fabric", args, p.Path)
		}
	}
	if rep.Wire.Messages == 0 || len(rep.Paths) == 0 {
		t.Errorf("%q: nothing crossed the fabric", args)
	}
	return rep
}

// manyShapes are small runs of 8 ranks, in every layout and element type; if few,
// each of these once.
func manyShapes(few bool) map[string][]string {
	shapes := map[string][]string{}
	for i, layout := range []string{"grouped", "batched", "rows"} {
		for j, dtype := range []string{"fp8", "bf16", "fp16", "fp32"} {
			out := dtype
			if dtype == "fp8" {
				out = "bf16"
			}
			reduce := []string{"expert", "home"}[(i+j)%2]
			if few && i != j%3 {
				continue
			}
			shapes[layout+" "+dtype] = []string{"--ranks", "8", "--experts", "19", "--top-k", "3", "--hidden", "136", "--tokens", "7,0,20,1,3,9,5,2",
				"--rounds", "3", "--warmup", "1", "--layout", layout, "--dtype", dtype, "--out-dtype", out, "--reduce", reduce}
		}
	}
	return shapes
}

// TestLibfabricProcesses: 8 ranks, each a process, over libfabric's software
// providers.
func TestLibfabricProcesses(t *testing.T) {
	for _, provider := range software {
		for name, args := range manyShapes(testing.Short()) {
			t.Run(provider+" "+name, func(t *testing.T) {
				needLibfabric(t, provider)
				verified(t, "libfabric:"+provider, append(args, "--launch", "processes")...)
			})
		}
	}
}

// TestLibfabricInProcess: the same, all ranks in one process.
func TestLibfabricInProcess(t *testing.T) {
	for _, provider := range software {
		for name, args := range manyShapes(true) {
			t.Run(provider+" "+name, func(t *testing.T) {
				needLibfabric(t, provider)
				verified(t, "libfabric:"+provider, append(args, "--launch", "inproc")...)
			})
		}
	}
}

// TestLibfabricNICs: one to four domains of each rank, blocks cut over them.
func TestLibfabricNICs(t *testing.T) {
	domains := []string{"1", "2", "4"}
	if testing.Short() {
		domains = []string{"4"}
	}
	for _, provider := range software {
		for _, nics := range domains {
			for _, launch := range []string{"inproc", "processes"} {
				t.Run(provider+" "+nics+" "+launch, func(t *testing.T) {
					needLibfabric(t, provider)
					verified(t, "libfabric:"+provider, "--launch", launch, "--nics", nics, "--ranks", "4", "--experts", "8", "--top-k", "4",
						"--hidden", "4096", "--tokens", "40", "--slots", "2", "--rounds", "4", "--warmup", "1")
				})
			}
		}
	}
}

// A name that the library does not know is a fault of the arguments, told in one
// line that says what there is; and it does not matter how ranks are launched.
func TestLibfabricWrongProvider(t *testing.T) {
	needLibfabric(t, "tcp")
	for _, launch := range []string{"inproc", "processes"} {
		code, out, errs := moerail(t, "", append(slices.Clone(smallRun), "--fabric", "libfabric:no-such-provider", "--launch", launch)...)
		if code != 2 || out != "" || strings.Count(errs, "\n") != 1 || !strings.Contains(errs, "no-such-provider") || !strings.Contains(errs, "tcp") {
			t.Errorf("%s: exit code %d, standard output %q, said %q; want 2, nothing, one line with the providers", launch, code, out, errs)
		}
	}
	codes, _, errs := byEnvironment(t, 2, func(_ int, cmd *exec.Cmd) {
		cmd.Args = append(cmd.Args, "--fabric", "libfabric:no-such-provider")
	})
	for r := range codes {
		if codes[r] != 2 || !strings.Contains(errs[r].String(), "no-such-provider") {
			t.Errorf("rank %d: exit code %d, said %q", r, codes[r], errs[r])
		}
	}
}

// One rank that cannot have the fabric ends all of them, at once and by name.
func TestOneRankWithoutTheFabric(t *testing.T) {
	needLibfabric(t, "tcp")
	began := time.Now()
	codes, _, errs := byEnvironment(t, 3, func(rank int, cmd *exec.Cmd) {
		cmd.Args = append(cmd.Args, "--fabric", "libfabric:tcp")
		if rank == 1 {
			cmd.Env = append(cmd.Env, "MOERAIL_NICS=no-such-if")
		}
	})
	for r := range codes {
		said := errs[r].String()
		if codes[r] != 2 || !strings.Contains(said, "no-such-if") || (r != 1 && !strings.Contains(said, "rank 1")) {
			t.Errorf("rank %d: exit code %d, said %q", r, codes[r], said)
		}
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("it took %v", took)
	}
}

// Ranks of different fabrics, and of different providers, say so on every rank.
func TestRanksAgreeOnTheFabric(t *testing.T) {
	needLibfabric(t, "tcp")
	for _, c := range [][2]string{{"libfabric:tcp", "shm"}, {"libfabric:tcp", "libfabric:shm"}} {
		if provider, ok := strings.CutPrefix(c[1], "libfabric:"); ok {
			if _, err := efa.New(efa.Config{Provider: provider}); err != nil {
				continue
			}
		}
		codes, _, errs := byEnvironment(t, 3, func(rank int, cmd *exec.Cmd) {
			cmd.Args = append(cmd.Args, "--fabric", c[min(rank, 1)])
		})
		for r := range codes {
			if said := errs[r].String(); codes[r] != 1 || !strings.Contains(said, "disagree on fabric:") || !strings.Contains(said, c[0]+`" on rank 0`) {
				t.Errorf("%v: rank %d: exit code %d, said %q", c, r, codes[r], said)
			}
		}
	}
}

// TestKilledRankOverLibfabric: the others end with exit code 1, say which rank it
// was, and do so within the deadline of a round and not of set-up.
func TestKilledRankOverLibfabric(t *testing.T) {
	for _, provider := range software {
		t.Run(provider, func(t *testing.T) {
			needLibfabric(t, provider)
			const ranks, victim = 4, 2
			const deadline = 2 * time.Second
			port := freePort(t)
			cmds, errs := make([]*exec.Cmd, ranks), make([]bytes.Buffer, ranks)
			pids := map[int]int{}
			for r := range cmds {
				cmd := command(t, "run", "--launch", "env", "--json", "--fabric", "libfabric:"+provider, "--ranks", strconv.Itoa(ranks), "--experts", "8",
					"--top-k", "2", "--hidden", "64", "--tokens", "4", "--rounds", "1000000", "--deadline", deadline.String())
				cmd.Env = append(cmd.Env, "RANK="+strconv.Itoa(r), "WORLD_SIZE="+strconv.Itoa(ranks), "MASTER_ADDR=127.0.0.1",
					"MASTER_PORT="+strconv.Itoa(port), "MOERAIL_SECRET=sesame", "GOMAXPROCS=1")
				cmd.Stderr = &errs[r]
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
				cmds[r], pids[r] = cmd, cmd.Process.Pid
			}
			awaitWork(t, pids)
			if err := syscall.Kill(pids[victim], syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			killed := time.Now()
			for r, cmd := range cmds {
				cmd.Wait()
				if r == victim {
					continue
				}
				if code := cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(errs[r].String(), fmt.Sprintf("rank %d", victim)) {
					t.Errorf("rank %d: exit code %d, said %q; want 1, and rank %d named", r, code, &errs[r], victim)
				}
			}
			// A round's deadline, then handing in results, of which one is missing.
			if took := time.Since(killed); took > 2*deadline+15*time.Second {
				t.Errorf("they took %v to end", took)
			}
			if provider == "shm" {
				removeShm(t, pids)
			}
		})
	}
}

// TestInterruptedOverLibfabric: the library, and what it brings in, leaves signals
// to the program.
func TestInterruptedOverLibfabric(t *testing.T) {
	needLibfabric(t, "tcp")
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		cmd := command(t, "run", "--fabric", "libfabric:tcp", "--ranks", "2", "--experts", "4", "--top-k", "2", "--hidden", "64", "--tokens", "4",
			"--rounds", "1000000", "--verify", "off")
		var errs bytes.Buffer
		cmd.Stderr = &errs
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		awaitWork(t, map[int]int{0: cmd.Process.Pid})
		cmd.Process.Signal(signal)
		cmd.Wait()
		if code := cmd.ProcessState.ExitCode(); code != 1 || strings.Count(errs.String(), "\n") != 1 ||
			!strings.Contains(errs.String(), "interrupted") && !strings.Contains(errs.String(), "canceled") {
			t.Errorf("%v: exit code %d, said %q", signal, code, &errs)
		}
	}
}

// removeShm removes what libfabric's shm leaves in /dev/shm of killed processes.
func removeShm(t *testing.T, pids map[int]int) {
	t.Helper()
	for _, pid := range pids {
		files, _ := filepath.Glob(fmt.Sprintf("/dev/shm/%d:*", pid))
		for _, f := range files {
			if err := os.Remove(f); err != nil && !os.IsNotExist(err) {
				t.Log(err)
			}
		}
	}
}

// awaitWork waits until every process has computed for a while: it is past
// set-up then.
func awaitWork(t *testing.T, pids map[int]int) {
	t.Helper()
	const enough = 30 // ticks of 10 ms
	for end := time.Now().Add(60 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		busy := 0
		for _, pid := range pids {
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			if err != nil {
				t.Fatalf("process %d: %v", pid, err)
			}
			_, rest, _ := strings.Cut(string(text), ") ")
			fields := strings.Fields(rest)
			if len(fields) > 12 {
				user, _ := strconv.Atoi(fields[11])
				if user >= enough {
					busy++
				}
			}
		}
		if busy == len(pids) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d of %d processes are at work", busy, len(pids))
		}
	}
}

// TestExecOverLibfabric: a case file may name the fabric.
func TestExecOverLibfabric(t *testing.T) {
	needLibfabric(t, "tcp")
	code, out, errs := moerail(t, tinyCase+`,"fabric":"libfabric:tcp"}`, "exec", "-")
	if code != 0 || errs != "" || !strings.Contains(out, `"out":[[0.5,1]]`) || !strings.Contains(out, `"rows":1`) {
		t.Errorf("exit code %d, said %q\n%s", code, errs, out)
	}
	code, out, errs = moerail(t, tinyCase+`,"fabric":"libfabric:tcp","faults":{"seed":1,"reorder":true}}`, "exec", "-")
	if code != 2 || out != "" || !strings.Contains(errs, "loopback") {
		t.Errorf("disorder: exit code %d, printed %q, said %q", code, out, errs)
	}
}

// TestCasesOverLibfabric carries out the collection over libfabric's TCP, and some
// of it over its shared memory.
func TestCasesOverLibfabric(t *testing.T) {
	for _, provider := range software {
		n := 0
		for name, file := range caseFiles(t) {
			c, err := readCase(file, nil)
			if err != nil {
				t.Fatal(err)
			}
			if c.Faults.Reorder || c.Faults.DelayMax > 0 || c.RanksPerNode > 0 || c.Ranks > 16 {
				continue // loopback's own; stores that would be writes; many descriptors
			}
			if n++; n > 8 && (testing.Short() || provider != "tcp") {
				break
			}
			t.Run(provider+" "+name, func(t *testing.T) {
				needLibfabric(t, provider)
				replayCase(t, file, func(c *casefile.Case) { c.Fabric = "libfabric:" + provider })
			})
		}
	}
}
