/* The tables' facts about kernels: arguments, teams. A kernel that does not fit into the tables is refused by name. */
#include "codegen/codegen.h"
#include "codegen/emit/emit.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct {
	Arena *arena;
	Diag *diag;
	char *said; /* the text printed by the diag */
	size_t length;
	FILE *stream;
	Module *m;
	FormatWriter *w;
	bool ok;
} Case;

/* Makes the programs of a module that has places in memory. */
static bool
make_programs(const Case *c)
{
	const PassRow *const rows[] = {&pass_instructions, &pass_shard, &pass_sums, &pass_streams,
	                               &pass_events};
	const char *const disable[] = {NULL};
	PassManagerOptions options = {.disable = disable, .verify_each = true};
	Stage stage = STAGE_MEMORY;
	Pipeline p = {0};

	for (int i = 0; i < COUNT(rows); i++)
		vec_push(c->arena, &p, pass_call(c->arena, rows[i]));
	return pipeline_run(&p, c->m, &stage, &options, c->diag);
}

/* Opens the case in place, because the stream writes into the case until it is closed. */
static void
case_open(Case *c, const char *text)
{
	*c = (Case){.arena = arena_new()};
	c->stream = open_memstream(&c->said, &c->length);
	c->diag = diag_new("test", c->stream);
	c->m = module_parse(text, "tables", NULL, c->diag);
	fflush(c->stream);
	if (!c->m)
		fail_msg("%s", c->said);
	c->w = format_writer_new(c->arena);
	const Tables tables = {
		.m = c->m, .bindings = &(BindingInfo){"batch=1", 1}, .n_bindings = 1};
	c->ok = make_programs(c) && tables_write(c->w, &tables, c->diag);
	fflush(c->stream);
}

static void
case_close(Case *c)
{
	format_writer_free(c->w);
	module_free(c->m);
	diag_free(c->diag);
	fclose(c->stream);
	free(c->said);
	arena_free(c->arena);
}

static void
expect_argument(const Case *c, int i, int64_t bytes, DType dtype, uint32_t access)
{
	const KernelArgument *a = &c->w->kernel_arguments.at[i];

	assert_int_equal(a->bytes, bytes);
	assert_int_equal(a->dtype, dtype);
	assert_int_equal(a->access, access);
}

/* Only the library reads x1: the loops read another kernel's packed copy. Nothing reads x2. */
static const char library[] =
	"module @m {\n"
	"  kernel @k(x0: in f32[4,4], x1: in f32[4,4], x2: in s4[3], y0: inout f32[4,4]) flops 0 "
	"library dot {x = f32[4,4] at x0, y = f32[4,4] at x1, z = f32[4,4] at y0, beta = 1, c = f32[4,4] at y0} {\n"
	"    parallel v0 < 16 {\n"
	"      v1 = load x0[v0] : f32\n"
	"      store y0[v0] = v1\n"
	"    }\n"
	"  }\n"
	"}\n";

static void
test_arguments(void **state)
{
	Case c;
	case_open(&c, library);
	const KernelRecord *k = &c.w->kernels.at[0];

	(void)state;
	assert_true(c.ok);
	assert_int_equal(k->n_arguments, 4);
	expect_argument(&c, 0, 64, F32, ACCESS_READ);
	expect_argument(&c, 1, 64, F32, ACCESS_READ);
	expect_argument(&c, 2, 2, S4, 0);
	expect_argument(&c, 3, 64, F32, ACCESS_READ | ACCESS_WRITE);
	assert_int_equal(k->bytes, 128); /* bytes of the loops alone */
	assert_int_equal(k->team, 1);
	assert_int_equal(k->shared_bytes, 0);
	assert_true(kernel_facts(k, c.w->kernel_arguments.at) ==
	            kernel_code_facts(c.arena, c.m->kernels.at[0]));
	case_close(&c);
}

/* Three arrays of the team: with a gap behind each row, one per outer member, and one of a single member. */
static const char team[] = "module @m {\n"
			   "  kernel @k(x0: in f32[64], y0: out f32[64]) team 2x4 flops 0 {\n"
			   "    local all2 : f32[8,3] pad 1\n"
			   "    private own3 : f32[5]\n"
			   "    parallel v0 < 2 {\n"
			   "      team v1 < 2 {\n"
			   "        local outer4 : f64[4]\n"
			   "        team v2 < 4 {\n"
			   "          v3 = load x0[32*v0 + 16*v1 + v2] : f32\n"
			   "          store y0[32*v0 + 16*v1 + v2] = v3\n"
			   "        }\n"
			   "      }\n"
			   "    }\n"
			   "  }\n"
			   "}\n";

static void
test_team(void **state)
{
	Case c;
	case_open(&c, team);
	const KernelRecord *k = &c.w->kernels.at[0];

	(void)state;
	assert_true(c.ok);
	assert_int_equal(k->team, 8);
	/* 8 * (3 + 1) * 4 and 2 * 4 * 8 bytes, each at a multiple of 128. */
	assert_int_equal(k->shared_bytes, 256);
	assert_int_equal(k->iterations, 2);
	case_close(&c);
}

