/* --sensitivity: measures how much the model's results lose because a tensor is stored as codes.
 * The measure is the signal-to-noise ratio of the results against the float model: once with all
 * tensors as codes, and once for each tensor with only this tensor as floats. */
#include "quantize/steps.h"

#include <jansson.h>
#include <math.h>

typedef struct {
	StringList names; /* names of the graph's f32 results */
	VEC(const float *) at;
	VEC(int64_t) n;
} Results;

static bool
read_results(Quantize *q, const Session *s, Results *out)
{
	json_t *names = json_load_file(path_join(q->arena, q->results, "names.json"), 0, NULL);
	NpyInfo info;
	void *values;
	bool ok = names != NULL;

	*out = (Results){0};
	for (int i = 0; i < s->outputs.n && ok; i++) {
		const char *name = s->outputs.at[i];
		const char *file = json_string_value(
			json_object_get(json_object_get(names, name), "file"));
		ok = file &&
		     !diag_status(q->diag, npy_read(q->arena, path_join(q->arena, q->results, file),
		                                    &info, &values));
		if (!ok || info.dtype != F32)
			continue;
		vec_push(q->arena, &out->names, name);
		vec_push(q->arena, &out->at, values);
		vec_push(q->arena, &out->n, info.n_elements);
	}
	json_decref(names);
	return ok;
}

/* Runs the model on the first rows. A tensor is quantized if its `readers` are not empty. */
static bool
run_quantized(Quantize *q, Results *out)
{
	const char *path = path_join(q->arena, q->folder, "tried.onnx");
	const char *exe = path_join(q->arena, q->folder, "try");
	Options o = *q->o;
	Session s = {0};

	if (!model_quantize_write(q->s.model, &q->tensors, (int)o.opset, path, q->diag))
		return false;
	o.input = path;
	bool ok = session_read(&s, &o, q->arena, q->diag) &&
	          session_import(&s, OPEN_DIMS_FROM_INPUTS, NULL) && session_link(&s, exe, false) &&
	          run_executable(&s, exe, q->results) == EXIT_OK && read_results(q, &s, out);
	session_close(&s);
	return ok;
}

static double
decibels(const Results *want, const Results *got)
{
	double signal = 0, noise = 0;

	for (int i = 0; i < want->names.n && i < got->names.n; i++)
		for (int64_t k = 0; k < want->n.at[i] && k < got->n.at[i]; k++) {
			double x = want->at.at[i][k], d = x - got->at.at[i][k];
			signal += x * x;
			noise += d * d;
		}
	return noise > 0 ? 10 * log10(signal / noise) : INFINITY;
}

/* Does t stay floats if `left` stays floats? A bias does if `left` is its product's weight or
 * input: a bias is stored as codes only if both are. */
static bool
goes_with(const QuantizedTensor *t, const QuantizedTensor *left)
{
	return t == left || (t->kind == QUANTIZED_BIAS && (t->weight == left || t->input == left));
}

/* Runs the model with `left` as floats; left NULL: with all tensors as floats. */
static bool
run_without(Quantize *q, const QuantizedTensor *left, Results *out)
{
	int *n = NEW_ARRAY(q->arena, int, q->tensors.n);

	for (int i = 0; i < q->tensors.n; i++) {
		QuantizedTensor *t = q->tensors.at[i];
		n[i] = t->readers.n;
		if (!left || goes_with(t, left))
			t->readers.n = 0;
	}
	quantize_restore_biases(q, left);
	bool ok = run_quantized(q, out);
	quantize_put_corrected(q);
	for (int i = 0; i < q->tensors.n; i++)
		q->tensors.at[i]->readers.n = n[i];
	return ok;
}

bool
quantize_sensitivity(Quantize *q)
{
	Results floats, codes, tried;

	if (q->n_data == 0) {
		diag_error(q->diag, EXIT_USAGE, "--sensitivity: needs --data");
		return false;
	}
	if (!quantize_write_first(q) || !run_without(q, NULL, &floats) || !run_quantized(q, &codes))
		return false;
	q->output_snr = decibels(&floats, &codes);
	q->gain = NEW_ARRAY(q->arena, double, q->tensors.n);
	for (int i = 0; i < q->tensors.n; i++) {
		const QuantizedTensor *t = q->tensors.at[i];
		q->gain[i] = NAN;
		if (t->kind == QUANTIZED_BIAS || t->readers.n == 0)
			continue;
		if (!run_without(q, t, &tried))
			return false;
		q->gain[i] = decibels(&floats, &tried) - q->output_snr;
	}
	return true;
}
