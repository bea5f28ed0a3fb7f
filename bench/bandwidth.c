/* bench_bandwidth [THREADS]: the highest rates, in bytes per second, at which loops read and write, by how many bytes they
 * touch: from caches if the bytes are few, else from memory. bench/traffic.py counts the bytes of kernels in the same way. So a
 * kernel cannot exceed the rates measured for the largest number of bytes that is not above its own.
 *
 * Memory moves whole cache lines, in both directions at once. A store to a line that is not in the cache first reads the line, and
 * the line is written later. So z = 2x + y moves four arrays: it reads three and writes one. If z is x, it reads two. */
#include "base/base.h"
#include "runtime/host/host.h"

#include <stdio.h>
#include <stdlib.h>

enum {
	SMALLEST = 1 << 16, /* fewest bytes that a loop touches */
	LARGEST = 1 << 30,
	FACTOR = 4,
	MOVED = 1 << 27, /* fewest bytes that a round moves, counting every access */
	ROUNDS = 5,
	LINE = 64 / sizeof(float),
};

typedef struct Task Task;

/* A loop over some arrays of n elements each. */
typedef struct {
	const char *name;
	int arrays;           /* number of arrays that the loop touches */
	double reads, writes; /* numbers of arrays; a store without a load counts as both */
	void (*run)(const Task *t, int64_t begin, int64_t end);
} Loop;

struct Task {
	const Loop *loop;
	float *restrict x, *restrict y, *restrict z;
	int64_t n, repeat, parts;
	float *sums; /* one sum per part, far apart in memory */
};

static double
max_double(double a, double b)
{
	return a > b ? a : b;
}

/* The sum is stored, so that the compiler does not remove the loads. */
static void
read_two(const Task *t, int64_t begin, int64_t end)
{
	float sum[4 * LINE] = {0};

	for (int64_t i = begin; i + 2 * LINE <= end; i += 2 * LINE)
		for (int k = 0; k < 2 * LINE; k++) {
			sum[k] += t->x[i + k];
			sum[2 * LINE + k] += t->y[i + k];
		}
	for (int k = 1; k < 4 * LINE; k++)
		sum[0] += sum[k];
	t->sums[begin * t->parts / (t->n + 1) * LINE] += sum[0]; /* the sum of this part */
}

static void
fill(const Task *t, int64_t begin, int64_t end)
{
	for (int64_t i = begin; i < end; i++)
		t->z[i] = (float)t->repeat;
}

static void
copy(const Task *t, int64_t begin, int64_t end)
{
	for (int64_t i = begin; i < end; i++)
		t->z[i] = -t->x[i];
}

static void
triad(const Task *t, int64_t begin, int64_t end)
{
	for (int64_t i = begin; i < end; i++)
		t->z[i] = 2 * t->x[i] + t->y[i];
}

static void
in_place(const Task *t, int64_t begin, int64_t end)
{
	for (int64_t i = begin; i < end; i++)
		t->z[i] = 0.5F * t->z[i] + 1;
}

static const Loop loops[] = {
	{"read", 2, 2, 0, read_two}, {"fill", 1, 1, 1, fill},         {"copy", 2, 2, 1, copy},
	{"triad", 3, 3, 1, triad},   {"in place", 1, 1, 1, in_place},
};
#define SECONDS 0.2 /* least time of a measurement */
enum { LOOPS = sizeof(loops) / sizeof(loops[0]) };

static void
run_parts(void *ctx, int64_t begin, int64_t end)
{
	const Task *t = ctx;

	for (int64_t part = begin; part < end; part++)
		for (int64_t i = 0; i < t->repeat; i++)
			t->loop->run(t, t->n * part / t->parts, t->n * (part + 1) / t->parts);
}

/* The rate of one array in GB/s, in the fastest round; the first round only fills the caches. A loop that touches few bytes
 * runs repeatedly on the same bytes, in the same thread, until it has moved MOVED bytes. */
static double
measure(Pool *pool, Task *t, int64_t bytes)
{
	double best = 1e9, begin = seconds_now();

	t->n = bytes / t->loop->arrays / (int64_t)sizeof(float);
	t->repeat = bytes < MOVED ? MOVED / bytes : 1;
	for (int round = 0; round < ROUNDS || seconds_now() - begin < SECONDS; round++) {
		double start = seconds_now();
		parallel_for(pool, t->parts, 1, run_parts, t);
		double seconds = seconds_now() - start;
		best = round > 0 && seconds < best ? seconds : best;
	}
	return (double)(t->n * t->repeat) * sizeof(float) / best * 1e-9;
}

static void
print_row(Pool *pool, Task *t, int64_t bytes)
{
	double reads = 0, writes = 0;

	printf("%10lld", (long long)bytes);
	for (int i = 0; i < LOOPS; i++) {
		t->loop = &loops[i];
		double rate = measure(pool, t, bytes);
		printf("%10.2f", rate * (t->loop->reads + t->loop->writes));
		reads = max_double(reads, rate * t->loop->reads);
		writes = max_double(writes, rate * t->loop->writes);
	}
	printf("%10.2f%10.2f\n", reads, writes);
}

static void
print_table(Pool *pool, Task *t)
{
	printf("%d threads; GB/s\n%10s", pool_threads(pool), "bytes");
	for (int i = 0; i < LOOPS; i++)
		printf("%10s", loops[i].name);
	printf("%10s%10s\n", "reads", "writes");
	for (int64_t bytes = SMALLEST; bytes <= LARGEST; bytes *= FACTOR)
		print_row(pool, t, bytes);
}

/* A page belongs to the memory of the thread that touches it first. */
static void
touch(void *ctx, int64_t begin, int64_t end)
{
	const Task *t = ctx;
	int64_t all = LARGEST / (int64_t)sizeof(float);

	for (int64_t i = all * begin / t->parts; i < all * end / t->parts; i++) {
		t->z[i] = 0;
		t->x[i / 2] = 1;
		t->y[i / 2] = (float)(i & 15);
	}
}

int
main(int argc, char **argv)
{
	Diag *diag = diag_new("bench_bandwidth", stderr);
	int threads = argc > 1 ? (int)strtol(argv[1], NULL, 10) : 0;
	Pool *pool = NULL;

	if (diag_status(diag, pool_open(THREADS_BEST, threads, &pool)))
		return 1;
	Task t = {.x = aligned_alloc(64, LARGEST / 2),
	          .y = aligned_alloc(64, LARGEST / 2),
	          .z = aligned_alloc(64, LARGEST),
	          .parts = pool_threads(pool),
	          .sums = calloc((size_t)pool_threads(pool) + 1, 64)};
	if (!t.x || !t.y || !t.z || !t.sums) {
		fprintf(stderr, "bench_bandwidth: error: no memory\n");
		return 1;
	}
	parallel_for(pool, t.parts, 1, touch, &t);
	print_table(pool, &t);
	bool right = t.z[17] > 0 && t.sums[0] > 0;
	pool_close(pool);
	free(t.x);
	free(t.y);
	free(t.z);
	free(t.sums);
	diag_free(diag);
	return right ? 0 : 1;
}
