/* --load: reads parameters, and statistics such as batch norm's, from a safetensors or ONNX file, by name. A state that is missing
 * in the file keeps its value and is reported. A tensor in the file that the model does not have is reported, too. */
#include "runtime/model/adapters.h"
#include "runtime/model/weight_file.h"

#include <string.h>

static Status
check_tensor(Arena *arena, const char *path, const Format *f, const StateRecord *s,
             const WeightMatch *m)
{
	const SafeTensor *t = &m->tensor->of;
	bool floats = dtype_is_float(t->dtype) && dtype_is_float((DType)s->dtype);
	int64_t dims[MAX_RANK];

	for (int i = 0; i < (int)s->rank; i++)
		dims[i] = f->dims[s->first_dim +
		                  (m->turned ? s->rank - 1 - (uint32_t)i : (uint32_t)i)];
	if (t->rank != (int)s->rank || memcmp(t->dims, dims, sizeof(int64_t) * s->rank) != 0)
		return status_error(EXIT_CHECKPOINT, "%s: \"%s\" has shape %s, the model's has %s",
		                    path, t->name, shape_text(arena, t->rank, t->dims),
		                    shape_text(arena, (int)s->rank, dims));
	if (!floats && t->dtype != (DType)s->dtype)
		return status_error(EXIT_CHECKPOINT, "%s: \"%s\" is %s, the model's is %s", path,
		                    t->name, dtype_info[t->dtype].name, dtype_info[s->dtype].name);
	return NULL;
}

static Status
load_tensor(Gradc *run, const WeightFile *file, int state, const WeightMatch *m)
{
	const SafeTensor *t = &m->tensor->of;
	const StateRecord *s = &run->format.states[state];
	int64_t n = format_elements(&run->format, s->first_dim, s->rank);
	Arena *arena = arena_new();
	char *raw = arena_alloc(arena, (size_t)t->n_bytes + 1), *own = raw;
	Status status = format_four_bit(&run->format, state)
	                        ? status_error(EXIT_USAGE,
	                                       "--load: \"%s\" is kept in 4 bits: compile the "
	                                       "model that has the other weights",
	                                       t->name)
	                        : check_tensor(arena, file->path, &run->format, s, m);

	const AdapterRecord *adapter = adapter_of_weight(&run->format, state);
	if (!status && adapter && adapter->magnitude)
		status = status_error(
			EXIT_USAGE,
			"--load: \"%s\" has an adapter with dora, whose magnitudes are "
			"those of the compiled weight",
			t->name);
	if (!status)
		status = weight_file_read(file, m->tensor, raw);
	if (!status && m->turned)
		own = raw = matrix_transposed(arena, raw, t->dims[0], t->dims[1],
		                              dtype_bytes(t->dtype, 1));
	if (!status && t->dtype != (DType)s->dtype) {
		own = arena_alloc(arena, (size_t)dtype_bytes((DType)s->dtype, n) + 1);
		dtype_convert((DType)s->dtype, own, t->dtype, raw, n);
	}
	if (!status)
		status = state_write(&run->executor, state, 0, own,
		                     dtype_bytes((DType)s->dtype, n));
	arena_free(arena);
	return status;
}

/* Reports tensors that are not taken. States of the optimizer, which a checkpoint's file contains, are reported in one line. */
static void
report_unknown(const Gradc *run, const WeightFile *file, const StrMap *taken)
{
	const Format *f = &run->format;
	/* shown: the optimizer state to name, preferably a moment. n: number of optimizer states */
	int shown = -1, n = 0;

	for (int i = 0; i < file->tensors.n; i++) {
		const char *name = file->tensors.at[i].of.name;
		int state = format_state(f, name);

		if (strmap_get(taken, name))
			continue;
		if (state < 0 || state_is_loadable(&f->states[state])) {
			diag_warning(run->diag,
			             "%s: \"%s\" is not a parameter of this model: left out",
			             file->path, name);
			continue;
		}
		if (shown < 0 || f->states[state].kind == STATE_MOMENT)
			shown = state;
		n++;
	}
	if (shown >= 0)
		diag_warning(run->diag,
		             "%s: \"%s\" and %d more are of the optimizer: not taken; --resume "
		             "takes them",
		             file->path, format_text(f, f->states[shown].name), n - 1);
}

