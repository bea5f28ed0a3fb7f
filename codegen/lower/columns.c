/* Emits kernels that reduce along columns, such as the sum over the rows of a matrix. Vector
 * lanes, or the members (threads) of a team, run along results; the sums of a tile of
 * neighbouring results lie in arrays. */
#include "codegen/lower/reduce.h"

static void
column_loop(Rows *r, void (*body)(Rows *r, Affine j, void *ctx), void *ctx)
{
	LoopDim d = r->nest.at[r->column_loop];
	Affine full = r->flat_full, row = r->flat_row;

	Spread lane = nest_spread(r->lw, &r->nest, r->column_loop);
	Affine j = spread_enter(&lane);
	r->flat_full = affine_add_scaled(r->lw->lb, full, j, d.full);
	r->flat_row = affine_add_scaled(r->lw->lb, row, j, d.row);
	r->lw->state->column = j;
	r->lw->state->full_flat = r->flat_full;
	body(r, j, ctx);
	spread_close(&lane);
	r->flat_full = full;
	r->flat_row = row;
}

/* The array and place of the current member's sum for column j of a reduction. */
static int
sums_of(Rows *r, const Node *n, Affine j, Affine *place)
{
	LoopBuilder *lb = r->lw->lb;
	int64_t columns = r->nest.at[r->column_loop].extent;

	*place = j;
	if (!r->team_rows)
		return r->lw->state->reduced_at[n->id];
	*place = affine_add_scaled(lb, j, affine_scalar(lb, r->member), columns);
	return r->partial_sums[n->id];
}

static void
column_init(Rows *r, Affine j, void *ctx)
{
	const Node *n = ctx;
	Affine place;
	int local = sums_of(r, n, j, &place);

	lb_store(r->lw->lb, local, place, reduce_identity(r->lw->lb, n));
}

typedef struct {
	int k, n;
	const Node **reduces;
} ColumnPass;

static void
column_sum(Rows *r, Affine j, void *ctx)
{
	ColumnPass *p = ctx;
	LoopBuilder *lb = r->lw->lb;

	for (int i = 0; i < p->n; i++) {
		const Node *n = p->reduces[i];
		Affine place;
		int local = sums_of(r, n, j, &place);
		LoopValue x = rows_element(r, node_operand(n, 0), r->flat_full);
		LoopValue sum = lb_load(lb, local, place);
		lb_store(lb, local, place, lb_binary(lb, accumulate_op(reduce_kind(n)), sum, x));
	}
	store_full(r, p->k);
}

static void
column_nest(Rows *r, int dim, ColumnPass *p)
{
	LoopBuilder *lb = r->lw->lb;
	Affine full = r->flat_full, step;

	if (dim == r->nest.n) {
		column_loop(r, column_sum, p);
		return;
	}
	int loops = open_reduced(r, dim, &step);
	r->flat_full = affine_add_scaled(lb, full, step, r->nest.at[dim].full);
	column_nest(r, dim + 1, p);
	for (int i = 0; i < loops; i++)
		lb_end(lb);
	r->flat_full = full;
}

/* The team is divided into groups of threads (outer members), each with its own sums. Adds these
 * sums, in the order of the groups. */
static void
column_combine(Rows *r, Affine j, void *ctx)
{
	LoopBuilder *lb = r->lw->lb;
	const Node *n = ctx;
	LoopOp op = accumulate_op(reduce_kind(n));
	int64_t columns = r->nest.at[r->column_loop].extent;
	LoopValue sum = lb_load(lb, r->partial_sums[n->id], j);

	for (int m = 1; m < r->team_rows; m++)
		sum = lb_binary(lb, op, sum,
		                lb_load(lb, r->partial_sums[n->id], affine_plus(j, m * columns)));
	lb_store(lb, r->lw->state->reduced_at[n->id], j, sum);
}

void
once_by_column(Rows *r, void (*body)(Rows *r, Affine j, void *ctx), void *ctx)
{
	LoopBuilder *lb = r->lw->lb;

	if (!r->team_rows) {
		column_loop(r, body, ctx);
		return;
	}
	Affine member = affine_scalar(lb, lb_for(lb, LOOP_TEAM, r->team_rows));
	lb_for_below(lb, LOOP_PLAIN, 1, affine_add_scaled(lb, affine_constant(1), member, -1));
	column_loop(r, body, ctx);
	lb_end(lb);
	lb_end(lb);
}

void
column_pass(Rows *r, int k)
{
	struct LowerState *st = r->lw->state;
	LoopBuilder *lb = r->lw->lb;
	const Node **reduces = NEW_ARRAY(st->scratch, const Node *, r->row_reduces.n);
	ColumnPass p = {k, pass_reduces(r, k, reduces), reduces};

	if (r->team_rows)
		r->member = lb_for(lb, LOOP_TEAM, r->team_rows);
	for (int i = 0; i < p.n; i++)
		column_loop(r, column_init, (void *)reduces[i]);
	column_nest(r, r->n_kept, &p);
	if (r->team_rows) {
		lb_end(lb);
		lb_barrier(lb);
		for (int i = 0; i < p.n; i++)
			once_by_column(r, column_combine, (void *)reduces[i]);
		lb_barrier(lb);
	}
	for (int i = 0; i < p.n; i++)
		st->reduced[reduces[i]->id] = REDUCED_LOCAL;
}

void
declare_columns(Rows *r)
{
	struct LowerState *st = r->lw->state;
	int64_t columns = r->nest.at[r->column_loop].extent;

	r->partial_sums = NEW_ARRAY(st->scratch, int, r->lw->f->next_node_id);
	for (int i = 0; i < r->row_reduces.n; i++) {
		const Node *n = r->row_reduces.at[i];
		st->reduced_at[n->id] = lb_local(r->lw->lb, reduce_type(n), columns);
		if (r->team_rows)
			r->partial_sums[n->id] = lb_local(r->lw->lb, reduce_type(n),
			                                  r->team_rows * columns);
	}
}
