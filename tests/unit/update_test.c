/* What optimizers' rows build with, as kernels compute it. */
#include "codegen/codegen.h"
#include "passes/pass.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* @f(t) returns 1 - beta1^t; its kernel. */
static const Kernel *
bias_correction_kernel(Module *m, Arena *arena, Diag *diag)
{
	static const PassRow *const rows[] = {&pass_simplify, &pass_legalize, &pass_fuse,
	                                      &pass_lower};
	Function *f = function_new(m, "f");
	Builder b = {.m = m, .f = f};
	Update u = {.b = &b, .t = function_param(f, type_scalar(m, F64), "t")};
	Value *correction = update_bias_correction(&u, SCALAR_BETA1);
	PassManagerOptions o = {.verify_each = true};
	Stage stage = STAGE_TRAIN;
	Pipeline p = {0};

	b_return(&b, 1, &correction);
	for (int i = 0; i < COUNT(rows); i++)
		vec_push(arena, &p, pass_call(arena, rows[i]));
	assert_true(pipeline_run(&p, m, &stage, &o, diag));
	assert_int_equal(m->kernels.n, 1);
	return m->kernels.at[0];
}

/* As C's within 1e-12, for which C's own difference needs a beta that is not too near 1; and within a few units of the
 * last place of what is exact. */
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

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_bias_corrections),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
