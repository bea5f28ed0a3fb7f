/* The ops that only move elements (views): broadcast, reshape, transpose, slice, reverse,
 * barrier. Result element i is operand element map(i). */
#include "ir/ops/batch/batch_axis.h"
#include "ir/ops/family.h"

#include <string.h>

/* Computes from[], the index into an operand of type x, for result index at[]. */
typedef void (*ViewPlace)(const void *attr, Type x, const int64_t *at, int64_t *from);

static void
eval_view(Eval *ev, ViewPlace place)
{
	int64_t strides[MAX_RANK], from[MAX_RANK];
	Type x = ev->operand[0].type;

	type_strides(x, strides);
	for (IndexWalk w = index_walk(ev->result[0].type); w.ok; index_walk_next(&w)) {
		place(ev->attr, x, w.at, from);
		eval_move(&ev->result[0], w.flat, &ev->operand[0], flat_of(from, strides, x->rank));
	}
}

/* ---- broadcast {shape, axes}: operand axis i is result axis axes[i]; the other axes repeat */
static const Field broadcast_fields[] = {
	{"shape", FIELD_INTS, offsetof(BroadcastAttr, shape), NULL, false},
	{"axes", FIELD_INTS, offsetof(BroadcastAttr, axes), NULL, true},
	{0}};

/* x: T[3], shape = [2,3], axes = [1]  ->  T[2,3] */
static void
broadcast_infer(Infer *in)
{
	const BroadcastAttr *a = in->attr;
	Type x = in->operand[0];

	if (a->axes.n != x->rank) {
		infer_error(in, "%d axes for a rank-%d operand", a->axes.n, x->rank);
		return;
	}
	for (int i = 0; i < x->rank; i++) {
		int64_t axis = a->axes.at[i];
		if (!infer_axis(in, axis, a->shape.n))
			return;
		if (i && axis <= a->axes.at[i - 1])
			infer_error(in, "axes must ascend");
		if (a->shape.at[axis] != x->dims[i])
			infer_error(in, "axis %d has %lld elements, result axis %lld has %lld", i,
			            (long long)x->dims[i], (long long)axis,
			            (long long)a->shape.at[axis]);
	}
	infer_set(in, 0, x->dtype, &a->shape);
}

static void
broadcast_place(const void *attr, Type x, const int64_t *at, int64_t *from)
{
	const BroadcastAttr *a = attr;

	for (int i = 0; i < x->rank; i++)
		from[i] = at[a->axes.at[i]];
}

static void
broadcast_eval(Eval *ev)
{
	eval_view(ev, broadcast_place);
}

/* dx = sum of dy over the repeated axes, computed in f32 or wider */
static void
broadcast_grad(Grad *g)
{
	const BroadcastAttr *a = g->node->attr;
	Value *dy = g->dresult[0];
	DType d = dy->type->dtype;
	bool wide = !dtype_is_float(d) || dtype_info[d].bits >= 32;
	Ints gone = {0};

	for (int i = 0; i < a->shape.n; i++)
		if (!ints_has(&a->axes, i))
			gone.at[gone.n++] = i;
	Value *sum = b_reduce(g->b, REDUCE_SUM, wide ? dy : b_cast(g->b, dy, F32), gone);
	grad_add(g, 0, b_cast(g->b, sum, d));
}

static void
broadcast_map(LoopBuilder *lb, const Node *n, const Index *result, Index *operand)
{
	const BroadcastAttr *a = n->attr;

	(void)lb;
	operand->rank = a->axes.n;
	for (int i = 0; i < a->axes.n; i++)
		operand->at[i] = result->at[a->axes.at[i]];
}

