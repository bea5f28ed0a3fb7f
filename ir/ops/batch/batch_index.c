/* Proves that gather and scatter with computed indices do not mix the rows of a micro-batch.
 * Example: exporters write GatherElements, GatherND and advanced indexing as a gather from flat
 * data[rows * 48] at the index row * 48 + i. If i is proven to be in 0 ... 47, each row reads
 * only its own elements. The proof computes the range of i from constants, iotas, argmax,
 * remainders and bounds. */
#include "ir/ops/batch/batch_axis.h"

#include <math.h>

/* The numbers that a value may hold. With rows counted along one of its axes, every element is
 * row * stride + i, where i lies in [low, high]. If `beyond` is not 0, an element may instead be
 * a number in [beyond, furthest]: the importer replaces an index outside of its axis by the size
 * of the flat axis. `anywhere`: nothing is known, as for inputs, or for numbers that may need
 * more than 64 bits. */
typedef struct {
	int64_t stride, low, high, beyond, furthest;
} Places;
static const Places anywhere = {0, INT64_MIN, INT64_MAX, 0, 0};

static int64_t
lower(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static int64_t
higher(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

enum { NO_AXIS = -1 }; /* all elements together: stride 0 */

/* A result that is remembered: the places of a value along one axis, when constants were read
 * with the stride `wanted`. */
typedef struct Known Known;
struct Known {
	int64_t wanted;
	Places places;
	const Known *next; /* places of the same value and axis, with another stride */
};

typedef struct {
	Arena *arena;
	int64_t rows;
	int64_t size;   /* size of the indexed axis */
	int64_t wanted; /* stride that constants should have */
	int left;       /* values that may still be looked at; negative: the search was cut off */
	/* Known, by value and axis: a value with many readers is examined only once */
	IntMap *known;
} Search;

#define MOST_PLACES 0x1p53 /* below this, a double holds every integer */
enum { MOST_VALUES = 1024, MOST_ELEMENTS = 1 << 20 };
static Places places_of(Search *s, Value *v, int axis);

/* The row to which flat element number `element` of t belongs, if `axis` is cut into equal
 * blocks, one for each row. */
static int64_t
row_of(const Search *s, Type t, int axis, int64_t element)
{
	int64_t behind = 1;

	for (int i = t->rank - 1; i > axis; i--)
		behind *= t->dims[i];
	return element / behind % t->dims[axis] / (t->dims[axis] / s->rows);
}

/* The places of the constant x for this stride: row * stride is subtracted from each element of x,
 * and [low, high] is the range of the differences. */
static Places
rest_of(const Search *s, const Tensor *x, int axis, int64_t stride)
{
	Places p = {.stride = stride};

	for (int64_t i = 0; i < x->type->n; i++) {
		int64_t at = dtype_load_int(x->type->dtype, x->data, i), rest;
		int64_t row = stride ? row_of(s, x->type, axis, i) : 0; /* NO_AXIS has no rows */
		if (!size_mul(-stride, row, &rest) || !size_add(at, rest, &rest))
			return anywhere;
		p.low = i == 0 || rest < p.low ? rest : p.low;
		p.high = i == 0 || rest > p.high ? rest : p.high;
	}
	return p;
}

static Places
places_of_constant(const Search *s, const Tensor *x, int axis)
{
	Type t = x->type;

	if (t->dtype == BOOL)
		return (Places){.high = 1};
	if (dtype_is_float(t->dtype) || t->n > MOST_ELEMENTS)
		return anywhere;
	if (axis == NO_AXIS)
		return rest_of(s, x, axis, 0);
	Places p = rest_of(s, x, axis, s->wanted);
	return p.low >= 0 && p.high < s->wanted ? p : rest_of(s, x, axis, 0);
}

static Places
places_of_iota(Search *s, const Node *n, int axis)
{
	Type t = node_result(n, 0)->type;
	int64_t size = t->dims[((const IotaAttr *)n->attr)->axis];

	if (((const IotaAttr *)n->attr)->axis != axis)
		return (Places){.high = size - 1};
	return (Places){.stride = size / s->rows, .high = size / s->rows - 1};
}

static Places
scaled(Places p, int64_t by)
{
	Places out;
	bool fits = size_mul(p.stride, by, &out.stride) &&
	            size_mul(by < 0 ? p.high : p.low, by, &out.low) &&
	            size_mul(by < 0 ? p.low : p.high, by, &out.high) &&
	            size_mul(p.beyond, by, &out.beyond) && size_mul(p.furthest, by, &out.furthest);

	return fits && (p.beyond == 0 || by > 0) ? out : anywhere;
}

/* Widens [out->beyond, out->furthest] to hold [a.beyond, a.furthest] plus every number of b. Returns false if this
 * may need more than 64 bits. */
static bool
add_beyond(const Search *s, Places a, Places b, Places *out)
{
	int64_t last, low, high;

	if (a.beyond == 0)
		return true;
	if (b.stride < 0 || b.low < 0 || !size_mul(b.stride, s->rows - 1, &last) ||
	    !size_add(b.high, last, &high) || !size_add(a.beyond, b.low, &low) ||
	    !size_add(a.furthest, higher(high, b.furthest), &high))
		return false;
	out->beyond = out->beyond == 0 ? low : lower(out->beyond, low);
	out->furthest = higher(out->furthest, high);
	return true;
}

static Places
added(const Search *s, Places a, Places b)
{
	Places out = {0};
	bool fits = size_add(a.stride, b.stride, &out.stride) && size_add(a.low, b.low, &out.low) &&
	            size_add(a.high, b.high, &out.high) && add_beyond(s, a, b, &out) &&
	            add_beyond(s, b, a, &out);

	return fits ? out : anywhere;
}

/* The places of a value that is either a or b. */
static Places
either(Places a, Places b)
{
	Places out = {a.stride, lower(a.low, b.low), higher(a.high, b.high),
	              a.beyond == 0 || b.beyond == 0 ? higher(a.beyond, b.beyond)
	                                             : lower(a.beyond, b.beyond),
	              higher(a.furthest, b.furthest)};

	return a.stride == b.stride ? out : anywhere;
}

static Places
places_of_product(Search *s, const Node *n, int axis)
{
	int64_t wanted = s->wanted;
	double by;
	int splat = value_splat(node_operand(n, 0), &by) ? 0 : 1;

	if ((splat == 1 && !value_splat(node_operand(n, 1), &by)) || by != floor(by) ||
	    fabs(by) >= MOST_PLACES)
		return anywhere;
	s->wanted = by >= 1 ? wanted / (int64_t)by : 0;
	Places p = places_of(s, node_operand(n, 1 - splat), axis);
	s->wanted = wanted;
	return scaled(p, (int64_t)by);
}

static Places
places_of_sum(Search *s, const Node *n, int axis)
{
	Places a = places_of(s, node_operand(n, 0), axis);

	return added(s, a, places_of(s, node_operand(n, 1), axis));
}

/* The places of -x; constants in x count with stride 0. */
static Places
places_of_negative(Search *s, Value *x, int axis)
{
	int64_t wanted = s->wanted;

	s->wanted = 0;
	Places p = places_of(s, x, axis);
	s->wanted = wanted;
	return scaled(p, -1);
}

static Places
places_of_difference(Search *s, const Node *n, int axis)
{
	Places a = places_of(s, node_operand(n, 0), axis);

	return added(s, a, places_of_negative(s, node_operand(n, 1), axis));
}

/* Ops that bound their result: max and min; quotient and remainder of a division by a positive constant, rounded
 * toward 0. */
static Places
places_of_bounds(Search *s, const Node *n, int axis)
{
	Places a = places_of(s, node_operand(n, 0), axis);
	Places b = places_of(s, node_operand(n, 1), axis);
	bool divides = b.low > 0 && b.low == b.high;

	if (a.stride != 0 || b.stride != 0 || a.beyond != 0 || b.beyond != 0 ||
	    dtype_is_float(node_result(n, 0)->type->dtype))
		return anywhere;
	if (n->op == OP_max)
		return (Places){0, higher(a.low, b.low), higher(a.high, b.high), 0, 0};
	if (n->op == OP_min)
		return (Places){0, lower(a.low, b.low), lower(a.high, b.high), 0, 0};
	if (divides && n->op == OP_div)
		return (Places){0, a.low / b.low, a.high / b.low, 0, 0};
	if (divides && n->op == OP_rem)
		return (Places){0, higher(lower(a.low, 0), 1 - b.low),
		                lower(higher(a.high, 0), b.low - 1), 0, 0};
	return anywhere;
}

/* The places of a gather's result: any number of the table, or 0 if an index lies outside of the
 * table. */
static Places
places_of_gather(Search *s, const Node *n)
{
	return either(places_of(s, node_operand(n, 0), NO_AXIS), (Places){0});
}

static Places
places_of_argmax(const Node *n)
{
	int axis = (int)((const AxisAttr *)n->attr)->axis;

	return (Places){.high = node_operand(n, 0)->type->dims[axis] - 1};
}

/* Returns the axis of a reshape's operand that holds the rows, if `axis` of the result holds them.
 * NO_AXIS: no such axis. */
static int
axis_before_reshape(Search *s, const Node *n, int axis)
{
	Type x = node_operand(n, 0)->type, y = node_result(n, 0)->type;
	int64_t outer = 1, before = 1;

	if (axis == NO_AXIS)
		return NO_AXIS;
	for (int i = 0; i < axis; i++)
		if (!size_mul(outer, y->dims[i], &outer))
			return NO_AXIS;
	for (int i = 0; i < x->rank; i++) {
		if (before == outer && x->dims[i] > 1 && x->dims[i] % s->rows == 0)
			return i;
		if (!size_mul(before, x->dims[i], &before))
			return NO_AXIS;
	}
	return NO_AXIS;
}

static int
axis_before_broadcast(const Node *n, int axis)
{
	const Ints *axes = &((const BroadcastAttr *)n->attr)->axes;

	for (int i = 0; i < axes->n; i++)
		if (axes->at[i] == axis)
			return i;
	return NO_AXIS;
}

static int
axis_before_transpose(const Node *n, int axis)
{
	return axis == NO_AXIS ? NO_AXIS : (int)((const TransposeAttr *)n->attr)->order.at[axis];
}

/* If a slice takes an axis whole, the places along this axis do not change. A slice of a concat
 * has the places of the operand that it takes. */
static Places
places_of_slice(Search *s, const Node *n, int axis)
{
	Value *x = node_operand(n, 0);
	const SliceAttr *a = n->attr;

	if (axis != NO_AXIS && x->type->dims[axis] != node_result(n, 0)->type->dims[axis])
		axis = NO_AXIS;
	if (!x->node || x->node->op != OP_concat)
		return places_of(s, x, axis);
	int joined = (int)((const AxisAttr *)x->node->attr)->axis;
	int64_t at = a->start.at[joined];
	for (int i = 0; i < x->node->n_operands; i++) {
		Value *part = node_operand(x->node, i);
		int64_t size = part->type->dims[joined];
		if (at < size && a->stop.at[joined] - a->start.at[joined] <= size - at)
			return places_of(s, part, joined == axis ? NO_AXIS : axis);
		at -= size;
	}
	return places_of(s, x, axis);
}

/* The condition is x < N or x >= N, with a constant N. Narrows p, the places of x, by the fact that
 * the condition is false. */
static Places
without(Places p, const Node *condition, const Value *x)
{
	double bound;

	if (!condition || p.stride != 0 || dtype_is_float(x->type->dtype) ||
	    (condition->op != OP_lt && condition->op != OP_ge) || node_operand(condition, 0) != x ||
	    !value_splat(node_operand(condition, 1), &bound) || bound != floor(bound) ||
	    fabs(bound) >= MOST_PLACES)
		return p;
	if (condition->op == OP_lt && p.low < (int64_t)bound)
		p.low = (int64_t)bound;
	if (condition->op == OP_ge && p.high >= (int64_t)bound)
		p.high = (int64_t)bound - 1;
	return p;
}

/* Like `without`, for conditions joined by `or`: the `or` is false, so each of them is false. */
static Places
without_any(Places p, const Node *condition, const Value *x)
{
	if (!condition || condition->op != OP_or)
		return without(p, condition, x);
	for (int i = 0; i < 2; i++)
		p = without(p, node_operand(condition, i)->node, x);
	return p;
}

/* Returns the constant `size` if the select is `x < 0 ? x + size : x`, which importers write for
 * negative indices. Otherwise returns 0. */
static int64_t
wrapping_size(const Node *choice)
{
	const Node *below = node_operand(choice, 0)->node, *sum = node_operand(choice, 1)->node;
	const Value *x = node_operand(choice, 2);
	double zero, size;

	if (dtype_is_float(x->type->dtype) || !below || below->op != OP_lt ||
	    node_operand(below, 0) != x || !value_splat(node_operand(below, 1), &zero) ||
	    zero != 0 || !sum || sum->op != OP_add || node_operand(sum, 0) != x ||
	    !value_splat(node_operand(sum, 1), &size) || !(size > 0 && size < MOST_PLACES))
		return 0;
	return (int64_t)size;
}

static Places
wrapped(const Search *s, Places x, int64_t size)
{
	Places below = {0, x.low, lower(x.high, -1), 0, 0},
	       above = {0, higher(x.low, 0), x.high, 0, 0};

	if (x.low >= 0 && x.stride >= 0)
		return x;
	if (x.stride != 0 || x.beyond != 0)
		return anywhere;
	below = added(s, below, (Places){0, size, size, 0, 0});
	return x.high < 0 ? below : either(below, above);
}

/* The places of a select. The form `x < 0 or x >= N ? flat_size : x`, which joined_indices of
 * the importer writes, gives x in 0 ... N - 1, or flat_size. */
static Places
places_of_choice(Search *s, const Node *n, int axis)
{
	const Node *condition = node_operand(n, 0)->node;
	Places b = places_of(s, node_operand(n, 2), axis);
	int64_t size = wrapping_size(n);
	double flat_size;

	if (size > 0)
		return wrapped(s, b, size);
	b = without_any(b, condition, node_operand(n, 2));
	if (b.beyond == 0 && value_splat(node_operand(n, 1), &flat_size) &&
	    flat_size < MOST_PLACES && flat_size >= (double)s->size) {
		b.beyond = b.furthest = (int64_t)flat_size;
		return b;
	}
	return either(places_of(s, node_operand(n, 1), axis), b);
}

/* Are all numbers of p, in every row, between -limit and limit? */
static bool
is_within(const Search *s, Places p, int64_t limit)
{
	int64_t last, low, high;

	return size_mul(p.stride, s->rows - 1, &last) && size_add(p.low, lower(last, 0), &low) &&
	       size_add(p.high, higher(last, 0), &high) && low >= -limit && high <= limit &&
	       p.furthest <= limit;
}

/* The range p if the type holds all numbers of p exactly; otherwise the range of the whole type.
 * Floats hold integers exactly up to 2^24 or 2^53. */
static Places
within_type(const Search *s, DType dtype, Places p)
{
	switch (dtype) {
	case BOOL: return (Places){.high = 1};
	case S64: return p.stride == 0 || is_within(s, p, INT64_MAX) ? p : anywhere;
	case S32: return is_within(s, p, INT32_MAX) ? p : (Places){0, INT32_MIN, INT32_MAX, 0, 0};
	case F64: return is_within(s, p, (int64_t)MOST_PLACES) ? p : anywhere;
	case F32: return is_within(s, p, 1 << 24) ? p : anywhere;
	default: return anywhere;
	}
}

static Places
places_of_node(Search *s, Value *v, int axis)
{
	const Node *n = v->node;
	const Tensor *constant = value_constant(v);
	double splat;

	if (axis != NO_AXIS && (v->type->rank <= axis || v->type->dims[axis] % s->rows != 0))
		return places_of(s, v, NO_AXIS);
	if (value_splat(v, &splat))
		return fabs(splat) < MOST_PLACES ? (Places){.low = (int64_t)floor(splat),
		                                            .high = (int64_t)ceil(splat)}
		                                 : anywhere;
	if (constant)
		return places_of_constant(s, constant, axis);
	if (!n)
		return anywhere;
	switch (n->op) {
	case OP_iota: return places_of_iota(s, n, axis);
	case OP_mul: return places_of_product(s, n, axis);
	case OP_add: return places_of_sum(s, n, axis);
	case OP_sub: return places_of_difference(s, n, axis);
	case OP_neg: return places_of_negative(s, node_operand(n, 0), axis);
	case OP_max:
	case OP_min:
	case OP_div:
	case OP_rem: return places_of_bounds(s, n, axis);
	case OP_gather: return places_of_gather(s, n);
	case OP_cast: return places_of(s, node_operand(n, 0), axis);
	case OP_select: return places_of_choice(s, n, axis);
	case OP_slice: return places_of_slice(s, n, axis);
	case OP_reshape: return places_of(s, node_operand(n, 0), axis_before_reshape(s, n, axis));
	case OP_broadcast: return places_of(s, node_operand(n, 0), axis_before_broadcast(n, axis));
	case OP_transpose: return places_of(s, node_operand(n, 0), axis_before_transpose(n, axis));
	case OP_argmax: return places_of_argmax(n);
	default: return anywhere;
	}
}

static Places
places_of(Search *s, Value *v, int axis)
{
	uint64_t key = (uint64_t)v->id * (MAX_RANK + 1) + (uint64_t)(axis - NO_AXIS), found = 0;

	intmap_get(s->known, key, &found);
	const Known *first = (const Known *)(uintptr_t)found, *k = first;
	while (k && k->wanted != s->wanted)
		k = k->next;
	if (k)
		return k->places;
	if (--s->left < 0)
		return (Places){0};
	Known *fresh = NEW(s->arena, Known);
	*fresh = (Known){s->wanted, within_type(s, v->type->dtype, places_of_node(s, v, axis)),
	                 first};
	intmap_put(s->known, key, (uint64_t)(uintptr_t)fresh);
	return fresh->places;
}

/* The axis of the indices along which rows can be counted so that every index lies in the block
 * of its own row. size: size of the indexed axis. -1: no such axis was found, or the search was
 * cut off. */
static int
axis_of_rows(const BatchFlow *fl, int64_t size)
{
	Value *indices = node_operand(fl->node, 1);
	const BatchAxis *known = &fl->operand[1];
	int64_t block = size / fl->rows;

	for (int i = 0; size % fl->rows == 0 && i < indices->type->rank; i++) {
		if (known->axis >= 0 && (known->axis != i || known->repeats != 1))
			continue;
		Search s = {fl->arena, fl->rows, size, block, MOST_VALUES, intmap_new(fl->arena)};
		Places p = places_of(&s, indices, i);
		if (s.left >= 0 && p.stride == block && p.low >= 0 && p.high < block)
			return i;
	}
	return -1;
}

void
batch_gather(BatchFlow *fl)
{
	int axis = (int)((const AxisAttr *)fl->node->attr)->axis;
	const BatchAxis *data = &fl->operand[0];
	int at = data->axis == axis && data->repeats == 1
	                 ? axis_of_rows(fl, node_operand(fl->node, 0)->type->dims[axis])
	                 : -1;

	if (at < 0) {
		batch_by_factors(fl);
		return;
	}
	fl->result[0] = (BatchAxis){axis + at, 1, data->mixed || fl->operand[1].mixed};
}

static bool
is_along(const BatchAxis *a, int axis)
{
	return a->axis < 0 ? !a->mixed : a->axis == axis && a->repeats == 1;
}

void
batch_scatter(BatchFlow *fl)
{
	int axis = (int)((const ScatterAttr *)fl->node->attr)->axis;
	const BatchAxis *data = &fl->operand[0], *updates = &fl->operand[2];
	int at = is_along(data, axis)
	                 ? axis_of_rows(fl, node_operand(fl->node, 0)->type->dims[axis])
	                 : -1;

	if (at < 0 || !is_along(updates, axis + at)) {
		batch_by_factors(fl);
		return;
	}
	fl->result[0] = (BatchAxis){axis, 1, data->mixed || updates->mixed || fl->operand[1].mixed};
}
