/* Custom gradients: calls whose backward pass is a given recipe. Their results are compared with formulas, with differences
 * of the surrogate function, and with PyTorch's numbers. */
#include "ir/ir.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct {
	Module *m;
	Diag *diag;
	Arena *arena;
} Case;

static void
open_case(Case *c, const char *text)
{
	*c = (Case){.diag = diag_new("test", stderr), .arena = arena_new()};
	c->m = module_parse(text, "gradients", NULL, c->diag);
	assert_non_null(c->m);
	assert_true(module_verify(c->m, c->diag));
}

static void
close_case(Case *c)
{
	module_free(c->m);
	diag_free(c->diag);
	arena_free(c->arena);
}

static EvalTensor
tensor(Case *c, const Value *param, const double *values)
{
	EvalTensor t = eval_tensor_new(c->arena, param->type);

	memcpy(t.f, values, sizeof(double) * (size_t)param->type->n);
	return t;
}

static EvalTensor *
run(Case *c, const Function *f, const double *const *args)
{
	EvalTensor *results = NEW_ARRAY(c->arena, EvalTensor, function_return(f)->n_operands);
	EvalTensor *in = NEW_ARRAY(c->arena, EvalTensor, f->params.n);
	Interp interp = interp_new(c->m, c->arena, false);

	for (int i = 0; i < f->params.n; i++)
		in[i] = tensor(c, f->params.at[i], args[i]);
	interp_run(&interp, f, in, results);
	return results;
}

/* The gradient of @f as a function of its operands, then its cotangents. */
static const Function *
gradient(Case *c)
{
	const char *why = NULL;
	Function *d = function_gradient(module_function(c->m, "f"), &why);

	assert_null(why);
	assert_true(module_verify(c->m, c->diag));
	return d;
}

static void
expect(const EvalTensor *got, const double *want, double tolerance)
{
	for (int64_t i = 0; i < got->type->n; i++)
		if (!(fabs(got->f[i] - want[i]) <= tolerance))
			fail_msg("element %lld: %.17g, expected %.17g", (long long)i, got->f[i],
			         want[i]);
}

/* ---- a rounding that gradients pass straight through */
static const char rounding[] = "func @identity(%x: f64[4]) -> f64[4] {\n"
			       "  return %x\n"
			       "}\n"
			       "func @through(%d: f64[4] is cotangent 0) -> f64[4] {\n"
			       "  return %d\n"
			       "}\n"
			       "func @round(%x: f64[4]) -> f64[4] surrogate @identity {\n"
			       "  %0 = round %x : f64[4]\n"
			       "  return %0\n"
			       "}\n"
			       "func @f(%x: f64[4]) -> f64[4] {\n"
			       "  %0 = mul %x, %x : f64[4]\n"
			       "  %1 = call %0 {callee = @round, gradient = @through} : f64[4]\n"
			       "  return %1\n"
			       "}\n"
			       "func @by_surrogate(%x: f64[4]) -> f64[4] {\n"
			       "  %0 = mul %x, %x : f64[4]\n"
			       "  %1 = call %0 {callee = @round} : f64[4]\n"
			       "  return %1\n"
			       "}\n";

static void
test_straight_through(void **state)
{
	Case c;
	const double x[] = {0.3, -1.2, 2.5, 0}, dy[] = {1, 2, 3, 4};
	const double dx[] = {0.6, -4.8, 15, 0}, y[] = {0, 1, 6, 0};
	const char *why = NULL;

	open_case(&c, rounding);
	expect(&run(&c, module_function(c.m, "f"), (const double *[]){x})[0], y, 0);
	expect(&run(&c, gradient(&c), (const double *[]){x, dy})[0], dx, 1e-12);
	/* without a recipe, the surrogate is differentiated instead */
	const Function *d = function_gradient(module_function(c.m, "by_surrogate"), &why);
	expect(&run(&c, d, (const double *[]){x, dy})[0], dx, 1e-12);
	close_case(&c);
}

/* ---- a learned scale: PyTorch's fake_quantize_learnable_per_tensor_affine, int2, s = 1, z = 0. Whether an element is
 * inside the range is decided by the rounded integer (PyTorch) or by x/s itself (LSQ). */
