/* Places: affine forms of scalars, and the way between an index by axes and a flat element number. */
#include "ir/loop.h"

#include <stddef.h>
#include <stdlib.h>

const Affine *
affine_keep(Arena *arena, const Affine *a)
{
	return arena_copy(arena, a, offsetof(Affine, terms) + sizeof(AffineTerm) * (size_t)a->n);
}

Affine
affine_of(const Affine *kept)
{
	Affine a = {.constant = kept->constant, .n = kept->n};

	for (int i = 0; i < kept->n; i++)
		a.terms[i] = kept->terms[i];
	return a;
}

Affine
affine_constant(int64_t c)
{
	return (Affine){.constant = c};
}

Affine
affine_scalar(LoopValue s)
{
	return (Affine){.n = 1, .terms = {{1, s}}};
}

Affine
affine_add(Affine a, Affine b)
{
	a.constant += b.constant;
	for (int i = 0; i < b.n; i++) {
		int k = 0;
		while (k < a.n && a.terms[k].scalar != b.terms[i].scalar)
			k++;
		if (k < a.n) {
			a.terms[k].coefficient += b.terms[i].coefficient;
			if (a.terms[k].coefficient == 0)
				a.terms[k] = a.terms[--a.n];
		} else {
			if (a.n == MAX_TERMS) {
				fprintf(stderr,
				        "gradc: internal error: a place of more than %d terms\n",
				        MAX_TERMS);
				abort();
			}
			a.terms[a.n++] = b.terms[i];
		}
	}
	return a;
}

Affine
affine_plus(Affine a, int64_t constant)
{
	a.constant += constant;
	return a;
}

Affine
affine_scale(Affine a, int64_t by)
{
	if (by == 0)
		return affine_constant(0);
	a.constant *= by;
	for (int i = 0; i < a.n; i++)
		a.terms[i].coefficient *= by;
	return a;
}

Affine
index_flat(Type t, const Index *at)
{
	int64_t strides[MAX_RANK];
	Affine flat = affine_constant(0);

	if (at->of && type_same_shape(at->of, t))
		return at->flat;
	type_strides(t, strides);
	for (int i = 0; i < t->rank; i++)
		if (t->dims[i] != 1)
			flat = affine_add(flat, affine_scale(at->at[i], strides[i]));
	return flat;
}

static bool
range_by_extents(const Affine *a, const int64_t *extents, int64_t *low, int64_t *high)
{
	*low = *high = a->constant;
	for (int i = 0; i < a->n; i++) {
		int64_t n = extents[a->terms[i].scalar];
		if (n <= 0)
			return false;
		int64_t reach = a->terms[i].coefficient * (n - 1);
		*(reach < 0 ? low : high) += reach;
	}
	return true;
}

/* Sums and products of such places fit. */
static bool
is_small(const Affine *a)
{
	const int64_t limit = 1ll << 31;
	bool small = llabs(a->constant) < limit;

	for (int i = 0; i < a->n; i++)
		small &= llabs(a->terms[i].coefficient) < limit;
	return small;
}

/* With 256*v0 + v1 and v1 below n - 256*v0 the sum is below n, which extents alone don't tell: what the greatest v1 makes of
 * it is a place again. */
bool
affine_range(const Affine *a, const int64_t *extents, const Affine *const *bounds, int64_t *low,
             int64_t *high)
{
	Affine most = affine_of(a);
	int64_t least, top;

	if (!range_by_extents(a, extents, low, high))
		return false;
	for (int i = 0; i < a->n; i++) {
		AffineTerm t = a->terms[i];
		const Affine *bound = bounds[t.scalar];
		if (!bound || t.coefficient < 0 || !is_small(a) || !is_small(bound) ||
		    most.n - 1 + bound->n > MAX_TERMS)
			continue;
		most = affine_add(most, affine_scale(affine_scalar(t.scalar), -t.coefficient));
		most = affine_add(most, affine_scale(affine_of(bound), t.coefficient));
		most.constant -= t.coefficient;
		if (range_by_extents(&most, extents, &least, &top) && top < *high)
			*high = top;
	}
	return true;
}

/* *whole = *place / stride and *place = the remainder, where the terms allow it. */
static bool
affine_divide(const LoopBuilder *lb, Affine *place, int64_t stride, Affine *whole)
{
	Affine w = affine_constant(0), r = affine_constant(0);
	int64_t low, high;

	for (int i = 0; i < place->n; i++) {
		AffineTerm t = place->terms[i];
		if (t.coefficient % stride == 0)
			w.terms[w.n++] = (AffineTerm){t.coefficient / stride, t.scalar};
		else
			r.terms[r.n++] = t;
	}
	w.constant = place->constant / stride;
	r.constant = place->constant % stride;
	if (r.constant < 0) {
		r.constant += stride;
		w.constant--;
	}
	if (!affine_range(&r, lb->extents.at, lb->bounds.at, &low, &high) || low < 0 ||
	    high >= stride)
		return false;
	*whole = w;
	*place = r;
	return true;
}

/* At most MAX_RANK terms in all: where loops are more, an axis is one computed scalar. */
static void
limit_terms(LoopBuilder *lb, Type t, Index *at)
{
	int n = 0;

	for (int i = 0; i < at->rank; i++)
		n += at->at[i].n;
	for (int i = 0; n > MAX_RANK && i < at->rank; i++) {
		if (at->at[i].n < 2)
			continue;
		LoopValue x = lb_affine(lb, at->at[i]);
		lb_within(lb, x, t->dims[i]);
		at->at[i] = affine_scalar(x);
	}
}

void
index_split(LoopBuilder *lb, Type t, Affine f, Index *out)
{
	int64_t strides[MAX_RANK];
	bool by_terms = true;

	type_strides(t, strides);
	out->rank = t->rank;
	out->of = t;
	out->flat = f;
	for (int i = 0; i < t->rank; i++) {
		if (t->dims[i] == 1 || t->n == 0) {
			out->at[i] = affine_constant(0);
			continue;
		}
		if (by_terms && affine_divide(lb, &f, strides[i], &out->at[i]))
			continue;
		/* From here on by arithmetic. */
		by_terms = false;
		LoopValue flat = lb_affine(lb, f), by = lb_int(lb, S64, strides[i]);
		LoopValue whole = strides[i] == 1 ? flat : lb_binary(lb, LOOP_div, flat, by);
		lb_within(lb, whole, t->dims[i]);
		out->at[i] = affine_scalar(whole);
		f = affine_add(affine_scalar(flat),
		               affine_scale(affine_scalar(whole), -strides[i]));
	}
	limit_terms(lb, t, out);
}
