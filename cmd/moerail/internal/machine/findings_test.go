package machine

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"moerail/transport/efa"
	"moerail/transport/verbs"
)

// rows are "name|state|..." of findings, to search in.
func rows(fs []Finding) string {
	var b strings.Builder
	for _, f := range fs {
		fmt.Fprintf(&b, "%s|%s|%s|%s\n", f.Name, f.State, f.Found, f.Remedy)
	}
	return b.String()
}

// remedied: whatever is not well has a remedy.
func remedied(t *testing.T, fs []Finding) {
	t.Helper()
	for _, f := range fs {
		if f.State != OK && f.Remedy == "" {
			t.Errorf("%s is %s (%s) without a remedy", f.Name, f.State, f.Found)
		}
		if f.State == Broken {
			t.Errorf("%s is broken: a fabric that is not there leaves the others", f.Name)
		}
	}
}

func TestLibfabricFindings(t *testing.T) {
	tcp := efa.Found{Name: "tcp;ofi_rxm", Devices: []string{"eth0", "lo"}, Features: efa.Features{RMA: true, ImmBytes: 8, InjectBytes: 64, Tried: true},
		Missing: []string{"no atomics: compare-and-swap is refused"}}
	imms := efa.Found{Name: "verbs", Devices: []string{"mlx5_0"}, Err: errors.New("writes carry no immediate")}
	nic := efa.Found{Name: "efa", Devices: []string{"rdmap0s6-rdm"}, Features: efa.Features{RMA: true, ImmBytes: 4}}
	for name, c := range map[string]struct {
		built bool
		d     efa.Discovery
		want  []string
	}{
		"not built":  {false, efa.Discovery{Err: efa.ErrNotBuilt, Remedy: "build it"}, []string{"fabric libfabric|absent|not in this build|build it"}},
		"no library": {true, efa.Discovery{Err: fmt.Errorf("%w: libfabric.so.1", efa.ErrNoLibrary)}, []string{"fabric libfabric|absent|efa: no libfabric on this machine: "}},
		"software": {true, efa.Discovery{Library: "/lib/libfabric.so.1", Version: "1.17.0", Providers: []efa.Found{tcp, imms}}, []string{
			"fabric libfabric|ok|libfabric 1.17.0, /lib/libfabric.so.1|", "fabric efa|absent|no EFA device|",
			"libfabric:tcp;ofi_rxm|ok|devices eth0, lo; immediates of 8 bytes, 64 bytes inline; no atomics: compare-and-swap is refused; seen to work|",
			"libfabric:verbs|absent|writes carry no immediate; devices: mlx5_0|"}},
		"efa":         {true, efa.Discovery{Providers: []efa.Found{nic}}, []string{"fabric efa|ok|devices rdmap0s6-rdm; immediates of 4 bytes"}},
		"no provider": {true, efa.Discovery{Providers: []efa.Found{{Name: "tcp"}}}, []string{"fabric libfabric|poor|"}},
	} {
		l := describeLibfabric(c.built, c.d)
		got := l.findings()
		remedied(t, got)
		for _, want := range c.want {
			if !strings.Contains(rows(got), want) {
				t.Errorf("%s: no %q in\n%s", name, want, rows(got))
			}
		}
		if name != "efa" && c.built && c.d.Err == nil && strings.Contains(rows(got), "fabric efa|ok") {
			t.Errorf("%s: EFA found\n%s", name, rows(got))
		}
	}
}

