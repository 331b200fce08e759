/*
 * moe_a2a_mpi: one MoE dispatch + combine round over MPI collectives.
 *
 * The peer that moerail's round is compared with on a machine without a NIC: the
 * same rows, the same copies and the same sums, carried by MPI_Alltoallv. Each of
 * R ranks holds E/R experts and T tokens; every token picks K distinct experts
 * uniformly at random. One round, in order, with the name of each step:
 *
 *   counts    rows per destination, MPI_Alltoall of one word per pair (not with -p)
 *   pack      token rows and their picks into the send buffer
 *   wire_out  MPI_Alltoallv of the rows
 *   place     grouped layout only: every row copied to each of its experts' slots
 *             ... the experts run here; their outputs are bf16 [picks, H], untimed
 *   sum       dedup: weighted sum over a row's local picks in fp32, rounded once to
 *             bf16, written into the return send buffer
 *   wire_back MPI_Alltoallv of the results
 *   reduce    dedup: sum of a token's partial rows in ascending rank order;
 *             per_expert: weighted sum of its K rows. fp32, rounded once to bf16
 *
 * dispatch = counts..place, combine = sum..reduce, round = both. A rank's rows for
 * itself are packed straight into its receive buffer and summed straight into the
 * home buffer; no collective moves them.
 *
 * Modes (-m): dedup sends a token once to each rank that holds one of its experts,
 * with the local picks and weights behind the payload, and gets one partial sum
 * back. per_expert sends one row per (token, expert) and gets unweighted rows back.
 *
 * Time: every rank reads the machine's monotonic clock. A step's time is the longest over
 * the ranks; round_span runs from the first rank's start to the last rank's end. A
 * barrier precedes each round, but none stands inside it. With -b no barrier at all:
 * rounds follow each other, and steady is the whole time over the number of rounds.
 *
 * The first and the last round are checked element by element against a direct
 * computation in double precision; a mismatch prints no times and exits 1.
 */
#include <mpi.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MAXR = 64, MAXK = 32, NROUTE = 16, HEADER = 64 };
enum { C_START, C_COUNTS, C_PACK, C_OUT, C_PLACE, C_SUM, C_BACK, C_REDUCE, NC }; /* clock readings */
static const char *const step_name[NC] = { "", "counts", "pack", "wire_out", "place", "sum", "wire_back", "reduce" };
enum { PER_EXPERT, DEDUP };

static int R, me, T = 128, H = 7168, K = 8, E = 256, EL, fp8, mode = DEDUP, grouped, padded, barrier = 1, iters = 200, warmup = 20;
static uint64_t seed = 1;
static const char *json_path;

static void die(const char *what)
{
	fprintf(stderr, "moe_a2a_mpi: rank %d: %s\n", me, what);
	MPI_Abort(MPI_COMM_WORLD, 2);
	exit(2);
}
static void *xalloc(size_t n)
{
	void *p = NULL;
	if (posix_memalign(&p, 4096, n ? n : 4096)) die("out of memory");
	memset(p, 0, n ? n : 4096); /* touch, so that no page fault is timed */
	return p;
}
static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static uint64_t mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15ull;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
	return x ^ (x >> 31);
}

/* ---- bf16 sums; checked with -fopt-info-vec to be vectorised ---- */

static inline float f32(uint16_t b) { union { uint32_t u; float f; } v = { (uint32_t)b << 16 }; return v.f; }
static inline uint16_t bf16(float f)
{
	union { float f; uint32_t u; } v = { f };
	return (uint16_t)((v.u + 0x7fff + ((v.u >> 16) & 1)) >> 16);
}
#define T1 v[0] * f32(p0[h])
#define T2 T1 + v[1] * f32(p1[h])
#define T3 T2 + v[2] * f32(p2[h])
#define T4 T3 + v[3] * f32(p3[h])
#define T5 T4 + v[4] * f32(p4[h])
#define T6 T5 + v[5] * f32(p5[h])
#define T7 T6 + v[6] * f32(p6[h])
#define T8 T7 + v[7] * f32(p7[h])
#define SUM(n) case n: for (int h = 0; h < len; h++) o[h] = bf16(T##n); break;

