/* Finds which axis of a result counts the rows of a micro-batch (the row axis), for ops whose
 * factors (ir/op.h) do not tell it: views that merge or split axes, and ops that run functions. */
#include "ir/ops/batch/batch_axis.h"

/* ---- reshape */
static int64_t
product(const int64_t *dims, int n)
{
	int64_t p = 1;

	for (int i = 0; i < n; i++)
		p *= dims[i];
	return p;
}

/* Does `axis` of t hold the rows? In flat order there are `outer` repeats of all `rows` rows, and
 * each row has `inner` consecutive elements. If so, sets *out. */
static bool
find_axis(Type t, int axis, int64_t outer, int64_t rows, BatchAxis *out)
{
	int64_t before = product(t->dims, axis);
	int64_t behind = product(t->dims + axis + 1, t->rank - axis - 1);
	int64_t inner = t->n / (outer * rows);

	if (outer % before != 0 || inner % behind != 0)
		return false;
	*out = (BatchAxis){axis, outer / before, false};
	return true;
}

/* The row axis of a reshape's result. Example: [4,6,7] -> [24,7] with 4 rows along axis 0: axis 0
 * of the result holds the rows, as blocks of 6 elements. If several axes fit, prefers one whose
 * size is the number of rows. */
void
batch_reshape(BatchFlow *fl)
{
	Type x = node_operand(fl->node, 0)->type, y = node_result(fl->node, 0)->type;
	const BatchAxis *a = &fl->operand[0];
	BatchAxis found = batch_lost, at;

	for (int i = 0; a->axis >= 0 && x->n > 0 && i < y->rank; i++) {
		int64_t outer = product(x->dims, a->axis) * a->repeats;
		if (!find_axis(y, i, outer, fl->rows, &at))
			continue;
		bool exact = y->dims[i] == fl->rows;
		if (found.axis < 0 || exact)
			found = at;
		if (exact)
			break;
	}
	found.mixed |= a->mixed;
	fl->result[0] = found;
}

/* ---- concat: if it joins along the row axis, the result has all rows once for each operand, so
 * the rows repeat */
static int64_t
block_of(const BatchFlow *fl, int operand)
{
	const BatchAxis *a = &fl->operand[operand];

	return node_operand(fl->node, operand)->type->dims[a->axis] / batch_parts(fl, a);
}

void
batch_concat(BatchFlow *fl)
{
	int axis = (int)((const AxisAttr *)fl->node->attr)->axis;
	BatchAxis sum = {axis, 0, false};

	for (int i = 0; i < fl->node->n_operands; i++) {
		const BatchAxis *a = &fl->operand[i];
		if (a->axis != axis || block_of(fl, i) != block_of(fl, 0)) {
			batch_by_factors(fl);
			return;
		}
		sum.repeats += a->repeats;
		sum.mixed |= a->mixed;
	}
	fl->result[0] = sum;
}

/* ---- slice: if an axis holds all rows several times, a slice may take some of these repeats */
void
batch_slice(BatchFlow *fl)
{
	const SliceAttr *s = fl->node->attr;
	const BatchAxis *a = &fl->operand[0];

	batch_by_factors(fl);
	if (a->axis < 0 || fl->result[0].axis >= 0)
		return;
	int64_t repeat = node_operand(fl->node, 0)->type->dims[a->axis] / a->repeats;
	int64_t taken = node_result(fl->node, 0)->type->dims[a->axis];
	if (s->step.at[a->axis] == 1 && taken > 0 && taken % repeat == 0 &&
	    s->start.at[a->axis] % repeat == 0)
		fl->result[0] = (BatchAxis){a->axis, taken / repeat, a->mixed};
}

/* ---- functions */
void
batch_call(BatchFlow *fl)
{
	batch_of_callee(fl, ((const CallAttr *)fl->node->attr)->callee, fl->operand, fl->result);
}

/* Marks all results as mixed (an element may depend on several rows). Used if the condition
 * depends on rows: one decision, made from several rows, then determines the results of all rows. */
static void
mix_results(BatchFlow *fl)
{
	for (int i = 0; i < fl->node->n_results; i++)
		fl->result[i].mixed = true;
}

static bool
has_rows(const BatchAxis *a)
{
	return a->axis >= 0 || a->mixed;
}

void
batch_cond(BatchFlow *fl)
{
	const CondAttr *c = fl->node->attr;
	BatchAxis *other = NEW_ARRAY(fl->arena, BatchAxis, fl->node->n_results + 1);

	batch_of_callee(fl, c->then_branch, fl->operand + 1, fl->result);
	batch_of_callee(fl, c->else_branch, fl->operand + 1, other);
	for (int i = 0; i < fl->node->n_results; i++)
		fl->result[i] = batch_join(fl->result[i], other[i]);
	if (has_rows(&fl->operand[0]))
		mix_results(fl);
}

/* The row axis of the part of operand i that one iteration gets. If the loop slices operand i along
 * its row axis, each iteration gets other rows, and no axis counts them. */
static BatchAxis
part_of_operand(const BatchFlow *fl, int i)
{
	BatchAxis a = fl->operand[i];

	if (a.axis < 0 || loop_part(fl->node, i) != LOOP_SLICED)
		return a;
	if (a.axis == 0)
		return batch_lost;
	a.axis--;
	return a;
}

/* Computes the row axes of the loop's body again with the axes of the carried values, until no
 * axis changes. Each axis can change twice at most. */
void
batch_loop(BatchFlow *fl)
{
	const LoopAttr *l = fl->node->attr;
	int n = fl->node->n_operands, outs = fl->node->n_results;
	BatchAxis *params = NEW_ARRAY(fl->arena, BatchAxis, n + 1);
	BatchAxis *results = NEW_ARRAY(fl->arena, BatchAxis, outs + 1);

	params[0] = batch_none;
	for (int i = 0; i < n; i++)
		params[1 + i] = part_of_operand(fl, i);
	for (bool again = true; again;) {
		again = false;
		batch_of_callee(fl, l->body, params, results);
		for (int i = 1; i <= l->carried; i++) {
			BatchAxis next = batch_join(params[i], results[i]);
			again |= !batch_same(&next, &params[i]);
			params[i] = next;
		}
	}
	for (int i = 0; i + 1 < outs; i++) {
		fl->result[i] = i < l->carried ? params[1 + i] : results[1 + i];
		fl->result[i].axis += i >= l->carried && fl->result[i].axis >= 0;
	}
	fl->result[outs - 1] = batch_none;
	if (!l->always && has_rows(&results[0]))
		mix_results(fl);
}
