/* Library calls and their plans in the tables: written records are read and printed, invalid records are refused. */
#include "tests/unit/format/changed_tables.h"

/* ---- calls */
/* A library call in place of the first kernel: a product of 1 x 2 and 2 x 1, or a convolution of one image with one channel,
 * two places and a window of two. */
static LibraryCall
tiny_call(LibraryKind kind)
{
	static const int64_t dims[N_LIBRARY_KINDS][3][3] = {
		[LIBRARY_DOT] = {{1, 2}, {2, 1}, {1, 1}},
		[LIBRARY_CONV] = {{1, 1, 2}, {1, 1, 2}, {1, 1, 1}},
		[LIBRARY_CONV_GRAD_INPUT] = {{1, 1, 1}, {1, 1, 2}, {1, 1, 2}},
		[LIBRARY_CONV_GRAD_WEIGHT] = {{1, 1, 2}, {1, 1, 1}, {1, 1, 2}},
	};
	static const int64_t buffers[] = {0, 1, 3, 2, 3, 2};
	LibraryCall c;

	library_call_begin(&c, kind);
	for (int i = 0; i < N_LIBRARY_OPERANDS; i++) {
		LibraryOperand *o = &c.operands[i];
		o->dtype = F64;
		o->rank = i == LIBRARY_BIAS ? 1 : kind == LIBRARY_DOT ? 2 : 3;
		o->buffer = buffers[i];
		for (uint32_t k = 0; k < o->rank; k++)
			o->dims[k] = i == LIBRARY_BIAS
			                     ? 1
			                     : dims[kind][i > LIBRARY_BIAS ? LIBRARY_RESULT : i][k];
		library_dense(o);
	}
	return c;
}

/* One changed number of such a call, and the expected fault. */
typedef struct {
	LibraryKind kind;
	size_t offset, size; /* place in LibraryCall */
	int64_t number;
	const char *fault; /* NULL: no fault */
} LibraryCase;
#define CASE(kind, field, number, fault)                                                         \
	{                                                                                        \
		LIBRARY_##kind, offsetof(LibraryCall, field), sizeof(((LibraryCall *)0)->field), \
			number, fault                                                            \
	}
#define FIRST operands[LIBRARY_FIRST]
#define RESULT operands[LIBRARY_RESULT]
static const LibraryCase library_cases[] = {
	CASE(DOT, kind, LIBRARY_DOT, NULL),
	CASE(DOT, epilogue, EPILOGUE_BIAS, NULL),
	CASE(CONV, kind, LIBRARY_CONV, NULL),
	CASE(CONV, epilogue, EPILOGUE_BIAS, NULL),
	CASE(CONV_GRAD_INPUT, low[0], 1, NULL),
	CASE(CONV_GRAD_WEIGHT, dilation[0], 2, NULL),
	CASE(DOT, kind, N_LIBRARY_KINDS, "library call 0: kind 4"),
	CASE(DOT, epilogue, N_EPILOGUES, "epilogue 8"),
	CASE(CONV_GRAD_WEIGHT, epilogue, EPILOGUE_BIAS, "kind 3, epilogue 1"),
	CASE(CONV, epilogue, EPILOGUE_GELU, "kind 1, epilogue 2"),
	CASE(DOT, epilogue, EPILOGUE_GELU, NULL),
	CASE(DOT, epilogue, EPILOGUE_DGELU, NULL),
	CASE(DOT, epilogue, EPILOGUE_GELU_AUX, "access 2; argument 2 has"),
	CASE(DOT, epilogue, EPILOGUE_BGRAD, "access 2; argument 2 has"),
	CASE(DOT, beta, 1, "access 1; argument 3 has 32 of f64, access 2"),
	CASE(DOT, beta, 2, "beta is 2"),
	CASE(CONV, beta, 1, "kind 1, beta 1"),
	CASE(DOT, FIRST.dtype, N_DTYPES, "x has dtype"),
	CASE(DOT, FIRST.dtype, S32, "x has dtype"),
	CASE(DOT, FIRST.rank, 1, "rank 1"),
	CASE(DOT, FIRST.rank, MAX_LIBRARY_RANK + 1, "x has rank 6"),
	CASE(DOT, FIRST.rank, 3, "axis 2 of x has size 0"),
	CASE(DOT, FIRST.buffer, -1, "buffer -1"),
	CASE(DOT, FIRST.buffer, 4, "argument 4 of 4"),
	CASE(DOT, FIRST.offset, -1, "offset -1"),
	CASE(DOT, FIRST.offset, 3, "40 bytes of"),
	CASE(DOT, FIRST.dims[0], 0, "axis 0 of x has size 0"),
	CASE(DOT, FIRST.dims[0], 2, "shapes are not those of a dot"),
	CASE(DOT, RESULT.rank, 1, "shapes are not those of a dot"),
	CASE(DOT, FIRST.strides[1], 0, "axis 1 of x has size 2, stride 0"),
	CASE(DOT, FIRST.strides[1], 4, "40 bytes of"),
	CASE(DOT, FIRST.strides[1], INT64_C(1) << 40, "bytes of"),
	CASE(DOT, operands[LIBRARY_BIAS].offset, 1, NULL), /* the call has no bias */
	CASE(CONV, groups, 0, "groups is 0"),
	CASE(CONV, groups, 2, "shapes are not those of a conv"),
	CASE(CONV, stride[0], 0, "stride is 0"),
	CASE(CONV, dilation[0], INT64_MAX, "dilation is"),
	CASE(CONV, low[0], -1, "low is -1"),
	CASE(CONV, FIRST.strides[0], 3, "shapes are not those of a conv"),
	/* channels last: of images with one channel only the stride of its axis differs; filters are dense */
	CASE(CONV, FIRST.strides[1], 1, NULL),
	CASE(CONV, operands[LIBRARY_SECOND].strides[1], 1, "shapes are not those of a conv"),
	CASE(CONV_GRAD_INPUT, RESULT.dims[1], INT64_C(1) << 40, "shapes are not"),
};
static const LibraryCase *library_case; /* the case that add_library adds */

