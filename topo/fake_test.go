package topo

import (
	"encoding/xml"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// fake is a sysfs that is not written yet: paths to what they hold, a link where
// that starts with "-> ".
type fake map[string]string

// write puts the tree on disk and returns its root.
func (f fake) write(t testing.TB) string {
	t.Helper()
	root := t.TempDir()
	f.writeTo(t, root)
	return root
}

func (f fake) writeTo(t testing.TB, root string) {
	t.Helper()
	made := map[string]bool{}
	for p, holds := range f {
		full := filepath.Join(root, filepath.FromSlash(p))
		if dir := filepath.Dir(full); !made[dir] {
			made[dir] = true
			if err := os.MkdirAll(dir, 0o777); err != nil {
				t.Fatal(err)
			}
		}
		var err error
		if link, ok := strings.CutPrefix(holds, "-> "); ok {
			err = os.Symlink(link, full)
		} else {
			err = os.WriteFile(full, []byte(holds+"\n"), 0o666)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// listing reads a tree from lines "path = text" and "path -> target".
func listing(t testing.TB, file string) fake {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	f := fake{}
	for line := range strings.Lines(string(b)) {
		line = strings.TrimSuffix(line, "\n")
		if p, link, ok := strings.Cut(line, " -> "); ok {
			f[p] = "-> " + link
		} else if p, text, ok := strings.Cut(line, " ="); ok {
			f[p] = strings.TrimPrefix(text, " ")
		} else {
			t.Fatalf("%s: %q is no line of a listing", file, line)
		}
	}
	return f
}

// up is the relative link that leads from folder dir to target.
func up(dir, target string) string {
	return "-> " + strings.Repeat("../", strings.Count(dir, "/")+1) + target
}

// cpus adds the CPUs of a node: cores first..last, two threads a core, the
// second ones shift CPUs later.
func (f fake) cpus(node, first, last, shift int) {
	n := fmt.Sprintf("devices/system/node/node%d/", node)
	f[n+"cpulist"] = fmt.Sprintf("%d-%d,%d-%d", first, last, first+shift, last+shift)
	for c := first; c <= last; c++ {
		for _, cpu := range []int{c, c + shift} {
			f[fmt.Sprintf("devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu)] = fmt.Sprintf("%d,%d", c, c+shift)
		}
	}
}

// pci adds a PCI function at the end of dir, as pci0000:00/0000:00:01.0/0000:01:00.0.
func (f fake) pci(dir, class, vendor, device string, numa int) {
	p := "devices/" + dir
	f[p+"/class"], f[p+"/vendor"], f[p+"/device"] = class, vendor, device
	f[p+"/numa_node"] = fmt.Sprint(numa)
	f["bus/pci/devices/"+path.Base(dir)] = up("bus/pci/devices", p)
}

// bridge adds a PCI bridge whose firmware names no node.
func (f fake) bridge(dir string) { f.pci(dir, "0x060400", "0x8086", "0x352a", -1) }

// gpu adds a GPU.
func (f fake) gpu(dir string, numa int) { f.pci(dir, "0x030200", "0x10de", "0x2330", numa) }

// nicSpec is an RDMA device of one port.
type nicSpec struct {
	name, vendor, device string // ConnectX-7 where "" is
	state, layer, rate   string // active, InfiniBand, 400 Gb/s where "" is
}

// nic adds a NIC's function with an RDMA device of one port.
func (f fake) nic(dir string, numa int, s nicSpec) {
	def := func(v *string, otherwise string) {
		if *v == "" {
			*v = otherwise
		}
	}
	def(&s.vendor, "0x15b3")
	def(&s.device, "0x1021")
	def(&s.state, "4: ACTIVE")
	def(&s.layer, "InfiniBand")
	def(&s.rate, "400 Gb/sec (4X NDR)")
	f.pci(dir, "0x020700", s.vendor, s.device, numa)
	f.rdma(dir, s)
}

// rdma adds the RDMA device alone: several may be on one function.
func (f fake) rdma(dir string, s nicSpec) {
	d := "devices/" + dir + "/infiniband/" + s.name
	f["class/infiniband/"+s.name] = up("class/infiniband", d)
	f[d+"/device"] = "-> ../../../" + path.Base(dir)
	f[d+"/ports/1/state"], f[d+"/ports/1/rate"], f[d+"/ports/1/link_layer"] = s.state, s.rate, s.layer
	f[d+"/ports/1/phys_state"] = "5: LinkUp"
	f[d+"/ports/1/gids/0"] = "fe80:0000:0000:0000:0000:0000:0000:0001"
}

// ncclPCI is a PCI element of an NCCL topology file.
type ncclPCI struct {
	BusID  string    `xml:"busid,attr"`
	Class  string    `xml:"class,attr"`
	Vendor string    `xml:"vendor,attr"`
	Device string    `xml:"device,attr"`
	PCI    []ncclPCI `xml:"pci"`
	GPU    *struct{} `xml:"gpu"`
	Net    []struct {
		Name string `xml:"name,attr"`
	} `xml:"nic>net"`
}

// nccl builds a tree from an NCCL topology file: one host bridge for each element
// right below a CPU, the rest as the file has it.
func nccl(t testing.TB, file string) fake {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		CPU []struct {
			NUMA int       `xml:"numaid,attr"`
			PCI  []ncclPCI `xml:"pci"`
		} `xml:"cpu"`
	}
	if err := xml.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}
	f := fake{}
	for i, cpu := range doc.CPU {
		f.cpus(cpu.NUMA, i*8, i*8+7, 8*len(doc.CPU))
		for _, p := range cpu.PCI {
			f.addNCCL(strings.TrimSuffix("pci"+p.BusID, p.BusID[len(p.BusID)-5:]), p, cpu.NUMA)
		}
	}
	return f
}

func (f fake) addNCCL(dir string, p ncclPCI, numa int) {
	dir += "/" + p.BusID
	vendor, device := p.Vendor, p.Device
	if vendor == "" {
		vendor, device = "0x1d0f", "0xefa2"
		if strings.HasPrefix(p.Class, "0x03") {
			vendor, device = "0x10de", "0x2330"
		}
	}
	f.pci(dir, p.Class, vendor, device, numa)
	for _, n := range p.Net {
		layer := "Ethernet"
		if vendor == "0x1d0f" {
			layer = "Unspecified"
		}
		f.rdma(dir, nicSpec{name: n.Name, state: "4: ACTIVE", layer: layer, rate: "200 Gb/sec (4X HDR)"})
	}
	for _, below := range p.PCI {
		f.addNCCL(dir, below, numa)
	}
}

// dgx is a machine of 8 GPUs, each with a NIC under one switch, four to a socket,
// and on each socket a dual-port card for storage.
func dgx() fake { return dgxOf(8) }

// dgxOf has only the first GPUs, with their NICs.
func dgxOf(gpus int) fake {
	f := fake{}
	f.cpus(0, 0, 8, 18)
	f.cpus(1, 9, 17, 18)
	f["devices/system/cpu/online"] = "0-35"
	for i := range gpus {
		bus := 0x10 + 0x10*i
		host := fmt.Sprintf("pci0000:%02x/0000:%02x:01.0", bus, bus)
		upstream := fmt.Sprintf("%s/0000:%02x:00.0", host, bus+1)
		f.bridge(host)
		f.bridge(upstream)
		for n, what := range []string{"nic", "gpu"} {
			port := fmt.Sprintf("%s/0000:%02x:%02x.0", upstream, bus+2, n)
			f.bridge(port)
			dir := fmt.Sprintf("%s/0000:%02x:00.0", port, bus+3+n)
			if what == "gpu" {
				f.gpu(dir, i/4)
			} else {
				// Numbered against the PCI order, so that no match by number works.
				f.nic(dir, i/4, nicSpec{name: fmt.Sprintf("mlx5_%d", 11-i)})
			}
		}
	}
	for socket, bus := range []int{0xa0, 0xb0} {
		port := fmt.Sprintf("pci0000:%02x/0000:%02x:01.0", bus, bus)
		f.bridge(port)
		for fn := range 2 {
			dir := fmt.Sprintf("%s/0000:%02x:00.%d", port, bus+1, fn)
			f.nic(dir, socket, nicSpec{name: fmt.Sprintf("mlx5_%d", 2*socket+fn), layer: "Ethernet"})
		}
	}
	return f
}

// twoSockets is one real server's shape: two GPUs and a dual-port NIC on each
// socket, all under root ports of their own.
func twoSockets() fake {
	f := fake{}
	f.cpus(0, 0, 3, 8)
	f.cpus(1, 4, 7, 8)
	for socket, hosts := range [][]int{{0x00, 0x20, 0x40}, {0x80, 0xa0, 0xc0}} {
		for i, bus := range hosts {
			port := fmt.Sprintf("pci0000:%02x/0000:%02x:01.1", bus, bus)
			f.bridge(port)
			if i < 2 {
				f.gpu(fmt.Sprintf("%s/0000:%02x:00.0", port, bus+1), socket)
				continue
			}
			for fn := range 2 {
				f.nic(fmt.Sprintf("%s/0000:%02x:00.%d", port, bus+1, fn), socket, nicSpec{name: fmt.Sprintf("mlx5_%d", 2*socket+fn), layer: "Ethernet"})
			}
		}
	}
	return f
}

// without drops every path that holds s.
func (f fake) without(s string) fake {
	out := fake{}
	for p, holds := range f {
		if !strings.Contains(p, s) {
			out[p] = holds
		}
	}
	return out
}

// mustRead reads a tree in which nothing is wrong.
func mustRead(t testing.TB, f fake) *System {
	t.Helper()
	s, err := Read(f.write(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range s.Problems {
		t.Errorf("problem: %v", p)
	}
	return s
}

// mapText is an assignment as the files of expected maps hold it.
func mapText(a *Assignment) string {
	var b strings.Builder
	fmt.Fprintf(&b, "kind %s\n", a.Kind)
	for _, s := range a.Services {
		fmt.Fprintf(&b, "%s", s.GPU)
		for i, r := range s.Routes {
			fmt.Fprintf(&b, "%s %s:%d", []string{" <-", ","}[min(i, 1)], r.Device, r.Port)
			if i == 0 || r.Distance != s.Routes[i-1].Distance || r.Via != s.Routes[i-1].Via {
				fmt.Fprintf(&b, " (%v %s)", r.Distance, r.Via)
			}
		}
		if n := len(s.Cores); n > 0 {
			fmt.Fprintf(&b, "; cores %d-%d (%d)", s.Cores[0], s.Cores[n-1], n)
		}
		if s.Reason != "" {
			fmt.Fprintf(&b, "; %s", s.Reason)
		}
		b.WriteByte('\n')
	}
	for _, s := range a.Spares {
		fmt.Fprintf(&b, "spare %s:%d: %s\n", s.Device, s.Port, s.Reason)
	}
	for _, n := range a.Notes {
		fmt.Fprintf(&b, "note %s\n", n)
	}
	return b.String()
}

func ports(s Service) string {
	var out []string
	for _, r := range s.Routes {
		out = append(out, fmt.Sprintf("%s:%d", r.Device, r.Port))
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}
