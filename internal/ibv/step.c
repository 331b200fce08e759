//go:build verbs && cgo && linux

#include "table.h"

#include <stdlib.h>

// Go writes and reads these two by offset (wire_cgo.go).
_Static_assert(sizeof(struct ibv_send_wr) == 128, "ibv_send_wr");
_Static_assert(offsetof(struct ibv_send_wr, next) == 8, "ibv_send_wr.next");
_Static_assert(offsetof(struct ibv_send_wr, sg_list) == 16, "ibv_send_wr.sg_list");
_Static_assert(offsetof(struct ibv_send_wr, num_sge) == 24, "ibv_send_wr.num_sge");
_Static_assert(offsetof(struct ibv_send_wr, opcode) == 28, "ibv_send_wr.opcode");
_Static_assert(offsetof(struct ibv_send_wr, send_flags) == 32, "ibv_send_wr.send_flags");
_Static_assert(offsetof(struct ibv_send_wr, imm_data) == 36, "ibv_send_wr.imm_data");
_Static_assert(offsetof(struct ibv_send_wr, wr.rdma.remote_addr) == 40, "ibv_send_wr.remote_addr");
_Static_assert(offsetof(struct ibv_send_wr, wr.rdma.rkey) == 48, "ibv_send_wr.rkey");
_Static_assert(offsetof(struct ibv_send_wr, wr.atomic.compare_add) == 48, "ibv_send_wr.compare_add");
_Static_assert(offsetof(struct ibv_send_wr, wr.atomic.swap) == 56, "ibv_send_wr.swap");
_Static_assert(offsetof(struct ibv_send_wr, wr.atomic.rkey) == 64, "ibv_send_wr.atomic.rkey");
_Static_assert(sizeof(struct ibv_sge) == 16, "ibv_sge");
_Static_assert(sizeof(struct ibv_recv_wr) == 32, "ibv_recv_wr");
_Static_assert(sizeof(struct ibv_wc) == 48, "ibv_wc");
_Static_assert(offsetof(struct ibv_wc, imm_data) == 24, "ibv_wc.imm_data");
_Static_assert(offsetof(struct ibv_wc, wc_flags) == 36, "ibv_wc.wc_flags");

struct moerail_step *moerail_step_new(const struct moerail_ibv *t, uint32_t wrs, uint32_t msg, uint32_t imm, uint32_t wc)
{
	struct moerail_step *s = calloc(1, sizeof *s);
	if (!s)
		return NULL;
	s->t = t;
	s->cap_wrs = wrs, s->cap_msg = msg, s->cap_imm = imm, s->cap_wc = wc;
	s->chains = calloc(wrs, sizeof *s->chains);
	s->wrs = calloc(wrs, sizeof *s->wrs);
	s->sges = calloc(wrs, sizeof *s->sges);
	s->msg_recvs = calloc(msg, sizeof *s->msg_recvs);
	s->msg_sges = calloc(msg, sizeof *s->msg_sges);
	s->imm_recvs = calloc(imm, sizeof *s->imm_recvs);
	s->wcs = calloc(wc, sizeof *s->wcs);
	if (!s->chains || !s->wrs || !s->sges || !s->msg_recvs || !s->msg_sges || !s->imm_recvs || !s->wcs) {
		moerail_step_free(s);
		return NULL;
	}
	// What never changes is filled in once.
	for (uint32_t i = 0; i < wrs; i++)
		s->wrs[i].sg_list = &s->sges[i];
	for (uint32_t i = 0; i < msg; i++) {
		s->msg_recvs[i].sg_list = &s->msg_sges[i];
		s->msg_recvs[i].next = i + 1 < msg ? &s->msg_recvs[i + 1] : NULL;
	}
	for (uint32_t i = 0; i + 1 < imm; i++)
		s->imm_recvs[i].next = &s->imm_recvs[i + 1];
	return s;
}

void moerail_step_free(struct moerail_step *s)
{
	if (!s)
		return;
	free(s->chains);
	free(s->wrs);
	free(s->sges);
	free(s->msg_recvs);
	free(s->msg_sges);
	free(s->imm_recvs);
	free(s->wcs);
	free(s);
}

// post_recvs posts the first n of a chain of receives, which keeps its links.
static uint32_t post_recvs(const struct moerail_ibv *t, struct ibv_srq *srq, struct ibv_recv_wr *first, uint32_t n, int32_t *err)
{
	struct ibv_recv_wr *end = first[n - 1].next, *bad = NULL, *w;
	uint32_t k = 0;
	first[n - 1].next = NULL;
	*err = t->post_srq_recv(srq, first, &bad);
	if (*err == 0)
		k = n;
	else if (bad) // else it failed as a whole
		for (w = first; w && w != bad; w = w->next)
			k++;
	first[n - 1].next = end;
	return k;
}

void moerail_step_run(struct moerail_step *s)
{
	const struct moerail_ibv *t = s->t;

	s->msg_accepted = s->imm_accepted = 0;
	s->msg_err = s->imm_err = 0;
	s->num_wc = 0;
	if (s->num_imm)
		s->imm_accepted = post_recvs(t, s->imm_srq, s->imm_recvs, s->num_imm, &s->imm_err);
	if (s->num_msg)
		s->msg_accepted = post_recvs(t, s->msg_srq, s->msg_recvs, s->num_msg, &s->msg_err);
	for (uint32_t i = 0; i < s->num_chains; i++) {
		struct moerail_chain *c = &s->chains[i];
		struct ibv_send_wr *bad = NULL, *w;
		c->err = t->post_send(c->qp, c->head, &bad);
		c->accepted = 0;
		if (c->err == 0) {
			c->accepted = c->count;
			continue;
		}
		// The device took what stands before bad; nothing if it names none, as
		// calls do that fail as a whole. Some say -1 and set errno.
		for (w = c->head; bad && w && w != bad; w = w->next)
			c->accepted++;
	}
	if (s->max_wc)
		s->num_wc = t->poll_cq(s->cq, (int)s->max_wc, s->wcs);
}
