/* Imports gathers and scatters, each as a gather or scatter of the IR along one axis. If there is
 * an index per element or per tuple of coordinates, the leading axes are flattened, and indices
 * into the flat axis are computed with iotas. */
#include "frontend/import/import.h"

#include <string.h>

static void
import_gather(OnnxNode *n)
{
	Value *x = want_input(n, 0), *indices = want_input(n, 1);

	if (!x || !indices)
		return;
	int axis = want_axis(n, want_int(n, "axis", 0), x->type->rank);
	if (axis < 0 ||
	    !(indices = e_indices(n, indices, x->type->dims[axis], x->kind == VALUE_STATE)))
		return;
	set_output(n, 0, e_gather(n, x, indices, axis));
}

/* Indices into an axis of `size` elements, as s64. The axis is then flattened with other axes to
 * `flat_size` elements. An index out of range would hit an element of the next row. So such an
 * index becomes `flat_size`, which is outside of the flat axis: nothing is read or written, as in
 * Gather. Constants are checked. Computed indices that are known to be never negative stay
 * unchanged. (batch_index.c relies on this form.) */
static Value *
joined_indices(OnnxNode *n, Value *indices, int64_t size, int64_t flat_size)
{
	Value *at = e_indices(n, indices, size, false);
	bool is_known = at == indices || !at || value_constant(at);

	at = e_cast(n, at, S64);
	if (is_known || !at || size == flat_size)
		return at;
	Value *outside = e_binary(n, OP_or, e_with(n, OP_lt, at, 0),
	                          e_with(n, OP_ge, at, (double)size));
	return e_select(n, outside, e_number(n, at, (double)flat_size), at);
}

/* The flat index of each element: its own coordinates, with `indices` along one axis. */
static Value *
element_places(OnnxNode *n, Type data, Value *indices, int axis)
{
	int64_t strides[MAX_RANK];
	Value *sum = NULL;

	type_strides(data, strides);
	for (int i = 0; i < data->rank; i++) {
		Value *at = i == axis ? indices : e_iota(n, S64, shape_of(indices), i);
		if (strides[i] != 1)
			at = e_with(n, OP_mul, at, (double)strides[i]);
		sum = sum ? e_binary(n, OP_add, sum, at) : at;
	}
	return sum;
}

/* The input of indices. It must have the data's rank, and along each axis other than `axis` at most
 * the data's size. */
static Value *
want_element_indices(OnnxNode *n, const Value *data, int axis)
{
	Value *indices = want_input(n, 1);

	if (!indices)
		return NULL;
	if (indices->type->rank != data->type->rank) {
		report_invalid(n, "indices have rank %d and data rank %d, need equal ranks",
		               indices->type->rank, data->type->rank);
		return NULL;
	}
	for (int i = 0; i < data->type->rank; i++)
		if (i != axis && indices->type->dims[i] > data->type->dims[i]) {
			report_invalid(n,
			               "indices have %lld elements along axis %d, more than "
			               "the data's %lld",
			               (long long)indices->type->dims[i], i,
			               (long long)data->type->dims[i]);
			return NULL;
		}
	return indices;
}

/* The gradient of gather_elements adds up each line (all elements along the axis) on one thread. With fewer lines, the
 * elements are gathered from the flattened tensor. */
enum { FEWEST_LINES = 64 };

static void
import_gather_elements(OnnxNode *n)
{
	Value *x = want_input(n, 0);
	int axis = x ? want_axis(n, want_int(n, "axis", 0), x->type->rank) : -1;
	Value *indices = axis < 0 ? NULL : want_element_indices(n, x, axis);
	int64_t size = indices ? x->type->dims[axis] : 0;

	if (!indices)
		return;
	if (indices->type->n < FEWEST_LINES * indices->type->dims[axis]) {
		indices = joined_indices(n, indices, size, x->type->n);
		if (indices)
			set_output(n, 0,
			           e_gather(n, e_flat(n, x),
			                    element_places(n, x->type, indices, axis), 0));
		return;
	}
	indices = e_indices(n, indices, size, false);
	if (!indices)
		return;
	for (int i = 0; i < x->type->rank; i++)
		if (i != axis && indices->type->dims[i] < x->type->dims[i])
			x = e_slice_axis(n, x, i, 0, indices->type->dims[i]);
	set_output(n, 0,
	           e_op(n, OP_gather_elements, 2, (Value *[]){x, indices}, &(AxisAttr){axis}));
}

