package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const fakeHost = "devices/pci0000:10/0000:10:01.0/"

// plantSysfs is a machine with a GPU and an active and an inactive port.
func plantSysfs(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for p, holds := range map[string]string{
		fakeHost + "0000:11:00.0/vendor": "0x10de", fakeHost + "0000:11:00.0/class": "0x030200", fakeHost + "0000:11:00.0/device": "0x2330", fakeHost + "0000:11:00.0/numa_node": "0",
		fakeHost + "0000:12:00.0/vendor": "0x15b3", fakeHost + "0000:12:00.0/device": "0x1021", fakeHost + "0000:12:00.0/numa_node": "0",
		fakeHost + "0000:12:00.0/infiniband/mlx5_0/ports/1/state":                         "4: ACTIVE",
		fakeHost + "0000:12:00.0/infiniband/mlx5_0/ports/1/rate":                          "400 Gb/sec (4X NDR)",
		fakeHost + "0000:12:00.0/infiniband/mlx5_0/ports/1/link_layer":                    "InfiniBand",
		fakeHost + "0000:12:00.0/infiniband/mlx5_0/ports/1/lid":                           "0x12",
		fakeHost + "0000:12:00.0/infiniband/mlx5_0/ports/1/gids/3":                        "fe80:0000:0000:0000:0000:0000:0000:0007",
		fakeHost + "0000:12:00.0/infiniband/mlx5_0/ports/2/state":                         "1: DOWN",
		fakeHost + "0000:12:00.0/infiniband/mlx5_0/ports/2/rate":                          "a lot",
		"devices/system/node/node0/cpulist":                                               "0-3,8-11",
		"devices/system/cpu/cpu0/topology/thread_siblings_list":                           "0,8",
		"class/net/eth0 -> ../../devices/pci0000:20/0000:21:00.0/net/eth0":                "",
		"devices/pci0000:20/0000:21:00.0/net/eth0/mtu":                                    "9000",
		"bus/pci/devices/0000:11:00.0 -> ../../../" + fakeHost + "0000:11:00.0":           "",
		"class/infiniband/mlx5_0 -> ../../" + fakeHost + "0000:12:00.0/infiniband/mlx5_0": "",
		fakeHost + "0000:12:00.0/infiniband/mlx5_0/device -> ../../../0000:12:00.0":       "",
	} {
		name, link, isLink := strings.Cut(p, " -> ")
		full := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(full), 0o777); err != nil {
			t.Fatal(err)
		}
		var err error
		if isLink {
			err = os.Symlink(link, full)
		} else {
			err = os.WriteFile(full, []byte(holds+"\n"), 0o666)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestTopo(t *testing.T) {
	root := plantSysfs(t)
	code, out, errs := moerail(t, "", "topo", "--sysfs", root)
	if code != 0 || errs != "" {
		t.Fatalf("exit code %d, said %q", code, errs)
	}
	for _, want := range []string{"0000:11:00.0", "mlx5_0:1", "bridge 0000:10:01.0", "400", "InfiniBand", "ACTIVE", "18", "fe80::7", "the port is DOWN, not ACTIVE",
		"eth0", "9000", "0-3,8-11", "locked memory: limit", "problem: " + root + "/" + fakeHost + "0000:12:00.0/infiniband/mlx5_0/ports/2/rate", `"a lot"`} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

func TestTopoJSON(t *testing.T) {
	code, out, errs := moerail(t, "", "topo", "--json", "--sysfs", plantSysfs(t), "--gpus", "11:00.0", "--ports", "mlx5_0")
	if code != 0 || errs != "" {
		t.Fatalf("exit code %d, said %q", code, errs)
	}
	var doc struct {
		Format string
		System struct {
			GPUs, Devices, Nodes, Interfaces, Problems []json.RawMessage
		}
		Map struct {
			Services []struct {
				GPU    string
				Routes []struct {
					Device, Distance, Via string
					Port                  int
				}
			}
			Spares []struct{ Device, Reason string }
		}
		LockedMemory struct{ Name, State, Found string } `json:"locked_memory"`
	}
	if err := json.Unmarshal([]byte(out), &doc); err != nil {
		t.Fatal(err)
	}
	if doc.Format != "moerail-topo/1" || len(doc.System.GPUs) != 1 || len(doc.System.Devices) != 1 || len(doc.System.Nodes) != 1 || len(doc.System.Problems) != 1 ||
		doc.LockedMemory.Name != "locked memory" || len(doc.Map.Spares) != 1 {
		t.Fatalf("document %s", out)
	}
	s := doc.Map.Services[0]
	if s.GPU != "0000:11:00.0" || len(s.Routes) != 1 || s.Routes[0].Device != "mlx5_0" || s.Routes[0].Port != 1 || s.Routes[0].Distance != "bridge" || s.Routes[0].Via != "0000:10:01.0" {
		t.Errorf("service %+v", s)
	}
}

// A machine without RDMA, such as most, hears what would be needed.
func TestTopoHere(t *testing.T) {
	code, out, errs := moerail(t, "", "topo")
	if code != 0 || errs != "" || !strings.Contains(out, "NUMA nodes") {
		t.Fatalf("exit code %d, said %q\n%s", code, errs, out)
	}
	if _, err := os.Stat("/sys/class/infiniband"); err != nil && !strings.Contains(out, "no RDMA device: ") {
		t.Errorf("no word of RDMA in\n%s", out)
	}
}
