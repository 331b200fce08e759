//go:build libfabric && cgo

package efa

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"moerail/internal/fabric"
	"moerail/internal/mem"
	"moerail/transport"
)

// Built tells whether libfabric support was compiled in.
const Built = true

const maxNICs = 64

// Provider opens domains of one libfabric provider.
type Provider struct {
	cfg  Config
	lib  *fabric.Library
	name string
	nics []nic
}

type nic struct {
	transport.NIC
	offer *offer
}

var _ transport.Provider = (*Provider)(nil)

// New opens the library and finds the provider's devices. It does one operation
// of each kind over the first of them, to see what works.
func New(cfg Config) (*Provider, error) {
	switch {
	case cfg.NumNICs < 0 || cfg.NumNICs > maxNICs:
		return nil, fmt.Errorf("efa: NumNICs is %d, want 0 to %d", cfg.NumNICs, maxNICs)
	case cfg.ConnectTimeout < 0:
		return nil, fmt.Errorf("efa: ConnectTimeout is %v, want 0 or more", cfg.ConnectTimeout)
	case cfg.MaxRegion%4096 != 0 || cfg.MaxRegion > noPiece:
		return nil, fmt.Errorf("efa: MaxRegion is %d, want a multiple of 4096", cfg.MaxRegion)
	}
	if cfg.ConnectTimeout == 0 {
		cfg.ConnectTimeout = defaultConnectTimeout
	}
	if cfg.MaxRegion == 0 {
		cfg.MaxRegion = noPiece
	}
	lib, err := openLibrary(cfg.Library)
	if err != nil {
		return nil, err
	}
	var found []*offer
	var errs []error
	for _, name := range wanted(cfg.Provider) {
		if found, err = offers(lib, name, cfg.DeviceMemory); err == nil && len(found) > 0 {
			break
		}
		errs = append(errs, fmt.Errorf("%s: %w", name, err))
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%w: %w; %s %s has %s", ErrNoProvider, errors.Join(errs...), lib.Path(), lib.Version(), listed(lib, cfg.DeviceMemory))
	}
	if found, err = choose(found, &cfg); err != nil {
		return nil, err
	}
	p := &Provider{cfg: cfg, lib: lib, name: found[0].info.Provider}
	if err := found[0].try(lib); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrNoProvider, p.name, err)
	}
	for _, o := range found[1:] {
		o.features, o.missing = found[0].features, found[0].missing
	}
	n := cfg.NumNICs
	if n == 0 {
		n = len(found)
	}
	for i := range n {
		o := found[i%len(found)]
		name := o.info.Domain
		if n > len(found) {
			name = fmt.Sprintf("%s/%d", name, i/len(found))
		}
		p.nics = append(p.nics, nic{transport.NIC{Name: name, NUMA: numaOf(o.info)}, o})
	}
	return p, nil
}

// choose holds the offers to what was asked for.
func choose(found []*offer, cfg *Config) ([]*offer, error) {
	provider := found[0].info.Provider
	var names []string
	for _, o := range found {
		names = append(names, o.info.Domain)
	}
	if cfg.Interface != "" {
		found = slices.DeleteFunc(found, func(o *offer) bool { return o.info.Domain != cfg.Interface })
		if len(found) == 0 {
			return nil, fmt.Errorf("%w: %s has no device %q, there is %s", ErrNoProvider, provider, cfg.Interface, strings.Join(names, ", "))
		}
	}
	if isSoftware(provider) {
		if cfg.NumNICs == 0 {
			found = found[:1]
		}
		return found[:min(len(found), max(cfg.NumNICs, 1))], nil
	}
	if cfg.NumNICs > len(found) {
		return nil, fmt.Errorf("%w: %d NICs asked for, %s has %d (%s)", ErrNoProvider, cfg.NumNICs, provider, len(found), strings.Join(names, ", "))
	}
	if cfg.NumNICs > 0 {
		found = found[:cfg.NumNICs]
	}
	return found, nil
}

