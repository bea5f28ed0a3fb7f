/* Conformance of communicators, on as many ranks as there are: one here, several when a launcher starts the
 * program (tests/dist). Rank r contributes r + 1 times something, so that every sum is known. */
#include "runtime/comm.h"
#include "tests/unit/runtime_tiny.h"

enum { MOST = 4099 }; /* elements: more than ranks, and no multiple of them */

static const CommOps *ops;
static Comm *comm;
static int rank, size;

static void
finish(CommRequest *request)
{
	bool done = false;

	for (int i = 0; i < 100 && !done; i++)
		must(ops->test(comm, request, &done));
	must(ops->finish(comm, request));
}

/* What rank r has at i: rounds differently in another order. */
static float
own(int r, int64_t i)
{
	return (float)(r + 1) * (1.0f + (float)(i % 97) / 3.0f);
}

static float
ordered_sum(int64_t i)
{
	float sum = own(0, i);

	for (int r = 1; r < size; r++)
		sum += own(r, i);
	return sum;
}

static void
check_all_reduce(int64_t n, bool in_place)
{
	static float from[MOST], to[MOST];
	CommBuffers b = {.to = in_place ? from : to, .from = from, .n = n, .dtype = F32};
	CommRequest *request;
	float *got = b.to;

	for (int64_t i = 0; i < n; i++)
		from[i] = own(rank, i);
	must(ops->all_reduce(comm, &b, &request));
	finish(request);
	for (int64_t i = 0; i < n; i++)
		assert_true(got[i] == ordered_sum(i));
}

static void
test_all_reduce(void **state)
{
	const int64_t sizes[] = {0, 1, 2, 3, 7, 1024, MOST};

	(void)state;
	for (int i = 0; i < COUNT(sizes); i++) {
		check_all_reduce(sizes[i], false);
		check_all_reduce(sizes[i], true);
	}
}

static void
test_maximum(void **state)
{
	int64_t x[] = {rank, -rank};
	CommBuffers b = {.to = x, .from = x, .n = 2, .dtype = S64, .reduction = COMM_MAX};
	CommRequest *request;

	(void)state;
	must(ops->all_reduce(comm, &b, &request));
	finish(request);
	assert_int_equal(x[0], size - 1);
	assert_int_equal(x[1], 0);
}

static void
test_all_gather(void **state)
{
	double from[3] = {rank, rank + 0.5, -rank}, *to = calloc((size_t)size * 3, sizeof(double));
	CommBuffers b = {.to = to, .from = from, .n = 3, .dtype = F64};
	CommRequest *request;

	(void)state;
	must(ops->all_gather(comm, &b, &request));
	finish(request);
	for (int r = 0; r < size; r++) {
		assert_true(to[3 * r] == r);
		assert_true(to[3 * r + 1] == r + 0.5);
		assert_true(to[3 * r + 2] == -r);
	}
	free(to);
}

static void
test_reduce_scatter(void **state)
{
	float *from = calloc((size_t)size * 5, sizeof(float)), to[5];
	CommBuffers b = {.to = to, .from = from, .n = 5, .dtype = F32};
	CommRequest *request;

	(void)state;
	for (int64_t i = 0; i < 5 * size; i++)
		from[i] = own(rank, i);
	must(ops->reduce_scatter(comm, &b, &request));
	finish(request);
	for (int64_t i = 0; i < 5; i++)
		assert_true(to[i] == ordered_sum(5 * rank + i));
	free(from);
}

static void
test_broadcast(void **state)
{
	(void)state;
	for (int root = 0; root < size; root++) {
		double x = rank == root ? 5 + root : 0;
		CommBuffers b = {.to = &x, .from = &x, .n = 1, .dtype = F64};
		CommRequest *request;

		must(ops->broadcast(comm, &b, root, &request));
		finish(request);
		assert_true(x == 5 + root);
	}
}

static void
test_broadcast_needs_a_root(void **state)
{
	double x = 5;
	CommBuffers b = {.to = &x, .from = &x, .n = 1, .dtype = F64};
	CommRequest *request;

	(void)state;
	Status status = ops->broadcast(comm, &b, size, &request);
	assert_non_null(status);
	assert_null(request);
	status_free(status);
}

/* Requests that were started together may be finished in any order. */
static void
test_several_at_once(void **state)
{
	enum { N = 8 };
	float x[N];
	CommRequest *requests[N];

	(void)state;
	for (int i = 0; i < N; i++) {
		CommBuffers b = {.to = &x[i], .from = &x[i], .n = 1, .dtype = F32};
		x[i] = own(rank, i);
		must(ops->all_reduce(comm, &b, &requests[i]));
	}
	for (int i = N - 1; i >= 0; i--)
		finish(requests[i]);
	for (int i = 0; i < N; i++)
		assert_true(x[i] == ordered_sum(i));
}

static void
test_traffic(void **state)
{
	int64_t before = ops->traffic(comm);
	double x[6] = {0};
	CommBuffers b = {.to = x, .from = x, .n = size <= 6 ? 6 / size * size : 6, .dtype = F64};
	CommRequest *request;

	(void)state;
	must(ops->all_reduce(comm, &b, &request));
	finish(request);
	if (size <= 6) /* 2 n (W - 1) / W elements */
		assert_int_equal(ops->traffic(comm) - before, 8 * 2 * b.n * (size - 1) / size);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_all_reduce),
		cmocka_unit_test(test_maximum),
		cmocka_unit_test(test_all_gather),
		cmocka_unit_test(test_reduce_scatter),
		cmocka_unit_test(test_broadcast),
		cmocka_unit_test(test_broadcast_needs_a_root),
		cmocka_unit_test(test_several_at_once),
		cmocka_unit_test(test_traffic),
	};

	ops = comm_find("auto");
	Status status = ops->open(&comm);
	if (status) {
		fprintf(stderr, "%s\n", status->message);
		return 1;
	}
	rank = ops->rank(comm);
	size = ops->size(comm);
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	if (failed)
		ops->abort(comm, 1);
	ops->close(comm);
	return failed;
}
