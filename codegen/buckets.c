/* Gradients are summed over ranks in buckets. A bucket may start when the last instruction of the last micro-batch that
 * touches it has run, so most of them travel while earlier layers are still computed. A unit becomes at most
 * PARTS_OF_UNIT buckets, where these are not too small or too large for that. Buckets end at multiples of BLOCK
 * elements, as the parts of ranks do. */
#include "codegen/streams.h"

/* bytes: 256 KiB take as long to send as to start (two ranks of one machine); what is larger than 32 MiB starts late. */
enum { LEAST_BUCKET = 1 << 18, MOST_BUCKET = 1 << 25, PARTS_OF_UNIT = 16, BLOCK = 4096 };

static int64_t
bucket_elements(Type t)
{
	int64_t bytes = type_bytes(t) / PARTS_OF_UNIT;

	if (bytes > MOST_BUCKET)
		bytes = MOST_BUCKET;
	if (bytes < LEAST_BUCKET)
		bytes = LEAST_BUCKET;
	return bytes / dtype_bytes(t->dtype, 1) / BLOCK * BLOCK;
}

/* What a step adds up: its own states, but those that lie in a unit. */
static bool
is_summed(const State *s)
{
	return s->lifetime == LIFE_STEP && !s->unit && dtype_is_float(s->type->dtype);
}

Buckets
buckets_of(Arena *arena, FormatWriter *w, const Module *m)
{
	Buckets list = {0};

	for (int i = 0; i < m->states.n; i++) {
		const State *s = m->states.at[i];
		int64_t n = s->type->n, each = bucket_elements(s->type);

		for (int64_t first = 0; is_summed(s) && first < n; first += each) {
			Bucket b = {.dtype = s->type->dtype,
			            .offset = s->offset + dtype_bytes(s->type->dtype, first),
			            .n = n - first < each ? n - first : each,
			            .name = format_string(w, s->name)};
			vec_push(arena, &list, b);
		}
	}
	return list;
}
