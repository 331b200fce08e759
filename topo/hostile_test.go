package topo

import (
	"errors"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// What is wrong with a tree is said with the path at fault, and what else there is
// is still read.
func TestProblemsNameTheirPath(t *testing.T) {
	const nic = "devices/pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:00.0/0000:13:00.0"
	const mlx5_11 = nic + "/infiniband/mlx5_11"
	const port = mlx5_11 + "/ports/1"
	const gpu = "devices/pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:01.0/0000:14:00.0"
	for _, c := range []struct {
		name  string
		plant fake   // paths that replace others
		drop  string // path that is missing
		at    string // path of a problem
		says  string
	}{
		{"state of no kind", fake{port + "/state": "17: WARM"}, "", mlx5_11 + "/ports/1/state", "17: WARM"},
		{"no state", nil, port + "/state", mlx5_11 + "/ports/1/state", "no such file"},
		{"rate of no kind", fake{port + "/rate": "fast"}, "", mlx5_11 + "/ports/1/rate", "fast"},
		{"lid of no kind", fake{port + "/lid": "7"}, "", mlx5_11 + "/ports/1/lid", `"7"`},
		{"port that is no number", fake{nic + "/infiniband/mlx5_11/ports/x/state": "4: ACTIVE"}, "", mlx5_11 + "/ports/x", "port"},
		{"port 256", fake{nic + "/infiniband/mlx5_11/ports/256/state": "4: ACTIVE"}, "", mlx5_11 + "/ports/256", "255"},
		{"GID of no kind", fake{port + "/gids/0": "fe80"}, "", mlx5_11 + "/ports/1/gids/0", "fe80"},
		{"GID that is a folder", fake{port + "/gids/1/x": ""}, "", mlx5_11 + "/ports/1/gids/1", "directory"},
		{"GID that is a link", fake{port + "/gids/1": "-> 0"}, "", mlx5_11 + "/ports/1/gids/1", "links"},
		{"GID without end", fake{port + "/gids/1": strings.Repeat("f", 5000)}, "", mlx5_11 + "/ports/1/gids/1", "fff"},
		{"GIDs that are a file", fake{port + "/gids": "1"}, port + "/gids/0", mlx5_11 + "/ports/1/gids", "not a directory"},
		{"index of no kind", fake{port + "/gids/-1": "fe80"}, "", mlx5_11 + "/ports/1/gids/-1", "index"},
		{"NUMA node of no kind", fake{nic + "/numa_node": "-2"}, "", nic + "/numa_node", "-2"},
		{"NUMA node too large", fake{gpu + "/numa_node": "99999999999"}, "", gpu + "/numa_node", "99999999999"},
		{"class of no kind", fake{gpu + "/class": "GPU"}, "", "bus/pci/devices/0000:14:00.0/class", "GPU"},
		{"no vendor", nil, gpu + "/vendor", "bus/pci/devices/0000:14:00.0/vendor", "no such file"},
		{"address of no kind", fake{"bus/pci/devices/gpu": "-> ../../../" + gpu}, "", "bus/pci/devices/gpu", "PCI address"},
		{"link to itself", fake{"class/infiniband/mlx5_11": "-> mlx5_11"}, "", "class/infiniband/mlx5_11", "links"},
		{"links in a ring", fake{"class/net/a": "-> b", "class/net/b": "-> a"}, "", "class/net/a", "links"},
		{"link that leads nowhere", fake{"class/infiniband/mlx5_12": "-> ../../devices/none"}, "", "class/infiniband/mlx5_12", "no such file"},
		{"link out of the root", fake{"class/net/eth9": "-> ../../../../../etc"}, "", "class/net/eth9", "leaves the root"},
		{"absolute link", fake{"class/net/eth9": "-> /etc"}, "", "class/net/eth9", "leaves the root"},
		{"GPU link to itself", fake{"bus/pci/devices/0000:77:00.0": "-> 0000:77:00.0"}, "", "bus/pci/devices/0000:77:00.0/vendor", "links"},
		{"attribute that is a folder", fake{port + "/state/x": ""}, port + "/state", mlx5_11 + "/ports/1/state", "no file"},
		{"attribute without end", fake{port + "/state": strings.Repeat("x", maxFileBytes+1)}, "", mlx5_11 + "/ports/1/state", "more than"},
		{"attribute out of the root", fake{port + "/state": "-> /proc/version"}, port + "/none", mlx5_11 + "/ports/1/state", "escapes"},
		{"CPUs without end", fake{"devices/system/node/node0/cpulist": "0-4294967295"}, "", "devices/system/node/node0/cpulist", "4294967295"},
		{"node without CPUs", fake{"devices/system/node/node0/distance": "10"}, "devices/system/node/node0/cpulist", "devices/system/node/node0", "cpumap"},
		{"node of no kind", fake{"devices/system/node/node-1/cpulist": "0"}, "", "devices/system/node/node-1", "node"},
		{"device without ports", fake{"class/infiniband/mlx5_12": "-> ../../devices/virtual/infiniband/mlx5_12", "devices/virtual/infiniband/mlx5_12/fw_ver": "1"}, "", "devices/virtual/infiniband/mlx5_12/ports", "no port"},
		{"ports that are a file", fake{"class/infiniband/mlx5_12": "-> ../../devices/virtual/infiniband/mlx5_12", "devices/virtual/infiniband/mlx5_12/ports": "1"}, "", "devices/virtual/infiniband/mlx5_12/ports", ""},
		{"PCIe speed of no kind", fake{gpu + "/current_link_speed": "NaN GT/s PCIe", gpu + "/current_link_width": "16"}, "", "bus/pci/devices/0000:14:00.0/current_link_speed", "NaN"},
		{"MTU of no kind", fake{"class/net/eth9": "-> ../../devices/virtual/net/eth9", "devices/virtual/net/eth9/mtu": "1e3"}, "", "class/net/eth9/mtu", "1e3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := dgxOf(2)
			delete(f, c.drop)
			maps.Copy(f, c.plant)
			s, err := Read(f.write(t))
			if err != nil {
				t.Fatal(err)
			}
			found := false
			for _, p := range s.Problems {
				found = found || (p.Path == c.at && strings.Contains(p.Text, c.says))
			}
			if !found {
				t.Errorf("no problem at %s that says %q, but %v", c.at, c.says, s.Problems)
			}
			if len(s.GPUs) < 1 || len(s.Devices) < 6 || len(s.Nodes) < 2 {
				t.Errorf("%d GPUs, %d devices, %d nodes are left", len(s.GPUs), len(s.Devices), len(s.Nodes))
			}
			a, err := s.Assign(Options{})
			if err != nil {
				t.Fatal(err)
			}
			if err := audit(s, a); err != nil {
				t.Error(err)
			}
		})
	}
}

