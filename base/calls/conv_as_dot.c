/* Convolutions that are matrix products: windows of one element, which move by one element, without padding.
 *
 *	y[b,o,s] = sum over i of w[o,i] x[b,i,s]                    s: all spatial axes as one
 *	dx[b,i,s] = sum over o of w[o,i] dy[b,o,s]
 *	dw[o,i] = sum over b and s of dy[b,o,s] x[b,i,s]
 *
 * If channels lie innermost (NHWC), b and s are one axis, and each of the three is one product. Otherwise the first two are a batch
 * of products, and the third is no product. */
#include "base/calls/library_call.h"

/* A tensor with axes batch, channel, space, as sizes and strides. */
typedef struct {
	int64_t batch, channels, space;         /* sizes */
	int64_t by_batch, by_channel, by_space; /* strides */
	bool joins;                             /* are batch and space one axis with one stride? */
} Planes;

/* False if the spatial axes have no common stride. */
static bool
planes_of(const LibraryOperand *o, Planes *out)
{
	int last = -1;

	*out = (Planes){o->dims[0], o->dims[1], 1, o->strides[0], o->strides[1], 1, false};
	for (int d = (int)o->rank - 1; d >= 2; d--) {
		if (o->dims[d] == 1)
			continue;
		if (last >= 0 && o->strides[d] != out->by_space * out->space)
			return false;
		if (last < 0)
			out->by_space = o->strides[d];
		last = d;
		out->space *= o->dims[d];
	}
	out->joins = out->batch == 1 || out->by_batch == out->by_space * out->space;
	return true;
}

static bool
is_pointwise(const LibraryCall *c)
{
	ConvSizes s = library_conv_sizes(c);

	if (s.groups != 1 || library_has_operand(c, LIBRARY_BIAS))
		return false;
	for (int i = 0; i < s.spatial; i++)
		if (s.axes[i].window != 1 || s.axes[i].stride != 1 || s.axes[i].low != 0 ||
		    s.axes[i].x != s.axes[i].y)
			return false;
	return true;
}

/* A matrix with these sizes and strides, `batch` times. batch 0: no batch axis. */
static LibraryOperand
matrix(const LibraryOperand *of, int64_t batch, int64_t by_batch, int64_t rows, int64_t by_row,
       int64_t columns, int64_t by_column)
{
	LibraryOperand o = {
		.dtype = of->dtype, .rank = 2, .buffer = of->buffer, .offset = of->offset};
	int d = 0;

	if (batch) {
		o.dims[d] = batch;
		o.strides[d++] = by_batch;
		o.rank = 3;
	}
	o.dims[d] = rows;
	o.strides[d++] = by_row;
	o.dims[d] = columns;
	o.strides[d] = by_column;
	return o;
}

/* One product: out[p,n] = sum over k of x[p,k] w[k,n], where p is batch and space. */
static void
joined(const LibraryOperand *from, const Planes *x, const LibraryOperand *w, int64_t by_k,
       int64_t by_n, const LibraryOperand *to, const Planes *y, LibraryCall *dot)
{
	LibraryOperand *o = dot->operands;
	int64_t places = x->batch * x->space;

	o[LIBRARY_FIRST] = matrix(from, 0, 0, places, x->by_space, x->channels, x->by_channel);
	o[LIBRARY_SECOND] = matrix(w, 0, 0, x->channels, by_k, y->channels, by_n);
	o[LIBRARY_RESULT] = matrix(to, 0, 0, places, y->by_space, y->channels, y->by_channel);
}

/* A product for each element of the batch: out[b,n,s] = sum over k of w[n,k] x[b,k,s]. */
static void
batched(const LibraryOperand *from, const Planes *x, const LibraryOperand *w, int64_t by_k,
        int64_t by_n, const LibraryOperand *to, const Planes *y, LibraryCall *dot)
{
	LibraryOperand *o = dot->operands;

	o[LIBRARY_FIRST] = matrix(w, x->batch, 0, y->channels, by_n, x->channels, by_k);
	o[LIBRARY_SECOND] = matrix(from, x->batch, x->by_batch, x->channels, x->by_channel,
	                           x->space, x->by_space);
	o[LIBRARY_RESULT] = matrix(to, x->batch, y->by_batch, y->channels, y->by_channel, y->space,
	                           y->by_space);
}

/* y from x and w, or dx from dy and w. */
static void
from_planes(const LibraryCall *c, const Planes *x, const Planes *y, LibraryCall *dot, int order[3])
{
	const LibraryOperand *from = &c->operands[LIBRARY_FIRST], *w = &c->operands[LIBRARY_SECOND],
			     *to = &c->operands[LIBRARY_RESULT];
	bool forward = c->kind == LIBRARY_CONV, one = x->joins && y->joins;
	int64_t by_k = w->strides[forward ? 1 : 0], by_n = w->strides[forward ? 0 : 1];

	if (one)
		joined(from, x, w, by_k, by_n, to, y, dot);
	else
		batched(from, x, w, by_k, by_n, to, y, dot);
	order[LIBRARY_FIRST] = one ? LIBRARY_FIRST : LIBRARY_SECOND;
	order[LIBRARY_SECOND] = one ? LIBRARY_SECOND : LIBRARY_FIRST;
}

/* dw from x and dy. False if batch and space are not one axis. */
static bool
from_both(const LibraryCall *c, const Planes *x, const Planes *dy, LibraryCall *dot, int order[3])
{
	const LibraryOperand *w = &c->operands[LIBRARY_RESULT];
	int64_t places = x->batch * x->space;

	if (!x->joins || !dy->joins)
		return false;
	dot->operands[LIBRARY_FIRST] = matrix(&c->operands[LIBRARY_SECOND], 0, 0, dy->channels,
	                                      dy->by_channel, places, dy->by_space);
	dot->operands[LIBRARY_SECOND] = matrix(&c->operands[LIBRARY_FIRST], 0, 0, places,
	                                       x->by_space, x->channels, x->by_channel);
	dot->operands[LIBRARY_RESULT] = matrix(w, 0, 0, w->dims[0], w->strides[0], w->dims[1],
	                                       w->strides[1]);
	order[LIBRARY_FIRST] = LIBRARY_SECOND;
	order[LIBRARY_SECOND] = LIBRARY_FIRST;
	return true;
}

bool
library_conv_as_dot(const LibraryCall *c, LibraryCall *dot, int order[3])
{
	Planes a, b;
	int second = c->kind == LIBRARY_CONV_GRAD_WEIGHT ? LIBRARY_SECOND : LIBRARY_RESULT;

	if (c->kind == LIBRARY_DOT || !is_pointwise(c) ||
	    !planes_of(&c->operands[LIBRARY_FIRST], &a) || !planes_of(&c->operands[second], &b))
		return false;
	library_call_begin(dot, LIBRARY_DOT);
	order[LIBRARY_RESULT] = LIBRARY_RESULT;
	if (c->kind == LIBRARY_CONV_GRAD_WEIGHT)
		return from_both(c, &a, &b, dot, order);
	from_planes(c, &a, &b, dot, order);
	return true;
}