static bool
scatter_kind(OnnxNode *n, ScatterKind *kind)
{
	static const char *const names[] = {[SCATTER_SET] = "none",
	                                    [SCATTER_ADD] = "add",
	                                    [SCATTER_MUL] = "mul",
	                                    [SCATTER_MAX] = "max",
	                                    [SCATTER_MIN] = "min"};
	const char *name = want_string(n, "reduction", "none");

	for (int i = 0; i < COUNT(names); i++)
		if (!strcmp(name, names[i])) {
			*kind = (ScatterKind)i;
			return true;
		}
	report_invalid(n, "unknown reduction");
	return false;
}

static Value *
scatter_flat(OnnxNode *n, Value *data, Value *places, Value *updates, ScatterKind kind)
{
	return e_op(n, OP_scatter, 3, (Value *[]){data, places, updates}, &(ScatterAttr){kind, 0});
}

static void
import_scatter_elements(OnnxNode *n)
{
	Value *x = want_input(n, 0), *updates = want_input(n, 2);
	int axis = x ? want_axis(n, want_int(n, "axis", 0), x->type->rank) : -1;
	Value *indices = axis < 0 ? NULL : want_element_indices(n, x, axis);
	ScatterKind kind;

	indices = indices ? joined_indices(n, indices, x->type->dims[axis], x->type->n) : NULL;
	if (!indices || !updates || !scatter_kind(n, &kind))
		return;
	if (!type_same_shape(indices->type, updates->type)) {
		report_invalid(n, "indices and updates have different shapes");
		return;
	}
	Value *places = e_flat(n, element_places(n, x->type, indices, axis));
	Value *y = scatter_flat(n, e_flat(n, x), places, e_flat(n, updates), kind);
	set_output(n, 0, e_reshape(n, y, shape_of(x)));
}

/* ---- tuples of indices along the last axis of `indices` */
/* The flat index of each tuple, in the shape of indices without its last axis. Axes [batch, batch +
 * k) of the data are joined to the batch axes. */
static Value *
tuple_places(OnnxNode *n, const Value *data, Value *indices, int batch, int k)
{
	Ints shape = shape_of(indices);
	Value *sum = NULL;
	int64_t stride = 1, flat_size = 1;

	for (int i = 0; i < batch + k; i++)
		flat_size *= data->type->dims[i];
	shape = ints_without(shape, shape.n - 1);
	for (int i = batch + k - 1; i >= 0; i--) {
		int64_t size = data->type->dims[i];
		Value *at;
		if (i < batch) {
			at = e_iota(n, S64, shape, i);
		} else {
			int last = indices->type->rank - 1;
			at = e_slice_axis(n, indices, last, i - batch, i - batch + 1);
			at = joined_indices(n, e_reshape(n, at, shape), size, flat_size);
		}
		if (stride != 1)
			at = e_with(n, OP_mul, at, (double)stride);
		sum = sum ? e_binary(n, OP_add, sum, at) : at;
		stride *= size;
	}
	return sum;
}

/* data with its first `joined` axes joined to one. */
static Value *
join_leading(OnnxNode *n, Value *data, int joined)
{
	Ints shape = {.n = 1, .at = {1}};

	for (int i = 0; i < data->type->rank; i++) {
		if (i < joined)
			shape.at[0] *= data->type->dims[i];
		else
			shape.at[shape.n++] = data->type->dims[i];
	}
	return e_reshape(n, data, shape);
}

/* Checks that constant tuples lie inside the data. Computed tuples are not checked. */
static bool
check_tuples(OnnxNode *n, const Value *data, const Value *indices, int batch, int k)
{
	const Tensor *t = value_constant(indices);

	for (int64_t i = 0; t && i < t->type->n; i++) {
		int64_t index = tensor_int(t, i), size = data->type->dims[batch + i % k];
		if (index >= -size && index < size)
			continue;
		report_invalid(n, "index %lld is outside of an axis of %lld elements",
		               (long long)index, (long long)size);
		return false;
	}
	return true;
}

