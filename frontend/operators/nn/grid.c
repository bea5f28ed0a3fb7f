/* GridSample, DeformConv and AffineGrid: sample a tensor at computed positions between its
 * elements. A sample is a weighted sum of 1 (nearest), 2 (linear) or 4 (cubic) elements along each
 * axis. The elements that a sample reads are called taps. All channels of a position are stored
 * side by side, so that reading a tap is one gather of rows. Weights and positions are ordinary
 * arithmetic, through which gradients pass. */
#include "frontend/operators/nn/window.h"

#include <string.h>

enum { MOST_TAPS = 4, MOST_CORNERS = 1 << 12, LARGEST_KERNEL = 1 << 16 };

/* Along one axis: indices of the elements, and their weights (NULL: 1). */
typedef struct {
	int n;
	Value *at[MOST_TAPS], *weight[MOST_TAPS];
} Taps;
typedef enum { BEYOND_ZERO, BEYOND_BORDER, BEYOND_REFLECTED } Beyond;
/* How elements are sampled along an axis; mode: "nearest", "linear" or "cubic". */
typedef struct {
	const char *mode;
	Beyond beyond;
	/* align_corners: the axis ends at the middle of the last element, not at its edge */
	bool corners;
	int64_t size;
} Sampler;

/* Reflects x at lo and hi, as between two mirrors. If x lies between lo and hi, the result is x. */
static Value *
reflected(OnnxNode *n, Value *x, double lo, double hi, Value *outside)
{
	if (hi <= lo)
		return e_number(n, x, lo);
	Value *range = e_number(n, x, hi - lo), *twice = e_number(n, x, 2 * (hi - lo));
	Value *d = e_binary(n, OP_rem, e_unary(n, OP_abs, e_with(n, OP_sub, x, lo)), twice);
	Value *back = e_binary(n, OP_gt, d, range);
	d = e_with(n, OP_add, e_select(n, back, e_binary(n, OP_sub, twice, d), d), lo);
	return e_select(n, outside, d, x);
}

static Value *
clamped(OnnxNode *n, Value *x, double most)
{
	return e_at_most(n, e_at_least(n, x, e_number(n, x, 0)), e_number(n, x, most));
}

/* Moves a position beyond the axis back onto the axis; whole: the position is an element's
 * index. */
static Value *
brought_back(OnnxNode *n, const Sampler *s, Value *x, bool whole)
{
	double last = (double)s->size - 1, lo = s->corners ? 0 : -0.5, hi = last - lo;
	Value *outside;

	if (s->beyond == BEYOND_ZERO)
		return x;
	outside = e_binary(n, OP_or, e_with(n, OP_lt, x, lo), e_with(n, OP_gt, x, hi));
	if (s->beyond == BEYOND_REFLECTED)
		x = reflected(n, x, lo, hi, outside);
	else if (!whole)
		return e_select(n, outside, clamped(n, x, last), x);
	return whole ? clamped(n, x, last) : x;
}

/* Weights of the cubic convolution of Keys (1981) with a = -0.75, for the elements floor(x) - 1 to
 * floor(x) + 2. t = x - floor(x) */
static void
cubic_taps(OnnxNode *n, Value *t, Value *weight[MOST_TAPS])
{
	const double a = -0.75;
	Value *u = e_binary(n, OP_sub, e_number(n, t, 1), t), *sides[] = {t, u};

	for (int i = 0; i < COUNT(sides); i++) {
		Value *s = sides[i], *far = e_with(n, OP_add, s, 1);
		Value *w = e_with(n, OP_add, e_with(n, OP_mul, far, a), -5 * a);
		w = e_with(n, OP_add, e_binary(n, OP_mul, w, far), 8 * a);
		weight[i ? 3 : 0] = e_with(n, OP_add, e_binary(n, OP_mul, w, far), -4 * a);
		w = e_with(n, OP_add, e_with(n, OP_mul, s, a + 2), -(a + 3));
		w = e_binary(n, OP_mul, e_binary(n, OP_mul, w, s), s);
		weight[1 + i] = e_with(n, OP_add, w, 1);
	}
}

