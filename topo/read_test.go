package topo

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestXeon(t *testing.T) {
	s := mustRead(t, listing(t, "xeon_qib.sysfs"))
	if len(s.Nodes) != 4 || !slices.Equal(s.Nodes[1].CPUs, []int{1, 5, 9, 13, 17, 21, 25, 29, 33, 37}) || len(s.Nodes[1].Cores) != 10 {
		t.Errorf("nodes %+v", s.Nodes)
	}
	if len(s.Devices) != 1 || len(s.GPUs) != 0 {
		t.Fatalf("%d RDMA devices, %d GPUs", len(s.Devices), len(s.GPUs))
	}
	d := s.Devices[0]
	if d.Name != "qib0" || d.PCI != "0000:43:00.0" || d.NUMA != 2 || d.ID != "1077:7322" || d.Software ||
		!slices.Equal(d.Above, []string{"pci0000:40", "0000:40:03.0"}) || !slices.Equal(d.Interfaces, []string{"ib0"}) {
		t.Errorf("device %+v", d)
	}
	if p := d.Ports[0]; p.Number != 1 || !p.Active() || p.Physical != "LinkUp" || p.LinkLayer != "InfiniBand" || p.Rate != 5e9 || p.LID != 0x12a || len(p.GIDs) == 0 {
		t.Errorf("port %+v", p)
	}
	var names []string
	for _, n := range s.Interfaces {
		names = append(names, n.Name)
		if n.Name == "eth0" && (n.Rate != 125e6 || n.NUMA != UnknownNode || n.MTU != 1500 || n.State != "up" || n.PCI != "0000:02:00.0") {
			t.Errorf("interface %+v", n)
		}
		if n.Name == "ib0" && !slices.Equal(n.RDMA, []string{"qib0"}) {
			t.Errorf("interface %+v", n)
		}
	}
	if got := strings.Join(names, " "); got != "eth0 eth1 eth2 eth3 ib0" {
		t.Errorf("interfaces %s", got)
	}
}

func TestSoftRoCE(t *testing.T) {
	s := mustRead(t, listing(t, "rxe.sysfs"))
	if len(s.Devices) != 4 || len(s.Interfaces) != 7 {
		t.Fatalf("%d devices, %d interfaces", len(s.Devices), len(s.Interfaces))
	}
	d := s.Devices[2]
	if d.Name != "rxe2" || d.CharDevice != "uverbs2" || !d.Software || d.PCI != "" || d.NUMA != UnknownNode || !slices.Equal(d.Interfaces, []string{"roce2"}) {
		t.Errorf("device %+v", d)
	}
	p := d.Ports[0]
	if p.Rate != 2.5e9/8 || p.LinkLayer != "Ethernet" || len(p.GIDs) != 2 {
		t.Fatalf("port %+v", p)
	}
	if g := p.GIDs[1]; g.Index != 1 || g.Type != "RoCE v2" || g.Address.Unmap().String() != "10.77.1.1" || g.Interface != "roce2" {
		t.Errorf("GID %+v", g)
	}
}

// Software RDMA over a real NIC is where that NIC is.
func TestSoftwareIsWhereItsInterfaceIs(t *testing.T) {
	f := dgx()
	f["class/net/eth0"] = "-> ../../devices/pci0000:a0/0000:a0:01.0/0000:a1:00.0/net/eth0"
	f["devices/pci0000:a0/0000:a0:01.0/0000:a1:00.0/net/eth0/mtu"] = "1500"
	f["class/infiniband/rxe0"] = "-> ../../devices/virtual/infiniband/rxe0"
	f["devices/virtual/infiniband/rxe0/parent"] = "eth0"
	f["devices/virtual/infiniband/rxe0/ports/1/state"] = "4: ACTIVE"
	f["devices/virtual/infiniband/rxe0/ports/1/rate"] = "10000 Gb/sec (4X)"
	s := mustRead(t, f)
	i := slices.IndexFunc(s.Devices, func(d Device) bool { return d.Name == "rxe0" })
	if d := s.Devices[i]; !d.Software || d.PCI != "0000:a1:00.0" || d.NUMA != 0 || d.ID != "" {
		t.Errorf("device %+v", d)
	}
	a, err := s.Assign(Options{})
	if err != nil {
		t.Fatal(err)
	}
	if a.Kind != "15b3:1021 InfiniBand" {
		t.Errorf("kind %q although there is hardware", a.Kind)
	}
}

func TestOfflineCPUsAreNotGiven(t *testing.T) {
	f := shared(1, 1)
	f["devices/system/cpu/online"] = "0-3,9-12"
	s := mustRead(t, f)
	if !slices.Equal(s.Nodes[0].CPUs, []int{0, 1, 2, 3, 9, 10, 11, 12}) || !slices.Equal(s.Nodes[0].Cores, []int{0, 1, 2, 3}) {
		t.Errorf("node %+v", s.Nodes[0])
	}
}

func TestWithoutNodes(t *testing.T) {
	f := shared(1, 1).without("devices/system/node")
	f["devices/system/cpu/online"] = "0-1"
	s := mustRead(t, f)
	if len(s.Nodes) != 1 || !slices.Equal(s.Nodes[0].CPUs, []int{0, 1}) || s.GPUs[0].NUMA != 0 {
		t.Errorf("nodes %+v, GPU on node %d", s.Nodes, s.GPUs[0].NUMA)
	}
}

