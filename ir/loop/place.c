/* Arithmetic on places. A place is the number of an element as an affine form of scalars, such
 * as 32*v0 + v1 + 5. Also converts between an index (one number per axis) and a flat element
 * number. */
#include "ir/loop/loop.h"

#include <stdlib.h>
#include <string.h>

Affine
affine_copy(Arena *arena, const Affine *a)
{
	return (Affine){.constant = a->constant,
	                .n = a->n,
	                .terms = arena_copy(arena, a->terms, sizeof(AffineTerm) * (size_t)a->n)};
}

Affine
affine_constant(int64_t c)
{
	return (Affine){.constant = c};
}

Affine
affine_plus(Affine a, int64_t constant)
{
	a.constant += constant;
	return a;
}

static int
term_of(const AffineTerm *terms, int n, LoopValue scalar)
{
	while (n > 0 && terms[n - 1].scalar != scalar)
		n--;
	return n - 1;
}

/* a + by * b: the terms of a, then the terms of b whose scalars a lacks. */
static Affine
add_scaled(Arena *arena, Affine a, Affine b, int64_t by)
{
	a.constant += by * b.constant;
	if (b.n == 0 || by == 0)
		return a;
	if (a.n == 0 && by == 1) {
		a.n = b.n;
		a.terms = b.terms;
		return a;
	}
	AffineTerm *terms = NEW_ARRAY(arena, AffineTerm, a.n + b.n);
	if (a.n)
		memcpy(terms, a.terms, sizeof(AffineTerm) * (size_t)a.n);
	for (int i = 0; i < b.n; i++) {
		int64_t more = by * b.terms[i].coefficient;
		int k = term_of(terms, a.n, b.terms[i].scalar);
		if (k < 0)
			terms[a.n++] = (AffineTerm){more, b.terms[i].scalar};
		else if ((terms[k].coefficient += more) == 0)
			terms[k] = terms[--a.n];
	}
	a.terms = terms;
	return a;
}

Affine
affine_scalar(LoopBuilder *lb, LoopValue s)
{
	return (Affine){.n = 1,
	                .terms = arena_copy(lb->scratch, &(AffineTerm){1, s}, sizeof(AffineTerm))};
}

Affine
affine_add(LoopBuilder *lb, Affine a, Affine b)
{
	return add_scaled(lb->scratch, a, b, 1);
}

Affine
affine_add_scaled(LoopBuilder *lb, Affine a, Affine b, int64_t by)
{
	return add_scaled(lb->scratch, a, b, by);
}

bool
affine_is_multiple(const Affine *a, LoopValue except, int64_t n)
{
	for (int i = 0; i < a->n; i++)
		if (a->terms[i].scalar != except && a->terms[i].coefficient % n)
			return false;
	return a->constant % n == 0;
}

Affine
affine_scale(LoopBuilder *lb, Affine a, int64_t by)
{
	return add_scaled(lb->scratch, affine_constant(0), a, by);
}

Affine
index_flat(LoopBuilder *lb, Type t, const Index *at)
{
	int64_t strides[MAX_RANK];
	Affine flat = affine_constant(0);

	if (at->of && type_same_shape(at->of, t))
		return at->flat;
	type_strides(t, strides);
	for (int i = 0; i < t->rank; i++)
		if (t->dims[i] != 1)
			flat = affine_add_scaled(lb, flat, at->at[i], strides[i]);
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
		int64_t reach, *end = a->terms[i].coefficient < 0 ? low : high;
		if (__builtin_mul_overflow(a->terms[i].coefficient, n - 1, &reach) ||
		    __builtin_add_overflow(*end, reach, end))
			return false;
	}
	return true;
}

static int64_t
magnitude(int64_t x)
{
	return x == INT64_MIN ? INT64_MAX - 1 : llabs(x);
}

/* The largest magnitude among the constant and the coefficients. */
static int64_t
largest(const Affine *a)
{
	int64_t most = magnitude(a->constant);

	for (int i = 0; i < a->n; i++)
		if (magnitude(a->terms[i].coefficient) > most)
			most = magnitude(a->terms[i].coefficient);
	return most;
}

/* Does form + c * bound fit into 64 bits? */
static bool
sum_fits(const Affine *form, int64_t c, const Affine *bound)
{
	const int64_t limit = 1ll << 60;

	return largest(form) < limit && magnitude(c) < limit / (largest(bound) / 2 + 1) / 2;
}

static int64_t
coefficient_of(const Affine *a, LoopValue scalar)
{
	for (int i = 0; i < a->n; i++)
		if (a->terms[i].scalar == scalar)
			return a->terms[i].coefficient;
	return 0;
}

