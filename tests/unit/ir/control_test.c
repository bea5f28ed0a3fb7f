/* call, loop and cond: their results, and their gradients, including custom gradients, against central differences in f64. */
#include "ir/ir.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N = 4 };

/* @f(x: f64[4]) -> f64[] in a module read from text. */
typedef struct {
	Module *m;
	Diag *diag;
	Arena *arena;
	EvalTensor x;
} Case;

static void
open_case(Case *c, const char *text)
{
	*c = (Case){.diag = diag_new("test", stderr), .arena = arena_new()};
	c->m = module_parse(text, "control", NULL, c->diag);
	assert_non_null(c->m);
	assert_true(module_verify(c->m, c->diag));
	c->x = eval_tensor_new(c->arena, module_function(c->m, "f")->params.at[0]->type);
	for (int i = 0; i < c->x.type->n; i++)
		c->x.f[i] = 0.3 + 0.2 * i;
}

static void
close_case(Case *c)
{
	module_free(c->m);
	diag_free(c->diag);
	arena_free(c->arena);
}

static EvalTensor *
run(Case *c, const char *name)
{
	const Function *f = module_function(c->m, name);
	EvalTensor *results = NEW_ARRAY(c->arena, EvalTensor, function_return(f)->n_operands);
	Interp in = interp_new(c->m, c->arena, false);

	interp_run(&in, f, &c->x, results);
	return results;
}

/* @d(x) = d f / d x, by reverse mode. */
static void
differentiate(Case *c)
{
	Function *d = function_clone(module_function(c->m, "f"), "d");
	Node *ret = function_return(d);
	Value *loss = node_operand(ret, 0), *out;

	node_erase(ret);
	Builder b = {.m = c->m, .f = d};
	GradSeed seed = {loss, b_splat(&b, loss->type, 1)};
	assert_true(gradient_build(&b, 1, &seed, 1, d->params.at, &out, c->diag));
	b_return(&b, 1, &out);
	assert_true(module_verify(c->m, c->diag));
}

static void
check_gradient(Case *c)
{
	const double h = 1e-6;

	differentiate(c);
	const EvalTensor *grad = run(c, "d");
	for (int i = 0; i < c->x.type->n; i++) {
		double x = c->x.f[i];
		c->x.f[i] = x + h;
		double up = run(c, "f")[0].f[0];
		c->x.f[i] = x - h;
		double down = run(c, "f")[0].f[0];
		c->x.f[i] = x;
		assert_true(fabs((up - down) / (2 * h) - grad[0].f[i]) <
		            1e-6 * fmax(1, fabs(grad[0].f[i])));
	}
}

static const char call_text[] = "func @g(%a: f64[4], %b: f64[4]) -> (f64[4], f64[4]) {\n"
				"  %0 = mul %a, %b : f64[4]\n"
				"  %1 = sin %0 : f64[4]\n"
				"  return %1, %a\n"
				"}\n"
				"func @f(%x: f64[4]) -> f64[] {\n"
				"  %0 = exp %x : f64[4]\n"
				"  %1, %2 = call %x, %0 {callee = @g} : f64[4], f64[4]\n"
				"  %3 = mul %1, %2 : f64[4]\n"
				"  %4 = reduce %3 {kind = sum, axes = [0]} : f64[]\n"
				"  return %4\n"
				"}\n";

static void
test_call(void **state)
{
	double want = 0;
	Case c;

	open_case(&c, call_text);
	for (int i = 0; i < N; i++)
		want += sin(c.x.f[i] * exp(c.x.f[i])) * c.x.f[i];
	assert_true(fabs(run(&c, "f")[0].f[0] - want) < 1e-12);
	check_gradient(&c);
	close_case(&c);
}

