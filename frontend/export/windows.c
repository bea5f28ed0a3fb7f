/* Writes pooling in ONNX as MaxPool and AveragePool. A tap is one position inside the window: a 2 x
 * 2 window has 4 taps. Gradients are written tap by tap, because the elements at one tap of all
 * windows are a strided slice of the padded input. */
#include "frontend/export/writer.h"

#include <math.h>
#include <string.h>

enum { MOST_PLACES = 4096 /* taps of a window; each takes a dozen nodes */ };

typedef struct {
	GraphWriter *w;
	const PoolAttr *a;
	Type x;      /* type of the pool's input */
	Type y;      /* type of the pool's result */
	Ints padded; /* shape of the padded input */
} Windows;

static Windows
windows_of(GraphWriter *w, const PoolAttr *a, Type x, Type y)
{
	Windows win = {.w = w, .a = a, .x = x, .y = y, .padded = ints_of_type(x)};

	for (int i = 0; i < a->window.n; i++)
		win.padded.at[2 + i] += a->low.at[i] + a->high.at[i];
	return win;
}

static int64_t
places(const PoolAttr *a)
{
	int64_t n = 1;

	for (int i = 0; i < a->window.n; i++)
		if (!size_mul(n, a->window.at[i], &n))
			return INT64_MAX;
	return n;
}

/* The strided slice of the padded input with tap k of every window. */
static void
place_of(const Windows *win, int64_t k, Ints *start, Ints *stop, Ints *step)
{
	const PoolAttr *a = win->a;

	*start = (Ints){.n = win->x->rank};
	*step = *start;
	*stop = ints_of_type(win->x);
	for (int i = 0; i < win->x->rank; i++)
		step->at[i] = 1;
	for (int i = a->window.n - 1; i >= 0; i--) {
		start->at[2 + i] = k % a->window.at[i] * a->dilation.at[i];
		step->at[2 + i] = a->stride.at[i];
		stop->at[2 + i] = start->at[2 + i] + (win->y->dims[2 + i] - 1) * a->stride.at[i] +
		                  1;
		k /= a->window.at[i];
	}
}

static Ints
around(const Ints *spatial, int rank)
{
	Ints all = {.n = rank};

	for (int i = 0; i < spatial->n; i++)
		all.at[2 + i] = spatial->at[i];
	return all;
}

/* Puts the values back to tap k of every window: a tensor of the padded input's shape, with zeros
 * elsewhere. */
static const char *
put_back(const Windows *win, const char *values, int64_t k)
{
	GraphWriter *w = win->w;
	Ints start, stop, step, shape = ints_of_type(win->y), low, high = {.n = win->x->rank};

	place_of(win, k, &start, &stop, &step);
	for (int i = 2; i < shape.n; i++) {
		Ints split = {0}, none = {0}, room = {0};
		if (step.at[i] == 1)
			continue;
		for (int d = 0; d < shape.n; d++) {
			split.at[split.n++] = shape.at[d];
			if (d == i)
				split.at[split.n++] = 1;
		}
		none.n = room.n = split.n;
		room.at[i + 1] = step.at[i] - 1;
		values = writer_pad(w, writer_reshape(w, values, split), win->x->dtype, none, room,
		                    0);
		shape.at[i] *= step.at[i];
		values = writer_reshape(w, values, shape);
	}
	low = start;
	Ints zero = {.n = shape.n}, one = {.n = shape.n}, end = shape;
	for (int i = 0; i < shape.n; i++) {
		int64_t room = win->padded.at[i] - start.at[i];
		one.at[i] = 1;
		end.at[i] = shape.at[i] < room ? shape.at[i]
		                               : room; /* a stride may lead beyond the end */
		high.at[i] = room - end.at[i];
	}
	values = writer_slice(w, values, zero, end, one);
	return writer_pad(w, values, win->x->dtype, low, high, 0);
}

/* Removes the padding. */
static const char *
cropped(const Windows *win, const char *x)
{
	Ints start = around(&win->a->low, win->x->rank), stop = ints_of_type(win->x),
	     step = {.n = start.n};

	for (int i = 0; i < stop.n; i++) {
		stop.at[i] += start.at[i];
		step.at[i] = 1;
	}
	return writer_slice(win->w, x, start, stop, step);
}