/* Sets *out to the greatest value of the form (sign 1), or to minus its least value (sign -1). */
static bool
extreme(const Affine *form, const int64_t *extents, int sign, int64_t *out)
{
	int64_t low, high;

	if (!range_by_extents(form, extents, &low, &high))
		return false;
	*out = sign > 0 ? high : -low;
	return true;
}

/* Tries to make the form's extreme *best smaller: replaces the scalar of term i by bound - 1, the
 * largest value that the scalar's bound allows. Keeps the new form only if *best gets smaller. */
static void
tighten(Arena *scratch, const Affine *a, int i, const Affine *bound, const int64_t *extents,
        int sign, Affine *form, int64_t *best)
{
	LoopValue scalar = a->terms[i].scalar;
	int64_t c = coefficient_of(form, scalar), value;
	AffineTerm term = {1, scalar};
	Affine own = {.n = 1, .terms = &term};

	if (!bound || (c < 0 ? -1 : c > 0) != sign || !sum_fits(form, c, bound))
		return;
	Affine most = add_scaled(scratch, *form, own, -c);
	most = add_scaled(scratch, most, affine_plus(*bound, -1), c);
	if (extreme(&most, extents, sign, &value) && value < *best) {
		*form = most;
		*best = value;
	}
}

bool
affine_same(const Affine *a, const Affine *b)
{
	if (a->constant != b->constant || a->n != b->n)
		return false;
	for (int i = 0; i < a->n; i++) {
		int k = 0;
		while (k < b->n && b->terms[k].scalar != a->terms[i].scalar)
			k++;
		if (k == b->n || b->terms[k].coefficient != a->terms[i].coefficient)
			return false;
	}
	return true;
}

/* Example: v1 stays below n - 256*v0. Then 256*v0 + v1 is below n, which extents alone do not
 * show. Replacing v1 by its largest value n - 1 - 256*v0 gives the place n - 1, whose range is
 * smaller. In the same way n - 1 - 256*v0 - v1 is found to be at least 0. If several scalars
 * have bounds, the order of the replacements matters, so replacements are tried from the first
 * scalar to the last and the other way. */
bool
affine_range(Arena *scratch, const Affine *a, const int64_t *extents, const Affine *const *bounds,
             int64_t *low, int64_t *high)
{
	if (!range_by_extents(a, extents, low, high))
		return false;
	for (int sign = -1; sign <= 1; sign += 2) {
		int64_t least = sign > 0 ? *high : -*low;
		for (int backwards = 0; backwards < 2; backwards++) {
			Affine form = *a;
			int64_t best = sign > 0 ? *high : -*low;
			for (int k = 0; k < a->n; k++) {
				int i = backwards ? a->n - 1 - k : k;
				tighten(scratch, a, i, bounds[a->terms[i].scalar], extents, sign,
				        &form, &best);
			}
			least = best < least ? best : least;
		}
		*(sign > 0 ? high : low) = sign * least;
	}
	return true;
}

/* Divides *place by the stride without a division in the kernel: terms that are multiples of the
 * stride go to *whole, the rest stays in *place. False: the terms do not allow it. */
static bool
affine_divide(LoopBuilder *lb, Affine *place, int64_t stride, Affine *whole)
{
	AffineTerm *w = NEW_ARRAY(lb->scratch, AffineTerm, place->n);
	AffineTerm *r = NEW_ARRAY(lb->scratch, AffineTerm, place->n);
	int64_t quotient = place->constant / stride, remainder = place->constant % stride;
	int64_t low, high;
	int n_w = 0, n_r = 0;

	for (int i = 0; i < place->n; i++) {
		AffineTerm t = place->terms[i];
		if (t.coefficient % stride == 0)
			w[n_w++] = (AffineTerm){t.coefficient / stride, t.scalar};
		else
			r[n_r++] = t;
	}
	if (remainder < 0) {
		remainder += stride;
		quotient--;
	}
	Affine rest = {.constant = remainder, .n = n_r, .terms = r};
	if (!affine_range(lb->scratch, &rest, lb->extents.at, lb->bounds.at, &low, &high) ||
	    low < 0 || high >= stride)
		return false;
	*whole = (Affine){.constant = quotient, .n = n_w, .terms = w};
	*place = rest;
	return true;
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
		/* The remaining axes are computed with div. */
		by_terms = false;
		LoopValue flat = lb_affine(lb, f), by = lb_int(lb, S64, strides[i]);
		LoopValue whole = strides[i] == 1 ? flat : lb_binary(lb, LOOP_div, flat, by);
		lb_within(lb, whole, t->dims[i]);
		out->at[i] = affine_scalar(lb, whole);
		f = affine_add_scaled(lb, affine_scalar(lb, flat), out->at[i], -strides[i]);
	}
}
