/* Computes scales from values: ranges of activations, groups of weights, biases from both. */
#include "quantize/steps.h"

#include <math.h>
#include <string.h>

/* ---- ranges */
static bool
see_values(Quantize *q, int i, const float *x, const NpyInfo *info)
{
	int64_t n = info->n_elements;
	Calibration *c = &q->calibrations[i];
	const QuantizedTensor *t = q->tensors.at[i];

	calibration_see(c, x, n);
	if (c->n_bad > 0) {
		diag_error(q->diag, EXIT_DATA,
		           "--data: value %s of node %s is not finite in batch %lld",
		           quantize_observes(q, i), t->node, (long long)c->n_batches);
		return false;
	}
	if (q->inputs && q->inputs[i].n && n % q->inputs[i].n == 0)
		input_sums_add(&q->inputs[i], x, n / q->inputs[i].n);
	if (q->biases)
		quantize_see_mean(q, i, x, info);
	return true;
}

static bool
count_values(Quantize *q, int i, const float *x, const NpyInfo *info)
{
	if (q->tensors.at[i]->kind == QUANTIZED_ACTIVATION)
		calibration_count(&q->calibrations[i], q->arena, x, info->n_elements);
	return true;
}

static bool
check_data(Quantize *q)
{
	bool knows = q->o->algorithm && strcmp(q->o->algorithm, "rtn") != 0;
	const char *what = q->how.activations == ACTIVATIONS_STATIC
	                           ? "the ranges of activations come"
	                   : knows ? "the weights' importance comes"
	                           : "--bias-correction's means come";

	if (q->n_data > 0)
		return true;
	diag_error(q->diag, EXIT_USAGE, "no --data: %s from real data", what);
	diag_hint(
		q->diag,
		"--activation-type=none, dynamic or token, with --algorithm=rtn and without --bias-correction, needs no --data");
	return false;
}

bool
quantize_calibrate(Quantize *q)
{
	if (!check_data(q) || !quantize_compile(q) || !quantize_visit_all(q, see_values))
		return false;
	bool counts = false;
	for (int i = 0; i < q->tensors.n; i++)
		counts |= quantize_observes(q, i) && q->calibrations[i].method->counts;
	return !counts || quantize_visit_all(q, count_values);
}

/* ---- scales */
/* Signal-to-noise ratio: mean square of x over the mean square of its rounding error. */
static double
decibels(double signal, double noise)
{
	return noise > 0 ? 10 * log10(signal / noise) : INFINITY;
}

bool
quantize_measure(Quantize *q, int i, const float *x, const NpyInfo *info)
{
	const QuantizedTensor *t = q->tensors.at[i];
	double signal = 0, noise = 0;

	if (t->kind != QUANTIZED_ACTIVATION)
		return true;
	for (int64_t k = 0; k < info->n_elements; k++) {
		double back = code_number(t->type, x[k], t->scale[0], t->zero[0]);
		signal += (double)x[k] * x[k];
		noise += (x[k] - back) * (x[k] - back);
	}
	q->snr[i] = decibels(signal, noise);
	return true;
}

/* Reports a number near f32's largest: its code is rounded up, so code * scale is not finite. */
static bool
say_overflow(const Quantize *q, const QuantizedTensor *t, double number)
{
	diag_error(q->diag, EXIT_INVALID,
	           "%s of node %s has numbers too large for codes of %s: %g would not be "
	           "finite",
	           t->name, t->node, codes_name(t->type), number);
	diag_hint(q->diag, "--skip leaves the node out");
	return false;
}

static bool
quantize_weight(Quantize *q, int i)
{
	QuantizedTensor *t = q->tensors.at[i];
	const float *exact = t->numbers;
	bool knows = q->inputs && q->inputs[i].n;
	Groups groups = quantized_groups(t);
	double signal = 0, noise = 0;

	if (q->biases)
		q->biases[i].exact = exact;
	if (!knows || !gptq_round(&q->inputs[i], q->arena, t->input_axis, t))
		quantization_of_groups(t->type, &groups, F32, t->numbers, q->arena, t->scale,
		                       t->zero);
	for (GroupWalk w = group_walk(&groups); w.i < t->n; group_next(&w)) {
		double back = code_number(t->type, t->numbers[w.i], t->scale[w.group],
		                          t->zero[w.group]);
		double error = exact[w.i] - back;
		if (!isfinite((float)back))
			return say_overflow(q, t, exact[w.i]);
		signal += (double)exact[w.i] * exact[w.i];
		noise += error * error;
	}
	q->snr[i] = decibels(signal, noise);
	return true;
}

/* A bias's scale is the product of the scales of weight and input. If codes of 32 bits are too
 * small for the bias at this scale, the bias stays f32. */
static void
scale_bias(Quantize *q, QuantizedTensor *t)
{
	bool fits = true;

	for (int64_t g = 0; g < t->n_scales; g++)
		t->scale[g] = t->input->scale[0] * t->weight->scale[g];
	for (int64_t k = 0; k < t->n; k++)
		fits &= fabs(t->numbers[k] / (double)t->scale[t->n_scales > 1 ? k : 0]) < INT32_MAX;
	if (fits)
		return;
	diag_warning(q->diag,
	             "bias %s of node %s stays f32: with the scales of its weight and input, "
	             "its codes would need more than 32 bits",
	             t->name, t->node);
	t->readers.n = 0;
}

static bool
scale_activation(Quantize *q, int i)
{
	QuantizedTensor *t = q->tensors.at[i];
	const Calibration *c = &q->calibrations[i];
	float low, high;

	calibration_range(c, &low, &high);
	if (c->n_values == 0)
		diag_warning(q->diag, "value %s of node %s is empty in all calibration data",
		             t->name, t->node);
	else if (low == high)
		diag_warning(q->diag, "value %s of node %s is %g in all calibration data", t->name,
		             t->node, low == 0 ? 0 : (double)low); /* avoids -0 */
	quantization_of(t->type, false, low, high, t->scale, t->zero);
	if (isfinite(low) && isfinite(high) && isfinite(t->scale[0]))
		return true;
	diag_error(q->diag, EXIT_DATA, "value %s of node %s is too large for --calibrate=%s",
	           t->name, t->node, c->method->name);
	return false;
}

bool
quantize_choose_scales(Quantize *q)
{
	bool ok = true;

	for (int i = 0; i < q->tensors.n; i++) {
		QuantizedTensor *t = q->tensors.at[i];
		q->snr[i] = NAN;
		if (t->kind == QUANTIZED_ACTIVATION && q->how.activations != ACTIVATIONS_STATIC)
			continue;
		t->scale = NEW_ARRAY(q->arena, float, t->n_scales);
		t->zero = NEW_ARRAY(q->arena, int32_t, t->n_scales);
		if (t->kind != QUANTIZED_ACTIVATION && !quantized_is_finite(t, q->diag))
			ok = false;
		else if (t->kind == QUANTIZED_WEIGHT)
			ok &= quantize_weight(q, i);
		else if (t->kind == QUANTIZED_ACTIVATION)
			ok &= scale_activation(q, i);
	}
	if (ok && q->biases)
		ok = quantize_correct_biases(q);
	for (int i = 0; i < q->tensors.n && ok; i++)
		if (q->tensors.at[i]->kind == QUANTIZED_BIAS)
			scale_bias(q, q->tensors.at[i]);
	return ok;
}
