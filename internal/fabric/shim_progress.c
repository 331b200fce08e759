//go:build libfabric

#include "shim.h"

#include <errno.h>
#include <string.h>
#include <time.h>

enum {
	POST_BATCH = 128,   // requests given to the provider in one call
	ENTRIES = 64,       // completions read in one call
	EAGER_MS = 20,      // how long a peer is tried at every call before it is tried once a tick
	SLOWEST = 16 << 10, // bytes that a living peer's path moves in a millisecond, at least
};

static uint64_t now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

// ended puts a slot that ends without an entry of the completion queue into the
// list from which Progress reports.
static void ended(moe_dom *d, uint32_t s, int status, int err)
{
	moe_op *op = &d->slots[s].op;
	op->status = status;
	op->err = err;
	op->next = MOE_NONE;
	if (d->done_tail == MOE_NONE)
		d->done_head = s;
	else
		d->slots[d->done_tail].op.next = s;
	d->done_tail = s;
}

static void enqueue(moe_dom *d, moe_peer *p, uint32_t i, uint32_t s)
{
	moe_op *op = &d->slots[s].op;
	op->state = MOE_QUEUED;
	op->next = MOE_NONE;
	if (p->queued++ == 0)
		p->head = s;
	else
		d->slots[p->tail].op.next = s;
	p->tail = s;
	if (!p->blocked) {
		p->blocked = 1;
		d->blocked[d->num_blocked++] = i;
	}
}

static ssize_t write_op(moe_dom *d, moe_peer *p, moe_slot *s)
{
	moe_op *op = &s->op;
	uint64_t flags = FI_COMPLETION;
	if (op->flags & MOE_FLAG_IMM)
		flags |= FI_REMOTE_CQ_DATA;
	if (op->flags & MOE_FLAG_DELIVER)
		flags |= FI_DELIVERY_COMPLETE;
	if (op->flags & MOE_FLAG_TARGET) {
		moe_target *t = (moe_target *)(uintptr_t)op->rkey;
		t->iov.iov_base = (void *)(uintptr_t)op->src;
		t->iov.iov_len = t->rma.len = op->len;
		t->rma.addr = op->raddr;
		t->msg.context = &s->context;
		t->msg.data = op->data;
		return fi_writemsg(d->ep, &t->msg, flags);
	}
	// Never with fewer segments than one: a provider that looks at the first
	// descriptor does so also when there is nothing to send (efa does).
	void *desc = (void *)(uintptr_t)op->desc;
	struct iovec iov = {.iov_base = (void *)(uintptr_t)op->src, .iov_len = op->len};
	struct fi_rma_iov rma = {.addr = op->raddr, .len = op->len, .key = op->rkey};
	struct fi_msg_rma msg = {.msg_iov = &iov, .desc = &desc, .iov_count = 1, .addr = p->addr, .rma_iov = &rma,
				 .rma_iov_count = 1, .context = &s->context, .data = op->data};
	return op->kind == MOE_READ ? fi_readmsg(d->ep, &msg, FI_COMPLETION) : fi_writemsg(d->ep, &msg, flags);
}

static ssize_t post(moe_dom *d, moe_peer *p, moe_slot *s)
{
	moe_op *op = &s->op;
	void *local = (void *)(uintptr_t)op->src, *desc = (void *)(uintptr_t)op->desc;
	switch (op->kind) {
	case MOE_WRITE:
	case MOE_READ:
		return write_op(d, p, s);
	case MOE_SEND:
		// The tag is the life that a message is meant for, the data beside it
		// the one that it comes from.
		if (d->cfg.tagged && d->cfg.data_bytes >= 4)
			return fi_tsenddata(d->ep, local, op->len, desc, op->data, p->addr, op->raddr, &s->context);
		if (d->cfg.tagged)
			return fi_tsend(d->ep, local, op->len, desc, p->addr, op->raddr, &s->context);
		if (d->cfg.data_bytes >= 4)
			return fi_senddata(d->ep, local, op->len, desc, op->data, p->addr, &s->context);
		return fi_send(d->ep, local, op->len, desc, p->addr, &s->context);
	case MOE_ADD:
		return fi_fetch_atomic(d->ep, s->bytes, 1, d->slots_desc, local, desc, p->addr, op->raddr, op->rkey,
				       FI_UINT64, FI_SUM, &s->context);
	case MOE_SWAP:
		return fi_compare_atomic(d->ep, s->bytes, 1, d->slots_desc, s->bytes + 8, d->slots_desc, local, desc,
					 p->addr, op->raddr, op->rkey, FI_UINT64, FI_CSWAP, &s->context);
	}
	return -FI_EINVAL;
}

