/* Decodes TensorProto, ONNX's message for a tensor, into plain arrays: every encoding of every
 * element type, checked before memory is allocated. */
#include "frontend/file/external.h"
#include "frontend/file/reading.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_UNKNOWN_TYPE (ONNX__TENSOR_PROTO__DATA_TYPE__INT2 + 1)

bool
tensor_dtype(int onnx_type, DType *out)
{
	for (int i = 0; i < N_DTYPES; i++)
		if (dtype_info[i].onnx == onnx_type) {
			*out = (DType)i;
			return true;
		}
	return false;
}

int
tensor_onnx_type(DType t)
{
	return dtype_info[t].onnx;
}

bool
is_float_type(int onnx_type)
{
	DType t;

	return tensor_dtype(onnx_type, &t) && dtype_is_float(t);
}

bool
tensor_is_external(const TensorProto *t)
{
	return t->has_data_location &&
	       t->data_location == ONNX__TENSOR_PROTO__DATA_LOCATION__EXTERNAL;
}

/* The typed field that holds the elements of a type. */
typedef enum { IN_FLOAT, IN_INT32, IN_INT64, IN_DOUBLE, IN_UINT64, N_TYPED } TypedField;
static TypedField
typed_field(DType t)
{
	switch (t) {
	case F32: return IN_FLOAT;
	case F64: return IN_DOUBLE;
	case S64: return IN_INT64;
	case U32:
	case U64: return IN_UINT64;
	default: return IN_INT32;
	}
}

static void
typed_counts(const TensorProto *t, size_t counts[N_TYPED])
{
	counts[IN_FLOAT] = t->n_float_data;
	counts[IN_INT32] = t->n_int32_data;
	counts[IN_INT64] = t->n_int64_data;
	counts[IN_DOUBLE] = t->n_double_data;
	counts[IN_UINT64] = t->n_uint64_data;
}

static const char *
dims_fault(const TensorProto *t, int64_t *n)
{
	*n = 1;
	if (t->n_dims > MAX_RANK)
		return "has a rank above 16";
	for (size_t i = 0; i < t->n_dims; i++)
		if (t->dims[i] < 0)
			return "has a negative dimension";
	for (size_t i = 0; i < t->n_dims; i++) {
		if (!size_mul(*n, t->dims[i] ? t->dims[i] : 1, n) || *n > MAX_ELEMENTS)
			return "has more elements than can be addressed";
	}
	for (size_t i = 0; i < t->n_dims; i++)
		if (t->dims[i] == 0)
			*n = 0;
	return NULL;
}

static const char *
int32_fault(const TensorProto *t, DType type)
{
	const DTypeInfo *info = &dtype_info[type];
	int bits = info->bits < 8 ? 8 : info->bits;
	int64_t lo = 0, hi = type == BOOL ? 1 : (1ll << bits) - 1;

	if (info->class == CLASS_SIGNED && info->bits >= 8) {
		lo = -(1ll << (bits - 1));
		hi = -lo - 1;
	}
	for (size_t i = 0; i < t->n_int32_data; i++)
		if (t->int32_data[i] < lo || t->int32_data[i] > hi)
			return "has an int32_data entry outside the range of its type";
	for (size_t i = 0; type == U32 && i < t->n_uint64_data; i++)
		if (t->uint64_data[i] > UINT32_MAX)
			return "has a uint64_data entry outside the range of its type";
	return NULL;
}

static const char *
raw_fault(const TensorProto *t, DType type, int64_t n)
{
	if (t->raw_data.len != (uint64_t)dtype_bytes(type, n))
		return "has raw_data of another length than its shape needs";
	for (size_t i = 0; type == BOOL && i < t->raw_data.len; i++)
		if (t->raw_data.data[i] > 1)
			return "has a bool byte other than 0 and 1";
	return NULL;
}

/* Strings are counted only; their content is never read. */
static const char *
string_fault(const TensorProto *t, size_t others, int64_t n)
{
	if (t->has_raw_data || others)
		return "holds strings in a field for numbers";
	return t->n_string_data != (uint64_t)n ? "has more or fewer strings than elements" : NULL;
}

