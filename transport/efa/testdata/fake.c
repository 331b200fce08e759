// A libfabric of one provider, "efa", whose endpoints reach each other inside
// one process. It is as strict as a device may be: local memory needs its
// descriptor, also for nothing; keys are its own and are checked with ranges and
// rights; data beside a write has 4 bytes and needs a posted receive where
// FAKE_RX is set; what is open can not lose what it hangs on. FAKE_FAIL=name:n:errno
// makes the n-th call of that name fail. fi_strerror(9999) tells what is open.

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int live, fabrics, domains, calls;
static char failing[64], counted[64];

static int hit(const char *name)
{
	const char *spec = getenv("FAKE_FAIL");
	char want[32];
	int n, err;
	if (spec == NULL || sscanf(spec, "%31[^:]:%d:%d", want, &n, &err) != 3 || strcmp(want, name) != 0)
		return 0;
	pthread_mutex_lock(&lock);
	if (strcmp(counted, spec) != 0) {
		snprintf(counted, sizeof(counted), "%s", spec);
		calls = 0;
	}
	int now = ++calls == n;
	pthread_mutex_unlock(&lock);
	return now ? -err : 0;
}
#define FAIL(name) do { int e_ = hit(name); if (e_) return e_; } while (0)

typedef struct mr { struct fid_mr fid; struct domain *d; uint64_t addr, len, access; struct mr *next; } mr;
typedef struct recv_ { void *buf; size_t len; uint64_t tag, ignore; void *context; int tagged; struct recv_ *next; } recv_;
typedef struct msg { uint64_t tag, data; int tagged; size_t len; struct msg *next; char bytes[]; } msg;
typedef struct entry { struct fi_cq_err_entry e; struct entry *next; } entry;
typedef struct cq { struct fid_cq fid; struct domain *d; entry *head, *tail; int refs; } cq;
typedef struct av { struct fid_av fid; struct domain *d; uint64_t to[1024]; int n, refs; } av;
typedef struct ep { struct fid_ep fid; struct domain *d; cq *q; av *a; uint64_t id; int enabled; recv_ *recvs; msg *msgs; struct ep *next; } ep;
typedef struct domain { struct fid_domain fid; int refs; } domain;
static mr *mrs;
static ep *eps;
static uint64_t next_id = 77, next_key = 0x4000;

static void put(cq *q, void *context, uint64_t flags, size_t len, uint64_t data, int err)
{
	entry *x = calloc(1, sizeof(*x));
	x->e.op_context = context; x->e.flags = flags; x->e.len = len; x->e.data = data; x->e.err = err; x->e.prov_errno = err ? 4000 + err : 0;
	if (q->tail) q->tail->next = x; else q->head = x;
	q->tail = x;
}

static ep *find_ep(ep *from, fi_addr_t to)
{
	if (to >= (uint64_t)from->a->n) return NULL;
	for (ep *e = eps; e; e = e->next) if (e->id == from->a->to[to] && e->enabled) return e;
	return NULL;
}
static int local_ok(ep *e, const void *buf, size_t len, void *desc)
{
	for (mr *m = mrs; m; m = m->next)
		if (m == desc) return m->d == e->d && (uint64_t)buf >= m->addr && (uint64_t)buf + len <= m->addr + m->len;
	return 0;
}
static mr *remote_ok(ep *t, uint64_t addr, size_t len, uint64_t key, uint64_t right)
{
	for (mr *m = mrs; m; m = m->next)
		if (m->fid.key == key && m->d == t->d) return (m->access & right) && addr >= m->addr && addr + len <= m->addr + m->len ? m : NULL;
	return NULL;
}

