package shm

import (
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"moerail/internal/mem"
	"moerail/transport"
)

// inLane is the receiver's side of a lane, one per sender.
type inLane struct {
	laneView
	index  int
	guard  *atomic.Uint64 // the sender's; read only
	gpage  []byte         // mapping of guard
	from   string         // the sender's address, as it claims
	origin atomic.Int32   // this domain's handle for it, or NoPeer
	gone   atomic.Bool    // the sender has ended; what it left can still be read
	conn   *net.UnixConn

	// Owned by the owner. The copies in shared memory are for the sender; what
	// it may do to them does not matter here.
	immRead uint64
	msgRead uint64
	held    bool // the next message has been counted as waiting
}

func (l *inLane) unmap() error {
	if l.mapping == nil {
		return nil
	}
	err := errors.Join(mem.Unmap(l.mapping), mem.Unmap(l.gpage))
	l.mapping, l.gpage = nil, nil
	return err
}

// maxStrangers bounds the sockets that have not shown the secret yet.
const maxStrangers = 64

func (d *domain) accept() {
	defer d.wg.Done()
	var strangers atomic.Int32
	for {
		c, err := d.listener.AcceptUnix()
		if err != nil {
			select {
			case <-d.stop:
				return
			case <-time.After(10 * time.Millisecond): // out of descriptors, perhaps for a while
				continue
			}
		}
		if strangers.Load() >= maxStrangers || !d.track(c) {
			c.Close()
			continue
		}
		strangers.Add(1)
		d.wg.Add(1)
		go func() {
			defer d.wg.Done()
			defer d.untrack(c)
			l, err := d.greet(c)
			strangers.Add(-1)
			if err != nil {
				return // the other side sees the socket close; its AddPeer says so
			}
			d.serve(c, l)
			l.gone.Store(true)
			d.bells[l.index/64].Or(1 << (l.index % 64))
			d.rouse()
		}()
	}
}

// greet checks a hello and makes the lane.
func (d *domain) greet(c *net.UnixConn) (*inLane, error) {
	c.SetDeadline(time.Now().Add(d.timeout))
	buf := make([]byte, maxPacket)
	r, err := recvPacket(c, buf)
	if err != nil {
		return nil, err
	}
	defer r.drop()
	h, err := decodeHello(r.b)
	if err != nil {
		return nil, err
	}
	if subtle.ConstantTimeCompare(h.secret[:], d.id.secret[:]) != 1 || h.generation != d.id.generation {
		return nil, errors.New("shm: a stranger, or a peer of an earlier life")
	}
	if len(r.fds) != 1 {
		return nil, fmt.Errorf("%w: hello with %d descriptors, want 1", errPacket, len(r.fds))
	}
	l := &inLane{conn: c, from: string(h.from[:])}
	l.origin.Store(int32(transport.NoPeer))
	if err := mem.CheckSealed(r.fds[0]); err != nil {
		return nil, err
	}
	start, within, size := guardPage(h.guardOff)
	if l.gpage, err = mem.MapReadOnly(r.fds[0], start, size); err != nil {
		return nil, err
	}
	l.guard = mem.Word64(l.gpage, within)
	m, err := mem.AllocShared("moerail-lane", laneBytes)
	if err != nil {
		return nil, errors.Join(err, mem.Unmap(l.gpage))
	}
	defer unix.Close(m.FD)
	l.laneView = newLaneView(m.Host)
	if err := d.addLane(l); err != nil {
		return nil, errors.Join(err, l.unmap())
	}
	w := welcome{lane: uint32(l.index)}
	if err := sendPacket(c, w.encode(), m.FD, d.bell.FD, d.valid.FD); err != nil {
		l.gone.Store(true) // the owner retires it
		d.bells[l.index/64].Or(1 << (l.index % 64))
		return nil, err
	}
	c.SetDeadline(time.Time{})
	return l, nil
}

func (d *domain) addLane(l *inLane) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.conns == nil {
		return transport.ErrClosed
	}
	for i := range d.lanes {
		if d.lanes[i].Load() != nil {
			continue
		}
		l.index = i
		if p := d.byAddr[l.from]; p != nil {
			l.origin.Store(int32(p.handle))
		}
		d.occupied[i/64].Or(1 << (i % 64))
		if w := int32(i/64 + 1); w > d.words.Load() {
			d.words.Store(w)
		}
		d.lanes[i].Store(l)
		return nil
	}
	return fmt.Errorf("shm: %d senders have a lane here, which is the limit", maxLanes)
}

// retire gives a lane's place back. Called by the owner.
func (d *domain) retire(l *inLane) {
	d.mu.Lock()
	d.lanes[l.index].Store(nil)
	d.occupied[l.index/64].And(^uint64(1 << (l.index % 64)))
	d.mu.Unlock()
	l.unmap()
}

// setOrigin gives lanes from addr the handle h.
func (d *domain) setOrigin(addr string, h transport.Peer) {
	for i := range d.lanes {
		if l := d.lanes[i].Load(); l != nil && l.from == addr {
			l.origin.Store(int32(h))
		}
	}
}

// serve answers for regions until the sender ends or lies.
func (d *domain) serve(c *net.UnixConn, l *inLane) {
	buf := make([]byte, maxPacket)
	for {
		r, err := recvPacket(c, buf)
		if err != nil {
			return
		}
		fds := len(r.fds)
		r.drop()
		a, err := decodeAsk(r.b)
		if err != nil || fds != 0 {
			return
		}
		g, fd := d.grantFor(a)
		c.SetWriteDeadline(time.Now().Add(d.timeout))
		if fd < 0 {
			err = sendPacket(c, g.encode())
		} else {
			err = sendPacket(c, g.encode(), fd)
			unix.Close(fd)
		}
		if err != nil {
			return
		}
	}
}

// grantFor returns a descriptor of its own, so that the region may close while
// the answer is under way, or -1.
func (d *domain) grantFor(a ask) (grant, int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	g := grant{id: a.id, status: grantStale}
	x := d.exports[a.index]
	if x == nil || x.nonce != a.nonce {
		return g, -1
	}
	fd, err := unix.FcntlInt(uintptr(x.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return g, -1
	}
	return grant{id: a.id, status: grantOK, offset: x.fdOffset, size: uint64(len(x.host)), access: x.access}, fd
}
