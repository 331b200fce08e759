/*
 * Two processes, one link: the measurements of `moerail bench write`, for a raw
 * library. A program that includes this says how its library opens a link, posts a
 * write with immediate, and polls; everything else is here, so that all programs
 * measure the very same thing:
 *
 *   latency    rank 0 writes with an immediate, rank 1 answers with one of the same
 *              size when it has seen that immediate; a sample is half the time from
 *              the call to the answer's immediate
 *   bandwidth  rank 0 writes MESSAGES times with an immediate, at most WINDOW without
 *              local completion; rank 1 counts immediates and answers once when all
 *              are there; the figure is MESSAGES over the time to that answer
 *
 * Before the first time of a size is taken, and after the last, the receiver looks
 * at every byte. Both ranks are forked from one process, on a core each, and spin.
 */
#ifndef MOERAIL_PEERS_PAIR_H
#define MOERAIL_PEERS_PAIR_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_SIZES = 64, MAX_WINDOW = 1024, POST_BATCH = 32 };

struct options {
  const char *name;      /* provider, or devices */
  const char *interface; /* "" means the library's first */
  uint64_t sizes[MAX_SIZES];
  int num_sizes;
  uint64_t iters, iter_bytes;   /* latency samples of a size: iters, fewer if they would move more than iter_bytes */
  uint64_t burst, burst_bytes;  /* messages of a burst, in the same way */
  int bursts, warmup, window;
  uint64_t span;                /* bytes over which a burst's messages rotate */
  int cpus[2];
  int limit;                    /* seconds for everything */
  bool plain;                   /* the program's own switch -x */
};

/* What the program that includes this provides. Failures end the process by die(). */
static void link_open(const struct options *o, int rank, int sock, uint8_t *region, uint64_t size);
/* Posts a write of the own region's [local, local+len) to the peer's at remote; false
 * if the queue is full. */
static bool link_post(uint64_t local, uint64_t remote, uint64_t len, uint32_t imm);
/* Counts completions in done, immediates with arrive(). */
static void link_poll(void);
static void link_describe(FILE *out); /* JSON members, each followed by a comma */

static int self;                  /* this process's rank */
static uint64_t posted, done;     /* writes, and those whose buffer is free again */
enum { IMM_DATA = 1, IMM_SYNC = 2 };
static uint64_t arrived[3];       /* by kind */

static void __attribute__((noreturn, format(printf, 1, 2))) die(const char *format, ...) {
  va_list args;
  fprintf(stderr, "rank %d: ", self);
  va_start(args, format);
  vfprintf(stderr, format, args);
  va_end(args);
  fputc('\n', stderr);
  fflush(stderr);
  _exit(1);
}

static inline void arrive(uint64_t imm) {
  if (imm != IMM_DATA && imm != IMM_SYNC) die("immediate %#llx was never sent", (unsigned long long)imm);
  arrived[imm]++;
}

static inline uint64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Both sides hand over a blob of the same length, before the link is there. */
static void swap_blobs(int sock, const void *mine, void *theirs, size_t n) {
  if (write(sock, mine, n) != (ssize_t)n) die("writing to the other rank: %s", strerror(errno));
  for (size_t got = 0; got < n;) {
    ssize_t k = read(sock, (char *)theirs + got, n - got);
    if (k <= 0) die("the other rank left before the link was up");
    got += (size_t)k;
  }
}

static inline void post(const struct options *o, uint64_t local, uint64_t remote, uint64_t len, uint32_t imm) {
  while (posted - done >= (uint64_t)o->window) link_poll();
  while (!link_post(local, remote, len, imm)) link_poll();
  posted++;
}

static inline void await(int kind, uint64_t n) { while (arrived[kind] < n) link_poll(); }

/* Both ranks come here; neither leaves before both are here and have their buffers
 * back. It goes over the link, since some libraries move only while both poll. */
static void sync_ranks(const struct options *o) {
  static uint64_t turn;
  while (done < posted) link_poll();
  post(o, 0, 0, 0, IMM_SYNC);
  await(IMM_SYNC, ++turn);
  while (done < posted) link_poll();
}

static inline uint8_t byte_of(int rank, uint64_t slot, uint64_t at) {
  return (uint8_t)(at * 131 + (at >> 8) * 17 + slot * 29 + (uint64_t)rank * 7 + 1);
}

