package shm

import (
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"moerail/internal/mem"
	"moerail/transport"
)

// domain is one opened NIC: a receiver with a lane per sender, and a sender with
// a lane at each peer.
type domain struct {
	// Immutable after openDomain.
	name    string
	limits  transport.Limits
	id      identity
	addr    transport.Address
	timeout time.Duration
	guard   guard
	bell    transport.Memory // written by all senders
	bells   [laneWords]*atomic.Uint64
	valid   transport.Memory // region table: nonce of each open region, else 0

	// Owned by the owner's thread; by Close once guard and cold say it is out.
	peers     table[peer]
	remotes   table[remote]
	regions   table[region]
	templates table[template]
	done      completions
	parked    parkedImms
	recvs     recvQueue
	pending   [laneWords]uint64 // lanes with more than the last Poll could take
	waiting   [laneWords]uint64 // lanes whose next message waits for a receive
	cursor    int               // the lane that Poll looks at first
	polls     uint64

	// Shared with the goroutines that serve the sockets.
	lanes    [maxLanes]atomic.Pointer[inLane]
	occupied [laneWords]atomic.Uint64
	words    atomic.Int32 // bell words that any lane has used
	wake     atomic.Pointer[func()]
	closed   atomic.Bool
	mu       sync.Mutex             // never taken in the data path; guards:
	byAddr   map[string]*peer       //   peers by address
	exports  [maxRegions]*region    //   regions open to peers
	conns    map[*net.UnixConn]bool //   all sockets; nil once closing

	// cold is held by the owner in calls outside the data path, so that Close
	// waits for them.
	cold     sync.Mutex
	listener *net.UnixListener
	stop     chan struct{} // closed by Close, first of all
	ended    chan struct{} // closed when Close has finished
	wg       sync.WaitGroup
}

var (
	_ transport.Domain       = (*domain)(nil)
	_ transport.MemoryMapper = (*domain)(nil)
	_ transport.Waker        = (*domain)(nil)
)

// openDomains finds the domains of this process by socket token, so that a
// sender can rouse the owner of one.
var openDomains sync.Map

func openDomain(nic string, cfg transport.DomainConfig, timeout time.Duration) (*domain, error) {
	id, err := newIdentity()
	if err != nil {
		return nil, err
	}
	d := &domain{
		name: nic, id: id, addr: id.encode(), timeout: timeout,
		limits: transport.Limits{
			MaxSend: cfg.MaxSend, MaxRecv: cfg.MaxRecv, MaxInline: maxInline,
			MaxMessage: maxMessage, MaxRecvSize: maxRecvSize,
			MaxRegions: maxRegions, ImmBytes: 4,
			Read: true, Atomic: true, SharesMemory: true,
		},
		byAddr: map[string]*peer{}, conns: map[*net.UnixConn]bool{},
		stop: make(chan struct{}), ended: make(chan struct{}),
	}
	d.done.init(cfg.MaxSend)
	d.parked.init(cfg.MaxSend)
	d.recvs.init(cfg.MaxRecv)
	undo := func(err error) (*domain, error) {
		return nil, errors.Join(err, mem.Free(d.bell), mem.Free(d.valid))
	}
	if d.bell, err = mem.AllocShared("moerail-bell", bellBytes); err != nil {
		return undo(err)
	}
	for w := range d.bells {
		d.bells[w] = mem.Word64(d.bell.Host, uint64(w)*8)
	}
	if d.valid, err = mem.AllocPublished("moerail-regions", regionBytes); err != nil {
		return undo(err)
	}
	d.listener, err = net.ListenUnix("unixpacket", &net.UnixAddr{Name: id.socketName(), Net: "unixpacket"})
	if err != nil {
		return undo(err)
	}
	var slot int
	if d.guard, slot, err = guards.acquire(); err != nil {
		d.listener.Close()
		return undo(err)
	}
	// Only when nobody can call this domain any more may another have its guard.
	runtime.AddCleanup(d, guards.release, slot)
	openDomains.Store(id.token, d)
	d.wg.Add(1)
	go d.accept()
	return d, nil
}

