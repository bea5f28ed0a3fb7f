/* Imports NonZero, Compress and Unique, whose results have a size that depends on data. If the data
 * are known at import (constants, or given by `gradc run --input`), the result has its actual size.
 * Otherwise the result is padded to the bound of `--bound OUTPUT=N` and has a count (padded.c). */
#include "frontend/import/import.h"

#include <math.h>
#include <stdlib.h>

/* s64[size] of zeros */
static Value *
zeros(OnnxNode *n, int64_t size)
{
	return e_splat(n, S64, (Ints){.n = 1, .at = {size}}, 0);
}

static Places
known_places(OnnxNode *n, const Tensor *mask)
{
	int64_t *at = NEW_ARRAY(n->im->arena, int64_t, mask->type->n + 1);
	int count = 0;

	for (int64_t i = 0; i < mask->type->n; i++)
		if (tensor_int(mask, i))
			at[count++] = i;
	return (Places){e_constant_ints(n, count, at), NULL};
}

static Value *
running_sum(OnnxNode *n, Value *x, bool exclusive)
{
	CumulateAttr a = {.kind = REDUCE_SUM, .exclusive = exclusive};

	return e_op(n, OP_cumulate, 1, &x, &a);
}

static Value *
e_scatter(OnnxNode *n, ScatterKind kind, Value *into, Value *indices, Value *updates)
{
	Value *operands[] = {into, indices, updates};

	return e_op(n, OP_scatter, COUNT(operands), operands, &(ScatterAttr){kind, 0});
}

/* `to` if the flag is set, else an index outside of any result. */
static Value *
or_outside(OnnxNode *n, Value *flag, Value *to)
{
	return to ? e_select(n, flag, to, e_number(n, to, (double)MAX_ELEMENTS)) : NULL;
}

/* s64[bound], each the index of the first true element. So padding repeats real data: computing log
 * of a padding 0 would give a gradient of NaN. */
static Value *
first_places(OnnxNode *n, Value *mask, int64_t bound)
{
	Value *ones = e_cast(n, mask, S32);
	Value *first = ones ? e_op(n, OP_argmax, 1, &ones, &(AxisAttr){0}) : NULL;

	return e_broadcast_axes(n, e_cast(n, first, S64), (Ints){.n = 1, .at = {bound}}, (Ints){0});
}

/* Scatters the index of each true element to its rank among the true elements; ranks beyond the
 * bound are dropped. */
Places
places_within(OnnxNode *n, Value *mask, int64_t bound)
{
	Value *ones = e_cast(n, mask, S64);
	Value *to = or_outside(n, mask, running_sum(n, ones, true));
	Value *own = e_iota(n, S64, shape_of(mask), 0);
	Value *padding = first_places(n, mask, bound);

	return (Places){padding ? e_scatter(n, SCATTER_SET, padding, to, own) : NULL,
	                e_reduce(n, REDUCE_SUM, ones, (Ints){.n = 1}, false)};
}

Places
places_of(OnnxNode *n, Value *mask)
{
	const Tensor *t = mask ? known_value(n->im, mask) : NULL;
	int64_t bound;

	if (mask && mask->type->n == 0)
		return (Places){zeros(n, 0), NULL};
	if (t)
		return known_places(n, t);
	if (!mask || !want_size_bound(n, &bound))
		return (Places){NULL, NULL};
	return places_within(n, mask, bound);
}

/* NonZero: https://onnx.ai/onnx/operators/onnx__NonZero.html. One column of coordinates per nonzero
 * element. A scalar has no coordinates. */
static void
import_non_zero(OnnxNode *n)
{
	Value *x = want_input(n, 0), *rows[MAX_RANK];
	int64_t strides[MAX_RANK];

	if (!x)
		return;
	int rank = x->type->rank;
	Value *flat = e_flat(n, x);
	bool is_bool = x->type->dtype == BOOL;
	Places p = places_of(n, is_bool ? flat : e_with(n, OP_ne, flat, 0));
	if (!p.at)
		return;
	type_strides(x->type, strides);
	Ints row = {.n = 2, .at = {1, p.at->type->n}};
	for (int i = 0; i < rank; i++) {
		Value *at = e_with(n, OP_div, p.at, (double)(strides[i] ? strides[i] : 1));
		if (i > 0 && x->type->dims[i])
			at = e_with(n, OP_rem, at, (double)x->type->dims[i]);
		rows[i] = e_reshape(n, at, row);
	}
	Value *y = rank ? e_concat(n, rank, rows, 0)
	                : e_splat(n, S64, (Ints){.n = 2, .at = {0, p.at->type->n}}, 0);
	set_output_padded(n, 0, y, 1, p.count);
}

