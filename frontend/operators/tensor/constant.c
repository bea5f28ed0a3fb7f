/* Imports Constant, ConstantOfShape, Range and Shape. All shapes are known at import, so Shape
 * gives constants. */
#include "frontend/import/import.h"

#include <math.h>
#include <string.h>

static Value *
tensor_value(OnnxNode *n, const TensorProto *t)
{
	TensorData d;

	if (!tensor_load(n->im->model, t, false, &d, n->im->diag)) {
		n->failed = true;
		return NULL;
	}
	return b_constant(
		n->b, tensor_borrow(n->b->m, type_new(n->b->m, d.dtype, d.rank, d.dims), d.data));
}

static Value *
list_value(OnnxNode *n, DType t, int rank, size_t count, const void *data)
{
	int64_t dims[] = {(int64_t)count};

	return b_constant(n->b, tensor_new(n->b->m, type_new(n->b->m, t, rank, dims),
	                                   count ? data : (const void *)dims));
}

/* A weight in a Constant node becomes a state; other values become constants. */
static void
import_constant(OnnxNode *n)
{
	const AttributeProto *a = n->proto->n_attribute == 1 ? n->proto->attribute[0] : NULL;
	const Weight *w = inner_weight(n->im->repairs, a ? a->t : NULL);

	if (!w && n->im->repairs && !n->im->scope && has_output(n, 0))
		w = repairs_weight(n->im->repairs, n->proto->output[0]);
	if (weight_has_state(w) && (w->is_inner || w->constant == n->proto)) {
		importer_bind_weight(n->im, n->proto->output[0], w);
		n->out[0] = *importer_lookup(n->im, n->proto->output[0]);
		return;
	}
	if (!a) {
		report_invalid(n, "%zu attributes, needs one", n->proto->n_attribute);
		return;
	}
	if (!strcmp(a->name, "value"))
		set_output(n, 0, a->t ? tensor_value(n, a->t) : NULL);
	else if (!strcmp(a->name, "value_float"))
		set_output(n, 0, list_value(n, F32, 0, 1, &a->f));
	else if (!strcmp(a->name, "value_floats"))
		set_output(n, 0, list_value(n, F32, 1, a->n_floats, a->floats));
	else if (!strcmp(a->name, "value_int"))
		set_output(n, 0, list_value(n, S64, 0, 1, &a->i));
	else if (!strcmp(a->name, "value_ints"))
		set_output(n, 0, list_value(n, S64, 1, a->n_ints, a->ints));
	else
		report_unsupported(n, "attribute %s", quoted(n->im->model, a->name));
}

/* Broadcasts a value of one element; the default is 0 of f32. */
static void
import_constant_of_shape(OnnxNode *n)
{
	const AttributeProto *a = node_attribute(n->proto, "value");
	Value *one = a && a->t ? tensor_value(n, a->t) : e_scalar(n, F32, 0);
	Ints shape;

	if (!want_constant_ints(n, 0, &shape) || !one)
		return;
	if (one->type->n != 1) {
		report_invalid(n, "value has %lld elements, needs one", (long long)one->type->n);
		return;
	}
	int64_t baked = n->im->baked_batch;
	if (baked && shape.n && shape.at[0] == baked)
		shape.at[0] = n->im->options->batch;
	set_output(n, 0, e_broadcast_axes(n, e_reshape(n, one, (Ints){0}), shape, (Ints){0}));
}

/* The number of steps of size input 2 from input 0 to below input 1; all inputs are known. NAN:
 * infinite. */
static double
whole_steps(OnnxNode *n)
{
	int64_t start = tensor_int(want_constant(n, 0), 0),
		limit = tensor_int(want_constant(n, 1), 0);
	int64_t delta = tensor_int(want_constant(n, 2), 0);
	bool up = delta > 0;
	uint64_t way = up ? (uint64_t)limit - (uint64_t)start : (uint64_t)start - (uint64_t)limit;
	uint64_t step = up ? (uint64_t)delta : 0 - (uint64_t)delta;

	if (delta == 0)
		return NAN;
	return (up ? limit <= start : limit >= start) ? 0 : (double)((way - 1) / step + 1);
}