/* The number of axes that a tuple addresses; -1 after reporting. */
static int
tuple_size(OnnxNode *n, const Value *data, const Value *indices, int64_t batch)
{
	int rank = data->type->rank, q = indices->type->rank;
	int64_t k = q ? indices->type->dims[q - 1] : 0;

	if (rank < 1 || q < 1 || batch < 0 || batch >= q || k < 1 || k > rank - batch) {
		report_invalid(n,
		               "tuples of %lld indices with %lld batch axes do not fit data "
		               "of rank %d",
		               (long long)k, (long long)batch, rank);
		return -1;
	}
	for (int i = 0; i < batch; i++)
		if (data->type->dims[i] != indices->type->dims[i]) {
			report_invalid(n,
			               "batch axis %d has %lld elements in the data and %lld in "
			               "the indices, need equal numbers",
			               i, (long long)data->type->dims[i],
			               (long long)indices->type->dims[i]);
			return -1;
		}
	return check_tuples(n, data, indices, (int)batch, (int)k) ? (int)k : -1;
}

static void
import_gather_nd(OnnxNode *n)
{
	Value *x = want_input(n, 0), *indices = want_input(n, 1);
	int64_t batch = want_int(n, "batch_dims", 0);
	int k = x && indices ? tuple_size(n, x, indices, batch) : -1;

	if (k < 0)
		return;
	Value *places = tuple_places(n, x, indices, (int)batch, k);
	set_output(n, 0, e_gather(n, join_leading(n, x, (int)batch + k), places, 0));
}

static void
import_scatter_nd(OnnxNode *n)
{
	Value *x = want_input(n, 0), *indices = want_input(n, 1), *updates = want_input(n, 2);
	int k = x && indices ? tuple_size(n, x, indices, 0) : -1;
	ScatterKind kind;

	if (k < 0 || !updates || !scatter_kind(n, &kind))
		return;
	Ints shape = ints_without(shape_of(indices), indices->type->rank - 1),
	     rows = {.n = 1, .at = {1}};
	for (int i = 0; i < shape.n; i++)
		rows.at[0] *= shape.at[i];
	for (int i = k; i < x->type->rank; i++) {
		if (shape.n < MAX_RANK)
			shape.at[shape.n++] = x->type->dims[i];
		rows.at[rows.n++] = x->type->dims[i];
	}
	Ints given = shape_of(updates);
	if (memcmp(&given, &shape, sizeof(given))) {
		report_invalid(n, "updates do not have the shape that indices and data give");
		return;
	}
	Value *places = e_flat(n, tuple_places(n, x, indices, 0, k));
	Value *y = scatter_flat(n, join_leading(n, x, k), places, e_reshape(n, updates, rows),
	                        kind);
	set_output(n, 0, e_reshape(n, y, shape_of(x)));
}

/* ---- ReverseSequence: https://onnx.ai/onnx/operators/onnx__ReverseSequence.html. Reverses the
 * first lens[b] elements of batch b along time. */
static bool
want_lengths(OnnxNode *n, const Value *lens, int64_t batches, int64_t longest)
{
	const Tensor *t = value_constant(lens);

	if (lens->type->rank != 1 || lens->type->n != batches) {
		report_invalid(
			n,
			"sequence_lens has %lld numbers of rank %d, needs one for each of %lld batches",
			(long long)lens->type->n, lens->type->rank, (long long)batches);
		return false;
	}
	for (int64_t i = 0; t && i < t->type->n; i++)
		if (tensor_int(t, i) < 0 || tensor_int(t, i) > longest) {
			report_invalid(n, "a length of %lld, needs 0 to %lld",
			               (long long)tensor_int(t, i), (long long)longest);
			return false;
		}
	return true;
}

