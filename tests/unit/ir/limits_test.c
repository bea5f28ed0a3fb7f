/* Modules with unusually many loops, reductions, sums of row values, or terms of an index. Their kernels must compute what
 * `eval` computes: nothing is dropped when a list is full. */
#include "codegen/codegen.h"
#include "ir/loop/loop.h"

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
	EvalTensor args[2];
} Case;

static void
open_case(Case *c, const char *text)
{
	*c = (Case){.diag = diag_new("test", stderr), .arena = arena_new()};
	c->m = module_parse(text, "limits", NULL, c->diag);
	assert_non_null(c->m);
	assert_true(module_verify(c->m, c->diag));
	const Function *f = module_function(c->m, "f");
	srand48(1);
	for (int i = 0; i < f->params.n; i++) {
		c->args[i] = eval_tensor_new(c->arena, f->params.at[i]->type);
		for (int64_t k = 0; k < c->args[i].type->n; k++)
			c->args[i].f[k] = drand48() - 0.5;
	}
}

static void
close_case(Case *c)
{
	module_free(c->m);
	diag_free(c->diag);
	arena_free(c->arena);
}

static EvalTensor *
results(Case *c)
{
	const Function *f = module_function(c->m, "f");
	EvalTensor *out = NEW_ARRAY(c->arena, EvalTensor, function_return(f)->n_operands);
	Interp in = interp_new(c->m, c->arena, false);

	for (int i = 0; i < c->m->states.n; i++)
		in.states[i] = eval_tensor_from(c->arena, c->m->states.at[i]->type,
		                                c->m->states.at[i]->data->data);
	interp_run(&in, f, c->args, out);
	return out;
}

/* Compares every result of the kernels with eval, up to a relative error of 1e-9. */
static void
check(const char *text, int max_kernels)
{
	static const PassRow *const rows[] = {&pass_legalize, &pass_fuse, &pass_lower};
	Case c;
	Pipeline p = {0};
	PassManagerOptions o = {.verify_each = true};
	Stage stage = STAGE_TRAIN;

	open_case(&c, text);
	int n = function_return(module_function(c.m, "f"))->n_operands;
	EvalTensor *want = results(&c);
	for (int i = 0; i < COUNT(rows); i++)
		vec_push(c.arena, &p, pass_call(c.arena, rows[i]));
	assert_true(pipeline_run(&p, c.m, &stage, &o, c.diag));
	if (c.m->kernels.n > max_kernels)
		fail_msg("%d kernels, at most %d", c.m->kernels.n, max_kernels);
	EvalTensor *got = results(&c);
	for (int i = 0; i < n; i++)
		for (int64_t k = 0; k < want[i].type->n; k++)
			if (!(fabs(got[i].f[k] - want[i].f[k]) <=
			      1e-9 * fmax(1, fabs(want[i].f[k]))))
				fail_msg("result %d, element %lld: %.17g, eval %.17g", i,
				         (long long)k, got[i].f[k], want[i].f[k]);
	close_case(&c);
}

/* Prints "[x,x,...,last]". */
static char *
list(Arena *arena, int n, int x, int last)
{
	Text t = {0};

	for (int i = 0; i < n; i++)
		text_printf(&t, "%s%d", i ? "," : "", i == n - 1 ? last : x);
	char *copy = arena_strdup(arena, t.at);
	text_free(&t);
	return copy;
}

/* ---- reductions of one value, each a little different; with `of_rows`, also a sum of each one's row values */
static char *
reductions(Arena *arena, int n, const char *axes, const char *rest, bool of_rows)
{
	static const char *const kinds[] = {"sum", "max", "min"};
	Text t = {0};

	text_printf(&t, "func @f(%%x: f64[3,20,33]) -> (");
	for (int i = 0; i < n; i++)
		text_printf(&t, "%s%s", i ? ", " : "", of_rows ? "f64[]" : rest);
	text_printf(&t, ") {\n  %%e = exp %%x : f64[3,20,33]\n");
	for (int i = 0; i < n; i++) {
		text_printf(&t, "  %%c%d = constant {value = f64[] [%g]} : f64[]\n", i,
		            1 + i / 64.0);
		text_printf(&t, "  %%b%d = broadcast %%c%d {shape = [3,20,33]} : f64[3,20,33]\n", i,
		            i);
		text_printf(&t, "  %%m%d = mul %%e, %%b%d : f64[3,20,33]\n", i, i);
		text_printf(&t, "  %%r%d = reduce %%m%d {kind = %s, axes = [%s]} : %s\n", i, i,
		            kinds[i % 3], axes, rest);
		if (of_rows)
			text_printf(&t,
			            "  %%s%d = reduce %%r%d {kind = sum, axes = [0,1]} : f64[]\n",
			            i, i);
	}
	text_add(&t, "  return ");
	for (int i = 0; i < n; i++)
		text_printf(&t, "%s%%%s%d", i ? ", " : "", of_rows ? "s" : "r", i);
	text_add(&t, "\n}\n");
	char *copy = arena_strdup(arena, t.at);
	text_free(&t);
	return copy;
}

