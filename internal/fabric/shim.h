//go:build libfabric

// What Go and C share. Layouts that Go mirrors are asserted on both sides.

#ifndef MOERAIL_FABRIC_SHIM_H
#define MOERAIL_FABRIC_SHIM_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

// An opened library. The functions are those of the headers' own ABI.
typedef struct moe_lib {
	void *handle;
	uint32_t version;
	char path[512];
	int (*getinfo)(uint32_t, const char *, const char *, uint64_t, const struct fi_info *, struct fi_info **);
	void (*freeinfo)(struct fi_info *);
	struct fi_info *(*dupinfo)(const struct fi_info *);
	int (*fabric)(struct fi_fabric_attr *, struct fid_fabric **, void *);
	const char *(*strerror)(int);
	uint32_t (*get_version)(void);
} moe_lib;

// Which functions can fail, and in which the last failure was: moe_step_name.
enum moe_step {
	MOE_STEP_NONE, MOE_STEP_MEMORY, MOE_STEP_GETINFO, MOE_STEP_FABRIC, MOE_STEP_DOMAIN, MOE_STEP_AV,
	MOE_STEP_CQ, MOE_STEP_ENDPOINT, MOE_STEP_BIND_AV, MOE_STEP_BIND_CQ, MOE_STEP_OPTION, MOE_STEP_ENABLE,
	MOE_STEP_NAME, MOE_STEP_REGISTER, MOE_STEP_BIND_MR, MOE_STEP_ENABLE_MR,
};

enum { MOE_WRITE = 1, MOE_READ, MOE_SWAP, MOE_ADD, MOE_SEND, MOE_RECV, MOE_EMPTY_RECV };

enum {
	MOE_FLAG_IMM = 1,      // data goes with the write
	MOE_FLAG_TARGET = 2,   // rkey is the address of a moe_target
	MOE_FLAG_DELIVER = 4,  // complete when the target's memory has it
	MOE_FLAG_DROP = 8,     // not to be posted any more: it ends as flushed
};

// States of a slot, kept by C. Go may fill a slot in state FREE alone.
enum { MOE_FREE, MOE_QUEUED, MOE_POSTED, MOE_ENDED, MOE_ORPHAN };

// How an operation ended, in completions.
enum { MOE_OK, MOE_ERROR, MOE_LOST, MOE_FLUSHED };

// Kinds of completions. ORPHAN: the provider gave back a slot whose end was
// reported earlier; it is free from now on.
enum { MOE_END = 1, MOE_RECEIVED, MOE_IMM, MOE_ORPHAN_BACK };

#define MOE_NONE UINT32_MAX
#define MOE_INLINE 128

// One operation, as Go describes it.
typedef struct moe_op {
	uint64_t src;   // local address, also where reads, receives and old values go
	uint64_t raddr; // what the provider wants: an address, or an offset; of a message: its tag
	uint64_t rkey;  // or the address of a moe_target
	uint64_t desc;  // of the local memory, 0 where none is needed
	uint64_t len;
	uint64_t data;  // for the target's queue
	uint32_t peer;
	uint8_t kind, flags, state, status;
	uint32_t next;  // C's: in the queue of a peer, or of what has ended
	uint32_t err;   // C's: errno of an end without a queue entry
} moe_op;

// The context comes first: a provider that asks for one writes there.
typedef struct moe_slot {
	struct fi_context2 context;
	moe_op op;
	uint8_t bytes[MOE_INLINE]; // inline payload; operand and comparand of atomics
} moe_slot;

typedef struct moe_completion {
	uint32_t slot;
	uint8_t kind, status;
	uint8_t orphan;      // the provider still has the slot
	uint8_t has_data;    // a message came with data
	uint32_t err;        // errno
	uint32_t vendor; // the provider's own code
	uint64_t data;       // of an immediate, or beside a message
	uint64_t len;
} moe_completion;

// One target of a template: a request whose constant half was filled in once.
typedef struct moe_target {
	struct fi_msg_rma msg;
	struct iovec iov;
	struct fi_rma_iov rma;
	void *desc;
} moe_target;

_Static_assert(sizeof(moe_op) == 64, "moe_op is one cache line");
_Static_assert(sizeof(moe_slot) == 256, "moe_slot is four cache lines");
_Static_assert(sizeof(moe_completion) == 32, "moe_completion is mirrored in Go");

