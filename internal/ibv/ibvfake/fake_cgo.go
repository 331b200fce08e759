//go:build verbs && cgo && linux

// Package ibvfake is an RDMA device in memory for tests: queue pairs of the
// process reach each other, work requests are carried out when they are posted
// or when anybody polls, and any call can be told to fail. It checks what real
// devices check and Soft-RoCE does not: room in queues, message sizes, packet
// sequence numbers, queue keys.
//
// There is one such world in a process, shared by all tests.
package ibvfake

/*
#include "fake.h"
*/
import "C"

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Table is a struct moerail_ibv for ibv.FromTable.
func Table() unsafe.Pointer { return unsafe.Pointer(C.fake_table()) }

// Reset forgets counts and faults and offers n devices, fake0, fake1, ...
func Reset(n int) { C.fake_reset(C.int(n)) }

// Limits sets the largest region and message, in bytes, and the ports of each
// device. Reset sets them to no limit, 8 MiB and 1.
func Limits(maxRegion uint64, maxMessage uint32, ports int) {
	C.fake_limits(C.uint64_t(maxRegion), C.uint32_t(maxMessage), C.int(ports))
}

// Call is one of the calls that can fail.
type Call int

// NumCalls is how many there are, from Call(0) on.
const NumCalls = int(C.fake_num_calls)

// String is the name in the manual, or nearly: ibv_poll_cq.
func (c Call) String() string { return C.GoString(C.fake_name(C.int(c))) }

// CallNamed finds a call; -1 if there is none of that name.
func CallNamed(name string) Call {
	for c := range NumCalls {
		if Call(c).String() == name {
			return Call(c)
		}
	}
	return -1
}

// Fail makes the n-th call from now on fail with e; 0 makes none fail.
func Fail(c Call, n int, e unix.Errno) { C.fake_fail(C.int(c), C.int(n), C.int(e)) }

// Count is how often c was called since Reset.
func Count(c Call) int { return int(C.fake_count(C.int(c))) }

// Live is the number of objects made and not yet destroyed.
func Live() int { return int(C.fake_live()) }

// Overruns counts completions, sends and receives that found a queue full.
func Overruns() int { return int(C.fake_overruns()) }

// RNR counts deliveries that found no receive.
func RNR() int { return int(C.fake_rnr()) }

// Drop loses one datagram in every so many, drawn from a fixed seed, or all.
func Drop(every int, all bool) {
	a := 0
	if all {
		a = 1
	}
	C.fake_drop(C.int(every), C.int(a))
}

// Link takes the link of a device down, or up. It raises no event.
func Link(device int, up bool) {
	u := 0
	if up {
		u = 1
	}
	C.fake_link(C.int(device), C.int(u))
}

// Raise queues an asynchronous event for all who have the device open.
func Raise(device, event int) { C.fake_event(C.int(device), C.int(event)) }

// MoveGID gives a device another address.
func MoveGID(device int) { C.fake_move_gid(C.int(device)) }

// Vendor sets the PCI vendor of a device; Reset sets it to 0.
func Vendor(device int, id uint32) { C.fake_vendor(C.int(device), C.uint32_t(id)) }

// NameNone makes posts that Fail has fail as a whole, naming no request as the
// one that was not taken; until Reset.
func NameNone() { C.fake_name_none() }