func (d *domain) Name() string             { return d.name }
func (d *domain) Limits() transport.Limits { return d.limits }

// Addr is constant over the domain's life.
func (d *domain) Addr() transport.Address { return append(transport.Address(nil), d.addr...) }

func (d *domain) Stats() transport.Stats {
	c := d.guard.stat
	return transport.Stats{
		Messages:      atomic.LoadUint64(&c.messages),
		Bytes:         atomic.LoadUint64(&c.bytes),
		ImmsSent:      atomic.LoadUint64(&c.immsSent),
		ImmsReceived:  atomic.LoadUint64(&c.immsReceived),
		Doorbells:     atomic.LoadUint64(&c.doorbells),
		Again:         atomic.LoadUint64(&c.again),
		StaleWrites:   atomic.LoadUint64(&c.staleWrites),
		ReceiverStall: atomic.LoadUint64(&c.stalled),
		Registrations: atomic.LoadUint64(&c.registrations),
	}
}

// enter begins a call of the data path. While the guard is odd nothing that the
// owner may touch is unmapped, here or at a peer.
func (d *domain) enter() bool {
	// A full barrier: what is looked at from here on, such as the table of open
	// regions, is looked at after everyone can see that we are inside.
	d.guard.now++
	d.guard.seq.Store(d.guard.now)
	if d.closed.Load() {
		d.leave()
		return false
	}
	return true
}

func (d *domain) leave() {
	d.guard.now++
	storeRelease(d.guard.word, d.guard.now)
}

// enterCold begins a call outside the data path; leaveCold ends it.
func (d *domain) enterCold() error {
	d.cold.Lock()
	if d.closed.Load() {
		d.cold.Unlock()
		return transport.ErrClosed
	}
	return nil
}

func (d *domain) leaveCold() { d.cold.Unlock() }

// SetWake implements transport.Waker. Senders in this process call wake; see
// watch for those of other processes.
func (d *domain) SetWake(wake func()) {
	if wake != nil {
		d.wake.Store(&wake)
	}
}

// rouse tells the owner that a Poll would find something.
func (d *domain) rouse() {
	if f := d.wake.Load(); f != nil {
		(*f)()
	}
}

func never() bool { return false }

// Close implements transport.Domain.
func (d *domain) Close() error {
	if !d.closed.CompareAndSwap(false, true) {
		<-d.ended
		return nil
	}
	defer close(d.ended)
	openDomains.Delete(d.id.token)
	close(d.stop)
	err := d.listener.Close()
	d.mu.Lock()
	for c := range d.conns {
		c.Close()
	}
	d.conns = nil
	d.mu.Unlock()
	// A call in the data path ends by itself: none of them waits.
	d.cold.Lock()
	defer d.cold.Unlock()
	for !awaitOutside(d.guard.seq, never, time.Minute) {
	}
	for i := range d.lanes {
		if l := d.lanes[i].Load(); l != nil {
			l.state.Store(laneClosed)
		}
	}
	err = errors.Join(err, d.closeRegions())
	d.wg.Wait()
	d.peers.all(func(_ int32, p *peer) { err = errors.Join(err, p.end()) })
	d.remotes.all(func(_ int32, r *remote) { err = errors.Join(err, r.unmap()) })
	for i := range d.lanes {
		if l := d.lanes[i].Load(); l != nil {
			err = errors.Join(err, l.unmap())
		}
	}
	err = errors.Join(err, mem.Free(d.bell), mem.Free(d.valid))
	if err != nil {
		return fmt.Errorf("shm: close %s: %w", d.name, err)
	}
	return nil
}

// track remembers a socket so that Close ends it; false once closing.
func (d *domain) track(c *net.UnixConn) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.conns == nil {
		return false
	}
	d.conns[c] = true
	return true
}

func (d *domain) untrack(c *net.UnixConn) {
	c.Close()
	d.mu.Lock()
	delete(d.conns, c)
	d.mu.Unlock()
}
