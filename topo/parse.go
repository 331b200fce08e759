package topo

import (
	"fmt"
	"math"
	"net/netip"
	"strconv"
	"strings"
)

const (
	maxCPU  = 1 << 16
	maxNode = 1 << 16
	maxPort = 255
)

// number reads a decimal number from least to most.
func number(text string, least, most int) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < least || n > most {
		return 0, fmt.Errorf("holds %.40q, want a number from %d to %d", text, least, most)
	}
	return n, nil
}

// hex reads a number as the PCI attributes write it, 0x10de.
func hex(text string, bits int) (uint64, error) {
	n, err := strconv.ParseUint(strings.TrimPrefix(text, "0x"), 16, bits)
	if err != nil || !strings.HasPrefix(text, "0x") {
		return 0, fmt.Errorf("holds %.40q, want a number such as 0x10de", text)
	}
	return n, nil
}

// cpuList reads "0-3,8,10-11" in ascending order.
func cpuList(text string) ([]int, error) {
	cpus := []int{}
	if text == "" {
		return cpus, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		a, err := number(from, 0, maxCPU)
		if err != nil {
			return nil, err
		}
		b, err := number(to, a, maxCPU)
		if err != nil {
			return nil, err
		}
		if len(cpus) > 0 && a <= cpus[len(cpus)-1] {
			return nil, fmt.Errorf("holds %.40q, where %d comes twice or out of order", text, a)
		}
		for ; a <= b; a++ {
			cpus = append(cpus, a)
		}
	}
	return cpus, nil
}

// cpuMap reads "ff,00000001": groups of 32 bits, the highest first.
func cpuMap(text string) ([]int, error) {
	cpus := []int{}
	groups := strings.Split(text, ",")
	for i := len(groups) - 1; i >= 0; i-- {
		bits, err := strconv.ParseUint(groups[i], 16, 32)
		if err != nil {
			return nil, fmt.Errorf("holds %.40q, want a bit map such as ff,00000001", text)
		}
		base := (len(groups) - 1 - i) * 32
		for b := range 32 {
			if bits>>b&1 != 0 {
				cpus = append(cpus, base+b)
			}
		}
	}
	return cpus, nil
}

// linkRate reads "400 Gb/sec (4X NDR)" into bytes a second.
func linkRate(text string) (float64, error) {
	value, _, ok := strings.Cut(text, " Gb/sec")
	gbits, err := strconv.ParseFloat(value, 64)
	if !ok || err != nil || math.IsNaN(gbits) || gbits < 0 || gbits > 1e6 {
		return 0, fmt.Errorf("holds %.40q, want a rate such as \"400 Gb/sec (4X NDR)\"", text)
	}
	return gbits * 1e9 / 8, nil
}

// states of a port as the kernel names them.
var states = map[string]bool{"NOP": true, "DOWN": true, "INIT": true, "ARMED": true, "ACTIVE": true, "ACTIVE_DEFER": true}

// portState reads "4: ACTIVE".
func portState(text string) (string, error) {
	_, name, _ := strings.Cut(text, ": ")
	if !states[name] {
		return "", fmt.Errorf("holds %.40q, want a state such as \"4: ACTIVE\"", text)
	}
	return name, nil
}

// gidAddress reads the eight groups of a GID.
func gidAddress(text string) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	if err != nil || !a.Is6() || a.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("holds %.60q, want a GID of eight groups of four digits", text)
	}
	return a, nil
}
