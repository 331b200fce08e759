package protocolmodel

import "fmt"

// model is one configuration with its state layout.
type model struct {
	Config
	ranks, rounds int
	at            layout
}

// rows is the row count of a pair; a rank's own rows cross no fabric.
func (m *model) rows(round, src, dst int) int {
	if src == dst {
		return 0
	}
	return m.Routing[round][src][dst]
}

func (m *model) windowRows(round, src, dst int) int {
	if m.Exact {
		return min(m.rows(round, src, dst), m.WindowRows)
	}
	return m.rows(round, src, dst)
}

func (m *model) overflowRows(round, src, dst int) int {
	return m.rows(round, src, dst) - m.windowRows(round, src, dst)
}

func (m *model) shards(rows int) int { return min(max(rows, 1), m.Shards) }

func (m *model) direct(p, q int) bool { return m.Node != nil && m.Node[p] == m.Node[q] }

// sends says whether src writes a block into dst's window in this round. An
// empty block is a header; on the exact path the row counts take its place.
func (m *model) sends(round, src, dst int) bool {
	if src == dst {
		return false
	}
	if m.Exact || m.Mutant == NoEmptyBlocks {
		return m.windowRows(round, src, dst) > 0
	}
	return true
}

// refused says whether the round's matrix asks for too much overflow somewhere.
func (m *model) refused(round int) bool {
	if !m.Exact || m.MaxRecvRows == 0 {
		return false
	}
	for q := range m.ranks {
		n := 0
		for p := range m.ranks {
			n += m.overflowRows(round, p, q)
		}
		if n > m.MaxRecvRows {
			return true
		}
	}
	return false
}

// stepRank lets rank p take its next step, if nothing keeps it waiting. It
// reports whether p moved, and the rule that the step broke, if any.
func (m *model) stepRank(s *state, p int) (moved bool, rule string) {
	r := m.rank(s, p)
	n := int(r[rankRound])
	switch r[rankPhase] {
	case phaseSend:
		if m.Mutant != EarlyNextDispatch || n == 0 {
			m.dispatchSend(s, p, n)
		}
		r[rankPhase] = phaseArrived
		if m.Exact {
			r[rankPhase] = phaseRoute
		}
		return true, ""
	case phaseRoute:
		return m.awaitRoutes(s, p, n)
	case phaseArrived:
		return m.awaitBlocks(s, p, n)
	case phaseCombine:
		rule = m.combineSend(s, p, n)
		if m.Mutant == EarlyNextDispatch && n+1 < m.rounds {
			m.dispatchSend(s, p, n+1)
		}
		r[rankPhase] = phaseReduce
		return true, rule
	case phaseReduce:
		return m.awaitReturns(s, p, n)
	case phaseLocal:
		if r[rankOutstanding] != 0 && m.Mutant != SendBufferReuse {
			return false, ""
		}
		r[rankRound]++
		r[rankPhase] = phaseSend
		if n+1 == m.rounds {
			r[rankRound], r[rankPhase] = 0, phaseDone
		}
		return true, ""
	}
	return false, ""
}

// dispatchSend fills the send buffer with round n and posts everything that
// needs no other rank's word.
func (m *model) dispatchSend(s *state, p, n int) {
	m.rank(s, p)[rankDispatchTag] = byte(n + 1)
	for q := range m.ranks {
		if q == p {
			continue
		}
		if m.Exact {
			m.post(s, kindRoute, p, q, 0, n)
		}
		if m.sends(n, p, q) {
			m.postShards(s, kindBlock, p, q, n, m.windowRows(n, p, q))
		}
	}
	if m.Mutant == OverflowEarly && !m.refused(n) {
		m.overflowSend(s, p, n)
	}
}

func (m *model) overflowSend(s *state, p, n int) {
	for q := range m.ranks {
		if rows := m.overflowRows(n, p, q); rows > 0 {
			m.postShards(s, kindOverflow, p, q, n, rows)
		}
	}
}

func (m *model) postShards(s *state, kind, p, q, n, rows int) {
	if m.direct(p, q) {
		m.post(s, kind, p, q, 0, n) // stores know no shards
		return
	}
	for k := range m.shards(rows) {
		m.post(s, kind, p, q, k, n)
	}
}

func (m *model) post(s *state, kind, p, q, shard, n int) {
	r := m.rank(s, p)
	if m.LateFetch && !m.direct(p, q) {
		r[rankOutstanding]++
		s.insert(newMessage(kind, p, q, shard, n, 0, stagePosted))
		return
	}
	s.insert(newMessage(kind, p, q, shard, n, m.sendTag(s, kind, p), stageFetched))
}

// sendTag is the round tag in the buffer that a message of this kind is read from.
func (m *model) sendTag(s *state, kind, p int) int {
	if kind == kindCombine {
		return int(m.rank(s, p)[rankCombineTag])
	}
	return int(m.rank(s, p)[rankDispatchTag])
}

