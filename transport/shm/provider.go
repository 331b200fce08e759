package shm

import (
	"fmt"
	"strings"
	"time"

	"moerail/internal/mem"
	"moerail/transport"
)

// Config describes the NICs to pretend. The zero value is one NIC.
type Config struct {
	// NumNICs is how many NICs to show, 1 to 16; 0 means 1. All are the same
	// memory; more than one only serves to run what is built for several.
	NumNICs int
	// PeerTimeout bounds each exchange with a peer's process (AddPeer, Import), and
	// how long closing a region waits for a sender in the middle of a write.
	// 0 means 5 s.
	PeerTimeout time.Duration
}

const (
	maxNICs            = 16
	defaultPeerTimeout = 5 * time.Second
	defaultMaxSend     = 1024
	defaultMaxRecv     = 1024
	maxQueue           = 1 << 20
	maxInline          = 256
)

// Provider opens shared-memory domains. It holds nothing; any number may exist.
type Provider struct {
	cfg  Config
	nics []transport.NIC
}

var _ transport.Provider = (*Provider)(nil)

// New makes a provider.
func New(cfg Config) (*Provider, error) {
	if cfg.NumNICs < 0 || cfg.NumNICs > maxNICs {
		return nil, fmt.Errorf("shm: NumNICs is %d, want 0 to %d", cfg.NumNICs, maxNICs)
	}
	if cfg.PeerTimeout < 0 {
		return nil, fmt.Errorf("shm: PeerTimeout is %v, want 0 or more", cfg.PeerTimeout)
	}
	if cfg.NumNICs == 0 {
		cfg.NumNICs = 1
	}
	if cfg.PeerTimeout == 0 {
		cfg.PeerTimeout = defaultPeerTimeout
	}
	p := &Provider{cfg: cfg}
	for i := range cfg.NumNICs {
		p.nics = append(p.nics, transport.NIC{Name: fmt.Sprintf("shm%d", i), NUMA: -1})
	}
	return p, nil
}

// Name is "shm".
func (p *Provider) Name() string { return "shm" }

// NICs are shm0, shm1, ...
func (p *Provider) NICs() []transport.NIC { return append([]transport.NIC(nil), p.nics...) }

// Open opens a domain; see transport.Provider. The domain implements
// transport.MemoryMapper and transport.Waker.
func (p *Provider) Open(nic string, cfg transport.DomainConfig) (transport.Domain, error) {
	known := false
	var names []string
	for _, n := range p.nics {
		known = known || n.Name == nic
		names = append(names, n.Name)
	}
	if !known {
		return nil, fmt.Errorf("shm: no NIC %q, there is %s", nic, strings.Join(names, ", "))
	}
	for _, q := range []struct {
		name    string
		n       *int
		unset   int
		minimum int
	}{{"MaxSend", &cfg.MaxSend, defaultMaxSend, 1}, {"MaxRecv", &cfg.MaxRecv, defaultMaxRecv, 1}, {"MaxCQ", &cfg.MaxCQ, maxQueue, 1}} {
		if *q.n == 0 {
			*q.n = q.unset
		}
		if *q.n < q.minimum || *q.n > maxQueue {
			return nil, fmt.Errorf("shm: open %s: %s is %d, want %d to %d", nic, q.name, *q.n, q.minimum, maxQueue)
		}
	}
	// Arrivals wait in the lanes; only completions of posts need queue room here.
	cfg.MaxSend = min(cfg.MaxSend, cfg.MaxCQ)
	d, err := openDomain(nic, cfg, p.cfg.PeerTimeout)
	if err != nil {
		return nil, fmt.Errorf("shm: open %s: %w", nic, err)
	}
	return d, nil
}

// Alloc returns memory that peers can map; see transport.Provider.
func (p *Provider) Alloc(size uint64) (transport.Memory, error) {
	return mem.AllocShared("moerail-memory", size)
}

// Free releases what Alloc returned.
func (p *Provider) Free(m transport.Memory) error { return mem.Free(m) }
