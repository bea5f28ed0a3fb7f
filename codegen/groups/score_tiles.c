/* Products that make scores and products that consume them: their description, and blocks of them in arrays. */
#include "codegen/groups/score_tiles.h"
#include "codegen/fuse/fuse.h"
#include "ir/groups/groups.h"
#include "ir/ops/ops.h"

#include <math.h>
#include <string.h>

/* ---- descriptions */
/* Sets m's axes: axes[i] of the value is axis score[i] of the scores. All other axes must be one
 * axis, the width. */
static bool
describe(ScoreMatrix *m, Value *v, const Ints *axes, const Ints *score, int rank)
{
	int n_width = 0;

	*m = (ScoreMatrix){.value = v};
	for (int i = 0; i < v->type->rank; i++)
		m->score_axis[i] = -1;
	for (int i = 0; i < axes->n; i++) {
		m->score_axis[axes->at[i]] = (int)score->at[i];
		m->has_keys |= score->at[i] == rank - 1;
	}
	for (int i = 0; i < v->type->rank; i++)
		if (m->score_axis[i] < 0) {
			m->width = v->type->dims[i];
			n_width++;
		}
	return n_width == 1 && m->width > 0 && dtype_is_float(v->type->dtype);
}

static void
append(Ints *list, int64_t x)
{
	list->at[list->n++] = x;
}

/* The axis of the result that is number i in the sequence batch, free axes of x, free axes of y. */
static int
result_axis(const DotAttr *a, int i)
{
	for (int k = 0; k < a->order.n; k++)
		if (a->order.at[k] == i)
			return k;
	return i;
}

bool
score_product(const Node *dot, Type scores, ScoreProduct *out)
{
	const DotAttr *a = dot->attr;
	Value *x = node_operand(dot, 0), *y = node_operand(dot, 1);
	Ints free[] = {free_axes(x->type->rank, &a->x_batch, &a->x_contract),
	               free_axes(y->type->rank, &a->y_batch, &a->y_contract)};
	Ints axes[2] = {a->x_batch, a->y_batch}, score[2] = {{0}};
	int at = 0;

	if (!type_same_shape(node_result(dot, 0)->type, scores))
		return false;
	for (int i = 0; i < a->x_batch.n; i++, at++)
		for (int side = 0; side < 2; side++)
			append(&score[side], result_axis(a, at));
	for (int side = 0; side < 2; side++)
		for (int i = 0; i < free[side].n; i++, at++) {
			append(&axes[side], free[side].at[i]);
			append(&score[side], result_axis(a, at));
		}
	*out = (ScoreProduct){.dot = dot};
	return describe(&out->queries, x, &axes[0], &score[0], scores->rank) &&
	       describe(&out->keys, y, &axes[1], &score[1], scores->rank) &&
	       !out->queries.has_keys && out->keys.has_keys;
}

Value *
score_behind_moves(Value *v)
{
	while (is_move(v->node))
		v = node_operand(v->node, 0);
	return v;
}

/* Are the axes of both shapes of one tensor products of the same factors? Not those of [6,4] and [4,6]. */
static bool
has_common_factors(Type x, Type reshaped)
{
	int64_t xs[MAX_RANK], rs[MAX_RANK];

	type_strides(x, xs);
	type_strides(reshaped, rs);
	for (int i = 0; i < x->rank; i++)
		for (int k = 0; k < reshaped->rank; k++)
			if (xs[i] % rs[k] && rs[k] % xs[i])
				return false;
	return true;
}

/* Do axis i of x and axis k of a reshaped x, both of more than one element, have a factor in common?
 * Both are ranges of strides. The shapes have common factors. */
static bool
axes_overlap(Type x, int i, Type reshaped, int k)
{
	int64_t xs[MAX_RANK], rs[MAX_RANK];

	type_strides(x, xs);
	type_strides(reshaped, rs);
	return x->dims[i] > 1 && reshaped->dims[k] > 1 && xs[i] < rs[k] * reshaped->dims[k] &&
	       rs[k] < xs[i] * x->dims[i];
}

Value *
score_unrounded(Value *v)
{
	Value *x = value_cast_of(v);

	return x && dtype_is_float(x->type->dtype) &&
	                       dtype_info[v->type->dtype].bits < dtype_info[x->type->dtype].bits
	               ? x
	               : v;
}

