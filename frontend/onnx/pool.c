/* Pools: the maximum, or the sum divided by the number of places that count. */
#include "frontend/onnx/window.h"

static bool
pool_input(OnnxNode *n, Value **x, Window *w)
{
	*x = want_input(n, 0);
	if (!*x || !want_window(n, *x, NULL, w))
		return false;
	for (int i = 0; i < w->spatial; i++)
		if (window_count(w, i, (*x)->type->dims[i + 2]) < 1) {
			report_invalid(
				n,
				"a window over %lld elements along spatial axis %d, which has %lld "
				"with pads %lld and %lld",
				(long long)window_reach(w, i), i,
				(long long)(*x)->type->dims[i + 2], (long long)w->low.at[i],
				(long long)w->high.at[i]);
			return false;
		}
	return true;
}

static Value *
emit_pool(OnnxNode *n, PoolKind kind, Value *x, const Window *w)
{
	PoolAttr a = {.kind = kind,
	              .window = w->kernel,
	              .stride = w->stride,
	              .low = w->low,
	              .high = w->high,
	              .dilation = w->dilation};

	return e_op(n, OP_pool, 1, &x, &a);
}

static void
import_max_pool(OnnxNode *n)
{
	Value *x;
	Window w;

	if (has_output(n, 1)) {
		report_unsupported(n, "the output Indices");
	} else if (pool_input(n, &x, &w)) {
		DType t = x->type->dtype;
		x = is_float(x) ? x : e_cast(n, x, F32); /* 8-bit integers, exact */
		set_output(n, 0, e_cast(n, emit_pool(n, POOL_MAX, x, &w), t));
	}
}

enum { MAX_WINDOWS = 1 << 24 }; /* along one axis */

/* How many k in [0, n) put first + k * step below `end`. */
static int64_t
taps_below(int64_t first, int64_t step, int64_t n, int64_t end)
{
	int64_t count = end > first ? (end - first + step - 1) / step : 0;

	return count < n ? count : n;
}

/* How many taps of each window along an axis lie in [-low, size + high). */
static bool
count_taps(const Window *w, int i, int64_t size, int64_t low, int64_t high, int64_t count,
           double *taps)
{
	bool equal = true;

	for (int64_t o = 0; o < count; o++) {
		int64_t first = o * w->stride.at[i] - w->low.at[i];
		int64_t n = w->kernel.at[i], step = w->dilation.at[i];
		taps[o] = (double)(taps_below(first, step, n, size + high) -
		                   taps_below(first, step, n, -low));
		equal &= taps[o] == taps[0];
	}
	return equal;
}

static void
import_average_pool(OnnxNode *n)
{
	bool with_pads = want_int(n, "count_include_pad", 0);
	Value *x;
	Window w;

	if (!pool_input(n, &x, &w))
		return;
	if (!is_float(x)) {
		report_unsupported(n, "an average of integers");
		return;
	}
	Value *y = emit_pool(n, POOL_SUM, x, &w);
	double scale = 1;
	for (int i = 0; y && i < w.spatial; i++) {
		int64_t count = y->type->dims[i + 2];
		if (count > MAX_WINDOWS) {
			report_unsupported(n,
			                   "%lld windows along axis %d, at most %d are supported",
			                   (long long)count, i + 2, MAX_WINDOWS);
			return;
		}
		double *taps = NEW_ARRAY(n->im->arena, double, count);
		bool equal = count_taps(&w, i, x->type->dims[i + 2], with_pads ? w.low.at[i] : 0,
		                        with_pads ? w.padded.at[i] : 0, count, taps);
		if (equal) {
			scale *= taps[0];
			continue;
		}
		Value *v = e_vector(n, x->type->dtype, (int)count, taps);
		y = e_binary(n, OP_div, y, e_channel(n, v, y, i + 2));
	}
	set_output(n, 0, scale == 1 ? y : e_with(n, OP_div, y, scale));
}

static void
import_global_pool(OnnxNode *n)
{
	Value *x = want_input(n, 0);

	if (!x)
		return;
	if (x->type->rank < 3) {
		report_invalid(n, "input of rank %d, needs 3 or more", x->type->rank);
		return;
	}
	Ints axes = ints_range(2, x->type->rank);
	set_output(n, 0,
	           n->extra->flag ? e_mean(n, x, axes, true)
	                          : e_reduce(n, REDUCE_MAX, x, axes, true));
}

const ImportRow import_pool_rows[] = {
	/* name              from  to  importer  extra */
	{"MaxPool", 1, 0, import_max_pool, {0}, NULL},
	{"AveragePool", 1, 0, import_average_pool, {0}, NULL},
	{"GlobalMaxPool", 1, 0, import_global_pool, {0}, NULL},
	{"GlobalAveragePool", 1, 0, import_global_pool, {.flag = true}, NULL},
	{0},
};
