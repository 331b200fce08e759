package shm

import "sync/atomic"

// A handle holds an index and a serial number that no other live handle of this
// process has, so that a handle of another domain, or one that was released, is
// told apart by one comparison.
const (
	handleIndexBits = 14
	handleSlots     = 1 << handleIndexBits
	handleIndexMask = handleSlots - 1
	handleSerials   = 1 << (31 - handleIndexBits)
)

var handleSerial atomic.Uint32

// table maps handles to what they stand for. Owned by the domain's owner.
type table[T any] struct {
	slots []tableSlot[T]
	free  []int32
	used  int
}

type tableSlot[T any] struct {
	handle int32 // -1 when free
	value  *T
}

// add returns false when the table is full.
func (t *table[T]) add(v *T) (int32, bool) {
	var i int32
	if n := len(t.free); n > 0 {
		i, t.free = t.free[n-1], t.free[:n-1]
	} else if len(t.slots) < handleSlots {
		i = int32(len(t.slots))
		t.slots = append(t.slots, tableSlot[T]{handle: -1})
	} else {
		return -1, false
	}
	h := int32(handleSerial.Add(1)%handleSerials)<<handleIndexBits | i
	t.slots[i] = tableSlot[T]{handle: h, value: v}
	t.used++
	return h, true
}

// get returns nil for a handle that is not of this table.
func (t *table[T]) get(h int32) *T {
	if i := int(h & handleIndexMask); i < len(t.slots) && t.slots[i].handle == h {
		return t.slots[i].value
	}
	return nil
}

func (t *table[T]) remove(h int32) {
	if t.get(h) == nil {
		return
	}
	i := h & handleIndexMask
	t.slots[i] = tableSlot[T]{handle: -1}
	t.free = append(t.free, i)
	t.used--
}

// all visits what the table holds; visit may remove what it is given.
func (t *table[T]) all(visit func(h int32, v *T)) {
	for i := range t.slots {
		if s := t.slots[i]; s.value != nil {
			visit(s.handle, s.value)
		}
	}
}