bool
score_sum(Value *result, Type scores, ScoreSum *out)
{
	Value *v = score_behind_moves(result);
	const Node *n = v->node && v->node->op == OP_reduce ? v->node : NULL;
	const ReduceAttr *a = n ? n->attr : NULL;

	*out = (ScoreSum){.to = {.result = result, .inner = v}, .tile = v, .reduce = n};
	if (a && a->kind != REDUCE_SUM)
		return false;
	if (n)
		out->tile = node_operand(n, 0);
	Type split = out->tile->type; /* the shape that is summed */
	while (out->tile->node && out->tile->node->op == OP_reshape &&
	       !type_same_shape(out->tile->type, scores))
		out->tile = node_operand(out->tile->node, 0);
	if (!type_same_shape(out->tile->type, scores) || !has_common_factors(scores, split))
		return false;
	for (int i = 0; i < scores->rank; i++)
		for (int k = 0; k < split->rank; k++) {
			bool summed = a && ints_has(&a->axes, k);
			bool overlap = axes_overlap(scores, i, split, k);
			out->summed[i] |= overlap && summed;
			out->kept[i] |= overlap && !summed;
		}
	return true;
}

bool
score_consumer(Value *result, Type scores, ScoreConsumer *out)
{
	Value *v = score_behind_moves(score_unrounded(result));
	const Node *dot = v->node;
	if (!dot || dot->op != OP_dot || !type_same_shape(node_operand(dot, 0)->type, scores))
		return false;
	const DotAttr *a = dot->attr;
	Value *y = node_operand(dot, 1);
	Ints x_free = free_axes(scores->rank, &a->x_batch, &a->x_contract);
	Ints axes = a->y_batch, score = a->x_batch;
	int rank = v->type->rank;

	*out = (ScoreConsumer){.dot = dot, .tile = node_operand(dot, 0), .to = {result, v, {0}}};
	for (int i = 0; i < a->y_contract.n; i++) {
		append(&axes, a->y_contract.at[i]);
		append(&score, a->x_contract.at[i]);
	}
	for (int i = 0; i < rank; i++)
		out->to.score_axis[i] = -1;
	for (int i = 0; i < a->x_batch.n; i++)
		out->to.score_axis[result_axis(a, i)] = (int)a->x_batch.at[i];
	for (int i = 0; i < x_free.n; i++)
		out->to.score_axis[result_axis(a, a->x_batch.n + i)] = (int)x_free.at[i];
	bool ok = describe(&out->matrix, y, &axes, &score, scores->rank);
	out->width = out->matrix.width;
	/* sums over keys, or over all queries */
	return ok && out->matrix.has_keys == ints_has(&a->x_contract, scores->rank - 1);
}

bool *
score_computable(Arena *arena, const Function *f, int n, const Value *const *given)
{
	bool *ok = NEW_ARRAY(arena, bool, f->next_value_id);
	bool *depends = NEW_ARRAY(arena, bool, f->next_value_id); /* on a given value */

	for (int i = 0; i < f->params.n; i++)
		ok[f->params.at[i]->id] = true;
	for (int i = 0; i < n; i++)
		ok[given[i]->id] = depends[given[i]->id] = true;
	for_each_node(f, node) {
		FuseClass fuse = op_row(node)->fuse;
		bool computes = node->n_results == 1 && !op_row(node)->effect &&
		                (fuse == FUSE_ELEMENTWISE || fuse == FUSE_VIEW ||
		                 fuse == FUSE_INDEX);
		bool moved = false;
		for (int i = 0; i < node->n_operands && computes; i++) {
			const Value *x = node_operand(node, i);
			computes = !x || ok[x->id];
			moved |= x && depends[x->id];
		}
		if (!computes || (moved && fuse != FUSE_ELEMENTWISE))
			continue;
		ok[node_result(node, 0)->id] = true;
		depends[node_result(node, 0)->id] = moved;
	}
	return ok;
}

bool
score_product_computable(const bool *computable, const ScoreProduct *p)
{
	return computable[p->queries.value->id] && computable[p->keys.value->id];
}

