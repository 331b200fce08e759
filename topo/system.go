package topo

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"
)

// System is what a tree says about its machine. Lists are in an order that does
// not depend on that of discovery: by PCI address, then name.
type System struct {
	Root       string      `json:"root"`
	Nodes      []Node      `json:"nodes"`
	GPUs       []GPU       `json:"gpus"`
	Devices    []Device    `json:"devices"`
	Interfaces []Interface `json:"interfaces"`
	// Problems lists what could not be read or made no sense.
	Problems []Problem `json:"problems"`
}

// GPU is a display or 3D controller of NVIDIA's.
type GPU struct {
	Location
	ID       string  `json:"id"`        // vendor:device, 10de:2330
	LinkRate float64 `json:"link_rate"` // bytes a second of its PCIe link, raw; 0 where not said
}

// Read reads the machine whose sysfs is at root, "/sys" for this one. The error
// is about the root alone; everything else that is wrong stands in Problems.
func Read(root string) (*System, error) {
	r, err := os.OpenRoot(root)
	if err != nil {
		return nil, fmt.Errorf("topo: %w", err)
	}
	defer r.Close()
	t := &tree{root: r, seen: map[string]bool{}}
	if _, err := r.Stat("devices"); err != nil {
		return nil, fmt.Errorf("topo: %s is no sysfs: %w", root, err)
	}
	s := &System{Root: root, Nodes: t.nodes(), GPUs: t.gpus(), Devices: t.devices(), Interfaces: t.interfaces()}
	s.settleNodes()
	s.tie()
	if t.dropped > 0 {
		t.problems = append(t.problems, Problem{".", fmt.Sprintf("%d more problems", t.dropped)})
	}
	s.Problems = t.problems
	if s.Problems == nil {
		s.Problems = []Problem{}
	}
	return s, nil
}

const nvidia = "0x10de"

// gpus looks through all PCI functions.
func (t *tree) gpus() []GPU {
	out := []GPU{}
	const dir = "bus/pci/devices"
	for _, name := range t.names(dir) {
		p := dir + "/" + name
		if _, err := ParsePCIAddress(name); err != nil {
			t.problem(p, fmt.Errorf("is no PCI address"))
			continue
		}
		vendor := t.want(p + "/vendor")
		if vendor != nvidia {
			continue
		}
		text := t.want(p + "/class")
		class, err := hex(text, 32)
		if err != nil {
			t.problem(p+"/class", err)
			continue
		}
		if class>>16 != 0x03 {
			continue // bridges, audio and USB functions of the same cards
		}
		real, err := t.resolve(p)
		if err != nil {
			t.problem(p, err)
			real = p // listed without its place
		}
		out = append(out, GPU{Location: t.locate(real), ID: t.id(p), LinkRate: t.pcieRate(p)})
	}
	slices.SortFunc(out, func(a, b GPU) int { return a.PCI.Compare(b.PCI) })
	return out
}

// id is "vendor:device" of a PCI folder, "" where it has none.
func (t *tree) id(dir string) string {
	vendor, device := t.optional(dir+"/vendor"), t.optional(dir+"/device")
	if vendor == "" || device == "" {
		return ""
	}
	for _, v := range []string{vendor, device} {
		if _, err := hex(v, 16); err != nil {
			t.problem(dir, err)
			return ""
		}
	}
	return strings.TrimPrefix(vendor, "0x") + ":" + strings.TrimPrefix(device, "0x")
}

// pcieRate is the raw rate of the link that is up, both sides of the encoding
// counted, in bytes a second.
func (t *tree) pcieRate(dir string) float64 {
	speed, width := t.optional(dir+"/current_link_speed"), t.optional(dir+"/current_link_width")
	if speed == "" || width == "" || strings.HasPrefix(speed, "Unknown") {
		return 0
	}
	gigatransfers, rest, _ := strings.Cut(speed, " ")
	var rate float64
	if _, err := fmt.Sscanf(gigatransfers, "%g", &rate); err != nil || !strings.HasPrefix(rest, "GT/s") || !(rate > 0 && rate < 1e4) {
		t.problem(dir+"/current_link_speed", fmt.Errorf("holds %.40q, want a speed such as \"32.0 GT/s PCIe\"", speed))
		return 0
	}
	lanes, err := number(width, 0, 255) // 255 stands for "not known"
	if err != nil {
		t.problem(dir+"/current_link_width", err)
		return 0
	}
	if lanes > 64 {
		return 0
	}
	return rate * 1e9 / 8 * float64(lanes)
}

// settleNodes puts devices without a NUMA node on the only one there is.
func (s *System) settleNodes() {
	if len(s.Nodes) != 1 {
		return
	}
	only := s.Nodes[0].Number
	settle := func(l *Location) {
		if l.NUMA == UnknownNode && l.PCI != "" {
			l.NUMA = only
		}
	}
	for i := range s.GPUs {
		settle(&s.GPUs[i].Location)
	}
	for i := range s.Devices {
		settle(&s.Devices[i].Location)
	}
	for i := range s.Interfaces {
		settle(&s.Interfaces[i].Location)
	}
}

// tie joins RDMA devices and the network interfaces on them, and gives software
// RDMA the location of the interface that carries it.
func (s *System) tie() {
	for i := range s.Devices {
		d := &s.Devices[i]
		for j := range s.Interfaces {
			n := &s.Interfaces[j]
			named := slices.Contains(d.Interfaces, n.Name)
			if !named && (n.Virtual || n.PCI == "" || n.PCI != d.PCI) {
				continue
			}
			if !named {
				d.Interfaces = append(d.Interfaces, n.Name)
			}
			if d.Software && d.PCI == "" {
				d.Location = n.Location
			}
			n.RDMA = append(n.RDMA, d.Name)
		}
	}
	slices.SortFunc(s.Devices, func(a, b Device) int {
		return cmp.Or(a.PCI.Compare(b.PCI), compareNames(a.Name, b.Name))
	})
}

// compareNames puts mlx5_2 before mlx5_10: runs of digits count as numbers.
func compareNames(a, b string) int {
	x, y := a, b
	for x != "" && y != "" {
		m, n := digits(x), digits(y)
		if m > 0 && n > 0 {
			p, q := strings.TrimLeft(x[:m], "0"), strings.TrimLeft(y[:n], "0")
			if c := cmp.Or(cmp.Compare(len(p), len(q)), strings.Compare(p, q)); c != 0 {
				return c
			}
			x, y = x[m:], y[n:]
			continue
		}
		if x[0] != y[0] {
			return cmp.Compare(x[0], y[0])
		}
		x, y = x[1:], y[1:]
	}
	return cmp.Or(cmp.Compare(len(x), len(y)), strings.Compare(a, b))
}

// digits counts those that s begins with.
func digits(s string) int {
	n := 0
	for n < len(s) && s[n] >= '0' && s[n] <= '9' {
		n++
	}
	return n
}
