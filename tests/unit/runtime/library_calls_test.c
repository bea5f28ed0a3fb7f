/* The library calls that `lower` makes of products, run by oneDNN against the kernel's own loops; and the runtime's requests
 * to a library, with a library that counts them. */
#include "codegen/codegen.h"
#include "ir/loop/loop.h"
#include "runtime/device/library_calls.h"
#include "tests/unit/runtime/runtime_tiny.h"

/* The leak checker's own thread crashes on the threads of a library that was opened at run time. */
__attribute__((visibility("default"))) int __lsan_is_turned_off(void);
int
__lsan_is_turned_off(void)
{
	return 1;
}

/* ---- calls of `lower` */
typedef struct {
	const char *x, *y, *attrs, *z;
	const char *bias; /* along z's last axis; NULL: no bias */
} Product;

static const Product products[] = {
	{"f32[200,96]", "f32[96,80]", "x_contract = [1], y_contract = [0]", "f32[200,80]", NULL},
	{"bf16[200,96]", "bf16[96,80]", "x_contract = [1], y_contract = [0]", "bf16[200,80]", NULL},
	{"bf16[200,96]", "bf16[96,80]", "x_contract = [1], y_contract = [0], dtype = f32",
         "f32[200,80]", NULL},
	{"bf16[96,200]", "bf16[80,96]", "x_contract = [0], y_contract = [1], dtype = f32",
         "f32[200,80]", "f32[80]"},
	{"bf16[4,128,96]", "bf16[4,96,80]",
         "x_batch = [0], y_batch = [0], x_contract = [2], y_contract = [1]", "bf16[4,128,80]",
         "bf16[80]"},
};

static Module *
lower_product(Arena *arena, const Product *p, Diag *diag)
{
	static const PassRow *const rows[] = {&pass_legalize, &pass_fuse, &pass_lower};
	Text text = {0};
	Pipeline passes = {0};
	PassManagerOptions options = {0};
	Stage stage = STAGE_TRAIN;
	bool wide = strchr(p->z, ',') != strrchr(p->z, ',');

	text_printf(&text, "module @m {\n  func @f(%%x: %s, %%y: %s", p->x, p->y);
	if (p->bias)
		text_printf(&text, ", %%b: %s", p->bias);
	text_printf(&text, ") -> (%s) {\n    %%0 = dot %%x, %%y {%s} : %s\n", p->z, p->attrs, p->z);
	if (p->bias)
		text_printf(&text,
		            "    %%1 = broadcast %%b {shape = %s, axes = [%d]} : %s\n"
		            "    %%2 = add %%0, %%1 : %s\n",
		            strchr(p->z, '['), wide ? 2 : 1, p->z, p->z);
	text_printf(&text, "    return %%%d\n  }\n}\n", p->bias ? 2 : 0);
	Module *m = module_parse(text.at, "product", strmap_new(arena), diag);
	text_free(&text);
	assert_non_null(m);
	for (int i = 0; i < COUNT(rows); i++)
		vec_push(arena, &passes, pass_call(arena, rows[i]));
	assert_true(pipeline_run(&passes, m, &stage, &options, diag));
	return m;
}

static char *
buffer_new(Arena *arena, Type t, double factor)
{
	char *at = arena_alloc(arena, (size_t)type_bytes(t) + 64);

	at += 64 - (uintptr_t)at % 64;
	for (int64_t i = 0; i < t->n; i++)
		dtype_store_float(t->dtype, at, i, sin(factor * (double)(i + 1)));
	return at;
}

/* Runs the kernels by their loops. k stores the product; its last input is packed by another kernel. */
static void
run_loops(const Module *m, const Kernel *k, void **buffers)
{
	for (int i = 0; i < m->kernels.n; i++) {
		const Kernel *before = m->kernels.at[i];
		if (before->serves != k)
			continue;
		void *own[] = {buffers[0], buffers[1], buffers[k->n_inputs - 1]};
		int n = before->n_inputs + before->n_outputs;
		kernel_interpret(before,
		                 (void *[]){own[0], own[1], n > 3 ? buffers[2] : own[2], own[2]},
		                 NULL, 0, before->iterations);
	}
	kernel_interpret(k, buffers, NULL, 0, k->iterations);
}

