package loopback

import "moerail/transport"

// Poll moves what flies, and fills out with ends of own operations, immediates
// and filled receives. The two kinds take turns at coming first, so that
// neither starves the other when out is small.
func (d *Domain) Poll(out []transport.Completion) (int, error) {
	if err := d.enter(); err != nil {
		return 0, err
	}
	if d.fab.air != nil {
		d.fab.air.drive()
	}
	n := 0
	if d.owner.arrFirst {
		n += d.pollArrivals(out[n:])
		n += d.pollEnds(out[n:])
	} else {
		n += d.pollEnds(out[n:])
		n += d.pollArrivals(out[n:])
	}
	d.owner.arrFirst = !d.owner.arrFirst
	d.leave()
	return n, nil
}

func (d *Domain) pollEnds(out []transport.Completion) int {
	n, own := 0, &d.owner.own
	for ; n < len(out) && !own.empty(); n++ {
		out[n] = *own.front()
		own.drop()
	}
	for ; n < len(out); n++ {
		c := d.done.peek()
		if c == nil {
			break
		}
		out[n] = *c
		d.done.pop()
	}
	d.owner.inFlight -= n
	return n
}

func (d *Domain) pollArrivals(out []transport.Completion) int {
	n := 0
	for ; n < len(out); n++ {
		a := d.arrivals.peek()
		if a == nil {
			break
		}
		out[n] = transport.Completion{Op: transport.OpImm, Peer: transport.NoPeer, Imm: a.imm, Bytes: a.bytes}
		d.arrivals.pop()
	}
	d.arrivals.release()
	if n > 0 {
		d.counts.immsReceived.Store(d.counts.immsReceived.Load() + uint64(n))
	}
	for more := true; more && n < len(out); {
		var filled bool
		if filled, more = d.receive(&out[n]); filled {
			n++
		}
	}
	d.mail.release()
	return n
}
