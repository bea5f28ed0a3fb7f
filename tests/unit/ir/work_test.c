/* What kernels ask of a machine (ir/loop/work.c), against numbers worked out by hand. Instructions are compared as ratios of two
 * kernels, because their weights are fitted. */
#include "ir/loop/loop.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* The work of the kernel with this head and body. */
static KernelWork
work_of(const char *head, const char *body)
{
	Arena *arena = arena_new();
	Diag *diag = diag_new("test", stderr);
	Module *m = module_parse(arena_printf(arena,
	                                      "module @m {\n  kernel @k(%s flops 0 {\n%s  }\n}\n",
	                                      head, body),
	                         "test.gir", strmap_new(arena), diag);

	assert_non_null(m);
	assert_true(kernel_verify(m, m->kernels.at[0], diag));
	KernelWork w = kernel_work(m->kernels.at[0]);
	module_free(m);
	diag_free(diag);
	arena_free(arena);
	return w;
}

static void
assert_near(double got, double want)
{
	if (fabs(got - want) > 1e-9 * fmax(fabs(want), 1))
		fail_msg("%.15g is not %.15g", got, want);
}

#define COPY_BODY(load, store)                                                            \
	"parallel v0 < 16 {\n vector v1 < 64 {\n v2 = load " load " : f32\n store " store \
	" = v2\n }\n }\n"

static void
test_bytes(void **state)
{
	(void)state;
	/* each element once */
	assert_near(work_of("x0: in f32[1024], y0: out f32[1024])",
	                    COPY_BODY("x0[64*v0 + v1]", "y0[64*v0 + v1]"))
	                    .bytes,
	            8192);
	/* two bytes each */
	assert_near(work_of("x0: in bf16[1024], y0: out bf16[1024])",
	                    COPY_BODY("x0[64*v0 + v1]", "y0[64*v0 + v1]"))
	                    .bytes,
	            4096);
	/* 64 elements that all parts read come from memory once */
	assert_near(
		work_of("x0: in f32[64], y0: out f32[1024])", COPY_BODY("x0[v1]", "y0[64*v0 + v1]"))
			.bytes,
		4 * (64 + 1024));
	/* of a large table only what is read */
	assert_near(work_of("x0: in f32[100000], y0: out f32[1024])",
	                    COPY_BODY("x0[64*v0 + v1]", "y0[64*v0 + v1]"))
	                    .bytes,
	            8192);
}

static void
test_instructions(void **state)
{
	static const char head[] = "x0: in f32[1024], y0: out f32[1024])";
	double copy = work_of(head, COPY_BODY("x0[64*v0 + v1]", "y0[64*v0 + v1]")).instructions;
	double half =
		work_of(head,
	                "parallel v0 < 16 {\n vector v1 < 32 {\n v2 = load x0[64*v0 + v1] : f32\n"
	                " store y0[64*v0 + v1] = v2\n }\n vector v3 < 32 {\n v4 = const 0.0 : f32\n"
	                " store y0[64*v0 + v3 + 32] = v4\n }\n }\n")
			.instructions;
	double with_exp =
		work_of(head,
	                "parallel v0 < 16 {\n vector v1 < 64 {\n v2 = load x0[64*v0 + v1] : f32\n"
	                " v3 = exp v2 : f32\n store y0[64*v0 + v1] = v3\n }\n }\n")
			.instructions;
	double triangle =
		work_of(head,
	                "parallel v0 < 16 {\n for v1 < min(64, 4*v0 + 4) {\n"
	                " v2 = load x0[64*v0 + v1] : f32\n store y0[64*v0 + v1] = v2\n }\n }\n")
			.instructions;

	(void)state;
	/* a load and a store of each element, at 4.1 each; a division is nine operations of 1.15 */
	assert_near(copy, 1024 * 2 * 4.1);
	double divided =
		work_of(head,
	                "parallel v0 < 16 {\n vector v1 < 64 {\n v2 = load x0[64*v0 + v1] : f32\n"
	                " v3 = div v2, v2 : f32\n store y0[64*v0 + v1] = v3\n }\n }\n")
			.instructions;
	assert_near(divided - copy, 1024 * 9 * 1.15);
	assert_near(half / copy, 0.75);
	assert_true(with_exp > copy + 1024 * 10 && with_exp < copy + 1024 * 60);
	assert_near(triangle / copy, 34.0 / 64); /* rows of 4, 8, .. 64 elements */
}

