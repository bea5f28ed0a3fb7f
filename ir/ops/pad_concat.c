/* The ops pad and concat. Their kernels write the result in parts, one for each operand or
 * border. */
#include "ir/ops/batch/batch_axis.h"
#include "ir/ops/family.h"

/* ---- pad {low, high, interior, value}: adds copies of `value` along each axis: `low` of them
 * before the elements, `high` after them, and `interior` between each two neighbours. A negative
 * low or high cuts elements off. pad does what XLA's Pad does. */
static const Field pad_fields[] = {
	{"low", FIELD_INTS, offsetof(PadAttr, low), NULL, true},
	{"high", FIELD_INTS, offsetof(PadAttr, high), NULL, true},
	{"interior", FIELD_INTS, offsetof(PadAttr, interior), NULL, true},
	{"value", FIELD_FLOAT, offsetof(PadAttr, value), NULL, true},
	{0}};

static void
pad_infer(Infer *in)
{
	const PadAttr *a = in->attr;
	Type x = in->operand[0];
	Ints shape = {.n = x->rank};

	if (a->low.n != x->rank || a->high.n != x->rank || a->interior.n != x->rank) {
		infer_error(in, "low, high and interior need %d numbers each", x->rank);
		return;
	}
	for (int i = 0; i < x->rank; i++) {
		int64_t gaps = x->dims[i] ? x->dims[i] - 1 : 0, inner, padded;
		bool fits = a->interior.at[i] >= 0 && a->low.at[i] <= INT32_MAX &&
		            a->high.at[i] <= INT32_MAX &&
		            size_mul(gaps, a->interior.at[i], &inner) &&
		            size_add(inner, x->dims[i], &inner) &&
		            !__builtin_add_overflow(inner, a->low.at[i], &padded) &&
		            !__builtin_add_overflow(padded, a->high.at[i], &padded);
		if (!fits || padded < 0) {
			infer_error(in,
			            "axis %d: low %lld, high %lld, interior %lld of %lld elements",
			            i, (long long)a->low.at[i], (long long)a->high.at[i],
			            (long long)a->interior.at[i], (long long)x->dims[i]);
			return;
		}
		shape.at[i] = padded;
	}
	infer_set(in, 0, x->dtype, &shape);
}

static void
pad_eval(Eval *ev)
{
	const PadAttr *a = ev->attr;
	EvalTensor *y = &ev->result[0];
	int64_t strides[MAX_RANK];
	Type x = ev->operand[0].type, t = y->type;

	for (int64_t i = 0; i < t->n; i++) {
		if (dtype_is_float(t->dtype))
			y->f[i] = a->value;
		else
			y->i[i] = (int64_t)a->value;
	}
	type_strides(t, strides);
	for (IndexWalk w = index_walk(x); w.ok; index_walk_next(&w)) {
		int64_t at[MAX_RANK];
		bool inside = true;
		for (int i = 0; i < x->rank; i++) {
			at[i] = a->low.at[i] + w.at[i] * (a->interior.at[i] + 1);
			inside &= at[i] >= 0 && at[i] < t->dims[i];
		}
		if (inside)
			eval_move(y, flat_of(at, strides, x->rank), &ev->operand[0], w.flat);
	}
}

/* dx = the elements of dy at the places of x's elements; elements that were cut off get 0 */
static void
pad_grad(Grad *g)
{
	const PadAttr *a = g->node->attr;
	Type x = node_operand(g->node, 0)->type, y = node_result(g->node, 0)->type;
	Ints start = {.n = x->rank}, stop = {.n = x->rank}, step = {.n = x->rank};
	Ints low = {.n = x->rank}, high = {.n = x->rank}, none = {.n = x->rank};
	bool cut = false;

	if (x->n == 0)
		return;
	for (int i = 0; i < x->rank; i++) {
		int64_t s = a->interior.at[i] + 1;
		int64_t first = a->low.at[i] < 0 ? (-a->low.at[i] + s - 1) / s : 0;
		int64_t last = x->dims[i] - 1; /* the last element of x inside y */
		while (last >= first && a->low.at[i] + last * s >= y->dims[i])
			last--;
		if (last < first) /* no element of x is in y */
			return;
		start.at[i] = a->low.at[i] + first * s;
		stop.at[i] = a->low.at[i] + last * s + 1;
		step.at[i] = s;
		low.at[i] = first;
		high.at[i] = x->dims[i] - 1 - last;
		cut |= first > 0 || high.at[i] > 0;
	}
	Value *dx = b_slice(g->b, g->dresult[0], start, stop, step);
	grad_add(g, 0, cut ? b_pad(g->b, dx, low, high, none, 0) : dx);
}

