/* Kernels with reductions: rows in the outer loops; inside, one pass over the reduced loops per depth
 * of reductions, so that a softmax is: maximum, sum of exponentials, division. Where the innermost
 * axis is kept, lanes run along results in a local array (columns); else along what is summed (rows),
 * with LOOP_LANES partials. A reduction of row values sums over the rows of a chunk. */
#include "codegen/lower_impl.h"

#include <string.h>

typedef struct {
	Lower *lw;
	const ReduceTiles *tiles; /* the target's */
	LoopNest nest;
	int n_kept;     /* loops of the nest before the reduced ones */
	int n_parallel; /* of these, the outermost */
	bool by_column;
	const Spaces *spaces;
	int64_t full, rows, chunks; /* elements of these; chunks 0: there are none */
	int *depth;                 /* by node id: passes before its value is known */
	int depths;
	VEC(const Node *) row_reduces, chunk_reduces;
	/* Rows that outer members take at the same time, each with a team of its own; 0: the team has one. By column they are rows
	 * of what is summed, and members' sums are added up in the end. */
	int team_rows;
	bool shares_rows;  /* not by_column: they are rows of what is summed, too */
	int row_loop;      /* of these two: the reduced loop whose iterations outer members share */
	LoopValue member;  /* and the outer one at hand */
	int *partial_sums; /* by_column, by node id: of every outer member */
	int column_loop;   /* by_column: the innermost kept loop, along a tile of results */
	int64_t part_rows; /* that a part has, at least */
	Affine flat_full, flat_row, flat_chunk;
} Rows;

static AccumulateKind
accumulate_kind(const Node *n)
{
	static const AccumulateKind kinds[] = {ACC_ADD, ACC_MUL, ACC_MAX, ACC_MIN};

	return kinds[((const ReduceAttr *)n->attr)->kind];
}

static DType
reduce_type(const Node *n)
{
	return compute_type(node_result(n, 0)->type->dtype);
}

static LoopValue
reduce_identity(LoopBuilder *lb, const Node *n)
{
	return lb_identity(lb, accumulate_kind(n), node_result(n, 0)->type->dtype);
}

static LoopValue
element_at(Rows *r, const Value *v, Affine flat)
{
	Index at = index_at(r->lw, v->type, flat);

	return lower_element(r->lw, v, &at);
}

/* ---- analysis */
static IterSpace
space_of(const Rows *r, const Value *v)
{
	return r->spaces->of[v->id];
}

static void
find_reduces(Rows *r)
{
	for_each_node(r->lw->f, n) {
		if (!reduces(n))
			continue;
		if (space_of(r, node_result(n, 0)) == ITER_ROWS)
			vec_push(r->lw->state->scratch, &r->row_reduces, n);
		else
			vec_push(r->lw->state->scratch, &r->chunk_reduces, n);
	}
}

static void
find_depths(Rows *r)
{
	const Function *f = r->lw->f;

	r->depth = NEW_ARRAY(r->lw->state->scratch, int, f->next_node_id);
	for_each_node(f, n) {
		int d = 0;
		for (int i = 0; i < n->n_operands; i++) {
			const Value *v = node_operand(n, i);
			if (v && v->node && r->depth[v->node->id] > d)
				d = r->depth[v->node->id];
		}
		bool of_rows = reduces(n) && space_of(r, node_result(n, 0)) == ITER_ROWS;
		r->depth[n->id] = d + of_rows;
		if (r->depth[n->id] > r->depths)
			r->depths = r->depth[n->id];
	}
}

static int
value_depth(const Rows *r, const Value *v)
{
	return v->node ? r->depth[v->node->id] : 0;
}

/* Does pass `k` (from 1) sum or store anything over the reduced loops? */
static bool
pass_has_work(const Rows *r, int k)
{
	const Node *ret = function_return(r->lw->f);

	for (int i = 0; i < r->row_reduces.n; i++)
		if (r->depth[r->row_reduces.at[i]->id] == k)
			return true;
	for (int i = 0; i < ret->n_operands; i++)
		if (space_of(r, node_operand(ret, i)) == ITER_FULL &&
		    value_depth(r, node_operand(ret, i)) == k - 1)
			return true;
	return false;
}

