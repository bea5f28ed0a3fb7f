/* Values whose size along one axis is known only at run time. An example is NonZero's result. Such
 * values are padded to a declared bound (`--bound`), and a second value counts the elements that
 * are data. If the facts of an operator say so (`.padded`), it may read padded values: its
 * results are padded in turn, or do not depend on the padding. All other operators refuse padded
 * inputs. */
#include "frontend/import/walk.h"

#include <math.h>
#include <string.h>

static const OperatorFacts *
facts_of(const OnnxNode *n)
{
	return operator_facts(n->im->model, n->proto);
}

static void
refuse(OnnxNode *n, int i, const Bound *b, const char *why)
{
	report_unsupported(n,
	                   "input %d, %s, has a size along axis %d that depends on data, at most "
	                   "%lld: %s",
	                   i, quoted(n->im->model, n->proto->input[i]), b->axis,
	                   (long long)b->value->type->dims[b->axis], why);
}

/* The padded axis, counted from the last axis: broadcasting does not change this count. */
static int
from_end(const Bound *b)
{
	return b->value->type->rank - b->axis;
}

/* The --bound for output i: an exact name takes precedence over a glob. NULL: no bound matches. */
static const SizeBound *
bound_of(const OnnxNode *n, int i)
{
	const ImportOptions *o = n->im->options;
	const char *name = has_output(n, i) ? n->proto->output[i] : NULL;
	const SizeBound *found = NULL;

	for (int k = 0; name && k < o->n_bounds; k++) {
		if (!strcmp(o->bounds[k].name, name))
			return &o->bounds[k];
		if (!found && glob_match(o->bounds[k].name, name))
			found = &o->bounds[k];
	}
	return found;
}

bool
has_size_bound(const OnnxNode *n)
{
	for (int i = 0; i < n_outputs(n); i++)
		if (bound_of(n, i))
			return true;
	return false;
}

bool
want_size_bound(OnnxNode *n, int64_t *out)
{
	const char *name = "";

	for (int i = 0; i < n_outputs(n); i++) {
		const SizeBound *b = bound_of(n, i);
		name = *name ? name : n->proto->output[i];
		if (!b)
			continue;
		*b->used = true;
		*out = b->value;
		return true;
	}
	report_unsupported(n, "the size of its result depends on data");
	diag_hint(n->im->diag,
	          "--bound %s=N says how large it is at most, --bound '*=N' for all such nodes",
	          name);
	return false;
}

void
note_overflow(OnnxNode *n, Value *over)
{
	if (over && !n->im->scope)
		vec_push(n->im->arena, &n->im->overflows, over);
}

void
set_output_padded(OnnxNode *n, int i, Value *v, int axis, Value *count)
{
	set_output(n, i, v);
	if (v && count && !n->padded)
		note_overflow(n, e_with(n, OP_gt, count, (double)v->type->dims[axis]));
	if (i >= n_outputs(n) || !v)
		return;
	n->out[i].count = count;
	n->out[i].axis = axis;
}

/* ---- inputs */
/* A bool for each element of b's value: is it data, not padding? */
static Value *
inside(OnnxNode *n, const Bound *b)
{
	return e_binary(n, OP_lt, e_iota(n, S64, shape_of(b->value), b->axis), b->count);
}

/* The smallest or the largest integer of a type. */
static Value *
extreme(OnnxNode *n, DType d, bool largest)
{
	bool is_signed = dtype_info[d].class == CLASS_SIGNED;
	int bits = d == BOOL ? 1 : dtype_info[d].bits - is_signed;
	int64_t most = bits == 64 ? -1 : (int64_t)(~UINT64_C(0) >> (64 - bits));
	int64_t least = is_signed ? -most - 1 : 0;
	Value *v = e_constant_ints(n, 1, largest ? &most : &least);

	return e_cast(n, e_reshape(n, v, (Ints){0}), d);
}

static Value *
or_neutral(OnnxNode *n, const Bound *b, double neutral)
{
	DType d = b->value->type->dtype;
	bool integer = !dtype_is_float(d) && isinf(neutral);
	Value *v = integer ? extreme(n, d, neutral > 0) : e_number(n, b->value, neutral);

	return e_select(n, inside(n, b), b->value, v);
}

/* Replaces the padding of indices by an index just outside the data's first axis. */
static Value *
indices_or_outside(OnnxNode *n, const Bound *b)
{
	Bound *data = importer_lookup(n->im, n->proto->input[0]);

	if (!data || !data->value || data->value->type->rank == 0)
		return NULL;
	return or_neutral(n, b, (double)data->value->type->dims[0]);
}

static bool
fits_others(OnnxNode *n, int i, const Bound *b)
{
	const Bound *first = n->padded;

	if (first && (first->count != b->count || from_end(first) != from_end(b))) {
		refuse(n, i, b, "the size of another input depends on other data");
		return false;
	}
	return true;
}

