//go:build verbs && cgo && linux

package verbs

import (
	"errors"
	"fmt"
	"time"

	"moerail/internal/ibv"
	"moerail/transport"
)

type linkState uint8

const (
	linkIdle    linkState = iota // not connected; the next request dials
	linkDialing                  // a handshake is under way; requests wait
	linkReady                    // both queue pairs may be used
	linkLost                     // requests are refused; a handshake is tried now and then
	linkGone                     // the peer has closed for good
)

// link is this end of the connection to another domain. There is one for each
// peer that was added, and for each domain that dialled us (a passive one, whose
// peer is NoPeer).
type link struct {
	d      *domain
	id     identity
	addr   [addressBytes]byte
	peer   transport.Peer
	self   bool // the other end is this domain: queue pairs connected to themselves
	state  linkState
	why    error // while lost or gone; made once, returned by posts
	ah     *ibv.AH
	chans  [numChans]channel
	lists  [numLists]opList
	dirty  bool // in domain.dirty
	given  bool // given up: in domain.given
	left   int  // queue pairs in domain.dying
	outbox uint8
	posted bool             // in mailbox.out
	mails  int              // datagrams under way
	drop   [numChans]record // what a kindDrop says
	until  time.Time        // when waiting ends
	next   time.Time        // when to say hello again
	pause  time.Duration
}

// channel is one of a link's two queue pairs, and how far its handshake is.
type channel struct {
	course
	qp  *rcQP
	psn uint32 // of our first packet
}

// rcQP is one life of a channel's queue pair.
type rcQP struct {
	qp       *ibv.QP
	link     *link
	kind     int // of channel
	inFlight int
	reads    int
	maxReads int
	failed   bool             // in error; being flushed
	cause    transport.Status // of what is flushed
	vendor   uint32
	expires  time.Time // when waiting for the flush ends
	retired  uint64    // domain.polls when it failed
}

const (
	firstPause = 10 * time.Millisecond
	longPause  = 250 * time.Millisecond
	flushLimit = 10 * time.Second
	tickPause  = 5 * time.Millisecond
	maxLinks   = 1 << 14

	minRNRTimer = 12 // 0.64 ms between tries while a receiver has no receive
	retryRNR    = 7  // for ever: a slow receiver is not a lost one
	hopLimit    = 64
)

// AddPeer implements transport.Domain. On RoCE the kernel resolves the peer's
// hardware address here, for at most a second if nobody has it.
func (d *domain) AddPeer(a transport.Address) (transport.Peer, error) {
	id, err := decodeAddress(a)
	if err != nil {
		return transport.NoPeer, err
	}
	if !d.enter() {
		return transport.NoPeer, transport.ErrClosed
	}
	defer d.leave()
	if id.ethernet != d.id.ethernet {
		return transport.NoPeer, fmt.Errorf("%w: %s: the peer at %s is on another kind of network", transport.ErrBadAddress, d.where(), &id)
	}
	l := d.links[[addressBytes]byte(a)]
	if l == nil {
		if l, err = d.newLink(id, [addressBytes]byte(a)); err != nil {
			return transport.NoPeer, fmt.Errorf("%w: verbs: %s: the way to %s: %w", transport.ErrPeerLost, d.where(), &id, err)
		}
	}
	if l.peer == transport.NoPeer {
		h, err := d.peers.Add(l)
		if err != nil {
			return transport.NoPeer, fmt.Errorf("verbs: %s: add a peer: %w", d.where(), err)
		}
		l.peer = transport.Peer(h)
	}
	if l.state == linkIdle {
		d.dial(l)
	}
	return l.peer, nil
}

// newLink makes an idle link, or one that is ready if it leads to ourselves.
func (d *domain) newLink(id identity, addr [addressBytes]byte) (*link, error) {
	if len(d.links) >= maxLinks {
		return nil, fmt.Errorf("%d links exist, which is the limit", maxLinks)
	}
	l := &link{d: d, id: id, addr: addr, peer: transport.NoPeer, self: id.generation == d.id.generation}
	for i := range l.lists {
		l.lists[i] = opList{-1, -1}
	}
	path := d.path(&id)
	var err error
	if l.ah, err = d.pd.CreateAH(&path); err != nil {
		return nil, err
	}
	if err := l.begin(); err != nil {
		l.end()
		return nil, errors.Join(err, l.ah.Close())
	}
	d.links[addr] = l
	return l, nil
}

func (d *domain) path(id *identity) ibv.Path {
	return ibv.Path{
		GID: id.gid, SGIDIndex: d.gid.Index, LID: id.lid, Port: d.port, HopLimit: hopLimit,
		Global:       id.ethernet || [8]byte(id.gid[:8]) != [8]byte(d.id.gid[:8]),
		ServiceLevel: d.cfg.ServiceLevel, TrafficClass: d.cfg.TrafficClass,
	}
}

// begin gives each channel that has none a new queue pair.
func (l *link) begin() error {
	for i := range l.chans {
		if l.chans[i].qp == nil {
			if err := l.beginChannel(i); err != nil {
				return err
			}
		}
	}
	return nil
}