static const char *
learned_scale(Arena *arena, const char *inside)
{
	return arena_printf(
		arena,
		"func @fake_quant(%%x: f64[6], %%s: f64[6], %%z: f64[6]) -> f64[6] {\n"
		"  %%0 = div %%x, %%s : f64[6]\n"
		"  %%1 = round %%0 : f64[6]\n"
		"  %%2 = add %%1, %%z : f64[6]\n"
		"  %%lo = constant {value = f64[] [-2.0]} : f64[]\n"
		"  %%3 = broadcast %%lo {shape = [6]} : f64[6]\n"
		"  %%hi = constant {value = f64[] [1.0]} : f64[]\n"
		"  %%4 = broadcast %%hi {shape = [6]} : f64[6]\n"
		"  %%5 = max %%2, %%3 : f64[6]\n"
		"  %%6 = min %%5, %%4 : f64[6]\n"
		"  %%7 = sub %%6, %%z : f64[6]\n"
		"  %%8 = mul %%7, %%s : f64[6]\n"
		"  return %%8\n"
		"}\n"
		"func @recipe(%%x: f64[6] is operand 0, %%s: f64[6] is operand 1, %%z: f64[6] is operand 2, %%y: f64[6] is "
		"result 0, %%d: f64[6] is cotangent 0) -> (f64[6], f64[6], f64[6]) {\n"
		"  %%ratio = div %%x, %%s : f64[6]\n"
		"  %%rounded = round %%ratio : f64[6]\n"
		"  %%q = add %%%s, %%z : f64[6]\n"
		"  %%lo = constant {value = f64[] [-2.0]} : f64[]\n"
		"  %%low = broadcast %%lo {shape = [6]} : f64[6]\n"
		"  %%hi = constant {value = f64[] [1.0]} : f64[]\n"
		"  %%high = broadcast %%hi {shape = [6]} : f64[6]\n"
		"  %%0 = sub %%x, %%x : f64[6]\n"
		"  %%below = lt %%q, %%low : bool[6]\n"
		"  %%above = gt %%q, %%high : bool[6]\n"
		"  %%1 = select %%above, %%0, %%d : f64[6]\n"
		"  %%dx = select %%below, %%0, %%1 : f64[6]\n"
		"  %%2 = sub %%y, %%x : f64[6]\n"
		"  %%3 = div %%2, %%s : f64[6]\n"
		"  %%4 = sub %%high, %%z : f64[6]\n"
		"  %%5 = sub %%low, %%z : f64[6]\n"
		"  %%6 = select %%above, %%4, %%3 : f64[6]\n"
		"  %%7 = select %%below, %%5, %%6 : f64[6]\n"
		"  %%ds = mul %%7, %%d : f64[6]\n"
		"  %%8 = neg %%s : f64[6]\n"
		"  %%9 = select %%above, %%8, %%0 : f64[6]\n"
		"  %%10 = select %%below, %%8, %%9 : f64[6]\n"
		"  %%dz = mul %%10, %%d : f64[6]\n"
		"  return %%dx, %%ds, %%dz\n"
		"}\n"
		"func @f(%%x: f64[6], %%s: f64[6], %%z: f64[6]) -> f64[6] {\n"
		"  %%0 = call %%x, %%s, %%z {callee = @fake_quant, gradient = @recipe} : f64[6]\n"
		"  return %%0\n"
		"}\n",
		inside);
}

/* PyTorch's results for its learnable fake-quant kernel, and where LSQ (arXiv:1902.08153) differs. */
static void
test_learned_scale(void **state)
{
	static const double x[] = {-3, -1.6, 0.4, 0.6, 1.2, 5}, s[] = {1, 1, 1, 1, 1, 1},
			    z[] = {0, 0, 0, 0, 0, 0}, dy[] = {1, 1, 1, 1, 1, 1};
	static const struct {
		const char *inside;
		double dx[6], ds[6], dz[6];
	} modes[] = {
		{"rounded",
	         {0, 1, 1, 1, 1, 0},
	         {-2, -0.4, -0.4, 0.4, -0.2, 1},
	         {-1, 0, 0, 0, 0, -1}},
		{"ratio", {0, 1, 1, 1, 0, 0}, {-2, -0.4, -0.4, 0.4, 1, 1}, {-1, 0, 0, 0, -1, -1}},
	};

	for (int k = 0; k < COUNT(modes); k++) {
		Case c;
		Arena *arena = arena_new();
		open_case(&c, learned_scale(arena, modes[k].inside));
		const EvalTensor *d = run(&c, gradient(&c), (const double *[]){x, s, z, dy});
		expect(&d[0], modes[k].dx, 1e-12);
		expect(&d[1], modes[k].ds, 1e-12);
		expect(&d[2], modes[k].dz, 1e-12);
		close_case(&c);
		arena_free(arena);
	}
}

