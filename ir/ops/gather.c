/* The ops gather (reads elements at indices) and scatter (writes elements at indices), along one
 * axis. Importers write every ONNX gather and scatter as one of these two, where necessary on
 * flattened tensors with indices into these. */
#include "ir/ops/batch/batch_axis.h"
#include "ir/ops/elementwise.h"
#include "ir/ops/ops.h"

#include <math.h>

static bool
is_index_type(Type t)
{
	return t->dtype == S64 || t->dtype == S32;
}

/* The shape of gather's result: the shape of data, with the shape of the indices in place of the
 * axis. */
static bool
gathered_shape(Infer *in, Type data, Type indices, int64_t axis, Ints *shape)
{
	*shape = (Ints){0};
	if (!is_index_type(indices)) {
		infer_error(in, "indices are %s, need s64 or s32", dtype_info[indices->dtype].name);
		return false;
	}
	if (!infer_axis(in, axis, data->rank))
		return false;
	if (data->rank + indices->rank - 1 > MAX_RANK) {
		infer_error(in, "a rank above %d", MAX_RANK);
		return false;
	}
	for (int i = 0; i < data->rank; i++) {
		if (i != axis) {
			shape->at[shape->n++] = data->dims[i];
			continue;
		}
		for (int k = 0; k < indices->rank; k++)
			shape->at[shape->n++] = indices->dims[k];
	}
	return true;
}

/* data: T[5,7], indices: s64[2,3], axis = 0  ->  T[2,3,7] */
static void
gather_infer(Infer *in)
{
	Ints shape;

	if (gathered_shape(in, in->operand[0], in->operand[1], ((const AxisAttr *)in->attr)->axis,
	                   &shape))
		infer_set(in, 0, in->operand[0]->dtype, &shape);
}

/* Calls visit(ctx, i, j) for every element of the gathered shape: i is its flat place there, j
 * the flat place in data that its index selects. j is -1 if the index is out of range. */
static void
gather_walk(Type data, const EvalTensor *indices, Type gathered, int64_t axis,
            void (*visit)(void *ctx, int64_t i, int64_t j), void *ctx)
{
	int64_t strides[MAX_RANK], index_strides[MAX_RANK];
	int r = indices->type->rank;

	type_strides(data, strides);
	type_strides(indices->type, index_strides);
	for (IndexWalk w = index_walk(gathered); w.ok; index_walk_next(&w)) {
		int64_t j = indices->i[flat_of(w.at + axis, index_strides, r)];
		int64_t place = -1;
		if (j >= 0 && j < data->dims[axis]) {
			place = j * strides[axis] + flat_of(w.at, strides, (int)axis);
			for (int k = (int)axis + 1; k < data->rank; k++)
				place += w.at[k - 1 + r] * strides[k];
		}
		visit(ctx, w.flat, place);
	}
}

static void
gather_visit(void *ctx, int64_t i, int64_t j)
{
	Eval *ev = ctx;

	if (j >= 0)
		eval_move(&ev->result[0], i, &ev->operand[0], j);
}

/* An index out of range gives 0. The runtime checks indices that are inputs of a program before
 * it runs the program. */
static void
gather_eval(Eval *ev)
{
	gather_walk(ev->operand[0].type, &ev->operand[1], ev->result[0].type,
	            ((const AxisAttr *)ev->attr)->axis, gather_visit, ev);
}

/* ddata = scatter-add of dy into zeros */
static void
gather_grad(Grad *g)
{
	Value *data = node_operand(g->node, 0), *indices = node_operand(g->node, 1);

	grad_add(g, 0,
	         b_scatter(g->b, SCATTER_ADD, zeros_like(g->b, data), indices, g->dresult[0],
	                   (int)((AxisAttr *)g->node->attr)->axis));
}

