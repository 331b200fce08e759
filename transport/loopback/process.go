package loopback

import (
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"moerail/transport"
)

// Process is one rank as the fabric sees it: the Provider that the rank opens
// its NICs from, and the handle by which a test makes that rank fail. All its
// methods are safe for concurrent use.
type Process struct {
	*Fabric
	name, host string
	group      atomic.Int64 // processes of different groups do not reach each other
	paused     atomic.Int64 // until then, fabric time in nanoseconds
	killed     atomic.Bool

	procMu sync.Mutex // guards what follows
	doms   []*Domain
	downs  map[string]bool // NICs without link
	failIn int             // device registrations until the one that fails; 0 is none
	errno  syscall.Errno
}

var _ transport.Provider = (*Process)(nil)

// Process adds a process. Memory is mapped (MapRemote) between processes of the
// same host only. Names need not be unique; they appear in errors and faults.
func (f *Fabric) Process(name, host string) *Process {
	p := &Process{Fabric: f, name: name, host: host, downs: make(map[string]bool)}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.procs = append(f.procs, p)
	return p
}

func (p *Process) prefix() string {
	if p.name == "" {
		return ""
	}
	return p.name + "/"
}

// Open makes a NIC of this process, named nic.
func (p *Process) Open(nic string, cfg transport.DomainConfig) (transport.Domain, error) {
	if err := checkName(nic); err != nil {
		return nil, fmt.Errorf("loopback: open NIC: %w", err)
	}
	if p.killed.Load() {
		return nil, fmt.Errorf("loopback: open NIC %s of %s: %w", nic, p.name, transport.ErrClosed)
	}
	d, err := newDomain(p, nic, cfg)
	if err != nil {
		return nil, err
	}
	p.add(d)
	p.procMu.Lock()
	d.down.Store(p.downs[nic])
	p.doms = append(p.doms, d)
	p.procMu.Unlock()
	if p.killed.Load() { // killed meanwhile, which may have missed d
		d.Close()
	}
	return d, nil
}

func (p *Process) forget(d *Domain) {
	p.procMu.Lock()
	defer p.procMu.Unlock()
	for i, o := range p.doms {
		if o == d {
			p.doms = append(p.doms[:i:i], p.doms[i+1:]...)
			return
		}
	}
}

func (p *Process) open() []*Domain {
	p.procMu.Lock()
	defer p.procMu.Unlock()
	return append([]*Domain(nil), p.doms...)
}

// Kill ends the process as a crash would: its NICs are gone at once, what they
// had in flight is dropped, and peers' operations end as StatusPeerLost.
func (p *Process) Kill() {
	p.killed.Store(true)
	for _, d := range p.open() {
		d.Close()
	}
}

// Pause stops the process's NICs for d of fabric time: nothing leaves them and
// nothing lands. It has an effect only with Config.Faults.
func (p *Process) Pause(d time.Duration) {
	p.paused.Store(int64(p.cfg.Clock.Now() + d))
}

// SetLink takes the NICs of that name down or up again, also those opened
// later. While down, operations from and to them end as StatusPeerLost.
func (p *Process) SetLink(nic string, up bool) {
	p.procMu.Lock()
	defer p.procMu.Unlock()
	p.downs[nic] = !up
	for _, d := range p.doms {
		if d.nic == nic {
			d.down.Store(!up)
		}
	}
}

// FailRegistration makes the process's nth device registration from now fail
// with errno; 1 is the next. A region larger than MaxRegion takes several. 0
// takes the order back.
func (p *Process) FailRegistration(nth int, errno syscall.Errno) {
	p.procMu.Lock()
	defer p.procMu.Unlock()
	p.failIn, p.errno = nth, errno
}

// registers counts one device registration and tells whether it must fail.
func (p *Process) registers() error {
	p.procMu.Lock()
	defer p.procMu.Unlock()
	if p.failIn > 0 {
		if p.failIn--; p.failIn == 0 {
			return p.errno
		}
	}
	return nil
}

// Partition cuts the fabric: processes of different groups lose each other,
// their operations end as StatusPeerLost. A process in no group stays with the
// first one; Partition without groups heals.
func (f *Fabric) Partition(groups ...[]*Process) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.procs {
		p.group.Store(0)
	}
	for i, g := range groups {
		for _, p := range g {
			p.group.Store(int64(i))
		}
	}
}
