package engine

import (
	"fmt"

	"moerail/transport"
)

// PeerGroup is a list of peers' regions with everything resolved that does not
// change from one scatter to the next: one template per NIC.
type PeerGroup struct {
	e         *Engine
	id        uint32 // 1 + index in Worker.groups
	local     *Region
	localSize uint64
	entries   []groupEntry
	entry     []int32 // template entry -> group entry
	template  []transport.Template
	closed    bool // worker
}

type groupEntry struct {
	slot   int32  // in the templates, -1 for a hole
	size   uint64 // bytes, as the peer declared them
	peer   [MaxNICs]transport.Peer
	remote [MaxNICs]transport.Remote
}

// Len is the number of entries, holes included.
func (g *PeerGroup) Len() int { return len(g.entries) }

// IsHole tells whether entry i can not be posted to.
func (g *PeerGroup) IsHole(i int) bool { return g.entries[i].slot < 0 }

// AddPeerGroup makes a group that writes from local to the regions that peers
// describe, entry i to peers[i]. A zero Descriptor is a hole: posting to it is
// an error. A descriptor for another number of NICs is refused with
// ErrNICMismatch. On error nothing is left behind.
func (e *Engine) AddPeerGroup(local *Region, peers []Descriptor) (*PeerGroup, error) {
	if local == nil || local.e != e {
		return nil, fmt.Errorf("%w: local region", ErrForeign)
	}
	for i, d := range peers {
		if d.IsZero() {
			continue
		}
		if err := e.checkDescriptor(d); err != nil {
			return nil, fmt.Errorf("group entry %d: %w", i, err)
		}
	}
	g := &PeerGroup{e: e, local: local, localSize: local.size, entries: make([]groupEntry, len(peers))}
	var err error
	if callErr := e.Call(func(w *Worker) {
		if local.closed {
			err = fmt.Errorf("%w: local region", ErrForeign)
			return
		}
		if err = g.resolve(w, peers); err != nil {
			_ = g.release(w)
			return
		}
		w.addGroup(g)
	}); callErr != nil {
		return nil, callErr
	}
	if err != nil {
		return nil, err
	}
	return g, nil
}

func (w *Worker) addGroup(g *PeerGroup) {
	for i, q := range w.groups {
		if q == nil {
			w.groups[i] = g
			g.id = uint32(i + 1)
			return
		}
	}
	w.groups = append(w.groups, g)
	g.id = uint32(len(w.groups))
}

func (g *PeerGroup) resolve(w *Worker, peers []Descriptor) error {
	for i := range g.entries {
		g.entries[i].slot = -1
	}
	for i, d := range peers {
		if d.IsZero() {
			continue
		}
		en := &g.entries[i]
		var err error
		if en.peer, en.remote, err = w.importAll(d); err != nil {
			return fmt.Errorf("group entry %d: %w", i, err)
		}
		en.size = d.Size
		en.slot = int32(len(g.entry))
		g.entry = append(g.entry, int32(i))
	}
	for k, n := range w.nics {
		list := make([]transport.TemplateEntry, len(g.entry))
		for s, i := range g.entry {
			en := &g.entries[i]
			list[s] = transport.TemplateEntry{Peer: en.peer[k], Local: g.local.lkey[k], Remote: en.remote[k]}
		}
		t, err := n.dom.NewTemplate(list)
		if err != nil {
			return fmt.Errorf("engine: template on NIC %s: %w", n.name, err)
		}
		g.template = append(g.template, t)
	}
	return nil
}

func (g *PeerGroup) release(w *Worker) error {
	g.closed = true
	var first error
	note := func(err error) {
		if err != nil && first == nil {
			first = err
		}
	}
	for k, t := range g.template {
		note(w.nics[k].dom.FreeTemplate(t))
	}
	for _, i := range g.entry {
		note(w.releaseAll(g.entries[i].remote))
	}
	return first
}

// Close frees the group. What is queued for it fails with ErrForeign, what is
// in flight ends as usual. Closing twice, or after the engine, is harmless.
func (g *PeerGroup) Close() error {
	var err error
	_ = g.e.Call(func(w *Worker) {
		if g.closed {
			return
		}
		w.groups[g.id-1] = nil
		err = g.release(w)
	})
	return err
}