/* The index into data for a gathered index; *inside is false if the index is out of range. */
static void
gather_place(Lower *lw, const Value *indices, Type data, int64_t axis, const Index *at, Index *out,
             LoopValue *inside)
{
	LoopBuilder *lb = lw->lb;
	Index where = {.rank = indices->type->rank};

	for (int k = 0; k < where.rank; k++)
		where.at[k] = at->at[axis + k];
	LoopValue j = lb_cast(lb, S64, lower_element(lw, indices, &where));

	*inside = lb_inside(lb, affine_scalar(lb, j), data->dims[axis]);
	out->rank = data->rank;
	out->of = NULL;
	for (int k = 0; k < data->rank; k++)
		out->at[k] = k < axis    ? at->at[k]
		             : k == axis ? affine_scalar(lb, j)
		                         : at->at[k - 1 + where.rank];
}

static LoopValue
gather_element(Lower *lw, const Node *n, const Index *at)
{
	Value *data = node_operand(n, 0);
	DType t = compute_type(data->type->dtype);
	LoopValue inside;
	Index place;

	if (data->type->n == 0)
		return lb_number(lw->lb, t, 0);
	gather_place(lw, node_operand(n, 1), data->type, ((AxisAttr *)n->attr)->axis, at, &place,
	             &inside);
	return lower_element_inside(lw, data, &place, inside);
}

/* Returns the first index and sets *step, if the indices are constants that ascend in equal steps
 * within the axis. Otherwise returns -1. */
static int64_t
first_counted(const Value *indices, int64_t extent, int64_t *step)
{
	const Tensor *t = value_constant(indices);
	int64_t first = -1;

	*step = 1;
	for (int64_t i = 0; t && i < indices->type->n; i++) {
		int64_t at = tensor_int(t, i);

		if (at < 0 || at >= extent)
			return -1;
		if (i == 0)
			first = at;
		if (i == 1)
			*step = at - first;
		if (*step < 1 || at != first + i * *step)
			return -1;
	}
	return first;
}

/* If the indices ascend in equal steps, replaces the gather by a slice, whose gradient is a pad
 * instead of a scatter. */
static Value *
gather_simplify(Builder *b, Node *n)
{
	Value *x = node_operand(n, 0), *indices = node_operand(n, 1);
	int64_t axis = ((const AxisAttr *)n->attr)->axis, step;
	int64_t first = first_counted(indices, x->type->dims[axis], &step);
	Ints start = {.n = x->type->rank}, stop = ints_of_type(x->type), by = {.n = x->type->rank};

	if (first < 0)
		return NULL;
	for (int i = 0; i < by.n; i++)
		by.at[i] = 1;
	start.at[axis] = first;
	stop.at[axis] = first + (indices->type->n - 1) * step + 1;
	by.at[axis] = step;
	return b_reshape(b, b_slice(b, x, start, stop, by), ints_of_type(node_result(n, 0)->type));
}

/* The result axis of axis i of data, if i is not the gathered axis. */
static int
gathered_axis(int i, int64_t axis, int index_rank)
{
	return i < axis ? i : i - 1 + index_rank;
}

/* If the table is cut, each part gathers the indices that lie in its piece of the table, and
 * gives 0 for all other indices. */
static void
gather_factors(Partition *p)
{
	int axis = (int)((const AxisAttr *)p->node->attr)->axis;
	Type data = node_operand(p->node, 0)->type, indices = node_operand(p->node, 1)->type;

	for (int i = 0; i < data->rank; i++) {
		if (i == axis && data->dtype == BOOL)
			continue; /* bool has no sum */
		Factor *f = partition_add(p, data->dims[i], i == axis ? COMBINE_SUM : COMBINE_JOIN);
		factor_cut_operand(f, 0, i);
		if (i == axis)
			f->operand[1].kind = SHARE_SHIFTED;
		else
			factor_cut_result(f, 0, gathered_axis(i, axis, indices->rank));
	}
	for (int i = 0; i < indices->rank; i++) {
		Factor *f = partition_add(p, indices->dims[i], COMBINE_JOIN);
		factor_cut_operand(f, 1, i);
		factor_cut_result(f, 0, axis + i);
	}
}

