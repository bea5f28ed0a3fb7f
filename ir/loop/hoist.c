/* Moves loads and arithmetic out of loops. A load moves before a loop if every iteration loads
 * from the same place of an input. A value computed from such loads moves with them, if its other
 * operands do not change in the loop:
 *
 *	for v3 < 8 {                       v4 = load x1[v0] : f32
 *	  v4 = load x1[v0] : f32           v5 = div v1, v4 : f32
 *	  v5 = div v1, v4 : f32            for v3 < 8 {
 *	  store y0[8*v0 + v3] = v5           store y0[8*v0 + v3] = v5
 *
 * A C compiler does not know that the store does not change x1. gradc knows this: a result may
 * share memory with an operand only if each iteration overwrites just the elements that it has
 * read itself (codegen/schedule/in_place.c), so no iteration reads what an earlier iteration has
 * written.
 *
 * A loop or condition may run its block zero times. A statement leaves such a block only if it
 * does no harm where the block would not have run: a load must have a place that is proven to lie
 * inside its buffer; an integer division never leaves. Takes linear time in statements. */
#include "ir/loop/loop.h"

enum { MAX_OPEN = 64 };

typedef struct {
	Kernel *k;
	int *depth;  /* by statement: number of blocks around it */
	int *target; /* by statement: number of blocks around the statement after the move */
	/* by statement: the outermost loop before which the statement can stand */
	int *before;
	bool *moves;      /* by statement: does it move? */
	int64_t *extents; /* by scalar: extent of a loop's variable; 0 for other scalars */
	/* by scalar: the place that a loop's variable stays below; NULL: no such place */
	const Affine **bounds;
	Arena *scratch;
	/* by scalar: number of blocks around the statement that computes it, after all
	 * statements that can move have moved */
	int *known;
	/* by scalar: the statement that computes it; -1: a loop's variable or an accumulator */
	int *giver;
} Hoist;

static bool
always_runs(const LoopStatement *s)
{
	return s->kind == LOOP_STATEMENT_FOR && !s->place && s->extent > 0 &&
	       s->mode != LOOP_PARALLEL;
}

/* Does executing the statement no harm, even if the block around it does not run? */
static bool
is_harmless(const Hoist *h, const LoopStatement *s)
{
	int64_t low, high;

	if (s->kind == LOOP_STATEMENT_OP)
		return dtype_is_float(s->type) || (s->op != LOOP_div && s->op != LOOP_rem);
	return s->kind != LOOP_STATEMENT_LOAD ||
	       (affine_range(h->scratch, s->place, h->extents, h->bounds, &low, &high) &&
	        low >= 0 && high < h->k->buffers.at[s->buffer].type->n);
}

static bool
lets_out(const LoopStatement *block, bool harmless)
{
	bool may_not_run = block->kind == LOOP_STATEMENT_IF ||
	                   (block->kind == LOOP_STATEMENT_FOR && block->mode != LOOP_PARALLEL);

	return always_runs(block) || (harmless && may_not_run);
}

static bool
may_move(const Kernel *k, const LoopStatement *s)
{
	return s->kind <= LOOP_STATEMENT_SCALAR ||
	       (s->kind == LOOP_STATEMENT_LOAD && s->n_operands == 0 &&
	        k->buffers.at[s->buffer].kind == BUFFER_IN);
}

/* Collects the scalars that a statement reads, in its operands and places. Returns their number. */
enum { MAX_READ = 64 };
static int
scalars_read(const LoopStatement *s, LoopValue out[MAX_READ])
{
	const Affine *places[MAX_PLACES];
	int n = 0;

	for (int i = 0; i < s->n_operands; i++)
		out[n++] = s->operands[i];
	for (int p = statement_places(s, places) - 1; p >= 0; p--)
		for (int t = 0; t < places[p]->n && n < MAX_READ; t++)
			out[n++] = places[p]->terms[t].scalar;
	return n;
}

/* Finds how many of its surrounding blocks statement i can leave: the scalars that the statement
 * reads must be known outside of these blocks. A statement never leaves a parallel loop, and leaves
 * a block that may not run only if the statement is harmless. */
static void
find_target(Hoist *h, int i, const int *open, int n_open)
{
	const LoopStatement *s = &h->k->body.at[i];
	LoopValue read[MAX_READ];
	int least = n_open;
	bool harmless = may_move(h->k, s) && is_harmless(h, s);

	while (least > 0 && lets_out(&h->k->body.at[open[least - 1]], harmless))
		least--;
	int n = scalars_read(s, read);
	for (int r = 0; r < n; r++)
		least = h->known[read[r]] > least ? h->known[read[r]] : least;
	h->target[i] = n == MAX_READ || !may_move(h->k, s) ? n_open : least;
	h->before[i] = h->target[i] < n_open ? open[h->target[i]] : -1;
}

