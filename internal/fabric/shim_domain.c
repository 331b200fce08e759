//go:build libfabric

#define _GNU_SOURCE
#include "shim.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static const char *const step_names[] = {
	[MOE_STEP_NONE] = "nothing", [MOE_STEP_MEMORY] = "mmap", [MOE_STEP_GETINFO] = "fi_getinfo",
	[MOE_STEP_FABRIC] = "fi_fabric", [MOE_STEP_DOMAIN] = "fi_domain", [MOE_STEP_AV] = "fi_av_open",
	[MOE_STEP_CQ] = "fi_cq_open", [MOE_STEP_ENDPOINT] = "fi_endpoint", [MOE_STEP_BIND_AV] = "fi_ep_bind of the address vector",
	[MOE_STEP_BIND_CQ] = "fi_ep_bind of the completion queue", [MOE_STEP_OPTION] = "fi_setopt",
	[MOE_STEP_ENABLE] = "fi_enable", [MOE_STEP_NAME] = "fi_getname", [MOE_STEP_REGISTER] = "fi_mr_regattr",
	[MOE_STEP_BIND_MR] = "fi_mr_bind", [MOE_STEP_ENABLE_MR] = "fi_mr_enable",
};

const char *moe_step_name(int step)
{
	if (step < 0 || (size_t)step >= sizeof(step_names) / sizeof(step_names[0]) || step_names[step] == NULL)
		return "an unknown call";
	return step_names[step];
}

// Virtual memory costs nothing until it is touched, so tables are as large as
// they can ever get.
static void *map(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	return p == MAP_FAILED ? NULL : p;
}

static void unmap(void *p, size_t bytes)
{
	if (p != NULL)
		munmap(p, bytes);
}

static size_t ring_entries(const moe_config *c) { return c->ring_size; }

static int close_fid(struct fid *f)
{
	return f == NULL ? 0 : -f->ops->close(f);
}

// moe_close_endpoint ends all traffic. Memory regions close between it and
// moe_close, unless they are bound to the endpoint: then they close before it,
// because providers count what is bound and refuse.
int moe_close_endpoint(moe_dom *d)
{
	struct fid_ep *ep = d->ep;
	d->ep = NULL;
	return ep == NULL ? 0 : close_fid(&ep->fid);
}

// moe_close releases everything, whatever fails, and returns the first errno.
int moe_close(moe_dom *d)
{
	int first = 0, err;
	const moe_config *c = &d->cfg;
	if (d->mr_endpoint && d->slots_mr != NULL) {
		first = close_fid(&d->slots_mr->fid);
		d->slots_mr = NULL;
	}
	struct fid *order[] = {
		d->ep != NULL ? &d->ep->fid : NULL, d->slots_mr != NULL ? &d->slots_mr->fid : NULL,
		d->cq != NULL ? &d->cq->fid : NULL, d->av != NULL ? &d->av->fid : NULL,
		d->domain != NULL ? &d->domain->fid : NULL, d->fabric != NULL ? &d->fabric->fid : NULL,
	};
	for (size_t i = 0; i < sizeof(order) / sizeof(order[0]); i++)
		if ((err = close_fid(order[i])) != 0 && first == 0)
			first = err;
	unmap(d->slots, c->num_slots * sizeof(moe_slot));
	unmap(d->ring, ring_entries(c) * sizeof(uint32_t));
	unmap(d->recv_ring, ring_entries(c) * sizeof(uint32_t));
	unmap(d->peers, c->max_peers * sizeof(moe_peer));
	unmap(d->blocked, c->max_peers * sizeof(uint32_t));
	unmap(d->pool_list, (c->pool + 1) * sizeof(uint32_t));
	unmap(d->out, 64 * sizeof(moe_completion));
	free(d);
	return first;
}

// open_cq opens the completion queue with a descriptor to sleep on, where the
// provider has one: shm and rxd have none (and say so at once).
static int open_cq(moe_dom *d)
{
	struct fi_cq_attr attr = {.size = d->cfg.cq_size, .format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_FD};
	d->wait_fd = -1;
	if (d->cfg.wait && fi_cq_open(d->domain, &attr, &d->cq, NULL) == 0) {
		if (fi_control(&d->cq->fid, FI_GETWAIT, &d->wait_fd) != 0)
			d->wait_fd = -1;
		return 0;
	}
	attr.wait_obj = FI_WAIT_NONE;
	return -fi_cq_open(d->domain, &attr, &d->cq, NULL);
}

