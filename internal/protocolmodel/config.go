// Package protocolmodel explores every behaviour of the dispatch/combine round
// protocol on a small machine, to show that its windows and counters need no
// barrier and exactly the copies they have.
//
// It is a model, not the runtime: ranks are small state machines, the fabric is
// a multiset of messages in flight, and a state is a few dozen bytes. Explore
// visits every state that some order of events can reach:
//
//	rank     send ─► [routes] ─► arrived ─► combine send ─► combined ─► end of round
//	message  posted ─► fetched (local completion) ─► landed ─► immediate counted
//
// Any message may take its next step at any time, so payloads overtake each
// other freely and an immediate trails only its own payload. Counters are the
// published, weaker form: sums over all sources, without the source's name. What
// holds for sums holds for counters kept per source.
//
// The package supports tests only; nothing of the runtime imports it.
package protocolmodel

import "fmt"

// Limits of the state encoding.
const (
	maxRanks    = 4
	maxRounds   = 4
	maxShards   = 2
	maxPairRows = 3
)

// Routing holds row counts: Routing[round][source][destination]. A rank's rows
// for itself cross no fabric and are ignored.
type Routing [][][]int

// Config is one experiment: a routing, and the variant of the protocol that
// carries it out.
type Config struct {
	// Routing gives the number of rounds (1..4), ranks (2..4) and the rows of
	// every ordered pair (0..3).
	Routing Routing

	// Shards is the number of NICs, 1 or 2. A block of n rows is split into
	// min(max(n, 1), Shards) shards.
	Shards int

	// Exact selects the bounded-memory path: row counts travel first, at most
	// WindowRows rows of a pair go to the window, the rest to the overflow area.
	Exact bool

	// WindowRows is the window's size on the exact path, at least 1.
	WindowRows int

	// MaxRecvRows makes a round whose overflow at some rank exceeds it fail on
	// every rank, before any overflow is sent. 0 means no limit. Exact path only.
	MaxRecvRows int

	// Node gives each rank's node. Ranks of one node store into each other's
	// windows and raise flag words instead of sending. Nil means that no two
	// ranks share a node.
	Node []int

	// LateFetch lets the NIC read the send buffer at any time after the post,
	// and counts the local completion then. Without it a post fetches at once,
	// which permits the sender everything that a later fetch does and keeps the
	// state space smaller; only a hazard on the send buffer itself is unseen.
	LateFetch bool

	// Mutant breaks one rule of the protocol.
	Mutant Mutant
}

// Mutant names one rule that is broken on purpose. The exploration must find a
// violation for each, or it would prove nothing about the unbroken protocol.
type Mutant int

// The mutants. Each is a change somebody might take for an optimisation.
const (
	None              Mutant = iota
	OneWindowParity          // the dispatch window has one copy
	OneCounterParity         // DISPATCH, PAYLOAD and ROUTE have one copy
	OneRouteParity           // the route table has one copy
	NoEmptyBlocks            // empty blocks are not sent, even if everybody knew which
	EarlyNextDispatch        // the next round's blocks leave before COMBINE is complete
	CombineOneShort          // COMBINE is accepted one immediate early
	SendBufferReuse          // the next round starts before its local completions
	OverflowEarly            // overflow is sent before the row-count matrix is complete
	RefusedNotDrained        // a refused round ends without awaiting its window rows
	FlagBit                  // flags are set to 1 and cleared by the reader
	FlagEqual                // flags are compared with ==, not >=
	ImmediateFirst           // the fabric may show an immediate before its payload
	numMutants
)

var mutantNames = [numMutants]string{"none", "one window parity", "one counter parity", "one route parity",
	"no empty blocks", "early next dispatch", "combine one short", "send buffer reuse", "overflow early",
	"refused not drained", "flag bit", "flag equal", "immediate first"}

func (m Mutant) String() string {
	if m < 0 || m >= numMutants {
		return fmt.Sprintf("Mutant(%d)", int(m))
	}
	return mutantNames[m]
}

func (c Config) validate() error {
	if n := len(c.Routing); n < 1 || n > maxRounds {
		return fmt.Errorf("protocolmodel: %d rounds, want 1..%d", n, maxRounds)
	}
	ranks := len(c.Routing[0])
	if ranks < 2 || ranks > maxRanks {
		return fmt.Errorf("protocolmodel: %d ranks, want 2..%d", ranks, maxRanks)
	}
	for n, from := range c.Routing {
		if len(from) != ranks {
			return fmt.Errorf("protocolmodel: round %d has %d ranks, want %d", n, len(from), ranks)
		}
		for p, to := range from {
			if len(to) != ranks {
				return fmt.Errorf("protocolmodel: round %d, rank %d has %d destinations, want %d", n, p, len(to), ranks)
			}
			for q, rows := range to {
				if rows < 0 || rows > maxPairRows {
					return fmt.Errorf("protocolmodel: round %d, %d -> %d: %d rows, want 0..%d", n, p, q, rows, maxPairRows)
				}
			}
		}
	}
	switch {
	case c.Shards < 1 || c.Shards > maxShards:
		return fmt.Errorf("protocolmodel: %d shards, want 1..%d", c.Shards, maxShards)
	case c.Exact && c.WindowRows < 1:
		return fmt.Errorf("protocolmodel: exact path with WindowRows %d, want at least 1", c.WindowRows)
	case c.Exact && c.Node != nil:
		return fmt.Errorf("protocolmodel: exact path and direct stores are explored apart")
	case c.Node != nil && len(c.Node) != ranks:
		return fmt.Errorf("protocolmodel: %d nodes for %d ranks", len(c.Node), ranks)
	case c.Mutant < 0 || c.Mutant >= numMutants:
		return fmt.Errorf("protocolmodel: unknown mutant %d", int(c.Mutant))
	}
	return nil
}