/* The elements around positions x, which are counted in elements. */
static Taps
taps_at(OnnxNode *n, const Sampler *s, Value *x)
{
	bool nearest = !strcmp(s->mode, "nearest"), cubic = !strcmp(s->mode, "cubic");
	Taps t = {.n = nearest ? 1 : cubic ? 4 : 2};

	x = brought_back(n, s, nearest ? e_unary(n, OP_round, x) : x, false);
	Value *first = nearest ? e_unary(n, OP_round, x) : e_unary(n, OP_floor, x);
	Value *rest = nearest ? NULL : e_binary(n, OP_sub, x, first);
	if (cubic)
		cubic_taps(n, rest, t.weight);
	else if (!nearest)
		t.weight[0] = e_binary(n, OP_sub, e_number(n, x, 1), rest), t.weight[1] = rest;
	for (int i = 0; i < t.n; i++) {
		Value *p = e_with(n, OP_add, first, i - (cubic ? 1 : 0));
		p = brought_back(n, s, p, true);
		Value *inside = e_binary(n, OP_and, e_with(n, OP_ge, p, 0),
		                         e_with(n, OP_le, p, (double)s->size - 1));
		t.at[i] = e_cast(n, e_select(n, inside, p, e_number(n, p, 0)), S64);
		if (s->beyond != BEYOND_ZERO)
			continue;
		Value *w = t.weight[i] ? t.weight[i] : e_number(n, p, 1);
		t.weight[i] = e_select(n, inside, w, e_number(n, w, 0));
	}
	return t;
}

/* rows: T[positions, channels], the positions of `axes` spatial axes flattened. base: for each
 * result, the row of its image's first element. Result: T[base's shape, channels] = sum over taps
 * of weight * rows[base + at]. */
static Value *
sample_rows(OnnxNode *n, Value *rows, Value *base, int axes, const Taps *taps,
            const int64_t *strides)
{
	int corners = 1;
	Value *sum = NULL;

	for (int i = 0; i < axes; i++)
		corners = corners > MOST_CORNERS ? corners : corners * taps[i].n;
	if (corners > MOST_CORNERS) {
		report_unsupported(n, "%d spatial axes", axes);
		return NULL;
	}
	for (int c = 0; c < corners && base; c++) {
		Value *at = base, *w = NULL;
		for (int i = 0, rest = c; i < axes; rest /= taps[i++].n) {
			int k = rest % taps[i].n;
			Value *more = taps[i].weight[k];
			at = e_binary(n, OP_add, at,
			              e_with(n, OP_mul, taps[i].at[k], (double)strides[i]));
			w = w && more ? e_binary(n, OP_mul, w, more) : more ? more : w;
		}
		Value *y = e_gather(n, rows, at, 0);
		if (w && y) {
			Ints column = shape_of(w);
			column.at[column.n++] = 1;
			y = e_binary(n, OP_mul, y, e_reshape(n, w, column));
		}
		sum = sum ? e_binary(n, OP_add, sum, y) : y;
	}
	return sum;
}

Value *
e_rows_of_places(OnnxNode *n, Value *x)
{
	Ints order = {.n = x->type->rank}, shape = {.n = 2};

	for (int i = 0; i < order.n; i++)
		order.at[i] = i == 0 ? 0 : i == order.n - 1 ? 1 : i + 1;
	shape.at[1] = x->type->dims[1];
	shape.at[0] = shape.at[1] ? x->type->n / shape.at[1] : 0;
	return e_reshape(n, e_transpose(n, x, order), shape);
}

