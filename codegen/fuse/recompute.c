#include "codegen/fuse/recompute.h"

enum { MAX_NODES = 64 /* limits a chain, because walking it recurses */ };

static bool
add_leaf(RecomputeCost *c, Value *v)
{
	if (v->type->n * SMALL_VALUE <= c->elements)
		return true;
	for (int i = 0; i < c->n_leaves; i++)
		if (c->leaves[i] == v)
			return true;
	if (c->n_leaves == MAX_LEAVES)
		return false;
	c->leaves[c->n_leaves++] = v;
	c->leaf_bytes += type_bytes(v->type);
	return true;
}

static bool add_link(const Node *n, RecomputeSource (*source)(const void *ctx, const Value *v),
                     const void *ctx, RecomputeCost *c);

static bool
add_operand(Value *v, RecomputeSource (*source)(const void *ctx, const Value *v), const void *ctx,
            RecomputeCost *c)
{
	Value *x = behind_views(v);

	switch (source(ctx, x)) {
	case FROM_MEMORY: return add_leaf(c, x);
	case FROM_NOTHING: return true;
	default: return add_link(x->node, source, ctx, c);
	}
}

static bool
add_link(const Node *n, RecomputeSource (*source)(const void *ctx, const Value *v), const void *ctx,
         RecomputeCost *c)
{
	if (op_row(n)->fuse != FUSE_ELEMENTWISE || c->nodes++ == MAX_NODES)
		return false;
	c->arithmetic += op_row(n)->weight ? op_row(n)->weight : 1;
	for (int i = 0; i < n->n_operands; i++)
		if (!add_operand(node_operand(n, i), source, ctx, c))
			return false;
	return true;
}

bool
recompute_cost(Value *v, RecomputeSource (*source)(const void *ctx, const Value *v),
               const void *ctx, RecomputeCost *c)
{
	*c = (RecomputeCost){.elements = v->type->n};
	return add_link(v->node, source, ctx, c);
}

static const RecomputeLimit *
limit_of(const Target *t, Kept kept)
{
	const RecomputeLimits *r = &t->tuning->recompute;

	return kept == KEPT_FOR_NEXT ? &r->next : &r->backward;
}

bool
recompute_matters(const Target *t, const Value *v, Kept kept)
{
	return type_bytes(v->type) >= limit_of(t, kept)->least_bytes;
}

bool
recompute_pays(const Target *t, const RecomputeCost *c, int64_t loaded, int64_t saved, Kept kept)
{
	return loaded <= saved && c->arithmetic <= limit_of(t, kept)->additions;
}
