/* Imports reshapes, transposes and broadcasts, which compute no new numbers. */
#include "frontend/import/import.h"

#include <string.h>

/* --repair=batch: if the leading dimension is the file's batch size, it becomes the new one. */
static void
rebind_rows(const OnnxNode *n, const Value *x, Ints *shape, bool always)
{
	int64_t old = n->im->baked_batch, rows = n->im->options->batch;
	bool leads = x->type->rank && x->type->dims[0] == rows;

	if (!old || shape->n == 0 || shape->at[0] < old || shape->at[0] % old)
		return;
	if (always || leads || (x->type->rank && x->type->dims[0] % rows == 0))
		shape->at[0] = shape->at[0] / old * rows;
}

/* Computes the new shape. A 0 copies the input's dimension, unless allowzero is set; a single -1
 * follows from the number of elements. */
static bool
resolve_shape(OnnxNode *n, const Value *x, Ints *shape)
{
	bool allow_zero = want_int(n, "allowzero", 0);
	int open = -1;
	int64_t count = 1;

	for (int i = 0; i < shape->n; i++) {
		int64_t d = shape->at[i];
		if (d == 0 && !allow_zero) {
			if (i >= x->type->rank) {
				report_invalid(n, "target dimension %d is 0, the input has rank %d",
				               i, x->type->rank);
				return false;
			}
			d = shape->at[i] = x->type->dims[i];
		}
		if (d < -1 || (d == -1 && open >= 0)) {
			report_invalid(n, d == -1 ? "target has two dimensions of -1"
			                          : "target has a dimension below -1");
			return false;
		}
		if (d == -1)
			open = i;
		else if (!size_mul(count, d, &count)) {
			report_invalid(n, "target has more elements than can be addressed");
			return false;
		}
	}
	if (open >= 0) {
		if (count == 0 || x->type->n % count) {
			report_invalid(n, "%lld elements do not divide into rows of %lld",
			               (long long)x->type->n, (long long)count);
			return false;
		}
		shape->at[open] = x->type->n / count;
		count *= shape->at[open];
	}
	if (count != x->type->n)
		report_invalid(n, "%lld elements do not fit into a shape of %lld",
		               (long long)x->type->n, (long long)count);
	return count == x->type->n;
}

/* Before opset 5 the shape is an attribute. */
static void
import_reshape(OnnxNode *n)
{
	Value *x = want_input(n, 0);
	Ints shape;

	if (n->extra->input ? !want_constant_ints(n, 1, &shape)
	                    : !want_ints(n, "shape", &shape) && n->failed)
		return;
	if (!x)
		return;
	rebind_rows(n, x, &shape, false);
	if (resolve_shape(n, x, &shape))
		set_output(n, 0, e_reshape(n, x, shape));
}

static void
import_flatten(OnnxNode *n)
{
	Value *x = want_input(n, 0);
	int64_t axis = want_int(n, "axis", 1);
	Ints shape = {.n = 2, .at = {1, 1}};

	if (!x)
		return;
	int rank = x->type->rank;
	if (axis < -rank || axis > rank) {
		report_invalid(n, "axis %lld is not an axis of a rank-%d tensor", (long long)axis,
		               rank);
		return;
	}
	axis = axis < 0 ? axis + rank : axis;
	for (int i = 0; i < rank; i++)
		shape.at[i >= axis] *= x->type->dims[i];
	set_output(n, 0, e_reshape(n, x, shape));
}

static void
import_transpose(OnnxNode *n)
{
	Value *x = want_input(n, 0);
	Ints order;

	if (!x)
		return;
	if (!want_ints(n, "perm", &order)) {
		order.n = x->type->rank;
		for (int i = 0; i < order.n; i++)
			order.at[i] = order.n - 1 - i;
	}
	for (int i = 0; i < order.n; i++)
		if (order.at[i] < 0 || order.at[i] >= x->type->rank) {
			report_invalid(n,
			               "perm names axis %lld, which is not an axis of a "
			               "rank-%d tensor",
			               (long long)order.at[i], x->type->rank);
			return;
		}
	set_output(n, 0, e_transpose(n, x, order));
}

static void
import_squeeze(OnnxNode *n)
{
	Value *x = want_input(n, 0);
	Ints list, axes = {0}, shape = {0};

	if (!x)
		return;
	bool given = want_axes_list(n, "axes", 1, &list);
	if (n->failed || (given && !want_axes(n, list, x->type->rank, &axes)))
		return;
	for (int i = 0; i < x->type->rank; i++) {
		int64_t d = x->type->dims[i];
		bool named = given ? ints_has(&axes, i) : d == 1;
		if (named && d != 1)
			report_invalid(n, "axis %d has %lld elements, only 1 can be squeezed", i,
			               (long long)d);
		if (!named)
			shape.at[shape.n++] = d;
	}
	if (!n->failed)
		set_output(n, 0, e_reshape(n, x, shape));
}

