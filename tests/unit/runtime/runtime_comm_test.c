/* Conformance of communicators, on as many ranks as there are: one if started directly, several if a launcher starts the
 * program (tests/dist). Tests every collective in every group and type; the expected results follow from the ranks' values,
 * which every rank knows. Messages have at most 1001 bytes, so larger ones are cut.
 *
 * An argument names the communicator. For a communicator that works on streams, the values are in the memory of a GPU, one GPU per
 * rank. */
#include "runtime/comm/comm.h"
#include "runtime/device/device.h"
#include "tests/unit/runtime/runtime_tiny.h"

#include <pthread.h>

enum {
	MOST = 4099,
	MOST_RANKS = 8
}; /* number of elements: more than ranks, and not a multiple of the number of ranks */

static Comm comm;
static const CommDataOps *ops;
static const DeviceOps *gpu; /* NULL: collectives use the host's memory */
static Device *device;

/* World, data: all ranks. Shard: every second rank. Replicate: all ranks. Tensor: pairs of neighbours. Pipeline: rank 0
 * alone, and the other ranks. */
static void
mesh(void *context, int rank, int size, int colors[N_GROUPS])
{
	(void)context;
	for (int g = 0; g < N_GROUPS; g++)
		colors[g] = 0;
	colors[GROUP_TENSOR] = rank / 2;
	colors[GROUP_SHARD] = rank % 2;
	colors[GROUP_PIPELINE] = rank > 0;
	(void)size;
}

typedef struct {
	int n, own; /* own: this rank's number in the group */
	int ranks[MOST_RANKS];
} Members;

static Members
members_of(CommGroup group)
{
	int own[N_GROUPS], other[N_GROUPS];
	Members m = {0};

	mesh(NULL, comm.rank, comm.size, own);
	for (int r = 0; r < comm.size; r++) {
		mesh(NULL, r, comm.size, other);
		if (other[group] != own[group])
			continue;
		if (r == comm.rank)
			m.own = m.n;
		m.ranks[m.n++] = r;
	}
	return m;
}

/* ---- values: the value of a rank at i. Fractions round differently in another order; whole numbers are exact in any order. */
static double
value(int rank, int64_t i, bool fractions)
{
	return fractions ? (1 + (double)(i % 97) / 3) / (1 + 0.37 * rank)
	                 : (double)((rank + 1) * (i % 5));
}

static void
put(DType t, void *at, int64_t i, double x)
{
	if (dtype_is_float(t))
		dtype_store_float(t, at, i, x);
	else
		dtype_store_int(t, at, i, (int64_t)x);
}

static double
get(DType t, const void *at, int64_t i)
{
	return dtype_is_float(t) ? dtype_load_float(t, at, i) : (double)dtype_load_int(t, at, i);
}

/* The value as stored in the type. */
static double
held(DType t, double x)
{
	char at[8];

	put(t, at, 0, x);
	return get(t, at, 0);
}

static double
reduced(const Members *m, const Collective *c, int64_t i)
{
	bool narrow = c->dtype == F16 || c->dtype == BF16;
	double sum = held(c->dtype, value(m->ranks[0], i, c->ordered));

	for (int k = 1; k < m->n; k++) {
		double x = held(c->dtype, value(m->ranks[k], i, c->ordered));
		if (c->reduction == COMM_MAX)
			sum = x > sum ? x : sum;
		else
			sum = held(narrow ? F32 : c->dtype,
			           sum + x); /* whole numbers: exact in any order */
	}
	return held(c->dtype, sum);
}

/* ---- one collective, checked */
typedef struct {
	Collective c;
	Members m;
	char *from, *to;
	int64_t n_from, n_to; /* numbers of elements */
	CommRequest *request;
	Span on_gpu[2]; /* from, to */
} Case;
enum { GUARD = 64 }; /* bytes behind the result that must stay unchanged */

static CommPart
part(const Case *k, int member)
{
	return comm_part(k->c.n, k->m.n, member, k->c.block ? k->c.block : 1);
}

