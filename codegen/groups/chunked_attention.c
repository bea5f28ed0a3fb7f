/* Attention without a kernel, and its gradient, for some queries at a time: a loop over chunks. A chunk's scores are
 * stored, for all samples and heads; the memory is the next chunk's. The gradients of keys and values are sums over
 * chunks. Chunks have the same queries for any batch, so bits do not depend on the number of ranks. */
#include "codegen/groups/chunks.h"
#include "codegen/strategy/strategy.h"
#include "ir/groups/groups.h"

extern const GroupStrategy group_strategy_chunked_attention, group_strategy_chunked_attention_grad;

/* Do all operands but one of v's node have nothing of the axis of v? So the axis is no batch axis. */
static bool
is_one_operands(Arena *arena, const Value *v, int axis)
{
	Partition p = node_partition(arena, v->node);
	const Factor *f = partition_of_result(&p, v->index, axis);
	int cut = 0;

	for (int i = 0; f && i < v->node->n_operands; i++)
		cut += f->operand[i].kind == SHARE_CUT;
	return cut == 1;
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
		value_replace_uses(node_result(call, results ? results[i] : i),
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

/* Puts a loop in place of the call. NULL: only says whether there are several chunks. */
static bool
cut_queries(const Target *t, const Function *body, Node *call)
{
	Arena *arena = arena_new();
	Function *f = group_opened(body);
	Chunks c;
	bool cut = plan(t, f, arena, &c);

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

/* Readers of results that are one number, such as the gradient of what chooses an index, read this number. */
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
	for (int i = 0; i < part->params.n; i++)
		operands[i] = group_part_argument(call, part->params.at[i]);
	return call_instead(call, part, operands, results);
}

/* Computes gradients that nobody reads not at all: those of masks, and of what is not trained. */
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