static ssize_t rma(struct fid_ep *f, const struct fi_msg_rma *m, uint64_t flags, int read)
{
	ep *e = (ep *)f;
	FAIL(read ? "fi_readmsg" : "fi_writemsg");
	if (m->iov_count != 1 || m->rma_iov_count != 1 || m->context == NULL || m->msg_iov[0].iov_len != m->rma_iov[0].len) return -FI_EINVAL;
	ssize_t r = 0;
	pthread_mutex_lock(&lock);
	ep *t = find_ep(e, m->addr);
	void *buf = m->msg_iov[0].iov_base; size_t len = m->msg_iov[0].iov_len;
	if (!local_ok(e, buf, len, m->desc[0])) { r = -FI_EINVAL; goto out; }
	if (!t) { put(e->q, m->context, FI_RMA, 0, 0, FI_EHOSTUNREACH); goto out; }
	if (!remote_ok(t, m->rma_iov[0].addr, len, m->rma_iov[0].key, read ? FI_REMOTE_READ : FI_REMOTE_WRITE)) {
		put(e->q, m->context, FI_RMA, 0, 0, FI_EACCES); goto out;
	}
	if (read) { memcpy(buf, (void *)m->rma_iov[0].addr, len); put(e->q, m->context, FI_RMA | FI_READ, 0, 0, 0); goto out; }
	void *context = NULL;
	if ((flags & FI_REMOTE_CQ_DATA) && getenv("FAKE_RX")) {
		recv_ **p = &t->recvs;
		while (*p && (*p)->tagged) p = &(*p)->next;
		if (!*p) { r = -FI_EAGAIN; goto out; }
		recv_ *x = *p; *p = x->next; context = x->context; free(x);
	}
	memcpy((void *)m->rma_iov[0].addr, buf, len);
	if (flags & FI_REMOTE_CQ_DATA) put(t->q, context, FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA, 0, m->data & 0xffffffff, 0);
	put(e->q, m->context, FI_RMA | FI_WRITE, 0, 0, 0);
out:
	pthread_mutex_unlock(&lock);
	return r;
}
static ssize_t writemsg(struct fid_ep *f, const struct fi_msg_rma *m, uint64_t flags) { return rma(f, m, flags, 0); }
static ssize_t readmsg(struct fid_ep *f, const struct fi_msg_rma *m, uint64_t flags) { return rma(f, m, flags, 1); }

static void match(ep *t)
{
	for (msg **pm = &t->msgs; *pm;) {
		recv_ **p = &t->recvs;
		while (*p && ((*p)->tagged != (*pm)->tagged || ((*p)->tagged && ((*p)->tag | (*p)->ignore) != ((*pm)->tag | (*p)->ignore)))) p = &(*p)->next;
		if (!*p) { pm = &(*pm)->next; continue; }
		recv_ *x = *p; msg *m = *pm; *p = x->next; *pm = m->next;
		memcpy(x->buf, m->bytes, m->len < x->len ? m->len : x->len);
		put(t->q, x->context, FI_RECV | FI_REMOTE_CQ_DATA, m->len < x->len ? m->len : x->len, m->data, m->len > x->len ? FI_ETRUNC : 0);
		free(x); free(m);
	}
}
static ssize_t send_any(ep *e, const void *buf, size_t len, void *desc, uint64_t data, fi_addr_t to, uint64_t tag, void *context, int tagged)
{
	FAIL("fi_tsend");
	ssize_t r = 0;
	pthread_mutex_lock(&lock);
	ep *t = find_ep(e, to);
	if (!local_ok(e, buf, len, desc)) r = -FI_EINVAL;
	else if (!t) put(e->q, context, FI_SEND, 0, 0, FI_EHOSTUNREACH);
	else {
		msg *m = calloc(1, sizeof(*m) + len), **p = &t->msgs;
		m->tag = tag; m->data = data & 0xffffffff; m->tagged = tagged; m->len = len; memcpy(m->bytes, buf, len);
		while (*p) p = &(*p)->next;
		*p = m;
		match(t);
		put(e->q, context, FI_SEND, 0, 0, 0);
	}
	pthread_mutex_unlock(&lock);
	return r;
}
static ssize_t tsenddata(struct fid_ep *f, const void *b, size_t n, void *d, uint64_t data, fi_addr_t to, uint64_t tag, void *c) { return send_any((ep *)f, b, n, d, data, to, tag, c, 1); }
static ssize_t tsend(struct fid_ep *f, const void *b, size_t n, void *d, fi_addr_t to, uint64_t tag, void *c) { return send_any((ep *)f, b, n, d, 0, to, tag, c, 1); }
static ssize_t recv_any(ep *e, void *buf, size_t len, void *desc, uint64_t tag, uint64_t ignore, void *context, int tagged)
{
	FAIL(tagged ? "fi_trecv" : "fi_recv");
	ssize_t r = 0;
	pthread_mutex_lock(&lock);
	if (!local_ok(e, buf, len, desc)) r = -FI_EINVAL;
	else {
		recv_ *x = calloc(1, sizeof(*x)), **p = &e->recvs;
		*x = (recv_){buf, len, tag, ignore, context, tagged, NULL};
		while (*p) p = &(*p)->next;
		*p = x;
		match(e);
	}
	pthread_mutex_unlock(&lock);
	return r;
}
static ssize_t trecv(struct fid_ep *f, void *b, size_t n, void *d, fi_addr_t src, uint64_t tag, uint64_t ignore, void *c) { (void)src; return recv_any((ep *)f, b, n, d, tag, ignore, c, 1); }
static ssize_t recv1(struct fid_ep *f, void *b, size_t n, void *d, fi_addr_t src, void *c) { (void)src; return recv_any((ep *)f, b, n, d, 0, 0, c, 0); }

