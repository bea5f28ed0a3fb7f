/* safetensors: 8 bytes of header length, a JSON object, the tensors' bytes without a gap.
 * https://huggingface.co/docs/safetensors. Refuses the same faults as the official reader: duplicate keys, holes, overlaps,
 * sizes that differ from the shape, bytes left at the end. */
#include "base/files/files.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_HEADER 100000000
/* Limits the JSON reader's memory for a hostile header: each value needs a comma, and the commas are counted first. */
#define MAX_VALUES 1000000
#define LENGTH_BYTES 8

typedef struct {
	Arena *arena;
	const char *path;
	int exit_code;
	int64_t data_offset, data_bytes;
} Reader;

static Status malformed(const Reader *r, const char *fmt, ...) PRINTF(2, 3);

static Status
malformed(const Reader *r, const char *fmt, ...)
{
	Text message = {0};
	va_list args;
	Status status;

	va_start(args, fmt);
	text_vprintf(&message, fmt, args);
	va_end(args);
	status = status_error(r->exit_code, "%s: %s", r->path, message.at);
	text_free(&message);
	return status;
}

static Status
read_json(Reader *r, int fd, int64_t file_bytes, json_t **out)
{
	uint8_t head[LENGTH_BYTES];
	uint64_t n = 0;
	int64_t n_values = 0;
	char *text;
	json_error_t error;

	if (file_bytes < LENGTH_BYTES)
		return malformed(r, "not a safetensors file: only %lld bytes",
		                 (long long)file_bytes);
	RETURN_IF_ERROR(file_pread_as(r->exit_code, fd, r->path, head, LENGTH_BYTES, 0));
	for (int i = 0; i < LENGTH_BYTES; i++)
		n |= (uint64_t)head[i] << 8 * i;
	if (n > MAX_HEADER || (int64_t)n > file_bytes - LENGTH_BYTES)
		return malformed(r, "truncated or no safetensors file: the header has %llu bytes",
		                 (unsigned long long)n);
	r->data_offset = LENGTH_BYTES + (int64_t)n;
	r->data_bytes = file_bytes - r->data_offset;
	text = arena_alloc(r->arena, (size_t)n + 1);
	RETURN_IF_ERROR(file_pread_as(r->exit_code, fd, r->path, text, (int64_t)n, LENGTH_BYTES));
	for (uint64_t i = 0; i < n; i++)
		n_values += text[i] == ',';
	if (n_values > MAX_VALUES)
		return malformed(r, "the header has more than %d values", MAX_VALUES);
	*out = json_loadb(text, n, JSON_REJECT_DUPLICATES, &error);
	if (!*out)
		return malformed(r, "malformed header: %s at byte %d", error.text, error.position);
	if (*text != '{' || !json_is_object(*out))
		return malformed(r, "malformed header: not an object");
	return NULL;
}

static Status
read_dtype(const Reader *r, const json_t *value, SafeTensor *t)
{
	const char *name = json_string_value(value);

	if (!name)
		return malformed(r, "tensor \"%s\" has no dtype", t->name);
	for (int i = 0; i < N_DTYPES; i++) {
		const char *known = dtype_info[i].safetensors;
		if (known && strcmp(known, name) == 0) {
			t->dtype = (DType)i;
			return NULL;
		}
	}
	return malformed(r, "tensor \"%s\" has dtype \"%s\", which cannot be read", t->name, name);
}

/* The number of bytes of n elements; false if elements of a packed type do not fill the last byte. */
static bool
bytes_of(DType dtype, int64_t n, int64_t *out)
{
	int64_t bits;

	if (!size_mul(n, dtype_info[dtype].bits, &bits) || bits % 8)
		return false;
	*out = bits / 8;
	return true;
}

