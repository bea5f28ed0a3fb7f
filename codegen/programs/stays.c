/* Decides when each unit comes into a rank's memory, when it leaves, and at which offset it lies.
 * stays.h states the rules. */
#include "codegen/programs/stays.h"

#include <stdlib.h>

enum { ALIGNMENT = 64 };

/* ---- times */
static bool
lies_around(const Stay *around, const Stay *s)
{
	return around->first <= s->first && around->last >= s->last;
}

/* Looks at the weights that are first read before s. Returns the first instruction from which on at
 * most one of these weights is still needed. Weights that are first read at the same instruction
 * count as one. Weights whose stay contains the stay of s do not count. */
static int
one_is_left(const Stays *stays, const Stay *s)
{
	int last = -1, last_but_one = -1;

	for (const Stay *k = stays->at; k < s && k->first < s->first;) {
		int group = k->first, end = -1;
		for (; k < s && k->first == group; k++)
			if (!k->gradient && !lies_around(k, s) && k->last > end)
				end = k->last;
		if (end > last) {
			last_but_one = last;
			last = end;
		} else if (end > last_but_one) {
			last_but_one = end;
		}
	}
	return last_but_one + 1;
}

static void
time_weight(const Stays *stays, Stay *s, const Stay *before)
{
	int earliest = one_is_left(stays, s);

	s->begin = before ? before->first : 0;
	s->begin = s->begin < earliest ? earliest : s->begin;
	s->begin = s->begin < s->first ? s->begin : s->first;
	s->end = s->last;
}

/* Is the gradient of another piece being computed when t begins? */
static bool
begins_beside(const Stays *stays, const Stay *t)
{
	for (int i = 0; i < stays->n; i++) {
		const Stay *k = &stays->at[i];
		if (k != t && k->gradient && k->first <= t->first && k->last >= t->first &&
		    !lies_around(k, t))
			return true;
	}
	return false;
}

/* Sets the times of a gradient's stay. The stay ends when the next gradient is complete, or
 * before a third gradient begins. The last gradient stays until the end of the program. */
static void
time_gradient(const Stays *stays, Stay *s, int n_instructions)
{
	s->begin = s->first;
	s->end = n_instructions;
	for (int i = 0; i < stays->n; i++) {
		const Stay *k = &stays->at[i];
		if (!k->gradient)
			continue;
		if (k->last > s->last && k->last < s->end)
			s->end = k->last;
		if (k->first > s->last && k->first <= s->end && begins_beside(stays, k))
			s->end = k->first - 1;
	}
}

void
stays_time(Stays *stays, int n_instructions)
{
	/* weights only. before: the latest stay that begins to be read earlier than s; last: the
	 * stay handled before s */
	const Stay *before = NULL, *last = NULL;

	for (int i = 0; i < stays->n; i++) {
		Stay *s = &stays->at[i];
		if (s->gradient) {
			time_gradient(stays, s, n_instructions);
			continue;
		}
		before = last && last->first < s->first ? last : before;
		time_weight(stays, s, before);
		last = s;
	}
}

/* ---- places */
static int
by_begin(const void *a, const void *b)
{
	const Stay *const *x = a, *const *y = b;

	return (*x)->begin != (*y)->begin ? (*x)->begin - (*y)->begin : *x < *y ? -1 : 1;
}

/* A place that several stays use, one after another. */
typedef struct {
	int64_t bytes;
	const Stay *last;
} Place;

/* The place for s: of the places that are free when s begins, the smallest that is large enough for
 * s. If none is large enough, the largest, which then grows. NULL: no place is free. */
static Place *
best_place(Place *places, int n, const Stay *s)
{
	Place *best = NULL;

	for (Place *p = places; p < places + n; p++) {
		if (p->last->end >= s->begin)
			continue;
		bool fits = p->bytes >= s->bytes, best_fits = best && best->bytes >= s->bytes;
		bool smaller = best && p->bytes < best->bytes;
		if (!best || (fits && !best_fits) || (fits && smaller) ||
		    (!fits && !best_fits && !smaller))
			best = p;
	}
	return best;
}

int64_t
stays_place(Stays *stays, Arena *arena)
{
	int n = 0;
	int64_t top = 0;
	Stay **order = NEW_ARRAY(arena, Stay *, stays->n + 1);
	Place *places = NEW_ARRAY(arena, Place, stays->n + 1);
	int *place = NEW_ARRAY(arena, int, stays->n + 1);

	for (int i = 0; i < stays->n; i++)
		order[i] = &stays->at[i];
	qsort(order, (size_t)stays->n, sizeof *order, by_begin);
	for (int i = 0; i < stays->n; i++) {
		Place *p = best_place(places, n, order[i]);
		p = p ? p : &places[n++];
		p->last = order[i];
		p->bytes = p->bytes > order[i]->bytes ? p->bytes : order[i]->bytes;
		place[i] = (int)(p - places);
	}
	for (int k = 0; k < n; k++) {
		for (int i = 0; i < stays->n; i++)
			if (place[i] == k)
				order[i]->offset = top;
		top += (places[k].bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
	}
	return top;
}