static void
compare_product(Library *library, const Product *p)
{
	const LibraryOps *ops = &library_onednn;
	Arena *arena = arena_new();
	Diag *diag = diag_new("test", stderr);
	Module *m = lower_product(arena, p, diag);
	const Kernel *k = m->kernels.at[0];
	int last = k->n_inputs + k->n_outputs - 1;
	void *loops[8], *operands[N_LIBRARY_OPERANDS] = {0};
	PreparedCall *call;

	assert_non_null(k->library);
	assert_int_equal(k->library->epilogue, p->bias ? EPILOGUE_BIAS : EPILOGUE_NONE);
	for (int i = 0; i <= last; i++)
		loops[i] = buffer_new(arena, k->buffers.at[i].type, 0.3 + i);
	Status status = ops->prepare(library, k->library, 0, 64 << 20, &call);
	if (status) { /* the loops run where the library has no fast code */
		print_message("%s: %s\n", p->x, status->message);
		status_free(status);
	} else {
		for (int i = 0; i < N_LIBRARY_OPERANDS; i++)
			if (library_has_operand(k->library, i))
				operands[i] = loops[k->library->operands[i].buffer];
		operands[LIBRARY_RESULT] = buffer_new(arena, k->buffers.at[last].type, 9);
		char *scratch = arena_alloc(arena, (size_t)ops->scratch(call) + 64);
		scratch += 64 - (uintptr_t)scratch % 64;
		must(ops->run(call, operands, (char *const[]){NULL, NULL}, scratch, NULL));
		run_loops(m, k, loops);
		Type z = k->buffers.at[last].type;
		double rounding = z->dtype == BF16 ? 1 / 128. : 1e-5;
		for (int64_t i = 0; i < z->n; i++) {
			double want = dtype_load_float(z->dtype, loops[last], i);
			double got = dtype_load_float(z->dtype, operands[LIBRARY_RESULT], i);
			if (!(fabs(got - want) <= rounding * (fabs(want) + 1)))
				fail_msg("%s, element %d: %.9g, loops %.9g", p->x, (int)i, got,
				         want);
		}
		ops->release(call);
	}
	module_free(m);
	diag_free(diag);
	arena_free(arena);
}

static void
test_products(void **state)
{
	Library *library;
	Pool *pool;

	must(pool_open(THREADS_BEST, 2, &pool));
	Status status = library_onednn.open(&(LibraryHome){.pool = pool}, &library);
	if (status) {
		print_message("%s\n", status->message);
		status_free(status);
		pool_close(pool);
		skip();
	}
	for (int i = 0; i < COUNT(products); i++)
		compare_product(library, &products[i]);
	library_onednn.close(library);
	pool_close(pool);
}

/* ---- FLOPs and bytes of a call */
static LibraryOperand
dense_operand(DType dtype, uint32_t rank, const int64_t *dims)
{
	LibraryOperand o = {.dtype = dtype, .rank = rank};

	memcpy(o.dims, dims, sizeof(*dims) * rank);
	library_dense(&o);
	return o;
}

static void
test_dots_are_counted(void **state)
{
	LibraryCall c;

	(void)state;
	library_call_begin(&c, LIBRARY_DOT);
	c.operands[LIBRARY_FIRST] = dense_operand(BF16, 3, (int64_t[]){2, 3, 5});
	c.operands[LIBRARY_SECOND] = dense_operand(BF16, 3, (int64_t[]){2, 5, 7});
	c.operands[LIBRARY_RESULT] = dense_operand(F32, 3, (int64_t[]){2, 3, 7});
	assert_true(library_flops(&c) == 2 * 2 * 3 * 5 * 7);
	assert_true(library_bytes(&c) == 2 * (30 + 70) + 4 * 42);
	c.beta = 1;
	c.operands[LIBRARY_ADDED] = c.operands[LIBRARY_RESULT];
	assert_true(library_flops(&c) == 2 * 2 * 3 * 5 * 7 + 42);
	assert_true(library_bytes(&c) == 2 * (30 + 70) + 4 * 2 * 42);
	c.beta = 0;
	c.epilogue = EPILOGUE_BIAS;
	c.operands[LIBRARY_BIAS] = dense_operand(F32, 1, (int64_t[]){7});
	assert_true(library_flops(&c) == 2 * 2 * 3 * 5 * 7 + 42);
	assert_true(library_bytes(&c) == 2 * (30 + 70) + 4 * 42 + 4 * 7);
}

