package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"moerail/bench/peers/internal/turns"
)

// shape is the round that both sides carry out.
type shape struct {
	Ranks   int    `json:"ranks"`
	Tokens  int    `json:"tokens"` // per rank
	Experts int    `json:"experts"`
	TopK    int    `json:"top_k"`
	Hidden  int    `json:"hidden"`
	Dtype   string `json:"dtype"`
	Layout  string `json:"layout"` // rows or grouped
	// Mode is dedup (one partial sum per token and rank comes back) or per_expert
	// (one unweighted row per token and expert; moerail's --reduce home).
	Mode   string `json:"mode"`
	Rounds int    `json:"rounds"`
	Warmup int    `json:"warmup"`
	Seed   uint64 `json:"seed"`
}

// timing is one phase of one run, in microseconds.
type timing struct {
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// sample is what one run of one side said.
type sample struct {
	Dispatch timing `json:"dispatch"`
	Combine  timing `json:"combine"`
	Round    timing `json:"round"`
}

// variant is one way to run the round: moerail, or MPI over one transport.
type variant struct {
	Name    string   `json:"name"`
	Command []string `json:"command"`
	Samples []sample `json:"samples"`

	// output is the file that the command writes its JSON to; empty means
	// standard output.
	output string
	decode func([]byte) (sample, error)
}

// form is a way of running moerail's ranks on this machine.
type form struct {
	name, launch, fabric string
	direct               bool // ranks are one node and store into each other's memory
}

var forms = []form{
	{"direct", "processes", "shm", true},
	{"fabric", "processes", "shm", false},
	{"inproc-direct", "inproc", "loopback", true},
	{"inproc-fabric", "inproc", "loopback", false},
}

const formsHelp = "direct (a process per rank, same-node stores), fabric (a process per rank, every row through the fabric), inproc-direct, inproc-fabric, or libfabric:PROVIDER or verbs (a process per rank, every row through that)"

func formOf(name string) (form, bool) {
	for _, f := range forms {
		if f.name == name {
			return f, true
		}
	}
	if strings.HasPrefix(name, "libfabric:") || name == "verbs" {
		return form{name: name, launch: "processes", fabric: name}, true
	}
	return form{}, false
}

// moerailVariant runs moerail in one form.
func moerailVariant(binary string, f form, s shape) *variant {
	node := 0
	if f.direct {
		node = s.Ranks
	}
	reduce := "expert"
	if s.Mode == "per_expert" {
		reduce = "home"
	}
	return &variant{
		Name: "moerail " + f.name,
		Command: []string{binary, "run", "--launch", f.launch, "--fabric", f.fabric, "--ranks-per-node", strconv.Itoa(node),
			"--ranks", strconv.Itoa(s.Ranks), "--tokens", strconv.Itoa(s.Tokens), "--experts", strconv.Itoa(s.Experts),
			"--top-k", strconv.Itoa(s.TopK), "--hidden", strconv.Itoa(s.Hidden), "--dtype", s.Dtype, "--out-dtype", "bf16",
			"--layout", s.Layout, "--reduce", reduce, "--routing", "uniform", "--rounds", strconv.Itoa(s.Rounds),
			"--warmup", strconv.Itoa(s.Warmup), "--seed", strconv.FormatUint(s.Seed, 10), "--verify", "sample", "--json"},
		decode: decodeMoerail,
	}
}

// mpiVariants gives every transport, with and without the padded form that saves
// the counts exchange and pays for it in bytes.
func mpiVariants(script, dir string, transports []string, s shape) []*variant {
	var vs []*variant
	for _, transport := range transports {
		for _, padded := range []bool{false, true} {
			if padded && s.Mode != "dedup" {
				continue
			}
			name := "mpi " + transport
			file := filepath.Join(dir, "mpi-"+transport+".json")
			args := []string{script, "launch", transport, strconv.Itoa(s.Ranks), "-t", strconv.Itoa(s.Tokens),
				"-e", strconv.Itoa(s.Experts), "-k", strconv.Itoa(s.TopK), "-H", strconv.Itoa(s.Hidden), "-d", s.Dtype,
				"-m", s.Mode, "-l", s.Layout, "-i", strconv.Itoa(s.Rounds), "-w", strconv.Itoa(s.Warmup),
				"-s", strconv.FormatUint(s.Seed, 10), "-j", file}
			if padded {
				name += " padded"
				args = append(args, "-p")
			}
			vs = append(vs, &variant{Name: name, Command: args, output: file, decode: decodeMPI})
		}
	}
	return vs
}

func decodeMoerail(b []byte) (sample, error) {
	var r struct {
		Format   string `json:"format"`
		Verified bool   `json:"verified"`
		sample
	}
	if err := json.Unmarshal(b, &r); err != nil {
		return sample{}, fmt.Errorf("moerail's JSON: %w", err)
	}
	return checked(r.Format, "moerail-run/1", r.Verified, r.sample)
}

func decodeMPI(b []byte) (sample, error) {
	var r struct {
		Format   string `json:"format"`
		Verified bool   `json:"verified"`
		Times    sample `json:"times"`
	}
	if err := json.Unmarshal(b, &r); err != nil {
		return sample{}, fmt.Errorf("the MPI program's JSON: %w", err)
	}
	return checked(r.Format, "moe-a2a-mpi/1", r.Verified, r.Times)
}

func checked(format, want string, verified bool, s sample) (sample, error) {
	switch {
	case format != want:
		return sample{}, fmt.Errorf("format %q, want %q", format, want)
	case !verified:
		return sample{}, fmt.Errorf("the run was not verified; its times mean nothing")
	case s.Round.P50 <= 0:
		return sample{}, fmt.Errorf("no round time in the result")
	}
	return s, nil
}

// run carries the variant out once and keeps its sample.
func (v *variant) run(limit time.Duration) error {
	if v.output != "" {
		if err := os.Remove(v.output); err != nil && !os.IsNotExist(err) {
			return err // an old result must not pass for a new one
		}
	}
	b, err := turns.Run(v.Command, limit)
	if err != nil {
		return fmt.Errorf("%s: %w", v.Name, err)
	}
	if v.output != "" {
		if b, err = os.ReadFile(v.output); err != nil {
			return fmt.Errorf("%s: %w", v.Name, err)
		}
	}
	s, err := v.decode(b)
	if err != nil {
		return fmt.Errorf("%s: %w", v.Name, err)
	}
	v.Samples = append(v.Samples, s)
	return nil
}

// median is the median over the runs of one figure, 0 without a run.
func (v *variant) median(figure func(sample) float64) float64 {
	xs := make([]float64, len(v.Samples))
	for i, s := range v.Samples {
		xs[i] = figure(s)
	}
	return turns.Median(xs)
}