/* o = sum of n weighted rows, as many read streams as rows, the sum in registers */
static void wsum(const uint16_t *const *z, const float *w, int n, uint16_t *restrict o, const int len)
{
	if (n <= 8) {
		const uint16_t *p[8];
		float v[8];
		for (int i = 0; i < 8; i++) { p[i] = z[i < n ? i : 0]; v[i] = i < n ? w[i] : 0; }
		const uint16_t *restrict p0 = p[0], *restrict p1 = p[1], *restrict p2 = p[2], *restrict p3 = p[3];
		const uint16_t *restrict p4 = p[4], *restrict p5 = p[5], *restrict p6 = p[6], *restrict p7 = p[7];
		switch (n) { SUM(1) SUM(2) SUM(3) SUM(4) SUM(5) SUM(6) SUM(7) SUM(8) }
		return;
	}
	for (int h0 = 0; h0 < len; h0 += 1024) { /* more rows than registers: accumulate in L1 */
		float a[1024];
		const int m = len - h0 < 1024 ? len - h0 : 1024;
		for (int h = 0; h < m; h++) a[h] = w[0] * f32(z[0][h0 + h]);
		for (int i = 1; i < n; i++) for (int h = 0; h < m; h++) a[h] += w[i] * f32(z[i][h0 + h]);
		for (int h = 0; h < m; h++) o[h0 + h] = bf16(a[h]);
	}
}

/* ---- routing and content: every rank can compute those of every other ---- */

static int *routes;   /* [NROUTE][R][T][K] */
static float *weights;
static const int *route_of(int n, int rank) { return routes + ((size_t)n * R + rank) * T * K; }
static const float *weights_of(int n, int rank) { return weights + ((size_t)n * R + rank) * T * K; }

static void make_routes(void)
{
	routes = xalloc(sizeof(int) * NROUTE * R * T * K);
	weights = xalloc(sizeof(float) * NROUTE * R * T * K);
	for (int n = 0; n < NROUTE; n++) for (int p = 0; p < R; p++) for (int t = 0; t < T; t++) {
		int *r = routes + (((size_t)n * R + p) * T + t) * K;
		float *w = weights + (((size_t)n * R + p) * T + t) * K, s = 0;
		uint64_t x = mix(seed ^ ((uint64_t)n << 48) ^ ((uint64_t)p << 32) ^ (uint64_t)t);
		for (int k = 0; k < K; k++) {
			int dup;
			do { x = mix(x); r[k] = (int)(x % (uint64_t)E); dup = 0; for (int j = 0; j < k; j++) dup |= r[j] == r[k]; } while (dup);
			w[k] = 0.1f + (float)(mix(x) % 97) / 97.0f; /* uneven */
			s += w[k];
		}
		for (int k = 0; k < K; k++) w[k] /= s;
	}
}
/* element h of a token: a small code that a byte with a scale and bf16 both hold exactly */
static inline int code(int rank, int t, int h) { return (int)(mix(((uint64_t)rank << 40) ^ ((uint64_t)t << 20) ^ (uint64_t)h) % 15) - 7; }
static inline float gain(int e) { return 1.0f + (float)e / 64.0f; } /* distinct per expert */

/* ---- buffers of one rank ---- */

static size_t payload, row, crow;         /* bytes: token, dispatch row, return row */
static uint8_t *tok, *sbuf, *rbuf;
static uint16_t *slots, *ybuf, *cbuf, *zbuf, *out; /* grouped rows, expert outputs, return blocks, home blocks, result */
struct pick { uint32_t expert, index; float weight; };
struct meta { uint32_t token, n; struct pick pick[]; };
static int nrow_to[MAXR], nrow_from[MAXR]; /* rows per peer, own rows included */
static size_t sblock[MAXR], rblock[MAXR];  /* byte offset of each peer's first row */
static int first_out[MAXR], first_in[MAXR]; /* index of each peer's first return row, at home and at the expert */
static int sbytes[MAXR], sdisp[MAXR], rbytes[MAXR], rdisp[MAXR];
static int *pos;                           /* dedup [T][R], per_expert [T][K]: return row index, -1 none */
static int *ecnt, *ercnt, *eoff, *estart;
static int *slot_of;                       /* [received rows][K]: output row of each local pick */

