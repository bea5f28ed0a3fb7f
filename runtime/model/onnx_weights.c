/* Reads the tensors of an ONNX file for --load. ONNX is protobuf (onnx.proto); an executable has no library for it, so this file
 * reads the few messages that hold tensors, by their wire format (https://protobuf.dev/programming-guides/encoding): a message is a
 * list of fields, each a tag (number and kind), then a varint, 4 or 8 bytes, or a length and that many bytes. Every length is checked
 * against the bytes that are left. Example: the initializer "w" of f32[2,3] is the message
 * {dims: 2, dims: 3, data_type: 1, name: "w", raw_data: 24 bytes} in field 5 of the graph, which is field 7 of the model. */
#include "runtime/model/weight_file.h"

#include <string.h>

typedef struct {
	const uint8_t *at, *end;
} Wire;
typedef enum { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 } WireKind;
typedef struct {
	uint32_t number;
	WireKind kind;
	uint64_t value; /* of WIRE_VARINT */
	Wire bytes;     /* of the other kinds */
} Field;

static bool
read_varint(Wire *w, uint64_t *out)
{
	*out = 0;
	for (int shift = 0; shift < 64 && w->at < w->end; shift += 7) {
		uint8_t byte = *w->at++;
		*out |= (uint64_t)(byte & 0x7f) << shift;
		if (!(byte & 0x80))
			return true;
	}
	return false;
}

/* Reads the next field; false: the message is malformed. */
static bool
read_field(Wire *w, Field *f)
{
	uint64_t tag, n;

	if (!read_varint(w, &tag) || tag >> 3 == 0 || tag >> 32)
		return false;
	*f = (Field){.number = (uint32_t)(tag >> 3), .kind = (WireKind)(tag & 7)};
	switch (f->kind) {
	case WIRE_VARINT: return read_varint(w, &f->value);
	case WIRE_64: n = 8; break;
	case WIRE_32: n = 4; break;
	case WIRE_BYTES:
		if (!read_varint(w, &n))
			return false;
		break;
	default: return false;
	}
	if (n > (uint64_t)(w->end - w->at))
		return false;
	f->bytes = (Wire){w->at, w->at + n};
	w->at += n;
	return true;
}

static bool
is_message(const Field *f, uint32_t number)
{
	return f->number == number && f->kind == WIRE_BYTES;
}

static const char *
text_of(Arena *arena, Wire w)
{
	return arena_strndup(arena, (const char *)w.at, (size_t)(w.end - w.at));
}

/* ---- TensorProto */
enum {
	TENSOR_DIMS = 1,
	TENSOR_TYPE = 2,
	TENSOR_FLOAT = 4,
	TENSOR_INT32 = 5,
	TENSOR_INT64 = 7,
	TENSOR_NAME = 8,
	TENSOR_RAW = 9,
	TENSOR_DOUBLE = 10,
	TENSOR_UINT64 = 11,
	TENSOR_EXTERNAL = 13,
	TENSOR_LOCATION = 14,
};
typedef struct {
	Arena *arena;
	WeightTensor t;
	uint64_t type;
	bool external, too_many_axes;
	bool raw;
	Wire raw_data;
	uint32_t typed; /* number of the typed field that has elements; 0: no such field */
	VEC(uint64_t)
	elements;       /* of the typed field: bits of a float or double, or a whole number */
	int64_t length; /* of external data; -1: not given */
} Tensor;

static void
add_dim(Tensor *t, uint64_t dim)
{
	if (t->t.of.rank == MAX_RANK)
		t->too_many_axes = true;
	else
		t->t.of.dims[t->t.of.rank++] = (int64_t)dim;
}

/* Reads a repeated number: one number, or packed numbers. */
static bool
read_numbers(Tensor *t, const Field *f, int64_t width)
{
	Wire w = f->bytes;
	uint64_t value = f->value;

	if (f->kind == WIRE_VARINT) {
		vec_push(t->arena, &t->elements, value);
		return width == 0;
	}
	while (w.at < w.end) {
		if (width == 0) {
			if (!read_varint(&w, &value))
				return false;
		} else {
			if (w.end - w.at < width)
				return false;
			value = 0;
			memcpy(&value, w.at, (size_t)width);
			w.at += width;
		}
		vec_push(t->arena, &t->elements, value);
	}
	return true;
}