static void
make_buffers(Case *k, bool in_place)
{
	CommPart own = part(k, k->m.own);
	int64_t room = comm_part_room(k->c.n, k->m.n, k->c.block ? k->c.block : 1);
	bool gathers = k->c.kind == COMM_ALL_GATHER, scatters = k->c.kind == COMM_REDUCE_SCATTER;
	int64_t place = dtype_bytes(k->c.dtype, own.first);

	k->n_from = gathers ? own.n : k->c.n;
	k->n_to = scatters ? own.n : k->c.kind == COMM_ALL_TO_ALL ? room * k->m.n : k->c.n;
	k->from = calloc(1, (size_t)dtype_bytes(k->c.dtype, k->c.n) + GUARD);
	k->to = calloc(1, (size_t)dtype_bytes(k->c.dtype, k->n_to) + GUARD);
	k->c.from = k->from;
	k->c.to = k->to;
	if (in_place && gathers)
		k->c.from = k->to + place;
	else if (in_place && scatters)
		k->c.to = k->from + place;
	else if (in_place)
		k->c.to = k->from;
}

/* ---- the memory of the collective */
static int64_t
buffer_bytes(const Case *k, int which)
{
	return dtype_bytes(k->c.dtype, which ? k->n_to : k->c.n) + GUARD;
}

/* The same place in the GPU's copy of a buffer. */
static void *
moved(const Case *k, const void *at)
{
	for (int i = 0; i < 2; i++) {
		const char *base = i ? k->to : k->from;
		ptrdiff_t offset = (const char *)at - base;

		if (offset >= 0 && offset < buffer_bytes(k, i))
			return k->on_gpu[i].at + offset;
	}
	return NULL;
}

static void
start_on_gpu(Case *k)
{
	Collective c = k->c;
	void *stream;

	for (int i = 0; i < 2; i++) {
		must(gpu->alloc(device, MEMORY_DEVICE, buffer_bytes(k, i), &k->on_gpu[i]));
		must(gpu->copy(device, STREAM_COMMUNICATION, k->on_gpu[i], i ? k->to : k->from));
	}
	c.from = moved(k, k->c.from);
	c.to = moved(k, k->c.to);
	must(gpu->native_stream(device, STREAM_COMMUNICATION, &stream));
	must(ops->enqueue(comm.data, &c, stream));
}

static void
finish_on_gpu(Case *k)
{
	for (int i = 0; i < 2; i++) {
		Span to = {i ? k->to : k->from, k->on_gpu[i].bytes};
		must(gpu->copy(device, STREAM_COMMUNICATION, to, k->on_gpu[i].at));
	}
	must(gpu->sync(device));
	for (int i = 0; i < 2; i++)
		gpu->free(device, MEMORY_DEVICE, k->on_gpu[i]);
}

static void
start(Case *k)
{
	if (!gpu) {
		must(ops->start(comm.data, &k->c, &k->request));
		assert_non_null(k->request);
	} else if (k->m.n > 1)
		start_on_gpu(k);
	else
		must(comm_alone(&k->c));
}

static void
finish(Case *k)
{
	if (!gpu)
		must(ops->finish(comm.data, k->request));
	else if (k->m.n > 1)
		finish_on_gpu(k);
}

static void
begin(Case *k, bool in_place)
{
	k->m = members_of(k->c.group);
	if (k->c.kind == COMM_BROADCAST)
		k->c.peer = k->c.peer % k->m.n;
	make_buffers(k, in_place);
	int64_t first = k->c.kind == COMM_ALL_GATHER ? part(k, k->m.own).first : 0;
	for (int64_t i = 0; i < k->n_from; i++)
		put(k->c.dtype, (void *)(uintptr_t)k->c.from, i,
		    value(comm.rank, first + i, k->c.ordered));
	start(k);
}

/* The expected element i of the result; NaN: no value is promised. */
static double
expected(const Case *k, int64_t i)
{
	const Collective *c = &k->c;
	CommPart own = part(k, k->m.own);
	int64_t room = comm_part_room(c->n, k->m.n, c->block ? c->block : 1);

	switch (c->kind) {
	case COMM_ALL_REDUCE: return reduced(&k->m, c, i);
	case COMM_REDUCE_SCATTER: return reduced(&k->m, c, own.first + i);
	case COMM_ALL_GATHER: return held(c->dtype, value(k->m.ranks[i / room], i, c->ordered));
	case COMM_ALL_TO_ALL:
		return i % room < own.n ? held(c->dtype, value(k->m.ranks[i / room],
		                                               own.first + i % room, c->ordered))
		                        : NAN;
	default: return held(c->dtype, value(k->m.ranks[c->peer], i, c->ordered));
	}
}

