package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// device is an RDMA device of the VM.
type device struct {
	name, iface, addr string
	node              int
}

// suite runs steps and collects what they measured.
type suite struct {
	bin     string // folder with the programs
	devices []device
	out     io.Writer
	lookDir string // where sysfs is
	// deadline is that of a phase where something goes wrong on purpose; slack is
	// what ranks get beyond two of them to end.
	deadline, slack time.Duration
	patience        float64 // factor for these two and for the limits of steps
	// What comparewrite recorded and printed, if it did.
	comparison []byte
	table      string
}

// record is the JSON document.
type record struct {
	Format   string          `json:"format"`
	Version  string          `json:"version"`
	Date     string          `json:"date"`
	Machine  machine         `json:"machine"`
	Passed   bool            `json:"passed"`
	Patience float64         `json:"patience"`
	Seconds  float64         `json:"seconds"`
	Steps    []stepRecord    `json:"steps"`
	Figures  json.RawMessage `json:"figures,omitempty"` // the record of bench/peers/comparewrite

	table string // the same for people
}

type machine struct {
	Kernel      string  `json:"kernel"`
	CPU         string  `json:"cpu"`
	CPUs        int     `json:"cpus"`
	Nodes       int     `json:"nodes"`
	Devices     int     `json:"devices"`
	BootSeconds float64 `json:"boot_seconds"` // the guest's clock when the first step began
}

type stepRecord struct {
	Name    string  `json:"name"`
	Passed  bool    `json:"passed"`
	Seconds float64 `json:"seconds"`
	Saw     string  `json:"saw"`
	Error   string  `json:"error"`
}

// devicesFrom reads what tools/rxe-vm says of its devices.
func devicesFrom(getenv func(string) string) ([]device, error) {
	if getenv("RXE_VM") == "" {
		return nil, errors.New("RXE_VM is not set: run this by tools/vm-suite, or by tools/rxe-vm")
	}
	nodes, err := strconv.Atoi(getenv("RXE_NODES"))
	if err != nil || nodes < 1 || nodes > 32 {
		return nil, fmt.Errorf("RXE_NODES is %q, want 1 to 32", getenv("RXE_NODES"))
	}
	var out []device
	for n := range nodes {
		names := strings.Fields(getenv(fmt.Sprintf("RXE_NODE_%d_DEVICES", n)))
		addrs := strings.Fields(getenv(fmt.Sprintf("RXE_NODE_%d_ADDRS", n)))
		if len(names) == 0 || len(names) != len(addrs) {
			return nil, fmt.Errorf("node %d has devices %v and addresses %v", n, names, addrs)
		}
		for i, name := range names {
			number, ok := strings.CutPrefix(name, "rxe")
			if !ok {
				return nil, fmt.Errorf("node %d has a device %q, want names such as rxe0", n, name)
			}
			out = append(out, device{name, "roce" + number, addrs[i], n})
		}
	}
	return out, nil
}

// runAll runs the steps one after the other; one that fails stops none.
func (s *suite) runAll(ctx context.Context, todo []step, limit time.Duration) *record {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	r := &record{Format: "moerail-vm/1", Date: began.UTC().Format(time.RFC3339), Passed: true, Patience: s.patience, Steps: []stepRecord{},
		Machine: machine{kernel(), cpu(), runtime.NumCPU(), s.devices[len(s.devices)-1].node + 1, len(s.devices), uptime()}}
	for _, st := range todo {
		fmt.Fprintf(s.out, "== %s: %s\n", st.name, st.what)
		start := time.Now()
		allowed := s.patient(st.limit)
		stepCtx, cancel := context.WithTimeout(ctx, allowed)
		saw, err := st.run(s, stepCtx)
		switch cause := stepCtx.Err(); {
		case err == nil || cause == nil:
		case ctx.Err() != nil:
			err = fmt.Errorf("the %v for all steps were over: %w", limit, err)
		default:
			err = fmt.Errorf("not done in %v: %w", allowed, err)
		}
		cancel()
		rec := stepRecord{Name: st.name, Passed: err == nil, Seconds: seconds(start), Saw: saw}
		verdict := "ok"
		if err != nil {
			rec.Error, verdict, r.Passed = err.Error(), "FAILED: "+err.Error(), false
		}
		r.Steps = append(r.Steps, rec)
		fmt.Fprintf(s.out, "== %s: %.1f s: %s %s\n", st.name, rec.Seconds, saw, verdict)
	}
	r.Seconds = seconds(began)
	r.Figures, r.table = s.comparison, s.table
	return r
}

// patient stretches a limit.
func (s *suite) patient(d time.Duration) time.Duration {
	return time.Duration(float64(d) * s.patience)
}

func seconds(since time.Time) float64 { return float64(time.Since(since).Milliseconds()) / 1000 }

func (r *record) print(w io.Writer) {
	m := &r.Machine
	fmt.Fprintf(w, "\nLinux %s, %d CPUs (%s), %d nodes, %d RDMA devices, up after %.1f s\n", m.Kernel, m.CPUs, m.CPU, m.Nodes, m.Devices, m.BootSeconds)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "step\tresult\tseconds\tseen")
	for _, s := range r.Steps {
		result, text := "ok", s.Saw
		if !s.Passed {
			result = "FAILED"
			text = strings.TrimSpace(text + " " + strings.ReplaceAll(s.Error, "\n", "; "))
		}
		fmt.Fprintf(t, "%s\t%s\t%.1f\t%s\n", s.Name, result, s.Seconds, text)
	}
	t.Flush()
	if r.table != "" {
		fmt.Fprintf(w, "\n%s\n", r.table)
	}
	verdict := "passed"
	if !r.Passed {
		verdict = "FAILED"
	}
	fmt.Fprintf(w, "%s: %d steps in %.0f s\n", verdict, len(r.Steps), r.Seconds)
}

func kernel() string {
	b, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(b))
}

func cpu() string {
	b, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(b)) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "model name" {
			return strings.TrimSpace(v)
		}
	}
	return "unknown"
}

// uptime is how long this kernel has run, in seconds.
func uptime() float64 {
	b, _ := os.ReadFile("/proc/uptime")
	first, _, _ := strings.Cut(string(b), " ")
	v, _ := strconv.ParseFloat(first, 64)
	return v
}
