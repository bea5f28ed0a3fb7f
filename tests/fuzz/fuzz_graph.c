/* Fuzzes with random valid graphs. The bytes choose operators over a growing pool of f64 values; an invalid choice is adjusted
 * until it is valid. Each graph is printed and read back. Then it is
 *   - interpreted unchanged, after `simplify`, and after `fuse` and `lower` through the kernels' loops: the results must agree;
 *   - differentiated: the gradient must agree with central differences, unless differences at half the step disagree, too (kinks of
 *     max, min, select). */
#include "ir/ir.h"
#include "ir/loop/loop.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
extern const PassRow pass_simplify, pass_inline, pass_legalize, pass_fuse, pass_lower;

enum { MAX_VALUES = 24, MAX_ELEMENTS = 160, N_INPUTS = 2 };

typedef struct {
	const uint8_t *at, *end;
	Builder b;
	Value *pool[MAX_VALUES + 8];
	int n;
} Maker;

static int
next(Maker *g, int below)
{
	uint8_t byte = g->at < g->end ? *g->at++ : 0;

	return below > 0 ? byte % below : 0;
}

static Value *
pick(Maker *g)
{
	return g->pool[next(g, g->n)];
}

static void
keep(Maker *g, Value *v)
{
	if (v && v->type->n <= MAX_ELEMENTS && g->n < MAX_VALUES)
		g->pool[g->n++] = v;
}

/* Keeps values small, so that differences stay meaningful. */
static Value *
tamed(Maker *g, Value *v)
{
	return b_unary(&g->b, OP_tanh, v);
}

static Value *
make_unary(Maker *g)
{
	static const OpKind ops[] = {OP_neg, OP_exp,     OP_sin,  OP_cos,   OP_tanh,
	                             OP_erf, OP_sigmoid, OP_abs,  OP_expm1, OP_sqrt,
	                             OP_log, OP_rsqrt,   OP_log1p};
	OpKind op = ops[next(g, COUNT(ops))];
	Value *x = tamed(g, pick(g));

	if (op == OP_sqrt || op == OP_log || op == OP_rsqrt || op == OP_log1p)
		x = b_unary(&g->b, OP_exp, x); /* away from the ends of the domain */
	return b_unary(&g->b, op, x);
}

static Value *
make_binary(Maker *g)
{
	static const OpKind ops[] = {OP_add, OP_sub, OP_mul, OP_max, OP_min, OP_div};
	OpKind op = ops[next(g, COUNT(ops))];
	Value *x = pick(g), *y = pick(g);

	if (y->type != x->type)
		y = b_splat(&g->b, x->type, 0.25 + next(g, 7));
	if (op == OP_div)
		y = b_unary(&g->b, OP_exp, tamed(g, y));
	return b_binary(&g->b, op, x, y);
}

static Value *
make_select(Maker *g)
{
	static const OpKind ops[] = {OP_lt, OP_le, OP_gt, OP_ge, OP_eq, OP_ne};
	Value *x = pick(g), *y = b_unary(&g->b, OP_neg, x);

	return b_select(&g->b, b_binary(&g->b, ops[next(g, COUNT(ops))], x, y), tamed(g, x), y);
}

static Value *
make_reshape(Maker *g)
{
	Value *x = pick(g);
	Ints flat = {.n = 1, .at = {x->type->n}}, shape = {.n = 2, .at = {x->type->n, 1}};

	for (int64_t d = 1 + next(g, 6); d > 1; d--)
		if (x->type->n % d == 0) {
			shape = (Ints){.n = 2, .at = {d, x->type->n / d}};
			break;
		}
	return b_reshape(&g->b, x, next(g, 2) ? flat : shape);
}

static Value *
make_transpose(Maker *g)
{
	Value *x = pick(g);
	int rank = x->type->rank, turn = next(g, rank);
	Ints order = {.n = rank};

	for (int i = 0; i < rank; i++)
		order.at[i] = (i + turn) % rank;
	return rank ? b_transpose(&g->b, x, order) : x;
}