struct layout { uint64_t slots, stride, half; };

static struct layout layout_of(const struct options *o, uint64_t size, uint64_t region) {
  struct layout l = {.stride = (size + 63) / 64 * 64, .half = region / 2};
  l.slots = o->span / l.stride;
  if (l.slots < 1) l.slots = 1;
  if (l.slots > (uint64_t)o->window) l.slots = (uint64_t)o->window;
  return l;
}

static void check(const uint8_t *region, struct layout l, uint64_t slots, uint64_t size) {
  for (uint64_t s = 0; s < slots; s++)
    for (uint64_t i = 0; i < size; i++) {
      uint8_t got = region[l.half + s * l.stride + i], want = byte_of(1 - self, s, i);
      if (got != want)
        die("write of %llu bytes: byte %llu of slot %llu is %#x, want %#x", (unsigned long long)size, (unsigned long long)i, (unsigned long long)s, got, want);
    }
}

static uint64_t fewer(uint64_t n, uint64_t bytes, uint64_t size, uint64_t least) {
  if (bytes / size < n) n = bytes / size;
  return n < least ? least : n;
}

/* one_latency fills samples on rank 0. */
static void one_latency(const struct options *o, uint64_t half, uint64_t size, uint64_t n, double *samples) {
  uint64_t seen = arrived[IMM_DATA];
  sync_ranks(o);
  for (uint64_t i = 0; i < n + (uint64_t)o->warmup; i++) {
    if (self == 0) {
      uint64_t t = now();
      post(o, 0, half, size, IMM_DATA);
      await(IMM_DATA, ++seen);
      if (i >= (uint64_t)o->warmup) samples[i - (uint64_t)o->warmup] = (double)(now() - t) / 2e3;
    } else {
      await(IMM_DATA, ++seen);
      post(o, 0, half, size, IMM_DATA);
    }
  }
  sync_ranks(o);
}

/* one_burst returns the seconds that rank 0 measured. */
static double one_burst(const struct options *o, struct layout l, uint64_t size, uint64_t n) {
  uint64_t seen = arrived[IMM_DATA];
  sync_ranks(o);
  uint64_t t = now();
  if (self == 0) {
    /* a batch, then a poll: libraries over sockets are far slower if nobody polls until the window is full */
    for (uint64_t sent = 0, slot = 0; sent < n; link_poll()) {
      uint64_t room = (uint64_t)o->window - (posted - done);
      for (uint64_t end = sent + (room < POST_BATCH ? room : POST_BATCH); sent < end && sent < n; sent++, posted++) {
        if (!link_post(slot * l.stride, l.half + slot * l.stride, size, IMM_DATA)) break;
        if (++slot == l.slots) slot = 0;
      }
    }
    await(IMM_DATA, seen + 1);
  } else {
    await(IMM_DATA, seen + n);
    post(o, 0, l.half, 0, IMM_DATA);
  }
  double took = (double)(now() - t) / 1e9;
  sync_ranks(o);
  return took;
}

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* rank_of is the nearest rank: a value that occurred. */
static double rank_of(const double *sorted, uint64_t n, double q) {
  double at = q * (double)n;
  uint64_t i = (uint64_t)at;
  if ((double)i < at) i++;
  return sorted[i < 1 ? 0 : i > n ? n - 1 : i - 1];
}

