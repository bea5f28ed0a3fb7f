/* Writes the trained model as ONNX. The executable contains a template of the ONNX file: its bytes, with holes that are filled
 * from the states. The model (FILE.onnx) and its data (FILE.onnx.data) get their names only when both are complete, the data
 * first. */
#include "runtime/model/adapters.h"
#include "runtime/model/values.h"
#include "runtime/model/weight_file.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef struct {
	Gradc *run;
	FileWriter *files[2]; /* FILE.onnx, FILE.onnx.data */
	const char *data_name;
	ExportedModel which;
	ExportForm form;
	Preprocessing preprocessing;
} Export;

static Status
put_literal(Export *x, const ExportRecord *e, Arena *arena)
{
	return file_writer_add(x->files[e->file], x->run->format.literal + e->offset, e->bytes);
}

static Status
put_name(Export *x, const ExportRecord *e, Arena *arena)
{
	return file_writer_add(x->files[e->file], x->data_name, (int64_t)strlen(x->data_name));
}

/* A varint of fixed width, so that the length of a message does not depend on the value. */
static Status
put_length(Export *x, const ExportRecord *e, Arena *arena)
{
	uint64_t value = (uint64_t)e->offset + (uint64_t)e->times * strlen(x->data_name);
	value += e->input ? (uint64_t)x->preprocessing.more_bytes : 0; /* the graph's length */
	uint8_t bytes[5];

	for (int i = 0; i < 5; i++)
		bytes[i] = (uint8_t)((value >> 7 * i & 0x7f) | (i < 4 ? 0x80 : 0));
	return file_writer_add(x->files[e->file], bytes, sizeof(bytes));
}

static Status
put_align(Export *x, const ExportRecord *e, Arena *arena)
{
	return file_writer_pad(x->files[e->file], e->bytes);
}

static Status
put_input_type(Export *x, const ExportRecord *e, Arena *arena)
{
	uint8_t type = preprocess_type(&x->run->format, &x->preprocessing, e);

	return file_writer_add(x->files[e->file], &type, 1);
}

static Status
put_preprocessing(Export *x, const ExportRecord *e, Arena *arena)
{
	double *numbers;

	RETURN_IF_ERROR(preprocess_numbers(arena, &x->preprocessing, e, &numbers));
	return file_writer_add(x->files[e->file], numbers, e->bytes);
}

/* Copies the elements one by one; output axis i is the state's axis perm[i]. */
static void
permute_elements(const ExportRecord *e, const int64_t *dims, DType dtype, const char *from,
                 char *to)
{
	int64_t strides[MAX_RANK], out_dims[MAX_RANK], out_strides[MAX_RANK], at[MAX_RANK] = {0};
	int64_t size = dtype_bytes(dtype, 1), n = 1, source = 0;

	for (int i = (int)e->rank - 1; i >= 0; i--) {
		strides[i] = n;
		n *= dims[i];
	}
	for (uint32_t i = 0; i < e->rank; i++) {
		out_dims[i] = dims[e->perm[i]];
		out_strides[i] = strides[e->perm[i]];
	}
	for (int64_t k = 0; k < n; k++) {
		memcpy(to + k * size, from + source * size, (size_t)size);
		for (int i = (int)e->rank - 1; i >= 0; i--) {
			source += out_strides[i];
			if (++at[i] < out_dims[i])
				break;
			source -= out_dims[i] * out_strides[i];
			at[i] = 0;
		}
	}
}

static bool
is_permuted(const ExportRecord *e)
{
	for (uint32_t i = 0; i < e->rank; i++)
		if (e->perm[i] != i)
			return true;
	return false;
}

int
export_state(const Gradc *run, int state)
{
	const Format *f = &run->format;
	const char *which = run->options.export_weights;
	bool averages = which && strcmp(which, "ema") == 0;

	for (int i = 0; averages && i < f->n[SECTION_STATES]; i++)
		if (f->states[i].kind == STATE_AVERAGE && (int)f->states[i].of - 1 == state)
			return i;
	return state;
}

static int
written_state(const Export *x, int state)
{
	return export_state(x->run, state);
}

