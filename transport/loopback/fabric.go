// Package loopback is an in-process fabric: many ranks of one process, each
// with any number of NICs, joined by copies. It is pure Go and always built.
//
//	Fabric ── Process (one rank: a Provider) ── Domain (one NIC)
//	   │
//	   └── air: operations under way, only when Config.Faults is set
//
// Without faults a write is one copy, made by the poster straight into the
// target's memory; then its immediate goes to the target's inbox and a
// completion to the poster's own queue. There is no lock, no allocation and no
// thread behind it.
//
// With faults everything posted is taken apart into packets that fly for a
// while and land in any order, moved by whoever calls Poll, on a clock that
// may be virtual.
//
// Revocation is safe without a lock on the path of a write: every call that may
// touch a region's memory is made between enter and leave of a domain, and
// closing a region first marks it, then waits until no call that began before
// the mark is still inside.
package loopback

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"moerail/internal/mem"
	"moerail/transport"
)

// Fabric joins the domains opened on it. It is itself a Provider, for a caller
// that needs no more than one process. All its methods are safe for concurrent
// use.
type Fabric struct {
	cfg  Config // immutable after New, defaults filled in
	id   uint64
	home *Process // what the Fabric's own Provider methods use
	air  *air     // nil without faults

	wakers  atomic.Bool               // some domain has a wake function
	domains atomic.Pointer[[]*Domain] // all open ones; replaced, never changed

	mu          sync.Mutex // guards what follows; never held across a wait
	procs       []*Process
	bySlot      map[uint32]*Domain
	freeSlots   []uint32
	generations uint32
	regions     map[uint64]*region
	numRegions  uint64 // ever made

	maps mappings // guarded by mu

	faultMu sync.Mutex // one OnFault at a time
}

var _ transport.Provider = (*Fabric)(nil)

// numFabrics tells the fabrics of a process apart; they never meet another's.
var numFabrics atomic.Uint64

// New makes a fabric, or fails with ErrConfig naming every field at fault.
func New(cfg Config) (*Fabric, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	f := &Fabric{
		cfg:     cfg,
		id:      numFabrics.Add(1)<<32 | uint64(rand.Uint32()),
		bySlot:  make(map[uint32]*Domain),
		regions: make(map[uint64]*region),
		maps:    mappings{users: make(map[uint64]int), freed: make(map[uint64]transport.Memory)},
	}
	f.domains.Store(new([]*Domain))
	f.home = f.Process("", "")
	if cfg.Faults != nil {
		f.air = newAir(f, *cfg.Faults)
	}
	return f, nil
}

// Name is "loopback".
func (f *Fabric) Name() string { return "loopback" }

// NICs lists Config.NICs.
func (f *Fabric) NICs() []transport.NIC {
	nics := make([]transport.NIC, len(f.cfg.NICs))
	for i, n := range f.cfg.NICs {
		nics[i] = transport.NIC{Name: n, NUMA: -1}
	}
	return nics
}

// Open makes a NIC named nic, owned by no particular process.
func (f *Fabric) Open(nic string, cfg transport.DomainConfig) (transport.Domain, error) {
	return f.home.Open(nic, cfg)
}

// Alloc returns memory off the Go heap.
func (f *Fabric) Alloc(size uint64) (transport.Memory, error) { return mem.Alloc(size) }

// add gives d its place and makes it reachable.
func (f *Fabric) add(d *Domain) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.generations++
	slot := uint32(len(f.bySlot))
	if n := len(f.freeSlots); n > 0 {
		slot, f.freeSlots = f.freeSlots[n-1], f.freeSlots[:n-1]
	}
	d.at = location{f.id, slot, f.generations}
	d.label = fmt.Sprintf("%s%s#%d", d.proc.prefix(), d.nic, d.at.generation)
	d.errClosed = fmt.Errorf("loopback: %s: %w", d.label, transport.ErrClosed)
	f.bySlot[slot] = d
	all := append([]*Domain{d}, *f.domains.Load()...)
	f.domains.Store(&all)
}

// remove forgets d, whose Close has waited for everybody inside.
func (f *Fabric) remove(d *Domain) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.bySlot, d.at.slot)
	f.freeSlots = append(f.freeSlots, d.at.slot)
	for id, r := range f.regions {
		if r.dom == d {
			delete(f.regions, id)
		}
	}
	var rest []*Domain
	for _, o := range *f.domains.Load() {
		if o != d {
			rest = append(rest, o)
		}
	}
	f.domains.Store(&rest)
}

// find returns the domain at l, or why there is none.
func (f *Fabric) find(l location) (*Domain, error) {
	if l.fabric != f.id {
		return nil, fmt.Errorf("%w: it belongs to another fabric", transport.ErrBadAddress)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	d := f.bySlot[l.slot]
	if d == nil || d.at != l || d.closed.Load() {
		if l.generation > f.generations {
			return nil, fmt.Errorf("%w: generation %d was never given", transport.ErrBadAddress, l.generation)
		}
		return nil, fmt.Errorf("%w: generation %d is gone", transport.ErrPeerLost, l.generation)
	}
	return d, nil
}

// addRegion makes r importable; revokeRegion ends that.
func (f *Fabric) addRegion(r *region) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.numRegions++
	r.id = f.numRegions
	f.regions[r.id] = r
}

func (f *Fabric) revokeRegion(r *region) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.regions, r.id)
}

// regionOf returns d's region id, or nil if it is not (or no longer) there.
func (f *Fabric) regionOf(d *Domain, id uint64) *region {
	f.mu.Lock()
	defer f.mu.Unlock()
	if r := f.regions[id]; r != nil && r.dom == d {
		return r
	}
	return nil
}

// quiesce waits until every call that is inside a domain now has left. A mark
// set before quiesce is then seen by everybody who can still touch memory.
func (f *Fabric) quiesce() {
	for _, d := range *f.domains.Load() {
		d.awaitLeave()
	}
}

func (f *Fabric) report(ft Fault) {
	if f.cfg.OnFault == nil {
		return
	}
	f.faultMu.Lock()
	defer f.faultMu.Unlock()
	f.cfg.OnFault(ft)
}