/* Marks what pass k computes over the full space below v. */
static void
mark_needed(const Rows *r, const Value *v, int k, uint32_t *needed)
{
	const Node *n = v->node;

	if (!n || op_row(n)->fuse == FUSE_REDUCE || (needed[n->id] >> k & 1))
		return;
	needed[n->id] |= 1u << k;
	for (int i = 0; i < n->n_operands; i++)
		mark_needed(r, node_operand(n, i), k, needed);
}

/* Expensive values that several passes need are kept in a local row. */
static void
plan_cache(Rows *r)
{
	struct LowerState *st = r->lw->state;
	const Function *f = r->lw->f;
	const Node *ret = function_return(f);
	uint32_t *needed = NEW_ARRAY(st->scratch, uint32_t, f->next_node_id);
	int64_t width = r->rows ? r->full / r->rows : 0, bytes = 0; /* of a team's arrays */

	st->cache = NEW_ARRAY(st->scratch, int, f->next_node_id);
	st->cached = NEW_ARRAY(st->scratch, uint8_t, f->next_node_id);
	for (uint32_t i = 0; i < f->next_node_id; i++)
		st->cache[i] = -1;
	if (r->by_column || width > r->tiles->near_row || r->depths > 30)
		return;
	for (int i = 0; i < r->row_reduces.n; i++)
		mark_needed(r, node_operand(r->row_reduces.at[i], 0),
		            r->depth[r->row_reduces.at[i]->id], needed);
	for (int i = 0; i < ret->n_operands; i++)
		if (space_of(r, node_operand(ret, i)) == ITER_FULL)
			mark_needed(r, node_operand(ret, i),
			            value_depth(r, node_operand(ret, i)) + 1, needed);
	for_each_node(f, n) {
		bool often = (needed[n->id] & (needed[n->id] - 1)) != 0;
		if (!often || op_row(n)->weight < r->tiles->expensive ||
		    space_of(r, node_result(n, 0)) != ITER_FULL)
			continue;
		DType type = compute_type(node_result(n, 0)->type->dtype);
		int64_t row = dtype_bytes(type, width) *
		              (r->team_rows && !r->shares_rows ? r->team_rows : 1);
		bytes += row;
		if (r->lw->lb->k->n_team == 0 || bytes <= dtype_bytes(F32, r->tiles->near_row))
			st->cache[n->id] = lb_local(r->lw->lb, type, width);
	}
}

/* ---- the reduced loops of one pass */
static void
store_full(Rows *r, int k)
{
	const Node *ret = function_return(r->lw->f);

	for (int i = 0; i < ret->n_operands; i++) {
		const Value *v = node_operand(ret, i);
		if (space_of(r, v) != ITER_FULL || value_depth(r, v) != k - 1)
			continue;
		LoopValue x = element_at(r, v, r->flat_full);
		lb_store(r->lw->lb, r->lw->state->buffers[v->id], r->flat_full, x);
	}
}

static int
pass_reduces(const Rows *r, int k, const Node **out)
{
	int n = 0;

	for (int i = 0; i < r->row_reduces.n; i++)
		if (r->depth[r->row_reduces.at[i]->id] == k)
			out[n++] = r->row_reduces.at[i];
	return n;
}

/* Opens reduced loop `dim`; the outer member at hand has iterations m, m + R, m + 2R ... of one. How many loops. */
static int
open_reduced(Rows *r, int dim, Affine *step)
{
	LoopBuilder *lb = r->lw->lb;
	int64_t extent = r->nest.at[dim].extent;

	if (!r->team_rows || dim != r->row_loop) {
		*step = affine_scalar(lb, lb_for(lb, LOOP_PLAIN, extent));
		return 1;
	}
	LoopValue group = lb_for(lb, LOOP_PLAIN, (extent + r->team_rows - 1) / r->team_rows);
	*step = affine_add_scaled(lb, affine_scalar(lb, r->member), affine_scalar(lb, group),
	                          r->team_rows);
	if (extent % r->team_rows == 0)
		return 1;
	Affine left = affine_add_scaled(lb, affine_constant(extent), *step, -1);
	*step = affine_add(lb, *step, affine_scalar(lb, lb_for_below(lb, LOOP_PLAIN, 1, left)));
	return 2;
}

