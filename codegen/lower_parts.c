/* Kernels that write their result in parts (concat, pad), one behind the other. Parts have their first axes in common:
 * the loop over one of these stands around all of them and is parallel. */
#include "codegen/lower_impl.h"

/* The first of the axes that all parts have in common and that has more than one element. */
static int64_t
common_rows(Type t, int axes)
{
	for (int i = 0; t->n && i < axes; i++)
		if (t->dims[i] > 1)
			return t->dims[i];
	return 1;
}

void
lower_open_parts(Lower *lw, const Node *n, int axes)
{
	struct LowerState *st = lw->state;

	st->rows = common_rows(node_result(n, 0)->type, axes);
	st->row = affine_constant(0);
	if (st->rows > 1)
		st->row = affine_scalar(lb_for(lw->lb, LOOP_PARALLEL, st->rows));
}

void
lower_close_parts(Lower *lw)
{
	if (lw->state->rows > 1)
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
