/* If, Loop and Scan: https://onnx.ai/onnx/operators/onnx__If.html, onnx__Loop.html, onnx__Scan.html
 *
 * A branch whose condition is known stands in the node's place, and so do the iterations of a Loop where their number is known and small, or
 * where values change their shapes from one to the next. Any other becomes a function of the module, which `cond` or `loop` runs. */
#include "frontend/onnx/importer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A loop that runs at most so often stands in the node's place: its iterations share kernels. */
enum { UNROLLED_TRIPS = 4, MOST_UNROLLED = 1 << 16, MAX_TRIPS = 1 << 20 };

static const GraphProto *
graph_of(OnnxNode *n, const char *name)
{
	const AttributeProto *a = node_attribute(n->proto, name);

	if (a && a->g)
		return a->g;
	report_invalid(n, "attribute \"%s\" is no graph", name);
	return NULL;
}

/* A result has the element type that the graph declares, as the model's outputs have. */
static bool
is_as_declared(OnnxNode *n, const ValueInfoProto *v, const Value *x)
{
	const Onnx__TypeProto__Tensor *t = tensor_type(v);
	DType declared;

	if (!x || !t || !t->elem_type ||
	    (tensor_dtype(t->elem_type, &declared) && declared == x->type->dtype))
		return true;
	report_invalid(n, "output %s of its graph is declared with element type %d, it is %s",
	               quoted(n->im->model, v->name), t->elem_type,
	               dtype_info[x->type->dtype].name);
	return false;
}

void
import_subgraph(OnnxNode *n, const GraphProto *g)
{
	Importer *im = n->im;

	for (size_t i = 0; i < g->n_initializer; i++) {
		TensorData d;
		if (!tensor_load(im->model, g->initializer[i], false, &d, im->diag)) {
			n->failed = true;
			return;
		}
		Type type = type_new(im->m, d.dtype, d.rank, d.dims);
		importer_bind(im, g->initializer[i]->name,
		              b_constant(&im->b, tensor_borrow(im->m, type, d.data)));
	}
	const FlatNodes *nodes = subgraph_nodes(im->model, g);
	import_nodes(im, nodes->n, nodes->at);
}

void
import_subgraph_again(OnnxNode *n, const GraphProto *g, int64_t at)
{
	uint64_t around = n->im->repetition;

	n->im->repetition = hash_bytes(&at, sizeof(at), around + 1);
	import_subgraph(n, g);
	n->im->repetition = around;
}

/* Output i of a graph that has been imported; NULL after a fault. */
static Bound *
output_of(OnnxNode *n, const GraphProto *g, size_t i)
{
	Bound *b = importer_lookup(n->im, g->output[i]->name);

	if (!b || is_poisoned(b) || !is_as_declared(n, g->output[i], b->value)) {
		n->failed = true;
		return NULL;
	}
	if (b->count && n->im->scope) {
		report_unsupported(n, "output %s of its graph has a size that depends on data",
		                   quoted(n->im->model, g->output[i]->name));
		return NULL;
	}
	return b;
}

static void
bind(OnnxNode *n, const char *name, const Bound *b)
{
	strmap_put(n->im->values, name, arena_copy(n->im->arena, b, sizeof(*b)));
}

/* ---- If */
static void
import_branch(OnnxNode *n, const GraphProto *g)
{
	import_subgraph(n, g);
	for (size_t i = 0; !n->failed && i < g->n_output && (int)i < n_outputs(n); i++) {
		Bound *b = output_of(n, g, i);
		if (b)
			n->out[i] = *b;
	}
}

/* A branch as a function of what it captures. */
static Function *
branch_function(OnnxNode *n, const GraphProto *g, Scope *s)
{
	Value **results = NEW_ARRAY(n->im->arena, Value *, g->n_output);

	scope_open(n, s, "branch");
	import_subgraph(n, g);
	for (size_t i = 0; !n->failed && i < g->n_output; i++) {
		Bound *b = output_of(n, g, i);
		if (b && !b->value)
			report_unsupported(
				n,
				"output %s is a sequence or an optional, and its branch is chosen at run time",
				quoted(n->im->model, g->output[i]->name));
		results[i] = b ? b->value : NULL;
	}
	if (n->failed) {
		scope_leave(n, s);
		return NULL;
	}
	scope_close(n, s, (int)g->n_output, results);
	return s->f;
}

