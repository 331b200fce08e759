package topo

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// PCIAddress names a PCI function as the kernel writes it: domain, bus, device
// and function, as in 0000:0f:00.0. "" stands for a device that hangs on no PCI
// bus.
type PCIAddress string

// ParsePCIAddress accepts the kernel's form, NVML's (00000000:0F:00.0), and that
// of lspci without a domain (0f:00.0).
func ParsePCIAddress(s string) (PCIAddress, error) {
	fail := func() (PCIAddress, error) {
		return "", fmt.Errorf("topo: %q is no PCI address, want domain:bus:device.function as in 0000:0f:00.0", s)
	}
	rest, function, ok := cutLast(s, ".")
	if !ok {
		return fail()
	}
	parts := strings.Split(rest, ":")
	if len(parts) == 2 {
		parts = append([]string{"0"}, parts...)
	}
	if len(parts) != 3 {
		return fail()
	}
	var n [4]uint64
	for i, limit := range []struct {
		digits int
		most   uint64
	}{{8, 1<<32 - 1}, {2, 255}, {2, 31}, {1, 7}} {
		text := function
		if i < 3 {
			text = parts[i]
		}
		v, err := strconv.ParseUint(text, 16, 32)
		if err != nil || len(text) > limit.digits || v > limit.most {
			return fail()
		}
		n[i] = v
	}
	return PCIAddress(fmt.Sprintf("%04x:%02x:%02x.%x", n[0], n[1], n[2], n[3])), nil
}

// Compare orders addresses by domain, bus, device and function; "" comes first.
func (a PCIAddress) Compare(b PCIAddress) int {
	// Only the domain differs in length, and a longer one is a higher one.
	if c := cmp.Compare(len(a), len(b)); c != 0 {
		return c
	}
	return strings.Compare(string(a), string(b))
}

func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

// hostBridge tells whether a folder of sysfs is a PCI host bridge, as pci0000:15.
func hostBridge(name string) bool {
	domain, bus, ok := strings.Cut(strings.TrimPrefix(name, "pci"), ":")
	if !ok || !strings.HasPrefix(name, "pci") || len(bus) != 2 {
		return false
	}
	_, err := strconv.ParseUint(domain+bus, 16, 64)
	return err == nil
}