/* Replaces a broadcast of a broadcast by one broadcast. */
static Value *
broadcast_simplify(Builder *b, Node *n)
{
	const BroadcastAttr *a = n->attr;
	Node *inner = node_operand(n, 0)->node;
	Ints axes = {0};

	if (!inner || inner->op != OP_broadcast)
		return NULL;
	const BroadcastAttr *ia = inner->attr;
	for (int i = 0; i < ia->axes.n; i++)
		axes.at[axes.n++] = a->axes.at[ia->axes.at[i]];
	return b_broadcast(b, node_operand(inner, 0), a->shape, axes);
}

/* Each axis of the result is a factor; the operand has it too, unless the axis repeats. */
static void
broadcast_factors(Partition *p)
{
	const BroadcastAttr *a = p->node->attr;

	for (int i = 0; i < a->shape.n; i++)
		factor_cut_result(partition_add(p, a->shape.at[i], COMBINE_JOIN), 0, i);
	for (int i = 0; i < a->axes.n; i++)
		factor_cut_operand(p->factors.at[a->axes.at[i]], 0, i);
}

static void
broadcast_cut(Module *m, Cut *cut)
{
	(void)m;
	((BroadcastAttr *)cut->attr)->shape = ints_of_type(cut->result[0]);
}

static const Sample broadcast_samples[] = {{"{shape = [12,3,4], axes = [0,2]}", "f64[12,4]"},
                                           {"{shape = [3]}", "f64[]"},
                                           {"{shape = [12,3], axes = [1]}", "f64[3]"},
                                           {"{shape = [0,3], axes = [1]}", "f64[3]"},
                                           {"{shape = [0,3], axes = [0]}", "f64[0]"},
                                           {"{shape = [1,5], axes = [0]}", "f64[1]"},
                                           {0}};
const OpRow op_broadcast = {
	COLUMNS(broadcast, BroadcastAttr, broadcast_fields, broadcast_grad,
                "repeats x along new axes"),
	.operands = {{"x", OPERAND_REQUIRED}},
	.results = {"y"},
	.fuse = FUSE_VIEW,
	.map = broadcast_map,
	.flops = flops_none,
	.precision = PRECISION_FOLLOW,
	.as_floats = OPERAND(0),
	.channels_last = {.result = true, .build = broadcast_channels_last},
	.partition = {.factors = broadcast_factors,
                      .attrs = broadcast_cut,
                      .doc = "every axis of y; along a new axis every part has all of x"},
	.simplify = broadcast_simplify};

/* ---- reshape {shape}: the same elements in row-major order */
static const Field reshape_fields[] = {
	{"shape", FIELD_INTS, offsetof(ReshapeAttr, shape), NULL, true}, {0}};

static void
reshape_infer(Infer *in)
{
	const ReshapeAttr *a = in->attr;

	infer_set(in, 0, in->operand[0]->dtype, &a->shape);
	if (!in->fault && in->result[0]->n != in->operand[0]->n)
		infer_error(in, "%lld elements into %lld", (long long)in->operand[0]->n,
		            (long long)in->result[0]->n);
}

static void
reshape_eval(Eval *ev)
{
	memcpy(ev->result[0].at, ev->operand[0].at, (size_t)ev->result[0].type->n * 8);
}

static void
reshape_grad(Grad *g)
{
	grad_add(g, 0,
	         b_reshape(g->b, g->dresult[0], ints_of_type(node_operand(g->node, 0)->type)));
}

static void
reshape_map(LoopBuilder *lb, const Node *n, const Index *result, Index *operand)
{
	index_split(lb, node_operand(n, 0)->type, index_flat(lb, node_result(n, 0)->type, result),
	            operand);
}

static Value *
reshape_simplify(Builder *b, Node *n)
{
	Value *x = node_operand(n, 0);

	if (x->type == node_result(n, 0)->type)
		return x;
	if (x->node && x->node->op == OP_reshape)
		return b_reshape(b, node_operand(x->node, 0), ((ReshapeAttr *)n->attr)->shape);
	return NULL;
}

static int64_t
elements_before(Type t, int axis)
{
	int64_t n = 1;

	for (int i = 0; i < axis; i++)
		n *= t->dims[i];
	return n;
}

