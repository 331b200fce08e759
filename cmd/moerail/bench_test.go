package main

import (
	"encoding/json"
	"strings"
	"testing"

	"moerail/bench/micro"
	"moerail/cmd/moerail/internal/bench"
	"moerail/transport/efa"
)

// quick makes a measurement of a few milliseconds.
var quick = []string{"--sizes", "8,4k,100001", "--samples", "100", "--burst", "200", "--bursts", "2", "--warmup", "5"}

func TestBenchWrite(t *testing.T) {
	for name, args := range map[string][]string{
		"processes": {"--fabric", "shm", "--level", "worker"},
		"levels":    {"--fabric", "shm", "--level", "domain", "--cpus", "none"},
		"NICs":      {"--fabric", "shm", "--nics", "2", "--poll", "default"},
		"inproc":    {"--launch", "inproc"},
	} {
		t.Run(name, func(t *testing.T) {
			args = append(append([]string{"bench", "write", "--json"}, quick...), args...)
			code, out, errs := moerail(t, "", args...)
			if code != 0 || errs != "" {
				t.Fatalf("exit code %d, said %q", code, errs)
			}
			var rep bench.Report
			if err := json.Unmarshal([]byte(out), &rep); err != nil {
				t.Fatal(err)
			}
			c := rep.Config
			if rep.Format != "moerail-bench/1" || rep.Scenario != "write" || !rep.Verified || rep.Machine.Cores < 1 || rep.Version == "" ||
				rep.Provider != c.Fabric || c.Window != micro.Defaults().Window || c.Launch != "inproc" && c.Launch != "processes" {
				t.Errorf("the report's head: %s", out)
			}
			if len(rep.Sizes) != 3 {
				t.Fatalf("%d sizes, want 3", len(rep.Sizes))
			}
			for i, size := range []uint64{8, 4096, 100001} {
				if s := rep.Sizes[i]; s.Bytes != size || s.Latency.Samples != 100 || s.Latency.P50 <= 0 || s.Bandwidth.Messages != 200 || s.Bandwidth.BytesPerSecond <= 0 {
					t.Errorf("%d bytes: %+v", size, s)
				}
			}
		})
	}
}

func TestBenchWriteTable(t *testing.T) {
	code, out, errs := moerail(t, "", append([]string{"bench", "write", "--launch", "inproc", "--level", "worker"}, quick...)...)
	if code != 0 || errs != "" {
		t.Fatalf("exit code %d, said %q", code, errs)
	}
	for _, want := range []string{"over loopback (loopback), worker level", "P99.9", "100001", "verified: every byte"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

// Over libfabric the same, at each level.
func TestBenchWriteOverLibfabric(t *testing.T) {
	if d := efa.Discover(); d.Err != nil {
		t.Skip(d.Err)
	}
	for _, level := range micro.Levels() {
		args := append([]string{"bench", "write", "--json", "--fabric", "libfabric:tcp", "--level", string(level)}, quick...)
		code, out, errs := moerail(t, "", args...)
		if code != 0 || errs != "" {
			t.Fatalf("%s: exit code %d, said %q", level, code, errs)
		}
		var rep bench.Report
		if err := json.Unmarshal([]byte(out), &rep); err != nil {
			t.Fatal(err)
		}
		if len(rep.Sizes) != 3 || !rep.Verified || rep.Provider == "" {
			t.Errorf("%s: %s", level, out)
		}
	}
}
