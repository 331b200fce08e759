// Package combine is the proxy's half of a combine: it posts the return blocks
// that the device has made and counts those that are owed to this rank. One Side
// serves one slot; all of it runs on the engine's worker thread.
//
// What is owed follows from this rank's own row counts, so nothing is sent for an
// empty return block and no metadata comes back. The return windows need one
// copy only: a peer's next return block cannot come before this rank's next
// dispatch block, which it sends after the round.
package combine

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
	Base    transport.Imm
	Group   *engine.PeerGroup // entry q: this rank's outbox to q's inbox
	Tracker *engine.Tracker   // this side's own
	Words   *uvmwatch.Block   // return rows for each source, written by combine_send
	// Owed is how many return rows each rank will send for this rank's tokens,
	// written by dispatch_send before its words.
	Owed    func(q int) uint32
	Control *kernels.Control
	Direct  []bool
	Round   uint64
}

// Side is the combine half of one slot's proxy.
type Side struct {
	cfg    Config
	me     int
	remote []int
	fan    []fan

	round   uint64
	known   bool // owed holds this round's numbers
	next    int  // index into fan of the first block not yet posted
	arrived bool
	txDone  bool

	owed []uint32 // shards due from each rank
	got  []uint32
	ops  []engine.GroupOp

	Counters Counters
}

// fan is one return block and who gets it: every rank of the source's replica
// group that the fabric carries to.
type fan struct {
	source int
	to     []int
}

// Counters of what a side posted since it was made, read by other goroutines.
type Counters struct {
	Rounds, Posts, Messages, Bytes, Rows atomic.Uint64
}

// FaultError says that a peer sent what no peer following the protocol sends.
type FaultError struct {
	Rank      int
	Got, Owed uint32
}

func (e *FaultError) Error() string {
	return fmt.Sprintf("rank %d broke the protocol: %d return shards, %d are owed", e.Rank, e.Got, e.Owed)
}

// New makes a side; the engine's worker owns it afterwards.
func New(cfg Config) *Side {
	r := int(cfg.Plan.Shape.NumRanks)
	s := &Side{cfg: cfg, me: int(cfg.Plan.Shape.Rank), round: cfg.Round,
		owed: make([]uint32, r), got: make([]uint32, r)}
	rep := int(cfg.Plan.Shape.Replicas)
	at := make(map[int]int) // lane source -> index into fan
	// The device makes the blocks of the group after its own first.
	first := s.me/rep*rep + rep
	for i := range r {
		q := (first + i) % r
		if q == s.me || cfg.Direct[q] {
			continue
		}
		s.remote = append(s.remote, q)
		src := cfg.Plan.LaneSource(q)
		i, ok := at[src]
		if !ok {
			i = len(s.fan)
			at[src] = i
			s.fan = append(s.fan, fan{source: src})
		}
		s.fan[i].to = append(s.fan[i].to, q)
	}
	s.ops = make([]engine.GroupOp, 0, routing.MaxNICs*max(1, len(s.remote)))
	return s
}

// Round is the round under way or next.
func (s *Side) Round() uint64 { return s.round }

// Skip leaves out the round under way, which dispatch gave up on every rank.
func (s *Side) Skip() {
	s.cfg.Control.CombineTxDone.Store(s.round + 1)
	s.advance()
}

func (s *Side) advance() {
	s.round++
	s.known, s.next, s.arrived, s.txDone = false, 0, false, false
}

// Arrived takes one immediate of rank src: a shard of its return block. It fails
// if no correct peer would have sent it.
func (s *Side) Arrived(src int) error {
	s.got[src]++
	if src == s.me || s.cfg.Direct[src] {
		return &FaultError{Rank: src, Got: s.got[src]} // nothing of theirs crosses the fabric
	}
	// After arrived the counts are the next round's.
	if s.known && !s.arrived && s.got[src] > s.owed[src] {
		return &FaultError{Rank: src, Got: s.got[src], Owed: s.owed[src]}
	}
	return nil
}

// Pending tells whether Step has something to do; see Step for posted.
func (s *Side) Pending(posted bool) bool {
	if len(s.remote) == 0 {
		return false
	}
	if !s.known {
		return posted
	}
	if s.next < len(s.fan) {
		if uint32(s.cfg.Words.Word(s.fan[s.next].source).Load()) == routing.Tag(s.round) {
			return true
		}
	} else if !s.txDone && s.cfg.Tracker.Outstanding() == 0 {
		return true
	}
	return !s.arrived && s.allArrived()
}

