//go:build libfabric && cgo

package efa

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"moerail/internal/fabric"
	"moerail/transport"
)

// peer is an address that was added. number is what the shim calls it.
type peer struct {
	id     identity
	addr   string
	handle transport.Peer
	number uint32
	gone   bool // superseded: its endpoint belongs to a newer life
	// removed: its number may be somebody else's.
	removed bool
}

// remote is a peer's region.
type remote struct {
	peer *peer
	key  regionKey
}

// AddPeer implements transport.Domain. Nothing is sent before the first
// operation.
func (d *domain) AddPeer(a transport.Address) (transport.Peer, error) {
	if err := d.enterCold(); err != nil {
		return transport.NoPeer, err
	}
	defer d.leaveCold()
	id, err := decodeAddress(a)
	if err != nil {
		return transport.NoPeer, err
	}
	if h, ok := d.byAddr[string(a)]; ok {
		return h, nil
	}
	if err := d.id.fits(&id); err != nil {
		return transport.NoPeer, err
	}
	// An endpoint's address belongs to one living process: whoever had it before
	// is gone, and so is the provider's connection with it.
	d.peers.Each(func(_ int32, p **peer) {
		if !(*p).gone && bytes.Equal((*p).id.endpoint, id.endpoint) {
			d.settle()
			d.f.FlushPeer((*p).number, fabric.Lost)
			err = d.f.RemovePeer((*p).number)
			(*p).gone = true
		}
	})
	if err != nil {
		return transport.NoPeer, fmt.Errorf("efa: %s: forget a former life of %s: %w", d.name, id.where(), err)
	}
	p := &peer{id: id, addr: string(a)}
	if n := len(d.numbers); n > 0 {
		p.number = d.numbers[n-1]
	} else if d.nextPeer < maxPeers {
		p.number = d.nextPeer
	} else {
		return transport.NoPeer, fmt.Errorf("efa: %s: %d peers exist, which is the limit", d.name, maxPeers)
	}
	if err := d.f.AddPeer(p.number, id.endpoint); err != nil {
		if e := (*fabric.Error)(nil); errors.As(err, &e) && e.Errno == fabric.ErrnoInvalid {
			err = fmt.Errorf("%w: %w", transport.ErrBadAddress, err)
		}
		return transport.NoPeer, fmt.Errorf("efa: %s: %s can not use the address %s: %w", d.name, d.info.Provider, id.where(), err)
	}
	h, err := d.peers.Add(p)
	if err != nil {
		return transport.NoPeer, err
	}
	if n := len(d.numbers); n > 0 {
		d.numbers = d.numbers[:n-1]
	} else {
		d.nextPeer++
	}
	p.handle = transport.Peer(h)
	d.byAddr[p.addr], d.byLife[id.life()] = p.handle, p.handle
	return p.handle, nil
}

// where is an endpoint's address as people write it.
func (id *identity) where() string {
	if id.format == fabric.FormatString {
		return string(bytes.TrimRight(id.endpoint, "\x00"))
	}
	return fabric.AddressText(id.format, id.endpoint)
}

// settle empties the rings, so that nothing in them names a peer that goes.
func (d *domain) settle() {
	for d.f.Posted() != d.tail || d.f.RecvPosted() != d.recvTail {
		before, beforeRecv := d.f.Posted(), d.f.RecvPosted()
		if d.collect() != nil || d.f.Posted() == before && d.f.RecvPosted() == beforeRecv {
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
	pp := d.peers.Get(int32(h))
	if pp == nil {
		return fmt.Errorf("%w: peer %d", transport.ErrBadHandle, h)
	}
	p := *pp
	p.removed = true
	d.dropTemplates(func(e *templateEntry) bool { return e.peer == p })
	d.remotes.Each(func(r int32, x **remote) {
		if (*x).peer == p {
			d.remotes.Remove(r)
		}
	})
	d.peers.Remove(int32(h))
	delete(d.byAddr, p.addr)
	if d.byLife[p.id.life()] == h {
		delete(d.byLife, p.id.life())
	}
	d.settle()
	// What is about to end may do so. Of what does not, see held.
	for start := time.Now(); time.Since(start) < removePatience; {
		if posted, _ := d.f.Owes(p.number); posted == 0 || d.collect() != nil {
			break
		}
	}
	d.f.FlushPeer(p.number, fabric.Flushed)
	d.numbers = append(d.numbers, p.number)
	if p.gone {
		return nil
	}
	if err := d.f.RemovePeer(p.number); err != nil {
		return fmt.Errorf("efa: %s: remove peer %s: %w", d.name, p.id.where(), err)
	}
	return nil
}

const removePatience = 50 * time.Millisecond

// Import implements transport.Domain.
func (d *domain) Import(h transport.Peer, b transport.RemoteKey, size uint64) (transport.Remote, error) {
	if err := d.enterCold(); err != nil {
		return transport.NoRemote, err
	}
	defer d.leaveCold()
	pp := d.peers.Get(int32(h))
	if pp == nil {
		return transport.NoRemote, fmt.Errorf("%w: peer %d", transport.ErrBadHandle, h)
	}
	k, err := decodeKey(b)
	if err != nil {
		return transport.NoRemote, err
	}
	if k.generation != (*pp).id.generation {
		return transport.NoRemote, fmt.Errorf("%w: the key is of another domain, or of another life of this one", transport.ErrBadKey)
	}
	if k.size != size {
		return transport.NoRemote, fmt.Errorf("%w: the key is of a region of %d bytes, not %d", transport.ErrBadKey, k.size, size)
	}
	r, err := d.remotes.Add(&remote{peer: *pp, key: k})
	return transport.Remote(r), err
}

// Release implements transport.Domain.
func (d *domain) Release(h transport.Remote) error {
	if err := d.enterCold(); err != nil {
		return err
	}
	defer d.leaveCold()
	pp := d.remotes.Get(int32(h))
	if pp == nil {
		return fmt.Errorf("%w: remote %d", transport.ErrBadHandle, h)
	}
	r := *pp
	d.remotes.Remove(int32(h))
	d.dropTemplates(func(e *templateEntry) bool { return e.remote == r })
	return nil
}
