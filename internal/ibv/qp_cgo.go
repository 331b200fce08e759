//go:build verbs && cgo && linux

package ibv

/*
#include "table.h"
*/
import "C"

// Path is how to reach a port.
type Path struct {
	GID          [16]byte
	SGIDIndex    int
	LID          uint16
	Global       bool // with a global route header, as RoCE always has
	Port         int  // our own
	ServiceLevel uint8
	TrafficClass uint8
	HopLimit     uint8
}

func (p *Path) c() C.struct_moerail_path {
	x := C.struct_moerail_path{
		sgid_index: C.uint32_t(p.SGIDIndex), lid: C.uint16_t(p.LID), port: C.uint8_t(p.Port), sl: C.uint8_t(p.ServiceLevel),
		traffic_class: C.uint8_t(p.TrafficClass), hop_limit: C.uint8_t(p.HopLimit),
	}
	if p.Global {
		x.global = 1
	}
	for i, b := range p.GID {
		x.gid[i] = C.uint8_t(b)
	}
	return x
}

// Connect is what both ends of a connection need to know.
type Connect struct {
	Path            Path
	QPN             uint32 // the other's
	RecvPSN         uint32 // what the other's first packet says
	SendPSN         uint32 // what ours says
	MTU             int    // enum ibv_mtu
	MaxReads        int    // reads and atomics that we may have under way
	MaxAnswers      int    // that the other may
	MinRNRTimer     int
	Timeout         int // 4.096 us << Timeout
	Retries         int
	ReceiverRetries int // 7 is for ever
}

// QP is a queue pair.
type QP struct {
	l *Lib
	q *C.struct_ibv_qp
	// Number is the queue pair's number.
	Number uint32
	// MaxInline is how many bytes a request can carry itself.
	MaxInline int
	chain     int32 // in the step being put together; see Queue
	stamp     uint64
	tail      *sendWR
}

// CreateQP makes a queue pair in state RESET, all of whose completions go to q.
// With an SRQ it has no receive queue of its own. inline is asked for; what was
// granted is in MaxInline.
func (p *PD) CreateQP(kind QPType, q *CQ, s *SRQ, send, recv, inline int) (*QP, error) {
	var srq *C.struct_ibv_srq
	if s != nil {
		srq = s.s
	}
	x, err := p.l.createQP(p.p, q.q, srq, kind, send, recv, &inline)
	if err != nil {
		return nil, err
	}
	return &QP{l: p.l, q: x, Number: uint32(x.qp_num), MaxInline: inline}, nil
}

// Close destroys the queue pair.
func (q *QP) Close() error {
	if q == nil || q.q == nil {
		return nil
	}
	x := q.q
	q.q = nil
	return q.l.destroyQP(x)
}

// Init takes the queue pair to INIT.
func (q *QP) Init(port, pkeyIndex int, a Access) error {
	return failed("ibv_modify_qp(INIT)", int(C.moerail_qp_init(q.l.t, q.q, C.uint8_t(port), C.uint16_t(pkeyIndex), C.int(a))))
}

// Connect takes the queue pair from INIT through RTR to RTS.
func (q *QP) Connect(c *Connect) error {
	x := C.struct_moerail_connect{
		path: c.Path.c(), qpn: C.uint32_t(c.QPN), rq_psn: C.uint32_t(c.RecvPSN), sq_psn: C.uint32_t(c.SendPSN), mtu: C.uint32_t(c.MTU),
		max_rd_atomic: C.uint8_t(c.MaxReads), max_dest_rd_atomic: C.uint8_t(c.MaxAnswers), min_rnr_timer: C.uint8_t(c.MinRNRTimer),
		timeout: C.uint8_t(c.Timeout), retry_cnt: C.uint8_t(c.Retries), rnr_retry: C.uint8_t(c.ReceiverRetries),
	}
	if err := failed("ibv_modify_qp(RTR)", int(C.moerail_qp_rtr(q.l.t, q.q, &x))); err != nil {
		return err
	}
	return failed("ibv_modify_qp(RTS)", int(C.moerail_qp_rts(q.l.t, q.q, &x)))
}

// Fail takes the queue pair to ERR, which flushes what is posted.
func (q *QP) Fail() error {
	return failed("ibv_modify_qp(ERR)", int(C.moerail_qp_error(q.l.t, q.q)))
}

// Ready takes a UD queue pair to RTS.
func (q *QP) Ready(port, pkeyIndex int, qkey uint32) error {
	return failed("ibv_modify_qp(UD)", int(C.moerail_ud_ready(q.l.t, q.q, C.uint8_t(port), C.uint16_t(pkeyIndex), C.uint32_t(qkey))))
}

// AH is the way to a UD queue pair.
type AH struct {
	l *Lib
	a *C.struct_ibv_ah
}

// CreateAH finds the way to a port. On RoCE the kernel resolves the hardware
// address, for at most a second.
func (p *PD) CreateAH(path *Path) (*AH, error) {
	x := path.c()
	var errno C.int
	a := C.moerail_create_ah(p.l.t, p.p, &x, &errno)
	if a == nil {
		return nil, failed("ibv_create_ah", int(errno))
	}
	return &AH{p.l, a}, nil
}

// Close forgets the way.
func (a *AH) Close() error {
	if a == nil || a.a == nil {
		return nil
	}
	x := a.a
	a.a = nil
	return a.l.destroyAH(x)
}

// SendDatagram posts one datagram of size bytes at addr.
func (q *QP) SendDatagram(a *AH, qpn, qkey uint32, id, addr uint64, size int, lkey uint32) error {
	return failed("ibv_post_send(UD)", int(C.moerail_ud_send(q.l.t, q.q, a.a, C.uint32_t(qpn), C.uint32_t(qkey),
		C.uint64_t(id), C.uint64_t(addr), C.uint32_t(size), C.uint32_t(lkey))))
}

// RecvDatagram posts a receive; the datagram comes after 40 bytes of header.
func (q *QP) RecvDatagram(id, addr uint64, size int, lkey uint32) error {
	return failed("ibv_post_recv(UD)", int(C.moerail_ud_recv(q.l.t, q.q, C.uint64_t(id), C.uint64_t(addr), C.uint32_t(size), C.uint32_t(lkey))))
}
