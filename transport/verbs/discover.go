//go:build verbs && cgo && linux

package verbs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"moerail/internal/ibv"
)

// Discover lists what there is. It never fails: what is wrong is in the result.
func Discover() Discovery {
	lib, err := ibv.Open()
	if err != nil {
		d := Discovery{Err: fmt.Errorf("%w: %w", ErrNoLibrary, err)}
		d.Remedy = "install libibverbs1 and ibverbs-providers (Debian), or rdma-core"
		d.memlock()
		return d
	}
	return discover(lib)
}

func discover(lib *ibv.Lib) Discovery {
	d := Discovery{Library: lib.Path(), Version: lib.Version(), DMABuf: lib.HasDMABuf()}
	d.memlock()
	names, err := lib.Devices()
	if err != nil {
		d.Err = fmt.Errorf("%w: %w", ErrNoDevice, err)
	}
	usable, efa := false, 0
	for _, name := range names {
		dev := inspect(lib, name)
		if dev.Vendor == amazonVendor {
			efa++
		}
		for _, p := range dev.Ports {
			usable = usable || p.Active && len(p.GIDs) > 0 && dev.Vendor != amazonVendor
		}
		d.Devices = append(d.Devices, dev)
	}
	if d.Err == nil && !usable {
		d.Err = ErrNoDevice
	}
	if d.Err != nil {
		if d.Remedy = remedy(len(names)); efa > 0 && efa == len(names) {
			d.Remedy = errEFA.Error()
		}
	}
	return d
}

// remedy looks for what a machine without a usable device lacks.
func remedy(devices int) string {
	kernel, _ := filepath.Glob("/sys/class/infiniband/*")
	_, node := os.Stat("/dev/infiniband")
	switch {
	case devices > 0:
		return "bring a port up: ip link set its network interface up, and give it an address"
	case len(kernel) == 0:
		return "the kernel shows no RDMA device: load the NIC's driver (mlx5_ib), or rdma_rxe for Soft-RoCE: rdma link add rxe0 type rxe netdev eth0"
	case errors.Is(node, fs.ErrNotExist):
		return "there is no /dev/infiniband: load ib_uverbs, and start a container with --device=/dev/infiniband"
	case node != nil:
		return fmt.Sprintf("/dev/infiniband can not be read: %v", node)
	}
	return "the library has no driver for the device: install ibverbs-providers"
}

const lowMemlock = 1 << 30

func (d *Discovery) memlock() {
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l) != nil {
		return
	}
	if d.Memlock = l.Cur; l.Cur < lowMemlock {
		d.MemlockRemedy = fmt.Sprintf("%d bytes may be locked, and all registered memory is: ulimit -l unlimited, LimitMEMLOCK=infinity of systemd, or --ulimit memlock=-1 of a container", l.Cur)
	}
}

func inspect(lib *ibv.Lib, name string) (dev Device) {
	dev.Name, dev.NUMA, dev.PCI = name, numaOf(name), pciOf(name)
	dev.Software = dev.PCI == ""
	x, err := lib.OpenDevice(name)
	if err != nil {
		dev.Err = err
		return dev
	}
	defer x.Close()
	a, err := x.Attr()
	if err != nil {
		dev.Err = err
		return dev
	}
	dev.Firmware, dev.Vendor, dev.Part = a.Firmware, a.VendorID, a.PartID
	dev.MaxQueuePairs, dev.MaxRegion, dev.MaxReads, dev.Atomics = a.MaxQP, a.MaxMRSize, a.MaxQPReads, a.Atomic
	table, err := x.GIDs()
	if err != nil {
		dev.Err = err
	}
	for i := 1; i <= a.NumPorts; i++ {
		p, err := x.Port(i)
		if err != nil {
			dev.Err = errors.Join(dev.Err, fmt.Errorf("port %d: %w", i, err))
			continue
		}
		dev.Ports = append(dev.Ports, portOf(i, p, table))
	}
	return dev
}

func portOf(number int, p ibv.PortAttr, table []ibv.GIDEntry) Port {
	ethernet := p.LinkLayer == ibv.LinkEthernet
	out := Port{
		Number: number, State: stateText(p.State), Active: p.State == ibv.PortActive, LinkLayer: "InfiniBand",
		BytesPerSecond: linkRate(p), LID: p.LID, MaxMessage: p.MaxMessage,
	}
	if ethernet {
		out.LinkLayer = "Ethernet"
	}
	if p.MTU >= 1 && p.MTU <= 5 {
		out.MTU = 128 << p.MTU
	}
	chosen, none := chooseGID(table, number, ethernet, -1)
	for _, e := range table {
		if e.Port == number {
			out.GIDs = append(out.GIDs, GID{Index: e.Index, Type: gidTypeText(e.Type), Address: gidText(e.GID), Chosen: none == nil && e == chosen})
		}
	}
	return out
}

func stateText(s int) string {
	names := []string{"unknown", "down", "init", "armed", "active", "active, deferred"}
	if s < 0 || s >= len(names) {
		return fmt.Sprintf("state %d", s)
	}
	return names[s]
}

func gidTypeText(t ibv.GIDType) string {
	switch t {
	case ibv.GIDInfiniBand:
		return "InfiniBand"
	case ibv.GIDRoCEv1:
		return "RoCE v1"
	case ibv.GIDRoCEv2:
		return "RoCE v2"
	}
	return fmt.Sprintf("type %d", int(t))
}

// sysfs is where the kernel tells about a device that is not of libibverbs.
func sysfs(dev string) string { return filepath.Join("/sys/class/infiniband", dev, "device") }

func numaOf(dev string) int {
	b, err := os.ReadFile(filepath.Join(sysfs(dev), "numa_node"))
	if err != nil {
		return -1
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || n < 0 {
		return -1
	}
	return n
}

func pciOf(dev string) string {
	to, err := filepath.EvalSymlinks(sysfs(dev))
	if err != nil || strings.Contains(to, "/virtual/") {
		return ""
	}
	if name := filepath.Base(to); strings.Count(name, ":") == 2 {
		return name
	}
	return ""
}
