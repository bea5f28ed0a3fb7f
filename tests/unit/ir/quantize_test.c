/* Codes: single numbers against ONNX's formula in f32, the gradient of fake_quantize against numbers worked out by hand, and
 * group scales against a naive index computation. */
#include "ir/ir.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* https://onnx.ai/onnx/operators/onnx__QuantizeLinear.html, computed in C's f32. */
static int64_t
oracle(float x, float scale, int zero, int low, int high, bool reciprocal)
{
	volatile float ratio = reciprocal ? 1 / scale : x / scale;

	if (reciprocal)
		ratio *= x;
	float code = nearbyintf(ratio) + (float)zero;
	return isnan(code)          ? 0
	       : code < (float)low  ? low
	       : code > (float)high ? high
	                            : (int64_t)code;
}

static void
test_codes(void **state)
{
	static const struct {
		DType type;
		int low, high;
	} rows[] = {{S8, -128, 127}, {U8, 0, 255}, {S4, -8, 7},          {U4, 0, 15},
	            {S2, -2, 1},     {U2, 0, 3},   {S16, -32768, 32767}, {U16, 0, 65535}};
	int differ = 0;

	(void)state;
	srand48(11);
	for (int i = 0; i < 1000000; i++) {
		float scale = (float)exp(8 * drand48() - 6);
		float x = (float)((drand48() - 0.5) * 600) * scale;
		if (i % 3 == 0) /* a tie, or close to a tie */
			x = ((float)(lrand48() % 512 - 256) + 0.5f) * scale;
		if (i % 1000 == 0)
			x = (float[]){NAN, INFINITY, -INFINITY, -0.0f}[i / 1000 % 4];
		int k = (int)(lrand48() % COUNT(rows)),
		    zero = rows[k].low + (int)(lrand48() % (rows[k].high - rows[k].low + 1));
		int64_t of[2];
		for (int r = 0; r < 2; r++) {
			of[r] = dtype_quantize(rows[k].type, F32, r, x, scale, zero);
			assert_int_equal(of[r],
			                 oracle(x, scale, zero, rows[k].low, rows[k].high, r));
		}
		differ += of[0] != of[1];
	}
	assert_true(differ >
	            100); /* dividing and multiplying by the reciprocal give different results */
}

/* ---- the gradient of fake_quantize */
static EvalTensor
vector(Arena *arena, Type t, const double *values)
{
	EvalTensor x = eval_tensor_new(arena, t);

	memcpy(x.f, values, sizeof(double) * (size_t)t->n);
	return x;
}

static void
check_fixture(const char *clip, const double *dx, const double *ds, const double *dz)
{
	static const double x[] = {-3, -1.6, 0.4, 0.6, 1.2, 5}, one[] = {1, 1, 1, 1, 1, 1}, none[6];
	const double *const args[] = {x, one, none, one}, *const want[] = {dx, ds, dz};
	Arena *arena = arena_new();
	Diag *diag = diag_new("test", stderr);
	const char *why = NULL;
	Module *m = module_parse(
		arena_printf(arena,
	                     "func @f(%%x: f64[6], %%s: f64[6], %%z: f64[6]) -> f64[6] {\n"
	                     "  %%0 = fake_quantize %%x, %%s, %%z {to = s2, clip = %s} : f64[6]\n"
	                     "  return %%0\n"
	                     "}\n",
	                     clip),
		"fixture", NULL, diag);
	assert_non_null(m);
	const Function *d = function_gradient(module_function(m, "f"), &why);
	assert_non_null(d);
	EvalTensor in[4], out[3];
	for (int i = 0; i < 4; i++)
		in[i] = vector(arena, d->params.at[i]->type, args[i]);
	Interp interp = interp_new(m, arena, false);
	interp_run(&interp, d, in, out);
	for (int k = 0; k < 3; k++)
		for (int i = 0; i < 6; i++)
			if (!(fabs(out[k].f[i] - want[k][i]) < 1e-12))
				fail_msg("clip = %s, gradient %d, element %d: %g, want %g", clip, k,
				         i, out[k].f[i], want[k][i]);
	module_free(m);
	diag_free(diag);
	arena_free(arena);
}

/* Two bits, scale 1, zero point 0: PyTorch's kernel and LSQ differ where the code is inside the range and the ratio is not. */
static void
test_gradients(void **state)
{
	static const double torch[3][6] = {
		{0, 1, 1, 1, 1, 0}, {-2, -0.4, -0.4, 0.4, -0.2, 1}, {-1, 0, 0, 0, 0, -1}};
	static const double lsq[3][6] = {
		{0, 1, 1, 1, 0, 0}, {-2, -0.4, -0.4, 0.4, 1, 1}, {-1, 0, 0, 0, -1, -1}};

	(void)state;
	check_fixture("rounded", torch[0], torch[1], torch[2]);
	check_fixture("real", lsq[0], lsq[1], lsq[2]);
}

/* ---- b_spread, and the walk of base/numbers/groups.c */
static void
check_groups(Ints shape, Ints group)
{
	Arena *arena = arena_new();
	Module *m = module_new("groups");
	Function *f = function_new(m, "f");
	Builder b = {.m = m, .f = f};
	int64_t counts[MAX_RANK], n = 1;

	for (int i = 0; i < shape.n; i++)
		n *= counts[i] = (shape.at[i] + group.at[i] - 1) / group.at[i];
	Value *v = function_param(f, type_new(m, F64, 1, &n), "v"),
	      *y = b_spread(&b, v, shape, group);
	b_return(&b, 1, &y);
	EvalTensor in = eval_tensor_new(arena, v->type), out;
	for (int64_t i = 0; i < n; i++)
		in.f[i] = (double)i;
	Interp interp = interp_new(m, arena, false);
	interp_run(&interp, f, &in, &out);
	assert_int_equal(y->type->rank, shape.n);
	Groups groups = {shape.n, shape.at, group.at};
	assert_int_equal(groups_count(&groups), n);
	GroupWalk walk = group_walk(&groups);
	for (int64_t k = 0; k < y->type->n; k++, group_next(&walk)) {
		int64_t rest = k, flat = 0, stride = 1;
		for (int i = shape.n - 1; i >= 0; i--) {
			flat += rest % shape.at[i] / group.at[i] * stride;
			stride *= counts[i];
			rest /= shape.at[i];
		}
		assert_true(out.f[k] == (double)flat);
		assert_int_equal(walk.group, flat);
	}
	module_free(m);
	arena_free(arena);
}

static void
test_groups(void **state)
{
	const Ints shape = {.n = 3, .at = {5, 7, 4}};

	(void)state;
	for (int64_t i = 1; i <= 5; i++)
		for (int64_t j = 1; j <= 7; j++)
			for (int64_t k = 1; k <= 4; k++)
				check_groups(shape, (Ints){.n = 3, .at = {i, j, k}});
	check_groups((Ints){0}, (Ints){0});
	check_groups((Ints){.n = 2, .at = {1, 3}}, (Ints){.n = 2, .at = {1, 2}});
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_codes),
		cmocka_unit_test(test_gradients),
		cmocka_unit_test(test_groups),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
