/* Metrics of classes: accuracy, topN, and by class precision, recall, F1 and the confusion matrix. Labels that are 0 or 1 are
 * two classes if a row has one of them; if a row has several (multi-label), each label is a class that a row has or lacks.
 *
 * A class without labels has recall 0, and a class that is never predicted has precision 0. Means over classes leave out the
 * classes that are neither a label nor predicted, except in multi-label tasks, as scikit-learn does. */
#include "runtime/metrics/values.h"

#include <math.h>
#include <string.h>

enum { IGNORED = -1, NOT_BINARY = -2 };

/* A record: the number of targets, then for each target these numbers, then the scores of all targets. */
typedef struct {
	int32_t label, predicted; /* label: IGNORED, NOT_BINARY, or a class */
	/* CLASSES: classes that stand before the label in the order of the scores */
	int32_t before, reserved;
} Outcome;

static int64_t
scores_per_target(const MetricTask *t)
{
	return t->kind == TARGETS_CLASSES && t->classes > 2 ? t->classes : 1;
}

void
classes_open(MetricSums *s)
{
	ClassSums *c = &s->classes;
	int64_t n = s->task.classes;

	c->actual = NEW_ARRAY(s->arena, int64_t, n);
	c->predicted = NEW_ARRAY(s->arena, int64_t, n);
	c->both = NEW_ARRAY(s->arena, int64_t, n);
	c->before = NEW_ARRAY(s->arena, int64_t, n + 1);
	if (n <= MOST_CONFUSED && !s->task.is_multilabel)
		c->confusion = NEW_ARRAY(s->arena, int64_t, n * n);
	s->row = NEW_ARRAY(s->arena, double, n);
	s->list.width = s->task.is_multilabel ? s->task.per_row : scores_per_target(&s->task);
	s->list.labels_each = s->task.is_multilabel ? s->task.per_row : 1;
}

int64_t
classes_record_bytes(const MetricSums *s)
{
	int64_t targets = s->micro_rows * s->task.per_row;
	int64_t scores = s->keeps_scores ? scores_per_target(&s->task) * targets : 0;

	return (int64_t)sizeof(int64_t) + targets * (int64_t)sizeof(Outcome) +
	       scores * (int64_t)sizeof(double);
}

static Outcome *
outcomes(const void *record)
{
	return (Outcome *)((char *)(uintptr_t)record + sizeof(int64_t));
}

static double *
scores_of(const MetricSums *s, const void *record)
{
	return (double *)(void *)(outcomes(record) + s->micro_rows * s->task.per_row);
}

/* ---- records */
/* The first of the classes with the highest score, as the program of role eval counts. */
static int32_t
best_of(const double *scores, int64_t n)
{
	int64_t best = 0;

	for (int64_t i = 1; i < n; i++)
		if (scores[i] > scores[best])
			best = i;
	return (int32_t)best;
}

/* Number of classes before the label in falling order of scores. Of equal scores, the later class stands first, as in
 * scikit-learn's top_k_accuracy_score. */
static int32_t
place_of(const double *scores, int64_t n, int64_t label)
{
	int32_t before = 0;

	for (int64_t i = 0; i < n; i++)
		before += scores[i] > scores[label] || (scores[i] == scores[label] && i > label);
	return before;
}

static int64_t
element(const Batch *b, int64_t row, int64_t at)
{
	return (at / b->after * b->rows + row) * b->after + at % b->after;
}

static Outcome
outcome_of_classes(MetricSums *s, const Batch *output, int64_t row, int64_t target, int64_t label)
{
	const MetricTask *t = &s->task;
	int64_t at = target / t->inner * t->classes * t->inner + target % t->inner;
	int64_t first = element(output, row, at);
	Scores scores = {output->at, output->dtype,
	                 t->classes > 1 ? element(output, row, at + t->inner) - first : 1,
	                 t->classes};

	if (label < 0 || label >= t->classes)
		return (Outcome){.label = IGNORED};
	scores_load(s->row, &scores, first);
	return (Outcome){(int32_t)label, best_of(s->row, t->classes),
	                 place_of(s->row, t->classes, label), 0};
}

static Outcome
outcome_of_binary(MetricSums *s, const Batch *output, int64_t row, int64_t target, double label)
{
	s->row[0] = dtype_load_float(output->dtype, output->at, element(output, row, target));
	return (Outcome){label == 0 || label == 1 ? (int32_t)label : NOT_BINARY, s->row[0] > 0, 0,
	                 0};
}

static double
label_value(const Batch *labels, int64_t at)
{
	return dtype_is_float(labels->dtype)
	               ? dtype_load_float(labels->dtype, labels->at, at)
	               : (double)dtype_load_int(labels->dtype, labels->at, at);
}

void
classes_record(MetricSums *s, const Batch *output, const Batch *labels, int64_t rows, void *record)
{
	const MetricTask *t = &s->task;
	int64_t width = scores_per_target(t), n = 0;
	double *scores = scores_of(s, record);

	for (int64_t r = 0; r < rows; r++)
		for (int64_t i = 0; i < t->per_row; i++, n++) {
			double label = label_value(labels, element(labels, r, i));
			Outcome o = t->kind == TARGETS_CLASSES
			                    ? outcome_of_classes(s, output, r, i, (int64_t)label)
			                    : outcome_of_binary(s, output, r, i, label);
			outcomes(record)[n] = o;
			if (!s->keeps_scores || o.label == IGNORED)
				continue;
			int64_t loaded = t->kind == TARGETS_CLASSES ? t->classes : 1;
			scores_to_order(s->row, loaded, t);
			memcpy(scores + n * width, loaded == 2 ? s->row + 1 : s->row,
			       sizeof(double) * (size_t)width);
		}
	*(int64_t *)record = n;
}

