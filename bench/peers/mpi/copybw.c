/*
 * copybw: how fast this machine copies memory, with 1 and with 2 threads, in cache
 * and in DRAM. It bounds every exchange through shared memory, and stands beside
 * the figures of moe_a2a_mpi and moerail.
 *
 * Each thread copies its own half of the working set (half source, half
 * destination) with memcpy in pieces of 14336 B, a row of 7168 bf16. GB/s counts
 * copied bytes once, 1e9 each; the best and the median of the repetitions.
 *
 * usage: copybw [cache MiB per thread, default 1] [DRAM MiB per thread, default 1024]
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { REPS = 9, PIECE = 14336 };
static pthread_barrier_t gate;
struct job { char *src, *dst; size_t n; int loops; };

static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec; }
static int cmpd(const void *a, const void *b) { const double x = *(const double *)a, y = *(const double *)b; return x < y ? -1 : x > y; }

static void *copy(void *arg)
{
	const struct job *j = arg;
	for (int r = 0; r <= REPS; r++) {
		pthread_barrier_wait(&gate);
		for (int l = 0; l < j->loops; l++) {
			for (size_t at = 0; at < j->n; at += PIECE) memcpy(j->dst + at, j->src + at, j->n - at < PIECE ? j->n - at : PIECE);
			__asm__ volatile("" ::: "memory");
		}
		pthread_barrier_wait(&gate);
	}
	return NULL;
}

static int measure(const char *what, int threads, size_t mib, int more)
{
	struct job job[2];
	pthread_t id[2];
	double gbs[REPS];
	pthread_barrier_init(&gate, NULL, (unsigned)threads + 1);
	for (int i = 0; i < threads; i++) {
		job[i].n = (mib << 20) / 2;
		job[i].loops = (int)(mib >= 512 ? 1 : 1024 / mib);
		if (!(job[i].src = aligned_alloc(4096, job[i].n)) || !(job[i].dst = aligned_alloc(4096, job[i].n))) return fprintf(stderr, "copybw: out of memory\n"), 1;
		memset(job[i].src, 1, job[i].n), memset(job[i].dst, 2, job[i].n);
		if (pthread_create(&id[i], NULL, copy, &job[i])) return fprintf(stderr, "copybw: can not start a thread\n"), 1;
	}
	for (int r = 0; r <= REPS; r++) {
		pthread_barrier_wait(&gate);
		const double t = now();
		pthread_barrier_wait(&gate);
		if (r) gbs[r - 1] = (double)job[0].n * job[0].loops * threads / (now() - t) / 1e9; /* the first is warm-up */
	}
	for (int i = 0; i < threads; i++) {
		pthread_join(id[i], NULL);
		if (memcmp(job[i].src, job[i].dst, job[i].n)) return fprintf(stderr, "copybw: a copy differs\n"), 1;
		free(job[i].src), free(job[i].dst);
	}
	qsort(gbs, REPS, sizeof *gbs, cmpd);
	printf("{\"set\":\"%s\",\"threads\":%d,\"mib_per_thread\":%zu,\"best_gb_s\":%.1f,\"p50_gb_s\":%.1f}%s\n", what, threads, mib, gbs[REPS - 1], gbs[REPS / 2], more ? "," : "");
	pthread_barrier_destroy(&gate);
	return 0;
}

int main(int argc, char **argv)
{
	const size_t cache = argc > 1 ? strtoul(argv[1], NULL, 10) : 1, dram = argc > 2 ? strtoul(argv[2], NULL, 10) : 1024;
	if (!cache || !dram || cache > 1 << 20 || dram > 1 << 20) return fprintf(stderr, "usage: copybw [cache MiB per thread] [DRAM MiB per thread]\n"), 2;
	printf("{\"format\":\"copybw/1\",\"results\":[\n");
	if (measure("cache", 1, cache, 1) || measure("cache", 2, cache, 1) || measure("dram", 1, dram, 1) || measure("dram", 2, dram, 0)) return 1;
	printf("]}\n");
	return 0;
}