static Status
read_shape(const Reader *r, const json_t *value, SafeTensor *t, int64_t *n_bytes)
{
	int64_t n = 1;

	*n_bytes = 0;
	if (!json_is_array(value))
		return malformed(r, "tensor \"%s\" has no shape", t->name);
	if (json_array_size(value) > MAX_RANK)
		return malformed(r, "tensor \"%s\" has more than %d dimensions", t->name, MAX_RANK);
	t->rank = (int)json_array_size(value);
	for (int i = 0; i < t->rank; i++) {
		const json_t *dim = json_array_get(value, (size_t)i);
		t->dims[i] = json_integer_value(dim);
		if (!json_is_integer(dim) || t->dims[i] < 0)
			return malformed(r, "tensor \"%s\": dimension %d is no size", t->name, i);
		if (!size_mul(n, t->dims[i], &n))
			return malformed(r, "tensor \"%s\": the shape is too large", t->name);
	}
	if (!bytes_of(t->dtype, n, n_bytes))
		return malformed(r, "tensor \"%s\": the shape does not fill whole bytes", t->name);
	return NULL;
}

static Status
read_offsets(const Reader *r, const json_t *value, SafeTensor *t, int64_t n_bytes)
{
	const json_t *first = json_array_get(value, 0), *last = json_array_get(value, 1);
	int64_t begin = json_integer_value(first), end = json_integer_value(last);

	if (json_array_size(value) != 2 || !json_is_integer(first) || !json_is_integer(last))
		return malformed(r, "tensor \"%s\" has no data_offsets", t->name);
	if (begin < 0 || end < begin || end > r->data_bytes)
		return malformed(r, "tensor \"%s\": bytes %lld to %lld of %lld", t->name,
		                 (long long)begin, (long long)end, (long long)r->data_bytes);
	if (end - begin != n_bytes)
		return malformed(
			r, "tensor \"%s\": the shape needs %lld bytes, data_offsets give %lld",
			t->name, (long long)n_bytes, (long long)(end - begin));
	t->offset = r->data_offset + begin;
	t->n_bytes = n_bytes;
	return NULL;
}

/* The format reserves the key `__metadata__`. A tensor with this name gets an apostrophe appended
 * in the file. So does a tensor whose name is `__metadata__` followed by apostrophes only. */
static bool
is_reserved(const char *name)
{
	static const char reserved[] = "__metadata__";
	size_t n = sizeof(reserved) - 1;

	return strncmp(name, reserved, n) == 0 && strspn(name + n, "'") == strlen(name + n);
}

static const char *
name_of_key(Arena *arena, const char *key)
{
	return is_reserved(key) ? arena_strndup(arena, key, strlen(key) - 1)
	                        : arena_strdup(arena, key);
}

static const char *
key_of_name(Arena *arena, const char *name)
{
	return is_reserved(name) ? arena_printf(arena, "%s'", name) : name;
}

static Status
read_tensor(const Reader *r, const char *name, const json_t *entry, SafeTensor *t)
{
	int64_t n_bytes;

	t->name = name_of_key(r->arena, name);
	RETURN_IF_ERROR(read_dtype(r, json_object_get(entry, "dtype"), t));
	RETURN_IF_ERROR(read_shape(r, json_object_get(entry, "shape"), t, &n_bytes));
	return read_offsets(r, json_object_get(entry, "data_offsets"), t, n_bytes);
}

static int
by_offset(const void *a, const void *b)
{
	const SafeTensor *x = a, *y = b;

	if (x->offset != y->offset)
		return x->offset < y->offset ? -1 : 1;
	return (x->n_bytes > y->n_bytes) - (x->n_bytes < y->n_bytes);
}

/* Each tensor begins where the previous tensor ends; the last tensor ends at the end of the file. */
static Status
check_layout(const Reader *r, const SafeTensors *st)
{
	int64_t end = r->data_offset;

	for (int i = 0; i < st->n_tensors; i++) {
		const SafeTensor *t = &st->tensors[i];
		if (t->offset < end)
			return malformed(r, "tensor \"%s\" overlaps tensor \"%s\"", t->name,
			                 t[-1].name);
		if (t->offset > end)
			return malformed(r, "a hole of %lld bytes before tensor \"%s\"",
			                 (long long)(t->offset - end), t->name);
		end += t->n_bytes;
	}
	if (end != r->data_offset + r->data_bytes)
		return malformed(r, "%lld bytes after the last tensor",
		                 (long long)(r->data_offset + r->data_bytes - end));
	return NULL;
}

