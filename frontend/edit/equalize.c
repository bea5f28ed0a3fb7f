/* Cross-layer equalization (Nagel et al. 2019, arXiv:1906.04721, 4.1). Between two products there
 * may be only operators f with f(s x) = s f(x) for s > 0. Then a channel's factor may move from one
 * weight to the other:
 *   w1[i] / s,  b1[i] / s,  w2[., i] s     with s = sqrt(r1 r2) / r2 = sqrt(r1 / r2)
 * where r1 and r2 are the largest magnitudes of the channel in both weights. Afterwards both
 * weights have sqrt(r1 r2) as the channel's largest magnitude, so one scale for a matrix fits all
 * its channels. The model computes the same result. All pairs are equalized several times, because
 * a weight may be the second of one pair and the first of another. */
#include "frontend/edit/edit.h"

#include <math.h>
#include <string.h>

enum { MOST_SWEEPS = 20 };
#define CLOSE_ENOUGH 1e-3

/* A tensor with one factor per channel along an axis. */
typedef struct {
	const char *name;
	float *at;
	int64_t n, channels, inner; /* element i belongs to channel i / inner % channels */
} Scaled;
typedef VEC(Scaled) ScaledList;
typedef struct {
	Scaled first, second;
	ScaledList biases;
} Pair;
typedef struct {
	Model *model;
	Diag *diag;
	Arena *scratch;
	Neighbours all;
	StrMap *numbers; /* name of an initializer -> its floats, which change in place */
	VEC(Pair) pairs;
} Equalize;

/* Is f(s x) = s f(x) for s > 0, channel by channel? Pooling mixes elements along all axes but the
 * first two, so channels must lie on the second axis, as in convolutions. */
static bool
keeps_factors(const NodeProto *p, bool pools)
{
	static const char *const ops[] = {"Relu",         "LeakyRelu",   "Identity",
	                                  "MaxPool",      "AveragePool", "GlobalAveragePool",
	                                  "GlobalMaxPool"};
	enum { FIRST_POOL = 3 };

	for (int i = 0; i < (pools ? COUNT(ops) : FIRST_POOL); i++)
		if (is_op(p, ops[i]))
			return true;
	return false;
}

/* Sets *out to the floats of an f32 initializer, with channels along the axis; axis -1: the last
 * axis. false: the initializer is of another type or has other readers. */
static bool
open_numbers(Equalize *e, const char *name, int axis, Scaled *out)
{
	const TensorProto *t = strmap_get(e->model->initializers, name);
	TensorData d;

	if (!t || t->data_type != ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT ||
	    count_readers(&e->all, name) != 1 || !tensor_load(e->model, t, false, &d, e->diag) ||
	    d.rank < 1 || d.n == 0)
		return false;
	axis = axis < 0 ? axis + d.rank : axis;
	if (axis < 0 || axis >= d.rank)
		return false;
	*out = (Scaled){.name = name,
	                .n = d.n,
	                .channels = d.dims[axis],
	                .inner = 1,
	                .at = strmap_get(e->numbers, name)};
	for (int i = axis + 1; i < d.rank; i++)
		out->inner *= d.dims[i];
	if (!out->at) {
		out->at = arena_copy(e->scratch, d.data, sizeof(float) * (size_t)d.n);
		strmap_put(e->numbers, name, out->at);
	}
	return true;
}

static int
rank_of(const Equalize *e, const char *name)
{
	const TensorProto *t = strmap_get(e->model->initializers, name);

	return t ? (int)t->n_dims : 0;
}

/* Finds the axes of the product's right operand; false: p is not a product, or it has none. */
static bool
find_axes(const Equalize *e, const NodeProto *p, int *channel, int *inputs)
{
	const Product *product = p->n_input > 1 ? node_product(e->model, p, 1) : NULL;
	int rank = product ? rank_of(e, p->input[1]) : 0;

	if (rank < 2)
		return false;
	product_axes(product, p, rank, channel, inputs);
	return true;
}

/* Sets *out to p's weight, with its output channels: along the first axis of Conv's weight; for
 * other products, along the axis that becomes the result's last axis. */
static bool
open_first(Equalize *e, const NodeProto *p, Scaled *out)
{
	int channel, inputs;

	return find_axes(e, p, &channel, &inputs) && open_numbers(e, p->input[1], channel, out);
}

/* Sets *out to p's weight, with its input channels. For a depthwise convolution these are also its
 * output channels. */
static bool
open_second(Equalize *e, const NodeProto *p, Scaled *out)
{
	int channel, inputs;
	int64_t group = node_int(p, "group", 1);

	if (!find_axes(e, p, &channel, &inputs) || node_int(p, "transA", 0))
		return false;
	if (group == 1)
		return open_numbers(e, p->input[1], inputs, out);
	return is_op(p, "Conv") && open_numbers(e, p->input[1], channel, out) &&
	       out->channels == group;
}

static bool
is_convolution(const NodeProto *p)
{
	return is_op(p, "Conv") || is_op(p, "ConvTranspose");
}