static struct meta *meta_of(uint8_t *r) { return (struct meta *)(r + payload); }
static void wire(const void *s, const int *sc, const int *sd, void *r, const int *rc, const int *rd)
{
	MPI_Alltoallv(s, sc, sd, MPI_BYTE, r, rc, rd, MPI_BYTE, MPI_COMM_WORLD);
}
static void block_offsets(void)
{
	size_t so = 0, ro = 0;
	int fo = 0, fi = 0;
	for (int d = 0; d < R; d++) {
		const size_t s = padded ? HEADER + (size_t)T * row : (size_t)nrow_to[d] * row;
		const size_t r = padded ? HEADER + (size_t)T * row : (size_t)nrow_from[d] * row;
		sblock[d] = so + (padded ? HEADER : 0), rblock[d] = ro + (padded ? HEADER : 0);
		sdisp[d] = (int)so, rdisp[d] = (int)ro;
		sbytes[d] = d == me ? 0 : (int)s, rbytes[d] = d == me ? 0 : (int)r;
		so += s, ro += r;
		first_out[d] = fo, first_in[d] = fi;
		fo += nrow_to[d], fi += nrow_from[d];
	}
}

/* ---- dispatch, deduplicated ---- */

static void dedup_counts(const int *rt)
{
	memset(nrow_to, 0, sizeof nrow_to);
	for (int t = 0; t < T; t++) {
		uint64_t seen = 0;
		for (int k = 0; k < K; k++) seen |= 1ull << (rt[t * K + k] / EL);
		for (; seen; seen &= seen - 1) nrow_to[__builtin_ctzll(seen)]++;
	}
	if (!padded) MPI_Alltoall(nrow_to, 1, MPI_INT, nrow_from, 1, MPI_INT, MPI_COMM_WORLD);
	else nrow_from[me] = nrow_to[me];
	block_offsets();
}
static void dedup_pack(const int *rt, const float *w)
{
	int next[MAXR] = { 0 };
	memset(ecnt, 0, sizeof(int) * E);
	for (int t = 0; t < T; t++) {
		struct meta *m[MAXR];
		uint64_t seen = 0;
		for (int d = 0; d < R; d++) pos[t * R + d] = -1;
		for (int k = 0; k < K; k++) {
			const int e = rt[t * K + k], d = e / EL;
			if (!(seen >> d & 1)) {
				seen |= 1ull << d;
				uint8_t *q = (d == me ? rbuf + rblock[d] : sbuf + sblock[d]) + (size_t)next[d] * row;
				pos[t * R + d] = first_out[d] + next[d]++;
				memcpy(q, tok + (size_t)t * payload, payload);
				m[d] = meta_of(q);
				m[d]->token = (uint32_t)t, m[d]->n = 0;
			}
			m[d]->pick[m[d]->n++] = (struct pick){ (uint32_t)(e - d * EL), (uint32_t)ecnt[e]++, w[t * K + k] };
		}
	}
	if (padded) for (int d = 0; d < R; d++) memcpy(sbuf + sdisp[d], &nrow_to[d], sizeof(int));
}
static void dedup_wire(void)
{
	wire(sbuf, sbytes, sdisp, rbuf, rbytes, rdisp);
	if (padded) for (int s = 0, fi = 0; s < R; s++) {
		if (s != me) memcpy(&nrow_from[s], rbuf + rdisp[s], sizeof(int));
		first_in[s] = fi, fi += nrow_from[s];
	}
}
/* rows layout: a pick's output row follows the order of arrival. grouped: expert-major, sources in order. */
static void dedup_place(void)
{
	if (!grouped) return;
	memset(ercnt, 0, sizeof(int) * R * EL);
	for (int s = 0; s < R; s++) for (int i = 0; i < nrow_from[s]; i++) {
		const struct meta *m = meta_of(rbuf + rblock[s] + (size_t)i * row);
		for (uint32_t k = 0; k < m->n; k++) ercnt[s * EL + m->pick[k].expert]++;
	}
	int at = 0;
	for (int e = 0; e < EL; e++) for (int s = 0; s < R; s++) estart[s * EL + e] = at, at += ercnt[s * EL + e];
	for (int s = 0, j = 0; s < R; s++) for (int i = 0; i < nrow_from[s]; i++, j++) {
		const uint8_t *q = rbuf + rblock[s] + (size_t)i * row;
		const struct meta *m = meta_of((uint8_t *)q);
		for (uint32_t k = 0; k < m->n; k++) {
			const int slot = estart[s * EL + m->pick[k].expert] + (int)m->pick[k].index;
			slot_of[j * K + (int)k] = slot;
			memcpy((uint8_t *)slots + (size_t)slot * payload, q, payload);
		}
	}
}
static void dedup_sum(void)
{
	for (int s = 0, j = 0, next = 0; s < R; s++) for (int i = 0; i < nrow_from[s]; i++, j++) {
		const struct meta *m = meta_of(rbuf + rblock[s] + (size_t)i * row);
		const uint16_t *z[MAXK];
		float w[MAXK];
		for (uint32_t k = 0; k < m->n; k++) {
			const int slot = grouped ? slot_of[j * K + (int)k] : next++;
			z[k] = ybuf + (size_t)slot * H, w[k] = m->pick[k].weight;
		}
		uint16_t *o = s == me ? zbuf + (size_t)(first_out[me] + i) * H : cbuf + (size_t)j * H;
		wsum(z, w, (int)m->n, o, H);
	}
}
static void dedup_reduce(void)
{
	float one[MAXR];
	for (int d = 0; d < R; d++) one[d] = 1;
	for (int t = 0; t < T; t++) {
		const uint16_t *z[MAXR];
		int n = 0;
		for (int d = 0; d < R; d++) if (pos[t * R + d] >= 0) z[n++] = zbuf + (size_t)pos[t * R + d] * H;
		wsum(z, one, n, out + (size_t)t * H, H);
	}
}