/* ---- elements of products */
/* The node that alone reads n's result, if it multiplies the result by one number, or widens it; NULL: there is no such node. */
static Node *
scales_or_widens(const Node *n, double *by)
{
	Value *v = node_result(n, 0);
	Node *reader = value_is_narrow(v) && value_used_once(v) ? v->uses->user : NULL;
	int other = reader && node_operand(reader, 0) == v;

	*by = 1;
	if (!reader || reader->op == OP_cast)
		return reader;
	return reader->op == OP_mul && value_splat(node_operand(reader, other), by) ? reader : NULL;
}

void
score_give(Lower *lw, const Node *dot, const Index *at, LoopValue x)
{
	double by, product = 1;
	Node *n = scales_or_widens(dot, &by);

	while (n && n->op != OP_cast) {
		product *= by;
		n = scales_or_widens(n, &by);
	}
	if (!n || node_result(n, 0)->type->dtype != F32) {
		lower_give_element(lw, dot, at, x);
		return;
	}
	if (product != 1)
		x = lb_binary(lw->lb, LOOP_mul, x, lb_number(lw->lb, F32, product));
	lower_give_element(lw, n, at, x);
}

/* ---- ranges of keys */
/* The row value that v repeats along keys, if v is `op`(number of the key, row value). */
static const Value *
bound_of(const Value *v, OpKind op)
{
	const Node *n = v->node;
	const Node *j = n && n->op == op ? node_operand(n, 0)->node : NULL;
	const Node *row = j && j->op == OP_iota ? node_operand(n, 1)->node : NULL;

	return row && row->op == OP_broadcast ? node_operand(row, 0) : NULL;
}

static bool
is_infinity_below(const Value *v)
{
	double number;

	return value_splat(v, &number) && number == -INFINITY;
}

ScoreRange
score_range(const Function *f, Type scores)
{
	for_each_node(f, n) {
		const Node *both = n->op == OP_select ? node_operand(n, 0)->node : NULL;
		if (!both || both->op != OP_and || !is_infinity_below(node_operand(n, 2)) ||
		    !type_same_shape(node_result(n, 0)->type, scores))
			continue;
		ScoreRange r = {n, bound_of(node_operand(both, 0), OP_ge),
		                bound_of(node_operand(both, 1), OP_lt)};
		if (r.begin && r.end)
			return r;
	}
	return (ScoreRange){0};
}

KeysSeen
score_keys_seen(ScoreTiles *t, const ScoreRange *range, int axis, Affine first, int64_t n)
{
	LoopBuilder *lb = t->lw->lb;
	Affine before = t->at[axis];
	int64_t team = lb->k->n_team ? lb->k->team[0] : 0, end = t->scores->dims[axis];
	Affine i = affine_scalar(lb, lb_for(lb, team ? LOOP_TEAM : LOOP_PLAIN, team ? team : n));
	KeysSeen seen = {lb_accumulator(lb, ACC_MIN, S64), lb_accumulator(lb, ACC_MAX, S64)};

	/* a member may have no row */
	bool members = team > n, edge = team && end % n != 0;
	if (members)
		i = lb_open_below(lb, i, n);
	t->at[axis] = affine_add(lb, first, i);
	if (edge)
		t->at[axis] = lb_open_below(lb, t->at[axis], end);
	Index at = score_index(t);
	at.rank--;
	LoopValue begin = lower_element(t->lw, range->begin, &at);
	LoopValue last = lower_element(t->lw, range->end, &at);
	lb_accumulate(lb, seen.begin, lb_cast(lb, S64, begin));
	lb_accumulate(lb, seen.end, lb_cast(lb, S64, last));
	for (int k = 0; k < 1 + members + edge; k++)
		lb_end(lb);
	t->at[axis] = before;
	return seen;
}

void
score_inside(ScoreTiles *t, const ScoreRange *range, const Index *at)
{
	LoopBuilder *lb = t->lw->lb;

	if (!range->select)
		return;
	lower_give_element(t->lw, range->select, at,
	                   lower_element(t->lw, node_operand(range->select, 1), at));
	/* The gradient's select has the same condition. The key's weight is exactly 0, so its score's gradient
	 * is, too, unless the gradient of o is not finite. */
	lower_give_element(t->lw, node_operand(range->select, 0)->node, at, lb_int(lb, BOOL, 1));
}

