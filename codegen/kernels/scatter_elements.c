/* Emits scatter_elements. A line is all elements along the indexed axis. One thread clears a line of the result and
 * adds the line's updates in order, so the bits do not depend on the number of threads. */
#include "codegen/kernels/lines.h"
#include "ir/ops/ops.h"

typedef struct {
	Lower *lw;
	const Node *node;
	const ScatterElementsAttr *attr;
	Type y;
	Index line; /* an index of y without the axis */
} Sums;

static Affine
place_of(const Sums *s, Affine at)
{
	Index full = index_of_line(&s->line, s->attr->axis);

	full.at[s->attr->axis] = at;
	return index_flat(s->lw->lb, s->y, &full);
}

static void
add_updates(const Sums *s)
{
	LoopBuilder *lb = s->lw->lb;
	const Value *indices = node_operand(s->node, 0), *updates = node_operand(s->node, 1);
	int y = lower_buffer(s->lw, node_result(s->node, 0));
	Index at = index_of_line(&s->line, s->attr->axis);

	at.at[s->attr->axis] = affine_scalar(
		lb, lb_for(lb, LOOP_PLAIN, updates->type->dims[s->attr->axis]));
	LoopValue j = lb_cast(lb, S64, lower_element(s->lw, indices, &at));
	lb_if(lb, lb_inside(lb, affine_scalar(lb, j), s->attr->size));
	lb_within(lb, j, s->attr->size);
	Affine place = place_of(s, affine_scalar(lb, j));
	LoopValue sum = lb_load(lb, y, place), u = lower_element(s->lw, updates, &at);
	lb_store(lb, y, place, lb_binary(lb, LOOP_add, sum, u));
	lb_end(lb);
	lb_end(lb);
}

static void
sum_line(const Sums *s)
{
	LoopBuilder *lb = s->lw->lb;
	LoopMode mode = lb->k->n_team ? LOOP_PLAIN : LOOP_VECTOR;
	Affine at = affine_scalar(lb, lb_for(lb, mode, s->attr->size));

	lb_store(lb, lower_buffer(s->lw, node_result(s->node, 0)), place_of(s, at),
	         lb_number(lb, compute_type(s->y->dtype), 0));
	lb_end(lb);
	if (s->attr->size && node_operand(s->node, 1)->type->n)
		add_updates(s);
}

static void
scatter_elements_kernel(Lower *lw, const Node *n)
{
	LoopBuilder *lb = lw->lb;
	Sums s = {.lw = lw, .node = n, .attr = n->attr, .y = node_result(n, 0)->type};
	Type lines = type_drop_axis(lw->m, s.y, (int)s.attr->axis);
	int64_t members = columns_begin(lw, lines->n);
	bool team = lb->k->n_team;
	Affine line = affine_scalar(lb, lb_for(lb, LOOP_PARALLEL, ceil_div(lines->n, members)));
	Spread lane;

	if (team)
		line = columns_open(lw, lines->n, line, &lane);
	index_split(lb, lines, line, &s.line);
	sum_line(&s);
	if (team)
		spread_close(&lane);
	lb_end(lb);
}

const Strategy strategy_scatter_elements = {.op = OP_scatter_elements,
                                            .kinds = ON_EVERY_KIND,
                                            .doc = "a thread adds up a line in order",
                                            .emit = scatter_elements_kernel};
