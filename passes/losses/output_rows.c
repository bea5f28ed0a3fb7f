/* Finds the axis of the model's output that counts the rows (samples) of a micro-batch, and whether an element of one
 * row depends on other rows. */
#include "passes/losses/loss_pass.h"

/* Would the output have independent rows if axis `axis` of this parameter counted rows? */
static bool
would_do(LossPass *lp, Function *f, Value *param, int axis)
{
	const Value *output = function_result(f, (int)lp->options->output);
	int before = param->rows_axis;

	param->rows_axis = axis;
	BatchAxes b = batch_of(lp->p->scratch, f);
	param->rows_axis = before;
	const BatchAxis *a = &b.of[output->id];
	return a->axis >= 0 && a->repeats == 1 && !a->mixed &&
	       output->type->dims[a->axis] == b.rows;
}

/* For the hint --batch-axis x=1: returns the name of the only parameter with rows, and sets *axis,
 * if the rows would be independent along another axis of the parameter. NULL: no such parameter or
 * axis. */
static const char *
other_axis(LossPass *lp, Function *f, int *axis)
{
	Value *param = NULL;

	for (int i = 0; i < f->params.n; i++) {
		Value *v = f->params.at[i];
		if (v->has_rows && param)
			return NULL;
		param = v->has_rows ? v : param;
	}
	for (int i = 0; param && i < param->type->rank; i++)
		if (i != param->rows_axis && would_do(lp, f, param, i)) {
			*axis = i;
			return param->name;
		}
	return NULL;
}

static bool
refuse_output(LossPass *lp, Function *f, const char *other, int axis)
{
	const Value *output = function_result(f, (int)lp->options->output);
	const char *name = loss_output_name(lp, f, lp->options->output);

	loss_refuse(lp, "%s %s has no axis that counts the %lld rows of a micro-batch", name,
	            loss_shape_text(lp, output->type), (long long)lp->n_rows);
	if (other)
		diag_hint(
			lp->p->diag,
			"it would have rows if axis %d of input \"%s\" counted rows: --batch-axis %s=%d",
			axis, other, other, axis);
	else
		diag_hint(lp->p->diag,
		          "--batch-axis INPUT=N says which axis of an input counts rows, "
		          "--loss=%s:OUTPUT,rows=N which axis of the output does; if the loss is "
		          "over all rows together, the graph must compute it: --loss=output:NAME",
		          lp->options->kind);
	return false;
}

/* By default the first axis counts rows. If elements along this axis depend on each other, and elements along another
 * axis do not, the user must decide which axis counts rows. */
static bool
refuse_axis(LossPass *lp, const char *input, int axis)
{
	diag_error(lp->p->diag, EXIT_USAGE,
	           "%s: rows along the first axis of input \"%s\" depend on each other; rows along "
	           "axis %d do not",
	           lp->m->name, input, axis);
	diag_hint(
		lp->p->diag,
		"--batch-axis %s=%d: rows are along axis %d; --batch-axis %s=0: rows are along the "
		"first axis all the same",
		input, axis, axis, input);
	return false;
}

/* If rows are independent, only the axis found in the graph may count rows: along another axis, labels would be
 * compared with elements of other rows. */
static bool
refuse_given(LossPass *lp, Function *f, BatchAxis found)
{
	const char *name = loss_output_name(lp, f, lp->options->output);
	Type t = function_result(f, (int)lp->options->output)->type;

	loss_refuse(lp, "rows=%lld: %s %s has its rows along axis %d",
	            (long long)loss_said(lp->options->rows, lp->options->rows_given), name,
	            loss_shape_text(lp, t), found.axis);
	diag_hint(lp->p->diag,
	          "rows= is for outputs whose rows the graph does not tell; --batch-axis INPUT=N "
	          "says which axis of an input counts rows");
	return false;
}

/* Applies the option rows=N. If N is the axis found in the graph, this axis keeps its repeats.
 * Another axis gets one block per row, which is allowed only if the graph cannot tell: no axis was
 * found, rows mix, or all elements belong to a single row. */
static bool
take_given(LossPass *lp, Function *f, BatchAxis found)
{
	Type t = function_result(f, (int)lp->options->output)->type;
	int64_t given = lp->options->rows;
	int axis = (int)given;

	if (given < 0 || given >= t->rank || t->dims[axis] % lp->n_rows != 0)
		return loss_refuse(lp, "rows=%lld: %s is %s, and a micro-batch has %lld rows",
		                   (long long)loss_said(given, lp->options->rows_given),
		                   loss_output_name(lp, f, lp->options->output),
		                   loss_shape_text(lp, t), (long long)lp->n_rows);
	bool proven = found.axis >= 0 && !found.mixed && lp->n_rows > 1;
	if (proven && found.axis != axis)
		return refuse_given(lp, f, found);
	lp->rows = found.axis == axis ? found : (BatchAxis){axis, 1, true};
	return true;
}

/* If the graph does not tell: only the first axis has as many elements as there are rows. */
static bool
leading_counts(const LossPass *lp, Type t)
{
	int n = 0;

	for (int i = 0; i < t->rank; i++)
		n += t->dims[i] == lp->n_rows;
	return t->rank > 0 && (lp->n_rows == 1 || (n == 1 && t->dims[0] == lp->n_rows));
}

bool
loss_find_rows(LossPass *lp, Function *f)
{
	const Value *output = function_result(f, (int)lp->options->output);
	BatchAxes b = batch_of(lp->p->scratch, f);
	BatchAxis found = b.of[output->id];
	Type t = output->type;
	int axis = 0;

	lp->n_rows = b.rows;
	if (!b.rows) /* no input has rows: if the module is text, the output tells */
		lp->n_rows = lp->m->import || t->rank == 0 ? 1 : t->dims[0];
	if (lp->options->rows != -1)
		return take_given(lp, f, found);
	bool unknown = found.mixed && !lp->options->rows_known;
	const char *other = unknown ? other_axis(lp, f, &axis) : NULL;
	if (found.axis < 0 && b.rows && (other || !leading_counts(lp, t)))
		return refuse_output(lp, f, other, axis);
	if (other)
		return refuse_axis(lp, other, axis);
	if (found.axis < 0)
		found = (BatchAxis){0, 1, true};
	lp->rows = found;
	return true;
}

bool
loss_rows_mix(const Function *f, int64_t output, bool stores)
{
	Arena *arena = arena_new();
	BatchAxes b = batch_of(arena, f);
	const BatchAxis *a = &b.of[function_result(f, (int)output)->id];
	bool mixed = a->mixed || (stores && batch_stores_mix(&b, f));

	arena_free(arena);
	return mixed;
}