static void
end(Case *k)
{
	finish(k);
	for (int64_t i = 0; i < k->n_to; i++) {
		double right = expected(k, i);
		if (!isnan(right) && get(k->c.dtype, k->c.to, i) != right)
			fail_msg("%s of %s, group %s, n %lld, block %lld, %s: %g at %lld, not %g",
			         collective_names[k->c.kind], dtype_info[k->c.dtype].name,
			         comm_group_names[k->c.group], (long long)k->c.n,
			         (long long)k->c.block, k->c.ordered ? "ordered" : "fast",
			         get(k->c.dtype, k->c.to, i), (long long)i, right);
	}
	const char *behind = k->to + dtype_bytes(k->c.dtype, k->n_to);
	for (int i = 0; i < GUARD; i++)
		assert_int_equal(behind[i], 0);
	free(k->from);
	free(k->to);
}

static void
check(Collective c, bool in_place)
{
	Case k = {.c = c};

	begin(&k, in_place);
	end(&k);
}

static const int64_t sizes[] = {0, 1, 7, 1024, MOST};
static const DType dtypes[] = {F64, F32, BF16, F16, S64, S32};

/* Checks the collective in the groups from `first` on; earlier groups have the same members. */
static void
check_all(Collective c, int first, bool may_be_in_place)
{
	for (int g = first; g < N_GROUPS; g++)
		for (int i = 0; i < COUNT(sizes); i++)
			for (int in_place = 0; in_place <= may_be_in_place; in_place++) {
				c.group = (CommGroup)g;
				c.n = sizes[i];
				check(c, in_place);
			}
}

/* Does the library refuse the collective, because it rounds in an order of its own? */
static bool
is_refused(const Collective *c)
{
	return gpu && c->ordered && c->reduction == COMM_SUM &&
	       (c->dtype == F16 || c->dtype == BF16) && comm.size > 2;
}

static void
check_unless_refused(Collective c)
{
	double x = 0;
	void *stream;

	if (!is_refused(&c)) {
		check_all(c, GROUP_SHARD, true);
		return;
	}
	c.from = c.to = &x;
	c.n = 1;
	must(gpu->native_stream(device, STREAM_COMMUNICATION, &stream));
	expect_status(ops->enqueue(comm.data, &c, stream), EXIT_COMM, "in no order");
}

/* Ordered and fast, sums and maxima. */
static void
check_reduction(CollectiveKind kind, int64_t block)
{
	for (int t = 0; t < COUNT(dtypes); t++)
		for (int how = 0; how < 4; how++)
			check_unless_refused(
				(Collective){.kind = kind,
			                     .dtype = dtypes[t],
			                     .ordered = how & 1,
			                     .reduction = how & 2 ? COMM_MAX : COMM_SUM,
			                     .block = block});
}

static void
test_all_reduce(void **state)
{
	(void)state;
	check_reduction(COMM_ALL_REDUCE, 64);
}

static void
test_reduce_scatter(void **state)
{
	(void)state;
	check_reduction(COMM_REDUCE_SCATTER, 1000); /* some ranks have no elements */
}

static void
test_what_is_moved(void **state)
{
	static const DType moved[] = {F64, BF16, F8E4M3, U8, S64};
	static const int64_t blocks[] = {0, 1000};

	(void)state;
	for (int t = 0; t < COUNT(moved); t++)
		for (int b = 0; b < COUNT(blocks); b++) {
			Collective c = {.dtype = moved[t], .block = blocks[b]};

			c.kind = COMM_ALL_GATHER;
			check_all(c, GROUP_WORLD, true);
			c.kind = COMM_ALL_TO_ALL;
			check_all(c, GROUP_WORLD, false);
			c.kind = COMM_BROADCAST;
			for (c.peer = 0; c.peer < comm.size; c.peer++)
				check_all(c, GROUP_WORLD, true);
		}
}

