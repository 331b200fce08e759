package dispatch

import (
	"encoding/binary"

	"moerail/moe/routing"
	"moerail/transport"
	"moerail/transport/engine"
)

// Route is where the ranks' row counts meet on the exact path: host memory that
// every peer may write, since proxies read it.
type Route struct {
	Group  *engine.PeerGroup // entry q: this rank's route memory to q's
	Memory []byte            // RouteBytes of the plan
}

// RouteBytes is the size of a rank's route memory: for each slot and parity a
// table of R rows, and this rank's own row to send from.
func RouteBytes(pl *routing.Plan) uint64 {
	r := uint64(pl.Shape.NumRanks)
	return uint64(pl.Slots) * 2 * (r + 1) * r * 4
}

func routeOffset(pl *routing.Plan, slot int, parity uint8, row int) uint64 {
	r := uint64(pl.Shape.NumRanks)
	return ((uint64(slot)*2+uint64(parity))*(r+1) + uint64(row)) * r * 4
}

// exactState is what the exact path knows of the round under way.
type exactState struct {
	matrix    *routing.Matrix
	route     [2]routeArrivals
	routeSent bool
	straight  int  // index into remote of the first block whose window part is not posted
	known     bool // the matrix is complete and checked
	overflow  bool // some rank would receive too much: no overflow moves, the round ends
	over      []int
	due       []uint32
	skipped   uint64 // the last round that overflowed, plus one
}

type routeArrivals struct {
	from  []bool
	count int
}

func (x *exactState) init(pl *routing.Plan) {
	r := int(pl.Shape.NumRanks)
	x.matrix = routing.NewMatrix(pl)
	x.over, x.due = make([]int, 0, r), make([]uint32, r)
	for i := range x.route {
		x.route[i].from = make([]bool, r)
	}
}

func (x *exactState) routeArrived(parity uint8, src int) error {
	a := &x.route[parity]
	if a.from[src] {
		return &FaultError{src, "a second route row in one round"}
	}
	a.from[src] = true
	a.count++
	return nil
}

// exactPayload looks at the shards that came from src: what is due is known only
// once the matrix is, which learn checks too.
func (s *Side) exactPayload(parity uint8, src int) error {
	x := &s.exact
	if x.known && !s.arrived && parity == uint8(s.round&1) && s.in[parity].payload[src] > x.due[src] {
		return &FaultError{src, "more shards than its row counts make"}
	}
	return nil
}

func (x *exactState) reset() {
	x.routeSent, x.straight, x.known, x.overflow = false, 0, false, false
}

func (s *Side) exactPending() bool {
	x := &s.exact
	if !x.routeSent {
		return uint32(s.cfg.Words.Word(s.next).Load()) == routing.Tag(s.round)
	}
	return x.known || x.route[s.round&1].count == len(s.remote)
}

// stepExactSend sends the row counts once the device has made every block, then
// the blocks' window parts, then, when all counts are in, what lies beyond.
func (s *Side) stepExactSend(w *engine.Worker) (busy bool, err error) {
	x, pl := &s.exact, s.cfg.Plan
	if !x.routeSent {
		// next counts all ranks here: the own rows and those of direct peers are in
		// the matrix too.
		for ; s.next < int(pl.Shape.NumRanks); s.next++ {
			rows, ok, err := s.ready(s.next)
			if err != nil {
				return true, err
			}
			if !ok {
				return false, nil
			}
			s.rows[s.next] = rows
		}
		x.routeSent = true
		if err := s.sendRoute(w); err != nil {
			return true, err
		}
		if err := s.sendStraight(w); err != nil {
			return true, err
		}
		busy = true
	}
	if !x.known {
		if x.route[s.round&1].count < len(s.remote) {
			return busy, nil
		}
		if err := s.learn(); err != nil {
			return true, err
		}
	}
	s.posted = true
	if x.overflow {
		return true, nil
	}
	return true, s.sendBeyond(w)
}

func (s *Side) sendRoute(w *engine.Worker) error {
	pl, parity := s.cfg.Plan, uint8(s.round&1)
	r := int(pl.Shape.NumRanks)
	own := s.cfg.Route.Memory[routeOffset(pl, s.cfg.Slot, parity, r):]
	for q, n := range s.rows {
		binary.LittleEndian.PutUint32(own[4*q:], n)
	}
	m := routing.Meaning{Kind: routing.KindRoute, Parity: parity, Slot: uint8(s.cfg.Slot)}
	s.ops = s.ops[:0]
	for _, q := range s.remote {
		s.ops = append(s.ops, engine.GroupOp{
			Entry: int32(q), NIC: pl.ShardNIC(q, 0), Imm: s.cfg.Base + transport.Imm(pl.ImmIndex(m)),
			LocalOff:  routeOffset(pl, s.cfg.Slot, parity, r),
			RemoteOff: routeOffset(pl, s.cfg.Slot, parity, s.me), Len: uint64(4 * r),
		})
	}
	s.count(0, uint64(4*r*len(s.ops)))
	return w.Scatter(s.cfg.Route.Group, s.cfg.Tracker, s.ops)
}

