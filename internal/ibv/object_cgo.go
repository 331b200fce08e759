//go:build verbs && cgo && linux

package ibv

/*
#cgo noescape moerail_event
#cgo nocallback moerail_event
#include "table.h"
*/
import "C"

import "unsafe"

// Access says what a registration allows; the values are libibverbs' own.
type Access uint32

const (
	LocalWrite      Access = C.IBV_ACCESS_LOCAL_WRITE
	RemoteWrite     Access = C.IBV_ACCESS_REMOTE_WRITE
	RemoteRead      Access = C.IBV_ACCESS_REMOTE_READ
	RemoteAtomic    Access = C.IBV_ACCESS_REMOTE_ATOMIC
	RelaxedOrdering Access = C.IBV_ACCESS_RELAXED_ORDERING
)

// QPType is the service of a queue pair.
type QPType int

const (
	RC QPType = C.IBV_QPT_RC
	UD QPType = C.IBV_QPT_UD
)

// DeviceAttr is what the device can do, as far as anybody here asks.
type DeviceAttr struct {
	Firmware         string
	VendorID, PartID uint32
	MaxMRSize        uint64
	MaxQP, MaxQPWR   int
	MaxCQE, MaxMR    int
	MaxSRQ, MaxSRQWR int
	// MaxQPReads is how many reads and atomics a queue pair answers at once,
	// MaxInitReads how many it may ask.
	MaxQPReads, MaxInitReads int
	Atomic                   bool
	NumPorts                 int
}

// Port states and link layers, as libibverbs numbers them.
const (
	PortActive   = C.IBV_PORT_ACTIVE
	LinkEthernet = C.IBV_LINK_LAYER_ETHERNET
)

// PortAttr is one port's state.
type PortAttr struct {
	State      int // PortActive when it works
	LinkLayer  int // LinkEthernet, or InfiniBand
	MTU        int // enum ibv_mtu: 1 is 256 bytes, 5 is 4096
	MaxMessage uint64
	LID        uint16
	GIDTable   int // length
	Width      int // as the port reports them
	Speed      int
}

// GIDType tells how packets with a GID are framed.
type GIDType int

const (
	GIDInfiniBand GIDType = 0
	GIDRoCEv1     GIDType = 1
	GIDRoCEv2     GIDType = 2
)

// GIDEntry is one valid line of the GID table.
type GIDEntry struct {
	GID   [16]byte
	Index int
	Port  int
	Type  GIDType
}

// Devices returns the names of the devices that the library shows.
func (l *Lib) Devices() ([]string, error) { return l.names() }

// Device is an opened device.
type Device struct {
	l *Lib
	c *C.struct_ibv_context
}

// OpenDevice opens the device of that name.
func (l *Lib) OpenDevice(name string) (*Device, error) {
	c, err := l.openDevice(name)
	if err != nil {
		return nil, err
	}
	return &Device{l, c}, nil
}

// Close closes the device; everything made from it is closed before.
func (d *Device) Close() error {
	if d == nil || d.c == nil {
		return nil
	}
	c := d.c
	d.c = nil
	return d.l.closeDevice(c)
}

// Attr asks what the device can do.
func (d *Device) Attr() (DeviceAttr, error) {
	var a C.struct_ibv_device_attr
	if err := d.l.queryDevice(d.c, &a); err != nil {
		return DeviceAttr{}, err
	}
	return DeviceAttr{
		Firmware: C.GoString(&a.fw_ver[0]), VendorID: uint32(a.vendor_id), PartID: uint32(a.vendor_part_id),
		MaxMRSize: uint64(a.max_mr_size), MaxQP: int(a.max_qp), MaxQPWR: int(a.max_qp_wr), MaxCQE: int(a.max_cqe), MaxMR: int(a.max_mr),
		MaxSRQ: int(a.max_srq), MaxSRQWR: int(a.max_srq_wr), MaxQPReads: int(a.max_qp_rd_atom), MaxInitReads: int(a.max_qp_init_rd_atom),
		Atomic: a.atomic_cap != C.IBV_ATOMIC_NONE, NumPorts: int(a.phys_port_cnt),
	}, nil
}

// Port asks for the state of a port; ports count from 1.
func (d *Device) Port(port int) (PortAttr, error) {
	var a C.struct_ibv_port_attr
	if err := d.l.queryPort(d.c, port, &a); err != nil {
		return PortAttr{}, err
	}
	return PortAttr{
		State: int(a.state), LinkLayer: int(a.link_layer), MTU: int(a.active_mtu), MaxMessage: uint64(a.max_msg_sz), LID: uint16(a.lid),
		GIDTable: int(a.gid_tbl_len), Width: int(a.active_width), Speed: int(a.active_speed),
	}, nil
}

// GIDs reads the GID table of all ports.
func (d *Device) GIDs() ([]GIDEntry, error) {
	raw := make([]C.struct_ibv_gid_entry, 512)
	n, err := d.l.queryGIDTable(d.c, raw)
	if err != nil {
		return nil, err
	}
	out := make([]GIDEntry, 0, n)
	for _, e := range raw[:min(n, len(raw))] {
		out = append(out, GIDEntry{GID: *(*[16]byte)(unsafe.Pointer(&e.gid)), Index: int(e.gid_index), Port: int(e.port_num), Type: GIDType(e.gid_type)})
	}
	return out, nil
}