/* x[2,6,8], w[4,3,3] in two groups, y[2,4,6]: each of the 48 elements of y has a window of 9. */
static void
test_convolutions_are_counted(void **state)
{
	static const int64_t dims[][3] = {
		[CONV_X] = {2, 6, 8}, [CONV_W] = {4, 3, 3}, [CONV_Y] = {2, 4, 6}};
	LibraryCall c;

	(void)state;
	for (int kind = LIBRARY_CONV; kind < N_LIBRARY_KINDS; kind++) {
		library_call_begin(&c, (LibraryKind)kind);
		c.groups = 2;
		for (int i = 0; i <= LIBRARY_RESULT; i++)
			c.operands[i] = dense_operand(F32, 3, dims[library_conv_operands[kind][i]]);
		assert_true(library_flops(&c) == 2 * 48 * 9);
		assert_true(library_bytes(&c) == 4 * (96 + 36 + 48));
	}
}

/* ---- a library that counts requests, and multiplies two numbers */
struct Library {
	bool refuses, slow, packs_much;
	const char *planned,
		*fault; /* planned: version whose plans the library accepts; NULL: no plans */
	int prepared, released, packed, runs;
	unsigned fixed;
};
struct PreparedCall {
	Library *library;
	unsigned fixed;
};
enum { SCRATCH = 128, PACKED = 64 };
static int one_stream;

static Status
count_prepare(Library *library, const LibraryCall *call, unsigned fixed, int64_t limit,
              PreparedCall **out)
{
	*out = NULL;
	assert_int_equal(call->kind, LIBRARY_DOT);
	assert_int_equal(limit, 1000);
	if (library->refuses)
		return status_error(EXIT_UNSUPPORTED, "it will not");
	*out = memory_zeroed(1, sizeof(**out));
	**out = (PreparedCall){library, fixed};
	library->fixed = fixed;
	library->prepared++;
	return NULL;
}

static Status
count_rebuild(Library *library, const LibraryCall *call, const LibraryPlan *plan, int64_t limit,
              PreparedCall **out)
{
	*out = NULL;
	assert_string_equal(plan->text, "as it was found");
	assert_int_equal(plan->capability, 90);
	assert_int_equal(plan->processors, 132);
	if (!library->planned || strcmp(library->planned, plan->version) != 0)
		return status_error(EXIT_UNSUPPORTED, "another version");
	return count_prepare(library, call, 0, limit, out);
}

static const char *
count_fault(const Library *library)
{
	return library->fault;
}

static void
count_close(Library *library)
{
	assert_int_equal(library->released, library->prepared);
}

static const char *
count_version(const Library *library)
{
	(void)library;
	return "counting 1";
}

static void
count_release(PreparedCall *call)
{
	if (call)
		call->library->released++;
	memory_free(call);
}

static bool
count_pays(const PreparedCall *call)
{
	return !call->library->slow;
}

static const char *
count_implementation(const PreparedCall *call)
{
	(void)call;
	return "by hand";
}

static int64_t
count_scratch(const PreparedCall *call)
{
	(void)call;
	return SCRATCH;
}

static int64_t
count_packed_bytes(const PreparedCall *call, int i)
{
	int64_t bytes = call->library->packs_much ? 65 << 20 : PACKED;

	return call->fixed >> i & 1 ? bytes : 0;
}

static Status
count_pack(PreparedCall *call, int i, const void *buffer, char *to)
{
	assert_int_equal(i, LIBRARY_SECOND);
	call->library->packed++;
	memcpy(to, buffer, sizeof(double));
	return NULL;
}

static Status
count_run(PreparedCall *call, void *const buffers[N_LIBRARY_OPERANDS], char *const packed[2],
          char *scratch, void *stream)
{
	const double *y = packed[1] ? (const void *)packed[1] : buffers[LIBRARY_SECOND];

	assert_null(packed[0]);
	assert_ptr_equal(stream, &one_stream);
	memset(scratch, 0, SCRATCH);
	call->library->runs++;
	*(double *)buffers[LIBRARY_RESULT] = *(const double *)buffers[LIBRARY_FIRST] * *y;
	return NULL;
}