/* ---- dispatch, one row per (token, expert) ---- */

static void expert_counts(const int *rt)
{
	memset(ecnt, 0, sizeof(int) * E);
	for (int i = 0; i < T * K; i++) ecnt[rt[i]]++;
	MPI_Alltoall(ecnt, EL, MPI_INT, ercnt, EL, MPI_INT, MPI_COMM_WORLD);
	for (int d = 0; d < R; d++) {
		nrow_to[d] = nrow_from[d] = 0;
		for (int e = 0; e < EL; e++) {
			eoff[d * EL + e] = nrow_to[d];
			nrow_to[d] += ecnt[d * EL + e], nrow_from[d] += ercnt[d * EL + e];
		}
	}
	block_offsets();
}
static void expert_pack(const int *rt)
{
	for (int t = 0; t < T; t++) for (int k = 0; k < K; k++) {
		const int e = rt[t * K + k], d = e / EL, i = eoff[e]++;
		pos[t * K + k] = first_out[d] + i;
		memcpy((d == me ? rbuf + rblock[d] : sbuf + sblock[d]) + (size_t)i * row, tok + (size_t)t * payload, payload);
	}
}
static void expert_place(void)
{
	if (!grouped) return;
	int at = 0;
	for (int e = 0; e < EL; e++) for (int s = 0; s < R; s++) estart[s * EL + e] = at, at += ercnt[s * EL + e];
	for (int s = 0; s < R; s++) {
		const uint8_t *q = rbuf + rblock[s];
		for (int e = 0; e < EL; e++) for (int c = 0; c < ercnt[s * EL + e]; c++, q += row)
			memcpy((uint8_t *)slots + (size_t)(estart[s * EL + e] + c) * payload, q, payload);
	}
}
/* the grouped layout's outputs are expert-major, the return blocks source-major */
static void expert_gather(void)
{
	if (!grouped) return;
	for (int s = 0; s < R; s++) {
		uint16_t *o = s == me ? zbuf + (size_t)first_out[me] * H : cbuf + (size_t)first_in[s] * H;
		for (int e = 0; e < EL; o += (size_t)ercnt[s * EL + e] * H, e++)
			memcpy(o, ybuf + (size_t)estart[s * EL + e] * H, (size_t)ercnt[s * EL + e] * crow);
	}
}
static void expert_reduce(const float *w)
{
	const int lo = first_out[me], hi = lo + nrow_to[me];
	const uint16_t *own = grouped ? zbuf : ybuf + ((ptrdiff_t)first_in[me] - lo) * H; /* own outputs need no copy */
	for (int t = 0; t < T; t++) {
		const uint16_t *z[MAXK];
		for (int k = 0; k < K; k++) {
			const int p = pos[t * K + k];
			z[k] = (p >= lo && p < hi ? own : zbuf) + (ptrdiff_t)p * H;
		}
		wsum(z, w + t * K, K, out + (size_t)t * H, H);
	}
}
static void wire_back(void)
{
	for (int d = 0; d < R; d++) {
		sbytes[d] = d == me ? 0 : (int)((size_t)nrow_from[d] * crow), sdisp[d] = (int)((size_t)first_in[d] * crow);
		rbytes[d] = d == me ? 0 : (int)((size_t)nrow_to[d] * crow), rdisp[d] = (int)((size_t)first_out[d] * crow);
	}
	wire(mode == PER_EXPERT && !grouped ? ybuf : cbuf, sbytes, sdisp, zbuf, rbytes, rdisp);
}

