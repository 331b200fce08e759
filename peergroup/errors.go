package peergroup

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

var (
	// ErrClosed is returned by calls on a group that this rank has closed.
	ErrClosed = errors.New("peergroup: group is closed")
	// ErrSecret is inside the error of a rank whose secret is not the job's.
	ErrSecret = errors.New("the secrets differ")
)

// LimitError reports an argument outside its limits.
type LimitError struct {
	What     string
	Value    uint64
	Min, Max uint64
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("peergroup: %s is %d, allowed are %d to %d", e.What, e.Value, e.Min, e.Max)
}

// MissingError reports a collective, or a join, whose deadline passed before
// every rank had come.
type MissingError struct {
	Rank, Size int    // of the rank that reports
	Key        string // "join" while the group was being joined
	// Missing are the ranks that did not come, ascending.
	Missing []int
	// GaveUp are ranks that had come and whose own deadline passed before this
	// rank's. If nobody else was missing they stand in Missing too.
	GaveUp []int
	// Waiting tells which other keys the missing ranks wait for.
	Waiting []WaitingRank
	// Cause is why the wait ended: the context's error, perhaps with the last
	// failure to reach rank 0.
	Cause error
}

// WaitingRank is a rank and the keys of some collectives that it waits in.
type WaitingRank struct {
	Rank int
	Keys []string
}

func (e *MissingError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "peergroup: rank %d of %d: %q: %s did not come", e.Rank, e.Size, e.Key, rankList(e.Missing))
	if len(e.GaveUp) > 0 {
		fmt.Fprintf(&b, "; %s gave up before", rankList(e.GaveUp))
	}
	for _, w := range e.Waiting {
		fmt.Fprintf(&b, "; rank %d waits for %s", w.Rank, quoteList(w.Keys))
	}
	if e.Cause != nil {
		fmt.Fprintf(&b, ": %v", e.Cause)
	}
	return b.String()
}

// Unwrap gives the context's error, so that errors.Is(err,
// context.DeadlineExceeded) holds.
func (e *MissingError) Unwrap() error { return e.Cause }

// LossReason says how a rank was lost.
type LossReason uint8

const (
	LossConnection LossReason = 1 + iota // its connection ended without a farewell
	LossClosed                           // it closed its group
	LossProtocol                         // it sent what no rank may send
)

func (r LossReason) String() string {
	switch r {
	case LossConnection:
		return "its connection ended"
	case LossClosed:
		return "it has closed the group"
	case LossProtocol:
		return "it broke the protocol"
	}
	return "unknown reason"
}

// LostError reports a rank that can take part in no further collective. The
// first loss is what every rank reports, whatever follows.
type LostError struct {
	Rank   int
	Reason LossReason
}

func (e *LostError) Error() string {
	return fmt.Sprintf("peergroup: rank %d is lost: %s", e.Rank, e.Reason)
}

// RefusedError reports that rank 0 turned this rank away. It unwraps to
// ErrSecret when the secrets differ.
type RefusedError struct {
	Addr   string // of rank 0
	Rank   int    // that asked
	Detail string
	cause  error
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("peergroup: rank %d was refused by rank 0 at %s: %s", e.Rank, e.Addr, e.Detail)
}

// Unwrap gives ErrSecret or nil.
func (e *RefusedError) Unwrap() error { return e.cause }

// PeerError reports that a rank could not take its part in an agreement, or said
// something malformed in it. Every rank reports the same.
type PeerError struct {
	Rank   int
	What   string
	Detail string
}

func (e *PeerError) Error() string {
	return fmt.Sprintf("peergroup: %s: rank %d: %s", e.What, e.Rank, e.Detail)
}

// rankList writes ascending ranks as "rank 3" or "ranks 0, 2, 4-7".
func rankList(ranks []int) string {
	switch len(ranks) {
	case 0:
		return "no rank"
	case 1:
		return fmt.Sprintf("rank %d", ranks[0])
	}
	var b strings.Builder
	b.WriteString("ranks ")
	for i := 0; i < len(ranks); {
		j := i
		for j+1 < len(ranks) && ranks[j+1] == ranks[j]+1 {
			j++
		}
		if i > 0 {
			b.WriteString(", ")
		}
		switch {
		case j-i >= 2:
			fmt.Fprintf(&b, "%d-%d", ranks[i], ranks[j])
		case j-i == 1:
			fmt.Fprintf(&b, "%d, %d", ranks[i], ranks[j])
		default:
			fmt.Fprintf(&b, "%d", ranks[i])
		}
		i = j + 1
	}
	return b.String()
}

func quoteList(keys []string) string {
	q := make([]string, len(keys))
	for i, k := range keys {
		q[i] = fmt.Sprintf("%q", keyText(k))
	}
	return strings.Join(q, ", ")
}

// keyText is how a key is shown to people.
func keyText(key string) string {
	if key == joinKey {
		return "join"
	}
	return key
}

// sortedUnique sorts ranks in place and drops repetitions.
func sortedUnique(ranks []int) []int {
	slices.Sort(ranks)
	return slices.Compact(ranks)
}