static LoopValue
pad_fill(Lower *lw, const Node *n, const Index *at, const void *ctx)
{
	(void)at, (void)ctx;
	return lb_number(lw->lb, compute_type(node_result(n, 0)->type->dtype),
	                 ((PadAttr *)n->attr)->value);
}
/* The place in y of an element of a box, which begins at ctx. */
static void
pad_fill_place(Lower *lw, const Node *n, const Index *at, Index *out, const void *ctx)
{
	const Ints *from = ctx;

	(void)lw, (void)n;
	*out = *at;
	out->of = NULL;
	for (int i = 0; i < at->rank; i++)
		out->at[i] = affine_plus(at->at[i], from->at[i]);
}
static void
pad_fill_box(Lower *lw, const Node *n, const Ints *from, const Ints *size)
{
	Type y = node_result(n, 0)->type;

	lower_part(lw, n, type_new(lw->m, y->dtype, size->n, size->at), pad_fill, pad_fill_place,
	           from);
}
/* An element of x that lies in y; ctx is the index of the first such element on each axis. */
static LoopValue
pad_element(Lower *lw, const Node *n, const Index *at, const void *ctx)
{
	const Ints *first = ctx;
	Index x = *at;

	x.of = NULL;
	for (int i = 0; i < at->rank; i++)
		x.at[i] = affine_plus(at->at[i], first->at[i]);
	return lower_element(lw, node_operand(n, 0), &x);
}
static void
pad_place(Lower *lw, const Node *n, const Index *at, Index *out, const void *ctx)
{
	const PadAttr *a = n->attr;
	const Ints *first = ctx;

	*out = *at;
	out->of = NULL;
	for (int i = 0; i < at->rank; i++) {
		int64_t s = a->interior.at[i] + 1;
		out->at[i] = affine_plus(affine_scale(lw->lb, at->at[i], s),
		                         a->low.at[i] + first->at[i] * s);
	}
}
/* Fills the border of y with the constant, in boxes: two per axis, one at each side. So that
 * boxes do not overlap, the boxes of an axis leave out the borders of the axes before it, and
 * cover the axes after it completely. */
static void
pad_fill_around(Lower *lw, const Node *n, const Ints *first, const Ints *size)
{
	const PadAttr *a = n->attr;
	Type y = node_result(n, 0)->type;
	Ints from = {.n = y->rank}, extent = ints_of_type(y);

	for (int i = 0; i < y->rank; i++) {
		int64_t step = a->interior.at[i] + 1;
		int64_t begin = size->at[i] ? a->low.at[i] + first->at[i] * step : 0;
		from.at[i] = 0;
		extent.at[i] = begin;
		pad_fill_box(lw, n, &from, &extent);
		from.at[i] = begin + size->at[i];
		extent.at[i] = y->dims[i] - from.at[i];
		pad_fill_box(lw, n, &from, &extent);
		from.at[i] = begin;
		extent.at[i] = size->at[i];
	}
}

/* With gaps between elements, all of y is filled with the constant first. Without gaps, the
 * parts do not overlap. */
static void
pad_parts(Lower *lw, const Node *n)
{
	const PadAttr *a = n->attr;
	Type x = node_operand(n, 0)->type, y = node_result(n, 0)->type;
	Ints first = {.n = x->rank}, size = {.n = x->rank};
	bool gaps = false;

	for (int i = 0; i < x->rank; i++) {
		int64_t s = a->interior.at[i] + 1, last = x->dims[i] - 1;
		first.at[i] = a->low.at[i] < 0 ? (-a->low.at[i] + s - 1) / s : 0;
		while (last >= first.at[i] && a->low.at[i] + last * s >= y->dims[i])
			last--;
		size.at[i] = last < first.at[i] ? 0 : last - first.at[i] + 1;
		gaps |= s > 1 && size.at[i] > 1;
	}
	int whole = 0;
	while (whole < x->rank && size.at[whole] == y->dims[whole] && a->low.at[whole] == 0)
		whole++;
	Ints all = ints_of_type(y), none = {.n = y->rank};
	lower_open_parts(lw, n, whole, !gaps);
	if (gaps)
		pad_fill_box(lw, n, &none, &all);
	else
		pad_fill_around(lw, n, &first, &size);
	lower_part(lw, n, type_new(lw->m, x->dtype, size.n, size.at), pad_element, pad_place,
	           &first);
	lower_close_parts(lw);
}

/* An axis is a factor if y consists of equal blocks along it, each with one element of x and its
 * own padding before and after. No part then needs elements of another part. */
