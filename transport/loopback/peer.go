package loopback

import (
	"errors"
	"fmt"

	"moerail/internal/mem"
	"moerail/transport"
)

// peer is a domain that was added as a target.
type peer struct {
	handle transport.Peer
	dom    *Domain
}

// remote is an imported key. valid is the owner's; the rest is immutable.
type remote struct {
	peer   *peer
	key    *regionKey
	region *region // nil if the key is unknown at its domain
	valid  bool
}

// template is a group of targets, resolved once.
type template struct {
	entries []templateEntry
}

type templateEntry struct {
	peer   *peer
	local  *region // nil for NoKey
	remote *remote // nil for NoRemote
}

// AddPeer makes the domain at a a target. A domain that is gone is ErrPeerLost,
// an address that this fabric never gave is ErrBadAddress.
func (d *Domain) AddPeer(a transport.Address) (transport.Peer, error) {
	if d.closed.Load() {
		return transport.NoPeer, fmt.Errorf("loopback: %s: add peer: %w", d.label, transport.ErrClosed)
	}
	l, err := decodeAddress(a)
	if err != nil {
		return transport.NoPeer, fmt.Errorf("loopback: %s: add peer: %w", d.label, err)
	}
	if h, ok := d.owner.peerAt[l]; ok {
		return h, nil
	}
	t, err := d.fab.find(l)
	if err != nil {
		return transport.NoPeer, fmt.Errorf("loopback: %s: add peer: %w", d.label, err)
	}
	p := &peer{dom: t}
	h, err := d.owner.peers.Add(p)
	if err != nil {
		return transport.NoPeer, fmt.Errorf("loopback: %s: add peer: %w", d.label, err)
	}
	p.handle = transport.Peer(h)
	d.owner.peerAt[l] = p.handle
	return p.handle, nil
}

// RemovePeer forgets p with its remotes and the templates that name it. What is
// in flight ends as it would have.
func (d *Domain) RemovePeer(h transport.Peer) error {
	p := d.owner.peers.Get(int32(h))
	if p == nil {
		return fmt.Errorf("loopback: %s: remove peer %#x: %w", d.label, int32(h), transport.ErrBadHandle)
	}
	gone := *p
	d.owner.remotes.Each(func(h int32, r **remote) {
		if (*r).peer == gone {
			(*r).valid = false
			d.owner.remotes.Remove(h)
		}
	})
	d.owner.templates.Each(func(h int32, t **template) {
		for _, e := range (*t).entries {
			if e.peer == gone {
				d.owner.templates.Remove(h)
				return
			}
		}
	})
	delete(d.owner.peerAt, gone.dom.at)
	d.owner.peers.Remove(int32(h))
	return nil
}

// Import makes a key of peer p usable. A key that its domain no longer knows is
// accepted, since the two sides can not agree on when it was revoked; using it
// ends as StatusRemoteAccess.
func (d *Domain) Import(h transport.Peer, key transport.RemoteKey, size uint64) (transport.Remote, error) {
	bad := func(err error) (transport.Remote, error) {
		return transport.NoRemote, fmt.Errorf("loopback: %s: import key of peer %#x: %w", d.label, int32(h), err)
	}
	if d.closed.Load() {
		return bad(transport.ErrClosed)
	}
	p := d.owner.peers.Get(int32(h))
	if p == nil {
		return bad(transport.ErrBadHandle)
	}
	k, err := decodeKey(key)
	if err != nil {
		return bad(err)
	}
	t := (*p).dom
	if k.location != t.at {
		return bad(fmt.Errorf("%w: it was made by another NIC than %s", transport.ErrBadKey, t.label))
	}
	if k.size != size {
		return bad(fmt.Errorf("%w: made for %d bytes, the peer says %d", transport.ErrBadKey, k.size, size))
	}
	r := &remote{peer: *p, key: k, region: d.fab.regionOf(t, k.region), valid: true}
	rh, err := d.owner.remotes.Add(r)
	if err != nil {
		return bad(err)
	}
	return transport.Remote(rh), nil
}