/* ---- parts */
static void
test_parts(void **state)
{
	(void)state;
	for (int64_t n = 0; n < 40; n++)
		for (int world = 1; world < 6; world++)
			for (int64_t block = 1; block < 6; block++) {
				int64_t next = 0, room = comm_part_room(n, world, block);

				assert_int_equal(room % block, 0);
				for (int r = 0; r < world; r++) {
					CommPart p = comm_part(n, world, r, block);
					assert_int_equal(p.first, next);
					assert_true(p.n <= room && p.n >= 0);
					assert_true(p.n == 0 || p.first == r * room);
					next += p.n;
				}
				assert_int_equal(next, n);
			}
}

/* ---- messages between two ranks */
static void
test_send_and_recv(void **state)
{
	Members m = members_of(GROUP_WORLD);
	int next = (m.own + 1) % m.n, last = (m.own + m.n - 1) % m.n;
	double from[2][MOST], to[2][MOST];
	CommRequest *sends[2], *recvs[2];

	(void)state;
	if (comm.size == 1 || gpu)
		return;
	for (int k = 0; k < 2;
	     k++) { /* the second message is shorter, and must not overtake the first */
		Collective c = {COMM_SEND,       GROUP_WORLD, F64,
		                .from = from[k], .to = to[k], .peer = next};

		c.n = k ? 5 : MOST;
		for (int64_t i = 0; i < c.n; i++)
			from[k][i] = value(comm.rank, i + k, true);
		must(ops->start(comm.data, &c, &sends[k]));
	}
	for (int k = 0; k < 2; k++) {
		Collective c = {COMM_RECV,       GROUP_WORLD, F64,
		                .from = from[k], .to = to[k], .peer = last};

		c.n = k ? 5 : MOST;
		must(ops->start(comm.data, &c, &recvs[k]));
	}
	for (int k = 1; k >= 0; k--) {
		must(ops->finish(comm.data, sends[k]));
		must(ops->finish(comm.data, recvs[k]));
		for (int64_t i = 0; i < (k ? 5 : MOST); i++)
			assert_true(to[k][i] == value(m.ranks[last], i + k, true));
	}
}

/* On a stream a message ends when it is received, so one of two neighbours must send first. */
static void
test_messages_on_streams(void **state)
{
	Members m = members_of(GROUP_WORLD);
	int next = (m.own + 1) % m.n, last = (m.own + m.n - 1) % m.n;

	(void)state;
	if (comm.size == 1 || !gpu)
		return;
	for (int k = 0; k < 2; k++) {
		bool sends = m.own % 2 == k;
		Case x = {.c = {.kind = sends ? COMM_SEND : COMM_RECV,
		                .dtype = F64,
		                .n = MOST,
		                .peer = sends ? next : last}};

		begin(&x, false);
		finish(&x);
		for (int64_t i = 0; i < MOST && !sends; i++)
			assert_true(get(F64, x.to, i) == value(m.ranks[last], i, false));
		free(x.from);
		free(x.to);
	}
}

/* ---- several collectives at once */
/* Starts collectives in all groups; they may end in any order. */
static void
test_several_at_once(void **state)
{
	enum { N = 12 };
	Case k[N];
	bool in_order = !gpu || comm.size <= 2;

	(void)state;
	for (int i = 0; i < N; i++) {
		k[i] = (Case){.c = {.kind = (CollectiveKind)(i % 4),
		                    .group = (CommGroup)(i % N_GROUPS),
		                    .dtype = i % 3 ? F32 : BF16,
		                    .ordered = in_order && (i & 1),
		                    .n = 1000 + i}};
		begin(&k[i], false);
	}
	for (int i = N - 1; i >= 0; i--)
		end(&k[i]);
}