/* Each row of a table may have its own scale, which is gathered like the row. */
static int
gather_channel(const Node *n, int i)
{
	(void)i;
	return (int)((const AxisAttr *)n->attr)->axis;
}

static int
gather_sums(const Node *n, int i)
{
	(void)n, (void)i;
	return -1;
}

static const Sample gather_samples[] = {
	{"{axis = 0}", "f64[12,7], s64[12,3] in 12"}, {"{axis = 1}", "f64[12,3,4], s64[4] in 3"},
	{"{axis = 0}", "f64[5], s64[] in 5"},         {"{axis = 0}", "f64[3,2], s64[0] in 3"},
	{"{axis = 1}", "f64[1,3,0], s64[1] in 3"},    {0}};
const OpRow op_gather = {
	COLUMNS(gather, AxisAttr, axis_fields, gather_grad,
                "slices of data along an axis, selected by index"),
	.operands = {{"data", OPERAND_REQUIRED}, {"indices", OPERAND_REQUIRED}},
	.results = {"y"},
	.fuse = FUSE_INDEX,
	.element = gather_element,
	.flops = flops_none,
	.precision = PRECISION_FOLLOW,
	.as_floats = OPERAND(0),
	.quantizes = OPERAND(0),
	.channel = gather_channel,
	.sums = gather_sums,
	.adapts = OPERAND(0),
	.partition =
		{.factors = gather_factors,
                 .doc = "every axis; along the gathered axis a part subtracts its first place from the indices, and results are added"},
	.batch = batch_gather,
	.simplify = gather_simplify};

/* ---- scatter {kind, axis}: data, in which updates are set or combined at the indices, in order */
static const char *const scatter_kind_names[] = {"set", "add", "mul", "max", "min", NULL};
static const Field scatter_fields[] = {
	{"kind", FIELD_ENUM, offsetof(ScatterAttr, kind), scatter_kind_names, false},
	{"axis", FIELD_INT, offsetof(ScatterAttr, axis), NULL, false},
	{0}};

static void
scatter_infer(Infer *in)
{
	Type data = in->operand[0], updates = in->operand[2];
	Ints shape;

	if (!gathered_shape(in, data, in->operand[1], ((const ScatterAttr *)in->attr)->axis,
	                    &shape))
		return;
	if (data->dtype == BOOL && ((const ScatterAttr *)in->attr)->kind != SCATTER_SET)
		infer_error(in, "combining is not defined for bool");
	if (updates != type_new(in->m, data->dtype, shape.n, shape.at))
		infer_error(in, "updates do not have the gathered type");
	in->result[0] = data;
}

static void
scatter_combine(int kind, EvalTensor *y, int64_t j, const EvalTensor *u, int64_t i)
{
	bool is_float = dtype_is_float(y->type->dtype), is_u64 = y->type->dtype == U64;

	switch (kind) {
	case SCATTER_ADD:
		if (is_float)
			y->f[j] += u->f[i];
		else
			y->i[j] = (int64_t)((uint64_t)y->i[j] + (uint64_t)u->i[i]);
		return;
	case SCATTER_MUL:
		if (is_float)
			y->f[j] *= u->f[i];
		else
			y->i[j] = (int64_t)((uint64_t)y->i[j] * (uint64_t)u->i[i]);
		return;
	case SCATTER_MAX:
	case SCATTER_MIN:
		if (is_float ? (kind == SCATTER_MAX ? u->f[i] > y->f[j] : u->f[i] < y->f[j]) ||
		                       isnan(u->f[i])
		    : kind == SCATTER_MAX ? int_less(y->i[j], u->i[i], is_u64)
		                          : int_less(u->i[i], y->i[j], is_u64))
			eval_move(y, j, u, i);
		return;
	default: eval_move(y, j, u, i);
	}
}

static void
scatter_visit(void *ctx, int64_t i, int64_t j)
{
	Eval *ev = ctx;

	if (j >= 0)
		scatter_combine(((const ScatterAttr *)ev->attr)->kind, &ev->result[0], j,
		                &ev->operand[2], i);
}

