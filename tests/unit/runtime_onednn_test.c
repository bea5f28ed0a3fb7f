/* oneDNN's products against naive sums: layouts, types, tiles; the same bits for any number of threads where that
 * is promised; and what it must refuse. Without the library, the test says so and skips. */
#include "runtime/onednn.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LIMIT = 64 << 20, X = 0, Y = 1, Z = 2 };

typedef struct {
	Pool *pool;
	Onednn *lib;
} Bench;

/* The leak checker's own thread crashes on the threads of a library that was opened at run time. */
__attribute__((visibility("default"))) int __lsan_is_turned_off(void);
int
__lsan_is_turned_off(void)
{
	return 1;
}

static void
must(Status status)
{
	if (status)
		fail_msg("%s", status->message);
}

static Bench
bench_open(int threads, bool tiled)
{
	Bench b;

	must(pool_open(THREADS_BEST, threads, &b.pool));
	Status status = onednn_open(b.pool, tiled, &b.lib);
	if (status) {
		print_message("%s\n", status->message);
		status_free(status);
		pool_close(b.pool);
		skip();
	}
	return b;
}

static void
bench_close(Bench *b)
{
	onednn_close(b->lib);
	pool_close(b->pool);
}

/* Batches, m, n, k; of x and y a flag each: stored transposed. z has a gap of `gap` elements behind its rows, and x
 * begins at element `offset`. */
typedef struct {
	int rank;
	int64_t batch[3], m, n, k;
	bool x_transposed, y_transposed;
	int64_t gap, offset;
} Case;

static const Case cases[] = {
	{2, {0}, 37, 50, 29, false, false, 0, 0},     {2, {0}, 300, 64, 48, true, false, 0, 5},
	{2, {0}, 64, 40, 130, false, true, 3, 0},     {3, {5}, 33, 16, 20, false, true, 0, 7},
	{4, {2, 3}, 40, 24, 17, true, false, 0, 0},   {4, {4, 6}, 16, 32, 64, false, true, 8, 0},
	{5, {2, 3, 4}, 9, 8, 11, false, false, 1, 0},
};

static void
set_operand(LibraryDot *d, int i, const Case *c, int64_t rows, int64_t columns, bool transposed)
{
	int64_t gap = i == Z ? c->gap : 0, width = (transposed ? rows : columns) + gap;
	int64_t stride = width * (transposed ? columns : rows);

	for (int b = d->rank - 3; b >= 0; b--) {
		d->dims[i][b] = c->batch[b];
		d->strides[i][b] = stride;
		stride *= c->batch[b];
	}
	d->dims[i][d->rank - 2] = rows;
	d->dims[i][d->rank - 1] = columns;
	d->strides[i][d->rank - 2] = transposed ? 1 : width;
	d->strides[i][d->rank - 1] = transposed ? width : 1;
}

static LibraryDot
dot_of(const Case *c, DType dtype)
{
	LibraryDot d = {.rank = c->rank, .dtype = dtype, .offset = {c->offset, 0, 0}};

	set_operand(&d, X, c, c->m, c->k, c->x_transposed);
	set_operand(&d, Y, c, c->k, c->n, c->y_transposed);
	set_operand(&d, Z, c, c->m, c->n, false);
	return d;
}

static char *
buffer_new(const LibraryDot *d, int i)
{
	int64_t n = format_dot_reach(d, i) / dtype_bytes(d->dtype, 1);
	char *at = aligned_alloc(64, (size_t)(dtype_bytes(d->dtype, n) + 63) / 64 * 64);

	for (int64_t e = 0; e < n; e++)
		dtype_store_float(d->dtype, at, e, i == Z ? -1e30 : sin(0.7 * (double)(e + i)));
	return at;
}

static int64_t
place(const LibraryDot *d, int i, int64_t batch, int64_t row, int64_t column)
{
	int64_t at = d->offset[i] + row * d->strides[i][d->rank - 2] +
	             column * d->strides[i][d->rank - 1];

	for (int b = d->rank - 3; b >= 0; batch /= d->dims[i][b--])
		at += batch % d->dims[i][b] * d->strides[i][b];
	return at;
}

static double
naive(const LibraryDot *d, char *const *buffers, int64_t batch, int64_t row, int64_t column)
{
	double sum = 0;

	for (int64_t k = 0; k < d->dims[X][d->rank - 1]; k++)
		sum += dtype_load_float(d->dtype, buffers[X], place(d, X, batch, row, k)) *
		       dtype_load_float(d->dtype, buffers[Y], place(d, Y, batch, k, column));
	return sum;
}

