//go:build verbs && cgo && linux

#include "fake.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_DEV = 8, MAX_QP = 1 << 12, MAX_MR = 1 << 14, INLINE = 220, TRIES = 3000, MAX_EVENTS = 64 };

struct event { int type; };
struct ctx { struct ibv_context c; int dev; struct event events[MAX_EVENTS]; int num_events; struct ctx *next; };
struct mr { struct ibv_mr mr; uint64_t base, size; unsigned access; int dev; };
struct cq { struct ibv_cq cq; struct ibv_wc *ring; int cap, head, count; };
struct rwr { uint64_t id; struct ibv_sge sge; int num; };
struct rq { struct rwr *ring; int cap, head, count; };
struct srq { struct ibv_srq srq; struct rq q; };
struct swr { struct ibv_send_wr wr; struct ibv_sge sge; uint8_t data[INLINE]; };
struct qp {
	struct ibv_qp qp;
	struct swr *ring;
	int cap, head, count, dev, tries, stuck;
	struct rq q;
	struct ibv_qp_attr attr;
	unsigned access;
};
struct ah { struct ibv_ah ah; uint8_t gid[16]; };

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static struct ibv_device devices[MAX_DEV];
static uint8_t gids[MAX_DEV][16];
static int num_devices, link_up[MAX_DEV], drop_every, drop_all, num_ports;
static struct ctx *contexts;
static struct qp *qps[MAX_QP];
static struct mr *mrs[MAX_MR];
static uint32_t next_qp, next_mr, qp_serial;
static unsigned long calls[fake_num_calls], overruns, rnrs, datagrams, fail_at[fake_num_calls];
static int fail_errno[fake_num_calls];
static long live, waiting; // waiting: sends not yet carried out
static uint64_t max_mr_size, lottery;
static uint32_t max_msg_size, vendors[MAX_DEV];
static int name_none;

// fails counts a call and tells whether it is the one that shall fail. The lock
// is held from here on.
static int fails(int call)
{
	pthread_mutex_lock(&mu);
	calls[call]++;
	if (fail_at[call] && --fail_at[call] == 0)
		return fail_errno[call];
	return 0;
}

static int leave(int rc)
{
	pthread_mutex_unlock(&mu);
	return rc;
}

static void *leave_null(int err)
{
	pthread_mutex_unlock(&mu);
	errno = err;
	return NULL;
}

static void *make(size_t n)
{
	live++;
	return calloc(1, n);
}

static void unmake(void *p)
{
	live--;
	free(p);
}

static struct ibv_device **get_device_list(int *n)
{
	int e = fails(fake_get_device_list);
	if (e)
		return leave_null(e);
	struct ibv_device **l = make((num_devices + 1) * sizeof *l);
	for (int i = 0; i < num_devices; i++)
		l[i] = &devices[i];
	*n = num_devices;
	leave(0);
	return l;
}

static void free_device_list(struct ibv_device **l)
{
	pthread_mutex_lock(&mu);
	unmake(l);
	leave(0);
}

static const char *get_device_name(struct ibv_device *d) { return d->name; }

static struct ibv_context *open_device(struct ibv_device *d)
{
	int e = fails(fake_open_device);
	if (e)
		return leave_null(e);
	struct ctx *c = make(sizeof *c);
	c->c.device = d;
	c->dev = (int)(d - devices);
	c->c.async_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	c->next = contexts;
	contexts = c;
	leave(0);
	return &c->c;
}

static int close_device(struct ibv_context *x)
{
	int e = fails(fake_close_device);
	struct ctx *c = (struct ctx *)x, **p = &contexts;
	while (*p != c)
		p = &(*p)->next;
	*p = c->next;
	close(x->async_fd);
	unmake(c);
	return leave(e);
}

static int query_device(struct ibv_context *x, struct ibv_device_attr *a)
{
	int e = fails(fake_query_device);
	if (e)
		return leave(e);
	memset(a, 0, sizeof *a);
	strcpy(a->fw_ver, "1.0");
	a->vendor_id = vendors[((struct ctx *)x)->dev];
	a->max_mr_size = max_mr_size;
	a->max_qp = MAX_QP, a->max_qp_wr = 4096, a->max_cqe = 1 << 16, a->max_mr = MAX_MR, a->max_srq = 64, a->max_srq_wr = 4096;
	a->max_qp_rd_atom = a->max_qp_init_rd_atom = 16;
	a->atomic_cap = IBV_ATOMIC_HCA;
	a->phys_port_cnt = num_ports;
	return leave(0);
}