static ssize_t atomic(ep *e, const void *op, const void *cmp, void *result, void *rdesc, void *odesc, fi_addr_t to, uint64_t addr, uint64_t key, void *context)
{
	FAIL("fi_fetch_atomic");
	ssize_t r = 0;
	pthread_mutex_lock(&lock);
	ep *t = find_ep(e, to);
	if (!local_ok(e, op, 8, odesc) || !local_ok(e, result, 8, rdesc)) r = -FI_EINVAL;
	else if (!t) put(e->q, context, FI_ATOMIC, 0, 0, FI_EHOSTUNREACH);
	else if (!remote_ok(t, addr, 8, key, FI_REMOTE_WRITE)) put(e->q, context, FI_ATOMIC, 0, 0, FI_EACCES);
	else {
		uint64_t *w = (uint64_t *)addr, old = *w;
		if (cmp == NULL) *w += *(const uint64_t *)op;
		else if (old == *(const uint64_t *)cmp) *w = *(const uint64_t *)op;
		*(uint64_t *)result = old;
		put(e->q, context, FI_ATOMIC | FI_READ, 0, 0, 0);
	}
	pthread_mutex_unlock(&lock);
	return r;
}
static ssize_t fetch(struct fid_ep *f, const void *b, size_t n, void *d, void *r, void *rd, fi_addr_t to, uint64_t a, uint64_t k, enum fi_datatype t, enum fi_op o, void *c)
{ (void)n; return t == FI_UINT64 && o == FI_SUM ? atomic((ep *)f, b, NULL, r, rd, d, to, a, k, c) : -FI_EOPNOTSUPP; }
static ssize_t compare(struct fid_ep *f, const void *b, size_t n, void *d, const void *cmp, void *cd, void *r, void *rd, fi_addr_t to, uint64_t a, uint64_t k, enum fi_datatype t, enum fi_op o, void *c)
{ (void)n; (void)cd; return t == FI_UINT64 && o == FI_CSWAP ? atomic((ep *)f, b, cmp, r, rd, d, to, a, k, c) : -FI_EOPNOTSUPP; }

// Closing.
static int shut(struct fid *f)
{
	int r = hit("fi_close");
	pthread_mutex_lock(&lock);
	int busy = 0;
	switch (f->fclass) {
	case FI_CLASS_FABRIC: busy = domains > 0 && fabrics == 1; if (!busy) fabrics--; break;
	case FI_CLASS_DOMAIN: busy = ((domain *)f)->refs; if (!busy) domains--; break;
	case FI_CLASS_CQ: busy = ((cq *)f)->refs; if (!busy) { ((cq *)f)->d->refs--; for (entry *x = ((cq *)f)->head, *n; x; x = n) { n = x->next; free(x); } } break;
	case FI_CLASS_AV: busy = ((av *)f)->refs; if (!busy) ((av *)f)->d->refs--; break;
	case FI_CLASS_MR: { mr **p = &mrs; while (*p != (mr *)f) p = &(*p)->next; *p = ((mr *)f)->next; ((mr *)f)->d->refs--; break; }
	case FI_CLASS_EP: {
		ep *e = (ep *)f, **p = &eps; while (*p != e) p = &(*p)->next; *p = e->next;
		if (e->q) e->q->refs--;
		if (e->a) e->a->refs--;
		for (recv_ *x = e->recvs, *n; x; x = n) { n = x->next; free(x); }
		for (msg *x = e->msgs, *n; x; x = n) { n = x->next; free(x); }
		e->d->refs--; break; }
	}
	if (!busy) { live--; free(f); }
	pthread_mutex_unlock(&lock);
	return busy ? -FI_EBUSY : r;
}
static int mr_bind(struct fid *f, struct fid *b, uint64_t flags) { (void)f; (void)b; (void)flags; FAIL("fi_mr_bind"); return 0; }
static int mr_control(struct fid *f, int c, void *a) { (void)f; (void)c; (void)a; FAIL("fi_mr_enable"); return 0; }
static int ep_bind(struct fid *f, struct fid *b, uint64_t flags)
{
	(void)flags;
	FAIL("fi_ep_bind");
	if (b->fclass == FI_CLASS_CQ) { ((ep *)f)->q = (cq *)b; ((cq *)b)->refs++; }
	else { ((ep *)f)->a = (av *)b; ((av *)b)->refs++; }
	return 0;
}
static int ep_control(struct fid *f, int c, void *a) { (void)a; FAIL("fi_enable"); if (c != FI_ENABLE) return -FI_ENOSYS; ((ep *)f)->enabled = 1; return 0; }
static struct fi_ops plain_ops = {.size = sizeof(struct fi_ops), .close = shut};
static struct fi_ops mr_fid_ops = {.size = sizeof(struct fi_ops), .close = shut, .bind = mr_bind, .control = mr_control};
static struct fi_ops ep_fid_ops = {.size = sizeof(struct fi_ops), .close = shut, .bind = ep_bind, .control = ep_control};