/* Compress: https://onnx.ai/onnx/operators/onnx__Compress.html. Selects slices along an axis, or
 * elements. The condition may be shorter than the axis. */
static void
import_compress(OnnxNode *n)
{
	Value *x = want_input(n, 0), *condition = want_input(n, 1);
	bool flat = !has_attribute(n, "axis");
	int axis = 0;

	if (!x || !condition)
		return;
	if (flat)
		x = e_flat(n, x);
	else
		axis = want_axis(n, want_int(n, "axis", 0), x->type->rank);
	if (axis < 0 || !x)
		return;
	if (condition->type->rank != 1 || condition->type->dtype != BOOL ||
	    condition->type->n > x->type->dims[axis]) {
		report_invalid(n,
		               "the condition is %s with %lld elements and rank %d, needs "
		               "bool, rank 1 and at most %lld elements",
		               dtype_info[condition->type->dtype].name,
		               (long long)condition->type->n, condition->type->rank,
		               (long long)x->type->dims[axis]);
		return;
	}
	Places p = places_of(n, condition);
	set_output_padded(n, 0, e_gather(n, x, p.at, axis), axis, p.count);
}

/* ---- https://onnx.ai/onnx/operators/onnx__Unique.html */
/* The slices of x along an axis, each compared as a row of numbers; axis -1: the elements. */
typedef struct {
	const Tensor *x;
	int64_t n, outer, inner;
} Slices;
typedef struct {
	const Slices *of;
	int64_t at;
} Slice;

static Slices
slices_of(const Tensor *x, int axis)
{
	Slices s = {x, x->type->n, 1, 1};

	if (axis < 0)
		return s;
	s.n = x->type->dims[axis];
	for (int i = 0; i < x->type->rank; i++)
		if (i != axis)
			*(i < axis ? &s.outer : &s.inner) *= x->type->dims[i];
	return s;
}

/* NaN is largest, and equal to itself. */
static int
compare_floats(double a, double b)
{
	return isnan(a) || isnan(b) ? (isnan(a) != 0) - (isnan(b) != 0) : (a > b) - (a < b);
}

static int
compare_elements(const Tensor *x, int64_t i, int64_t k)
{
	if (dtype_is_float(x->type->dtype))
		return compare_floats(tensor_float(x, i), tensor_float(x, k));
	int64_t a = tensor_int(x, i), b = tensor_int(x, k);
	if (x->type->dtype == U64)
		return ((uint64_t)a > (uint64_t)b) - ((uint64_t)a < (uint64_t)b);
	return (a > b) - (a < b);
}

static int
compare_slices(const Slice *a, const Slice *b)
{
	const Slices *s = a->of;
	int order = 0;

	for (int64_t o = 0; o < s->outer && !order; o++)
		for (int64_t i = 0; i < s->inner && !order; i++)
			order = compare_elements(s->x, (o * s->n + a->at) * s->inner + i,
			                         (o * s->n + b->at) * s->inner + i);
	return order;
}

/* Equal slices keep their order. */
static int
by_value(const void *x, const void *y)
{
	const Slice *a = x, *b = y;
	int order = compare_slices(a, b);

	return order ? order : (a->at > b->at) - (a->at < b->at);
}

typedef struct {
	int n;
	int64_t *first, *counts; /* one per group */
	int64_t *group;          /* one per slice */
} EqualSlices;

/* Groups equal slices; groups are in order of value, or of their first slices. */
static EqualSlices
group_slices(Arena *arena, const Slices *s, bool sorted)
{
	Slice *order = NEW_ARRAY(arena, Slice, s->n + 1);
	EqualSlices g = {.first = NEW_ARRAY(arena, int64_t, s->n + 1),
	                 .counts = NEW_ARRAY(arena, int64_t, s->n + 1),
	                 .group = NEW_ARRAY(arena, int64_t, s->n + 1)};
	/* per slice: the first equal slice */
	int64_t *leader = NEW_ARRAY(arena, int64_t, s->n + 1);
	/* per leader: the number of its group */
	int64_t *number = NEW_ARRAY(arena, int64_t, s->n + 1);

	for (int64_t i = 0; i < s->n; i++)
		order[i] = (Slice){s, i};
	qsort(order, (size_t)s->n, sizeof(*order), by_value);
	for (int64_t i = 0; i < s->n; i++) {
		bool opens = i == 0 || compare_slices(&order[i - 1], &order[i]) != 0;
		leader[order[i].at] = opens ? order[i].at : leader[order[i - 1].at];
	}
	for (int64_t i = 0; i < s->n; i++) {
		int64_t at = sorted ? order[i].at : i;
		if (leader[at] != at)
			continue;
		number[at] = g.n;
		g.first[g.n++] = at;
	}
	for (int64_t i = 0; i < s->n; i++) {
		g.group[i] = number[leader[i]];
		g.counts[g.group[i]]++;
	}
	return g;
}