/* Every element, and nothing between the rows. */
static void
compare(const LibraryDot *d, char *const *buffers)
{
	int64_t batches = 1, touched = 0, n = format_dot_reach(d, Z) / dtype_bytes(d->dtype, 1);
	double k = (double)d->dims[X][d->rank - 1], unit = d->dtype == BF16 ? 1 / 128. : 1e-6;

	for (int b = 0; b < d->rank - 2; b++)
		batches *= d->dims[Z][b];
	for (int64_t b = 0; b < batches; b++)
		for (int64_t r = 0; r < d->dims[Z][d->rank - 2]; r++)
			for (int64_t c = 0; c < d->dims[Z][d->rank - 1]; c++, touched++) {
				double want = naive(d, buffers, b, r, c);
				double got = dtype_load_float(d->dtype, buffers[Z],
				                              place(d, Z, b, r, c));
				if (!(fabs(got - want) <= unit * (fabs(want) + sqrt(k))))
					fail_msg("batch %d, [%d,%d]: %.9g instead of %.9g", (int)b,
					         (int)r, (int)c, got, want);
			}
	for (int64_t e = 0; e < n; e++)
		touched += dtype_load_float(d->dtype, buffers[Z], e) < -1e29;
	assert_int_equal(touched, n);
}

/* The product of a case, in z. */
static char *
multiply(Bench *b, const Case *c, DType dtype, bool check)
{
	LibraryDot d = dot_of(c, dtype);
	char *buffers[] = {buffer_new(&d, X), buffer_new(&d, Y), buffer_new(&d, Z)};
	OnednnCall *call;

	must(onednn_dot(b->lib, &d, LIMIT, &call));
	assert_null(strstr(onednn_implementation(call), "ref"));
	char *scratch = aligned_alloc(64, (size_t)onednn_scratch(call) + 64);
	for (int round = 0; round < 2; round++)
		must(onednn_run(call, (void *const *)buffers, scratch));
	if (check)
		compare(&d, buffers);
	onednn_call_close(call);
	free(scratch);
	free(buffers[X]);
	free(buffers[Y]);
	return buffers[Z];
}

static void
check_all(int threads, bool tiled, DType dtype)
{
	Bench b = bench_open(threads, tiled);

	for (int i = 0; i < COUNT(cases); i++)
		free(multiply(&b, &cases[i], dtype, true));
	bench_close(&b);
}

static void
test_f32(void **state)
{
	for (int threads = 1; threads <= 3; threads++) {
		check_all(threads, false, F32);
		check_all(threads, true, F32);
	}
}

static void
test_bf16(void **state)
{
	int n;

	if (cpu_lacks("avx512bw", &n))
		skip(); /* the library has only reference code for it */
	check_all(2, false, BF16);
	check_all(2, true, BF16);
}

static void
test_tiles_are_deterministic(void **state)
{
	static const int threads[] = {1, 2, 4};

	for (int i = 0; i < COUNT(cases); i++) {
		LibraryDot d = dot_of(&cases[i], F32);
		char *first = NULL;
		for (int t = 0; t < COUNT(threads); t++) {
			Bench b = bench_open(threads[t], true);
			char *z = multiply(&b, &cases[i], F32, false);
			if (first)
				assert_memory_equal(first, z, (size_t)format_dot_reach(&d, Z));
			free(first);
			first = z;
			bench_close(&b);
		}
		free(first);
	}
}

static void
test_scratch_is_limited(void **state)
{
	Bench b = bench_open(1, false);
	LibraryDot d = dot_of(&cases[1], F32);
	OnednnCall *call;

	must(onednn_dot(b.lib, &d, LIMIT, &call));
	int64_t bytes = onednn_scratch(call);
	onednn_call_close(call);
	assert_true(bytes > 0);
	Status status = onednn_dot(b.lib, &d, bytes - 1, &call);
	assert_non_null(status);
	assert_null(call);
	assert_non_null(strstr(status->message, "bytes"));
	status_free(status);
	bench_close(&b);
}

/* Neither neighbour lies next to an element: the library has only reference code. */
static void
test_reference_code_is_refused(void **state)
{
	Bench b = bench_open(1, false);
	LibraryDot d = dot_of(&cases[0], F32);
	OnednnCall *call;

	d.strides[X][0] *= 2;
	d.strides[X][1] = 2;
	Status status = onednn_dot(b.lib, &d, LIMIT, &call);
	assert_non_null(status);
	assert_null(call);
	status_free(status);
	bench_close(&b);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_f32),
		cmocka_unit_test(test_bf16),
		cmocka_unit_test(test_tiles_are_deterministic),
		cmocka_unit_test(test_scratch_is_limited),
		cmocka_unit_test(test_reference_code_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
