/* Loop: https://onnx.ai/onnx/operators/onnx__Loop.html
 *
 * The loop is unrolled if its number of iterations is known and small, or if carried values change
 * their shapes. Any other loop becomes a function of the module, and `loop` runs it. */
#include "frontend/operators/control/control.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A loop with at most UNROLLED_TRIPS iterations is unrolled: its iterations share kernels. */
enum {
	UNROLLED_TRIPS = 4,
	UNROLLED_TOGETHER = 16,
	MAX_NESTED = 8,
	SIZED_TRIPS = 64,
	MOST_UNROLLED = 1 << 16,
	MAX_TRIPS = 1 << 20
};

/* ---- Loop: trip count, condition, carried values -> carried values, stacked outputs */
typedef struct {
	/* iteration, condition, carried values -> condition, carried values, outputs to stack */
	const GraphProto *body;
	int carried, stacked;
	int most_unrolled;  /* most iterations to unroll */
	int64_t trips;      /* most iterations; -1: unknown */
	int64_t too_many;   /* trip count in the file if it exceeds MAX_TRIPS; else 0 */
	Value *most, *cond; /* trip count and first condition; NULL: not given */
	Bound *values;      /* carried values */
} Loop;

static bool
read_scalar(OnnxNode *n, int i, DType dtype, Value **out)
{
	Value *v = has_input(n, i) ? want_input(n, i) : NULL;

	*out = NULL;
	if (!has_input(n, i))
		return true;
	if (v && (v->type->dtype != dtype || v->type->n != 1)) {
		report_invalid(n, "input %d is %s, need one %s", i, type_text(n, v->type),
		               dtype_info[dtype].name);
		return false;
	}
	*out = v ? e_reshape(n, v, (Ints){0}) : NULL;
	return v != NULL;
}

static bool
open_loop(OnnxNode *n, Loop *l)
{
	l->body = want_graph(n, "body");
	l->most_unrolled = MOST_UNROLLED;
	l->carried = n_inputs(n) - 2;
	if (!l->body || !read_scalar(n, 0, S64, &l->most) || !read_scalar(n, 1, BOOL, &l->cond))
		return false;
	if (l->carried < 0 || (int)l->body->n_input != l->carried + 2 ||
	    (int)l->body->n_output < l->carried + 1 || n_outputs(n) > (int)l->body->n_output - 1) {
		report_invalid(n,
		               "%d inputs and %d outputs do not fit the body's %zu and %zu: the "
		               "body needs the same number of inputs, and outputs for its "
		               "condition, each carried value and each result",
		               n_inputs(n), n_outputs(n), l->body->n_input, l->body->n_output);
		return false;
	}
	l->stacked = (int)l->body->n_output - 1 - l->carried;
	l->values = NEW_ARRAY(n->im->arena, Bound, l->carried);
	for (int i = 0; i < l->carried; i++) {
		Bound *b = want_bound(n, 2 + i);
		if (!b || is_poisoned(b))
			return false;
		l->values[i] = *b;
	}
	const Tensor *most = l->most ? known_value(n->im, l->most) : NULL;
	l->trips = most ? tensor_int(most, 0) < 0 ? 0 : tensor_int(most, 0) : -1;
	l->too_many = 0;
	/* the condition ends the loop, as in PyTorch's export of a while loop */
	if (l->trips > MAX_TRIPS) {
		l->too_many = l->trips;
		l->trips = -1;
		l->most = NULL;
	}
	return true;
}

/* 1: the condition is true, 0: false, -1: unknown at import. */
static int
holds(OnnxNode *n, Value *cond)
{
	const Tensor *t = cond ? known_value(n->im, cond) : NULL;

	return !cond ? 1 : t ? tensor_int(t, 0) != 0 : -1;
}

/* ---- unrolled iterations */
typedef struct {
	VEC(Value *) * rows; /* per stacked output: its rows by iteration */
} Stacks;