static int getname(fid_t f, void *addr, size_t *len)
{
	FAIL("fi_getname");
	if (*len < 32) return -FI_ETOOSMALL;
	memset(addr, 0, 32); *(uint64_t *)addr = ((ep *)f)->id; *len = 32;
	return 0;
}
static ssize_t cancel(fid_t f, void *context)
{
	ep *e = (ep *)f;
	FAIL("fi_cancel");
	pthread_mutex_lock(&lock);
	for (recv_ **p = &e->recvs; *p; p = &(*p)->next)
		if ((*p)->context == context) { recv_ *x = *p; *p = x->next; put(e->q, context, FI_RECV, 0, 0, FI_ECANCELED); free(x); break; }
	pthread_mutex_unlock(&lock);
	return 0;
}
static int setopt(fid_t f, int l, int o, const void *v, size_t n) { (void)f; (void)l; (void)o; (void)v; (void)n; FAIL("fi_setopt"); return 0; }
static struct fi_ops_ep ep_ops = {.size = sizeof(struct fi_ops_ep), .cancel = cancel, .setopt = setopt};
static struct fi_ops_cm cm_ops = {.size = sizeof(struct fi_ops_cm), .getname = getname};
static struct fi_ops_msg msg_ops = {.size = sizeof(struct fi_ops_msg), .recv = recv1};
static struct fi_ops_rma rma_ops = {.size = sizeof(struct fi_ops_rma), .writemsg = writemsg, .readmsg = readmsg};
static struct fi_ops_tagged tagged_ops = {.size = sizeof(struct fi_ops_tagged), .recv = trecv, .send = tsend, .senddata = tsenddata};
static struct fi_ops_atomic atomic_ops = {.size = sizeof(struct fi_ops_atomic), .readwrite = fetch, .compwrite = compare};

static int av_insert(struct fid_av *f, const void *addr, size_t n, fi_addr_t *out, uint64_t flags, void *c)
{
	(void)n; (void)flags; (void)c;
	FAIL("fi_av_insert");
	av *a = (av *)f;
	pthread_mutex_lock(&lock);
	*out = a->n; a->to[a->n++] = *(const uint64_t *)addr;
	pthread_mutex_unlock(&lock);
	return 1;
}
static int av_remove(struct fid_av *f, fi_addr_t *x, size_t n, uint64_t flags) { (void)n; (void)flags; FAIL("fi_av_remove"); ((av *)f)->to[*x] = 0; return 0; }
static struct fi_ops_av av_ops = {.size = sizeof(struct fi_ops_av), .insert = av_insert, .remove = av_remove};

