package topo

import "strings"

// Location is where a device hangs.
type Location struct {
	// PCI is "" for a device that is on no PCI bus, such as software RDMA over a
	// virtual interface.
	PCI PCIAddress `json:"pci"`
	// Above are the host bridge and the PCI bridges over the device, from the
	// host bridge down, by the names of their folders: pci0000:15, 0000:15:01.0.
	Above []string `json:"above"`
	// NUMA is the number of the memory node, of the device or else of the nearest
	// bridge that knows one; UnknownNode where the firmware does not say.
	NUMA int `json:"numa"`
}

// UnknownNode is the NUMA node of a device whose firmware names none.
const UnknownNode = -1

// nowhere is the location of a device that is on no bus.
func nowhere() Location { return Location{Above: []string{}, NUMA: UnknownNode} }

// Distance tells how far apart two devices are; smaller is nearer.
type Distance int

// From near to far.
const (
	SameBridge     Distance = iota // a PCI bridge or switch is above both
	SameHostBridge                 // they meet in the host bridge
	SameNode                       // they meet inside a NUMA node
	OtherNode                      // they meet between NUMA nodes, or where is not known
)

func (d Distance) String() string {
	switch d {
	case SameBridge:
		return "bridge"
	case SameHostBridge:
		return "host-bridge"
	case SameNode:
		return "numa"
	}
	return "system"
}

// MarshalText makes the name stand in JSON.
func (d Distance) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// Between returns how far apart two devices are, and what they meet in: a PCI
// address, a host bridge or "node 0"; "" where they meet further out.
func Between(a, b Location) (Distance, string) {
	meet := ""
	for i := 0; i < min(len(a.Above), len(b.Above)) && a.Above[i] == b.Above[i]; i++ {
		meet = a.Above[i]
	}
	switch {
	case meet != "" && !hostBridge(meet):
		return SameBridge, meet
	case meet != "":
		return SameHostBridge, meet
	case a.NUMA != UnknownNode && a.NUMA == b.NUMA:
		return SameNode, nodeName(a.NUMA)
	}
	return OtherNode, ""
}

// locate reads the location of the device whose folder dir, below the root and
// free of links, is given. The folder may lie below that of the PCI device, as
// those of interfaces and RDMA devices do.
func (t *tree) locate(dir string) Location {
	l := nowhere()
	parts := strings.Split(dir, "/")
	last := -1
	for i, part := range parts {
		if _, err := ParsePCIAddress(part); err == nil && strings.Count(part, ":") == 2 {
			last = i
		}
	}
	if last < 0 {
		return l
	}
	l.PCI, _ = ParsePCIAddress(parts[last])
	for i, part := range parts[:last] {
		_, err := ParsePCIAddress(part)
		if !hostBridge(part) && (err != nil || len(l.Above) == 0) {
			continue // platform folders above the first host bridge
		}
		l.Above = append(l.Above, part)
		if n := t.node(strings.Join(parts[:i+1], "/")); n != UnknownNode {
			l.NUMA = n
		}
	}
	if n := t.node(strings.Join(parts[:last+1], "/")); n != UnknownNode {
		l.NUMA = n
	}
	return l
}

// node reads the NUMA node of one PCI folder. Host bridges have no such file.
func (t *tree) node(dir string) int {
	text, err := t.text(dir + "/numa_node")
	if missing(err) {
		return UnknownNode
	}
	n := UnknownNode
	if err == nil {
		n, err = number(text, UnknownNode, maxNode)
	}
	if err != nil {
		t.problem(dir+"/numa_node", err)
		return UnknownNode
	}
	return n
}