/* ---- the experts, from what really arrived; untimed ---- */

static void expert_row(const uint8_t *q, int e, uint16_t *y)
{
	for (int h = 0; h < H; h++) {
		const float x = fp8 ? (float)(int8_t)q[h] * ((const float *)(q + H))[h / 128] : f32(((const uint16_t *)q)[h]);
		y[h] = bf16(x * gain(me * EL + e));
	}
}
static void run_experts(void)
{
	int next = 0;
	for (int s = 0, j = 0; s < R; s++) {
		const uint8_t *q = rbuf + rblock[s];
		if (mode == DEDUP) for (int i = 0; i < nrow_from[s]; i++, j++, q += row) {
			const struct meta *m = meta_of((uint8_t *)q);
			for (uint32_t k = 0; k < m->n; k++) {
				const int slot = grouped ? slot_of[j * K + (int)k] : next++;
				expert_row(grouped ? (uint8_t *)slots + (size_t)slot * payload : q, (int)m->pick[k].expert, ybuf + (size_t)slot * H);
			}
		} else for (int e = 0; e < EL; e++) for (int c = 0; c < ercnt[s * EL + e]; c++, q += row) {
			const int slot = grouped ? estart[s * EL + e] + c : next++;
			expert_row(grouped ? (uint8_t *)slots + (size_t)slot * payload : q, e, ybuf + (size_t)slot * H);
		}
	}
}
/* every output element against double precision; each rounding to bf16 costs at most 2^-8 of what is rounded */
static long check(const int *rt, const float *w)
{
	long bad = 0;
	for (int t = 0; t < T; t++) for (int h = 0; h < H; h++) {
		double want = 0, mag = 0;
		const double x = 0.25 * code(me, t, h);
		for (int k = 0; k < K; k++) { const double y = w[t * K + k] * x * gain(rt[t * K + k]); want += y, mag += fabs(y); }
		const double got = f32(out[(size_t)t * H + h]);
		if (!(fabs(got - want) <= mag * 3 / 256)) bad++;
	}
	return bad;
}

/* ---- results ---- */

