/* oneDNN's products and convolutions against naive sums: layouts, types, tiles, packed operands; the same bits for any
 * number of threads where promised; refused calls. Without the library, the test says so and skips. */
#include "runtime/library/library.h"
#include "runtime/library/onednn_slow.h"
#include "tests/unit/runtime/naive_library.h"

#include <dirent.h>
#include <pthread.h>

static const LibraryOps *const ops = &library_onednn;
enum { LIMIT = 64 << 20 };

typedef struct {
	Pool *pool;
	Library *lib;
} Bench;

/* The leak checker's own thread crashes on the threads of a library that was opened at run time. */
__attribute__((visibility("default"))) int __lsan_is_turned_off(void);
int
__lsan_is_turned_off(void)
{
	return 1;
}

static Bench
bench_open(int threads, bool tiled)
{
	Bench b;

	must(pool_open(THREADS_BEST, threads, &b.pool));
	Status status = ops->open(&(LibraryHome){.pool = b.pool, .tiled = tiled}, &b.lib);
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
	ops->close(b->lib);
	pool_close(b->pool);
}

static const Case cases[] = {
	{2, {0}, 37, 50, 29, false, false, 0, 0},     {2, {0}, 300, 64, 48, true, false, 0, 5},
	{2, {0}, 64, 40, 130, false, true, 3, 0},     {3, {5}, 33, 16, 20, false, true, 0, 7},
	{4, {2, 3}, 40, 24, 17, true, false, 0, 0},   {4, {4, 6}, 16, 32, 64, false, true, 8, 0},
	{5, {2, 3, 4}, 9, 8, 11, false, false, 1, 0}, {2, {0}, 20, 300, 24, false, true, 2, 3},
};

/* Buffers and expected results, kept because the same calls come again with other threads, tiles and packed operands, and
 * naive sums take longer than all of these runs. */
typedef struct Known Known;
struct Known {
	LibraryCall call;
	Wanted *want;
	const Known *next;
};

static const Wanted *
known_result(const LibraryCall *w, char *const *buffers)
{
	static const Known *first;

	for (const Known *k = first; k; k = k->next)
		if (memcmp(&k->call, w, sizeof(*w)) == 0)
			return k->want;
	Known *k = malloc(sizeof(*k));
	memcpy(&k->call, w, sizeof(*w));
	k->want = wanted_result(w, buffers);
	k->next = first;
	first = k;
	return k->want;
}

/* Runs the call and gives the result. The operands in `fixed` are packed once for two runs. */
static char *
run_work(Bench *b, const LibraryCall *w, unsigned fixed, bool check)
{
	char *buffers[N_LIBRARY_OPERANDS] = {buffer_new(w, X), buffer_new(w, Y), buffer_new(w, Z),
	                                     w->epilogue ? buffer_new(w, LIBRARY_BIAS) : NULL,
	                                     NULL};
	char *packed[2] = {NULL, NULL};
	PreparedCall *call;

	must(ops->prepare(b->lib, w, fixed, LIMIT, &call));
	assert_null(strstr(ops->implementation(call), "ref"));
	char *scratch = aligned_alloc(64, (size_t)ops->scratch(call) + 64);
	for (int i = 0; i < 2; i++) {
		int64_t bytes = ops->packed_bytes(call, i);
		assert_true(bytes == 0 || fixed >> i & 1);
		if (bytes == 0)
			continue;
		packed[i] = aligned_alloc(64, (size_t)bytes);
		must(ops->pack(call, i, buffers[i], packed[i]));
		/* the original of a packed operand is not read again */
		char *other = calloc(1, (size_t)library_reach(&w->operands[i]));
		must(ops->run(call,
		              (void *const[]){i == X ? other : buffers[X],
		                              i == Y ? other : buffers[Y], buffers[Z],
		                              buffers[LIBRARY_BIAS]},
		              packed, scratch, NULL));
		free(other);
	}
	for (int round = 0; round < 2; round++)
		must(ops->run(call, (void *const *)buffers, packed, scratch, NULL));
	if (check)
		compare_wanted(w, buffers, NULL, known_result(w, buffers));
	ops->release(call);
	free(scratch);
	for (int i = 0; i < 2; i++) {
		free(packed[i]);
		free(buffers[i]);
	}
	free(buffers[LIBRARY_BIAS]);
	return buffers[Z];
}

