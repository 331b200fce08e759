package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// fakes writes two scripts that answer like the real programs: moerail's round
// takes 100 us in its first run, 1000 in its second and 200 in its third; MPI
// takes 500 over vader and 300 over ucx, 50 more if padded.
func fakes(t *testing.T, verified string) (moerail, mpi string) {
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
echo "$@" >> `+dir+`/args
n=$(wc -l < `+dir+`/args)
case $n in 1) p=100 ;; 2) p=1000 ;; *) p=200 ;; esac
echo '{"format":"moerail-run/1","verified":`+verified+`,"dispatch":{"p50":1},"combine":{"p50":2},"round":{"p50":'$p',"p90":1,"p99":2,"max":3}}'
`)
	mpi = write("run.sh", `
case $1 in
build) exit 0 ;;
copybw) echo '{"format":"copybw/1","results":[]}'; exit 0 ;;
esac
case $2 in vader) p=500 ;; *) p=300 ;; esac
for a in "$@"; do [ "$a" = -p ] && p=$((p+50)); [ "$prev" = -j ] && out=$a; prev=$a; done
echo '{"format":"moe-a2a-mpi/1","verified":true,"times":{"dispatch":{"p50":1},"combine":{"p50":2},"round":{"p50":'$p'}}}' > "$out"
`)
	return moerail, mpi
}

func testOptions(t *testing.T, moerail, mpi string, args ...string) options {
	t.Helper()
	o, err := parse(append([]string{"-moerail", moerail, "-mpi", mpi, "-transports", "vader,ucx", "-turns", "3", "-tokens", "1", "-forms", "direct"}, args...), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	o.stdout, o.stderr = io.Discard, io.Discard
	return o
}

func TestCompareTakesMediansAndTheBestPeer(t *testing.T) {
	moerail, mpi := fakes(t, "true")
	out := filepath.Join(t.TempDir(), "results", "r.json")
	o := testOptions(t, moerail, mpi, "-mode", "per_expert", "-layout", "grouped", "-out", out)
	var table bytes.Buffer
	o.stdout = &table
	if err := compare(o); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	var rec record
	if err := json.Unmarshal(b, &rec); err != nil {
		t.Fatal(err)
	}
	c := rec.Comparisons[0]
	if r := c.Ratios["moerail direct"]; c.Peer != 300 || r != 1.5 || c.BestPeer != "mpi ucx" {
		t.Errorf("peer %v (%s), ratio %v; want 300 (mpi ucx), 1.5", c.Peer, c.BestPeer, r)
	}
	if len(c.Variants) != 3 || len(c.Variants[0].Samples) != 3 {
		t.Errorf("%d variants, %d samples; want 3 and 3", len(c.Variants), len(c.Variants[0].Samples))
	}
	if rec.Format != "moerail-compare/1" || rec.Machine.Cores < 1 || !json.Valid(rec.CopyBW) {
		t.Errorf("incomplete record: %+v", rec)
	}
	args, _ := os.ReadFile(filepath.Join(filepath.Dir(moerail), "args"))
	for _, want := range []string{"--reduce home", "--layout grouped", "--launch processes", "--fabric shm", "--ranks-per-node 8", "--tokens 1", "--json"} {
		if !strings.Contains(string(args), want) {
			t.Errorf("moerail ran without %q: %s", want, args)
		}
	}
	if !strings.Contains(table.String(), "mpi ucx / moerail direct = 1.50") {
		t.Errorf("table:\n%s", &table)
	}
}

// Rounds over TCP are compared with MPI over TCP.
func TestCompareOverTCP(t *testing.T) {
	moerail, mpi := fakes(t, "true")
	o := testOptions(t, moerail, mpi, "-forms", "libfabric:tcp", "-transports", "tcp")
	s := o.shape
	s.Tokens = 1
	c, err := compareShape(o, t.TempDir(), s)
	if err != nil {
		t.Fatal(err)
	}
	args, _ := os.ReadFile(filepath.Join(filepath.Dir(moerail), "args"))
	if want := "--launch processes --fabric libfabric:tcp --ranks-per-node 0"; !strings.Contains(string(args), want) {
		t.Errorf("moerail ran without %q: %s", want, args)
	}
	if c.BestPeer != "mpi tcp" || c.Ratios["moerail libfabric:tcp"] != 1.5 {
		t.Errorf("best peer %s, ratios %v", c.BestPeer, c.Ratios)
	}
}

func TestCompareTriesThePaddedForm(t *testing.T) {
	moerail, mpi := fakes(t, "true")
	o := testOptions(t, moerail, mpi)
	s := o.shape
	s.Tokens = 1
	c, err := compareShape(o, t.TempDir(), s)
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Variants) != 5 || c.Variants[4].Name != "mpi ucx padded" || c.Variants[4].Samples[0].Round.P50 != 350 {
		t.Errorf("padded variants are missing: %d variants", len(c.Variants))
	}
}

func TestCompareFailsOnWrongRuns(t *testing.T) {
	moerail, mpi := fakes(t, "false")
	if err := compare(testOptions(t, moerail, mpi)); err == nil || !strings.Contains(err.Error(), "not verified") {
		t.Errorf("unverified run: %v", err)
	}
	for name, script := range map[string]string{
		"exits 1":    "echo broken pipe >&2; exit 1",
		"no JSON":    "echo hello",
		"no round":   `echo '{"format":"moerail-run/1","verified":true}'`,
		"old format": `echo '{"format":"moerail-run/0","verified":true,"round":{"p50":1}}'`,
	} {
		path := filepath.Join(t.TempDir(), "moerail")
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := compare(testOptions(t, path, mpi)); err == nil || !strings.Contains(err.Error(), "moerail") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRunEndsAtItsLimitAndForgetsOldResults(t *testing.T) {
	dir := t.TempDir()
	old := filepath.Join(dir, "old.json")
	if err := os.WriteFile(old, []byte(`{"format":"moe-a2a-mpi/1","verified":true,"times":{"round":{"p50":1}}}`), 0o644); err != nil {
		t.Fatal(err)
	}
	v := &variant{Name: "silent", Command: []string{"true"}, output: old, decode: decodeMPI}
	if err := v.run(time.Minute); err == nil || len(v.Samples) != 0 {
		t.Errorf("an old result passed for a new one: %v", err)
	}
	v = &variant{Name: "endless", Command: []string{"sleep", "1000"}, decode: decodeMoerail}
	if err := v.run(10 * time.Millisecond); err == nil || !strings.Contains(err.Error(), "no result within") {
		t.Errorf("endless run: %v", err)
	}
}

func TestParseRefusesBadArguments(t *testing.T) {
	for _, args := range [][]string{{"-tokens", "0"}, {"-tokens", "1,x"}, {"-turns", "0"}, {"-forms", "direct,other"}, {"-layout", "batched"},
		{"-mode", "home"}, {"stray"}, {"-ranks", "x"}} {
		if _, err := parse(args, io.Discard); err == nil {
			t.Errorf("%v: accepted", args)
		}
	}
}