static void
add_library(FormatWriter *w)
{
	LibraryRecord r = {.call = tiny_call(library_case->kind)};

	memcpy((char *)&r.call + library_case->offset, &library_case->number, library_case->size);
	vec_push(w->arena, &w->library, r);
	w->kernels.at[K_DIFF].library = (uint32_t)w->library.n;
}
static void
spoil_bias(FormatWriter *w)
{
	LibraryRecord r = {.call = tiny_call(LIBRARY_DOT)};

	r.call.epilogue = EPILOGUE_BIAS;
	r.call.operands[LIBRARY_BIAS].offset = 1;
	vec_push(w->arena, &w->library, r);
	w->kernels.at[K_DIFF].library = (uint32_t)w->library.n;
}
static void
spoil_aux(FormatWriter *w)
{
	LibraryRecord r = {.call = tiny_call(LIBRARY_DOT)};

	r.call.epilogue = EPILOGUE_GELU_AUX;
	r.call.operands[LIBRARY_AUX].buffer = r.call.operands[LIBRARY_RESULT].buffer;
	vec_push(w->arena, &w->library, r);
	w->kernels.at[K_DIFF].library = (uint32_t)w->library.n;
}
static void
spoil_result(FormatWriter *w)
{
	LibraryRecord r = {.call = tiny_call(LIBRARY_DOT)};

	r.call.operands[LIBRARY_RESULT].buffer = 2;
	vec_push(w->arena, &w->library, r);
	w->kernels.at[K_DIFF].library = (uint32_t)w->library.n;
}
static void
spoil_library_index(FormatWriter *w)
{
	w->kernels.at[K_DIFF].library = 1;
}
/* A valid call is read and printed. With any other change to its numbers, reading is still safe. */
static void
check_library(const LibraryCase *c, const char *printed)
{
	Arena *arena = arena_new();
	FormatWriter *w = tiny_writer(arena);
	int64_t bytes;
	Text text = {0};
	Format f;

	library_case = c;
	add_library(w);
	void *blob;
	must(format_finish(w, &blob, &bytes));
	must(format_read(blob, bytes, &f));
	format_print(&text, &f, "schedule");
	assert_non_null(strstr(text.at, printed));
	text_free(&text);
	for (int64_t i = 0; i < bytes; i++)
		read_changed(blob, bytes, i, (char)0xff);
	arena_free(arena);
}

static void
test_library_calls(void **state)
{
	static const char *const printed[] = {
		"dot {x = f64[1,2] at 0, y = f64[2,1] at 1, z = f64[1,1] at 3}",
		"z = f64[1,1] at 3, epilogue = bias, bias = f64[1] at 2}",
		"conv {x = f64[1,1,2] at 0, w = f64[1,1,2] at 1, y = f64[1,1,1] at 3}",
		"y = f64[1,1,1] at 3, epilogue = bias, bias = f64[1] at 2}",
		"w = f64[1,1,2] at 1, dx = f64[1,1,2] at 3, low = [1]}",
		"dw = f64[1,1,2] at 3, dilation = [2]}",
		"z = f64[1,1] at 3, epilogue = gelu}",
		"z = f64[1,1] at 3, epilogue = dgelu, aux = f64[1,1] at 2}",
		"dot {x = f64[1,2] at 0",
		"conv {x = f64[1,1,2] at 0 by [2,1,1], w = f64[1,1,2] at 1, y",
	};
	int n = 0;

	for (int i = 0; i < COUNT(library_cases); i++)
		if (!library_cases[i].fault)
			check_library(&library_cases[i], printed[n++]);
	assert_int_equal(n, COUNT(printed));
}

