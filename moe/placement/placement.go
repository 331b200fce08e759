// Package placement maps logical experts, which a router picks, to physical ones,
// which ranks hold: an expert with much load has several replicas.
//
//	router: logical ids [tokens, top-k] --Map.IDs--> physical ids --> moe.Input
//	load balancer: replicas of each expert --New--> Map; their ranks --> moe.Communicator.SetPlacement
package placement

import (
	"fmt"
	"slices"
)

// Map says which physical experts compute each logical one. It is immutable: any
// goroutine may use it.
type Map struct {
	start    []int32 // [logical+1] into replicas
	replicas []int32 // physical experts by logical one, ascending
}

// Error says what is wrong with a map or with ids.
type Error struct{ What string }

func (e *Error) Error() string { return "placement: " + e.What }

func bad(format string, args ...any) error { return &Error{fmt.Sprintf(format, args...)} }

// New makes a map from the logical expert of each physical one. Every logical
// expert from 0 to logical-1 must have a replica; all faults are in the error.
func New(logicalOf []int32, logical int) (*Map, error) {
	if logical < 1 || logical > len(logicalOf) {
		return nil, bad("%d logical experts on %d physical ones, want 1 to %d", logical, len(logicalOf), len(logicalOf))
	}
	count := make([]int32, logical+1)
	var faults []string
	for p, l := range logicalOf {
		if l < 0 || int(l) >= logical {
			faults = append(faults, fmt.Sprintf("physical expert %d is a replica of %d, want 0 to %d", p, l, logical-1))
			continue
		}
		count[l+1]++
	}
	for l, n := range count[1:] {
		if n == 0 {
			faults = append(faults, fmt.Sprintf("logical expert %d has no replica", l))
		}
		count[l+1] += count[l]
	}
	if len(faults) > 0 {
		return nil, bad("%s", joined(faults))
	}
	m := &Map{start: count, replicas: make([]int32, len(logicalOf))}
	next := slices.Clone(count)
	for p, l := range logicalOf {
		m.replicas[next[l]] = int32(p)
		next[l]++
	}
	return m, nil
}

// joined is up to 20 faults in one text.
func joined(faults []string) string {
	s := faults[0]
	for i, f := range faults[1:] {
		if i == 19 {
			return fmt.Sprintf("%s; and %d more", s, len(faults)-20)
		}
		s += "; " + f
	}
	return s
}

// Logical and Physical are the numbers of experts of either kind.
func (m *Map) Logical() int  { return len(m.start) - 1 }
func (m *Map) Physical() int { return len(m.replicas) }

// Replicas are the physical experts of a logical one, ascending; the caller must
// not change them. It is nil for an expert that is not there.
func (m *Map) Replicas(logical int32) []int32 {
	if logical < 0 || int(logical) >= m.Logical() {
		return nil
	}
	return m.replicas[m.start[logical]:m.start[logical+1]]
}

// Expert is the physical expert that serves a logical one for a token: tokens
// take the replicas in turn. -1 stays -1. It fails with *Error for any other id
// outside 0 to Logical()-1.
func (m *Map) Expert(logical int32, token int) (int32, error) {
	if logical == -1 {
		return -1, nil
	}
	r := m.Replicas(logical)
	if r == nil {
		return 0, bad("expert %d, want -1 or 0 to %d", logical, m.Logical()-1)
	}
	return r[uint(token)%uint(len(r))], nil
}

// IDs replaces logical ids, [tokens, topK], by physical ones; dst may be src. The
// first token is number first in the turn, so that ranks can start apart. It fails
// with *Error, naming token and pick, and dst is then of no use.
func (m *Map) IDs(dst, src []int32, topK, first int) error {
	if topK < 1 || len(src)%topK != 0 || len(dst) < len(src) {
		return bad("%d ids into %d, top-k is %d", len(src), len(dst), topK)
	}
	for i, l := range src {
		e, err := m.Expert(l, first+i/topK)
		if err != nil {
			return bad("token %d, pick %d names expert %d, want -1 or 0 to %d", i/topK, i%topK, l, m.Logical()-1)
		}
		dst[i] = e
	}
	return nil
}