static Value *
make_broadcast(Maker *g)
{
	Value *x = pick(g);
	int rank = x->type->rank, extra = next(g, rank + 1);
	Ints shape = {.n = rank + 1}, axes = {.n = rank};

	if (rank > 3)
		return NULL;
	for (int i = 0, k = 0; i <= rank; i++) {
		shape.at[i] = i == extra ? 1 + next(g, 4) : x->type->dims[k];
		if (i != extra)
			axes.at[k++] = i;
	}
	return x->type->n * shape.at[extra] > MAX_ELEMENTS ? NULL
	                                                   : b_broadcast(&g->b, x, shape, axes);
}

static Value *
make_slice(Maker *g)
{
	Value *x = pick(g);
	int rank = x->type->rank;
	Ints start = {.n = rank}, stop = {.n = rank}, step = {.n = rank};

	for (int i = 0; i < rank; i++) {
		int64_t d = x->type->dims[i];
		start.at[i] = d ? next(g, (int)d) : 0;
		stop.at[i] = d ? start.at[i] + 1 + next(g, (int)(d - start.at[i])) : 0;
		step.at[i] = 1 + next(g, 3);
	}
	return b_slice(&g->b, x, start, stop, step);
}

static Value *
make_pad(Maker *g)
{
	Value *x = pick(g);
	int rank = x->type->rank;
	Ints low = {.n = rank}, high = {.n = rank}, interior = {.n = rank};
	int64_t n = 1;

	for (int i = 0; i < rank; i++) {
		int64_t d = x->type->dims[i];
		low.at[i] = next(g, 4) - 1;
		high.at[i] = next(g, 3);
		interior.at[i] = next(g, 2);
		if (d < 2)
			low.at[i] = 1;
		n *= d + low.at[i] + high.at[i] + (d > 0 ? d - 1 : 0) * interior.at[i];
	}
	return n > MAX_ELEMENTS ? NULL : b_pad(&g->b, x, low, high, interior, 0.5 * next(g, 3));
}

static Value *
make_concat(Maker *g)
{
	Value *x = pick(g);
	Value *both[] = {x, tamed(g, x), x};

	return x->type->rank ? b_concat(&g->b, 2 + next(g, 2), both, next(g, x->type->rank)) : NULL;
}

static Value *
make_reverse(Maker *g)
{
	Value *x = pick(g);

	return x->type->rank ? b_reverse(&g->b, x, (Ints){.n = 1, .at = {next(g, x->type->rank)}})
	                     : NULL;
}

static Value *
make_reduce(Maker *g)
{
	static const ReduceKind kinds[] = {REDUCE_SUM, REDUCE_MAX, REDUCE_MIN, REDUCE_PROD};
	Value *x = tamed(g, pick(g));
	Ints axes = {0};
	int which = next(g, 15) + 1;
	ReduceKind kind = kinds[next(g, COUNT(kinds))];

	for (int i = 0; i < x->type->rank; i++)
		if (which >> i & 1)
			axes.at[axes.n++] = i;
	for (int i = 0; i < axes.n; i++)
		if (x->type->dims[axes.at[i]] == 0)
			return NULL;
	return b_reduce(&g->b, kind, x, axes);
}

static Value *
make_cumulate(Maker *g)
{
	Value *x = tamed(g, pick(g));
	CumulateAttr a = {.kind = REDUCE_SUM, .reverse = next(g, 2), .exclusive = next(g, 2)};

	if (!x->type->rank)
		return NULL;
	a.axis = next(g, x->type->rank);
	return build(&g->b, OP_cumulate, 1, &x, &a);
}

