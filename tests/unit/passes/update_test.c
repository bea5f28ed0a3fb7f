/* The building blocks of optimizers' rows, as kernels compute them; and kernels of a rank that holds a part of a unit. */
#include "codegen/codegen.h"
#include "ir/loop/loop.h"
#include "passes/pass.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* The only kernel of the module's function. */
static const Kernel *
only_kernel(Module *m, Arena *arena, Diag *diag)
{
	static const PassRow *const rows[] = {&pass_simplify, &pass_legalize, &pass_fuse,
	                                      &pass_lower};
	PassManagerOptions o = {.verify_each = true};
	Stage stage = STAGE_TRAIN;
	Pipeline p = {0};

	for (int i = 0; i < COUNT(rows); i++)
		vec_push(arena, &p, pass_call(arena, rows[i]));
	assert_true(pipeline_run(&p, m, &stage, &o, diag));
	assert_int_equal(m->kernels.n, 1);
	return m->kernels.at[0];
}

/* The kernel of @f(t), which returns 1 - beta1^t. */
static const Kernel *
bias_correction_kernel(Module *m, Arena *arena, Diag *diag)
{
	Function *f = function_new(m, "f");
	Builder b = {.m = m, .f = f};
	Update u = {.b = &b, .t = function_param(f, type_scalar(m, F64), "t")};
	Value *correction = update_bias_correction(&u, SCALAR_BETA1);

	b_return(&b, 1, &correction);
	return only_kernel(m, arena, diag);
}

/* Equal to C's result within 1e-12, if beta is not so near to 1 that C's own difference loses digits; and within a few units
 * in the last place of the exact result. */
static void
test_bias_corrections(void **state)
{
	static const double betas[] = {0, 1e-3, 0.5, 0.9, 0.99, 0.999, 0.9999};
	Arena *arena = arena_new();
	Diag *diag = diag_new("test", stderr);
	Module *m = module_new("m");
	const Kernel *k = bias_correction_kernel(m, arena, diag);
	Scalar scalars[N_SCALARS] = {0};

	for (int i = 0; i < COUNT(betas); i++)
		for (int n = 1; n <= 100000; n += n < 2000 ? 1 : 97) {
			double t = n, got, c = 1 - pow(betas[i], t);
			double exact = (double)-expm1l(t * logl(betas[i]));

			scalars[SCALAR_BETA1].f = betas[i];
			kernel_interpret(k, (void *[]){&t, &got}, scalars, 0, k->iterations);
			if (!(fabs(got - c) <= 1e-12 * c) || !(fabs(got - exact) <= 1e-15 * exact))
				fail_msg("1 - %g^%d: %.17g, C's %.17g, exact %.17g", betas[i], n,
				         got, c, exact);
		}
	module_free(m);
	diag_free(diag);
	arena_free(arena);
}

/* An update with one random number per element: p - lr g (1/2 + random). */
static void
build_noisy_update(Module *m, int64_t n)
{
	Function *f = function_new(m, "f");
	Builder b = {.m = m, .f = f};
	Type t = type_new(m, F32, 1, &n);
	RandomAttr noise = {F32, ints_of_type(t), {.stream = 7, .axis = 0, .rows = n}};
	Value *p = function_param(f, t, "p"), *g = function_param(f, t, "g");
	Value *counter[] = {function_hyperparameter(f, SCALAR_SEED),
	                    function_hyperparameter(f, SCALAR_STEP),
	                    function_hyperparameter(f, SCALAR_SHARD_FIRST)};
	Value *random = build(&b, OP_random, 3, counter, &noise);
	Value *lr = b_cast(&b, function_hyperparameter(f, SCALAR_LR), F32);
	Value *step = b_binary(&b, OP_mul, b_broadcast(&b, lr, ints_of_type(t), (Ints){0}), g);

	step = b_binary(&b, OP_mul, step, b_binary(&b, OP_add, random, b_splat(&b, t, 0.5)));
	Value *result = b_binary(&b, OP_sub, p, step);
	b_return(&b, 1, &result);
}

/* Two ranks with half of the elements each compute the same as one rank with all. Each runs the iterations of its own
 * elements, over its own memory, and random numbers count from shard_first. */
static void
test_shards(void **state)
{
	enum { BLOCKS = 34, N = BLOCKS * UNIT_BLOCK, HALF = N / 2 };
	Arena *arena = arena_new();
	Diag *diag = diag_new("test", stderr);
	Module *m = module_new("m");
	Scalar scalars[N_SCALARS] = {[SCALAR_LR].f = 0.1, [SCALAR_SEED].u = 3, [SCALAR_STEP].u = 5};
	float *p = NEW_ARRAY(arena, float, N), *g = NEW_ARRAY(arena, float, N);
	float *whole = NEW_ARRAY(arena, float, N), *half = NEW_ARRAY(arena, float, HALF);

	build_noisy_update(m, N);
	const Kernel *k = only_kernel(m, arena, diag);
	assert_int_equal(N % k->iterations, 0);
	assert_int_equal(UNIT_BLOCK % (N / k->iterations), 0);
	assert_true(k->iterations > BLOCKS); /* cut more finely than into blocks of units */
	for (int i = 0; i < N; i++) {
		p[i] = (float)(i % 1000) / 100;
		g[i] = (float)(i % 77) - 30;
	}
	kernel_interpret(k, (void *[]){p, g, whole}, scalars, 0, k->iterations);
	for (int rank = 0; rank < 2; rank++) {
		scalars[SCALAR_SHARD_FIRST].u = (uint64_t)rank * HALF;
		kernel_interpret(k, (void *[]){p + rank * HALF, g + rank * HALF, half}, scalars, 0,
		                 k->iterations / 2);
		assert_memory_equal(half, whole + rank * HALF, sizeof(float) * HALF);
	}
	assert_memory_not_equal(whole, p, sizeof(float) * N);
	module_free(m);
	diag_free(diag);
	arena_free(arena);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_bias_corrections),
		cmocka_unit_test(test_shards),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