// gone tells errors that say that a peer can not be reached any more.
static int gone(int err)
{
	switch (err) {
	case ENOTCONN: case ECONNREFUSED: case ECONNRESET: case ECONNABORTED: case ETIMEDOUT: case EHOSTUNREACH:
	case EHOSTDOWN: case ENETUNREACH: case ENETDOWN: case EPIPE: case ESHUTDOWN: case ENOENT: case ENODEV:
	case EREMOTEIO: case FI_ENORX:
		return 1;
	}
	return 0;
}

// flush ends everything that a peer owes. What the provider holds is reported
// now; the slot becomes free when the provider gives it back, if it ever does.
static void flush(moe_dom *d, uint32_t i, int status, int err)
{
	moe_peer *p = &d->peers[i];
	while (p->queued > 0) {
		uint32_t s = p->head;
		p->head = d->slots[s].op.next;
		p->queued--;
		d->slots[s].op.state = MOE_ENDED;
		ended(d, s, status, err);
	}
	p->owed = 0;
	if (p->posted == 0)
		return;
	for (uint32_t s = 0; s < d->cfg.num_sends; s++) {
		moe_op *op = &d->slots[s].op;
		if (op->state == MOE_POSTED && op->peer == i) {
			op->state = MOE_ORPHAN;
			ended(d, s, status, err);
		}
	}
	p->posted = 0;
}

static void lose(moe_dom *d, uint32_t i, int err)
{
	d->peers[i].lost = 1;
	flush(d, i, MOE_LOST, err);
}

// try_post posts a slot: 1 when the peer's queue must wait, otherwise 0.
static int try_post(moe_dom *d, uint32_t i, uint32_t s)
{
	moe_peer *p = &d->peers[i];
	moe_op *op = &d->slots[s].op;
	ssize_t r = post(d, p, &d->slots[s]);
	if (r == -FI_EAGAIN || r == -FI_EINTR) {
		d->again++;
		return 1;
	}
	if (r == 0) {
		op->state = MOE_POSTED;
		p->posted++;
		return 0;
	}
	op->state = MOE_ENDED;
	p->owed -= op->len;
	int lost = gone((int)-r);
	ended(d, s, lost ? MOE_LOST : MOE_ERROR, (int)-r);
	if (lost)
		p->lost = 1;
	return 0;
}

static void submit(moe_dom *d, uint32_t s, uint64_t now)
{
	moe_op *op = &d->slots[s].op;
	uint32_t i = op->peer;
	moe_peer *p = &d->peers[i];
	d->outstanding++;
	if (op->flags & MOE_FLAG_DROP) {
		op->state = MOE_ENDED;
		ended(d, s, MOE_FLUSHED, ECANCELED);
		return;
	}
	if (p->lost || !p->known) {
		op->state = MOE_ENDED;
		ended(d, s, p->lost ? MOE_LOST : MOE_FLUSHED, p->lost ? ENOTCONN : ECANCELED);
		return;
	}
	if (p->posted + p->queued == 0)
		p->since = now;
	p->owed += op->len;
	if (p->queued > 0 || try_post(d, i, s))
		enqueue(d, p, i, s);
	else if (p->lost)
		lose(d, i, ENOTCONN);
}

// retry gives every peer whose queue waits one chance, so that one that takes
// nothing costs a call and holds up nobody.
static void retry(moe_dom *d, int budget, uint64_t now)
{
	uint32_t keep = 0, n = d->num_blocked;
	for (uint32_t k = 0; k < n; k++) {
		uint32_t i = d->blocked[k];
		moe_peer *p = &d->peers[i];
		// Nothing is under way that could make room: the peer does not answer.
		// With ofi_rxm each try is a connection attempt of its own, and they
		// would fill the backlog of a peer that is only slow.
		int patient = p->posted == 0 && now - p->since >= EAGER_MS && now == p->tried;
		p->tried = now;
		while (p->queued > 0 && budget > 0 && !patient) {
			uint32_t s = p->head, next = d->slots[s].op.next;
			budget--;
			if (try_post(d, i, s))
				break;
			p->head = next;
			p->queued--;
			if (p->lost)
				lose(d, i, ENOTCONN);
		}
		if (p->queued > 0)
			d->blocked[keep++] = i;
		else
			p->blocked = 0;
	}
	d->num_blocked = keep;
	// The next call begins with another peer.
	if (keep > 1) {
		uint32_t first = d->blocked[0];
		memmove(d->blocked, d->blocked + 1, (keep - 1) * sizeof(uint32_t));
		d->blocked[keep - 1] = first;
	}
}

