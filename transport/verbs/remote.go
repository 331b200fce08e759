//go:build verbs && cgo && linux

package verbs

import (
	"fmt"

	"moerail/internal/ibv"
	"moerail/transport"
)

// remote is a peer's region, as its key tells it.
type remote struct {
	regionKey
	link *link
}

// Import implements transport.Domain.
func (d *domain) Import(p transport.Peer, key transport.RemoteKey, size uint64) (transport.Remote, error) {
	if !d.enter() {
		return transport.NoRemote, transport.ErrClosed
	}
	defer d.leave()
	l := d.peers.Get(int32(p))
	if l == nil {
		return transport.NoRemote, fmt.Errorf("%w: peer %d", transport.ErrBadHandle, p)
	}
	k, err := decodeKey(key)
	if err != nil {
		return transport.NoRemote, err
	}
	if k.generation != (*l).id.generation {
		return transport.NoRemote, fmt.Errorf("%w: made by generation %#x, the peer is generation %#x", transport.ErrBadKey, k.generation, (*l).id.generation)
	}
	if k.size != size {
		return transport.NoRemote, fmt.Errorf("%w: of a region of %d bytes, told %d", transport.ErrBadKey, k.size, size)
	}
	h, err := d.remotes.Add(&remote{regionKey: k, link: *l})
	if err != nil {
		return transport.NoRemote, fmt.Errorf("verbs: import: %w", err)
	}
	return transport.Remote(h), nil
}

// Release implements transport.Domain.
func (d *domain) Release(h transport.Remote) error {
	if !d.enter() {
		return transport.ErrClosed
	}
	defer d.leave()
	r := d.remotes.Get(int32(h))
	if r == nil {
		return fmt.Errorf("%w: remote %d", transport.ErrBadHandle, h)
	}
	x := *r
	d.dropTemplates(func(e *templateEntry) bool { return e.remote == x })
	d.remotes.Remove(int32(h))
	return nil
}

// template is a list of targets whose handles were resolved once. It goes with
// the first of its handles.
type template struct{ entries []templateEntry }

type templateEntry struct {
	link   *link
	peer   transport.Peer
	local  *region // nil for NoKey
	remote *remote // nil for NoRemote
}

// NewTemplate implements transport.Domain.
func (d *domain) NewTemplate(entries []transport.TemplateEntry) (transport.Template, error) {
	if !d.enter() {
		return -1, transport.ErrClosed
	}
	defer d.leave()
	t := &template{entries: make([]templateEntry, len(entries))}
	for i, e := range entries {
		l := d.peers.Get(int32(e.Peer))
		if l == nil {
			return -1, fmt.Errorf("%w: entry %d: peer %d", transport.ErrBadHandle, i, e.Peer)
		}
		x := templateEntry{link: *l, peer: e.Peer}
		if e.Local != transport.NoKey {
			r := d.regions.Get(int32(e.Local))
			if r == nil {
				return -1, fmt.Errorf("%w: entry %d: local key %d", transport.ErrBadHandle, i, e.Local)
			}
			x.local = *r
		}
		if e.Remote != transport.NoRemote {
			r := d.remotes.Get(int32(e.Remote))
			if r == nil || (*r).link != *l {
				return -1, fmt.Errorf("%w: entry %d: remote %d of peer %d", transport.ErrBadHandle, i, e.Remote, e.Peer)
			}
			x.remote = *r
		}
		t.entries[i] = x
	}
	h, err := d.templates.Add(t)
	if err != nil {
		return -1, fmt.Errorf("verbs: template: %w", err)
	}
	return transport.Template(h), nil
}

// FreeTemplate implements transport.Domain.
func (d *domain) FreeTemplate(h transport.Template) error {
	if !d.enter() {
		return transport.ErrClosed
	}
	defer d.leave()
	if !d.templates.Remove(int32(h)) {
		return fmt.Errorf("%w: template %d", transport.ErrBadHandle, h)
	}
	return nil
}

// dropTemplates frees the templates that have an entry which ends.
func (d *domain) dropTemplates(ends func(*templateEntry) bool) {
	d.templates.Each(func(h int32, t **template) {
		for i := range (*t).entries {
			if ends(&(*t).entries[i]) {
				d.templates.Remove(h)
				return
			}
		}
	})
}

var verbOf = [...]struct {
	op     ibv.Opcode
	access transport.Access
}{
	transport.OpWrite:       {ibv.Write, transport.AccessRemoteWrite},
	transport.OpWriteImm:    {ibv.WriteImm, transport.AccessRemoteWrite},
	transport.OpRead:        {ibv.Read, transport.AccessRemoteRead},
	transport.OpCompareSwap: {ibv.CompareSwap, transport.AccessRemoteAtomic},
	transport.OpFetchAdd:    {ibv.FetchAdd, transport.AccessRemoteAtomic},
	transport.OpSend:        {ibv.Send, 0},
}
