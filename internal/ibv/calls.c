//go:build verbs && cgo && linux

#include "table.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

// code makes one errno of the three conventions: 0, an errno, or -1 and errno.
static int code(int rc)
{
	if (rc == 0)
		return 0;
	if (rc > 0)
		return rc;
	return errno ? errno : -rc;
}

int moerail_names(const struct moerail_ibv *t, char *out, size_t size, int *err)
{
	int n = 0;
	size_t used = 0;
	struct ibv_device **list = t->get_device_list(&n);

	*err = 0;
	if (!list) {
		*err = errno ? errno : ENODEV;
		return -1;
	}
	for (int i = 0; i < n; i++) {
		const char *name = t->get_device_name(list[i]);
		size_t l = name ? strlen(name) : 0;
		if (l == 0 || used + l + 2 > size)
			continue;
		memcpy(out + used, name, l);
		used += l;
		out[used++] = '\n';
	}
	out[used] = 0;
	t->free_device_list(list);
	return 0;
}

struct ibv_context *moerail_open(const struct moerail_ibv *t, const char *name, int *err, int *listing)
{
	int n = 0;
	struct ibv_context *ctx = NULL;
	struct ibv_device **list = t->get_device_list(&n);

	*listing = !list;
	if (!list) {
		*err = errno ? errno : ENODEV;
		return NULL;
	}
	*err = ENODEV;
	for (int i = 0; i < n; i++) {
		const char *is = t->get_device_name(list[i]);
		if (!is || strcmp(is, name))
			continue;
		errno = 0;
		ctx = t->open_device(list[i]);
		*err = ctx ? 0 : errno ? errno : EIO;
		break;
	}
	t->free_device_list(list);
	if (ctx) { // so that looking for an event never waits
		int flags = fcntl(ctx->async_fd, F_GETFL);
		if (flags < 0 || fcntl(ctx->async_fd, F_SETFL, flags | O_NONBLOCK) < 0) {
			*err = errno;
			t->close_device(ctx);
			return NULL;
		}
	}
	return ctx;
}

struct ibv_qp *moerail_create_qp(const struct moerail_ibv *t, struct ibv_pd *pd, struct ibv_cq *cq, struct ibv_srq *srq,
	int type, uint32_t send_wr, uint32_t recv_wr, uint32_t *inline_bytes, int *err)
{
	struct ibv_qp_init_attr a;
	struct ibv_qp *qp;

	memset(&a, 0, sizeof a);
	a.send_cq = a.recv_cq = cq;
	a.srq = srq;
	a.qp_type = (enum ibv_qp_type)type;
	a.sq_sig_all = 1;
	a.cap.max_send_wr = send_wr;
	a.cap.max_recv_wr = recv_wr;
	a.cap.max_send_sge = 1;
	a.cap.max_recv_sge = srq ? 0 : 1;
	a.cap.max_inline_data = *inline_bytes;
	errno = 0;
	qp = t->create_qp(pd, &a);
	*err = qp ? 0 : errno ? errno : EIO;
	if (qp)
		*inline_bytes = a.cap.max_inline_data;
	return qp;
}

static void fill_path(struct ibv_ah_attr *a, const struct moerail_path *p)
{
	a->dlid = p->lid;
	a->sl = p->sl;
	a->port_num = p->port;
	a->is_global = p->global;
	if (p->global) {
		memcpy(a->grh.dgid.raw, p->gid, 16);
		a->grh.sgid_index = (uint8_t)p->sgid_index;
		a->grh.hop_limit = p->hop_limit;
		a->grh.traffic_class = p->traffic_class;
	}
}

