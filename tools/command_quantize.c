/* gradc quantize: ranges over real data, then QuantizeLinear and DequantizeLinear in the file's graph. The values of activations come
 * from a temporary executable that runs batch after batch. */
#include "tools/calibrate.h"
#include "tools/gptq.h"
#include "tools/tools.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

typedef struct {
	Session s;
	Options *o;
	Arena *arena;
	Diag *diag;
	QuantizeOptions how;
	QuantizedTensors tensors;
	Calibration *calibrations; /* by tensor */
	Gptq *gptq;                /* likewise; NULL: rounded to nearest */
	double *snr;               /* likewise, in decibels; NAN: not known */
	NamedTensor *data;         /* of --data */
	int n_data;
	int64_t rows, batch;
	const char *folder; /* for the executable, its inputs and results */
	const char *exe;
} Quantize;

/* ---- options */
static bool
read_types(Quantize *q)
{
	const Options *o = q->o;
	const char *activation = o->activation_type ? o->activation_type : "u8";
	Calibration method;

	q->how = (QuantizeOptions){.weight_type = S8,
	                           .activation_type = U8,
	                           .weights_only = strcmp(activation, "none") == 0,
	                           .dynamic = strcmp(activation, "dynamic") == 0,
	                           .per_channel = o->per_channel,
	                           .block = o->block_size,
	                           .only = terminated(q->arena, &o->only),
	                           .skip = terminated(q->arena, &o->skip)};
	if (o->weight_type)
		dtype_parse(o->weight_type, &q->how.weight_type);
	if (!q->how.weights_only && !q->how.dynamic)
		dtype_parse(activation, &q->how.activation_type);
	if (o->per_channel && o->block_size) {
		diag_error(q->diag, EXIT_USAGE, "--per-channel and --block-size: one of them");
		return false;
	}
	return calibration_parse(o->calibrate ? o->calibrate : "minmax", &method, q->arena,
	                         q->diag);
}

/* The value whose numbers tell how t is to be quantized; NULL: none does. */
static const char *
observed(const Quantize *q, const QuantizedTensor *t)
{
	if (t->kind == QUANTIZED_WEIGHT)
		return q->gptq ? t->product_input : NULL;
	return t->kind == QUANTIZED_ACTIVATION && !q->how.dynamic ? t->name : NULL;
}

/* ---- data */
static bool
read_data(Quantize *q)
{
	const StringList *list = &q->o->data;

	q->data = NEW_ARRAY(q->arena, NamedTensor, list->n);
	for (int i = 0; i < list->n; i++) {
		const char *equal = strchr(list->at[i], '=');
		NpyInfo info;
		void *bytes;
		if (!equal || equal == list->at[i]) {
			diag_error(q->diag, EXIT_USAGE, "--data %s: need NAME=FILE", list->at[i]);
			return false;
		}
		if (diag_status(q->diag, npy_read(q->arena, equal + 1, &info, &bytes)))
			return false;
		NamedTensor *t = &q->data[q->n_data++];
		*t = (NamedTensor){
			.name = arena_strndup(q->arena, list->at[i], (size_t)(equal - list->at[i])),
			.dtype = info.dtype,
			.rank = info.rank,
			.data = bytes};
		memcpy(t->dims, info.dims, sizeof(t->dims));
		int64_t rows = info.rank ? info.dims[0] : 0;
		if (rows == 0) {
			diag_error(q->diag, EXIT_DATA, "%s holds no rows", equal + 1);
			return false;
		}
		if (i > 0 && rows != q->rows) {
			diag_error(q->diag, EXIT_DATA, "%s has %lld rows, the data before it %lld",
			           equal + 1, (long long)rows, (long long)q->rows);
			return false;
		}
		q->rows = rows;
	}
	return true;
}

