//go:build verbs && cgo && linux

package verbs

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"moerail/internal/ibv"
	"moerail/internal/mem"
	"moerail/transport"
	"moerail/transport/internal/handle"
)

// domain is one opened port. All of it is owned by the owner's thread, except
// what is immutable, the gate and the counters.
type domain struct {
	// Immutable after openDomain.
	name    string // as in Provider.NICs
	device  string
	port    int
	cfg     Config
	limits  transport.Limits
	id      identity
	addr    transport.Address
	gid     ibv.GIDEntry
	attr    ibv.DeviceAttr
	inline  int
	maxMsg  uint64 // bytes of one work request
	soft    bool   // Soft-RoCE, which has ways of its own
	relaxed bool   // regions are registered with relaxed ordering

	lib   *ibv.Lib
	dev   *ibv.Device
	pd    *ibv.PD
	cq    *ibv.CQ
	imms  *ibv.SRQ
	msgs  *ibv.SRQ
	queue *ibv.Queue
	mail  mailbox

	peers     handle.Table[*link]
	remotes   handle.Table[*remote]
	regions   handle.Table[*region]
	templates handle.Table[*template]

	links   map[[addressBytes]byte]*link // all that are not given up, passive ones too
	byQP    map[uint32]*rcQP
	dying   []*rcQP // in error, until nothing of them is left
	given   []*link // given up, until nothing of them is left
	dirty   []*link // with requests to hand to the device
	ops     ops
	recvs   recvs
	immsOut int // receives for immediates that are posted
	sendsIn int // send requests on all queue pairs
	maxIn   int // the most that the completion queue has room for
	epoch   uint32
	access  ibv.Access // of queue pairs

	polls     uint64
	unsettled int       // links whose handshake is under way
	nextTick  time.Time // when to look at the links next
	looked    time.Time // when events were last looked for
	down      error     // why the port can not be used now
	fatal     error     // why it never will again

	stats counters
	gate  atomic.Int32
	ended chan struct{} // closed when Close has finished
}

var _ transport.Domain = (*domain)(nil)

// counters are written by the owner and read by anybody.
type counters struct {
	messages, bytes, immsSent, immsReceived, doorbells, again, stale, stalls, registrations atomic.Uint64
	crossings                                                                               atomic.Uint64
}

const (
	gateIdle = iota
	gateInside
	gateClosed
)

// enter keeps Close, and a region's Close on another goroutine, from a call of
// the owner's. It costs one atomic operation and waits for nobody but these.
func (d *domain) enter() bool {
	for !d.gate.CompareAndSwap(gateIdle, gateInside) {
		if d.gate.Load() == gateClosed {
			return false
		}
		runtime.Gosched()
	}
	return true
}

func (d *domain) leave() { d.gate.Store(gateIdle) }

func (d *domain) Name() string             { return d.name }
func (d *domain) Limits() transport.Limits { return d.limits }

// Addr is constant over the domain's life.
func (d *domain) Addr() transport.Address { return append(transport.Address(nil), d.addr...) }

func (d *domain) Stats() transport.Stats {
	c := &d.stats
	return transport.Stats{
		Messages: c.messages.Load(), Bytes: c.bytes.Load(), ImmsSent: c.immsSent.Load(), ImmsReceived: c.immsReceived.Load(),
		Doorbells: c.doorbells.Load(), Again: c.again.Load(), StaleWrites: c.stale.Load(), ReceiverStall: c.stalls.Load(),
		Registrations: c.registrations.Load(),
	}
}

// where names the port in error texts.
func (d *domain) where() string { return fmt.Sprintf("%s port %d", d.device, d.port) }

// fail ends the use of the domain: Poll and Post say err from now on.
func (d *domain) fail(err error) {
	if d.fatal == nil {
		d.fatal = fmt.Errorf("verbs: %s: %w", d.where(), err)
	}
}

// farewell bounds how long Close spends on telling peers.
const farewell = 50 * time.Millisecond

// Close implements transport.Domain. Peers that can be reached are told, so that
// they need not find out by retrying.
func (d *domain) Close() error {
	for !d.gate.CompareAndSwap(gateIdle, gateInside) {
		if d.gate.Load() == gateClosed {
			<-d.ended
			return nil
		}
		runtime.Gosched()
	}
	d.gate.Store(gateClosed)
	defer close(d.ended)
	d.sayBye()
	return d.release()
}

// release gives back everything that openDomain and later calls took, in
// reverse order.
func (d *domain) release() error {
	var errs []error
	try := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	for _, q := range d.byQP {
		try(q.qp.Close())
	}
	clear(d.byQP)
	for _, l := range d.links {
		try(l.ah.Close())
	}
	for _, l := range d.given {
		try(l.ah.Close())
	}
	clear(d.links)
	try(d.mail.qp.Close())
	d.queue.Close()
	try(d.msgs.Close())
	try(d.imms.Close())
	try(d.cq.Close())
	d.regions.Each(func(_ int32, x **region) { try((*x).deregister()) })
	try(d.mail.mr.Close())
	try(d.ops.mr.Close())
	try(d.pd.Close())
	try(d.dev.Close())
	try(mem.Free(d.mail.memory))
	try(mem.Free(d.ops.inlined))
	if len(errs) > 0 {
		return fmt.Errorf("verbs: close %s: %w", d.where(), errors.Join(errs...))
	}
	return nil
}
