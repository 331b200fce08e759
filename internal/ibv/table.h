// The table of libibverbs calls, and the memory that Go and the shim share.
#ifndef MOERAIL_IBV_TABLE_H
#define MOERAIL_IBV_TABLE_H

#include <infiniband/verbs.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

// Every call that this program makes of libibverbs. The data path (post_send,
// post_srq_recv, post_recv, poll_cq) is inline in the headers: the table holds
// functions that jump through the context as the headers do.
struct moerail_ibv {
	struct ibv_device **(*get_device_list)(int *num);
	void (*free_device_list)(struct ibv_device **list);
	const char *(*get_device_name)(struct ibv_device *dev);
	struct ibv_context *(*open_device)(struct ibv_device *dev);
	int (*close_device)(struct ibv_context *ctx);
	int (*query_device)(struct ibv_context *ctx, struct ibv_device_attr *attr);
	int (*query_port)(struct ibv_context *ctx, uint8_t port, struct ibv_port_attr *attr);
	ssize_t (*query_gid_table)(struct ibv_context *ctx, struct ibv_gid_entry *entries, size_t max, uint32_t flags, size_t entry_size);
	struct ibv_pd *(*alloc_pd)(struct ibv_context *ctx);
	int (*dealloc_pd)(struct ibv_pd *pd);
	struct ibv_mr *(*reg_mr)(struct ibv_pd *pd, void *addr, size_t length, int access);
	struct ibv_mr *(*reg_mr_iova2)(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access); // may be NULL
	struct ibv_mr *(*reg_dmabuf_mr)(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access); // may be NULL
	int (*dereg_mr)(struct ibv_mr *mr);
	struct ibv_cq *(*create_cq)(struct ibv_context *ctx, int cqe, void *user, struct ibv_comp_channel *channel, int vector);
	int (*destroy_cq)(struct ibv_cq *cq);
	struct ibv_srq *(*create_srq)(struct ibv_pd *pd, struct ibv_srq_init_attr *attr);
	int (*destroy_srq)(struct ibv_srq *srq);
	struct ibv_qp *(*create_qp)(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
	int (*modify_qp)(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask);
	int (*destroy_qp)(struct ibv_qp *qp);
	struct ibv_ah *(*create_ah)(struct ibv_pd *pd, struct ibv_ah_attr *attr);
	int (*destroy_ah)(struct ibv_ah *ah);
	int (*get_async_event)(struct ibv_context *ctx, struct ibv_async_event *event);
	void (*ack_async_event)(struct ibv_async_event *event);
	int (*post_send)(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
	int (*post_recv)(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
	int (*post_srq_recv)(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
	int (*poll_cq)(struct ibv_cq *cq, int num, struct ibv_wc *wcs);
};

// moerail_load opens the library and fills t. On failure it returns -1 and what
// is missing in err; path gets the file that was loaded.
int moerail_load(struct moerail_ibv *t, char *err, size_t err_size, char *path, size_t path_size);

// One chain of sends for one queue pair.
struct moerail_chain {
	struct ibv_qp *qp;
	struct ibv_send_wr *head;
	uint32_t count;    // requests in the chain
	uint32_t accepted; // out: how many the device took, from the front
	int32_t err;       // out: errno for the first that it did not take
	uint32_t unused;
};

// What one crossing does: receives, then sends, then completions.
struct moerail_step {
	const struct moerail_ibv *t;
	struct ibv_cq *cq;
	struct ibv_srq *imm_srq;
	struct ibv_srq *msg_srq;
	struct moerail_chain *chains;
	struct ibv_send_wr *wrs;
	struct ibv_sge *sges;
	struct ibv_recv_wr *msg_recvs;
	struct ibv_sge *msg_sges;
	struct ibv_recv_wr *imm_recvs; // all the same, chained; the last points nowhere
	struct ibv_wc *wcs;
	uint32_t num_chains, num_msg, num_imm, max_wc;
	uint32_t cap_wrs, cap_msg, cap_imm, cap_wc;
	uint32_t msg_accepted, imm_accepted; // out
	int32_t msg_err, imm_err;            // out, errno
	int32_t num_wc;                      // out; negative is a failure of poll_cq
	uint32_t unused;
};

struct moerail_step *moerail_step_new(const struct moerail_ibv *t, uint32_t wrs, uint32_t msg, uint32_t imm, uint32_t wc);
void moerail_step_free(struct moerail_step *s);
void moerail_step_run(struct moerail_step *s);

// Calls of the table that Go cannot make itself. Each returns 0 or an errno;
// where it makes an object, NULL with the errno in *err.
// moerail_open sets *listing where it was the list of devices that failed.
struct ibv_context *moerail_open(const struct moerail_ibv *t, const char *name, int *err, int *listing);
int moerail_names(const struct moerail_ibv *t, char *out, size_t size, int *err);
struct ibv_qp *moerail_create_qp(const struct moerail_ibv *t, struct ibv_pd *pd, struct ibv_cq *cq, struct ibv_srq *srq,
	int type, uint32_t send_wr, uint32_t recv_wr, uint32_t *inline_bytes, int *err);

// How to reach a port.
struct moerail_path {
	uint8_t gid[16];
	uint32_t sgid_index;
	uint16_t lid;
	uint8_t global, port, sl, traffic_class, hop_limit, unused;
};

struct moerail_connect {
	struct moerail_path path;
	uint32_t qpn, rq_psn, sq_psn, mtu; // mtu is an enum ibv_mtu
	uint8_t max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, timeout, retry_cnt, rnr_retry, unused[2];
};

int moerail_qp_init(const struct moerail_ibv *t, struct ibv_qp *qp, uint8_t port, uint16_t pkey_index, int access);
int moerail_qp_rtr(const struct moerail_ibv *t, struct ibv_qp *qp, const struct moerail_connect *c);
int moerail_qp_rts(const struct moerail_ibv *t, struct ibv_qp *qp, const struct moerail_connect *c);
int moerail_qp_error(const struct moerail_ibv *t, struct ibv_qp *qp);
int moerail_ud_ready(const struct moerail_ibv *t, struct ibv_qp *qp, uint8_t port, uint16_t pkey_index, uint32_t qkey);
struct ibv_ah *moerail_create_ah(const struct moerail_ibv *t, struct ibv_pd *pd, const struct moerail_path *p, int *err);
int moerail_ud_send(const struct moerail_ibv *t, struct ibv_qp *qp, struct ibv_ah *ah, uint32_t qpn, uint32_t qkey,
	uint64_t id, uint64_t addr, uint32_t length, uint32_t lkey);
int moerail_ud_recv(const struct moerail_ibv *t, struct ibv_qp *qp, uint64_t id, uint64_t addr, uint32_t length, uint32_t lkey);

// The next asynchronous event: 1 and what it is, 0 if there is none, or -errno.
// The event is acknowledged. qp_num is set for events of a queue pair.
int moerail_event(const struct moerail_ibv *t, struct ibv_context *ctx, int *type, int *port, uint32_t *qp_num);

#endif