/* Returns NULL or what is wrong with a tensor. External data is not read. */
static const char *
tensor_fault(const TensorProto *t, int *exit_code)
{
	size_t counts[N_TYPED], total = 0;
	DType type;
	int64_t n;
	const char *fault = dims_fault(t, &n);

	*exit_code = EXIT_INVALID;
	if (fault)
		return fault;
	if (t->segment) {
		*exit_code = EXIT_UNSUPPORTED;
		return "is a segment of a tensor, which is not supported";
	}
	if (!t->has_data_type || t->data_type <= 0 || t->data_type > FIRST_UNKNOWN_TYPE + 32)
		return "has no valid data type";
	if (t->data_type >= FIRST_UNKNOWN_TYPE) {
		*exit_code = EXIT_UNSUPPORTED;
		return "has a data type newer than ONNX 1.22";
	}
	typed_counts(t, counts);
	for (int i = 0; i < N_TYPED; i++)
		total += counts[i];
	if (t->data_type == ONNX__TENSOR_PROTO__DATA_TYPE__STRING)
		return string_fault(t, total, n);
	if (tensor_is_external(t))
		return t->has_raw_data || total || t->n_string_data
		               ? "has external data and data inside"
		               : NULL;
	if (t->n_external_data)
		return "has keys of external data, but its data is inside";
	if (!tensor_dtype(t->data_type, &type))
		return NULL; /* a complex tensor is refused where it is used */
	TypedField field = typed_field(type);
	if ((t->has_raw_data != 0) + (total != 0) > 1 || total != counts[field] || t->n_string_data)
		return "has data in two fields, or in one that its type does not use";
	if (t->has_raw_data)
		return raw_fault(t, type, n);
	int64_t per = dtype_info[type].bits < 8 && type != BOOL ? 8 / dtype_info[type].bits : 1;
	if (total && total != (uint64_t)((n + per - 1) / per))
		return "has more or fewer entries than its shape needs";
	return field == IN_INT32 || type == U32 ? int32_fault(t, type) : NULL;
}

static bool
tensor_has_data(const TensorProto *t)
{
	return t->has_raw_data || t->n_float_data || t->n_int32_data || t->n_int64_data ||
	       t->n_double_data || t->n_uint64_data || tensor_is_external(t);
}

void
check_tensor(const Model *model, const TensorProto *t, const char *what, Diag *diag)
{
	ExternalData external;
	int exit_code;
	const char *fault = tensor_fault(t, &exit_code);

	if (fault)
		model_error(model, diag, exit_code, "%s %s", what, fault);
	else if (tensor_is_external(t))
		external_parse(model, t, &external, diag);
}

void
check_sparse(const Model *model, const Onnx__SparseTensorProto *s, const char *what, Diag *diag)
{
	const TensorProto *v = s->values, *at = s->indices;
	int64_t n = 1, last = -1;

	if (!v || !at || s->n_dims == 0 || v->n_dims != 1 ||
	    at->data_type != ONNX__TENSOR_PROTO__DATA_TYPE__INT64) {
		model_error(model, diag, EXIT_INVALID,
		            "%s is sparse without values, int64 indices or dimensions", what);
		return;
	}
	check_tensor(model, v, what, diag);
	check_tensor(model, at, what, diag);
	for (size_t i = 0; i < s->n_dims; i++)
		if (s->dims[i] < 0 || !size_mul(n, s->dims[i], &n))
			n = -1, i = s->n_dims;
	bool linear = at->n_dims == 1 && n >= 0 && at->dims[0] == v->dims[0];
	if (!linear) {
		model_error(model, diag,
		            at->n_dims == 2 && n >= 0 ? EXIT_UNSUPPORTED : EXIT_INVALID,
		            "%s is sparse with indices that are not one number per value", what);
		return;
	}
	const int64_t *p = at->has_raw_data ? (const int64_t *)(const void *)at->raw_data.data
	                                    : at->int64_data;
	size_t count = at->has_raw_data ? at->raw_data.len / 8 : at->n_int64_data;
	for (size_t i = 0; i < count; i++) {
		int64_t index;
		memcpy(&index, p + i, 8);
		if (index <= last || index >= n) {
			model_error(model, diag, EXIT_INVALID,
			            "%s is sparse, and its index %lld is outside of the "
			            "tensor or not above the index before it",
			            what, (long long)index);
			return;
		}
		last = index;
	}
}

