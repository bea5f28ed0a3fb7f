/* Splits the gradient of attention, for targets on which two parts may not add to the same result: into a
 * group for the gradients of keys and values, a group for the gradient of queries, and, if a trained
 * value was added to the scores, a group for its gradient. */
#include "codegen/groups/attention_parts.h"
#include "ir/groups/groups.h"

#include <string.h>

extern const GroupStrategy group_strategy_attention_grad_split;

typedef enum { OF_KEYS, OF_QUERIES, OF_SUMS, N_PORTIONS } Portion;
static const char *const portion_names[] = {"keys", "queries", "sums"};

static Portion
portion_of(const ScoreConsumer *c)
{
	return c->matrix.has_keys ? OF_QUERIES : OF_KEYS;
}

/* The numbers of the portion's results; products come before sums. */
static int
results_of(const AttentionGrad *a, Portion portion, int *numbers)
{
	int n = 0;

	for (int i = 0; i < a->n_consumers; i++)
		if (portion_of(&a->consumers[i]) == portion)
			numbers[n++] = i;
	for (int i = 0; i < a->n_sums && portion == OF_SUMS; i++)
		numbers[n++] = a->n_consumers + i;
	return n;
}

/* The gradient with the portion's results alone. */
static AttentionGrad
portion_alone(const AttentionGrad *a, Portion portion)
{
	AttentionGrad alone = *a;

	alone.n_consumers = 0;
	for (int i = 0; i < a->n_consumers; i++)
		if (portion_of(&a->consumers[i]) == portion)
			alone.consumers[alone.n_consumers++] = a->consumers[i];
	alone.n_sums = portion == OF_SUMS ? a->n_sums : 0;
	return alone;
}

/* Does the function return its products before its sums? */
static bool
is_ordered(const Function *f, const AttentionGrad *a)
{
	for (int i = 0; i < a->n_consumers; i++)
		if (a->consumers[i].to.result != function_result(f, i))
			return false;
	return true;
}

/* Is y v, rounded to the nearest number of a smaller float? */
static bool
rounds(const Value *y, const Value *v)
{
	return value_cast_of(y) == v && ((const CastAttr *)y->node->attr)->round == ROUND_NEAREST &&
	       dtype_is_float(y->type->dtype) &&
	       dtype_info[y->type->dtype].bits < dtype_info[v->type->dtype].bits;
}

/* The type to which all readers of v round it; else v's type. */
static DType
rounded_to(const Value *v)
{
	DType to = v->type->dtype;

	for_each_use(v, u) {
		const Value *y = u->user->n_results ? node_result(u->user, 0) : NULL;
		if (!y || !rounds(y, v) || (to != v->type->dtype && y->type->dtype != to))
			return v->type->dtype;
		to = y->type->dtype;
	}
	return to;
}

/* The function that computes the portion. A call of the same body in another layer uses it, too. */
static Function *
function_of(const Function *body, Portion portion, int n, const int *results, const DType *types)
{
	Module *m = body->module;
	const char *name = arena_printf(m->arena, "%s.%s", body->name, portion_names[portion]);
	Function *part = module_function(m, name);
	bool same = part && part->group == body->group && function_return(part)->n_operands == n;

	for (int i = 0; same && i < n; i++)
		same = function_result(part, i)->type->dtype == types[i];
	return same ? part : group_part(body, module_fresh_name(m, name), n, results, types);
}

/* Readers of the call read the part's results, which take the place of their casts. */
static void
replace_results(Node *call, Node *part, int n, const int *results)
{
	for (int i = 0; i < n; i++) {
		Value *from = node_result(call, results[i]), *to = node_result(part, i);
		if (to->type == from->type) {
			value_replace_uses(from, to);
			continue;
		}
		for_each_use(from, u) { /* casts to the result's type */
			value_replace_uses(node_result(u->user, 0), to);
			node_erase(u->user);
		}
	}
}

static void
call_portion(Node *call, const AttentionGrad *a, Portion portion)
{
	const Function *body = called_function(call);
	Builder b = {.m = body->module,
	             .f = call->function,
	             .before = call,
	             .loc = call->loc,
	             .phase = call->phase};
	int results[MOST_PRODUCTS + MOST_SUMS], n = results_of(a, portion, results);
	DType types[MOST_PRODUCTS + MOST_SUMS];

	if (n == 0)
		return;
	for (int i = 0; i < n; i++) {
		const Value *v = node_result(call, results[i]);
		types[i] = portion == OF_SUMS ? v->type->dtype : rounded_to(v);
	}
	Function *part = function_of(body, portion, n, results, types);
	Arena *scratch = arena_new();
	Value **x = NEW_ARRAY(scratch, Value *, part->params.n);
	for (int i = 0; i < part->params.n; i++)
		x[i] = group_part_argument(call, part->params.at[i]);
	Node *made = build_node(&b, OP_call, part->params.n, x, &(CallAttr){.callee = part});
	made->when = call->when;
	replace_results(call, made, n, results);
	arena_free(scratch);
}

/* Is the gradient more than one portion, and is each a kernel? */
static bool
takes(const Target *target, const Function *body)
{
	AttentionGrad a = {0};
	int portions = 0;

	if (!attention_grad_parts(body, &a, true) || !is_ordered(body, &a))
		return false;
	for (Portion portion = 0; portion < N_PORTIONS; portion++) {
		AttentionGrad alone = portion_alone(&a, portion);
		if (alone.n_consumers + alone.n_sums == 0)
			continue;
		if (!attention_grad_is_one_kernel(target, &alone))
			return false;
		portions++;
	}
	return portions > 1;
}

static bool
expand(const Target *target, Node *call)
{
	AttentionGrad a = {0};

	(void)target;
	attention_grad_parts(called_function(call), &a, true);
	for (Portion portion = 0; portion < N_PORTIONS; portion++)
		call_portion(call, &a, portion);
	node_erase(call);
	return true;
}

const GroupStrategy group_strategy_attention_grad_split = {
	.group = &group_attention_grad,
	.kinds = ON(TEAMS),
	.doc = "the gradients of keys and values, of queries, and of trained values, each a group of its own",
	.takes = takes,
	.expand = expand};