// EventType is an asynchronous event; the values are libibverbs' own.
type EventType int

const (
	EventCQError      EventType = C.IBV_EVENT_CQ_ERR
	EventQPFatal      EventType = C.IBV_EVENT_QP_FATAL
	EventQPRequest    EventType = C.IBV_EVENT_QP_REQ_ERR
	EventQPAccess     EventType = C.IBV_EVENT_QP_ACCESS_ERR
	EventDeviceFatal  EventType = C.IBV_EVENT_DEVICE_FATAL
	EventPortActive   EventType = C.IBV_EVENT_PORT_ACTIVE
	EventPortError    EventType = C.IBV_EVENT_PORT_ERR
	EventLIDChange    EventType = C.IBV_EVENT_LID_CHANGE
	EventSRQError     EventType = C.IBV_EVENT_SRQ_ERR
	EventQPLastWQE    EventType = C.IBV_EVENT_QP_LAST_WQE_REACHED
	EventGIDChange    EventType = C.IBV_EVENT_GID_CHANGE
	EventPKeyChange   EventType = C.IBV_EVENT_PKEY_CHANGE
	EventClientRereg  EventType = C.IBV_EVENT_CLIENT_REREGISTER
	EventSubnetChange EventType = C.IBV_EVENT_SM_CHANGE
)

// Event is one asynchronous event.
type Event struct {
	Type EventType
	Port int    // for events of a port
	QP   uint32 // number, for events of a queue pair
}

// Event takes the next asynchronous event, if there is one. It never waits.
func (d *Device) Event() (Event, bool, error) {
	var typ, port C.int
	var qp C.uint32_t
	switch n := C.moerail_event(d.l.t, d.c, &typ, &port, &qp); {
	case n < 0:
		return Event{}, false, failed("ibv_get_async_event", int(-n))
	case n == 0:
		return Event{}, false, nil
	}
	return Event{Type: EventType(typ), Port: int(port), QP: uint32(qp)}, true, nil
}

// PD is a protection domain.
type PD struct {
	l *Lib
	p *C.struct_ibv_pd
}

// AllocPD makes a protection domain.
func (d *Device) AllocPD() (*PD, error) {
	p, err := d.l.allocPD(d.c)
	if err != nil {
		return nil, err
	}
	return &PD{d.l, p}, nil
}

// Close frees the protection domain.
func (p *PD) Close() error {
	if p == nil || p.p == nil {
		return nil
	}
	x := p.p
	p.p = nil
	return p.l.deallocPD(x)
}

// MR is registered memory.
type MR struct {
	l          *Lib
	m          *C.struct_ibv_mr
	LKey, RKey uint32
}

// Register registers size bytes at addr, which stay mapped until Close.
func (p *PD) Register(addr, size uint64, a Access) (*MR, error) {
	m, err := p.l.regMR(p.p, addr, size, a)
	if err != nil {
		return nil, err
	}
	return &MR{p.l, m, uint32(m.lkey), uint32(m.rkey)}, nil
}

// RegisterDMABuf registers size bytes at off of a DMA buffer, addressed from
// iova on. Ask Lib.HasDMABuf before.
func (p *PD) RegisterDMABuf(off, size, iova uint64, fd int, a Access) (*MR, error) {
	m, err := p.l.regDMABufMR(p.p, off, size, iova, fd, a)
	if err != nil {
		return nil, err
	}
	return &MR{p.l, m, uint32(m.lkey), uint32(m.rkey)}, nil
}

// Close revokes the keys.
func (m *MR) Close() error {
	if m == nil || m.m == nil {
		return nil
	}
	x := m.m
	m.m = nil
	return m.l.deregMR(x)
}

// CQ is a completion queue.
type CQ struct {
	l *Lib
	q *C.struct_ibv_cq
	// Entries is how many completions fit, at least what was asked for.
	Entries int
}

// CreateCQ makes a completion queue for n entries.
func (d *Device) CreateCQ(n int) (*CQ, error) {
	q, err := d.l.createCQ(d.c, n)
	if err != nil {
		return nil, err
	}
	return &CQ{d.l, q, int(q.cqe)}, nil
}

// Close destroys the queue.
func (q *CQ) Close() error {
	if q == nil || q.q == nil {
		return nil
	}
	x := q.q
	q.q = nil
	return q.l.destroyCQ(x)
}

// SRQ is a shared receive queue.
type SRQ struct {
	l *Lib
	s *C.struct_ibv_srq
}

// CreateSRQ makes a receive queue for n receives of one piece each.
func (p *PD) CreateSRQ(n int) (*SRQ, error) {
	s, err := p.l.createSRQ(p.p, n)
	if err != nil {
		return nil, err
	}
	return &SRQ{p.l, s}, nil
}

// Close destroys the queue.
func (s *SRQ) Close() error {
	if s == nil || s.s == nil {
		return nil
	}
	x := s.s
	s.s = nil
	return s.l.destroySRQ(x)
}
