package rounds

import (
	"fmt"
	"strings"

	"moerail/transport"
	"moerail/transport/loopback"
	"moerail/transport/shm"
)

// resolveFabric replaces auto and refuses what this build or launch has not.
func (o *Options) resolveFabric() error {
	switch {
	case o.Fabric == "auto" && o.Launch == "inproc":
		o.Fabric = "loopback"
	case o.Fabric == "auto":
		o.Fabric = "shm"
	case o.Fabric == "loopback" && o.Launch != "inproc":
		return &OptionError{"fabric", "loopback joins ranks of one process; with --launch " + o.Launch + " use shm"}
	case o.Fabric == "loopback", o.Fabric == "shm":
	case o.Fabric == "verbs", o.Fabric == "efa", strings.HasPrefix(o.Fabric, "libfabric:"):
		return &OptionError{"fabric", o.Fabric + " is not in this build, which has loopback and shm"}
	default:
		return &OptionError{"fabric", fmt.Sprintf("is %q, want auto, loopback, shm, verbs, efa or libfabric:PROVIDER", o.Fabric)}
	}
	return nil
}

// providers returns the provider of each rank of this process, given as a
// function of the rank number.
func (o *Options) providers() (func(rank int) transport.Provider, error) {
	if o.Fabric == "shm" {
		p, err := shm.New(shm.Config{NumNICs: o.NICs})
		if err != nil {
			return nil, err
		}
		return func(int) transport.Provider { return p }, nil
	}
	names := make([]string, o.NICs)
	for i := range names {
		names[i] = fmt.Sprintf("lo%d", i)
	}
	f, err := loopback.New(loopback.Config{NICs: names})
	if err != nil {
		return nil, err
	}
	return func(rank int) transport.Provider {
		// Ranks of one node, and only those, map each other's memory.
		node := rank
		if o.RanksPerNode > 0 {
			node = rank / o.RanksPerNode
		}
		return f.Process(fmt.Sprintf("rank%d", rank), fmt.Sprintf("node%d", node))
	}, nil
}

func nicNames(p transport.Provider, n int) []string {
	var names []string
	for _, nic := range p.NICs() {
		if len(names) < n {
			names = append(names, nic.Name)
		}
	}
	return names
}