static void
test_reductions(void **state)
{
	Arena *arena = arena_new();

	check(reductions(arena, 80, "2", "f64[3,20]", false), 4);
	check(reductions(arena, 80, "0", "f64[20,33]", false), 4);
	check(reductions(arena, 70, "1,2", "f64[3]", false), 4);
	check(reductions(arena, 80, "0,1,2", "f64[]", false), 90);
	for (int n = 7; n <= 10; n++)
		check(reductions(arena, n, "2", "f64[3,20]", true), 8);
	check(reductions(arena, 80, "2", "f64[3,20]", true), 40);
	arena_free(arena);
}

/* ---- loops: two tensors of 16 axes in one chain that do not fit together, so the chain is cut at every factor of its 2^18
 * elements. `then` uses the result %r. */
static void
check_loops(Arena *arena, const char *then, const char *type, int max_kernels)
{
	const char *a = list(arena, 16, 2, 8), *twos = list(arena, 15, 2, 2);

	check(arena_printf(
		      arena,
		      "func @f(%%x: f64[%s]) -> %s {\n"
		      "  %%0 = transpose %%x {order = [1,0,3,2,5,4,7,6,9,8,11,10,13,12,14,15]} : f64[%s]\n"
		      "  %%1 = reshape %%0 {shape = [8,%s]} : f64[8,%s]\n"
		      "  %%2 = transpose %%1 {order = [0,2,1,4,3,6,5,8,7,10,9,12,11,14,13,15]} : f64[8,%s]\n"
		      "  %%3 = reshape %%2 {shape = [512,512]} : f64[512,512]\n"
		      "  %%4 = neg %%3 : f64[512,512]\n"
		      "  %%r = %s : %s\n"
		      "  return %%r\n"
		      "}\n",
		      a, type, a, twos, twos, twos, then, type),
	      max_kernels);
}

static void
test_loops(void **state)
{
	Arena *arena = arena_new();

	check_loops(arena, "exp %4", "f64[512,512]", 1);
	check_loops(arena, "reduce %4 {kind = sum, axes = [0]}", "f64[512]",
	            2); /* 256 columns at a time, of chunks of rows */
	check_loops(arena, "reduce %4 {kind = sum, axes = [1]}", "f64[512]", 1);
	arena_free(arena);
}

/* Windows over 9 axes: an index has two terms per axis. */
static void
test_windows(void **state)
{
	Arena *arena = arena_new();
	enum { AXES = 9 };
	const char *ones = list(arena, AXES, 1, 1), *none = list(arena, AXES, 0, 0),
		   *two = list(arena, AXES, 2, 2), *three = list(arena, AXES, 3, 3);
	const char *attributes = arena_printf(
		arena, "stride = [%s], low = [%s], high = [%s], dilation = [%s]", ones, none, none,
		ones);

	check(arena_printf(arena,
	                   "func @f(%%x: f64[1,2,%s], %%w: f64[2,2,%s]) -> f64[1,2,%s] {\n"
	                   "  %%0 = conv %%x, %%w {%s, groups = 1} : f64[1,2,%s]\n"
	                   "  return %%0\n"
	                   "}\n",
	                   three, two, two, attributes, two),
	      2);
	check(arena_printf(arena,
	                   "func @f(%%x: f64[1,2,%s]) -> f64[1,2,%s] {\n"
	                   "  %%0 = pool %%x {kind = max, window = [%s], %s} : f64[1,2,%s]\n"
	                   "  return %%0\n"
	                   "}\n",
	                   three, two, two, attributes, two),
	      2);
	check(arena_printf(
		      arena,
		      "func @f(%%d: f64[1,2,%s], %%x: f64[1,2,%s]) -> f64[1,2,%s] {\n"
		      "  %%0 = pool_grad %%d, %%x {kind = max, window = [%s], %s} : f64[1,2,%s]\n"
		      "  return %%0\n"
		      "}\n",
		      two, three, three, two, attributes, three),
	      2);
	arena_free(arena);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_reductions),
		cmocka_unit_test(test_loops),
		cmocka_unit_test(test_windows),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
