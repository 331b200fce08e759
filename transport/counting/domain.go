package counting

import (
	"fmt"
	"sync/atomic"

	"moerail/transport"
	"moerail/transport/internal/handle"
)

// Domain counts what is posted to it.
type Domain struct {
	nic    string // immutable, as are the next two
	id     uint64
	lim    transport.Limits
	closed atomic.Bool
	stats  struct{ messages, bytes, imms, doorbells, again, registrations atomic.Uint64 }

	// touched by the owner's thread alone
	peers      handle.Table[*peer]
	peerOf     map[uint64]transport.Peer
	remotes    handle.Table[*remote]
	templates  handle.Table[[]templateEntry]
	regions    handle.Table[*region]
	numRegions uint64
	ends       []end // a ring
	head, tail uint64
	tally      struct{ messages, bytes, imms uint64 }
}

// end is a completion to come.
type end struct {
	id    transport.WRID
	bytes uint64
	peer  transport.Peer
	op    transport.Opcode
}

type peer struct {
	handle transport.Peer
	domain uint64
}

type remote struct {
	peer *peer
	size uint64
	live bool
}

type templateEntry struct {
	peer   *peer
	local  *region
	remote *remote
}

type region struct {
	lkey   transport.LKey
	size   uint64
	key    transport.RemoteKey
	closed atomic.Bool
}

func (r *region) LKey() transport.LKey           { return r.lkey }
func (r *region) Size() uint64                   { return r.size }
func (r *region) RemoteKey() transport.RemoteKey { return r.key }
func (r *region) Close() error                   { r.closed.Store(true); return nil }

var _ transport.Domain = (*Domain)(nil)

func newDomain(nic string, id uint64, send int) *Domain {
	n := 1
	for n < send {
		n <<= 1
	}
	return &Domain{
		nic: nic, id: id,
		lim: transport.Limits{MaxSend: send, MaxInline: maxInline, ImmBytes: 4, Read: true, Atomic: true},

		peers: handle.New[*peer](id), peerOf: make(map[uint64]transport.Peer),
		remotes:   handle.New[*remote](id),
		templates: handle.New[[]templateEntry](id),
		regions:   handle.New[*region](id),
		ends:      make([]end, n),
	}
}

// Name is the NIC's name.
func (d *Domain) Name() string { return d.nic }

// Addr names the domain within this process.
func (d *Domain) Addr() transport.Address { return encodeAddress(d.id) }

// Limits has MaxRecv 0: nothing arrives.
func (d *Domain) Limits() transport.Limits { return d.lim }

// Stats counts what was posted.
func (d *Domain) Stats() transport.Stats {
	s := &d.stats
	return transport.Stats{Messages: s.messages.Load(), Bytes: s.bytes.Load(), ImmsSent: s.imms.Load(),
		Doorbells: s.doorbells.Load(), Again: s.again.Load(), Registrations: s.registrations.Load()}
}

// Close ends the domain.
func (d *Domain) Close() error { d.closed.Store(true); return nil }

func (d *Domain) wrap(what string, err error) error {
	return fmt.Errorf("counting: %s: %s: %w", d.nic, what, err)
}

// Register accepts memory of any kind, since it never touches it.
func (d *Domain) Register(m transport.Memory, access transport.Access) (transport.Region, error) {
	switch {
	case d.closed.Load():
		return nil, d.wrap("register", transport.ErrClosed)
	case m.Kind > transport.MemoryDevice || m.Size == 0 || m.Kind == transport.MemoryHost && m.Size != uint64(len(m.Host)):
		return nil, d.wrap("register", fmt.Errorf("%w: memory kind %d, %d bytes, slice of %d", transport.ErrRegister, m.Kind, m.Size, len(m.Host)))
	case access&^transport.AccessAll != 0:
		return nil, d.wrap("register", fmt.Errorf("%w: unknown access bits %#x", transport.ErrRegister, access))
	}
	d.regions.Each(func(h int32, r **region) { // handles of closed regions
		if (*r).closed.Load() {
			d.regions.Remove(h)
		}
	})
	r := &region{size: m.Size}
	h, err := d.regions.Add(r)
	if err != nil {
		return nil, d.wrap("register", err)
	}
	d.numRegions++
	r.lkey, r.key = transport.LKey(h), regionKey{d.id, d.numRegions, m.Size}.encode()
	d.stats.registrations.Add(1)
	return r, nil
}

