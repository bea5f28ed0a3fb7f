/* Reads and writes SequenceProto and OptionalProto files, as in ONNX's test data:
 * https://github.com/onnx/onnx/blob/main/onnx/onnx-data.proto. Both messages hold their tensors in
 * field 3. An optional holds its sequence in field 5. */
#include "frontend/file/reading.h"
#include "frontend/file/tensor_file.h"

#include <string.h>

enum { NAME_FIELD = 1, TYPE_FIELD = 2, TENSOR_FIELD = 3, SEQUENCE_FIELD = 5 };
enum { TYPE_NOTHING = 0, TYPE_TENSOR = 1, TYPE_SEQUENCE = 3 };

typedef struct {
	const uint8_t *at, *end;
} Bytes;

static uint64_t
take_varint(Bytes *b)
{
	uint64_t value = 0;

	for (int shift = 0; b->at < b->end && shift < 64; shift += 7) {
		value |= (uint64_t)(*b->at & 0x7f) << shift;
		if (!(*b->at++ & 0x80))
			break;
	}
	return value;
}

/* Takes the next field of a message that the scan accepted; returns its number. *content: its bytes,
 * empty for a varint. */
static int
take_field(Bytes *b, Bytes *content)
{
	uint64_t tag = take_varint(b), n = 0;
	int wire = (int)(tag & 7);

	*content = (Bytes){b->at, b->at};
	if (wire == 0)
		take_varint(b);
	else
		n = wire == 2 ? take_varint(b) : wire == 1 ? 8 : 4;
	*content = (Bytes){b->at, b->at + n};
	b->at += n;
	return (int)(tag >> 3);
}

static Status
take_element(Arena *arena, const char *path, Bytes bytes, GivenList *list, NamedTensor *out)
{
	void *data;

	*out = (NamedTensor){.name = list_element_name(arena, list->name, list->n)};
	RETURN_IF_ERROR(tensor_proto_decode(arena, path, bytes.at, bytes.end - bytes.at,
	                                    &out->dtype, &out->rank, out->dims, &data));
	out->data = data;
	list->n++;
	return NULL;
}

static int
count_tensors(Bytes b)
{
	Bytes content;
	int n = 0;

	while (b.at < b.end)
		n += take_field(&b, &content) == TENSOR_FIELD;
	return n;
}

static Status
take_elements(Arena *arena, const char *path, Bytes b, GivenList *list)
{
	NamedTensor *elements = NEW_ARRAY(arena, NamedTensor, count_tensors(b) + 1);
	Bytes content;

	list->elements = elements;
	while (b.at < b.end) {
		int field = take_field(&b, &content);
		if (field == TENSOR_FIELD)
			RETURN_IF_ERROR(
				take_element(arena, path, content, list, &elements[list->n]));
		else if (field > TENSOR_FIELD)
			return status_error(EXIT_DATA, "%s: its elements are no tensors", path);
	}
	return NULL;
}

/* The sequence inside an optional; NULL bytes: the optional is empty. */
static Bytes
sequence_of(Bytes b)
{
	Bytes content;

	while (b.at < b.end)
		if (take_field(&b, &content) == SEQUENCE_FIELD)
			return content;
	return (Bytes){NULL, NULL};
}

const char *
list_element_name(Arena *arena, const char *name, int i)
{
	return arena_printf(arena, "%s[%d]", name, i);
}

Status
list_proto_read(Arena *arena, const char *path, GivenList *list)
{
	void *bytes;
	int64_t n;

	list->n = 0;
	RETURN_IF_ERROR(file_read(arena, path, INT32_MAX, &bytes, &n));
	Status status = scan_list(bytes, n, list->optional);
	if (status) {
		status->exit_code = EXIT_DATA;
		return status_annotate(status, "%s", path);
	}
	Bytes all = {bytes, (uint8_t *)bytes + n}, b = all;
	if (list->optional && list->sequence) {
		b = sequence_of(all);
		list->absent = b.at == NULL;
		if (list->absent && count_tensors(all))
			return status_error(EXIT_DATA, "%s: holds a tensor, needs a sequence",
			                    path);
	}
	RETURN_IF_ERROR(take_elements(arena, path, b, list));
	if (list->optional && !list->sequence)
		list->absent = list->n == 0;
	return NULL;
}

/* ---- writing */
static void
add_varint(Text *out, uint64_t value)
{
	do {
		uint8_t byte = (uint8_t)((value & 0x7f) | (value > 0x7f ? 0x80 : 0));
		text_add_bytes(out, &byte, 1);
		value >>= 7;
	} while (value);
}

static void
add_field(Text *out, int field, const void *bytes, size_t n)
{
	add_varint(out, (uint64_t)field << 3 | 2);
	add_varint(out, n);
	text_add_bytes(out, bytes, n);
}

static void
add_type(Text *out, int type)
{
	add_varint(out, TYPE_FIELD << 3);
	add_varint(out, (uint64_t)type);
}

static void
add_elements(Text *out, const GivenList *list)
{
	for (int i = 0; i < list->n; i++) {
		const NamedTensor *e = &list->elements[i];
		Arena *arena = arena_new();
		size_t n;
		uint8_t *bytes = tensor_proto_encode(arena, "", e->dtype, e->rank, e->dims, e->data,
		                                     &n);
		add_field(out, TENSOR_FIELD, bytes, n);
		arena_free(arena);
	}
}

Status
list_proto_write(const char *path, const GivenList *list)
{
	Text out = {0}, inner = {0};

	add_field(&out, NAME_FIELD, list->name, strlen(list->name));
	if (list->absent) {
		add_type(&out, TYPE_NOTHING);
	} else if (list->optional && list->sequence) {
		add_type(&out, TYPE_SEQUENCE);
		add_type(&inner, TYPE_TENSOR);
		add_elements(&inner, list);
		add_field(&out, SEQUENCE_FIELD, inner.at, inner.n);
	} else {
		add_type(&out, TYPE_TENSOR);
		add_elements(&out, list);
	}
	Status status = file_write(path, out.at, (int64_t)out.n);
	text_free(&out);
	text_free(&inner);
	return status;
}