static void
unique_known(OnnxNode *n, Value *x, int axis, const Tensor *t, bool sorted)
{
	Slices s = slices_of(t, axis);
	EqualSlices g = group_slices(n->im->arena, &s, sorted);
	Value *first = e_constant_ints(n, g.n, g.first);

	set_output(n, 0, e_gather(n, axis < 0 ? e_flat(n, x) : x, first, axis < 0 ? 0 : axis));
	set_output(n, 1, first);
	set_output(n, 2, e_constant_ints(n, (int)s.n, g.group));
	set_output(n, 3, e_constant_ints(n, g.n, g.counts));
}

/* x: T[n], sorted -> bool[n]: does the element differ from the one before? */
static Value *
opens_group(OnnxNode *n, Value *x)
{
	int64_t count = x->type->n;
	Value *before = e_slice_axis(n, x, 0, 0, count - 1), *own = e_slice_axis(n, x, 0, 1, count);
	Value *differs = e_binary(n, OP_ne, before, own);
	Value *first = e_splat(n, BOOL, (Ints){.n = 1, .at = {1}}, 1);

	if (is_float(x)) {
		Value *both = e_binary(n, OP_and, e_unary(n, OP_is_nan, before),
		                       e_unary(n, OP_is_nan, own));
		differs = e_binary(n, OP_and, differs, e_unary(n, OP_not, both));
	}
	return e_concat(n, 2, (Value *[]){first, differs}, 0);
}

/* Renumbers groups from order of value to order of first elements. `place`: index in x of each
 * sorted element. */
static Value *
by_first(OnnxNode *n, Value *opens, Value *group, Value *place)
{
	int64_t size = group->type->n;
	Value *leaders = e_scatter(n, SCATTER_SET, zeros(n, size), place, e_cast(n, opens, S64));
	Value *number = running_sum(n, leaders, true);
	Value *first = e_scatter(n, SCATTER_SET, zeros(n, size), or_outside(n, opens, group),
	                         place);

	return e_gather(n, e_gather(n, number, first, 0), group, 0);
}

/* Groups of equal elements, from which all four outputs follow. */
typedef struct {
	Value *opens; /* bool[n]: is the element the first of its group? */
	Value *place; /* s64[n]: index in x of the element that opens[i] and group[i] describe */
	Value *group; /* s64[n]: the element's group */
} Grouping;

/* Sets the outputs; `of` is the tensor from which the first elements are taken, along an axis. */
static void
give_unique(OnnxNode *n, const Grouping *g, Value *of, int axis, int64_t bound)
{
	Value *ones = e_cast(n, g->opens, S64);
	Value *count = e_reduce(n, REDUCE_SUM, ones, (Ints){.n = 1}, false);
	Value *first = e_scatter(n, SCATTER_SET, zeros(n, bound), or_outside(n, g->opens, g->group),
	                         g->place);
	Value *counts = g->group ? e_scatter(n, SCATTER_ADD, zeros(n, bound), g->group,
	                                     e_number(n, g->group, 1))
	                         : NULL;
	Value *inverse = g->group ? e_scatter(n, SCATTER_SET, zeros(n, g->group->type->n), g->place,
	                                      g->group)
	                          : NULL;

	set_output_padded(n, 0, e_gather(n, of, first, axis), axis, count);
	set_output_padded(n, 1, first, 0, count);
	set_output(n, 2, inverse);
	set_output_padded(n, 3, counts, 0, count);
}

/* Unique elements: sorts them and numbers the groups. */
static void
unique_elements(OnnxNode *n, Value *x, bool sorted, int64_t bound)
{
	Value *flat = e_flat(n, x), *key = x->type->dtype == BOOL ? e_cast(n, flat, U8) : flat;
	Value *ordered = e_op(n, OP_sort, 1, &key, &(SortAttr){0});
	Grouping g;

	if (!ordered)
		return;
	g.place = node_result(ordered->node, 1);
	g.opens = opens_group(n, ordered);
	g.group = e_with(n, OP_sub, running_sum(n, e_cast(n, g.opens, S64), false), 1);
	if (!sorted && g.group)
		g.group = by_first(n, g.opens, g.group, g.place);
	give_unique(n, &g, flat, 0, bound);
}

/* bool of x's and y's broadcast shape: do they differ? NaN is equal to itself. */
static Value *
differ(OnnxNode *n, Value *x, Value *y)
{
	Value *d = e_binary(n, OP_ne, x, y);

	if (!d || !is_float(x))
		return d;
	Value *both = e_binary(n, OP_and, e_unary(n, OP_is_nan, x), e_unary(n, OP_is_nan, y));
	return e_binary(n, OP_and, d, e_unary(n, OP_not, both));
}

