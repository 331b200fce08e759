package topo

import (
	"cmp"
	"slices"
	"strings"
)

// Interface is a network interface.
type Interface struct {
	Location
	Name    string   `json:"name"`
	State   string   `json:"state"` // up, down, unknown, ...
	MTU     int      `json:"mtu"`   // bytes
	Rate    float64  `json:"rate"`  // bytes a second; 0 where the driver does not say
	Address string   `json:"address"`
	Virtual bool     `json:"virtual"` // on no device: lo, bridges, tunnels
	RDMA    []string `json:"rdma"`    // RDMA devices on it, by name
}

// interfaces reads all network interfaces of this namespace.
func (t *tree) interfaces() []Interface {
	const dir = "class/net"
	out := []Interface{}
	for _, name := range t.names(dir) {
		p := dir + "/" + name
		if name == "bonding_masters" {
			continue // a file of the bonding driver among the folders
		}
		n := Interface{Location: nowhere(), Name: name, RDMA: []string{}, State: t.optional(p + "/operstate"), Address: t.optional(p + "/address")}
		real, err := t.resolve(p)
		if err != nil {
			t.problem(p, err)
			out = append(out, n)
			continue
		}
		n.Location = t.locate(real)
		if n.PCI == "" && !strings.HasPrefix(real, "devices/virtual/") {
			if real, err := t.resolve(p + "/device"); err == nil {
				n.Location = t.locate(real)
			} else if !missing(err) {
				t.problem(p+"/device", err)
			}
		}
		n.Virtual = strings.HasPrefix(real, "devices/virtual/")
		if text := t.optional(p + "/mtu"); text != "" {
			if n.MTU, err = number(text, 0, 1<<31-1); err != nil {
				t.problem(p+"/mtu", err)
			}
		}
		// The kernel answers "invalid argument", nothing or -1 where there is no speed.
		if text, err := t.text(p + "/speed"); err == nil && text != "" {
			mbits, err := number(text, -1, 1<<31-1)
			if err != nil {
				t.problem(p+"/speed", err)
			}
			n.Rate = float64(max(mbits, 0)) * 1e6 / 8
		}
		out = append(out, n)
	}
	slices.SortFunc(out, func(a, b Interface) int {
		return cmp.Or(a.PCI.Compare(b.PCI), compareNames(a.Name, b.Name))
	})
	return out
}
