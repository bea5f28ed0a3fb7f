/* Kernels that write their result in parts (concat, pad), one behind the other. Parts have their first axes in common:
 * loops over these stand around all of them and are parallel. */
#include "codegen/lower_impl.h"

void
lower_open_parts(Lower *lw, const Node *n, int axes)
{
	struct LowerState *st = lw->state;
	Type t = node_result(n, 0)->type;
	LoopNest nest = {0};

	int64_t inside = t->n, common = 0;

	for (int i = 0; i < t->rank && t->n; i++) {
		common += i < axes && t->dims[i] > 1;
		inside /= t->dims[i];
		if (t->dims[i] > 1)
			nest.at[nest.n++] = (LoopDim){.extent = t->dims[i], .full = inside};
	}
	int loops = nest.n, parallel = nest_parallel(&nest, (int)common, NULL, lw->parts);
	st->row_loops = parallel + (nest.n > loops); /* within a block, too */
	st->rows = st->row_loops ? t->n / nest.at[st->row_loops - 1].full : 1;
	st->row = affine_constant(0);
	for (int i = 0; i < st->row_loops; i++) {
		LoopValue v = nest_open(lw->lb, &nest, i,
		                        i < parallel ? LOOP_PARALLEL : LOOP_PLAIN);
		int64_t rows = nest.at[i].full / (t->n / st->rows);
		st->row = affine_add(st->row, affine_scale(affine_scalar(v), rows));
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
