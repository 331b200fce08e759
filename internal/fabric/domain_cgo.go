//go:build libfabric && cgo

package fabric

/*
#include <stdlib.h>
#include "shim.h"
#cgo noescape moe_progress
#cgo nocallback moe_progress
*/
import "C"

import (
	"fmt"
	"runtime"
	"unsafe"
)

const ( // stops compiling when the two layouts part
	_ = -(unsafe.Sizeof(Op{}) ^ C.sizeof_moe_op)
	_ = -(unsafe.Sizeof(Slot{}) ^ C.sizeof_moe_slot)
	_ = -(unsafe.Sizeof(Completion{}) ^ C.sizeof_moe_completion)
	_ = -(unsafe.Offsetof(Op{}.Peer) ^ C.offsetof_op_peer)
	_ = -(unsafe.Offsetof(Op{}.err) ^ C.offsetof_op_err)
	_ = -(unsafe.Offsetof(Slot{}.Op) ^ C.offsetof_slot_op)
	_ = -(unsafe.Offsetof(Slot{}.Bytes) ^ C.offsetof_slot_bytes)
	_ = -(unsafe.Offsetof(Completion{}.Len) ^ C.offsetof_completion_len)
	_ = -(C.MOE_INLINE ^ InlineBytes)
	_ = -(uint64(Recv) ^ C.MOE_RECV)
	_ = -(uint64(FlagDrop) ^ C.MOE_FLAG_DROP)
	_ = -(uint64(Orphan) ^ C.MOE_ORPHAN)
	_ = -(uint64(Flushed) ^ C.MOE_FLUSHED)
	_ = -(uint64(OrphanBack) ^ C.MOE_ORPHAN_BACK)
)

// Config sizes a Domain.
type Config struct {
	Life        uint64 // the domain's own number among all lives of its address
	TimeoutMS   uint64 // a peer that takes nothing for this long is lost
	Sends       int    // slots for operations
	Recvs       int    // slots for receives
	MaxPeers    int
	CQ          int // entries of the completion queue
	EmptyRecvs  int // kept posted for providers with ModeRxCQData
	Tagged      bool
	DataBytes   int  // how much data can go beside a write or message
	Device      bool // memory of GPUs will be registered
	EFA         bool
	LocalMemory bool // local memory needs a descriptor (MRLocal)
	Wait        bool // a descriptor to sleep on is wanted
}

// Domain is an opened endpoint with everything that belongs to it. Its owner's
// thread alone calls its methods.
type Domain struct {
	// Shared with C. Slots holds Config.Sends operations, then Config.Recvs
	// receives. Ring and RecvRing take slot numbers; Out is what Progress filled.
	Slots    []Slot
	Ring     []uint32
	RecvRing []uint32
	Out      []Completion
	// SlotsDesc is the descriptor of the slots' own memory.
	SlotsDesc uint64

	base uint64 // address of Slots
	lib  *Library
	c    *C.moe_dom
}

// OpenDomain opens what info describes.
func (l *Library) OpenDomain(info *Info, cfg Config) (*Domain, error) {
	total := cfg.Sends + cfg.Recvs + cfg.EmptyRecvs
	ring := 1
	for ring < total {
		ring *= 2
	}
	c := C.moe_config{
		life: C.uint64_t(cfg.Life), timeout_ms: C.uint64_t(cfg.TimeoutMS),
		num_slots: C.uint32_t(total), num_sends: C.uint32_t(cfg.Sends), num_recvs: C.uint32_t(cfg.Recvs),
		max_peers: C.uint32_t(cfg.MaxPeers), ring_size: C.uint32_t(ring), cq_size: C.uint32_t(cfg.CQ), pool: C.uint32_t(cfg.EmptyRecvs),
		tagged: flag(cfg.Tagged), data_bytes: C.uint8_t(cfg.DataBytes), local_mr: flag(cfg.LocalMemory), device_memory: flag(cfg.Device), is_efa: flag(cfg.EFA), wait: flag(cfg.Wait),
	}
	var step C.int
	var d *C.moe_dom
	err := C.moe_open(l.c, info.c, &c, &d, &step)
	runtime.KeepAlive(info) // what it points to goes with it
	if err != 0 {
		return nil, l.failStep(step, err)
	}
	return &Domain{
		Slots:     unsafe.Slice((*Slot)(unsafe.Pointer(d.slots)), cfg.Sends+cfg.Recvs),
		Ring:      unsafe.Slice((*uint32)(unsafe.Pointer(d.ring)), ring),
		RecvRing:  unsafe.Slice((*uint32)(unsafe.Pointer(d.recv_ring)), ring),
		Out:       unsafe.Slice((*Completion)(unsafe.Pointer(d.out)), 64),
		SlotsDesc: uint64(uintptr(d.slots_desc)),
		base:      uint64(uintptr(unsafe.Pointer(d.slots))),
		lib:       l, c: d,
	}, nil
}

func flag(b bool) C.uint8_t {
	if b {
		return 1
	}
	return 0
}

// CloseEndpoint ends all traffic. Registrations close after it and before Close,
// or, with MREndpoint, before it.
func (d *Domain) CloseEndpoint() error {
	if err := C.moe_close_endpoint(d.c); err != 0 {
		return d.lib.fail("fi_close of the endpoint", err)
	}
	return nil
}

// Close releases everything; nothing of d may be used afterwards.
func (d *Domain) Close() error {
	c := d.c
	d.c, d.Slots, d.Ring, d.RecvRing, d.Out = nil, nil, nil, nil, nil
	if err := C.moe_close(c); err != 0 {
		return d.lib.fail("fi_close", err)
	}
	return nil
}