static void one_size(const struct options *o, uint8_t *region, uint64_t region_size, uint64_t size, bool first) {
  struct layout l = layout_of(o, size, region_size);
  uint64_t iters = fewer(o->iters, o->iter_bytes, size, 100);
  uint64_t burst = fewer(o->burst, o->burst_bytes, size, (uint64_t)o->window);
  double *samples = calloc(iters, sizeof *samples), *bursts = calloc((size_t)o->bursts, sizeof *bursts);
  if (!samples || !bursts) die("no memory for %llu samples", (unsigned long long)iters);
  for (uint64_t s = 0; s < l.slots; s++)
    for (uint64_t i = 0; i < size; i++) region[s * l.stride + i] = byte_of(self, s, i);
  memset(region + l.half, 0, l.half);
  uint64_t seen = arrived[IMM_DATA];
  sync_ranks(o);
  post(o, 0, l.half, size, IMM_DATA);
  await(IMM_DATA, seen + 1);
  check(region, l, 1, size);
  one_latency(o, l.half, size, iters, samples);
  for (int b = -1; b < o->bursts; b++) { /* the first warms up */
    if (b == 0) memset(region + l.half, 0, l.half); /* before this rank joins the sync that starts the burst */
    double t = one_burst(o, l, size, burst);
    if (b >= 0) bursts[b] = (double)burst / t;
  }
  if (self == 1) check(region, l, burst < l.slots ? burst : l.slots, size);
  if (self == 0) {
    qsort(samples, iters, sizeof *samples, by_value);
    qsort(bursts, (size_t)o->bursts, sizeof *bursts, by_value);
    double rate = rank_of(bursts, (uint64_t)o->bursts, 0.5), best = bursts[o->bursts - 1];
    printf("%s\n {\"bytes\":%llu,\"latency_us\":{\"samples\":%llu,\"min\":%.4g,\"p50\":%.4g,\"p90\":%.4g,\"p99\":%.4g,\"p99_9\":%.4g,\"max\":%.4g},",
           first ? "" : ",", (unsigned long long)size, (unsigned long long)iters, samples[0], rank_of(samples, iters, 0.5), rank_of(samples, iters, 0.9),
           rank_of(samples, iters, 0.99), rank_of(samples, iters, 0.999), samples[iters - 1]);
    printf("\"bandwidth\":{\"messages\":%llu,\"bursts\":%d,\"bytes_per_second\":%.6g,\"best_bytes_per_second\":%.6g,\"messages_per_second\":%.6g}}",
           (unsigned long long)burst, o->bursts, rate * (double)size, best * (double)size, rate);
  }
  free(samples);
  free(bursts);
}

static void too_late(int sig) {
  (void)sig;
  static const char text[] = "no end within the time limit (-T)\n";
  if (write(2, text, sizeof text - 1) < 0) _exit(1);
  _exit(1);
}

static volatile sig_atomic_t leaving;

/* Rank 0 would wait for ever for a rank that is no more. */
static void child_ended(int sig) {
  (void)sig;
  static const char text[] = "rank 1 ended in the middle of it\n";
  if (!leaving && write(2, text, sizeof text - 1) >= 0) _exit(1);
}

static void one_rank(const struct options *o, int sock) {
  signal(SIGALRM, too_late);
  alarm((unsigned)o->limit);
  if (o->cpus[self] >= 0) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(o->cpus[self], &set);
    if (sched_setaffinity(0, sizeof set, &set)) die("binding to core %d: %s", o->cpus[self], strerror(errno));
  }
  uint64_t half = o->span;
  for (int i = 0; i < o->num_sizes; i++)
    if (o->sizes[i] > half) half = o->sizes[i];
  half = (half + 4095) / 4096 * 4096;
  uint8_t *region = mmap(NULL, 2 * half, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (region == MAP_FAILED) die("no memory: %s", strerror(errno));
  memset(region, 0, 2 * half);
  link_open(o, self, sock, region, 2 * half);
  if (self == 0) {
    printf("{\"format\":\"raw-write/1\",");
    link_describe(stdout);
    printf("\"window\":%d,\"warmup\":%d,\"cpus\":[%d,%d],\"span\":%llu,\"sizes\":[", o->window, o->warmup, o->cpus[0], o->cpus[1], (unsigned long long)o->span);
  }
  for (int i = 0; i < o->num_sizes; i++) one_size(o, region, 2 * half, o->sizes[i], i == 0);
  leaving = 1;
  /* leave together, and poll until then: the other one's last write may need it */
  char bye = 'b';
  if (write(sock, &bye, 1) != 1) die("the other rank left early");
  for (ssize_t k = 0; k != 1;) {
    link_poll();
    k = recv(sock, &bye, 1, MSG_DONTWAIT);
    if (k == 0) die("the other rank left early");
  }
  if (self == 0) {
    printf("\n],\"verified\":true}\n");
    if (fflush(stdout)) die("writing the result: %s", strerror(errno));
  }
}

