/* Writes files named after tensors, and names.json, which lists them. */
#include "runtime/model/values.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

Status
named_open(Arena *arena, const char *folder, NamedFiles *out)
{
	RETURN_IF_ERROR(folder_make(folder));
	*out = (NamedFiles){.arena = arena,
	                    .folder = folder,
	                    .taken = strmap_new(arena),
	                    .json = json_object()};
	return NULL;
}

Status
named_write(NamedFiles *n, const char *name, const char *prefix, const NpyInfo *type,
            const void *data)
{
	const char *stem = arena_printf(n->arena, "%s%s", prefix, file_name_of(n->arena, name));
	const char *file = arena_printf(n->arena, "%s.npy", stem);
	json_t *shape = json_array();

	for (int i = 2; strmap_get(n->taken, file); i++)
		file = arena_printf(n->arena, "%s.%d.npy", stem, i);
	strmap_put(n->taken, file, n);
	for (int i = 0; i < type->rank; i++)
		json_array_append_new(shape, json_integer(type->dims[i]));
	json_object_set_new(n->json, name,
	                    json_pack("{s:s,s:s,s:o}", "file", file, "dtype",
	                              dtype_info[type->dtype].name, "shape", shape));
	return npy_write(path_join(n->arena, n->folder, file), type->dtype, type->rank, type->dims,
	                 data);
}

Status
named_close(NamedFiles *n, Status status)
{
	char *text = status ? NULL : json_dumps(n->json, JSON_INDENT(1) | JSON_PRESERVE_ORDER);

	if (text)
		status = file_write(path_join(n->arena, n->folder, "names.json"), text,
		                    (int64_t)strlen(text));
	memory_free(text);
	json_decref(n->json);
	return status;
}