/* ---- https://onnx.ai/onnx/operators/onnx__GridSample.html */
static bool
sampled_shape(OnnxNode *n, const Value *x, const Value *grid)
{
	int rank = x->type->rank, spatial = rank - 2;

	if (spatial < 1 || grid->type->rank != rank || grid->type->dims[0] != x->type->dims[0] ||
	    grid->type->dims[rank - 1] != spatial) {
		report_invalid(
			n,
			"the grid does not fit the input: input of rank %d and batch %lld, grid "
			"of rank %d, batch %lld and %lld coordinates; need rank 3 or more, "
			"equal ranks and batches, and rank - 2 coordinates",
			rank, (long long)(rank ? x->type->dims[0] : 0), grid->type->rank,
			(long long)(grid->type->rank ? grid->type->dims[0] : 0),
			(long long)(grid->type->rank ? grid->type->dims[grid->type->rank - 1] : 0));
		return false;
	}
	for (int i = 2; i < rank; i++)
		if (x->type->dims[i] < 1) {
			report_invalid(n, "axis %d of the input has no elements", i);
			return false;
		}
	return true;
}

/* Converts [-1, 1] to elements: -1 and 1 are the outer edges of the first and last element, or with
 * corners their middles. */
static Value *
in_elements(OnnxNode *n, Value *x, const Sampler *s)
{
	double size = (double)s->size;

	x = e_with(n, OP_add, x, 1);
	if (s->corners)
		return e_with(n, OP_mul, x, (size - 1) / 2);
	return e_with(n, OP_mul, e_with(n, OP_sub, e_with(n, OP_mul, x, size), 1), 0.5);
}

static Value *
sample_grid(OnnxNode *n, Value *x, Value *grid, Sampler s)
{
	int rank = x->type->rank, spatial = rank - 2;
	Ints places = ints_without(shape_of(grid), rank - 1), order = {.n = rank};
	int64_t strides[MAX_RANK];
	Taps taps[MAX_RANK];

	type_strides(x->type, strides);
	for (int i = 0; i < spatial; i++) {
		int last = spatial - 1 - i; /* the first coordinate belongs to the last axis */
		s.size = x->type->dims[2 + i];
		Value *c = e_reshape(n, e_slice_axis(n, grid, rank - 1, last, last + 1), places);
		taps[i] = taps_at(n, &s, in_elements(n, c, &s));
	}
	Value *base = e_with(n, OP_mul, e_iota(n, S64, places, 0), (double)(strides[1]));
	Value *y = sample_rows(n, e_rows_of_places(n, x), base, spatial, taps, strides + 2);
	for (int i = 0; i < rank; i++)
		order.at[i] = i == 0 ? 0 : i == 1 ? rank - 1 : i - 1;
	return e_transpose(n, y, order);
}

/* The grid may have another float type than x; weights get x's type. */
static void
import_grid_sample(OnnxNode *n)
{
	Value *x = want_input(n, 0), *grid = want_float_input(n, 1);
	const char *mode = want_word(
		n, "mode", n->extra->flag ? "bilinear nearest bicubic" : "linear nearest cubic");
	const char *beyond = want_word(n, "padding_mode", "zeros border reflection");
	Sampler s = {.mode = !strncmp(mode, "bi", 2) ? mode + 2 : mode,
	             .beyond = !strcmp(beyond, "zeros")    ? BEYOND_ZERO
	                       : !strcmp(beyond, "border") ? BEYOND_BORDER
	                                                   : BEYOND_REFLECTED,
	             .corners = want_int(n, "align_corners", 0)};

	if (!x || !grid || n->failed || !sampled_shape(n, x, grid))
		return;
	DType t = x->type->dtype;
	x = is_float(x) ? x : e_cast(n, x, F64);
	set_output(n, 0, e_cast(n, sample_grid(n, x, e_cast(n, grid, x->type->dtype), s), t));
}

/* ---- AffineGrid: https://onnx.ai/onnx/operators/onnx__AffineGrid.html. y[n, .., i] = sum over j of
 * theta[n, i, j] * position[.., j], the last position is 1 */
/* Positions of an axis's elements in [-1, 1], as a tensor of `rank` axes whose size is 1 except
 * along `axis`. */
