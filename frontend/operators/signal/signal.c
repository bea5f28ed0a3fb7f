/* Imports DFT, STFT, windows (HannWindow ...) and MelWeightMatrix. Their sizes must be known at
 * import.
 *
 * A transform of n = a b elements consists of transforms of a elements, products with factors, and
 * transforms of b elements (Cooley and Tukey 1965). A transform of few elements is a product with a
 * constant matrix. A transform of a large prime size is a convolution (Bluestein 1970). Real and
 * imaginary parts are separate values. */
#include "frontend/import/import.h"

#include <math.h>
#include <string.h>

#define PI 3.14159265358979323846

enum { DENSE = 32, DENSE_PRIME = 128, LONGEST = 1 << 22 };

/* each [outer, size, inner]; im NULL: 0 */
typedef struct {
	Value *re, *im;
} Complex;

/* ---- arithmetic */
static Value *
sum(OnnxNode *n, Value *x, Value *y)
{
	return !x ? y : !y ? x : e_binary(n, OP_add, x, y);
}

static Value *
difference(OnnxNode *n, Value *x, Value *y)
{
	return !y ? x : x ? e_binary(n, OP_sub, x, y) : e_unary(n, OP_neg, y);
}

static Value *
times(OnnxNode *n, Value *x, Value *y)
{
	return x && y ? e_binary(n, OP_mul, x, y) : NULL;
}

/* x f; f is a constant and not real */
static Complex
complex_times(OnnxNode *n, Complex x, Complex f)
{
	return (Complex){difference(n, times(n, x.re, f.re), times(n, x.im, f.im)),
	                 sum(n, times(n, x.re, f.im), times(n, x.im, f.re))};
}

static Complex
complex_reshape(OnnxNode *n, Complex x, Ints shape)
{
	return (Complex){e_reshape(n, x.re, shape), e_reshape(n, x.im, shape)};
}

static Complex
complex_transpose(OnnxNode *n, Complex x, Ints order)
{
	return (Complex){e_transpose(n, x.re, order), e_transpose(n, x.im, order)};
}

/* The first `size` elements along the axis, padded with zeros. */
static Value *
fitted(OnnxNode *n, Value *x, int axis, int64_t size)
{
	if (!x)
		return NULL;
	Ints none = {.n = x->type->rank}, more = none;
	int64_t have = x->type->dims[axis];
	if (have >= size)
		return e_slice_axis(n, x, axis, 0, size);
	more.at[axis] = size - have;
	return e_pad(n, x, none, more, 0);
}

static Complex
complex_fitted(OnnxNode *n, Complex x, int64_t size)
{
	return (Complex){fitted(n, x.re, 1, size), fitted(n, x.im, 1, size)};
}

/* ---- tables */
/* e^(sign pi i at[k] / half) in the given shape */
static Complex
turns(OnnxNode *n, DType dtype, int64_t count, const int64_t *at, int64_t half, int sign,
      Ints shape)
{
	double *re = NEW_ARRAY(n->im->arena, double, count),
	       *im = NEW_ARRAY(n->im->arena, double, count);

	for (int64_t k = 0; k < count; k++) {
		double angle = PI * (double)(at[k] % (2 * half)) / (double)half;
		re[k] = cos(angle);
		im[k] = sign * sin(angle);
	}
	Complex f = {e_vector(n, dtype, (int)count, re), e_vector(n, dtype, (int)count, im)};
	return complex_reshape(n, f, shape);
}

/* e^(sign 2 pi i j k / size), j < rows, k < columns */
static Complex
roots_of_one(OnnxNode *n, DType dtype, int64_t rows, int64_t columns, int64_t size, int sign,
             Ints shape)
{
	int64_t *at = NEW_ARRAY(n->im->arena, int64_t, rows * columns);

	for (int64_t j = 0; j < rows; j++)
		for (int64_t k = 0; k < columns; k++)
			at[j * columns + k] = 2 * (j * k % size);
	return turns(n, dtype, rows * columns, at, size, sign, shape);
}

