/* Kernels that write their result in parts (concat, pad), one behind the other. Parts have their first axes in common:
 * loops over these stand around all of them and are parallel. */
#include "codegen/lower_impl.h"

void
lower_open_parts(Lower *lw, const Node *n, int axes)
{
	struct LowerState *st = lw->state;
	Type t = node_result(n, 0)->type;
	LoopNest nest = {0};

	for (int i = 0; i < t->rank && t->n; i++)
		if (t->dims[i] > 1)
			nest.at[nest.n++].extent = t->dims[i];
	int common = 0;
	for (int i = 0; i < axes && t->n; i++)
		common += t->dims[i] > 1;
	st->row_loops = nest_parallel(&nest, common, lw->parts);
	st->rows = 1;
	st->row = affine_constant(0);
	for (int i = 0; i < st->row_loops; i++) {
		LoopValue v = lb_for(lw->lb, LOOP_PARALLEL, nest.at[i].extent);
		st->rows *= nest.at[i].extent;
		st->row = affine_add(affine_scale(st->row, nest.at[i].extent), affine_scalar(v));
	}
}

void
lower_close_parts(Lower *lw)
{
	for (int i = 0; i < lw->state->row_loops; i++)
		lb_end(lw->lb);
	lw->state->rows = 0;
}

void
lower_part(Lower *lw, const Node *n, Type shape,
           LoopValue (*element)(Lower *lw, const Node *n, const Index *at, const void *ctx),
           void (*place)(const Node *n, const Index *at, Index *out, const void *ctx),
           const void *ctx)
{
	LoopBuilder *lb = lw->lb;
	const struct LowerState *st = lw->state;
	Type y = node_result(n, 0)->type;
	Index out;

	if (shape->n == 0)
		return;
	LoopNest nest = nest_part(lw->f, shape, st->rows);
	Affine flat = affine_scale(st->row, shape->n / st->rows);
	for (int i = 0; i < nest.n; i++) {
		LoopMode mode = i == nest.n - 1 ? LOOP_VECTOR : LOOP_PLAIN;
		LoopValue v = lb_for(lb, mode, nest.at[i].extent);
		flat = affine_add(flat, affine_scale(affine_scalar(v), nest.at[i].full));
	}
	Index at = index_at(lw, shape, flat);
	place(n, &at, &out, ctx);
	lb_store(lb, lower_buffer(lw, node_result(n, 0)), index_flat(y, &out),
	         element(lw, n, &at, ctx));
	for (int i = 0; i < nest.n; i++)
		lb_end(lb);
}