// Step does what can be done now and tells whether it did anything. posted says
// whether dispatch has posted every block of this side's round: only then are the
// numbers that it is owed known.
func (s *Side) Step(w *engine.Worker, posted bool) (busy bool, err error) {
	if len(s.remote) == 0 {
		return false, nil
	}
	if !s.known {
		if !posted {
			return false, nil
		}
		if err := s.learn(); err != nil {
			return true, err
		}
		busy = true
	}
	if s.next < len(s.fan) {
		did, err := s.stepSend(w)
		if err != nil {
			return true, err
		}
		busy = busy || did
	}
	if !s.arrived && s.allArrived() {
		s.arrived, busy = true, true
		clear(s.got)
		s.cfg.Control.CombineArrived.Store(s.round + 1)
	}
	if !s.txDone && s.next == len(s.fan) && s.cfg.Tracker.Outstanding() == 0 {
		s.txDone, busy = true, true
		s.cfg.Control.CombineTxDone.Store(s.round + 1)
	}
	if s.arrived && s.txDone {
		s.Counters.Rounds.Add(1)
		s.advance()
	}
	return busy, nil
}

// learn computes how many shards each rank owes, from this rank's own rows.
func (s *Side) learn() error {
	pl := s.cfg.Plan
	limit := uint64(pl.Shape.MaxTokens)
	if pl.Shape.ReduceAtHome != 0 {
		limit *= uint64(pl.Shape.TopK)
	}
	for _, q := range s.remote {
		n := s.cfg.Owed(q)
		if uint64(n) > limit {
			return fmt.Errorf("combine: device reports %d return rows owed by rank %d, the limit is %d", n, q, limit)
		}
		s.owed[q] = 0
		if n > 0 {
			s.owed[q] = pl.Shards(pl.ReturnBytes(n))
		}
		if s.got[q] > s.owed[q] {
			return &FaultError{Rank: q, Got: s.got[q], Owed: s.owed[q]}
		}
	}
	s.known = true
	return nil
}

func (s *Side) allArrived() bool {
	for _, q := range s.remote {
		if s.got[q] != s.owed[q] {
			return false
		}
	}
	return true
}

// stepSend posts the return blocks that the device has finished.
func (s *Side) stepSend(w *engine.Worker) (busy bool, err error) {
	pl := s.cfg.Plan
	s.ops = s.ops[:0]
	var rowsOut, bytesOut uint64
	start := s.next
	for ; s.next < len(s.fan); s.next++ {
		f := &s.fan[s.next]
		v := s.cfg.Words.Word(f.source).Load()
		if uint32(v) != routing.Tag(s.round) {
			break
		}
		rows := uint32(v >> 32)
		bytes := pl.ReturnBytes(rows)
		if bytes > pl.Shape.ReturnSendStride {
			return true, fmt.Errorf("combine: device reports %d return rows for rank %d, %d bytes fit", rows, f.source, pl.Shape.ReturnSendStride)
		}
		if rows == 0 {
			continue
		}
		for _, q := range f.to {
			s.block(f.source, q, bytes)
			rowsOut += uint64(rows)
			bytesOut += bytes
		}
	}
	if len(s.ops) == 0 {
		return s.next != start, nil
	}
	s.Counters.Posts.Add(1)
	s.Counters.Messages.Add(uint64(len(s.ops)))
	s.Counters.Rows.Add(rowsOut)
	s.Counters.Bytes.Add(bytesOut)
	return true, w.Scatter(s.cfg.Group, s.cfg.Tracker, s.ops)
}

func (s *Side) block(source, q int, bytes uint64) {
	pl := s.cfg.Plan
	n := pl.Shards(bytes)
	imm := s.cfg.Base + transport.Imm(pl.ImmIndex(routing.Meaning{Kind: routing.KindCombine, Slot: uint8(s.cfg.Slot)}))
	local, remote := pl.ReturnSendOffset(s.cfg.Slot, source), pl.ReturnOffset(s.cfg.Slot, s.me)
	for i := range n {
		off, length := routing.ShardRange(bytes, n, i)
		s.ops = append(s.ops, engine.GroupOp{
			Entry: int32(q), NIC: pl.ShardNIC(q, i), Imm: imm,
			LocalOff: local + off, RemoteOff: remote + off, Len: length,
		})
	}
}

// Late adds to late the ranks whose return rows of the given round are missing.
func (s *Side) Late(round uint64, late []int) []int {
	if s.round > round || !s.known || s.arrived {
		return late
	}
	for _, q := range s.remote {
		if s.got[q] < s.owed[q] {
			late = append(late, q)
		}
	}
	return late
}
