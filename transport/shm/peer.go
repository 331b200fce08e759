package shm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"moerail/internal/mem"
	"moerail/transport"
)

// peer is the sender's side: a lane at another domain, its bell and region table.
type peer struct {
	laneView
	d      *domain
	handle transport.Peer
	id     identity
	conn   *net.UnixConn
	target *domain // the peer itself when it is of this process, to rouse it

	bellMap  []byte
	bell     *atomic.Uint64
	bellBit  uint64
	validMap []byte

	lost   atomic.Bool // the socket has ended, or the peer wrote nonsense
	grants chan granted
	asked  uint64

	// Owned by the owner.
	immSent   uint64
	immFree   uint64 // immediates that fit before immHead must be read again
	msgSent   uint64
	firstWait int32 // parked immediates, -1 if none
	lastWait  int32
}

// granted is an answer with its descriptor, which belongs to who takes it.
type granted struct {
	grant
	fd int
}

func (p *peer) unmap() error {
	if p.mapping == nil {
		return nil
	}
	err := errors.Join(mem.Unmap(p.mapping), mem.Unmap(p.bellMap), mem.Unmap(p.validMap))
	p.mapping = nil
	return err
}

// down tells that nothing can be delivered to p any more.
func (p *peer) down() bool { return p.lost.Load() || p.state.Load() != laneOpen }

// fail marks p lost because of what it wrote or did.
func (p *peer) fail() {
	p.lost.Store(true)
	p.conn.Close()
}

// AddPeer implements transport.Domain. It connects at once, and an address whose
// domain has ended, or was restarted, is an error.
func (d *domain) AddPeer(a transport.Address) (transport.Peer, error) {
	if err := d.enterCold(); err != nil {
		return transport.NoPeer, err
	}
	defer d.leaveCold()
	id, err := decodeAddress(a)
	if err != nil {
		return transport.NoPeer, err
	}
	d.mu.Lock()
	known := d.byAddr[string(a)]
	d.mu.Unlock()
	if known != nil {
		return known.handle, nil
	}
	if id.host != d.id.host && id.host != 0 && d.id.host != 0 {
		return transport.NoPeer, fmt.Errorf("%w: shm address of another host, or of this one before it was booted", transport.ErrPeerLost)
	}
	p, err := d.connect(id)
	if err != nil {
		return transport.NoPeer, fmt.Errorf("%w: shm domain of process %d, generation %#x: %w", transport.ErrPeerLost, id.pid, id.generation, err)
	}
	h, ok := d.peers.add(p)
	if !ok {
		d.untrack(p.conn)
		return transport.NoPeer, errors.Join(fmt.Errorf("shm: %d peers are known, which is the limit", handleSlots), p.unmap())
	}
	p.handle = transport.Peer(h)
	d.mu.Lock()
	d.byAddr[string(a)] = p
	d.setOrigin(string(a), p.handle)
	d.mu.Unlock()
	d.parked.reservePeer()
	d.wg.Add(1)
	go p.listen()
	return p.handle, nil
}

func (d *domain) connect(id identity) (*peer, error) {
	deadline := time.Now().Add(d.timeout)
	c, err := d.dial(id.socketName(), deadline)
	if err != nil {
		return nil, err
	}
	if !d.track(c) {
		c.Close()
		return nil, transport.ErrClosed
	}
	p := &peer{d: d, id: id, conn: c, grants: make(chan granted, 1), firstWait: -1, lastWait: -1}
	c.SetDeadline(deadline)
	if err := p.introduce(); err != nil {
		d.untrack(c)
		return nil, errors.Join(err, p.unmap())
	}
	c.SetDeadline(time.Time{})
	if t, ok := openDomains.Load(id.token); ok {
		p.target = t.(*domain)
	}
	return p, nil
}