func (l *link) beginChannel(i int) error {
	d, c := l.d, &l.chans[i]
	srq := d.imms
	if i == chanMsg {
		srq = d.msgs
	}
	qp, err := d.pd.CreateQP(ibv.RC, d.cq, srq, d.cfg.SendDepth, 0, d.inline)
	if err != nil {
		return err
	}
	if c.psn, err = randomPSN(); err == nil {
		err = qp.Init(d.port, d.cfg.PKeyIndex, d.access)
	}
	if err != nil {
		return errors.Join(err, qp.Close())
	}
	d.epoch++
	c.renew(d.epoch)
	c.qp = &rcQP{qp: qp, link: l, kind: i, maxReads: max(1, min(d.attr.MaxInitReads, int(l.id.reads), 128))}
	d.byQP[qp.Number] = c.qp
	if l.self {
		c.remote, c.last, c.confirmed = c.epoch, c.epoch, true
		err = l.connect(i, record{epoch: c.epoch, seen: c.epoch, qpn: qp.Number, psn: c.psn})
		if err != nil {
			d.retire(c.qp, transport.StatusPeerLost, 0) // the next try makes another
		}
	}
	return err
}

// connect takes a channel's queue pair to RTS.
func (l *link) connect(i int, r record) error {
	d, c := l.d, &l.chans[i]
	return c.qp.qp.Connect(&ibv.Connect{
		Path: d.path(&l.id), QPN: r.qpn, RecvPSN: r.psn, SendPSN: c.psn, MTU: min(int(d.id.mtu), int(l.id.mtu)),
		MaxReads: c.qp.maxReads, MaxAnswers: min(d.attr.MaxQPReads, 128), MinRNRTimer: minRNRTimer, Timeout: d.cfg.AckTimeout,
		Retries: d.cfg.Retries, ReceiverRetries: retryRNR,
	})
}

// dial starts a handshake.
func (d *domain) dial(l *link) {
	if l.self {
		d.setState(l, linkReady)
		d.wake(l)
		return
	}
	// The time that the peer has begins with the first hello, in a poll.
	d.setState(l, linkDialing)
	l.until, l.next, l.pause = time.Time{}, time.Time{}, firstPause
	d.nextTick = time.Time{}
}

// setState keeps count of the links that need the clock.
func (d *domain) setState(l *link, s linkState) {
	was, is := l.ticks(), false
	l.state = s
	if is = l.ticks(); was != is {
		if is {
			d.unsettled++
		} else {
			d.unsettled--
		}
	}
	if s == linkReady {
		l.why = nil
	}
}

func (l *link) ticks() bool { return !l.given && (l.state == linkDialing || l.state == linkLost) }

// hear takes a handshake of the other end.
func (d *domain) hear(l *link, h *hello) {
	if l.state == linkGone || l.self {
		return
	}
	answer := false
	for i, r := range h.chans {
		c := &l.chans[i]
		m := c.hear(r)
		if m == moveRebuild {
			d.retire(c.qp, transport.StatusFlushed, 0)
			if err := l.beginChannel(i); err != nil {
				d.lose(l, 0, err)
				return
			}
			m, answer = c.hear(r), true
		}
		if m == moveConnect {
			if err := l.connect(i, r); err != nil {
				d.lose(l, 0, err)
				return
			}
			answer = true
		}
		answer = answer || m == moveAnswer && h.answer
	}
	if l.chans[chanMsg].confirmed && l.chans[chanRMA].confirmed {
		d.setState(l, linkReady)
		d.wake(l)
	} else if l.state != linkDialing {
		d.dial(l)
	}
	if answer {
		d.mail.send(l, kindHello)
	}
}

// tick says hello where it is time, and ends waiting that has been too long.
func (d *domain) tick(now time.Time) {
	if now.Before(d.nextTick) {
		return // a peer that is lost must not make every poll visit every link
	}
	d.nextTick = now.Add(tickPause)
	for _, l := range d.links {
		if l.state != linkDialing && l.state != linkLost || now.Before(l.next) {
			continue
		}
		if l.until.IsZero() {
			l.until = now.Add(d.cfg.HandshakeTimeout)
		}
		if l.state == linkDialing && now.After(l.until) {
			d.lose(l, 0, fmt.Errorf("it did not answer a handshake within %v", d.cfg.HandshakeTimeout))
			continue
		}
		l.pause = min(2*l.pause, longPause)
		l.next = now.Add(l.pause)
		if err := l.begin(); err != nil {
			continue // no queue pair to be had now
		}
		if l.self {
			d.setState(l, linkReady)
			continue
		}
		d.mail.send(l, kindHello)
	}
}

// end destroys the queue pairs of a link that never was.
func (l *link) end() {
	for i := range l.chans {
		if q := l.chans[i].qp; q != nil {
			delete(l.d.byQP, q.qp.Number)
			_ = q.qp.Close()
		}
	}
}
