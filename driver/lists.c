/* Sequences and optionals for `gradc run`. A file of an input list is read, and each element
 * becomes an input of the module; the elements of an output list are joined to one file. Also cuts
 * outputs whose size depends on data. */
#include "driver/session.h"

#include <jansson.h>
#include <string.h>
#include <unistd.h>

/* Splits NAME=FILE of an input that is a list; the name may contain a `=`. Returns the file; NULL:
 * no such input. */
static const char *
list_file(const Session *s, const char *text, GivenList *out)
{
	for (const char *equal = strchr(text, '='); equal; equal = strchr(equal + 1, '=')) {
		const char *name = arena_strndup(s->arena, text, (size_t)(equal - text));
		if (model_list_input(s->model, name, out)) {
			out->name = name;
			return equal + 1;
		}
	}
	return NULL;
}

bool
is_list_input(const Session *s, const char *text)
{
	GivenList list;

	return list_file(s, text, &list) != NULL;
}

static bool
is_npy(const char *path)
{
	size_t n = strlen(path);

	return n > 4 && strcmp(path + n - 4, ".npy") == 0;
}

/* Reads an optional tensor from a .npy file. False after reporting. */
static bool
read_npy(Session *s, const char *text, const char *path, GivenList *list)
{
	NamedTensor *element = NEW(s->arena, NamedTensor);
	NpyInfo info;
	void *data;

	if (list->sequence) {
		diag_error(s->diag, EXIT_USAGE, "--input %s: the input is %s: need a .pb file",
		           text, list->optional ? "an optional sequence" : "a sequence");
		return false;
	}
	if (diag_status(s->diag, npy_read(s->arena, path, &info, &data)))
		return false;
	*element = (NamedTensor){.name = arena_printf(s->arena, "%s[0]", list->name),
	                         .dtype = info.dtype,
	                         .rank = info.rank,
	                         .data = data};
	memcpy(element->dims, info.dims, sizeof(info.dims));
	list->n = 1;
	list->elements = element;
	return true;
}

bool
lists_read(Session *s, ImportOptions *io)
{
	const StringList *inputs = &s->o->inputs;
	GivenList list;

	s->lists.n = 0;
	for (int i = 0; i < inputs->n; i++) {
		const char *path = list_file(s, inputs->at[i], &list);
		if (!path)
			continue;
		if (is_npy(path) ? !read_npy(s, inputs->at[i], path, &list)
		                 : diag_status(s->diag, list_proto_read(s->arena, path, &list)))
			return false;
		vec_push(s->arena, &s->lists, list);
	}
	io->lists = s->lists.at;
	io->n_lists = s->lists.n;
	return true;
}

int
list_elements(const Session *s, NamedTensor **out)
{
	int n = 0;

	for (int i = 0; i < s->lists.n; i++)
		n += s->lists.at[i].n;
	*out = NEW_ARRAY(s->arena, NamedTensor, n + 1);
	n = 0;
	for (int i = 0; i < s->lists.n; i++)
		for (int k = 0; k < s->lists.at[i].n; k++)
			(*out)[n++] = s->lists.at[i].elements[k];
	return n;
}

/* ---- outputs */
static const char *
kind_of(const GivenList *list)
{
	if (list->optional)
		return list->sequence ? "optional sequence" : "optional";
	return "sequence";
}

/* The name of the result that is element i of the list. */
static const char *
result_name(const Session *s, const GivenList *list, int i)
{
	return s->import->bindings.at[0].outputs.at[list->first + i].name;
}

static bool
is_taken(json_t *names, const char *file)
{
	const char *name;
	json_t *entry;

	json_object_foreach(names, name, entry) {
		const char *other = json_string_value(json_object_get(entry, "file"));
		if (other && strcmp(other, file) == 0)
			return true;
	}
	return false;
}

/* Writes the list's file, and removes the files of its elements. */
static Status
write_proto(Session *s, const char *folder, json_t *names, const GivenList *list, json_t *entry)
{
	GivenList whole = *list;
	NamedTensor *elements = NEW_ARRAY(s->arena, NamedTensor, list->n + 1);

	whole.elements = elements;
	for (int i = 0; i < list->n; i++) {
		const char *name = result_name(s, list, i);
		json_t *of = json_object_get(names, name);
		const char *file = json_string_value(json_object_get(of, "file"));
		char *path = path_join(s->arena, folder, file ? file : "");
		NamedTensor *e = &elements[i];
		void *data;
		RETURN_IF_ERROR(
			tensor_proto_read(s->arena, path, &e->dtype, &e->rank, e->dims, &data));
		e->data = data;
		unlink(path);
		json_object_del(names, name);
	}
	const char *stem = file_name_of(s->arena, list->name);
	char *file = arena_printf(s->arena, "%s.pb", stem);
	for (int i = 2; is_taken(names, file); i++)
		file = arena_printf(s->arena, "%s.%d.pb", stem, i);
	json_object_set_new(entry, "file", json_string(file));
	return list_proto_write(path_join(s->arena, folder, file), &whole);
}

