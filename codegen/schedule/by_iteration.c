/* Finds the elements of an argument that an iteration of a kernel touches. If iteration i touches
 * only [i * each, (i + 1) * each), a range of iterations needs only its own part of the argument.
 * A rank that holds that part can then run these iterations. Places are affine in the loop
 * variables, so their coefficients show which elements are touched. For each argument, this takes
 * linear time in the kernel's statements. */
#include "codegen/schedule/schedule.h"

enum { MAX_PARALLEL = 8 };
typedef struct {
	const Kernel *k;
	int64_t each;
	/* by scalar: extents of loop variables; 0 for other scalars */
	const int64_t *extents;
	LoopValue parallel[MAX_PARALLEL]; /* outermost first */
	int n_parallel;
} ByIteration;

/* How many iterations of the kernel run while this parallel loop's variable keeps its value: the
 * product of the extents of the parallel loops inside it. 0: `scalar` is not the variable of a
 * parallel loop. */
static int64_t
step_of(const ByIteration *b, LoopValue scalar)
{
	int64_t step = 1;

	for (int i = b->n_parallel - 1; i >= 0; i--) {
		if (b->parallel[i] == scalar)
			return step;
		step *= b->extents[b->parallel[i]];
	}
	return 0;
}

/* Does the place stay within the iteration's own elements [i * each, (i + 1) * each)? */
static bool
stays_inside(const ByIteration *b, const Affine *place)
{
	int64_t low = place->constant, high = low;
	int moving = 0;

	for (int i = 0; i < place->n; i++) {
		const AffineTerm *t = &place->terms[i];
		int64_t step = step_of(b, t->scalar), extent = b->extents[t->scalar], reach;
		if (step > 0 && extent > 1) {
			moving++;
			if (t->coefficient != step * b->each)
				return false;
			continue;
		}
		if (extent <= 0 || !size_mul(t->coefficient < 0 ? -t->coefficient : t->coefficient,
		                             extent - 1, &reach))
			return false;
		*(t->coefficient < 0 ? &low : &high) += t->coefficient < 0 ? -reach : reach;
	}
	for (int i = 0; i < b->n_parallel; i++)
		/* every parallel loop with more than one iteration must move the place */
		moving -= b->extents[b->parallel[i]] > 1;
	return moving == 0 && low >= 0 && high < b->each;
}

static bool
touches_own(const ByIteration *b, int buffer)
{
	const Kernel *k = b->k;

	for (int i = 0; i < k->body.n; i++) {
		const LoopStatement *s = &k->body.at[i];
		bool access = s->kind == LOOP_STATEMENT_LOAD || s->kind == LOOP_STATEMENT_STORE;
		if (s->kind == LOOP_STATEMENT_COPY && s->windows->buffer == buffer)
			return false;
		if (access && s->buffer == buffer && !stays_inside(b, s->place))
			return false;
	}
	return true;
}

static void
find_parallel(ByIteration *b, int64_t *extents)
{
	for (int i = 0; i < b->k->body.n; i++) {
		const LoopStatement *s = &b->k->body.at[i];
		if (s->kind != LOOP_STATEMENT_FOR)
			continue;
		extents[s->result] = s->extent;
		if (s->mode != LOOP_PARALLEL)
			continue;
		if (b->n_parallel == MAX_PARALLEL) {
			b->n_parallel++;
			return;
		}
		b->parallel[b->n_parallel++] = s->result;
	}
}

int64_t
kernel_each(const Kernel *k, int buffer)
{
	Arena *arena = arena_new();
	int64_t *extents = NEW_ARRAY(arena, int64_t, k->n_scalars + 1);
	int64_t n = k->buffers.at[buffer].type->n;
	ByIteration b = {
		.k = k, .each = k->iterations > 0 ? n / k->iterations : 0, .extents = extents};
	bool own = b.each > 0 && n % k->iterations == 0 && !k->library;

	if (own)
		find_parallel(&b, extents);
	own = own && b.n_parallel <= MAX_PARALLEL && touches_own(&b, buffer);
	arena_free(arena);
	return own && b.each * dtype_info[k->buffers.at[buffer].type->dtype].bits % 8 == 0 ? b.each
	                                                                                   : 0;
}