typedef struct moe_peer {
	fi_addr_t addr;
	uint64_t since;        // ms: when it last took something, or began to owe
	uint32_t head, tail;   // operations waiting to be posted
	uint32_t queued, posted;
	uint64_t owed;         // bytes of what is queued and posted
	uint64_t tried;        // ms: the last try to post what waits
	uint8_t known, lost, blocked;
} moe_peer;

typedef struct moe_config {
	uint64_t life;         // this domain's own, in tags and data
	uint64_t timeout_ms;
	uint32_t num_slots, num_sends, num_recvs, max_peers;
	uint32_t ring_size;    // a power of two, num_slots or more
	uint32_t cq_size, pool; // pool: empty receives kept posted, for immediates
	uint8_t tagged, data_bytes, local_mr, device_memory;
	uint8_t is_efa;
} moe_config;

typedef struct moe_dom {
	moe_lib *lib;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_av *av;
	struct fid_cq *cq;
	struct fid_ep *ep;
	struct fid_mr *slots_mr;
	void *slots_desc;
	moe_config cfg;
	int mr_endpoint;
	int wait_fd; // readable when the completion queue may have something, -1 if there is none

	moe_slot *slots;
	uint32_t *ring, *recv_ring, ring_mask, head, recv_head;
	moe_peer *peers;
	uint32_t num_peers; // the highest number in use, and one
	uint32_t *blocked, num_blocked;
	uint32_t done_head, done_tail;
	uint32_t outstanding; // sends that C holds, posted or not
	uint32_t pool_ready;  // empty receives to post: slots first_pool ...
	uint32_t *pool_list;
	moe_completion *out;
	uint64_t next_check;
	int fatal; // errno of the completion queue: nothing works any more

	uint64_t again, bad_context, remote_errors, calls;
	int step;
} moe_dom;

int moe_lib_open(moe_lib *lib, const char *path, char *why, size_t n);
const char *moe_step_name(int step);

struct fi_info *moe_hints(moe_lib *lib, uint64_t caps, uint64_t mode, int mr_mode, const char *provider);
int moe_getinfo(moe_lib *lib, struct fi_info *hints, struct fi_info **out);

// fi_info and errnos; the library's functions are pointers, which Go can not call.
static inline void moe_freeinfo(moe_lib *lib, struct fi_info *info) { lib->freeinfo(info); }
static inline struct fi_info *moe_dupinfo(moe_lib *lib, const struct fi_info *info) { return lib->dupinfo(info); }
static inline const char *moe_strerror(moe_lib *lib, int err) { return lib->strerror(err); }
uint64_t moe_link_speed(const struct fi_info *info);
void moe_pci(const struct fi_info *info, char *buf, size_t n);

int moe_open(moe_lib *lib, struct fi_info *info, const moe_config *cfg, moe_dom **out, int *step);
int moe_close_endpoint(moe_dom *d);
int moe_close(moe_dom *d);
int moe_name(moe_dom *d, void *buf, size_t *len);

int moe_peer_add(moe_dom *d, uint32_t peer, const void *addr);
int moe_peer_flush(moe_dom *d, uint32_t peer, int how); // how: MOE_LOST or MOE_FLUSHED
int moe_peer_remove(moe_dom *d, uint32_t peer);

typedef struct moe_memory {
	uint64_t addr, len, access, key;
	int iface, device, dmabuf;
	uint64_t dmabuf_offset;
} moe_memory;
int moe_register(moe_dom *d, const moe_memory *m, struct fid_mr **mr, int *step);
int moe_unregister(struct fid_mr *mr);
static inline uint64_t moe_desc(struct fid_mr *mr) { return (uint64_t)(uintptr_t)fi_mr_desc(mr); }
int moe_cuda_dmabuf(uint64_t addr, uint64_t len, int *fd, uint64_t *offset);

moe_target *moe_targets_new(uint32_t n);
void moe_target_set(moe_dom *d, moe_target *t, uint32_t peer, uint64_t desc, uint64_t rkey);

void moe_drop_marked(moe_dom *d);
void moe_orphan(moe_dom *d, uint32_t slot);
int moe_cancel(moe_dom *d, uint32_t slot);
int moe_progress(moe_dom *d, uint32_t tail, uint32_t recv_tail, uint32_t room);
int moe_arm(moe_dom *d, uint32_t tail, uint32_t recv_tail);

enum {
	offsetof_op_peer = offsetof(moe_op, peer), offsetof_op_err = offsetof(moe_op, err),
	offsetof_slot_op = offsetof(moe_slot, op), offsetof_slot_bytes = offsetof(moe_slot, bytes),
	offsetof_completion_len = offsetof(moe_completion, len),
};

#endif