/* Every fact that the code relies on changes the hash. */
static void
test_facts(void **state)
{
	Case c;
	case_open(&c, library);
	KernelRecord k = c.w->kernels.at[0];
	KernelArgument *arguments = c.w->kernel_arguments.at;
	uint64_t facts = kernel_facts(&k, arguments);

	(void)state;
	k.iterations++;
	assert_true(kernel_facts(&k, arguments) != facts);
	k.iterations--;
	k.elements++;
	assert_true(kernel_facts(&k, arguments) != facts);
	k.elements--;
	k.n_arguments--;
	assert_true(kernel_facts(&k, arguments) != facts);
	k.n_arguments++;
	arguments[3].bytes--;
	assert_true(kernel_facts(&k, arguments) != facts);
	arguments[3].bytes++;
	k.flops++; /* the code does not rely on estimates */
	assert_true(kernel_facts(&k, arguments) == facts);
	case_close(&c);
}

/* The text of a launch of a kernel with n inputs. */
static char *
wide_text(int n)
{
	Text t = {0};

	text_add(&t, "module @m {\n  kernel @k(");
	for (int i = 0; i < n; i++)
		text_printf(&t, "x%d: in f32[1], ", i);
	text_add(&t, "y0: out f32[1]) flops 0 {\n    v0 = load x0[0] : f32\n    store y0[0] = v0\n"
	             "  }\n  func @f(%x: f32[1] at io+0) -> (f32[1]) role forward {\n"
	             "    %0 = launch ");
	for (int i = 0; i < n; i++)
		text_printf(&t, "%s%%x", i ? ", " : "");
	text_add(&t, " {kernel = @k} : f32[1] at io+64 loc \"/wide/Sum\"\n    return %0\n  }\n}\n");
	return t.at;
}

/* The instruction for the launch of a kernel that stores this number, or its loop's variable. */
static InstructionKind
kind_of_storing(const char *dtype, const char *made, const char *stored)
{
	Text t = {0};
	InstructionKind kind = N_INSTRUCTIONS;

	text_printf(
		&t,
		"module @m {\n  kernel @k(y0: out %s[4]) flops 0 {\n    parallel v0 < 4 {\n%s"
		"      store y0[v0] = %s\n    }\n  }\n  func @f() -> (%s[4]) role forward {\n"
		"    %%0 = launch {kernel = @k} : %s[4] at io+0 loc \"/zeros\"\n    return %%0\n  }\n}\n",
		dtype, made, stored, dtype, dtype);
	Case c;
	case_open(&c, t.at);
	assert_true(c.ok);
	for (int i = 0; i < c.w->instructions.n; i++)
		if (c.w->instructions.at[i].n_args == 1)
			kind = (InstructionKind)c.w->instructions.at[i].kind;
	case_close(&c);
	text_free(&t);
	return kind;
}

/* Only a kernel that stores nothing but +0 becomes a fill: -0 has a set bit, and a loop's variable is 0 only once. */
static void
test_zeros_need_no_kernel(void **state)
{
	(void)state;
	assert_int_equal(kind_of_storing("f32", "      v1 = const 0 : f32\n", "v1"), FILL_ZERO);
	assert_int_equal(kind_of_storing("s64", "      v1 = const 0 : s64\n", "v1"), FILL_ZERO);
	assert_int_equal(kind_of_storing("f32", "      v1 = const 1 : f32\n", "v1"), RUN_KERNEL);
	assert_int_equal(kind_of_storing("f32", "      v1 = const -0 : f32\n", "v1"), RUN_KERNEL);
	assert_int_equal(kind_of_storing("s64", "", "v0"), RUN_KERNEL);
}

static const Instruction *
launch_of(const FormatWriter *w)
{
	int i = 0;

	while (w->instructions.at[i].kind != RUN_KERNEL)
		i++;
	return &w->instructions.at[i];
}

static void
test_many_arguments(void **state)
{
	(void)state;
	for (int n = UINT16_MAX - 1; n <= 70000; n += 70000 - (UINT16_MAX - 1)) {
		char *text = wide_text(n);
		Case c;
		case_open(&c, text);
		bool fits = n < UINT16_MAX;
		assert_int_equal(c.ok, fits);
		if (fits) {
			assert_int_equal(launch_of(c.w)->n_args, UINT16_MAX);
		} else {
			assert_int_equal(diag_exit_code(c.diag), EXIT_UNSUPPORTED);
			assert_non_null(strstr(c.said,
			                       "node \"/wide/Sum\": its kernel @k has 70001 "
			                       "arguments, at most 65535"));
		}
		case_close(&c);
		memory_free(text);
	}
}

static void
test_many_targets(void **state)
{
	(void)state;
	for (int n = MAX_TARGETS; n <= MAX_TARGETS + 1; n++) {
		Text t = {0};
		text_add(&t, "module @m {\n");
		for (int i = 0; i < n; i++)
			text_printf(&t,
			            "  func @f%d(%%x: f32[1] at io+0) -> (f32[1]) role forward "
			            "target \"t%d\" {\n    return %%x\n  }\n",
			            i, i);
		text_add(&t, "}\n");
		Case c;
		case_open(&c, t.at);
		assert_int_equal(c.ok, n <= MAX_TARGETS);
		if (c.ok)
			assert_int_equal(c.w->targets.n, MAX_TARGETS);
		else
			assert_non_null(strstr(c.said,
			                       "programs for 33 targets, an executable has at "
			                       "most 32"));
		case_close(&c);
		text_free(&t);
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_arguments),      cmocka_unit_test(test_team),
		cmocka_unit_test(test_facts),          cmocka_unit_test(test_zeros_need_no_kernel),
		cmocka_unit_test(test_many_arguments), cmocka_unit_test(test_many_targets),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