func TestRootThatIsNoSysfs(t *testing.T) {
	if _, err := Read(t.TempDir()); err == nil || !strings.Contains(err.Error(), "no sysfs") {
		t.Errorf("an empty folder: %v", err)
	}
	if _, err := Read(t.TempDir() + "/none"); err == nil || !strings.Contains(err.Error(), "none") {
		t.Errorf("no folder: %v", err)
	}
}

func TestReadThisMachine(t *testing.T) {
	s, err := Read("/sys")
	if err != nil {
		t.Skipf("no sysfs here: %v", err)
	}
	if len(s.Nodes) == 0 || len(s.Nodes[0].CPUs) == 0 {
		t.Errorf("nodes %+v", s.Nodes)
	}
	if _, err := s.Assign(Options{}); err != nil {
		t.Error(err)
	}
}

// Lists in the JSON form are never null, and reading twice gives the same.
func TestJSON(t *testing.T) {
	f := dgx()
	root := f.write(t)
	var first []byte
	for range 3 {
		s, err := Read(root)
		if err != nil {
			t.Fatal(err)
		}
		a, err := s.Assign(Options{})
		if err != nil {
			t.Fatal(err)
		}
		b, err := json.Marshal([]any{s, a})
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(b), "null") || !strings.Contains(string(b), `"distance":"bridge"`) {
			t.Errorf("JSON %s", b)
		}
		if first != nil && !reflect.DeepEqual(first, b) {
			t.Error("two readings differ")
		}
		first = b
	}
}

func TestPCIAddress(t *testing.T) {
	for in, want := range map[string]PCIAddress{
		"0000:0f:00.0": "0000:0f:00.0", "00000000:0F:00.0": "0000:0f:00.0", "0f:00.0": "0000:0f:00.0",
		"10000:e1:1f.7": "10000:e1:1f.7", "ffffffff:ff:1f.7": "ffffffff:ff:1f.7",
	} {
		if got, err := ParsePCIAddress(in); err != nil || got != want {
			t.Errorf("%q: %q, %v; want %q", in, got, err, want)
		}
	}
	for _, in := range []string{"", ".", ":", "::.", "0000:0f:00", "0000:0f:20.0", "0000:0f:00.8", "0000:100:00.0", "000000000:0f:00.0",
		"0000:0f:00.00", "0000:-1:00.0", "0000:+1:00.0", "0000:0f:00.0 ", "a:b:c:d.0", "0x00:0f:00.0"} {
		if got, err := ParsePCIAddress(in); err == nil {
			t.Errorf("%q was taken for %q", in, got)
		}
	}
	sorted := []PCIAddress{"", "0000:0f:00.0", "0000:0f:00.1", "0001:00:00.0", "ffff:00:00.0", "10000:00:00.0"}
	if !slices.IsSortedFunc(sorted, PCIAddress.Compare) {
		t.Errorf("%v is not in order", sorted)
	}
}

func TestNamesInOrder(t *testing.T) {
	sorted := []string{"", "eth0", "mlx5_0", "mlx5_00", "mlx5_2", "mlx5_2a", "mlx5_10", "mlx5_ib0", "rdmap79s0", "rdmap113s0"}
	for i, a := range sorted {
		for j, b := range sorted {
			if got, want := compareNames(a, b) < 0, i < j; got != want && i != j {
				t.Errorf("%q before %q: %v", a, b, got)
			}
		}
	}
}

func TestParse(t *testing.T) {
	for in, want := range map[string]string{"": "[]", "0": "[0]", "0-2,5,7-8": "[0 1 2 5 7 8]"} {
		if got, err := cpuList(in); err != nil || fmt.Sprint(got) != want {
			t.Errorf("CPU list %q: %v, %v", in, got, err)
		}
	}
	for _, in := range []string{"-", "1-", "-1", "2-1", "0-4294967295", "99999999999999999999", "1,1", "2,1", "0-3,2", "0,,1", "a", "0-70000", " 1"} {
		if got, err := cpuList(in); err == nil {
			t.Errorf("CPU list %q was taken for %v", in, got)
		}
	}
	if got, err := cpuMap("00000001,80000003"); err != nil || fmt.Sprint(got) != "[0 1 31 32]" {
		t.Errorf("CPU map: %v, %v", got, err)
	}
	for in, want := range map[string]float64{"400 Gb/sec (4X NDR)": 50e9, "2.5 Gb/sec (1X SDR)": 312.5e6, "0 Gb/sec": 0} {
		if got, err := linkRate(in); err != nil || got != want {
			t.Errorf("rate %q: %v, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "fast", "NaN Gb/sec", "-1 Gb/sec", "1e300 Gb/sec", "Inf Gb/sec", "400"} {
		if got, err := linkRate(in); err == nil {
			t.Errorf("rate %q was taken for %v", in, got)
		}
	}
	for _, in := range []string{"", "ACTIVE", "4:ACTIVE", "9: SLEEPY"} {
		if got, err := portState(in); err == nil {
			t.Errorf("state %q was taken for %v", in, got)
		}
	}
	for _, in := range []string{"", "fe80", "10.0.0.1", "fe80::1%eth0"} {
		if got, err := gidAddress(in); err == nil {
			t.Errorf("GID %q was taken for %v", in, got)
		}
	}
}
