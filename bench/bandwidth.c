/* bench_bandwidth [THREADS]: GB/s that the machine's memory reaches, counted as kernels count their bytes:
 * what is read and what is written. Three arrays far larger than any cache; the best of some runs. */
#include "runtime/parallel.h"

#include <stdio.h>
#include <stdlib.h>

enum { ELEMENTS = 64 << 20, PART = 1 << 18, PARTS = ELEMENTS / PART, ROUNDS = 7 };

typedef struct {
	float *x, *y, *z;
} Arrays;

/* Pages belong to who touches them first. */
static void
fill(void *ctx, int64_t begin, int64_t end)
{
	Arrays *a = ctx;

	for (int64_t i = begin * PART; i < end * PART; i++) {
		a->x[i] = 1;
		a->y[i] = (float)(i & 15);
		a->z[i] = 0;
	}
}

/* z = 2x + y */
static void
triad(void *ctx, int64_t begin, int64_t end)
{
	const Arrays *a = ctx;
	const float *restrict x = a->x, *restrict y = a->y;
	float *restrict z = a->z;

	for (int64_t i = begin * PART; i < end * PART; i++)
		z[i] = 2 * x[i] + y[i];
}

static double
measure(Pool *pool, Arrays *a)
{
	double best = 1e9;

	for (int round = 0; round < ROUNDS; round++) {
		double start = seconds_now();
		parallel_for(pool, PARTS, 1, triad, a);
		double t = seconds_now() - start;
		best = t < best ? t : best;
	}
	return 3.0 * sizeof(float) * ELEMENTS / best * 1e-9;
}

int
main(int argc, char **argv)
{
	Diag *diag = diag_new("bench_bandwidth", stderr);
	Arrays a = {calloc(ELEMENTS, sizeof(float)), calloc(ELEMENTS, sizeof(float)),
	            calloc(ELEMENTS, sizeof(float))};
	int threads = argc > 1 ? (int)strtol(argv[1], NULL, 10) : 0;
	Pool *pool = NULL;

	if (!a.x || !a.y || !a.z) {
		fprintf(stderr, "bench_bandwidth: error: no memory\n");
		return 1;
	}
	if (diag_status(diag, pool_open(THREADS_BEST, threads, &pool)))
		return 1;
	parallel_for(pool, PARTS, 1, fill, &a);
	printf("%d threads, %.2f GB/s\n", pool_threads(pool), measure(pool, &a));
	bool right = a.z[17] == 2 + 1;
	pool_close(pool);
	free(a.x);
	free(a.y);
	free(a.z);
	diag_free(diag);
	return right ? 0 : 1;
}