// settings are what libfabric reads from the environment when it is loaded, for
// want of another way. What the user has set stays.
var settings = []struct{ name, value string }{
	// Writes and reads by the device, not emulated with copies: 1.17 leaves it off
	// on some instances (fi_efa(7), FI_EFA_USE_DEVICE_RDMA).
	{"FI_EFA_USE_DEVICE_RDMA", "1"},
	// As the endpoint option where that exists (1.21): ranks of one host do not go
	// through EFA's own shared memory.
	{"FI_EFA_ENABLE_SHM_TRANSFER", "0"},
	// ofi_rxm looks at its connections this often, in microseconds. Its default of
	// 10000 makes each step of a connection's set-up take that long (fi_rxm(7)).
	{"FI_OFI_RXM_CM_PROGRESS_INTERVAL", "500"},
	// Debian's libfabric brings in libinfinipath, which on being loaded takes over
	// SIGINT, SIGTERM, SIGSEGV and others for the whole process, to write a backtrace
	// into a file and exit; unless it finds this.
	{"IPATH_NO_BACKTRACE", "1"},
}

func openLibrary(path string) (*fabric.Library, error) {
	for _, s := range settings {
		if _, ok := os.LookupEnv(s.name); !ok {
			if err := os.Setenv(s.name, s.value); err != nil {
				return nil, fmt.Errorf("efa: %w", err)
			}
		}
	}
	lib, err := fabric.Open(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoLibrary, err)
	}
	return lib, nil
}

// listed names what the library has, for error texts.
func listed(lib *fabric.Library, device bool) string {
	names, err := providers(lib)
	if err != nil {
		return "no provider with reliable datagrams and remote memory access (" + err.Error() + ")"
	}
	out := strings.Join(names, ", ")
	if device {
		out += " (not all of them for memory of GPUs)"
	}
	return out
}

// Name is "libfabric:" and the provider as libfabric calls it.
func (p *Provider) Name() string { return "libfabric:" + p.name }

// Library is the path and version of the library.
func (p *Provider) Library() (path, version string) { return p.lib.Path(), p.lib.Version() }

// Features is what the domains can do.
func (p *Provider) Features() Features { return p.nics[0].offer.features }

// Missing lists what they can not, each with the consequence.
func (p *Provider) Missing() []string { return slices.Clone(p.nics[0].offer.missing) }

// NICs are the devices, by libfabric's names; a device that is opened several
// times has a number behind its name.
func (p *Provider) NICs() []transport.NIC {
	var out []transport.NIC
	for _, n := range p.nics {
		out = append(out, n.NIC)
	}
	return out
}

// Open opens a domain; see transport.Provider.
func (p *Provider) Open(name string, cfg transport.DomainConfig) (transport.Domain, error) {
	for _, q := range []struct {
		name string
		n    int
	}{{"MaxSend", cfg.MaxSend}, {"MaxRecv", cfg.MaxRecv}, {"MaxCQ", cfg.MaxCQ}} {
		if q.n < 0 || q.n > maxQueue {
			return nil, fmt.Errorf("efa: open %s: %s is %d, want 0 to %d", name, q.name, q.n, maxQueue)
		}
	}
	var names []string
	for _, n := range p.nics {
		if n.Name != name {
			names = append(names, n.Name)
			continue
		}
		d, err := openDomain(p.lib, n.offer, name, cfg, p.cfg.ConnectTimeout, p.cfg.MaxRegion)
		if err != nil {
			return nil, fmt.Errorf("efa: open %s of %s: %w", name, p.name, err)
		}
		return d, nil
	}
	return nil, fmt.Errorf("efa: no NIC %q, there is %s", name, strings.Join(names, ", "))
}

// Alloc returns host memory; see transport.Provider.
func (p *Provider) Alloc(size uint64) (transport.Memory, error) { return mem.Alloc(size) }

// Free releases what Alloc returned.
func (p *Provider) Free(m transport.Memory) error { return mem.Free(m) }

// numaOf finds the node of a device in sysfs.
func numaOf(i *fabric.Info) int {
	for _, path := range []string{
		filepath.Join("/sys/bus/pci/devices", i.PCI, "numa_node"),
		filepath.Join("/sys/class/net", filepath.Base(i.Domain), "device/numa_node"),
	} {
		if b, err := os.ReadFile(path); err == nil {
			if n, err := strconv.Atoi(strings.TrimSpace(string(b))); err == nil && n >= 0 {
				return n
			}
		}
	}
	return -1
}
