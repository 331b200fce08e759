package machine

import (
	"fmt"
	"strings"

	"moerail/transport/efa"
)

// Libfabric is what doctor's JSON says of libfabric.
type Libfabric struct {
	Built     bool                `json:"built"`
	Library   string              `json:"library"` // path, "" if none was opened
	Version   string              `json:"version"`
	Headers   string              `json:"headers"` // version that this build was compiled with
	Error     string              `json:"error"`   // "" if nothing is wrong
	Remedy    string              `json:"remedy"`
	Providers []LibfabricProvider `json:"providers"`
}

// LibfabricProvider is one provider of the library.
type LibfabricProvider struct {
	Name       string   `json:"name"`
	Devices    []string `json:"devices"`
	Usable     bool     `json:"usable"` // it can carry moerail's writes
	Error      string   `json:"error"`  // why not
	RMA        bool     `json:"rma"`
	ImmBytes   int      `json:"imm_bytes"`
	Read       bool     `json:"read"`
	Atomic     bool     `json:"atomic"`
	Tagged     bool     `json:"tagged"`
	Inject     uint64   `json:"inject_bytes"`
	SendQueue  uint64   `json:"send_queue"`
	MaxMessage uint64   `json:"max_message_bytes"` // 0 is no limit
	MRMode     string   `json:"mr_mode"`
	AddrFormat string   `json:"addr_format"`
	Progress   string   `json:"progress"`
	Tried      bool     `json:"tried"`   // done, and not only claimed by the provider
	Missing    []string `json:"missing"` // each with its consequence
}

// ExamineLibfabric asks the library.
func ExamineLibfabric() Libfabric { return describeLibfabric(efa.Built, efa.Discover()) }

func describeLibfabric(built bool, d efa.Discovery) Libfabric {
	l := Libfabric{Built: built, Library: d.Library, Version: d.Version, Headers: d.Headers, Error: text(d.Err), Remedy: d.Remedy,
		Providers: []LibfabricProvider{}}
	for _, p := range d.Providers {
		f := p.Features
		l.Providers = append(l.Providers, LibfabricProvider{Name: p.Name, Devices: list(p.Devices), Usable: p.Err == nil && len(p.Devices) > 0,
			Error: text(p.Err), RMA: f.RMA, ImmBytes: f.ImmBytes, Read: f.Read, Atomic: f.Atomic, Tagged: f.Tagged, Inject: f.InjectBytes,
			SendQueue: f.SendQueue, MaxMessage: f.MaxMessage, MRMode: f.MRMode, AddrFormat: f.AddrFormat, Progress: f.Progress,
			Tried: f.Tried, Missing: list(p.Missing)})
	}
	return l
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// list is never nil: it is [] in JSON.
func list(s []string) []string { return append([]string{}, s...) }

const (
	getLibfabric = "apt-get install libfabric1, or the EFA installer's libfabric in the path of the loader"
	getEFA       = "an instance type with EFA, its driver (modprobe efa), and for a container --device /dev/infiniband"
)

// findings are the rows of libfabric in doctor's list: the library, EFA, and each
// provider that has devices here.
func (l *Libfabric) findings() []Finding {
	const name = "fabric libfabric"
	switch {
	case !l.Built:
		return []Finding{{name, Absent, "not in this build", orElse(l.Remedy, efa.ErrNotBuilt.Error())}}
	case l.Error != "":
		return []Finding{{name, Absent, l.Error, orElse(l.Remedy, getLibfabric)}}
	}
	library := Finding{name, OK, fmt.Sprintf("libfabric %s, %s", l.Version, l.Library), ""}
	var out []Finding
	hasEFA := false
	for i := range l.Providers {
		p := &l.Providers[i]
		hasEFA = hasEFA || p.Name == "efa" && len(p.Devices) > 0
		if len(p.Devices) > 0 {
			out = append(out, p.finding())
		}
	}
	if len(out) == 0 {
		library.State, library.Remedy = Poor, "bring up a network interface, loopback say: its providers have none"
	}
	if !hasEFA {
		out = append([]Finding{{"fabric efa", Absent, "no EFA device", getEFA}}, out...)
	}
	return append([]Finding{library}, out...)
}

func (p *LibfabricProvider) finding() Finding {
	name := "libfabric:" + p.Name
	if p.Name == "efa" {
		name = "fabric efa"
	}
	devices := strings.Join(p.Devices, ", ")
	if !p.Usable {
		return Finding{name, Absent, p.Error + "; devices: " + devices, "use another provider"}
	}
	f := Finding{name, OK, fmt.Sprintf("devices %s; immediates of %d bytes, %d bytes inline", devices, p.ImmBytes, p.Inject), ""}
	for _, what := range p.Missing {
		f.Found += "; " + what
	}
	if p.Tried {
		f.Found += "; seen to work"
	}
	return f
}

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}
