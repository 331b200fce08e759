package loopback

import "sync/atomic"

// pad keeps what different threads write on different cache lines.
type pad [64]byte

// inbox is a bounded queue that many threads fill and one empties, without a
// lock. A producer first reserves room, which may fail, then delivers, which
// can not: in between it may take as long as a payload copy, and no other
// producer waits for it.
type inbox[T any] struct {
	_        pad
	reserved atomic.Int64  // room promised and not yet given back
	tail     atomic.Uint64 // next position to fill
	_        pad
	head     uint64 // next position to empty; owned by the consumer
	taken    int64  // emptied since the last release; owned by the consumer
	_        pad
	limit    int64 // immutable
	mask     uint64
	slots    []inboxSlot[T]
}

type inboxSlot[T any] struct {
	filled atomic.Uint64 // position+1 once the value of that position is there
	value  T
}

func pow2(n int) int {
	p := 1
	for p < n {
		p <<= 1
	}
	return p
}

func newInbox[T any](limit int) *inbox[T] {
	n := pow2(limit)
	return &inbox[T]{limit: int64(limit), mask: uint64(n - 1), slots: make([]inboxSlot[T], n)}
}

// reserve promises room for one delivery, or tells that there is none.
func (q *inbox[T]) reserve() bool {
	if q.reserved.Add(1) > q.limit {
		q.reserved.Add(-1)
		return false
	}
	return true
}

// deliver stores v in reserved room. What the producer wrote before is visible
// to a consumer that has seen v.
func (q *inbox[T]) deliver(v T) { q.publish(q.claim(), v) }

// claim takes the next position of reserved room. Until publish, which must
// follow soon, the consumer sees nothing from that position on.
func (q *inbox[T]) claim() uint64 { return q.tail.Add(1) - 1 }

func (q *inbox[T]) publish(pos uint64, v T) {
	s := &q.slots[pos&q.mask]
	s.value = v
	s.filled.Store(pos + 1)
}

// peek returns the oldest value, or nil. Consumer only.
func (q *inbox[T]) peek() *T {
	s := &q.slots[q.head&q.mask]
	if s.filled.Load() != q.head+1 {
		return nil
	}
	return &s.value
}

// pop drops the value that peek showed. Its room is given back by release.
func (q *inbox[T]) pop() {
	var zero T
	q.slots[q.head&q.mask].value = zero
	q.head++
	q.taken++
}

// release gives back the room of all that was popped, in one atomic step.
func (q *inbox[T]) release() {
	if q.taken > 0 {
		q.reserved.Add(-q.taken)
		q.taken = 0
	}
}

// fifo is a bounded queue within one thread.
type fifo[T any] struct {
	head, tail uint64
	mask       uint64
	limit      int
	slots      []T
}

func newFIFO[T any](limit int) fifo[T] {
	n := pow2(limit)
	return fifo[T]{mask: uint64(n - 1), limit: limit, slots: make([]T, n)}
}

func (q *fifo[T]) len() int    { return int(q.tail - q.head) }
func (q *fifo[T]) full() bool  { return q.len() >= q.limit }
func (q *fifo[T]) push(v T)    { q.slots[q.tail&q.mask] = v; q.tail++ }
func (q *fifo[T]) front() *T   { return &q.slots[q.head&q.mask] }
func (q *fifo[T]) drop()       { q.head++ }
func (q *fifo[T]) empty() bool { return q.head == q.tail }
