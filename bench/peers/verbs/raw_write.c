/*
 * raw_write: what libibverbs itself does for a write with immediate over a reliable
 * connection, measured as `moerail bench write` measures.
 *
 *   raw_write -p rxe0,rxe1 -I 1 -s 8,4096,1048576
 *
 * perftest 4.5 has no write with immediate, hence this. Each rank is on a device of
 * its own, or both on one, if only one is named. One queue pair, one completion
 * queue, every write signalled; receives of no bytes are posted again in batches.
 * -x sends inline where the payload fits.
 */
#include "../pair.h"
#include <arpa/inet.h>
#include <infiniband/verbs.h>

enum { PORT = 1, MAX_RECV = 2048, RECV_BATCH = 32, CQ_SIZE = 4096 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static struct ibv_recv_wr recvs[RECV_BATCH];
static char device[64];
static int gid_index, mtu;
static uint32_t max_inline;
static uint8_t *base;
static uint64_t peer_base;
static uint32_t peer_key;
static int spent; /* receives that immediates have used up */

static void post_recvs(int n) {
  struct ibv_recv_wr *bad;
  recvs[n - 1].next = NULL;
  int rc = ibv_post_recv(qp, recvs, &bad);
  if (rc) die("ibv_post_recv: %s", strerror(rc));
  if (n < RECV_BATCH) recvs[n - 1].next = &recvs[n];
}

static void open_device(const char *names, int rank) {
  const char *comma = strchr(names, ',');
  if (comma && rank == 1) names = comma + 1;
  snprintf(device, sizeof device, "%.*s", (int)strcspn(names, ","), names);
  int n;
  struct ibv_device **list = ibv_get_device_list(&n);
  if (!list) die("ibv_get_device_list: %s", strerror(errno));
  for (int i = 0; i < n; i++)
    if (!strcmp(ibv_get_device_name(list[i]), device)) context = ibv_open_device(list[i]);
  ibv_free_device_list(list);
  if (!context) die("device %s does not open (%d devices here): %s", device, n, strerror(errno));
}

static void move_qp(struct ibv_qp_attr a, int mask, const char *state) {
  int rc = ibv_modify_qp(qp, &a, IBV_QP_STATE | mask);
  if (rc) die("queue pair to %s: %s", state, strerror(rc));
}

static void link_open(const struct options *o, int rank, int sock, uint8_t *region, uint64_t size) {
  open_device(o->name, rank);
  gid_index = *o->interface ? atoi(o->interface) : 1;
  struct ibv_port_attr port;
  union ibv_gid gid;
  if (ibv_query_port(context, PORT, &port)) die("port %d of %s: %s", PORT, device, strerror(errno));
  if (ibv_query_gid(context, PORT, gid_index, &gid)) die("GID %d of %s: %s", gid_index, device, strerror(errno));
  mtu = 128 << port.active_mtu;
  if (!(pd = ibv_alloc_pd(context))) die("ibv_alloc_pd: %s", strerror(errno));
  if (!(cq = ibv_create_cq(context, CQ_SIZE, NULL, NULL, 0))) die("ibv_create_cq: %s", strerror(errno));
  struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
    .cap = {.max_send_wr = (uint32_t)o->window, .max_recv_wr = MAX_RECV, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = o->plain ? 64 : 0}};
  if (!(qp = ibv_create_qp(pd, &init))) die("ibv_create_qp: %s", strerror(errno));
  max_inline = o->plain ? init.cap.max_inline_data : 0;
  if (!(mr = ibv_reg_mr(pd, region, size, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE))) die("ibv_reg_mr of %llu bytes: %s", (unsigned long long)size, strerror(errno));
  base = region;

  struct { union ibv_gid gid; uint64_t base; uint32_t key, qpn, mtu, lid; } mine, theirs;
  memset(&mine, 0, sizeof mine);
  mine.gid = gid; mine.base = (uint64_t)(uintptr_t)region; mine.key = mr->rkey; mine.qpn = qp->qp_num; mine.mtu = port.active_mtu; mine.lid = port.lid;
  swap_blobs(sock, &mine, &theirs, sizeof mine);
  peer_base = theirs.base;
  peer_key = theirs.key;

  move_qp((struct ibv_qp_attr){.qp_state = IBV_QPS_INIT, .port_num = PORT, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE},
          IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, "INIT");
  for (int i = 0; i < RECV_BATCH; i++) recvs[i].next = i + 1 < RECV_BATCH ? &recvs[i + 1] : NULL;
  for (int i = 0; i < MAX_RECV; i += RECV_BATCH) post_recvs(RECV_BATCH);
  move_qp((struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = theirs.mtu < mine.mtu ? theirs.mtu : mine.mtu, .dest_qp_num = theirs.qpn, .min_rnr_timer = 1,
            .ah_attr = {.is_global = 1, .port_num = PORT, .dlid = (uint16_t)theirs.lid, .grh = {.dgid = theirs.gid, .sgid_index = (uint8_t)gid_index, .hop_limit = 64}}},
          IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER, "RTR");
  move_qp((struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7},
          IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC, "RTS");
  char ready = 'r', other; /* the other side must be in RTR before anything is sent */
  swap_blobs(sock, &ready, &other, 1);
}

static inline bool link_post(uint64_t local, uint64_t remote, uint64_t len, uint32_t imm) {
  struct ibv_sge sge = {.addr = (uintptr_t)base + local, .length = (uint32_t)len, .lkey = mr->lkey};
  struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = len ? 1 : 0, .opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .send_flags = IBV_SEND_SIGNALED,
                           .imm_data = htonl(imm), .wr.rdma = {.remote_addr = peer_base + remote, .rkey = peer_key}}, *bad;
  if (len && len <= max_inline) wr.send_flags |= IBV_SEND_INLINE;
  int rc = ibv_post_send(qp, &wr, &bad);
  if (rc == ENOMEM) return false;
  if (rc) die("ibv_post_send: %s", strerror(rc));
  return true;
}

static inline void link_poll(void) {
  struct ibv_wc got[64];
  int n = ibv_poll_cq(cq, 64, got);
  if (n < 0) die("ibv_poll_cq: %s", strerror(errno));
  for (int i = 0; i < n; i++) {
    if (got[i].status) die("completion: %s (vendor %#x)", ibv_wc_status_str(got[i].status), got[i].vendor_err);
    if (got[i].opcode != IBV_WC_RECV_RDMA_WITH_IMM) {
      done++;
      continue;
    }
    arrive(ntohl(got[i].imm_data));
    if (++spent == RECV_BATCH) {
      post_recvs(RECV_BATCH);
      spent = 0;
    }
  }
}

static void link_describe(FILE *out) {
  fprintf(out, "\"library\":\"libibverbs\",\"provider\":\"verbs\",\"device\":\"%s\",\"gid_index\":%d,\"mtu\":%d,\"inject\":%s,", device, gid_index, mtu, max_inline ? "true" : "false");
}

int main(int argc, char **argv) { return pair_main(argc, argv, "[-p DEVICE[,DEVICE]] [-I GID_INDEX] [-x]", "rxe0,rxe1"); }