void
export_warn(const Gradc *run, const char *option, const StateRecord *s, DType dtype,
            const void *data, int64_t n)
{
	const Format *f = &run->format;
	int64_t bad = 0;

	if (!run->diag)
		return;
	for (int64_t i = 0; dtype_is_float(dtype) && i < n; i++)
		bad += !isfinite(dtype_load_float(dtype, data, i));
	if (!bad)
		return;
	Text name = {0};
	text_add_quoted(&name, format_text(f, s->name));
	diag_warning(run->diag, "%s: %lld of %lld numbers of %s are not finite", option,
	             (long long)bad, (long long)n, name.at);
	text_free(&name);
}

/* Reads a whole state into the arena. */
static Status
read_state(Export *x, Arena *arena, int state, char **out)
{
	*out = arena_alloc(arena, (size_t)x->run->format.states[state].bytes);
	return state_read(x->run, state, *out);
}

/* The numbers that fill a hole, with the axes in the order of the ONNX file. In the arena. */
typedef struct {
	const int64_t *dims;
	DType dtype;
	int64_t n;
	char *data;
} Numbers;

/* Reads a weight: a state's numbers, or the numbers that its 4-bit codes stand for. */
static Status
read_weight(Export *x, Arena *arena, int state, Numbers *out)
{
	const Format *f = &x->run->format;
	FormatType t = format_weight_type(f, state);
	const FourBitRecord *r = format_four_bit(f, state);
	FourBitBytes bytes = {0};
	char *codes, *absmax, *nested = NULL, *offset = NULL;

	*out = (Numbers){f->dims + t.first_dim, t.dtype, format_elements(f, t.first_dim, t.rank),
	                 NULL};
	if (!r)
		return read_state(x, arena, state, &out->data);
	RETURN_IF_ERROR(read_state(x, arena, (int)r->codes, &codes));
	RETURN_IF_ERROR(read_state(x, arena, (int)r->absmax, &absmax));
	if (r->nested)
		RETURN_IF_ERROR(read_state(x, arena, (int)r->nested - 1, &nested));
	if (r->nested)
		RETURN_IF_ERROR(read_state(x, arena, (int)r->offset - 1, &offset));
	bytes = (FourBitBytes){codes, absmax, nested, offset};
	out->data = four_bit_weight(arena, f, r, &bytes);
	return NULL;
}

static Status
read_adapter(Export *x, Arena *arena, const AdapterRecord *r, const Numbers *weight,
             AdapterValues *out)
{
	char *a, *b, *magnitude = NULL;

	RETURN_IF_ERROR(read_state(x, arena, written_state(x, (int)r->a), &a));
	RETURN_IF_ERROR(read_state(x, arena, written_state(x, (int)r->b), &b));
	if (r->magnitude)
		RETURN_IF_ERROR(
			read_state(x, arena, written_state(x, (int)r->magnitude - 1), &magnitude));
	*out = (AdapterValues){a, b, magnitude, weight->dtype, weight->data};
	return NULL;
}

static Status
add_adapter(Export *x, Arena *arena, const AdapterRecord *r, Numbers *to)
{
	AdapterValues values;

	RETURN_IF_ERROR(read_adapter(x, arena, r, to, &values));
	adapter_merge(&x->run->format, r, &values, arena);
	return NULL;
}

static Status
read_numbers(Export *x, Arena *arena, const ExportRecord *e, Numbers *out)
{
	const Format *f = &x->run->format;
	int state = written_state(x, (int)e->state);
	const StateRecord *s = &f->states[state];

	RETURN_IF_ERROR(read_weight(x, arena, state, out));
	const AdapterRecord *adapter = adapter_of_weight(f, (int)e->state);
	bool is_merged = x->which == EXPORTED_MERGED;
	if (adapter && is_merged)
		RETURN_IF_ERROR(add_adapter(x, arena, adapter, out));
	if (s->kind == STATE_PARAMETER && (s->trainable || adapter))
		export_warn(x->run, is_merged ? "--export-merged" : "--export", s, out->dtype,
		            out->data, out->n);
	if (is_permuted(e)) {
		char *permuted = arena_alloc(arena, (size_t)dtype_bytes(out->dtype, out->n));
		permute_elements(e, out->dims, out->dtype, out->data, permuted);
		out->data = permuted;
	}
	return NULL;
}