static uint64_t number(const char *text, char flag, uint64_t least, uint64_t most) {
  char *end;
  errno = 0;
  unsigned long long v = strtoull(text, &end, 10);
  if (errno || end == text || *end || *text == '-' || v < least || v > most) {
    fprintf(stderr, "-%c %s: want a number from %llu to %llu\n", flag, text, (unsigned long long)least, (unsigned long long)most);
    exit(2);
  }
  return v;
}

static int list(char *text, char flag, uint64_t least, uint64_t most, uint64_t *out, int room) {
  int n = 0;
  for (char *save, *s = strtok_r(text, ",", &save); s; s = strtok_r(NULL, ",", &save)) {
    if (n == room) {
      fprintf(stderr, "-%c: more than %d numbers\n", flag, room);
      exit(2);
    }
    out[n++] = number(s, flag, least, most);
  }
  return n;
}

/* pair_main is main(). usage names the program's own meaning of -p, -I and -x. */
static int pair_main(int argc, char **argv, const char *usage, const char *name) {
  struct options o = {.name = name, .interface = "", .iters = 10000, .iter_bytes = 256 << 20, .burst = 20000, .burst_bytes = 64 << 20,
                      .bursts = 5, .warmup = 200, .window = 64, .span = 4 << 20, .cpus = {0, 1}, .limit = 120};
  for (uint64_t s = 8; s <= 1 << 20; s *= 8) o.sizes[o.num_sizes++] = s;
  o.sizes[o.num_sizes - 1] = 1 << 18;
  o.sizes[o.num_sizes++] = 1 << 20;
  int c;
  uint64_t cpus[2];
  while ((c = getopt(argc, argv, "p:I:xs:n:N:b:B:r:w:W:S:c:T:")) != -1) switch (c) {
    case 'p': o.name = optarg; break;
    case 'I': o.interface = optarg; break;
    case 'x': o.plain = true; break;
    case 's': o.num_sizes = list(optarg, 's', 1, 1 << 30, o.sizes, MAX_SIZES); break;
    case 'n': o.iters = number(optarg, 'n', 100, 100000000); break;
    case 'N': o.iter_bytes = number(optarg, 'N', 1, UINT64_MAX); break;
    case 'b': o.burst = number(optarg, 'b', 1, 1000000000); break;
    case 'B': o.burst_bytes = number(optarg, 'B', 1, UINT64_MAX); break;
    case 'r': o.bursts = (int)number(optarg, 'r', 1, 1000); break;
    case 'w': o.warmup = (int)number(optarg, 'w', 0, 1000000); break;
    case 'W': o.window = (int)number(optarg, 'W', 1, MAX_WINDOW); break;
    case 'S': o.span = number(optarg, 'S', 64, 1 << 30); break;
    case 'T': o.limit = (int)number(optarg, 'T', 1, 86400); break;
    case 'c':
      if (!strcmp(optarg, "none")) { o.cpus[0] = o.cpus[1] = -1; break; }
      if (list(optarg, 'c', 0, CPU_SETSIZE - 1, cpus, 2) != 2) { fprintf(stderr, "-c: want two cores, or none\n"); return 2; }
      o.cpus[0] = (int)cpus[0];
      o.cpus[1] = (int)cpus[1];
      break;
    default:
      fprintf(stderr, "usage: %s %s [-s SIZE,...] [-n SAMPLES] [-N BYTES] [-b MESSAGES] [-B BYTES] [-r BURSTS] [-w WARMUP] [-W WINDOW] [-S SPAN] [-c CORE,CORE|none] [-T SECONDS]\n", argv[0], usage);
      return 2;
    }
  if (optind < argc || o.num_sizes == 0) {
    fprintf(stderr, "%s: unexpected argument, or no size\n", argv[0]);
    return 2;
  }
  int socks[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, socks)) die("socketpair: %s", strerror(errno));
  signal(SIGCHLD, child_ended);
  pid_t parent = getpid(), child = fork();
  if (child < 0) die("fork: %s", strerror(errno));
  self = child == 0;
  close(socks[1 - self]);
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
  }
  one_rank(&o, socks[self]);
  if (child == 0) _exit(0);
  int status;
  if (waitpid(child, &status, 0) != child || status != 0) die("rank 1 ended badly");
  return 0;
}

#endif