/* Sets *out to a bias: a vector with one number per channel. The bias belongs to a convolution, or
 * is added to a matrix product, whose result has its channels on the last axis. */
static bool
open_bias(Equalize *e, const char *name, int64_t channels, Scaled *out)
{
	return open_numbers(e, name, -1, out) && out->channels == channels && out->n == channels;
}

/* Walks from p to the next product and collects the biases on the way. */
static const NodeProto *
walk(Equalize *e, const NodeProto *p, const Scaled *first, ScaledList *biases)
{
	const char *name = p->output[0];
	bool by_channel = is_convolution(p);
	Scaled bias;

	if (p->n_input > 2 && *p->input[2]) {
		if (!open_bias(e, p->input[2], first->channels, &bias))
			return NULL;
		vec_push(e->scratch, biases, bias);
	}
	for (;;) {
		const NodeProto *next = only_reader_of(&e->all, name);
		if (!next || next->n_output != 1)
			return NULL;
		if (is_op(next, "Add") && !by_channel) {
			const char *other = next->input[!strcmp(next->input[0], name)];
			if (!open_bias(e, other, first->channels, &bias))
				return NULL;
			vec_push(e->scratch, biases, bias);
		} else if (!keeps_factors(next, by_channel)) {
			bool fits = next->n_input > 1 && !strcmp(next->input[0], name) &&
			            is_convolution(next) == by_channel;
			return fits ? next : NULL;
		}
		name = next->output[0];
	}
}

static void
find_pair(Equalize *e, const NodeProto *p)
{
	Pair pair = {0};

	if (!open_first(e, p, &pair.first) ||
	    (is_op(p, "ConvTranspose") && node_int(p, "group", 1) != 1))
		return;
	const NodeProto *next = walk(e, p, &pair.first, &pair.biases);
	if (next && open_second(e, next, &pair.second) &&
	    pair.second.channels == pair.first.channels)
		vec_push(e->scratch, &e->pairs, pair);
}

static void
largest(const Scaled *s, float *out)
{
	memset(out, 0, sizeof(float) * (size_t)s->channels);
	for (int64_t i = 0; i < s->n; i++) {
		float *most = &out[i / s->inner % s->channels];
		*most = fmaxf(*most, fabsf(s->at[i]));
	}
}

static void
multiply(const Scaled *s, const double *factor, bool divides)
{
	for (int64_t i = 0; i < s->n; i++) {
		double by = factor[i / s->inner % s->channels];
		s->at[i] = (float)(divides ? s->at[i] / by : s->at[i] * by);
	}
}

/* Moves the factors s of a pair; returns the largest distance of a factor from 1. */
static double
equalize(Equalize *e, const Pair *p)
{
	int64_t n = p->first.channels;
	float *one = NEW_ARRAY(e->scratch, float, n), *two = NEW_ARRAY(e->scratch, float, n);
	double *factor = NEW_ARRAY(e->scratch, double, n), far = 0;

	largest(&p->first, one);
	largest(&p->second, two);
	for (int64_t i = 0; i < n; i++) {
		double by = sqrt((double)one[i] / two[i]);
		factor[i] = isfinite(by) && by > 0 ? by : 1;
		far = fmax(far, fabs(log(factor[i])));
	}
	multiply(&p->first, factor, true);
	for (int i = 0; i < p->biases.n; i++)
		multiply(&p->biases.at[i], factor, true);
	multiply(&p->second, factor, false);
	return far;
}

static void
put(const Equalize *e, const Scaled *s)
{
	const TensorProto *t = strmap_get(e->model->initializers, s->name);
	Ints shape = {.n = (int)t->n_dims};

	memcpy(shape.at, t->dims, sizeof(*shape.at) * t->n_dims);
	edit_set_initializer(e->model, s->name, F32, &shape, s->at);
}

void
model_equalize(Model *model, Diag *diag)
{
	const GraphProto *g = model->proto->graph;
	Arena *scratch = arena_new();
	Equalize e = {.model = model,
	              .diag = diag,
	              .scratch = scratch,
	              .all = neighbours_of(g, scratch),
	              .numbers = strmap_new(scratch)};
	double far = 1;

	for (size_t i = 0; i < g->n_node; i++)
		find_pair(&e, g->node[i]);
	for (int sweep = 0; sweep < MOST_SWEEPS && far > CLOSE_ENOUGH; sweep++) {
		far = 0;
		for (int i = 0; i < e.pairs.n; i++)
			far = fmax(far, equalize(&e, &e.pairs.at[i]));
	}
	for (int i = 0; i < e.pairs.n; i++) {
		const Pair *p = &e.pairs.at[i];
		put(&e, &p->first);
		put(&e, &p->second);
		for (int k = 0; k < p->biases.n; k++)
			put(&e, &p->biases.at[k]);
	}
	if (e.pairs.n == 0)
		diag_warning(
			diag,
			"--equalize: no product leads into another through Relu, pooling or a bias alone");
	arena_free(scratch);
}