// post_recv posts a buffer; 0 when the provider has no room.
static int post_recv(moe_dom *d, uint32_t s)
{
	moe_slot *slot = &d->slots[s];
	moe_op *op = &slot->op;
	void *buf = (void *)(uintptr_t)op->src, *desc = (void *)(uintptr_t)op->desc;
	ssize_t r;
	if (op->flags & MOE_FLAG_DROP) {
		op->state = MOE_ENDED;
		ended(d, s, MOE_FLUSHED, ECANCELED);
		return 1;
	}
	if (d->cfg.tagged && op->kind == MOE_RECV)
		// A message to an earlier life matches nothing. No bit is ignored: shm
		// of 1.17 loses a message that came first when some are.
		r = fi_trecv(d->ep, buf, op->len, desc, FI_ADDR_UNSPEC, op->raddr, 0, &slot->context);
	else
		r = fi_recv(d->ep, buf, op->len, desc, FI_ADDR_UNSPEC, &slot->context);
	if (r == -FI_EAGAIN || r == -FI_EINTR)
		return 0;
	if (r != 0 && op->kind == MOE_EMPTY_RECV) {
		d->fatal = (int)-r; // immediates can not arrive any more
		return 0;
	}
	if (r != 0) {
		op->state = MOE_ENDED;
		ended(d, s, MOE_ERROR, (int)-r);
		return 1;
	}
	op->state = MOE_POSTED;
	return 1;
}

static void post_recvs(moe_dom *d, uint32_t tail)
{
	while (d->pool_ready > 0) {
		uint32_t s = d->pool_list[d->pool_ready - 1];
		moe_op *op = &d->slots[s].op;
		memset(op, 0, sizeof(*op));
		op->kind = MOE_EMPTY_RECV;
		op->src = (uint64_t)(uintptr_t)d->slots[s].bytes;
		op->desc = (uint64_t)(uintptr_t)d->slots_desc;
		if (!post_recv(d, s))
			break;
		d->pool_ready--;
	}
	for (; d->recv_head != tail; d->recv_head++)
		if (!post_recv(d, d->recv_ring[d->recv_head & d->ring_mask]))
			break;
}

// slot_of finds the slot of a context, which a provider hands back.
static uint32_t slot_of(moe_dom *d, void *context)
{
	uintptr_t off = (uintptr_t)context - (uintptr_t)d->slots;
	if (off % sizeof(moe_slot) != 0 || off / sizeof(moe_slot) >= d->cfg.num_slots) {
		d->bad_context++;
		return MOE_NONE;
	}
	return (uint32_t)(off / sizeof(moe_slot));
}

static int take_imm(uint64_t data, size_t len, moe_completion *c)
{
	memset(c, 0, sizeof(*c));
	c->slot = MOE_NONE;
	c->kind = MOE_IMM;
	c->data = data;
	c->len = len;
	return 1;
}

// take turns what became of a posted operation into a completion: 1 if there is
// one to report.
static int take(moe_dom *d, uint32_t s, int status, int err, int vendor, const struct fi_cq_tagged_entry *e,
		moe_completion *c, uint64_t now)
{
	moe_op *op = &d->slots[s].op;
	memset(c, 0, sizeof(*c));
	c->slot = s;
	c->status = status;
	c->err = err;
	c->vendor = vendor;
	if (op->kind == MOE_EMPTY_RECV) {
		if (op->state != MOE_POSTED)
			return 0;
		op->state = MOE_FREE;
		d->pool_list[d->pool_ready++] = s;
		return 0;
	}
	if (op->kind == MOE_RECV) {
		if (op->state != MOE_POSTED) {
			d->bad_context++;
			return 0;
		}
		op->state = MOE_FREE;
		c->kind = MOE_RECEIVED;
		c->len = e->len;
		if (e->flags & FI_REMOTE_CQ_DATA) {
			c->has_data = 1;
			c->data = e->data;
		}
		return 1;
	}
	if (op->state == MOE_ORPHAN) {
		// Its end may still wait to be reported: then that report frees it.
		if (op->next != MOE_NONE || d->done_tail == s) {
			op->state = MOE_ENDED;
			return 0;
		}
		op->state = MOE_FREE;
		c->kind = MOE_ORPHAN_BACK;
		return 1;
	}
	if (op->state != MOE_POSTED) {
		d->bad_context++;
		return 0;
	}
	op->state = MOE_FREE;
	c->kind = MOE_END;
	moe_peer *p = &d->peers[op->peer];
	p->posted--;
	p->owed -= op->len;
	d->outstanding--;
	if (status == MOE_OK)
		p->since = now;
	else if (gone(err) || err == ECANCELED) {
		// Nobody here cancels sends: the path broke under it.
		c->status = MOE_LOST;
		lose(d, op->peer, err);
	}
	return 1;
}

