/* Checks the bytes of a model file before protobuf-c unpacks them. protobuf-c limits neither depth
 * nor size, merges repeated singular messages and accepts NUL inside strings; this walk over the
 * bytes refuses all of these. The walk does not recurse: each level of nesting takes a frame of a
 * fixed stack. */
#include "frontend/file/reading.h"

#include <string.h>

typedef enum { VARINT, FLOAT, DOUBLE, NAME, TEXT, BYTES, RAW, MESSAGE_FIELD } FieldType;
typedef enum {
	M_NONE,
#define MESSAGE(name, fields) M_##name,
#include "frontend/file/message_list.def"
#undef MESSAGE
	N_MESSAGES,
} MessageType;

typedef struct {
	uint8_t number, type, repeated, message;
} ScanField;
typedef struct {
	const char *name;
	ScanField fields[24];
} ScanMessage;

#define FIELD(number, type, repeated, message) {number, type, repeated, M_##message},
static const ScanMessage messages[N_MESSAGES] = {
#define MESSAGE(name, fields) [M_##name] = {#name, {fields}},
#include "frontend/file/message_list.def"
#undef MESSAGE
};
#undef FIELD

/* LONGEST_HEAD: a tag and a length or number, of at most 10 bytes each. */
enum { MAX_NAME = 64 << 10, LONGEST_HEAD = 20 };

typedef struct {
	const uint8_t *at, *end;
	const ScanMessage *message;
	uint32_t seen; /* bit i: singular field i was seen */
} Frame;
typedef struct {
	const uint8_t *start;
	ModelFile *file; /* NULL: all bytes are in memory */
	int64_t n_fields, n_nodes;
	int depth;
	Frame frames[MAX_MESSAGE_DEPTH + 1];
} Scan;

static Status
scan_error(const Scan *s, const Frame *f, const char *what)
{
	Status status = status_error(EXIT_INVALID, "byte %lld, in a %s: %s",
	                             (long long)(f->at - s->start), f->message->name, what);

	return s->file ? status_annotate(status, "%s", s->file->path) : status;
}

/* Reads on until the bytes up to `end` are in memory. */
static Status
scan_need(const Scan *s, const uint8_t *end)
{
	return s->file ? model_file_need(s->file, end - s->start) : NULL;
}

/* Reads a varint; returns the address after it. NULL: the varint is longer than 10 bytes or exceeds
 * 64 bits, or the message ends. */
static const uint8_t *
read_varint(const uint8_t *at, const uint8_t *end, uint64_t *out)
{
	*out = 0;
	for (int shift = 0; shift < 70; shift += 7) {
		if (at == end || (shift == 63 && *at > 1))
			return NULL;
		*out |= (uint64_t)(*at & 0x7f) << shift;
		if (!(*at++ & 0x80))
			return at;
	}
	return NULL;
}

static const ScanField *
find_field(const ScanMessage *m, uint64_t number)
{
	for (int i = 0; i < COUNT(m->fields) && m->fields[i].number; i++)
		if (m->fields[i].number == number)
			return &m->fields[i];
	return NULL;
}

static const char *
check_string(const ScanField *field, const uint8_t *at, uint64_t n)
{
	if (field->type == NAME && n > MAX_NAME)
		return "a name of more than 64 KiB";
	if (n && memchr(at, 0, n))
		return "a string holds a NUL byte";
	if (!utf8_valid((const char *)at, n))
		return "a string is not valid UTF-8";
	return NULL;
}

static const char *
check_packed(const ScanField *field, const uint8_t *at, const uint8_t *end)
{
	uint64_t value;

	if (field->type == FLOAT)
		return (end - at) % 4 ? "packed floats of a length that is no multiple of 4" : NULL;
	if (field->type == DOUBLE)
		return (end - at) % 8 ? "packed doubles of a length that is no multiple of 8"
		                      : NULL;
	while (at && at < end)
		at = read_varint(at, end, &value);
	return at ? NULL : "a number of more than 64 bits";
}

