package loopback

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"moerail/transport"
	"moerail/transport/internal/handle"
)

// ErrConcurrent reports that two goroutines were inside Post, PostScatter,
// PostRecv or Poll of one domain at once, which the contract forbids.
var ErrConcurrent = errors.New("loopback: domain entered by two goroutines at once")

// Domain is one NIC of one process. Fields are grouped by who writes them.
type Domain struct {
	fab       *Fabric  // immutable, as are the next six
	proc      *Process //
	nic       string
	at        location
	label     string
	errClosed error // made in advance
	lim       transport.Limits
	wake      atomic.Pointer[func()]

	// written by whoever ends or cuts the domain, read by everybody
	closed atomic.Bool
	down   atomic.Bool // link

	_      pad
	epoch  atomic.Uint64 // odd while the owner is inside; written by the owner
	owner  ownerState
	counts counters

	arrivals *inbox[arrival] // immediates
	// done takes the ends of own operations that others tell. Nobody reserves
	// room in it: it has as much as there may be operations in flight.
	done   *inbox[transport.Completion]
	mail   *inbox[message] // sends that wait for a receive
	inline []byte          // payloads of inline sends, MaxInline for each slot of mail

	ctl    sync.Mutex // guards dead and mapped
	dead   []transport.LKey
	mapped map[transport.Remote]uint64 // addresses of peers' memory in use here
}

// ownerState is touched by the owner's thread alone.
type ownerState struct {
	peers     handle.Table[*peer]
	peerAt    map[location]transport.Peer
	remotes   handle.Table[*remote]
	templates handle.Table[*template]
	regions   handle.Table[*region]
	numPieces int

	inFlight int                         // operations posted whose completion was not polled
	own      fifo[transport.Completion]  // ends of operations that ended within Post
	recvs    fifo[transport.RecvRequest] // posted receives
	arrFirst bool                        // which kind Poll looks at first
	tally    tally                       // of the call under way
}

// tally is what one call adds to the counters.
type tally struct {
	messages, bytes, imms uint64
}

type counters struct {
	messages, bytes, immsSent, immsReceived atomic.Uint64 // written by the owner
	doorbells, again, registrations         atomic.Uint64 // written by the owner
	stale, stall                            atomic.Uint64 // written by anybody
}

// arrival is an immediate on its way to Poll.
type arrival struct {
	imm   transport.Imm
	bytes uint64
}

var (
	_ transport.Domain       = (*Domain)(nil)
	_ transport.MemoryMapper = (*Domain)(nil)
	_ transport.Waker        = (*Domain)(nil)
)

func newDomain(p *Process, nic string, cfg transport.DomainConfig) (*Domain, error) {
	c := p.Fabric.cfg
	pick := func(name string, asked, def int) (int, error) {
		if asked == 0 {
			return def, nil
		}
		if asked < 1 || asked > maxDepth {
			return 0, fmt.Errorf("loopback: open NIC %s: %s is %d, want 1 to %d", nic, name, asked, maxDepth)
		}
		return asked, nil
	}
	send, err1 := pick("MaxSend", cfg.MaxSend, c.MaxSend)
	recv, err2 := pick("MaxRecv", cfg.MaxRecv, c.MaxRecv)
	cq, err3 := pick("MaxCQ", cfg.MaxCQ, c.MaxCQ)
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	imms := cq
	if c.Faults != nil && c.Faults.ImmReceives > 0 {
		imms = min(imms, c.Faults.ImmReceives)
	}
	d := &Domain{fab: p.Fabric, proc: p, nic: nic}
	d.lim = transport.Limits{
		MaxSend: send, MaxRecv: recv, MaxInline: c.MaxInline,
		MaxMessage: c.MaxMessage, MaxRecvSize: c.MaxRecvSize,
		MaxRegion: c.MaxRegion, MaxRegions: c.MaxRegions,
		ImmBytes: 4, Read: !c.NoRead, Atomic: !c.NoAtomic, SharesMemory: true,
		LinkBytesPerSecond: c.LinkBytesPerSecond,
	}
	if c.NoImm {
		d.lim.ImmBytes = 0
	}
	seed := numDomains.Add(1)
	d.owner = ownerState{
		peers:     handle.New[*peer](seed),
		peerAt:    make(map[location]transport.Peer),
		remotes:   handle.New[*remote](seed),
		templates: handle.New[*template](seed),
		regions:   handle.New[*region](seed),
		own:       newFIFO[transport.Completion](send),
		recvs:     newFIFO[transport.RecvRequest](recv),
	}
	d.arrivals = newInbox[arrival](imms)
	d.done = newInbox[transport.Completion](send)
	d.mail = newInbox[message](recv)
	d.inline = make([]byte, len(d.mail.slots)*c.MaxInline)
	return d, nil
}