// awaitRoutes waits for every rank's row counts, reads the matrix and sends the
// overflow at the offsets that follow from it.
func (m *model) awaitRoutes(s *state, p, n int) (bool, string) {
	if m.count(s, p, counterRoute, n) < m.ranks-1 {
		return false, ""
	}
	if rule := m.consume(s, p, counterRoute, n, m.ranks-1); rule != "" {
		return true, rule
	}
	for q := range m.ranks {
		if q != p {
			if rule := m.read(s, p, n, m.routeCell(p, q, n), "the row counts", q, true); rule != "" {
				return true, rule
			}
		}
	}
	if !m.refused(n) && m.Mutant != OverflowEarly {
		m.overflowSend(s, p, n)
	}
	r := m.rank(s, p)
	r[rankPhase] = phaseArrived
	if m.refused(n) && m.Mutant == RefusedNotDrained {
		r[rankPhase] = phaseLocal
	}
	return true, ""
}

// awaitBlocks waits until every block of the round has arrived, and reads the
// headers.
func (m *model) awaitBlocks(s *state, p, n int) (bool, string) {
	due := 0
	if m.Exact {
		for q := range m.ranks {
			if m.sends(n, q, p) {
				due += m.shards(m.windowRows(n, q, p))
			}
			if rows := m.overflowRows(n, q, p); rows > 0 && !m.refused(n) {
				due += m.shards(rows)
			}
		}
	} else {
		blocks, mine := 0, [2]int{}
		for q := range m.ranks {
			if !m.sends(n, q, p) {
				continue
			}
			if m.direct(q, p) {
				if !m.flagUp(s, p, q, kindBlock, n) {
					return false, ""
				}
				continue
			}
			blocks++
			mine[m.shards(m.windowRows(n, q, p))-1]++
		}
		plain, split := m.count(s, p, counterDispatch0, n), m.count(s, p, counterDispatch1, n)
		if plain+split < blocks {
			return false, ""
		}
		due = split // announced further shards; wait for them before taking anything
		if m.count(s, p, counterPayload, n) < due {
			return false, ""
		}
		for k := range mine {
			if rule := m.consume(s, p, counterDispatch0+k, n, mine[k]); rule != "" {
				return true, rule
			}
		}
	}
	if m.count(s, p, counterPayload, n) < due {
		return false, ""
	}
	if rule := m.consume(s, p, counterPayload, n, due); rule != "" {
		return true, rule
	}
	if m.Mutant == FlagBit {
		m.clearFlags(s, p, kindBlock)
	}
	r := m.rank(s, p)
	if m.refused(n) {
		r[rankPhase] = phaseLocal
		return true, m.readBlocks(s, p, n, true)
	}
	r[rankPhase] = phaseCombine
	return true, m.readBlocks(s, p, n, false)
}

// readBlocks reads every shard that came for round n. The rows are used where
// they lie until the experts are done; release ends that.
func (m *model) readBlocks(s *state, p, n int, release bool) string {
	for q := range m.ranks {
		if m.sends(n, q, p) {
			shards := m.shards(m.windowRows(n, q, p))
			if m.direct(q, p) {
				shards = 1
			}
			for k := range shards {
				if rule := m.read(s, p, n, m.windowCell(p, q, n, k), "a block", q, release); rule != "" {
					return rule
				}
			}
		}
		if m.overflowRows(n, q, p) == 0 || m.refused(n) {
			continue
		}
		for k := range m.shards(m.overflowRows(n, q, p)) {
			from, to := m.overflowCells(p, q, n, k)
			for cell := from; cell < to; cell++ {
				if rule := m.read(s, p, n, cell, "overflow rows", q, release); rule != "" {
					return rule
				}
			}
		}
	}
	return ""
}

// combineSend reads the rows for the last time and returns a block to every rank
// that sent some.
func (m *model) combineSend(s *state, p, n int) string {
	rule := m.readBlocks(s, p, n, true)
	m.rank(s, p)[rankCombineTag] = byte(n + 1)
	for q := range m.ranks {
		if rows := m.rows(n, q, p); rows > 0 {
			m.postShards(s, kindCombine, p, q, n, rows)
		}
	}
	return rule
}

func (m *model) awaitReturns(s *state, p, n int) (bool, string) {
	due := 0
	for q := range m.ranks {
		rows := m.rows(n, p, q)
		switch {
		case rows == 0:
		case m.direct(p, q):
			if !m.flagUp(s, p, q, kindCombine, n) {
				return false, ""
			}
		default:
			due += m.shards(rows)
		}
	}
	if m.Mutant == CombineOneShort && due > 0 {
		due--
	}
	if m.count(s, p, counterCombine, n) < due {
		return false, ""
	}
	if rule := m.consume(s, p, counterCombine, n, due); rule != "" {
		return true, rule
	}
	if m.Mutant == FlagBit {
		m.clearFlags(s, p, kindCombine)
	}
	for q := range m.ranks {
		rows := m.rows(n, p, q)
		if rows == 0 {
			continue
		}
		shards := m.shards(rows)
		if m.direct(p, q) {
			shards = 1
		}
		for k := range shards {
			if rule := m.read(s, p, n, m.returnCell(p, q, k), "a return block", q, true); rule != "" {
				return true, rule
			}
		}
	}
	m.rank(s, p)[rankPhase] = phaseLocal
	return true, ""
}