static void
scatter_eval(Eval *ev)
{
	for (int64_t i = 0; i < ev->result[0].type->n; i++)
		eval_move(&ev->result[0], i, &ev->operand[0], i);
	gather_walk(ev->operand[0].type, &ev->operand[1], ev->operand[2].type,
	            ((const ScatterAttr *)ev->attr)->axis, scatter_visit, ev);
}

/* The values from which the gradient of a scatter is built. */
typedef struct {
	Grad *g;
	Value *data, *indices, *updates, *dy;
	int axis;
} ScatterGrad;

/* Gathers v, which has a number for each element of the result, at the place of each update. */
static Value *
at_updates(const ScatterGrad *s, Value *v)
{
	return b_gather(s->g->b, v, s->indices, s->axis);
}

/* Adds to x, at the place of each update, this update's element of v. */
static Value *
with_sum(const ScatterGrad *s, Value *x, Value *v)
{
	return b_scatter(s->g->b, SCATTER_ADD, x, s->indices, v, s->axis);
}

/* For each update: was it the last one written at its place, so that it stayed? */
static Value *
last_writers(const ScatterGrad *s)
{
	Builder *b = s->g->b;
	Ints shape = ints_of_type(s->indices->type), axes = {.n = shape.n};
	Ints flat = {.n = 1, .at = {s->indices->type->n}},
	     line = {.n = 1, .at = {s->data->type->dims[s->axis]}};
	Type t = type_new(b->m, S64, 1, line.at);
	Value *at = b_reshape(b, s->indices, flat), *order = b_iota(b, S64, flat, 0);
	Value *last = b_scatter(b, SCATTER_SET, b_splat(b, t, -1), at, order, 0);
	Value *won = b_binary(b, OP_eq, order, b_gather(b, last, at, 0));

	for (int i = 0; i < shape.n; i++)
		axes.at[i] = s->axis + i;
	return b_broadcast(b, b_reshape(b, won, shape), ints_of_type(s->updates->type), axes);
}

/* set: ddata = dy, but 0 where data was overwritten; dupdates = gather(dy) if the update is the
 * last one of its place, 0 for earlier ones */
static void
scatter_set_grad(const ScatterGrad *s)
{
	Grad *g = s->g;
	Value *zeros = zeros_like(g->b, s->updates);

	if (g->needs[0])
		grad_add(g, 0, b_scatter(g->b, SCATTER_SET, s->dy, s->indices, zeros, s->axis));
	if (g->needs[2])
		grad_add(g, 2, b_select(g->b, last_writers(s), at_updates(s, s->dy), zeros));
}

/* max, min: all elements that equal the result share dy evenly, as with torch.scatter_reduce. */
static void
scatter_extremum_grad(const ScatterGrad *s)
{
	Grad *g = s->g;
	Value *y = node_result(g->node, 0), *one = number(g, y, 1);
	Value *kept = b_binary(B, OP_eq, s->data, y),
	      *hit = b_binary(B, OP_eq, s->updates, at_updates(s, y));
	Value *count = with_sum(s, b_cast(B, kept, y->type->dtype), b_cast(B, hit, y->type->dtype));
	Value *share = divide(g, s->dy, b_binary(B, OP_max, count, one));

	grad_add(g, 0, b_select(B, kept, share, zeros_like(B, s->data)));
	if (g->needs[2])
		grad_add(g, 2, b_select(B, hit, at_updates(s, share), zeros_like(B, s->updates)));
}

/* The product of all elements combined at a place except x. p: the product of all elements that
 * are not 0; zeros: the number of elements that are 0. */
static Value *
others_product(Grad *g, Value *x, Value *p, Value *zeros)
{
	Value *none = zeros_like(B, x), *is0 = b_binary(B, OP_eq, x, none), *one = number(g, x, 1);
	Value *only = b_select(B, b_binary(B, OP_eq, zeros, one), p, none);
	Value *rest = divide(g, p, b_select(B, is0, one, x));

	return b_select(B, is0, only, b_select(B, b_binary(B, OP_eq, zeros, none), rest, none));
}

