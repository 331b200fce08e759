//go:build libfabric && cgo

package efa

import (
	"fmt"

	"moerail/internal/fabric"
	"moerail/transport"
)

// template is a list of targets whose handles were resolved once, and whose
// requests stand in C memory with everything filled in that does not change. It
// goes with the first of its handles; its C memory with the last operation that
// uses it.
type template struct {
	entries  []templateEntry
	targets  fabric.Targets
	inFlight int
	freed    bool
}

type templateEntry struct {
	peer   *peer
	local  *region // nil for NoKey
	remote *remote // nil for NoRemote
	target uint64  // C address, 0 where a request must be made from its parts
}

// NewTemplate implements transport.Domain.
func (d *domain) NewTemplate(entries []transport.TemplateEntry) (transport.Template, error) {
	if err := d.enterCold(); err != nil {
		return -1, err
	}
	defer d.leaveCold()
	t := &template{entries: make([]templateEntry, len(entries))}
	for i, e := range entries {
		x := &t.entries[i]
		pp := d.peers.Get(int32(e.Peer))
		if pp == nil {
			return -1, fmt.Errorf("%w: entry %d: peer %d", transport.ErrBadHandle, i, e.Peer)
		}
		x.peer = *pp
		if e.Local != transport.NoKey {
			r := d.regions.Get(int32(e.Local))
			if r == nil {
				return -1, fmt.Errorf("%w: entry %d: local key %d", transport.ErrBadHandle, i, e.Local)
			}
			x.local = *r
		}
		if e.Remote != transport.NoRemote {
			r := d.remotes.Get(int32(e.Remote))
			if r == nil || (*r).peer != x.peer {
				return -1, fmt.Errorf("%w: entry %d: remote %d of peer %d", transport.ErrBadHandle, i, e.Remote, e.Peer)
			}
			x.remote = *r
		}
	}
	var err error
	if t.targets, err = fabric.NewTargets(len(entries)); err != nil {
		return -1, fmt.Errorf("efa: %s: %w", d.name, err)
	}
	h, err := d.templates.Add(t)
	if err != nil {
		t.targets.Free()
		return -1, err
	}
	for i := range t.entries {
		if e := &t.entries[i]; e.local != nil && e.remote != nil && len(e.local.regs) == 1 && len(e.remote.key.keys) == 1 &&
			e.remote.key.access&transport.AccessRemoteWrite != 0 && !e.peer.gone {
			t.targets.Set(d.f, i, e.peer.number, e.local.regs[0].Desc, e.remote.key.keys[0])
			e.target = t.targets.Addr(i)
		}
	}
	return transport.Template(h), nil
}

// FreeTemplate implements transport.Domain.
func (d *domain) FreeTemplate(h transport.Template) error {
	if err := d.enterCold(); err != nil {
		return err
	}
	defer d.leaveCold()
	if d.templates.Get(int32(h)) == nil {
		return fmt.Errorf("%w: template %d", transport.ErrBadHandle, h)
	}
	d.freeTemplate(int32(h))
	return nil
}

func (d *domain) freeTemplate(h int32) {
	t := *d.templates.Get(h)
	d.templates.Remove(h)
	t.freed = true
	if t.inFlight == 0 {
		t.targets.Free()
	}
}

// unuse ends one operation's use of a template.
func (t *template) unuse() {
	if t.inFlight--; t.inFlight == 0 && t.freed {
		t.targets.Free()
	}
}

// dropTemplates frees the templates that have an entry which ends.
func (d *domain) dropTemplates(ends func(*templateEntry) bool) {
	d.templates.Each(func(h int32, t **template) {
		for i := range (*t).entries {
			if ends(&(*t).entries[i]) {
				d.freeTemplate(h)
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
	if err == transport.ErrAgain {
		d.stat.again.Add(1)
	}
	d.leave()
	return n, err
}

func (d *domain) scatter(h transport.Template, id transport.WRID, ops []transport.ScatterOp) (int, error) {
	tp := d.templates.Get(int32(h))
	if tp == nil {
		return 0, fmt.Errorf("%w: template %d", transport.ErrBadHandle, h)
	}
	t := *tp
	for n := range ops {
		op := &ops[n]
		if op.Entry < 0 || int(op.Entry) >= len(t.entries) {
			return n, fmt.Errorf("%w: entry %d of a template with %d", transport.ErrBadHandle, op.Entry, len(t.entries))
		}
		e := &t.entries[op.Entry]
		w := write{
			id: id, op: transport.OpWriteImm, peer: e.peer, local: e.local, remote: e.remote,
			localOff: op.LocalOff, remoteOff: op.RemoteOff, len: op.Len, imm: op.Imm, need: transport.AccessRemoteWrite,
		}
		if op.NoImm {
			w.op = transport.OpWrite
		}
		if err := d.checkWrite(&w); err != nil {
			return n, err
		}
		if d.full() {
			return n, transport.ErrAgain
		}
		if e.target != 0 && op.Len > 0 {
			d.aim(t, e.target, &w)
		} else {
			d.start(&w)
		}
	}
	return len(ops), nil
}

// aim posts a write by a target of a template.
func (d *domain) aim(t *template, target uint64, w *write) {
	slot, op := d.take()
	op.Src, op.Raddr, op.Rkey, op.Len = w.local.addr+w.localOff, w.remote.key.base+w.remoteOff, target, w.len
	op.Kind, op.Flags, op.Peer = fabric.Write, fabric.FlagTarget, w.peer.number
	if w.op == transport.OpWriteImm {
		op.Flags |= fabric.FlagImm
		op.Data = d.mark(w.peer, w.imm)
	}
	t.inFlight++
	d.launch(slot, w)
	d.flights[slot].tmpl = t
}
