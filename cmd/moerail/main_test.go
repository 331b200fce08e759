package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write the golden files anew")

// asCommand makes this test binary behave as moerail, so that tests run the
// command as a process, with its exit codes and its children.
const asCommand = "RUN_TEST_BINARY_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		os.Exit(run())
	}
	os.Exit(m.Run())
}

// command is moerail with args, not yet started.
func command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Env = append(os.Environ(), asCommand+"=1")
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// moerail runs the command to its end.
func moerail(t *testing.T, stdin string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	cmd := command(t, args...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	err := cmd.Run()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

func TestHelpIsGolden(t *testing.T) {
	for name, args := range map[string][]string{
		"moerail": {"--help"}, "run": {"run", "--help"}, "exec": {"exec", "--help"}, "doctor": {"doctor", "--help"},
		"bench": {"bench", "--help"}, "bench_write": {"bench", "write", "--help"},
		"topo": {"topo", "--help"},
	} {
		code, out, errs := moerail(t, "", args...)
		if code != 0 || errs != "" {
			t.Errorf("%s: exit code %d, said %q", name, code, errs)
		}
		file := filepath.Join("testdata", "help", name+".txt")
		if *update {
			if err := os.WriteFile(file, []byte(out), 0o666); err != nil {
				t.Fatal(err)
			}
			continue
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if out != string(want) {
			t.Errorf("%s: the help has changed; if that is meant: go test ./cmd/moerail -run Golden -update\n%s", name, out)
		}
	}
}

// Exit code 2, nothing on standard output, and one line that names the culprit.
func TestBadArguments(t *testing.T) {
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"frobnicate"}, "frobnicate"},
		{[]string{"bench"}, "bench: name what to measure: write"},
		{[]string{"bench", "reads"}, `bench: there is no "reads", want write`},
		{[]string{"bench", "write", "more"}, "moerail bench write: unknown command \"more\""},
		{[]string{"bench", "write", "--sizes", "8,none"}, `--sizes entry 1 is "none"`},
		{[]string{"bench", "write", "--sizes", "0"}, "--sizes has 0 bytes"},
		{[]string{"bench", "write", "--level", "card"}, `--level is "card", want one of [engine worker domain]`},
		{[]string{"bench", "write", "--launch", "both"}, `--launch is "both"`},
		{[]string{"bench", "write", "--cpus", "0"}, `--cpus is "0", want the cores of 2 ranks`},
		{[]string{"bench", "write", "--cpus", "0,x"}, `--cpus of rank 1 is "x"`},
		{[]string{"bench", "write", "--cpus", "1023,1022", "--sizes", "8"}, "--cpus [102"},
		{[]string{"bench", "write", "--fabric", "loopback"}, "--fabric loopback: joins ranks of one process"},
		{[]string{"bench", "write", "--fabric", "libfabric:no-such-provider"}, "--fabric libfabric:no-such-provider: "},
		{[]string{"bench", "write", "--launch", "env"}, "RANK is not set"},
		{[]string{"run", "--frobnicate"}, "--frobnicate"},
		{[]string{"run", "extra"}, "extra"},
		{[]string{"run", "--ranks", "none"}, "--ranks"},
		{[]string{"run", "--ranks", "0"}, "--ranks is 0, allowed are 1 to 1024"},
		{[]string{"run", "--tokens", "1,x"}, "entry 1 is \"x\""},
		{[]string{"run", "--tokens", "1,2"}, "--tokens names 2 ranks, there are 8"},
		{[]string{"run", "--deadline", "soon"}, "--deadline"},
		{[]string{"run", "--fabric", "ib"}, `"ib": is no fabric, want auto`},
		{[]string{"run", "--fabric", "libfabric:"}, "names no provider"},
		{[]string{"run", "--fabric", "libfabric:no-such-provider"}, "--fabric libfabric:no-such-provider: "},
		{[]string{"run", "--fabric", "loopback", "--launch", "processes"}, "--fabric loopback: joins ranks of one process"},
		{[]string{"run", "--device", "cuda"}, "cuda is not in this build"},
		{[]string{"run", "--routing", "testdata/none.u8:7"}, "testdata/manifest.json"},
		{[]string{"run", "--placement", "testdata/none.json"}, "none.json"},
		{[]string{"run", "--ranks", "2", "--hidden", "16", "--window-rows", "500"}, "window rows is 500, want 0 to 128"},
		{[]string{"run", "--ranks", "2", "--hidden", "16", "--window-rows", "500", "--launch", "processes"}, "window rows is 500, want 0 to 128"},
		{[]string{"run", "--launch", "env"}, "RANK is not set"},
		{[]string{"exec"}, "accepts 1 arg"},
		{[]string{"exec", "none.json"}, "none.json"},
		{[]string{"exec", "testdata"}, "testdata"},
		{[]string{"doctor", "extra"}, "extra"},
		{[]string{"topo", "extra"}, "extra"},
		{[]string{"topo", "--sysfs", "testdata/none"}, "testdata/none"},
		{[]string{"topo", "--sysfs", "testdata"}, "testdata is no sysfs"},
		{[]string{"topo", "--gpus", "0"}, `"0" is no PCI address`},
		{[]string{"topo", "--gpus", "0000:ff:1f.7"}, `no GPU at "0000:ff:1f.7"`},
		{[]string{"topo", "--ports", "mlx5_99"}, `no RDMA device or port "mlx5_99"`},
	} {
		code, out, errs := moerail(t, "", c.args...)
		if code != 2 || out != "" || strings.Count(errs, "\n") != 1 || !strings.Contains(errs, c.says) {
			t.Errorf("%q: exit code %d, standard output %q, standard error %q; want 2, nothing, one line with %q", c.args, code, out, errs, c.says)
		}
	}
}