static int open_all(moe_dom *d, struct fi_info *info)
{
	int err;
	const moe_config *c = &d->cfg;
	d->step = MOE_STEP_MEMORY;
	if ((d->slots = map(c->num_slots * sizeof(moe_slot))) == NULL ||
	    (d->ring = map(ring_entries(c) * sizeof(uint32_t))) == NULL ||
	    (d->recv_ring = map(ring_entries(c) * sizeof(uint32_t))) == NULL ||
	    (d->peers = map(c->max_peers * sizeof(moe_peer))) == NULL ||
	    (d->blocked = map(c->max_peers * sizeof(uint32_t))) == NULL ||
	    (d->pool_list = map((c->pool + 1) * sizeof(uint32_t))) == NULL ||
	    (d->out = map(64 * sizeof(moe_completion))) == NULL)
		return ENOMEM;
	d->ring_mask = ring_entries(c) - 1;
	d->done_head = d->done_tail = MOE_NONE;
	for (uint32_t i = 0; i < c->pool; i++)
		d->pool_list[d->pool_ready++] = c->num_sends + c->num_recvs + i;

	d->step = MOE_STEP_FABRIC;
	if ((err = -d->lib->fabric(info->fabric_attr, &d->fabric, NULL)) != 0)
		return err;
	d->step = MOE_STEP_DOMAIN;
	if ((err = -fi_domain(d->fabric, info, &d->domain, NULL)) != 0)
		return err;
	d->step = MOE_STEP_AV;
	struct fi_av_attr av = {.type = info->domain_attr->av_type, .count = 64};
	if ((err = -fi_av_open(d->domain, &av, &d->av, NULL)) != 0)
		return err;
	d->step = MOE_STEP_CQ;
	if ((err = open_cq(d)) != 0)
		return err;
	d->step = MOE_STEP_ENDPOINT;
	if ((err = -fi_endpoint(d->domain, info, &d->ep, NULL)) != 0)
		return err;
	d->step = MOE_STEP_BIND_AV;
	if ((err = -fi_ep_bind(d->ep, &d->av->fid, 0)) != 0)
		return err;
	d->step = MOE_STEP_BIND_CQ;
	if ((err = -fi_ep_bind(d->ep, &d->cq->fid, FI_TRANSMIT | FI_RECV)) != 0)
		return err;

	// Options that only some providers and versions know are asked for, not
	// demanded, save one: without it GPU memory would go through host copies.
	d->step = MOE_STEP_OPTION;
#ifdef FI_OPT_SHARED_MEMORY_PERMITTED
	if (c->is_efa) {
		// Ranks of one host talk by transport/shm or directly; the shortcut's
		// own copies and its lost-peer behaviour would come in between (fi_efa(7)).
		bool no = false;
		(void)fi_setopt(&d->ep->fid, FI_OPT_ENDPOINT, FI_OPT_SHARED_MEMORY_PERMITTED, &no, sizeof(no));
	}
#endif
	if (c->device_memory) {
#ifdef FI_OPT_CUDA_API_PERMITTED
		// A CUDA call from the proxy can wait for a running kernel, which waits
		// for the proxy (fi_endpoint(3), FI_OPT_CUDA_API_PERMITTED).
		bool no = false;
		(void)fi_setopt(&d->ep->fid, FI_OPT_ENDPOINT, FI_OPT_CUDA_API_PERMITTED, &no, sizeof(no));
#endif
		int p2p = FI_HMEM_P2P_REQUIRED;
		if ((err = -fi_setopt(&d->ep->fid, FI_OPT_ENDPOINT, FI_OPT_FI_HMEM_P2P, &p2p, sizeof(p2p))) != 0)
			return err;
	}
	d->step = MOE_STEP_ENABLE;
	if ((err = -fi_enable(d->ep)) != 0)
		return err;

	if (c->local_mr) {
		// Inline bytes and atomics' operands are sent from the slots.
		moe_memory m = {.addr = (uint64_t)(uintptr_t)d->slots, .len = c->num_slots * sizeof(moe_slot),
				.access = FI_SEND | FI_WRITE | FI_RECV | FI_READ, .key = c->life | 1, .iface = FI_HMEM_SYSTEM, .dmabuf = -1};
		if ((err = moe_register(d, &m, &d->slots_mr, &d->step)) != 0)
			return err;
		d->slots_desc = fi_mr_desc(d->slots_mr);
	}
	return 0;
}