static int cmpd(const void *a, const void *b) { const double x = *(const double *)a, y = *(const double *)b; return x < y ? -1 : x > y; }
static FILE *json;
static int fields;
static void report(const char *name, double *m) /* rank 0; m is in seconds, sorted here */
{
	qsort(m, (size_t)iters, sizeof *m, cmpd);
	const double p50 = m[iters / 2] * 1e6, p90 = m[(int)(iters * 0.90)] * 1e6, p99 = m[(int)(iters * 0.99)] * 1e6;
	printf("%d,%d,%d,%d,%d,%s,%s,%s,%s,%.1f,%.1f,%.1f,%.1f,%.1f\n", R, T, H, K, E, fp8 ? "fp8" : "bf16", mode == DEDUP ? "dedup" : "per_expert",
		grouped ? "grouped" : "rows", name, p50, p90, p99, m[0] * 1e6, m[iters - 1] * 1e6);
	if (json) fprintf(json, "%s\"%s\":{\"p50\":%.2f,\"p90\":%.2f,\"p99\":%.2f,\"min\":%.2f,\"max\":%.2f}", fields++ ? "," : "", name,
		p50, p90, p99, m[0] * 1e6, m[iters - 1] * 1e6);
}
static void report_max(const char *name, const double *mine, double *all)
{
	MPI_Reduce(mine, all, iters, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
	if (!me) report(name, all);
}
/* whether a waiting rank gives its core away, as MPI itself says */
static int yields(void)
{
	int provided, index, count, value = -1;
	MPI_T_cvar_handle h;
	if (MPI_T_init_thread(MPI_THREAD_SINGLE, &provided) != MPI_SUCCESS) return -1;
	if (MPI_T_cvar_get_index("mpi_yield_when_idle", &index) == MPI_SUCCESS && MPI_T_cvar_handle_alloc(index, NULL, &h, &count) == MPI_SUCCESS) {
		int buf[8] = { 0 };
		if (count <= 8 && MPI_T_cvar_read(h, buf) == MPI_SUCCESS) value = *(unsigned char *)buf; /* Open MPI stores a bool */
		MPI_T_cvar_handle_free(&h);
	}
	MPI_T_finalize();
	return value;
}
static int number(const char *s, int lo, int hi, const char *what)
{
	char *end;
	const long v = strtol(s, &end, 10);
	if (*end || end == s || v < lo || v > hi) {
		fprintf(stderr, "moe_a2a_mpi: %s: %s, want %d..%d\n", what, s, lo, hi);
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	return (int)v;
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_size(MPI_COMM_WORLD, &R);
	MPI_Comm_rank(MPI_COMM_WORLD, &me);
	for (int o; (o = getopt(argc, argv, "t:H:k:e:d:i:w:s:m:l:j:pb")) != -1;) switch (o) {
	case 't': T = number(optarg, 1, 1 << 16, "tokens"); break;
	case 'H': H = number(optarg, 8, 1 << 15, "hidden"); break;
	case 'k': K = number(optarg, 1, MAXK, "top-k"); break;
	case 'e': E = number(optarg, 1, 4096, "experts"); break;
	case 'i': iters = number(optarg, 1, 1 << 24, "iterations"); break;
	case 'w': warmup = number(optarg, 0, 1 << 24, "warm-up iterations"); break;
	case 's': seed = strtoull(optarg, NULL, 0); break;
	case 'd': fp8 = !strcmp(optarg, "fp8"); if (!fp8 && strcmp(optarg, "bf16")) die("-d bf16|fp8"); break;
	case 'm': mode = !strcmp(optarg, "dedup"); if (!mode && strcmp(optarg, "per_expert")) die("-m dedup|per_expert"); break;
	case 'l': grouped = !strcmp(optarg, "grouped"); if (!grouped && strcmp(optarg, "rows")) die("-l rows|grouped"); break;
	case 'p': padded = 1; break;
	case 'b': barrier = 0; break;
	case 'j': json_path = optarg; break;
	default: die("usage: moe_a2a_mpi [-t tokens] [-H hidden] [-k topk] [-e experts] [-d bf16|fp8] [-m dedup|per_expert]\n"
		"    [-l rows|grouped] [-p] [-b] [-i iterations] [-w warmup] [-s seed] [-j result.json]");
	}
	if (R > MAXR || E % R || K > E || H % 8 || (fp8 && H % 128)) die("need ranks <= 64, experts divisible by ranks, top-k <= experts, hidden divisible by 8 (fp8: 128)");
	if (padded && mode != DEDUP) die("-p goes with -m dedup");

	EL = E / R;
	payload = ((fp8 ? (size_t)H + H / 128 * 4 : (size_t)2 * H) + 15) / 16 * 16;
	row = mode == DEDUP ? (payload + 8 + 12 * (size_t)K + 15) / 16 * 16 : payload;
	crow = (size_t)2 * H;
	make_routes();

	/* buffers as large as the routings need, and no larger */
	size_t maxsend = 0, maxrecv = 0, maxpicks = 0;
	for (int n = 0; n < NROUTE; n++) {
		size_t recv = 0, picks = 0, send = 0;
		for (int p = 0; p < R; p++) for (int t = 0; t < T; t++) {
			uint64_t seen = 0;
			for (int k = 0; k < K; k++) {
				const int d = route_of(n, p)[t * K + k] / EL;
				picks += d == me;
				if (mode == DEDUP && seen >> d & 1) continue;
				seen |= 1ull << d;
				recv += d == me, send += p == me;
			}
		}
		if (send > maxsend) maxsend = send;
		if (recv > maxrecv) maxrecv = recv;
		if (picks > maxpicks) maxpicks = picks;
	}
	const size_t blocks = (size_t)R * (HEADER + (size_t)T * row);
	const size_t sbytes_all = padded ? blocks : maxsend * row, rbytes_all = padded ? blocks : maxrecv * row;
	if (sbytes_all > INT32_MAX || rbytes_all > INT32_MAX || maxsend * crow > INT32_MAX) die("a buffer exceeds the 2 GiB that MPI counts can name");
	tok = xalloc((size_t)T * payload), sbuf = xalloc(sbytes_all), rbuf = xalloc(rbytes_all);
	slots = xalloc(grouped ? maxpicks * payload : 0), ybuf = xalloc(maxpicks * crow);
	cbuf = xalloc(maxrecv * crow), zbuf = xalloc(maxsend * crow), out = xalloc((size_t)T * crow);
	pos = xalloc(sizeof(int) * T * (K > R ? K : R)), slot_of = xalloc(sizeof(int) * maxrecv * K);
	ecnt = xalloc(sizeof(int) * E), ercnt = xalloc(sizeof(int) * E), eoff = xalloc(sizeof(int) * E), estart = xalloc(sizeof(int) * E);
	double *tm[NC];
	for (int c = 0; c < NC; c++) tm[c] = xalloc(sizeof(double) * iters);

	for (int t = 0; t < T; t++) {
		uint8_t *q = tok + (size_t)t * payload;
		for (int h = 0; h < H; h++) {
			const int c = code(me, t, h);
			if (fp8) q[h] = (uint8_t)(int8_t)c; else ((uint16_t *)q)[h] = bf16(0.25f * (float)c);
		}
		if (fp8) for (int b = 0; b < H / 128; b++) ((float *)(q + H))[b] = 0.25f;
	}

	long bad = 0;
	double steady0 = 0, steady1 = 0;
	for (int it = -warmup - 1; it <= iters; it++) { /* the first and the last are checked, not timed */
		const int checked = it < -warmup || it == iters, n = (it + warmup + 1) % NROUTE;
		const int *rt = route_of(n, me);
		const float *w = weights_of(n, me);
		if (checked) memset(out, 0xff, (size_t)T * crow); /* NaN: a row not written fails the check */
		if (barrier || checked || it == 0) MPI_Barrier(MPI_COMM_WORLD);
		double c[NC];
		c[C_START] = now();
		if (it == 0) steady0 = c[C_START];
		if (mode == DEDUP) dedup_counts(rt); else expert_counts(rt);
		c[C_COUNTS] = now();
		if (mode == DEDUP) dedup_pack(rt, w); else expert_pack(rt);
		c[C_PACK] = now();
		if (mode == DEDUP) dedup_wire(); else wire(sbuf, sbytes, sdisp, rbuf, rbytes, rdisp);
		c[C_OUT] = now();
		if (mode == DEDUP) dedup_place(); else expert_place();
		c[C_PLACE] = now();
		if (checked) run_experts();
		if (mode == DEDUP) dedup_sum(); else expert_gather();
		c[C_SUM] = now();
		wire_back();
		c[C_BACK] = now();
		if (mode == DEDUP) dedup_reduce(); else expert_reduce(w);
		c[C_REDUCE] = now();
		if (checked) bad += check(rt, w);
		else if (it >= 0) for (int i = 0; i < NC; i++) tm[i][it] = c[i];
		if (it == iters - 1) steady1 = c[C_REDUCE];
	}

	long allbad = 0;
	long rows_sent = 0, rows_all = 0;
	for (int d = 0; d < R; d++) rows_sent += d == me ? 0 : nrow_to[d];
	MPI_Allreduce(&bad, &allbad, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
	MPI_Reduce(&rows_sent, &rows_all, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
	double first = 0, last = 0;
	MPI_Reduce(&steady0, &first, 1, MPI_DOUBLE, MPI_MIN, 0, MPI_COMM_WORLD);
	MPI_Reduce(&steady1, &last, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
	if (allbad) {
		if (!me) fprintf(stderr, "moe_a2a_mpi: %ld wrong output elements; no times\n", allbad);
		MPI_Finalize();
		return 1;
	}
	if (!me) {
		char version[MPI_MAX_LIBRARY_VERSION_STRING];
		int len;
		MPI_Get_library_version(version, &len);
		version[strcspn(version, ",\"\\\n")] = 0;
		if (json_path && !(json = fopen(json_path, "w"))) die("can not write the JSON file");
		if (json) fprintf(json, "{\"format\":\"moe-a2a-mpi/1\",\"mpi\":\"%s\",\"yield_when_idle\":%d,\"config\":{\"ranks\":%d,\"tokens\":%d,\"hidden\":%d,\"top_k\":%d,\"experts\":%d,"
			"\"dtype\":\"%s\",\"mode\":\"%s\",\"layout\":\"%s\",\"padded\":%s,\"barrier\":%s,\"rounds\":%d,\"warmup\":%d,\"seed\":%llu},\"verified\":true,"
			"\"wire\":{\"rows_per_round\":%ld,\"row_bytes\":%zu,\"return_row_bytes\":%zu},\"steady_us\":%.2f,\"times\":{",
			version, yields(), R, T, H, K, E, fp8 ? "fp8" : "bf16", mode == DEDUP ? "dedup" : "per_expert", grouped ? "grouped" : "rows", padded ? "true" : "false",
			barrier ? "true" : "false", iters, warmup, (unsigned long long)seed, rows_all, row, crow, (last - first) / iters * 1e6);
		printf("# checked; %ld rows of %zu B cross ranks in a round; yield_when_idle=%d; steady %.1f us a round\n", rows_all, row, yields(), (last - first) / iters * 1e6);
		printf("ranks,tokens,hidden,topk,experts,dtype,mode,layout,step,p50_us,p90_us,p99_us,min_us,max_us\n");
	}
	double *mine = xalloc(sizeof(double) * iters), *all = xalloc(sizeof(double) * iters), *end = xalloc(sizeof(double) * iters);
	for (int c = 1; c < NC; c++) {
		for (int i = 0; i < iters; i++) mine[i] = tm[c][i] - tm[c - 1][i];
		report_max(step_name[c], mine, all);
	}
	const struct { const char *name; int from, to; } whole[] = { { "dispatch", C_START, C_PLACE }, { "combine", C_PLACE, C_REDUCE }, { "round", C_START, C_REDUCE } };
	for (int j = 0; j < 3; j++) {
		for (int i = 0; i < iters; i++) mine[i] = tm[whole[j].to][i] - tm[whole[j].from][i];
		report_max(whole[j].name, mine, all);
	}
	MPI_Reduce(tm[C_START], all, iters, MPI_DOUBLE, MPI_MIN, 0, MPI_COMM_WORLD);
	MPI_Reduce(tm[C_REDUCE], end, iters, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
	for (int i = 0; i < iters && !me; i++) all[i] = end[i] - all[i];
	if (!me) report("round_span", all);
	if (json) { fprintf(json, "}}\n"); if (fclose(json)) die("can not write the JSON file"); }
	MPI_Finalize();
	return 0;
}