/* ---- transforms along axis 1: y[k] = sum over j of x[j] e^(sign 2 pi i j k / size) */
static Complex transform(OnnxNode *n, Complex x, int sign);

static Value *
matrix_times(OnnxNode *n, Value *matrix, Value *x)
{
	DotAttr a = {.x_contract = {.n = 1, .at = {1}}, .y_contract = {.n = 1, .at = {1}}};

	if (!x || !matrix)
		return NULL;
	return e_transpose(n, e_dot(n, x, matrix, &a), (Ints){.n = 3, .at = {0, 2, 1}});
}

static Complex
transform_dense(OnnxNode *n, Complex x, int64_t size, int sign)
{
	Complex f = roots_of_one(n, x.re->type->dtype, size, size, size, sign,
	                         (Ints){.n = 2, .at = {size, size}});

	return (Complex){difference(n, matrix_times(n, f.re, x.re), matrix_times(n, f.im, x.im)),
	                 sum(n, matrix_times(n, f.im, x.re), matrix_times(n, f.re, x.im))};
}

/* size = a b; element j = b j1 + j2, result k = k1 + a k2:
 * y[k] = sum over j2 of e^(j2 k2 / b) e^(j2 k1 / size) sum over j1 of x[b j1 + j2] e^(j1 k1 / a) */
static Complex
transform_split(OnnxNode *n, Complex x, int64_t a, int64_t b, int sign)
{
	int64_t outer = x.re->type->dims[0], inner = x.re->type->dims[2];
	DType dtype = x.re->type->dtype;

	x = complex_reshape(n, x, (Ints){.n = 3, .at = {outer, a, b * inner}});
	x = transform(n, x, sign);
	x = complex_reshape(n, x, (Ints){.n = 4, .at = {outer, a, b, inner}});
	x = complex_times(
		n, x,
		roots_of_one(n, dtype, a, b, a * b, sign, (Ints){.n = 4, .at = {1, a, b, 1}}));
	x = complex_reshape(n, x, (Ints){.n = 3, .at = {outer * a, b, inner}});
	x = transform(n, x, sign);
	x = complex_reshape(n, x, (Ints){.n = 4, .at = {outer, a, b, inner}});
	x = complex_transpose(n, x, (Ints){.n = 4, .at = {0, 2, 1, 3}});
	return complex_reshape(n, x, (Ints){.n = 3, .at = {outer, a * b, inner}});
}

/* With c[j] = e^(sign pi i j^2 / size) and 2 j k = j^2 + k^2 - (k - j)^2: y[k] = c[k] sum over j of x[j] c[j] conj c[k - j], a convolution
 * by transforms of a power of 2 */
static Complex
transform_convolved(OnnxNode *n, Complex x, int64_t size, int sign)
{
	int64_t wide = 1, *at;
	DType dtype = x.re->type->dtype;
	Ints column = {.n = 3, .at = {1, size, 1}};

	while (wide < 2 * size - 1)
		wide *= 2;
	at = NEW_ARRAY(n->im->arena, int64_t, wide);
	for (int64_t j = 0; j < size; j++)
		at[j] = j * j % (2 * size);
	Complex chirp = turns(n, dtype, size, at, size, sign, column),
		back = turns(n, dtype, size, at, size, -sign, column);
	Ints axis = {.n = 1, .at = {1}};
	Complex tail = {e_slice_axis(n, back.re, 1, 1, size), e_slice_axis(n, back.im, 1, 1, size)};
	tail.re = e_op(n, OP_reverse, 1, &tail.re, &(ReverseAttr){axis});
	tail.im = e_op(n, OP_reverse, 1, &tail.im, &(ReverseAttr){axis});
	back = complex_fitted(n, back, wide - size + 1);
	back = (Complex){e_concat(n, 2, (Value *[]){back.re, tail.re}, 1),
	                 e_concat(n, 2, (Value *[]){back.im, tail.im}, 1)};
	x = complex_fitted(n, complex_times(n, x, chirp), wide);
	if (!x.re || !back.re || !back.im)
		return (Complex){0};
	x = transform(n, complex_times(n, transform(n, x, -1), transform(n, back, -1)), 1);
	x = complex_times(n, complex_fitted(n, x, size), chirp);
	return (Complex){e_with(n, OP_div, x.re, (double)wide),
	                 e_with(n, OP_div, x.im, (double)wide)};
}

