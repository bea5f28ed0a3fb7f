/* Losses that the graph computes. If the graph's loss is a mean over n targets, a micro-batch
 * adds loss * n and n to the step's two sums. So the loss and gradients of the step are the mean
 * over all its targets, even if micro-batches have different numbers of targets. If no option
 * names the output that holds n, n is the number by which the graph divides. If the graph divides
 * by data in another way, the loss is called uneven: the mean over the step cannot be computed
 * from the losses of micro-batches. */
#include "passes/losses/loss_pass.h"

static bool
is_scalar(const Value *v)
{
	return v->type->n == 1;
}

/* ---- the divisor of the loss */
/* The operand of a node that only scales the operand or changes its shape or type; NULL: the node does more. */
static Value *
scaled_operand(const Node *n)
{
	double by;

	if (op_row(n)->fuse == FUSE_VIEW || n->op == OP_cast || n->op == OP_neg)
		return node_operand(n, 0);
	for (int i = 0; n->op == OP_mul && i < 2; i++)
		if (value_splat(node_operand(n, i), &by))
			return node_operand(n, 1 - i);
	return NULL;
}

/* Returns n if v is max(n, 1), or a select between n and 1: models write this to avoid a division
 * by 0. Otherwise returns v. */
static Value *
without_least(Value *v)
{
	const Node *n = behind_views(v)->node;
	int first = n && n->op == OP_select ? 1 : 0;
	double least;

	for (int i = 0; n && (n->op == OP_max || n->op == OP_select) && i < 2; i++)
		if (value_splat(node_operand(n, first + i), &least) && least <= 1)
			return node_operand(n, first + 1 - i);
	return v;
}

/* n, if the loss is sum / n or a multiple of it; NULL: it has another form. */
static Value *
divisor_of(Value *loss)
{
	for (Value *v = loss; v && v->node && is_scalar(v); v = scaled_operand(v->node))
		if (v->node->op == OP_div)
			return without_least(node_operand(v->node, 1));
	return NULL;
}

/* ---- dependences */
static bool
is_parameter(const Value *v)
{
	return v->kind == VALUE_STATE && v->state->kind == STATE_PARAMETER;
}

static bool
is_input(const Value *v)
{
	return v->kind == VALUE_PARAM && v->param == PARAM_INPUT;
}

/* By value id: does the value depend on a value for which `what` is true? */
static bool *
find_dependents(const Function *f, bool (*what)(const Value *v), Arena *arena)
{
	bool *depends = NEW_ARRAY(arena, bool, f->next_value_id);

	for (const Node *n = f->first; n; n = n->next) {
		bool any = false;
		for (int i = 0; i < n->n_operands; i++) {
			const Value *v = node_operand(n, i);
			any |= v && (what(v) || depends[v->id]);
		}
		for (int i = 0; i < n->n_results; i++)
			depends[node_result(n, i)->id] = any;
	}
	return depends;
}

typedef struct {
	BatchAxes rows;
	const bool *of_inputs; /* by value id: does it depend on inputs? */
	bool *seen;            /* by value id */
	VEC(Value *) work;
	Arena *arena;
} Walk;

static Walk
walk_new(const Function *f, Arena *arena)
{
	return (Walk){.rows = batch_of(arena, f),
	              .of_inputs = find_dependents(f, is_input, arena),
	              .seen = NEW_ARRAY(arena, bool, f->next_value_id),
	              .arena = arena};
}

static void
push(Walk *w, Value *v)
{
	if (!v || w->seen[v->id])
		return;
	w->seen[v->id] = true;
	vec_push(w->arena, &w->work, v);
}

/* Is v a number that depends on the data of all rows together, such as the number of targets in the batch? A number
 * that belongs to one row does not count, even in a batch of one row. */
static bool
is_said_by_data(const Walk *w, const Value *v)
{
	return is_scalar(v) && w->rows.of[v->id].axis < 0 && (is_input(v) || w->of_inputs[v->id]);
}

static bool
divides_by_data(const Walk *w, const Node *n)
{
	return n->op == OP_div && is_said_by_data(w, behind_views(node_operand(n, 1)));
}

/* Does the graph divide by data between the loss and the last products, convolutions and indexing
 * before it? */
static bool
is_uneven(const Function *f, Value *loss, Arena *arena)
{
	Walk w = walk_new(f, arena);

	push(&w, loss);
	while (w.work.n) {
		const Node *n = w.work.at[--w.work.n]->node;
		FuseClass class = n ? op_row(n)->fuse : FUSE_NONE;
		if (class != FUSE_ELEMENTWISE && class != FUSE_VIEW && class != FUSE_REDUCE)
			continue;
		if (divides_by_data(&w, n))
			return true;
		for (int i = 0; i < n->n_operands; i++)
			push(&w, node_operand(n, i));
	}
	return false;
}

/* The number by which the loss divides, if this number is a count: it depends on inputs or labels, and not on
 * parameters. NULL: the number is not a count. */
static Value *
own_count(const Function *f, Value *loss, Arena *arena)
{
	Value *n = divisor_of(loss);
	Walk w = walk_new(f, arena);

	bool counts = n && is_said_by_data(&w, behind_views(n)) && !is_parameter(n) &&
	              !find_dependents(f, is_parameter, arena)[n->id];
	return counts ? n : NULL;
}

bool
loss_is_uneven(const Function *f, const LossOptions *o)
{
	Value *loss = function_result(f, (int)o->output);
	Arena *arena = arena_new();
	bool uneven = o->count == LOSS_COUNT_FOUND && is_uneven(f, loss, arena) &&
	              !own_count(f, loss, arena);

	arena_free(arena);
	return uneven;
}

/* ---- building */
static Value *
scalar_of(Builder *b, Value *v, DType d)
{
	return b_reshape(b, b_cast(b, v, d), (Ints){0});
}

/* A micro-batch without targets has a mean of 0/0, and adds 0 to both sums. */
void
loss_build_own(LossPass *lp, Loss *l, Value *const *results)
{
	Builder *b = l->b;
	const LossOptions *o = l->options;
	Value *value = results[o->output], *count = o->count >= 0 ? results[o->count] : NULL;
	DType d = value->type->dtype;
	Type t = type_scalar(b->m, d);

	l->targets = 1;
	if (!count && o->count == LOSS_COUNT_FOUND) {
		count = own_count(b->f, value, lp->p->scratch);
		count = count ? b_unary(b, OP_abs, scalar_of(b, count, d)) : NULL;
	}
	if (!count) {
		l->count = b_splat(b, t, 1);
		l->sum = scalar_of(b, value, d);
		return;
	}
	l->count = b_unary(b, OP_stop_gradient, scalar_of(b, count, d));
	Value *any = b_binary(b, OP_gt, l->count, b_splat(b, t, 0));
	Value *sum = b_binary(b, OP_mul, scalar_of(b, value, d), l->count);
	l->sum = b_select(b, any, sum, b_splat(b, t, 0));
}