/* Loops over reduced dims from `dim` on; sums come back in acc. */
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
	if (last)
		lane = spread_open(r->lw, d.extent, NULL);
	else
		v = lb_for(lb, shared ? LOOP_TEAM : LOOP_PLAIN, shared ? r->team_rows : d.extent);
	for (int i = 0; i < n; i++)
		own[i] = lb_accumulator(lb, accumulate_kind(reduces[i]), reduce_type(reduces[i]));
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
		st->full_flat = r->flat_full;
		for (int i = 0; i < n; i++)
			lb_accumulate(lb, own[i],
			              element_at(r, node_operand(reduces[i], 0), r->flat_full));
		store_full(r, k);
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

/* Row values that the pass reads are computed before its loops. */
static void
hoist_rows(Rows *r, int k)
{
	for_each_node(r->lw->f, n) {
		if (op_row(n)->fuse != FUSE_ELEMENTWISE ||
		    space_of(r, node_result(n, 0)) != ITER_ROWS || r->depth[n->id] >= k ||
		    r->depth[n->id] == 0)
			continue;
		element_at(r, node_result(n, 0), r->flat_row);
	}
}

/* What a pass put into row buffers is there for the next. */
static void
promote_cached(Rows *r)
{
	struct LowerState *st = r->lw->state;

	for (uint32_t i = 0; i < r->lw->f->next_node_id; i++)
		if (st->cached[i] == 1)
			st->cached[i] = 2;
}

static void
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
		if (r->n_kept == r->nest.n) { /* everything reduced has one element */
			st->full_flat = r->flat_full;
			for (int i = 0; i < count; i++)
				acc[i] = element_at(r, node_operand(reduces[from + i], 0),
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

/* ---- columns: sums in local arrays of one tile */
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

/* Where column j of a reduction's sums is: of the member at hand. */
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
		LoopValue x = element_at(r, node_operand(n, 0), r->flat_full);
		LoopValue sum = lb_load(lb, local, place);
		lb_store(lb, local, place,
		         lb_binary(lb, accumulate_op(accumulate_kind(n)), sum, x));
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

/* Adds up what outer members have, in their order. */
static void
column_combine(Rows *r, Affine j, void *ctx)
{
	LoopBuilder *lb = r->lw->lb;
	const Node *n = ctx;
	LoopOp op = accumulate_op(accumulate_kind(n));
	int64_t columns = r->nest.at[r->column_loop].extent;
	LoopValue sum = lb_load(lb, r->partial_sums[n->id], j);

	for (int m = 1; m < r->team_rows; m++)
		sum = lb_binary(lb, op, sum,
		                lb_load(lb, r->partial_sums[n->id], affine_plus(j, m * columns)));
	lb_store(lb, r->lw->state->reduced_at[n->id], j, sum);
}

/* What is done once for each column: by the first outer member. */
static void
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

static void
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

/* ---- row values */
static void
store_rows(Rows *r)
{
	const Node *ret = function_return(r->lw->f);

	for (int i = 0; i < ret->n_operands; i++) {
		const Value *v = node_operand(ret, i);
		if (space_of(r, v) != ITER_ROWS)
			continue;
		lb_store(r->lw->lb, r->lw->state->buffers[v->id], r->flat_row,
		         element_at(r, v, r->flat_row));
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
	memset(st->cached, 0, sizeof(*st->cached) * r->lw->f->next_node_id);
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
		lb_accumulate(r->lw->lb, acc[i],
		              element_at(r, node_operand(r->chunk_reduces.at[i], 0), r->flat_row));
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
		if (space_of(r, v) == ITER_CHUNKS)
			lb_store(r->lw->lb, st->buffers[v->id], r->flat_chunk,
			         element_at(r, v, r->flat_chunk));
	}
}

/* Opens kept loop `dim` and what is inside; rows of a chunk add to its sums. */
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
	int loops = 1;
	Affine step;
	if (team) {
		loops = nest_open_rows(r->lw, &r->nest, dim, &step);
		plan_cache(r); /* an array of each outer member's */
	} else {
		LoopMode mode = dim < r->n_parallel ? LOOP_PARALLEL : LOOP_PLAIN;
		step = affine_scalar(lb, nest_open(lb, &r->nest, dim, mode));
	}
	advance(r, &d, step);
	for (int i = 0; sums_here && i < r->chunk_reduces.n; i++)
		own[i] = lb_accumulator(lb, accumulate_kind(r->chunk_reduces.at[i]),
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
		if (!inner_rows) /* chunks of one row */
			for (int i = 0; i < r->chunk_reduces.n; i++)
				sums[i] = element_at(r, node_operand(r->chunk_reduces.at[i], 0),
				                     r->flat_row);
		finish_chunk(r, sums);
	}
	for (int i = 0; i < loops; i++)
		lb_end(lb);
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

static void
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

/* Nothing to sum over: every reduction is its identity, and results are stored over their own shape. */
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
		         element_at(r, v, affine_scalar(lb, at)));
		lb_end(lb);
	}
}