static Complex
transform(OnnxNode *n, Complex x, int sign)
{
	int64_t factor = 0;

	if (!x.re)
		return (Complex){0};
	int64_t size = x.re->type->dims[1];
	if (size <= DENSE)
		return transform_dense(n, x, size, sign);
	for (int64_t a = DENSE; a > 1 && !factor; a--)
		factor = size % a ? 0 : a;
	for (int64_t a = DENSE + 1; a * a <= size && !factor; a++)
		factor = size % a ? 0 : a;
	if (factor)
		return transform_split(n, x, factor, size / factor, sign);
	return size <= DENSE_PRIME ? transform_dense(n, x, size, sign)
	                           : transform_convolved(n, x, size, sign);
}

/* The whole spectrum of a real signal from its first half: y[size - k] = conj y[k] */
static Complex
mirrored(OnnxNode *n, Complex x, int64_t size)
{
	int64_t half = size / 2 + 1, rest = size - half;
	Ints axis = {.n = 1, .at = {1}};

	x = complex_fitted(n, x, half);
	if (rest == 0 || !x.re || !x.im)
		return x;
	Value *re = e_slice_axis(n, x.re, 1, 1, 1 + rest),
	      *im = e_slice_axis(n, x.im, 1, 1, 1 + rest);
	re = e_op(n, OP_reverse, 1, &re, &(ReverseAttr){axis});
	im = e_op(n, OP_reverse, 1, &im, &(ReverseAttr){axis});
	return (Complex){e_concat(n, 2, (Value *[]){x.re, re}, 1),
	                 e_concat(n, 2, (Value *[]){x.im, im ? e_unary(n, OP_neg, im) : NULL}, 1)};
}

/* ---- https://onnx.ai/onnx/operators/onnx__DFT.html */
typedef struct {
	bool inverse, onesided;
	int64_t size;
} Dft;

static Complex
run_dft(OnnxNode *n, Complex x, const Dft *d)
{
	x = d->inverse && d->onesided ? mirrored(n, x, d->size) : complex_fitted(n, x, d->size);
	x = transform(n, x, d->inverse ? 1 : -1);
	if (d->inverse) {
		x.re = e_with(n, OP_div, x.re, (double)d->size);
		x.im = d->onesided || !x.im ? NULL : e_with(n, OP_div, x.im, (double)d->size);
	} else if (d->onesided) {
		x = complex_fitted(n, x, d->size / 2 + 1);
	}
	return x;
}

/* Types of 16 bits are computed in f32. */
static DType
computed_in(const Value *x)
{
	return dtype_info[x->type->dtype].bits == 16 ? F32 : x->type->dtype;
}

/* *complex: does the last axis have 2 numbers, not 1? false after reporting. */
static bool
is_complex(OnnxNode *n, const Value *x, int rank, bool *complex)
{
	int64_t parts = x->type->rank ? x->type->dims[x->type->rank - 1] : 0;

	*complex = parts == 2;
	if (x->type->rank >= rank && (parts == 1 || parts == 2))
		return true;
	report_invalid(
		n,
		"an input of rank %d whose last axis has %lld numbers, needs rank %d or more and 1 or 2",
		x->type->rank, (long long)parts, rank);
	return false;
}

/* [.., size, .., 1 or 2] -> [outer, size, inner] */
static Complex
parts_of(OnnxNode *n, Value *x, int axis)
{
	int last = x->type->rank - 1;
	Ints shape = {.n = 3, .at = {1, x->type->dims[axis], 1}};

	for (int i = 0; i < last; i++)
		if (i != axis)
			shape.at[i < axis ? 0 : 2] *= x->type->dims[i];
	x = e_cast(n, x, computed_in(x));
	Complex parts = {e_reshape(n, e_slice_axis(n, x, last, 0, 1), shape), NULL};
	if (x && x->type->dims[last] == 2)
		parts.im = e_reshape(n, e_slice_axis(n, x, last, 1, 2), shape);
	return parts;
}