/* ---- elements */
static void *
typed_elements(Arena *arena, const TensorProto *t, DType type, int64_t n)
{
	void *to = arena_alloc(arena, (size_t)dtype_bytes(type, n));
	int bits = dtype_info[type].bits;

	if (n == 0)
		return to;
	switch (typed_field(type)) {
	case IN_FLOAT: return memcpy(to, t->float_data, (size_t)n * 4);
	case IN_DOUBLE: return memcpy(to, t->double_data, (size_t)n * 8);
	case IN_INT64: return memcpy(to, t->int64_data, (size_t)n * 8);
	case IN_UINT64:
		for (int64_t i = 0; i < n; i++) {
			if (type == U64)
				((uint64_t *)to)[i] = t->uint64_data[i];
			else
				((uint32_t *)to)[i] = (uint32_t)t->uint64_data[i];
		}
		return to;
	default: break;
	}
	for (size_t i = 0; i < t->n_int32_data; i++) {
		if (bits == 32)
			((int32_t *)to)[i] = t->int32_data[i];
		else if (bits == 16)
			((uint16_t *)to)[i] = (uint16_t)t->int32_data[i];
		else
			((uint8_t *)to)[i] = (uint8_t)t->int32_data[i];
	}
	return to;
}

/* Sets type and shape of a tensor that tensor_fault accepted; false: it holds strings or complex
 * numbers. */
static bool
tensor_header(const TensorProto *t, TensorData *out)
{
	*out = (TensorData){.rank = (int)t->n_dims};
	if (t->n_dims)
		memcpy(out->dims, t->dims, sizeof(int64_t) * t->n_dims);
	dims_fault(t, &out->n);
	return tensor_dtype(t->data_type, &out->dtype);
}

const char *
tensor_decode(Arena *arena, const TensorProto *t, TensorData *out, int *exit_code)
{
	const char *fault = tensor_fault(t, exit_code);

	if (fault)
		return fault;
	if (!tensor_header(t, out)) {
		*exit_code = EXIT_UNSUPPORTED;
		return "holds strings or complex numbers, which are not supported";
	}
	if (!tensor_has_data(t) && out->n)
		return "has no data";
	if (t->has_raw_data)
		out->data = t->raw_data.data;
	else if (!tensor_is_external(t))
		out->data = typed_elements(arena, t, out->dtype, out->n);
	if (out->n == 0)
		out->data = arena_alloc(arena, 16);
	return NULL;
}

static bool
load_external(Model *model, const TensorProto *t, TensorData *out, Diag *diag)
{
	int64_t bytes = dtype_bytes(out->dtype, out->n);
	ExternalData e;
	char hex[41];
	int fd;

	if (!external_parse(model, t, &e, diag) || !external_open(model, t, &e, bytes, &fd, diag))
		return false;
	void *data = malloc(bytes ? (size_t)bytes : 1);
	if (!data) {
		model_error(model, diag, EXIT_SYSTEM, "tensor %s: no memory for %lld bytes",
		            quoted(model, t->name), (long long)bytes);
		return false;
	}
	vec_push(model->arena, &model->blocks, data);
	Status status = file_pread(fd, e.location, data, bytes, e.offset);
	if (status && status->exit_code != EXIT_SYSTEM)
		status->exit_code = EXIT_SYSTEM;
	if (diag_status(diag, status_annotate(status, "%s", model->path)))
		return false;
	if (e.checksum) {
		sha1_hex(data, (size_t)bytes, hex);
		if (strcmp(hex, e.checksum)) {
			model_error(model, diag, EXIT_INVALID,
			            "tensor %s: external data has SHA1 %s, "
			            "the file says %s",
			            quoted(model, t->name), hex, quoted(model, e.checksum));
			return false;
		}
	}
	out->data = data;
	return true;
}