/* Rows [first, first + batch) of all data as the files of --input. */
static bool
write_batch(Quantize *q, int64_t first)
{
	StringList inputs = {0};

	for (int i = 0; i < q->n_data; i++) {
		const NamedTensor *t = &q->data[i];
		char *path = path_join(q->arena, q->folder,
		                       arena_printf(q->arena, "data%d.npy", i));
		int64_t dims[MAX_RANK], row = 1;
		memcpy(dims, t->dims, sizeof(dims));
		dims[0] = q->batch;
		for (int k = 1; k < t->rank; k++)
			row *= t->dims[k];
		const char *at = (const char *)t->data + dtype_bytes(t->dtype, row * first);
		if (diag_status(q->diag, npy_write(path, t->dtype, t->rank, dims, at)))
			return false;
		vec_push(q->arena, &inputs, arena_printf(q->arena, "%s=%s", t->name, path));
	}
	q->o->inputs = inputs;
	return true;
}

static bool
check_rows(Quantize *q)
{
	if (q->rows >= q->batch)
		return true;
	diag_error(q->diag, EXIT_DATA, "--data: %lld rows, the model takes %lld at once",
	           (long long)q->rows, (long long)q->batch);
	return false;
}

/* The file's rows against what the model takes. */
static bool
check_shapes(Quantize *q)
{
	const ImportPorts *inputs = &q->s.import->bindings.at[0].inputs;
	bool ok = true;

	for (int i = 0; i < q->n_data; i++) {
		const NamedTensor *t = &q->data[i];
		const ImportPort *port = NULL;
		for (int k = 0; k < inputs->n; k++)
			if (strcmp(inputs->at[k].name, t->name) == 0)
				port = &inputs->at[k];
		bool same = port && port->rank == t->rank &&
		            memcmp(port->dims + 1, t->dims + 1,
		                   sizeof(int64_t) * (size_t)(t->rank - 1)) == 0;
		if (same)
			continue;
		ok = false;
		if (!port) {
			diag_error(q->diag, EXIT_USAGE,
			           "--data %s: the model has no input of this name",
			           q->o->data.at[i]);
			continue;
		}
		diag_error(q->diag, EXIT_DATA, "--data %s: shape %s, \"%s\" takes rows of %s",
		           q->o->data.at[i], shape_text(q->arena, t->rank, t->dims), t->name,
		           shape_text(q->arena, port->rank - 1, port->dims + 1));
	}
	return ok;
}

/* ---- running the model */
static bool
import_model(Quantize *q)
{
	enum { MOST_ROWS = 32 }; /* of a batch where the model leaves it open */
	StringList outputs = {0};
	StrMap *seen = strmap_new(q->arena);

	for (int i = 0; i < q->tensors.n; i++) {
		const char *name = observed(q, q->tensors.at[i]);
		if (!name || strmap_get(seen, name))
			continue;
		strmap_put(seen, name, q);
		vec_push(q->arena, &outputs, name);
	}
	q->batch = q->o->batch ? q->o->batch : q->rows < MOST_ROWS ? q->rows : MOST_ROWS;
	if (!check_rows(q) || !write_batch(q, 0) ||
	    !session_import(&q->s, OPEN_DIMS_FROM_INPUTS, terminated(q->arena, &outputs)))
		return false;
	q->batch = q->s.import->bindings.at[0].rows;
	if (q->batch > 0 && q->rows % q->batch && q->rows > q->batch)
		diag_warning(
			q->diag,
			"--data: the last %lld of %lld rows are left out: the model runs on %lld at once",
			(long long)(q->rows % q->batch), (long long)q->rows, (long long)q->batch);
	return check_shapes(q) && check_rows(q) && session_link(&q->s, q->exe, false);
}

