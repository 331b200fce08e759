// Package handle makes the small integer handles of the transport contract: an
// index into a table, tagged so that a handle of another table, or one that was
// released, is told from a good one.
//
//	bit 31   0, so that NoPeer, NoKey and NoRemote (-1) are never handles
//	30..18   tag: differs from table to table and from one use of a slot to the next
//	17..0    slot
//
// A tag has 13 bits, so the check catches mistakes, not attacks: handles never
// come from peers.
package handle

import (
	"errors"
	"fmt"
)

const (
	slotBits = 18
	tagBits  = 31 - slotBits
	tagMask  = 1<<tagBits - 1
	slotMask = 1<<slotBits - 1

	// MaxSlots bounds the live handles of one table.
	MaxSlots = 1 << slotBits
)

// ErrFull reports a table with MaxSlots live handles.
var ErrFull = errors.New("handle: table full")

// Table holds the values behind handles. It is not safe for concurrent use:
// the thread that owns a domain owns its tables. A Table's zero value works but
// shares its tags with every other zero Table; see New.
type Table[T any] struct {
	slots []slot[T]
	free  []int32
	tag   uint32 // of the first use of each slot
}

type slot[T any] struct {
	handle int32 // -1 while free
	tag    uint32
	value  T
}

// New makes a table for the owner-th domain. Owners less than 8192 apart have
// different first tags; neighbours are 2731 apart, so that slots used again and
// again do not soon meet a neighbour's tag.
func New[T any](owner uint64) Table[T] {
	return Table[T]{tag: uint32(owner*2731) & tagMask}
}

// Add stores v and returns its handle, or ErrFull.
func (t *Table[T]) Add(v T) (int32, error) {
	var i int32
	if n := len(t.free); n > 0 {
		i, t.free = t.free[n-1], t.free[:n-1]
	} else {
		if len(t.slots) == MaxSlots {
			return -1, fmt.Errorf("%w: %d handles live", ErrFull, MaxSlots)
		}
		i = int32(len(t.slots))
		t.slots = append(t.slots, slot[T]{tag: t.tag})
	}
	s := &t.slots[i]
	s.value = v
	s.handle = int32(s.tag<<slotBits) | i
	return s.handle, nil
}

// Get returns the value behind h, or nil if h is not a live handle of this
// table. The pointer holds until the next Add.
func (t *Table[T]) Get(h int32) *T {
	i := int(h & slotMask)
	if h < 0 || i >= len(t.slots) {
		return nil
	}
	if s := &t.slots[i]; s.handle == h {
		return &s.value
	}
	return nil
}

// Remove makes h invalid and forgets its value; it tells whether h was live.
func (t *Table[T]) Remove(h int32) bool {
	if t.Get(h) == nil {
		return false
	}
	i := h & slotMask
	s := &t.slots[i]
	*s = slot[T]{handle: -1, tag: (s.tag + 1) & tagMask}
	t.free = append(t.free, i)
	return true
}

// Each calls fn for every live handle, in slot order. fn may remove the handle
// it is given.
func (t *Table[T]) Each(fn func(h int32, v *T)) {
	for i := range t.slots {
		if s := &t.slots[i]; s.handle >= 0 {
			fn(s.handle, &s.value)
		}
	}
}

// Len is the number of live handles.
func (t *Table[T]) Len() int { return len(t.slots) - len(t.free) }
