/* Finds the nodes of an attention's body and of its gradient's body. */
#include "codegen/groups/attention_parts.h"

/* ---- attention */
/* The value that v is made of by a node of this op; NULL: by another node. */
static Value *
operand_of(const Value *v, OpKind op)
{
	return v && v->node && v->node->op == op ? node_operand(v->node, 0) : NULL;
}

/* Does v repeat the row value along keys? */
static bool
repeats_rows(const Value *v, const Value *row)
{
	const BroadcastAttr *a = operand_of(v, OP_broadcast) ? v->node->attr : NULL;
	Value *x = a ? node_operand(v->node, 0) : NULL;

	if (!a || a->axes.n != v->type->rank - 1)
		return false;
	for (int i = 0; i < a->axes.n; i++)
		if (a->axes.at[i] != i)
			return false;
	return x == row || operand_of(x, OP_stop_gradient) == row;
}

/* The value that a reduction over keys reduces to v; NULL: there is no such reduction. Rows without
 * a logit above -inf may have another number than the reduction's. */
static Value *
reduced(Attention *a, Value *v, ReduceKind kind)
{
	bool selects = v->node && v->node->op == OP_select;
	Value *row = selects ? node_operand(v->node, 2) : v;
	Value *x = operand_of(row, OP_reduce);
	const ReduceAttr *attr = x ? row->node->attr : NULL;

	a->zero_rows |= selects;
	return x && attr->kind == (int)kind && attr->axes.n == 1 &&
	                       attr->axes.at[0] == x->type->rank - 1
	               ? x
	               : NULL;
}

/* The node that divides e by its sum. */
static Value *
softmax_of(const Value *e, const Value *sum)
{
	for_each_use(e, u)
		if (u->user->op == OP_div && use_index(u) == 0 &&
		    repeats_rows(node_operand(u->user, 1), sum))
			return node_result(u->user, 0);
	return NULL;
}

static const Node *
first_dot(const Function *f)
{
	for_each_node(f, n)
		if (n->op == OP_dot)
			return n;
	return NULL;
}

/* Are all parts computed from the scores, and weights from the softmax alone? */
static bool
is_closed_attention(const Function *f, const Attention *a)
{
	Arena *arena = arena_new();
	const Value *scores = node_result(a->scores.dot, 0), *p = a->p;
	const bool *from_nothing = score_computable(arena, f, 0, NULL);
	bool ok = score_product_computable(from_nothing, &a->scores) &&
	          from_nothing[a->output.matrix.value->id] &&
	          (!a->range.select ||
	           (from_nothing[a->range.begin->id] && from_nothing[a->range.end->id])) &&
	          score_computable(arena, f, 1, &scores)[a->logits->id] &&
	          score_computable(arena, f, 1, &p)[a->output.tile->id];

	arena_free(arena);
	return ok;
}

bool
attention_parts(const Function *f, Attention *a)
{
	if (function_return(f)->n_operands != 3)
		return false;
	a->most = function_result(f, 1);
	a->sum = function_result(f, 2);
	const Node *dot = first_dot(f);
	Value *e = reduced(a, a->sum, REDUCE_SUM), *d = operand_of(e, OP_exp);
	a->logits = operand_of(d, OP_sub);
	a->p = e ? softmax_of(e, a->sum) : NULL;
	if (!dot || !a->logits || !a->p || reduced(a, a->most, REDUCE_MAX) != a->logits ||
	    !repeats_rows(node_operand(d->node, 1), a->most))
		return false;
	a->shape = a->logits->type;
	a->range = score_range(f, a->shape);
	for_each_node(f, n)
		a->guarded |= n->op == OP_is_nan && node_operand(n, 0) == a->p;
	return score_product(dot, a->shape, &a->scores) &&
	       score_consumer(function_result(f, 0), a->shape, &a->output) &&
	       a->output.matrix.has_keys && is_closed_attention(f, a);
}

/* ---- its gradient */
static bool
is_consumer(const AttentionGrad *a, const Node *n)
{
	for (int i = 0; i < a->n_consumers; i++)
		if (a->consumers[i].dot == n)
			return true;
	return false;
}

static void
add_tile(AttentionGrad *a, int consumer)
{
	int i = 0;

	while (i < a->n_tiles && a->tiles[i] != a->consumers[consumer].tile)
		i++;
	a->tiles[i] = a->consumers[consumer].tile;
	a->n_tiles += i == a->n_tiles;
	a->tile_of[consumer] = i;
}

/* A result of the function is a product of a tile with a matrix, or a sum of a tile. */
static bool
add_result(AttentionGrad *a, Value *result, bool rounds)
{
	ScoreConsumer *c = &a->consumers[a->n_consumers];

	if (!rounds && compute_type(result->type->dtype) != result->type->dtype)
		return false;
	if (a->n_consumers < MOST_PRODUCTS && score_consumer(result, a->shape, c)) {
		add_tile(a, a->n_consumers++);
		return true;
	}
	for (int i = 0; i < a->n_sums; i++)
		if (a->sums[i].to.result == result)
			return false; /* a result has one place */
	ScoreSum *s = &a->sums[a->n_sums];
	return a->n_sums++ < MOST_SUMS && score_sum(result, a->shape, s) &&
	       result->type->dtype == a->type && s->tile->type->dtype == a->type;
}

/* Finds the scores' shape, and the type of sums: from the first result if it is a product of scores; else,
 * where all results are sums of scores, from the product that makes scores. */
static bool
find_shape(const Function *f, AttentionGrad *a)
{
	const Value *v = score_behind_moves(score_unrounded(function_result(f, 0)));

	if (v->node && v->node->op == OP_dot) {
		a->shape = node_operand(v->node, 0)->type;
		a->type = compute_type(v->type->dtype);
		return true;
	}
	const Node *dot = first_dot(f);
	if (!dot)
		return false;
	a->shape = node_result(dot, 0)->type;
	a->type = v->type->dtype;
	return true;
}

/* Are all tiles computed from the products, and these from nothing but parameters? */
static bool
is_closed_grad(const Function *f, const AttentionGrad *a)
{
	Arena *arena = arena_new();
	const Value *products[MOST_PRODUCTS];
	const bool *from_nothing = score_computable(arena, f, 0, NULL);
	bool ok = !a->range.select ||
	          (from_nothing[a->range.begin->id] && from_nothing[a->range.end->id]);

	for (int i = 0; i < a->n_products; i++) {
		products[i] = node_result(a->products[i].dot, 0);
		ok &= score_product_computable(from_nothing, &a->products[i]);
	}
	const bool *from_products = score_computable(arena, f, a->n_products, products);
	for (int i = 0; i < a->n_consumers; i++)
		ok &= from_nothing[a->consumers[i].matrix.value->id] &&
		      from_products[a->consumers[i].tile->id];
	for (int i = 0; i < a->n_sums; i++)
		ok &= from_products[a->sums[i].tile->id];
	arena_free(arena);
	return ok;
}

bool
attention_grad_parts(const Function *f, AttentionGrad *a, bool rounds)
{
	const Node *ret = function_return(f);

	if (!find_shape(f, a))
		return false;
	for (int i = 0; i < ret->n_operands; i++)
		if (!add_result(a, node_operand(ret, i), rounds))
			return false;
	for_each_node(f, n) {
		if (n->op != OP_dot || is_consumer(a, n))
			continue;
		if (a->n_products == MOST_PRODUCTS ||
		    !score_product(n, a->shape, &a->products[a->n_products++]))
			return false;
	}
	a->range = score_range(f, a->shape);
	return a->n_products > 0 && is_closed_grad(f, a);
}
