/* Quantizes a model file, step by step: edits its graph, runs it on data, chooses scales, and writes the file with codes. For
 * example, `gradc quantize m.onnx --data x=x.npy -o q.onnx` folds batch norms, runs m.onnx on the rows of x.npy to find the
 * ranges of activations, chooses a scale for each tensor, and writes q.onnx. */
#include "quantize/quantize.h"

#include <string.h>

/* Reads the options that say which types the codes have. */
bool
quantize_options(Quantize *q)
{
	const Options *o = q->o;
	q->how = (QuantizeOptions){.weight_type = S8,
	                           .activation_type = U8,
	                           .activations = activations_of(o->activation_type),
	                           .per_channel = o->per_channel,
	                           .block = o->block_size,
	                           .add_bias = o->bias_correction,
	                           .only = terminated(q->arena, &o->only),
	                           .skip = terminated(q->arena, &o->skip)};
	if (o->weight_type)
		codes_parse(o->weight_type, &q->how.weight_type);
	if (o->activation_type && q->how.activations == ACTIVATIONS_STATIC)
		codes_parse(o->activation_type, &q->how.activation_type);
	bool bytes = q->how.activations == ACTIVATIONS_STATIC &&
	             dtype_info[q->how.activation_type].bits == 8 &&
	             dtype_info[q->how.weight_type].bits == 8;
	q->how.tables = dtype_info[q->how.weight_type].bits == 8 &&
	                !dtype_is_float(q->how.weight_type) && !o->block_size;
	q->how.results = bytes && !dtype_is_float(q->how.activation_type) &&
	                 !dtype_is_float(q->how.weight_type) && !o->block_size;
	if (o->per_channel && o->block_size) {
		diag_error(q->diag, EXIT_USAGE, "--per-channel and --block-size: one of them");
		return false;
	}
	return true;
}

/* Prepares sums for every matrix, for GPTQ. */
static void
open_inputs(Quantize *q)
{
	q->inputs = NEW_ARRAY(q->arena, InputSums, q->tensors.n);
	for (int i = 0; i < q->tensors.n; i++) {
		const QuantizedTensor *t = q->tensors.at[i];
		if (!t->product_input)
			continue;
		int64_t n = t->shape.at[t->input_axis];
		q->inputs[i] = (InputSums){.n = n, .sums = NEW_ARRAY(q->arena, double, n *n)};
	}
}

/* Refuses --calibrate=distribution unless activations are 8-bit floats. Only for 8-bit floats does
 * onnxruntime compute scales from the standard deviation. */
static bool
check_distribution(const Quantize *q, const Calibration *method)
{
	if (strcmp(method->method->name, "distribution") != 0 ||
	    (q->how.activations == ACTIVATIONS_STATIC && dtype_is_float(q->how.activation_type)))
		return true;
	diag_error(q->diag, EXIT_USAGE,
	           "--calibrate=distribution: only for --activation-type=f8e4m3fn or "
	           "f8e5m2: it computes scales from the standard deviation");
	return false;
}

static bool
is_algorithm(const Quantize *q, const char *name)
{
	return q->o->algorithm && strcmp(q->o->algorithm, name) == 0;
}

bool
quantize_model(Quantize *q)
{
	bool is_static = q->how.activations == ACTIVATIONS_STATIC;
	bool observes = is_static || is_algorithm(q, "gptq") || q->o->bias_correction;
	Calibration method;

	if (!calibration_parse(q->o->calibrate ? q->o->calibrate : "minmax", &method, q->diag) ||
	    !check_distribution(q, &method) || !session_read(&q->s, q->o, q->arena, q->diag) ||
	    !outputs_prepare(q->o, q->s.model, NULL, q->arena, q->diag))
		return false;
	if (!model_use_inference_form(q->s.model, q->diag))
		return false;
	if (!q->o->no_fold_batch_norms)
		model_fold_batch_norms(q->s.model, q->diag);
	if (q->o->equalize)
		model_equalize(q->s.model, q->diag);
	if (is_algorithm(q, "awq") && !quantize_scale_inputs(q))
		return false;
	if (!model_quantize_find(q->s.model, &q->how, q->arena, &q->tensors, q->diag) ||
	    !quantize_settle_rows(q))
		return false;
	q->calibrations = NEW_ARRAY(q->arena, Calibration, q->tensors.n);
	q->snr = NEW_ARRAY(q->arena, double, q->tensors.n);
	if (is_algorithm(q, "gptq"))
		open_inputs(q);
	if (q->o->bias_correction && !quantize_find_biases(q))
		return false;
	method.type = q->how.activation_type;
	for (int i = 0; i < q->tensors.n; i++)
		q->calibrations[i] = method;
	if ((observes && !quantize_calibrate(q)) || !quantize_choose_scales(q) ||
	    (is_static && !quantize_visit_first(q, quantize_measure)))
		return false;
	if (q->o->sensitivity && !quantize_sensitivity(q))
		return false;
	model_quantize_warn(&q->tensors, q->diag);
	return model_quantize_write(q->s.model, &q->tensors, (int)q->o->opset, q->o->output,
	                            q->diag);
}