static Status
read_metadata(const Reader *r, json_t *metadata, SafeTensors *out)
{
	const char *key;
	json_t *value;

	if (!json_is_object(metadata))
		return malformed(r, "malformed header: __metadata__ is not an object");
	out->metadata = NEW_ARRAY(r->arena, SafeText, json_object_size(metadata));
	json_object_foreach(metadata, key, value) {
		if (!json_is_string(value))
			return malformed(r, "malformed header: metadata \"%s\" is not text", key);
		out->metadata[out->n_metadata++] = (SafeText){
			arena_strdup(r->arena, key),
			arena_strdup(r->arena, json_string_value(value))};
	}
	return NULL;
}

static Status
read_tensors(const Reader *r, json_t *header, SafeTensors *out)
{
	const char *name;
	json_t *entry;

	out->tensors = NEW_ARRAY(r->arena, SafeTensor, json_object_size(header));
	json_object_foreach(header, name, entry) {
		if (strcmp(name, "__metadata__") == 0)
			RETURN_IF_ERROR(read_metadata(r, entry, out));
		else
			RETURN_IF_ERROR(
				read_tensor(r, name, entry, &out->tensors[out->n_tensors++]));
	}
	if (out->n_tensors)
		qsort(out->tensors, (size_t)out->n_tensors, sizeof(SafeTensor), by_offset);
	return check_layout(r, out);
}

Status
safetensors_open(Arena *arena, const char *path, int exit_code, SafeTensors *out)
{
	int64_t file_bytes;
	int fd;

	*out = (SafeTensors){.fd = -1};
	RETURN_IF_ERROR(file_open_regular(path, exit_code, &fd, &file_bytes));
	return safetensors_read(arena, path, fd, file_bytes, exit_code, out);
}

Status
safetensors_read(Arena *arena, const char *path, int fd, int64_t file_bytes, int exit_code,
                 SafeTensors *out)
{
	Reader r = {.arena = arena, .path = path, .exit_code = exit_code};
	json_t *header = NULL;

	*out = (SafeTensors){.fd = fd};
	Status status = read_json(&r, out->fd, file_bytes, &header);
	if (!status)
		status = read_tensors(&r, header, out);
	json_decref(header);
	if (status)
		safetensors_close(out);
	return status;
}

void
safetensors_close(SafeTensors *st)
{
	if (st->fd >= 0)
		close(st->fd);
	*st = (SafeTensors){.fd = -1};
}

/* Sorts wider elements first, else in the given order, so that every tensor is aligned in the file. */
static int
by_width(const void *a, const void *b)
{
	const SafeTensor *x = *(const SafeTensor *const *)a, *y = *(const SafeTensor *const *)b;
	int difference = dtype_info[y->dtype].bits - dtype_info[x->dtype].bits;

	return difference ? difference : (x > y) - (x < y);
}

static json_t *
describe(const SafeTensor *t, int64_t begin)
{
	json_t *shape = json_array();

	for (int i = 0; i < t->rank; i++)
		json_array_append_new(shape, json_integer(t->dims[i]));
	return json_pack("{s:s, s:o, s:[I, I]}", "dtype", dtype_info[t->dtype].safetensors, "shape",
	                 shape, "data_offsets", (json_int_t)begin,
	                 (json_int_t)(begin + t->n_bytes));
}

static Status
add_to_header(const Reader *r, json_t *header, const SafeTensor *t, int64_t begin)
{
	int64_t n = 1, n_bytes;

	for (int i = 0; i < t->rank; i++)
		n *= t->dims[i];
	if (!dtype_info[t->dtype].safetensors)
		return malformed(r, "tensor \"%s\": safetensors has no type %s", t->name,
		                 dtype_info[t->dtype].name);
	if (!bytes_of(t->dtype, n, &n_bytes) || n_bytes != t->n_bytes)
		return malformed(r, "tensor \"%s\": %lld bytes do not fill its shape", t->name,
		                 (long long)t->n_bytes);
	const char *key = key_of_name(r->arena, t->name);
	if (json_object_get(header, key))
		return malformed(r, "two tensors have the name \"%s\"", t->name);
	if (json_object_set_new(header, key, describe(t, begin)) != 0)
		return malformed(r, "tensor name \"%s\" is not UTF-8", t->name);
	return NULL;
}