static void
look_at_all(Hoist *h)
{
	int open[MAX_OPEN], n_open = 0;

	for (int i = 0; i < h->k->body.n; i++) {
		const LoopStatement *s = &h->k->body.at[i];
		if (s->kind == LOOP_STATEMENT_END)
			n_open--;
		h->depth[i] = n_open;
		find_target(h, i, open, n_open);
		for (int a = 0; a < s->n_accumulators; a++)
			h->known[s->accumulators[a].scalar] = n_open;
		bool opens = statement_opens(s);
		if (opens)
			open[n_open++] = i;
		if (s->result < 0)
			continue;
		if (s->kind == LOOP_STATEMENT_FOR) {
			h->extents[s->result] = s->extent;
			h->bounds[s->result] = s->place;
		}
		h->known[s->result] = opens ? n_open : h->target[i];
		h->giver[s->result] = opens ? -1 : i;
		if (s->kind == LOOP_STATEMENT_EACH && s->column >= 0)
			h->known[s->column] = n_open;
	}
}

/* Chooses the loads that move, and the values computed from these loads. Then chooses, going
 * backwards, the statements whose results the chosen statements need. */
static void
choose(Hoist *h)
{
	LoopValue read[MAX_READ];
	int n = h->k->body.n;

	for (int i = 0; i < n; i++) {
		const LoopStatement *s = &h->k->body.at[i];
		bool of_loads = s->kind == LOOP_STATEMENT_LOAD;
		for (int r = scalars_read(s, read) - 1; r >= 0; r--)
			of_loads |= h->giver[read[r]] >= 0 && h->moves[h->giver[read[r]]];
		h->moves[i] = of_loads && h->target[i] < h->depth[i];
	}
	for (int i = n - 1; i >= 0; i--)
		for (int r = h->moves[i] ? scalars_read(&h->k->body.at[i], read) - 1 : -1; r >= 0;
		     r--) {
			int g = h->giver[read[r]];
			if (g >= 0 && h->depth[g] > h->target[i])
				h->moves[g] = true;
		}
}

static void
rebuild(Hoist *h, Arena *scratch)
{
	int n = h->k->body.n, at = 0;
	LoopStatement *old = arena_copy(scratch, h->k->body.at, sizeof(*old) * (size_t)n);
	int *now = NEW_ARRAY(scratch, int, n), *next = NEW_ARRAY(scratch, int, n);
	/* by loop: 1 + the first statement that moves before it; `next` links the other
	 * statements that move before this loop */
	int *first = NEW_ARRAY(scratch, int, n);

	for (int i = n - 1; i >= 0; i--)
		if (h->moves[i]) {
			next[i] = first[h->before[i]];
			first[h->before[i]] = i + 1;
		}
	for (int i = 0; i < n; i++) {
		for (int m = first[i]; m; m = next[m - 1])
			h->k->body.at[at++] = old[m - 1];
		now[i] = at;
		if (!h->moves[i])
			h->k->body.at[at++] = old[i];
	}
	for (int i = 0; i < n; i++)
		if (h->k->body.at[i].match >= 0)
			h->k->body.at[i].match = now[h->k->body.at[i].match];
}

void
kernel_hoist(Kernel *k, Arena *scratch)
{
	int n = k->body.n, depth = 0, deepest = 0;
	Hoist h = {.k = k,
	           .depth = NEW_ARRAY(scratch, int, n),
	           .target = NEW_ARRAY(scratch, int, n),
	           .before = NEW_ARRAY(scratch, int, n),
	           .moves = NEW_ARRAY(scratch, bool, n),
	           .extents = NEW_ARRAY(scratch, int64_t, k->n_scalars),
	           .bounds = NEW_ARRAY(scratch, const Affine *, k->n_scalars),
	           .scratch = scratch,
	           .known = NEW_ARRAY(scratch, int, k->n_scalars),
	           .giver = NEW_ARRAY(scratch, int, k->n_scalars)};

	for (int i = 0; i < n; i++) {
		depth += statement_opens(&k->body.at[i]);
		depth -= k->body.at[i].kind == LOOP_STATEMENT_END;
		deepest = depth > deepest ? depth : deepest;
	}
	if (deepest > MAX_OPEN)
		return;
	for (int i = 0; i < k->n_scalars; i++)
		h.giver[i] = -1;
	look_at_all(&h);
	choose(&h);
	rebuild(&h, scratch);
	kernel_finish(k);
}
