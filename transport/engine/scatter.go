package engine

import (
	"fmt"

	"moerail/transport"
)

// GroupOp is one write of a scatter: Len bytes from LocalOff of the group's
// local region to RemoteOff of entry Entry's region, over NIC NIC.
type GroupOp struct {
	Entry     int32
	NIC       int8
	NoImm     bool
	Imm       transport.Imm
	LocalOff  uint64
	RemoteOff uint64
	Len       uint64
}

// Scatter posts ops against the group's templates and books them on t. Either
// all of them are taken or, with an error naming the first fault, none. What a
// full queue does not take now is posted by later turns; a full NIC holds up no
// other. ops is the caller's again at return.
//
// Failures after this show in t.Err, not here.
func (w *Worker) Scatter(g *PeerGroup, t *Tracker, ops []GroupOp) error {
	if g == nil || g.e != w.e || g.closed || t == nil || t.slot == 0 {
		return fmt.Errorf("%w: scatter", ErrForeign)
	}
	nics, entries := w.nics, g.entries
	for i := range ops {
		op := &ops[i]
		if uint32(op.NIC) >= uint32(len(nics)) || uint32(op.Entry) >= uint32(len(entries)) {
			return w.unstage(g.fault(op, len(nics)))
		}
		en := &entries[op.Entry]
		// A hole has size 0 and slot -1.
		if en.slot < 0 || op.Len > en.size || op.RemoteOff > en.size-op.Len ||
			op.Len > g.localSize || op.LocalOff > g.localSize-op.Len || op.Len > w.e.maxMsg {
			return w.unstage(g.fault(op, len(nics)))
		}
		n := nics[op.NIC]
		n.stage = append(n.stage, transport.ScatterOp{
			Entry: en.slot, NoImm: op.NoImm, Imm: op.Imm, LocalOff: op.LocalOff, RemoteOff: op.RemoteOff, Len: op.Len,
		})
	}
	for _, n := range nics {
		if len(n.stage) == 0 {
			continue
		}
		staged := n.stage
		t.add(n.index, len(staged))
		n.scatter(w, g, t, staged)
		n.stage = staged[:0]
	}
	return nil
}

// scatter posts ops now and queues the rest.
func (n *nic) scatter(w *Worker, g *PeerGroup, t *Tracker, ops []transport.ScatterOp) {
	for n.urgent.head == nil && n.failed == nil {
		k, err := n.dom.PostScatter(g.template[n.index], t.wrid(g), ops)
		k, refused, again := n.took(w, k, len(ops), err)
		if n.failed != nil {
			return // failNIC has taken the whole tracker off this NIC's books
		}
		ops = ops[k:]
		if refused != nil {
			w.end(t, n.index, 1, w.refusedOp(n, g, &ops[0], refused))
			ops = ops[1:]
		}
		if len(ops) == 0 {
			return
		}
		if again {
			break
		}
	}
	j := w.spareJobs
	if j == nil {
		j = &job{spare: true}
	} else {
		w.spareJobs = j.next
	}
	j.t, j.group, j.pos, j.count = t, g, 0, len(ops)
	j.ops = append(j.ops[:0], ops...)
	n.urgent.push(j)
	w.posted = true
}

func (w *Worker) unstage(err error) error {
	for _, n := range w.nics {
		n.stage = n.stage[:0]
	}
	return err
}

// fault says what is wrong with op; the caller knows that something is.
func (g *PeerGroup) fault(op *GroupOp, nics int) error {
	if op.NIC < 0 || int(op.NIC) >= nics {
		return fmt.Errorf("%w: NIC %d, want 0 to %d", ErrArgument, op.NIC, nics-1)
	}
	if op.Entry < 0 || int(op.Entry) >= len(g.entries) {
		return fmt.Errorf("%w: group entry %d, want 0 to %d", ErrArgument, op.Entry, len(g.entries)-1)
	}
	en := &g.entries[op.Entry]
	if en.slot < 0 {
		return fmt.Errorf("%w: entry %d", ErrHole, op.Entry)
	}
	if err := checkRange("local", op.LocalOff, op.Len, g.localSize); err != nil {
		return err
	}
	if err := checkRange(fmt.Sprintf("entry %d", op.Entry), op.RemoteOff, op.Len, en.size); err != nil {
		return err
	}
	return fmt.Errorf("%w: %d bytes to entry %d, one operation carries at most %d", ErrArgument, op.Len, op.Entry, g.e.maxMsg)
}

func checkRange(what string, off, length, size uint64) error {
	if length > size || off > size-length {
		return fmt.Errorf("%w: %s: %d bytes at %d of %d", transport.ErrOutOfRange, what, length, off, size)
	}
	return nil
}
