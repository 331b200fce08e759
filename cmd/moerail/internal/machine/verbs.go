package machine

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"moerail/transport/verbs"
)

// Verbs is what doctor's JSON says of libibverbs.
type Verbs struct {
	Built   bool          `json:"built"`
	Library string        `json:"library"` // path, "" if none was opened
	Version string        `json:"version"`
	Error   string        `json:"error"` // "" if nothing is wrong
	Remedy  string        `json:"remedy"`
	Devices []VerbsDevice `json:"devices"`
}

// VerbsDevice is one RDMA device.
type VerbsDevice struct {
	Name     string      `json:"name"`
	Error    string      `json:"error"` // why it cannot be used
	Firmware string      `json:"firmware"`
	PCI      string      `json:"pci"`
	NUMA     int         `json:"numa"`
	Software bool        `json:"software"`
	Ports    []VerbsPort `json:"ports"`
}

// VerbsPort is one port of a device.
type VerbsPort struct {
	Num       int        `json:"num"`
	State     string     `json:"state"`
	LinkLayer string     `json:"link_layer"`
	Rate      uint64     `json:"bytes_per_second"`
	MTU       int        `json:"mtu"`
	LID       int        `json:"lid"`
	GIDs      []VerbsGID `json:"gids"`
}

// VerbsGID is one entry of a port's GID table.
type VerbsGID struct {
	Index int    `json:"index"`
	Type  string `json:"type"`
	Addr  string `json:"addr"`
}

// ExamineVerbs asks the library.
func ExamineVerbs() Verbs { return describeVerbs(verbs.Built, verbs.Discover()) }

func describeVerbs(built bool, d verbs.Discovery) Verbs {
	v := Verbs{Built: built, Library: d.Library, Version: d.Version, Error: text(d.Err), Remedy: d.Remedy, Devices: []VerbsDevice{}}
	for _, dev := range d.Devices {
		out := VerbsDevice{Name: dev.Name, Error: text(dev.Err), Firmware: dev.Firmware, PCI: dev.PCI, NUMA: dev.NUMA,
			Software: dev.Software, Ports: []VerbsPort{}}
		for _, p := range dev.Ports {
			port := VerbsPort{Num: p.Number, State: p.State, LinkLayer: p.LinkLayer, Rate: p.BytesPerSecond, MTU: p.MTU, LID: int(p.LID), GIDs: []VerbsGID{}}
			for _, g := range p.GIDs {
				port.GIDs = append(port.GIDs, VerbsGID{g.Index, g.Type, g.Address})
			}
			out.Ports = append(out.Ports, port)
		}
		v.Devices = append(v.Devices, out)
	}
	return v
}

const (
	getVerbs  = "apt-get install libibverbs1 ibverbs-providers"
	getDevice = "an RDMA NIC and its driver (modprobe mlx5_ib); to try without one: modprobe rdma_rxe, rdma link add rxe0 type rxe netdev eth0"
)

// findings are the rows of verbs in doctor's list: what the kernel has, then the
// library and each device.
func (v *Verbs) findings(kernel Finding) []Finding {
	const name = "fabric verbs"
	out := []Finding{kernel}
	switch {
	case !v.Built:
		return append([]Finding{{name, Absent, "not in this build", orElse(v.Remedy, verbs.ErrNotBuilt.Error())}}, out...)
	case v.Error != "":
		return append([]Finding{{name, Absent, v.Error, orElse(v.Remedy, getVerbs)}}, out...)
	case len(v.Devices) == 0:
		return append([]Finding{{name, Absent, "no RDMA device", getDevice}}, out...)
	}
	library := Finding{name, OK, strings.TrimRight(fmt.Sprintf("libibverbs %s, %s", v.Version, v.Library), ", "), ""}
	for i := range v.Devices {
		out = append(out, v.Devices[i].finding())
	}
	return append([]Finding{library}, out...)
}