static void
scatter_product_grad(const ScatterGrad *s)
{
	Grad *g = s->g;
	Value *d0 = b_binary(B, OP_eq, s->data, zeros_like(B, s->data));
	Value *u0 = b_binary(B, OP_eq, s->updates, zeros_like(B, s->updates));
	DType t = s->data->type->dtype;
	Value *zeros = with_sum(s, b_cast(B, d0, t), b_cast(B, u0, t));
	Value *p = b_scatter(B, SCATTER_MUL, b_select(B, d0, number(g, s->data, 1), s->data),
	                     s->indices, b_select(B, u0, number(g, s->updates, 1), s->updates),
	                     s->axis);

	if (g->needs[0])
		grad_add(g, 0, mul(g, s->dy, others_product(g, s->data, p, zeros)));
	if (g->needs[2]) {
		Value *rest = others_product(g, s->updates, at_updates(s, p), at_updates(s, zeros));
		grad_add(g, 2, mul(g, at_updates(s, s->dy), rest));
	}
}

/* add: ddata = dy, dupdates = gather(dy) */
static void
scatter_grad(Grad *g)
{
	const ScatterAttr *a = g->node->attr;
	ScatterGrad s = {g,
	                 node_operand(g->node, 0),
	                 node_operand(g->node, 1),
	                 node_operand(g->node, 2),
	                 g->dresult[0],
	                 (int)a->axis};

	switch (a->kind) {
	case SCATTER_ADD:
		grad_add(g, 0, s.dy);
		if (g->needs[2])
			grad_add(g, 2, at_updates(&s, s.dy));
		return;
	case SCATTER_SET: scatter_set_grad(&s); return;
	case SCATTER_MUL: scatter_product_grad(&s); return;
	default: scatter_extremum_grad(&s);
	}
}

/* Is n the only reader of y in every micro-batch that needs n's result? y may have one more kind
 * of reader: a store that runs in a step's first micro-batch only, if n's result is stored in
 * later micro-batches only. */
static bool
is_read_later(const Value *y, const Node *n)
{
	const Value *sum = node_result(n, 0);
	bool only_later = true, others = false;

	for_each_use(sum, u)
		only_later &= u->user->op == OP_store && u->user->when == WHEN_LATER;
	for_each_use(y, u) {
		if (u->user == n)
			continue;
		if (u->user->op != OP_store || u->user->when != WHEN_FIRST)
			return false;
		others = true;
	}
	return !others || only_later;
}

Value *
add_to_scatter(Builder *b, Node *n)
{
	for (int i = 0; i < 2; i++) {
		Value *y = node_operand(n, i), *x = node_operand(n, 1 - i);
		const Node *s = y->node;
		if (!s || s->op != OP_scatter || x == y ||
		    ((const ScatterAttr *)s->attr)->kind != SCATTER_ADD || !operand_is(s, 0, 0) ||
		    !is_read_later(y, n))
			continue;
		return build(b, OP_scatter, 3,
		             (Value *[]){x, node_operand(s, 1), node_operand(s, 2)}, s->attr);
	}
	return NULL;
}

/* If the indices are consecutive numbers, replaces the scatter by a concat of three pieces: before,
 * at and after the indices. The gradients of the pieces are slices. */
static Value *
scatter_simplify(Builder *b, Node *n)
{
	const ScatterAttr *a = n->attr;
	Value *x = node_operand(n, 0), *indices = node_operand(n, 1), *parts[3];
	int64_t extent = x->type->dims[a->axis], count = indices->type->n, step;
	int64_t first = first_counted(indices, extent, &step);
	Ints shape = ints_of_type(x->type);
	int axis = (int)a->axis, n_parts = 0;

	if (first < 0 || step != 1 || (a->kind != SCATTER_SET && a->kind != SCATTER_ADD))
		return NULL;
	shape.at[axis] = count;
	Value *y = b_reshape(b, node_operand(n, 2), shape);
	if (a->kind == SCATTER_ADD)
		y = b_binary(b, OP_add, b_slice_axis(b, x, axis, first, first + count), y);
	if (first > 0)
		parts[n_parts++] = b_slice_axis(b, x, axis, 0, first);
	parts[n_parts++] = y;
	if (first + count < extent)
		parts[n_parts++] = b_slice_axis(b, x, axis, first + count, extent);
	return n_parts == 1 ? y : b_concat(b, n_parts, parts, axis);
}