/* An ONNX file has many tensors that are not weights, such as shapes: reports those that may be weights, in one line. */
static void
report_unknown_of_onnx(const Gradc *run, const WeightFile *file, const StrMap *taken)
{
	enum { SHOWN = 3 };
	Text names = {0};
	int n = 0;

	for (int i = 0; i < file->tensors.n; i++) {
		const SafeTensor *t = &file->tensors.at[i].of;
		if (strmap_get(taken, t->name) || !dtype_is_float(t->dtype) || t->rank == 0)
			continue;
		if (n++ < SHOWN)
			text_printf(&names, "%s\"%s\"", n > 1 ? ", " : "", t->name);
	}
	if (n > SHOWN)
		text_printf(&names, " and %d more", n - SHOWN);
	if (n)
		diag_warning(run->diag, "%s: %s: not parameters of this model: left out",
		             file->path, names.at);
	text_free(&names);
}

/* Says which prefix makes the names of the file those of the model. */
static void
report_prefix(const Gradc *run, const WeightNames *names)
{
	if (*names->file_prefix)
		diag_remark(run->diag,
		            "--load: %d tensors of %s match after the prefix \"%s\" is removed",
		            names->matched, names->file->path, names->file_prefix);
	else if (*names->model_prefix)
		diag_remark(run->diag,
		            "--load: %d tensors of %s match after the prefix \"%s\" is added",
		            names->matched, names->file->path, names->model_prefix);
}

static Status
load_all(Gradc *run, const WeightFile *file, Arena *arena)
{
	const Format *f = &run->format;
	const char *resume = run->options.resume;
	bool replaced = resume && strcmp(resume, "auto") != 0;
	WeightNames names = weight_names(arena, f, file);
	StrMap *taken = strmap_new(arena);
	Status fault = NULL;
	int loaded = 0, kept = 0;

	if (names.also)
		return status_error(
			EXIT_CHECKPOINT,
			"%s: two prefixes of its names fit the model, \"%s\" and \"%s\": "
			"remove the tensors of one of them",
			file->path, *names.file_prefix ? names.file_prefix : names.model_prefix,
			names.also);
	if (run->diag)
		report_prefix(run, &names);
	for (int i = 0; i < f->n[SECTION_STATES]; i++) {
		const StateRecord *s = &f->states[i];
		bool wanted = state_is_loadable(s);
		WeightMatch m = wanted ? weight_match(arena, &names, f, i) : (WeightMatch){0};

		loaded += m.tensor != NULL;
		/* checkpoints do not hold constants */
		kept += m.tensor && s->lifetime == LIFE_CONSTANT;
		if (m.tensor) {
			strmap_put(taken, m.tensor->of.name, run);
			fault = fault_join(run->diag, fault, load_tensor(run, file, i, &m));
		} else if (wanted && run->diag) {
			diag_warning(run->diag, "%s: no \"%s\": it keeps its initial value",
			             file->path, format_text(f, s->name));
		}
	}
	if (run->diag)
		(file->onnx ? report_unknown_of_onnx : report_unknown)(run, file, taken);
	if (!fault && loaded == 0)
		fault = status_error(EXIT_CHECKPOINT,
		                     "%s: not one of its %d tensors is a parameter of this model",
		                     file->path, file->tensors.n);
	if (!fault && kept == 0 && replaced && run->diag)
		diag_warning(run->diag,
		             "%s: changes nothing: --resume's checkpoint has all that is in it",
		             file->path);
	return fault;
}

Status
weights_load(Gradc *run, const char *path)
{
	Arena *arena = arena_new();
	WeightFile file;
	Status status = weight_file_open(path, &file);

	if (!status) {
		status = load_all(run, &file, arena);
		weight_file_close(&file);
	}
	arena_free(arena);
	return status;
}