static void
pad_factors(Partition *p)
{
	const PadAttr *a = p->node->attr;
	Type x = node_operand(p->node, 0)->type;

	for (int i = 0; i < x->rank; i++) {
		if (a->low.at[i] < 0 || a->high.at[i] < 0 ||
		    a->low.at[i] + a->high.at[i] != a->interior.at[i])
			continue;
		Factor *f = partition_add(p, x->dims[i], COMBINE_JOIN);
		factor_cut_operand(f, 0, i);
		factor_cut_result(f, 0, i);
	}
}

static const Sample pad_samples[] = {
	{"{low = [1,0], high = [0,2], interior = [0,0]}", "f64[3,5]"},
	{"{low = [-1,1], high = [2,-2], interior = [1,2], value = 3.5}", "f64[3,5]"},
	{"{low = [0,1,1], high = [0,2,0], interior = [0,0,1], value = 2}", "f64[12,3,12]"},
	{"{low = [1,-1], high = [0,2], interior = [0,1], value = 1}", "f64[5,2]"},
	{"{low = [2], high = [1], interior = [0]}", "f64[0]"},
	{"{low = [0,2], high = [1,0], interior = [1,2], value = -1}", "f64[1,3]"},
	{0}};
const OpRow op_pad = {
	COLUMNS(pad, PadAttr, pad_fields, pad_grad,
                "puts a constant around and between the elements"),
	.operands = {{"x", OPERAND_REQUIRED}},
	.results = {"y"},
	.fuse = FUSE_ROOT,
	.parts = pad_parts,
	.flops = flops_none,
	.precision = PRECISION_FOLLOW,
	.as_floats = OPERAND(0),
	.channels_last = {OPERAND(0), true, pad_channels_last},
	.partition =
		{.factors = pad_factors,
                 .doc = "axes without padding, and axes where low + high = interior; other axes would need a halo"},
};

/* ---- concat {axis} */
static void
concat_infer(Infer *in)
{
	int64_t axis = ((const AxisAttr *)in->attr)->axis;
	Type x = in->operand[0];
	Ints shape = ints_of_type(x);

	if (!infer_axis(in, axis, x->rank))
		return;
	for (int k = 1; k < in->n_operands; k++) {
		Type t = in->operand[k];
		bool fits = t->dtype == x->dtype && t->rank == x->rank;
		for (int i = 0; fits && i < x->rank; i++)
			fits = i == axis || t->dims[i] == x->dims[i];
		if (!fits) {
			infer_error(in, "operand %d does not fit operand 0", k);
			return;
		}
		shape.at[axis] += t->dims[axis];
	}
	infer_set(in, 0, x->dtype, &shape);
}

static void
concat_eval(Eval *ev)
{
	int64_t axis = ((const AxisAttr *)ev->attr)->axis, offset = 0, strides[MAX_RANK];

	type_strides(ev->result[0].type, strides);
	for (int k = 0; k < ev->node->n_operands; k++) {
		Type t = ev->operand[k].type;
		for (IndexWalk w = index_walk(t); w.ok; index_walk_next(&w))
			eval_move(&ev->result[0],
			          flat_of(w.at, strides, t->rank) + offset * strides[axis],
			          &ev->operand[k], w.flat);
		offset += t->dims[axis];
	}
}

static void
concat_grad(Grad *g)
{
	int64_t axis = ((const AxisAttr *)g->node->attr)->axis, offset = 0;

	for (int k = 0; k < g->node->n_operands; k++) {
		int64_t n = node_operand(g->node, k)->type->dims[axis];
		if (g->needs[k])
			grad_add(g, k,
			         b_slice_axis(g->b, g->dresult[0], (int)axis, offset, offset + n));
		offset += n;
	}
}

typedef struct {
	int operand;
	int64_t offset;
} ConcatPart;
static LoopValue
concat_element(Lower *lw, const Node *n, const Index *at, const void *ctx)
{
	return lower_element(lw, node_operand(n, ((const ConcatPart *)ctx)->operand), at);
}
static void
concat_place(Lower *lw, const Node *n, const Index *at, Index *out, const void *ctx)
{
	int64_t axis = ((const AxisAttr *)n->attr)->axis;

	*out = *at;
	out->of = NULL;
	out->at[axis] = affine_plus(at->at[axis], ((const ConcatPart *)ctx)->offset);
}
static void
concat_parts(Lower *lw, const Node *n)
{
	int axis = (int)((const AxisAttr *)n->attr)->axis;
	ConcatPart part = {0};

	lower_open_parts(lw, n, axis, true);
	for (; part.operand < n->n_operands; part.operand++) {
		Type t = node_operand(n, part.operand)->type;
		lower_part(lw, n, t, concat_element, concat_place, &part);
		part.offset += t->dims[axis];
	}
	lower_close_parts(lw);
}