/* A tile of 16 x 32 takes products of 16 elements from each of four blocks. */
static void
test_matrix_units(void **state)
{
	KernelWork w = work_of(
		"x0: in f32[16,64], x1: in f32[64,32], y0: out f32[16,32]) team 32",
		"local a2 : f32[16,16]\n local b3 : f32[16,32]\n tile acc4 : f32[16,32]\n"
		"for v0 < 4 {\n mma acc4, a2[0 : 16, 1], b3[0 : 32, 1] k 16\n }\n"
		"each v1, v2 of acc4 {\n v3 = load acc4[v1, v2] : f32\n store y0[32*v1 + v2] = v3\n }\n");

	(void)state;
	assert_near(w.matrix_flops, 4 * 2.0 * 16 * 32 * 16);
}

/* A team of 256 with a loop over 64 elements: a quarter of its members works. */
static void
test_guards(void **state)
{
	static const char head[] = "x0: in f32[64], y0: out f32[64]) team 256";
	KernelWork w = work_of(head,
	                       "team v0 < 256 {\n for v1 < min(1, -1*v0 + 64) {\n"
	                       " v2 = load x0[v0 + v1] : f32\n store y0[v0 + v1] = v2\n }\n }\n");
	double one = work_of("x0: in f32[64], y0: out f32[64])",
	                     "for v0 < 64 {\n v1 = load x0[v0] : f32\n store y0[v0] = v1\n }\n")
	                     .instructions;

	(void)state;
	assert_true(fabs(w.instructions / one - 1) < 0.01);
	assert_near(w.steps, 1);
}

/* Team loops inside a loop wait for each other; those of an unrolled loop do not. */
static void
test_steps(void **state)
{
	static const char head[] = "x0: in f32[1024], y0: out f32[1024]) team 64";
	static const char *const loops[] = {"for", "unroll"};
	static const double want[] = {16, 1};

	(void)state;
	for (int i = 0; i < COUNT(loops); i++) {
		char body[256];
		snprintf(body, sizeof(body),
		         "%s v0 < 16 {\n team v1 < 64 {\n v2 = load x0[64*v0 + v1] : f32\n"
		         " store y0[64*v0 + v1] = v2\n }\n }\n",
		         loops[i]);
		assert_near(work_of(head, body).steps, want[i]);
	}
}

/* A loop below a number from memory: the parts divide its iterations among them. */
static void
test_segments(void **state)
{
	double one =
		work_of("x0: in f32[1024], y0: out f32[1024])",
	                "parallel v0 < 1024 {\n v1 = load x0[v0] : f32\n store y0[v0] = v1\n }\n")
			.instructions;
	double many =
		work_of("x0: in f32[1024], x1: in s64[1024], y0: out f32[1024])",
	                "parallel v0 < 1024 {\n v1 = load x1[v0] : s64\n for v2 < min(4096, v1) {\n"
	                " v3 = load x0[v0] : f32\n store y0[v0] = v3\n }\n }\n")
			.instructions;

	(void)state;
	assert_near(many / one,
	            4 + 0.5); /* 4096 iterations for 1024 parts, and the load of the bound */
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_bytes),    cmocka_unit_test(test_instructions),
		cmocka_unit_test(test_guards),   cmocka_unit_test(test_steps),
		cmocka_unit_test(test_segments), cmocka_unit_test(test_matrix_units),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