func TestRunWithoutArguments(t *testing.T) {
	code, out, _ := moerail(t, "")
	if code != 0 || !strings.Contains(out, "doctor") || strings.Contains(out, "completion") {
		t.Errorf("exit code %d, %s", code, out)
	}
	if code, out, _ = moerail(t, "", "--version"); code != 0 || !strings.HasPrefix(out, "moerail ") {
		t.Errorf("--version: exit code %d, %q", code, out)
	}
}

var smallRun = []string{"run", "--ranks", "3", "--experts", "7", "--top-k", "2", "--hidden", "40", "--tokens", "5", "--rounds", "4", "--warmup", "1"}

// keys lists the keys of a JSON object, sorted.
func keys(t *testing.T, raw json.RawMessage) []string {
	t.Helper()
	var m map[string]json.RawMessage
	if err := json.Unmarshal(raw, &m); err != nil {
		t.Fatalf("%v in %s", err, raw)
	}
	var names []string
	for k := range m {
		names = append(names, k)
	}
	slices.Sort(names)
	return names
}

// The keys of the JSON document are an interface: exactly these.
func TestRunJSON(t *testing.T) {
	for _, launch := range []string{"inproc", "processes"} {
		code, out, errs := moerail(t, "", append(slices.Clone(smallRun), "--json", "--launch", launch)...)
		if code != 0 || errs != "" {
			t.Fatalf("%s: exit code %d, said %q", launch, code, errs)
		}
		want := map[string]string{
			"":            "allocs_per_round combine config dispatch expert_load format machine outstanding paths phases proxy round rounds verified version wire",
			"machine":     "cores cpu go gpu kernel nics",
			"phases":      "combine_recv combine_send dispatch_recv dispatch_send",
			"dispatch":    "max p50 p90 p99",
			"round":       "max p50 p90 p99",
			"wire":        "bytes_per_round expert_rows_per_round local_bytes_per_round messages_per_round row_bytes rows_per_round unique_rows_per_round",
			"proxy":       "busy_ns_per_round doorbells_per_round posts_per_round steps_per_round",
			"expert_load": "max_over_mean",
			"config": "deadline device dtype experts fabric hidden launch layout nics out_dtype placement ranks ranks_per_node reduce replicas " +
				"rounds routing seed slots tokens top_k verify warmup window_rows",
		}
		var doc map[string]json.RawMessage
		if err := json.Unmarshal([]byte(out), &doc); err != nil {
			t.Fatalf("%s: standard output is not one JSON document: %v", launch, err)
		}
		for part, list := range want {
			raw := json.RawMessage(out)
			if part != "" {
				raw = doc[part]
			}
			if got := strings.Join(keys(t, raw), " "); got != list {
				t.Errorf("%s: keys of %q are\n%s, want\n%s", launch, part, got, list)
			}
		}
		var rep struct {
			Format      string
			Verified    bool
			Rounds      int
			Outstanding int
			Config      struct {
				Launch, Fabric, Deadline string
				Tokens                   []int
			}
			Wire struct {
				Messages float64 `json:"messages_per_round"`
			}
			Paths []struct{ From, To int }
		}
		if err := json.Unmarshal([]byte(out), &rep); err != nil {
			t.Fatal(err)
		}
		if rep.Format != "moerail-run/1" || !rep.Verified || rep.Rounds != 4 || rep.Outstanding != 0 || rep.Config.Launch != launch ||
			!slices.Equal(rep.Config.Tokens, []int{5, 5, 5}) || rep.Config.Deadline != "10s" || len(rep.Paths) != 6 {
			t.Errorf("%s: %+v", launch, rep)
		}
		if fabric := map[string]string{"inproc": "loopback", "processes": "shm"}[launch]; rep.Config.Fabric != fabric {
			t.Errorf("%s: --fabric auto is %s, want %s", launch, rep.Config.Fabric, fabric)
		}
		if rep.Wire.Messages < 6 || rep.Wire.Messages > 12 {
			t.Errorf("%s: %v messages a round, want one or two for each of 6 pairs", launch, rep.Wire.Messages)
		}
	}
}

