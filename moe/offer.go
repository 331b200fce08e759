package moe

import (
	"fmt"

	"moerail/dispatch"
	"moerail/internal/mem"
	"moerail/moe/routing"
	"moerail/transport"
	"moerail/transport/engine"
)

// offer registers this rank's memory and encodes what peers need of it: the
// descriptor of the inbox, then that of the route memory if there is one.
func (c *Communicator) offer() ([]byte, error) {
	var out []byte
	reg := func(m transport.Memory, a transport.Access) (*engine.Region, error) {
		r, d, err := c.engine.Register(m, a)
		if err != nil {
			return nil, err
		}
		c.regions = append(c.regions, r)
		b, err := d.MarshalBinary()
		if err != nil {
			return nil, err
		}
		if a != transport.AccessLocal {
			out = append(out, byte(len(b)), byte(len(b)>>8), byte(len(b)>>16), byte(len(b)>>24))
			out = append(out, b...)
		}
		return r, nil
	}
	// The outbox is nobody else's business: peers get no key for it.
	if _, err := reg(c.outbox, transport.AccessLocal); err != nil {
		return nil, err
	}
	if _, err := reg(c.inbox, transport.AccessRemoteWrite); err != nil {
		return nil, err
	}
	if c.plan.Exact {
		if _, err := reg(c.route, transport.AccessRemoteWrite); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// parseOffer is the inverse of offer for another rank: n descriptors of memory
// that must have the sizes given.
func parseOffer(b []byte, sizes ...uint64) ([]engine.Descriptor, error) {
	var out []engine.Descriptor
	for _, size := range sizes {
		if len(b) < 4 {
			return nil, fmt.Errorf("offer ends after %d of %d descriptors", len(out), len(sizes))
		}
		n := uint64(b[0]) | uint64(b[1])<<8 | uint64(b[2])<<16 | uint64(b[3])<<24
		b = b[4:]
		if n > uint64(len(b)) {
			return nil, fmt.Errorf("offer holds a descriptor of %d bytes in %d", n, len(b))
		}
		d, err := engine.ParseDescriptor(b[:n])
		if err != nil {
			return nil, err
		}
		if d.Size != size {
			return nil, fmt.Errorf("offer is for %d bytes, want %d", d.Size, size)
		}
		out = append(out, d)
		b = b[n:]
	}
	if len(b) != 0 {
		return nil, fmt.Errorf("offer has %d bytes too many", len(b))
	}
	return out, nil
}

// connect makes the peer groups: outbox to every inbox, route row to every route
// table. It returns the inboxes.
func (c *Communicator) connect(offers [][]byte) ([]engine.Descriptor, error) {
	sizes := []uint64{c.plan.Inbox.Bytes}
	if c.plan.Exact {
		sizes = append(sizes, dispatch.RouteBytes(c.plan))
	}
	inboxes, routes := make([]engine.Descriptor, c.ranks), make([]engine.Descriptor, c.ranks)
	for q, b := range offers {
		if q == c.rank {
			continue
		}
		ds, err := parseOffer(b, sizes...)
		if err != nil {
			return nil, fmt.Errorf("rank %d: %w", q, err)
		}
		inboxes[q] = ds[0]
		if c.plan.Exact {
			routes[q] = ds[1]
		}
	}
	g, err := c.engine.AddPeerGroup(c.regions[0], inboxes)
	if err != nil {
		return nil, err
	}
	c.groups = append(c.groups, g)
	if c.plan.Exact {
		if g, err = c.engine.AddPeerGroup(c.regions[2], routes); err != nil {
			return nil, err
		}
		c.groups = append(c.groups, g)
	}
	return inboxes, nil
}

// mapNode maps the inboxes of the ranks of this node and tells which ones it
// could. On the exact path blocks may not fit their windows, so there the fabric
// carries everything.
func (c *Communicator) mapNode(inboxes []engine.Descriptor) []byte {
	could := make([]byte, c.ranks)
	c.mapped = make([]*Communicator, c.ranks)
	for q := range c.ranks {
		if q == c.rank || c.plan.Exact || q/c.cfg.RanksPerNode != c.rank/c.cfg.RanksPerNode {
			continue
		}
		region, err := c.engine.MapRemote(inboxes[q])
		if err != nil {
			continue // Paths tells
		}
		c.mappings = append(c.mappings, region)
		m := region.Memory()
		if uint64(len(m.Host)) < c.plan.Inbox.Bytes || mem.Addr(m.Host)%routing.FlagStride != 0 {
			continue // stores and flags would not lie where the layout puts them
		}
		could[q] = 1
		c.mapped[q] = neighbour(mem.Addr(m.Host))
		for _, s := range c.slots {
			s.setPeer(c.plan, q, mem.Addr(m.Host))
		}
	}
	return could
}
