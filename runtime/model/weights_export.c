/* --export FILE.safetensors: writes the weights without the graph, as the module from which the ONNX file was exported calls them, so
 * that load_state_dict of PyTorch and --load read them. A tensor whose name in the module is known has the module's layout: if the
 * exporter wrote a Linear's weight as its transpose, the weight is turned back. Other tensors have the ONNX file's name and layout. */
#include "runtime/model/adapters.h"
#include "runtime/model/weight_file.h"

#include <string.h>

typedef struct {
	Gradc *run;
	Arena *arena;
	bool merged;
	VEC(SafeTensor) tensors;
	VEC(int) states;  /* state of each tensor */
	VEC(bool) turned; /* is the tensor the transpose of the state? */
} Weights;

/* Adds the tensor of a state, without its data. */
static void
add_state(Weights *w, StrMap *seen, int state)
{
	const Format *f = &w->run->format;
	const StateRecord *s = &f->states[state];
	FormatType type = format_weight_type(f, state);
	const char *name = format_text(f, s->name), *parameter = format_text(f, s->parameter);
	bool known = *parameter && !strmap_get(seen, parameter);
	bool turned = known && s->transposed && type.rank == 2;
	SafeTensor t = {.name = known ? parameter : name,
	                .dtype = (DType)type.dtype,
	                .rank = (int)type.rank};

	for (int i = 0; i < t.rank; i++)
		t.dims[i] = f->dims[type.first_dim + (uint32_t)(turned ? t.rank - 1 - i : i)];
	t.n_bytes = dtype_bytes(t.dtype, format_elements(f, type.first_dim, type.rank));
	strmap_put(seen, t.name, w);
	vec_push(w->arena, &w->tensors, t);
	vec_push(w->arena, &w->states, state);
	vec_push(w->arena, &w->turned, turned);
}

/* Names of the ONNX file go first: a module's name that is also a name of the ONNX file would otherwise be given twice. */
static void
add_states(Weights *w)
{
	const Format *f = &w->run->format;
	StrMap *seen = strmap_new(w->arena);

	for (int named = 0; named < 2; named++)
		for (int i = 0; i < f->n[SECTION_STATES]; i++) {
			const char *parameter = format_text(f, f->states[i].parameter);
			const char *name = format_text(f, f->states[i].name);
			bool other = *parameter && strcmp(parameter, name) != 0;
			bool wanted = state_is_loadable(&f->states[i]) && !adapter_is_part(f, i);
			if (wanted && other == (named == 1))
				add_state(w, seen, i);
		}
}

static Status
write_tensor(Weights *w, FileWriter *file, int i)
{
	const StateRecord *s = &w->run->format.states[w->states.at[i]];
	const SafeTensor *t = &w->tensors.at[i];
	Arena *arena = arena_new();
	ExportedWeight of;
	Status status = export_weight(w->run, arena, w->states.at[i], w->merged, &of);

	if (!status && s->trainable)
		export_warn(w->run, w->merged ? "--export-merged" : "--export", s, of.dtype,
		            of.data, of.n);
	if (!status && w->turned.at[i])
		of.data = matrix_transposed(arena, of.data, of.dims[0], of.dims[1],
		                            dtype_bytes(of.dtype, 1));
	if (!status)
		status = file_writer_add(file, of.data, t->n_bytes);
	arena_free(arena);
	return status;
}

static Status
write_all(Weights *w, const char *path, FileWriter *file)
{
	int n = w->tensors.n, *order = NEW_ARRAY(w->arena, int, n);
	FilePart *parts = NEW_ARRAY(w->arena, FilePart, n + 1);

	RETURN_IF_ERROR(safetensors_parts(w->arena, path, w->tensors.at, n, parts, order));
	RETURN_IF_ERROR(file_writer_add_parts(file, parts, 1));
	for (int i = 0; i < n; i++)
		RETURN_IF_ERROR(write_tensor(w, file, order[i]));
	return NULL;
}

Status
weights_export(Gradc *run, const char *path, bool merged)
{
	Weights w = {.run = run, .arena = arena_new(), .merged = merged};
	FileWriter *file = NULL;

	add_states(&w);
	Status status = file_writer_open(path, &file);
	if (!status)
		status = write_all(&w, path, file);
	if (!status) {
		status = file_writer_commit(file, false);
		file = NULL;
	}
	file_writer_abort(file);
	arena_free(w.arena);
	return status;
}