/* start + i delta */
static void
import_range(OnnxNode *n)
{
	double start, limit, delta;
	DType stash;
	Value *x = want_input(n, 0);

	if (!x || !want_constant_float(n, 0, &start) || !want_constant_float(n, 1, &limit) ||
	    !want_constant_float(n, 2, &delta))
		return;
	if (!want_dtype(n, want_int(n, "stash_type", 1), &stash))
		return;
	if (stash != F32 && stash != F64) {
		report_invalid(n, "stash_type is %s, needs f32 or f64", dtype_info[stash].name);
		return;
	}
	double count = is_float(x) ? delta ? ceil((limit - start) / delta) : NAN : whole_steps(n);
	if (!(count < (double)MAX_ELEMENTS)) {
		report_invalid(n,
		               "from %g to %g in steps of %g are too many numbers, or no end "
		               "is reached",
		               start, limit, delta);
		return;
	}
	Ints shape = {.n = 1, .at = {count > 0 ? (int64_t)count : 0}};
	Value *y = e_iota(n, x->type->dtype, shape, 0);
	if (delta != 1)
		y = e_binary(n, OP_mul, y, e_reshape(n, want_input(n, 2), (Ints){0}));
	set_output(n, 0, start ? e_binary(n, OP_add, y, e_reshape(n, x, (Ints){0})) : y);
}

static void
import_shape(OnnxNode *n)
{
	Value *x = want_input(n, 0);

	if (!x)
		return;
	int64_t rank = x->type->rank, start = want_int(n, "start", 0),
		end = want_int(n, "end", rank);
	start = start < 0 ? start + rank : start;
	end = end < 0 ? end + rank : end;
	start = start < 0 ? 0 : start > rank ? rank : start;
	end = end < start ? start : end > rank ? rank : end;
	set_output(n, 0, e_constant_ints(n, (int)(end - start), x->type->dims + start));
}

static void
import_size(OnnxNode *n)
{
	Value *x = want_input(n, 0);

	set_output(n, 0, x ? e_reshape(n, e_constant_ints(n, 1, &x->type->n), (Ints){0}) : NULL);
}

static void
import_eye_like(OnnxNode *n)
{
	Value *x = want_input(n, 0);
	DType to;

	if (!x)
		return;
	if (x->type->rank != 2) {
		report_invalid(n, "rank %d, needs 2", x->type->rank);
		return;
	}
	if (!want_dtype(n, want_int(n, "dtype", tensor_onnx_type(x->type->dtype)), &to))
		return;
	Value *row = e_iota(n, S64, shape_of(x), 0), *column = e_iota(n, S64, shape_of(x), 1);
	row = e_with(n, OP_add, row, (double)want_int(n, "k", 0));
	set_output(n, 0, e_cast(n, e_binary(n, OP_eq, row, column), to));
}

const ImportRow import_constant_rows[] = {
	/* name             from  to  importer  extra */
	{"Constant", 1, 0, import_constant, .facts = {.no_gradient = true, .typed_by = NO_INPUT}},
	{"ConstantOfShape", 9, 0, import_constant_of_shape,
         .facts = {.no_gradient = true, .typed_by = NO_INPUT, .steering = INPUT(0)}},
	{"Range", 11, 0, import_range, .facts = {.no_gradient = true, .steering = INPUTS(0, 2)}},
	{"Shape", 1, 0, import_shape,
         .facts = {.no_gradient = true, .padded = PADDED_SHAPE, .steering = INPUT(0)}},
	{"Size", 1, 0, import_size,
         .facts = {.no_gradient = true, .padded = PADDED_SIZE, .steering = INPUT(0)}},
	{"EyeLike", 9, 0, import_eye_like, .facts = {.no_gradient = true, .steering = INPUT(0)}},
	{0},
};
