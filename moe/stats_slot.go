package moe

// SlotWire is what the rounds of one slot posted to the fabric.
type SlotWire struct {
	Messages, Bytes, Rows uint64 // as in Stats
}

// SlotWire counts since New, for one slot of this rank: the same counts that
// Stats sums over all slots. It is zero for a slot that is not there.
func (c *Communicator) SlotWire(slot int) SlotWire {
	if slot < 0 || slot >= len(c.slots) {
		return SlotWire{}
	}
	d, k := &c.slots[slot].dispatch.Counters, &c.slots[slot].combine.Counters
	return SlotWire{
		Messages: d.Messages.Load() + k.Messages.Load(),
		Bytes:    d.Bytes.Load() + k.Bytes.Load(),
		Rows:     d.Rows.Load(),
	}
}