static bool
one_iteration(OnnxNode *n, Loop *l, int64_t at, Stacks *stacks)
{
	Importer *im = n->im;
	Value *number = e_reshape(n, e_constant_ints(n, 1, &at), (Ints){0});

	set_graph_value(n, l->body, 0, number);
	set_graph_value(n, l->body, 1, l->cond ? l->cond : e_scalar(n, BOOL, 1));
	for (int i = 0; i < l->carried; i++)
		set_graph_input(n, l->body, 2 + (size_t)i, &l->values[i]);
	if (n->failed)
		return false;
	import_subgraph_again(n, l->body, at);
	for (size_t i = 0; !n->failed && i < l->body->n_output; i++) {
		Bound *b = graph_output(n, l->body, i);
		if (!b)
			return false;
		if (i == 0)
			l->cond = b->value;
		else if ((int)i <= l->carried)
			l->values[i - 1] = *b;
		else if (!b->value)
			report_invalid(n, "output %s is stacked, and no tensor",
			               quoted(im->model, l->body->output[i]->name));
		else if (b->count)
			report_unsupported(
				n, "output %s is stacked, and has a size that depends on data",
				quoted(im->model, l->body->output[i]->name));
		else
			vec_push(im->arena, &stacks->rows[(int)i - 1 - l->carried], b->value);
	}
	return !n->failed;
}

/* A stacked output of a loop that runs no iteration. The graph declares the type of its rows. */
static Value *
no_rows(OnnxNode *n, const ValueInfoProto *v)
{
	const Onnx__TypeProto__Tensor *t = tensor_type(v);
	Ints shape = {.n = 1};
	DType dtype;

	if (!t || !tensor_dtype(t->elem_type, &dtype)) {
		report_unsupported(n, "no iteration makes %s, and its type is not declared",
		                   quoted(n->im->model, v->name));
		return NULL;
	}
	for (size_t i = 0; t->shape && i < t->shape->n_dim && shape.n < MAX_RANK; i++) {
		bool known = t->shape->dim[i]->value_case ==
		             ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE;
		shape.at[shape.n++] = known && t->shape->dim[i]->dim_value > 0
		                              ? t->shape->dim[i]->dim_value
		                              : 0;
	}
	return e_splat(n, dtype, shape, 0);
}

static Value *
stack(OnnxNode *n, int count, Value **rows)
{
	Value **list = NEW_ARRAY(n->im->arena, Value *, count);

	for (int i = 0; i < count; i++) {
		Ints shape = {.n = 1, .at = {1}};
		for (int k = 0; k < rows[i]->type->rank && k + 1 < MAX_RANK; k++)
			shape.at[shape.n++] = rows[i]->type->dims[k];
		if (rows[i]->type != rows[0]->type) {
			report_unsupported(n, "the rows of an output are %s and %s",
			                   type_text(n, rows[0]->type),
			                   type_text(n, rows[i]->type));
			return NULL;
		}
		list[i] = e_reshape(n, rows[i], shape);
	}
	return e_concat(n, count, list, 0);
}

/* Imports the body once per iteration; false after reporting a fault. */
static bool
unroll(OnnxNode *n, Loop l)
{
	Stacks stacks = {NEW_ARRAY(n->im->arena, __typeof__(*stacks.rows), l.stacked + 1)};
	int64_t at = 0, around = n->im->unrolled_around;

	n->im->unrolled_around = (around ? around : 1) *
	                         (l.trips > 0 && l.trips < MOST_UNROLLED ? l.trips : 1);
	l.values = arena_copy(n->im->arena, l.values, sizeof(*l.values) * (size_t)l.carried);
	for (; (l.trips < 0 || at < l.trips) && holds(n, l.cond) == 1; at++)
		if (!one_iteration(n, &l, at, &stacks) || n->im->full || at == l.most_unrolled) {
			if (at == l.most_unrolled)
				report_unsupported(
					n,
					"more than %d iterations whose values change their shapes",
					MOST_UNROLLED);
			n->failed = true;
			break;
		}
	n->im->unrolled_around = around;
	if (n->failed)
		return false;
	if ((l.trips < 0 || at < l.trips) && holds(n, l.cond) < 0) {
		report_unsupported(
			n,
			"whether iteration %lld runs depends on data, and so do the shapes of its results",
			(long long)at);
		return false;
	}
	for (int i = 0; i < l.carried; i++)
		set_output_bound(n, i, &l.values[i]);
	for (int i = 0; i < l.stacked; i++)
		set_output(n, l.carried + i,
		           at ? stack(n, stacks.rows[i].n, stacks.rows[i].at)
		              : no_rows(n, l.body->output[1 + l.carried + i]));
	return !n->failed;
}

/* ---- the loop as a function: body(i, carried, [goes on], captured) -> (goes on, carried, [goes
 * on], rows). [goes on], the condition as a carried value, exists if --bound gives the trip count:
 * it tells whether the loop ended before the bound. */