static ssize_t cq_read(struct fid_cq *f, void *buf, size_t count)
{
	FAIL("fi_cq_read");
	cq *q = (cq *)f;
	struct fi_cq_tagged_entry *out = buf;
	size_t n = 0;
	pthread_mutex_lock(&lock);
	for (; n < count && q->head && q->head->e.err == 0; n++) {
		entry *x = q->head;
		out[n] = (struct fi_cq_tagged_entry){.op_context = x->e.op_context, .flags = x->e.flags, .len = x->e.len, .data = x->e.data};
		if ((q->head = x->next) == NULL) q->tail = NULL;
		free(x);
	}
	int failed = n == 0 && q->head != NULL && count > 0;
	pthread_mutex_unlock(&lock);
	return n > 0 ? (ssize_t)n : failed ? -FI_EAVAIL : -FI_EAGAIN;
}
static ssize_t cq_readerr(struct fid_cq *f, struct fi_cq_err_entry *e, uint64_t flags)
{
	(void)flags;
	FAIL("fi_cq_readerr");
	cq *q = (cq *)f;
	pthread_mutex_lock(&lock);
	entry *x = q->head;
	if (x) { *e = x->e; if ((q->head = x->next) == NULL) q->tail = NULL; free(x); }
	pthread_mutex_unlock(&lock);
	return x ? 1 : -FI_EAGAIN;
}
static struct fi_ops_cq cq_ops = {.size = sizeof(struct fi_ops_cq), .read = cq_read, .readerr = cq_readerr};

#define NEW(type, var, cls, fops) type *var = calloc(1, sizeof(type)); var->fid.fid.fclass = cls; var->fid.fid.ops = &fops; \
	pthread_mutex_lock(&lock); live++; pthread_mutex_unlock(&lock)
static int av_open(struct fid_domain *d, struct fi_av_attr *at, struct fid_av **out, void *c)
{ (void)at; (void)c; FAIL("fi_av_open"); NEW(av, a, FI_CLASS_AV, plain_ops); a->d = (domain *)d; a->d->refs++; a->fid.ops = &av_ops; *out = &a->fid; return 0; }
static int cq_open(struct fid_domain *d, struct fi_cq_attr *at, struct fid_cq **out, void *c)
{ (void)c; if (at->wait_obj == FI_WAIT_FD) return -FI_ENOSYS; // nothing to sleep on, as with efa
  FAIL("fi_cq_open"); if (at->format != FI_CQ_FORMAT_TAGGED) return -FI_ENOSYS; NEW(cq, q, FI_CLASS_CQ, plain_ops); q->d = (domain *)d; q->d->refs++; q->fid.ops = &cq_ops; *out = &q->fid; return 0; }
static int endpoint(struct fid_domain *d, struct fi_info *i, struct fid_ep **out, void *c)
{
	(void)i; (void)c;
	FAIL("fi_endpoint");
	NEW(ep, e, FI_CLASS_EP, ep_fid_ops);
	e->d = (domain *)d; e->d->refs++;
	e->fid.ops = &ep_ops; e->fid.cm = &cm_ops; e->fid.msg = &msg_ops; e->fid.rma = &rma_ops; e->fid.tagged = &tagged_ops; e->fid.atomic = &atomic_ops;
	pthread_mutex_lock(&lock);
	e->id = next_id++; e->next = eps; eps = e;
	pthread_mutex_unlock(&lock);
	*out = &e->fid;
	return 0;
}
static int regattr(struct fid *f, const struct fi_mr_attr *at, uint64_t flags, struct fid_mr **out)
{
	(void)flags;
	FAIL("fi_mr_regattr");
	NEW(mr, m, FI_CLASS_MR, mr_fid_ops);
	m->d = (domain *)f; m->d->refs++;
	m->addr = (uint64_t)at->mr_iov[0].iov_base; m->len = at->mr_iov[0].iov_len; m->access = at->access;
	m->fid.mem_desc = m;
	pthread_mutex_lock(&lock);
	m->fid.key = next_key += 0x10001; m->next = mrs; mrs = m;
	pthread_mutex_unlock(&lock);
	*out = &m->fid;
	return 0;
}
static struct fi_ops_domain domain_ops = {.size = sizeof(struct fi_ops_domain), .av_open = av_open, .cq_open = cq_open, .endpoint = endpoint};
static struct fi_ops_mr mr_ops = {.size = sizeof(struct fi_ops_mr), .regattr = regattr};
static int domain_open(struct fid_fabric *f, struct fi_info *i, struct fid_domain **out, void *c)
{ (void)f; (void)i; (void)c; FAIL("fi_domain"); NEW(domain, d, FI_CLASS_DOMAIN, plain_ops); d->fid.ops = &domain_ops; d->fid.mr = &mr_ops; domains++; *out = &d->fid; return 0; }
static struct fi_ops_fabric fabric_ops = {.size = sizeof(struct fi_ops_fabric), .domain = domain_open};
typedef struct fabric_ { struct fid_fabric fid; } fabric_;