/* The values of a tensor in the last results; NULL after reporting. */
static const float *
read_values(Quantize *q, Arena *arena, const json_t *names, const char *name, int64_t *n)
{
	const char *file = json_string_value(json_object_get(json_object_get(names, name), "file"));
	NpyInfo info;
	void *values;

	if (!file) {
		diag_error(q->diag, EXIT_UNSUPPORTED, "%s: the model did not compute it", name);
		return NULL;
	}
	if (diag_status(q->diag,
	                npy_read(arena, path_join(arena, path_join(arena, q->folder, "out"), file),
	                         &info, &values)))
		return NULL;
	if (info.dtype != F32) {
		diag_error(q->diag, EXIT_UNSUPPORTED, "%s: its values are %s, need f32", name,
		           dtype_info[info.dtype].name);
		return NULL;
	}
	*n = info.n_elements;
	return values;
}

typedef bool (*Visitor)(Quantize *q, int i, const float *x, int64_t n);

static bool
visit_batch(Quantize *q, Visitor visit)
{
	Arena *arena = arena_new();
	const char *out = path_join(q->arena, q->folder, "out");
	bool ok = run_executable(&q->s, q->exe, out) == EXIT_OK;
	json_t *names = ok ? json_load_file(path_join(arena, out, "names.json"), 0, NULL) : NULL;
	int64_t n;

	for (int i = 0; i < q->tensors.n && ok; i++) {
		const char *name = observed(q, q->tensors.at[i]);
		if (!name)
			continue;
		const float *x = read_values(q, arena, names, name, &n);
		ok = x && visit(q, i, x, n);
	}
	json_decref(names);
	arena_free(arena);
	return ok;
}

static bool
visit_all(Quantize *q, Visitor visit)
{
	for (int64_t first = 0; first + q->batch <= q->rows; first += q->batch)
		if (!write_batch(q, first) || !visit_batch(q, visit))
			return false;
	return true;
}

static bool
see_values(Quantize *q, int i, const float *x, int64_t n)
{
	Calibration *c = &q->calibrations[i];
	const QuantizedTensor *t = q->tensors.at[i];

	calibration_see(c, x, n);
	if (c->n_nans > 0) {
		diag_error(q->diag, EXIT_DATA,
		           "--data: value %s of node %s is not finite in batch %lld",
		           observed(q, t), t->node, (long long)c->n_batches);
		return false;
	}
	if (t->kind == QUANTIZED_WEIGHT && n % q->gptq[i].n == 0)
		gptq_see(&q->gptq[i], x, n / q->gptq[i].n);
	return true;
}

static bool
count_values(Quantize *q, int i, const float *x, int64_t n)
{
	if (q->tensors.at[i]->kind == QUANTIZED_ACTIVATION)
		calibration_count(&q->calibrations[i], q->arena, x, n);
	return true;
}

/* ---- scales */
/* Signal to noise: mean square of x by that of what rounding changes. */
static double
decibels(double signal, double noise)
{
	return noise > 0 ? 10 * log10(signal / noise) : INFINITY;
}

static bool
measure_values(Quantize *q, int i, const float *x, int64_t n)
{
	const QuantizedTensor *t = q->tensors.at[i];
	double signal = 0, noise = 0;

	if (t->kind != QUANTIZED_ACTIVATION)
		return true;
	for (int64_t k = 0; k < n; k++) {
		int64_t code = dtype_quantize(t->type, F32, false, x[k], t->scale[0], t->zero[0]);
		double back = (double)(code - t->zero[0]) * t->scale[0];
		signal += (double)x[k] * x[k];
		noise += (x[k] - back) * (x[k] - back);
	}
	q->snr[i] = decibels(signal, noise);
	return true;
}

static int64_t
group_at(const QuantizedTensor *t, const int64_t *at)
{
	int64_t flat = 0;

	for (int i = 0; i < t->shape.n; i++)
		flat = flat * ((t->shape.at[i] + t->group.at[i] - 1) / t->group.at[i]) +
		       at[i] / t->group.at[i];
	return flat;
}