static Value *
padded_value(OnnxNode *n, int i, const Bound *b, const OperatorFacts *facts)
{
	int axis = b->axis, rank = b->value->type->rank;
	Value *v = b->value;

	switch (facts->padded) {
	case PADDED_ELEMENTWISE: return fits_others(n, i, b) ? v : NULL;
	case PADDED_GATHER:
		if (i == 0) {
			int along = want_axis(n, want_int(n, "axis", 0), rank);
			v = along == axis ? NULL : v;
		}
		break;
	case PADDED_GATHER_ND: v = i == 1 && axis != rank - 1 ? v : NULL; break;
	case PADDED_SCATTER_ND:
		if (i == 1)
			v = axis == rank - 1 ? NULL : indices_or_outside(n, b);
		else if (i == 0)
			v = NULL;
		break;
	case PADDED_REDUCE:
	case PADDED_MEAN: v = or_neutral(n, b, facts->neutral); break;
	case PADDED_REFUSED:
	case PADDED_TRANSPOSE:
	case PADDED_RESHAPE:
	case PADDED_SHAPE:
	case PADDED_SIZE:
	case PADDED_CONCAT: break;
	}
	if (!v && !n->failed)
		refuse(n, i, b, "the operator does not support it for this input");
	return v;
}

Value *
padded_input(OnnxNode *n, int i, const Bound *b)
{
	const OperatorFacts *facts = facts_of(n);

	if (facts->padded == PADDED_REFUSED) {
		refuse(n, i, b, "this operator does not support such an input");
		return NULL;
	}
	bool same = n->padded && (n->padded_at == i || n->padded->count == b->count);
	if (n->padded && facts->padded != PADDED_CONCAT &&
	    (facts->padded == PADDED_GATHER ? n->padded_at != i
	                                    : facts->padded != PADDED_ELEMENTWISE && !same)) {
		refuse(n, i, b, "another input has such a size, too");
		return NULL;
	}
	Value *v = padded_value(n, i, b, facts);
	if (v && !n->padded) {
		n->padded = b;
		n->padded_at = i;
	}
	return v;
}

/* ---- outputs */
static void
pad_output(OnnxNode *n, int i, int axis)
{
	const Value *v = n->out[i].value;

	if (v && axis >= 0 && axis < v->type->rank)
		set_output_padded(n, i, n->out[i].value, axis, n->padded->count);
}

/* Elementwise operators: inputs without padding broadcast along the padded axis. */
static void
pad_elementwise(OnnxNode *n)
{
	int end = from_end(n->padded);

	for (int i = 0; i < n_inputs(n); i++) {
		Bound *b = has_input(n, i) ? importer_lookup(n->im, n->proto->input[i]) : NULL;
		if (!b || !b->value || b->count || b->value->type->rank < end)
			continue;
		if (b->value->type->dims[b->value->type->rank - end] != 1) {
			refuse(n, n->padded_at, n->padded,
			       "another input has a different size there");
			return;
		}
	}
	for (int i = 0; i < n_outputs(n); i++)
		if (n->out[i].value)
			pad_output(n, i, n->out[i].value->type->rank - end);
}

static int
gathered_axis(OnnxNode *n)
{
	Bound *data = importer_lookup(n->im, n->proto->input[0]);
	Bound *indices = importer_lookup(n->im, n->proto->input[1]);
	int64_t axis = want_int(n, "axis", 0);

	axis += axis < 0 ? data->value->type->rank : 0;
	if (n->padded_at == 1)
		return (int)axis + n->padded->axis;
	return n->padded->axis + (n->padded->axis > axis ? indices->value->type->rank - 1 : 0);
}

static int
transposed_axis(OnnxNode *n)
{
	Ints order;

	if (!want_ints(n, "perm", &order))
		return n->padded->value->type->rank - 1 - n->padded->axis;
	for (int i = 0; i < order.n; i++)
		if (order.at[i] == n->padded->axis)
			return i;
	return -1;
}

/* The axis of `to` that has the same size, and as many elements in the axes before, as the padded
 * axis had; -1: the reshape merged or split the padded axis. */
static int
reshaped_axis(const Bound *b, Type to)
{
	int64_t before = 1, so_far = 1, size = b->value->type->dims[b->axis];

	for (int i = 0; i < b->axis; i++)
		before *= b->value->type->dims[i];
	for (int i = 0; i < to->rank; i++) {
		if (so_far == before && to->dims[i] == size)
			return i;
		so_far *= to->dims[i];
	}
	return -1;
}

static void
pad_reshaped(OnnxNode *n)
{
	int axis = n->out[0].value ? reshaped_axis(n->padded, n->out[0].value->type) : -1;

	if (axis < 0)
		refuse(n, n->padded_at, n->padded, "no axis of the result has this size");
	else
		pad_output(n, 0, axis);
}

/* A reduction over the padded axis needs no change, because the padding was replaced by the neutral
 * element. A mean divides by the count instead of the axis's size. */
