/* What was quantized how, as a table and as JSON. */
#include "tools/quantize_impl.h"

#include <jansson.h>
#include <math.h>

static const char *const kind_names[] = {"activation", "weight", "bias"};

static int64_t
bytes_of(const QuantizedTensor *t)
{
	return dtype_bytes(t->type, t->n) + t->n_scales * 4 + dtype_bytes(t->type, t->n_scales);
}

void
quantize_print(const Quantize *q)
{
	int64_t before = 0, after = 0;

	printf("%-11s %-4s %-32s %8s %12s %12s %6s %7s\n", "", "type", "tensor", "scales", "scale",
	       "to", "zero", "SNR dB");
	for (int i = 0; i < q->tensors.n; i++) {
		const QuantizedTensor *t = q->tensors.at[i];
		printf("%-11s %-4s %-32s ", kind_names[t->kind], dtype_info[t->type].name,
		       plain_text(q->arena, t->name));
		if (!t->scale) {
			printf("%8s\n", "dynamic");
			continue;
		}
		float low = t->scale[0], high = t->scale[0];
		for (int64_t g = 0; g < t->n_scales; g++) {
			low = fminf(low, t->scale[g]);
			high = fmaxf(high, t->scale[g]);
		}
		printf("%8lld %12.6g ", (long long)t->n_scales, (double)low);
		if (t->n_scales > 1)
			printf("%12.6g ", (double)high);
		else
			printf("%12s ", "");
		if (isnan(q->snr[i]))
			printf("%6d\n", t->zero[0]);
		else
			printf("%6d %7.1f\n", t->zero[0], q->snr[i]);
		if (t->kind != QUANTIZED_ACTIVATION) {
			before += t->n * 4;
			after += bytes_of(t);
		}
	}
	printf("weights and biases: %lld bytes became %lld\n", (long long)before, (long long)after);
}

static json_t *
numbers_json(const float *scale, const int32_t *zero, int64_t n)
{
	json_t *list = json_array();

	for (int64_t i = 0; i < n; i++)
		json_array_append_new(list,
		                      scale ? json_real((double)scale[i]) : json_integer(zero[i]));
	return list;
}

void
quantize_print_json(const Quantize *q)
{
	json_t *list = json_array();

	for (int i = 0; i < q->tensors.n; i++) {
		const QuantizedTensor *t = q->tensors.at[i];
		const Calibration *c = &q->calibrations[i];
		json_t *entry = json_pack("{s:s,s:s,s:s,s:s,s:i,s:I}", "name", t->name, "kind",
		                          kind_names[t->kind], "node", t->node, "type",
		                          dtype_info[t->type].name, "axis", t->axis, "block_size",
		                          (json_int_t)t->block);
		if (t->scale) {
			json_object_set_new(entry, "scale",
			                    numbers_json(t->scale, NULL, t->n_scales));
			json_object_set_new(entry, "zero_point",
			                    numbers_json(NULL, t->zero, t->n_scales));
		}
		if (t->kind == QUANTIZED_ACTIVATION && t->scale) {
			json_object_set_new(entry, "low", json_real((double)c->low));
			json_object_set_new(entry, "high", json_real((double)c->high));
		}
		if (isfinite(q->snr[i]))
			json_object_set_new(entry, "snr_db", json_real(q->snr[i]));
		if (t->kind != QUANTIZED_ACTIVATION)
			json_object_set_new(entry, "bytes", json_integer(bytes_of(t)));
		json_array_append_new(list, entry);
	}
	json_t *all = json_pack("{s:o}", "tensors", list);
	char *text = json_dumps(all, JSON_INDENT(1) | JSON_PRESERVE_ORDER);
	printf("%s\n", text);
	memory_free(text);
	json_decref(all);
}