/* ---- all cases */
static const ConvSizes convs[] = {
	{1, 3, 1, 5, 20, {{30, 3, 15, 2, 1, 1}}},
	{2, 4, 1, 3, 40, {{20, 3, 20, 1, 1, 1}, {17, 3, 17, 1, 1, 1}}},
	{2, 6, 1, 16, 70, {{14, 3, 7, 2, 1, 1}, {9, 1, 5, 2, 1, 0}}},
	{2, 2, 20, 1, 1, {{12, 3, 12, 1, 1, 1}, {12, 3, 12, 1, 1, 1}}},
	{2, 2, 4, 8, 8, {{13, 3, 9, 1, 2, 0}, {8, 2, 4, 2, 1, 0}}},
	{3, 2, 1, 8, 16, {{6, 3, 6, 1, 1, 1}, {7, 3, 3, 2, 1, 0}, {5, 1, 5, 1, 1, 0}}},
};
enum { N_KINDS = N_LIBRARY_KINDS - LIBRARY_CONV, N_PLAIN = COUNT(cases) + N_KINDS * COUNT(convs) };
enum { N_WORKS = N_PLAIN + COUNT(cases) + COUNT(convs) };

static const Types f32 = {F32, F32}, bf16 = {BF16, BF16}, wide = {BF16, F32};

/* Call number i: all cases, then products and convolutions again with a bias. */
static LibraryCall
call_of(int i, Types types)
{
	bool bias = i >= N_PLAIN;
	LibraryCall w;
	Text why = {0};

	i -= bias ? N_PLAIN : 0;
	if (i < COUNT(cases)) {
		w = dot_of(&cases[i], F32);
	} else {
		i = (i - COUNT(cases)) * (bias ? N_KINDS : 1);
		w = conv_of(&convs[i / N_KINDS], (LibraryKind)(LIBRARY_CONV + i % N_KINDS));
	}
	if (bias)
		add_bias(&w);
	set_types(&w, types);
	if (!library_call_check(&w, &why))
		fail_msg("%s", why.at);
	return w;
}

static void
check_all(int threads, bool tiled, Types types)
{
	Bench b = bench_open(threads, tiled);

	for (int i = 0; i < N_WORKS; i++)
		for (unsigned fixed = 0; fixed < 4; fixed++) {
			LibraryCall w = call_of(i, types);
			free(run_work(&b, &w, fixed, true));
		}
	bench_close(&b);
}

static void
test_f32(void **state)
{
	for (int threads = 1; threads <= 3; threads++) {
		check_all(threads, false, f32);
		check_all(threads, true, f32);
	}
}

/* May the library use AVX-512? ONEDNN_MAX_CPU_ISA=AVX2 makes any CPU behave like one without it. */
static bool
has_avx512(void)
{
	int n;

	return !getenv("ONEDNN_MAX_CPU_ISA") && !cpu_lacks("avx512f", &n);
}

static void
test_bf16(void **state)
{
	if (!has_avx512())
		skip(); /* the library has only reference code for it */
	for (int tiled = 0; tiled < 2; tiled++) {
		check_all(2, tiled, bf16);
		check_all(2, tiled, wide);
	}
}

static void
check_threads(const LibraryCall *w, bool tiled)
{
	static const int threads[] = {1, 2, 4};
	char *first = NULL;

	for (int t = 0; t < COUNT(threads); t++) {
		Bench b = bench_open(threads[t], tiled);
		char *z = run_work(&b, w, 0, false);
		if (first)
			assert_memory_equal(first, z, (size_t)library_reach(&w->operands[Z]));
		free(first);
		first = z;
		bench_close(&b);
	}
	free(first);
}

static void
test_tiles_are_deterministic(void **state)
{
	for (int i = 0; i < N_WORKS; i++) {
		LibraryCall w = call_of(i, f32);
		check_threads(&w, true);
	}
}

/* Deep, low or narrow products, large enough for gemm:jit's copying kernels, with and without batches. */
static const Case products[] = {
	{2, {0}, 40, 700, 1500, true, false, 0, 0},    {2, {0}, 1200, 20, 900, false, true, 0, 0},
	{2, {0}, 1300, 1100, 500, false, false, 0, 0}, {2, {0}, 1100, 1300, 400, true, false, 0, 0},
	{3, {2}, 600, 200, 700, false, true, 0, 0},    {3, {6}, 100, 150, 800, false, false, 0, 0},
};

/* A rank of a job has fewer threads than a single process, but must get the same bits. */
static void
test_products_are_free_of_threads(void **state)
{
	if (has_avx512())
		skip(); /* the library cuts as it likes */
	for (int i = 0; i < COUNT(products); i++) {
		LibraryCall w = dot_of(&products[i], F32);
		check_threads(&w, false);
	}
}

