/*
 * The structs that a device kernel and Go both read: C side of package abi, whose
 * comments say what each field means. Same names (snake case here), order and
 * sizes; padding is explicit, no member depends on the compiler. A Go test compiles
 * this header and compares every offset, size and constant.
 *
 * Addresses are device addresses. C99; also C++11 and CUDA C++.
 */
#ifndef MOE_ABI_H
#define MOE_ABI_H

#include <stddef.h>
#include <stdint.h>

#if defined(__cplusplus)
#define MOE_ASSERT(cond, text) static_assert(cond, text)
#else
#define MOE_ASSERT(cond, text) _Static_assert(cond, text)
#endif

/* The size of a struct, and where its last named member lies. */
#define MOE_CHECK(name, size, last, offset)                                        \
	MOE_ASSERT(sizeof(struct moe_##name) == (size), "size of moe_" #name);         \
	MOE_ASSERT(offsetof(struct moe_##name, last) == (offset), "layout of moe_" #name)

#define MOE_MAX_RANKS 1024
#define MOE_HEADER_FIXED_BYTES 24
#define MOE_ROW_META_BYTES 8
#define MOE_PICK_BYTES 12

/* Element types: members that hold one are uint32_t, as all enums below. */
enum moe_dtype { MOE_FP32, MOE_BF16, MOE_FP16, MOE_FP8 };
enum moe_layout { MOE_LAYOUT_GROUPED, MOE_LAYOUT_BATCHED, MOE_LAYOUT_ROWS };
enum moe_id_type { MOE_ID_INT32, MOE_ID_INT64, MOE_ID_UINT32 };

enum moe_flags { MOE_FLAG_ABORTED = 1 };

enum moe_code {
	MOE_CODE_OK,
	MOE_CODE_INVALID_EXPERT,
	MOE_CODE_TOO_MANY_TOKENS,
	MOE_CODE_BAD_HEADER,
	MOE_CODE_BAD_ROW,
	MOE_CODE_OVERFLOW,
	MOE_CODE_ABORTED,
	MOE_CODE_STOPPED
};

enum moe_stage {
	MOE_STAGE_NONE,
	MOE_STAGE_DISPATCH_SEND,
	MOE_STAGE_DISPATCH_RECV,
	MOE_STAGE_COMBINE_SEND,
	MOE_STAGE_COMBINE_RECV
};

/* What a stage leaves behind. The first fault of a round stays until dispatch_send
   clears it, which also sets round. */
struct moe_status {
	uint32_t code;
	uint32_t stage;
	uint64_t round;
	uint32_t peer;
	uint32_t token;
	uint32_t pick;
	uint32_t pad0;
	int64_t value;
	int64_t limit;
	uint64_t late[MOE_MAX_RANKS / 64];
};
MOE_CHECK(status, 176, late, 48);

/* Written by the proxy, polled by the device; each word on its own cache line, each
   value round+1. */
struct moe_control {
	uint64_t dispatch_arrived;
	uint64_t pad0[7];
	uint64_t combine_arrived;
	uint64_t pad1[7];
	uint64_t dispatch_tx_done;
	uint64_t pad2[7];
	uint64_t combine_tx_done;
	uint64_t pad3[7];
	uint64_t abort;
	uint64_t pad4[7];
	uint64_t stop;
	uint64_t pad5[7];
	uint64_t overflow;
	uint64_t pad6[7];
};
MOE_CHECK(control, 448, overflow, 384);

/* Starts each block; followed by uint32_t counts[], and padding to header_bytes. */
struct moe_header {
	uint64_t round;
	uint32_t generation;
	uint32_t rows;
	uint32_t shards;
	uint32_t flags;
};
MOE_CHECK(header, 24, flags, 20);

/* Starts a row's metadata; num_picks struct moe_pick follow. */
struct moe_row_meta {
	uint32_t token;
	uint32_t num_picks;
};
MOE_CHECK(row_meta, 8, num_picks, 4);

/* One of a row's experts, local to the receiving rank. */
struct moe_pick {
	uint32_t expert;
	uint32_t index;
	float weight;
};
MOE_CHECK(pick, 12, weight, 8);

/* What does not change over a communicator's life. */
struct moe_shape {
	uint32_t rank;
	uint32_t num_ranks;
	uint32_t num_experts;
	uint32_t num_local_experts;
	uint32_t max_local_experts;
	uint32_t top_k;
	uint32_t hidden;
	uint32_t max_tokens;
	uint32_t replicas;
	uint32_t generation;
	uint32_t in;
	uint32_t wire;
	uint32_t out;
	uint32_t scale_block;
	uint32_t layout;
	uint32_t reduce_at_home;
	uint32_t apply_weights;
	uint32_t expert_alignment;
	uint32_t expert_capacity;
	uint32_t max_expert_rows;
	uint32_t window_rows;
	uint32_t max_recv_rows;
	uint32_t in_row_bytes;
	uint32_t payload_bytes;
	uint32_t scale_bytes;
	uint32_t scale_offset;
	uint32_t meta_offset;
	uint32_t row_bytes;
	uint32_t out_row_bytes;
	uint32_t return_row_bytes;
	uint32_t header_bytes;
	uint32_t pad0;
	uint64_t window_stride;
	uint64_t send_stride;
	uint64_t return_stride;
	uint64_t return_send_stride;
};
MOE_CHECK(shape, 160, return_send_stride, 152);

/* What dispatch_recv keeps of each source for combine_send. */
struct moe_source {
	uint32_t rows;
	uint32_t return_rows;
	uint32_t faulty;
	uint32_t pad0;
};
MOE_CHECK(source, 16, faulty, 8);

/* The memory of one micro-batch. */
struct moe_slot {
	uint64_t window[2];
	uint64_t overflow;
	uint64_t return_window;
	uint64_t send;
	uint64_t return_send;
	uint64_t peer_window;
	uint64_t peer_return;
	uint64_t peer_dispatch_flag;
	uint64_t peer_combine_flag;
	uint64_t direct_dispatch;
	uint64_t direct_combine;
	uint64_t dispatch_words;
	uint64_t return_rows;
	uint64_t combine_words;
	uint64_t control;
	uint64_t status;
	uint64_t round;
	uint64_t tokens;
	uint64_t home;
	uint64_t home_weights;
	uint64_t before;
	uint64_t pick_start;
	uint64_t sources;
	uint64_t expert_rank;
	uint64_t expert_local;
};
MOE_CHECK(slot, 208, expert_local, 200);

/* Counts, then blocks, then words. */
struct moe_dispatch_send_params {
	struct moe_shape shape;
	struct moe_slot slot;
	uint64_t x;
	uint64_t x_stride;
	uint64_t scales;
	uint64_t scale_stride;
	uint64_t ids;
	uint64_t weights;
	uint64_t num_tokens_ptr;
	uint32_t num_tokens;
	uint32_t id_type;
};
MOE_CHECK(dispatch_send_params, 432, id_type, 428);

/* Outputs may be 0 where the layout has none. */
struct moe_dispatch_recv_params {
	struct moe_shape shape;
	struct moe_slot slot;
	uint64_t expert_x;
	uint64_t expert_stride;
	uint64_t expert_scales;
	uint64_t counts;
	uint64_t starts;
	uint64_t row_expert;
	uint64_t source_rows;
	uint64_t row_addr;
	uint64_t row_top_k;
	uint64_t row_weights;
	uint64_t num_rows;
	uint64_t total_rows;
	uint32_t zero_fill;
	uint32_t pad0;
};
MOE_CHECK(dispatch_recv_params, 472, zero_fill, 464);

/* What the experts made, back to where the rows came from. */
struct moe_combine_send_params {
	struct moe_shape shape;
	struct moe_slot slot;
	uint64_t y;
	uint64_t y_stride;
	uint64_t starts;
	uint32_t abandon;
	uint32_t pad0;
};
MOE_CHECK(combine_send_params, 400, abandon, 392);

/* The sums of this rank's tokens. */
struct moe_combine_recv_params {
	struct moe_shape shape;
	struct moe_slot slot;
	uint64_t out;
	uint64_t out_stride;
	uint32_t accumulate;
	uint32_t pad0;
};
MOE_CHECK(combine_recv_params, 392, accumulate, 384);

#endif /* MOE_ABI_H */
