package shm

import "moerail/transport"

// parkedImms holds immediates whose payload is in place but whose lane was full,
// in order for each peer, so that a peer which does not poll delays nobody else.
type parkedImms struct {
	pool  []parkedImm // MaxSend
	free  int32       // first free, linked by next
	used  int
	peers []*peer // those with something parked
	known int
}

type parkedImm struct {
	id    transport.WRID
	imm   transport.Imm
	bytes uint64
	next  int32
}

func (q *parkedImms) init(n int) {
	q.pool = make([]parkedImm, n)
	for i := range q.pool {
		q.pool[i].next = int32(i) + 1
	}
	q.pool[n-1].next = -1
}

// reservePeer makes room in peers, so that no post has to.
func (q *parkedImms) reservePeer() {
	if q.known++; q.known > cap(q.peers) {
		q.peers = append(make([]*peer, 0, 2*q.known), q.peers...)
	}
}

func (q *parkedImms) add(p *peer, w parkedImm) {
	i := q.free
	q.free = q.pool[i].next
	w.next = -1
	q.pool[i] = w
	q.used++
	if p.firstWait < 0 {
		p.firstWait = i
		q.peers = append(q.peers, p)
	} else {
		q.pool[p.lastWait].next = i
	}
	p.lastWait = i
}

// first is the oldest parked immediate of p; drop takes it out.
func (q *parkedImms) first(p *peer) *parkedImm { return &q.pool[p.firstWait] }

func (q *parkedImms) drop(p *peer) {
	i := p.firstWait
	p.firstWait = q.pool[i].next
	q.pool[i].next = q.free
	q.free = i
	q.used--
}

// unpark delivers what has room by now and gives up on peers that are lost.
func (d *domain) unpark() {
	keep := d.parked.peers[:0]
	for _, p := range d.parked.peers {
		pushed := false
		for p.firstWait >= 0 && !p.down() {
			w := d.parked.first(p)
			if !p.pushImm(w.imm, w.bytes) {
				break
			}
			d.delivered(p, w)
			d.parked.drop(p)
			pushed = true
		}
		if pushed {
			p.ring()
		}
		if p.down() {
			d.endParked(p, transport.StatusPeerLost)
		}
		if p.firstWait >= 0 {
			keep = append(keep, p)
		}
	}
	d.parked.peers = keep
}

func (d *domain) endParked(p *peer, st transport.Status) {
	for p.firstWait >= 0 {
		d.finish(transport.OpWriteImm, d.parked.first(p).id, p, 0, st)
		d.parked.drop(p)
	}
}

// flushParked ends all of p's with st and forgets p.
func (d *domain) flushParked(p *peer, st transport.Status) {
	d.endParked(p, st)
	d.parked.known--
	for i, q := range d.parked.peers {
		if q == p {
			d.parked.peers = append(d.parked.peers[:i], d.parked.peers[i+1:]...)
			return
		}
	}
}