/* Scales by the range of each group. */
static void
scale_weight(Quantize *q, QuantizedTensor *t)
{
	float *low = NEW_ARRAY(q->arena, float, t->n_scales),
	      *high = NEW_ARRAY(q->arena, float, t->n_scales);
	int64_t at[MAX_RANK] = {0};

	for (int64_t k = 0; k < t->n; k++) {
		int64_t g = group_at(t, at);
		low[g] = fminf(low[g], t->numbers[k]);
		high[g] = fmaxf(high[g], t->numbers[k]);
		for (int a = t->shape.n - 1; a >= 0 && ++at[a] == t->shape.at[a]; a--)
			at[a] = 0;
	}
	for (int64_t g = 0; g < t->n_scales; g++)
		quantization_of(t->type, dtype_info[t->type].class == CLASS_SIGNED, low[g], high[g],
		                &t->scale[g], &t->zero[g]);
}

static void
quantize_weight(Quantize *q, int i)
{
	QuantizedTensor *t = q->tensors.at[i];
	const float *exact = t->numbers;
	bool knows = q->gptq && t->product_input;
	int64_t at[MAX_RANK] = {0};
	double signal = 0, noise = 0;

	if (!knows || !gptq_round(&q->gptq[i], q->arena, t->input_axis, t))
		scale_weight(q, t);
	for (int64_t k = 0; k < t->n; k++) {
		int64_t g = group_at(t, at);
		int64_t code = dtype_quantize(t->type, F32, false, t->numbers[k], t->scale[g],
		                              t->zero[g]);
		double error = exact[k] - (double)(code - t->zero[g]) * t->scale[g];
		signal += (double)exact[k] * exact[k];
		noise += error * error;
		for (int a = t->shape.n - 1; a >= 0 && ++at[a] == t->shape.at[a]; a--)
			at[a] = 0;
	}
	q->snr[i] = decibels(signal, noise);
}

/* Weights and biases are finite. */
static bool
check_numbers(Quantize *q, const QuantizedTensor *t)
{
	for (int64_t k = 0; k < t->n; k++)
		if (!isfinite(t->numbers[k])) {
			diag_error(q->diag, EXIT_INVALID,
			           "%s of node %s has numbers that are not finite", t->name,
			           t->node);
			return false;
		}
	return true;
}

/* The product of the scales of what is added up. A bias that is too large for it stays f32. */
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
	diag_warning(
		q->diag,
		"bias %s of node %s stays f32: codes by the scales of its weight and input have more than 32 bits",
		t->name, t->node);
	t->readers.n = 0;
}

static bool
choose_scales(Quantize *q)
{
	bool ok = true;

	for (int i = 0; i < q->tensors.n; i++) {
		QuantizedTensor *t = q->tensors.at[i];
		float low, high;
		q->snr[i] = NAN;
		if (t->kind == QUANTIZED_ACTIVATION && q->how.dynamic)
			continue;
		t->scale = NEW_ARRAY(q->arena, float, t->n_scales);
		t->zero = NEW_ARRAY(q->arena, int32_t, t->n_scales);
		if (t->kind != QUANTIZED_ACTIVATION && !check_numbers(q, t))
			ok = false;
		else if (t->kind == QUANTIZED_WEIGHT)
			quantize_weight(q, i);
		if (t->kind != QUANTIZED_ACTIVATION)
			continue;
		const Calibration *c = &q->calibrations[i];
		calibration_range(c, &low, &high);
		if (low == high)
			diag_warning(q->diag, "value %s of node %s is %g in all calibration data",
			             t->name, t->node, (double)low);
		quantization_of(t->type, false, low, high, t->scale, t->zero);
		if (!isfinite(low) || !isfinite(high) || !isfinite(t->scale[0])) {
			diag_error(q->diag, EXIT_DATA,
			           "value %s of node %s is too large for --calibrate=%s", t->name,
			           t->node, c->method->name);
			ok = false;
		}
	}
	for (int i = 0; i < q->tensors.n && ok; i++)
		if (q->tensors.at[i]->kind == QUANTIZED_BIAS)
			scale_bias(q, q->tensors.at[i]);
	return ok;
}