/* Updates of one place are combined in order. Every axis of data is a factor: also if the indexed
 * axis is cut, all updates of one place go to the same part. The updates themselves are a factor
 * only if they are added, multiplied or compared, where the order does not matter. */
static void
scatter_factors(Partition *p)
{
	static const Combine combine[] = {[SCATTER_ADD] = COMBINE_SUM,
	                                  [SCATTER_MUL] = COMBINE_PROD,
	                                  [SCATTER_MAX] = COMBINE_MAX,
	                                  [SCATTER_MIN] = COMBINE_MIN};
	const ScatterAttr *a = p->node->attr;
	Type data = node_operand(p->node, 0)->type, indices = node_operand(p->node, 1)->type;
	int axis = (int)a->axis;

	for (int i = 0; i < data->rank; i++) {
		Factor *f = partition_add(p, data->dims[i], COMBINE_JOIN);
		factor_cut_operand(f, 0, i);
		factor_cut_result(f, 0, i);
		if (i == axis)
			f->operand[1].kind = SHARE_SHIFTED;
		else
			factor_cut_operand(f, 2, gathered_axis(i, axis, indices->rank));
	}
	for (int i = 0; i < indices->rank && a->kind != SCATTER_SET && data->dtype != BOOL; i++) {
		Factor *f = partition_add(p, indices->dims[i], combine[a->kind]);
		if (a->kind == SCATTER_ADD || a->kind == SCATTER_MUL)
			f->operand[0].kind = SHARE_FIRST;
		factor_cut_operand(f, 1, i);
		factor_cut_operand(f, 2, axis + i);
	}
}

static int64_t
scatter_flops(const Node *n)
{
	bool moves = ((const ScatterAttr *)n->attr)->kind == SCATTER_SET;

	return moves ? 0 : node_operand(n, 2)->type->n;
}

static const Sample scatter_samples[] = {
	{"{kind = add, axis = 0}", "f64[12,3], s64[12] in 12, f64[12,3]"},
	{"{kind = add, axis = 1}", "f64[12,3,2], s64[2,2] in 3, f64[12,2,2,2]"},
	{"{kind = set, axis = 0}", "f64[5], s64[3] in 5, f64[3]"},
	{"{kind = set, axis = 1}", "f64[2,4], s64[6] in 4, f64[2,6]"},
	{"{kind = add, axis = 0}", "f64[5], s64[0] in 5, f64[0]"},
	{"{kind = mul, axis = 1}", "f64[1,5], s64[12] in 5, f64[1,12]"},
	{"{kind = max, axis = 0}", "f64[4], s64[12] in 4, f64[12]"},
	{"{kind = min, axis = 0}", "f64[4,3], s64[12] in 4, f64[12,3]"},
	{0}};
const OpRow op_scatter = {
	COLUMNS(scatter, ScatterAttr, scatter_fields, scatter_grad,
                "data with slices set or combined at indices, in order"),
	.operands = {{"data", OPERAND_REQUIRED},
                     {"indices", OPERAND_REQUIRED},
                     {"updates", OPERAND_REQUIRED}},
	.results = {"y"},
	.fuse = FUSE_OPAQUE,
	.flops = scatter_flops,
	.precision = PRECISION_HIGH,
	.partition =
		{.factors = scatter_factors,
                 .doc = "every axis of data; along the scattered axis a part subtracts its first place from the indices. Axes of the indices, if updates are combined; for sums and products only the first part has data"},
	.batch = batch_scatter,
	.simplify = scatter_simplify};

/* ---- scatter_sorted {kind, axis}: a scatter whose indices ascend. Update number order[k] goes to indices[k].
 * `legalize` makes it from `scatter`. */