static Status
put_tensor(Export *x, const ExportRecord *e, Arena *arena)
{
	DType want = (DType)e->dtype;
	Numbers of;

	RETURN_IF_ERROR(read_numbers(x, arena, e, &of));
	for (int64_t i = 0; e->least > 0 && i < of.n; i++)
		dtype_store_float(of.dtype, of.data, i,
		                  fmax(dtype_load_float(of.dtype, of.data, i), e->least));
	if (want != of.dtype) {
		char *converted = arena_alloc(arena, (size_t)dtype_bytes(want, of.n));
		dtype_convert(want, converted, of.dtype, of.data, of.n);
		of.data = converted;
	}
	for (int64_t at = 0; at < of.n; at += e->block)
		for (uint32_t i = 0; i <= e->times; i++)
			RETURN_IF_ERROR(file_writer_add(x->files[e->file],
			                                of.data + dtype_bytes(want, at),
			                                dtype_bytes(want, e->block)));
	return NULL;
}

/* Writes the factor of each output of an adapted weight with dora. */
static Status
put_factors(Export *x, const ExportRecord *e, Arena *arena)
{
	const Format *f = &x->run->format;
	const AdapterRecord *r = adapter_of_weight(f, (int)e->state);
	Numbers weight;
	AdapterValues values;

	RETURN_IF_ERROR(read_weight(x, arena, (int)e->state, &weight));
	RETURN_IF_ERROR(read_adapter(x, arena, r, &weight, &values));
	int64_t n = weight.dims[r->axis];
	char *out = arena_alloc(arena, (size_t)dtype_bytes((DType)e->dtype, n) + 1);
	dtype_convert((DType)e->dtype, out, F64, adapter_factors(f, r, &values, arena), n);
	return file_writer_add(x->files[e->file], out, dtype_bytes((DType)e->dtype, n));
}

/* Finds scale and zero point of each group of a quantized weight: from a state if the record names one, otherwise computed from
 * the weight's numbers. */
static Status
read_scales(Export *x, Arena *arena, const ExportRecord *e, const Groups *groups, const Numbers *of,
            float *scale, int32_t *zero)
{
	const Format *f = &x->run->format;
	int64_t n = groups_count(groups);
	char *data;

	if (e->scale == NO_SCALE) {
		quantization_of_groups((DType)e->dtype, groups, of->dtype, of->data, arena, scale,
		                       zero);
		return NULL;
	}
	int by = written_state(x, (int)e->scale);
	RETURN_IF_ERROR(read_state(x, arena, by, &data));
	for (int64_t i = 0; i < n; i++) {
		double step = dtype_load_float((DType)f->states[by].dtype, data, i);
		scale[i] = (float)(e->least > 0 ? fmax(step, e->least) : step);
	}
	if (e->zero >= 0)
		memcpy(zero, f->literal + e->zero, sizeof(*zero) * (size_t)n);
	return NULL;
}

/* Writes the codes (integers) of a quantized weight, or the scales of the codes. */
static Status
put_codes(Export *x, const ExportRecord *e, Arena *arena)
{
	DType type = (DType)e->dtype;
	int64_t dims[MAX_RANK];
	Groups groups = format_groups(&x->run->format, e, dims);
	int64_t n_groups = groups_count(&groups);
	float *scale = NEW_ARRAY(arena, float, n_groups);
	int32_t *zero = NEW_ARRAY(arena, int32_t, n_groups);
	Numbers of;

	RETURN_IF_ERROR(read_numbers(x, arena, e, &of));
	RETURN_IF_ERROR(read_scales(x, arena, e, &groups, &of, scale, zero));
	if (e->kind == EXPORT_SCALES)
		return file_writer_add(x->files[e->file], scale,
		                       n_groups * (int64_t)sizeof(*scale));
	char *out = arena_alloc(arena, (size_t)dtype_bytes(type, of.n) + 1);
	for (GroupWalk w = group_walk(&groups); w.i < of.n; group_next(&w))
		dtype_store_int(type, out, w.i,
		                dtype_quantize(type, of.dtype == F64 ? F64 : F32, false,
		                               dtype_load_float(of.dtype, of.data, w.i),
		                               scale[w.group], zero[w.group]));
	return file_writer_add(x->files[e->file], out, dtype_bytes(type, of.n));
}