static bool
read_dims(Tensor *t, const Field *f)
{
	Wire w = f->bytes;
	uint64_t dim;

	if (f->kind == WIRE_VARINT) {
		add_dim(t, f->value);
		return true;
	}
	while (w.at < w.end) {
		if (!read_varint(&w, &dim))
			return false;
		add_dim(t, dim);
	}
	return true;
}

/* A key of external data: {key: "offset", value: "4096"}. */
static bool
read_external(Tensor *t, Wire w)
{
	const char *key = "", *value = "";
	Field f;

	while (w.at < w.end) {
		if (!read_field(&w, &f))
			return false;
		if (is_message(&f, 1))
			key = text_of(t->arena, f.bytes);
		if (is_message(&f, 2))
			value = text_of(t->arena, f.bytes);
	}
	if (strcmp(key, "location") == 0)
		t->t.from = value;
	if (strcmp(key, "offset") == 0)
		return parse_int(value, &t->t.of.offset) && t->t.of.offset >= 0;
	if (strcmp(key, "length") == 0)
		return parse_int(value, &t->length) && t->length >= 0;
	return true;
}

static bool
read_tensor_field(Tensor *t, const Field *f)
{
	static const struct {
		uint32_t number;
		int64_t width; /* bytes of a packed element; 0: a varint */
	} typed[] = {{TENSOR_FLOAT, 4},
	             {TENSOR_INT32, 0},
	             {TENSOR_INT64, 0},
	             {TENSOR_DOUBLE, 8},
	             {TENSOR_UINT64, 0}};

	for (int i = 0; i < COUNT(typed); i++)
		if (f->number == typed[i].number) {
			t->typed = f->number;
			return read_numbers(t, f, typed[i].width);
		}
	if (f->number == TENSOR_DIMS)
		return read_dims(t, f);
	if (f->number == TENSOR_TYPE)
		t->type = f->value;
	if (f->number == TENSOR_LOCATION)
		t->external = f->value == 1;
	if (is_message(f, TENSOR_NAME))
		t->t.of.name = text_of(t->arena, f->bytes);
	if (is_message(f, TENSOR_RAW)) {
		t->raw = true;
		t->raw_data = f->bytes;
	}
	return !is_message(f, TENSOR_EXTERNAL) || read_external(t, f->bytes);
}

/* The typed field that holds elements of a type. */
static uint32_t
field_of(DType d)
{
	return d == F32               ? TENSOR_FLOAT
	       : d == F64             ? TENSOR_DOUBLE
	       : d == S64             ? TENSOR_INT64
	       : d == U32 || d == U64 ? TENSOR_UINT64
	                              : TENSOR_INT32;
}

/* Stores the low bytes of each element, which are the element's bits. */
static void
store_elements(Tensor *t)
{
	SafeTensor *of = &t->t.of;
	int64_t size = dtype_bytes(of->dtype, 1);
	char *data = arena_alloc(t->arena, (size_t)of->n_bytes + 1);

	for (int i = 0; i < t->elements.n; i++)
		memcpy(data + i * size, &t->elements.at[i], (size_t)size);
	of->data = data;
}

/* Finds type, bytes and data of a tensor whose fields have been read. Returns what is wrong, or NULL. *known: the tensor has a type
 * that a state may have. */
static const char *
finish_tensor(Tensor *t, bool *known)
{
	SafeTensor *of = &t->t.of;
	int64_t n = 1;
	int type = 0;

	while (type < N_DTYPES && (uint64_t)dtype_info[type].onnx != t->type)
		type++;
	*known = type < N_DTYPES && dtype_info[type].bits >= 8 && !t->too_many_axes;
	if (!*known)
		return NULL;
	of->dtype = (DType)type;
	for (int i = 0; i < of->rank; i++)
		if (of->dims[i] < 0 || __builtin_mul_overflow(n, of->dims[i], &n) ||
		    n > INT64_MAX / 16)
			return "has an impossible shape";
	of->n_bytes = dtype_bytes(of->dtype, n);
	if (t->external && (!t->t.from || !*t->t.from))
		return "has external data without a location";
	if (t->external)
		return t->length >= 0 && t->length != of->n_bytes
		               ? "has external data of another length than its shape needs"
		               : NULL;
	t->t.from = NULL;
	if (t->raw && t->raw_data.end - t->raw_data.at != of->n_bytes)
		return "has more or fewer bytes than its shape needs";
	if (!t->raw && t->elements.n && t->typed != field_of(of->dtype))
		return "has data in a field that its type does not use";
	if (!t->raw && t->elements.n != n)
		return "has more or fewer elements than its shape needs";
	if (t->raw)
		of->data = t->raw_data.at;
	else
		store_elements(t);
	return NULL;
}

