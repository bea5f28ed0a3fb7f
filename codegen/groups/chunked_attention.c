/* Attention without a kernel, and its gradient, for some queries at a time: a loop over chunks. A chunk's scores are
 * stored, for all samples and heads; the memory is the next chunk's. The gradients of keys and values are sums over
 * chunks. Chunks have the same queries for any batch, so bits do not depend on the number of ranks. (If all samples share
 * their keys and are more than the queries, chunks are of samples.) */
#include "codegen/groups/chunks.h"
#include "codegen/strategy/strategy.h"
#include "ir/groups/groups.h"

extern const GroupStrategy group_strategy_chunked_attention, group_strategy_chunked_attention_grad;

/* Does exactly one operand of v's node have this axis of v? So the axis is no batch axis. */
static bool
is_one_operands(Arena *arena, const Value *v, int axis)
{
	unsigned cut = chunks_operands_cut(arena, v, axis);

	return cut && (cut & (cut - 1)) == 0;
}

/* The queries are the longest axis of the scores that can be cut and that one operand of the product has. */
static bool
plan(const Target *t, const Function *body, Arena *arena, Chunks *out)
{
	const AttentionChunks *sizes = &t->tuning->attention_chunks;
	Value *scores = body->states.n == 0 ? group_scores(body) : NULL;
	int64_t longest = 0;
	Chunks c;

	for (int axis = 0; scores && axis < scores->type->rank; axis++)
		if (scores->type->dims[axis] > longest &&
		    scores->type->dims[axis] >= sizes->least_queries &&
		    is_one_operands(arena, scores, axis) &&
		    chunks_plan_axis(arena, body, scores, axis, sizes->queries, &c)) {
			longest = scores->type->dims[axis];
			*out = c;
		}
	return longest > 0;
}

/* ---- sums of 16 bits. Chunks add up f32, and readers that want f32 get the sum before it is rounded. */
static bool
is_cast_to(const Node *n, DType to)
{
	return n->n_results == 1 && value_cast_of(node_result(n, 0)) &&
	       node_result(n, 0)->type->dtype == to;
}

static bool
all_cast_to(const Value *v, DType to)
{
	for_each_use(v, u)
		if (!is_cast_to(u->user, to))
			return false;
	return true;
}

/* Result i of f without its last rounding. */
static void
unround(Function *f, int i)
{
	Node *ret = function_return(f);
	Builder b = {.m = f->module, .f = f, .before = ret, .loc = ret->loc, .phase = ret->phase};

	node_set_operand(ret, i, gradient_unrounded(&b, node_operand(ret, i)));
}

/* Are the narrow sums over chunks in f32 now? False: there were none. */
static bool
unround_sums(Function *f, const Chunks *c)
{
	const AxisCut *cut = &c->levels[0].cut;
	bool any = false;

	for (int i = 0; i < function_return(f)->n_operands; i++) {
		const Value *v = function_result(f, i);
		if (cut->of[v->id].axis >= 0 || !value_is_narrow(v))
			continue;
		unround(f, i);
		any |= function_result(f, i) != v;
	}
	if (any)
		function_drop_unread(f);
	return any;
}

/* Readers of `from` read `to`, which may have more bits. */
static void
replace_result(Builder *b, Value *from, Value *to)
{
	for_each_use(from, u)
		if (to->type != from->type && is_cast_to(u->user, to->type->dtype))
			value_replace_uses(node_result(u->user, 0), to);
	if (value_used(from))
		value_replace_uses(from, b_cast(b, to, from->type->dtype));
}

/* A call of f in the place of the call, whose result results[i] becomes result i; NULL: i. */
static Node *
call_instead(Node *call, Function *f, Value *const *operands, const int *results)
{
	Builder b = {.m = f->module,
	             .f = call->function,
	             .before = call,
	             .loc = call->loc,
	             .phase = call->phase};
	Node *other = build_node(&b, OP_call, f->params.n, operands, &(CallAttr){.callee = f});

	for (int i = 0; i < other->n_results; i++)
		replace_result(&b, node_result(call, results ? results[i] : i),
		               node_result(other, i));
	node_erase(call);
	return other;
}

