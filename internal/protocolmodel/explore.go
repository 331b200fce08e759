package protocolmodel

import (
	"fmt"
	"hash/maphash"
	"strings"
)

// Violation is a broken rule and the path by which the exploration came to it; it
// need not be the shortest.
type Violation struct {
	Rule  string   // what was broken, in words
	Trace []string // the events before it, in order
}

func (v *Violation) Error() string {
	return "protocolmodel: " + v.Rule + "\n  " + strings.Join(v.Trace, "\n  ")
}

// Result is the outcome of one exploration.
type Result struct {
	States    int        // distinct states visited
	Ends      int        // states in which every rank finished every round
	Violation *Violation // nil if no reachable state breaks a rule
}

// Explore visits every reachable state of c, or stops at the first violation.
// It fails on a config outside its limits, and when more than maxStates states
// are reachable, since a partial exploration proves nothing.
//
// States are told apart by a 128-bit hash; with ten million states the chance of
// one collision is below 1e-24.
func Explore(c Config, maxStates int) (Result, error) {
	if err := c.validate(); err != nil {
		return Result{}, err
	}
	m := &model{Config: c, ranks: len(c.Routing[0]), rounds: len(c.Routing)}
	m.makeLayout()
	if m.at.size > stateBytes {
		return Result{}, fmt.Errorf("protocolmodel: a state takes %d bytes, limit %d", m.at.size, stateBytes)
	}
	e := &explorer{model: m, maxStates: maxStates, seen: make(map[[2]uint64]struct{}),
		seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}}
	var start state
	e.visit(&start)
	if e.full {
		return Result{}, fmt.Errorf("protocolmodel: more than %d states", maxStates)
	}
	r := Result{States: len(e.seen), Ends: e.ends}
	if e.broken != "" {
		r.Violation = &Violation{Rule: e.broken, Trace: e.trace()}
	}
	return r, nil
}

// event is one step on the path: a rank's, or a message's.
type event struct {
	rank    int // valid if message is not
	phase   int
	message message
	isRank  bool
}

type explorer struct {
	*model
	seen      map[[2]uint64]struct{}
	seeds     [2]maphash.Seed
	key       []byte
	path      []event
	ends      int
	maxStates int
	full      bool
	broken    string
}

// visit explores s and everything after it, depth first, and reports whether to
// go on.
func (e *explorer) visit(s *state) bool {
	key := e.hash(s)
	if _, ok := e.seen[key]; ok {
		return true
	}
	if len(e.seen) >= e.maxStates {
		e.full = true
		return false
	}
	e.seen[key] = struct{}{}

	moved := false
	for p := range e.ranks {
		next := *s
		took, rule := e.stepRank(&next, p)
		if took {
			moved = true
			if !e.follow(&next, rule, event{rank: p, phase: int(e.rank(s, p)[rankPhase]), isRank: true}) {
				return false
			}
		}
	}
	for i := range s.numMessages {
		next := *s
		took, rule := e.stepMessage(&next, i)
		if took {
			moved = true
			if !e.follow(&next, rule, event{message: s.messages[i]}) {
				return false
			}
		}
	}
	if moved {
		return true
	}
	e.ends++
	e.broken = e.checkEnd(s)
	return e.broken == ""
}

func (e *explorer) follow(next *state, rule string, ev event) bool {
	e.path = append(e.path, ev)
	if rule != "" {
		e.broken = rule
		return false // the path stays as it is: it is the trace
	}
	if !e.visit(next) {
		return false
	}
	e.path = e.path[:len(e.path)-1]
	return true
}

func (e *explorer) hash(s *state) [2]uint64 {
	e.key = append(e.key[:0], s.bytes[:e.at.size]...)
	for _, msg := range s.messages[:s.numMessages] {
		e.key = append(e.key, byte(msg), byte(msg>>8))
	}
	return [2]uint64{maphash.Bytes(e.seeds[0], e.key), maphash.Bytes(e.seeds[1], e.key)}
}

func (e *explorer) trace() []string {
	var lines []string
	for _, ev := range e.path {
		if ev.isRank {
			lines = append(lines, fmt.Sprintf("rank %d: %s", ev.rank, phaseNames[ev.phase]))
			continue
		}
		what := [...]string{"fetched", "landed", "counted", "landed late"}[ev.message.stage()]
		lines = append(lines, fmt.Sprintf("%v %s (holds round %d)", ev.message, what, ev.message.content()-1))
	}
	return lines
}

// checkEnd judges a state without a successor: every rank must be done, and
// nothing may be left over anywhere.
func (m *model) checkEnd(s *state) string {
	for p := range m.ranks {
		if r := m.rank(s, p); r[rankPhase] != phaseDone {
			return fmt.Sprintf("deadlock: rank %d waits in round %d, phase %s", p, r[rankRound], phaseNames[r[rankPhase]])
		} else if r[rankOutstanding] != 0 {
			return fmt.Sprintf("rank %d ends with %d operations outstanding", p, r[rankOutstanding])
		}
	}
	if s.numMessages != 0 {
		return fmt.Sprintf("%d messages can not be delivered", s.numMessages)
	}
	for i := m.at.ranks + m.ranks*rankBytes; i < m.at.size; i++ {
		isFlag := m.Node != nil && i >= m.at.flags && i < m.at.counters
		if s.bytes[i] != 0 && !isFlag {
			return fmt.Sprintf("byte %d of the final state is not clear: an unread block or uncounted immediate is left", i)
		}
	}
	return ""
}
