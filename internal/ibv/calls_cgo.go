//go:build verbs && cgo && linux

package ibv

/*
#include "table.h"
#include <errno.h>
#include <stdlib.h>

// One function for each call of the table; each returns what the call does, and
// those that make something set errno to 0 first.
static int c_close_device(const struct moerail_ibv *t, struct ibv_context *c) { return t->close_device(c); }
static int c_query_device(const struct moerail_ibv *t, struct ibv_context *c, struct ibv_device_attr *a) { return t->query_device(c, a); }
static int c_query_port(const struct moerail_ibv *t, struct ibv_context *c, int port, struct ibv_port_attr *a) { return t->query_port(c, port, a); }
static ssize_t c_query_gid_table(const struct moerail_ibv *t, struct ibv_context *c, struct ibv_gid_entry *e, size_t n) { return t->query_gid_table(c, e, n, 0, sizeof *e); }
static struct ibv_pd *c_alloc_pd(const struct moerail_ibv *t, struct ibv_context *c) { errno = 0; return t->alloc_pd(c); }
static int c_dealloc_pd(const struct moerail_ibv *t, struct ibv_pd *p) { return t->dealloc_pd(p); }
static struct ibv_mr *c_reg_mr(const struct moerail_ibv *t, struct ibv_pd *p, uint64_t addr, uint64_t n, unsigned access) {
	errno = 0;
	return t->reg_mr_iova2 ? t->reg_mr_iova2(p, (void *)(uintptr_t)addr, n, addr, access) : t->reg_mr(p, (void *)(uintptr_t)addr, n, (int)access);
}
static struct ibv_mr *c_reg_dmabuf_mr(const struct moerail_ibv *t, struct ibv_pd *p, uint64_t off, uint64_t n, uint64_t iova, int fd, unsigned access) { errno = 0; return t->reg_dmabuf_mr(p, off, n, iova, fd, (int)access); }
static int c_dereg_mr(const struct moerail_ibv *t, struct ibv_mr *m) { return t->dereg_mr(m); }
static struct ibv_cq *c_create_cq(const struct moerail_ibv *t, struct ibv_context *c, int n) { errno = 0; return t->create_cq(c, n, NULL, NULL, 0); }
static int c_destroy_cq(const struct moerail_ibv *t, struct ibv_cq *q) { return t->destroy_cq(q); }
static struct ibv_srq *c_create_srq(const struct moerail_ibv *t, struct ibv_pd *p, uint32_t n) {
	struct ibv_srq_init_attr a = {.attr = {.max_wr = n, .max_sge = 1}};
	errno = 0;
	return t->create_srq(p, &a);
}
static int c_destroy_srq(const struct moerail_ibv *t, struct ibv_srq *s) { return t->destroy_srq(s); }
static int c_destroy_qp(const struct moerail_ibv *t, struct ibv_qp *q) { return t->destroy_qp(q); }
static int c_destroy_ah(const struct moerail_ibv *t, struct ibv_ah *a) { return t->destroy_ah(a); }
*/
import "C"

import (
	"strings"
	"unsafe"
)

// The functions of this file are the calls themselves. What each says about
// failure, a pointer and errno, an errno, or -1, is read here and nowhere else.

func rc(call string, n C.int, err error) error {
	if n == 0 {
		return nil
	}
	if n > 0 {
		return failed(call, int(n))
	}
	return made(call, false, err)
}

// made reads the convention of calls that return a pointer.
func made(call string, ok bool, errno error) error {
	if ok {
		return nil
	}
	e := int(errnoOf(errno))
	if e == 0 {
		e = int(C.EIO)
	}
	return failed(call, e)
}

func (l *Lib) names() ([]string, error) {
	const size = 64 << 10
	buf := (*C.char)(C.malloc(size))
	defer C.free(unsafe.Pointer(buf))
	var errno C.int
	if C.moerail_names(l.t, buf, size, &errno) != 0 {
		return nil, failed("ibv_get_device_list", int(errno))
	}
	return strings.Fields(C.GoString(buf)), nil
}

func (l *Lib) openDevice(name string) (*C.struct_ibv_context, error) {
	s := C.CString(name)
	defer C.free(unsafe.Pointer(s))
	var errno, listing C.int
	c := C.moerail_open(l.t, s, &errno, &listing)
	if listing != 0 {
		return nil, failed("ibv_get_device_list", int(errno))
	}
	if c == nil {
		return nil, failed("ibv_open_device", int(errno))
	}
	return c, nil
}