static void
check_pays(const Case *product, bool tiled, bool wanted)
{
	Bench b = bench_open(2, tiled);
	LibraryCall w = dot_of(product, F32);
	PreparedCall *call;

	must(ops->prepare(b.lib, &w, 0, LIMIT, &call));
	if (ops->pays(call) != wanted)
		fail_msg("%d x %d x %d: pays is %d", (int)product->m, (int)product->n,
		         (int)product->k, !wanted);
	ops->release(call);
	bench_close(&b);
}

/* The loops run products whose operands gemm:jit would read in place. Exceptions: batches whose rows do not share cache
 * lines; and tiles, if the second-level cache is large, on all CPUs. */
static void
test_slow_products_do_not_pay(void **state)
{
	static const Case narrow = {3, {6}, 64, 1024, 32, false, false, 0, 0};
	static const Case small = {2, {0}, 100, 128, 900, false, false, 0, 0};
	bool large = cpu_second_cache() >= 1 << 20;

	if (has_avx512())
		skip(); /* the library has other code there */
	check_pays(&products[0], false, large && cpu_count() < 7);
	check_pays(&products[2], false, cpu_count() < 4 || (large && cpu_count() < 12));
	check_pays(&products[2], true, large);
	check_pays(&small, true, false);
	check_pays(&small, false, large && cpu_count() == 1);
	check_pays(&products[5], true, true);
	check_pays(&products[5], false, true);
	check_pays(&narrow, false, false);
}

/* On an Intel CPU the loops also run products whose operands brg would read in place, if wide rows share cache lines. */
static void
test_shared_lines_do_not_pay(void **state)
{
	static const struct {
		Case product;
		bool pays;
	} wanted[] = {
		{{2, {0}, 64, 3072, 256, false, false, 0, 0}, false},
		{{2, {0}, 64, 2560, 256, true, false, 0, 0}, false},
		{{2, {0}, 64, 3072, 128, false, false, 0, 0}, true},
		{{2, {0}, 64, 3072, 256, false, true, 0, 0}, true},
		{{2, {0}, 64, 3008, 256, false, false, 0, 0}, true},
		{{2, {0}, 64, 4096, 256, false, false, 0, 0}, true},
		{{2, {0}, 64, 1536, 256, false, false, 0, 0}, true},
	};
	for (int i = 0; i < COUNT(wanted); i++) {
		LibraryCall w = dot_of(&wanted[i].product, F32);
		LibraryUse u = {.name = "brg:avx512_core",
		                .avx512 = true,
		                .call = &w,
		                .step = wanted[i].product.n,
		                .tiles = 1,
		                .enough = 1};
		assert_false(onednn_is_slow(&u)); /* other CPUs do not have this problem */
		u.intel = true;
		assert_int_equal(!onednn_is_slow(&u), wanted[i].pays);
		if (cpu_is_intel() && has_avx512())
			check_pays(&wanted[i].product, false, wanted[i].pays);
	}
}

/* The table's entries for the library's other code, checked on any CPU. */
static void
test_slow_code(void **state)
{
	LibraryCall conv = {.kind = LIBRARY_CONV_GRAD_WEIGHT, .groups = 4};
	LibraryCall dot = dot_of(&products[2], F32);
	LibraryUse u = {.name = "gemm:jit", .call = &conv};

	(void)state;
	assert_true(onednn_is_slow(&u));
	u.name = "jit:avx512_core";
	assert_false(onednn_is_slow(&u));
	conv.groups = 1;
	u.name = "gemm:jit";
	assert_false(onednn_is_slow(&u));
	u = (LibraryUse){.name = "gemm:jit", .call = &dot, .step = 200, .tiles = 7, .enough = 7};
	assert_true(onednn_is_slow(&u)); /* tiles of 200 rows are read in place */
	u.second_cache = 2 << 20;
	assert_false(onednn_is_slow(&u));
	u.tiles = 6;
	assert_true(onednn_is_slow(&u));
	u.avx512 = true;
	assert_false(onednn_is_slow(&u));
}

/* A convolution's operands are copied into blocks of channels; a product needs scratch on some CPUs only. */
static void
test_scratch_is_limited(void **state)
{
	Bench b = bench_open(1, false);
	LibraryCall w = conv_of(&convs[1], LIBRARY_CONV);
	PreparedCall *call;

	must(ops->prepare(b.lib, &w, 0, LIMIT, &call));
	int64_t bytes = ops->scratch(call);
	ops->release(call);
	assert_true(bytes > 0);
	Status status = ops->prepare(b.lib, &w, 0, bytes - 1, &call);
	assert_non_null(status);
	assert_null(call);
	assert_non_null(strstr(status->message, "bytes"));
	status_free(status);
	bench_close(&b);
}

