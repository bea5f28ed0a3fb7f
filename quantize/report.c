/* Reports the quantized tensors with their scales and errors: as a table on stdout, as JSON, and as
 * an HTML page. */
#include "quantize/steps.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

static const char *const kind_names[] = {"activation", "weight", "bias"};

const char *
codes_name(DType t)
{
	return t == F8E4M3 ? "f8e4m3fn" : dtype_info[t].name;
}

bool
codes_parse(const char *name, DType *out)
{
	if (strcmp(name, codes_name(F8E4M3)) != 0)
		return dtype_parse(name, out);
	*out = F8E4M3;
	return true;
}

static int64_t
bytes_of(const QuantizedTensor *t)
{
	return dtype_bytes(t->type, t->n) + t->n_scales * 4 + dtype_bytes(t->type, t->n_scales);
}

/* If the scales are computed only when the model runs: the word for how, "running", "dynamic" or
 * "token"; else NULL. */
static const char *
scales_word(const QuantizedTensor *t)
{
	static const char *const words[] = {
		[ACTIVATIONS_DYNAMIC] = "dynamic", [ACTIVATIONS_TOKEN] = "token"};

	if (t->kind != QUANTIZED_ACTIVATION ||
	    (t->activations == ACTIVATIONS_STATIC && !t->is_running))
		return NULL;
	return t->is_running ? "running" : words[t->activations];
}

static void
print_scales(const QuantizedTensor *t)
{
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
	printf("%6d", t->zero[0]);
}

void
quantized_print(Arena *arena, const QuantizedTensors *list, const double *snr, const double *gain)
{
	int64_t before = 0, after = 0;
	int wide = 4;

	for (int i = 0; i < list->n; i++)
		wide = dtype_is_float(list->at[i]->type) ? 8 : wide;
	printf("%-11s %-*s %-32s %8s %12s %12s %6s%s%s\n", "", wide, "type", "tensor", "scales",
	       "scale", "to", "zero", snr ? "  SNR dB" : "", gain ? " left out" : "");
	for (int i = 0; i < list->n; i++) {
		const QuantizedTensor *t = list->at[i];
		const char *word = scales_word(t);
		if (t->readers.n == 0)
			continue;
		printf("%-11s %-*s %-32s ", kind_names[t->kind], wide, codes_name(t->type),
		       plain_text(arena, t->name));
		if (word)
			printf("%8s", word);
		else
			print_scales(t);
		if (snr && !isnan(snr[i]))
			printf(" %7.1f", snr[i]);
		if (gain && !isnan(gain[i]))
			printf(" %8.2f", gain[i]);
		printf("\n");
		if (t->kind != QUANTIZED_ACTIVATION) {
			before += t->n * 4;
			after += bytes_of(t);
		}
	}
	printf("weights and biases: %lld bytes %s %lld\n", (long long)before,
	       snr ? "became" : "become", (long long)after);
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

json_t *
quantized_json(const QuantizedTensors *list, const Calibration *ranges, const double *snr,
               const double *gain)
{
	json_t *all = json_array();

	for (int i = 0; i < list->n; i++) {
		const QuantizedTensor *t = list->at[i];
		const char *word = scales_word(t);
		if (t->readers.n == 0)
			continue;
		json_t *entry = json_pack("{s:s,s:s,s:s,s:s,s:i,s:I}", "name", t->name, "kind",
		                          kind_names[t->kind], "node", t->node, "type",
		                          codes_name(t->type), "axis", t->axis, "block_size",
		                          (json_int_t)t->block);
		if (word)
			json_object_set_new(entry, "scales", json_string(word));
		if (!word) {
			json_object_set_new(entry, "scale",
			                    numbers_json(t->scale, NULL, t->n_scales));
			json_object_set_new(entry, "zero_point",
			                    numbers_json(NULL, t->zero, t->n_scales));
		}
		if (ranges && t->kind == QUANTIZED_ACTIVATION && !word) {
			json_object_set_new(entry, "low", json_real((double)ranges[i].low));
			json_object_set_new(entry, "high", json_real((double)ranges[i].high));
		}
		if (snr && isfinite(snr[i]))
			json_object_set_new(entry, "snr_db", json_real(snr[i]));
		if (gain && isfinite(gain[i]))
			json_object_set_new(entry, "gain_db", json_real(gain[i]));
		if (t->kind != QUANTIZED_ACTIVATION)
			json_object_update_new(
				entry, json_pack("{s:I,s:I}", "bytes", (json_int_t)bytes_of(t),
			                         "float_bytes", (json_int_t)t->n * 4));
		json_array_append_new(all, entry);
	}
	return all;
}

bool
quantize_write_page(const Quantize *q)
{
	json_t *all = json_pack("{s:o,s:o}", "model", json_name(q->o->input), "tensors",
	                        quantized_json(&q->tensors, q->calibrations, q->snr, q->gain));
	if (q->gain && isfinite(q->output_snr))
		json_object_set_new(all, "output_snr_db", json_real(q->output_snr));
	char *text = json_dumps(all, JSON_PRESERVE_ORDER);
	Text page = {0};

	html_page(&page, quantize_page, text);
	Status status = file_write(q->o->report, page.at, (int64_t)page.n);
	text_free(&page);
	memory_free(text);
	json_decref(all);
	return !diag_status(q->diag, status);
}

void
quantize_print_json(const Quantize *q)
{
	json_t *all = json_pack("{s:o}", "tensors",
	                        quantized_json(&q->tensors, q->calibrations, q->snr, q->gain));
	if (q->gain && isfinite(q->output_snr))
		json_object_set_new(all, "output_snr_db", json_real(q->output_snr));
	char *text = json_dumps(all, JSON_INDENT(1) | JSON_PRESERVE_ORDER);

	printf("%s\n", text);
	memory_free(text);
	json_decref(all);
}