static Value *
make_dot(Maker *g)
{
	Value *x = tamed(g, pick(g)), *y = pick(g);
	Ints none = {0}, last, first;

	if (!x->type->rank || !y->type->rank)
		return NULL;
	last = (Ints){.n = 1, .at = {x->type->rank - 1}};
	first = (Ints){.n = 1, .at = {next(g, y->type->rank)}};
	if (x->type->dims[last.at[0]] != y->type->dims[first.at[0]]) {
		y = x; /* y shares x's last axis */
		first = last;
	}
	if (x->type->rank + y->type->rank - 2 > 4 || x->type->dims[last.at[0]] == 0 ||
	    x->type->n / x->type->dims[last.at[0]] * (y->type->n / x->type->dims[last.at[0]]) >
	            MAX_ELEMENTS)
		return NULL;
	return b_dot(&g->b, x, y, none, none, last, first);
}

static Value *
make_gather(Maker *g)
{
	Value *x = pick(g);
	int64_t at[4];
	Ints shape = {.n = 1, .at = {4}};

	if (!x->type->rank)
		return NULL;
	int axis = next(g, x->type->rank);
	if (x->type->dims[axis] == 0 || x->type->n / x->type->dims[axis] * 4 > MAX_ELEMENTS)
		return NULL;
	for (int i = 0; i < 4; i++)
		at[i] = next(g, (int)x->type->dims[axis]);
	Type t = type_new(g->b.m, S64, shape.n, shape.at);
	return b_gather(&g->b, x, b_constant(&g->b, tensor_new(g->b.m, t, at)), axis);
}

static Value *
make_softmax(Maker *g)
{
	Value *x = pick(g);

	if (!x->type->rank || x->type->n == 0)
		return NULL;
	Ints last = {.n = 1, .at = {x->type->rank - 1}};
	Value *top = b_broadcast_back(&g->b, b_reduce(&g->b, REDUCE_MAX, x, last), x->type, last);
	Value *e = b_unary(&g->b, OP_exp, b_binary(&g->b, OP_sub, x, top));
	Value *sum = b_broadcast_back(&g->b, b_reduce(&g->b, REDUCE_SUM, e, last), x->type, last);
	return b_binary(&g->b, OP_div, e, sum);
}

/* Makes many reductions of one value, each a little different, and sums of their row values: more than a kernel's loops have
 * registers for. */
static Value *
make_reductions(Maker *g)
{
	Value *x = tamed(g, pick(g)), *total = NULL;
	int n = 2 + next(g, 80), kind = next(g, 3);
	bool of_rows = next(g, 2);

	if (!x->type->rank || x->type->n == 0)
		return NULL;
	Ints last = {.n = 1, .at = {x->type->rank - 1}};
	for (int i = 0; i < n; i++) {
		Value *scaled = b_binary(&g->b, OP_mul, x, b_splat(&g->b, x->type, 1 + i / 64.0));
		Value *row = b_reduce(&g->b, kind ? REDUCE_SUM : REDUCE_MAX, scaled, last);
		Ints all = {.n = row->type->rank};
		for (int k = 0; k < all.n; k++)
			all.at[k] = k;
		if (of_rows)
			row = b_reduce(&g->b, REDUCE_SUM, b_binary(&g->b, OP_mul, row, row), all);
		total = total ? b_binary(&g->b, OP_add, total, row) : row;
	}
	return tamed(g, total);
}

static Value *(*const makers[])(Maker *) = {
	make_unary,     make_binary,   make_select, make_reshape, make_transpose,
	make_broadcast, make_slice,    make_pad,    make_concat,  make_reverse,
	make_reduce,    make_cumulate, make_dot,    make_gather,  make_softmax};

/* Only the highest bytes choose many reductions, which take long; the kept inputs contain few such bytes. */
enum { FIRST_OF_REDUCTIONS = 240 };

static Value *
make_value(Maker *g)
{
	if (*g->at < FIRST_OF_REDUCTIONS)
		return makers[next(g, COUNT(makers))](g);
	g->at++;
	return make_reductions(g);
}

