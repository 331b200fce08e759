//go:build verbs && cgo && linux

#define _GNU_SOURCE // dlvsym, dlinfo
#include "table.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdio.h>

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	return qp->context->ops.post_send(qp, wr, bad);
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	return qp->context->ops.post_recv(qp, wr, bad);
}

static int post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	return srq->context->ops.post_srq_recv(srq, wr, bad);
}

static int poll_cq(struct ibv_cq *cq, int num, struct ibv_wc *wcs)
{
	return cq->context->ops.poll_cq(cq, num, wcs);
}

int moerail_load(struct moerail_ibv *t, char *err, size_t err_size, char *path, size_t path_size)
{
	// The versions are those that the headers of rdma-core bind to: an older
	// version of a symbol has another signature or structure.
	const struct {
		void *slot;
		const char *name, *version;
		int optional;
	} symbols[] = {
		{&t->get_device_list, "ibv_get_device_list", "IBVERBS_1.1", 0},
		{&t->free_device_list, "ibv_free_device_list", "IBVERBS_1.1", 0},
		{&t->get_device_name, "ibv_get_device_name", "IBVERBS_1.1", 0},
		{&t->open_device, "ibv_open_device", "IBVERBS_1.1", 0},
		{&t->close_device, "ibv_close_device", "IBVERBS_1.1", 0},
		{&t->query_device, "ibv_query_device", "IBVERBS_1.1", 0},
		{&t->query_port, "ibv_query_port", "IBVERBS_1.1", 0},
		{&t->query_gid_table, "_ibv_query_gid_table", "IBVERBS_1.11", 0},
		{&t->alloc_pd, "ibv_alloc_pd", "IBVERBS_1.1", 0},
		{&t->dealloc_pd, "ibv_dealloc_pd", "IBVERBS_1.1", 0},
		{&t->reg_mr, "ibv_reg_mr", "IBVERBS_1.1", 0},
		{&t->reg_mr_iova2, "ibv_reg_mr_iova2", "IBVERBS_1.8", 1},
		{&t->reg_dmabuf_mr, "ibv_reg_dmabuf_mr", "IBVERBS_1.12", 1},
		{&t->dereg_mr, "ibv_dereg_mr", "IBVERBS_1.1", 0},
		{&t->create_cq, "ibv_create_cq", "IBVERBS_1.1", 0},
		{&t->destroy_cq, "ibv_destroy_cq", "IBVERBS_1.1", 0},
		{&t->create_srq, "ibv_create_srq", "IBVERBS_1.1", 0},
		{&t->destroy_srq, "ibv_destroy_srq", "IBVERBS_1.1", 0},
		{&t->create_qp, "ibv_create_qp", "IBVERBS_1.1", 0},
		{&t->modify_qp, "ibv_modify_qp", "IBVERBS_1.1", 0},
		{&t->destroy_qp, "ibv_destroy_qp", "IBVERBS_1.1", 0},
		{&t->create_ah, "ibv_create_ah", "IBVERBS_1.1", 0},
		{&t->destroy_ah, "ibv_destroy_ah", "IBVERBS_1.1", 0},
		{&t->get_async_event, "ibv_get_async_event", "IBVERBS_1.1", 0},
		{&t->ack_async_event, "ibv_ack_async_event", "IBVERBS_1.1", 0},
	};
	void *lib = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!lib) {
		snprintf(err, err_size, "%s", dlerror());
		return -1;
	}
	struct link_map *map = NULL;
	if (dlinfo(lib, RTLD_DI_LINKMAP, &map) == 0 && map)
		snprintf(path, path_size, "%s", map->l_name);
	for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
		void *f = dlvsym(lib, symbols[i].name, symbols[i].version);
		if (!f && !symbols[i].optional) {
			snprintf(err, err_size, "%s has no %s of version %s", path, symbols[i].name, symbols[i].version);
			dlclose(lib);
			return -1;
		}
		*(void **)symbols[i].slot = f;
	}
	t->post_send = post_send;
	t->post_recv = post_recv;
	t->post_srq_recv = post_srq_recv;
	t->poll_cq = poll_cq;
	return 0;
}