/* A length-delimited field whose content lies in [at, at + n). */
static Status
scan_bytes(Scan *s, Frame *f, const ScanField *field, const uint8_t *at, uint64_t n)
{
	const char *fault = NULL;

	if (field && field->type == MESSAGE_FIELD) {
		if (s->depth == MAX_MESSAGE_DEPTH)
			return scan_error(s, f, "nesting deeper than 100");
		s->n_nodes += field->message == M_NodeProto;
		s->frames[++s->depth] = (Frame){
			.at = at, .end = at + n, .message = &messages[field->message]};
		return NULL;
	}
	if (field && field->type == RAW && s->file &&
	    model_file_set_aside(s->file, at - s->start, (int64_t)n))
		return NULL;
	RETURN_IF_ERROR(scan_need(s, at + n));
	if (!field || field->type == BYTES || field->type == RAW)
		return NULL;
	if (field->type == NAME || field->type == TEXT)
		fault = check_string(field, at, n);
	else if (!field->repeated)
		fault = "a number encoded as bytes";
	else
		fault = check_packed(field, at, at + n);
	return fault ? scan_error(s, f, fault) : NULL;
}

static bool
wire_fits(const ScanField *field, int wire)
{
	if (!field || wire == 2)
		return !field || field->type > DOUBLE || field->repeated;
	return (wire == 0 && field->type == VARINT) || (wire == 1 && field->type == DOUBLE) ||
	       (wire == 5 && field->type == FLOAT);
}

/* Skips the content of a field; a length-delimited field may push a frame. */
static Status
scan_content(Scan *s, Frame *f, const ScanField *field, int wire)
{
	uint64_t n = wire == 1 ? 8 : 4;
	const uint8_t *at = f->at;

	if (wire == 0) {
		if (!(at = read_varint(at, f->end, &n)))
			return scan_error(s, f, "a number of more than 64 bits, or cut off");
		f->at = at;
		return NULL;
	}
	if (wire == 2 && !(at = read_varint(at, f->end, &n)))
		return scan_error(s, f, "a length of more than 64 bits, or cut off");
	if (n > (uint64_t)(f->end - at))
		return scan_error(s, f,
		                  "a field runs beyond the end of its message: the file is "
		                  "cut off or no ONNX model");
	Status status = wire == 2 ? scan_bytes(s, f, field, at, n) : NULL;
	f->at = at + n;
	return status;
}

static Status
scan_field(Scan *s, Frame *f)
{
	uint64_t tag;

	RETURN_IF_ERROR(
		scan_need(s, f->end - f->at > LONGEST_HEAD ? f->at + LONGEST_HEAD : f->end));
	const uint8_t *at = read_varint(f->at, f->end, &tag);

	if (!at || tag >> 3 == 0 || tag >> 3 > 0x1fffffff)
		return scan_error(s, f, "no field number: this is no ONNX model");
	int wire = (int)(tag & 7);
	if (wire == 3 || wire == 4 || wire > 5)
		return scan_error(s, f, "a group or an unknown wire type");
	const ScanField *field = find_field(f->message, tag >> 3);
	if (!wire_fits(field, wire))
		return scan_error(s, f, "a field of the wrong type");
	if (field && !field->repeated) {
		if (f->seen >> field->number & 1)
			return scan_error(s, f, "a field that may stand once stands twice");
		f->seen |= 1u << field->number;
	}
	if (++s->n_fields > MAX_FIELDS)
		return scan_error(s, f, "more than 67108864 fields");
	f->at = at;
	return scan_content(s, f, field, wire);
}

static Status
scan(ModelFile *file, const uint8_t *bytes, int64_t n, MessageType type, int64_t *n_nodes)
{
	Scan s = {.start = bytes, .file = file};

	s.frames[0] = (Frame){.at = bytes, .end = bytes + n, .message = &messages[type]};
	while (s.depth >= 0) {
		Frame *f = &s.frames[s.depth];
		if (f->at == f->end)
			s.depth--;
		else
			RETURN_IF_ERROR(scan_field(&s, f));
	}
	*n_nodes = s.n_nodes;
	return NULL;
}

Status
scan_model(ModelFile *file, int64_t *n_nodes)
{
	return scan(file, file->bytes, file->n, M_ModelProto, n_nodes);
}

Status
scan_list(const uint8_t *bytes, int64_t n, bool optional)
{
	int64_t n_nodes;

	return scan(NULL, bytes, n, optional ? M_OptionalProto : M_SequenceProto, &n_nodes);
}

Status
scan_tensor(const uint8_t *bytes, int64_t n)
{
	int64_t n_nodes;

	return scan(NULL, bytes, n, M_TensorProto, &n_nodes);
}
