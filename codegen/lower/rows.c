/* Kernels with reductions along rows: loops over the reduced elements, with partial sums for each lane or
 * member of a team. */
#include "codegen/lower/reduce.h"

static void
store_late(Lower *lw)
{
	struct LowerState *st = lw->state;

	for (int i = 0; i < st->late.n; i++)
		lb_store(lw->lb, st->late.at[i].array, st->inner_flat, st->late.at[i].x);
	st->late.n = 0;
}

/* Emits pass k over the reduced loops from `dim` on. acc: the sums of the n reductions `reduces`,
 * one each, set when the loops are closed. */
static void
row_nest(Rows *r, int k, int dim, int n, const Node **reduces, LoopValue *acc)
{
	LoopBuilder *lb = r->lw->lb;
	struct LowerState *st = r->lw->state;
	LoopDim d = r->nest.at[dim];
	bool last = dim == r->nest.n - 1;
	Affine full = r->flat_full, inner = st->inner_flat;
	LoopValue *own = NEW_ARRAY(st->scratch, LoopValue, n);

	bool shared = r->shares_rows && dim == r->row_loop;
	int loops = 1;
	Spread lane = {0};
	LoopValue v = -1;
	if (last) {
		lane = spread_open(r->lw, d.extent, NULL);
		lane.unrolled = st->own_rows;
	} else {
		v = lb_for(lb, shared ? LOOP_TEAM : LOOP_PLAIN, shared ? r->team_rows : d.extent);
	}
	for (int i = 0; i < n; i++)
		own[i] = lb_accumulator(lb, reduce_kind(reduces[i]), reduce_type(reduces[i]));
	Affine step;
	if (last) {
		step = spread_enter(&lane);
	} else if (shared) {
		r->member = v;
		loops += open_reduced(r, dim, &step);
	} else {
		step = affine_scalar(lb, v);
	}
	r->flat_full = affine_add_scaled(lb, full, step, d.full);
	int64_t width = 1;
	for (int i = dim + 1; i < r->nest.n; i++)
		width *= r->nest.at[i].extent;
	st->inner_flat = affine_add_scaled(lb, inner, step, width);
	if (last) {
		if (st->own_rows)
			st->inner_flat = lane.own;
		st->full_flat = r->flat_full;
		for (int i = 0; i < n; i++)
			lb_accumulate(lb, own[i],
			              rows_element(r, node_operand(reduces[i], 0), r->flat_full));
		store_full(r, k);
		store_late(r->lw);
		add_block_columns(r, k);
	} else {
		row_nest(r, k, dim + 1, n, reduces, acc);
		for (int i = 0; i < n; i++)
			lb_accumulate(lb, own[i], acc[i]);
	}
	if (last)
		spread_close(&lane);
	for (int i = 0; !last && i < loops; i++)
		lb_end(lb);
	for (int i = 0; i < n; i++)
		acc[i] = own[i];
	r->flat_full = full;
	st->inner_flat = inner;
}

/* Computes row values that the pass reads before its loops. */
static void
hoist_rows(Rows *r, int k)
{
	for_each_node(r->lw->f, n) {
		if (op_row(n)->fuse != FUSE_ELEMENTWISE ||
		    rows_space(r, node_result(n, 0)) != ITER_ROWS || r->depth[n->id] >= k ||
		    r->depth[n->id] == 0)
			continue;
		rows_element(r, node_result(n, 0), r->flat_row);
	}
}

/* Marks the arrays that this pass has filled as readable by the next pass. */
static void
promote_cached(Rows *r)
{
	struct LowerState *st = r->lw->state;

	for (uint32_t i = 0; i < r->lw->f->next_value_id; i++)
		if (st->cached[i] == 1) {
			st->cached[i] = 2;
			if (st->taken_from[i] >= 0)
				st->cache[st->taken_from[i]] = -1;
		}
}

void
row_pass(Rows *r, int k)
{
	struct LowerState *st = r->lw->state;
	const Node **reduces = NEW_ARRAY(st->scratch, const Node *, r->row_reduces.n);
	int n = pass_reduces(r, k, reduces), most = r->tiles->sums;
	LoopValue *acc = NEW_ARRAY(st->scratch, LoopValue, most);

	hoist_rows(r, k);
	for (int from = 0; from == 0 || from < n; from += most) {
		int count = n - from < most ? n - from : most;
		st->inner_flat = affine_constant(0);
		if (r->n_kept == r->nest.n) { /* every reduced axis has one element */
			st->full_flat = r->flat_full;
			for (int i = 0; i < count; i++)
				acc[i] = rows_element(r, node_operand(reduces[from + i], 0),
				                      r->flat_full);
			store_full(r, from ? -1 : k);
		} else {
			row_nest(r, from ? -1 : k, r->n_kept, count, reduces + from, acc);
		}
		for (int i = 0; i < count; i++) {
			st->reduced[reduces[from + i]->id] = REDUCED_SCALAR;
			st->reduced_at[reduces[from + i]->id] = acc[i];
		}
	}
	promote_cached(r);
}
