//go:build verbs && cgo && linux

package verbs

import (
	"errors"
	"fmt"

	"moerail/transport"
)

// RemovePeer implements transport.Domain. The peer is told, so that it dials
// again if it wants to reach us.
func (d *domain) RemovePeer(p transport.Peer) error {
	if !d.enter() {
		return transport.ErrClosed
	}
	defer d.leave()
	lp := d.peers.Get(int32(p))
	if lp == nil {
		return fmt.Errorf("%w: peer %d", transport.ErrBadHandle, p)
	}
	l := *lp
	d.dropTemplates(func(e *templateEntry) bool { return e.link == l })
	d.remotes.Each(func(h int32, r **remote) {
		if (*r).link == l {
			d.remotes.Remove(h)
		}
	})
	d.peers.Remove(int32(p))
	l.peer = transport.NoPeer
	told := l.state == linkReady || l.state == linkDialing
	d.giveUp(l)
	if told && !l.self {
		d.mail.send(l, kindDrop)
	}
	return nil
}

// dropped takes the news that the other end has given up its queue pairs.
func (d *domain) dropped(l *link, h *hello) {
	ours := false
	for i, r := range h.chans {
		ours = ours || r.epoch != 0 && r.epoch == l.chans[i].remote
	}
	if !ours || l.state == linkGone || l.self {
		return
	}
	if l.peer == transport.NoPeer {
		d.giveUp(l)
		return
	}
	busy := false
	for i := range l.chans {
		d.retire(l.chans[i].qp, transport.StatusFlushed, 0)
	}
	for i := range l.lists {
		busy = busy || !l.lists[i].empty()
	}
	if err := l.begin(); err != nil {
		d.lose(l, 0, err)
		return
	}
	d.setState(l, linkIdle)
	if busy {
		d.dial(l)
	}
}

// gone takes the news that the other end's domain closes.
func (d *domain) gone(l *link) {
	if l.given || l.self || l.state == linkGone {
		return
	}
	d.lose(l, 0, errors.New("it has closed"))
	if l.given {
		return
	}
	for i := range l.chans {
		d.retire(l.chans[i].qp, transport.StatusPeerLost, 0)
	}
	d.setState(l, linkGone)
}