/* A straight-through rounding: the forward pass rounds; the gradient passes through, scaled by 10 to be visible. */
static const char custom_text[] =
	"func @g(%a: f64[4]) -> f64[4] {\n"
	"  %0 = round %a : f64[4]\n"
	"  return %0\n"
	"}\n"
	"func @g.gradient(%d.0: f64[4] is cotangent 0, %b: f64[4] is operand 0, %result.0: f64[4] is result "
	"0) -> f64[4] {\n"
	"  %0 = constant {value = f64[] [10.0]} : f64[]\n"
	"  %1 = broadcast %0 {shape = [4]} : f64[4]\n"
	"  %2 = mul %d.0, %1 : f64[4]\n"
	"  %3 = add %2, %b : f64[4]\n"
	"  %4 = sub %3, %result.0 : f64[4]\n"
	"  return %4\n"
	"}\n"
	"func @f(%x: f64[4]) -> f64[] {\n"
	"  %0 = call %x {callee = @g, gradient = @g.gradient} : f64[4]\n"
	"  %1 = mul %0, %x : f64[4]\n"
	"  %2 = reduce %1 {kind = sum, axes = [0]} : f64[]\n"
	"  return %2\n"
	"}\n";

static void
test_custom_gradient(void **state)
{
	Case c;

	open_case(&c, custom_text);
	differentiate(&c);
	const EvalTensor *grad = run(&c, "d");
	for (int i = 0; i < N; i++) {
		double x = c.x.f[i], y = nearbyint(x);
		assert_true(fabs(grad[0].f[i] - (y + (10 * x + x - y))) < 1e-12);
	}
	close_case(&c);
}

static const char cond_text[] = "func @yes(%a: f64[4]) -> f64[4] {\n"
				"  %0 = exp %a : f64[4]\n"
				"  return %0\n"
				"}\n"
				"func @no(%a: f64[4]) -> f64[4] {\n"
				"  %0 = mul %a, %a : f64[4]\n"
				"  return %0\n"
				"}\n"
				"func @f(%x: f64[4]) -> f64[] {\n"
				"  %0 = constant {value = bool[] [true]} : bool[]\n"
				"  %1 = constant {value = bool[] [false]} : bool[]\n"
				"  %2 = cond %0, %x {then = @yes, else = @no} : f64[4]\n"
				"  %3 = cond %1, %x {then = @yes, else = @no} : f64[4]\n"
				"  %4 = mul %2, %3 : f64[4]\n"
				"  %5 = reduce %4 {kind = sum, axes = [0]} : f64[]\n"
				"  return %5\n"
				"}\n";

static void
test_cond(void **state)
{
	double want = 0;
	Case c;

	open_case(&c, cond_text);
	for (int i = 0; i < N; i++)
		want += exp(c.x.f[i]) * c.x.f[i] * c.x.f[i];
	assert_true(fabs(run(&c, "f")[0].f[0] - want) < 1e-12);
	check_gradient(&c);
	close_case(&c);
}

/* s becomes s * k + sum(row) while s stays below 3, over at most 5 rows. */
static const char loop_text[] =
	"func @body(%i: s64[], %s: f64[], %row: f64[4], %k: f64[]) -> (bool[], f64[], f64[]) {\n"
	"  %0 = mul %s, %k : f64[]\n"
	"  %1 = reduce %row {kind = sum, axes = [0]} : f64[]\n"
	"  %2 = add %0, %1 : f64[]\n"
	"  %3 = constant {value = f64[] [3.0]} : f64[]\n"
	"  %4 = lt %2, %3 : bool[]\n"
	"  %5 = mul %2, %2 : f64[]\n"
	"  return %4, %2, %5\n"
	"}\n"
	"func @f(%x: f64[4]) -> (f64[], f64[], f64[5], s64[]) {\n"
	"  %0 = constant {value = f64[] [0.1]} : f64[]\n"
	"  %1 = constant {value = f64[] [0.7]} : f64[]\n"
	"  %2 = mul %x, %x : f64[4]\n"
	"  %3 = slice %2 {start = [1], stop = [2], step = [1]} : f64[1]\n"
	"  %4 = reshape %3 {shape = []} : f64[]\n"
	"  %5 = add %4, %1 : f64[]\n"
	"  %6 = broadcast %x {shape = [5,4], axes = [1]} : f64[5,4]\n"
	"  %7, %8, %9 = loop %0, %6, %5 {body = @body, bound = 5, carried = 1, sliced = 1}"
	" : f64[], f64[5], s64[]\n"
	"  %10 = reduce %8 {kind = sum, axes = [0]} : f64[]\n"
	"  %11 = mul %10, %7 : f64[]\n"
	"  return %11, %7, %8, %9\n"
	"}\n";