static int query_port(struct ibv_context *x, uint8_t port, struct ibv_port_attr *a)
{
	int e = fails(fake_query_port);
	if (e)
		return leave(e);
	if (port < 1 || port > num_ports)
		return leave(EINVAL);
	memset(a, 0, sizeof *a);
	a->state = link_up[((struct ctx *)x)->dev] ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
	a->max_mtu = a->active_mtu = IBV_MTU_4096;
	a->gid_tbl_len = 16;
	a->max_msg_sz = max_msg_size;
	a->link_layer = IBV_LINK_LAYER_ETHERNET;
	a->active_width = 2, a->active_speed = 32;
	return leave(0);
}

static ssize_t query_gid_table(struct ibv_context *x, struct ibv_gid_entry *out, size_t max, uint32_t flags, size_t size)
{
	int e = fails(fake_query_gid_table), n = 0;
	(void)flags, (void)size;
	if (e)
		return leave(-e);
	for (int port = 1; port <= num_ports; port++)
		for (int i = 0; i < 3 && n < (int)max; i++, n++) {
			memset(&out[n], 0, sizeof out[n]);
			out[n].gid_index = i;
			out[n].port_num = port;
			// A link-local address, and a global one as RoCE v1 and v2.
			out[n].gid_type = i == 1 ? IBV_GID_TYPE_ROCE_V1 : IBV_GID_TYPE_ROCE_V2;
			memcpy(out[n].gid.raw, gids[((struct ctx *)x)->dev], 16);
			if (i == 0) {
				memset(out[n].gid.raw, 0, 12);
				out[n].gid.raw[0] = 0xfe, out[n].gid.raw[1] = 0x80;
			}
		}
	leave(0);
	return n;
}

static struct ibv_pd *alloc_pd(struct ibv_context *x)
{
	int e = fails(fake_alloc_pd);
	if (e)
		return leave_null(e);
	struct ibv_pd *p = make(sizeof *p);
	p->context = x;
	leave(0);
	return p;
}

static int dealloc_pd(struct ibv_pd *p)
{
	int e = fails(fake_dealloc_pd);
	unmake(p);
	return leave(e);
}

// add_mr holds the lock and gives it back.
static struct ibv_mr *add_mr(struct ibv_pd *p, uint64_t base, uint64_t size, unsigned access)
{
	if (size == 0 || size > max_mr_size)
		return leave_null(EINVAL);
	if (next_mr == MAX_MR)
		return leave_null(ENOMEM);
	struct mr *m = make(sizeof *m);
	m->base = base, m->size = size, m->access = access, m->dev = ((struct ctx *)p->context)->dev;
	m->mr.pd = p;
	m->mr.lkey = m->mr.rkey = next_mr << 8 | 0x5a;
	mrs[next_mr++] = m;
	leave(0);
	return &m->mr;
}

static struct ibv_mr *reg_mr_iova2(struct ibv_pd *p, void *addr, size_t size, uint64_t iova, unsigned access)
{
	int e = fails(fake_reg_mr);
	(void)addr;
	return e ? leave_null(e) : add_mr(p, iova, size, access);
}

static struct ibv_mr *reg_mr(struct ibv_pd *p, void *addr, size_t size, int access)
{
	return reg_mr_iova2(p, addr, size, (uintptr_t)addr, (unsigned)access);
}

static struct ibv_mr *reg_dmabuf_mr(struct ibv_pd *p, uint64_t off, size_t size, uint64_t iova, int fd, int access)
{
	int e = fails(fake_reg_dmabuf_mr);
	(void)off, (void)fd;
	return e ? leave_null(e) : add_mr(p, iova, size, (unsigned)access);
}

static int dereg_mr(struct ibv_mr *x)
{
	int e = fails(fake_dereg_mr);
	mrs[x->lkey >> 8] = NULL;
	unmake(x);
	return leave(e);
}

static struct mr *find_mr(uint32_t key, int dev, uint64_t addr, uint64_t n)
{
	struct mr *m = key >> 8 < MAX_MR && (key & 0xff) == 0x5a ? mrs[key >> 8] : NULL;
	if (!m || m->dev != dev || addr < m->base || n > m->size || addr - m->base > m->size - n)
		return NULL;
	return m;
}