func (d *domain) dial(name string, deadline time.Time) (*net.UnixConn, error) {
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	go func() {
		select {
		case <-d.stop:
			cancel()
		case <-ctx.Done():
		}
	}()
	var dialer net.Dialer
	for {
		c, err := dialer.DialContext(ctx, "unixpacket", name)
		switch {
		case err == nil:
			return c.(*net.UnixConn), nil
		case errors.Is(err, unix.ECONNREFUSED):
			return nil, errors.New("nobody listens: it has ended, was restarted, or is in another network namespace")
		case !errors.Is(err, unix.EAGAIN):
			return nil, err
		}
		// The peer's backlog is full: many connect at once.
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("its backlog stayed full: %w", ctx.Err())
		case <-time.After(time.Millisecond):
		}
	}
}

// introduce shows the secret and maps what the peer sends back.
func (p *peer) introduce() error {
	h := hello{secret: p.id.secret, generation: p.id.generation, guardOff: p.d.guard.off, from: [addressBytes]byte(p.d.addr)}
	if err := sendPacket(p.conn, h.encode(), guards.mem.FD); err != nil {
		return fmt.Errorf("say hello: %w", err)
	}
	r, err := recvPacket(p.conn, make([]byte, maxPacket))
	if err != nil {
		return fmt.Errorf("it did not let us in: %w", err)
	}
	defer r.drop()
	w, err := decodeWelcome(r.b)
	if err != nil {
		return err
	}
	if len(r.fds) != maxPassed {
		return fmt.Errorf("%w: welcome with %d descriptors, want %d", errPacket, len(r.fds), maxPassed)
	}
	for _, fd := range r.fds {
		if err := mem.CheckSealed(fd); err != nil {
			return err
		}
	}
	lane, err := mem.MapShared(r.fds[0], 0, laneBytes)
	if err != nil {
		return err
	}
	bell, err := mem.MapShared(r.fds[1], 0, bellBytes)
	if err != nil {
		return errors.Join(err, mem.Unmap(lane))
	}
	valid, err := mem.MapReadOnly(r.fds[2], 0, regionBytes)
	if err != nil {
		return errors.Join(err, mem.Unmap(lane), mem.Unmap(bell))
	}
	p.laneView, p.bellMap, p.validMap = newLaneView(lane), bell, valid
	p.bell, p.bellBit = mem.Word64(bell, uint64(w.lane/64)*8), 1<<(w.lane%64)
	return nil
}

// listen passes grants on until the socket ends, which marks the peer lost.
func (p *peer) listen() {
	defer p.d.wg.Done()
	defer p.d.rouse() // posts that wait for p can end now
	defer p.d.untrack(p.conn)
	defer close(p.grants)
	defer p.lost.Store(true)
	buf := make([]byte, maxPacket)
	for {
		r, err := recvPacket(p.conn, buf)
		if err != nil {
			return
		}
		g, err := decodeGrant(r.b)
		if err != nil || len(r.fds) > 1 || (len(r.fds) == 1) != (g.status == grantOK) {
			r.drop()
			return
		}
		a := granted{grant: g, fd: -1}
		if len(r.fds) == 1 {
			a.fd = r.fds[0]
		}
		select {
		case p.grants <- a:
		default: // answers that nobody asked for
			r.drop()
			return
		}
	}
}

// RemovePeer implements transport.Domain.
func (d *domain) RemovePeer(h transport.Peer) error {
	if err := d.enterCold(); err != nil {
		return err
	}
	defer d.leaveCold()
	p := d.peers.get(int32(h))
	if p == nil {
		return fmt.Errorf("%w: peer %d", transport.ErrBadHandle, h)
	}
	d.flushParked(p, transport.StatusFlushed)
	d.dropTemplates(func(e *templateEntry) bool { return e.peer == p })
	var err error
	d.remotes.all(func(h int32, r *remote) {
		if r.peer == p {
			d.remotes.remove(h)
			err = errors.Join(err, r.unmap())
		}
	})
	d.peers.remove(int32(h))
	d.mu.Lock()
	addr := string(p.id.encode())
	delete(d.byAddr, addr)
	d.setOrigin(addr, transport.NoPeer)
	d.mu.Unlock()
	p.conn.Close()
	return errors.Join(err, p.end())
}

// end waits for the socket's goroutine, takes what it left and unmaps.
func (p *peer) end() error {
	for a := range p.grants {
		if a.fd >= 0 {
			unix.Close(a.fd)
		}
	}
	return p.unmap()
}