static void
pad_reduced(OnnxNode *n, bool mean)
{
	const Bound *b = n->padded;
	int before = 0;
	Ints axes;

	if (!want_reduce_axes(n, b->value, &axes) || !n->out[0].value)
		return;
	for (int i = 0; i < axes.n; i++)
		before += axes.at[i] < b->axis;
	if (!ints_has(&axes, b->axis)) {
		pad_output(n, 0, want_int(n, "keepdims", 1) ? b->axis : b->axis - before);
		return;
	}
	Value *y = n->out[0].value;
	double size = (double)b->value->type->dims[b->axis];
	if (mean && !is_float(y))
		refuse(n, n->padded_at, b, "a mean of integers");
	else if (mean)
		set_output(n, 0,
		           e_binary(n, OP_div, e_with(n, OP_mul, y, size),
		                    e_cast(n, b->count, y->type->dtype)));
}

/* The shape, with the count in place of the padded dimension. */
static void
pad_shape(OnnxNode *n)
{
	int64_t start = want_int(n, "start", 0), rank = n->padded->value->type->rank;
	Value *y = n->out[0].value;

	start = start < -rank ? 0 : start < 0 ? start + rank : start > rank ? rank : start;
	if (!y)
		return;
	Value *own = e_with(n, OP_eq, e_iota(n, S64, shape_of(y), 0),
	                    (double)(n->padded->axis - start));
	set_output(n, 0, e_select(n, own, n->padded->count, y));
}

static void
pad_size(OnnxNode *n)
{
	int64_t others = 1;
	Type type = n->padded->value->type;

	for (int i = 0; i < type->rank; i++)
		others *= i == n->padded->axis ? 1 : type->dims[i];
	set_output(n, 0, e_with(n, OP_mul, n->padded->count, (double)others));
}

/* A mask of one input of Concat along the axis: true for data, false for padding. Adds the input's
 * number of data elements to *count. */
static Value *
part_mask(OnnxNode *n, const Bound *b, int axis, Value **count)
{
	int64_t size = b->value->type->dims[axis];
	Ints shape = {.n = 1, .at = {size}};

	if (!b->count) {
		*count = e_with(n, OP_add, *count, (double)size);
		return e_cast(n, e_splat(n, S64, shape, 1), BOOL);
	}
	*count = e_binary(n, OP_add, *count, e_cast(n, b->count, S64));
	return e_binary(n, OP_lt, e_iota(n, S64, shape, 0), b->count);
}

/* Concatenates along the padded axis: moves the data of all inputs to the front. */
static void
join_parts(OnnxNode *n, int axis)
{
	int parts = n_inputs(n);
	Value **masks = NEW_ARRAY(n->im->arena, Value *, parts);
	Value *joined = n->out[0].value,
	      *count = e_reshape(n, e_constant_ints(n, 1, &(int64_t){0}), (Ints){0});

	for (int i = 0; i < parts; i++) {
		const Bound *b = importer_lookup(n->im, n->proto->input[i]);
		masks[i] = part_mask(n, b, axis, &count);
		if (!masks[i])
			return;
	}
	Places p = places_within(n, e_concat(n, parts, masks, 0), joined->type->dims[axis]);
	set_output_padded(n, 0, e_gather(n, joined, p.at, axis), axis, count);
}

static void
pad_joined(OnnxNode *n)
{
	Value *y = n->out[0].value;
	int axis = y ? want_axis(n, want_int(n, "axis", 1), y->type->rank) : -1;

	if (axis < 0)
		return;
	for (int i = 0; i < n_inputs(n); i++) {
		const Bound *b = importer_lookup(n->im, n->proto->input[i]);
		bool same = axis == n->padded->axis
		                    ? !b->count || b->axis == axis
		                    : b->count == n->padded->count && b->axis == n->padded->axis;
		if (same)
			continue;
		refuse(n, n->padded_at, n->padded, "another input has a different size there");
		return;
	}
	if (axis == n->padded->axis)
		join_parts(n, axis);
	else
		pad_output(n, 0, n->padded->axis);
}

void
padded_outputs(OnnxNode *n)
{
	if (!n->padded || n->failed)
		return;
	switch (facts_of(n)->padded) {
	case PADDED_ELEMENTWISE: pad_elementwise(n); break;
	case PADDED_GATHER: pad_output(n, 0, gathered_axis(n)); break;
	case PADDED_GATHER_ND: pad_output(n, 0, n->padded->axis); break;
	case PADDED_TRANSPOSE: pad_output(n, 0, transposed_axis(n)); break;
	case PADDED_RESHAPE: pad_reshaped(n); break;
	case PADDED_REDUCE: pad_reduced(n, false); break;
	case PADDED_MEAN: pad_reduced(n, true); break;
	case PADDED_SHAPE: pad_shape(n); break;
	case PADDED_SIZE: pad_size(n); break;
	case PADDED_CONCAT: pad_joined(n); break;
	case PADDED_REFUSED:
	case PADDED_SCATTER_ND: break;
	}
}
