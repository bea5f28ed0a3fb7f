/* What the loss compares, from the output that the compiler has marked. */
#include "runtime/metrics/metrics.h"

static const struct {
	TargetKind kind;
	ScoreForm form;
} compared[N_COMPARED] = {
	[COMPARED_NOT] = {TARGETS_UNKNOWN, SCORES_PLAIN},
	[COMPARED_LOGITS] = {TARGETS_CLASSES, SCORES_LOGITS},
	[COMPARED_LOG_PROBABILITIES] = {TARGETS_CLASSES, SCORES_LOG_PROBABILITIES},
	[COMPARED_BINARY_LOGITS] = {TARGETS_BINARY, SCORES_LOGITS},
	[COMPARED_NUMBERS] = {TARGETS_NUMBERS, SCORES_PLAIN},
};

static int64_t
product(const int64_t *dims, int n)
{
	int64_t all = 1;

	for (int i = 0; i < n; i++)
		all *= dims[i];
	return all;
}

/* Splits a row's elements, whose number is t->per_row, at the class axis. If the class axis stands before the row axis, the axes
 * behind it include the rows. */
static void
split_classes(const Format *f, const PortRecord *p, int64_t rows, MetricTask *t)
{
	const int64_t *dims = f->dims + p->first_dim;
	int axis = (int)p->class_axis;

	t->classes = dims[axis];
	t->inner = product(dims + axis + 1, (int)p->rank - axis - 1) /
	           (axis < (int)p->row_axis ? rows : 1);
	t->per_row /= t->classes;
	t->outer = t->per_row / t->inner;
}

MetricTask
metric_task(const Format *f, const ProgramRecord *forward)
{
	MetricTask t = {
		.output = -1, .classes = 1, .per_row = 1, .outer = 1, .inner = 1, .columns = 1};
	int64_t rows = f->bindings[forward->binding].rows;
	const PortRecord *p = NULL;
	PortRows split;

	for (uint32_t i = 0; i < forward->n_outputs && !p; i++) {
		const PortRecord *port = &f->ports[forward->first_output + i];
		if (port->compared != COMPARED_NOT && format_port_rows(f, port, rows, &split)) {
			p = port;
			t.output = (int)i;
		}
	}
	if (!p)
		return t;
	t.kind = compared[p->compared].kind;
	t.form = compared[p->compared].form;
	t.per_row = split.before * split.after;
	t.weighted = format_info_is(f, "class_weights", "1");
	if (t.kind == TARGETS_CLASSES)
		split_classes(f, p, rows, &t);
	/* a row is a vector, and the row axis holds nothing but rows */
	bool is_vector = p->rank == 2 && f->dims[p->first_dim + p->row_axis] == rows;
	if (t.kind == TARGETS_NUMBERS && is_vector)
		t.columns = t.per_row;
	if (t.kind == TARGETS_BINARY)
		t.classes = is_vector && t.per_row > 1 ? t.per_row : 2;
	t.is_multilabel = t.kind == TARGETS_BINARY && t.per_row > 1 && is_vector;
	return t;
}

int64_t
task_classes(const MetricTask *t)
{
	return t->kind == TARGETS_CLASSES || t->kind == TARGETS_BINARY ? t->classes : 0;
}
