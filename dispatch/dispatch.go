// Package dispatch is the proxy's half of a dispatch: it sees the device's
// words, posts the blocks, counts what arrives and tells the device. One Side
// serves one slot; all of it runs on the engine's worker thread.
//
//	device words --> Step: post blocks ------------------> peers
//	peers' immediates --> Arrived --> Step: Control words --> device
//
// On the exact path (windows smaller than the token limit) the row counts of all
// ranks are exchanged first; see exact.go.
package dispatch

import (
	"fmt"
	"sync/atomic"

	"moerail/kernels"
	"moerail/moe/routing"
	"moerail/transport"
	"moerail/transport/engine"
	"moerail/uvmwatch"
)

// Config is what a Side works with; all of it outlives the side.
type Config struct {
	Plan    *routing.Plan
	Slot    int
	Base    transport.Imm     // of the communicator's range of immediates
	Group   *engine.PeerGroup // entry q: this rank's outbox to q's inbox
	Tracker *engine.Tracker   // this side's own
	Words   *uvmwatch.Block   // rows for each rank, written by dispatch_send
	Control *kernels.Control
	Direct  []bool // ranks that are stored to by the device, and store here
	Round   uint64 // the first round
	// Route is set on the exact path.
	Route *Route
}

// Side is the dispatch half of one slot's proxy.
type Side struct {
	cfg    Config
	me     int
	remote []int // ranks that the fabric carries to and from, in sending order

	round   uint64
	next    int  // index into remote of the first block not yet posted
	posted  bool // every block of the round is
	arrived bool // every block of the round has, and the device was told
	txDone  bool // the round's sends completed, and the device was told

	rows []uint32 // rows to each rank in this round
	in   [2]arrivals
	ops  []engine.GroupOp

	exact exactState

	// Counters are read by other goroutines.
	Counters Counters
	// Overflows are the ranks that would have received too much in the last round
	// that was given up for that reason, and how many rows each. It is stable from
	// Control.Overflow telling of the round until the slot's next round.
	Overflows []Overflow
}

// Overflow is a rank that would receive more than MaxRecvRows.
type Overflow struct {
	Rank int
	Rows uint64
}

// Counters of what a side posted since it was made.
type Counters struct {
	Rounds, Posts, Messages, Bytes, Rows atomic.Uint64
}

// arrivals is what came for the rounds of one parity. A fast peer may be one
// round ahead, never two, so the other parity's is always fresh.
type arrivals struct {
	announced []bool
	further   []uint32 // shards after the announcing one
	payload   []uint32
	complete  int
}

// FaultError says that a peer sent what no peer following the protocol sends.
type FaultError struct {
	Rank int
	What string
}

func (e *FaultError) Error() string {
	return fmt.Sprintf("rank %d broke the protocol: %s", e.Rank, e.What)
}

// New makes a side; the engine's worker owns it afterwards.
func New(cfg Config) *Side {
	r := int(cfg.Plan.Shape.NumRanks)
	s := &Side{cfg: cfg, me: int(cfg.Plan.Shape.Rank), round: cfg.Round, rows: make([]uint32, r)}
	for _, q := range routing.Others(s.me, r) {
		if !cfg.Direct[q] {
			s.remote = append(s.remote, q)
		}
	}
	for i := range s.in {
		s.in[i] = arrivals{announced: make([]bool, r), further: make([]uint32, r), payload: make([]uint32, r)}
	}
	s.ops = make([]engine.GroupOp, 0, 2*routing.MaxNICs*max(1, len(s.remote)))
	if cfg.Plan.Exact {
		s.exact.init(cfg.Plan)
		s.Overflows = make([]Overflow, 0, r)
	}
	return s
}

// Remote is the number of ranks that the fabric carries to and from.
func (s *Side) Remote() int { return len(s.remote) }

// Pending tells whether Step has something to do. It costs a few loads.
func (s *Side) Pending() bool {
	if len(s.remote) == 0 {
		return false
	}
	if !s.posted {
		if s.cfg.Plan.Exact {
			return s.exactPending()
		}
		if uint32(s.cfg.Words.Word(s.remote[s.next]).Load()) == routing.Tag(s.round) {
			return true
		}
	}
	return !s.arrived && s.allArrived() || s.posted && !s.txDone && s.cfg.Tracker.Outstanding() == 0
}

// Overflowing tells whether the given round was given up since some rank would
// receive too much; the combine half skips it.
func (s *Side) Overflowing(round uint64) bool { return s.exact.skipped == round+1 }

// Posted tells whether every block of the given round has been posted.
func (s *Side) Posted(round uint64) bool {
	return s.round > round || s.round == round && s.posted
}

// Arrived takes one immediate of source src: a block's announcement, a shard, or
// a row of the route table. It fails if no correct peer would have sent it.
func (s *Side) Arrived(m routing.Meaning, src int) error {
	if src == s.me || s.cfg.Direct[src] {
		return &FaultError{src, "a block over the fabric where none is due"}
	}
	a := &s.in[m.Parity]
	switch m.Kind {
	case routing.KindDispatch:
		if a.announced[src] || s.cfg.Plan.Exact {
			return &FaultError{src, "a second block in one round"}
		}
		a.announced[src], a.further[src] = true, uint32(m.Further)
	case routing.KindPayload:
		a.payload[src]++
	case routing.KindRoute:
		if !s.cfg.Plan.Exact {
			return &FaultError{src, "a route row without an exact path"}
		}
		return s.exact.routeArrived(m.Parity, src)
	}
	if s.cfg.Plan.Exact {
		return s.exactPayload(m.Parity, src)
	}
	if a.announced[src] {
		if a.payload[src] == a.further[src] {
			a.complete++
		} else if a.payload[src] > a.further[src] {
			return &FaultError{src, "more shards than announced"}
		}
	}
	return nil
}