/* ---- a product in bf16 with a backward pass in f32 */
static const char product[] =
	"func @dot(%x: f32[2,3], %w: f32[3,2]) -> f32[2,2] {\n"
	"  %0 = cast %x {to = bf16} : bf16[2,3]\n"
	"  %1 = cast %w {to = bf16} : bf16[3,2]\n"
	"  %2 = dot %0, %1 {x_contract = [1], y_contract = [0]} : bf16[2,2]\n"
	"  %3 = cast %2 {to = f32} : f32[2,2]\n"
	"  return %3\n"
	"}\n"
	"func @backward(%d: f32[2,2] is cotangent 0, %x: f32[2,3] is operand 0, %w: f32[3,2] is operand 1) -> "
	"(f32[2,3], f32[3,2]) {\n"
	"  %0 = dot %d, %w {x_contract = [1], y_contract = [1]} : f32[2,3]\n"
	"  %1 = dot %x, %d {x_contract = [0], y_contract = [0]} : f32[3,2]\n"
	"  return %0, %1\n"
	"}\n"
	"func @f(%x: f32[2,3], %w: f32[3,2]) -> f32[2,2] {\n"
	"  %0 = call %x, %w {callee = @dot, gradient = @backward} : f32[2,2]\n"
	"  return %0\n"
	"}\n";

static void
test_backward_of_another_type(void **state)
{
	Case c;
	/* 1 + 2^-10 rounds to 1 in bf16, and is exact in f32 */
	const double e = 1.0 + 1.0 / 1024, x[] = {e, 0, 0, 0, e, 0}, w[] = {e, 0, 0, e, 0, 0};
	const double dy[] = {1, 0, 0, 1}, y[] = {1, 0, 0, 1};
	const double dx[] = {e, 0, 0, 0, e, 0}, dw[] = {e, 0, 0, e, 0, 0};

	open_case(&c, product);
	expect(&run(&c, module_function(c.m, "f"), (const double *[]){x, w})[0], y, 0);
	const EvalTensor *d = run(&c, gradient(&c), (const double *[]){x, w, dy});
	expect(&d[0], dx, 0);
	expect(&d[1], dw, 0);
	close_case(&c);
}

/* ---- DoRA's norm: a direction v/|v|, differentiated as if |v| were constant. arXiv:2402.09353, section 4.3 */
static const char detached[] =
	"func @direction(%v: f64[3]) -> (f64[3], f64[3]) {\n"
	"  %0 = mul %v, %v : f64[3]\n"
	"  %1 = reduce %0 {kind = sum, axes = [0]} : f64[]\n"
	"  %2 = sqrt %1 : f64[]\n"
	"  %3 = broadcast %2 {shape = [3]} : f64[3]\n"
	"  %4 = div %v, %3 : f64[3]\n"
	"  return %4, %3\n"
	"}\n"
	"func @as_a_number(%norm: f64[3] is result 1, %d: f64[3] is cotangent 0) -> f64[3] {\n"
	"  %0 = div %d, %norm : f64[3]\n"
	"  return %0\n"
	"}\n"
	"func @f(%v: f64[3]) -> f64[3] {\n"
	"  %0, %1 = call %v {callee = @direction, gradient = @as_a_number} : f64[3], f64[3]\n"
	"  %2 = mul %0, %0 : f64[3]\n"
	"  return %2\n"
	"}\n"
	/* the same by a value that stops gradients */
	"func @stopped(%v: f64[3]) -> f64[3] {\n"
	"  %0 = mul %v, %v : f64[3]\n"
	"  %1 = reduce %0 {kind = sum, axes = [0]} : f64[]\n"
	"  %2 = sqrt %1 : f64[]\n"
	"  %3 = stop_gradient %2 : f64[]\n"
	"  %4 = broadcast %3 {shape = [3]} : f64[3]\n"
	"  %5 = div %v, %4 : f64[3]\n"
	"  %6 = mul %5, %5 : f64[3]\n"
	"  return %6\n"
	"}\n";

static void
test_detached_norm(void **state)
{
	Case c;
	const double v[] = {1, 2, 2}, dy[] = {1, -1, 0.5};
	const double dv[] = {2.0 / 9, -4.0 / 9, 2.0 / 9};
	const char *why = NULL;

	open_case(&c, detached);
	expect(&run(&c, gradient(&c), (const double *[]){v, dy})[0], dv, 1e-15);
	const Function *d = function_gradient(module_function(c.m, "stopped"), &why);
	expect(&run(&c, d, (const double *[]){v, dy})[0], dv, 1e-15);
	close_case(&c);
}