/* The inverse of parts_of, with the transformed size along the axis, in type `to`. */
static Value *
joined(OnnxNode *n, Complex x, Ints shape, int axis, DType to)
{
	if (!x.re)
		return NULL;
	shape.at[axis] = x.re->type->dims[1];
	shape.at[shape.n - 1] = 1;
	Value *re = e_reshape(n, x.re, shape);
	return e_cast(n,
	              x.im ? e_concat(n, 2, (Value *[]){re, e_reshape(n, x.im, shape)}, shape.n - 1)
	                   : re,
	              to);
}

static bool
want_dft_axis(OnnxNode *n, const Value *x, int *axis)
{
	int64_t given = n->extra->input ? -2 : want_int(n, "axis", 1);

	if (n->extra->input && has_input(n, 2) && !want_constant_int(n, 2, &given))
		return false;
	*axis = want_axis(n, given, x->type->rank);
	if (*axis == x->type->rank - 1)
		report_invalid(n, "axis %lld is that of real and imaginary parts",
		               (long long)given);
	return *axis >= 0 && *axis < x->type->rank - 1;
}

static bool
want_dft_size(OnnxNode *n, int64_t size, Dft *d)
{
	d->size = d->inverse && d->onesided ? 2 * (size - 1) : size;
	if (has_input(n, 1) && !want_constant_int(n, 1, &d->size))
		return false;
	if (d->size >= 1 && d->size <= LONGEST)
		return true;
	report_invalid(n, "a transform of %lld elements, needs 1 to %d", (long long)d->size,
	               LONGEST);
	return false;
}

static void
import_dft(OnnxNode *n)
{
	Value *x = want_float_input(n, 0);
	Dft d = {.inverse = want_int(n, "inverse", 0), .onesided = want_int(n, "onesided", 0)};
	bool complex;
	int axis;

	if (!x || !is_complex(n, x, 2, &complex) || !want_dft_axis(n, x, &axis) ||
	    !want_dft_size(n, x->type->dims[axis], &d))
		return;
	if (d.onesided && complex != d.inverse) {
		report_invalid(
			n,
			"onesided is for real inputs, and for complex ones of an inverse transform");
		return;
	}
	if (x->type->dims[axis] < 1)
		report_invalid(n, "axis %d has no elements", axis);
	else
		set_output(n, 0,
		           joined(n, run_dft(n, parts_of(n, x, axis), &d), shape_of(x), axis,
		                  x->type->dtype));
}

/* ---- STFT: https://onnx.ai/onnx/operators/onnx__STFT.html. Transforms of overlapping frames of the
 * signal, times a window */
static bool
want_frames(OnnxNode *n, const Value *x, const Value *window, int64_t *step, int64_t *size)
{
	int64_t length = x->type->dims[1];

	*size = window ? window->type->n : length;
	if (!want_constant_int(n, 1, step) || (has_input(n, 3) && !want_constant_int(n, 3, size)))
		return false;
	if (*step >= 1 && *size >= 1 && *size <= length && *size <= LONGEST &&
	    (!window || window->type->rank == 1))
		return true;
	report_invalid(n,
	               "frames of %lld elements every %lld do not fit a signal of %lld: need "
	               "1 or more of both, frames not longer than the signal or too long, "
	               "and a window of rank 1",
	               (long long)*size, (long long)*step, (long long)length);
	return false;
}