static struct ibv_cq *create_cq(struct ibv_context *x, int n, void *u, struct ibv_comp_channel *ch, int v)
{
	int e = fails(fake_create_cq);
	(void)u, (void)ch, (void)v;
	if (e)
		return leave_null(e);
	struct cq *q = make(sizeof *q);
	q->cq.context = x;
	q->cq.cqe = q->cap = n;
	q->ring = calloc(n, sizeof *q->ring);
	leave(0);
	return &q->cq;
}

static int destroy_cq(struct ibv_cq *x)
{
	int e = fails(fake_destroy_cq);
	free(((struct cq *)x)->ring);
	unmake(x);
	return leave(e);
}

static void push(struct ibv_cq *x, struct ibv_wc *w)
{
	struct cq *q = (struct cq *)x;
	if (q->count == q->cap) {
		overruns++;
		return;
	}
	q->ring[(q->head + q->count++) % q->cap] = *w;
}

static struct ibv_srq *create_srq(struct ibv_pd *p, struct ibv_srq_init_attr *a)
{
	int e = fails(fake_create_srq);
	if (e)
		return leave_null(e);
	struct srq *s = make(sizeof *s);
	s->srq.context = p->context;
	s->srq.pd = p;
	s->q.cap = a->attr.max_wr;
	s->q.ring = calloc(s->q.cap, sizeof *s->q.ring);
	leave(0);
	return &s->srq;
}

static int destroy_srq(struct ibv_srq *x)
{
	int e = fails(fake_destroy_srq);
	free(((struct srq *)x)->q.ring);
	unmake(x);
	return leave(e);
}

static struct ibv_qp *create_qp(struct ibv_pd *p, struct ibv_qp_init_attr *a)
{
	int e = fails(fake_create_qp);
	if (e)
		return leave_null(e);
	if (a->cap.max_inline_data > INLINE)
		return leave_null(EINVAL);
	for (uint32_t i = 0; i < MAX_QP && qps[next_qp]; i++)
		next_qp = (next_qp + 1) % MAX_QP;
	if (qps[next_qp])
		return leave_null(ENOMEM);
	struct qp *q = make(sizeof *q);
	q->qp.context = p->context;
	q->qp.pd = p;
	q->qp.send_cq = a->send_cq;
	q->qp.recv_cq = a->recv_cq;
	q->qp.srq = a->srq;
	q->qp.qp_type = a->qp_type;
	q->qp.qp_num = next_qp | (++qp_serial % 2000 + 1) << 12; // no number comes again soon
	q->qp.state = IBV_QPS_RESET;
	q->dev = ((struct ctx *)p->context)->dev;
	q->cap = a->cap.max_send_wr;
	q->ring = calloc(q->cap ? q->cap : 1, sizeof *q->ring);
	q->q.cap = a->cap.max_recv_wr;
	q->q.ring = calloc(q->q.cap ? q->q.cap : 1, sizeof *q->q.ring);
	a->cap.max_inline_data = INLINE;
	qps[next_qp] = q;
	next_qp = (next_qp + 1) % MAX_QP;
	leave(0);
	return &q->qp;
}

static struct qp *find_qp(uint32_t num)
{
	struct qp *q = qps[num % MAX_QP];
	return q && q->qp.qp_num == num ? q : NULL;
}

// forget removes what a queue pair has completed, as devices do that destroy it.
static void forget(struct cq *q, uint32_t qp)
{
	int kept = 0;
	for (int i = 0; i < q->count; i++) {
		struct ibv_wc w = q->ring[(q->head + i) % q->cap];
		if (w.qp_num != qp)
			q->ring[(q->head + kept++) % q->cap] = w;
	}
	q->count = kept;
}

static int destroy_qp(struct ibv_qp *x)
{
	int e = fails(fake_destroy_qp);
	struct qp *q = (struct qp *)x;
	qps[x->qp_num % MAX_QP] = NULL;
	forget((struct cq *)x->send_cq, x->qp_num);
	if (x->recv_cq != x->send_cq)
		forget((struct cq *)x->recv_cq, x->qp_num);
	waiting -= q->count;
	free(q->ring);
	free(q->q.ring);
	unmake(q);
	return leave(e);
}