/* ---- plans */
/* Adds a convolution with a scratch limit, and a plan that needs less scratch. */
static PlanRecord *
add_plan(FormatWriter *w)
{
	LibraryRecord r = {.call = tiny_call(LIBRARY_CONV), .scratch_limit = 4096};
	PlanRecord p = {.gpu = format_string(w, "NVIDIA H100"),
	                .capability = 90,
	                .processors = 132,
	                .version = format_string(w, "cuDNN 9.28.1"),
	                .text = format_string(w, "{\"engine\":62}"),
	                .scratch = 4001};

	vec_push(w->arena, &w->library, r);
	w->kernels.at[K_DIFF].library = (uint32_t)w->library.n;
	p.facts = plan_facts(&w->library.at[0], &p, w->strings.at);
	vec_push(w->arena, &w->plans, p);
	return &w->plans.at[0];
}

static void
test_plans(void **state)
{
	Arena *arena = arena_new();
	FormatWriter *w = tiny_writer(arena);
	Text text = {0};
	int64_t bytes, flips = 0;
	void *blob;
	Format f;

	(void)state;
	add_plan(w);
	must(format_finish(w, &blob, &bytes));
	must(format_read(blob, bytes, &f));
	assert_int_equal(f.n[SECTION_PLANS], 1);
	assert_string_equal(format_text(&f, f.plans[0].text), "{\"engine\":62}");
	assert_int_equal(format_plan_bytes(&f, NULL), 4032);
	assert_int_equal(format_plan_bytes(&f, "NVIDIA H100"), 4032);
	assert_int_equal(format_plan_bytes(&f, "another"), 0);
	format_print(&text, &f, "schedule");
	assert_non_null(
		strstr(text.at, "at 3} for NVIDIA H100: cuDNN 9.28.1, 4001 bytes of scratch\n"));
	format_print(&text, &f, "memory");
	assert_non_null(strstr(text.at, "  library    4032 on NVIDIA H100\n"));
	text_free(&text);
	for (int64_t i = 0; i < bytes; i++)
		read_changed(blob, bytes, i, (char)0xff);
	for (StrRef s = f.plans[0].text; f.strings[s]; s++, flips++) {
		((char *)f.strings)[s] ^= 1;
		expect_status(format_read(blob, bytes, &(Format){0}), EXIT_SYSTEM,
		              "plan 0: changed since it was made for library call 0");
		((char *)f.strings)[s] ^= 1;
	}
	assert_int_equal(flips, strlen("{\"engine\":62}"));
	arena_free(arena);
}

/* Tables without plans have no section for plans. */
static void
test_no_plans(void **state)
{
	Arena *arena = arena_new();
	int64_t bytes;
	char *blob = tiny_blob(arena, true, &bytes);
	FormatHeader *h = (FormatHeader *)(void *)blob;

	(void)state;
	assert_int_equal(h->n_sections, SECTION_PLANS);
	assert_int_equal(h->sections[0].offset, offsetof(FormatHeader, sections[SECTION_PLANS]));
	for (uint32_t n = 0; n < 2 * N_SECTIONS; n++) {
		h->n_sections = n;
		Status status = format_read(blob, bytes, &(Format){0});
		assert_int_equal(status == NULL, n == SECTION_PLANS);
		status_free(status);
	}
	arena_free(arena);
}

static void
spoil_plan_call(FormatWriter *w)
{
	add_plan(w)->library = 1;
}
static void
spoil_plan_scratch(FormatWriter *w)
{
	add_plan(w)->scratch = 4097;
}
static void
spoil_plan_gpu(FormatWriter *w)
{
	add_plan(w)->capability = 100;
}
static void
spoil_plan_version(FormatWriter *w)
{
	PlanRecord *p = add_plan(w);

	p->version = p->gpu;
}
static void
spoil_call_of_plan(FormatWriter *w)
{
	add_plan(w);
	w->library.at[0].call.low[0] = 1;
}
static void
spoil_plan_text(FormatWriter *w)
{
	add_plan(w)->text = 1 << 30;
}

static void
test_faults_are_named(void **state)
{
	(void)state;
	expect_fault(spoil_library_index, "kernel 0: library call 1 of 0");
	expect_fault(spoil_plan_call, "plan 0: library call 1 of 1");
	expect_fault(spoil_plan_scratch, "plan 0: 4097 bytes of scratch, its call may have 4096");
	expect_fault(spoil_plan_gpu, "plan 0: changed since it was made for");
	expect_fault(spoil_plan_version, "plan 0: changed since it was made for");
	expect_fault(spoil_call_of_plan, "plan 0: changed since it was made for");
	expect_fault(spoil_plan_text, "plan 0: string reference");
	expect_fault(spoil_bias, "16 bytes of f64, access 1; argument 2 has 8 of f64");
	expect_fault(spoil_result, "8 bytes of f64, access 2; argument 2 has 8 of f64, access 1");
	expect_fault(spoil_aux, "writes two operands into one buffer");
	for (int i = 0; i < COUNT(library_cases); i++) {
		library_case = &library_cases[i];
		if (library_case->fault)
			expect_fault(add_library, library_case->fault);
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_library_calls),
		cmocka_unit_test(test_plans),
		cmocka_unit_test(test_no_plans),
		cmocka_unit_test(test_faults_are_named),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