static const char *
plus(GraphWriter *w, const char *sum, const char *x)
{
	return sum ? writer_binary(w, "Add", sum, x) : x;
}

static bool
write_pool(GraphWriter *w, const Node *n)
{
	const PoolAttr *a = n->attr;
	const char *x = writer_operand(w, n, 0);
	Ints pads = {0};
	bool dilated = false, max = a->kind == POOL_MAX;

	for (int i = 0; i < a->low.n; i++)
		pads.at[pads.n++] = a->low.at[i];
	for (int i = 0; i < a->high.n; i++)
		pads.at[pads.n++] = a->high.at[i];
	for (int i = 0; i < a->window.n; i++) {
		dilated |= a->dilation.at[i] != 1;
		if (a->low.at[i] >= a->window.at[i] || a->high.at[i] >= a->window.at[i])
			return false;
	}
	const WrittenAttribute attributes[] = {
		{.name = "kernel_shape", .kind = WRITE_INTS, .ints = a->window},
		{.name = "strides", .kind = WRITE_INTS, .ints = a->stride},
		{.name = "pads", .kind = WRITE_INTS, .ints = pads},
		{.name = max ? "dilations" : "count_include_pad",
	         .kind = max ? WRITE_INTS : WRITE_INT,
	         .ints = a->dilation,
	         .i = 1},
		{0}};
	if (!max && dilated) /* AveragePool has no dilations in this opset */
		return false;
	const char *y = writer_node(w, max ? "MaxPool" : "AveragePool", attributes, 1, &x);
	double count = (double)places(a);
	writer_set(w, n, 0,
	           max ? y
	               : writer_binary(w, "Mul", y,
	                               writer_number(w, node_result(n, 0)->type->dtype, count)));
	return true;
}

/* dx = sum over the taps of dy put back to the tap. */
static const char *
sum_gradient(const Windows *win, const char *dy)
{
	const char *sum = NULL;

	for (int64_t k = 0; k < places(win->a); k++)
		sum = plus(win->w, sum, put_back(win, dy, k));
	return cropped(win, sum);
}

/* Does the same as sum_gradient, but a tap gets dy only from windows whose first maximum lies at
 * this tap. */
static const char *
max_gradient(const Windows *win, const char *dy, const char *x)
{
	GraphWriter *w = win->w;
	DType d = win->x->dtype;
	const char *padded = writer_pad(w, x, d, around(&win->a->low, win->x->rank),
	                                around(&win->a->high, win->x->rank), -HUGE_VAL);
	const char *zero = writer_number(w, d, 0), *best = NULL, *free = NULL, *sum = NULL;
	int64_t n = places(win->a);
	const char **at = NEW_ARRAY(w->arena, const char *, n);

	for (int64_t k = 0; k < n; k++) {
		Ints start, stop, step;
		place_of(win, k, &start, &stop, &step);
		at[k] = writer_slice(w, padded, start, stop, step);
		best = best ? writer_binary(w, "Max", best, at[k]) : at[k];
	}
	for (int64_t k = 0; k < n; k++) {
		const char *here = writer_binary(w, "Equal", at[k], best);
		const char *first = free ? writer_binary(w, "And", here, free) : here;
		const char *mine = writer_node(w, "Where", NULL, 3,
		                               (const char *[]){first, dy, zero});
		sum = plus(w, sum, put_back(win, mine, k));
		const char *left = writer_unary(w, "Not", here);
		free = free ? writer_binary(w, "And", free, left) : left;
	}
	return cropped(win, sum);
}

static bool
write_pool_grad(GraphWriter *w, const Node *n)
{
	const PoolAttr *a = n->attr;
	Windows win = windows_of(w, a, node_result(n, 0)->type, node_operand(n, 0)->type);
	const char *dy = writer_operand(w, n, 0);

	if (places(a) > MOST_PLACES || win.x->rank >= MAX_RANK)
		return false;
	writer_set(w, n, 0,
	           a->kind == POOL_MAX ? max_gradient(&win, dy, writer_operand(w, n, 1))
	                               : sum_gradient(&win, dy));
	return true;
}

const WriteRow write_window_rows[] = {
	{"pool", write_pool, NULL},
	{"pool_grad", write_pool_grad, NULL},
	{0},
};