static json_t *
element_names(const Session *s, const GivenList *list)
{
	json_t *all = json_array();

	for (int i = 0; i < list->n; i++)
		json_array_append_new(all, json_string(result_name(s, list, i)));
	return all;
}

static Status
write_lists(Session *s, const char *folder, json_t *names, bool as_pb)
{
	const ImportBinding *b = &s->import->bindings.at[0];
	Status status = NULL;

	for (int i = 0; !status && i < b->lists.n; i++) {
		const GivenList *list = &b->lists.at[i];
		json_t *entry = json_pack("{s:s}", "kind", kind_of(list));
		if (as_pb)
			status = write_proto(s, folder, names, list, entry);
		else
			json_object_set_new(entry, "elements", element_names(s, list));
		json_object_set_new(names, list->name, entry);
	}
	return status;
}

/* ---- padded outputs, cut to their counts */
static Status
read_result(Session *s, const char *path, bool as_pb, NamedTensor *out)
{
	NpyInfo info;
	void *data;

	if (as_pb) {
		RETURN_IF_ERROR(tensor_proto_read(s->arena, path, &out->dtype, &out->rank,
		                                  out->dims, &data));
	} else {
		RETURN_IF_ERROR(npy_read(s->arena, path, &info, &data));
		out->dtype = info.dtype;
		out->rank = info.rank;
		memcpy(out->dims, info.dims, sizeof(out->dims));
	}
	out->data = data;
	return NULL;
}

/* An unsigned type of the same size: elements are moved as bits. */
static DType
raw_type(DType d)
{
	switch (dtype_info[d].bits) {
	case 2: return U2;
	case 4: return U4;
	case 8: return U8;
	case 16: return U16;
	case 32: return U32;
	default: return U64;
	}
}

static void
cut(Arena *arena, NamedTensor *t, int axis, int64_t count)
{
	int64_t outer = 1, inner = 1, size = t->dims[axis];
	DType raw = raw_type(t->dtype);

	for (int i = 0; i < t->rank; i++)
		if (i != axis)
			*(i < axis ? &outer : &inner) *= t->dims[i];
	char *to = arena_alloc(arena, (size_t)dtype_bytes(raw, outer * count * inner) + 1);
	for (int64_t o = 0; o < outer; o++)
		for (int64_t i = 0; i < count * inner; i++)
			dtype_store_int(raw, to, o * count * inner + i,
			                dtype_load_int(raw, t->data, o * size * inner + i));
	t->dims[axis] = count;
	t->data = to;
}

static Status
cut_output(Session *s, const char *folder, json_t *names, const PaddedOutput *p, bool as_pb)
{
	const char *counted = s->import->bindings.at[0].outputs.at[p->first + 1].name;
	json_t *entry = json_object_get(names, p->name);
	const char *file = json_string_value(json_object_get(entry, "file"));
	const char *count_file = json_string_value(
		json_object_get(json_object_get(names, counted), "file"));
	NamedTensor t, count;

	if (!file || !count_file)
		return NULL; /* `grad` writes other results */
	char *path = path_join(s->arena, folder, file);
	char *count_path = path_join(s->arena, folder, count_file);
	RETURN_IF_ERROR(read_result(s, path, as_pb, &t));
	RETURN_IF_ERROR(read_result(s, count_path, as_pb, &count));
	int64_t n = dtype_load_int(count.dtype, count.data, 0), most = t.dims[p->axis];
	if (n < 0 || n > most)
		return status_error(EXIT_USAGE,
		                    "output \"%s\" has %lld elements along axis %d, --bound allows "
		                    "%lld",
		                    p->name, (long long)n, p->axis, (long long)most);
	cut(s->arena, &t, p->axis, n);
	unlink(count_path);
	json_object_del(names, counted);
	json_array_set_new(json_object_get(entry, "shape"), (size_t)p->axis, json_integer(n));
	return as_pb ? tensor_proto_write(path, p->name, t.dtype, t.rank, t.dims, t.data)
	             : npy_write(path, t.dtype, t.rank, t.dims, t.data);
}

static Status
cut_outputs(Session *s, const char *folder, json_t *names, bool as_pb)
{
	const ImportBinding *b = &s->import->bindings.at[0];

	for (int i = 0; i < b->padded.n; i++)
		RETURN_IF_ERROR(cut_output(s, folder, names, &b->padded.at[i], as_pb));
	return NULL;
}

bool
results_finish(Session *s, const char *folder, bool as_pb)
{
	char *path = path_join(s->arena, folder, "names.json");

	if (!s->import ||
	    (s->import->bindings.at[0].lists.n == 0 && s->import->bindings.at[0].padded.n == 0))
		return true;
	json_t *names = json_load_file(path, 0, NULL);
	Status status = cut_outputs(s, folder, names, as_pb);
	if (!status)
		status = write_lists(s, folder, names, as_pb);
	if (!status) {
		char *text = json_dumps(names, JSON_INDENT(1) | JSON_PRESERVE_ORDER);
		status = file_write(path, text, (int64_t)strlen(text));
		memory_free(text);
	}
	json_decref(names);
	return !diag_status(s->diag, status);
}