// Name is the endpoint's address, as the provider writes it.
func (d *Domain) Name() ([]byte, error) {
	n := C.size_t(512)
	buf := C.calloc(1, n)
	defer C.free(buf)
	if err := C.moe_name(d.c, buf, &n); err != 0 {
		return nil, d.lib.failStep(C.MOE_STEP_NAME, err)
	}
	if n == 0 || n > 512 {
		return nil, fmt.Errorf("fi_getname: an address of %d bytes", n)
	}
	return C.GoBytes(buf, C.int(n)), nil
}

// SlotBytes is the address of the inline bytes of slot i.
func (d *Domain) SlotBytes(i uint32) uint64 {
	return d.base + uint64(i)*uint64(unsafe.Sizeof(Slot{})) + uint64(unsafe.Offsetof(Slot{}.Bytes))
}

// AddPeer makes addr peer number i, which is free.
func (d *Domain) AddPeer(i uint32, addr []byte) error {
	buf := C.CBytes(addr)
	defer C.free(buf)
	if err := C.moe_peer_add(d.c, C.uint32_t(i), buf); err != 0 {
		return d.lib.fail("fi_av_insert", err)
	}
	return nil
}

// FlushPeer ends all that peer i owes, as Lost or Flushed. The ends are reported
// by Progress.
func (d *Domain) FlushPeer(i uint32, how Status) { C.moe_peer_flush(d.c, C.uint32_t(i), C.int(how)) }

// Owes tells how many operations of peer i the provider holds, and how many wait
// here.
func (d *Domain) Owes(i uint32) (posted, queued int) {
	p := unsafe.Slice(d.c.peers, i+1)
	return int(p[i].posted), int(p[i].queued)
}

// RemovePeer takes peer i out of the address vector.
func (d *Domain) RemovePeer(i uint32) error {
	if err := C.moe_peer_remove(d.c, C.uint32_t(i)); err != 0 {
		return d.lib.fail("fi_av_remove", err)
	}
	return nil
}

// DropMarked ends what waits with FlagDrop.
func (d *Domain) DropMarked() { C.moe_drop_marked(d.c) }

// OrphanSlot reports the posted operation of slot i as Flushed; the slot comes
// back later, if the provider ever ends the operation.
func (d *Domain) OrphanSlot(i uint32) { C.moe_orphan(d.c, C.uint32_t(i)) }

// Posted is how many entries of Ring Progress has taken.
func (d *Domain) Posted() uint32 { return uint32(d.c.head) }

// RecvPosted is how many entries of RecvRing Progress has taken.
func (d *Domain) RecvPosted() uint32 { return uint32(d.c.recv_head) }

// Cancel asks the provider to give back the receive in slot i.
func (d *Domain) Cancel(i uint32) error {
	if err := C.moe_cancel(d.c, C.uint32_t(i)); err != 0 {
		return d.lib.fail("fi_cancel", err)
	}
	return nil
}

// Progress posts what stands in the rings up to their tails, tries again what
// waits, and reads completions: at most room, and len(Out), into Out. It is one
// crossing. An error means that the domain is of no use any more.
func (d *Domain) Progress(tail, recvTail uint32, room int) (int, error) {
	n := C.moe_progress(d.c, C.uint32_t(tail), C.uint32_t(recvTail), C.uint32_t(room))
	if n < 0 {
		return 0, d.lib.fail("fi_cq_read, or fi_recv of an empty receive", -n)
	}
	return int(n), nil
}

// WaitFD is a descriptor that becomes readable when Progress may bring something,
// -1 where the provider has none. It is the domain's.
func (d *Domain) WaitFD() int { return int(d.c.wait_fd) }

// Arm is called before sleeping on WaitFD, with the tails of the rings. False:
// there is something to do, and nobody would say so.
func (d *Domain) Arm(tail, recvTail uint32) bool {
	return C.moe_arm(d.c, C.uint32_t(tail), C.uint32_t(recvTail)) != 0
}

// Counters of the shim since the domain was opened.
type Counters struct {
	Crossings    uint64 // calls of Progress
	Again        uint64 // posts that the provider could not take at once
	BadContexts  uint64 // completions for nothing that was posted
	RemoteErrors uint64 // errors of operations that peers began
}

// Counters reads the shim's counters.
func (d *Domain) Counters() Counters {
	return Counters{uint64(d.c.calls), uint64(d.c.again), uint64(d.c.bad_context), uint64(d.c.remote_errors)}
}

// Targets are the constant halves of a template's writes, in C memory.
type Targets struct {
	c *C.moe_target
	n int
}

// NewTargets makes room for n targets; Free releases it, not before the last
// operation that names one has ended.
func NewTargets(n int) (Targets, error) {
	c := C.moe_targets_new(C.uint32_t(max(n, 1)))
	if c == nil {
		return Targets{}, fmt.Errorf("no memory for %d targets", n)
	}
	return Targets{c, n}, nil
}

// Set fills in target k.
func (t Targets) Set(d *Domain, k int, peer uint32, desc, rkey uint64) {
	C.moe_target_set(d.c, t.at(k), C.uint32_t(peer), C.uint64_t(desc), C.uint64_t(rkey))
}

func (t Targets) at(k int) *C.moe_target { return &unsafe.Slice(t.c, t.n)[k] }

// Addr is what Op.Rkey takes with FlagTarget.
func (t Targets) Addr(k int) uint64 { return uint64(uintptr(unsafe.Pointer(t.at(k)))) }

// Free releases the memory.
func (t Targets) Free() { C.free(unsafe.Pointer(t.c)) }
