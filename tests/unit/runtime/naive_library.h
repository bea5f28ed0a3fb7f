/* Operands for the call of any library, and the expected result by plain sums in f64. */
#ifndef GRADC_NAIVE_LIBRARY_H
#define GRADC_NAIVE_LIBRARY_H

#include "base/numbers/numbers.h"
#include "runtime/library/library.h"
#include "tests/unit/runtime/expect_status.h"

#include <math.h>
#include <stdlib.h>

enum { X = LIBRARY_FIRST, Y = LIBRARY_SECOND, Z = LIBRARY_RESULT };

/* ---- products */
/* Batches, m, n, k; and a flag each for x, y and z: stored transposed. z has a gap of `gap` elements behind its rows, and x
 * begins at element `offset`. */
typedef struct {
	int rank;
	int64_t batch[3], m, n, k;
	bool x_transposed, y_transposed;
	int64_t gap, offset;
	bool z_transposed;
} Case;

/* The type of the operands, and the type of the result and the bias. */
typedef struct {
	DType operands, result;
} Types;

static inline void
set_operand(LibraryOperand *o, const Case *c, int64_t rows, int64_t columns, bool transposed,
            int64_t gap)
{
	int64_t width = (transposed ? rows : columns) + gap;
	int64_t stride = width * (transposed ? columns : rows);

	o->rank = (uint32_t)c->rank;
	for (int b = c->rank - 3; b >= 0; b--) {
		o->dims[b] = c->batch[b];
		o->strides[b] = stride;
		stride *= c->batch[b];
	}
	o->dims[c->rank - 2] = rows;
	o->dims[c->rank - 1] = columns;
	o->strides[c->rank - 2] = transposed ? 1 : width;
	o->strides[c->rank - 1] = transposed ? width : 1;
}

static inline LibraryCall
dot_of(const Case *c, DType dtype)
{
	LibraryCall w;
	LibraryOperand *o = w.operands;

	library_call_begin(&w, LIBRARY_DOT);
	set_operand(&o[X], c, c->m, c->k, c->x_transposed, 0);
	set_operand(&o[Y], c, c->k, c->n, c->y_transposed, 0);
	set_operand(&o[Z], c, c->m, c->n, c->z_transposed, c->gap);
	o[X].offset = c->offset;
	for (int i = X; i <= Z; i++)
		o[i].dtype = dtype;
	return w;
}

static inline void
add_epilogue(LibraryCall *w, LibraryEpilogue epilogue)
{
	LibraryOperand *b = &w->operands[LIBRARY_BIAS];
	const LibraryOperand *z = &w->operands[Z];

	w->epilogue = epilogue;
	w->operands[LIBRARY_AUX] = *z;
	w->operands[LIBRARY_AUX].buffer = LIBRARY_AUX;
	b->rank = 1;
	b->dims[0] = w->kind == LIBRARY_DOT ? z->dims[z->rank - 1] : z->dims[1];
	b->offset = 3;
	library_dense(b);
}

static inline void
add_bias(LibraryCall *w)
{
	add_epilogue(w, EPILOGUE_BIAS);
}

static inline void
set_types(LibraryCall *w, Types types)
{
	for (int i = 0; i < N_LIBRARY_OPERANDS; i++)
		w->operands[i].dtype = i < Z ? types.operands : types.result;
}

/* ---- convolutions */
static inline void
set_dims(LibraryOperand *o, int spatial, int64_t first, int64_t second, const int64_t *places)
{
	o->rank = (uint32_t)spatial + 2;
	o->dims[0] = first;
	o->dims[1] = second;
	memcpy(o->dims + 2, places, sizeof(*places) * (size_t)spatial);
	library_dense(o);
}

static inline LibraryCall
conv_of(const ConvSizes *c, LibraryKind kind)
{
	int64_t x[MAX_LIBRARY_SPATIAL], window[MAX_LIBRARY_SPATIAL], y[MAX_LIBRARY_SPATIAL];
	LibraryOperand t[CONV_Y + 1] = {0};
	LibraryCall w;

	library_call_begin(&w, kind);
	w.groups = c->groups;
	for (int i = 0; i < c->spatial; i++) {
		x[i] = c->axes[i].x;
		window[i] = c->axes[i].window;
		y[i] = c->axes[i].y;
		w.stride[i] = c->axes[i].stride;
		w.dilation[i] = c->axes[i].dilation;
		w.low[i] = c->axes[i].low;
	}
	set_dims(&t[CONV_X], c->spatial, c->batch, c->groups * c->in, x);
	set_dims(&t[CONV_W], c->spatial, c->groups * c->out, c->in, window);
	set_dims(&t[CONV_Y], c->spatial, c->batch, c->groups * c->out, y);
	for (int i = X; i <= Z; i++) {
		w.operands[i] = t[library_conv_operands[kind][i]];
		w.operands[i].dtype = F32;
	}
	return w;
}