/* Drops a concat of one operand; joins concats along the same axis. */
static Value *
concat_simplify(Builder *b, Node *n)
{
	const AxisAttr *a = n->attr;
	Value *flat[64];
	int count = 0;
	bool nested = false;

	if (n->n_operands == 1)
		return node_operand(n, 0);
	for (int i = 0; i < n->n_operands; i++) {
		Node *inner = node_operand(n, i)->node;
		bool join = inner && inner->op == OP_concat &&
		            ((AxisAttr *)inner->attr)->axis == a->axis &&
		            value_used_once(node_operand(n, i));
		int parts = join ? inner->n_operands : 1;
		if (count + parts > 64)
			return NULL;
		for (int k = 0; k < parts; k++)
			flat[count++] = join ? node_operand(inner, k) : node_operand(n, i);
		nested |= join;
	}
	return nested ? b_concat(b, count, flat, (int)a->axis) : NULL;
}

static void
concat_factors(Partition *p)
{
	partition_alike(p, &(Ints){.n = 1, .at = {((const AxisAttr *)p->node->attr)->axis}});
}

static const Sample concat_samples[] = {
	{"{axis = 1}", "f64[12,3], f64[12,1], f64[12,0]"}, {"{axis = 0}", "f64[5]"}, {0}};
const OpRow op_concat = {
	COLUMNS(concat, AxisAttr, axis_fields, concat_grad, "joins tensors along an axis"),
	.operands = {{"x", OPERAND_REQUIRED}, {"more", OPERAND_VARIADIC}},
	.results = {"y"},
	.fuse = FUSE_ROOT,
	.parts = concat_parts,
	.flops = flops_none,
	.precision = PRECISION_FOLLOW,
	.as_floats = EVERY_OPERAND,
	.channels_last = {EVERY_OPERAND, true, concat_channels_last},
	.partition = {.factors = concat_factors, .doc = "every axis but the joined one"},
	.batch = batch_concat,
	.simplify = concat_simplify};

/* ---- pad + pad = concat */
static bool
is_zero_pad(const Value *v)
{
	const PadAttr *a = v->node && v->node->op == OP_pad ? v->node->attr : NULL;

	if (!a || a->value != 0)
		return false;
	for (int i = 0; i < a->low.n; i++)
		if (a->interior.at[i] || a->low.at[i] < 0 || a->high.at[i] < 0)
			return false;
	return true;
}

/* The one axis along which the content of y starts where the content of x ends; -1: there is no such axis. */
static int
meeting_axis(const Value *x, const Value *y)
{
	const PadAttr *a = x->node->attr, *b = y->node->attr;
	Type t = node_operand(x->node, 0)->type;
	int axis = -1;

	for (int i = 0; i < a->low.n; i++) {
		if (a->low.at[i] == b->low.at[i] && a->high.at[i] == b->high.at[i])
			continue;
		if (axis >= 0 || a->low.at[i] + t->dims[i] != b->low.at[i])
			return -1;
		axis = i;
	}
	return axis;
}

/* The smaller float of which v is a copy in f32, as all of mixed precision's operands are; or NULL. */
static Value *
widened(const Value *v)
{
	Value *x = value_cast_of(v);

	return x && v->type->dtype == F32 && dtype_is_float(x->type->dtype) &&
	                       dtype_info[x->type->dtype].bits < dtype_info[F32].bits
	               ? x
	               : NULL;
}

Value *
join_pads(Builder *b, Value *x, Value *y)
{
	Value *narrow_x = widened(x), *narrow_y = widened(y);

	if (narrow_x && narrow_y && narrow_x->type == narrow_y->type) {
		Value *joined = join_pads(b, narrow_x, narrow_y);
		return joined ? b_cast(b, joined, x->type->dtype) : NULL;
	}
	if (!is_zero_pad(x) || !is_zero_pad(y))
		return NULL;
	int axis = meeting_axis(x, y);
	if (axis < 0) {
		Value *swap = x;
		x = y;
		y = swap;
		axis = meeting_axis(x, y);
	}
	if (axis < 0)
		return NULL;
	PadAttr a = *(const PadAttr *)x->node->attr;
	const PadAttr *behind = y->node->attr;
	Value *parts[] = {node_operand(x->node, 0), node_operand(y->node, 0)};
	Value *joined = b_concat(b, 2, parts, axis);
	bool whole = true;
	a.high.at[axis] = behind->high.at[axis];
	for (int i = 0; i < a.low.n; i++)
		whole &= a.low.at[i] == 0 && a.high.at[i] == 0;
	return whole ? joined : b_pad(b, joined, a.low, a.high, a.interior, 0);
}