typedef struct {
	Scope scope;
	Value *go; /* the body's condition as a result; NULL: always true */
} LoopBody;

/* Does --bound give the trip count? */
static bool
is_bounded(const Loop *l)
{
	return l->trips < 0;
}

static Value *
condition_of(OnnxNode *n, const Loop *l, Value *iteration, Value *given, Value *most)
{
	Value *go = graph_output(n, l->body, 0) ? graph_output(n, l->body, 0)->value : NULL;

	if (go && (go->type->dtype != BOOL || go->type->n != 1)) {
		report_invalid(n, "its body's condition is %s, need one bool",
		               type_text(n, go->type));
		return NULL;
	}
	if (!go)
		return NULL;
	bool always = go == given || holds(n, go) == 1;
	go = always ? NULL : e_reshape(n, go, (Ints){0});
	if (most) { /* continues if the next iteration is below the trip count */
		Value *next = e_binary(n, OP_lt, e_with(n, OP_add, iteration, 1), most);
		go = go ? e_binary(n, OP_and, go, next) : next;
	}
	return go ? go : e_scalar(n, BOOL, 1);
}

/* Builds the body. most: a trip count that is known only at run time. */
static bool
loop_body(OnnxNode *n, const Loop *l, LoopBody *out)
{
	Importer *im = n->im;
	int count = (int)l->body->n_output, k = 0;
	Value **results = NEW_ARRAY(im->arena, Value *, count + 2);
	Value **carried = NEW_ARRAY(im->arena, Value *, l->carried + 1);
	Value *most = l->trips < 0 ? l->most : NULL;

	scope_open(n, &out->scope, "body");
	Value *iteration = function_param(out->scope.f, type_scalar(im->m, S64), "i");
	for (int i = 0; i < l->carried; i++)
		carried[i] = function_param(out->scope.f, l->values[i].value->type,
		                            l->body->input[2 + i]->name);
	if (is_bounded(l))
		function_param(out->scope.f, type_scalar(im->m, BOOL), "goes");
	Value *given = e_scalar(n, BOOL, 1); /* in the body the condition is true */
	set_graph_value(n, l->body, 0, iteration);
	set_graph_value(n, l->body, 1, given);
	for (int i = 0; i < l->carried; i++)
		set_graph_value(n, l->body, 2 + (size_t)i, carried[i]);
	if (!n->failed)
		import_subgraph(n, l->body);
	if (!n->failed && most)
		most = scope_bound(im, &(Bound){.value = most})->value;
	Value *go = n->failed ? NULL : condition_of(n, l, iteration, given, most);
	results[k++] = go;
	for (int i = 1; !n->failed && i < count; i++) {
		Bound *b = graph_output(n, l->body, (size_t)i);
		if (i == 1 + l->carried && is_bounded(l))
			results[k++] = go;
		results[k++] = b ? b->value : NULL;
		if (b && !b->value)
			report_unsupported(n, "output %s is a sequence or an optional",
			                   quoted(im->model, l->body->output[i]->name));
		if (b && b->value && i <= l->carried && b->value->type != carried[i - 1]->type)
			report_unsupported(n, "%s is %s before an iteration and %s after it",
			                   quoted(im->model, l->body->output[i]->name),
			                   type_text(n, carried[i - 1]->type),
			                   type_text(n, b->value->type));
		if (b && b->value && i > l->carried && b->value->type->rank >= MAX_RANK)
			report_unsupported(n, "%s has rank %d, it cannot be stacked",
			                   quoted(im->model, l->body->output[i]->name),
			                   b->value->type->rank);
	}
	if (count == 1 + l->carried && is_bounded(l))
		results[k++] = go;
	if (n->failed) {
		scope_leave(n, &out->scope);
		return false;
	}
	double always;
	out->go = value_splat(go, &always) && always == 1 ? NULL : go;
	scope_close(n, &out->scope, k, results);
	return true;
}

static bool
try_unrolled(OnnxNode *n, const Loop *l, LoopBody *body)
{
	Loop few = *l;

	(void)body;
	/* other loops can only be unrolled, and keep the larger limit */
	if (l->trips >= 0 || has_size_bound(n))
		few.most_unrolled = SIZED_TRIPS;
	return unroll(n, few);
}