func (d *VerbsDevice) finding() Finding {
	f := Finding{"verbs " + d.Name, OK, "", ""}
	if d.Error != "" {
		return Finding{f.Name, Poor, d.Error, "access to /dev/infiniband (for a container --device /dev/infiniband), and ulimit -l unlimited"}
	}
	var parts []string
	if d.Software {
		parts = append(parts, "software, for tests")
	}
	if d.PCI != "" {
		parts = append(parts, "PCI "+d.PCI)
	}
	if d.NUMA >= 0 {
		parts = append(parts, fmt.Sprintf("NUMA node %d", d.NUMA))
	}
	if d.Firmware != "" {
		parts = append(parts, "firmware "+d.Firmware)
	}
	active := false
	for _, p := range d.Ports {
		active = active || p.State == "active"
		parts = append(parts, p.text())
	}
	f.Found = strings.Join(parts, "; ")
	if !active {
		f.State, f.Remedy = Poor, "bring the link up: ip link set DEVICE up, the cable, the switch; for InfiniBand a subnet manager"
	}
	return f
}

func (p *VerbsPort) text() string {
	s := fmt.Sprintf("port %d %s", p.Num, p.State)
	if p.LinkLayer != "" {
		s += ", " + p.LinkLayer
	}
	if p.Rate > 0 {
		s += fmt.Sprintf(", %.4g GB/s", float64(p.Rate)/1e9)
	}
	if p.MTU > 0 {
		s += fmt.Sprintf(", MTU %d", p.MTU)
	}
	if p.LID > 0 {
		s += fmt.Sprintf(", LID %d", p.LID)
	}
	for _, g := range p.GIDs {
		s += fmt.Sprintf(", GID %d %s %s", g.Index, g.Type, g.Addr)
	}
	return s
}

// rdmaDevices is what the kernel shows and lets this process open, whatever the
// build: root is "/", or that of a test.
func rdmaDevices(root string) Finding {
	const name = "RDMA devices"
	devices := base(filepath.Glob(filepath.Join(root, "sys/class/infiniband/*")))
	if len(devices) == 0 {
		return Finding{name, Absent, "this kernel shows none", getDevice}
	}
	f := Finding{name, OK, strings.Join(devices, ", "), ""}
	nodes, _ := filepath.Glob(filepath.Join(root, "dev/infiniband/uverbs*"))
	if len(nodes) == 0 {
		f.State, f.Remedy = Poor, "modprobe ib_uverbs; for a container --device /dev/infiniband"
		f.Found += "; but /dev/infiniband has no uverbs node, so nothing can open them"
	}
	for _, node := range nodes {
		if err := unix.Access(node, unix.R_OK|unix.W_OK); err != nil {
			f.State, f.Remedy = Poor, "read and write access for this user to "+node
			f.Found += fmt.Sprintf("; %s: %v", node, err)
		}
	}
	return f
}

func base(paths []string, _ error) []string {
	names := make([]string, len(paths))
	for i, p := range paths {
		names[i] = filepath.Base(p)
	}
	return names
}

// lockedMemory is the limit on what registering memory with a NIC pins; nics says
// whether there are any.
func lockedMemory(limit uint64, nics bool) Finding {
	f := Finding{"locked memory", OK, "limit " + bytesText(limit), ""}
	if limit >= wantLocked || limit == math.MaxUint64 {
		return f
	}
	f.State = Poor
	f.Remedy = "for NICs: ulimit -l unlimited, or memlock in limits.conf, or --ulimit memlock=-1 for a container"
	if nics {
		f.Found += "; registering the buffers of a run needs " + bytesText(wantLocked) + " and more"
	} else {
		f.Found += "; enough for loopback, shm and software providers, which lock nothing"
	}
	return f
}

func lockedLimit() (uint64, error) {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l); err != nil {
		return 0, os.NewSyscallError("getrlimit", err)
	}
	return l.Cur, nil
}