static Value *
axis_places(OnnxNode *n, DType dtype, int64_t size, bool corners, int axis, int rank)
{
	double *at = NEW_ARRAY(n->im->arena, double, size);
	Ints shape = {.n = rank};

	for (int64_t i = 0; i < size; i++)
		at[i] = !corners   ? (double)(2 * i + 1) / (double)size - 1
		        : size > 1 ? 2 * (double)i / (double)(size - 1) - 1
		                   : 0;
	for (int i = 0; i < rank; i++)
		shape.at[i] = i == axis ? size : 1;
	return e_reshape(n, e_vector(n, dtype, (int)size, at), shape);
}

static bool
affine_size(OnnxNode *n, const Value *theta, Ints *size)
{
	enum { LONGEST = 1 << 24 };
	Type t = theta->type;

	if (!want_constant_ints(n, 1, size))
		return false;
	int spatial = size->n - 2;
	if (spatial < 2 || spatial > 3 || t->rank != 3 || t->dims[0] != size->at[0] ||
	    t->dims[1] != spatial || t->dims[2] != spatial + 1) {
		report_invalid(
			n,
			"size has %d numbers, theta has rank %d; need 4 or 5 numbers N, C, .. and [N, 2, 3] or [N, 3, 4]",
			size->n, t->rank);
		return false;
	}
	for (int i = 2; i < size->n; i++)
		if (size->at[i] < 1 || size->at[i] > LONGEST) {
			report_invalid(n, "a size of %lld is not positive, or too large",
			               (long long)size->at[i]);
			return false;
		}
	return true;
}

static void
import_affine_grid(OnnxNode *n)
{
	Value *theta = want_float_input(n, 0), *sum = NULL;
	bool corners = want_int(n, "align_corners", 0);
	Ints size;

	if (!theta || !affine_size(n, theta, &size))
		return;
	int spatial = size.n - 2, rank = spatial + 2;
	for (int j = 0; j <= spatial; j++) {
		int axis = spatial - j; /* the first coordinate belongs to the last axis */
		Ints shape = {.n = rank};
		for (int i = 0; i < rank; i++)
			shape.at[i] = i == 0 ? size.at[0] : i == rank - 1 ? spatial : 1;
		Value *y = e_reshape(n, e_slice_axis(n, theta, 2, j, j + 1), shape);
		if (j < spatial)
			y = e_binary(n, OP_mul, y,
			             axis_places(n, theta->type->dtype, size.at[1 + axis], corners,
			                         axis, rank));
		sum = sum ? e_binary(n, OP_add, sum, y) : y;
	}
	set_output(n, 0, sum);
}

/* ---- DeformConv: https://onnx.ai/onnx/operators/onnx__DeformConv.html. A convolution whose taps
 * have offsets: each reads linearly between elements, times its mask */
typedef struct {
	Window window;
	int64_t groups, offset_groups, taps; /* taps: elements of the kernel */
	Ints places; /* shape of the samples: batch, offset group, tap, result's spatial axes */
} Deform;

static bool
same_shape(const Value *v, Ints want)
{
	Ints have = shape_of(v);

	return !memcmp(&have, &want, sizeof(have));
}

static bool
want_deform_groups(OnnxNode *n, const Value *x, const Value *w, Deform *d)
{
	int64_t channels = x->type->dims[1], outputs = w->type->dims[0];

	d->groups = want_int(n, "group", 1);
	d->offset_groups = want_int(n, "offset_group", 1);
	if (d->groups >= 1 && d->offset_groups >= 1 && channels % d->offset_groups == 0 &&
	    outputs % d->groups == 0 && channels % d->groups == 0 &&
	    w->type->dims[1] == channels / d->groups)
		return true;
	report_invalid(
		n,
		"groups do not fit: %lld channels, %lld groups, %lld offset groups, a weight of "
		"[%lld, %lld, ..]; both kinds of groups must divide the channels, groups also "
		"the weight's first axis, and the second axis needs channels / groups",
		(long long)channels, (long long)d->groups, (long long)d->offset_groups,
		(long long)outputs, (long long)w->type->dims[1]);
	return false;
}

