package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fakes writes programs that answer like the real ones: moerail's worker level takes
// 11 us in its first run, 100 in its second and 12 in its third, and engine 20; the
// raw program 10 with 1000 bytes a second.
func fakes(t *testing.T, verified, messages string) (moerail, raw string) {
	t.Helper()
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	moerail = write("moerail", `
p=20; b=500
case "$*" in
*"--level worker"*)
  echo "$@" >> `+dir+`/args
  case $(wc -l < `+dir+`/args) in 1) p=11 ;; 2) p=100 ;; *) p=12 ;; esac; b=990 ;;
esac
echo '{"format":"moerail-bench/1","verified":`+verified+`,"provider":"libfabric:net","sizes":[{"bytes":8,"latency_us":{"samples":100,"p50":'$p'},"bandwidth":{"messages":64,"bytes_per_second":'$b'}}]}'
`)
	raw = write("raw", `
echo "$@" >> `+dir+`/raw-args
echo '{"format":"raw-write/1","verified":true,"library":"libfabric 1.17","provider":"net","device":"lo","sizes":[{"bytes":8,"latency_us":{"samples":100,"p50":10},"bandwidth":{"messages":`+messages+`,"bytes_per_second":1000}}]}'
`)
	return moerail, raw
}

func testOptions(t *testing.T, moerail, raw string, args ...string) options {
	t.Helper()
	o, err := parse(append([]string{"-moerail", moerail, "-raw", raw, "-turns", "3", "-sizes", "8", "-levels", "worker,engine"}, args...), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	o.stdout, o.stderr = io.Discard, io.Discard
	return o
}

func TestCompareTakesMedians(t *testing.T) {
	moerail, raw := fakes(t, "true", "64")
	out := filepath.Join(t.TempDir(), "r.json")
	o := testOptions(t, moerail, raw, "-out", out, "-check", "engine")
	var table bytes.Buffer
	o.stdout = &table
	err := compare(o)
	if err == nil || !strings.Contains(err.Error(), "8 bytes: latency 2.00 x; 8 bytes: bandwidth 0.50 x") {
		t.Errorf("the engine level misses both bars: %v", err)
	}
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	var rec record
	if err := json.Unmarshal(b, &rec); err != nil {
		t.Fatal(err)
	}
	row := rec.Sizes[0].Sides
	if row[0].Side != "raw" || row[0].P50 != 10 || row[0].LatencyRatio != 0 {
		t.Errorf("raw: %+v", row[0])
	}
	if e := row[1]; e.Side != "moerail worker" || e.P50 != 12 || e.LatencyRatio != 1.2 || e.BandwidthRatio != 0.99 {
		t.Errorf("worker: %+v", e)
	}
	if rec.Format != "moerail-compare-write/1" || rec.Machine.Cores < 1 || len(rec.Sides) != 3 || len(rec.Sides[0].Runs) != 3 ||
		rec.Sides[0].Library != "libfabric 1.17, net on lo" || strings.Contains(string(b), filepath.Dir(moerail)) {
		t.Errorf("the record: %s", b)
	}
	if !strings.Contains(table.String(), "12.00 (1.20)") {
		t.Errorf("table:\n%s", &table)
	}
	// The raw program is given the provider that moerail said, and the same counts.
	args, _ := os.ReadFile(filepath.Join(filepath.Dir(raw), "raw-args"))
	if want := "-p net -s 8 -c 0,1 -W 64 -n 10000 -N 268435456 -b 20000 -B 67108864 -r 5 -w 200 -S 4194304 -T 120 -I lo"; !strings.HasPrefix(string(args), want) {
		t.Errorf("raw ran with %s, want %s", args, want)
	}
}

func TestCompareFailsOnWrongRuns(t *testing.T) {
	moerail, raw := fakes(t, "false", "64")
	if err := compare(testOptions(t, moerail, raw)); err == nil || !strings.Contains(err.Error(), "not verified") {
		t.Errorf("unverified: %v", err)
	}
	moerail, raw = fakes(t, "true", "63")
	if err := compare(testOptions(t, moerail, raw)); err == nil || !strings.Contains(err.Error(), "bursts of") {
		t.Errorf("other counts: %v", err)
	}
	moerail, raw = fakes(t, "true", "64")
	if err := compare(testOptions(t, moerail, raw, "-sizes", "8,16")); err == nil || !strings.Contains(err.Error(), "1 sizes in the result, want 2") {
		t.Errorf("a size is missing: %v", err)
	}
	if err := compare(testOptions(t, moerail, raw, "-sizes", "16")); err == nil || !strings.Contains(err.Error(), "want figures of 16 bytes") {
		t.Errorf("another size: %v", err)
	}
	if err := compare(testOptions(t, moerail, "/bin/false", "-provider", "net")); err == nil || !strings.HasPrefix(err.Error(), "raw: exit status 1") {
		t.Errorf("raw fails: %v", err)
	}
}

func TestParseRefusesBadArguments(t *testing.T) {
	for _, args := range [][]string{{"-turns", "0"}, {"-fabric", "shm"}, {"-levels", "worker,card"}, {"-sizes", "x"}, {"stray"}, {"-perftest"},
		{"-window", "0"}, {"-check", "domain", "-levels", "worker"}, {"-samples", "1"}} {
		if _, err := parse(args, io.Discard); err == nil {
			t.Errorf("%v: accepted", args)
		}
	}
	o, err := parse([]string{"-fabric", "verbs", "-perftest"}, io.Discard)
	if err != nil || o.provider != "rxe0,rxe1" || o.device != "1" || !strings.HasSuffix(o.raw, "raw_write_verbs") {
		t.Errorf("verbs: %+v, %v", o, err)
	}
}

const perftestOutput = `---------------------------------------------------------------------------------------
                    RDMA_Write Latency Test
 Dual-port       : OFF		Device         : rxe1
---------------------------------------------------------------------------------------
 local address: LID 0000 QPN 0x0011 PSN 0x8b2c0e RKey 0x000213 VAddr 0x00564f0d4d4000
---------------------------------------------------------------------------------------
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]
 64      1000          18.91          341.17       20.49    	       23.42       	14.41  		76.91   		341.17
---------------------------------------------------------------------------------------
`

func TestParsePerftest(t *testing.T) {
	if v, err := parsePerftest(perftestOutput, 64, latencyColumn); err != nil || v != 20.49 {
		t.Errorf("got %v, %v", v, err)
	}
	bw := " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n 65536      1000             58.33              57.07                 0.000913\n"
	if v, err := parsePerftest(bw, 65536, bandwidthColumn); err != nil || v != 57.07 {
		t.Errorf("got %v, %v", v, err)
	}
	for _, out := range []string{"", "Couldn't connect", strings.Replace(bw, "57.07", "-nan", 1), strings.Replace(bw, "57.07", "0.00", 1), bw[:100]} {
		if v, err := parsePerftest(out, 65536, bandwidthColumn); err == nil {
			t.Errorf("%q gave %v", out, v)
		}
	}
	if _, err := parsePerftest(perftestOutput, 65536, latencyColumn); err == nil {
		t.Error("another size's line was taken")
	}
}
