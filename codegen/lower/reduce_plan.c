/* Kernels with reductions: decides in which pass over the reduced elements each value is
 * computed and stored. A softmax has three passes: maximum, sum, division. */
#include "codegen/lower/reduce.h"

AccumulateKind
reduce_kind(const Node *n)
{
	static const AccumulateKind kinds[] = {ACC_ADD, ACC_MUL, ACC_MAX, ACC_MIN};

	return kinds[((const ReduceAttr *)n->attr)->kind];
}

DType
reduce_type(const Node *n)
{
	return compute_type(node_result(n, 0)->type->dtype);
}

LoopValue
reduce_identity(LoopBuilder *lb, const Node *n)
{
	return lb_identity(lb, reduce_kind(n), node_result(n, 0)->type->dtype);
}

LoopValue
rows_element(Rows *r, const Value *v, Affine flat)
{
	Index at = index_at(r->lw, v->type, flat);

	return lower_element(r->lw, v, &at);
}

IterSpace
rows_space(const Rows *r, const Value *v)
{
	return r->spaces->of[v->id];
}

static void
find_reduces(Rows *r)
{
	for_each_node(r->lw->f, n) {
		if (!reduces(n))
			continue;
		IterSpace space = rows_space(r, node_result(n, 0));
		if (space == ITER_ROWS)
			vec_push(r->lw->state->scratch, &r->row_reduces, n);
		else if (space == ITER_COLUMNS)
			vec_push(r->lw->state->scratch, &r->column_reduces, n);
		else
			vec_push(r->lw->state->scratch, &r->chunk_reduces, n);
	}
}

static void
find_depths(Rows *r)
{
	const Function *f = r->lw->f;

	r->depth = NEW_ARRAY(r->lw->state->scratch, int, f->next_node_id);
	for_each_node(f, n) {
		int d = 0;
		for (int i = 0; i < n->n_operands; i++) {
			const Value *v = node_operand(n, i);
			if (v && v->node && r->depth[v->node->id] > d)
				d = r->depth[v->node->id];
		}
		bool of_rows = reduces(n) && rows_space(r, node_result(n, 0)) == ITER_ROWS;
		r->depth[n->id] = d + of_rows;
		if (r->depth[n->id] > r->depths)
			r->depths = r->depth[n->id];
	}
}

void
find_passes(Rows *r)
{
	find_reduces(r);
	find_depths(r);
}

int
value_depth(const Rows *r, const Value *v)
{
	return v->node ? r->depth[v->node->id] : 0;
}

bool
pass_has_work(const Rows *r, int k)
{
	const Node *ret = function_return(r->lw->f);

	for (int i = 0; i < r->row_reduces.n; i++)
		if (r->depth[r->row_reduces.at[i]->id] == k)
			return true;
	for (int i = 0; i < r->column_reduces.n; i++)
		if (r->depth[r->column_reduces.at[i]->id] == k - 1)
			return true;
	for (int i = 0; i < ret->n_operands; i++)
		if (rows_space(r, node_operand(ret, i)) == ITER_FULL &&
		    value_depth(r, node_operand(ret, i)) == k - 1)
			return true;
	return false;
}

int
pass_reduces(const Rows *r, int k, const Node **out)
{
	int n = 0;

	for (int i = 0; i < r->row_reduces.n; i++)
		if (r->depth[r->row_reduces.at[i]->id] == k)
			out[n++] = r->row_reduces.at[i];
	return n;
}

void
store_full(Rows *r, int k)
{
	const Node *ret = function_return(r->lw->f);

	for (int i = 0; i < ret->n_operands; i++) {
		const Value *v = node_operand(ret, i);
		if (rows_space(r, v) != ITER_FULL || value_depth(r, v) != k - 1)
			continue;
		LoopValue x = rows_element(r, v, r->flat_full);
		lb_store(r->lw->lb, r->lw->state->buffers[v->id], r->flat_full, x);
	}
}

int
open_reduced(Rows *r, int dim, Affine *step)
{
	LoopBuilder *lb = r->lw->lb;
	int64_t extent = r->nest.at[dim].extent;

	if (!r->team_rows || dim != r->row_loop) {
		*step = affine_scalar(lb, lb_for(lb, LOOP_PLAIN, extent));
		return 1;
	}
	LoopValue group = lb_for(lb, LOOP_PLAIN, ceil_div(extent, r->team_rows));
	*step = affine_add_scaled(lb, affine_scalar(lb, r->member), affine_scalar(lb, group),
	                          r->team_rows);
	if (extent % r->team_rows == 0)
		return 1;
	Affine left = affine_add_scaled(lb, affine_constant(extent), *step, -1);
	*step = affine_add(lb, *step, affine_scalar(lb, lb_for_below(lb, LOOP_PLAIN, 1, left)));
	return 2;
}
