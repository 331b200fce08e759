package topo

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Options narrow what Assign gives to whom.
type Options struct {
	// Ports are RDMA devices (mlx5_0) or ports of them (mlx5_0:1) to use, whatever
	// their kind; empty: the ports of the kind with the highest rate in all.
	Ports []string
	// GPUs are those to serve, in any order; empty: all.
	GPUs []PCIAddress
}

// Assignment says which ports serve which GPU.
type Assignment struct {
	Kind     string    `json:"kind"` // of the ports in use; "" if they were named, or there are none
	Services []Service `json:"services"`
	Spares   []Spare   `json:"spares"`
	// Notes are what an operator should know of the whole, one sentence each.
	Notes []string `json:"notes"`
}

// Service is what serves one GPU.
type Service struct {
	GPU    PCIAddress `json:"gpu"`
	Routes []Route    `json:"routes"` // the GPU's own ports, in PCI order
	Cores  []int      `json:"cores"`  // first hardware threads for the GPU's worker and others
	// Reason says why there is no route, or what is poor about it; else "".
	Reason string `json:"reason"`
}

// Route is one port and the path from the GPU to it.
type Route struct {
	Device   string   `json:"device"`
	Port     int      `json:"port"`
	Distance Distance `json:"distance"`
	Via      string   `json:"via"`    // what GPU and port meet in; "" between NUMA nodes
	Shared   bool     `json:"shared"` // with other GPUs
}

// Spare is a port that serves no GPU.
type Spare struct {
	Device string `json:"device"`
	Port   int    `json:"port"`
	Reason string `json:"reason"`
}

// rail is a port that may be given to GPUs.
type rail struct {
	at     Location
	name   string
	port   int
	users  int
	reason string // why it is left, as far as known
}

// Assign gives each GPU its ports. From the innermost bridge outwards, then by
// host bridge, NUMA node and the whole machine, the GPUs of a group that have no
// port yet split the group's ports that serve nobody yet: evenly, in PCI order.
// Where a group has fewer ports than such GPUs, they share. A GPU that is still
// left shares the nearest port, the least used first.
//
// Ports that are not active serve nobody. Of several kinds of ports (by vendor,
// device and link layer), only the one with the highest rate in all is used, and
// software RDMA only where there is nothing else, because an engine cuts its
// writes evenly over its ports.
//
// It fails with an error that names every entry of o which is not there.
func (s *System) Assign(o Options) (*Assignment, error) {
	gpus, err := s.wanted(o.GPUs)
	a := &Assignment{Services: []Service{}, Spares: []Spare{}, Notes: []string{}}
	rails, err2 := s.rails(o.Ports, a)
	if err := errors.Join(err, err2); err != nil {
		return nil, err
	}
	given := make([][]*rail, len(gpus))
	for _, in := range groups(gpus, rails) {
		split(gpus, given, rails, in)
	}
	for i := range gpus {
		if len(given[i]) == 0 {
			given[i] = nearest(gpus[i].Location, rails)
		}
	}
	least, most := 0, 0
	for i, g := range gpus {
		svc := Service{GPU: g.PCI, Routes: []Route{}, Cores: s.coresOf(g)}
		for _, r := range given[i] {
			d, via := Between(g.Location, r.at)
			svc.Routes = append(svc.Routes, Route{r.name, r.port, d, via, r.users > 1})
		}
		svc.Reason = poor(svc.Routes, a)
		a.Services = append(a.Services, svc)
		if n := len(svc.Routes); i == 0 {
			least, most = n, n
		} else {
			least, most = min(least, n), max(most, n)
		}
	}
	for _, r := range rails {
		if r.users == 0 {
			a.Spares = append(a.Spares, Spare{r.name, r.port, cmp.Or(r.reason, whyLeft(gpus))})
		}
	}
	slices.SortStableFunc(a.Spares, func(x, y Spare) int {
		return cmp.Or(compareNames(x.Device, y.Device), cmp.Compare(x.Port, y.Port))
	})
	if least != most {
		a.Notes = append(a.Notes, fmt.Sprintf("GPUs have %d to %d ports; ranks of one job use the same number, so at most %d of each", least, most, least))
	}
	return a, nil
}

