//go:build verbs && cgo && linux

package ibv

/*
#include "table.h"
*/
import "C"

import (
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Opcode of a send; the values are libibverbs' own.
type Opcode uint32

const (
	Write       Opcode = C.IBV_WR_RDMA_WRITE
	WriteImm    Opcode = C.IBV_WR_RDMA_WRITE_WITH_IMM
	Send        Opcode = C.IBV_WR_SEND
	Read        Opcode = C.IBV_WR_RDMA_READ
	CompareSwap Opcode = C.IBV_WR_ATOMIC_CMP_AND_SWP
	FetchAdd    Opcode = C.IBV_WR_ATOMIC_FETCH_AND_ADD

	signalled = C.IBV_SEND_SIGNALED
	inlined   = C.IBV_SEND_INLINE
	wcWithImm = C.IBV_WC_WITH_IMM
)

// Request is one send to be added to a step.
type Request struct {
	ID         uint64
	Op         Opcode
	Inline     bool
	Imm        uint32
	LKey       uint32
	RKey       uint32
	Len        uint32
	Addr       uint64
	RemoteAddr uint64
	Operand    uint64 // addend, or the value to swap in
	Compare    uint64
}

// Queue gathers what one crossing does: chains of sends, one for each queue pair
// that has any, receives for both shared queues, and room for completions.
//
//	Add, AddRecv, Refill, ...  →  Step  →  Completion(i), Chain(i), ...
//
// All of it lies in C memory, with what never changes filled in once. What Add
// and AddRecv put there is the next Step's; results are valid until the Step
// after.
type Queue struct {
	s         *C.struct_moerail_step
	wrs       []sendWR
	sges      []sge
	recvs     []recvWR
	recvSGEs  []sge
	wcs       []WC
	chains    []C.struct_moerail_chain
	qps       []*QP // of the chains
	used      int   // of wrs
	numRecvs  int
	numImms   int
	step      uint64 // serial number of the step being put together
	crossings uint64
}

// QueueSizes are the most that one step can take.
type QueueSizes struct{ Sends, Recvs, Imms, Completions int }

var errNoMemory = errors.New("ibv: no memory for a queue")

// NewQueue makes a queue for a CQ and two SRQs, of immediates and of messages.
func (l *Lib) NewQueue(q *CQ, imms, msgs *SRQ, n QueueSizes) (*Queue, error) {
	s := C.moerail_step_new(l.t, C.uint32_t(n.Sends), C.uint32_t(n.Recvs), C.uint32_t(n.Imms), C.uint32_t(n.Completions))
	if s == nil {
		return nil, errNoMemory
	}
	s.cq, s.imm_srq, s.msg_srq = q.q, imms.s, msgs.s
	return &Queue{
		s:   s,
		wrs: unsafe.Slice((*sendWR)(unsafe.Pointer(s.wrs)), n.Sends), sges: unsafe.Slice((*sge)(unsafe.Pointer(s.sges)), n.Sends),
		recvs: unsafe.Slice((*recvWR)(unsafe.Pointer(s.msg_recvs)), n.Recvs), recvSGEs: unsafe.Slice((*sge)(unsafe.Pointer(s.msg_sges)), n.Recvs),
		wcs: unsafe.Slice((*WC)(unsafe.Pointer(s.wcs)), n.Completions), chains: unsafe.Slice(s.chains, n.Sends),
		qps: make([]*QP, 0, n.Sends), step: 1,
	}, nil
}

// Close frees the memory of the queue.
func (q *Queue) Close() {
	if q == nil || q.s == nil {
		return
	}
	C.moerail_step_free(q.s)
	*q = Queue{crossings: q.crossings}
}

// Room is how many more sends the step takes.
func (q *Queue) Room() int { return len(q.wrs) - q.used }

// Add appends a request to the chain of qp. The caller has seen to Room.
func (q *Queue) Add(qp *QP, r *Request) {
	w, e := &q.wrs[q.used], &q.sges[q.used]
	q.used++
	w.id, w.next, w.opcode, w.flags = r.ID, 0, uint32(r.Op), signalled
	w.imm, w.remoteAddr, w.rkeyOrCmp, w.numSGE = swap32(r.Imm), r.RemoteAddr, uint64(r.RKey), 0
	if r.Len > 0 {
		w.numSGE = 1
		e.addr, e.length, e.lkey = r.Addr, r.Len, r.LKey
		if r.Inline {
			w.flags |= inlined
		}
	}
	switch r.Op {
	case CompareSwap:
		w.rkeyOrCmp, w.swap, w.atomicRKey = r.Compare, r.Operand, r.RKey
	case FetchAdd:
		w.rkeyOrCmp, w.atomicRKey = r.Operand, r.RKey
	}
	if qp.stamp != q.step {
		c := &q.chains[len(q.qps)]
		qp.stamp, qp.chain = q.step, int32(len(q.qps))
		q.qps = append(q.qps, qp)
		c.qp, c.head, c.count = qp.q, (*C.struct_ibv_send_wr)(unsafe.Pointer(w)), 1
	} else {
		qp.tail.next = uintptr(unsafe.Pointer(w))
		q.chains[qp.chain].count++
	}
	qp.tail = w
}

// AddRecv appends a receive of messages; false when the step takes no more.
func (q *Queue) AddRecv(id, addr uint64, length, lkey uint32) bool {
	if q.numRecvs == len(q.recvs) {
		return false
	}
	w, e := &q.recvs[q.numRecvs], &q.recvSGEs[q.numRecvs]
	w.id, w.numSGE = id, 0
	if length > 0 {
		w.numSGE = 1
		e.addr, e.length, e.lkey = addr, length, lkey
	}
	q.numRecvs++
	return true
}

// Refill makes the step post n receives for immediates, at most QueueSizes.Imms;
// it returns how many. Their completions carry id.
func (q *Queue) Refill(n int, id uint64) int {
	n = min(n, int(q.s.cap_imm))
	if q.numImms == 0 && n > 0 {
		first := unsafe.Slice((*recvWR)(unsafe.Pointer(q.s.imm_recvs)), n)
		for i := range first {
			first[i].id = id
		}
	}
	q.numImms = n
	return n
}

// StepResult is what a step came to.
type StepResult struct {
	Completions       int
	Chains            int // chains posted; ask Chain about each if Refused
	Refused           bool
	Sends             int // requests that the device took
	RecvsTaken        int
	ImmsTaken         int
	RecvErr, ImmErr   unix.Errno
	PollFailed        bool
	PollErr           unix.Errno
	RecvsPut, ImmsPut int
}

// Step posts all that was added and polls for at most max completions, in one
// crossing.
func (q *Queue) Step(max int) StepResult {
	s := q.s
	s.num_chains, s.num_msg, s.num_imm = C.uint32_t(len(q.qps)), C.uint32_t(q.numRecvs), C.uint32_t(q.numImms)
	s.max_wc = C.uint32_t(min(max, len(q.wcs)))
	q.crossings++
	C.moerail_step_run(s)
	r := StepResult{
		Chains: len(q.qps), RecvsPut: q.numRecvs, ImmsPut: q.numImms,
		RecvsTaken: int(s.msg_accepted), ImmsTaken: int(s.imm_accepted), RecvErr: unix.Errno(s.msg_err), ImmErr: unix.Errno(s.imm_err),
	}
	for i := range q.chains[:len(q.qps)] {
		c := &q.chains[i]
		r.Sends += int(c.accepted)
		r.Refused = r.Refused || c.accepted != c.count
	}
	if s.num_wc < 0 || int(s.num_wc) > len(q.wcs) {
		r.PollFailed, r.PollErr = true, unix.Errno(-s.num_wc)
	} else {
		r.Completions = int(s.num_wc)
	}
	q.used, q.numRecvs, q.numImms = 0, 0, 0
	q.step++
	q.qps = q.qps[:0]
	return r
}

// Completion is completion i of the last step.
func (q *Queue) Completion(i int) *WC { return &q.wcs[i] }

// Chain tells how many requests the device took of chain i of the last step, of
// how many, and why not the next one.
func (q *Queue) Chain(i int) (qp *QP, accepted, count int, errno unix.Errno) {
	c := &q.chains[i]
	e := int(c.err)
	if e < 0 {
		e = -e
	}
	return q.qps[:i+1][i], int(c.accepted), int(c.count), unix.Errno(e)
}

// Requests appends to ids those of chain i of the last step from request n on,
// in order.
func (q *Queue) Requests(i, n int, ids []uint64) []uint64 {
	w := (*sendWR)(unsafe.Pointer(q.chains[i].head))
	for k := 0; w != nil; k++ {
		if k >= n {
			ids = append(ids, w.id)
		}
		if w.next == 0 {
			break
		}
		// Requests lie in q.wrs: the address says which.
		w = &q.wrs[(w.next-uintptr(unsafe.Pointer(&q.wrs[0])))/unsafe.Sizeof(sendWR{})]
	}
	return ids
}

// RecvID is the id of receive i of the last step.
func (q *Queue) RecvID(i int) uint64 { return q.recvs[i].id }

// Crossings counts the steps taken.
func (q *Queue) Crossings() uint64 { return q.crossings }
