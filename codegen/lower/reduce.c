/* Kernels with reductions. Rows are the outer loops. Inside, there is one pass over the reduced
 * loops for each depth of reductions: a softmax has a pass for the maximum, one for the sum of
 * exponentials and one for the division. If the innermost axis is kept, lanes run along results,
 * with sums in a local array (columns). Otherwise lanes run along the reduced elements, with
 * LOOP_LANES partial sums (rows). Results of rows may be reduced again: consecutive rows form a
 * chunk, and such a reduction has one result per chunk. */
#include "codegen/lower/reduce.h"

#include <string.h>

/* ---- row values */
static void
store_rows(Rows *r)
{
	const Node *ret = function_return(r->lw->f);

	for (int i = 0; i < ret->n_operands; i++) {
		const Value *v = node_operand(ret, i);
		if (rows_space(r, v) != ITER_ROWS)
			continue;
		lb_store(r->lw->lb, r->lw->state->buffers[v->id], r->flat_row,
		         rows_element(r, v, r->flat_row));
	}
}

static void
store_rows_of_column(Rows *r, Affine j, void *ctx)
{
	(void)j, (void)ctx;
	store_rows(r);
}

static void
row_body(Rows *r)
{
	struct LowerState *st = r->lw->state;

	memset(st->reduced, 0, sizeof(*st->reduced) * r->lw->f->next_node_id);
	memset(st->cached, 0, sizeof(*st->cached) * r->lw->f->next_value_id);
	for (int k = 1; k <= r->depths + 1; k++) {
		if (!pass_has_work(r, k))
			continue;
		if (r->by_column)
			column_pass(r, k);
		else
			row_pass(r, k);
	}
	if (r->by_column)
		once_by_column(r, store_rows_of_column, NULL);
	else
		store_rows(r);
}

/* ---- kept loops */
static void
advance(Rows *r, const LoopDim *d, Affine step)
{
	LoopBuilder *lb = r->lw->lb;

	r->flat_full = affine_add_scaled(lb, r->flat_full, step, d->full);
	r->flat_row = affine_add_scaled(lb, r->flat_row, step, d->row);
	if (d->chunk)
		r->flat_chunk = affine_add_scaled(lb, r->flat_chunk, step, d->chunk);
}

static void
add_to_chunks(Rows *r, const LoopValue *acc)
{
	for (int i = 0; i < r->chunk_reduces.n; i++)
		lb_accumulate(
			r->lw->lb, acc[i],
			rows_element(r, node_operand(r->chunk_reduces.at[i], 0), r->flat_row));
}

static void
finish_chunk(Rows *r, const LoopValue *sums)
{
	struct LowerState *st = r->lw->state;
	const Node *ret = function_return(r->lw->f);

	for (int i = 0; i < r->chunk_reduces.n; i++) {
		st->reduced[r->chunk_reduces.at[i]->id] = REDUCED_SCALAR;
		st->reduced_at[r->chunk_reduces.at[i]->id] = sums[i];
	}
	for (int i = 0; i < ret->n_operands; i++) {
		const Value *v = node_operand(ret, i);
		if (rows_space(r, v) == ITER_CHUNKS)
			lb_store(r->lw->lb, st->buffers[v->id], r->flat_chunk,
			         rows_element(r, v, r->flat_chunk));
	}
}

/* Opens kept loop `dim` and the loops inside it. Row values are added to `sums`, the sums of
 * their chunk. */
static void
kept_loops(Rows *r, int dim, LoopValue *sums)
{
	LoopBuilder *lb = r->lw->lb;
	LoopDim d = r->nest.at[dim];
	Affine full = r->flat_full, row = r->flat_row, chunk = r->flat_chunk;
	bool sums_here = r->chunks && d.chunk == 0;
	size_t bytes = sizeof(LoopValue) * (size_t)r->chunk_reduces.n;
	LoopValue *own = arena_alloc(r->lw->state->scratch, bytes);
	bool inner_rows = dim + 1 < r->n_kept;

	bool team = r->team_rows && !r->shares_rows && !inner_rows;
	/* the first loop over the rows of a block */
	bool block = r->block_rows && d.chunk == 0 && (dim == 0 || r->nest.at[dim - 1].chunk);
	if (block)
		open_block_columns(r);
	int loops = 1;
	Affine step;
	if (team) {
		loops = nest_open_rows(r->lw, &r->nest, dim, &step);
		/* each group of threads (outer member) that takes a row has its own arrays */
		plan_cache(r);
	} else {
		LoopMode mode = dim < r->n_parallel ? LOOP_PARALLEL : LOOP_PLAIN;
		step = affine_scalar(lb, nest_open(lb, &r->nest, dim, mode));
	}
	advance(r, &d, step);
	for (int i = 0; sums_here && i < r->chunk_reduces.n; i++)
		own[i] = lb_accumulator(lb, reduce_kind(r->chunk_reduces.at[i]),
		                        reduce_type(r->chunk_reduces.at[i]));
	if (inner_rows) {
		kept_loops(r, dim + 1, sums);
		for (int i = 0; sums_here && i < r->chunk_reduces.n; i++)
			lb_accumulate(lb, own[i], sums[i]);
	} else {
		row_body(r);
		if (sums_here)
			add_to_chunks(r, own);
	}
	bool ends_chunk = r->chunks && d.chunk && (!inner_rows || !r->nest.at[dim + 1].chunk);
	if (ends_chunk) {
		if (!inner_rows) /* the chunk has one row */
			for (int i = 0; i < r->chunk_reduces.n; i++)
				sums[i] = rows_element(r, node_operand(r->chunk_reduces.at[i], 0),
				                       r->flat_row);
		finish_chunk(r, sums);
	}
	for (int i = 0; i < loops; i++)
		lb_end(lb);
	if (block)
		close_block_columns(r);
	if (sums_here && bytes)
		memcpy(sums, own, bytes);
	r->flat_full = full;
	r->flat_row = row;
	r->flat_chunk = chunk;
}