bool
score_matrix_equal(const ScoreMatrix *a, const ScoreMatrix *b)
{
	return a->value == b->value &&
	       memcmp(a->score_axis, b->score_axis, sizeof(a->score_axis)) == 0;
}

/* ---- arrays */
ScoreTiles
score_tiles(Lower *lw, Type scores, DType type)
{
	const ProductTiles *p = lw->target->product;
	int narrower = type == F64 ? 2 : 1;
	ScoreTiles t = {.lw = lw,
	                .scores = scores,
	                .type = type,
	                .lanes = p->columns / 2 / narrower,
	                .rows = p->rows};

	for (int r = 0; r < t.rows; r++)
		t.sums[r] = lb_local(lw->lb, type, 2 * t.lanes);
	return t;
}

int64_t
score_padded(const ScoreTiles *t, int64_t n)
{
	return (n + t->lanes - 1) / t->lanes * t->lanes;
}

Index
score_index(const ScoreTiles *t)
{
	Index at = {.rank = t->scores->rank};

	for (int i = 0; i < at.rank; i++)
		at.at[i] = t->scores->dims[i] == 1 ? affine_constant(0) : t->at[i];
	return at;
}

LoopValue
score_element(ScoreTiles *t, const ScoreMatrix *m, Affine w)
{
	Type type = m->value->type;
	Index at = {.rank = type->rank};

	for (int i = 0; i < type->rank; i++)
		at.at[i] = type->dims[i] == 1     ? affine_constant(0)
		           : m->score_axis[i] < 0 ? w
		                                  : t->at[m->score_axis[i]];
	LoopValue x = lower_element(t->lw, m->value, &at);
	return lb_type(t->lw->lb, x) == t->type ? x : lb_cast(t->lw->lb, t->type, x);
}

/* Stores zeros behind the n elements of each of `rows` rows, up to whole vectors. */
static void
pad_rows(ScoreTiles *t, int array, int64_t rows, int64_t n)
{
	LoopBuilder *lb = t->lw->lb;
	int64_t pitch = score_padded(t, n);

	if (pitch == n)
		return;
	Affine i = affine_scalar(lb, lb_for(lb, LOOP_PLAIN, rows));
	Affine j = affine_scalar(lb, lb_for(lb, LOOP_VECTOR, pitch - n));
	lb_store(lb, array, affine_plus(affine_add_scaled(lb, j, i, pitch), n),
	         lb_number(lb, t->type, 0));
	lb_end(lb);
	lb_end(lb);
}

TileView
score_copy(ScoreTiles *t, const ScoreMatrix *m, int axis, Affine first, int64_t n, int array,
           bool across)
{
	LoopBuilder *lb = t->lw->lb;
	int64_t inner = across ? n : m->width, outer = across ? m->width : n;
	int64_t pitch = score_padded(t, inner);
	Affine before = t->at[axis];
	Affine i = affine_scalar(lb, lb_for(lb, LOOP_PLAIN, outer));
	Affine j = affine_scalar(lb, lb_for(lb, LOOP_VECTOR, inner));

	t->at[axis] = affine_add(lb, first, across ? j : i);
	lb_store(lb, array, affine_add_scaled(lb, j, i, pitch),
	         score_element(t, m, across ? i : j));
	lb_end(lb);
	lb_end(lb);
	t->at[axis] = before;
	pad_rows(t, array, outer, inner);
	return across ? (TileView){array, 1, pitch} : (TileView){array, pitch, 1};
}