/* Computes the shape of the samples, and the result's shape [batch, ?, spatial axes]. */
static bool
deform_places(OnnxNode *n, const Value *x, Deform *d, Ints *result)
{
	const Window *w = &d->window;

	*result = (Ints){.n = x->type->rank, .at = {x->type->dims[0]}};
	d->places = (Ints){.n = 3, .at = {x->type->dims[0], d->offset_groups}};
	for (int i = 0; i < w->spatial; i++) {
		int64_t size = x->type->dims[i + 2], count = window_count(w, i, size);
		if (size < 1 || count < 1) {
			report_invalid(n,
			               "the kernel reaches over %lld elements: %lld elements "
			               "and their pads along spatial axis %d are too few",
			               (long long)window_reach(w, i), (long long)size, i);
			return false;
		}
		d->taps *= w->kernel.at[i];
		if (d->taps > LARGEST_KERNEL) {
			report_unsupported(n, "a kernel of more than %d elements", LARGEST_KERNEL);
			return false;
		}
		d->places.at[d->places.n++] = result->at[i + 2] = count;
	}
	d->places.at[2] = d->taps;
	return true;
}

static bool
want_deform(OnnxNode *n, const Value *x, const Value *w, const Value *offset, const Value *mask,
            Deform *d)
{
	Ints kernel = {.n = x->type->rank - 2}, want;

	*d = (Deform){.taps = 1};
	if (kernel.n < 1 || w->type->rank != x->type->rank) {
		report_invalid(n,
		               "the weight has rank %d and the input rank %d: need equal ranks, "
		               "3 or more",
		               w->type->rank, x->type->rank);
		return false;
	}
	for (int i = 0; i < kernel.n; i++)
		kernel.at[i] = w->type->dims[i + 2];
	if (!want_deform_groups(n, x, w, d) || !want_window(n, x, &kernel, &d->window) ||
	    !deform_places(n, x, d, &want))
		return false;
	want.at[1] = d->offset_groups * d->taps * kernel.n;
	bool fits = same_shape(offset, want);
	if (fits)
		want.at[1] = d->offset_groups * d->taps;
	if (fits && (!mask || same_shape(mask, want)))
		return true;
	report_invalid(n, "the %s has another shape than [batch, %lld, result's spatial axes]",
	               fits ? "mask" : "offset", (long long)want.at[1]);
	return false;
}

/* Position of each tap along a spatial axis before its offset: stride * o - low + dilation * k */
static Value *
tap_places(OnnxNode *n, const Deform *d, DType dtype, int axis)
{
	const Window *w = &d->window;
	int64_t inner = 1;

	for (int i = axis + 1; i < w->spatial; i++)
		inner *= w->kernel.at[i];
	Value *tap = e_with(n, OP_div, e_iota(n, S64, d->places, 2), (double)inner);
	tap = e_with(n, OP_rem, tap, (double)w->kernel.at[axis]);
	Value *at = e_with(n, OP_mul, e_iota(n, S64, d->places, 3 + axis),
	                   (double)w->stride.at[axis]);
	at = e_binary(n, OP_add, at, e_with(n, OP_mul, tap, (double)w->dilation.at[axis]));
	return e_cast(n, e_with(n, OP_sub, at, (double)w->low.at[axis]), dtype);
}

