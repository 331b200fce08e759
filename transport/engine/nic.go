package engine

import (
	"errors"
	"fmt"
	"sync/atomic"

	"moerail/transport"
)

// nic is one domain with what waits to be posted on it. Worker thread only,
// except down.
type nic struct {
	index       int
	name        string
	dom         transport.Domain
	wakes       bool
	waiter      transport.Waiter // where the domain has a descriptor to sleep on
	failed      error            // why the domain is no longer used
	down        atomic.Bool
	urgent      jobList // scatters of pollers: a round waits for them
	bulk        jobList // transfers of applications
	recvs       []int32 // receive slots to post
	stage       []transport.ScatterOp
	completions []transport.Completion
	wrs         [postBatch]transport.WorkRequest
	wrJobs      [postBatch]*job
}

const (
	postBatch  = 32  // requests shown to the domain at once
	postBudget = 512 // per turn, so that a long list does not keep completions waiting
	pollBatch  = 64
)

// job is the part of a transfer or scatter that one NIC posts: operations pos to
// count.
type job struct {
	next  *job
	t     *Tracker
	pos   int
	count int
	// A scatter has its operations here, entries being those of the template.
	group *PeerGroup
	ops   []transport.ScatterOp
	// Otherwise x makes request i from the range [lo, hi), bytes or pages.
	x      *transfer
	lo, hi uint64
	spare  bool // belongs to Worker.spareJobs, not to a transfer
}

type jobList struct{ head, tail *job }

func (l *jobList) push(j *job) {
	j.next = nil
	if l.tail == nil {
		l.head, l.tail = j, j
		return
	}
	l.tail.next = j
	l.tail = j
}

func (l *jobList) pop() *job {
	j := l.head
	if l.head = j.next; l.head == nil {
		l.tail = nil
	}
	j.next = nil
	return j
}

func (n *nic) queued() bool { return n.urgent.head != nil || n.bulk.head != nil || len(n.recvs) > 0 }

// flush posts what the domain takes, receives first, then urgent, then bulk.
func (n *nic) flush(w *Worker) {
	if n.failed != nil {
		w.dropJobs(n)
		return
	}
	if len(n.recvs) > 0 {
		if err := n.postRecvs(w.recvs); err != nil {
			w.failNIC(n, err)
			return
		}
	}
	for budget := postBudget; budget > 0; budget -= postBatch {
		var more bool
		switch {
		case n.urgent.head != nil:
			more = n.postScatter(w, &n.urgent)
		case n.bulk.head == nil:
			return
		case n.bulk.head.group != nil:
			more = n.postScatter(w, &n.bulk)
		default:
			more = n.postRequests(w)
		}
		if !more {
			return
		}
	}
	w.posted = true // there is more to do at once
}

// took checks what a domain said about a post of len requests: how many it
// took, and whether the next one was refused with err. A count that makes no
// sense ends the use of the NIC.
func (n *nic) took(w *Worker, k, length int, err error) (count int, refused error, again bool) {
	if k < 0 || k > length {
		w.failNIC(n, fmt.Errorf("%w: post of %d requests took %d", ErrNICFailed, length, k))
		return 0, nil, true
	}
	if k > 0 {
		w.posted = true
		w.e.stats.posted.Add(uint64(k))
	}
	switch {
	case k == length:
		return k, nil, false
	case isAgain(err):
		w.e.stats.requeued.Add(1)
		return k, nil, true
	}
	return k, err, false
}

// isAgain tells a full queue from a refusal. A short count without an error is
// read as a full queue.
func isAgain(err error) bool {
	return err == nil || err == transport.ErrAgain || errors.Is(err, transport.ErrAgain)
}

func (w *Worker) refusal(n *nic, op transport.Opcode, entry int, p transport.Peer, err error) *TransferError {
	return &TransferError{Op: op, Entry: entry, Peer: p, NIC: n.name, Err: err}
}

