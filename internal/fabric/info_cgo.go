//go:build libfabric && cgo

package fabric

/*
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"runtime"
	"unsafe"
)

// What hints ask for, and what an Info says.
const (
	CapMessage = C.FI_MSG
	CapTagged  = C.FI_TAGGED
	CapRMA     = C.FI_RMA
	CapAtomic  = C.FI_ATOMIC
	CapHMEM    = C.FI_HMEM

	ModeContext    = C.FI_CONTEXT
	ModeContext2   = C.FI_CONTEXT2
	ModeRxCQData   = C.FI_RX_CQ_DATA
	ModeMsgPrefix  = C.FI_MSG_PREFIX
	ModeAsyncIOV   = C.FI_ASYNC_IOV
	ModeRestricted = C.FI_RESTRICTED_COMP
	ModeNotifyOnly = C.FI_NOTIFY_FLAGS_ONLY
	ModeBuffered   = C.FI_BUFFERED_RECV

	MRLocal      = C.FI_MR_LOCAL
	MRRaw        = C.FI_MR_RAW
	MRVirtAddr   = C.FI_MR_VIRT_ADDR
	MRAllocated  = C.FI_MR_ALLOCATED
	MRProvKey    = C.FI_MR_PROV_KEY
	MRMMUNotify  = C.FI_MR_MMU_NOTIFY
	MRRMAEvent   = C.FI_MR_RMA_EVENT
	MREndpoint   = C.FI_MR_ENDPOINT
	MRHMEM       = C.FI_MR_HMEM
	MRCollective = C.FI_MR_COLLECTIVE

	FormatSockaddr    = C.FI_SOCKADDR
	FormatSockaddrIn  = C.FI_SOCKADDR_IN
	FormatSockaddrIn6 = C.FI_SOCKADDR_IN6
	FormatString      = C.FI_ADDR_STR
	FormatEFA         = C.FI_ADDR_EFA
)

// Hints ask for a reliable datagram endpoint with at least Caps, whose Modes and
// MRModes the caller can cope with.
type Hints struct {
	Caps     uint64
	Mode     uint64
	MRMode   int
	Provider string // "" = all
}

// Info is one endpoint that a provider offers. Values are as the provider said
// them; sizes are in bytes unless named otherwise.
type Info struct {
	Provider, Fabric, Domain string
	Version                  uint32 // the provider's
	Caps, Mode               uint64
	MRMode                   int
	AddrFormat               uint32
	Source                   []byte
	Protocol                 uint32
	MaxMessage               uint64
	PrefixBytes              uint64
	InjectBytes              uint64
	SendQueue, RecvQueue     uint64 // operations
	SendIOV, RemoteIOV       uint64 // segments
	CQDataBytes, KeyBytes    uint64
	MaxErrBytes              uint64
	MaxRegions               uint64
	ControlAuto, DataAuto    bool   // progress without being polled
	LinkBitsPerSecond        uint64 // 0 if unknown
	PCI                      string // "0000:00:06.0", "" if unknown

	lib *Library
	c   *C.struct_fi_info
}

// Infos asks for what the library's providers offer. Nothing that fits is an
// *Error with errno ENODATA (61).
func (l *Library) Infos(h Hints) ([]*Info, error) {
	name := C.CString(h.Provider)
	defer C.free(unsafe.Pointer(name))
	hints := C.moe_hints(l.c, C.uint64_t(h.Caps), C.uint64_t(h.Mode), C.int(h.MRMode), name)
	if hints == nil {
		return nil, l.fail("fi_allocinfo", C.ENOMEM)
	}
	defer C.moe_freeinfo(l.c, hints)
	var list *C.struct_fi_info
	if err := C.moe_getinfo(l.c, hints, &list); err != 0 {
		return nil, l.fail("fi_getinfo", err)
	}
	defer C.moe_freeinfo(l.c, list)
	var out []*Info
	for c := list; c != nil; c = c.next {
		if i := l.info(c); i != nil {
			out = append(out, i)
		}
	}
	return out, nil
}

func (l *Library) info(c *C.struct_fi_info) *Info {
	if c.tx_attr == nil || c.rx_attr == nil || c.ep_attr == nil || c.domain_attr == nil || c.fabric_attr == nil {
		return nil
	}
	dup := C.moe_dupinfo(l.c, c)
	if dup == nil {
		return nil
	}
	i := &Info{
		Provider: goString(c.fabric_attr.prov_name), Fabric: goString(c.fabric_attr.name), Domain: goString(c.domain_attr.name),
		Version: uint32(c.fabric_attr.prov_version),
		Caps:    uint64(c.caps), Mode: uint64(c.mode | c.domain_attr.mode | c.tx_attr.mode | c.rx_attr.mode),
		MRMode: int(c.domain_attr.mr_mode), AddrFormat: uint32(c.addr_format),
		Protocol: uint32(c.ep_attr.protocol), MaxMessage: uint64(c.ep_attr.max_msg_size), PrefixBytes: uint64(c.ep_attr.msg_prefix_size),
		InjectBytes: uint64(c.tx_attr.inject_size), SendQueue: uint64(c.tx_attr.size), RecvQueue: uint64(c.rx_attr.size),
		SendIOV: uint64(c.tx_attr.iov_limit), RemoteIOV: uint64(c.tx_attr.rma_iov_limit),
		CQDataBytes: uint64(c.domain_attr.cq_data_size), KeyBytes: uint64(c.domain_attr.mr_key_size),
		MaxErrBytes: uint64(c.domain_attr.max_err_data), MaxRegions: uint64(c.domain_attr.mr_cnt),
		ControlAuto: c.domain_attr.control_progress == C.FI_PROGRESS_AUTO, DataAuto: c.domain_attr.data_progress == C.FI_PROGRESS_AUTO,
		lib: l, c: dup,
	}
	if c.src_addr != nil && c.src_addrlen > 0 && c.src_addrlen < 4096 {
		i.Source = C.GoBytes(c.src_addr, C.int(c.src_addrlen))
	}
	i.LinkBitsPerSecond = uint64(C.moe_link_speed(c))
	if buf := (*C.char)(C.calloc(1, 32)); buf != nil {
		C.moe_pci(c, buf, 32)
		i.PCI = C.GoString(buf)
		C.free(unsafe.Pointer(buf))
	}
	runtime.AddCleanup(i, func(c *C.struct_fi_info) { C.moe_freeinfo(l.c, c) }, dup)
	return i
}

func goString(s *C.char) string {
	if s == nil {
		return ""
	}
	return C.GoString(s)
}

// ErrnoText is libfabric's own text for an errno.
func (i *Info) ErrnoText(errno uint32) string { return i.lib.ErrnoText(errno) }
