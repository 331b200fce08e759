package engine

import "moerail/transport"

// MaxNICs is how many NICs one engine can drive.
const MaxNICs = 4

// Tracker counts the operations of one user of the worker until their
// completions. It belongs to the worker thread and is made by Worker.NewTracker.
type Tracker struct {
	slot        uint32 // 1 + index in Worker.slots, 0 if in none
	outstanding int
	out         [MaxNICs]int32 // the same per NIC
	err         *TransferError
	x           *transfer // the transfer that this tracks, nil for a tracker of a poller
}

// Outstanding is the number of operations posted or queued and not completed.
func (t *Tracker) Outstanding() int { return t.outstanding }

// Err is the first operation that failed since the last Reset, nil if none.
func (t *Tracker) Err() *TransferError { return t.err }

// Reset forgets the error. Operations in flight stay counted.
func (t *Tracker) Reset() { t.err = nil }

// NewTracker makes a tracker. FreeTracker gives it back.
func (w *Worker) NewTracker() *Tracker {
	t := &Tracker{}
	w.enter(t)
	return t
}

// FreeTracker forgets a tracker with nothing outstanding.
func (w *Worker) FreeTracker(t *Tracker) error {
	if t.slot == 0 || t.outstanding != 0 || t.x != nil {
		return ErrArgument
	}
	w.leave(t)
	return nil
}

func (w *Worker) enter(t *Tracker) {
	if n := len(w.freeSlots); n > 0 {
		t.slot = w.freeSlots[n-1]
		w.freeSlots = w.freeSlots[:n-1]
		w.slots[t.slot-1] = t
		return
	}
	w.slots = append(w.slots, t)
	t.slot = uint32(len(w.slots))
}

func (w *Worker) leave(t *Tracker) {
	w.slots[t.slot-1] = nil
	w.freeSlots = append(w.freeSlots, t.slot)
	t.slot = 0
}

// A work request's id names its tracker and, for a scatter, its group, so that a
// failure can be traced to the entry. Receives have a bit of their own: what the
// opcode of a failed completion says need not be believed.
const recvBit transport.WRID = 1 << 63

func (t *Tracker) wrid(g *PeerGroup) transport.WRID {
	id := transport.WRID(t.slot)
	if g != nil {
		id |= transport.WRID(g.id) << 32
	}
	return id
}

func (t *Tracker) add(nic int, n int) {
	t.outstanding += n
	t.out[nic] += int32(n)
}

// end takes n operations of a NIC off the books, failed ones with the reason.
// The last one finishes the transfer, which is then gone.
func (w *Worker) end(t *Tracker, nic int, n int, err *TransferError) {
	if err != nil {
		w.e.stats.opsFailed.Add(uint64(n))
		if t.err == nil {
			t.err = err
		}
	}
	t.outstanding -= n
	t.out[nic] -= int32(n)
	if t.outstanding == 0 && t.x != nil {
		w.finish(t.x, nil)
	}
}

// completed books one completion of a NIC.
func (w *Worker) completed(n *nic, c *transport.Completion) {
	slot := uint32(c.ID)
	if slot == 0 || uint64(slot) > uint64(len(w.slots)) || w.slots[slot-1] == nil || w.slots[slot-1].out[n.index] == 0 {
		w.e.stats.stray.Add(1)
		return
	}
	t := w.slots[slot-1]
	if c.Status == transport.StatusOK {
		w.end(t, n.index, 1, nil)
		return
	}
	w.end(t, n.index, 1, &TransferError{
		Op: c.Op, Entry: w.entryOf(uint32(c.ID>>32), n.index, c.Peer), Peer: c.Peer, NIC: n.name,
		Status: c.Status, Vendor: c.Vendor, Err: statusError(c.Status),
	})
}

// entryOf finds which entry of a group a peer is; failures only.
func (w *Worker) entryOf(group uint32, nic int, p transport.Peer) int {
	if group == 0 || uint64(group) > uint64(len(w.groups)) || w.groups[group-1] == nil {
		return NoEntry
	}
	for i, e := range w.groups[group-1].entries {
		if e.slot >= 0 && e.peer[nic] == p {
			return i
		}
	}
	return NoEntry
}