static const LibraryOps counting = {
	.name = "counting",
	.close = count_close,
	.version = count_version,
	.prepare = count_prepare,
	.rebuild = count_rebuild,
	.fault = count_fault,
	.release = count_release,
	.pays = count_pays,
	.implementation = count_implementation,
	.scratch = count_scratch,
	.packed_bytes = count_packed_bytes,
	.pack = count_pack,
	.run = count_run,
};

typedef struct {
	Arena *arena;
	Format f;
	CodeSource source;
	Libraries libraries;
} Bench;

static void
add_plan(FormatWriter *w, const char *version)
{
	PlanRecord p = {.gpu = format_string(w, "a GPU"),
	                .capability = 90,
	                .processors = 132,
	                .version = format_string(w, version),
	                .text = format_string(w, "as it was found"),
	                .scratch = SCRATCH};

	p.facts = plan_facts(&w->library.at[0], &p, w->strings.at);
	vec_push(w->arena, &w->plans, p);
}

/* The tiny model with a library's product of its first input and the weight in place of K_DIFF. K_FORWARD runs only if the
 * library's product does not. planned: adds plans by two versions of the library. */
static Bench
bench_open(bool constant, bool planned)
{
	Bench b = {.arena = arena_new()};
	FormatWriter *w = format_writer_new(b.arena);
	LibraryRecord r = {.scratch_limit = 1000};
	static const int64_t buffers[] = {0, 2, 3};
	int64_t bytes;
	void *blob;

	tiny_memory(w);
	tiny_programs(w, true);
	tiny_facts(w);
	w->state_bytes = TINY_STATE_BYTES;
	w->weights_bytes = 8;
	if (constant) {
		w->states.at[1].lifetime = LIFE_CONSTANT;
		w->slots.at[SLOT_W].state = 2;
	}
	library_call_begin(&r.call, LIBRARY_DOT);
	for (int i = 0; i <= LIBRARY_RESULT; i++) {
		r.call.operands[i] = (LibraryOperand){
			.dtype = F64, .rank = 2, .buffer = buffers[i], .dims = {1, 1}};
		library_dense(&r.call.operands[i]);
	}
	vec_push(b.arena, &w->library, r);
	w->kernels.at[K_DIFF].library = 1;
	w->kernels.at[K_FORWARD].serves = K_DIFF + 1;
	if (planned) {
		add_plan(w, "counting 1");
		add_plan(w, "counting 2");
	}
	must(format_finish(w, &blob, &bytes));
	must(format_read(blob, bytes, &b.f));
	return b;
}

static LibraryCalls *
open_calls(Bench *b, Library *library)
{
	LibraryCalls *calls;

	b->source = (CodeSource){.tables = &b->f};
	Status why_none = library ? NULL : status_error(EXIT_SYSTEM, "nobody counts");
	b->libraries = (Libraries){.n = 1, .at = {{&counting, library, why_none}}};
	must(library_calls_open(&b->libraries, &b->source, NULL, &calls));
	return calls;
}

static void
close_calls(Bench *b, LibraryCalls *calls)
{
	library_calls_close(calls);
	libraries_close(&b->libraries);
	arena_free(b->arena);
}

static void
run_twice(LibraryCalls *calls)
{
	double x = 3, w = 0.5, z = 0;
	char memory[SCRATCH + PACKED];
	void *buffers[] = {&x, NULL, &w, &z};

	library_calls_place(calls, memory);
	for (int i = 0; i < 2; i++) {
		must(library_calls_run(calls, K_DIFF, buffers, &one_stream));
		assert_true(z == 1.5);
	}
}

/* Two programs launch the kernel with the same state, which is packed once, by the first run. */
static void
test_constant_operands_are_packed_once(void **state)
{
	Bench b = bench_open(true, false);
	Library library = {0};
	LibraryCalls *calls = open_calls(&b, &library);

	(void)state;
	assert_int_equal(library.fixed, 1 << LIBRARY_SECOND);
	assert_int_equal(library_calls_bytes(calls), SCRATCH + PACKED);
	assert_string_equal(library_calls_implementation(calls, K_DIFF), "by hand");
	assert_null(library_calls_remark(calls, K_DIFF));
	assert_null(library_calls_implementation(calls, K_UPDATE));
	assert_true(library_calls_cover(calls, K_FORWARD));
	assert_false(library_calls_cover(calls, K_UPDATE));
	run_twice(calls);
	assert_int_equal(library.packed, 1);
	assert_int_equal(library.runs, 2);
	close_calls(&b, calls);
}