// postScatter posts from the head of a list and tells whether to go on.
func (n *nic) postScatter(w *Worker, l *jobList) bool {
	j := l.head
	g, t := j.group, j.t
	ops := j.ops[j.pos:]
	var k int
	var err error = ErrForeign
	if !g.closed {
		k, err = n.dom.PostScatter(g.template[n.index], t.wrid(g), ops)
	}
	k, refused, again := n.took(w, k, len(ops), err)
	if n.failed != nil {
		return false
	}
	j.pos += k
	var lost *TransferError
	if refused != nil {
		lost = w.refusedOp(n, g, &j.ops[j.pos], refused)
		j.pos++
	}
	if j.pos == j.count {
		l.pop()
		w.retire(j)
	}
	if lost != nil {
		w.end(t, n.index, 1, lost) // j may be gone after this
	}
	return !again
}

func (w *Worker) refusedOp(n *nic, g *PeerGroup, op *transport.ScatterOp, err error) *TransferError {
	kind := transport.OpWriteImm
	if op.NoImm {
		kind = transport.OpWrite
	}
	entry := int(g.entry[op.Entry])
	return w.refusal(n, kind, entry, g.entries[entry].peer[n.index], err)
}

// postRequests gathers requests from as many transfers as fill a batch.
func (n *nic) postRequests(w *Worker) bool {
	c := 0
	for j := n.bulk.head; j != nil && j.group == nil && c < postBatch; j = j.next {
		for i := j.pos; i < j.count && c < postBatch; i++ {
			j.x.request(j, n.index, i, &n.wrs[c])
			n.wrJobs[c] = j
			c++
		}
	}
	k, err := n.dom.Post(n.wrs[:c])
	k, refused, again := n.took(w, k, c, err)
	if n.failed != nil {
		return false
	}
	var t *Tracker
	var lost *TransferError
	if refused != nil {
		t = n.wrJobs[k].t
		lost = w.refusal(n, n.wrs[k].Op, NoEntry, n.wrs[k].Peer, refused)
		k++
	}
	for _, j := range n.wrJobs[:k] {
		if j.pos++; j.pos == j.count {
			n.bulk.pop() // j: jobs end in the order they stand
		}
	}
	if lost != nil {
		w.end(t, n.index, 1, lost)
	}
	return !again
}

// poll takes completions and arrivals; it tells whether there were any.
func (n *nic) poll(w *Worker) bool {
	k, err := n.dom.Poll(n.completions)
	if k < 0 || k > len(n.completions) {
		w.failNIC(n, fmt.Errorf("%w: poll returned %d of %d completions", ErrNICFailed, k, len(n.completions)))
		return true
	}
	for i := range n.completions[:k] {
		switch c := &n.completions[i]; {
		case c.Op == transport.OpImm:
			w.dispatchImm(c.Imm)
		case c.ID&recvBit != 0:
			w.received(n, c)
		default:
			w.completed(n, c)
		}
	}
	if w.immsSeen > 0 {
		w.e.stats.imms.Add(w.immsSeen)
		w.immsSeen = 0
	}
	if err != nil {
		w.failNIC(n, fmt.Errorf("%w: poll: %w", ErrNICFailed, err))
		return true
	}
	return k > 0
}

// failNIC takes a NIC out of use for good. What was queued or in flight on it
// ends with err, exactly once; the other NICs go on.
func (w *Worker) failNIC(n *nic, err error) {
	if n.failed != nil {
		return
	}
	n.failed = err
	n.down.Store(true)
	n.urgent, n.bulk, n.recvs = jobList{}, jobList{}, nil
	for _, t := range w.slots {
		if t != nil && t.out[n.index] > 0 {
			w.end(t, n.index, int(t.out[n.index]), &TransferError{
				Entry: NoEntry, Peer: transport.NoPeer, NIC: n.name, Status: transport.StatusFault, Err: err,
			})
		}
	}
}

// dropJobs ends what was queued on a NIC after it failed.
func (w *Worker) dropJobs(n *nic) {
	n.recvs = n.recvs[:0]
	for _, l := range []*jobList{&n.urgent, &n.bulk} {
		for l.head != nil {
			j := l.pop()
			t, left := j.t, j.count-j.pos
			w.retire(j)
			w.end(t, n.index, left, &TransferError{
				Entry: NoEntry, Peer: transport.NoPeer, NIC: n.name, Status: transport.StatusFault, Err: n.failed,
			})
		}
	}
}

// retire takes back a job of a poller's scatter; those of transfers live in them.
func (w *Worker) retire(j *job) {
	if j.spare {
		j.group, j.t = nil, nil
		j.next = w.spareJobs
		w.spareJobs = j
	}
}
