package moe

import (
	"context"
	"fmt"
	"slices"

	"moerail/internal/mem"
	"moerail/kernels/abi"
	"moerail/moe/routing"
	"moerail/peergroup"
	"moerail/transport"
)

// placed is a placement in use: who holds which expert, as Go and as the device
// read it. It lives while it is the communicator's, or some slot's round began
// under it.
type placed struct {
	experts [][]int32 // physical experts by rank
	own     []int32   // those of this rank
	memory  transport.Memory
	rank    uint64 // address of uint32[NumExperts]: rank of each expert
	local   uint64 // and of its number there
}

func newPlaced(pl *routing.Plan) (*placed, error) {
	n := uint64(len(pl.ExpertRank))
	m, err := mem.Alloc(2 * n * 4)
	if err != nil {
		return nil, err
	}
	for e := range pl.ExpertRank {
		mem.Word32(m.Host, uint64(e)*4).Store(pl.ExpertRank[e])
		mem.Word32(m.Host, (n+uint64(e))*4).Store(pl.ExpertLocal[e])
	}
	return &placed{experts: pl.LocalExperts, own: pl.LocalExperts[pl.Shape.Rank],
		memory: m, rank: mem.Addr(m.Host), local: mem.Addr(m.Host) + n*4}, nil
}

// use makes p the placement of the slot's next round. The slot has no round under
// way, so nothing reads what is changed.
func (s *slot) use(p *placed) {
	if s.place.Load() == p {
		return
	}
	for _, v := range [...]struct {
		shape *abi.Shape
		slot  *abi.Slot
	}{{&s.send.Shape, &s.send.Slot}, {&s.recv.Shape, &s.recv.Slot},
		{&s.csend.Shape, &s.csend.Slot}, {&s.crecv.Shape, &s.crecv.Slot}} {
		v.shape.NumLocalExperts = uint32(len(p.own))
		v.slot.ExpertRank, v.slot.ExpertLocal = p.rank, p.local
	}
	// The totals are by local expert, and those are others now.
	for e := range s.mem.maxLocal {
		mem.Word64(s.local.Host, s.mem.totalRows+8*e).Store(0)
	}
	s.place.Store(p)
}

// SetPlacement gives every rank other experts, as an expert load balancer asks
// for. placement is as in Config, and never nil; the number of physical experts
// stays, and no rank may get more than Config.MaxLocalExperts.
//
// It is collective: every rank calls it with the same placement, each of its slots
// having started the same number of rounds, and no other call of this rank under
// way. Rounds whose DispatchSend comes after it has returned use the new
// placement; a round under way ends with the one it began with (Batch.Experts).
//
// It fails, on every rank and with nothing changed, with *ConfigError (every
// fault of the placement), *peergroup.MismatchError (ranks disagree on it, or on
// the rounds that they have started), *peergroup.MissingError (some rank did not
// come within SetupDeadline), or *SetupError (some rank cannot; it says which).
func (c *Communicator) SetPlacement(ctx context.Context, placement [][]int32) error {
	c.users.Add(1)
	defer c.users.Add(-1)
	if c.closed.Load() {
		return c.failed()
	}
	ctx, cancel := c.cfg.deadlineContext(ctx)
	defer cancel()
	defer context.AfterFunc(c.life, cancel)() // Close does not wait for other ranks
	params := []peergroup.Param{{Name: "placement", Value: placementText(placement)}}
	for _, s := range c.slots {
		next := s.round.Load()
		if s.phase != phaseIdle {
			next++
		}
		params = append(params, peergroup.Param{Name: fmt.Sprintf("next round of slot %d", s.index), Value: fmt.Sprint(next)})
	}
	if err := peergroup.Agree(ctx, c.cfg.Group, c.cfg.Name+"/placement", params); err != nil {
		return err
	}
	// From here to share every rank comes to the same end but for its own troubles.
	cfg := c.cfg
	cfg.Placement, cfg.MaxLocalExperts = placement, int(c.plan.Shape.MaxLocalExperts)
	if placement == nil {
		return &ConfigError{Faults: []string{"placement is nil"}}
	}
	plan, err := routing.NewPlan(cfg.params(c.rank, c.ranks, c.plan.Shape.Generation))
	if err != nil {
		return err
	}
	var p *placed
	mine := c.failed()
	if mine == nil {
		p, mine = newPlaced(plan)
	}
	if _, err := c.cfg.share(ctx, "placement", nil, mine); err != nil {
		if p != nil {
			_ = mem.Free(p.memory)
		}
		return err
	}
	// No call of a slot may stand between taking a map and using it.
	for _, s := range c.slots {
		for i := 0; !s.inCall.CompareAndSwap(false, true); i++ {
			pause(i)
		}
	}
	c.place.Store(p)
	c.places = append(slices.DeleteFunc(c.places, c.forget), p)
	for _, s := range c.slots {
		s.inCall.Store(false)
	}
	return nil
}

// forget frees a placement that is nobody's any more.
func (c *Communicator) forget(p *placed) bool {
	for _, s := range c.slots {
		if s.place.Load() == p {
			return false
		}
	}
	_ = mem.Free(p.memory) // fails only for memory that is not there
	return true
}