// Step does what can be done now and tells whether it did anything. It costs one
// load when there is nothing to do.
func (s *Side) Step(w *engine.Worker) (busy bool, err error) {
	if len(s.remote) == 0 {
		return false, nil
	}
	if !s.posted {
		if s.cfg.Plan.Exact {
			busy, err = s.stepExactSend(w)
		} else {
			busy, err = s.stepSend(w)
		}
		if err != nil {
			return true, err
		}
	}
	if !s.arrived && s.allArrived() {
		s.arrived, busy = true, true
		s.in[s.round&1].reset()
		s.tellArrived()
	}
	if s.posted && !s.txDone && s.cfg.Tracker.Outstanding() == 0 {
		s.txDone, busy = true, true
		s.cfg.Control.DispatchTxDone.Store(s.round + 1)
	}
	if s.posted && s.arrived && s.txDone {
		s.round++
		s.next, s.posted, s.arrived, s.txDone = 0, false, false, false
		s.exact.reset()
		s.Counters.Rounds.Add(1)
	}
	return busy, nil
}

func (s *Side) allArrived() bool {
	if s.cfg.Plan.Exact {
		return s.exactArrived()
	}
	return s.in[s.round&1].complete == len(s.remote)
}

func (s *Side) tellArrived() {
	if s.exact.overflow {
		s.cfg.Control.Overflow.Store(s.round + 1)
		return
	}
	s.cfg.Control.DispatchArrived.Store(s.round + 1)
}

func (a *arrivals) reset() {
	clear(a.announced)
	clear(a.further)
	clear(a.payload)
	a.complete = 0
}

// ready reads the device's word for rank q: how many rows it has made, or false
// while the block is not finished.
func (s *Side) ready(q int) (rows uint32, ok bool, err error) {
	v := s.cfg.Words.Word(q).Load()
	if uint32(v) != routing.Tag(s.round) {
		return 0, false, nil
	}
	rows = uint32(v >> 32)
	if limit := s.cfg.Plan.Shape.MaxTokens; rows > limit {
		return 0, false, fmt.Errorf("dispatch: device reports %d rows for rank %d, the limit is %d", rows, q, limit)
	}
	return rows, true, nil
}

// stepSend posts the blocks that the device has finished, in its order.
func (s *Side) stepSend(w *engine.Worker) (busy bool, err error) {
	s.ops = s.ops[:0]
	var rowsOut, bytesOut uint64
	for ; s.next < len(s.remote); s.next++ {
		q := s.remote[s.next]
		rows, ok, err := s.ready(q)
		if err != nil {
			return true, err
		}
		if !ok {
			break
		}
		s.rows[q] = rows
		bytes := s.cfg.Plan.BlockBytes(rows)
		s.block(q, bytes, false)
		rowsOut += uint64(rows)
		bytesOut += bytes
	}
	if len(s.ops) == 0 {
		return false, nil
	}
	s.posted = s.next == len(s.remote)
	s.count(rowsOut, bytesOut)
	return true, w.Scatter(s.cfg.Group, s.cfg.Tracker, s.ops)
}

// block adds the writes of the first bytes of q's block to s.ops.
func (s *Side) block(q int, bytes uint64, exact bool) {
	pl, parity := s.cfg.Plan, uint8(s.round&1)
	n := pl.Shards(bytes)
	local := pl.SendOffset(s.cfg.Slot, q)
	remote := pl.WindowOffset(s.cfg.Slot, int(parity), s.me)
	for i := range n {
		off, length := routing.ShardRange(bytes, n, i)
		m := routing.Meaning{Kind: routing.KindPayload, Parity: parity, Slot: uint8(s.cfg.Slot)}
		if i == 0 && !exact {
			m.Kind, m.Further = routing.KindDispatch, uint8(n-1)
		}
		s.ops = append(s.ops, engine.GroupOp{
			Entry: int32(q), NIC: pl.ShardNIC(q, i), Imm: s.cfg.Base + transport.Imm(pl.ImmIndex(m)),
			LocalOff: local + off, RemoteOff: remote + off, Len: length,
		})
	}
}

func (s *Side) count(rows, bytes uint64) {
	s.Counters.Posts.Add(1)
	s.Counters.Messages.Add(uint64(len(s.ops)))
	s.Counters.Rows.Add(rows)
	s.Counters.Bytes.Add(bytes)
}

// Late adds to late the ranks whose data of the given round is missing.
func (s *Side) Late(round uint64, late []int) []int {
	if s.round > round || s.arrived {
		return late
	}
	a := &s.in[s.round&1]
	for _, q := range s.remote {
		if s.cfg.Plan.Exact {
			if s.exact.lateFrom(s, q) {
				late = append(late, q)
			}
		} else if !a.announced[q] || a.payload[q] < a.further[q] {
			late = append(late, q)
		}
	}
	return late
}