static Status
write_header(Text *out, const Reader *r, const SafeTensor *const *order, const SafeTensors *st)
{
	json_t *header = json_object(), *metadata = json_object();
	const char length[LENGTH_BYTES] = {0};
	int64_t begin = 0;
	Status status = NULL;
	char *json;

	for (int i = 0; i < st->n_metadata; i++)
		json_object_set_new(metadata, st->metadata[i].key,
		                    json_string(st->metadata[i].value));
	if (st->n_metadata)
		json_object_set(header, "__metadata__", metadata);
	json_decref(metadata);
	for (int i = 0; i < st->n_tensors && !status; i++) {
		status = add_to_header(r, header, order[i], begin);
		begin += order[i]->n_bytes;
	}
	json = json_dumps(header, JSON_COMPACT);
	json_decref(header);
	if (status || !json) {
		memory_free(json);
		return status ? status : malformed(r, "the header cannot be written");
	}
	text_add_bytes(out, length, LENGTH_BYTES);
	text_add(out, json);
	memory_free(json);
	while (out->n % FILE_BLOCK)
		text_add(out, " ");
	size_t bytes = out->n - LENGTH_BYTES;
	for (int i = 0; i < LENGTH_BYTES; i++)
		out->at[i] = (char)(uint8_t)((uint64_t)bytes >> 8 * i);
	return bytes > MAX_HEADER ? malformed(r, "too many tensors for a safetensors file") : NULL;
}

static Status
parts_of(Arena *arena, const char *path, const SafeTensors *st, FilePart *parts, int *order)
{
	const Reader r = {.path = path, .exit_code = EXIT_SYSTEM, .arena = arena};
	int n = st->n_tensors;
	const SafeTensor **sorted = NEW_ARRAY(arena, const SafeTensor *, n);
	Text header = {0};

	for (int i = 0; i < n; i++)
		sorted[i] = &st->tensors[i];
	if (n)
		qsort(sorted, (size_t)n, sizeof(*sorted), by_width);
	Status status = write_header(&header, &r, sorted, st);
	if (!status)
		parts[0] = (FilePart){memcpy(arena_alloc(arena, header.n), header.at, header.n),
		                      (int64_t)header.n};
	text_free(&header);
	for (int i = 0; i < n; i++) {
		parts[i + 1] = (FilePart){sorted[i]->data, sorted[i]->n_bytes};
		if (order)
			order[i] = (int)(sorted[i] - st->tensors);
	}
	return status;
}

static SafeTensors
only_tensors(const SafeTensor *tensors, int n)
{
	return (SafeTensors){.tensors = (SafeTensor *)tensors, .n_tensors = n, .fd = -1};
}

Status
safetensors_parts(Arena *arena, const char *path, const SafeTensor *tensors, int n, FilePart *parts,
                  int *order)
{
	SafeTensors st = only_tensors(tensors, n);

	return parts_of(arena, path, &st, parts, order);
}

Status
safetensors_write_with(const char *path, const SafeTensors *st)
{
	Arena *arena = arena_new();
	FilePart *parts = NEW_ARRAY(arena, FilePart, st->n_tensors + 1);
	FileWriter *w;
	Status status = parts_of(arena, path, st, parts, NULL);

	if (!status)
		status = file_writer_open(path, &w);
	if (!status)
		status = file_writer_end(w, file_writer_add_parts(w, parts, st->n_tensors + 1));
	arena_free(arena);
	return status;
}

Status
safetensors_write(const char *path, const SafeTensor *tensors, int n)
{
	SafeTensors st = only_tensors(tensors, n);

	return safetensors_write_with(path, &st);
}