/* Is x before y? NaN is last. */
static Value *
goes_before(OnnxNode *n, Value *x, Value *y)
{
	Value *less = e_binary(n, OP_lt, x, y);

	if (!less || !is_float(x))
		return less;
	Value *last = e_binary(n, OP_and, e_unary(n, OP_not, e_unary(n, OP_is_nan, x)),
	                       e_unary(n, OP_is_nan, y));
	return e_binary(n, OP_or, less, last);
}

/* Compares rows T[n,m] by their first differing numbers; gives for each row the number of leaders
 * that come before it. */
static Value *
leaders_before(OnnxNode *n, Value *rows, Value *differs, Value *leads)
{
	int64_t count = rows->type->dims[0], length = rows->type->dims[1];
	Ints square = {.n = 2, .at = {count, count}}, row = {.n = 2, .at = {1, count}};
	Value *at = e_cast(n, differs, S32);

	at = e_cast(n, at ? e_op(n, OP_argmax, 1, &at, &(AxisAttr){2}) : NULL, S64);
	Value *own = e_with(n, OP_mul, e_iota(n, S64, square, 0), (double)length);
	Value *other = e_with(n, OP_mul, e_iota(n, S64, square, 1), (double)length);
	Value *x = e_gather(n, e_flat(n, rows), at ? e_binary(n, OP_add, own, at) : NULL, 0);
	Value *y = e_gather(n, e_flat(n, rows), at ? e_binary(n, OP_add, other, at) : NULL, 0);
	Value *before = x && y ? goes_before(n, y, x) : NULL;
	before = e_binary(n, OP_and, before, e_reshape(n, leads, row));
	return e_reduce(n, REDUCE_SUM, e_cast(n, before, S64), (Ints){.n = 1, .at = {1}}, false);
}

/* Unique slices: compares each slice with each. The first of equal slices leads the group. */
static void
unique_slices(OnnxNode *n, Value *x, int axis, bool sorted, int64_t bound)
{
	int64_t count = x->type->dims[axis], length = x->type->n / count;
	Ints order = {.n = 1, .at = {axis}};

	for (int i = 0; i < x->type->rank; i++)
		if (i != axis)
			order.at[order.n++] = i;
	Value *rows = e_reshape(n, e_transpose(n, x, order), (Ints){.n = 2, .at = {count, length}});
	if (rows && rows->type->dtype == BOOL)
		rows = e_cast(n, rows, U8);
	Value *own = e_reshape(n, rows, (Ints){.n = 3, .at = {count, 1, length}});
	Value *other = e_reshape(n, rows, (Ints){.n = 3, .at = {1, count, length}});
	Value *differs = own && other ? differ(n, own, other) : NULL;
	Value *any = e_reduce(n, REDUCE_MAX, e_cast(n, differs, S32), (Ints){.n = 1, .at = {2}},
	                      false);
	Value *same = any ? e_cast(n, e_with(n, OP_eq, any, 0), S32) : NULL;
	Value *leader = same ? e_op(n, OP_argmax, 1, &same, &(AxisAttr){1}) : NULL;
	Grouping g = {.place = e_iota(n, S64, (Ints){.n = 1, .at = {count}}, 0)};

	if (!(leader = e_cast(n, leader, S64)))
		return;
	g.opens = e_binary(n, OP_eq, leader, g.place);
	Value *number = sorted ? leaders_before(n, rows, differs, g.opens)
	                       : running_sum(n, e_cast(n, g.opens, S64), true);
	g.group = e_gather(n, number, leader, 0);
	give_unique(n, &g, x, axis, bound);
}

static void
import_unique(OnnxNode *n)
{
	Value *x = want_input(n, 0);
	bool sorted = want_int(n, "sorted", 1);
	int64_t bound;
	int axis = -1;

	if (!x)
		return;
	if (has_attribute(n, "axis")) {
		axis = want_axis(n, want_int(n, "axis", 0), x->type->rank);
		if (axis < 0)
			return;
	}
	if (x->type->rank == 1)
		axis = -1;
	const Tensor *t = x->type->n ? known_value(n->im, x) : tensor_splat(n->im->m, x->type, 0);
	if (t)
		unique_known(n, x, axis, t, sorted);
	else if (!want_size_bound(n, &bound))
		return;
	else if (axis < 0)
		unique_elements(n, x, sorted, bound);
	else
		unique_slices(n, x, axis, sorted, bound);
}

const ImportRow import_data_sizes_rows[] = {
	/* name     from  to  importer  extra */
	{"NonZero", 9, 0, import_non_zero, .facts = {.no_gradient = true}},
	{"Compress", 9, 0, import_compress, {0}, NULL},
	{"Unique", 11, 0, import_unique, {0}, NULL},
	{0},
};
