/* Reads tensors of --input and writes results. */
#include "driver/driver.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static bool
has_suffix(const char *text, const char *suffix)
{
	size_t n = strlen(text), k = strlen(suffix);

	return n >= k && strcmp(text + n - k, suffix) == 0;
}

/* The `=` in NAME=FILE: after the longest input name that matches, else the first one. */
static const char *
end_of_name(const Session *s, const char *text)
{
	const ImportPorts *inputs = s->import ? &s->import->bindings.at[0].inputs : NULL;
	const char *end = strchr(text, '=');

	for (int i = 0; inputs && i < inputs->n; i++) {
		const char *name = inputs->at[i].name;
		size_t n = strlen(name);
		if (strncmp(text, name, n) == 0 && text[n] == '=' && text + n > end)
			end = text + n;
	}
	return end;
}

bool
input_read(Session *s, const char *text, NamedTensor *out)
{
	const char *equal = end_of_name(s, text);
	NpyInfo info;
	void *data;

	if (!equal || equal == text) {
		diag_error(s->diag, EXIT_USAGE, "--input %s: need NAME=FILE", text);
		return false;
	}
	*out = (NamedTensor){.name = arena_strndup(s->arena, text, (size_t)(equal - text))};
	if (has_suffix(equal + 1, ".pb")) {
		if (diag_status(s->diag, tensor_proto_read(s->arena, equal + 1, &out->dtype,
		                                           &out->rank, out->dims, &data)))
			return false;
	} else {
		if (diag_status(s->diag, npy_read(s->arena, equal + 1, &info, &data)))
			return false;
		out->dtype = info.dtype;
		out->rank = info.rank;
		memcpy(out->dims, info.dims, sizeof(out->dims));
	}
	out->data = data;
	return true;
}

static bool
types_convert(DType file, DType want)
{
	bool both_float = dtype_is_float(file) && dtype_is_float(want);
	bool both_index = (file == S32 || file == S64) && (want == S32 || want == S64);

	return file == want || both_float || both_index;
}

bool
input_for(Session *s, const NamedTensor *list, int n, const Value *param, EvalTensor *out)
{
	Type t = param->type;

	for (int i = 0; i < n; i++) {
		const NamedTensor *in = &list[i];
		if (strcmp(in->name, param->name) != 0)
			continue;
		bool fits = in->rank == t->rank &&
		            memcmp(in->dims, t->dims, sizeof(int64_t) * (size_t)t->rank) == 0;
		bool flat = param->param == PARAM_LABELS &&
		            npy_merges_axes(in->rank, in->dims, t->rank, t->dims);
		if (!fits && !flat) {
			diag_error(s->diag, EXIT_DATA,
			           "input \"%s\": the file has shape %s, the model %s", param->name,
			           shape_text(s->arena, in->rank, in->dims),
			           shape_text(s->arena, t->rank, t->dims));
			return false;
		}
		if (!types_convert(in->dtype, t->dtype)) {
			diag_error(s->diag, EXIT_DATA,
			           "input \"%s\": the file holds %s, the model wants %s",
			           param->name, dtype_info[in->dtype].name,
			           dtype_info[t->dtype].name);
			return false;
		}
		Type own = type_with_dtype(s->m, t, in->dtype);
		*out = eval_tensor_from(s->arena, own, in->data);
		out->type = t;
		eval_tensor_round(out);
		return true;
	}
	diag_error(s->diag, EXIT_USAGE, "no file for input \"%s\"", param->name);
	diag_hint(s->diag, "give --input %s=FILE.npy", param->name);
	return false;
}

/* A file name that no other tensor of the folder has. */
static char *
fresh_file(Arena *arena, StrMap *used, const char *stem, const char *suffix)
{
	char *name = arena_printf(arena, "%s%s", stem, suffix);

	for (int i = 2; strmap_get(used, name); i++)
		name = arena_printf(arena, "%s.%d%s", stem, i, suffix);
	strmap_put(used, name, name);
	return name;
}

Status
tensors_write(Arena *arena, const char *folder, const char *prefix, const NamedTensor *list, int n,
              bool as_pb)
{
	StrMap *used = strmap_new(arena);
	json_t *names = json_object();
	Status status = folder_make(folder);

	for (int i = 0; !status && i < n; i++) {
		const NamedTensor *t = &list[i];
		char *stem = arena_printf(arena, "%s%s", prefix, file_name_of(arena, t->name));
		char *file = fresh_file(arena, used, stem, as_pb ? ".pb" : ".npy");
		char *path = path_join(arena, folder, file);
		json_t *shape = json_array();
		for (int k = 0; k < t->rank; k++)
			json_array_append_new(shape, json_integer(t->dims[k]));
		json_object_set_new(names, t->name,
		                    json_pack("{s:s,s:s,s:o}", "file", file, "dtype",
		                              dtype_info[t->dtype].name, "shape", shape));
		status = as_pb ? tensor_proto_write(path, t->name, t->dtype, t->rank, t->dims,
		                                    t->data)
		               : npy_write(path, t->dtype, t->rank, t->dims, t->data);
	}
	if (!status) {
		char *text = json_dumps(names, JSON_INDENT(1) | JSON_PRESERVE_ORDER);
		char *path = path_join(arena, folder, "names.json");
		status = file_write(path, text, (int64_t)strlen(text));
		memory_free(text);
	}
	json_decref(names);
	return status;
}
