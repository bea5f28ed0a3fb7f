/* Checks stores of elements smaller than a byte (4-bit numbers, bits). A store changes a whole
 * byte, so parts that run at the same time must never change the same byte. A parallel loop
 * promises that its parts store different elements; this check makes sure that the parts also
 * store different bytes. */
#include "ir/loop/loop.h"

typedef struct {
	const Kernel *k;
	Arena *arena;
	int64_t *extents;     /* by scalar: extent of a loop variable; 0 for any other scalar */
	int *openers;         /* by scalar: statement of the loop whose variable it is */
	VEC(LoopValue) parts; /* variables of the parallel loops */
	/* the FOR, IF and EACH statements around the current one, outermost first */
	VEC(int) open;
} Bytes;

/* Widens the range [*low, *high] by the values that a term can have. False: this overflows; no
 * tensor is that large. */
static bool
add_reach(const Bytes *b, AffineTerm t, int64_t *low, int64_t *high)
{
	int64_t *end = t.coefficient < 0 ? low : high, reach;

	return size_mul(t.coefficient, b->extents[t.scalar] - 1, &reach) &&
	       size_add(*end, reach, end);
}

static bool
is_part(const Bytes *b, LoopValue scalar)
{
	for (int i = 0; i < b->parts.n; i++)
		if (b->parts.at[i] == scalar)
			return true;
	return false;
}

/* Returns the term with the least coefficient, among the terms with a variable of a parallel loop.
 * NULL: no such term. */
static const AffineTerm *
least_step(const Bytes *b, const Affine *place)
{
	const AffineTerm *least = NULL;

	for (int i = 0; i < place->n; i++)
		if (is_part(b, place->terms[i].scalar) &&
		    (!least || place->terms[i].coefficient < least->coefficient))
			least = &place->terms[i];
	return least;
}

/* Let `step` be the smallest number of elements by which a parallel loop's next iteration moves
 * the place. Does each part store only within its own run of `step` elements, and are these runs
 * whole bytes? */
static bool
in_own_run(const Bytes *b, const Affine *place, int64_t per_byte)
{
	const AffineTerm *own = least_step(b, place);
	int64_t step = own ? own->coefficient : 0, low, high, all;

	if (step <= 0 || step % per_byte != 0 || !size_mul(step, b->extents[own->scalar], &all))
		return false;
	low = place->constant % step;
	low += low < 0 ? step : 0;
	high = low;
	for (int i = 0; i < place->n; i++) {
		AffineTerm t = place->terms[i];
		if (t.scalar == own->scalar || t.coefficient % all == 0)
			continue;
		if (b->extents[t.scalar] <= 0 || !add_reach(b, t, &low, &high))
			return false;
	}
	return low >= 0 && high < step;
}

/* The term of the place with this coefficient; NULL: no such term. */
static const AffineTerm *
term_of(const Affine *place, int64_t coefficient)
{
	for (int i = 0; i < place->n; i++)
		if (place->terms[i].coefficient == coefficient)
			return &place->terms[i];
	return NULL;
}

/* Do the loops of one part together store all elements of every byte that they touch? Example: bits
 * are stored at v + 4 * w + 8 * p, where v < 4 and w < 2 are variables of loops in the part. The
 * loops over v and w store the 8 bits of one byte, and the term 8 * p moves the place by whole
 * bytes. There must be no condition inside these loops, because it might leave elements out. */
static bool
fills_bytes(const Bytes *b, const Affine *place, int64_t per_byte)
{
	int64_t counted = 1;
	int n_counting = 0, n_bytes = 0;

	while (counted % per_byte != 0) {
		const AffineTerm *t = term_of(place, counted);
		if (!t || is_part(b, t->scalar) || b->extents[t->scalar] <= 1 ||
		    b->k->body.at[b->openers[t->scalar]]
		            .place) /* a loop with a bound may end within a byte */
			return false;
		for (int i = b->open.n - 1; b->open.at[i] != b->openers[t->scalar]; i--)
			if (b->k->body.at[b->open.at[i]].kind == LOOP_STATEMENT_IF)
				return false;
		if (!size_mul(counted, b->extents[t->scalar], &counted))
			return false;
		n_counting++;
	}
	for (int i = 0; i < place->n; i++)
		n_bytes += place->terms[i].coefficient % per_byte == 0;
	return n_counting + n_bytes == place->n && place->constant % per_byte == 0;
}

static bool
stores_whole_bytes(const Bytes *b, const LoopStatement *s)
{
	const LoopBuffer *buffer = &b->k->buffers.at[s->buffer];
	int bits = dtype_info[buffer->type->dtype].bits;
	bool several = false;

	for (int i = 0; i < b->parts.n; i++)
		several |= b->extents[b->parts.at[i]] > 1;
	if (bits >= 8 || !buffer_is_param(buffer) || !several)
		return true;
	return in_own_run(b, s->place, 8 / bits) || fills_bytes(b, s->place, 8 / bits);
}

int
kernel_shared_byte(const Kernel *k)
{
	Arena *arena = arena_new();
	Bytes b = {.k = k,
	           .arena = arena,
	           .extents = NEW_ARRAY(arena, int64_t, k->n_scalars),
	           .openers = NEW_ARRAY(arena, int, k->n_scalars)};
	int found = -1;

	for (int i = 0; i < k->body.n && found < 0; i++) {
		const LoopStatement *s = &k->body.at[i];
		if (s->kind == LOOP_STATEMENT_FOR) {
			b.extents[s->result] = s->extent;
			b.openers[s->result] = i;
			if (s->mode == LOOP_PARALLEL)
				vec_push(arena, &b.parts, s->result);
		}
		if (statement_opens(s))
			vec_push(arena, &b.open, i);
		if (s->kind == LOOP_STATEMENT_END) {
			b.open.n--;
			b.parts.n -= k->body.at[s->match].kind == LOOP_STATEMENT_FOR &&
			             k->body.at[s->match].mode == LOOP_PARALLEL;
		}
		if (s->kind == LOOP_STATEMENT_STORE && !stores_whole_bytes(&b, s))
			found = i;
	}
	arena_free(arena);
	return found;
}