static void
import_unsqueeze(OnnxNode *n)
{
	Value *x = want_input(n, 0);
	Ints list, axes, shape = {0};

	if (!x || (!want_axes_list(n, "axes", 1, &list) && n->failed))
		return;
	int rank = x->type->rank + list.n;
	if (rank > MAX_RANK) {
		report_unsupported(n, "a result of rank %d, at most %d", rank, MAX_RANK);
		return;
	}
	if (!want_axes(n, list, rank, &axes))
		return;
	for (int i = 0, k = 0; i < rank; i++)
		shape.at[shape.n++] = ints_has(&axes, i) ? 1 : x->type->dims[k++];
	set_output(n, 0, e_reshape(n, x, shape));
}

/* Two-way broadcasting: the result may be larger than the given shape. */
static void
import_expand(OnnxNode *n)
{
	Value *x = want_input(n, 0);
	Ints shape;

	if (!want_constant_ints(n, 1, &shape) || !x)
		return;
	rebind_rows(n, x, &shape, true);
	if (shape_fits(n, shape) && broadcast_shapes(n, &shape, shape_of(x)))
		set_output(n, 0, e_broadcast(n, x, shape));
}

static void
import_identity(OnnxNode *n)
{
	Bound *b = want_bound(n, 0);

	if (b)
		set_output_bound(n, 0, b);
}

static bool
want_blocks(OnnxNode *n, Value *x, int64_t *block)
{
	*block = want_int(n, "blocksize", 0);
	if (!x)
		return false;
	if (x->type->rank != 4 || *block < 1 || *block > 1 << 20) {
		report_invalid(n, "blocksize %lld, rank %d; needs a positive block and rank 4",
		               (long long)*block, x->type->rank);
		return false;
	}
	return true;
}

static void
import_depth_to_space(OnnxNode *n)
{
	Value *x = want_input(n, 0);
	bool crd = !strcmp(want_word(n, "mode", "DCR CRD"), "CRD");
	int64_t s;

	if (!want_blocks(n, x, &s))
		return;
	const int64_t *d = x->type->dims;
	if (d[1] % (s * s)) {
		report_invalid(n, "%lld channels do not divide by %lld", (long long)d[1],
		               (long long)(s * s));
		return;
	}
	Ints dcr_shape = {.n = 6, .at = {d[0], s, s, d[1] / (s * s), d[2], d[3]}};
	Ints crd_shape = {.n = 6, .at = {d[0], d[1] / (s * s), s, s, d[2], d[3]}};
	Ints dcr_order = {.n = 6, .at = {0, 3, 4, 1, 5, 2}},
	     crd_order = {.n = 6, .at = {0, 1, 4, 2, 5, 3}};
	Value *y = e_transpose(n, e_reshape(n, x, crd ? crd_shape : dcr_shape),
	                       crd ? crd_order : dcr_order);
	set_output(
		n, 0,
		e_reshape(n, y, (Ints){.n = 4, .at = {d[0], d[1] / (s * s), d[2] * s, d[3] * s}}));
}

static void
import_space_to_depth(OnnxNode *n)
{
	Value *x = want_input(n, 0);
	int64_t s;

	if (!want_blocks(n, x, &s))
		return;
	const int64_t *d = x->type->dims;
	if (d[2] % s || d[3] % s) {
		report_invalid(n, "%lld x %lld does not divide by %lld", (long long)d[2],
		               (long long)d[3], (long long)s);
		return;
	}
	Ints shape = {.n = 6, .at = {d[0], d[1], d[2] / s, s, d[3] / s, s}};
	Value *y = e_transpose(n, e_reshape(n, x, shape), (Ints){.n = 6, .at = {0, 3, 5, 1, 2, 4}});
	set_output(n, 0,
	           e_reshape(n, y, (Ints){.n = 4, .at = {d[0], d[1] * s * s, d[2] / s, d[3] / s}}));
}

const ImportRow import_shape_rows[] = {
	/* name        from  to  importer  extra */
	{"Reshape", 1, 4, import_reshape, .facts = {.padded = PADDED_RESHAPE}},
	{"Reshape", 5, 0, import_reshape, {.input = true}, NULL},
	{"Flatten", 1, 0, import_flatten, .facts = {.padded = PADDED_RESHAPE}},
	{"Transpose", 1, 0, import_transpose, .facts = {.padded = PADDED_TRANSPOSE}},
	{"Squeeze", 1, 12, import_squeeze, .facts = {.padded = PADDED_RESHAPE}},
	{"Squeeze", 13, 0, import_squeeze, {.input = true}, NULL},
	{"Unsqueeze", 1, 12, import_unsqueeze, .facts = {.padded = PADDED_RESHAPE}},
	{"Unsqueeze", 13, 0, import_unsqueeze, {.input = true}, NULL},
	{"Expand", 8, 0, import_expand, .facts = {.filling = INPUT(0)}},
	{"Identity", 1, 0, import_identity, {0}, NULL},
	{"DepthToSpace", 1, 0, import_depth_to_space, {0}, NULL},
	{"SpaceToDepth", 1, 0, import_space_to_depth, {0}, NULL},
	{0},
};