// consume takes want immediates of round n from a counter that reads at least
// that. It is a violation if other rounds had to help out.
func (m *model) consume(s *state, p, counter, n, want int) string {
	at := m.tally(p, counter, n)
	if int(s.bytes[at]) < want {
		return fmt.Sprintf("rank %d: counter %d for round %d was satisfied by immediates of another round", p, counter, n)
	}
	s.bytes[at] -= byte(want)
	return ""
}

func (m *model) read(s *state, p, n, cell int, what string, from int, release bool) string {
	if got := int(s.bytes[cell]); got != n+1 {
		return fmt.Sprintf("rank %d, round %d: %s from rank %d holds round %d (-1: nothing)", p, n, what, from, got-1)
	}
	if release {
		s.bytes[cell] = 0
	}
	return ""
}

// flagUp polls the flag of a same-node peer. Flags count rounds from 1. A peer
// may be one round ahead, so the comparison is >=.
func (m *model) flagUp(s *state, p, q, kind, n int) bool {
	v := int(s.bytes[m.flagWord(p, q, kind)])
	switch m.Mutant {
	case FlagBit:
		return v == 1
	case FlagEqual:
		return v == n+1
	}
	return v >= n+1
}

func (m *model) clearFlags(s *state, p, kind int) {
	for q := range m.ranks {
		s.bytes[m.flagWord(p, q, kind)] = 0
	}
}

// stepMessage lets message i take its next step.
func (m *model) stepMessage(s *state, i int) (moved bool, rule string) {
	msg := s.messages[i]
	switch msg.stage() {
	case stagePosted:
		s.remove(i)
		m.rank(s, msg.src())[rankOutstanding]--
		s.insert(newMessage(msg.kind(), msg.src(), msg.dst(), msg.shard(), msg.round(),
			m.sendTag(s, msg.kind(), msg.src()), stageFetched))
		return true, ""
	case stageFetched:
		if m.Mutant == ImmediateFirst && msg.round() == 0 { // one such fault is enough
			s.remove(i)
			m.notify(s, msg)
			s.insert(newMessage(msg.kind(), msg.src(), msg.dst(), msg.shard(), msg.round(), msg.content(), stageAhead))
			return true, ""
		}
		s.remove(i)
		s.insert(newMessage(msg.kind(), msg.src(), msg.dst(), msg.shard(), msg.round(), msg.content(), stageLanded))
		return true, m.land(s, msg)
	case stageLanded:
		if m.direct(msg.src(), msg.dst()) && m.flagBehind(s, msg) {
			return false, ""
		}
		s.remove(i)
		m.notify(s, msg)
		return true, ""
	}
	s.remove(i)
	return true, m.land(s, msg)
}

// land writes the payload into the receiver's memory.
func (m *model) land(s *state, msg message) string {
	p, q, n := msg.src(), msg.dst(), msg.round()
	var from, to int
	switch msg.kind() {
	case kindBlock:
		from = m.windowCell(q, p, n, msg.shard())
		to = from + 1
	case kindOverflow:
		from, to = m.overflowCells(q, p, n, msg.shard())
	case kindRoute:
		from = m.routeCell(q, p, n)
		to = from + 1
	case kindCombine:
		from = m.returnCell(q, p, msg.shard())
		to = from + 1
	}
	for cell := from; cell < to; cell++ {
		if s.bytes[cell] != 0 {
			return fmt.Sprintf("%v overwrites round %d, unread", msg, int(s.bytes[cell])-1)
		}
		s.bytes[cell] = byte(msg.content())
	}
	return ""
}

// notify counts the message's immediate, or raises its flag.
func (m *model) notify(s *state, msg message) {
	p, q, n := msg.src(), msg.dst(), msg.round()
	if m.direct(p, q) {
		v := byte(n + 1)
		if m.Mutant == FlagBit {
			v = 1
		}
		s.bytes[m.flagWord(q, p, msg.kind())] = v
		return
	}
	counter := counterPayload
	switch {
	case msg.kind() == kindRoute:
		counter = counterRoute
	case msg.kind() == kindCombine:
		counter = counterCombine
	case msg.kind() == kindBlock && !m.Exact && msg.shard() == 0:
		counter = counterDispatch0 + m.shards(m.windowRows(n, p, q)) - 1
	}
	s.bytes[m.tally(q, counter, n)]++
}

// flagBehind says whether an earlier store to the same flag word is still under
// way: one writer's stores to one word keep their order.
func (m *model) flagBehind(s *state, msg message) bool {
	for _, o := range s.messages[:s.numMessages] {
		if o.kind() == msg.kind() && o.src() == msg.src() && o.dst() == msg.dst() && o.round() < msg.round() {
			return true
		}
	}
	return false
}