/* Adds a factor of size 1 for each axis of x with one element. It cuts the result axis that starts
 * after as many elements: for x [4,1,7] and y [4,7] it is the factor of axis 1 of both. */
static void
add_axes_of_one(Partition *p, Type x, Type y)
{
	for (int i = 0; i < x->rank; i++) {
		int k = 0;
		while (k < y->rank && elements_before(y, k) != elements_before(x, i))
			k++;
		if (x->dims[i] != 1 || k == y->rank)
			continue;
		Factor *f = partition_add(p, 1, COMBINE_JOIN);
		factor_cut_operand(f, 0, i);
		factor_cut_result(f, 0, k);
	}
}

/* Goes through the axes of x and y from the outermost on, in groups with the same number of
 * elements on both sides: [4,6,7] and [24,7] have the groups 4 x 6 = 24 and 7 = 7. Each group
 * gives factors of its own. */
static void
reshape_factors(Partition *p)
{
	Type x = node_operand(p->node, 0)->type, y = node_result(p->node, 0)->type;
	int i = 0, k = 0;

	while (x->n > 0) {
		while (i < x->rank && x->dims[i] == 1)
			i++;
		while (k < y->rank && y->dims[k] == 1)
			k++;
		if (i == x->rank)
			break;
		/* the loop that both sides share is the greatest common divisor of the group's
		 * outermost axes */
		Factor *f = partition_add(p, greatest_common_divisor(x->dims[i], y->dims[k]),
		                          COMBINE_JOIN);
		factor_cut_operand(f, 0, i);
		factor_cut_result(f, 0, k);
		int64_t left = x->dims[i++], right = y->dims[k++];
		while (left != right) {
			if (left < right)
				left *= x->dims[i++];
			else
				right *= y->dims[k++];
		}
	}
	add_axes_of_one(p, x, y);
}

static void
reshape_cut(Module *m, Cut *cut)
{
	(void)m;
	((ReshapeAttr *)cut->attr)->shape = ints_of_type(cut->result[0]);
}

static const Sample reshape_samples[] = {{"{shape = [6,4]}", "f64[2,3,4]"},
                                         {"{shape = []}", "f64[1,1]"},
                                         {"{shape = [0]}", "f64[3,0]"},
                                         {"{shape = [5,3]}", "f64[3,5]"},
                                         {"{shape = [24,3]}", "f64[12,2,3]"},
                                         {"{shape = [12,2,3]}", "f64[24,3]"},
                                         {"{shape = [36,2]}", "f64[24,3]"},
                                         {"{shape = [12,4]}", "f64[12,1,2,2]"},
                                         {0}};
const OpRow op_reshape = {
	COLUMNS(reshape, ReshapeAttr, reshape_fields, reshape_grad,
                "the same elements in another shape, in row-major order"),
	.operands = {{"x", OPERAND_REQUIRED}},
	.results = {"y"},
	.fuse = FUSE_VIEW,
	.map = reshape_map,
	.flops = flops_none,
	.precision = PRECISION_FOLLOW,
	.as_floats = OPERAND(0),
	.partition =
		{.factors = reshape_factors,
                 .attrs = reshape_cut,
                 .doc = "the outer axis of each group of axes that are merged or split, in common divisors of its sizes in x and y; parts of inner axes are not contiguous"},
	.batch = batch_reshape,
	.simplify = reshape_simplify};

/* ---- transpose {order}: result axis i is operand axis order[i] */
static const Field transpose_fields[] = {
	{"order", FIELD_INTS, offsetof(TransposeAttr, order), NULL, false}, {0}};