/* ---- buffers and naive sums */
static inline int64_t
elements(const LibraryCall *w, int i)
{
	return library_reach(&w->operands[i]) / dtype_bytes((DType)w->operands[i].dtype, 1);
}

static inline char *
buffer_new(const LibraryCall *w, int i)
{
	int64_t n = elements(w, i);
	DType dtype = (DType)w->operands[i].dtype;
	char *at = aligned_alloc(64, (size_t)(dtype_bytes(dtype, n) + 63) / 64 * 64);

	for (int64_t e = 0; e < n; e++)
		dtype_store_float(dtype, at, e, i == Z ? -1e30 : sin(0.7 * (double)(e + i)));
	return at;
}

static inline int64_t
place(const LibraryCall *w, int i, int64_t batch, int64_t row, int64_t column)
{
	const LibraryOperand *o = &w->operands[i];
	int rank = (int)o->rank;
	int64_t at = o->offset + row * o->strides[rank - 2] + column * o->strides[rank - 1];

	for (int b = rank - 3; b >= 0; batch /= o->dims[b--])
		at += batch % o->dims[b] * o->strides[b];
	return at;
}

/* The expected element of the result (-1e30 if no element is written there), and the sum of its terms' magnitudes. */
typedef struct {
	double value, size;
} Wanted;

static inline void
add_term(Wanted *w, double term)
{
	w->value += term;
	w->size += fabs(term);
}

static inline double
element_of(const LibraryCall *w, char *const *buffers, int i, int64_t at)
{
	return dtype_load_float((DType)w->operands[i].dtype, buffers[i], at);
}

/* Element i of the bias; 0 without a bias. */
static inline Wanted
bias_of(const LibraryCall *w, char *const *buffers, int64_t i)
{
	Wanted b = {0};

	if (library_has_operand(w, LIBRARY_BIAS) && !library_writes(w, LIBRARY_BIAS))
		add_term(&b, element_of(w, buffers, LIBRARY_BIAS,
		                        w->operands[LIBRARY_BIAS].offset + i));
	return b;
}

static inline void
want_dot(const LibraryCall *w, char *const *buffers, Wanted *out)
{
	const LibraryOperand *z_of = &w->operands[Z];
	int rank = (int)z_of->rank;
	int64_t batches = 1, rows = z_of->dims[rank - 2], columns = z_of->dims[rank - 1];

	for (int b = 0; b < rank - 2; b++)
		batches *= z_of->dims[b];
	for (int64_t b = 0; b < batches; b++)
		for (int64_t r = 0; r < rows; r++)
			for (int64_t c = 0; c < columns; c++) {
				Wanted *z = &out[place(w, Z, b, r, c)];
				*z = bias_of(w, buffers, c);
				for (int64_t k = 0; k < w->operands[X].dims[rank - 1]; k++)
					add_term(z,
					         element_of(w, buffers, X, place(w, X, b, r, k)) *
					                 element_of(w, buffers, Y,
					                            place(w, Y, b, k, c)));
			}
}

/* The indices along the spatial axes for flat index `flat` of a window or of y. */
static inline void
split_places(const ConvSizes *c, bool window, int64_t flat, int64_t *at)
{
	for (int i = c->spatial - 1; i >= 0; i--) {
		int64_t size = window ? c->axes[i].window : c->axes[i].y;
		at[i] = flat % size;
		flat /= size;
	}
}

/* The flat index in x that window element q reads for y's element p; -1: padding. */
static inline int64_t
place_in_x(const ConvSizes *c, const int64_t *p, const int64_t *q)
{
	int64_t flat = 0;

	for (int i = 0; i < c->spatial; i++) {
		const ConvAxis *a = &c->axes[i];
		int64_t at = p[i] * a->stride + q[i] * a->dilation - a->low;
		if (at < 0 || at >= a->x)
			return -1;
		flat = flat * a->x + at;
	}
	return flat;
}

/* The place of an element of x or y. place: among the places of its image, row by row */
static inline int64_t
conv_place(const LibraryOperand *o, int64_t image, int64_t channel, int64_t place)
{
	return image * o->strides[0] + channel * o->strides[1] + place * o->strides[o->rank - 1];
}

