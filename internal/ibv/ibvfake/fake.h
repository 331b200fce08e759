// A device in memory that stands behind struct moerail_ibv.
#ifndef MOERAIL_IBVFAKE_H
#define MOERAIL_IBVFAKE_H

#include "../table.h"

// The calls that can be told to fail.
#define FAKE_CALLS(X) \
	X(get_device_list) X(open_device) X(close_device) X(query_device) X(query_port) X(query_gid_table) X(alloc_pd) X(dealloc_pd) \
	X(reg_mr) X(reg_dmabuf_mr) X(dereg_mr) X(create_cq) X(destroy_cq) X(create_srq) X(destroy_srq) X(create_qp) X(modify_qp) \
	X(destroy_qp) X(create_ah) X(destroy_ah) X(get_async_event) X(post_send) X(post_recv) X(post_srq_recv) X(poll_cq)

enum {
#define X(name) fake_##name,
	FAKE_CALLS(X)
#undef X
	fake_num_calls
};

struct moerail_ibv *fake_table(void);
void fake_reset(int devices);               // forget everything; counts too
void fake_fail(int call, int at, int err);  // the at-th call from now on fails; 0 never
unsigned long fake_count(int call);         // calls since the reset
const char *fake_name(int call);
long fake_live(void);                       // objects that were made and not yet destroyed
unsigned long fake_overruns(void);          // completions and sends that did not fit
unsigned long fake_rnr(void);               // deliveries that met no receive
void fake_drop(int every, int all);         // lose one datagram in so many, drawn from a fixed seed, or all
void fake_link(int device, int up);         // take a link down without saying so, or up
void fake_event(int device, int type);      // port and device events
void fake_move_gid(int device);             // give the device another address
void fake_vendor(int device, uint32_t id);   // PCI vendor; 0 after a reset
void fake_name_none(void);                  // posts that are told to fail name no request as the culprit
void fake_limits(uint64_t max_mr, uint32_t max_msg, int ports);

#endif