static void
transpose_infer(Infer *in)
{
	const TransposeAttr *a = in->attr;
	Type x = in->operand[0];
	Ints shape = {.n = x->rank};
	unsigned seen = 0;

	if (a->order.n != x->rank) {
		infer_error(in, "order of %d axes for a rank-%d operand", a->order.n, x->rank);
		return;
	}
	for (int i = 0; i < x->rank; i++) {
		if (!infer_axis(in, a->order.at[i], x->rank))
			return;
		seen |= 1u << a->order.at[i];
		shape.at[i] = x->dims[a->order.at[i]];
	}
	if (seen != (1u << x->rank) - 1)
		infer_error(in, "order names an axis twice");
	infer_set(in, 0, x->dtype, &shape);
}

static void
transpose_place(const void *attr, Type x, const int64_t *at, int64_t *from)
{
	const TransposeAttr *a = attr;

	for (int i = 0; i < x->rank; i++)
		from[a->order.at[i]] = at[i];
}

static void
transpose_eval(Eval *ev)
{
	eval_view(ev, transpose_place);
}

static void
transpose_grad(Grad *g)
{
	const TransposeAttr *a = g->node->attr;
	Ints inverse = {.n = a->order.n};

	for (int i = 0; i < a->order.n; i++)
		inverse.at[a->order.at[i]] = i;
	grad_add(g, 0, b_transpose(g->b, g->dresult[0], inverse));
}

static void
transpose_map(LoopBuilder *lb, const Node *n, const Index *result, Index *operand)
{
	const TransposeAttr *a = n->attr;

	(void)lb;
	operand->rank = a->order.n;
	for (int i = 0; i < a->order.n; i++)
		operand->at[a->order.at[i]] = result->at[i];
}

/* Turns x y into y x, for a dot without batch axes. The result axes become the free axes of y,
 * then the free axes of x. */
static void
dot_swap(DotAttr *a, Value **operands)
{
	int rows = operands[0]->type->rank - a->x_contract.n;
	int columns = operands[1]->type->rank - a->y_contract.n;
	Value *x = operands[0];
	Ints contract = a->x_contract;

	for (int i = 0; i < a->order.n; i++)
		a->order.at[i] += a->order.at[i] < rows ? columns : -rows;
	operands[0] = operands[1];
	operands[1] = x;
	a->x_contract = a->y_contract;
	a->y_contract = contract;
}

/* Merges a transpose into a dot that no other node reads. The dot writes the new order, perhaps
 * with swapped operands. The last axis must stay last, because the dot writes it in vectors. */
static Value *
transpose_of_dot(Builder *b, Node *dot, const Ints *order)
{
	DotAttr a = *(DotAttr *)dot->attr;
	Value *operands[] = {node_operand(dot, 0), node_operand(dot, 1)};
	Ints inner = a.order;
	int last = order->n - 1;
	bool identity = true;

	if (!value_used_once(node_result(dot, 0)) || last < 0)
		return NULL;
	a.order = *order;
	for (int i = 0; inner.n && i < order->n; i++)
		a.order.at[i] = inner.at[order->at[i]];
	if (order->at[last] != last) {
		if (a.x_batch.n)
			/* would not be faster: such products are gradients of attention heads,
			 * whose reader moves the elements anyway */
			return NULL;
		dot_swap(&a, operands);
		if (a.order.at[last] != last)
			return NULL;
	}
	for (int i = 0; i < order->n; i++)
		identity &= a.order.at[i] == i;
	if (identity)
		a.order = (Ints){0};
	Builder at_dot = *b;
	at_dot.loc = dot->loc;
	return build(&at_dot, OP_dot, 2, operands, &a);
}

/* Joins a transpose with a transpose or a dot. b_transpose drops the identity. */
static Value *
transpose_simplify(Builder *b, Node *n)
{
	const TransposeAttr *a = n->attr;
	Node *inner = node_operand(n, 0)->node;
	Ints order = {.n = a->order.n};
	bool identity = true;

	for (int i = 0; i < a->order.n; i++)
		identity &= a->order.at[i] == i;
	if (identity)
		return node_operand(n, 0);
	if (inner && inner->op == OP_dot)
		return transpose_of_dot(b, inner, &a->order);
	if (!inner || inner->op != OP_transpose)
		return NULL;
	for (int i = 0; i < order.n; i++)
		order.at[i] = ((TransposeAttr *)inner->attr)->order.at[a->order.at[i]];
	return b_transpose(b, node_operand(inner, 0), order);
}

