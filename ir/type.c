/* Makes types (a dtype and a shape). Types are interned: equal types are one object, so pointers
 * can be compared. */
#include "ir/ir.h"

#include <string.h>

static uint64_t
type_hash(const TypeInfo *t)
{
	uint64_t h = hash_mix((uint64_t)t->dtype + 1, (uint64_t)t->rank);

	return hash_bytes(t->dims, sizeof(int64_t) * (size_t)t->rank, h);
}

static bool
type_equal(const TypeInfo *a, const TypeInfo *b)
{
	return a->dtype == b->dtype && a->rank == b->rank &&
	       memcmp(a->dims, b->dims, sizeof(int64_t) * (size_t)a->rank) == 0;
}

Type
type_new(Module *m, DType dtype, int rank, const int64_t *dims)
{
	TypeInfo t = {.dtype = dtype, .rank = rank, .n = 1};
	bool empty = false;
	uint64_t found;

	for (int i = 0; i < rank; i++) {
		t.dims[i] = dims[i];
		empty |= dims[i] == 0;
	}
	/* If one dim is 0, the product is 0 even if the other dims overflow. In all other cases,
	 * type inference has checked that the product fits. */
	for (int i = 0; i < rank; i++)
		t.n = empty ? 0 : t.n * dims[i];
	/* Different types may have the same hash: the next hashes are tried. */
	for (uint64_t h = type_hash(&t);; h++) {
		if (!intmap_get(m->interned_types, h, &found)) {
			TypeInfo *fresh = arena_copy(m->arena, &t, sizeof(t));
			intmap_put(m->interned_types, h, (uint64_t)(uintptr_t)fresh);
			return fresh;
		}
		Type old = (Type)(uintptr_t)found;
		if (type_equal(old, &t))
			return old;
	}
}

Type
type_scalar(Module *m, DType dtype)
{
	return type_new(m, dtype, 0, NULL);
}

Type
type_with_dtype(Module *m, Type t, DType dtype)
{
	return t->dtype == dtype ? t : type_new(m, dtype, t->rank, t->dims);
}

Type
type_drop_axis(Module *m, Type t, int axis)
{
	int64_t dims[MAX_RANK];
	int rank = 0;

	for (int i = 0; i < t->rank; i++)
		if (i != axis)
			dims[rank++] = t->dims[i];
	return type_new(m, t->dtype, rank, dims);
}

bool
type_same_shape(Type a, Type b)
{
	return a->rank == b->rank &&
	       memcmp(a->dims, b->dims, sizeof(int64_t) * (size_t)a->rank) == 0;
}

int64_t
type_bytes(Type t)
{
	return dtype_bytes(t->dtype, t->n);
}

void
type_strides(Type t, int64_t strides[MAX_RANK])
{
	int64_t stride = 1;

	for (int i = t->rank - 1; i >= 0; i--) {
		strides[i] = stride;
		stride *= t->dims[i];
	}
}

void
type_print(Text *out, Type t)
{
	text_printf(out, "%s[", dtype_info[t->dtype].name);
	for (int i = 0; i < t->rank; i++)
		text_printf(out, "%s%lld", i ? "," : "", (long long)t->dims[i]);
	text_add(out, "]");
}

Ints
ints_of_type(Type t)
{
	Ints list = {.n = t->rank};

	memcpy(list.at, t->dims, sizeof(int64_t) * (size_t)t->rank);
	return list;
}

bool
ints_has(const Ints *list, int64_t x)
{
	for (int i = 0; i < list->n; i++)
		if (list->at[i] == x)
			return true;
	return false;
}