/* Only calls of progress move collectives on; the one test at the end just looks. */
static void
test_progress(void **state)
{
	Case k = {.c = {.kind = COMM_ALL_REDUCE, .dtype = F32, .ordered = true, .n = MOST}};
	int64_t none = 0;
	bool done = false;

	(void)state;
	if (gpu)
		return;
	begin(&k, false);
	for (int i = 0; i < 4; i++) {
		for (double until = seconds_now() + 0.05; seconds_now() < until;)
			ops->progress(comm.data);
		must(comm_reduce(&comm, &none, 1, S64,
		                 COMM_MAX)); /* the other ranks make the same call */
	}
	must(ops->test(comm.data, k.request, &done));
	assert_true(done);
	end(&k);
}

static void *
move_on(void *stop)
{
	while (!__atomic_load_n((bool *)stop, __ATOMIC_RELAXED))
		ops->progress(comm.data);
	return NULL;
}

/* A stream's thread moves collectives while the training thread waits for their end and makes control calls. */
static void
test_threads(void **state)
{
	Case k = {.c = {.kind = COMM_ALL_REDUCE, .dtype = F64, .ordered = true, .n = MOST}};
	bool stop = false, done;
	pthread_t thread;

	(void)state;
	if (gpu)
		return;
	begin(&k, false);
	assert_int_equal(pthread_create(&thread, NULL, move_on, &stop), 0);
	for (int i = 0; i < 20; i++) {
		int64_t x[] = {comm.rank + i, -comm.rank};
		must(comm_reduce(&comm, x, 2, S64, COMM_MAX));
		assert_int_equal(x[0], comm.size - 1 + i);
		assert_int_equal(x[1], 0);
		must(ops->test(comm.data, k.request, &done));
	}
	__atomic_store_n(&stop, true, __ATOMIC_RELAXED);
	pthread_join(thread, NULL);
	end(&k);
}

/* ---- control */
static void
test_control(void **state)
{
	int64_t own[] = {comm.rank, -comm.rank}, all[2 * MOST_RANKS];

	(void)state;
	must(comm.control_ops->all_gather(comm.control, own, all, sizeof(own)));
	for (int r = 0; r < comm.size; r++) {
		assert_int_equal(all[2 * r], r);
		assert_int_equal(all[2 * r + 1], -r);
	}
	for (int root = 0; root < comm.size; root++) {
		char text[] = "from rank .";
		text[10] = (char)(comm.rank == root ? '0' + root : '?');
		must(comm.control_ops->broadcast(comm.control, text, sizeof(text), root));
		assert_int_equal(text[10], '0' + root);
	}
	comm.control_ops->doing(comm.control, "testing");
	comm.control_ops->doing(comm.control, NULL);
}

/* Sums are made in the order of the ranks. */
static void
test_control_sums(void **state)
{
	double x = value(comm.rank, 1, true), sum = value(0, 1, true);

	(void)state;
	must(comm_reduce(&comm, &x, 1, F64, COMM_SUM));
	for (int r = 1; r < comm.size; r++)
		sum += value(r, 1, true);
	assert_true(x == sum);
}

/* ---- refused collectives */
static void
refuse(Collective c, const char *says)
{
	double x[8] = {0};
	CommRequest *request;

	c.from = c.to = x;
	if (gpu && comm.size > 1)
		expect_status(ops->enqueue(comm.data, &c, NULL), EXIT_COMM, says);
	else if (gpu)
		expect_status(comm_alone(&c), EXIT_COMM, says);
	else {
		expect_status(ops->start(comm.data, &c, &request), EXIT_COMM, says);
		assert_null(request);
	}
}

static void
test_refusals(void **state)
{
	(void)state;
	refuse((Collective){.kind = COMM_BROADCAST, .n = 1, .peer = comm.size}, "broadcast: rank");
	refuse((Collective){.kind = COMM_SEND, .n = 1, .peer = comm.rank}, "send: rank");
	refuse((Collective){.kind = COMM_RECV, .n = 1, .peer = -1}, "recv: rank -1");
	if (comm.size == 1)
		return;
	refuse((Collective){.kind = COMM_ALL_REDUCE, .dtype = F8E4M3, .n = 1},
	       "no sums of f8e4m3 over ranks");
	refuse((Collective){.kind = COMM_ALL_GATHER, .dtype = U4, .n = 8, .block = 3},
	       "blocks of 3 elements of u4 are not whole bytes");
	Status status = comm.control_ops->broadcast(comm.control, NULL, 0, comm.size);
	assert_non_null(status);
	status_free(status);
}