static bool
calibrate(Quantize *q)
{
	if (q->n_data == 0) {
		diag_error(q->diag, EXIT_USAGE,
		           "no --data: the ranges of activations come from real data");
		diag_hint(
			q->diag,
			"--activation-type=none or dynamic, without --algorithm=gptq, needs none");
		return false;
	}
	if (!import_model(q) || !visit_all(q, see_values))
		return false;
	bool counts = false;
	for (int i = 0; i < q->tensors.n; i++)
		counts |= observed(q, q->tensors.at[i]) && q->calibrations[i].method->counts;
	return !counts || visit_all(q, count_values);
}

/* ---- what was done */
static const char *const kind_names[] = {"activation", "weight", "bias"};

static int64_t
bytes_of(const QuantizedTensor *t)
{
	return dtype_bytes(t->type, t->n) + t->n_scales * 4 + dtype_bytes(t->type, t->n_scales);
}

static void
print_report(const Quantize *q)
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

static void
print_report_json(const Quantize *q)
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

/* Sums for every matrix. */
static void
open_gptq(Quantize *q)
{
	q->gptq = NEW_ARRAY(q->arena, Gptq, q->tensors.n);
	for (int i = 0; i < q->tensors.n; i++) {
		const QuantizedTensor *t = q->tensors.at[i];
		if (!t->product_input)
			continue;
		int64_t n = t->shape.at[t->input_axis];
		q->gptq[i] = (Gptq){.n = n, .sums = NEW_ARRAY(q->arena, double, n *n)};
	}
}

static bool
quantize(Quantize *q)
{
	bool knows = q->o->algorithm && strcmp(q->o->algorithm, "gptq") == 0;
	bool observes = (!q->how.weights_only && !q->how.dynamic) || knows;
	Calibration method;

	if (!session_read(&q->s, q->o, q->arena, q->diag) ||
	    !model_quantize_find(q->s.model, &q->how, q->arena, &q->tensors, q->diag))
		return false;
	calibration_parse(q->o->calibrate ? q->o->calibrate : "minmax", &method, q->arena, q->diag);
	q->calibrations = NEW_ARRAY(q->arena, Calibration, q->tensors.n);
	q->snr = NEW_ARRAY(q->arena, double, q->tensors.n);
	if (knows)
		open_gptq(q);
	method.type = q->how.activation_type;
	for (int i = 0; i < q->tensors.n; i++)
		q->calibrations[i] = method;
	if (!outputs_prepare(q->o, q->s.model, q->arena, q->diag) || (observes && !calibrate(q)) ||
	    !choose_scales(q) ||
	    (observes && (!write_batch(q, 0) || !visit_batch(q, measure_values))))
		return false;
	return model_quantize_write(q->s.model, &q->tensors, (int)q->o->opset, q->o->output,
	                            q->diag);
}

int
command_quantize(Options *o, Arena *arena, Diag *diag)
{
	Quantize q = {.o = o, .arena = arena, .diag = diag};
	TemporaryFolder temporary;

	if (!o->output) {
		diag_error(diag, EXIT_USAGE, "no output: give -o Q.onnx");
		return EXIT_USAGE;
	}
	if (!read_types(&q) || !read_data(&q) ||
	    diag_status(diag, temporary_folder_open(arena, &temporary)))
		return diag_exit_code(diag);
	q.folder = temporary.path;
	q.exe = path_join(arena, temporary.path, "once");
	bool ok = quantize(&q);
	if (ok && o->json)
		print_report_json(&q);
	else if (ok)
		print_report(&q);
	temporary_folder_close(&temporary);
	session_close(&q.s);
	return diag_exit_code(diag) ? diag_exit_code(diag) : ok ? EXIT_OK : EXIT_SYSTEM;
}