/* ---- products */
/* A block of sums in registers: rows of a, columns of b. */
static void
multiply_block(ScoreTiles *t, TileView c, bool adds, int scale, TileView a, TileView b, Affine row,
               int n_rows, Affine column, int64_t n_columns, int64_t k)
{
	LoopBuilder *lb = t->lw->lb;
	LoopValue x[MOST_PRODUCT_ROWS];
	Affine at = affine_add_scaled(lb, affine_scale(lb, column, c.column), row, c.row);
	Affine j = affine_scalar(lb, lb_for(lb, LOOP_VECTOR, n_columns));

	for (int r = 0; r < n_rows; r++) {
		LoopValue sum = lb_number(lb, t->type, 0);
		if (adds)
			sum = lb_load(lb, c.array, affine_add(lb, affine_plus(at, r * c.row), j));
		if (scale >= 0)
			sum = lb_binary(lb, LOOP_mul, sum, lb_load(lb, scale, affine_plus(row, r)));
		lb_store(lb, t->sums[r], j, sum);
	}
	lb_end(lb);
	Affine s = affine_scalar(lb, lb_for(lb, LOOP_PLAIN, k));
	Affine left = affine_add_scaled(lb, affine_scale(lb, row, a.row), s, a.column);
	for (int r = 0; r < n_rows; r++)
		x[r] = lb_load(lb, a.array, affine_plus(left, r * a.row));
	j = affine_scalar(lb, lb_for(lb, LOOP_VECTOR, n_columns));
	Affine right = affine_add_scaled(lb, affine_add(lb, column, j), s, b.row);
	LoopValue y = lb_load(lb, b.array, right);
	for (int r = 0; r < n_rows; r++) {
		LoopValue sum = lb_load(lb, t->sums[r], j);
		lb_store(lb, t->sums[r], j,
		         lb_op(lb, LOOP_fma, t->type, (LoopValue[]){x[r], y, sum}));
	}
	lb_end(lb);
	lb_end(lb);
	j = affine_scalar(lb, lb_for(lb, LOOP_VECTOR, n_columns));
	for (int r = 0; r < n_rows; r++)
		lb_store(lb, c.array, affine_add(lb, affine_plus(at, r * c.row), j),
		         lb_load(lb, t->sums[r], j));
	lb_end(lb);
}

void
score_multiply(ScoreTiles *t, TileView c, bool adds, int scale, TileView a, TileView b, int64_t m,
               int64_t n, int64_t k)
{
	LoopBuilder *lb = t->lw->lb;
	int64_t strip = 2 * t->lanes;

	for (Pieces s = pieces(lb, score_padded(t, n), strip); s.size; pieces_next(&s)) {
		Affine column = affine_scale(lb, s.number, strip);
		for (Pieces r = pieces(lb, m, t->rows); r.size; pieces_next(&r))
			multiply_block(t, c, adds || scale >= 0, scale, a, b,
			               affine_scale(lb, r.number, t->rows), (int)r.size, column,
			               s.size, k);
	}
}

/* The place of the result's element that has this index before the result's moves. */
static Affine
moved_place(LoopBuilder *lb, const ScoreResult *r, Index at)
{
	const Value *views[MAX_RANK];
	Index next;
	int n = 0;

	for (Value *v = score_unrounded(r->result); v != r->inner && n < MAX_RANK;
	     v = node_operand(v->node, 0))
		views[n++] = v;
	for (Type from = r->inner->type; n > 0; from = views[n]->type) {
		const Node *view = views[--n]->node;
		next = (Index){.rank = views[n]->type->rank};
		if (view->op == OP_reshape)
			index_split(lb, views[n]->type, index_flat(lb, from, &at), &next);
		for (int i = 0; view->op == OP_transpose && i < next.rank; i++)
			next.at[i] = at.at[((const TransposeAttr *)view->attr)->order.at[i]];
		at = next;
	}
	return index_flat(lb, r->result->type, &at);
}

Affine
score_place(ScoreTiles *t, const ScoreResult *r, Affine w)
{
	Index at = {.rank = r->inner->type->rank};

	for (int i = 0; i < at.rank; i++)
		at.at[i] = r->inner->type->dims[i] == 1 ? affine_constant(0)
		           : r->score_axis[i] < 0       ? w
		                                        : t->at[r->score_axis[i]];
	return moved_place(t->lw->lb, r, at);
}

Affine
score_sum_place(ScoreTiles *t, const ScoreSum *s)
{
	LoopBuilder *lb = t->lw->lb;
	const ReduceAttr *a = s->reduce ? s->reduce->attr : NULL;
	Type split = a ? node_operand(s->reduce, 0)->type : s->tile->type;
	Index at = score_index(t), whole = at, left = {0};

	if (!type_same_shape(split, t->scores))
		index_split(lb, split, index_flat(lb, t->scores, &at), &whole);
	for (int i = 0; i < split->rank; i++)
		if (!a || !ints_has(&a->axes, i))
			left.at[left.rank++] = whole.at[i];
	return moved_place(lb, &s->to, left);
}