bool
tensor_load(Model *model, const TensorProto *t, bool shapes_only, TensorData *out, Diag *diag)
{
	uint64_t found;
	int exit_code;

	/* A fault is reported once per import: if the tensor failed before but `diag` has no error,
	 * this is another import of the same model. */
	if (intmap_get(model->loaded, (uint64_t)(uintptr_t)t, &found) &&
	    (found || diag_errors(diag) > 0)) {
		if (found)
			*out = *(const TensorData *)(uintptr_t)found;
		return found != 0;
	}
	const char *fault = NULL;
	bool ok = true;
	if (shapes_only && (!tensor_has_data(t) || tensor_is_external(t)) && tensor_header(t, out))
		out->data = NULL;
	else if ((fault = tensor_decode(model->arena, t, out, &exit_code)))
		model_error(model, diag, exit_code, "tensor %s %s",
		            quoted(model, t->name ? t->name : ""), fault);
	else if (tensor_is_external(t))
		ok = load_external(model, t, out, diag);
	ok = ok && !fault;
	TensorData *kept = ok ? arena_copy(model->arena, out, sizeof(*out)) : NULL;
	intmap_put(model->loaded, (uint64_t)(uintptr_t)t, (uint64_t)(uintptr_t)kept);
	return ok;
}

bool
tensor_is_there(const Model *model, const TensorProto *t)
{
	if (!tensor_is_external(t))
		return tensor_has_data(t);
	for (size_t i = 0; i < t->n_external_data; i++)
		if (t->external_data[i]->key && !strcmp(t->external_data[i]->key, "location"))
			return t->external_data[i]->value &&
			       external_path(model->arena, &model->folders,
			                     t->external_data[i]->value);
	return false;
}

bool
tensor_has_non_finite(const TensorData *t)
{
	if (!t->data || !dtype_is_float(t->dtype))
		return false;
	if (t->dtype == F32) {
		const float *x = t->data;
		for (int64_t i = 0; i < t->n; i++)
			if (!isfinite(x[i]))
				return true;
		return false;
	}
	for (int64_t i = 0; i < t->n; i++)
		if (!isfinite(dtype_load_float(t->dtype, t->data, i)))
			return true;
	return false;
}

bool
tensor_data_equal(const TensorData *a, const TensorData *b)
{
	return a->dtype == b->dtype && a->rank == b->rank && a->data && b->data &&
	       memcmp(a->dims, b->dims, sizeof(int64_t) * (size_t)a->rank) == 0 &&
	       memcmp(a->data, b->data, (size_t)dtype_bytes(a->dtype, a->n)) == 0;
}

bool
tensor_is_transpose(const TensorData *a, const TensorData *b)
{
	size_t size = dtype_info[a->dtype].bits / 8;

	if (a->rank != 2 || b->rank != 2 || a->dtype != b->dtype || !a->data || !b->data || !size ||
	    a->dims[0] != b->dims[1] || a->dims[1] != b->dims[0])
		return false;
	for (int64_t i = 0; i < a->dims[0]; i++)
		for (int64_t k = 0; k < a->dims[1]; k++)
			if (memcmp((const char *)a->data + (size_t)(i * a->dims[1] + k) * size,
			           (const char *)b->data + (size_t)(k * a->dims[0] + i) * size,
			           size))
				return false;
	return true;
}

bool
tensor_constant_valued(const TensorData *t, double *value)
{
	size_t size = dtype_info[t->dtype].bits / 8;

	if (!t->data || t->n == 0 || !size || !dtype_is_float(t->dtype))
		return false;
	*value = dtype_load_float(t->dtype, t->data, 0);
	for (int64_t i = 1; i < t->n; i++)
		if (memcmp((const char *)t->data + (size_t)i * size, t->data, size))
			return false;
	return true;
}