// Release forgets r. Templates that name it refuse to post afterwards.
func (d *Domain) Release(h transport.Remote) error {
	r := d.owner.remotes.Get(int32(h))
	if r == nil {
		return fmt.Errorf("loopback: %s: release remote %#x: %w", d.label, int32(h), transport.ErrBadHandle)
	}
	(*r).valid = false
	d.owner.remotes.Remove(int32(h))
	return d.unmap(h)
}

// MapRemote returns the memory behind h, if its process is on the same host.
// It stays mapped until h is released or d closes, whatever its owner does.
func (d *Domain) MapRemote(h transport.Remote) (m transport.Memory, err error) {
	bad := func(err error) (transport.Memory, error) {
		return transport.Memory{}, fmt.Errorf("loopback: %s: map remote %#x: %w", d.label, int32(h), err)
	}
	p := d.owner.remotes.Get(int32(h))
	if p == nil {
		return bad(transport.ErrBadHandle)
	}
	r := *p
	// Before the owner is seen to be there, so that it frees nothing in between.
	fresh, err := d.keepMapped(h, mem.Addr(r.region.bytes))
	if err != nil {
		return bad(err)
	}
	defer func() {
		if err != nil && fresh {
			err = errors.Join(err, d.unmap(h))
		}
	}()
	switch t := r.peer.dom; {
	case t.proc.host != d.proc.host:
		return bad(fmt.Errorf("%w: %s is on host %q, this process on %q", transport.ErrUnsupported, t.label, t.proc.host, d.proc.host))
	case t.closed.Load():
		return bad(fmt.Errorf("%w: %s", transport.ErrPeerLost, t.label))
	case !r.granted(0, r.key.size):
		return bad(fmt.Errorf("%w: revoked at %s", transport.ErrBadKey, t.label))
	case r.region.access&transport.AccessAll == 0:
		return bad(fmt.Errorf("%w: %s grants no remote access", transport.ErrBadKey, t.label))
	}
	return transport.Memory{Host: r.region.bytes, FD: -1, Size: r.region.Size()}, nil
}

// NewTemplate resolves entries; the first one at fault is named.
func (d *Domain) NewTemplate(entries []transport.TemplateEntry) (transport.Template, error) {
	if d.closed.Load() {
		return -1, fmt.Errorf("loopback: %s: new template: %w", d.label, transport.ErrClosed)
	}
	t := &template{entries: make([]templateEntry, len(entries))}
	for i, e := range entries {
		var err error
		if t.entries[i], err = d.resolve(e.Peer, e.Local, e.Remote); err != nil {
			return -1, fmt.Errorf("loopback: %s: template entry %d: %w", d.label, i, err)
		}
	}
	h, err := d.owner.templates.Add(t)
	if err != nil {
		return -1, fmt.Errorf("loopback: %s: new template: %w", d.label, err)
	}
	return transport.Template(h), nil
}

// FreeTemplate forgets t.
func (d *Domain) FreeTemplate(t transport.Template) error {
	if !d.owner.templates.Remove(int32(t)) {
		return fmt.Errorf("loopback: %s: free template %#x: %w", d.label, int32(t), transport.ErrBadHandle)
	}
	return nil
}

var (
	errPeerHandle   = fmt.Errorf("%w: peer handle", transport.ErrBadHandle)
	errLocalHandle  = fmt.Errorf("%w: local key", transport.ErrBadHandle)
	errRemoteHandle = fmt.Errorf("%w: remote", transport.ErrBadHandle)
	errRemoteOfPeer = fmt.Errorf("%w: remote of another peer", transport.ErrBadHandle)
)

// resolve turns handles into what they stand for. Its errors are made in
// advance: it is on the path of Post.
func (d *Domain) resolve(p transport.Peer, l transport.LKey, r transport.Remote) (e templateEntry, err error) {
	pp := d.owner.peers.Get(int32(p))
	if pp == nil {
		return e, errPeerHandle
	}
	e.peer = *pp
	if l != transport.NoKey {
		if e.local = d.local(l); e.local == nil {
			return e, errLocalHandle
		}
	}
	if r != transport.NoRemote {
		rp := d.owner.remotes.Get(int32(r))
		if rp == nil {
			return e, errRemoteHandle
		}
		if e.remote = *rp; e.remote.peer != e.peer {
			return e, errRemoteOfPeer
		}
	}
	return e, nil
}
