/* sort: lines in parallel, each in a merge network. */
#include "codegen/kernels/kernels.h"
#include "ir/shapes.h"

typedef struct {
	Lower *lw;
	DType type;
	int values, places;
	bool descending;
} Sorter;

/* Puts elements lo and hi of the local line in order. */
static void
sort_exchange(const Sorter *s, LoopValue lo, LoopValue hi)
{
	LoopBuilder *lb = s->lw->lb;
	Affine l = affine_scalar(lb, lo), h = affine_scalar(lb, hi);
	LoopValue a = lb_load(lb, s->values, l), b = lb_load(lb, s->values, h);
	LoopValue i = lb_load(lb, s->places, l), j = lb_load(lb, s->places, h);
	LoopValue swap = lb_compare(lb, s->descending ? LOOP_lt : LOOP_gt, a, b);
	LoopValue tie = lb_compare(lb, LOOP_gt, i, j);

	if (dtype_is_float(s->type)) { /* NaN is larger than all */
		LoopValue an = lb_op(lb, LOOP_is_nan, BOOL, &a),
			  bn = lb_op(lb, LOOP_is_nan, BOOL, &b);
		LoopValue larger = s->descending ? bn : an, smaller = s->descending ? an : bn;
		LoopValue only = lb_binary(lb, LOOP_and, larger, lb_unary(lb, LOOP_not, smaller));
		swap = lb_binary(lb, LOOP_or, swap, only);
		LoopValue both = lb_binary(lb, LOOP_and, an, bn);
		LoopValue same = lb_binary(lb, LOOP_or, lb_compare(lb, LOOP_eq, a, b), both);
		swap = lb_binary(lb, LOOP_or, swap, lb_binary(lb, LOOP_and, same, tie));
	} else {
		LoopValue same = lb_compare(lb, LOOP_eq, a, b);
		swap = lb_binary(lb, LOOP_or, swap, lb_binary(lb, LOOP_and, same, tie));
	}
	lb_store(lb, s->values, l, lb_select(lb, swap, b, a));
	lb_store(lb, s->values, h, lb_select(lb, swap, a, b));
	lb_store(lb, s->places, l, lb_select(lb, swap, j, i));
	lb_store(lb, s->places, h, lb_select(lb, swap, i, j));
}

/* Batcher's odd-even merge sort over n elements, any n: exchanges with hi >= n are left out.
 * Knuth, TAOCP 5.2.2 algorithm M. */
static void
sort_network(const Sorter *s, int64_t n)
{
	LoopBuilder *lb = s->lw->lb;
	int64_t top = 1;

	while (top * 2 < n)
		top *= 2;
	for (int64_t p = top; p > 0; p /= 2) {
		int64_t q = top, r = 0, d = p;
		for (;;) {
			LoopValue i = lb_for(lb, LOOP_PLAIN, n - d);
			LoopValue bit = lb_binary(lb, LOOP_and, i, lb_int(lb, S64, p));
			lb_if(lb, lb_compare(lb, LOOP_eq, bit, lb_int(lb, S64, r)));
			sort_exchange(s, i, lb_affine(lb, affine_plus(affine_scalar(lb, i), d)));
			lb_end(lb);
			lb_end(lb);
			if (q == p)
				break;
			d = q - p;
			q /= 2;
			r = p;
		}
	}
}

static void
sort_kernel(Lower *lw, const Node *n)
{
	const SortAttr *a = n->attr;
	LoopBuilder *lb = lw->lb;
	Type x = node_operand(n, 0)->type, lines = type_drop_axis(lw->m, x, (int)a->axis);
	int64_t size = x->dims[a->axis];
	Sorter s = {lw, compute_type(x->dtype), 0, 0, a->descending};
	Index at, full;

	s.values = lb_local(lb, s.type, size);
	s.places = lb_local(lb, S64, size);
	LoopValue line = lb_for(lb, LOOP_PARALLEL, lines->n);
	index_split(lb, lines, affine_scalar(lb, line), &at);
	full = index_of_line(&at, a->axis);
	LoopValue j = lb_for(lb, LOOP_PLAIN, size);
	full.at[a->axis] = affine_scalar(lb, j);
	lb_store(lb, s.values, affine_scalar(lb, j), lower_element(lw, node_operand(n, 0), &full));
	lb_store(lb, s.places, affine_scalar(lb, j), j);
	lb_end(lb);
	if (size > 1)
		sort_network(&s, size);
	j = lb_for(lb, LOOP_PLAIN, size);
	full.at[a->axis] = affine_scalar(lb, j);
	lb_store(lb, lower_buffer(lw, node_result(n, 0)), index_flat(lb, x, &full),
	         lb_load(lb, s.values, affine_scalar(lb, j)));
	lb_store(lb, lower_buffer(lw, node_result(n, 1)), index_flat(lb, x, &full),
	         lb_load(lb, s.places, affine_scalar(lb, j)));
	lb_end(lb);
	lb_end(lb);
}

const Strategy strategy_sort = {.op = OP_sort,
                                .kinds = ON_EVERY_KIND,
                                .doc = "each line in a merge network",
                                .emit = sort_kernel};
