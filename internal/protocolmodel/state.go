package protocolmodel

import "fmt"

// Phases of a rank within a round: what it does next.
const (
	phaseSend    = iota // fill the send buffer and post
	phaseRoute          // await the row counts of every rank (exact path)
	phaseArrived        // await the blocks
	phaseCombine        // experts are done: return the sums, release the windows
	phaseReduce         // await the returned blocks
	phaseLocal          // await the local completions
	phaseDone           // all rounds are over
)

var phaseNames = [...]string{"send", "routes", "arrived", "combine send", "combined", "local", "done"}

// Message kinds.
const (
	kindBlock    = iota // a shard of a dispatch block, to window[parity][source]
	kindOverflow        // a shard of overflow rows, to the shared overflow area
	kindRoute           // row counts, to the route table
	kindCombine         // a shard of a return block, to return_window[source]
	numKinds
)

var kindNames = [numKinds]string{"block", "overflow", "route", "return"}

// Counters at a receiver. DISPATCH exists once per number of further shards.
const (
	counterDispatch0 = iota
	counterDispatch1
	counterPayload
	counterRoute
	counterCombine
	numCounters
)

// Stages of a message in flight.
const (
	stagePosted  = iota // the NIC has not read the send buffer yet
	stageFetched        // it has, and the local completion is counted
	stageLanded         // the payload is visible at the receiver
	stageAhead          // only for ImmediateFirst: the immediate came before the payload
)

// message is one work request in flight. content is the round tag that the NIC
// found in the send buffer: the round + 1, or 0 before the fetch.
type message uint16

func newMessage(kind, src, dst, shard, round, content, stage int) message {
	return message(kind | src<<2 | dst<<4 | shard<<6 | round<<7 | content<<9 | stage<<12)
}

func (m message) kind() int    { return int(m & 3) }
func (m message) src() int     { return int(m >> 2 & 3) }
func (m message) dst() int     { return int(m >> 4 & 3) }
func (m message) shard() int   { return int(m >> 6 & 1) }
func (m message) round() int   { return int(m >> 7 & 3) }
func (m message) content() int { return int(m >> 9 & 7) }
func (m message) stage() int   { return int(m >> 12 & 3) }

func (m message) String() string {
	return fmt.Sprintf("%s %d->%d round %d shard %d", kindNames[m.kind()], m.src(), m.dst(), m.round(), m.shard())
}

// stateBytes bounds the encoded ranks and memory, maxMessages the messages in
// flight.
const (
	stateBytes  = 320
	maxMessages = 96
)

// state is everything that tells two situations apart: per rank its phase,
// round, outstanding posts and send-buffer tags; per receiver its memory cells,
// flag words and counters; and the messages in flight in ascending order. A memory
// cell holds the round + 1 of an unread shard, and 0 once it was read.
type state struct {
	bytes       [stateBytes]byte
	messages    [maxMessages]message
	numMessages int
}

// layout says where each array of a state begins. Arrays that a configuration
// does not use take no room.
type layout struct {
	ranks, window, route, overflow, returned, flags, counters, size int
}

const (
	rankPhase = iota
	rankRound
	rankOutstanding
	rankDispatchTag
	rankCombineTag
	rankBytes
)

func (m *model) makeLayout() {
	at := 0
	take := func(n int) int { at += n; return at - n }
	r := m.ranks
	m.at.ranks = take(r * rankBytes)
	m.at.window = take(r * r * 2 * m.Shards)
	m.at.returned = take(r * r * m.Shards)
	if m.Exact {
		m.at.route = take(r * r * 2)
		m.at.overflow = take(r * r * maxPairRows)
	}
	if m.Node != nil {
		m.at.flags = take(r * r * 2)
	}
	m.at.counters = take(r * numCounters * m.rounds)
	m.at.size = at
}

func (m *model) rank(s *state, p int) []byte {
	at := m.at.ranks + p*rankBytes
	return s.bytes[at : at+rankBytes]
}

func (m *model) windowCell(dst, src, round, shard int) int {
	parity := round & 1
	if m.Mutant == OneWindowParity {
		parity = 0
	}
	return m.at.window + ((dst*2+parity)*m.ranks+src)*m.Shards + shard
}

func (m *model) routeCell(dst, src, round int) int {
	parity := round & 1
	if m.Mutant == OneRouteParity {
		parity = 0
	}
	return m.at.route + (dst*2+parity)*m.ranks + src
}

func (m *model) returnCell(dst, src, shard int) int {
	return m.at.returned + (dst*m.ranks+src)*m.Shards + shard
}

// overflowCells gives the cells of one shard of src's overflow at dst: the area
// is shared, and who lies where follows from the round's matrix.
func (m *model) overflowCells(dst, src, round, shard int) (from, to int) {
	row := 0
	for s := range src {
		row += m.overflowRows(round, s, dst)
	}
	rows, shards := m.overflowRows(round, src, dst), m.shards(m.overflowRows(round, src, dst))
	base := m.at.overflow + dst*m.ranks*maxPairRows + row
	return base + rows*shard/shards, base + rows*(shard+1)/shards
}

// flagWord is the word that src raises at dst, one for dispatch and one for combine.
func (m *model) flagWord(dst, src, kind int) int {
	which := 0
	if kind == kindCombine {
		which = 1
	}
	return m.at.flags + (dst*m.ranks+src)*2 + which
}

// tally is the part of a counter that immediates of one round contributed. The
// protocol sees only the sum over the rounds that share the counter.
func (m *model) tally(dst, counter, round int) int {
	return m.at.counters + (dst*numCounters+counter)*m.rounds + round
}

// count is what the receiver sees in a counter when it waits for round.
func (m *model) count(s *state, dst, counter, round int) int {
	shared := counter == counterCombine || m.Mutant == OneCounterParity
	n := 0
	for r := range m.rounds {
		if shared || r&1 == round&1 {
			n += int(s.bytes[m.tally(dst, counter, r)])
		}
	}
	return n
}

func (s *state) insert(msg message) {
	i := s.numMessages
	for i > 0 && s.messages[i-1] > msg {
		s.messages[i] = s.messages[i-1]
		i--
	}
	s.messages[i] = msg
	s.numMessages++
}

func (s *state) remove(i int) {
	copy(s.messages[i:s.numMessages-1], s.messages[i+1:s.numMessages])
	s.numMessages--
	s.messages[s.numMessages] = 0
}
