/* Finds the shape of a loss's target and the class axis, and builds the target from an input of the program. For
 * example, an output [4,6,7] with rows along axis 0 has labels [4,6]. The same output reshaped to [24,7] has labels
 * [24], but the program takes them as [4,6]: 6 labels per sample. */
#include "passes/losses/loss_pass.h"

#include <stdlib.h>
#include <string.h>

/* A shape in which axis `at` counts rows. */
typedef struct {
	Ints shape;
	int at;
} Spread;

static void
append(Ints *list, int64_t dim)
{
	if (list->n < MAX_RANK)
		list->at[list->n++] = dim;
}

static int64_t
ints_product(const Ints *list)
{
	int64_t n = 1;

	for (int i = 0; i < list->n; i++)
		n *= list->at[i];
	return n;
}

/* Splits the row axis into repeats, rows and elements of one row; axes of size 1 are left out. */
static Spread
spread_of(const LossPass *lp, Type t, const BatchAxis *rows)
{
	int64_t inner = t->dims[rows->axis] / (rows->repeats * lp->n_rows);
	Spread s = {0};

	for (int i = 0; i < t->rank; i++) {
		if (i != rows->axis) {
			append(&s.shape, t->dims[i]);
			continue;
		}
		if (rows->repeats > 1)
			append(&s.shape, rows->repeats);
		s.at = s.shape.n;
		append(&s.shape, lp->n_rows);
		if (inner > 1)
			append(&s.shape, inner);
	}
	return s;
}

/* The row axis of the target: the output's row axis, after the class axis was dropped. */
static BatchAxis
target_rows(const LossPass *lp, int class_axis)
{
	BatchAxis rows = lp->rows;

	rows.axis -= lp->row->class_targets && class_axis < rows.axis;
	return rows;
}

static Type
target_of(const LossPass *lp, Type output, int class_axis)
{
	return lp->row->class_targets ? type_drop_axis(lp->m, output, class_axis) : output;
}

/* ---- inputs of the model */
/* Do a and b have the same axes in order, apart from the row axes and axes of size 1? */
static bool
same_but_rows(const Spread *a, const Spread *b)
{
	int i = 0, k = 0;

	for (;;) {
		while (i < a->shape.n && (i == a->at || a->shape.at[i] == 1))
			i++;
		while (k < b->shape.n && (k == b->at || b->shape.at[k] == 1))
			k++;
		if (i == a->shape.n || k == b->shape.n)
			return i == a->shape.n && k == b->shape.n;
		if (a->shape.at[i++] != b->shape.at[k++])
			return false;
	}
}

/* The shape and row axis of a model input that serves as the target: those of the file if the
 * file gives them, otherwise those of the target. */
static bool
spread_of_input(const LossPass *lp, const Value *given, Type target, const BatchAxis *rows,
                Spread *out)
{
	Spread s = spread_of(lp, target, rows);
	Type t = given->type;

	if (!given->has_rows) {
		Ints shape = ints_of_type(t);
		*out = s;
		return type_same_shape(t, target) ||
		       (s.shape.n == shape.n &&
		        memcmp(s.shape.at, shape.at, sizeof(int64_t) * (size_t)shape.n) == 0);
	}
	*out = (Spread){ints_of_type(t), given->rows_axis};
	return t->dims[given->rows_axis] == lp->n_rows && same_but_rows(out, &s);
}

/* ---- the class axis */
static const char *
axes_text(LossPass *lp, const bool *fits, int rank)
{
	const char *text = "";

	for (int i = 0; i < rank; i++)
		if (fits[i])
			text = arena_printf(lp->p->scratch, "%s%s%d", text, *text ? ", " : "", i);
	return text;
}

/* The usual class axis if shapes leave it open: the last axis of [B,T,V], axis 1 of [N,C,H,W]. -1: there is no
 * rule. */