/* Makes @f(inputs) -> (sum of tanh of the last values' elements, the last values). */
static Module *
make_graph(const uint8_t *data, size_t size)
{
	Module *m = module_new("fuzz");
	Function *f = function_new(m, "f");
	Maker g = {.at = data, .end = data + size, .b = {.m = m, .f = f}};
	Value *results[4];
	int n = 0;

	for (int i = 0; i < N_INPUTS; i++) {
		Ints dims = {.n = 2, .at = {1 + next(&g, 5), 1 + next(&g, 7)}};
		char name[] = {(char)('x' + i), '\0'};
		keep(&g, function_param(f, type_new(m, F64, dims.n, dims.at), name));
	}
	while (g.at < g.end && g.n < MAX_VALUES)
		keep(&g, make_value(&g));
	Value *total = NULL;
	for (int i = 0; i < 3 && i < g.n; i++) {
		Value *v = g.pool[g.n - 1 - i];
		Ints all = {.n = v->type->rank};
		for (int k = 0; k < all.n; k++)
			all.at[k] = k;
		Value *s = b_reduce(&g.b, REDUCE_SUM, tamed(&g, v), all);
		total = total ? b_binary(&g.b, OP_add, total, s) : s;
		results[1 + n++] = v;
	}
	results[0] = total;
	b_return(&g.b, n + 1, results);
	return m;
}

static void
check(bool ok, const char *what, const Module *m)
{
	Text text = {0};

	if (ok)
		return;
	module_print(&text, m, NULL);
	fprintf(stderr, "fuzz_graph: %s\n%s", what, text.at);
	abort();
}

static Module *
copy_module(const Module *m)
{
	Text text = {0}, again = {0};
	Diag *diag = diag_new("fuzz", stderr);

	module_print(&text, m, NULL);
	Module *copy = module_parse(text.at, "fuzz.gir", NULL, diag);
	check(copy && module_verify(copy, diag), "does not read back", m);
	module_print(&again, copy, NULL);
	check(strcmp(text.at, again.at) == 0, "reads back as another text", m);
	text_free(&text);
	text_free(&again);
	diag_free(diag);
	return copy;
}

static void
run_passes(Module *m, const PassRow *const *rows, int n, Stage stage)
{
	Pipeline p = {0};
	PassManagerOptions o = {.verify_each = true};
	Diag *diag = diag_new("fuzz", stderr);

	for (int i = 0; i < n; i++) {
		PassCall call = pass_call(m->arena, rows[i]);
		vec_push(m->arena, &p, call);
	}
	check(pipeline_run(&p, m, &stage, &o, diag), "a pass fails", m);
	diag_free(diag);
}

static EvalTensor *
interpret(Module *m, const char *name, Arena *arena, const EvalTensor *args)
{
	const Function *f = module_function(m, name);
	EvalTensor *results = NEW_ARRAY(arena, EvalTensor, function_return(f)->n_operands);
	EvalTensor *own = NEW_ARRAY(arena, EvalTensor, f->params.n);
	Interp in = interp_new(m, arena, false);

	for (int i = 0; i < f->params.n; i++) {
		own[i] = args[i];
		own[i].type = f->params.at[i]->type;
	}
	for (int i = 0; i < m->states.n; i++) {
		const State *s = m->states.at[i];
		in.states[i] = s->data ? eval_tensor_from(arena, s->type, s->data->data)
		                       : eval_tensor_new(arena, s->type);
	}
	interp_run(&in, f, own, results);
	return results;
}

static bool
close_to(double a, double b, double tolerance)
{
	return a == b || (isnan(a) && isnan(b)) ||
	       fabs(a - b) <= tolerance * fmax(1, fmax(fabs(a), fabs(b)));
}

static void
compare(const Module *a, Arena *arena, const EvalTensor *args, Module *b, const char *what)
{
	int n = function_return(module_function(a, "f"))->n_operands;
	const EvalTensor *x = interpret((Module *)a, "f", arena, args);
	const EvalTensor *y = interpret(b, "f", arena, args);

	for (int i = 0; i < n; i++)
		for (int64_t k = 0; k < x[i].type->n; k++)
			if (!close_to(x[i].f[k], y[i].f[k], 1e-9)) {
				fprintf(stderr, "result %d, element %lld: %.17g and %.17g\n", i,
				        (long long)k, x[i].f[k], y[i].f[k]);
				check(false, what, a);
			}
}

