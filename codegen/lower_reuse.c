/* What is loaded for all iterations of a loop, as a bias is for all rows, is loaded by each part that has one of them. So a part
 * has several:
 *
 *	y[row, column] = x[row, column] + bias[column]
 *
 * touches 3 numbers for each of y where parts have a row each, and 2.25 where they have four. Which loop, and how many of its
 * iterations, is found from what the parts would touch. */
#include "codegen/lower_impl.h"

enum { MOST_AGAIN = 8 };
#define ENOUGH 1.1 /* times what the kernel reads and stores */

/* Bytes that all parts touch, each element once for a part; parts: of them along each loop. */
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

static LoopNest
with_loop_last(const LoopNest *nest, int loop, int last)
{
	LoopNest moved = *nest;

	nest_move(&moved, loop, last);
	return moved;
}

/* Of a nest whose loop `r->loop` has been moved behind loop `r->last`, and counts groups of r->iterations: the parts along each
 * of its loops as they were. How many they are. */
static int64_t
parts_along(const Lower *lw, const LoopNest *nest, const Reuse *r, const LanesLoop *lanes,
            int64_t *parts)
{
	LoopNest t = with_loop_last(nest, r->loop, r->last);
	LoopDim *again = &t.at[r->last];
	int64_t all = 1, found[MAX_NEST];

	again->extent = (again->extent + r->iterations - 1) / r->iterations;
	int n = nest_parallel(&t, lanes ? lanes->at + 1 : r->last + 1, lanes, lw);
	for (int d = 0; d < nest->n; d++) {
		found[d] = d < n ? t.at[d].extent : 1;
		all *= found[d];
	}
	for (int d = 0; d < nest->n; d++)
		parts[d] = found[d == r->loop                   ? r->last
		                 : d > r->loop && d <= r->last ? d - 1
		                                               : d];
	return all;
}

Reuse
nest_reuse(const Lower *lw, const LoopNest *nest, const NestProbe *p, int last, int64_t least,
           const LanesLoop *lanes)
{
	int64_t parts[MAX_NEST];
	Reuse best = {.loop = last, .last = last, .iterations = least};

	for (int d = 0; d < nest->n; d++)
		parts[d] = 1;
	double ideal = touched_bytes(lw, nest, p, parts), fewest = 0;
	for (int64_t again = 1; again <= MOST_AGAIN; again *= 2) {
		for (int loop = last; loop >= 0; loop--) {
			Reuse r = {.loop = loop, .last = last, .iterations = again * least};
			int64_t n = parts_along(lw, nest, &r, lanes, parts);
			double bytes = touched_bytes(lw, nest, p, parts);
			bool first = again == 1 && loop == last;
			bool few = again > 1 && (lw->parts == 1 || n < lw->parts);
			bool fits = r.iterations > 1 && nest->at[loop].extent >= r.iterations;
			if (!first && (few || !fits || bytes >= 0.99 * fewest))
				continue;
			fewest = bytes;
			best = r;
			if (loop == last && bytes <= ENOUGH * ideal)
				return best;
		}
		if (fewest <= ENOUGH * ideal)
			break;
	}
	return best;
}

int
nest_parallel_again(LoopNest *nest, const Reuse *r, const LanesLoop *lanes, const Lower *lw)
{
	int groups = r->last, again = r->last + 1, n = lanes->at + 1;
	int64_t columns = nest->at[lanes->at].extent;

	nest_move(nest, r->loop, r->last);
	LoopNest whole = *nest;
	if (nest_parallel(&whole, n, lanes, lw) <= r->last || nest->n == MAX_NEST ||
	    !nest_cut(nest, r->last, r->iterations))
		return nest_parallel(nest, n, lanes, lw); /* parts have all of the loop */
	LoopDim d = nest->at[again];
	nest_move(nest, again, nest->n - 1);
	int loops = --nest->n, parallel = nest_parallel(nest, n, lanes, lw);
	if (nest->n > loops) {
		bool of_lanes = nest->at[n].extent != columns;
		int cut = of_lanes ? lanes->at : parallel - 1;
		if (cut == groups && d.whole)
			d.before = nest->at[groups + 1].extent;
		groups += cut <= groups;
		again++;
		nest->at[again].apart = of_lanes && nest->at[again].whole;
	}
	d.apart = again - 1 - groups;
	nest->at[nest->n++] = d;
	nest_move(nest, nest->n - 1, again);
	return parallel;
}