func (s *Side) sendStraight(w *engine.Worker) error {
	pl := s.cfg.Plan
	s.ops = s.ops[:0]
	var rows, bytes uint64
	for _, q := range s.remote {
		n := min(s.rows[q], pl.Shape.WindowRows)
		b := pl.BlockBytes(n)
		s.block(q, b, true)
		rows += uint64(n)
		bytes += b
	}
	s.count(rows, bytes)
	return w.Scatter(s.cfg.Group, s.cfg.Tracker, s.ops)
}

// learn reads the complete matrix and what it implies: who overflows, and how
// many immediates are due from whom.
func (s *Side) learn() error {
	x, pl, parity := &s.exact, s.cfg.Plan, uint8(s.round&1)
	r := int(pl.Shape.NumRanks)
	for p := range r {
		row := s.cfg.Route.Memory[routeOffset(pl, s.cfg.Slot, parity, p):]
		for q := range r {
			n := s.rows[q]
			if p != s.me {
				n = binary.LittleEndian.Uint32(row[4*q:])
			}
			x.matrix.Rows[p*r+q] = n
		}
	}
	if err := x.matrix.Check(); err != nil {
		return err
	}
	x.over = x.matrix.Overflowing(x.over[:0])
	if x.overflow = len(x.over) > 0; x.overflow {
		s.Overflows = s.Overflows[:0]
		for _, q := range x.over {
			s.Overflows = append(s.Overflows, Overflow{q, x.matrix.Received(q)})
		}
		x.skipped = s.round + 1
	}
	for _, p := range s.remote {
		x.due[p] = x.matrix.DueFrom(p, s.me)
		if x.overflow {
			x.due[p] = pl.Shards(pl.BlockBytes(min(x.matrix.Rows[p*r+s.me], pl.Shape.WindowRows)))
		}
		if s.in[parity].payload[p] > x.due[p] {
			return &FaultError{p, "more shards than its row counts make"}
		}
	}
	x.known = true
	a := &x.route[parity]
	clear(a.from)
	a.count = 0
	return nil
}

// sendBeyond writes the rows that no window holds to the places that all ranks
// compute alike.
func (s *Side) sendBeyond(w *engine.Worker) error {
	x, pl, parity := &s.exact, s.cfg.Plan, uint8(s.round&1)
	m := routing.Meaning{Kind: routing.KindPayload, Parity: parity, Slot: uint8(s.cfg.Slot)}
	imm := s.cfg.Base + transport.Imm(pl.ImmIndex(m))
	s.ops = s.ops[:0]
	var rows, total uint64
	for _, q := range s.remote {
		start, n := x.matrix.OverflowRow(s.me, q)
		if n == 0 {
			continue
		}
		rowBytes := uint64(pl.Shape.RowBytes)
		bytes := uint64(n) * rowBytes
		local := pl.SendOffset(s.cfg.Slot, q) + pl.BlockBytes(pl.Shape.WindowRows)
		remote := pl.OverflowOffset(s.cfg.Slot) + start*rowBytes
		shards := pl.Shards(bytes)
		for i := range shards {
			off, length := routing.ShardRange(bytes, shards, i)
			s.ops = append(s.ops, engine.GroupOp{
				Entry: int32(q), NIC: pl.ShardNIC(q, i), Imm: imm,
				LocalOff: local + off, RemoteOff: remote + off, Len: length,
			})
		}
		rows += uint64(n)
		total += bytes
	}
	if len(s.ops) == 0 {
		return nil
	}
	s.count(rows, total)
	return w.Scatter(s.cfg.Group, s.cfg.Tracker, s.ops)
}

func (s *Side) exactArrived() bool {
	if !s.exact.known {
		return false
	}
	a := &s.in[s.round&1]
	for _, p := range s.remote {
		if a.payload[p] != s.exact.due[p] {
			return false
		}
	}
	return true
}

func (x *exactState) lateFrom(s *Side, q int) bool {
	if x.known {
		return s.in[s.round&1].payload[q] < x.due[q]
	}
	return !x.route[s.round&1].from[q]
}