static void
transpose_factors(Partition *p)
{
	const TransposeAttr *a = p->node->attr;
	Type y = node_result(p->node, 0)->type;

	for (int i = 0; i < y->rank; i++) {
		Factor *f = partition_add(p, y->dims[i], COMBINE_JOIN);
		factor_cut_operand(f, 0, (int)a->order.at[i]);
		factor_cut_result(f, 0, i);
	}
}

static const Sample transpose_samples[] = {{"{order = [2,0,1]}", "f64[12,3,4]"},
                                           {"{order = [1,0]}", "f64[0,3]"},
                                           {"{order = [0,2,1]}", "f64[1,3,5]"},
                                           {0}};
const OpRow op_transpose = {
	COLUMNS(transpose, TransposeAttr, transpose_fields, transpose_grad, "permutes the axes"),
	.operands = {{"x", OPERAND_REQUIRED}},
	.results = {"y"},
	.fuse = FUSE_VIEW,
	.map = transpose_map,
	.flops = flops_none,
	.precision = PRECISION_FOLLOW,
	.as_floats = OPERAND(0),
	.partition = {.factors = transpose_factors, .doc = "every axis"},
	.simplify = transpose_simplify};

/* ---- slice {start, stop, step}: elements start, start + step, ... below stop, of every axis */
static const Field slice_fields[] = {{"start", FIELD_INTS, offsetof(SliceAttr, start), NULL, true},
                                     {"stop", FIELD_INTS, offsetof(SliceAttr, stop), NULL, true},
                                     {"step", FIELD_INTS, offsetof(SliceAttr, step), NULL, true},
                                     {0}};

#define MOST_STEP \
	(INT64_C(1) << 48) /* larger than any axis, yet adding it to an axis does not overflow */

static void
slice_infer(Infer *in)
{
	const SliceAttr *a = in->attr;
	Type x = in->operand[0];
	Ints shape = {.n = x->rank};

	if (a->start.n != x->rank || a->stop.n != x->rank || a->step.n != x->rank) {
		infer_error(in, "start, stop and step need %d numbers each", x->rank);
		return;
	}
	for (int i = 0; i < x->rank; i++) {
		int64_t lo = a->start.at[i], hi = a->stop.at[i], step = a->step.at[i];
		if (step < 1 || step > MOST_STEP || lo < 0 || hi < lo || hi > x->dims[i]) {
			infer_error(in, "axis %d: [%lld:%lld:%lld] of %lld elements", i,
			            (long long)lo, (long long)hi, (long long)step,
			            (long long)x->dims[i]);
			return;
		}
		shape.at[i] = (hi - lo) / step + ((hi - lo) % step != 0);
	}
	infer_set(in, 0, x->dtype, &shape);
}

static void
slice_place(const void *attr, Type x, const int64_t *at, int64_t *from)
{
	const SliceAttr *a = attr;

	for (int i = 0; i < x->rank; i++)
		from[i] = a->start.at[i] + at[i] * a->step.at[i];
}

static void
slice_eval(Eval *ev)
{
	eval_view(ev, slice_place);
}

/* dx = pad(dy), with zeros where no element was taken */
static void
slice_grad(Grad *g)
{
	const SliceAttr *a = g->node->attr;
	Type x = node_operand(g->node, 0)->type, y = node_result(g->node, 0)->type;
	PadAttr p = {.low = a->start, .high = {.n = x->rank}, .interior = {.n = x->rank}};

	if (y->n == 0)
		return;
	for (int i = 0; i < x->rank; i++) {
		p.interior.at[i] = a->step.at[i] - 1;
		p.high.at[i] = x->dims[i] - a->start.at[i] - (y->dims[i] - 1) * a->step.at[i] - 1;
	}
	grad_add(g, 0, b_pad(g->b, g->dresult[0], p.low, p.high, p.interior, 0));
}