/* Cuts axis 1 into frames: [batch, length] -> [batch * frames, size, 1], times the window. */
static Value *
framed(OnnxNode *n, Value *x, Value *window, int64_t step, int64_t size)
{
	if (!x)
		return NULL;
	int64_t batch = x->type->dims[0], frames = 1 + (x->type->dims[1] - size) / step;
	Ints shape = {.n = 2, .at = {frames, size}};
	Value *at = e_with(n, OP_mul, e_iota(n, S64, shape, 0), (double)step);
	Value *y = e_gather(n, x, e_binary(n, OP_add, at, e_iota(n, S64, shape, 1)), 1);
	if (window)
		y = e_binary(n, OP_mul, y, fitted(n, e_cast(n, window, x->type->dtype), 0, size));
	return e_reshape(n, y, (Ints){.n = 3, .at = {batch * frames, size, 1}});
}

static void
import_stft(OnnxNode *n)
{
	Value *x = want_float_input(n, 0),
	      *window = has_input(n, 2) ? want_float_input(n, 2) : NULL;
	Dft d = {.onesided = want_int(n, "onesided", 1)};
	int64_t step;
	bool complex;

	if (!x || n->failed || !is_complex(n, x, 3, &complex) ||
	    !want_frames(n, x, window, &step, &d.size))
		return;
	if (x->type->rank != 3 || (d.onesided && complex)) {
		report_invalid(n,
		               d.onesided && complex
		                       ? "onesided is for real inputs"
		                       : "an input of rank %d, needs [batch, length, 1 or 2]",
		               x->type->rank);
		return;
	}
	Ints plane = {.n = 2, .at = {x->type->dims[0], x->type->dims[1]}};
	Complex parts = parts_of(n, x, 1);
	parts.re = framed(n, e_reshape(n, parts.re, plane), window, step, d.size);
	parts.im = framed(n, e_reshape(n, parts.im, plane), window, step, d.size);
	int64_t frames = 1 + (plane.at[1] - d.size) / step;
	Ints shape = {.n = 4, .at = {plane.at[0], frames, d.size, 1}};
	set_output(n, 0, joined(n, run_dft(n, parts, &d), shape, 2, x->type->dtype));
}

/* ---- HannWindow and its relatives: https://onnx.ai/onnx/operators/onnx__HannWindow.html. a0 - a1
 * cos(2 pi k / m) + a2 cos(4 pi k / m); m is the size, or one less for a symmetric window */
typedef struct {
	double a0, a1, a2;
} Cosines;
static const Cosines window_cosines[] = {
	{0.5, 0.5, 0}, {25.0 / 46, 21.0 / 46, 0}, {0.42, 0.5, 0.08}};
enum { HANN, HAMMING, BLACKMAN };

static void
import_window(OnnxNode *n)
{
	const Cosines *c = &window_cosines[n->extra->kind];
	bool periodic = want_int(n, "periodic", 1);
	int64_t size;
	DType to;

	if (!want_dtype(n, want_int(n, "output_datatype", tensor_onnx_type(F32)), &to) ||
	    !want_constant_int(n, 0, &size))
		return;
	if (size < 0 || size > LONGEST) {
		report_invalid(n, "a window of %lld elements, needs 0 to %d", (long long)size,
		               LONGEST);
		return;
	}
	double *at = NEW_ARRAY(n->im->arena, double, size),
	       whole = (double)(periodic ? size : size - 1);
	for (int64_t k = 0; k < size; k++) {
		double angle = 2 * PI * (double)k / whole;
		at[k] = whole == 0 ? 1 : c->a0 - c->a1 * cos(angle) + c->a2 * cos(2 * angle);
	}
	set_output(n, 0, e_cast(n, e_vector(n, dtype_is_float(to) ? to : F64, (int)size, at), to));
}

/* ---- MelWeightMatrix: https://onnx.ai/onnx/operators/onnx__MelWeightMatrix.html. Column m rises
 * from edge[m] to 1 at edge[m + 1] and falls to edge[m + 2] */
typedef struct {
	int64_t bands, size, rate; /* num_mel_bins, dft_length, sample_rate */
	double low, high;
} Mel;