// Opening a pipe for reading waits for a writer, who never comes.
func TestPipeInPlaceOfAnAttribute(t *testing.T) {
	f := dgxOf(1)
	const state = "devices/pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:00.0/0000:13:00.0/infiniband/mlx5_11/ports/1/state"
	delete(f, state)
	root := f.write(t)
	if err := syscall.Mkfifo(filepath.Join(root, state), 0o600); err != nil {
		t.Skip(err)
	}
	s, err := Read(root)
	if err != nil || len(s.Problems) != 1 || !strings.Contains(s.Problems[0].Text, "no file") {
		t.Errorf("%v, problems %v", err, s.Problems)
	}
}

func TestProblemsAreBounded(t *testing.T) {
	f := dgxOf(1)
	for i := range maxProblems + 50 {
		f["bus/pci/devices/x"+strings.Repeat("i", i%40)+string(rune('0'+i%10))+strings.Repeat("j", i/40)] = ""
	}
	s, err := Read(f.write(t))
	if err != nil {
		t.Fatal(err)
	}
	if n := len(s.Problems); n > maxProblems+1 || n < 100 {
		t.Errorf("%d problems", n)
	}
}

// Trees damaged at random are read to the end.
func TestDamagedTrees(t *testing.T) {
	values := []string{"", "-1", "0", "99999999999999999999", "0x10de", "NaN Gb/sec", "0-4294967295", "-> .", "-> ..", "-> ../..", "-> x", "\x00\xff", "4: ACTIVE", "node0", "-> ../../../../../../../.."}
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 3))
		f := randomMachine(rng)
		all := sortedPaths(f)
		for range 1 + rng.IntN(8) {
			p := all[rng.IntN(len(all))]
			switch rng.IntN(3) {
			case 0:
				f = f.without(p)
			case 1:
				if _, ok := f[p]; ok {
					f[p] = values[rng.IntN(len(values))]
				}
			case 2:
				f[p+"x"] = values[rng.IntN(len(values))]
			}
		}
		s, err := Read(f.write(t))
		if err != nil {
			if errors.Is(err, os.ErrNotExist) {
				continue // nothing is left below devices
			}
			t.Fatalf("seed %d: %v", seed, err)
		}
		a, err := s.Assign(Options{})
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if err := audit(s, a); err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, mapText(a))
		}
	}
}

// FuzzAttributes puts the same bytes into every attribute of a kind.
func FuzzAttributes(f *testing.F) {
	for _, s := range []string{"0-3,8", "400 Gb/sec (4X NDR)", "4: ACTIVE", "fe80::1", "0x10de", "-1", "ff,00000001", "32.0 GT/s PCIe", "../../x", "0000:00:00.0"} {
		f.Add(s, uint8(0))
	}
	names := []string{"cpulist", "thread_siblings_list", "state", "rate", "lid", "gids/0", "vendor", "class", "numa_node", "mtu", "parent", "current_link_speed", "current_link_width"}
	f.Fuzz(func(t *testing.T, text string, which uint8) {
		if len(text) > 1<<12 || strings.HasPrefix(text, "-> ") {
			return
		}
		tree := shared(1, 1).without("devices/system/cpu/") // few files: writing them is what takes the time
		name := names[int(which)%len(names)]
		for p := range maps.Clone(tree) {
			if strings.HasSuffix(p, "/"+name) {
				tree[p] = text
			} else if strings.HasSuffix(p, "/class") || strings.HasSuffix(p, "/ports/1/state") {
				tree[strings.TrimSuffix(strings.TrimSuffix(p, "/class"), "/state")+"/"+name] = text
			}
		}
		s, err := Read(tree.write(t))
		if err != nil {
			t.Fatal(err)
		}
		a, err := s.Assign(Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := audit(s, a); err != nil {
			t.Error(err)
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"0-3,8", "400 Gb/sec (4X NDR)", "4: ACTIVE", "fe80::1", "0x10de", "-1", "ff,00000001", "10000:e1:1f.7", "mlx5_10"} {
		f.Add(s, "mlx5_2")
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		_, _ = cpuList(a)
		_, _ = cpuMap(a)
		_, _ = linkRate(a)
		_, _ = portState(a)
		_, _ = gidAddress(a)
		if p, err := ParsePCIAddress(a); err == nil {
			if q, err := ParsePCIAddress(string(p)); err != nil || p != q {
				t.Errorf("%q is %q is %q, %v", a, p, q, err)
			}
		}
		hostBridge(a)
		if (compareNames(a, b) > 0) != (compareNames(b, a) < 0) || (compareNames(a, b) == 0) != (a == b) {
			t.Errorf("order of %q and %q", a, b)
		}
	})
}
