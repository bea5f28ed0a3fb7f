/* Divides the gradients that ranks sum into buckets; each bucket is one message. A bucket's sum
 * may start after the last instruction of the last micro-batch that touches the bucket, so most
 * buckets are sent while earlier layers are still computed. A unit (the gradients of one layer
 * block) becomes at most PARTS_OF_UNIT buckets, of at least LEAST_BUCKET and at most MOST_BUCKET
 * bytes. Small states (sums of the loss, running statistics, all gradients of a small model) lie
 * next to each other and share a bucket, or a few buckets if there are many such states. Buckets
 * are cut at multiples of SUM_BLOCK elements, and so are the parts of a state that ranks hold. */
#include "codegen/schedule/order.h"

/* Bytes; these limits are estimates, not measured. Below LEAST_BUCKET, a message takes about as
 * long as an empty message. Above MOST_BUCKET, a bucket waits long for its last gradient, so its
 * message starts late. */
enum { ALIGNMENT = 64 };
enum { LEAST_BUCKET = 1 << 18, MOST_BUCKET = 1 << 25, PARTS_OF_UNIT = 16 };

/* Is s summed over ranks? True for floats that last for one step (gradients, sums of the loss)
 * and lie in no unit. */
static bool
is_summed(const State *s)
{
	return s->lifetime == LIFE_STEP && !s->unit && dtype_is_float(s->type->dtype);
}

bool
state_is_small_sum(const State *s)
{
	return is_summed(s) && !s->sharded && type_bytes(s->type) < LEAST_BUCKET;
}

static int64_t
whole_blocks(int64_t n)
{
	return (n + SUM_BLOCK - 1) / SUM_BLOCK * SUM_BLOCK;
}

int64_t
state_place_bytes(const State *s)
{
	return is_summed(s) ? dtype_bytes(s->type->dtype, whole_blocks(s->type->n))
	                    : type_bytes(s->type);
}

static int64_t
bucket_elements(Type t)
{
	int64_t bytes = type_bytes(t) / PARTS_OF_UNIT;

	if (bytes > MOST_BUCKET)
		bytes = MOST_BUCKET;
	if (bytes < LEAST_BUCKET)
		bytes = LEAST_BUCKET;
	return bytes / dtype_bytes(t->dtype, 1) / SUM_BLOCK * SUM_BLOCK;
}

/* Cuts `whole` into buckets of `each` elements and appends them to the list. The last bucket may
 * be shorter. */
static void
add_cut(Arena *arena, Buckets *list, const Bucket *whole, int64_t each)
{
	for (int64_t first = 0; first < whole->n; first += each) {
		int64_t left = whole->n - first;
		Bucket b = {.dtype = whole->dtype,
		            .offset = whole->offset + dtype_bytes(whole->dtype, first),
		            .n = left < each ? left : each,
		            .name = whole->name};
		vec_push(arena, list, b);
	}
}

static void
add_unit(Arena *arena, Buckets *list, const State *s)
{
	const Bucket whole = {s->type->dtype, s->offset, whole_blocks(s->type->n), s->name};

	add_cut(arena, list, &whole, bucket_elements(s->type));
}

/* Gives the small sums of type `dtype` offsets, one after the other, from byte `at` on. Returns
 * the bytes that they take together, rounded up to whole blocks of SUM_BLOCK elements. */
static int64_t
place_small_sums(Module *m, DType dtype, int64_t at)
{
	int64_t first = at, block = dtype_bytes(dtype, SUM_BLOCK);

	for (int i = 0; i < m->states.n; i++) {
		State *s = m->states.at[i];
		if (!state_is_small_sum(s) || s->type->dtype != dtype)
			continue;
		s->offset = at;
		at += (type_bytes(s->type) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
	}
	return (at - first + block - 1) / block * block;
}

int64_t
small_sums_place(Module *m, int64_t at)
{
	for (DType t = 0; t < N_DTYPES; t++)
		at += place_small_sums(m, t, at);
	return at;
}

/* The bucket of a type's small sums, as small_sums_place laid them out; n = 0 if there are no such sums. */
static Bucket
small_sums(const Module *m, DType dtype)
{
	Bucket b = {.dtype = dtype, .name = "sums"};
	int64_t bytes = 0, block = dtype_bytes(dtype, SUM_BLOCK);

	for (int i = 0; i < m->states.n; i++) {
		const State *s = m->states.at[i];
		if (!state_is_small_sum(s) || s->type->dtype != dtype)
			continue;
		b.offset = bytes ? b.offset : s->offset;
		bytes = s->offset + type_bytes(s->type) - b.offset;
	}
	b.n = (bytes + block - 1) / block * SUM_BLOCK;
	return b;
}

Buckets
buckets_of(Arena *arena, const Module *m, DataParallelMode mode)
{
	Buckets list = {0};

	for (int i = 0; i < m->states.n; i++)
		if (is_summed(m->states.at[i]) && !state_is_small_sum(m->states.at[i]) &&
		    !(mode && m->states.at[i]->sharded))
			add_unit(arena, &list, m->states.at[i]);
	for (DType t = 0; t < N_DTYPES; t++) {
		Bucket whole = small_sums(m, t);
		if (whole.n > 0)
			add_cut(arena, &list, &whole, MOST_BUCKET / dtype_bytes(t, 1));
	}
	return list;
}