static int read_error(moe_dom *d, moe_completion *c, uint64_t now)
{
	struct fi_cq_err_entry e;
	memset(&e, 0, sizeof(e));
	ssize_t n = fi_cq_readerr(d->cq, &e, 0);
	if (n < 1) {
		if (n != -FI_EAGAIN && n != 0)
			d->fatal = (int)-n;
		return -1;
	}
	uint32_t s = e.op_context == NULL ? MOE_NONE : slot_of(d, e.op_context);
	if (s == MOE_NONE) {
		d->remote_errors++; // of something a peer began: it gets its own error
		return 0;
	}
	struct fi_cq_tagged_entry t = {.len = e.len};
	int err = e.err < 0 ? -e.err : e.err; // shm of 1.17 negates it
	return take(d, s, MOE_ERROR, err != 0 ? err : FI_EOTHER, e.prov_errno, &t, c, now);
}

static uint32_t read_queue(moe_dom *d, moe_completion *out, uint32_t room, uint64_t now)
{
	struct fi_cq_tagged_entry e[ENTRIES];
	uint32_t n = 0;
	while (n < room) {
		uint32_t want = room - n < ENTRIES ? room - n : ENTRIES;
		ssize_t got = fi_cq_read(d->cq, e, want);
		if (got == -FI_EAVAIL) {
			int more = read_error(d, &out[n], now);
			if (more < 0)
				break;
			n += more;
			continue;
		}
		if (got < 0) {
			if (got != -FI_EAGAIN && got != -FI_EINTR)
				d->fatal = (int)-got;
			break;
		}
		for (ssize_t k = 0; k < got && k < (ssize_t)want; k++) {
			// What a peer's write brought is told by its flags alone: with some
			// providers it carries a posted receive, with others nothing.
			if (e[k].flags & (FI_REMOTE_WRITE | FI_REMOTE_READ)) {
				if (e[k].flags & FI_REMOTE_CQ_DATA)
					n += take_imm(e[k].data, e[k].len, &out[n]);
				if (d->cfg.pool > 0 && e[k].op_context != NULL) {
					uint32_t s = slot_of(d, e[k].op_context);
					moe_completion unused;
					if (s != MOE_NONE && d->slots[s].op.kind == MOE_EMPTY_RECV)
						(void)take(d, s, MOE_OK, 0, 0, &e[k], &unused, now);
				}
				continue;
			}
			uint32_t s = slot_of(d, e[k].op_context);
			if (s != MOE_NONE)
				n += take(d, s, MOE_OK, 0, 0, &e[k], &out[n], now);
		}
		if (got < (ssize_t)want)
			break;
	}
	return n;
}

static uint32_t report_ended(moe_dom *d, moe_completion *out, uint32_t room)
{
	uint32_t n = 0;
	while (n < room && d->done_head != MOE_NONE) {
		uint32_t s = d->done_head;
		moe_op *op = &d->slots[s].op;
		d->done_head = op->next;
		if (d->done_head == MOE_NONE)
			d->done_tail = MOE_NONE;
		op->next = MOE_NONE;
		moe_completion *c = &out[n++];
		memset(c, 0, sizeof(*c));
		c->slot = s;
		c->status = op->status;
		c->err = op->err;
		if (op->kind == MOE_RECV) {
			c->kind = MOE_RECEIVED;
			op->state = MOE_FREE;
			continue;
		}
		c->kind = MOE_END;
		d->outstanding--;
		if (op->state == MOE_ENDED)
			op->state = MOE_FREE;
		else
			c->orphan = 1;
	}
	return n;
}

static void check_deadlines(moe_dom *d, uint64_t now)
{
	d->next_check = now + d->cfg.timeout_ms / 16 + 1;
	for (uint32_t i = 0; i < d->num_peers; i++) {
		moe_peer *p = &d->peers[i];
		// One long operation brings no sign of life until its end.
		if (p->posted + p->queued > 0 && now - p->since >= d->cfg.timeout_ms + p->owed / SLOWEST)
			lose(d, i, ETIMEDOUT);
	}
}

