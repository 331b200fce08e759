//go:build libfabric && cgo

package efa

import (
	"moerail/internal/fabric"
	"moerail/transport"
)

// split is a write or read across a seam between registrations. Its parts are
// posted as slots allow. An immediate goes last, on its own, and only after the
// parts are in the target's memory: nothing orders it after them otherwise.
type split struct {
	w      write
	at     uint64 // of the first byte not posted
	parts  int    // in flight
	status transport.Status
	vendor uint32
	last   bool // the immediate was posted
}

// seam tells whether a range lies in more than one piece.
func (r *region) seam(off, n uint64) bool {
	return len(r.regs) > 1 && off/r.key.piece != (off+n-1)/r.key.piece
}

func (r *remote) seam(off, n uint64) bool {
	return len(r.key.keys) > 1 && off/r.key.piece != (off+n-1)/r.key.piece
}

func (d *domain) startSplit(w *write) {
	s := &split{w: *w}
	d.inFlight++ // the whole; its parts count as one
	d.advance(s)
}

// advance posts what can be posted of s.
func (d *domain) advance(s *split) {
	gone := s.w.peer.removed || s.w.local != nil && s.w.local.closed.Load()
	if gone && s.status == transport.StatusOK {
		s.status = transport.StatusFlushed
	}
	for s.at < s.w.len && s.status == transport.StatusOK && len(d.free) > 0 {
		part := s.w
		part.inline = false
		part.localOff += s.at
		part.remoteOff += s.at
		part.len = s.w.len - s.at
		if n := len(part.local.regs); n > 1 {
			part.len = min(part.len, part.local.key.piece-part.localOff%part.local.key.piece)
		}
		if n := len(part.remote.key.keys); n > 1 {
			part.len = min(part.len, part.remote.key.piece-part.remoteOff%part.remote.key.piece)
		}
		deliver := s.w.op == transport.OpWriteImm
		if deliver {
			part.op = transport.OpWrite
		}
		s.at += part.len
		d.launchPart(s, &part, deliver)
	}
	if s.at == s.w.len && s.parts == 0 && s.w.op == transport.OpWriteImm && !s.last && s.status == transport.StatusOK && len(d.free) > 0 {
		s.last = true
		last := s.w
		last.len, last.local = 0, nil
		d.launchPart(s, &last, false)
	}
}

func (d *domain) launchPart(s *split, part *write, deliver bool) {
	slot, op := d.take()
	if deliver {
		op.Flags |= fabric.FlagDeliver
	}
	d.fill(slot, op, part)
	d.launch(slot, part)
	d.inFlight--
	fl := &d.flights[slot]
	fl.split, fl.local = s, s.w.local
	s.parts++
}

// partEnded takes the end of a part; done tells that the whole has ended.
func (d *domain) partEnded(s *split, c *transport.Completion) (done bool) {
	s.parts--
	if c.Status != transport.StatusOK && s.status == transport.StatusOK {
		s.status, s.vendor = c.Status, c.Vendor
	}
	d.advance(s)
	if s.parts > 0 || s.status == transport.StatusOK && (s.at < s.w.len || s.w.op == transport.OpWriteImm && !s.last) {
		return false
	}
	*c = transport.Completion{ID: s.w.id, Op: s.w.op, Peer: s.w.peer.handle, Status: s.status, Vendor: s.vendor}
	if s.status == transport.StatusOK {
		c.Bytes = s.w.len
	}
	return true
}