/* Too many bytes of packed operands: they are packed at each run, and people are told. */
static void
test_packed_bytes_are_bounded(void **state)
{
	Bench b = bench_open(true, false);
	Library library = {.packs_much = true};
	LibraryCalls *calls = open_calls(&b, &library);

	(void)state;
	assert_int_equal(library.fixed, 0);
	assert_int_equal(library_calls_bytes(calls), SCRATCH);
	assert_string_equal(library_calls_implementation(calls, K_DIFF), "by hand");
	assert_string_equal(library_calls_remark(calls, K_DIFF),
	                    "packs constant operands at each run: with them, more than 64 MiB "
	                    "would stay packed");
	run_twice(calls);
	assert_int_equal(library.packed, 0);
	close_calls(&b, calls);
}

static void
test_other_operands_are_read(void **state)
{
	Bench b = bench_open(false, false);
	Library library = {0};
	LibraryCalls *calls = open_calls(&b, &library);

	(void)state;
	assert_int_equal(library.fixed, 0);
	assert_int_equal(library_calls_bytes(calls), SCRATCH);
	run_twice(calls);
	assert_int_equal(library.packed, 0);
	close_calls(&b, calls);
}

/* The loops do what a library cannot do, or does slowly. */
static void
test_loops_run_otherwise(void **state)
{
	(void)state;
	for (int i = 0; i < 3; i++) {
		Bench b = bench_open(true, false);
		Library library = {.refuses = i == 0, .slow = i == 1};
		LibraryCalls *calls = open_calls(&b, i == 2 ? NULL : &library);
		assert_null(library_calls_implementation(calls, K_DIFF));
		assert_false(library_calls_cover(calls, K_FORWARD));
		assert_int_equal(library_calls_bytes(calls), 0);
		assert_string_equal(libraries_text(&b.libraries),
		                    i == 2 ? "nobody counts" : "counting 1");
		close_calls(&b, calls);
	}
}

/* A plan of the right version is used in place of the library's own choice, and no operand is packed then. */
static void
test_plans(void **state)
{
	static const char *const versions[] = {"counting 1", "counting 2", "counting 3", NULL};

	(void)state;
	for (int i = 0; i < COUNT(versions); i++) {
		Bench b = bench_open(true, true);
		Library library = {.planned = versions[i]};
		LibraryCalls *calls = open_calls(&b, &library);
		bool planned = i < 2;
		assert_int_equal(library.prepared, 1);
		assert_int_equal(library.fixed, planned ? 0 : 1 << LIBRARY_SECOND);
		assert_int_equal(library_calls_bytes(calls), SCRATCH + (planned ? 0 : PACKED));
		run_twice(calls);
		assert_int_equal(library.packed, !planned);
		close_calls(&b, calls);
	}
}

/* A library that turns out to run no call is not used, and the user sees why. */
static void
test_faults_are_told(void **state)
{
	Bench b = bench_open(true, true);
	Library library = {.refuses = true, .fault = "it does not start"};
	LibraryCalls *calls;

	(void)state;
	library.planned = "counting 1";
	calls = open_calls(&b, &library);
	assert_null(library_calls_implementation(calls, K_DIFF));
	assert_string_equal(libraries_text(&b.libraries), "it does not start");
	assert_null(libraries_versions(&b.libraries));
	library.fault = NULL;
	libraries_look_again(&b.libraries);
	assert_string_equal(libraries_text(&b.libraries), "counting 1");
	assert_string_equal(libraries_versions(&b.libraries), "counting 1");
	close_calls(&b, calls);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_products),
		cmocka_unit_test(test_dots_are_counted),
		cmocka_unit_test(test_convolutions_are_counted),
		cmocka_unit_test(test_constant_operands_are_packed_once),
		cmocka_unit_test(test_packed_bytes_are_bounded),
		cmocka_unit_test(test_other_operands_are_read),
		cmocka_unit_test(test_loops_run_otherwise),
		cmocka_unit_test(test_plans),
		cmocka_unit_test(test_faults_are_told),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
