/* Conformance of communicators on one rank: every collective gives back what went in. */
#include "runtime/comm.h"
#include "tests/unit/runtime_tiny.h"

static void
finish(const CommOps *ops, Comm *comm, CommRequest *request)
{
	bool done = false;

	for (int i = 0; i < 1000 && !done; i++)
		must(ops->test(comm, request, &done));
	assert_true(done);
	must(ops->finish(comm, request));
}

static void
test_collectives_of_one(void **state)
{
	const CommOps *ops = *state;
	Status (*const calls[])(Comm *, const CommBuffers *, CommRequest **) = {
		ops->all_reduce,
		ops->all_gather,
		ops->reduce_scatter,
	};
	Comm *comm;

	must(ops->open(&comm));
	assert_int_equal(ops->size(comm), 1);
	assert_int_equal(ops->rank(comm), 0);
	for (int i = 0; i < COUNT(calls); i++) {
		const double from[] = {1, 2, 3};
		double to[3] = {0};
		CommBuffers b = {.to = to, .from = from, .n = 3, .dtype = F64};
		CommRequest *request;

		must(calls[i](comm, &b, &request));
		finish(ops, comm, request);
		assert_memory_equal(to, from, sizeof(to));
		b.from = to;
		must(calls[i](comm, &b, &request)); /* in place */
		finish(ops, comm, request);
		assert_memory_equal(to, from, sizeof(to));
	}
	assert_int_equal(ops->traffic(comm), 0);
	ops->close(comm);
}

static void
test_broadcast_needs_a_root(void **state)
{
	const CommOps *ops = *state;
	double x = 5;
	CommBuffers b = {.to = &x, .from = &x, .n = 1, .dtype = F64};
	CommRequest *request;
	Comm *comm;

	must(ops->open(&comm));
	must(ops->broadcast(comm, &b, 0, &request));
	finish(ops, comm, request);
	Status status = ops->broadcast(comm, &b, 1, &request);
	assert_non_null(status);
	assert_null(request);
	status_free(status);
	ops->close(comm);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		{"collectives self", test_collectives_of_one, NULL, NULL, (void *)&comm_self},
		{"broadcast self", test_broadcast_needs_a_root, NULL, NULL, (void *)&comm_self},
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
