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
	Library string        `json:"library"` // file, "" if none was opened
	Version string        `json:"version"`
	DMABuf  bool          `json:"dmabuf"` // the library can register DMA buffers
	Error   string        `json:"error"`  // why there is nothing to use, "" if there is
	Remedy  string        `json:"remedy"`
	Devices []VerbsDevice `json:"devices"`
}

// VerbsDevice is one RDMA device.
type VerbsDevice struct {
	Name          string      `json:"name"`
	Error         string      `json:"error"` // why it cannot be used
	Firmware      string      `json:"firmware"`
	Vendor        uint32      `json:"vendor"` // as of PCI
	Part          uint32      `json:"part"`
	PCI           string      `json:"pci"`
	Software      bool        `json:"software"`
	NUMA          int         `json:"numa"`
	MaxQueuePairs int         `json:"max_queue_pairs"`
	MaxRegion     uint64      `json:"max_region_bytes"`
	MaxReads      int         `json:"max_reads"`
	Atomics       bool        `json:"atomics"`
	Ports         []VerbsPort `json:"ports"`
}

// VerbsPort is one port of a device.
type VerbsPort struct {
	Number     int        `json:"number"`
	State      string     `json:"state"`
	Active     bool       `json:"active"`
	LinkLayer  string     `json:"link_layer"`
	Rate       uint64     `json:"bytes_per_second"` // 0 if unknown
	MTU        int        `json:"mtu"`
	LID        uint16     `json:"lid"`
	MaxMessage uint64     `json:"max_message_bytes"`
	GIDs       []VerbsGID `json:"gids"`
}

// VerbsGID is one line of a port's GID table.
type VerbsGID struct {
	Index   int    `json:"index"`
	Type    string `json:"type"`
	Address string `json:"address"`
	Chosen  bool   `json:"chosen"` // what is used unless EnvGID says otherwise
}

// ExamineVerbs asks the library.
func ExamineVerbs() Verbs { return describeVerbs(verbs.Built, verbs.Discover()) }

func describeVerbs(built bool, d verbs.Discovery) Verbs {
	v := Verbs{Built: built, Library: d.Library, Version: d.Version, DMABuf: d.DMABuf, Error: text(d.Err), Remedy: d.Remedy,
		Devices: []VerbsDevice{}}
	for _, dev := range d.Devices {
		out := VerbsDevice{Name: dev.Name, Error: text(dev.Err), Firmware: dev.Firmware, Vendor: dev.Vendor, Part: dev.Part, PCI: dev.PCI,
			Software: dev.Software, NUMA: dev.NUMA, MaxQueuePairs: dev.MaxQueuePairs, MaxRegion: dev.MaxRegion, MaxReads: dev.MaxReads, Atomics: dev.Atomics,
			Ports: []VerbsPort{}}
		for _, p := range dev.Ports {
			port := VerbsPort{Number: p.Number, State: p.State, Active: p.Active, LinkLayer: p.LinkLayer, Rate: p.BytesPerSecond, MTU: p.MTU,
				LID: p.LID, MaxMessage: p.MaxMessage, GIDs: []VerbsGID{}}
			for _, g := range p.GIDs {
				port.GIDs = append(port.GIDs, VerbsGID(g))
			}
			out.Ports = append(out.Ports, port)
		}
		v.Devices = append(v.Devices, out)
	}
	return v
}

const getDevice = "an RDMA NIC and its driver (modprobe mlx5_ib); to try without one: modprobe rdma_rxe, rdma link add rxe0 type rxe netdev eth0"

// findings are the rows of verbs in doctor's list: the library, what the kernel
// has, then each device.
func (v *Verbs) findings(kernel Finding) []Finding {
	library := Finding{"fabric verbs", OK, v.libraryText(), ""}
	switch {
	case !v.Built:
		library.State, library.Found, library.Remedy = Absent, "not in this build", orElse(v.Remedy, verbs.ErrNotBuilt.Error())
	case v.Error != "":
		library.State, library.Found, library.Remedy = Absent, v.Error, orElse(v.Remedy, getDevice)
		if v.Library != "" {
			library.Found += "; " + v.libraryText()
		}
	}
	out := []Finding{library, kernel}
	for i := range v.Devices {
		out = append(out, v.Devices[i].finding())
	}
	return out
}

func (v *Verbs) libraryText() string {
	s := fmt.Sprintf("libibverbs %s, %s", v.Version, v.Library)
	if !v.DMABuf {
		s += "; no DMA buffers (rdma-core before 34): memory of GPUs needs nvidia-peermem"
	}
	return s
}

func (d *VerbsDevice) finding() Finding {
	f := Finding{"verbs " + d.Name, OK, "", ""}
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
	if d.Error == "" {
		parts = append(parts, fmt.Sprintf("%d queue pairs", d.MaxQueuePairs))
		if !d.Atomics {
			parts = append(parts, "no atomics: OpFetchAdd and OpCompareSwap are refused")
		}
	}
	active := false
	for i := range d.Ports {
		active = active || d.Ports[i].Active
		parts = append(parts, d.Ports[i].text())
	}
	f.Found = strings.Join(parts, "; ")
	switch {
	case d.Error != "":
		f.State, f.Found = Poor, d.Error+"; "+f.Found
		f.Remedy = "access to /dev/infiniband (for a container --device /dev/infiniband), and ulimit -l unlimited"
	case !active:
		f.State, f.Remedy = Poor, "bring the link up: ip link set DEVICE up, the cable, the switch; for InfiniBand a subnet manager"
	}
	return f
}

func (p *VerbsPort) text() string {
	s := fmt.Sprintf("port %d %s, %s", p.Number, p.State, p.LinkLayer)
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
		s += fmt.Sprintf(", GID %d %s %s", g.Index, g.Type, g.Address)
		if g.Chosen {
			s += " (used)"
		}
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