static void
slice_map(LoopBuilder *lb, const Node *n, const Index *result, Index *operand)
{
	const SliceAttr *a = n->attr;

	(void)lb;
	operand->rank = a->start.n;
	for (int i = 0; i < a->start.n; i++)
		operand->at[i] = affine_plus(affine_scale(lb, result->at[i], a->step.at[i]),
		                             a->start.at[i]);
}

/* Drops a slice of everything. A slice of a concat becomes a slice of the operand that has all its elements, if
 * there is one. */
static Value *
slice_simplify(Builder *b, Node *n)
{
	const SliceAttr *a = n->attr;
	Value *x = node_operand(n, 0);
	Type t = node_result(n, 0)->type;

	if (x->type == t)
		return x;
	if (!x->node || x->node->op != OP_concat || t->n == 0)
		return NULL;
	int axis = (int)((const AxisAttr *)x->node->attr)->axis;
	int64_t first = a->start.at[axis];
	int64_t last = first + (t->dims[axis] - 1) * a->step.at[axis];
	for (int i = 0; i < x->node->n_operands; i++) {
		Value *part = node_operand(x->node, i);
		int64_t size = part->type->dims[axis];
		if (first < size) {
			SliceAttr within = *a;
			within.start.at[axis] = first;
			within.stop.at[axis] = last + 1;
			return last < size
			               ? b_slice(b, part, within.start, within.stop, within.step)
			               : NULL;
		}
		first -= size;
		last -= size;
	}
	return NULL;
}

/* An axis is a factor if the slice takes all of it, or exactly one element of each block of
 * `step` elements. No part then needs elements of another part. */
static void
slice_factors(Partition *p)
{
	const SliceAttr *a = p->node->attr;
	Type x = node_operand(p->node, 0)->type, y = node_result(p->node, 0)->type;

	for (int i = 0; i < x->rank; i++) {
		if (x->dims[i] != y->dims[i] * a->step.at[i])
			continue;
		Factor *f = partition_add(p, y->dims[i], COMBINE_JOIN);
		factor_cut_operand(f, 0, i);
		factor_cut_result(f, 0, i);
	}
}

static void
slice_cut(Module *m, Cut *cut)
{
	int axis = cut->factor->operand[0].axis;

	(void)m;
	((SliceAttr *)cut->attr)->stop.at[axis] = cut->operand[0]->dims[axis];
}

static const Sample slice_samples[] = {
	{"{start = [1,0], stop = [3,5], step = [1,2]}", "f64[4,5]"},
	{"{start = [0], stop = [0], step = [1]}", "f64[3]"},
	{"{start = [0,1], stop = [0,2], step = [1,1]}", "f64[0,3]"},
	{"{start = [0,1,1], stop = [12,5,24], step = [1,2,2]}", "f64[12,5,24]"},
	{"{start = [2,1,0], stop = [3,7,1], step = [1,3,1]}", "f64[3,7,1]"},
	{0}};
const OpRow op_slice = {
	COLUMNS(slice, SliceAttr, slice_fields, slice_grad, "a strided box"),
	.operands = {{"x", OPERAND_REQUIRED}},
	.results = {"y"},
	.fuse = FUSE_VIEW,
	.map = slice_map,
	.flops = flops_none,
	.precision = PRECISION_FOLLOW,
	.as_floats = OPERAND(0),
	.channels_last = {OPERAND(0), true, slice_channels_last},
	.partition =
		{.factors = slice_factors,
                 .attrs = slice_cut,
                 .doc = "axes that are taken whole, or one element of every `step`; other axes would need a halo"},
	.batch = batch_slice,
	.simplify = slice_simplify};

/* ---- reverse {axes} */
static const Field reverse_fields[] = {
	{"axes", FIELD_INTS, offsetof(ReverseAttr, axes), NULL, true}, {0}};

