/* Hashes, compares and copies the attributes of nodes by the field tables of their ops, and
 * makes constant tensors. */
#include "ir/ir.h"

#include <stdlib.h>
#include <string.h>

static const size_t field_sizes[] = {
	[FIELD_INT] = sizeof(int64_t),   [FIELD_FLOAT] = sizeof(double),
	[FIELD_BOOL] = sizeof(bool),     [FIELD_ENUM] = sizeof(int),
	[FIELD_DTYPE] = sizeof(DType),   [FIELD_DTYPE_IF_ANY] = sizeof(int),
	[FIELD_INTS] = sizeof(Ints),     [FIELD_TENSOR] = sizeof(void *),
	[FIELD_FUNC] = sizeof(void *),   [FIELD_STATE] = sizeof(void *),
	[FIELD_KERNEL] = sizeof(void *),
};

size_t
field_size(FieldKind kind)
{
	return field_sizes[kind];
}

static const Tensor *
field_tensor(const void *attr, const Field *f)
{
	return *(const Tensor *const *)((const char *)attr + f->offset);
}

bool
tensor_equal(const Tensor *a, const Tensor *b)
{
	if (a == b)
		return true;
	return a && b && a->type == b->type && a->hash == b->hash &&
	       memcmp(a->data, b->data, (size_t)type_bytes(a->type)) == 0;
}

bool
attr_equal(const OpRow *row, const void *a, const void *b)
{
	for (const Field *f = row->fields; f && f->name; f++) {
		if (f->kind == FIELD_TENSOR) {
			if (!tensor_equal(field_tensor(a, f), field_tensor(b, f)))
				return false;
		} else if (memcmp((const char *)a + f->offset, (const char *)b + f->offset,
		                  field_sizes[f->kind]) != 0) {
			return false;
		}
	}
	return true;
}

static uint64_t
hash_ints(uint64_t h, const Ints *list)
{
	return hash_bytes(list->at, sizeof(list->at[0]) * (size_t)list->n,
	                  hash_mix(h, (uint64_t)list->n));
}

uint64_t
attr_hash(const OpRow *row, const void *attr)
{
	uint64_t h = 0;

	for (const Field *f = row->fields; f && f->name; f++) {
		if (f->kind == FIELD_TENSOR)
			h = hash_mix(h, field_tensor(attr, f) ? field_tensor(attr, f)->hash : 0);
		else if (f->kind == FIELD_INTS)
			h = hash_ints(h, (const Ints *)((const char *)attr + f->offset));
		else
			h = hash_bytes((const char *)attr + f->offset, field_sizes[f->kind], h);
	}
	return h;
}

Tensor *
tensor_borrow(Module *m, Type type, const void *data)
{
	Tensor *t = NEW(m->arena, Tensor);

	t->type = type;
	t->data = data;
	t->hash = hash_bytes(data, (size_t)type_bytes(type), (uint64_t)(uintptr_t)type->dtype);
	for (int i = 0; i < type->rank; i++)
		t->hash = hash_mix(t->hash, (uint64_t)type->dims[i] + 1);
	return t;
}

Tensor *
tensor_new(Module *m, Type type, const void *data)
{
	return tensor_borrow(m, type, arena_copy(m->arena, data, (size_t)type_bytes(type)));
}

Tensor *
tensor_splat(Module *m, Type type, double value)
{
	char *data = arena_alloc(m->arena, (size_t)type_bytes(type));
	int64_t whole = 0;

	if (!dtype_is_float(type->dtype)) {
		dtype_convert(type->dtype, &whole, F64, &value, 1);
		whole = dtype_load_int(type->dtype, &whole, 0);
	}
	for (int64_t i = 0; i < type->n; i++) {
		if (dtype_is_float(type->dtype))
			dtype_store_float(type->dtype, data, i, value);
		else
			dtype_store_int(type->dtype, data, i, whole);
	}
	return tensor_borrow(m, type, data);
}

const Tensor *
tensor_convert(Module *m, const Tensor *t, DType to)
{
	if (t->type->dtype == to)
		return t;
	Type type = type_with_dtype(m, t->type, to);
	void *data = arena_alloc(m->arena, (size_t)type_bytes(type));
	dtype_convert(to, data, t->type->dtype, t->data, type->n);
	return tensor_borrow(m, type, data);
}

double
tensor_float(const Tensor *t, int64_t i)
{
	DType d = t->type->dtype;

	return dtype_is_float(d) ? dtype_load_float(d, t->data, i)
	                         : (double)dtype_load_int(d, t->data, i);
}

int64_t
tensor_int(const Tensor *t, int64_t i)
{
	DType d = t->type->dtype;

	if (!dtype_is_float(d))
		return dtype_load_int(d, t->data, i);
	double x = dtype_load_float(d, t->data, i);
	return x >= -0x1p63 && x < 0x1p63 ? (int64_t)x : x > 0 ? INT64_MAX : x < 0 ? INT64_MIN : 0;
}

bool
tensor_is_splat(const Tensor *t, double *value)
{
	DType d = t->type->dtype;

	if (t->type->n == 0 || t->type->n > 1 << 16)
		return false;
	for (int64_t i = 1; i < t->type->n; i++) {
		if (dtype_is_float(d)) {
			double a = dtype_load_float(d, t->data, 0),
			       b = dtype_load_float(d, t->data, i);
			if (memcmp(&a, &b, sizeof(a)) != 0)
				return false;
		} else if (dtype_load_int(d, t->data, 0) != dtype_load_int(d, t->data, i)) {
			return false;
		}
	}
	int64_t first = dtype_is_float(d) ? 0 : tensor_int(t, 0);
	if (first > 1ll << 52 || first < (d == U64 ? 0 : -(1ll << 52)))
		return false;
	*value = tensor_float(t, 0);
	return true;
}