/* Runs `try` with its messages suppressed; false: it reported faults. */
static bool
succeeds(OnnxNode *n, const Loop *l, bool (*try)(OnnxNode *n, const Loop *l, LoopBody *body),
         LoopBody *body)
{
	Importer *im = n->im;
	Diag *diag = im->diag;
	char *text = NULL;
	size_t size = 0;
	FILE *nowhere = open_memstream(&text, &size);

	if (!nowhere)
		return false;
	im->diag = diag_new("", nowhere);
	bool ok = try(n, l, body) && !diag_errors(im->diag) && !im->full;
	diag_free(im->diag);
	fclose(nowhere);
	free(text);
	im->diag = diag;
	n->failed = false;
	return ok;
}

/* Forms in which a loop is imported. */
typedef enum {
	/* only unrolled: values change their shapes or are sequences, or sizes depend on the
	 * iteration */
	ONE_BY_ONE,
	ALWAYS,  /* a function whose condition is always true */
	DYNAMIC, /* a function whose condition may end the loop */
} LoopForm;

static LoopForm
form_of(OnnxNode *n, const Loop *l)
{
	int functions = n->im->m->functions.n;
	LoopBody body = {0};

	for (int i = 0; i < l->carried; i++)
		if (!l->values[i].value || l->values[i].count)
			return ONE_BY_ONE;
	bool ok = succeeds(n, l, loop_body, &body);
	while (n->im->m->functions.n > functions)
		function_remove(n->im->m->functions.at[n->im->m->functions.n - 1]);
	return !ok ? ONE_BY_ONE : body.go ? DYNAMIC : ALWAYS;
}

/* Adds the loop with its carried values and captured values. */
static Node *
build_loop(Builder *b, OnnxNode *n, const Loop *l, const LoopBody *body, int64_t bound,
           Value *const *values, Value *const *captured)
{
	int n_captured = body->scope.captured.n, k = 0;
	Value **operands = NEW_ARRAY(n->im->arena, Value *, l->carried + 1 + n_captured);
	LoopAttr a = {.body = body->scope.f,
	              .bound = bound,
	              .carried = l->carried + is_bounded(l),
	              .always = !body->go};

	for (int i = 0; i < l->carried; i++)
		operands[k++] = values[i];
	if (is_bounded(l))
		operands[k++] = b_splat(b, type_scalar(b->m, BOOL), 1);
	for (int i = 0; i < n_captured; i++)
		operands[k++] = captured[i];
	return build_node(b, OP_loop, k, operands, &a);
}

static Value **
initial_values(OnnxNode *n, const Loop *l)
{
	Value **values = NEW_ARRAY(n->im->arena, Value *, l->carried + 1);

	for (int i = 0; i < l->carried; i++)
		values[i] = l->values[i].value;
	return values;
}

/* A loop that may run no iteration: `cond` runs the loop, or returns its initial values and no rows. */
static Node *
build_guarded(OnnxNode *n, const Loop *l, const LoopBody *body, int64_t bound, Value *cond)
{
	Importer *im = n->im;
	Module *m = im->m;
	int captured = body->scope.captured.n, count = 1 + l->carried + captured;
	Function *run = function_new(m, module_fresh_name(m, "loop"));
	Function *skip = function_new(m, module_fresh_name(m, "no_loop"));
	Value **operands = NEW_ARRAY(im->arena, Value *, count), **values = initial_values(n, l);

	operands[0] = cond;
	for (int i = 1; i < count; i++) {
		operands[i] = i <= l->carried ? values[i - 1]
		                              : body->scope.captured.at[i - 1 - l->carried];
		function_param(run, operands[i]->type, "x");
		function_param(skip, operands[i]->type, "x");
	}
	Builder b = {.m = m, .f = run, .loc = n->b->loc},
		none = {.m = m, .f = skip, .loc = n->b->loc};
	Node *loop = build_loop(&b, n, l, body, bound, run->params.at, run->params.at + l->carried);
	Value **results = NEW_ARRAY(im->arena, Value *, loop->n_results);
	Value **nothing = NEW_ARRAY(im->arena, Value *, loop->n_results);
	for (int i = 0; i < loop->n_results; i++)
		results[i] = node_result(loop, i);
	for (int i = 0; i < loop->n_results; i++)
		nothing[i] = i < l->carried ? skip->params.at[i]
		                            : b_splat(&none, node_result(loop, i)->type, 0);
	b_return(&b, loop->n_results, results);
	b_return(&none, loop->n_results, nothing);
	return build_node(n->b, OP_cond, count, operands, &(CondAttr){run, skip});
}