/* Outer members share the longest of the first n reduced loops, where that is long enough for all. */
static bool
share_rows(Rows *r, int n, int inner)
{
	int members = r->lw->lb->k->team[0];

	r->row_loop = r->n_kept;
	for (int i = r->n_kept; i < r->n_kept + n; i++)
		if (r->nest.at[i].extent > r->nest.at[r->row_loop].extent)
			r->row_loop = i;
	if (n < 1 || inner < LEAST_INNER || inner >= members ||
	    r->nest.at[r->row_loop].extent < members / inner)
		return false;
	r->team_rows = members / inner;
	team_divide(r->lw, inner);
	return true;
}

/* Kept loops of one iteration, so that the innermost one has rows. */
static void
drop_unit_loops(Rows *r)
{
	int n = 0, parallel = r->n_parallel;

	for (int i = 0; i < r->nest.n; i++) {
		bool unit = i < r->n_kept && r->nest.at[i].extent == 1 && !r->nest.at[i].whole;
		if (unit)
			r->n_parallel -= i < parallel;
		else
			r->nest.at[n++] = r->nest.at[i];
	}
	r->n_kept -= r->nest.n - n;
	r->nest.n = n;
}

/* Outer members add up as many rows of what is summed at the same time. */
static void
divide_team(Rows *r)
{
	const Kernel *k = r->lw->lb->k;
	int64_t lanes = r->lw->target->lanes;
	int last = r->nest.n - 1, reduced = r->nest.n - r->n_kept;

	if (k->n_team == 0 || k->team[0] < 2 * r->tiles->row_members)
		return;
	if (r->by_column) {
		int inner = team_inner(r->lw, r->nest.at[r->column_loop].extent);
		if (!share_rows(r, reduced, inner))
			share_rows(r, reduced, r->tiles->row_members);
		return;
	}
	if (r->full / r->rows <= r->tiles->team_row)
		return;
	int64_t extent = reduced > 0 ? r->nest.at[last].extent : 0;
	r->shares_rows = extent < k->team[0] * lanes &&
	                 share_rows(r, reduced - 1, team_inner(r->lw, extent));
}

/* ---- rows that members take at the same time */
/* Rows of up to so many elements have a team each, where no row adds to another's sum. */
static bool
rows_have_teams(const Rows *r)
{
	const Kernel *k = r->lw->lb->k;

	return k->n_team && k->team[0] >= 2 * r->tiles->row_members && !r->by_column &&
	       !r->chunks && r->full / r->rows <= r->tiles->team_row;
}

/* What the passes load, with any number for a reduction's. */
static NestProbe
probe_rows(Rows *r)
{
	struct LowerState *st = r->lw->state;
	const Function *f = r->lw->f;
	const Node *ret = function_return(f);
	NestProbe p = nest_probe(r->lw, &r->nest);

	for_each_node(f, n) {
		if (!reduces(n))
			continue;
		st->reduced[n->id] = REDUCED_SCALAR;
		st->reduced_at[n->id] = lb_number(r->lw->lb, reduce_type(n), 0);
	}
	for (int i = 0; i < r->row_reduces.n; i++)
		element_at(r, node_operand(r->row_reduces.at[i], 0), p.flat);
	for (int i = 0; i < ret->n_operands; i++)
		if (space_of(r, node_operand(ret, i)) == ITER_FULL)
			element_at(r, node_operand(ret, i), p.flat);
	nest_probe_end(r->lw, &r->nest, &p);
	memset(st->reduced, 0, sizeof(*st->reduced) * f->next_node_id);
	return p;
}