static void
test_traffic(void **state)
{
	int64_t n = (int64_t)6 * MOST_RANKS / comm.size * comm.size,
		before = ops->traffic(comm.data, GROUP_DATA);
	Collective c = {COMM_ALL_REDUCE, GROUP_DATA, F64, .n = n};

	(void)state;
	for (int k = 0; k < 2; k++) {
		c.ordered = k;
		check(c, true);
	}
	/* 2 n (W - 1) / W elements in either direction */
	assert_int_equal(ops->traffic(comm.data, GROUP_DATA) - before,
	                 2 * 8 * 2 * n * (comm.size - 1) / comm.size);
	if (comm.size > 1)
		assert_true(ops->traffic(comm.data, GROUP_WORLD) > 0);
}

static void
test_groups(void **state)
{
	(void)state;
	for (int g = 0; g < N_GROUPS; g++) {
		Members m = members_of((CommGroup)g);
		assert_int_equal(ops->group_size(comm.data, (CommGroup)g), m.n);
		assert_int_equal(ops->group_rank(comm.data, (CommGroup)g), m.own);
	}
}

/* ---- the GPU */
static bool gives_up;

static Status
look(void *context, double moved, bool *waits)
{
	(void)context;
	if (gives_up)
		return status_error(EXIT_HANG, "a rank is lost");
	return ops->watch(comm.data, moved, waits);
}

static void
end_all(void *context)
{
	(void)context;
	ops->abort(comm.data);
}

/* The last test: rank 0 waits for a sum that no other rank joins. It learns of a fault, and its streams become idle. */
static void
test_abort(void **state)
{
	Case k = {.c = {.kind = COMM_ALL_REDUCE, .dtype = F32, .n = 100}};
	void *stream;

	(void)state;
	if (comm.size == 1 || !gpu)
		return;
	if (comm.rank > 0) {
		ops->abort(comm.data);
		return;
	}
	begin(&k, false);
	must(gpu->native_stream(device, STREAM_COMMUNICATION, &stream));
	gives_up = true;
	expect_status(gpu->sync(device), EXIT_HANG, "a rank is lost");
	expect_status(ops->enqueue(comm.data, &k.c, stream), EXIT_COMM, "aborted");
	gpu->close(device); /* waits for the streams, whether or not they failed */
	device = NULL;
	free(k.from);
	free(k.to);
}

static Status
attach(void)
{
	void *stream;

	if (!comm_enqueues(&comm))
		return NULL;
	gpu = device_find("cuda");
	RETURN_IF_ERROR(gpu->open(&(DeviceOptions){.ordinal = comm.rank, .watch = {look, end_all}},
	                          &device));
	RETURN_IF_ERROR(gpu->native_stream(device, STREAM_COMMUNICATION, &stream));
	return ops->attach(comm.data);
}

int
main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_parts),           cmocka_unit_test(test_groups),
		cmocka_unit_test(test_all_reduce),      cmocka_unit_test(test_reduce_scatter),
		cmocka_unit_test(test_what_is_moved),   cmocka_unit_test(test_send_and_recv),
		cmocka_unit_test(test_several_at_once), cmocka_unit_test(test_progress),
		cmocka_unit_test(test_threads),         cmocka_unit_test(test_control),
		cmocka_unit_test(test_control_sums),    cmocka_unit_test(test_refusals),
		cmocka_unit_test(test_traffic),         cmocka_unit_test(test_messages_on_streams),
		cmocka_unit_test(test_abort),
	};
	CommOptions options = {.mesh = mesh, .most_bytes = 1001};

	Status status = comm_open(argc > 1 ? argv[1] : "auto", &options, &comm);
	ops = comm.data_ops;
	if (!status)
		status = attach();
	if (status) {
		fprintf(stderr, "%s\n", status->message);
		return 1;
	}
	if (comm.size > MOST_RANKS)
		return 1;
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	if (failed)
		comm.control_ops->abort(comm.control, 1);
	comm_close_data(&comm);
	if (gpu)
		gpu->close(device);
	comm_close(&comm);
	return failed;
}