// wanted picks the GPUs that are asked for.
func (s *System) wanted(list []PCIAddress) ([]GPU, error) {
	if len(list) == 0 {
		return s.GPUs, nil
	}
	out := []GPU{}
	for _, g := range s.GPUs {
		if slices.Contains(list, g.PCI) {
			out = append(out, g)
		}
	}
	var errs []error
	for _, want := range list {
		if !slices.ContainsFunc(s.GPUs, func(g GPU) bool { return g.PCI == want }) {
			errs = append(errs, fmt.Errorf("topo: no GPU at %q", want))
		}
	}
	return out, errors.Join(errs...)
}

// rails lists the ports that may serve, in PCI order; the others go to a.Spares
// with the reason.
func (s *System) rails(names []string, a *Assignment) ([]*rail, error) {
	named := map[string]bool{}
	for _, n := range names {
		named[n] = false
	}
	kind := ""
	if len(names) == 0 {
		kind = s.kind()
		a.Kind = kind
	}
	rails := []*rail{}
	for i := range s.Devices {
		d := &s.Devices[i]
		for j := range d.Ports {
			p := &d.Ports[j]
			full := fmt.Sprintf("%s:%d", d.Name, p.Number)
			reason := ""
			if len(names) > 0 {
				_, byDevice := named[d.Name]
				_, byPort := named[full]
				if byDevice {
					named[d.Name] = true
				}
				if byPort {
					named[full] = true
				}
				if !byDevice && !byPort {
					reason = "not among the ports asked for"
				}
			}
			switch k := kindOf(d, p); {
			case reason != "":
			case !p.Active():
				reason = "the port is " + cmp.Or(p.State, "in an unknown state") + ", not ACTIVE"
			case len(names) == 0 && k != kind:
				reason = fmt.Sprintf("%s: another kind than the ports in use, %s", k, kind)
			}
			if reason != "" {
				a.Spares = append(a.Spares, Spare{d.Name, p.Number, reason})
				continue
			}
			rails = append(rails, &rail{at: d.Location, name: d.Name, port: p.Number})
		}
	}
	var errs []error
	for _, n := range names {
		if !named[n] {
			errs = append(errs, fmt.Errorf("topo: no RDMA device or port %q", n))
		}
	}
	return rails, errors.Join(errs...)
}

// kindOf tells ports apart that should not carry parts of one write.
func kindOf(d *Device, p *Port) string {
	switch {
	case d.Software:
		return "software RDMA"
	case p.LinkLayer == "" || p.LinkLayer == "Unspecified":
		return cmp.Or(d.ID, "unknown")
	}
	return cmp.Or(d.ID, "unknown") + " " + p.LinkLayer
}

// kind is that of the active ports with the highest rate in all; hardware goes
// before software.
func (s *System) kind() string {
	type total struct {
		kind  string
		hard  bool
		rate  float64
		ports int
	}
	var all []total
	for i := range s.Devices {
		d := &s.Devices[i]
		for j := range d.Ports {
			p := &d.Ports[j]
			if !p.Active() {
				continue
			}
			k := kindOf(d, p)
			at := slices.IndexFunc(all, func(t total) bool { return t.kind == k })
			if at < 0 {
				at = len(all)
				all = append(all, total{kind: k, hard: !d.Software})
			}
			all[at].rate += p.Rate
			all[at].ports++
		}
	}
	if len(all) == 0 {
		return ""
	}
	return slices.MaxFunc(all, func(x, y total) int {
		hard := 0
		if x.hard != y.hard {
			hard = -1
			if x.hard {
				hard = 1
			}
		}
		return cmp.Or(hard, cmp.Compare(x.rate, y.rate), cmp.Compare(x.ports, y.ports), strings.Compare(y.kind, x.kind))
	}).kind
}