/* data: T[5,7], indices: s64[6], updates: T[6,7], order: s64[6], axis = 0  ->  T[5,7] */
static void
scatter_sorted_infer(Infer *in)
{
	int64_t count = in->operand[1]->n;

	if (in->operand[1]->rank != 1)
		infer_error(in, "indices have rank %d, need 1", in->operand[1]->rank);
	if (in->operand[3] != type_new(in->m, S64, 1, &count))
		infer_error(in, "the order is not s64 of the indices' shape");
	scatter_infer(in);
}

static int64_t
nearest_below(int64_t x, int64_t n)
{
	return x < 0 ? 0 : x < n ? x : n - 1;
}

static void
scatter_sorted_eval(Eval *ev)
{
	const ScatterAttr *a = ev->attr;
	EvalTensor *y = &ev->result[0];
	const EvalTensor *indices = &ev->operand[1], *updates = &ev->operand[2];
	int64_t strides[MAX_RANK], update_strides[MAX_RANK];

	for (int64_t i = 0; i < y->type->n; i++)
		eval_move(y, i, &ev->operand[0], i);
	type_strides(y->type, strides);
	type_strides(updates->type, update_strides);
	for (IndexWalk w = index_walk(updates->type); w.ok; index_walk_next(&w)) {
		int64_t k = w.at[a->axis], key = indices->i[k];
		int64_t number = nearest_below(ev->operand[3].i[k], indices->type->n);
		if (key < 0 || key >= y->type->dims[a->axis])
			continue;
		int64_t to = flat_of(w.at, strides, y->type->rank) + (key - k) * strides[a->axis];
		scatter_combine(a->kind, y, to, updates,
		                w.flat + (number - k) * update_strides[a->axis]);
	}
}

static void
scatter_sorted_factors(Partition *p)
{
	Type data = node_operand(p->node, 0)->type;

	for (int i = 0; i < data->rank; i++) {
		if (i == ((const ScatterAttr *)p->node->attr)->axis)
			continue;
		Factor *f = partition_add(p, data->dims[i], COMBINE_JOIN);
		factor_cut_operand(f, 0, i);
		factor_cut_operand(f, 2, i);
		factor_cut_result(f, 0, i);
	}
}

static const Sample scatter_sorted_samples[] = {
	{"{kind = add, axis = 0}", "f64[5,3], s64[12] ascending, f64[12,3], s64[12] in 12"},
	{"{kind = add, axis = 1}", "f64[12,3,2], s64[7] ascending, f64[12,7,2], s64[7] in 7"},
	{"{kind = set, axis = 0}", "f64[5], s64[9] ascending, f64[9], s64[9] in 9"},
	{"{kind = add, axis = 0}", "f64[5], s64[0], f64[0], s64[0]"},
	{"{kind = add, axis = 0}", "f64[0,3], s64[2] ascending, f64[2,3], s64[2] in 2"},
	{"{kind = mul, axis = 1}", "f64[1,5], s64[12] ascending, f64[1,12], s64[12] in 12"},
	{"{kind = max, axis = 0}", "f64[40], s64[12] ascending, f64[12], s64[12] in 12"},
	{"{kind = min, axis = 0}", "f64[4,3], s64[12] ascending, f64[12,3], s64[12] in 12"},
	{0}};
const OpRow op_scatter_sorted = {
	COLUMNS(scatter_sorted, ScatterAttr, scatter_fields, grad_none,
                "data with slices set or combined, in a given order, at ascending indices"),
	.operands = {{"data", OPERAND_REQUIRED},
                     {"indices", OPERAND_REQUIRED},
                     {"updates", OPERAND_REQUIRED},
                     {"order", OPERAND_REQUIRED}},
	.results = {"y"},
	.fuse = FUSE_OPAQUE,
	.flops = scatter_flops,
	.precision = PRECISION_HIGH,
	.partition = {.factors = scatter_sorted_factors, .doc = "every axis but the indexed one"},
};