/* ---- sums */
static void
add_target(ClassSums *c, const Outcome *o, int64_t classes)
{
	c->targets++;
	c->correct += o->label == o->predicted;
	c->actual[o->label]++;
	c->predicted[o->predicted]++;
	c->both[o->label] += o->label == o->predicted;
	c->before[o->before]++;
	if (c->confusion)
		c->confusion[o->label * classes + o->predicted]++;
}

/* Each label is a class that the row has or lacks. A row is correct if all of its labels are. */
static void
add_multilabel(ClassSums *c, const Outcome *o, int64_t n)
{
	bool correct = true;

	for (int64_t i = 0; i < n; i++) {
		c->actual[i] += o[i].label;
		c->predicted[i] += o[i].predicted;
		c->both[i] += o[i].label && o[i].predicted;
		correct = correct && o[i].label == o[i].predicted;
	}
	c->targets++;
	c->correct += correct;
}

static void
keep_scores(MetricSums *s, const Outcome *o, const double *scores)
{
	ScoreList *l = &s->list;

	if (l->n == l->room) {
		int64_t room = l->room ? 2 * l->room : 1024;
		double *more = NEW_ARRAY(s->arena, double, room * l->width);
		int32_t *labels = NEW_ARRAY(s->arena, int32_t, room * l->labels_each);
		if (l->n > 0) {
			memcpy(more, l->scores, sizeof(*more) * (size_t)(l->n * l->width));
			memcpy(labels, l->labels,
			       sizeof(*labels) * (size_t)(l->n * l->labels_each));
		}
		l->scores = more;
		l->labels = labels;
		l->room = room;
	}
	memcpy(l->scores + l->n * l->width, scores, sizeof(*scores) * (size_t)l->width);
	for (int64_t i = 0; i < l->labels_each; i++)
		l->labels[l->n * l->labels_each + i] = o[i].label;
	l->n++;
}

void
classes_add(MetricSums *s, const void *record)
{
	int64_t n = *(const int64_t *)record, each = s->task.is_multilabel ? s->task.per_row : 1;
	const double *scores = scores_of(s, record);
	const Outcome *o = outcomes(record);

	for (int64_t i = 0; i < n; i++)
		s->is_soft |= o[i].label == NOT_BINARY;
	for (int64_t i = 0; i < n && !s->is_soft; i += each) {
		if (o[i].label == IGNORED)
			continue;
		if (s->task.is_multilabel)
			add_multilabel(&s->classes, o + i, each);
		else
			add_target(&s->classes, &o[i], s->task.classes);
		if (s->keeps_scores)
			keep_scores(s, o + i, scores + i * scores_per_target(&s->task));
	}
}

/* ---- values */
double
value_accuracy(const MetricSums *s, const Metric *m)
{
	const ClassSums *c = &s->classes;

	(void)m;
	return s->is_soft || c->targets == 0 ? NAN : (double)c->correct / (double)c->targets;
}

double
value_top(const MetricSums *s, const Metric *m)
{
	const ClassSums *c = &s->classes;
	int64_t n = 0;

	for (int64_t i = 0; i < m->number && i < s->task.classes; i++)
		n += c->before[i];
	return c->targets == 0 ? NAN : (double)n / (double)c->targets;
}

static double
ratio(int64_t a, int64_t b)
{
	return b == 0 ? 0 : (double)a / (double)b;
}

static double
precision_of(const ClassSums *c, int64_t i)
{
	return ratio(c->both[i], c->predicted[i]);
}

static double
recall_of(const ClassSums *c, int64_t i)
{
	return ratio(c->both[i], c->actual[i]);
}

static double
f1_of(const ClassSums *c, int64_t i)
{
	return ratio(2 * c->both[i], c->actual[i] + c->predicted[i]);
}

static double
mean_over_classes(const MetricSums *s, double (*of)(const ClassSums *c, int64_t i))
{
	const ClassSums *c = &s->classes;
	double sum = 0;
	int64_t n = 0;

	for (int64_t i = 0; i < s->task.classes; i++) {
		if (c->actual[i] + c->predicted[i] == 0 && !s->task.is_multilabel)
			continue;
		sum += of(c, i);
		n++;
	}
	return s->is_soft || c->targets == 0 ? NAN : sum / (double)n;
}

double
value_precision(const MetricSums *s, const Metric *m)
{
	(void)m;
	return mean_over_classes(s, precision_of);
}

double
value_recall(const MetricSums *s, const Metric *m)
{
	(void)m;
	return mean_over_classes(s, recall_of);
}

double
value_f1(const MetricSums *s, const Metric *m)
{
	(void)m;
	return mean_over_classes(s, f1_of);
}

static const double *
of_all(Arena *arena, const MetricSums *s, double (*of)(const ClassSums *c, int64_t i))
{
	double *list = NEW_ARRAY(arena, double, s->task.classes);

	for (int64_t i = 0; i < s->task.classes; i++)
		list[i] = of(&s->classes, i);
	return list;
}

bool
sums_by_class(Arena *arena, const MetricSums *s, ByClass *out)
{
	const ClassSums *c = &s->classes;

	*out = (ByClass){0};
	if (!c->actual || s->is_soft)
		return false;
	*out = (ByClass){.classes = s->task.classes,
	                 .precision = of_all(arena, s, precision_of),
	                 .recall = of_all(arena, s, recall_of),
	                 .f1 = of_all(arena, s, f1_of),
	                 .support = arena_copy(arena, c->actual,
	                                       sizeof(*c->actual) * (size_t)s->task.classes)};
	if (c->confusion)
		out->confusion = arena_copy(arena, c->confusion,
		                            sizeof(*c->confusion) *
		                                    (size_t)(s->task.classes * s->task.classes));
	return true;
}
