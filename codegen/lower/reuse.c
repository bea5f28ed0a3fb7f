/* Lets one part (one parallel iteration of a kernel) use loaded data several times. A bias, say,
 * is the same for all rows; if each part has one row, every part loads the whole bias. So a part
 * gets several rows:
 *
 *	y[row, column] = x[row, column] + bias[column]
 *
 * This touches 3 numbers for each element of y if parts have one row each, and 2.25 if they have
 * four. The loop and the number of iterations are chosen by the bytes that all parts would
 * touch. */
#include "codegen/lower/nest.h"

/* Bytes that all parts together load and store, if each part touches every element it needs once.
 * parts: number of parts along each loop. */
static double
touched_bytes(const Lower *lw, const LoopNest *nest, const NestProbe *p, const int64_t *parts)
{
	const LoopBuffer *buffers = lw->lb->k->buffers.at;
	double sum = 0;

	for (int i = 0; i < p->loads.n; i++) {
		const NestLoad *l = &p->loads.at[i];
		double bytes = dtype_info[buffers[l->buffer].type->dtype].bits / 8.0;
		for (int d = 0; d < nest->n; d++)
			bytes *= (double)(l->strides[d] ? nest->at[d].extent : parts[d]);
		sum += bytes;
	}
	for (int i = 0; i < lw->lb->k->n_outputs; i++)
		sum += (double)type_bytes(buffers[lw->lb->k->n_inputs + i].type);
	return sum;
}

/* Sets parts[d] to the number of parts along loop d of the nest, if the nest is cut with reuse r:
 * loop r->loop moves to position c->last and there counts groups of r->iterations. The nest
 * itself is not changed. */
static void
parts_along(const Lower *lw, const LoopNest *nest, const Reuse *r, const Cutting *c, int64_t *parts)
{
	LoopNest t = *nest;

	nest_move(&t, r->loop, c->last);
	t.at[c->last].extent = ceil_div(t.at[c->last].extent, r->iterations);
	t.again = r->iterations;
	int n = nest_parallel(&t, c->n, c->lanes, lw);
	for (int d = 0; d < nest->n; d++) {
		int at = d == r->loop ? c->last : d > r->loop && d <= c->last ? d - 1 : d;
		parts[d] = at < n ? t.at[at].extent : 1;
	}
}

/* The bytes that all parts touch for choice r. Sets *n to the number of parts. */
static double
bytes_of_parts(const Lower *lw, const LoopNest *nest, const NestProbe *p, const Reuse *r,
               const Cutting *c, int64_t *n)
{
	int64_t parts[MAX_NEST];

	if (!c->squares)
		parts_along(lw, nest, r, c, parts);
	for (int d = 0; d < nest->n && c->squares; d++) {
		Squares s = *c->squares;
		s.again = *r;
		parts[d] = squares_along(nest, &s, d);
	}
	*n = 1;
	for (int d = 0; d < nest->n; d++)
		*n *= parts[d];
	return touched_bytes(lw, nest, p, parts);
}

/* May parts have several iterations of this loop? No, if the loop is a side of a square, a loop
 * within blocks, or too short. */
static bool
may_repeat(const LoopNest *nest, const Cutting *c, const Reuse *r)
{
	bool of_square = c->squares && (r->loop == c->squares->down || r->loop == nest->n - 1);

	return !of_square && !nest->at[r->loop].whole && nest->at[r->loop].extent >= r->iterations;
}

Reuse
nest_reuse(const Lower *lw, const LoopNest *nest, const NestProbe *p, const Cutting *c)
{
	int64_t one[MAX_NEST], n;
	Reuse best = {.loop = c->last, .iterations = c->least};

	for (int d = 0; d < nest->n; d++)
		one[d] = 1;
	const Repeats *limits = &lw->target->tuning->repeats;
	double enough = limits->enough * touched_bytes(lw, nest, p, one);
	double fewest = bytes_of_parts(lw, nest, p, &best, c, &n);
	for (int64_t again = 1; again <= limits->most && fewest > enough; again *= 2) {
		for (int loop = c->last; loop >= 0; loop--) {
			Reuse r = {.loop = loop, .iterations = again * c->least};
			if (r.iterations == 1 || !may_repeat(nest, c, &r))
				continue;
			double bytes = bytes_of_parts(lw, nest, p, &r, c, &n);
			/* reuse may halve the number of parts that a kernel should have: that
			 * still leaves several parts for each processor */
			bool few = again > 1 && (lw->parts == 1 || 2 * n < lw->parts);
			if (few || bytes >= 0.99 * fewest)
				continue;
			fewest = bytes;
			best = r;
		}
	}
	return best;
}

int
nest_parallel_again(LoopNest *nest, const Reuse *r, const Cutting *c, int within, const Lower *lw)
{
	int groups = c->last, loops;

	nest_move(nest, r->loop, c->last);
	LoopNest whole = *nest;
	if (nest_parallel(&whole, c->n, c->lanes, lw) <= c->last || nest->n == MAX_NEST ||
	    !nest_cut(nest, c->last, r->iterations))
		/* each part has all iterations of the loop */
		return nest_parallel(nest, c->n, c->lanes, lw);
	LoopDim d = nest->at[c->last + 1];
	nest_move(nest, c->last + 1, nest->n - 1);
	loops = --nest->n;
	nest->again = r->iterations;
	int64_t extent = nest->at[within].extent;
	int parallel = nest_parallel(nest, c->n, c->lanes, lw);
	nest->again = 1;
	if (nest->n > loops) {
		int cut = nest->at[++within].extent != extent ? within - 1 : parallel - 1;
		if (cut == groups && d.whole)
			d.before = nest->at[groups + 1].extent;
		groups += cut <= groups;
	}
	nest->at[within].apart = nest->at[within].whole != 0;
	d.apart = within - 1 - groups;
	nest->at[nest->n++] = d;
	nest_move(nest, nest->n - 1, within);
	return parallel;
}