// finish takes the oldest send off the queue.
static void finish(struct qp *q, enum ibv_wc_status st)
{
	struct swr *s = &q->ring[q->head];
	struct ibv_wc w = {.wr_id = s->wr.wr_id, .status = st, .qp_num = q->qp.qp_num, .byte_len = s->sge.length, .vendor_err = st ? 0x70 + st : 0};
	q->head = (q->head + 1) % q->cap;
	q->count--;
	waiting--;
	q->tries = 0;
	push(q->qp.send_cq, &w);
}

static void to_error(struct qp *q)
{
	q->qp.state = IBV_QPS_ERR;
	while (q->count)
		finish(q, IBV_WC_WR_FLUSH_ERR);
}

static int modify_qp(struct ibv_qp *x, struct ibv_qp_attr *a, int mask)
{
	int e = fails(fake_modify_qp);
	struct qp *q = (struct qp *)x;
	(void)mask;
	if (e)
		return leave(e);
	switch (a->qp_state) {
	case IBV_QPS_INIT:
		if (x->state != IBV_QPS_RESET)
			return leave(EINVAL);
		q->access = a->qp_access_flags;
		if (x->qp_type == IBV_QPT_UD)
			q->attr.qkey = a->qkey;
		break;
	case IBV_QPS_RTR:
		if (x->state != IBV_QPS_INIT)
			return leave(EINVAL);
		if (x->qp_type == IBV_QPT_RC) {
			q->attr.dest_qp_num = a->dest_qp_num;
			q->attr.rq_psn = a->rq_psn;
			q->attr.path_mtu = a->path_mtu;
			q->attr.ah_attr = a->ah_attr;
		}
		break;
	case IBV_QPS_RTS:
		if (x->state != IBV_QPS_RTR)
			return leave(EINVAL);
		q->attr.sq_psn = a->sq_psn;
		break;
	case IBV_QPS_ERR:
		to_error(q);
		return leave(0);
	default:
		return leave(EINVAL);
	}
	x->state = a->qp_state;
	return leave(0);
}

static struct ibv_ah *create_ah(struct ibv_pd *p, struct ibv_ah_attr *a)
{
	int e = fails(fake_create_ah);
	if (e)
		return leave_null(e);
	struct ah *h = make(sizeof *h);
	h->ah.pd = p;
	h->ah.context = p->context;
	memcpy(h->gid, a->grh.dgid.raw, 16);
	leave(0);
	return &h->ah;
}

static int destroy_ah(struct ibv_ah *a)
{
	int e = fails(fake_destroy_ah);
	unmake(a);
	return leave(e);
}

static int get_async_event(struct ibv_context *x, struct ibv_async_event *out)
{
	int e = fails(fake_get_async_event);
	struct ctx *c = (struct ctx *)x;
	if (e || c->num_events == 0) {
		leave(0);
		errno = e ? e : EAGAIN;
		return -1;
	}
	out->event_type = c->events[0].type;
	out->element.port_num = 1;
	c->num_events--;
	memmove(c->events, c->events + 1, c->num_events * sizeof *c->events);
	return leave(0);
}

static void ack_async_event(struct ibv_async_event *e) { (void)e; }

static int take_recv(struct rq *q, struct rwr *out)
{
	if (q->count == 0) {
		rnrs++;
		return 0;
	}
	*out = q->ring[q->head];
	q->head = (q->head + 1) % q->cap;
	q->count--;
	return 1;
}

static uint8_t *at(uint64_t a) { return (uint8_t *)(uintptr_t)a; }

static int down(struct qp *q, struct qp *p) { return !link_up[q->dev] || !link_up[p->dev]; }

