/* --bias-correction: bias -= sum over c of (dequantized weight - weight) E[x[c]] for each channel
 * of the result. Here c counts the inputs of a channel, and E[x[c]] is the mean of input c over the
 * data. Afterwards the result has the same mean over the data as in the float model (Nagel et al.
 * 2019, arXiv:1906.04721, 4.2). Zeros from a convolution's padding are counted like other
 * values. */
#include "quantize/steps.h"

#include <math.h>

bool
quantize_find_biases(Quantize *q)
{
	ProductBias *found = NEW_ARRAY(q->arena, ProductBias, q->tensors.n);
	int n_weights = 0, n_left = model_find_biases(q->s.model, &q->tensors, found, q->diag);

	q->biases = NEW_ARRAY(q->arena, BiasMean, q->tensors.n);
	for (int i = 0; i < q->tensors.n; i++) {
		n_weights += q->tensors.at[i]->kind == QUANTIZED_WEIGHT;
		q->biases[i].bias = found[i];
		if (found[i].name)
			q->biases[i].sums = NEW_ARRAY(q->arena, double, found[i].x_channels);
	}
	if (n_weights == 0) {
		diag_error(q->diag, EXIT_USAGE, "--bias-correction: no weight is quantized");
		diag_hint(q->diag,
		          "products of two activations have no bias; leave the option out");
		return false;
	}
	if (n_left)
		diag_warning(q->diag,
		             "--bias-correction: %d of %d weights have no bias to correct: a bias "
		             "must be an f32 initializer with one number per output channel, added "
		             "to this product only",
		             n_left, n_weights);
	return true;
}

void
quantize_see_mean(Quantize *q, int i, const float *x, const NpyInfo *info)
{
	BiasMean *b = &q->biases[i];
	int axis = b->bias.x_axis < 0 ? info->rank + b->bias.x_axis : b->bias.x_axis;
	int64_t inner = 1;

	if (!b->bias.name || axis < 0 || axis >= info->rank ||
	    info->dims[axis] != b->bias.x_channels)
		return;
	for (int k = axis + 1; k < info->rank; k++)
		inner *= info->dims[k];
	for (int64_t k = 0; k < info->n_elements; k++)
		b->sums[k / inner % b->bias.x_channels] += x[k];
	b->n_values += info->n_elements / b->bias.x_channels;
}

/* The channels of x and of the result that a weight's element connects. In a convolution with groups
 * these depend on the element's group. */
static void
channels_of(const BiasMean *b, const QuantizedTensor *t, int64_t element, int64_t *in, int64_t *out)
{
	int64_t at[MAX_RANK], group = b->bias.group;

	for (int i = t->shape.n - 1; i >= 0; i--) {
		at[i] = element % t->shape.at[i];
		element /= t->shape.at[i];
	}
	int64_t inputs = t->shape.at[t->input_axis], outputs = t->shape.at[t->channel_axis];
	*in = at[t->input_axis];
	*out = at[t->channel_axis];
	if (b->bias.is_transposed)
		*out += *in / (inputs / group) * outputs;
	else
		*in += *out / (outputs / group) * inputs;
}

static bool
correct(Quantize *q, int i)
{
	const QuantizedTensor *t = q->tensors.at[i];
	BiasMean *b = &q->biases[i];
	double *shift = NEW_ARRAY(q->arena, double, b->bias.n);
	float *corrected = NEW_ARRAY(q->arena, float, b->bias.n);
	Groups groups = quantized_groups(t);
	int64_t in, out;

	for (GroupWalk w = group_walk(&groups); w.i < t->n && b->n_values; group_next(&w)) {
		double back = code_number(t->type, t->numbers[w.i], t->scale[w.group],
		                          t->zero[w.group]);
		channels_of(b, t, w.i, &in, &out);
		shift[out] += (back - b->exact[w.i]) * b->sums[in] / (double)b->n_values;
	}
	for (int64_t k = 0; k < b->bias.n; k++) {
		corrected[k] = (float)(b->bias.floats[k] - b->bias.factor * shift[k]);
		if (isfinite(corrected[k]))
			continue;
		diag_error(q->diag, EXIT_DATA,
		           "--bias-correction: bias %s of node %s would not be finite at %lld",
		           b->bias.name, t->node, (long long)k);
		diag_hint(q->diag, "look for very large values of %s in the data", b->bias.x);
		return false;
	}
	b->corrected = corrected;
	return true;
}

bool
quantize_correct_biases(Quantize *q)
{
	for (int i = 0; i < q->tensors.n; i++)
		if (q->biases[i].bias.name && !correct(q, i))
			return false;
	quantize_put_corrected(q);
	return true;
}

void
quantize_restore_biases(Quantize *q, const QuantizedTensor *of)
{
	for (int i = 0; i < q->tensors.n && q->biases; i++) {
		const ProductBias *bias = &q->biases[i].bias;
		if (bias->name && (!of || of == q->tensors.at[i]))
			model_set_bias(q->s.model, bias, bias->floats);
	}
}

void
quantize_put_corrected(Quantize *q)
{
	for (int i = 0; i < q->tensors.n && q->biases; i++)
		if (q->biases[i].bias.name)
			model_set_bias(q->s.model, &q->biases[i].bias, q->biases[i].corrected);
}