func TestVerbsFindings(t *testing.T) {
	here := Finding{"RDMA devices", OK, "mlx5_0", ""}
	mlx := verbs.Device{Name: "mlx5_0", Firmware: "28.39", PCI: "0000:18:00.0", NUMA: 1, MaxQueuePairs: 1000, Atomics: true, Ports: []verbs.Port{
		{Number: 1, State: "active", Active: true, LinkLayer: "Ethernet", BytesPerSecond: 50e9, MTU: 4096,
			GIDs: []verbs.GID{{Index: 3, Type: "RoCE v2", Address: "::ffff:10.0.0.1", Chosen: true}}}}}
	down, rxe, closed := mlx, mlx, mlx
	down.Ports = []verbs.Port{{Number: 1, State: "down", LinkLayer: "InfiniBand"}}
	rxe.Name, rxe.Software, rxe.PCI, rxe.NUMA, rxe.Atomics = "rxe0", true, "", -1, false
	closed.Err = errors.New("ibv_open_device: permission denied")
	for name, c := range map[string]struct {
		built bool
		d     verbs.Discovery
		want  []string
	}{
		"not built":  {false, verbs.Discovery{Err: verbs.ErrNotBuilt, Remedy: "build it"}, []string{"fabric verbs|absent|not in this build|build it", "RDMA devices|ok|mlx5_0|"}},
		"no library": {true, verbs.Discovery{Err: verbs.ErrNoLibrary, Remedy: "install it"}, []string{"fabric verbs|absent|verbs: libibverbs is missing", "|install it"}},
		"no device":  {true, verbs.Discovery{Library: "/lib/libibverbs.so.1", Err: verbs.ErrNoDevice}, []string{"fabric verbs|absent|verbs: no usable RDMA device", "/lib/libibverbs.so.1", "|an RDMA NIC"}},
		"mlx5": {true, verbs.Discovery{Version: "44", Library: "/lib/libibverbs.so.1", DMABuf: true, Devices: []verbs.Device{mlx}}, []string{
			"fabric verbs|ok|libibverbs 44, /lib/libibverbs.so.1|",
			"verbs mlx5_0|ok|PCI 0000:18:00.0; NUMA node 1; firmware 28.39; 1000 queue pairs; port 1 active, Ethernet, 50 GB/s, MTU 4096, GID 3 RoCE v2 ::ffff:10.0.0.1 (used)|"}},
		"old":    {true, verbs.Discovery{Devices: []verbs.Device{mlx}}, []string{"no DMA buffers (rdma-core before 34)"}},
		"down":   {true, verbs.Discovery{Err: verbs.ErrNoDevice, Devices: []verbs.Device{down}}, []string{"fabric verbs|absent|", "verbs mlx5_0|poor|", "port 1 down, InfiniBand|bring the link up"}},
		"rxe":    {true, verbs.Discovery{Devices: []verbs.Device{rxe}}, []string{"verbs rxe0|ok|software, for tests; firmware 28.39; 1000 queue pairs; no atomics"}},
		"closed": {true, verbs.Discovery{Devices: []verbs.Device{closed}}, []string{"verbs mlx5_0|poor|ibv_open_device: permission denied; PCI", "|access to /dev/infiniband"}},
	} {
		v := describeVerbs(c.built, c.d)
		got := v.findings(here)
		remedied(t, got)
		for _, want := range c.want {
			if !strings.Contains(rows(got), want) {
				t.Errorf("%s: no %q in\n%s", name, want, rows(got))
			}
		}
	}
}

// What a container lacks is told apart: no device at all, no /dev/infiniband, no
// right to open it.
func TestRDMADevices(t *testing.T) {
	root := t.TempDir()
	look := func(state, found string) {
		t.Helper()
		f := rdmaDevices(root)
		remedied(t, []Finding{f})
		if f.State != state || !strings.Contains(f.Found, found) {
			t.Errorf("%+v, want %s, %q", f, state, found)
		}
	}
	look(Absent, "shows none")
	mkdir := func(dir string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(root, dir), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	mkdir("sys/class/infiniband/mlx5_0")
	mkdir("sys/class/infiniband/mlx5_1")
	look(Poor, "mlx5_0, mlx5_1; but /dev/infiniband has no uverbs")
	mkdir("dev/infiniband")
	node := filepath.Join(root, "dev/infiniband/uverbs0")
	if err := os.WriteFile(node, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	look(OK, "mlx5_0, mlx5_1")
	if err := os.Chmod(node, 0); err != nil {
		t.Fatal(err)
	}
	if os.Getuid() != 0 {
		look(Poor, "uverbs0: permission denied")
	}
}

func TestLockedMemory(t *testing.T) {
	for _, c := range []struct {
		limit uint64
		nics  bool
		state string
		found string
	}{
		{8 << 20, false, Poor, "limit 8192 KiB; enough for loopback"},
		{8 << 20, true, Poor, "registering the buffers of a run needs"},
		{math.MaxUint64, true, OK, "unlimited"},
		{64 << 30, true, OK, "KiB"},
	} {
		f := lockedMemory(c.limit, c.nics)
		remedied(t, []Finding{f})
		if f.State != c.state || !strings.Contains(f.Found, c.found) {
			t.Errorf("%+v: %+v", c, f)
		}
	}
}

// JSON has lists where there is nothing, not null.
func TestJSONHasNoNull(t *testing.T) {
	for _, v := range []any{
		describeLibfabric(true, efa.Discovery{}), describeLibfabric(true, efa.Discovery{Providers: []efa.Found{{Name: "x"}}}),
		describeVerbs(true, verbs.Discovery{}), describeVerbs(true, verbs.Discovery{Devices: []verbs.Device{{Ports: []verbs.Port{{}}}}}),
	} {
		b, err := json.Marshal(v)
		if err != nil || strings.Contains(string(b), "null") {
			t.Errorf("%s, %v", b, err)
		}
	}
}
