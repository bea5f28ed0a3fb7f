/* --algorithm=awq: runs the unchanged model, chooses factors for the inputs of matrices, and edits
 * the graph. Ranges and scales are then computed for the edited model, whose matrices are rounded to
 * nearest. */
#include "quantize/awq.h"
#include "quantize/quantize.h"

/* A value that matrices read. `first`: the index of the first matrix that reads it, which collects
 * the value's sums. */
typedef struct {
	int first;
	QuantizedTensors readers;
} ReadValue;
typedef VEC(ReadValue) ReadValues;

static ReadValue *
value_of(Quantize *q, ReadValues *values, StrMap *known, int i)
{
	const char *value = q->tensors.at[i]->product_input;
	uintptr_t at = (uintptr_t)strmap_get(known, value);

	if (!at) {
		vec_push(q->arena, values, ((ReadValue){.first = i}));
		at = (uintptr_t)values->n;
		strmap_put(known, value, (void *)at);
	}
	return &values->at[at - 1];
}

/* Collects matrices that only one product reads: a second product would be changed by factors for
 * the inputs of the first. */
static bool
find_values(Quantize *q, Arena *sums, ReadValues *values)
{
	StrMap *known = strmap_new(q->arena);

	q->inputs = NEW_ARRAY(q->arena, InputSums, q->tensors.n);
	for (int i = 0; i < q->tensors.n; i++) {
		QuantizedTensor *t = q->tensors.at[i];
		if (!t->product_input || !t->product)
			continue;
		ReadValue *v = value_of(q, values, known, i);
		const QuantizedTensor *first = q->tensors.at[v->first];
		int64_t n = first->shape.at[first->input_axis];
		if (t->shape.at[t->input_axis] == n)
			vec_push(q->arena, &v->readers, t);
		if (v->first == i)
			q->inputs[i] = (InputSums){.n = n,
			                           .sums = NEW_ARRAY(sums, double, n *n),
			                           .sizes = NEW_ARRAY(sums, double, n)};
	}
	if (values->n > 0)
		return true;
	diag_error(q->diag, EXIT_USAGE,
	           "--algorithm=awq: no MatMul or Gemm multiplies by a matrix of its own");
	diag_hint(
		q->diag,
		"it scales the inputs of matrices; convolutions are rounded to nearest, as --algorithm=rtn does");
	return false;
}

/* Scales the values, the last value first. A matrix whose outputs are divided by a later matrix's
 * factors gets its own factors afterwards. */
static void
scale_values(Quantize *q, const ReadValues *values)
{
	for (int i = values->n - 1; i >= 0; i--) {
		const ReadValue *v = &values->at[i];
		const InputSums *sums = &q->inputs[v->first];
		const float *s = awq_factors(sums, q->arena, &v->readers);
		if (s)
			model_scale_inputs(q->s.model, &v->readers, &q->tensors, s, q->diag);
	}
}

static bool
scale_inputs(Quantize *q, Arena *sums)
{
	const QuantizeOptions how = q->how;
	ReadValues values = {0};
	Calibration method;

	calibration_parse("minmax", &method, q->diag);
	q->how.activations = ACTIVATIONS_FLOAT;
	q->how.quiet = true;
	if (!model_quantize_find(q->s.model, &q->how, q->arena, &q->tensors, q->diag) ||
	    !find_values(q, sums, &values))
		return false;
	q->calibrations = NEW_ARRAY(q->arena, Calibration, q->tensors.n);
	for (int i = 0; i < q->tensors.n; i++) {
		q->calibrations[i] = method;
		if (!quantized_is_finite(q->tensors.at[i], q->diag))
			return false;
	}
	if (!quantize_calibrate(q))
		return false;
	scale_values(q, &values);
	q->tensors = (QuantizedTensors){0};
	q->inputs = NULL;
	q->how = how;
	session_forget_import(&q->s);
	return true;
}

/* The sums are large, and are not needed after the edit. */
bool
quantize_scale_inputs(Quantize *q)
{
	Arena *sums = arena_new();
	bool ok = scale_inputs(q, sums);

	arena_free(sums);
	return ok;
}
