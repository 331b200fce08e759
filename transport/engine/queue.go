package engine

import "sync/atomic"

// item is what travels through a queue: to the worker, or to the callbacks.
type item interface {
	onWorker(w *Worker)
	onCallback()
}

// node links an item into a queue. It is in one queue at a time.
type node struct {
	next  atomic.Pointer[node]
	owner item // set once
}

// queue takes nodes from any goroutine and gives them to one consumer, first in
// first out. Pushing is one atomic swap and never fails: a bounded ring would
// make a producer wait for the worker, and the producer may be the worker (an
// immediate handler) or a callback whose progress the worker's depends on.
//
// It is D. Vyukov's intrusive queue. A node that pop returned is free at once.
type queue struct {
	tail atomic.Pointer[node] // last pushed
	_    [56]byte             // the consumer's word off the producers' cache line
	head *node                // consumer only
	stub node
}

func (q *queue) init() {
	q.head = &q.stub
	q.tail.Store(&q.stub)
}

func (q *queue) push(n *node) {
	n.next.Store(nil)
	q.tail.Swap(n).next.Store(n)
}

// pop returns nil when the queue is empty, or when the next node's producer is
// still in the middle of push.
func (q *queue) pop() *node {
	head := q.head
	next := head.next.Load()
	if head == &q.stub {
		if next == nil {
			return nil
		}
		q.head = next
		head, next = next, next.next.Load()
	}
	if next != nil {
		q.head = next
		return head
	}
	if head != q.tail.Load() {
		return nil
	}
	q.push(&q.stub)
	if next = head.next.Load(); next != nil {
		q.head = next
		return head
	}
	return nil
}

// idle reports that everything pushed has been popped. Any goroutine may ask.
func (q *queue) idle() bool { return q.tail.Load() == &q.stub }