/* A bool: does the loop run an iteration? NULL: it always does. */
static Value *
begins(OnnxNode *n, const Loop *l)
{
	Value *cond = holds(n, l->cond) < 0 ? l->cond : NULL;
	Value *some = l->trips < 0 && l->most ? e_with(n, OP_gt, l->most, 0) : NULL;

	return cond && some ? e_binary(n, OP_and, cond, some) : cond ? cond : some;
}

static void
refuse_trips(OnnxNode *n, int64_t trips)
{
	report_unsupported(n, "it runs %lld times, at most %d are supported", (long long)trips,
	                   MAX_TRIPS);
}

static void
import_function(OnnxNode *n, const Loop *l)
{
	LoopBody body = {0};
	int64_t bound = l->trips;

	if ((bound < 0 && !want_size_bound(n, &bound)) || !loop_body(n, l, &body))
		return;
	if (bound > MAX_TRIPS) {
		refuse_trips(n, bound);
		return;
	}
	Value *cond = begins(n, l);
	Node *node = cond ? build_guarded(n, l, &body, bound, cond)
	                  : build_loop(n->b, n, l, &body, bound, initial_values(n, l),
	                               body.scope.captured.at);
	Value *trip = node_result(node, node->n_results - 1);
	int rows = l->carried + is_bounded(l);
	if (is_bounded(l))
		note_overflow(n, node_result(node, l->carried));
	for (int i = 0; i < l->carried; i++)
		set_output(n, i, node_result(node, i));
	for (int i = 0; rows + i + 1 < node->n_results; i++)
		set_output_padded(n, l->carried + i, node_result(node, rows + i), 0,
		                  cond || body.go ? trip : NULL);
}

/* Reports the fault of a loop that can only be unrolled, but whose trip count depends on data. If
 * its values are tensors, importing the loop as a function reports the fault. */
static void
refuse_unknown_trips(OnnxNode *n, const Loop *l)
{
	bool tensors = true;

	for (int i = 0; i < l->carried; i++)
		tensors &= l->values[i].value && !l->values[i].count;
	if (tensors)
		import_function(n, l);
	if (!n->failed)
		report_unsupported(
			n,
			"its number of iterations depends on data, and it carries a sequence, or "
			"a value whose size depends on data");
}

/* Is the number of iterations small enough to unroll, also within outer unrolled loops? */
static bool
is_few(const OnnxNode *n, const Loop *l)
{
	int64_t around = n->im->unrolled_around ? n->im->unrolled_around : 1;

	return l->trips >= 0 && l->trips <= UNROLLED_TRIPS &&
	       around * l->trips <= UNROLLED_TOGETHER;
}

static void
import_by_form(OnnxNode *n, Loop l)
{
	int begins = holds(n, l.cond);
	LoopForm form = begins == 0 ? ONE_BY_ONE : form_of(n, &l);
	if (form == ALWAYS && begins == 1 && l.too_many) { /* no condition ends the loop earlier */
		refuse_trips(n, l.too_many);
		return;
	}
	bool few = form == ALWAYS && begins == 1 && is_few(n, &l);
	/* the condition may still be known while unrolling */
	bool sized = form == DYNAMIC && begins == 1 && (l.trips >= 0 || !l.most) &&
	             (l.stacked || l.trips < 0);
	if (sized && succeeds(n, &l, try_unrolled, NULL))
		return;
	if (form == ONE_BY_ONE && begins != 0 && l.trips < 0 && l.most)
		refuse_unknown_trips(n, &l);
	else if (form == ONE_BY_ONE || few)
		unroll(n, l);
	else
		import_function(n, &l);
}

static void
import_loop(OnnxNode *n)
{
	Loop l;

	if (n->im->loops_around == MAX_NESTED) {
		report_unsupported(n, "it is inside %d other loops: at most %d loops nest",
		                   MAX_NESTED, MAX_NESTED);
		return;
	}
	if (!open_loop(n, &l))
		return;
	n->im->loops_around++;
	import_by_form(n, l);
	n->im->loops_around--;
}

const ImportRow import_loop_rows[] = {
	/* name     from  to  importer  extra */
	{"Loop", 1, 0, import_loop, .facts = {.typed_by = NO_INPUT, .states = INPUTS(2, 31)}},
	{0},
};