/* ---- every custom gradient against differences of its surrogate */
typedef struct {
	const char *text, *f, *surrogate;
	int n, n_args;
	double args[3][6];
} Pair;

static void
check_differences(Case *c, const Pair *p)
{
	const Function *f = module_function(c->m, p->f), *s = module_function(c->m, p->surrogate);
	const char *why = NULL;
	const Function *d = function_gradient((Function *)f, &why);
	const double ones[] = {1, 1, 1, 1, 1, 1}, h = 1e-6;
	double args[3][6];
	const double *at[] = {args[0], args[1], args[2]},
		     *with[] = {args[0], args[1], args[2], NULL};

	memcpy(args, p->args, sizeof(args));
	with[p->n_args] = ones;
	const EvalTensor *got = run(c, d, with);
	for (int a = 0; a < p->n_args; a++)
		for (int i = 0; i < p->n; i++) {
			double old = args[a][i], difference = 0;
			for (int side = -1; side <= 1; side += 2) {
				args[a][i] = old + side * h;
				const EvalTensor *y = run(c, s, at);
				for (int k = 0; k < p->n; k++)
					difference += side * y->f[k] / (2 * h);
			}
			args[a][i] = old;
			if (fabs(difference - got[a].f[i]) > 1e-4)
				fail_msg("%s, operand %d, element %d: %g, differences %g", p->f, a,
				         i, got[a].f[i], difference);
		}
}

/* The fake-quantizer with the identity in place of the rounding, away from bounds and ties. */
static const char smooth_quant[] = "func @smooth(%x: f64[6], %s: f64[6], %z: f64[6]) -> f64[6] {\n"
				   "  %0 = div %x, %s : f64[6]\n"
				   "  %1 = round %0 : f64[6]\n"
				   "  %2 = sub %1, %0 : f64[6]\n"
				   "  %error = stop_gradient %2 : f64[6]\n"
				   "  %3 = add %0, %error : f64[6]\n"
				   "  %4 = mul %3, %s : f64[6]\n"
				   "  return %4\n"
				   "}\n";

static void
test_differences_of_surrogates(void **state)
{
	const Pair through = {rounding, "round", "identity", 4, 1, {{0.3, -1.2, 2.6, 0.1}}};
	Case c;

	open_case(&c, rounding);
	check_differences(&c, &through);
	close_case(&c);
	/* inside the range, reverse mode of the surrogate equals the recipe */
	Arena *arena = arena_new();
	const double x[] = {-1.6, -0.7, 0.4, 0.6, -1.2, 0.9}, s[] = {1, 1.1, 0.9, 1, 1, 1},
		     z[] = {0, 0, 0, 0, 0, 0}, dy[] = {1, 2, 3, 4, 5, 6};
	const char *why = NULL;
	open_case(&c, arena_printf(arena, "%s%s", learned_scale(arena, "rounded"), smooth_quant));
	const EvalTensor *own = run(&c, gradient(&c), (const double *[]){x, s, z, dy});
	const Function *d = function_gradient(module_function(c.m, "smooth"), &why);
	const EvalTensor *other = run(&c, d, (const double *[]){x, s, z, dy});
	for (int i = 0; i < 3; i++)
		expect(&own[i], other[i].f, 1e-12);
	close_case(&c);
	arena_free(arena);
}

/* ---- a user's function with the name of a derivative is not taken for one */
static void
test_names_mean_nothing(void **state)
{
	Case c;
	const double x[] = {1, 2}, dy[] = {1, 1}, dx[] = {2, 4};

	open_case(&c, "func @f.grad(%x: f64[2], %d.0: f64[2]) -> f64[2] {\n"
	              "  %0 = neg %x : f64[2]\n"
	              "  return %0\n"
	              "}\n"
	              "func @f(%d.0: f64[2]) -> f64[2] {\n"
	              "  %0 = mul %d.0, %d.0 : f64[2]\n"
	              "  return %0\n"
	              "}\n");
	const Function *d = gradient(&c);
	assert_ptr_not_equal(d, module_function(c.m, "f.grad"));
	expect(&run(&c, d, (const double *[]){x, dy})[0], dx, 0);
	assert_ptr_equal(gradient(&c), d); /* made only once */
	close_case(&c);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_straight_through),
		cmocka_unit_test(test_learned_scale),
		cmocka_unit_test(test_backward_of_another_type),
		cmocka_unit_test(test_detached_norm),
		cmocka_unit_test(test_differences_of_surrogates),
		cmocka_unit_test(test_names_mean_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