static void
warn_of_no_range(const Export *x, const ExportRecord *e)
{
	Text name = {0};

	text_add_quoted(&name, format_text(&x->run->format, x->run->format.states[e->state].name));
	diag_warning(
		x->run->diag,
		"--export: training has seen no values for the range of %s: its codes have scale 1",
		name.at);
	text_free(&name);
}

/* Writes the scale or zero point of an activation: from the range of values that training saw, plus a learned correction. */
static Status
put_range(Export *x, const ExportRecord *e, Arena *arena)
{
	RunningRange r;
	char code[8] = {0};

	uint32_t shift = e->scale == NO_SCALE ? NO_SCALE
	                                      : (uint32_t)written_state(x, (int)e->scale);

	RETURN_IF_ERROR(running_range(x->run, arena, e, shift, &r));
	if (!isfinite(r.scale))
		return status_error(
			EXIT_DATA, "--export: the range of %s is not finite",
			format_text(&x->run->format, x->run->format.states[e->state].name));
	if (r.low == r.high && e->kind == EXPORT_RANGE_SCALE && x->run->diag)
		warn_of_no_range(x, e);
	if (e->kind == EXPORT_RANGE_SCALE)
		return file_writer_add(x->files[e->file], &r.scale, sizeof(r.scale));
	dtype_store_int((DType)e->dtype, code, 0, r.zero_point);
	return file_writer_add(x->files[e->file], code, dtype_bytes((DType)e->dtype, 1));
}

/* The function that fills each kind of hole. arena: memory for the states that the function reads. */
static Status (*const put_hole[N_EXPORT_KINDS])(Export *x, const ExportRecord *e, Arena *arena) = {
	[EXPORT_LITERAL] = put_literal,       [EXPORT_TENSOR] = put_tensor,
	[EXPORT_CODES] = put_codes,           [EXPORT_SCALES] = put_codes,
	[EXPORT_RANGE_SCALE] = put_range,     [EXPORT_RANGE_ZERO] = put_range,
	[EXPORT_FACTORS] = put_factors,       [EXPORT_NAME] = put_name,
	[EXPORT_LENGTH] = put_length,         [EXPORT_ALIGN] = put_align,
	[EXPORT_INPUT_TYPE] = put_input_type, [EXPORT_MUL] = put_preprocessing,
	[EXPORT_ADD] = put_preprocessing,     [EXPORT_MEAN] = put_preprocessing,
	[EXPORT_STD] = put_preprocessing,
};

