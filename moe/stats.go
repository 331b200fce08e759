package moe

import "moerail/internal/mem"

// Stats count since New, for this rank.
type Stats struct {
	Rounds   uint64
	Messages uint64 // posted to the fabric by rounds
	Bytes    uint64 // their payload
	// UniqueRows are all (token, rank) rows that this rank sent, own and direct ones
	// included; Rows those that crossed the fabric.
	UniqueRows, Rows uint64
	// ReceivedRows and ReceivedPicks are what this rank's experts got.
	ReceivedRows, ReceivedPicks uint64
	// LocalBytes are rows kept or stored into memory of the same node, both ways.
	LocalBytes uint64

	ProxySteps     uint64 // worker turns in which the proxy did something
	ProxyBusyNanos uint64 // how long those took
	Posts          uint64 // calls that posted a batch of operations
	Doorbells      uint64 // as the NICs count them; of the whole engine

	ExpertPicks     []uint64 // received picks of each local expert, since the last SetPlacement
	SourceRows      []uint64 // rows received from each rank
	SourceWaitNanos []uint64 // how long after a round's first block each rank's came, summed
}

// Stats is a snapshot; call it between rounds for figures of whole rounds. After
// Close it is that of the end.
func (c *Communicator) Stats() Stats {
	c.users.Add(1)
	defer c.leave()
	if !c.closed.Load() {
		return c.stats()
	}
	if st := c.last.Load(); st != nil {
		return *st
	}
	return Stats{}
}

func (c *Communicator) stats() Stats {
	place := c.place.Load()
	st := Stats{
		ProxySteps: c.proxy.steps.Load(), ProxyBusyNanos: c.proxy.busyNanos.Load(),
		ExpertPicks: make([]uint64, len(place.own)), SourceRows: make([]uint64, c.ranks),
		SourceWaitNanos: make([]uint64, c.ranks),
	}
	for q := range c.proxy.waited {
		st.SourceWaitNanos[q] = c.proxy.waited[q].Load()
	}
	for _, s := range c.slots {
		st.Rounds += s.round.Load() - c.cfg.FirstRound
		d, k := &s.dispatch.Counters, &s.combine.Counters
		st.Messages += d.Messages.Load() + k.Messages.Load()
		st.Bytes += d.Bytes.Load() + k.Bytes.Load()
		st.Rows += d.Rows.Load()
		st.Posts += d.Posts.Load() + k.Posts.Load()
		st.UniqueRows += s.totals.uniqueRows.Load()
		st.LocalBytes += s.totals.localBytes.Load()
		st.ReceivedRows += s.totals.rows.Load()
		st.ReceivedPicks += s.totals.picks.Load()
		for q := range st.SourceRows {
			st.SourceRows[q] += s.totals.source[q].Load()
		}
		for e := range st.ExpertPicks {
			if s.place.Load() != place {
				break // no round under this placement yet
			}
			st.ExpertPicks[e] += mem.Word64(s.local.Host, s.mem.totalRows+uint64(e)*8).Load()
		}
	}
	for _, n := range c.engine.Stats().NICs {
		st.Doorbells += n.Doorbells
	}
	return st
}

// account adds a received round to the slot's totals.
func (c *Communicator) account(s *slot, b *Batch) {
	sh := &c.plan.Shape
	var unique, local uint64
	for q := range c.ranks {
		rows := s.words[0].Word(q).Load() >> 32
		unique += rows
		s.totals.source[q].Add(uint64(b.SourceRows[q]))
		if q == c.rank || c.direct[q] {
			// Rows stored there, and the results that will be stored for its tokens.
			local += rows*uint64(sh.RowBytes) + s.returned(c.plan.LaneSource(q))*uint64(sh.ReturnRowBytes)
		}
	}
	s.totals.uniqueRows.Add(unique)
	s.totals.localBytes.Add(local)
	s.totals.rows.Add(uint64(b.NumRows))
	s.totals.picks.Add(uint64(b.NumPicks))
}