static void
import_reverse_sequence(OnnxNode *n)
{
	Value *x = want_input(n, 0), *lens = want_input(n, 1);
	int64_t time = want_int(n, "time_axis", 0), batch = want_int(n, "batch_axis", 1);

	if (!x || !lens)
		return;
	if (x->type->rank < 2 || (time != 0 && time != 1) || batch != !time) {
		report_invalid(
			n,
			"time_axis is %lld and batch_axis %lld: one must be 0, the other 1; the input has rank %d, needs 2 or more",
			(long long)time, (long long)batch, x->type->rank);
		return;
	}
	int64_t longest = x->type->dims[time];
	Ints shape = {.n = 2, .at = {x->type->dims[0], x->type->dims[1]}}, column = shape;
	if (!want_lengths(n, lens, shape.at[batch], longest))
		return;
	column.at[time] = 1;
	lens = e_reshape(n, e_cast(n, lens, S64), column);
	Value *at = e_iota(n, S64, shape, (int)time);
	Value *back = e_with(n, OP_sub, e_binary(n, OP_sub, lens, at), 1);
	Value *kept = e_binary(n, OP_or, e_with(n, OP_lt, back, 0),
	                       e_with(n, OP_ge, back, (double)longest));
	at = e_select(n, kept, at, back);
	Value *row = e_with(n, OP_mul, e_iota(n, S64, shape, 0), (double)shape.at[1]);
	Value *other = e_iota(n, S64, shape, 1);
	row = time == 1 ? e_binary(n, OP_add, row, at)
	                : e_binary(n, OP_add, e_with(n, OP_mul, at, (double)shape.at[1]), other);
	set_output(n, 0, e_gather(n, join_leading(n, x, 2), row, 0));
}

/* OneHot: values = [off, on]; `on` where the index equals the position along the new axis. */
static void
import_one_hot(OnnxNode *n)
{
	Value *indices = want_input(n, 0), *values = want_input(n, 2);
	double depth;

	if (!want_constant_float(n, 1, &depth) || !indices || !values)
		return;
	if (values->type->rank != 1 || values->type->dims[0] != 2 || !(depth >= 1) ||
	    depth > (double)MAX_ELEMENTS || indices->type->rank == MAX_RANK) {
		report_invalid(n,
		               "depth is %g, needs 1 or more, and values has %lld elements, "
		               "needs a list of 2",
		               depth, (long long)values->type->n);
		return;
	}
	int rank = indices->type->rank + 1, axis = want_axis(n, want_int(n, "axis", -1), rank);
	if (axis < 0)
		return;
	Ints thin = {0}, wide = {0};
	for (int i = 0, k = 0; i < rank; i++) {
		int64_t d = i == axis ? 1 : indices->type->dims[k++];
		thin.at[thin.n++] = d;
		wide.at[wide.n++] = i == axis ? (int64_t)depth : d;
	}
	/* An index out of range is allowed, even a constant one: its row has no `on`. */
	Value *at = e_cast(n, indices, S64), *below = e_with(n, OP_lt, at, 0);
	at = e_select(n, below, e_with(n, OP_add, at, (double)(int64_t)depth), at);
	Value *hit = e_binary(n, OP_eq, e_iota(n, S64, wide, axis), e_reshape(n, at, thin));
	Value *off = e_reshape(n, e_slice_axis(n, values, 0, 0, 1), (Ints){0});
	Value *on = e_reshape(n, e_slice_axis(n, values, 0, 1, 2), (Ints){0});
	set_output(n, 0, e_select(n, hit, on, off));
}

const ImportRow import_gather_rows[] = {
	/* name            from  to  importer  extra */
	{"Gather", 1, 0, import_gather, .facts = {.padded = PADDED_GATHER, .weights = INPUT(0)}},
	{"GatherElements", 11, 0, import_gather_elements, .facts = {.filling = INPUT(0)}},
	{"GatherND", 11, 0, import_gather_nd,
         .facts = {.padded = PADDED_GATHER_ND, .filling = INPUT(0)}},
	{"Scatter", 9, 10, import_scatter_elements, .facts = {.filling = INPUT(0) | INPUT(2)}},
	{"ScatterElements", 11, 0, import_scatter_elements,
         .facts = {.filling = INPUT(0) | INPUT(2)}},
	{"ScatterND", 11, 0, import_scatter_nd,
         .facts = {.padded = PADDED_SCATTER_ND, .filling = INPUT(0) | INPUT(2)}},
	{"ReverseSequence", 10, 0, import_reverse_sequence, {0}, NULL},
	{"OneHot", 9, 0, import_one_hot, .facts = {.typed_by = 2, .steering = INPUTS(1, 2)}},
	{0},
};