int moe_progress(moe_dom *d, uint32_t tail, uint32_t recv_tail, uint32_t room)
{
	d->calls++;
	if (room > ENTRIES)
		room = ENTRIES;
	// The clock is read once, and only while somebody owes something.
	uint64_t now = d->outstanding > 0 || d->head != tail ? now_ms() : 0;
	if (d->pool_ready > 0 || d->recv_head != recv_tail)
		post_recvs(d, recv_tail);
	int budget = POST_BATCH;
	for (; d->head != tail && budget > 0; d->head++, budget--)
		submit(d, d->ring[d->head & d->ring_mask], now);
	if (d->num_blocked > 0)
		retry(d, POST_BATCH, now);
	uint32_t n = 0;
	if (d->done_head != MOE_NONE)
		n = report_ended(d, d->out, room);
	if (n < room && d->fatal == 0)
		n += read_queue(d, d->out + n, room - n, now);
	if (d->fatal != 0 && n == 0)
		return -d->fatal;
	if (d->outstanding > 0 && now >= d->next_check)
		check_deadlines(d, now);
	return (int)n;
}

// moe_arm tells whether the owner may sleep on wait_fd: nothing waits to be shown
// or reported, and the provider has nothing either.
int moe_arm(moe_dom *d, uint32_t tail, uint32_t recv_tail)
{
	struct fid *fids[] = {&d->cq->fid};
	if (d->wait_fd < 0 || d->head != tail || d->recv_head != recv_tail || d->pool_ready > 0 || d->num_blocked > 0 ||
	    d->done_head != MOE_NONE || d->fatal != 0)
		return 0;
	return fi_trywait(d->fabric, fids, 1) == 0;
}

int moe_peer_add(moe_dom *d, uint32_t i, const void *addr)
{
	moe_peer *p = &d->peers[i];
	fi_addr_t got = FI_ADDR_NOTAVAIL;
	int n = fi_av_insert(d->av, addr, 1, &got, 0, NULL);
	if (n != 1)
		return n < 0 ? -n : EINVAL;
	uint8_t blocked = p->blocked; // a former user's place in the list is still there
	memset(p, 0, sizeof(*p));
	p->blocked = blocked;
	p->addr = got;
	p->known = 1;
	if (i >= d->num_peers)
		d->num_peers = i + 1;
	return 0;
}

int moe_peer_flush(moe_dom *d, uint32_t i, int how)
{
	if (how == MOE_LOST)
		d->peers[i].lost = 1;
	flush(d, i, how, how == MOE_LOST ? ENOTCONN : ECANCELED);
	return 0;
}

int moe_peer_remove(moe_dom *d, uint32_t i)
{
	moe_peer *p = &d->peers[i];
	if (!p->known)
		return 0;
	p->known = 0;
	fi_addr_t addr = p->addr;
	return -fi_av_remove(d->av, &addr, 1, 0);
}

// moe_drop_marked takes what is marked out of the queues of all peers.
void moe_drop_marked(moe_dom *d)
{
	for (uint32_t k = 0; k < d->num_blocked; k++) {
		moe_peer *p = &d->peers[d->blocked[k]];
		uint32_t s = p->head, n = p->queued;
		p->queued = 0;
		while (n-- > 0) {
			moe_op *op = &d->slots[s].op;
			uint32_t next = op->next;
			op->next = MOE_NONE;
			if (op->flags & MOE_FLAG_DROP) {
				op->state = MOE_ENDED;
				p->owed -= op->len;
				ended(d, s, MOE_FLUSHED, ECANCELED);
			} else {
				if (p->queued++ == 0)
					p->head = s;
				else
					d->slots[p->tail].op.next = s;
				p->tail = s;
			}
			s = next;
		}
	}
}

// moe_orphan reports a posted send as flushed; its slot is free when the provider
// gives it back.
void moe_orphan(moe_dom *d, uint32_t s)
{
	moe_op *op = &d->slots[s].op;
	if (op->state != MOE_POSTED || op->kind == MOE_RECV)
		return;
	op->state = MOE_ORPHAN;
	d->peers[op->peer].posted--;
	d->peers[op->peer].owed -= op->len;
	ended(d, s, MOE_FLUSHED, ECANCELED);
}

int moe_cancel(moe_dom *d, uint32_t s)
{
	return (int)-fi_cancel(&d->ep->fid, &d->slots[s].context);
}