static void
reverse_infer(Infer *in)
{
	const ReverseAttr *a = in->attr;

	for (int i = 0; i < a->axes.n; i++)
		infer_axis(in, a->axes.at[i], in->operand[0]->rank);
	in->result[0] = in->operand[0];
}

static void
reverse_place(const void *attr, Type x, const int64_t *at, int64_t *from)
{
	const ReverseAttr *a = attr;

	for (int i = 0; i < x->rank; i++)
		from[i] = ints_has(&a->axes, i) ? x->dims[i] - 1 - at[i] : at[i];
}

static void
reverse_eval(Eval *ev)
{
	eval_view(ev, reverse_place);
}

static void
reverse_grad(Grad *g)
{
	grad_add(g, 0, b_reverse(g->b, g->dresult[0], ((ReverseAttr *)g->node->attr)->axes));
}

static void
reverse_map(LoopBuilder *lb, const Node *n, const Index *result, Index *operand)
{
	const ReverseAttr *a = n->attr;
	Type x = node_operand(n, 0)->type;

	(void)lb;
	*operand = *result;
	operand->of = NULL;
	for (int i = 0; i < x->rank; i++)
		if (ints_has(&a->axes, i))
			operand->at[i] = affine_plus(affine_scale(lb, result->at[i], -1),
			                             x->dims[i] - 1);
}

static void
reverse_factors(Partition *p)
{
	partition_alike(p, &((const ReverseAttr *)p->node->attr)->axes);
}

static const Sample reverse_samples[] = {{"{axes = [0,2]}", "f64[2,3,5]"},
                                         {"{axes = [1]}", "f64[12,3]"},
                                         {"{axes = [0]}", "f64[0]"},
                                         {"{axes = [0]}", "f64[1]"},
                                         {0}};
const OpRow op_reverse = {
	COLUMNS(reverse, ReverseAttr, reverse_fields, reverse_grad, "x with some axes reversed"),
	.operands = {{"x", OPERAND_REQUIRED}},
	.results = {"y"},
	.fuse = FUSE_VIEW,
	.map = reverse_map,
	.flops = flops_none,
	.precision = PRECISION_FOLLOW,
	.as_floats = OPERAND(0),
	.partition =
		{.factors = reverse_factors,
                 .doc = "axes that are not reversed; parts of a reversed axis would swap places"},
};

/* ---- barrier: the result is x. But nodes that read the result are never put into the kernel
 * that computes x: they stand elsewhere in the program on purpose. Like XLA's
 * optimization_barrier. */
static void
barrier_infer(Infer *in)
{
	in->result[0] = in->operand[0];
}

static void
barrier_place(const void *attr, Type x, const int64_t *at, int64_t *from)
{
	(void)attr;
	memcpy(from, at, sizeof(*from) * (size_t)x->rank);
}

static void
barrier_eval(Eval *ev)
{
	eval_view(ev, barrier_place);
}

static void
barrier_grad(Grad *g)
{
	grad_add(g, 0, g->dresult[0]);
}

static void
barrier_map(LoopBuilder *lb, const Node *n, const Index *result, Index *operand)
{
	(void)lb;
	(void)n;
	*operand = *result;
}

static const Sample barrier_samples[] = {{"", "f64[12,1,3]"}, {"", "f64[]"}, {"", "f64[0]"}, {0}};
const OpRow op_barrier = {
	.name = "barrier",
	.doc = "x; no reader of the result is computed in the kernel that computes x",
	.operands = {{"x", OPERAND_REQUIRED}},
	.results = {"y"},
	.infer = barrier_infer,
	.eval = barrier_eval,
	.grad = barrier_grad,
	.fuse = FUSE_VIEW,
	.map = barrier_map,
	.flops = flops_none,
	.precision = PRECISION_FOLLOW,
	.partition = {.factors = partition_elements, .doc = "every axis"},
	.samples = barrier_samples};