static bool
same_file(const char *a, const char *b)
{
	struct stat x, y;

	return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* Refuses to overwrite the files of the compiled model. The executable's info table names them, under "model" and
 * "external". */
static Status
check_target(const Format *f, const char *path)
{
	for (int i = 0; i < f->n[SECTION_INFO]; i++) {
		const char *key = format_text(f, f->info[i].key),
			   *value = format_text(f, f->info[i].value);

		if ((strcmp(key, "model") == 0 || strcmp(key, "external") == 0) &&
		    same_file(value, path))
			return status_error(
				EXIT_USAGE,
				"--export: %s is the model that was compiled: it is never "
				"written over",
				path);
	}
	return NULL;
}

static Status
write_files(Export *x)
{
	const Format *f = &x->run->format;

	for (int i = 0; i < f->n[SECTION_EXPORT]; i++) {
		if (f->exports[i].of != (uint32_t)x->which ||
		    f->exports[i].form != (uint32_t)x->form ||
		    !preprocess_writes(&x->preprocessing, &f->exports[i]))
			continue;
		Arena *arena = arena_new();
		Status status = put_hole[f->exports[i].kind](x, &f->exports[i], arena);
		arena_free(arena);
		RETURN_IF_ERROR(status);
	}
	for (int i = 1; i >= 0; i--) {
		FileWriter *w = x->files[i];

		x->files[i] = NULL;
		if (w)
			RETURN_IF_ERROR(file_writer_commit(w, false));
	}
	return NULL;
}

static bool
has_part(const Format *f, ExportedModel which, ExportForm form, uint32_t file)
{
	for (int i = 0; i < f->n[SECTION_EXPORT]; i++)
		if (f->exports[i].file == file && f->exports[i].of == (uint32_t)which &&
		    f->exports[i].form == (uint32_t)form)
			return true;
	return false;
}

static bool
wants_as_imported(const GradcOptions *o)
{
	return o->export_form && strcmp(o->export_form, "as-imported") == 0;
}

const char *
gradc_export_form(const Gradc *run)
{
	const char *changed = format_info_get(&run->format, "inference_form");
	bool differs = changed && *changed;

	Text text = {0};
	if (wants_as_imported(&run->options))
		text_add(&text, differs ? "as imported, which is training form" : "as imported");
	else
		text_printf(&text, "inference form%s%s", differs ? ": " : "",
		            differs ? changed : "");
	preprocess_describe(run, &text);
	const char *copy = arena_strdup(run->arena, text.at);
	text_free(&text);
	return copy;
}

static bool
exports_averages(const GradcOptions *o)
{
	return o->export_weights && strcmp(o->export_weights, "ema") == 0;
}

Status
export_check(const Format *f, const GradcOptions *o)
{
	const char *which = o->export_weights, *form = o->export_form;

	if (which && strcmp(which, "ema") != 0 && strcmp(which, "last") != 0 &&
	    strcmp(which, "best") != 0)
		return status_error(EXIT_USAGE, "--export-weights: %s: need best, last or ema",
		                    which);
	if (form && !wants_as_imported(o) && strcmp(form, "inference") != 0)
		return status_error(EXIT_USAGE, "--export-form: %s: need inference or as-imported",
		                    form);
	if (exports_averages(o) && format_state_of_kind(f, STATE_AVERAGE) < 0)
		return status_error(
			EXIT_USAGE,
			"--export-weights=ema: this executable keeps no averages: compile "
			"with --ema=0.999");
	return preprocess_check(f, o);
}

static Status
export_model(Gradc *run, const char *path, ExportedModel which)
{
	/* If the path is a link, the model is written to the link's target, and its data beside the target. */
	const char *target = path_target(run->arena, path);
	const char *slash = strrchr(target, '/'), *base = slash ? slash + 1 : target;
	const char *data_path = arena_printf(run->arena, "%s.data", target);
	Export x = {
		.run = run, .data_name = arena_printf(run->arena, "%s.data", base), .which = which};

	/* without a template of its own, the form as imported is the inference form */
	if (wants_as_imported(&run->options) && has_part(&run->format, which, FORM_AS_IMPORTED, 0))
		x.form = FORM_AS_IMPORTED;

	if (which == EXPORTED_TRAINED)
		RETURN_IF_ERROR(adapters_check(run, "--export"));
	if (!has_part(&run->format, which, x.form, 0))
		return status_error(EXIT_UNSUPPORTED,
		                    "--export: this executable holds no model to write");
	RETURN_IF_ERROR(check_target(&run->format, path));
	RETURN_IF_ERROR(preprocess_open(run, which, x.form, &x.preprocessing));
	if (has_part(&run->format, which, x.form, 1)) {
		RETURN_IF_ERROR(check_target(&run->format, data_path));
		RETURN_IF_ERROR(file_writer_open(data_path, &x.files[1]));
	}
	Status status = file_writer_open(path, &x.files[0]);
	if (!status)
		status = write_files(&x);
	file_writer_abort(x.files[0]);
	file_writer_abort(x.files[1]);
	return status;
}

Status
export_weight(Gradc *run, Arena *arena, int state, bool merged, ExportedWeight *out)
{
	Export x = {.run = run};
	const AdapterRecord *adapter = merged ? adapter_of_weight(&run->format, state) : NULL;
	Numbers of;

	RETURN_IF_ERROR(read_weight(&x, arena, written_state(&x, state), &of));
	if (adapter)
		RETURN_IF_ERROR(add_adapter(&x, arena, adapter, &of));
	*out = (ExportedWeight){of.dims, of.dtype, of.n, of.data};
	return NULL;
}

bool
export_is_weights(const char *path)
{
	return text_ends_with(path, ".safetensors");
}

Status
export_trained(Gradc *run, const char *path)
{
	if (export_is_weights(path))
		return weights_export(run, path, false);
	return export_model(run, path, EXPORTED_TRAINED);
}

Status
export_merged(Gradc *run, const char *path)
{
	if (export_is_weights(path))
		return weights_export(run, path, true);
	return export_model(run, path, EXPORTED_MERGED);
}