func (l *Lib) closeDevice(c *C.struct_ibv_context) error {
	n, err := C.c_close_device(l.t, c)
	return rc("ibv_close_device", n, err)
}

func (l *Lib) queryDevice(c *C.struct_ibv_context, a *C.struct_ibv_device_attr) error {
	n, err := C.c_query_device(l.t, c, a)
	return rc("ibv_query_device", n, err)
}

func (l *Lib) queryPort(c *C.struct_ibv_context, port int, a *C.struct_ibv_port_attr) error {
	n, err := C.c_query_port(l.t, c, C.int(port), a)
	return rc("ibv_query_port", n, err)
}

func (l *Lib) queryGIDTable(c *C.struct_ibv_context, out []C.struct_ibv_gid_entry) (int, error) {
	n := C.c_query_gid_table(l.t, c, &out[0], C.size_t(len(out)))
	if n < 0 { // a negative errno
		return 0, failed("ibv_query_gid_table", int(-n))
	}
	return int(n), nil
}

func (l *Lib) allocPD(c *C.struct_ibv_context) (*C.struct_ibv_pd, error) {
	p, err := C.c_alloc_pd(l.t, c)
	return p, made("ibv_alloc_pd", p != nil, err)
}

func (l *Lib) deallocPD(p *C.struct_ibv_pd) error {
	n, err := C.c_dealloc_pd(l.t, p)
	return rc("ibv_dealloc_pd", n, err)
}

func (l *Lib) regMR(p *C.struct_ibv_pd, addr, size uint64, access Access) (*C.struct_ibv_mr, error) {
	m, err := C.c_reg_mr(l.t, p, C.uint64_t(addr), C.uint64_t(size), C.uint(access))
	return m, made("ibv_reg_mr", m != nil, err)
}

func (l *Lib) regDMABufMR(p *C.struct_ibv_pd, off, size, iova uint64, fd int, access Access) (*C.struct_ibv_mr, error) {
	m, err := C.c_reg_dmabuf_mr(l.t, p, C.uint64_t(off), C.uint64_t(size), C.uint64_t(iova), C.int(fd), C.uint(access))
	return m, made("ibv_reg_dmabuf_mr", m != nil, err)
}

func (l *Lib) deregMR(m *C.struct_ibv_mr) error {
	n, err := C.c_dereg_mr(l.t, m)
	return rc("ibv_dereg_mr", n, err)
}

func (l *Lib) createCQ(c *C.struct_ibv_context, n int) (*C.struct_ibv_cq, error) {
	q, err := C.c_create_cq(l.t, c, C.int(n))
	return q, made("ibv_create_cq", q != nil, err)
}

func (l *Lib) destroyCQ(q *C.struct_ibv_cq) error {
	n, err := C.c_destroy_cq(l.t, q)
	return rc("ibv_destroy_cq", n, err)
}

func (l *Lib) createSRQ(p *C.struct_ibv_pd, n int) (*C.struct_ibv_srq, error) {
	s, err := C.c_create_srq(l.t, p, C.uint32_t(n))
	return s, made("ibv_create_srq", s != nil, err)
}

func (l *Lib) destroySRQ(s *C.struct_ibv_srq) error {
	n, err := C.c_destroy_srq(l.t, s)
	return rc("ibv_destroy_srq", n, err)
}

func (l *Lib) createQP(p *C.struct_ibv_pd, q *C.struct_ibv_cq, s *C.struct_ibv_srq, kind QPType, send, recv int, inline *int) (*C.struct_ibv_qp, error) {
	var errno C.int
	in := C.uint32_t(*inline)
	qp := C.moerail_create_qp(l.t, p, q, s, C.int(kind), C.uint32_t(send), C.uint32_t(recv), &in, &errno)
	if qp == nil {
		return nil, failed("ibv_create_qp", int(errno))
	}
	*inline = int(in)
	return qp, nil
}

func (l *Lib) destroyQP(q *C.struct_ibv_qp) error {
	n, err := C.c_destroy_qp(l.t, q)
	return rc("ibv_destroy_qp", n, err)
}

func (l *Lib) destroyAH(a *C.struct_ibv_ah) error {
	n, err := C.c_destroy_ah(l.t, a)
	return rc("ibv_destroy_ah", n, err)
}