/* f with the parameters of both branches, of which its own are those from `first` on. */
static Function *
with_params(OnnxNode *n, const Scope *s, const Scope *other, bool before)
{
	Function *f = function_new(n->im->m, module_fresh_name(n->im->m, s->f->name));
	Value **map = NEW_ARRAY(n->im->arena, Value *, s->f->next_value_id);
	const Scope *order[] = {before ? s : other, before ? other : s};
	Node *ret = function_return(s->f);
	Value **results = NEW_ARRAY(n->im->arena, Value *, ret->n_operands);

	for (int k = 0; k < 2; k++)
		for (int i = 0; i < order[k]->captured.n; i++) {
			Value *p = function_param(f, order[k]->captured.at[i]->type, "captured");
			if (order[k] == s)
				map[s->f->params.at[i]->id] = p;
		}
	function_clone_body(s->f, f, NULL, map);
	for (int i = 0; i < ret->n_operands; i++)
		results[i] = map[node_operand(ret, i)->id];
	b_return(&(Builder){.m = n->im->m, .f = f}, ret->n_operands, results);
	function_remove(s->f);
	return f;
}

static bool
branches_agree(OnnxNode *n, const GraphProto *g, const Function *a, const Function *b)
{
	if (function_return(a)->n_operands != function_return(b)->n_operands) {
		report_invalid(n, "its branches have %d and %d outputs",
		               function_return(a)->n_operands, function_return(b)->n_operands);
		return false;
	}
	for (int i = 0; i < function_return(a)->n_operands; i++) {
		Type x = function_result(a, i)->type, y = function_result(b, i)->type;
		if (x == y)
			continue;
		report_unsupported(
			n, "output %s is %s in one branch and %s in the other, chosen at run time",
			quoted(n->im->model, g->output[i]->name), type_text(n, x), type_text(n, y));
		return false;
	}
	return true;
}

static void
import_choice(OnnxNode *n, Value *cond, const GraphProto *then_graph, const GraphProto *else_graph)
{
	Scope yes, no;

	if (!branch_function(n, then_graph, &yes) || !branch_function(n, else_graph, &no) ||
	    !branches_agree(n, then_graph, yes.f, no.f))
		return;
	int count = 1 + yes.captured.n + no.captured.n, k = 0;
	Value **operands = NEW_ARRAY(n->im->arena, Value *, count);
	operands[k++] = cond;
	for (int i = 0; i < yes.captured.n; i++)
		operands[k++] = yes.captured.at[i];
	for (int i = 0; i < no.captured.n; i++)
		operands[k++] = no.captured.at[i];
	CondAttr a = {with_params(n, &yes, &no, true), with_params(n, &no, &yes, false)};
	Node *node = build_node(n->b, OP_cond, count, operands, &a);
	for (int i = 0; i < node->n_results; i++)
		set_output(n, i, node_result(node, i));
}

static void
import_if(OnnxNode *n)
{
	Value *cond = want_input(n, 0);
	const GraphProto *yes = graph_of(n, "then_branch"), *no = graph_of(n, "else_branch");

	if (!cond || !yes || !no)
		return;
	if (cond->type->dtype != BOOL || cond->type->n != 1) {
		report_invalid(n, "its condition is %s, need one bool", type_text(n, cond->type));
		return;
	}
	const Tensor *known = known_value(n->im, cond);
	if (known)
		import_branch(n, tensor_int(known, 0) ? yes : no);
	else
		import_choice(n, e_reshape(n, cond, (Ints){0}), yes, no);
}