// numDomains tells the handles of different domains apart.
var numDomains atomic.Uint64

// enter begins a call of the owner that may touch regions; see Fabric.quiesce.
func (d *Domain) enter() error {
	e := d.epoch.Load()
	if e&1 != 0 || !d.epoch.CompareAndSwap(e, e+1) {
		return ErrConcurrent
	}
	if d.closed.Load() {
		d.leave()
		return d.errClosed
	}
	return nil
}

func (d *Domain) leave() { d.epoch.Store(d.epoch.Load() + 1) }

// awaitLeave waits for the call that is inside now, if any. Calls inside never
// block, so the wait is that of one copy.
func (d *Domain) awaitLeave() {
	for e := d.epoch.Load(); e&1 != 0 && d.epoch.Load() == e; {
		runtime.Gosched()
	}
}

// Name is the NIC's name.
func (d *Domain) Name() string { return d.nic }

// Addr is the domain's address on its fabric.
func (d *Domain) Addr() transport.Address { return d.at.address() }

// Limits are the configured ones.
func (d *Domain) Limits() transport.Limits { return d.lim }

// String names process, NIC and generation.
func (d *Domain) String() string { return d.label }

// SetWake stores what to call when something arrives.
func (d *Domain) SetWake(wake func()) {
	if wake == nil {
		d.wake.Store(nil)
		return
	}
	d.wake.Store(&wake)
	d.fab.wakers.Store(true)
}

func (d *Domain) rouse() {
	if w := d.wake.Load(); w != nil {
		(*w)()
	}
}

// reaches tells whether the way from d to t is up.
func (d *Domain) reaches(t *Domain) bool {
	return !t.closed.Load() && !d.down.Load() && !t.down.Load() &&
		d.proc.group.Load() == t.proc.group.Load()
}

// Stats is a snapshot; the counters of a call under way may be missing.
// Messages and Bytes count at the NIC that started the operation, and only
// operations that were carried out in full.
func (d *Domain) Stats() transport.Stats {
	c := &d.counts
	return transport.Stats{
		Messages: c.messages.Load(), Bytes: c.bytes.Load(),
		ImmsSent: c.immsSent.Load(), ImmsReceived: c.immsReceived.Load(),
		Doorbells: c.doorbells.Load(), Again: c.again.Load(),
		StaleWrites: c.stale.Load(), ReceiverStall: c.stall.Load(),
		Registrations: c.registrations.Load(),
	}
}

// Close makes the domain and its keys unknown to the fabric. Peers' operations
// end as StatusPeerLost from then on. When it returns, nobody touches the
// memory of its regions any more. It must not be called from a wake function
// or OnFault.
func (d *Domain) Close() error {
	if d.closed.Swap(true) {
		d.fab.quiesce()
		return nil
	}
	d.fab.quiesce()
	// Nobody is inside any more who saw d open, so the mailbox is ours.
	for m := d.mail.peek(); m != nil; m = d.mail.peek() {
		m.end(transport.StatusPeerLost, 0)
		d.mail.pop()
	}
	d.fab.remove(d)
	d.proc.forget(d)
	return d.unmapAll()
}