int moe_open(moe_lib *lib, struct fi_info *info, const moe_config *cfg, moe_dom **out, int *step)
{
	moe_dom *d = calloc(1, sizeof(*d));
	if (d == NULL) {
		*step = MOE_STEP_MEMORY;
		return ENOMEM;
	}
	d->lib = lib;
	d->cfg = *cfg;
	d->mr_endpoint = (info->domain_attr->mr_mode & FI_MR_ENDPOINT) != 0;
	int err = open_all(d, info);
	if (err != 0) {
		*step = d->step;
		(void)moe_close(d);
		return err;
	}
	*out = d;
	return 0;
}

int moe_name(moe_dom *d, void *buf, size_t *len)
{
	return -fi_getname(&d->ep->fid, buf, len);
}

int moe_register(moe_dom *d, const moe_memory *m, struct fid_mr **mr, int *step)
{
	struct iovec iov = {.iov_base = (void *)(uintptr_t)m->addr, .iov_len = m->len};
	struct fi_mr_attr attr = {.mr_iov = &iov, .iov_count = 1, .access = m->access, .requested_key = m->key,
				  .iface = m->iface};
	if (m->iface == FI_HMEM_CUDA)
		attr.device.cuda = m->device;
	uint64_t flags = 0;
#ifdef FI_MR_DMABUF
	// The region begins offset bytes into the object, at base_addr + offset.
	struct fi_mr_dmabuf dmabuf = {.fd = m->dmabuf, .offset = m->dmabuf_offset, .len = m->len,
				      .base_addr = (void *)(uintptr_t)(m->addr - m->dmabuf_offset)};
	if (m->dmabuf >= 0) {
		attr.dmabuf = &dmabuf;
		flags |= FI_MR_DMABUF;
	}
#else
	if (m->dmabuf >= 0) {
		*step = MOE_STEP_REGISTER;
		return EOPNOTSUPP;
	}
#endif
	*step = MOE_STEP_REGISTER;
	int err = -fi_mr_regattr(d->domain, &attr, flags, mr);
	if (err != 0 || !d->mr_endpoint)
		return err;
	*step = MOE_STEP_BIND_MR;
	if ((err = -fi_mr_bind(*mr, &d->ep->fid, 0)) == 0) {
		*step = MOE_STEP_ENABLE_MR;
		if ((err = -fi_mr_enable(*mr)) == 0)
			return 0;
	}
	(void)close_fid(&(*mr)->fid);
	*mr = NULL;
	return err;
}

int moe_unregister(struct fid_mr *mr) { return close_fid(&mr->fid); }

// moe_cuda_dmabuf exports device memory. The driver is looked up among what the
// process has loaded or can load; this package does not need CUDA to compile.
int moe_cuda_dmabuf(uint64_t addr, uint64_t len, int *fd, uint64_t *offset)
{
	typedef int (*handle_fn)(void *, uint64_t, size_t, int, unsigned long long);
	const int dma_buf_fd = 1; // CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	if (cuda == NULL)
		return ENOENT;
	handle_fn handle = (handle_fn)dlsym(cuda, "cuMemGetHandleForAddressRange");
	if (handle == NULL) {
		dlclose(cuda);
		return ENOSYS;
	}
	// The range must be of whole host pages; what comes before addr is skipped.
	uint64_t page = 65536, start = addr / page * page, end = (addr + len + page - 1) / page * page;
	int err = handle(fd, start, end - start, dma_buf_fd, 0);
	if (err != 0 && (start != addr || end != addr + len)) {
		start = addr;
		err = handle(fd, addr, len, dma_buf_fd, 0);
	}
	*offset = addr - start;
	dlclose(cuda);
	return err != 0 ? EOPNOTSUPP : 0;
}

moe_target *moe_targets_new(uint32_t n) { return calloc(n, sizeof(moe_target)); }

void moe_target_set(moe_dom *d, moe_target *t, uint32_t peer, uint64_t desc, uint64_t rkey)
{
	t->desc = (void *)(uintptr_t)desc;
	t->rma.key = rkey;
	t->msg = (struct fi_msg_rma){.msg_iov = &t->iov, .desc = &t->desc, .iov_count = 1, .addr = d->peers[peer].addr,
				     .rma_iov = &t->rma, .rma_iov_count = 1};
}
