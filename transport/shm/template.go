package shm

import (
	"fmt"

	"moerail/transport"
)

// template is a list of targets whose handles were resolved once. It goes with
// the first of its handles.
type template struct{ entries []templateEntry }

type templateEntry struct {
	peer   *peer
	local  *region // nil for NoKey
	remote *remote // nil for NoRemote
}

// NewTemplate implements transport.Domain.
func (d *domain) NewTemplate(entries []transport.TemplateEntry) (transport.Template, error) {
	if err := d.enterCold(); err != nil {
		return -1, err
	}
	defer d.leaveCold()
	t := &template{entries: make([]templateEntry, len(entries))}
	for i, e := range entries {
		x := templateEntry{peer: d.peers.get(int32(e.Peer))}
		if x.peer == nil {
			return -1, fmt.Errorf("%w: entry %d: peer %d", transport.ErrBadHandle, i, e.Peer)
		}
		if e.Local != transport.NoKey {
			if x.local = d.regions.get(int32(e.Local)); x.local == nil {
				return -1, fmt.Errorf("%w: entry %d: local key %d", transport.ErrBadHandle, i, e.Local)
			}
		}
		if e.Remote != transport.NoRemote {
			if x.remote = d.remotes.get(int32(e.Remote)); x.remote == nil || x.remote.peer != x.peer {
				return -1, fmt.Errorf("%w: entry %d: remote %d of peer %d", transport.ErrBadHandle, i, e.Remote, e.Peer)
			}
		}
		t.entries[i] = x
	}
	h, ok := d.templates.add(t)
	if !ok {
		return -1, fmt.Errorf("shm: %d templates exist, which is the limit", handleSlots)
	}
	return transport.Template(h), nil
}

// FreeTemplate implements transport.Domain.
func (d *domain) FreeTemplate(h transport.Template) error {
	if err := d.enterCold(); err != nil {
		return err
	}
	defer d.leaveCold()
	if d.templates.get(int32(h)) == nil {
		return fmt.Errorf("%w: template %d", transport.ErrBadHandle, h)
	}
	d.templates.remove(int32(h))
	return nil
}

// dropTemplates frees the templates that have an entry which ends.
func (d *domain) dropTemplates(ends func(*templateEntry) bool) {
	d.templates.all(func(h int32, t *template) {
		for i := range t.entries {
			if ends(&t.entries[i]) {
				d.templates.remove(h)
				return
			}
		}
	})
}

// PostScatter implements transport.Domain.
func (d *domain) PostScatter(h transport.Template, id transport.WRID, ops []transport.ScatterOp) (int, error) {
	if !d.enter() {
		return 0, transport.ErrClosed
	}
	n, err := d.scatter(h, id, ops)
	d.countPost(n, err)
	d.leave()
	return n, err
}

func (d *domain) scatter(h transport.Template, id transport.WRID, ops []transport.ScatterOp) (int, error) {
	t := d.templates.get(int32(h))
	if t == nil {
		return 0, fmt.Errorf("%w: template %d", transport.ErrBadHandle, h)
	}
	for n := range ops {
		if d.full() {
			return n, transport.ErrAgain
		}
		op := &ops[n]
		if op.Entry < 0 || int(op.Entry) >= len(t.entries) {
			return n, fmt.Errorf("%w: entry %d of a template with %d", transport.ErrOutOfRange, op.Entry, len(t.entries))
		}
		e := &t.entries[op.Entry]
		var src []byte
		if e.local != nil {
			var err error
			if src, err = e.local.slice(op.LocalOff, op.Len); err != nil {
				return n, err
			}
		}
		if e.remote != nil {
			if err := e.remote.check(op.RemoteOff, op.Len); err != nil {
				return n, err
			}
		}
		if op.Len > 0 && (e.local == nil || e.remote == nil) {
			return n, fmt.Errorf("%w: %d bytes for entry %d, which has no memory", transport.ErrBadHandle, op.Len, op.Entry)
		}
		if op.NoImm {
			d.write(id, e.peer, e.remote, op.RemoteOff, src)
		} else {
			d.writeImm(id, e.peer, e.remote, op.RemoteOff, src, op.Imm)
		}
	}
	return len(ops), nil
}
