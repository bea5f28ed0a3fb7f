/* --load: reads parameters, and statistics such as batch norm's, from a safetensors file, by name. A state that is missing in
 * the file keeps its value and is reported. A tensor in the file that the model does not have is reported, too. */
#include "base/files/files.h"
#include "runtime/model/adapters.h"

#include <string.h>

static bool
is_loadable(const StateRecord *s)
{
	return s->kind == STATE_PARAMETER || s->kind == STATE_STATISTIC;
}

static const SafeTensor *
find_tensor(const SafeTensors *st, const char *name)
{
	for (int i = 0; i < st->n_tensors; i++)
		if (strcmp(st->tensors[i].name, name) == 0)
			return &st->tensors[i];
	return NULL;
}

static Status
check_tensor(Arena *arena, const char *path, const Format *f, const StateRecord *s,
             const SafeTensor *t)
{
	const int64_t *dims = f->dims + s->first_dim;
	bool floats = dtype_is_float(t->dtype) && dtype_is_float((DType)s->dtype);

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
load_tensor(Gradc *run, const SafeTensors *st, const char *path, int state, const SafeTensor *t)
{
	const StateRecord *s = &run->format.states[state];
	int64_t n = format_elements(&run->format, s->first_dim, s->rank);
	Arena *arena = arena_new();
	char *raw = arena_alloc(arena, (size_t)t->n_bytes), *own = raw;
	Status status = format_four_bit(&run->format, state)
	                        ? status_error(EXIT_USAGE,
	                                       "--load: \"%s\" is kept in 4 bits: compile the "
	                                       "model that has the other weights",
	                                       t->name)
	                        : check_tensor(arena, path, &run->format, s, t);

	const AdapterRecord *adapter = adapter_of_weight(&run->format, state);
	if (!status && adapter && adapter->magnitude)
		status = status_error(
			EXIT_USAGE,
			"--load: \"%s\" has an adapter with dora, whose magnitudes are "
			"those of the compiled weight",
			t->name);
	if (!status)
		status = file_pread(st->fd, path, raw, t->n_bytes, t->offset);
	if (!status && t->dtype != (DType)s->dtype) {
		own = arena_alloc(arena, (size_t)dtype_bytes((DType)s->dtype, n));
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
report_unknown(Gradc *run, const SafeTensors *st, const char *path)
{
	/* shown: the optimizer state to name, preferably a moment. n: number of optimizer states */
	int shown = -1, n = 0;

	for (int i = 0; i < st->n_tensors && run->diag; i++) {
		const char *name = st->tensors[i].name;
		int state = format_state(&run->format, name);

		if (state >= 0 && is_loadable(&run->format.states[state]))
			continue;
		if (state < 0) {
			diag_warning(run->diag,
			             "%s: \"%s\" is not a parameter of this model: left out", path,
			             name);
			continue;
		}
		if (shown < 0 || run->format.states[state].kind == STATE_MOMENT)
			shown = state;
		n++;
	}
	if (shown >= 0)
		diag_warning(run->diag,
		             "%s: \"%s\" and %d more are of the optimizer: not taken; --resume "
		             "takes them",
		             path, format_text(&run->format, run->format.states[shown].name),
		             n - 1);
}

static Status
load_all(Gradc *run, const SafeTensors *st, const char *path)
{
	const Format *f = &run->format;
	const char *resume = run->options.resume;
	bool replaced = resume && strcmp(resume, "auto") != 0;
	Status fault = NULL;
	int loaded = 0, kept = 0;

	for (int i = 0; i < f->n[SECTION_STATES]; i++) {
		const char *name = format_text(f, f->states[i].name);
		const SafeTensor *t = is_loadable(&f->states[i]) ? find_tensor(st, name) : NULL;

		loaded += t != NULL;
		/* checkpoints do not hold constants */
		kept += t && f->states[i].lifetime == LIFE_CONSTANT;
		if (t)
			fault = fault_join(run->diag, fault, load_tensor(run, st, path, i, t));
		else if (is_loadable(&f->states[i]) && run->diag)
			diag_warning(run->diag, "%s: no \"%s\": it keeps its initial value", path,
			             name);
	}
	if (!fault && loaded == 0)
		fault = status_error(EXIT_CHECKPOINT,
		                     "%s: not one of its %d tensors is a parameter of this model",
		                     path, st->n_tensors);
	if (!fault && kept == 0 && replaced && run->diag)
		diag_warning(run->diag,
		             "%s: changes nothing: --resume's checkpoint has all that is in it",
		             path);
	return fault;
}

Status
weights_load(Gradc *run, const char *path)
{
	Arena *arena = arena_new();
	SafeTensors st;
	Status status = safetensors_open(arena, path, EXIT_CHECKPOINT, &st);

	if (!status) {
		report_unknown(run, &st, path);
		status = load_all(run, &st, path);
		safetensors_close(&st);
	}
	arena_free(arena);
	return status;
}