// groups lists what GPUs and ports may meet in, the innermost first, as tests of
// a location.
func groups(gpus []GPU, rails []*rail) []func(Location) bool {
	type place struct {
		name  string
		depth int
	}
	var places []place
	seen := map[string]bool{}
	nodes := map[int]bool{}
	for _, g := range gpus {
		for depth, name := range g.Above {
			if !seen[name] {
				seen[name] = true
				places = append(places, place{name, depth})
			}
		}
		nodes[g.NUMA] = true
	}
	slices.SortFunc(places, func(a, b place) int {
		return cmp.Or(cmp.Compare(b.depth, a.depth), PCIAddress(a.name).Compare(PCIAddress(b.name)))
	})
	var out []func(Location) bool
	for _, p := range places {
		out = append(out, func(l Location) bool { return slices.Contains(l.Above, p.name) })
	}
	delete(nodes, UnknownNode)
	for _, n := range sortedKeys(nodes) {
		out = append(out, func(l Location) bool { return l.NUMA == n })
	}
	return append(out, func(Location) bool { return true })
}

func sortedKeys(m map[int]bool) []int {
	out := make([]int, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// split gives the free ports of one group to its GPUs without any.
func split(gpus []GPU, given [][]*rail, rails []*rail, in func(Location) bool) {
	var who []int
	for i, g := range gpus {
		if len(given[i]) == 0 && in(g.Location) {
			who = append(who, i)
		}
	}
	var free []*rail
	for _, r := range rails {
		if r.users == 0 && in(r.at) {
			free = append(free, r)
		}
	}
	if len(who) == 0 || len(free) == 0 {
		return
	}
	each := max(1, len(free)/len(who))
	for n, i := range who {
		first := n * each
		if each*len(who) > len(free) {
			first = n * len(free) / len(who) // fewer ports than GPUs
		}
		given[i] = free[first : first+each : first+each]
		for _, r := range given[i] {
			r.users++
		}
	}
	for _, r := range free {
		if r.users == 0 {
			r.reason = fmt.Sprintf("left over: %d GPUs have %d ports each of the %d that they share out", len(who), each, len(free))
		}
	}
}

// nearest finds the port for a GPU whose neighbours have them all.
func nearest(at Location, rails []*rail) []*rail {
	var best *rail
	far := OtherNode + 1
	for _, r := range rails {
		d, _ := Between(at, r.at)
		if d < far || (d == far && r.users < best.users) {
			best, far = r, d
		}
	}
	if best == nil {
		return nil
	}
	best.users++
	return []*rail{best}
}

// poor says what an operator should know about a GPU's routes.
func poor(routes []Route, a *Assignment) string {
	if len(routes) == 0 {
		if len(a.Spares) == 0 {
			return "there is no RDMA device"
		}
		return fmt.Sprintf("no port can serve: %s:%d: %s", a.Spares[0].Device, a.Spares[0].Port, a.Spares[0].Reason)
	}
	var out []string
	if routes[0].Shared {
		out = append(out, "shares its port with other GPUs")
	}
	if slices.ContainsFunc(routes, func(r Route) bool { return r.Distance == OtherNode }) {
		out = append(out, "no port is left in its NUMA node, or the node is not known")
	}
	return strings.Join(out, "; ")
}

func whyLeft(gpus []GPU) string {
	if len(gpus) == 0 {
		return "there is no GPU"
	}
	return "every GPU has a port that is nearer, or as near and first in PCI order"
}

// coresOf gives a GPU its part of the cores of its NUMA node: an even one, in PCI
// order of the node's GPUs; the first ones get one more where it does not come
// out even. Where the node has fewer cores than GPUs, each gets all. Empty
// where the GPU's node is not known.
func (s *System) coresOf(g GPU) []int {
	at := slices.IndexFunc(s.Nodes, func(n Node) bool { return n.Number == g.NUMA })
	if at < 0 {
		return []int{}
	}
	cores := s.Nodes[at].Cores
	var there []PCIAddress
	for _, other := range s.GPUs {
		if other.NUMA == g.NUMA {
			there = append(there, other.PCI)
		}
	}
	n, i := len(there), slices.Index(there, g.PCI)
	if len(cores) < n {
		return slices.Clone(cores)
	}
	each, more := len(cores)/n, len(cores)%n
	first := i*each + min(i, more)
	if i < more {
		each++
	}
	return slices.Clone(cores[first : first+each])
}