static void
test_loop(void **state)
{
	double s = 0.1, k, sum = 0, rows[5] = {0};
	int64_t trips = 0;
	Case c;

	open_case(&c, loop_text);
	k = 0.7 + c.x.f[1] * c.x.f[1];
	for (int i = 0; i < N; i++)
		sum += c.x.f[i];
	for (bool go = true; go && trips < 5;) {
		s = s * k + sum;
		rows[trips++] = s * s;
		go = s < 3;
	}
	assert_true(trips > 1 && trips < 5);
	const EvalTensor *got = run(&c, "f");
	assert_int_equal(got[3].i[0], trips);
	assert_true(fabs(got[1].f[0] - s) < 1e-12);
	for (int i = 0; i < 5; i++)
		assert_true(fabs(got[2].f[i] - rows[i]) < 1e-12);
	check_gradient(&c);
	close_case(&c);
}

/* A loop without iterations: the carried value passes through. */
static const char empty_text[] =
	"func @body(%i: s64[], %s: f64[4]) -> (bool[], f64[4]) {\n"
	"  %0 = constant {value = bool[] [true]} : bool[]\n"
	"  %1 = exp %s : f64[4]\n"
	"  return %0, %1\n"
	"}\n"
	"func @f(%x: f64[4]) -> (f64[], s64[]) {\n"
	"  %0, %1 = loop %x {body = @body, bound = 0, carried = 1} : f64[4], s64[]\n"
	"  %2 = reduce %0 {kind = sum, axes = [0]} : f64[]\n"
	"  return %2, %1\n"
	"}\n";

static void
test_empty_loop(void **state)
{
	double want = 0;
	Case c;

	open_case(&c, empty_text);
	for (int i = 0; i < N; i++)
		want += c.x.f[i];
	const EvalTensor *got = run(&c, "f");
	assert_true(fabs(got[0].f[0] - want) < 1e-12);
	assert_int_equal(got[1].i[0], 0);
	check_gradient(&c);
	close_case(&c);
}

/* ---- the first micro-batch stores, a later one adds */
static const char sum_text[] = "state @sum : f64[4] gradient step init zeros\n"
			       "func @f(%x: f64[4]) -> (f64[4]) {\n"
			       "  %0 = add @sum, %x : f64[4]\n"
			       "  store %x {state = @sum} when first\n"
			       "  store %0 {state = @sum} when later\n"
			       "  return %x\n"
			       "}\n";

static void
test_when(void **state)
{
	EvalTensor result;
	Case c;

	open_case(&c, sum_text);
	Interp in = interp_new(c.m, c.arena, false);
	in.states[0] = eval_tensor_new(c.arena, c.x.type);
	in.states[0].f[0] = 1; /* left over from the previous step */
	for (int micro = 0; micro < 3; micro++) {
		in.later = micro > 0;
		interp_run(&in, module_function(c.m, "f"), &c.x, &result);
		for (int i = 0; i < N; i++)
			assert_true(fabs(in.states[0].f[i] - (micro + 1) * c.x.f[i]) < 1e-15);
	}
	close_case(&c);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_call),       cmocka_unit_test(test_custom_gradient),
		cmocka_unit_test(test_cond),       cmocka_unit_test(test_loop),
		cmocka_unit_test(test_empty_loop), cmocka_unit_test(test_when),
	};

	return cmocka_run_group_tests_name("control", tests, NULL, NULL);
}