/* ---- the model */
typedef struct {
	Arena *arena;
	const char *path;
	WeightTensors *out;
	const char *fault; /* what is wrong, or NULL */
	const char *name;  /* tensor with the fault; NULL: the file itself */
} Reading;

static const char malformed[] = "is no ONNX file: a protobuf message is malformed";

static bool
fail(Reading *r, const char *name, const char *fault)
{
	r->name = name;
	r->fault = fault;
	return false;
}

/* name: of the value, if the tensor belongs to a node; NULL: the tensor has its own name */
static bool
add_tensor(Reading *r, Wire w, const char *name)
{
	Tensor t = {.arena = r->arena, .t.of.name = "", .length = -1};
	bool known;
	Field f;

	while (w.at < w.end)
		if (!read_field(&w, &f) || !read_tensor_field(&t, &f))
			return fail(r, NULL, malformed);
	if (name)
		t.t.of.name = name;
	const char *fault = finish_tensor(&t, &known);
	if (fault)
		return fail(r, t.t.of.name, fault);
	if (known && *t.t.of.name)
		vec_push(r->arena, r->out, t.t);
	return true;
}

enum { ATTRIBUTE_TENSOR = 5 };

/* A node {output: "w", op_type: "Constant", attribute: {t: TENSOR}}; other nodes have no weights. */
static bool
add_node(Reading *r, Wire w)
{
	enum { NODE_OUTPUT = 2, NODE_TYPE = 4, NODE_ATTRIBUTE = 5 };
	const char *output = NULL;
	bool constant = false;
	Wire attribute = {0}, tensor = {0};
	Field f;

	while (w.at < w.end) {
		if (!read_field(&w, &f))
			return fail(r, NULL, malformed);
		if (is_message(&f, NODE_OUTPUT) && !output)
			output = text_of(r->arena, f.bytes);
		if (is_message(&f, NODE_TYPE))
			constant = f.bytes.end - f.bytes.at == 8 &&
			           memcmp(f.bytes.at, "Constant", 8) == 0;
		if (is_message(&f, NODE_ATTRIBUTE))
			attribute = f.bytes;
	}
	if (!constant || !output)
		return true;
	while (attribute.at < attribute.end) {
		if (!read_field(&attribute, &f))
			return fail(r, NULL, malformed);
		if (is_message(&f, ATTRIBUTE_TENSOR))
			tensor = f.bytes;
	}
	return !tensor.at || add_tensor(r, tensor, output);
}

static bool
add_graph(Reading *r, Wire w)
{
	enum { GRAPH_NODE = 1, GRAPH_INITIALIZER = 5 };
	Field f;

	while (w.at < w.end) {
		if (!read_field(&w, &f))
			return fail(r, NULL, malformed);
		if (is_message(&f, GRAPH_NODE) && !add_node(r, f.bytes))
			return false;
		if (is_message(&f, GRAPH_INITIALIZER) && !add_tensor(r, f.bytes, NULL))
			return false;
	}
	return true;
}

Status
onnx_weights_read(Arena *arena, const char *path, const void *bytes, int64_t n, WeightTensors *out)
{
	enum { MODEL_GRAPH = 7 };
	Reading r = {.arena = arena, .path = path, .out = out};
	Wire w = {bytes, (const uint8_t *)bytes + n};
	bool ok = true, any = false;
	Field f;

	while (ok && w.at < w.end) {
		ok = read_field(&w, &f) || fail(&r, NULL, malformed);
		if (ok && is_message(&f, MODEL_GRAPH)) {
			any = true;
			ok = add_graph(&r, f.bytes);
		}
	}
	if (ok && !any)
		ok = fail(&r, NULL, "is no ONNX file: it has no graph");
	if (ok)
		return NULL;
	if (r.name)
		return status_error(EXIT_CHECKPOINT, "%s: tensor \"%s\" %s", path, r.name, r.fault);
	return status_error(EXIT_CHECKPOINT, "%s %s", path, r.fault);
}