static int
usual_axis(int rank, bool made)
{
	return rank < 4 ? rank - 1 : rank == 4 || made ? 1 : -1;
}

/* Chooses the axis of the output that the labels lack: the given axis, the only axis that fits, or the usual one. */
static bool
choose_class_axis(LossPass *lp, const Value *target, Type output)
{
	int64_t given = lp->options->axis;
	int rank = output->rank, usual = usual_axis(rank, !target), n = 0;
	bool fits[MAX_RANK] = {false};
	Spread s;

	if (given >= rank || given < -1)
		return loss_refuse(lp, "axis %lld of a rank-%d output", (long long)given, rank);
	if (given == lp->rows.axis)
		return loss_refuse(lp, "axis %lld of the output holds the rows, not the classes",
		                   (long long)loss_said(given, lp->options->axis_given));
	lp->class_axis = (int)given;
	for (int i = 0; given < 0 && i < rank; i++) {
		BatchAxis rows = target_rows(lp, i);
		fits[i] = i != lp->rows.axis &&
		          (!target ||
		           spread_of_input(lp, target, target_of(lp, output, i), &rows, &s));
		n += fits[i];
		lp->class_axis = fits[i] ? i : lp->class_axis;
	}
	if (given >= 0 || n == 1)
		return true;
	if (n == 0)
		return loss_refuse(lp, "the target fits no axis of the output");
	lp->class_axis = usual;
	if (usual >= 0 && fits[usual])
		return true;
	return loss_refuse(lp,
	                   "the classes of the output %s may be along axis %s: choose with ,axis=N",
	                   loss_shape_text(lp, output), axes_text(lp, fits, rank));
}

static bool
check_class_weight(LossPass *lp, Type output)
{
	const char *name = lp->options->class_weight;
	const State *s = name ? module_state(lp->m, name) : NULL;

	if (!name)
		return true;
	if (!s || !s->data || !dtype_is_float(s->type->dtype))
		return loss_refuse(lp, "class weights: no state @%s with floats", name);
	const Tensor *w = lp->class_weight = s->data;
	if (w->type->rank != 1 || w->type->dims[0] != output->dims[lp->class_axis])
		return loss_refuse(lp, "--class-weight has %lld numbers, the output %lld classes",
		                   (long long)w->type->n, (long long)output->dims[lp->class_axis]);
	return true;
}

/* ---- the target */
static bool
check_dtype(LossPass *lp, const Value *target, DType want)
{
	DType have = target->type->dtype;

	if (!lp->row->class_targets && have != want)
		return loss_refuse(lp, "target \"%s\" does not have the output's type",
		                   target->name);
	if (lp->row->class_targets && have != S64 && have != S32)
		return loss_refuse(lp,
		                   "target \"%s\" is no s64 or s32 of the output's shape without "
		                   "axis %d",
		                   target->name, lp->class_axis);
	return true;
}

static bool
refuse_shape(LossPass *lp, const Value *target)
{
	if (!lp->row->class_targets)
		return loss_refuse(lp, "target \"%s\" does not have the output's type",
		                   target->name);
	return loss_refuse(lp,
	                   "target \"%s\" is no s64 or s32 of the output's shape without axis %d",
	                   target->name, lp->class_axis);
}

static bool
check_output(LossPass *lp, const Function *forward, Type output)
{
	if (output->rank < 1 || !dtype_is_float(output->dtype))
		return loss_refuse(
			lp,
			"the output is %s and of rank %d; a loss needs floats of rank 1 or more",
			dtype_info[output->dtype].name, output->rank);
	if (output->n == 0)
		return loss_refuse(lp, "%s has no elements: there is nothing to learn from",
		                   loss_output_name(lp, forward, lp->options->output));
	if (lp->row->class_targets && output->rank < 2)
		return loss_refuse(lp, "class losses need an output of rank 2 or more");
	return true;
}

bool
loss_check_output(LossPass *lp, const Function *forward)
{
	return check_output(lp, forward, function_result(forward, (int)lp->options->output)->type);
}

