/* Decides whether a kernel may write a result over an operand. It may if each element is read and
 * overwritten in the same iteration, read first, and no other iteration touches the element.
 * Places are affine in the loop variables, so their coefficients show which iterations touch an
 * element. */
#include "codegen/schedule/order.h"

#include <string.h>

enum { MAX_DEPTH = 16, MAX_ACCESSES = 16 };

/* A load or store with the loops around it, outermost first. */
typedef struct {
	int statement, depth;
	const LoopStatement *loops[MAX_DEPTH];
	const Affine *place;
} Access;
typedef struct {
	Access at[MAX_ACCESSES];
	int n;
} Accesses;

static bool
add_access(Accesses *list, int statement, const LoopStatement *s, const Access *open)
{
	if (list->n == MAX_ACCESSES)
		return false;
	list->at[list->n] = *open;
	list->at[list->n].statement = statement;
	list->at[list->n++].place = s->place;
	return true;
}

/* Lists the loads of buffer `input` and the stores to buffer `output`. False: there are too many
 * of them, or the kernel also loads from `output`. */
static bool
find_accesses(const Kernel *k, int input, int output, Accesses *loads, Accesses *stores)
{
	bool is_loop[MAX_DEPTH];
	Access open = {0};
	int depth = 0; /* open loops and conditions */

	for (int i = 0; i < k->body.n; i++) {
		const LoopStatement *s = &k->body.at[i];
		bool load = s->kind == LOOP_STATEMENT_LOAD, store = s->kind == LOOP_STATEMENT_STORE;
		if (s->kind == LOOP_STATEMENT_FOR || s->kind == LOOP_STATEMENT_IF) {
			if (depth == MAX_DEPTH)
				return false;
			is_loop[depth++] = s->kind == LOOP_STATEMENT_FOR;
			if (s->kind == LOOP_STATEMENT_FOR)
				open.loops[open.depth++] = s;
		} else if (s->kind == LOOP_STATEMENT_END) {
			open.depth -= is_loop[--depth];
		}
		if ((load && s->buffer == output) ||
		    (load && s->buffer == input && !add_access(loads, i, s, &open)) ||
		    (store && s->buffer == output && !add_access(stores, i, s, &open)))
			return false;
	}
	return true;
}

static int64_t
coefficient(const Affine *place, LoopValue scalar)
{
	for (int i = 0; i < place->n; i++)
		if (place->terms[i].scalar == scalar)
			return place->terms[i].coefficient;
	return 0;
}

/* How many values loop i's variable v has where the access runs: an inner loop over the numbers below c - q v, with nothing added,
 * runs only if v is below c / q. For example, one member of a team stores below 1 - v. */
static int64_t
extent_of(const Access *a, int i)
{
	int64_t extent = a->loops[i]->extent;

	for (int inner = i + 1; inner < a->depth; inner++) {
		const Affine *bound = a->loops[inner]->place;
		int64_t by = bound ? -coefficient(bound, a->loops[i]->result) : 0;
		bool falls = by > 0 && bound->constant > 0;
		for (int t = 0; falls && t < bound->n; t++)
			falls = bound->terms[t].coefficient <= 0;
		if (falls && (bound->constant - 1) / by + 1 < extent)
			extent = (bound->constant - 1) / by + 1;
	}
	return extent;
}

/* Sets *first and *last to the range of places that an access reaches while the outer `common`
 * loops stand still and the inner loops run. The terms of the common loops are left out of both.
 * False: something other than a loop variable moves the place, or a loop moves it backwards. */
static bool
reach(const Access *a, int common, int64_t *first, int64_t *last)
{
	int known = 0;

	*first = *last = a->place->constant;
	for (int i = 0; i < a->depth; i++) {
		int64_t c = coefficient(a->place, a->loops[i]->result);
		known += c != 0;
		if (c < 0)
			return false;
		if (i >= common)
			*last += c * (extent_of(a, i) - 1);
	}
	return known == a->place->n;
}

/* Do different iterations of the outer `common` loops touch different places, if each iteration
 * touches `size` neighbouring places? Checked from the smallest coefficient on: each loop must
 * step over all places of the loops checked before. */
static bool
apart(const Access *a, int common, int64_t size)
{
	bool used[MAX_DEPTH] = {false};

	for (int done = 0; done < common; done++) {
		int next = -1;
		for (int i = 0; i < common; i++)
			if (!used[i] &&
			    (next < 0 || coefficient(a->place, a->loops[i]->result) <
			                         coefficient(a->place, a->loops[next]->result)))
				next = i;
		used[next] = true;
		int64_t c = coefficient(a->place, a->loops[next]->result);
		if (extent_of(a, next) == 1)
			continue;
		if (c < size)
			return false;
		size = c * extent_of(a, next);
	}
	return true;
}

static bool
is_read_before(const Kernel *k, const Access *load, const Access *store)
{
	int64_t first[2], last[2];
	int common = 0, levels = 0;

	while (common < load->depth && common < store->depth &&
	       load->loops[common] == store->loops[common])
		common++;
	/* Outside of the loops that a team's members (threads) share, every member loads but
	 * only one member stores. */
	for (int i = 0; i < common; i++)
		levels += load->loops[i]->mode == LOOP_TEAM;
	if (levels < k->n_team)
		return false;
	/* Between different loops over members there is no barrier to rely on. */
	for (int i = common; i < load->depth || i < store->depth; i++)
		if ((i < load->depth && load->loops[i]->mode == LOOP_TEAM) ||
		    (i < store->depth && store->loops[i]->mode == LOOP_TEAM))
			return false;
	if (load->statement > store->statement || !reach(load, common, &first[0], &last[0]) ||
	    !reach(store, common, &first[1], &last[1]))
		return false;
	for (int i = 0; i < common; i++)
		if (coefficient(load->place, load->loops[i]->result) !=
		    coefficient(store->place, store->loops[i]->result))
			return false;
	if (common == load->depth && common == store->depth && first[0] != first[1])
		return false;
	int64_t from = first[0] < first[1] ? first[0] : first[1];
	int64_t to = last[0] > last[1] ? last[0] : last[1];
	return apart(load, common, to - from + 1);
}

/* May the library call write its result over the input? Only if the call does not read the input, or reads
 * it as the operand added to the result, in the same place. */
static bool
library_may_overwrite(const LibraryCall *c, int input, int output)
{
	const LibraryOperand *o = c->operands, *z = &o[LIBRARY_RESULT];

	for (int i = 0; i < N_LIBRARY_OPERANDS; i++) {
		bool in_place = i == LIBRARY_ADDED && z->buffer == output &&
		                o[i].offset == z->offset;
		if (library_has_operand(c, i) && o[i].buffer == input && !in_place)
			return false;
	}
	return true;
}

bool
kernel_may_overwrite(const Kernel *k, int input, int output)
{
	Accesses loads = {0}, stores = {0};

	if (k->buffers.at[output].from == 1 + input)
		return true;
	if (k->buffers.at[output].from) /* the output is first filled with another input */
		return false;
	if ((k->library && !library_may_overwrite(k->library, input, output)) ||
	    kernel_has_tiles(k) ||
	    type_bytes(k->buffers.at[input].type) != type_bytes(k->buffers.at[output].type) ||
	    k->buffers.at[input].type->dtype != k->buffers.at[output].type->dtype ||
	    !find_accesses(k, input, output, &loads, &stores))
		return false;
	for (int i = 0; i < loads.n; i++)
		for (int j = 0; j < stores.n; j++)
			if (!is_read_before(k, &loads.at[i], &stores.at[j]))
				return false;
	return true;
}
