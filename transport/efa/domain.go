//go:build libfabric && cgo

package efa

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"moerail/internal/fabric"
	"moerail/internal/mem"
	"moerail/transport"
	"moerail/transport/internal/handle"
)

const (
	maxPeers       = 1 << 15
	maxRegions     = 1 << 14
	maxQueue       = 1 << 16
	maxWindow      = 4096 // operations in flight, where the provider allows more
	defaultMaxRecv = 1024
	defaultCQ      = 8192
	spareSlots     = 1024 // for operations of lost peers that never come back
	homeBytes      = 4096
	maxLanding     = 64 << 20 // bytes of registered memory for messages, where registering pins it
	emptyRecvs     = 64       // kept posted where immediates need posted receives
)

// domain is one opened endpoint. Fields without a note are its owner's.
type domain struct {
	// Immutable after openDomain.
	name    string
	limits  transport.Limits
	info    *fabric.Info
	id      identity
	addr    transport.Address
	timeout time.Duration
	piece   uint64 // bytes under one key at most
	// copiesSmall: writes up to smallBytes need their memory no more once taken.
	copiesSmall bool
	txSlots     int

	f         *fabric.Domain
	waitFD    int
	peers     handle.Table[*peer]
	regions   handle.Table[*region]
	remotes   handle.Table[*remote]
	templates handle.Table[*template]
	byAddr    map[string]transport.Peer
	byLife    map[uint32]transport.Peer
	numbers   []uint32 // free peer numbers below nextPeer
	nextPeer  uint32
	home      *region   // takes empty writes
	landing   *region   // takes messages
	stages    []*region // free ones of allStages
	allStages []*region

	flights  []flight // by slot
	free     []uint32 // slots for operations
	freeRecv []uint32
	tail     uint32 // of the ring of operations
	recvTail uint32
	shown    uint32 // tail at the last crossing
	inFlight int    // operations whose end the owner has not seen
	posted   int    // receives whose end the owner has not seen
	orphans  int    // slots that the provider keeps after their end
	stash    stash

	// Where endpoints of one process share mappings (siblings.go).
	siblings bool
	closings uint64 // of all domains, as this one has seen

	stat   counters
	busy   atomic.Bool // the owner is inside a call
	closed atomic.Bool
	cold   sync.Mutex // held in calls outside the data path, so that Close waits
	ended  chan struct{}
}

var (
	_ transport.Domain = (*domain)(nil)

	numDomains atomic.Uint64
)

// flight is what a slot's operation is to its owner.
type flight struct {
	id     transport.WRID
	bytes  uint64
	peer   transport.Peer
	op     transport.Opcode
	used   bool
	local  *region   // the memory it uses, nil for none
	tmpl   *template // whose targets it uses
	split  *split    // which it is a part of
	result []byte    // where an atomic's old value, or a message, goes
	stage  *region   // holds the message instead of local
}

type counters struct {
	messages, bytes, immsSent, immsReceived, doorbells, again, stale, registrations atomic.Uint64
}