/* The samples: [*places, channels of an offset group]. */
static Value *
deformed(OnnxNode *n, const Deform *d, Value *x, Value *offset)
{
	int spatial = d->window.spatial;
	Ints groups = {.n = spatial + 2}, offsets = {.n = spatial + 4};
	int64_t strides[MAX_RANK], plane = 1;
	Taps taps[MAX_RANK];

	type_strides(x->type, strides);
	groups.at[0] = d->places.at[0] * d->offset_groups;
	groups.at[1] = x->type->dims[1] / d->offset_groups;
	for (int i = 0; i < spatial; i++)
		plane *= groups.at[i + 2] = x->type->dims[i + 2];
	for (int i = 0; i < offsets.n; i++)
		offsets.at[i] = i < 3 ? d->places.at[i] : i == 3 ? spatial : d->places.at[i - 1];
	offset = e_reshape(n, offset, offsets);
	for (int i = 0; i < spatial; i++) {
		Sampler s = {.mode = "linear", .beyond = BEYOND_ZERO, .size = x->type->dims[i + 2]};
		Value *o = e_reshape(n, e_slice_axis(n, offset, 3, i, i + 1), d->places);
		taps[i] = taps_at(n, &s,
		                  e_binary(n, OP_add, o, tap_places(n, d, x->type->dtype, i)));
	}
	Value *base = e_with(n, OP_mul, e_iota(n, S64, d->places, 0), (double)d->offset_groups);
	base = e_with(n, OP_mul, e_binary(n, OP_add, base, e_iota(n, S64, d->places, 1)),
	              (double)plane);
	return sample_rows(n, e_rows_of_places(n, e_reshape(n, x, groups)), base, spatial, taps,
	                   strides + 2);
}

/* samples [batch, offset group, tap, spatial.., channel] times weight -> [batch, output channel, spatial..] */
static Value *
deform_product(OnnxNode *n, const Deform *d, Value *samples, Value *w)
{
	int rank = d->places.n + 1;
	int64_t outputs = w->type->dims[0], inner = w->type->dims[1] * d->taps, places = 1;
	Ints order = {.n = rank, .at = {0, 1, rank - 1, 2}},
	     shape = {.n = rank - 2, .at = {d->places.at[0], outputs}};
	DotAttr a = {.x_batch = {.n = 1, .at = {0}},
	             .y_batch = {.n = 1, .at = {1}},
	             .x_contract = {.n = 1, .at = {2}},
	             .y_contract = {.n = 1, .at = {2}}};

	for (int i = 3; i < rank - 1; i++) {
		order.at[i + 1] = i;
		shape.at[i - 1] = d->places.at[i];
		places *= d->places.at[i];
	}
	Value *columns = e_reshape(
		n, e_transpose(n, samples, order),
		(Ints){.n = 4, .at = {d->places.at[0], d->groups, inner, places}});
	w = e_reshape(n, w, (Ints){.n = 3, .at = {d->groups, outputs / d->groups, inner}});
	Value *y = e_dot(n, w, columns, &a); /* [group, output, batch, place] */
	return e_reshape(n, e_transpose(n, y, (Ints){.n = 4, .at = {2, 0, 1, 3}}), shape);
}

static void
import_deform_conv(OnnxNode *n)
{
	Value *x = want_float_input(n, 0), *w = want_input(n, 1), *offset = want_input(n, 2);
	Value *mask = has_input(n, 4) ? want_input(n, 4) : NULL;
	Deform d;

	if (!x || !w || !offset || n->failed || !want_deform(n, x, w, offset, mask, &d))
		return;
	Value *samples = deformed(n, &d, x, offset);
	if (mask) {
		Ints shape = d.places;
		shape.at[shape.n++] = 1;
		samples = e_binary(n, OP_mul, samples, e_reshape(n, mask, shape));
	}
	Value *y = samples ? deform_product(n, &d, samples, w) : NULL;
	if (y && has_input(n, 3))
		y = e_binary(n, OP_add, y, e_channel(n, want_input(n, 3), y, 1));
	set_output(n, 0, y);
}

/* clang-format off */
const ImportRow import_grid_rows[] = {
	/* name        from  to  importer  extra */
	{"AffineGrid", 20, 0, import_affine_grid, {0}, NULL},
	/* opset 20 renames the modes */
	{"GridSample", 16, 19, import_grid_sample, {.flag = true},
	 .facts = {.steering = INPUT(1), .changed = 20}},
	{"GridSample", 20, 0, import_grid_sample, {0}, NULL},
	{"DeformConv", 19, 0, import_deform_conv, .facts = {.weights = INPUT(1) | INPUT(3)}},
	{0},
};
/* clang-format on */