// AddPeer makes the domain at a a target; nothing will reach it.
func (d *Domain) AddPeer(a transport.Address) (transport.Peer, error) {
	if d.closed.Load() {
		return transport.NoPeer, d.wrap("add peer", transport.ErrClosed)
	}
	id, err := decodeAddress(a)
	if err != nil {
		return transport.NoPeer, d.wrap("add peer", err)
	}
	if h, ok := d.peerOf[id]; ok {
		return h, nil
	}
	p := &peer{domain: id}
	h, err := d.peers.Add(p)
	if err != nil {
		return transport.NoPeer, d.wrap("add peer", err)
	}
	p.handle = transport.Peer(h)
	d.peerOf[id] = p.handle
	return p.handle, nil
}

// RemovePeer forgets h with its remotes and templates.
func (d *Domain) RemovePeer(h transport.Peer) error {
	p := d.peers.Get(int32(h))
	if p == nil {
		return d.wrap("remove peer", transport.ErrBadHandle)
	}
	gone := *p
	d.remotes.Each(func(h int32, r **remote) {
		if (*r).peer == gone {
			(*r).live = false
			d.remotes.Remove(h)
		}
	})
	d.templates.Each(func(h int32, t *[]templateEntry) {
		for _, e := range *t {
			if e.peer == gone {
				d.templates.Remove(h)
				return
			}
		}
	})
	delete(d.peerOf, gone.domain)
	d.peers.Remove(int32(h))
	return nil
}

// Import checks a key and makes it usable.
func (d *Domain) Import(h transport.Peer, key transport.RemoteKey, size uint64) (transport.Remote, error) {
	p := d.peers.Get(int32(h))
	if p == nil {
		return transport.NoRemote, d.wrap("import", transport.ErrBadHandle)
	}
	k, err := decodeKey(key)
	if err == nil && (k.domain != (*p).domain || k.size != size) {
		err = fmt.Errorf("%w: of domain %d with %d bytes, want domain %d and %d bytes", transport.ErrBadKey, k.domain, k.size, (*p).domain, size)
	}
	if err != nil {
		return transport.NoRemote, d.wrap("import", err)
	}
	r, err := d.remotes.Add(&remote{peer: *p, size: size, live: true})
	if err != nil {
		return transport.NoRemote, d.wrap("import", err)
	}
	return transport.Remote(r), nil
}

// Release forgets h.
func (d *Domain) Release(h transport.Remote) error {
	r := d.remotes.Get(int32(h))
	if r == nil {
		return d.wrap("release", transport.ErrBadHandle)
	}
	(*r).live = false
	d.remotes.Remove(int32(h))
	return nil
}

// NewTemplate resolves entries.
func (d *Domain) NewTemplate(entries []transport.TemplateEntry) (transport.Template, error) {
	t := make([]templateEntry, len(entries))
	for i, e := range entries {
		p, l, r, err := d.resolve(e.Peer, e.Local, e.Remote)
		if err != nil {
			return -1, d.wrap(fmt.Sprintf("template entry %d", i), err)
		}
		t[i] = templateEntry{peer: p, local: l, remote: r}
	}
	h, err := d.templates.Add(t)
	if err != nil {
		return -1, d.wrap("new template", err)
	}
	return transport.Template(h), nil
}

// FreeTemplate forgets t.
func (d *Domain) FreeTemplate(t transport.Template) error {
	if !d.templates.Remove(int32(t)) {
		return d.wrap("free template", transport.ErrBadHandle)
	}
	return nil
}