static inline void
want_conv(const LibraryCall *w, char *const *buffers, Wanted *out)
{
	const ConvSizes sizes = library_conv_sizes(w), *c = &sizes;
	const ConvTensor *operands = library_conv_operands[w->kind];
	int64_t n_w = 1, n_y = 1, p[MAX_LIBRARY_SPATIAL], q[MAX_LIBRARY_SPATIAL], flat[3];
	int64_t first[3]; /* first elements of x, w and y */
	const LibraryOperand *tensor[3];

	for (int i = X; i <= Z; i++) {
		first[operands[i]] = w->operands[i].offset;
		tensor[operands[i]] = &w->operands[i];
	}
	for (int i = 0; i < c->spatial; i++) {
		n_w *= c->axes[i].window;
		n_y *= c->axes[i].y;
	}
	for (int64_t e = 0; e < elements(w, Z) - w->operands[Z].offset; e++)
		out[first[operands[Z]] + e] = bias_of(w, buffers, e / n_y % (c->groups * c->out));
	for (int64_t b = 0; b < c->batch; b++)
		for (int64_t o = 0; o < c->groups * c->out; o++)
			for (int64_t i = 0; i < c->in; i++)
				for (int64_t y = 0; y < n_y; y++)
					for (int64_t k = 0; k < n_w; k++) {
						split_places(c, false, y, p);
						split_places(c, true, k, q);
						int64_t x = place_in_x(c, p, q);
						int64_t channel = o / c->out * c->in + i;
						if (x < 0)
							continue;
						flat[CONV_X] = first[CONV_X] +
						               conv_place(tensor[CONV_X], b,
						                          channel, x);
						flat[CONV_W] = first[CONV_W] +
						               (o * c->in + i) * n_w + k;
						flat[CONV_Y] = first[CONV_Y] +
						               conv_place(tensor[CONV_Y], b, o, y);
						add_term(&out[flat[operands[Z]]],
						         element_of(w, buffers, X,
						                    flat[operands[X]]) *
						                 element_of(w, buffers, Y,
						                            flat[operands[Y]]));
					}
}

static inline double
rounding_of(uint32_t dtype)
{
	return dtype == BF16 ? 1 / 128. : dtype == F16 ? 1 / 1024. : 1e-7;
}

/* The value added to element e of the result, whose old value was `old`. */
static inline double
added_to(const LibraryCall *w, char *const *buffers, int64_t e, double old)
{
	int64_t moved = w->operands[LIBRARY_ADDED].offset - w->operands[Z].offset;

	return library_adds_in_place(w) ? old : element_of(w, buffers, LIBRARY_ADDED, e + moved);
}

/* Makes the call add the old result, or another tensor with the same layout. */
static inline void
add_beta(LibraryCall *w, bool in_place)
{
	LibraryOperand *c = &w->operands[LIBRARY_ADDED];

	w->beta = 1;
	*c = w->operands[Z];
	if (in_place)
		return;
	c->buffer = LIBRARY_ADDED;
	c->offset += 5;
}

/* The expected elements of the result, before c is added. */
static inline Wanted *
wanted_result(const LibraryCall *w, char *const *buffers)
{
	int64_t n = elements(w, Z);
	Wanted *want = malloc(sizeof(*want) * (size_t)n);

	for (int64_t e = 0; e < n; e++)
		want[e] = (Wanted){NAN, 0};
	(w->kind == LIBRARY_DOT ? want_dot : want_conv)(w, buffers, want);
	return want;
}

/* Compares every element, and checks that nothing is written between the rows. before: the result's old buffer; NULL: a new
 * buffer. */
static inline void
compare_wanted(const LibraryCall *w, char *const *buffers, const char *before, const Wanted *want)
{
	char *fresh = buffer_new(w, Z);

	for (int64_t e = 0; e < elements(w, Z); e++) {
		double old = dtype_load_float((DType)w->operands[Z].dtype, before ? before : fresh,
		                              e);
		double got = element_of(w, buffers, Z, e);
		Wanted z = want[e];
		bool written = !isnan(z.value);
		if (written && w->beta)
			add_term(&z, added_to(w, buffers, e, old));
		double value = written ? z.value : old;
		double off = rounding_of(w->operands[Z].dtype) * fabs(value) + 1e-6 * z.size;
		if (written ? !(fabs(got - value) <= off) : got != old)
			fail_msg("%s, element %d: %.9g instead of %.9g",
			         library_kind_names[w->kind], (int)e, got, value);
	}
	free(fresh);
}

static inline void
compare_result(const LibraryCall *w, char *const *buffers, const char *before)
{
	Wanted *want = wanted_result(w, buffers);

	compare_wanted(w, buffers, before, want);
	free(want);
}

#endif
