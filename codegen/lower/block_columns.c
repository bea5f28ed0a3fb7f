/* Kernels that reduce rows and, beside that, sum the columns of blocks of rows: the gradient of a layer norm also gives partial
 * sums of the gradients of its weight and bias. A part has one block of rows. Each member keeps the sums of its own columns
 * in registers while the team reduces row after row:
 *
 *	parallel v0 < 256 {                                  blocks
 *	  private private9 : f32[24]                         a member's sums
 *	  for v1 < 8 {
 *	    team v2 < 8 {                                    an outer member's row
 *	      team v3 < 32 { .. accumulate the sums of the row }
 *	      team v4 < 32 { .. private9[..] = private9[..] + the element }
 *
 * Behind the rows, the sums of all outer members are added in order, through team memory. */
#include "codegen/lower/reduce.h"

#include <string.h>

static int64_t
row_width(const Rows *r)
{
	return r->nest.at[r->nest.n - 1].extent;
}

static LoopOp
combines(const Node *n)
{
	return accumulate_op(reduce_kind(n));
}

/* Emits `body` for each column: `own` is the column's place in the array of the member that has it. */
typedef void OwnColumn(Rows *r, int sum, Affine column, Affine own);
static void
for_own_columns(Rows *r, int sum, OwnColumn *body)
{
	LoopBuilder *lb = r->lw->lb;

	if (r->team_rows)
		r->member = lb_for(lb, LOOP_TEAM, r->team_rows);
	Spread lane = spread_open(r->lw, row_width(r), NULL);
	lane.unrolled = true;
	Affine column = spread_enter(&lane);
	body(r, sum, column, lane.own);
	spread_close(&lane);
	if (r->team_rows)
		lb_end(lb);
}

static void
begin_sum(Rows *r, int sum, Affine column, Affine own)
{
	(void)column;
	lb_store(r->lw->lb, r->column_sums[sum], own,
	         reduce_identity(r->lw->lb, r->column_reduces.at[sum]));
}

void
open_block_columns(Rows *r)
{
	int n = r->column_reduces.n;

	r->column_sums = NEW_ARRAY(r->lw->state->scratch, int, n);
	for (int i = 0; i < n; i++)
		r->column_sums[i] = lb_private(r->lw->lb, reduce_type(r->column_reduces.at[i]),
		                               own_numbers(r));
	for (int i = 0; i < n; i++)
		for_own_columns(r, i, begin_sum);
}

void
add_block_columns(Rows *r, int k)
{
	LoopBuilder *lb = r->lw->lb;

	for (int i = 0; i < r->column_reduces.n; i++) {
		const Node *n = r->column_reduces.at[i];
		Affine own = r->lw->state->inner_flat;
		if (r->depth[n->id] != k - 1)
			continue;
		LoopValue x = rows_element(r, node_operand(n, 0), r->flat_full);
		LoopValue sum = lb_load(lb, r->column_sums[i], own);
		lb_store(lb, r->column_sums[i], own, lb_binary(lb, combines(n), sum, x));
	}
}

/* ---- behind the rows */
/* Stores a finished sum to each result that is this sum. */
static void
store_sum(Rows *r, int sum, Affine column, LoopValue x)
{
	LoopBuilder *lb = r->lw->lb;
	const Node *ret = function_return(r->lw->f);

	column = affine_add_scaled(lb, column, r->flat_chunk, row_width(r));
	for (int i = 0; i < ret->n_operands; i++) {
		Value *v = node_operand(ret, i);
		if (rows_space(r, v) == ITER_COLUMNS &&
		    behind_reshapes(v)->node == r->column_reduces.at[sum])
			lb_store(lb, r->lw->state->buffers[v->id], column, x);
	}
}

static void
store_own(Rows *r, int sum, Affine column, Affine own)
{
	store_sum(r, sum, column, lb_load(r->lw->lb, r->column_sums[sum], own));
}

static void
share_own(Rows *r, int sum, Affine column, Affine own)
{
	LoopBuilder *lb = r->lw->lb;
	Affine at = affine_add_scaled(lb, column, affine_scalar(lb, r->member), row_width(r));

	lb_store(lb, r->shared_sums, at, lb_load(lb, r->column_sums[sum], own));
}

/* Adds up the sums of all outer members. If the row can be divided, each outer member adds up some of the columns. */
static void
add_shared(Rows *r, int sum)
{
	LoopBuilder *lb = r->lw->lb;
	int64_t width = row_width(r), slices = width % r->team_rows == 0 ? r->team_rows : 1;
	int loops = 1;
	Affine slice = affine_scalar(lb, lb_for(lb, LOOP_TEAM, r->team_rows));

	if (slices == 1)
		slice = nest_if_below(lb, slice, affine_constant(1), &loops);
	Spread lane = spread_open(r->lw, width / slices, NULL);
	Affine column = affine_add_scaled(lb, spread_enter(&lane), slice, width / slices);
	LoopValue x = lb_load(lb, r->shared_sums, column);
	for (int m = 1; m < r->team_rows; m++) {
		LoopValue y = lb_load(lb, r->shared_sums, affine_plus(column, m * width));
		x = lb_binary(lb, combines(r->column_reduces.at[sum]), x, y);
	}
	store_sum(r, sum, column, x);
	spread_close(&lane);
	for (int i = 0; i < loops; i++)
		lb_end(lb);
}

void
close_block_columns(Rows *r)
{
	LoopBuilder *lb = r->lw->lb;
	int arrays[N_DTYPES] = {0}; /* 1 + the array of each type; 0: not yet declared */

	for (int i = 0; i < r->column_reduces.n; i++) {
		if (!r->team_rows) {
			for_own_columns(r, i, store_own);
			continue;
		}
		/* one array serves all sums of its type, one after the other */
		DType type = reduce_type(r->column_reduces.at[i]);
		if (!arrays[type])
			arrays[type] = 1 + lb_local(lb, type, r->team_rows * row_width(r));
		r->shared_sums = arrays[type] - 1;
		for_own_columns(r, i, share_own);
		lb_barrier(lb);
		add_shared(r, i);
		lb_barrier(lb);
	}
}