// carry tries the oldest send of an RC queue pair; 0 if it has to wait.
static int carry(struct qp *q)
{
	struct swr *s = &q->ring[q->head];
	struct ibv_send_wr *w = &s->wr;
	struct qp *p = find_qp(q->attr.dest_qp_num);
	struct rwr r;
	struct mr *m;
	uint64_t n = w->num_sge ? s->sge.length : 0, old;
	unsigned need = 0;
	uint8_t *local = w->send_flags & IBV_SEND_INLINE ? s->data : at(s->sge.addr);

	if (n && !(w->send_flags & IBV_SEND_INLINE)) {
		m = find_mr(s->sge.lkey, q->dev, s->sge.addr, n);
		if (!m) {
			finish(q, IBV_WC_LOC_PROT_ERR);
			to_error(q);
			return 1;
		}
	}
	if (!p || (p->qp.state != IBV_QPS_RTR && p->qp.state != IBV_QPS_RTS) || p->attr.dest_qp_num != q->qp.qp_num ||
		p->attr.rq_psn != q->attr.sq_psn || p->attr.path_mtu != q->attr.path_mtu || down(q, p) ||
		memcmp(q->attr.ah_attr.grh.dgid.raw, gids[p->dev], 16)) {
		if (++q->tries < TRIES)
			return 0;
		finish(q, IBV_WC_RETRY_EXC_ERR);
		to_error(q);
		return 1;
	}
	switch (w->opcode) {
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		need = IBV_ACCESS_REMOTE_WRITE;
		break;
	case IBV_WR_RDMA_READ:
		need = IBV_ACCESS_REMOTE_READ;
		break;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		need = IBV_ACCESS_REMOTE_ATOMIC;
		break;
	default:
		break;
	}
	if (need && n) {
		int atomic = need == IBV_ACCESS_REMOTE_ATOMIC;
		m = find_mr(atomic ? w->wr.atomic.rkey : w->wr.rdma.rkey, p->dev, w->wr.rdma.remote_addr, n);
		if (!m || m->mr.pd != p->qp.pd || !(m->access & need) || !(p->access & need) || (atomic && w->wr.atomic.remote_addr % 8)) {
			finish(q, IBV_WC_REM_ACCESS_ERR);
			to_error(q);
			to_error(p);
			return 1;
		}
	}
	struct ibv_wc c = {.qp_num = p->qp.qp_num, .byte_len = (uint32_t)n};
	switch (w->opcode) {
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		if (!take_recv(p->qp.srq ? &((struct srq *)p->qp.srq)->q : &p->q, &r))
			return 0;
		memcpy(at(w->wr.rdma.remote_addr), local, n);
		c.wr_id = r.id;
		c.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
		c.imm_data = w->imm_data;
		c.wc_flags = IBV_WC_WITH_IMM;
		push(p->qp.recv_cq, &c);
		break;
	case IBV_WR_RDMA_WRITE:
		memcpy(at(w->wr.rdma.remote_addr), local, n);
		break;
	case IBV_WR_RDMA_READ:
		memcpy(local, at(w->wr.rdma.remote_addr), n);
		break;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
		old = w->wr.atomic.compare_add;
		__atomic_compare_exchange_n((uint64_t *)at(w->wr.atomic.remote_addr), &old, w->wr.atomic.swap, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
		memcpy(local, &old, 8);
		break;
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		old = __atomic_fetch_add((uint64_t *)at(w->wr.atomic.remote_addr), w->wr.atomic.compare_add, __ATOMIC_SEQ_CST);
		memcpy(local, &old, 8);
		break;
	case IBV_WR_SEND:
		if (!take_recv(p->qp.srq ? &((struct srq *)p->qp.srq)->q : &p->q, &r))
			return 0;
		c.wr_id = r.id;
		c.opcode = IBV_WC_RECV;
		if ((r.num ? r.sge.length : 0) < n) {
			c.status = IBV_WC_LOC_LEN_ERR;
			push(p->qp.recv_cq, &c);
			finish(q, IBV_WC_REM_INV_REQ_ERR);
			to_error(q);
			to_error(p);
			return 1;
		}
		if (n && !find_mr(r.sge.lkey, p->dev, r.sge.addr, n)) {
			c.status = IBV_WC_LOC_PROT_ERR;
			push(p->qp.recv_cq, &c);
			finish(q, IBV_WC_REM_OP_ERR);
			to_error(q);
			to_error(p);
			return 1;
		}
		if (n)
			memcpy(at(r.sge.addr), local, n);
		push(p->qp.recv_cq, &c);
		break;
	default:
		finish(q, IBV_WC_LOC_QP_OP_ERR);
		to_error(q);
		return 1;
	}
	finish(q, IBV_WC_SUCCESS);
	return 1;
}

static void progress(struct qp *q)
{
	while (q->count && q->qp.state == IBV_QPS_RTS && carry(q))
		;
}

static void datagram(struct qp *q, struct ibv_send_wr *w, struct ibv_sge *s)
{
	struct qp *p = find_qp(w->wr.ud.remote_qpn);
	struct rwr r;
	datagrams++;
	lottery = lottery * 6364136223846793005ull + 1442695040888963407ull;
	if (drop_all || (drop_every && (lottery >> 33) % drop_every == 0))
		return;
	if (!p || p->qp.qp_type != IBV_QPT_UD || p->qp.state != IBV_QPS_RTS || p->attr.qkey != w->wr.ud.remote_qkey || down(q, p) ||
		memcmp(((struct ah *)w->wr.ud.ah)->gid, gids[p->dev], 16) || p->q.count == 0)
		return;
	take_recv(&p->q, &r);
	if (r.sge.length < 40 + s->length)
		return;
	memset(at(r.sge.addr), 0, 40);
	memcpy(at(r.sge.addr) + 40, at(s->addr), s->length);
	struct ibv_wc c = {.wr_id = r.id, .opcode = IBV_WC_RECV, .byte_len = 40 + s->length, .qp_num = p->qp.qp_num, .src_qp = q->qp.qp_num, .wc_flags = IBV_WC_GRH};
	push(p->qp.recv_cq, &c);
}

static int post_send(struct ibv_qp *x, struct ibv_send_wr *w, struct ibv_send_wr **bad)
{
	int e = fails(fake_post_send);
	struct qp *q = (struct qp *)x;
	for (; w; w = w->next) {
		if (e || (x->state != IBV_QPS_RTS && x->state != IBV_QPS_ERR)) {
			*bad = name_none ? NULL : w;
			return leave(e ? e : EINVAL);
		}
		if (q->count == q->cap) {
			overruns++;
			*bad = w;
			return leave(ENOMEM);
		}
		struct swr *s = &q->ring[(q->head + q->count) % q->cap];
		s->wr = *w;
		memset(&s->sge, 0, sizeof s->sge);
		if (w->num_sge)
			s->sge = w->sg_list[0];
		if (w->num_sge && w->send_flags & IBV_SEND_INLINE) {
			if (s->sge.length > INLINE) {
				*bad = w;
				return leave(EINVAL);
			}
			memcpy(s->data, at(s->sge.addr), s->sge.length);
		}
		if (!(w->opcode == IBV_WR_ATOMIC_CMP_AND_SWP || w->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) && s->sge.length > max_msg_size) {
			*bad = w;
			return leave(EINVAL);
		}
		q->count++;
		waiting++;
		if (x->state == IBV_QPS_ERR)
			finish(q, IBV_WC_WR_FLUSH_ERR);
		else if (x->qp_type == IBV_QPT_UD) {
			datagram(q, w, &s->sge);
			finish(q, IBV_WC_SUCCESS);
		}
	}
	if (x->qp_type == IBV_QPT_RC)
		progress(q);
	return leave(0);
}

// add_recvs holds the lock and gives it back.
static int add_recvs(struct rq *q, struct ibv_recv_wr *w, struct ibv_recv_wr **bad, int e)
{
	for (; w; w = w->next) {
		if (e || q->count == q->cap) {
			if (!e)
				overruns++;
			*bad = e && name_none ? NULL : w;
			return leave(e ? e : ENOMEM);
		}
		struct rwr *r = &q->ring[(q->head + q->count++) % q->cap];
		r->id = w->wr_id;
		r->num = w->num_sge;
		memset(&r->sge, 0, sizeof r->sge);
		if (w->num_sge)
			r->sge = w->sg_list[0];
	}
	return leave(0);
}

static int post_recv(struct ibv_qp *x, struct ibv_recv_wr *w, struct ibv_recv_wr **bad)
{
	int e = fails(fake_post_recv);
	return add_recvs(&((struct qp *)x)->q, w, bad, e);
}

static int post_srq_recv(struct ibv_srq *x, struct ibv_recv_wr *w, struct ibv_recv_wr **bad)
{
	int e = fails(fake_post_srq_recv);
	return add_recvs(&((struct srq *)x)->q, w, bad, e);
}

static int poll_cq(struct ibv_cq *x, int n, struct ibv_wc *out)
{
	int e = fails(fake_poll_cq), k = 0;
	struct cq *q = (struct cq *)x;
	if (e)
		return leave(-e);
	for (int i = 0; waiting && i < MAX_QP; i++) // whoever polls moves everybody on, as a network does
		if (qps[i] && qps[i]->count)
			progress(qps[i]);
	for (; k < n && q->count; k++) {
		out[k] = q->ring[q->head];
		q->head = (q->head + 1) % q->cap;
		q->count--;
	}
	return leave(k);
}

static struct moerail_ibv table = {
	.get_device_list = get_device_list, .free_device_list = free_device_list, .get_device_name = get_device_name,
	.open_device = open_device, .close_device = close_device, .query_device = query_device, .query_port = query_port,
	.query_gid_table = query_gid_table, .alloc_pd = alloc_pd, .dealloc_pd = dealloc_pd, .reg_mr = reg_mr,
	.reg_mr_iova2 = reg_mr_iova2, .reg_dmabuf_mr = reg_dmabuf_mr, .dereg_mr = dereg_mr, .create_cq = create_cq,
	.destroy_cq = destroy_cq, .create_srq = create_srq, .destroy_srq = destroy_srq, .create_qp = create_qp,
	.modify_qp = modify_qp, .destroy_qp = destroy_qp, .create_ah = create_ah, .destroy_ah = destroy_ah,
	.get_async_event = get_async_event, .ack_async_event = ack_async_event, .post_send = post_send,
	.post_recv = post_recv, .post_srq_recv = post_srq_recv, .poll_cq = poll_cq,
};

struct moerail_ibv *fake_table(void) { return &table; }

void fake_limits(uint64_t max_mr, uint32_t max_msg, int ports)
{
	pthread_mutex_lock(&mu);
	max_mr_size = max_mr, max_msg_size = max_msg, num_ports = ports;
	leave(0);
}

void fake_reset(int n)
{
	pthread_mutex_lock(&mu);
	memset(calls, 0, sizeof calls);
	memset(fail_at, 0, sizeof fail_at);
	overruns = rnrs = datagrams = 0;
	drop_every = drop_all = name_none = 0;
	memset(vendors, 0, sizeof vendors);
	lottery = 1;
	next_mr = 0;
	for (uint32_t i = 0; i < MAX_MR; i++)
		if (mrs[i])
			next_mr = i + 1; // what somebody still holds stays
	num_devices = n < MAX_DEV ? n : MAX_DEV;
	max_mr_size = ~0ull, max_msg_size = 8 << 20, num_ports = 1;
	for (int i = 0; i < num_devices; i++) {
		snprintf(devices[i].name, sizeof devices[i].name, "fake%d", i);
		link_up[i] = 1;
		memset(gids[i], 0, 16);
		gids[i][10] = gids[i][11] = 0xff;
		gids[i][12] = 10, gids[i][15] = i + 1;
	}
	leave(0);
}

void fake_fail(int call, int at, int err)
{
	pthread_mutex_lock(&mu);
	fail_at[call] = at;
	fail_errno[call] = err;
	leave(0);
}

unsigned long fake_count(int call)
{
	pthread_mutex_lock(&mu);
	unsigned long n = calls[call];
	leave(0);
	return n;
}

const char *fake_name(int call)
{
	static const char *const names[] = {
#define X(name) "ibv_" #name,
		FAKE_CALLS(X)
#undef X
	};
	return call >= 0 && call < fake_num_calls ? names[call] : "";
}

#define GET(type, name, value) \
	type name(void) \
	{ \
		pthread_mutex_lock(&mu); \
		type n = value; \
		leave(0); \
		return n; \
	}
GET(long, fake_live, live)
GET(unsigned long, fake_overruns, overruns)
GET(unsigned long, fake_rnr, rnrs)

void fake_drop(int every, int all)
{
	pthread_mutex_lock(&mu);
	drop_every = every, drop_all = all;
	leave(0);
}

void fake_link(int device, int up)
{
	pthread_mutex_lock(&mu);
	link_up[device] = up;
	leave(0);
}

void fake_event(int device, int type)
{
	pthread_mutex_lock(&mu);
	for (struct ctx *c = contexts; c; c = c->next)
		if (c->dev == device && c->num_events < MAX_EVENTS)
			c->events[c->num_events++].type = type;
	leave(0);
}

void fake_vendor(int device, uint32_t id)
{
	pthread_mutex_lock(&mu);
	vendors[device] = id;
	leave(0);
}

void fake_name_none(void)
{
	pthread_mutex_lock(&mu);
	name_none = 1;
	leave(0);
}

void fake_move_gid(int device)
{
	pthread_mutex_lock(&mu);
	gids[device][14]++;
	leave(0);
}
