/*
 * raw_write: what libfabric itself does for a write with immediate between two
 * processes of this machine, measured as `moerail bench write` measures.
 *
 *   raw_write -p 'tcp;ofi_rxm' -s 8,4096,1048576
 *
 * fi_writemsg with FI_REMOTE_CQ_DATA and fi_cq_read in a loop, one endpoint, one
 * completion queue, manual progress, one thread: the shortest way that the library
 * has. -x adds FI_INJECT where the payload fits, which moerail's engine does not use.
 */
#include "../pair.h"
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_ep *ep;
static struct fid_cq *cq;
static struct fid_av *av;
static struct fid_mr *mr;
static fi_addr_t peer;
static uint8_t *base;
static uint64_t peer_base, peer_key;
static void *desc;
static bool inject;
/* A slot stays with its write until the write has completed: fi_context2. */
static struct slot { struct fi_context2 context; struct slot *next; } slots[MAX_WINDOW], *spare;

#define MUST(call)                                                     \
  do {                                                                 \
    long rc_ = (long)(call);                                           \
    if (rc_ < 0) die("%s: %s", #call, fi_strerror((int)-rc_));         \
  } while (0)

static void link_open(const struct options *o, int rank, int sock, uint8_t *region, uint64_t size) {
  struct fi_info *hints = fi_allocinfo(), *all, *i;
  if (!hints) die("no memory");
  hints->caps = FI_MSG | FI_RMA;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->ep_attr->type = FI_EP_RDM;
  hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  hints->domain_attr->threading = FI_THREAD_DOMAIN;
  hints->domain_attr->control_progress = hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
  hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
  hints->fabric_attr->prov_name = strdup(o->name);
  int rc = fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &all);
  if (rc) die("provider %s: fi_getinfo: %s", o->name, fi_strerror(-rc));
  for (i = all; i; i = i->next)
    if (!*o->interface || !strcmp(i->domain_attr->name, o->interface)) break;
  if (!i) die("provider %s has no device %s", o->name, o->interface);
  if (i->domain_attr->cq_data_size < 4) die("provider %s carries %zu bytes of immediate, want 4", o->name, i->domain_attr->cq_data_size);
  info = fi_dupinfo(i);
  fi_freeinfo(all);
  fi_freeinfo(hints);
  inject = o->plain;

  MUST(fi_fabric(info->fabric_attr, &fabric, NULL));
  MUST(fi_domain(fabric, info, &domain, NULL));
  struct fi_cq_attr ca = {.size = 4096, .format = FI_CQ_FORMAT_DATA, .wait_obj = FI_WAIT_NONE};
  MUST(fi_cq_open(domain, &ca, &cq, NULL));
  struct fi_av_attr aa = {.type = info->domain_attr->av_type == FI_AV_UNSPEC ? FI_AV_TABLE : info->domain_attr->av_type, .count = 2};
  MUST(fi_av_open(domain, &aa, &av, NULL));
  MUST(fi_endpoint(domain, info, &ep, NULL));
  MUST(fi_ep_bind(ep, &av->fid, 0));
  MUST(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
  MUST(fi_enable(ep));
  MUST(fi_mr_reg(domain, region, size, FI_WRITE | FI_REMOTE_WRITE, 0, (uint64_t)rank + 1, 0, &mr, NULL));
  desc = fi_mr_desc(mr);
  base = region;

  struct { char name[512]; uint64_t length, base, key; } mine = {.length = sizeof mine.name}, theirs;
  size_t length = sizeof mine.name;
  MUST(fi_getname(&ep->fid, mine.name, &length));
  mine.length = length;
  mine.base = info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uint64_t)(uintptr_t)region : 0;
  mine.key = fi_mr_key(mr);
  swap_blobs(sock, &mine, &theirs, sizeof mine);
  if (fi_av_insert(av, theirs.name, 1, &peer, 0, NULL) != 1) die("fi_av_insert took no address");
  peer_base = theirs.base;
  peer_key = theirs.key;
  for (int s = 0; s < o->window; s++) {
    slots[s].next = spare;
    spare = &slots[s];
  }
}

static inline bool link_post(uint64_t local, uint64_t remote, uint64_t len, uint32_t imm) {
  struct iovec iov = {.iov_base = base + local, .iov_len = len};
  struct fi_rma_iov to = {.addr = peer_base + remote, .len = len, .key = peer_key};
  struct slot *s = spare;
  struct fi_msg_rma msg = {.msg_iov = &iov, .desc = &desc, .iov_count = 1, .addr = peer, .rma_iov = &to, .rma_iov_count = 1, .context = &s->context, .data = imm};
  uint64_t flags = FI_REMOTE_CQ_DATA | FI_COMPLETION;
  if (inject && len <= info->tx_attr->inject_size) flags |= FI_INJECT;
  ssize_t rc = fi_writemsg(ep, &msg, flags);
  if (rc == -FI_EAGAIN) return false;
  MUST(rc);
  spare = s->next;
  return true;
}

static inline void link_poll(void) {
  struct fi_cq_data_entry got[64];
  ssize_t n = fi_cq_read(cq, got, 64);
  if (n == -FI_EAGAIN) return;
  if (n == -FI_EAVAIL) {
    struct fi_cq_err_entry e = {0};
    fi_cq_readerr(cq, &e, 0);
    die("completion: %s (%s)", fi_strerror(e.err), fi_cq_strerror(cq, e.prov_errno, e.err_data, NULL, 0));
  }
  MUST(n);
  for (ssize_t i = 0; i < n; i++) {
    if (got[i].flags & FI_REMOTE_WRITE) {
      arrive(got[i].data & 0xffffffff);
      continue;
    }
    struct slot *s = got[i].op_context;
    s->next = spare;
    spare = s;
    done++;
  }
}

static void link_describe(FILE *out) {
  fprintf(out, "\"library\":\"libfabric %u.%u\",\"provider\":\"%s\",\"device\":\"%s\",\"inject\":%s,", FI_MAJOR(fi_version()), FI_MINOR(fi_version()),
          info->fabric_attr->prov_name, info->domain_attr->name, inject ? "true" : "false");
}

int main(int argc, char **argv) { return pair_main(argc, argv, "[-p PROVIDER] [-I DEVICE] [-x]", "tcp;ofi_rxm"); }