func TestRunTable(t *testing.T) {
	code, out, errs := moerail(t, "", smallRun...)
	if code != 0 || errs != "" {
		t.Fatalf("exit code %d, said %q", code, errs)
	}
	for _, want := range []string{"dispatch_recv", "p99", "wire, a round", "verified: every output", "3 ranks", "cores"} {
		if !strings.Contains(out, want) && !strings.Contains(strings.ToLower(out), want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

func TestDoctor(t *testing.T) {
	code, out, _ := moerail(t, "", "doctor")
	if code != 0 || !strings.Contains(out, "fabric loopback") {
		t.Errorf("exit code %d\n%s", code, out)
	}
	code, out, _ = moerail(t, "", "doctor", "--json")
	var doc struct {
		Format   string
		Findings []struct{ Name, State, Found, Remedy string }
		Limits   []struct {
			Name        string
			Least, Most int
		}
	}
	if err := json.Unmarshal([]byte(out), &doc); err != nil || code != 0 || doc.Format != "moerail-doctor/1" {
		t.Fatalf("exit code %d, %v, %s", code, err, out)
	}
	for _, f := range doc.Findings {
		if f.State != "ok" && f.Remedy == "" && f.Name != "huge pages" {
			t.Errorf("%s is %s without a remedy", f.Name, f.State)
		}
	}
	for _, l := range doc.Limits {
		if l.Most <= l.Least {
			t.Errorf("limit %+v", l)
		}
	}
	if runtime.GOOS == "linux" && len(doc.Findings) < 8 {
		t.Errorf("only %d findings", len(doc.Findings))
	}
}

// A child process must get every option as it was given.
func TestProcessesGetEveryOption(t *testing.T) {
	args := []string{"run", "--json", "--ranks", "4", "--ranks-per-node", "2", "--experts", "9", "--top-k", "3", "--hidden", "24",
		"--tokens", "3,3,0,0", "--dtype", "fp16", "--out-dtype", "fp32", "--layout", "rows", "--reduce", "home", "--routing", "zipf:0.5",
		"--replicas", "2", "--slots", "2", "--nics", "2", "--window-rows", "2", "--rounds", "3", "--warmup", "0", "--seed", "77",
		"--fabric", "shm", "--device", "host", "--deadline", "3s", "--verify", "sample"}
	configs := map[string]map[string]any{}
	for _, launch := range []string{"inproc", "processes"} {
		code, out, errs := moerail(t, "", append(slices.Clone(args), "--launch", launch)...)
		var doc struct {
			Verified bool
			Config   map[string]any
		}
		if err := json.Unmarshal([]byte(out), &doc); err != nil || code != 0 || !doc.Verified {
			t.Fatalf("%s: exit code %d, %v, verified %v, said %q", launch, code, err, doc.Verified, errs)
		}
		if doc.Config["launch"] != launch {
			t.Errorf("launch is %v, want %s", doc.Config["launch"], launch)
		}
		delete(doc.Config, "launch")
		configs[launch] = doc.Config
	}
	if !reflect.DeepEqual(configs["inproc"], configs["processes"]) {
		t.Errorf("the configurations differ:\n%v\n%v", configs["inproc"], configs["processes"])
	}
}
