package topo

import (
	"cmp"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"syscall"
)

// Device is an RDMA device: an adapter's function, or software RDMA over an
// interface.
type Device struct {
	Location
	Name string `json:"name"` // mlx5_0
	ID   string `json:"id"`   // vendor:device, 15b3:1021; "" off the PCI bus
	// Software is set for devices that the kernel plays over an interface, such as
	// rxe and siw.
	Software   bool   `json:"software"`
	Firmware   string `json:"firmware"`
	NodeGUID   string `json:"node_guid"`
	CharDevice string `json:"char_device"` // uverbs0, below /dev/infiniband; "" if ib_uverbs has none
	// Interfaces are the network interfaces that carry it, by name.
	Interfaces []string `json:"interfaces"`
	Ports      []Port   `json:"ports"`
}

// Port is a port of an RDMA device.
type Port struct {
	Number    int     `json:"number"`     // from 1
	State     string  `json:"state"`      // ACTIVE, DOWN, INIT, ARMED, NOP; "" if it could not be read
	Physical  string  `json:"physical"`   // LinkUp, Disabled, Polling, ...
	LinkLayer string  `json:"link_layer"` // InfiniBand, Ethernet; Unspecified for EFA
	Rate      float64 `json:"rate"`       // bytes a second of the link; 0 if it could not be read
	LID       int     `json:"lid"`        // of InfiniBand; 0 on Ethernet
	GIDs      []GID   `json:"gids"`       // entries of the table that are in use
}

// Active tells whether the port can carry anything.
func (p *Port) Active() bool { return p.State == "ACTIVE" }

// GID is an entry of a port's table.
type GID struct {
	Index     int        `json:"index"`
	Type      string     `json:"type"` // "RoCE v2", "IB/RoCE v1"; "" where the kernel does not say
	Address   netip.Addr `json:"address"`
	Interface string     `json:"interface"` // "" on InfiniBand
}

const rdmaClass = "class/infiniband"

// devices reads all RDMA devices.
func (t *tree) devices() []Device {
	chars := t.charDevices()
	out := []Device{}
	for _, name := range t.names(rdmaClass) {
		out = append(out, t.device(name, chars[name]))
	}
	return out
}

// charDevices maps the names of RDMA devices to those of their uverbs devices.
func (t *tree) charDevices() map[string]string {
	const dir = "class/infiniband_verbs"
	out := map[string]string{}
	for _, name := range t.names(dir) {
		if name == "abi_version" {
			continue // a file among the folders
		}
		if of := t.optional(dir + "/" + name + "/ibdev"); of != "" {
			out[of] = name
		}
	}
	return out
}

func (t *tree) device(name, char string) Device {
	p := rdmaClass + "/" + name
	d := Device{Location: nowhere(), Name: name, CharDevice: char, Interfaces: []string{}, Ports: []Port{}}
	real, err := t.resolve(p)
	if err != nil {
		t.problem(p, err)
		return d // the name is all there is
	}
	p = real // fewer links to follow from here on
	d.Firmware, d.NodeGUID = t.optional(p+"/fw_ver"), t.optional(p+"/node_guid")
	d.Location = t.locate(real)
	if d.PCI == "" {
		// Old kernels keep the device itself below class; its link tells.
		if real, err := t.resolve(p + "/device"); err == nil {
			d.Location = t.locate(real)
		} else if !missing(err) {
			t.problem(p+"/device", err)
		}
	}
	d.Software = d.PCI == ""
	if !d.Software {
		d.ID = t.id(p + "/device")
	}
	if parent := t.optional(p + "/parent"); parent != "" {
		d.Interfaces = append(d.Interfaces, parent)
	}
	for _, entry := range t.names(p + "/ports") {
		n, err := number(entry, 1, maxPort)
		if err != nil {
			t.problem(p+"/ports/"+entry, fmt.Errorf("is no number of a port: %w", err))
			continue
		}
		port := t.port(p+"/ports/"+entry, n)
		for _, g := range port.GIDs {
			if g.Interface != "" && !slices.Contains(d.Interfaces, g.Interface) {
				d.Interfaces = append(d.Interfaces, g.Interface)
			}
		}
		d.Ports = append(d.Ports, port)
	}
	if len(d.Ports) == 0 {
		t.problem(p+"/ports", fmt.Errorf("the device shows no port"))
	}
	slices.SortFunc(d.Ports, func(a, b Port) int { return cmp.Compare(a.Number, b.Number) })
	return d
}

func (t *tree) port(p string, n int) Port {
	port := Port{Number: n, LinkLayer: t.optional(p + "/link_layer"), GIDs: []GID{}}
	var err error
	if text, at := t.want(p+"/state"), p+"/state"; text != "" {
		if port.State, err = portState(text); err != nil {
			t.problem(at, err)
		}
	}
	if text := t.optional(p + "/phys_state"); text != "" {
		_, port.Physical, _ = cutLast(text, ": ")
	}
	if text, at := t.want(p+"/rate"), p+"/rate"; text != "" {
		if port.Rate, err = linkRate(text); err != nil {
			t.problem(at, err)
		}
	}
	if text, at := t.optional(p+"/lid"), p+"/lid"; text != "" {
		lid, err := hex(text, 32)
		if err != nil {
			t.problem(at, err)
		}
		port.LID = int(lid)
	}
	port.GIDs = t.gids(p)
	return port
}

// gids reads the entries of a port's table that are in use.
func (t *tree) gids(p string) []GID {
	out := []GID{}
	dir := p + "/gids"
	table, err := t.root.OpenFile(dir, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NONBLOCK, 0)
	if err != nil {
		if !missing(err) {
			t.problem(dir, err)
		}
		return out
	}
	defer table.Close()
	for _, entry := range t.names(dir) {
		at := dir + "/" + entry
		index, err := number(entry, 0, maxEntries)
		if err != nil {
			t.problem(at, fmt.Errorf("is no index: %w", err))
			continue
		}
		text, err := short(table, entry)
		if err != nil {
			t.problem(at, err)
			continue
		}
		if text == unusedGID {
			continue
		}
		a, err := gidAddress(text)
		if err != nil {
			t.problem(at, err)
			continue
		}
		out = append(out, GID{index, t.optional(p + "/gid_attrs/types/" + entry), a, t.optional(p + "/gid_attrs/ndevs/" + entry)})
	}
	slices.SortFunc(out, func(a, b GID) int { return cmp.Compare(a.Index, b.Index) })
	return out
}

// unusedGID is what the kernel shows for an entry that is not in use.
const unusedGID = "0000:0000:0000:0000:0000:0000:0000:0000"