/* Of the kept loops the one whose rows members take becomes the last. */
static void
choose_rows(Rows *r)
{
	drop_unit_loops(r);
	if (r->n_kept == 0)
		return;
	NestProbe p = probe_rows(r);
	Cutting c = {.last = r->n_kept - 1,
	             .n = r->n_kept,
	             .least = r->lw->lb->k->team[0] / r->tiles->row_members};
	Reuse reuse = nest_reuse(r->lw, &r->nest, &p, &c);
	nest_move(&r->nest, reuse.loop, c.last);
	r->part_rows = reuse.iterations;
}

/* nest_parallel; parts of teams have several iterations of another kept loop where these load the same. */
static int
parallel_columns(Rows *r, int n, const LanesLoop *lanes)
{
	if (r->lw->lb->k->n_team && r->n_kept > 1 && n == r->n_kept) {
		NestProbe p = probe_rows(r);
		Cutting c = {.last = r->n_kept - 2, .n = n, .least = 1, .lanes = lanes};
		Reuse reuse = nest_reuse(r->lw, &r->nest, &p, &c);
		if (reuse.iterations > 1)
			return nest_parallel_again(&r->nest, &reuse, &c, lanes->at, r->lw);
	}
	return nest_parallel(&r->nest, n, lanes, r->lw);
}

/* Each outer member has one of them, and a team of its own, so that no thread waits for another warp. */
static void
give_rows(Rows *r)
{
	int inner = r->tiles->row_members, rows = r->lw->lb->k->team[0] / inner;
	int last = r->n_kept - 1, loops = r->nest.n;

	bool cut = nest_cut(&r->nest, last, rows);
	r->n_parallel = nest_parallel(&r->nest, cut ? last + 1 : last, NULL, r->lw);
	if (r->n_parallel == last + 1 && r->nest.n == loops + cut && r->part_rows > rows)
		nest_cut(&r->nest, last, r->part_rows / rows);
	r->n_kept += r->nest.n - loops;
	r->team_rows = rows;
	team_divide(r->lw, inner);
}

static void
cut_parts(Rows *r)
{
	int loops = r->nest.n, free = 0; /* kept loops that add nothing up */

	while (free < r->n_kept && (!r->chunks || r->nest.at[free].chunk))
		free++;
	LanesLoop lanes = {.at = r->n_kept - 1,
	                   .least = r->tiles->least_columns,
	                   .most = r->tiles->most_columns,
	                   .array = true};
	r->n_parallel = r->by_column ? parallel_columns(r, free, &lanes)
	                             : nest_parallel(&r->nest, free, NULL, r->lw);
	r->n_kept += r->nest.n - loops;
	r->column_loop = r->n_kept - 1;
	divide_team(r);
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
	          .chunks = elements[ITER_CHUNKS]};
	LoopValue *sums;

	st->reduced = NEW_ARRAY(st->scratch, ReducedKind, lw->f->next_node_id);
	st->reduced_at = NEW_ARRAY(st->scratch, int, lw->f->next_node_id);
	find_reduces(&r);
	if (r.full == 0) {
		lower_empty(&r);
		return;
	}
	team_begin(lw);
	sums = NEW_ARRAY(st->scratch, LoopValue, r.chunk_reduces.n);
	find_depths(&r);
	r.by_column = reduce_form_by_column(&spaces->domain.reduction[ITER_FULL]);
	r.nest = nest_reduce(lw->f, spaces, st->scratch);
	while (r.n_kept < r.nest.n && !r.nest.at[r.n_kept].reduced)
		r.n_kept++;
	if (rows_have_teams(&r))
		choose_rows(&r);
	if (r.part_rows)
		give_rows(&r);
	else
		cut_parts(&r);
	if (r.by_column || r.shares_rows || !r.team_rows)
		plan_cache(&r);
	if (r.by_column) {
		declare_columns(&r);
		column_tiles(&r, 0);
	} else if (r.n_kept) {
		kept_loops(&r, 0, sums);
		if (r.chunks == 1) /* all rows are one chunk, finished behind the loops */
			finish_chunk(&r, sums);
	} else {
		row_body(&r);
	}
}