bool
loss_prepare_target(LossPass *lp, const Function *forward)
{
	Type output = function_result(forward, (int)lp->options->output)->type;
	int64_t number = lp->options->target;
	const Value *target = number < 0 ? NULL
	                                 : function_find_param(forward, PARAM_INPUT, (int)number);
	DType dtype = lp->row->class_targets ? S64 : output->dtype;

	if (number >= 0 && !target)
		return loss_refuse(lp, "the model has no input %lld", (long long)number);
	if (lp->row->class_targets &&
	    (!choose_class_axis(lp, target, output) || !check_class_weight(lp, output)))
		return false;
	BatchAxis rows = target_rows(lp, lp->class_axis);
	Type shape = target_of(lp, output, lp->class_axis);
	Spread s = spread_of(lp, shape, &rows);
	if (target && !check_dtype(lp, target, dtype))
		return false;
	if (target && !spread_of_input(lp, target, shape, &rows, &s))
		return refuse_shape(lp, target);
	if (ints_product(&s.shape) != (target ? target->type->n : shape->n))
		return loss_refuse(lp, "%s has more axes than a target can have",
		                   loss_output_name(lp, forward, lp->options->output));
	dtype = target ? target->type->dtype : dtype;
	lp->target = type_with_dtype(lp->m, shape, dtype);
	lp->target_type = type_new(lp->m, dtype, s.shape.n, s.shape.at);
	lp->target_rows = s.at;
	return true;
}

/* If the rows of an input lie along another axis than the rows of the target, they are moved there. */
Value *
loss_target_value(const LossPass *lp, Builder *b, Value *param)
{
	BatchAxis rows = target_rows(lp, lp->class_axis);
	Spread s = spread_of(lp, lp->target, &rows);
	Ints order = {.n = 0};
	int64_t before = 1, wanted = 1;
	bool placed = false;

	for (int i = 0; i < s.at; i++)
		wanted *= s.shape.at[i];
	for (int i = 0; i < lp->target_rows; i++)
		before *= param->type->dims[i];
	if (before == wanted)
		return b_reshape(b, param, ints_of_type(lp->target));
	before = 1;
	for (int i = 0; i < param->type->rank; i++) {
		if (!placed && before == wanted) {
			order.at[order.n++] = lp->target_rows;
			placed = true;
		}
		if (i == lp->target_rows)
			continue;
		order.at[order.n++] = i;
		before *= param->type->dims[i];
	}
	if (!placed)
		order.at[order.n++] = lp->target_rows;
	return b_reshape(b, b_transpose(b, param, order), ints_of_type(lp->target));
}

/* Where the loss's rows and classes lie, with faults going to `diag`. */
static bool
find_place(Arena *arena, Diag *diag, Module *m, Function *f, const LossOptions *o, LossPlace *out)
{
	Pass pass = {.scratch = arena, .diag = diag};
	LossPass lp = {
		.p = &pass, .m = m, .options = o, .row = o->kind ? loss_find(o->kind) : NULL};

	if (!lp.row || o->output < 0 || o->output >= function_return(f)->n_operands ||
	    !loss_check_output(&lp, f) || !loss_find_rows(&lp, f) || !loss_prepare_target(&lp, f))
		return false;
	*out = (LossPlace){lp.rows, lp.row->class_targets ? lp.class_axis : -1};
	return true;
}

bool
loss_place(Module *m, Function *f, const LossOptions *o, LossPlace *out)
{
	char *text = NULL;
	size_t n;
	FILE *nowhere = open_memstream(&text, &n);
	Arena *arena = arena_new();
	Diag *diag = diag_new("", nowhere);
	bool ok = nowhere && find_place(arena, diag, m, f, o, out);

	diag_free(diag);
	arena_free(arena);
	if (nowhere)
		fclose(nowhere);
	free(text);
	return ok;
}