func openDomain(lib *fabric.Library, o *offer, name string, cfg transport.DomainConfig, timeout time.Duration, piece uint64) (*domain, error) {
	info := o.info
	var random [8]byte
	for binary.LittleEndian.Uint32(random[:]) == 0 {
		if _, err := rand.Read(random[:]); err != nil {
			return nil, fmt.Errorf("random numbers: %w", err)
		}
	}
	cq := cfg.MaxCQ
	if cq == 0 {
		cq = defaultCQ
	}
	// Each operation may need an entry, and so may what peers send meanwhile. A
	// post beyond the provider's queue is not always refused by it.
	window := min(int(min(max(info.SendQueue, 1), maxWindow)), max(cq/2, 1))
	if cfg.MaxSend > 0 {
		window = min(window, cfg.MaxSend)
	}
	recvs := cfg.MaxRecv
	if recvs == 0 {
		recvs = int(min(max(info.RecvQueue, 1), defaultMaxRecv))
	}
	if info.MRMode&fabric.MRLocal != 0 {
		recvs = min(recvs, maxLanding/maxMessageBytes)
	}
	d := &domain{
		name: name, info: info, timeout: timeout, piece: piece, txSlots: window + spareSlots,
		limits: transport.Limits{
			MaxSend: window, MaxRecv: recvs, MaxInline: fabric.InlineBytes, MaxMessage: o.features.MaxMessage,
			MaxRecvSize: maxMessageBytes, MaxRegions: maxRegions - 1, // one is the domain's own
			Read: o.features.Read, Atomic: o.features.Atomic, LinkBytesPerSecond: info.LinkBitsPerSecond / 8,
		},
		copiesSmall: slices.Contains(layers(info.Provider), "shm") || !isSoftware(info.Provider),
		byAddr:      map[string]transport.Peer{}, byLife: map[uint32]transport.Peer{}, ended: make(chan struct{}),
	}
	if m := d.limits.MaxMessage; m != 0 {
		d.limits.MaxRecvSize = min(d.limits.MaxRecvSize, m)
	}
	if piece != noPiece {
		d.limits.MaxRegion = piece
	}
	if info.MaxRegions > 1 && info.MaxRegions < maxRegions {
		d.limits.MaxRegions = int(info.MaxRegions - 1)
	}
	owner := numDomains.Add(1)
	d.peers, d.regions = handle.New[*peer](owner), handle.New[*region](owner)
	d.remotes, d.templates = handle.New[*remote](owner), handle.New[*template](owner)
	d.id = identity{
		generation: binary.LittleEndian.Uint64(random[:]), protocol: info.Protocol, format: info.AddrFormat, provider: info.Provider,
	}
	if o.features.Tagged {
		d.id.flags = flagTagged
	}
	switch width := o.features.ImmBytes; {
	case width >= 8:
		d.id.immBytes = 8
	case width >= 4:
		d.id.immBytes = 4
	}
	if d.id.immBytes > 0 {
		d.limits.ImmBytes = 4
	}
	fc := fabric.Config{
		Life: d.id.generation, TimeoutMS: uint64(max(timeout.Milliseconds(), 1)), Sends: d.txSlots, Recvs: recvs, MaxPeers: maxPeers, CQ: cq,
		Tagged: o.features.Tagged, DataBytes: o.features.ImmBytes, Device: o.device, EFA: o.efa, LocalMemory: info.MRMode&fabric.MRLocal != 0,
		Wait: true,
	}
	if info.Mode&fabric.ModeRxCQData != 0 {
		fc.EmptyRecvs = emptyRecvs
	}
	var err error
	if d.f, err = lib.OpenDomain(info, fc); err != nil {
		return nil, err
	}
	d.waitFD = d.f.WaitFD()
	d.flights = make([]flight, d.txSlots+recvs)
	for i := d.txSlots - 1; i >= 0; i-- {
		d.free = append(d.free, uint32(i))
	}
	for i := recvs - 1; i >= 0; i-- {
		d.freeRecv = append(d.freeRecv, uint32(d.txSlots+i))
	}
	d.stash.init(window + recvs)
	d.joinSiblings()
	if err := d.introduce(); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// introduce makes what other domains need to know of this one.
func (d *domain) introduce() error {
	var err error
	if d.id.endpoint, err = d.f.Name(); err != nil {
		return err
	}
	if len(d.id.endpoint) > maxEndpoint {
		return fmt.Errorf("the endpoint's address has %d bytes, the limit is %d", len(d.id.endpoint), maxEndpoint)
	}
	if d.home, err = d.own(homeBytes, transport.AccessRemoteWrite); err != nil {
		return err
	}
	if d.landing, err = d.own(uint64(d.limits.MaxRecv)*maxMessageBytes, transport.AccessLocal); err != nil {
		return err
	}
	d.id.homeKey, d.id.homeAddr = d.home.key.keys[0], d.home.key.base
	d.addr = d.id.encode()
	return nil
}

// own registers memory of the domain's own, in one piece.
func (d *domain) own(size uint64, access transport.Access) (*region, error) {
	m, err := mem.Alloc(size)
	if err != nil {
		return nil, err
	}
	r, err := d.registerIn(m, access, noPiece)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("register %d bytes: %w", size, err), mem.Free(m))
	}
	return r, nil
}

// disown releases such memory, once nothing can write there any more.
func (r *region) disown() error {
	if r == nil {
		return nil
	}
	return mem.Free(r.mem)
}

func (d *domain) Name() string             { return d.name }
func (d *domain) Limits() transport.Limits { return d.limits }

// Addr is constant over the domain's life.
func (d *domain) Addr() transport.Address { return append(transport.Address(nil), d.addr...) }

func (d *domain) Stats() transport.Stats {
	c := &d.stat
	return transport.Stats{
		Messages: c.messages.Load(), Bytes: c.bytes.Load(), ImmsSent: c.immsSent.Load(), ImmsReceived: c.immsReceived.Load(),
		Doorbells: c.doorbells.Load(), Again: c.again.Load(), StaleWrites: c.stale.Load(), Registrations: c.registrations.Load(),
	}
}

// enter begins a call of the data path; leave ends it. Close waits in between.
func (d *domain) enter() bool {
	d.busy.Store(true)
	if d.closed.Load() {
		d.busy.Store(false)
		return false
	}
	return true
}

func (d *domain) leave() { d.busy.Store(false) }

// enterCold begins a call outside the data path; leaveCold ends it.
func (d *domain) enterCold() error {
	d.cold.Lock()
	if d.enter() {
		return nil
	}
	d.cold.Unlock()
	return transport.ErrClosed
}

func (d *domain) leaveCold() {
	d.leave()
	d.cold.Unlock()
}

// Close implements transport.Domain.
func (d *domain) Close() error {
	if !d.closed.CompareAndSwap(false, true) {
		<-d.ended
		return nil
	}
	defer close(d.ended)
	d.cold.Lock()
	defer d.cold.Unlock()
	for d.busy.Load() { // a call in the data path ends by itself: none of them waits
		runtime.Gosched()
	}
	d.leaveSiblings()
	var errs []error
	note := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	bound := d.info.MRMode&fabric.MREndpoint != 0
	if !bound {
		note(d.f.CloseEndpoint())
	}
	d.regions.Each(func(_ int32, r *(*region)) {
		(*r).closed.Store(true)
		note((*r).unregister())
	})
	own := append([]*region{d.home, d.landing}, d.allStages...)
	for _, r := range own {
		if r != nil {
			note(r.unregister())
		}
	}
	if bound {
		note(d.f.CloseEndpoint())
	}
	d.templates.Each(func(_ int32, t **template) { (*t).targets.Free() })
	for i := range d.flights { // templates freed while operations used them
		if t := d.flights[i].tmpl; t != nil && t.freed {
			if t.inFlight--; t.inFlight == 0 {
				t.targets.Free()
			}
		}
	}
	note(d.f.Close())
	for _, r := range own {
		note(r.disown())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("efa: close %s: %w", d.name, err)
	}
	return nil
}
