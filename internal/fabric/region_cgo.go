//go:build libfabric && cgo

package fabric

/*
#include "shim.h"
*/
import "C"

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Rights of a registration.
const (
	LocalRights  = C.FI_SEND | C.FI_RECV | C.FI_READ | C.FI_WRITE
	RemoteWrite  = C.FI_REMOTE_WRITE
	RemoteRead   = C.FI_REMOTE_READ
	noDescriptor = -1
)

// Memory describes what to register.
type Memory struct {
	Addr, Len uint64
	Rights    uint64
	Key       uint64 // asked for; providers with MRProvKey choose their own
	Device    bool   // Addr is a CUDA device pointer
}

// Registration is registered memory.
type Registration struct {
	Desc, Key uint64
	lib       *Library
	c         *C.struct_fid_mr
}

// Register registers m. Device memory is tried as a dma-buf, then through the
// provider's own CUDA support, then as if it were host memory (which needs a
// kernel module for peer memory); the error holds what each attempt said.
func (d *Domain) Register(m Memory) (Registration, error) {
	base := C.moe_memory{addr: C.uint64_t(m.Addr), len: C.uint64_t(m.Len), access: C.uint64_t(m.Rights), key: C.uint64_t(m.Key),
		iface: C.FI_HMEM_SYSTEM, dmabuf: noDescriptor}
	if !m.Device {
		return d.register(base)
	}
	var errs []error
	for _, attempt := range []struct {
		name string
		run  func() (Registration, error)
	}{
		{"dma-buf", func() (Registration, error) { return d.registerDMABuf(base) }},
		{"CUDA", func() (Registration, error) { c := base; c.iface = C.FI_HMEM_CUDA; return d.register(c) }},
		{"peer memory", func() (Registration, error) { return d.register(base) }},
	} {
		r, err := attempt.run()
		if err == nil {
			return r, nil
		}
		errs = append(errs, fmt.Errorf("as %s: %w", attempt.name, err))
	}
	return Registration{}, errors.Join(errs...)
}

func (d *Domain) register(m C.moe_memory) (Registration, error) {
	var mr *C.struct_fid_mr
	var step C.int
	if err := C.moe_register(d.c, &m, &mr, &step); err != 0 {
		return Registration{}, d.lib.failStep(step, err)
	}
	return Registration{Desc: uint64(C.moe_desc(mr)), Key: uint64(mr.key), lib: d.lib, c: mr}, nil
}

func (d *Domain) registerDMABuf(m C.moe_memory) (Registration, error) {
	var fd C.int
	var offset C.uint64_t
	if err := C.moe_cuda_dmabuf(m.addr, m.len, &fd, &offset); err != 0 {
		return Registration{}, d.lib.fail("cuMemGetHandleForAddressRange", err)
	}
	defer unix.Close(int(fd)) // the registration holds the object itself
	m.iface, m.dmabuf, m.dmabuf_offset = C.FI_HMEM_CUDA, fd, offset
	return d.register(m)
}

// Close ends the registration.
func (r Registration) Close() error {
	if r.c == nil {
		return nil
	}
	if err := C.moe_unregister(r.c); err != 0 {
		return r.lib.fail("fi_close of a memory region", err)
	}
	return nil
}