/* ---- gradients */
static void
make_gradient(Module *m)
{
	Function *f = module_function(m, "f"), *d;
	Diag *diag = diag_new("fuzz", stderr);
	Value *out[N_INPUTS];

	d = function_clone(f, "d");
	Node *ret = function_return(d);
	Value *loss = node_operand(ret, 0);
	node_erase(ret);
	Builder b = {.m = m, .f = d};
	GradSeed seed = {loss, b_splat(&b, loss->type, 1)};
	check(gradient_build(&b, 1, &seed, N_INPUTS, d->params.at, out, diag), "no gradient", m);
	for (int i = 0; i < N_INPUTS; i++)
		out[i] = out[i] ? out[i] : b_splat(&b, d->params.at[i]->type, 0);
	b_return(&b, N_INPUTS, out);
	check(module_verify(m, diag), "the gradient is not valid", m);
	diag_free(diag);
}

static double
loss_at(Module *m, EvalTensor *args, int i, int64_t k, double x)
{
	Arena *arena = arena_new();
	double old = args[i].f[k];

	args[i].f[k] = x;
	double loss = interpret(m, "f", arena, args)[0].f[0];
	args[i].f[k] = old;
	arena_free(arena);
	return loss;
}

static double
difference(Module *m, EvalTensor *args, int i, int64_t k, double h)
{
	double x = args[i].f[k];

	return (loss_at(m, args, i, k, x + h) - loss_at(m, args, i, k, x - h)) / (2 * h);
}

static void
check_gradient(Module *m, Arena *arena, EvalTensor *args)
{
	const EvalTensor *grad = interpret(m, "d", arena, args);

	for (int i = 0; i < N_INPUTS; i++)
		for (int64_t k = 0; k < args[i].type->n; k += 1 + args[i].type->n / 4) {
			double coarse = difference(m, args, i, k, 2e-5),
			       fine = difference(m, args, i, k, 1e-5);
			if (!close_to(coarse, fine, 1e-6) || close_to(grad[i].f[k], fine, 1e-5))
				continue;
			fprintf(stderr,
			        "input %d, element %lld: gradient %.12g, difference %.12g\n", i,
			        (long long)k, grad[i].f[k], fine);
			check(false, "a gradient is wrong", m);
		}
}

static void
fill(Arena *arena, const Function *f, EvalTensor *args)
{
	uint64_t seed = 1;

	for (int i = 0; i < f->params.n; i++) {
		args[i] = eval_tensor_new(arena, f->params.at[i]->type);
		for (int64_t k = 0; k < args[i].type->n; k++) {
			seed = hash_mix(seed, 7);
			args[i].f[k] = (double)(seed >> 11) / (double)(1ull << 53) * 2 - 1;
		}
	}
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const PassRow *const tidy[] = {&pass_simplify};
	static const PassRow *const down[] = {&pass_simplify, &pass_legalize, &pass_fuse,
	                                      &pass_lower};
	static const PassRow *const straight[] = {&pass_inline, &pass_legalize, &pass_fuse,
	                                          &pass_lower};
	EvalTensor args[N_INPUTS];
	Arena *arena = arena_new();
	Module *m = make_graph(data, size);
	Module *simple = copy_module(m), *kernels = copy_module(m), *plain = copy_module(m);

	fill(arena, module_function(m, "f"), args);
	run_passes(simple, tidy, COUNT(tidy), STAGE_TRAIN);
	compare(m, arena, args, simple, "simplify changes a value");
	run_passes(kernels, down, COUNT(down), STAGE_TRAIN);
	compare(m, arena, args, kernels, "simplify and kernels change a value");
	run_passes(plain, straight, COUNT(straight), STAGE_TRAIN);
	compare(m, arena, args, plain, "kernels change a value");
	make_gradient(m);
	check_gradient(m, arena, args);
	module_free(m);
	module_free(simple);
	module_free(kernels);
	module_free(plain);
	arena_free(arena);
	return 0;
}
