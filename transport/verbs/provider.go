//go:build verbs && cgo && linux

package verbs

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"moerail/internal/ibv"
	"moerail/internal/mem"
	"moerail/transport"
)

// Built tells whether libibverbs support was compiled in.
const Built = true

// Provider opens ports of RDMA devices. It holds nothing but their names.
type Provider struct {
	cfg  Config
	lib  *ibv.Lib
	nics []nic
}

type nic struct {
	transport.NIC
	device string
	port   int
}

var _ transport.Provider = (*Provider)(nil)

// New finds the devices. It fails with ErrNoLibrary or ErrNoDevice where there
// is nothing to work with.
func New(cfg Config) (*Provider, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	lib, err := ibv.Open()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoLibrary, err)
	}
	return newProvider(lib, cfg)
}

// newProvider needs a checked configuration.
func newProvider(lib *ibv.Lib, cfg Config) (*Provider, error) {
	p := &Provider{cfg: cfg, lib: lib}
	names, err := lib.Devices()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoDevice, err)
	}
	var seen []string
	var errs []error
	if len(cfg.Devices) > 0 {
		for _, want := range cfg.Devices {
			dev, port, err := splitDevice(want)
			if err == nil {
				err = p.add(dev, port)
			}
			if err != nil {
				return nil, fmt.Errorf("%w: %q, there is %s: %w", ErrNoDevice, want, list(names), err)
			}
		}
		return p, nil
	}
	for _, dev := range names {
		if err := p.add(dev, 0); err != nil {
			errs = append(errs, err)
			seen = append(seen, dev)
		}
	}
	if len(p.nics) == 0 {
		return nil, fmt.Errorf("%w: of %s: %w", ErrNoDevice, list(seen), errors.Join(errs...))
	}
	return p, nil
}

func list(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

func splitDevice(s string) (dev string, port int, err error) {
	dev, number, ok := strings.Cut(s, ":")
	if ok {
		if port, err = strconv.Atoi(number); err != nil || port < 1 || port > 255 {
			return "", 0, fmt.Errorf("port %q, want 1 to 255", number)
		}
	}
	if dev == "" {
		return "", 0, errors.New("no device is named")
	}
	return dev, port, nil
}

// amazonVendor is the PCI vendor of EFA devices, which libibverbs lists too.
const amazonVendor = 0x1d0f

var errEFA = errors.New("EFA devices have no reliable connections: they are of the fabric efa")

// add offers a port of a device, or all its active ports if port is 0.
func (p *Provider) add(dev string, port int) (err error) {
	d, err := p.lib.OpenDevice(dev)
	if err != nil {
		return fmt.Errorf("%s: %w", dev, err)
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	a, err := d.Attr()
	if err != nil {
		return fmt.Errorf("%s: %w", dev, err)
	}
	if a.VendorID == amazonVendor {
		return fmt.Errorf("%s: %w", dev, errEFA)
	}
	if port > a.NumPorts {
		return fmt.Errorf("%s has %d ports", dev, a.NumPorts)
	}
	found := false
	for i := 1; i <= a.NumPorts; i++ {
		if port != 0 && i != port {
			continue
		}
		at, err := d.Port(i)
		if err != nil {
			return fmt.Errorf("%s port %d: %w", dev, i, err)
		}
		if at.State != ibv.PortActive && port == 0 {
			continue
		}
		name := dev
		if a.NumPorts > 1 {
			name = fmt.Sprintf("%s:%d", dev, i)
		}
		if slices.ContainsFunc(p.nics, func(n nic) bool { return n.Name == name }) {
			return fmt.Errorf("%s port %d is named twice", dev, i)
		}
		p.nics = append(p.nics, nic{transport.NIC{Name: name, NUMA: numaOf(dev)}, dev, i})
		found = true
	}
	if !found {
		return fmt.Errorf("%s has no active port", dev)
	}
	return nil
}

// Name is "verbs".
func (p *Provider) Name() string { return "verbs" }

// NICs are the ports: "mlx5_0", or "mlx5_0:1" where a device has several.
func (p *Provider) NICs() []transport.NIC {
	var out []transport.NIC
	for _, n := range p.nics {
		out = append(out, n.NIC)
	}
	return out
}

const (
	defaultMaxSend = 1024
	defaultMaxRecv = 512
	maxQueue       = 1 << 16
)

// Open opens a port; see transport.Provider. MaxCQ bounds the operations in
// flight; the completion queue itself is larger.
func (p *Provider) Open(name string, cfg transport.DomainConfig) (transport.Domain, error) {
	for _, q := range []struct {
		name string
		n    *int
		def  int
	}{{"MaxSend", &cfg.MaxSend, defaultMaxSend}, {"MaxRecv", &cfg.MaxRecv, defaultMaxRecv}, {"MaxCQ", &cfg.MaxCQ, maxQueue}} {
		if *q.n == 0 {
			*q.n = q.def
		}
		if *q.n < 1 || *q.n > maxQueue {
			return nil, fmt.Errorf("verbs: open %s: %s is %d, want 1 to %d", name, q.name, *q.n, maxQueue)
		}
	}
	cfg.MaxSend = min(cfg.MaxSend, cfg.MaxCQ)
	for i := range p.nics {
		if n := &p.nics[i]; n.Name == name {
			d, err := openDomain(p.lib, n, p.cfg, cfg)
			if err != nil {
				return nil, fmt.Errorf("verbs: open %s port %d: %w", n.device, n.port, err)
			}
			return d, nil
		}
	}
	var names []string
	for _, n := range p.nics {
		names = append(names, n.Name)
	}
	return nil, fmt.Errorf("verbs: no NIC %q, there is %s", name, list(names))
}

// Alloc returns ordinary memory; see transport.Provider.
func (p *Provider) Alloc(size uint64) (transport.Memory, error) { return mem.Alloc(size) }

// Free releases what Alloc returned.
func (p *Provider) Free(m transport.Memory) error { return mem.Free(m) }
