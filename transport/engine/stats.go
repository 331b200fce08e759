package engine

import (
	"sync/atomic"

	"moerail/transport"
)

// Stats is a snapshot of what an engine has done since New.
type Stats struct {
	NICs []NICStats

	Commands          uint64 // transfers taken from applications
	TransfersDone     uint64 // ended well
	TransfersFailed   uint64 // ended with an error, closed ones included
	TransfersCanceled uint64
	OpsPosted         uint64 // operations that a domain accepted
	OpsFailed         uint64 // operations refused by a domain or completed in error
	Requeued          uint64 // times a full queue left something for a later turn
	Imms              uint64 // immediates handed to claims and counters
	ImmsEarly         uint64 // kept until somebody claims them
	ImmsStale         uint64 // arrived for a released immediate
	ImmsLost          uint64 // early beyond Config.MaxEarlyImms
	MessagesReceived  uint64
	StrayCompletions  uint64 // completions of nothing that was in flight: a provider's fault
	Parks, Wakes      uint64
}

// NICStats are one domain's own counts.
type NICStats struct {
	Name string
	transport.Stats
	Failed bool // the domain reported a fatal error and is no longer used
}

type counters struct {
	commands, done, failed, cancelled atomic.Uint64
	posted, opsFailed, requeued       atomic.Uint64
	imms, early, stale, lost          atomic.Uint64
	messages, stray, parks, wakes     atomic.Uint64
}

// Stats may be called from any goroutine, also after Close.
func (e *Engine) Stats() Stats {
	c := &e.stats
	s := Stats{
		Commands: c.commands.Load(), TransfersDone: c.done.Load(), TransfersFailed: c.failed.Load(),
		TransfersCanceled: c.cancelled.Load(), OpsPosted: c.posted.Load(), OpsFailed: c.opsFailed.Load(),
		Requeued: c.requeued.Load(), Imms: c.imms.Load(), ImmsEarly: c.early.Load(), ImmsStale: c.stale.Load(),
		ImmsLost: c.lost.Load(), MessagesReceived: c.messages.Load(), StrayCompletions: c.stray.Load(),
		Parks: c.parks.Load(), Wakes: c.wakes.Load(),
	}
	for _, n := range e.w.nics {
		s.NICs = append(s.NICs, NICStats{Name: n.name, Stats: n.dom.Stats(), Failed: n.down.Load()})
	}
	return s
}