int moerail_qp_init(const struct moerail_ibv *t, struct ibv_qp *qp, uint8_t port, uint16_t pkey_index, int access)
{
	struct ibv_qp_attr a;
	memset(&a, 0, sizeof a);
	a.qp_state = IBV_QPS_INIT;
	a.pkey_index = pkey_index;
	a.port_num = port;
	a.qp_access_flags = access;
	return code(t->modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
}

int moerail_qp_rtr(const struct moerail_ibv *t, struct ibv_qp *qp, const struct moerail_connect *c)
{
	struct ibv_qp_attr a;
	memset(&a, 0, sizeof a);
	a.qp_state = IBV_QPS_RTR;
	a.path_mtu = (enum ibv_mtu)c->mtu;
	a.dest_qp_num = c->qpn;
	a.rq_psn = c->rq_psn;
	a.max_dest_rd_atomic = c->max_dest_rd_atomic;
	a.min_rnr_timer = c->min_rnr_timer;
	fill_path(&a.ah_attr, &c->path);
	return code(t->modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
}

int moerail_qp_rts(const struct moerail_ibv *t, struct ibv_qp *qp, const struct moerail_connect *c)
{
	struct ibv_qp_attr a;
	memset(&a, 0, sizeof a);
	a.qp_state = IBV_QPS_RTS;
	a.timeout = c->timeout;
	a.retry_cnt = c->retry_cnt;
	a.rnr_retry = c->rnr_retry;
	a.sq_psn = c->sq_psn;
	a.max_rd_atomic = c->max_rd_atomic;
	return code(t->modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
		IBV_QP_MAX_QP_RD_ATOMIC));
}

int moerail_qp_error(const struct moerail_ibv *t, struct ibv_qp *qp)
{
	struct ibv_qp_attr a;
	memset(&a, 0, sizeof a);
	a.qp_state = IBV_QPS_ERR;
	return code(t->modify_qp(qp, &a, IBV_QP_STATE));
}

int moerail_ud_ready(const struct moerail_ibv *t, struct ibv_qp *qp, uint8_t port, uint16_t pkey_index, uint32_t qkey)
{
	struct ibv_qp_attr a;
	int rc;
	memset(&a, 0, sizeof a);
	a.qp_state = IBV_QPS_INIT;
	a.pkey_index = pkey_index;
	a.port_num = port;
	a.qkey = qkey;
	rc = code(t->modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
	if (rc)
		return rc;
	memset(&a, 0, sizeof a);
	a.qp_state = IBV_QPS_RTR;
	rc = code(t->modify_qp(qp, &a, IBV_QP_STATE));
	if (rc)
		return rc;
	memset(&a, 0, sizeof a);
	a.qp_state = IBV_QPS_RTS;
	return code(t->modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_SQ_PSN));
}

struct ibv_ah *moerail_create_ah(const struct moerail_ibv *t, struct ibv_pd *pd, const struct moerail_path *p, int *err)
{
	struct ibv_ah_attr a;
	struct ibv_ah *ah;
	memset(&a, 0, sizeof a);
	fill_path(&a, p);
	errno = 0;
	ah = t->create_ah(pd, &a);
	*err = ah ? 0 : errno ? errno : EIO;
	return ah;
}

int moerail_ud_send(const struct moerail_ibv *t, struct ibv_qp *qp, struct ibv_ah *ah, uint32_t qpn, uint32_t qkey,
	uint64_t id, uint64_t addr, uint32_t length, uint32_t lkey)
{
	struct ibv_sge s = {addr, length, lkey};
	struct ibv_send_wr w, *bad = NULL;
	memset(&w, 0, sizeof w);
	w.wr_id = id;
	w.sg_list = &s;
	w.num_sge = 1;
	w.opcode = IBV_WR_SEND;
	w.send_flags = IBV_SEND_SIGNALED;
	w.wr.ud.ah = ah;
	w.wr.ud.remote_qpn = qpn;
	w.wr.ud.remote_qkey = qkey;
	return code(t->post_send(qp, &w, &bad));
}

int moerail_ud_recv(const struct moerail_ibv *t, struct ibv_qp *qp, uint64_t id, uint64_t addr, uint32_t length, uint32_t lkey)
{
	struct ibv_sge s = {addr, length, lkey};
	struct ibv_recv_wr w, *bad = NULL;
	memset(&w, 0, sizeof w);
	w.wr_id = id;
	w.sg_list = &s;
	w.num_sge = 1;
	return code(t->post_recv(qp, &w, &bad));
}

int moerail_event(const struct moerail_ibv *t, struct ibv_context *ctx, int *type, int *port, uint32_t *qp_num)
{
	struct ibv_async_event e;
	memset(&e, 0, sizeof e);
	errno = 0;
	if (t->get_async_event(ctx, &e)) {
		int c = errno ? errno : EIO;
		return c == EAGAIN || c == EWOULDBLOCK || c == EINTR ? 0 : -c;
	}
	*type = e.event_type;
	*port = 0;
	*qp_num = 0;
	switch (e.event_type) {
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_COMM_EST:
	case IBV_EVENT_SQ_DRAINED:
	case IBV_EVENT_PATH_MIG:
	case IBV_EVENT_PATH_MIG_ERR:
	case IBV_EVENT_QP_LAST_WQE_REACHED:
		*qp_num = e.element.qp ? e.element.qp->qp_num : 0;
		break;
	case IBV_EVENT_PORT_ACTIVE:
	case IBV_EVENT_PORT_ERR:
	case IBV_EVENT_LID_CHANGE:
	case IBV_EVENT_PKEY_CHANGE:
	case IBV_EVENT_SM_CHANGE:
	case IBV_EVENT_CLIENT_REREGISTER:
	case IBV_EVENT_GID_CHANGE:
		*port = e.element.port_num;
		break;
	default:
		break;
	}
	t->ack_async_event(&e);
	return 1;
}
