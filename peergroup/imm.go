package peergroup

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"moerail/transport"
)

const (
	// ReservedImms are the lowest immediates, 0 to ReservedImms-1: no ImmSpace
	// hands them out, so they serve for fixed uses.
	ReservedImms = 256
	// MaxImmRanges bounds the ranges that are allocated at a time in one space.
	MaxImmRanges = 4096
	// immQuarantine is how many freed ranges are kept from use while there is
	// other room.
	immQuarantine = 256

	immEnd = 1 << 32 // one past the last immediate
)

// ErrImmsExhausted reports that no free range of immediates is long enough.
var ErrImmsExhausted = errors.New("peergroup: immediates exhausted")

// immRange is the immediates first to end-1.
type immRange struct{ first, end uint64 }

// ImmSpace hands out ranges of the 32-bit immediate space. A process has one
// per set of domains that see the same immediates.
//
// Each search starts where the last one ended, and the ranges freed last are
// used only when nothing else is left, so that a late immediate of an ended use
// meets nobody who would take it for his own.
//
// An ImmSpace may be used from any goroutine.
type ImmSpace struct {
	mu    sync.Mutex
	live  []immRange // guarded by mu; ascending
	freed []immRange // guarded by mu; oldest first, never overlaps live
	next  uint64     // guarded by mu; where the next search starts
}

// NewImmSpace returns a space with nothing allocated.
func NewImmSpace() *ImmSpace { return &ImmSpace{next: ReservedImms} }

// Alloc takes a range of n immediates, base to base+n-1, of this process alone;
// AgreeImms takes one that is the same on all ranks. It fails with
// ErrImmsExhausted, or *LimitError if n is 0.
func (s *ImmSpace) Alloc(n uint32) (base transport.Imm, err error) {
	if n == 0 {
		return 0, &LimitError{What: "number of immediates", Min: 1, Max: immEnd - ReservedImms}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.live) >= MaxImmRanges {
		return 0, fmt.Errorf("%w: %d ranges allocated, allowed are %d", ErrImmsExhausted, len(s.live), MaxImmRanges)
	}
	first, ok := findImms([]immSnapshot{{next: s.next, live: s.live, freed: s.freed}}, uint64(n), 0)
	if !ok {
		return 0, fmt.Errorf("%w: no %d in a row are free", ErrImmsExhausted, n)
	}
	s.insert(immRange{first, first + uint64(n)})
	return transport.Imm(first), nil
}

// Free gives back the range that starts at base. It fails if none does.
func (s *ImmSpace) Free(base transport.Imm) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.remove(uint64(base))
	if !ok {
		return fmt.Errorf("peergroup: free: no range of immediates starts at %d", base)
	}
	s.freed = append(s.freed, r)
	if len(s.freed) > immQuarantine {
		s.freed = slices.Delete(s.freed, 0, 1)
	}
	return nil
}

// tryTake takes exactly r, unless some of it is allocated.
func (s *ImmSpace) tryTake(r immRange) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.live) >= MaxImmRanges || overlaps(s.live, r) {
		return false
	}
	s.insert(r)
	return true
}

// undo gives back a range that nobody has used yet.
func (s *ImmSpace) undo(r immRange) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(r.first)
}

func (s *ImmSpace) insert(r immRange) {
	s.live = slices.Insert(s.live, position(s.live, r.first), r)
	s.freed = slices.DeleteFunc(s.freed, func(f immRange) bool { return f.first < r.end && r.first < f.end })
	s.next = r.end
	if s.next >= immEnd {
		s.next = ReservedImms
	}
}

func (s *ImmSpace) remove(first uint64) (immRange, bool) {
	i := position(s.live, first)
	if i == len(s.live) || s.live[i].first != first {
		return immRange{}, false
	}
	r := s.live[i]
	s.live = slices.Delete(s.live, i, i+1)
	return r, true
}

// position is the index of the first range that starts at or after first.
func position(ranges []immRange, first uint64) int {
	i, _ := slices.BinarySearchFunc(ranges, first, func(r immRange, v uint64) int {
		switch {
		case r.first < v:
			return -1
		case r.first > v:
			return 1
		}
		return 0
	})
	return i
}

// overlaps tells whether r meets any of ranges, which ascend and are disjoint.
func overlaps(ranges []immRange, r immRange) bool {
	i := position(ranges, r.first)
	return i < len(ranges) && ranges[i].first < r.end || i > 0 && ranges[i-1].end > r.first
}

// immSnapshot is the state of one rank's space.
type immSnapshot struct {
	next  uint64
	live  []immRange
	freed []immRange
}

// snapshot copies the state.
func (s *ImmSpace) snapshot() immSnapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	return immSnapshot{next: s.next, live: slices.Clone(s.live), freed: slices.Clone(s.freed)}
}

// findImms returns the start of n immediates that are free in all spaces. It
// searches upwards from the farthest cursor plus skip, wrapping once; what was
// freed of late is avoided while there is other room. Equal arguments give equal
// results, which is what lets ranks agree.
func findImms(spaces []immSnapshot, n, skip uint64) (uint64, bool) {
	var start uint64 = ReservedImms
	var live, all []immRange
	for _, s := range spaces {
		start = max(start, s.next)
		live = append(live, s.live...)
		all = append(append(all, s.live...), s.freed...)
	}
	const room = immEnd - ReservedImms
	start = ReservedImms + (start-ReservedImms+skip%room)%room
	for _, used := range [][]immRange{all, live} {
		slices.SortFunc(used, func(a, b immRange) int {
			switch {
			case a.first < b.first:
				return -1
			case a.first > b.first:
				return 1
			}
			return 0
		})
		if first, ok := firstGap(used, start, n); ok {
			return first, true
		}
		if first, ok := firstGap(used, ReservedImms, n); ok {
			return first, true
		}
	}
	return 0, false
}

// firstGap finds n immediates at or after start that meet none of used, which
// ascends by start and may overlap.
func firstGap(used []immRange, start, n uint64) (uint64, bool) {
	at := start
	for _, u := range used {
		if u.first >= at+n {
			break
		}
		at = max(at, u.end)
	}
	return at, at+n <= immEnd
}