/* A call of f, which group_opened made of the call's body, in place of the call. */
static Node *
with_copies(Node *call, Function *f, Arena *arena)
{
	Value **operands = NEW_ARRAY(arena, Value *, f->params.n);

	for (int i = 0; i < f->params.n; i++)
		operands[i] = node_operand(call,
		                           i < call->n_operands ? i : f->params.at[i]->number);
	return call_instead(call, f, operands, NULL);
}

/* Puts a loop in place of the call; call NULL: only says whether there are several chunks. */
static bool
cut_queries(const Target *t, const Function *body, Node *call)
{
	Arena *arena = arena_new();
	Function *f = group_opened(body);
	Chunks c;
	bool cut = plan(t, f, arena, &c);

	if (cut && call && unround_sums(f, &c))
		cut = plan(t, f, arena, &c);
	if (cut && call)
		chunks_expand(&c, with_copies(call, f, arena));
	function_remove(f);
	arena_free(arena);
	return cut;
}

static bool
takes(const Target *t, const Function *body)
{
	return cut_queries(t, body, NULL);
}

static bool
expand(const Target *t, Node *call)
{
	return cut_queries(t, called_function(call), call);
}

/* Replaces each result that is a constant number by that number. Example: the gradient of an index is 0. */
static void
replace_numbers(Node *call)
{
	Builder b = {.m = call->function->module,
	             .f = call->function,
	             .before = call,
	             .loc = call->loc,
	             .phase = call->phase};
	double number;

	for (int i = 0; i < call->n_results; i++)
		if (value_used(node_result(call, i)) &&
		    value_splat(function_result(called_function(call), i), &number))
			value_replace_uses(node_result(call, i),
			                   b_splat(&b, node_result(call, i)->type, number));
}

/* A call that computes only the results that are read, in the place of the call; NULL: none is read. */
static Node *
call_of_read(Node *call, Arena *arena)
{
	Module *m = call->function->module;
	Function *body = called_function(call);
	int *results = NEW_ARRAY(arena, int, call->n_results), n = 0;
	DType *types = NEW_ARRAY(arena, DType, call->n_results);
	Value **operands = NEW_ARRAY(arena, Value *, call->n_operands);

	for (int i = 0; i < call->n_results; i++)
		if (value_used(node_result(call, i))) {
			types[n] = node_result(call, i)->type->dtype;
			results[n++] = i;
		}
	if (n == 0)
		return NULL;
	const char *name = arena_printf(m->arena, "%s.read", body->name);
	Function *part = group_part(body, module_fresh_name(m, name), n, results, types);
	for (int i = 0; i < n; i++)
		if (value_is_narrow(function_result(part, i)) &&
		    all_cast_to(node_result(call, results[i]), F32))
			unround(part, i);
	for (int i = 0; i < part->params.n; i++)
		operands[i] = group_part_argument(call, part->params.at[i]);
	return call_instead(call, part, operands, results);
}

/* Leaves out gradients that nobody reads, such as the gradients of masks. */
static bool
expand_grad(const Target *t, Node *call)
{
	Arena *arena = arena_new();
	replace_numbers(call);
	Node *read = call_of_read(call, arena);

	if (!read)
		node_erase(call);
	else if (!expand(t, read))
		call_inline(read);
	arena_free(arena);
	return true;
}

const GroupStrategy group_strategy_chunked_attention = {.group = &group_chunked_attention,
                                                        .kinds = ON(CPU),
                                                        .doc = "a loop over chunks of queries",
                                                        .takes = takes,
                                                        .expand = expand};

const GroupStrategy group_strategy_chunked_attention_grad = {
	.group = &group_chunked_attention_grad,
	.kinds = ON(CPU),
	.doc = "a loop over chunks of queries, for the gradients that are read",
	.expand = expand_grad};