static void
column_tiles(Rows *r, int dim)
{
	LoopBuilder *lb = r->lw->lb;
	LoopDim d = r->nest.at[dim];
	Affine full = r->flat_full, row = r->flat_row;

	if (dim == r->column_loop) {
		row_body(r);
		return;
	}
	LoopValue v = nest_open(lb, &r->nest, dim,
	                        dim < r->n_parallel ? LOOP_PARALLEL : LOOP_PLAIN);
	advance(r, &d, affine_scalar(lb, v));
	column_tiles(r, dim + 1);
	lb_end(lb);
	r->flat_full = full;
	r->flat_row = row;
}

/* If there are no elements to reduce, every reduction gives its identity (0 for a sum), and one
 * loop stores each result. */
static void
lower_empty(Rows *r)
{
	struct LowerState *st = r->lw->state;
	LoopBuilder *lb = r->lw->lb;
	const Node *ret = function_return(r->lw->f);

	for_each_node(r->lw->f, n) {
		if (!reduces(n))
			continue;
		st->reduced[n->id] = REDUCED_SCALAR;
		st->reduced_at[n->id] = reduce_identity(lb, n);
	}
	for (int i = 0; i < ret->n_operands; i++) {
		const Value *v = node_operand(ret, i);
		LoopValue at = lb_for(lb, LOOP_VECTOR, v->type->n);
		lb_store(lb, st->buffers[v->id], affine_scalar(lb, at),
		         rows_element(r, v, affine_scalar(lb, at)));
		lb_end(lb);
	}
}

/* If several passes read the same long rows, each row gets a whole processor: the largest team,
 * and nearly all memory that a team may have. All targets of a kind (all GPUs) make this choice
 * for the same rows, so that sums have the same bits. A target whose memory cannot hold the row
 * reads the row again in each pass. */
static void
take_processor(Rows *r)
{
	const Target *t = r->lw->target;
	int64_t width = r->full / r->rows;

	r->is_long = r->lw->lb->k->n_team && t->most_team > t->team && !r->by_column &&
	             r->depths > 1 && r->nest.n - r->n_kept == 1 && !r->block_rows &&
	             width > r->tiles->near_row && width <= r->tiles->long_row;
	if (r->is_long)
		lb_team(r->lw->lb, 1, &t->most_team);
}

void
lower_reductions(Lower *lw, const Spaces *spaces)
{
	struct LowerState *st = lw->state;
	const int64_t *elements = spaces->domain.elements;
	Rows r = {.lw = lw,
	          .tiles = &lw->target->tuning->reduce,
	          .spaces = spaces,
	          .full = elements[ITER_FULL],
	          .rows = elements[ITER_ROWS],
	          .chunks = elements[ITER_CHUNKS],
	          .block_rows = spaces->domain.columns.n ? spaces->domain.columns.extent[1] : 0};
	LoopValue *sums;

	st->reduced = NEW_ARRAY(st->scratch, ReducedKind, lw->f->next_node_id);
	st->reduced_at = NEW_ARRAY(st->scratch, int, lw->f->next_node_id);
	find_passes(&r);
	if (r.full == 0) {
		lower_empty(&r);
		return;
	}
	team_begin(lw);
	sums = NEW_ARRAY(st->scratch, LoopValue, r.chunk_reduces.n);
	r.by_column = reduce_form_by_column(&spaces->domain.reduction[ITER_FULL]);
	r.nest = nest_reduce(lw, spaces);
	while (r.n_kept < r.nest.n && !r.nest.at[r.n_kept].reduced)
		r.n_kept++;
	take_processor(&r);
	cut_rows(&r);
	if (r.by_column || r.shares_rows || !r.team_rows)
		plan_cache(&r);
	if (r.by_column) {
		declare_columns(&r);
		column_tiles(&r, 0);
	} else if (r.n_kept) {
		kept_loops(&r, 0, sums);
		if (r.chunks == 1) /* all rows are one chunk, finished after the loops */
			finish_chunk(&r, sums);
	} else {
		row_body(&r);
	}
}