/* ---- Loop: trip count, condition, carried values -> carried values, stacked outputs */
typedef struct {
	const GraphProto *
		body; /* iteration, condition, carried values -> condition, carried values, outputs to stack */
	int carried, stacked;
	int64_t trips;      /* at most; -1: not known */
	Value *most, *cond; /* a number and a bool; NULL: none */
	Bound *values;      /* that are carried */
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
	l->body = graph_of(n, "body");
	l->carried = n_inputs(n) - 2;
	if (!l->body || !read_scalar(n, 0, S64, &l->most) || !read_scalar(n, 1, BOOL, &l->cond))
		return false;
	if (l->carried < 0 || (int)l->body->n_input != l->carried + 2 ||
	    (int)l->body->n_output < l->carried + 1 || n_outputs(n) > (int)l->body->n_output - 1) {
		report_invalid(n, "%d inputs and %d outputs, its body has %zu and %zu", n_inputs(n),
		               n_outputs(n), l->body->n_input, l->body->n_output);
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
	return true;
}

/* 1: it holds, 0: it does not, -1: it is not known before the program runs. */
static int
holds(OnnxNode *n, Value *cond)
{
	const Tensor *t = cond ? known_value(n->im, cond) : NULL;

	return !cond ? 1 : t ? tensor_int(t, 0) != 0 : -1;
}

/* ---- one iteration after the other */
typedef struct {
	VEC(Value *) * rows; /* of each stacked output, by iteration */
} Stacks;

static bool
one_iteration(OnnxNode *n, Loop *l, int64_t at, Stacks *stacks)
{
	Importer *im = n->im;
	Value *number = e_reshape(n, e_constant_ints(n, 1, &at), (Ints){0});

	importer_bind(im, l->body->input[0]->name, number);
	importer_bind(im, l->body->input[1]->name, l->cond ? l->cond : e_scalar(n, BOOL, 1));
	for (int i = 0; i < l->carried; i++)
		bind(n, l->body->input[2 + i]->name, &l->values[i]);
	import_subgraph_again(n, l->body, at);
	for (size_t i = 0; !n->failed && i < l->body->n_output; i++) {
		Bound *b = output_of(n, l->body, i);
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

/* The type of a row that no iteration made: what the graph declares. */
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

/* false after reporting a fault */
static bool
unroll(OnnxNode *n, Loop l)
{
	Stacks stacks = {NEW_ARRAY(n->im->arena, __typeof__(*stacks.rows), l.stacked + 1)};
	int64_t at = 0;

	l.values = arena_copy(n->im->arena, l.values, sizeof(*l.values) * (size_t)l.carried);
	for (; (l.trips < 0 || at < l.trips) && holds(n, l.cond) == 1; at++)
		if (!one_iteration(n, &l, at, &stacks) || n->im->full || at == MOST_UNROLLED) {
			if (at == MOST_UNROLLED)
				report_unsupported(
					n,
					"more than %d iterations whose values change their shapes",
					MOST_UNROLLED);
			n->failed = true;
			return false;
		}
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

/* ---- as a function: body(i, carried, [condition], captured) -> (condition, carried, rows) */
typedef struct {
	Scope scope;
	Value *go; /* the body's condition as a result; NULL: it always goes on */
} LoopBody;

static Value *
condition_of(OnnxNode *n, const Loop *l, Value *iteration, Value *given, Value *most)
{
	Value *go = output_of(n, l->body, 0) ? output_of(n, l->body, 0)->value : NULL;

	if (go && (go->type->dtype != BOOL || go->type->n != 1)) {
		report_invalid(n, "its body's condition is %s, need one bool",
		               type_text(n, go->type));
		return NULL;
	}
	if (!go)
		return NULL;
	bool always = go == given || holds(n, go) == 1;
	go = always ? NULL : e_reshape(n, go, (Ints){0});
	if (most) { /* goes on where the next one is below it */
		Value *next = e_binary(n, OP_lt, e_with(n, OP_add, iteration, 1), most);
		go = go ? e_binary(n, OP_and, go, next) : next;
	}
	return go ? go : e_scalar(n, BOOL, 1);
}

/* most: a trip count that is known at run time only. */
static bool
loop_body(OnnxNode *n, const Loop *l, LoopBody *out)
{
	Importer *im = n->im;
	int count = (int)l->body->n_output, k = 0;
	Value **results = NEW_ARRAY(im->arena, Value *, count + 1);
	Value **carried = NEW_ARRAY(im->arena, Value *, l->carried + 1);
	Value *most = l->trips < 0 ? l->most : NULL;

	scope_open(n, &out->scope, "body");
	Value *iteration = function_param(out->scope.f, type_scalar(im->m, S64), "i");
	for (int i = 0; i < l->carried; i++)
		carried[i] = function_param(out->scope.f, l->values[i].value->type,
		                            l->body->input[2 + i]->name);
	Value *given = e_scalar(n, BOOL, 1); /* where it runs, it holds */
	importer_bind(im, l->body->input[0]->name, iteration);
	importer_bind(im, l->body->input[1]->name, given);
	for (int i = 0; i < l->carried; i++)
		importer_bind(im, l->body->input[2 + i]->name, carried[i]);
	import_subgraph(n, l->body);
	if (!n->failed && most)
		most = scope_bound(im, &(Bound){.value = most})->value;
	Value *go = n->failed ? NULL : condition_of(n, l, iteration, given, most);
	results[k++] = go;
	for (int i = 1; !n->failed && i < count; i++) {
		Bound *b = output_of(n, l->body, (size_t)i);
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
	(void)body;
	return unroll(n, *l);
}

/* Runs try without telling anybody of its faults; false: there were some. */
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

/* The ways in which a loop may be imported. */
typedef enum {
	ONE_BY_ONE, /* only so: values change their shapes, are sequences, or sizes follow from the iteration */
	ALWAYS,  /* a function, which always goes on */
	DYNAMIC, /* a function, which may end the loop */
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

/* The loop itself, as a node of the function that is being built. */
static Node *
build_loop(OnnxNode *n, const Loop *l, const LoopBody *body, int64_t bound)
{
	const Scope *s = &body->scope;
	Value **operands = NEW_ARRAY(n->im->arena, Value *, l->carried + s->captured.n);

	for (int i = 0; i < l->carried; i++)
		operands[i] = l->values[i].value;
	for (int i = 0; i < s->captured.n; i++)
		operands[l->carried + i] = s->captured.at[i];
	LoopAttr a = {.body = s->f, .bound = bound, .carried = l->carried, .always = !body->go};
	return build_node(n->b, OP_loop, l->carried + s->captured.n, operands, &a);
}

/* A loop that may not begin: where the condition holds, or else what it begins with, and no rows. */
static Node *
build_guarded(OnnxNode *n, const Loop *l, const LoopBody *body, int64_t bound, Value *cond)
{
	Importer *im = n->im;
	Module *m = im->m;
	int captured = body->scope.captured.n, count = 1 + l->carried + captured;
	Function *run = function_new(m, module_fresh_name(m, "loop"));
	Function *skip = function_new(m, module_fresh_name(m, "no_loop"));
	Value **operands = NEW_ARRAY(im->arena, Value *, count),
	      **p = NEW_ARRAY(im->arena, Value *, count);

	operands[0] = cond;
	for (int i = 1; i < count; i++) {
		operands[i] = i <= l->carried ? l->values[i - 1].value
		                              : body->scope.captured.at[i - 1 - l->carried];
		p[i - 1] = function_param(run, operands[i]->type, "x");
		function_param(skip, operands[i]->type, "x");
	}
	LoopAttr a = {
		.body = body->scope.f, .bound = bound, .carried = l->carried, .always = !body->go};
	Builder b = {.m = m, .f = run, .loc = n->b->loc},
		none = {.m = m, .f = skip, .loc = n->b->loc};
	Node *loop = build_node(&b, OP_loop, count - 1, p, &a);
	Value **nothing = NEW_ARRAY(im->arena, Value *, loop->n_results);
	for (int i = 0; i < loop->n_results; i++)
		nothing[i] = i < l->carried ? skip->params.at[i]
		                            : b_splat(&none, node_result(loop, i)->type, 0);
	b_return(&b, loop->n_results, loop->results);
	b_return(&none, loop->n_results, nothing);
	return build_node(n->b, OP_cond, count, operands, &(CondAttr){run, skip});
}

/* Where it begins at all; NULL: it does. */
static Value *
begins(OnnxNode *n, const Loop *l)
{
	Value *cond = holds(n, l->cond) < 0 ? l->cond : NULL;
	Value *some = l->trips < 0 && l->most ? e_with(n, OP_gt, l->most, 0) : NULL;

	return cond && some ? e_binary(n, OP_and, cond, some) : cond ? cond : some;
}

static void
import_function(OnnxNode *n, const Loop *l)
{
	LoopBody body = {0};
	int64_t bound = l->trips;

	if ((bound < 0 && !want_size_bound(n, &bound)) || !loop_body(n, l, &body))
		return;
	if (bound > MAX_TRIPS) {
		report_unsupported(n, "it runs %lld times, at most %d are supported",
		                   (long long)bound, MAX_TRIPS);
		return;
	}
	Value *cond = begins(n, l);
	Node *node = cond ? build_guarded(n, l, &body, bound, cond)
	                  : build_loop(n, l, &body, bound);
	Value *trip = node_result(node, node->n_results - 1);
	for (int i = 0; i < l->carried; i++)
		set_output(n, i, node_result(node, i));
	for (int i = l->carried; i + 1 < node->n_results; i++)
		set_output_padded(n, i, node_result(node, i), 0, cond || body.go ? trip : NULL);
}

/* What cannot be a function, and whose iterations nobody can count now: says why. */
static void
refuse_unknown_trips(OnnxNode *n, const Loop *l)
{
	bool tensors = true;

	for (int i = 0; i < l->carried; i++)
		tensors &= l->values[i].value && !l->values[i].count;
	if (tensors)
		import_function(n, l);
	if (!n->failed)
		report_unsupported(n, "how often it runs depends on data, and it carries a "
		                      "sequence, or a size that does so, too");
}

static void
import_loop(OnnxNode *n)
{
	Loop l;

	if (!open_loop(n, &l))
		return;
	int begins = holds(n, l.cond);
	LoopForm form = begins == 0 ? ONE_BY_ONE : form_of(n, &l);
	bool few = form == ALWAYS && begins == 1 && l.trips >= 0 && l.trips <= UNROLLED_TRIPS;
	/* Whether it goes on may yet follow from the iterations. */
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

/* ---- Scan: its body runs for each row of its inputs */
typedef struct {
	const GraphProto *body;
	int states, scanned, stacked;
	int64_t trips;
	Value **operands; /* states, and what it runs over with the axis first and in the order of the iterations */
} Scan;

/* The i-th number of a list attribute. */
static int64_t
listed(const AttributeProto *a, int i, int64_t otherwise)
{
	return a && i < (int)a->n_ints ? a->ints[i] : otherwise;
}

static bool
check_list(OnnxNode *n, const char *name, int count)
{
	const AttributeProto *a = node_attribute(n->proto, name);

	if (!a || (int)a->n_ints == count)
		return true;
	report_invalid(n, "attribute \"%s\" has %zu numbers, need %d", name, a->n_ints, count);
	return false;
}

static Value *
move_axis(OnnxNode *n, Value *x, int from, int to)
{
	Ints order = {0};

	if (!x || from == to)
		return x;
	for (int i = 0, k = 0; i < x->type->rank; i++) {
		k += k == from;
		order.at[order.n++] = i == to ? from : k++;
	}
	return e_transpose(n, x, order);
}

static Value *
reversed(OnnxNode *n, Value *x, bool reverse)
{
	return reverse && x ? b_reverse(n->b, x, (Ints){.n = 1, .at = {0}}) : x;
}

static bool
is_direction(OnnxNode *n, int64_t d)
{
	if (d != 0 && d != 1)
		report_invalid(n, "direction %lld is neither 0 nor 1", (long long)d);
	return d == 0 || d == 1;
}

/* An input that it runs over, its rows in the order of the iterations. */
static Value *
scan_input(OnnxNode *n, int i, int input)
{
	int64_t direction = listed(node_attribute(n->proto, "scan_input_directions"), i, 0);
	int64_t axis = listed(node_attribute(n->proto, "scan_input_axes"), i, 0);
	Value *x = want_input(n, input);
	int at = x && is_direction(n, direction) ? want_axis(n, axis, x->type->rank) : -1;

	return at < 0 ? NULL : reversed(n, move_axis(n, x, at, 0), direction == 1);
}

static bool
open_scan(OnnxNode *n, Scan *s)
{
	int64_t scanned = want_int(n, "num_scan_inputs", 0);

	s->body = graph_of(n, "body");
	if (!s->body)
		return false;
	s->states = n_inputs(n) - (int)scanned;
	s->stacked = (int)s->body->n_output - s->states;
	if (scanned < 1 || scanned > n_inputs(n) || (int)s->body->n_input != n_inputs(n) ||
	    s->stacked < 0 || n_outputs(n) > (int)s->body->n_output) {
		report_invalid(n,
		               "%lld scanned of %d inputs and %d outputs, its body has %zu and %zu",
		               (long long)scanned, n_inputs(n), n_outputs(n), s->body->n_input,
		               s->body->n_output);
		return false;
	}
	s->scanned = (int)scanned;
	return check_list(n, "scan_input_axes", s->scanned) &&
	       check_list(n, "scan_input_directions", s->scanned) &&
	       check_list(n, "scan_output_axes", s->stacked) &&
	       check_list(n, "scan_output_directions", s->stacked);
}

static bool
read_scan_inputs(OnnxNode *n, Scan *s)
{
	s->operands = NEW_ARRAY(n->im->arena, Value *, n_inputs(n));
	s->trips = -1;
	for (int i = 0; i < n_inputs(n); i++) {
		s->operands[i] = i < s->states ? want_input(n, i) : scan_input(n, i - s->states, i);
		if (!s->operands[i] || i < s->states)
			continue;
		if (s->trips >= 0 && s->operands[i]->type->dims[0] != s->trips)
			report_invalid(n, "inputs %d and %d have %lld and %lld rows to scan",
			               s->states, i, (long long)s->trips,
			               (long long)s->operands[i]->type->dims[0]);
		s->trips = s->operands[i]->type->dims[0];
	}
	return !n->failed;
}

/* body(i, states, rows, captured) -> (true, states, rows) */
static bool
scan_body(OnnxNode *n, const Scan *s, Scope *scope)
{
	Importer *im = n->im;
	Value **results = NEW_ARRAY(im->arena, Value *, s->body->n_output + 1);

	scope_open(n, scope, "scan");
	function_param(scope->f, type_scalar(im->m, S64), "i");
	for (int i = 0; i < n_inputs(n); i++) {
		Type t = s->operands[i]->type;
		Type row = i < s->states ? t : type_drop_axis(im->m, t, 0);
		importer_bind(im, s->body->input[i]->name,
		              function_param(scope->f, row, s->body->input[i]->name));
	}
	import_subgraph(n, s->body);
	results[0] = e_scalar(n, BOOL, 1);
	for (size_t i = 0; !n->failed && i < s->body->n_output; i++) {
		Bound *b = output_of(n, s->body, i);
		results[1 + i] = b ? b->value : NULL;
		if (b && !b->value)
			report_unsupported(n, "output %s is no tensor",
			                   quoted(im->model, s->body->output[i]->name));
		else if (b && (int)i < s->states && b->value->type != s->operands[i]->type)
			report_invalid(n, "state %zu is %s before an iteration and %s after it", i,
			               type_text(n, s->operands[i]->type),
			               type_text(n, b->value->type));
		else if (b && b->value->type->rank >= MAX_RANK)
			report_unsupported(n, "output %zu has rank %d, it cannot be stacked", i,
			                   b->value->type->rank);
	}
	if (n->failed) {
		scope_leave(n, scope);
		return false;
	}
	scope_close(n, scope, 1 + (int)s->body->n_output, results);
	return true;
}

/* Results of the loop: states, and stacks with their axes where the node has them. */
static void
set_scan_outputs(OnnxNode *n, const Scan *s, const Node *loop)
{
	const AttributeProto *axes = node_attribute(n->proto, "scan_output_axes");
	const AttributeProto *directions = node_attribute(n->proto, "scan_output_directions");

	for (int i = 0; i < (int)s->body->n_output; i++) {
		Value *y = node_result(loop, i);
		int64_t direction = listed(directions, i - s->states, 0);
		if (i >= s->states) {
			int axis = want_axis(n, listed(axes, i - s->states, 0), y->type->rank);
			y = axis >= 0 && is_direction(n, direction)
			            ? move_axis(n, reversed(n, y, direction == 1), 0, axis)
			            : NULL;
		}
		set_output(n, i, y);
	}
}

static void
import_scan(OnnxNode *n)
{
	Scan s = {0};
	Scope scope;

	if (!open_scan(n, &s) || !read_scan_inputs(n, &s) || !scan_body(n, &s, &scope))
		return;
	int count = n_inputs(n) + scope.captured.n;
	Value **operands = NEW_ARRAY(n->im->arena, Value *, count);
	memcpy(operands, s.operands, sizeof(*operands) * (size_t)n_inputs(n));
	for (int i = 0; i < scope.captured.n; i++)
		operands[n_inputs(n) + i] = scope.captured.at[i];
	LoopAttr a = {.body = scope.f,
	              .bound = s.trips,
	              .carried = s.states,
	              .sliced = s.scanned,
	              .always = true};
	Node *loop = build_node(n->b, OP_loop, count, operands, &a);
	set_scan_outputs(n, &s, loop);
}

const ImportRow import_control_rows[] = {
	/* name     from  to  importer  extra */
	{"If", 1, 0, import_if, {0}, NULL},
	{"Loop", 1, 0, import_loop, {0}, NULL},
	{"Scan", 9, 0, import_scan, {0}, NULL},
	{0},
};