int fi_fabric(struct fi_fabric_attr *at, struct fid_fabric **out, void *c)
{ (void)at; (void)c; FAIL("fi_fabric"); NEW(fabric_, f, FI_CLASS_FABRIC, plain_ops); f->fid.ops = &fabric_ops; fabrics++; *out = &f->fid; return 0; }
uint32_t fi_version(void) { return FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION); }
const char *fi_strerror(int e)
{
	if (e == 9999) { snprintf(failing, sizeof(failing), "%d", live); return failing; }
	return e < FI_ERRNO_OFFSET ? strerror(e) : "a libfabric error";
}
static char *dup0(const char *s) { return s ? strdup(s) : NULL; }
struct fi_info *fi_dupinfo(const struct fi_info *i)
{
	struct fi_info *n = calloc(1, sizeof(*n));
	if (i) *n = *i;
	n->next = NULL; n->src_addr = NULL; n->nic = NULL;
#define COPY(field, type) n->field = calloc(1, sizeof(struct type)); if (i && i->field) *n->field = *i->field
	COPY(tx_attr, fi_tx_attr); COPY(rx_attr, fi_rx_attr); COPY(ep_attr, fi_ep_attr); COPY(domain_attr, fi_domain_attr); COPY(fabric_attr, fi_fabric_attr);
	if (i) { n->domain_attr->name = dup0(i->domain_attr->name); n->fabric_attr->name = dup0(i->fabric_attr->name); n->fabric_attr->prov_name = dup0(i->fabric_attr->prov_name); }
	return n;
}
void fi_freeinfo(struct fi_info *i)
{
	for (struct fi_info *n; i; i = n) {
		n = i->next;
		free(i->domain_attr->name); free(i->fabric_attr->name); free(i->fabric_attr->prov_name);
		free(i->tx_attr); free(i->rx_attr); free(i->ep_attr); free(i->domain_attr); free(i->fabric_attr); free(i);
	}
}
static uint64_t number(const char *name, uint64_t unset) { const char *s = getenv(name); return s && *s ? strtoull(s, NULL, 0) : unset; }
int fi_getinfo(uint32_t v, const char *node, const char *service, uint64_t flags, const struct fi_info *h, struct fi_info **out)
{
	(void)v; (void)node; (void)service; (void)flags;
	FAIL("fi_getinfo");
	uint64_t mode = getenv("FAKE_RX") ? FI_RX_CQ_DATA : 0;
	mode |= number("FAKE_MODE", 0);
	if ((h->fabric_attr->prov_name && strcmp(h->fabric_attr->prov_name, "efa") != 0) || (mode & FI_RX_CQ_DATA & ~h->mode) || (h->caps & FI_HMEM))
		return -FI_ENODATA;
	for (int k = 0; k < 2; k++) {
		struct fi_info *i = fi_dupinfo(NULL);
		char name[32];
		snprintf(name, sizeof(name), "rdmap%ds6-rdm", k);
		i->caps = h->caps; i->mode = mode; i->addr_format = FI_ADDR_EFA;
		i->ep_attr->type = FI_EP_RDM; i->ep_attr->protocol = FI_PROTO_EFA; i->ep_attr->max_msg_size = number("FAKE_MAX_MESSAGE", SIZE_MAX);
		i->domain_attr->name = strdup(name); i->fabric_attr->name = strdup("efa"); i->fabric_attr->prov_name = strdup("efa");
		i->domain_attr->mr_mode = (int)number("FAKE_MR", FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY);
		i->domain_attr->mr_key_size = 4; i->domain_attr->cq_data_size = number("FAKE_DATA", 4);
		i->tx_attr->size = 256; i->tx_attr->iov_limit = 2; i->tx_attr->rma_iov_limit = 1; i->tx_attr->inject_size = 32; i->rx_attr->size = 256;
		i->next = *out && k ? *out : NULL;
		*out = i;
	}
	return 0;
}