/* A product is added to the result's old value; memory between the rows stays unchanged. */
static void
check_adding(Bench *b, LibraryCall w)
{
	char *buffers[N_LIBRARY_OPERANDS] = {buffer_new(&w, X), buffer_new(&w, Y),
	                                     buffer_new(&w, Z),
	                                     w.epilogue ? buffer_new(&w, LIBRARY_BIAS) : NULL};
	char *before = buffer_new(&w, Z);
	PreparedCall *call;

	add_beta(&w, true);
	for (int64_t e = 0; e < elements(&w, Z); e++) {
		dtype_store_float(F32, buffers[Z], e, 0.25 * (double)(e % 7));
		dtype_store_float(F32, before, e, 0.25 * (double)(e % 7));
	}
	must(ops->prepare(b->lib, &w, 0, LIMIT, &call));
	char *scratch = aligned_alloc(64, (size_t)ops->scratch(call) + 64);
	must(ops->run(call, (void *const *)buffers, (char *const[]){NULL, NULL}, scratch, NULL));
	compare_result(&w, buffers, before);
	ops->release(call);
	free(scratch);
	free(before);
	for (int i = 0; i <= LIBRARY_BIAS; i++)
		free(buffers[i]);
}

static void
test_beta(void **state)
{
	for (int tiled = 0; tiled < 2; tiled++) {
		Bench b = bench_open(2, tiled);
		for (int i = 0; i < N_WORKS; i++) {
			LibraryCall w = call_of(i, f32);
			if (w.kind == LIBRARY_DOT)
				check_adding(&b, w);
		}
		bench_close(&b);
	}
}

static int
count_threads(void)
{
	DIR *tasks = opendir("/proc/self/task");
	int n = 0;

	assert_non_null(tasks);
	for (struct dirent *e; (e = readdir(tasks));)
		n += e->d_name[0] != '.';
	closedir(tasks);
	return n;
}

/* The OpenMP settings that the host made for this thread stay. */
static void
run_as_guest(void *ctx)
{
	Bench *b = ctx;
	void (*set_threads)(int);
	int (*max_threads)(void), (*thread_index)(void);

	*(void **)&set_threads = pool_symbol(b->pool, "omp_set_num_threads");
	*(void **)&max_threads = pool_symbol(b->pool, "omp_get_max_threads");
	*(void **)&thread_index = pool_symbol(b->pool, "omp_get_thread_num");
	if (thread_index() !=
	    0) /* in the host's loop, one thread calls and the other waits at its end */
		return;
	set_threads(3);
	for (int i = 0; i < N_WORKS; i++) {
		LibraryCall w = call_of(i, f32);
		free(run_work(b, &w, 0, true));
	}
	assert_int_equal(max_threads(), 3);
}

static void *
run_in_thread(void *ctx)
{
	int before = count_threads();

	run_as_guest(ctx);
	assert_int_equal(count_threads(), before);
	return NULL;
}

/* The library uses no more threads than the pool has, whatever OpenMP has for the caller. */
static void
test_any_thread_may_call(void **state)
{
	Bench b = bench_open(1, false);
	pthread_t host;

	assert_int_equal(pthread_create(&host, NULL, run_in_thread, &b), 0);
	pthread_join(host, NULL);
	bench_close(&b);
}

/* Inside a parallel loop OpenMP gives the library one thread, so the library must not wait for more threads. */
static void
test_a_loop_of_the_host_may_call(void **state)
{
	for (int tiled = 0; tiled < 2; tiled++) {
		Bench b = bench_open(2, tiled);
		void (*parallel)(void (*fn)(void *), void *ctx, unsigned threads, unsigned flags);

		*(void **)&parallel = pool_symbol(b.pool, "GOMP_parallel");
		parallel(run_as_guest, &b, 2, 0);
		bench_close(&b);
	}
}

/* If neither neighbour of an element is adjacent in memory, the library has only reference code. */
static void
test_reference_code_is_refused(void **state)
{
	Bench b = bench_open(1, false);
	LibraryCall w = dot_of(&cases[0], F32);
	PreparedCall *call;

	w.operands[X].strides[0] *= 2;
	w.operands[X].strides[1] = 2;
	Status status = ops->prepare(b.lib, &w, 0, LIMIT, &call);
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
		cmocka_unit_test(test_beta),
		cmocka_unit_test(test_tiles_are_deterministic),
		cmocka_unit_test(test_products_are_free_of_threads),
		cmocka_unit_test(test_slow_products_do_not_pay),
		cmocka_unit_test(test_slow_code),
		cmocka_unit_test(test_shared_lines_do_not_pay),
		cmocka_unit_test(test_scratch_is_limited),
		cmocka_unit_test(test_any_thread_may_call),
		cmocka_unit_test(test_a_loop_of_the_host_may_call),
		cmocka_unit_test(test_reference_code_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