static bool
want_mel(OnnxNode *n, Mel *m)
{
	*m = (Mel){0};
	bool known = want_constant_int(n, 0, &m->bands);
	known &= want_constant_int(n, 1, &m->size);
	known &= want_constant_int(n, 2, &m->rate);
	known &= want_constant_float(n, 3, &m->low);
	known &= want_constant_float(n, 4, &m->high);
	if (!known)
		return false;
	if (m->bands >= 1 && m->size >= 1 && m->rate >= 1 && m->low >= 0 && m->high >= m->low &&
	    m->high <= (double)m->rate && m->bands <= LONGEST && m->size <= LONGEST &&
	    m->bands * (m->size / 2 + 1) <= LONGEST)
		return true;
	report_invalid(n,
	               "%lld bands of a spectrum of %lld at a rate of %lld, from %g to %g: "
	               "need positive numbers that are not too large, and 0 <= from <= to <= "
	               "rate",
	               (long long)m->bands, (long long)m->size, (long long)m->rate, m->low,
	               m->high);
	return false;
}

/* Index in the spectrum of edge k. The edges are evenly spaced in mels, 2595 log10(1 + f / 700). */
static int64_t
mel_edge(const Mel *m, int64_t k)
{
	double low = 2595 * log10(1 + m->low / 700), high = 2595 * log10(1 + m->high / 700);
	double mel = low + (double)k * ((high - low) / (double)(m->bands + 2));

	return (int64_t)floor((double)(m->size + 1) * 700 * (pow(10, mel / 2595) - 1) /
	                      (double)m->rate);
}

static void
import_mel_weight_matrix(OnnxNode *n)
{
	Mel m;
	DType to;

	if (!want_dtype(n, want_int(n, "output_datatype", tensor_onnx_type(F32)), &to) ||
	    !want_mel(n, &m))
		return;
	int64_t rows = m.size / 2 + 1, bands = m.bands;
	double *at = NEW_ARRAY(n->im->arena, double, rows *bands);
	memset(at, 0, sizeof(*at) * (size_t)(rows * bands));
	for (int64_t b = 0; b < bands; b++) {
		int64_t low = mel_edge(&m, b), middle = mel_edge(&m, b + 1),
			high = mel_edge(&m, b + 2);
		if (high > rows || middle >= rows) {
			report_invalid(n,
			               "band %lld ends at place %lld and does not fit into a "
			               "spectrum of %lld",
			               (long long)b, (long long)high, (long long)rows);
			return;
		}
		for (int64_t j = low; j <= middle; j++)
			at[j * bands + b] = low == middle
			                            ? 1
			                            : (double)(j - low) / (double)(middle - low);
		for (int64_t j = middle; j < high; j++)
			at[j * bands + b] = (double)(high - j) / (double)(high - middle);
	}
	Value *v = e_vector(n, dtype_is_float(to) ? to : F64, (int)(rows * bands), at);
	set_output(n, 0, e_cast(n, e_reshape(n, v, (Ints){.n = 2, .at = {rows, bands}}), to));
}

/* clang-format off */
const ImportRow import_signal_rows[] = {
	/* name           from  to  importer  extra */
	{"DFT", 17, 19, import_dft, {0}, NULL},
	{"DFT", 20, 0, import_dft, {.input = true}, NULL},
	{"STFT", 17, 0, import_stft, .facts = {.steering = INPUT(2)}},
	{"HannWindow", 17, 0, import_window, {.kind = HANN},
	 .facts = {.no_gradient = true, .typed_by = NO_INPUT}},
	{"HammingWindow", 17, 0, import_window, {.kind = HAMMING},
	 .facts = {.no_gradient = true, .typed_by = NO_INPUT}},
	{"BlackmanWindow", 17, 0, import_window, {.kind = BLACKMAN},
	 .facts = {.no_gradient = true, .typed_by = NO_INPUT}},
	{"MelWeightMatrix", 17, 0, import_mel_weight_matrix,
	 .facts = {.no_gradient = true, .typed_by = NO_INPUT, .steering = INPUTS(3, 4)}},
	{0},
};
/* clang-format on */
