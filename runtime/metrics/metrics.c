/* The table of metrics, and the choice of metrics by name and by the loss. */
#include "runtime/metrics/metrics.h"

#include "runtime/metrics/values.h"

#include <math.h>
#include <string.h>

static double
loss_itself(const LossSums *s)
{
	return s->loss;
}

static double
accuracy_of_loss(const LossSums *s)
{
	return s->count != 0 ? s->correct / s->count : NAN;
}

static double
perplexity(const LossSums *s)
{
	return exp(s->loss);
}

/* The tokens are bytes, so the loss is in nats per byte. */
static double
bits_per_byte(const LossSums *s)
{
	return s->loss / log(2);
}

/* clang-format off */
const MetricRow metric_table[] = {
	{"loss", "the loss", .is_field = true, .of_loss = loss_itself},
	{"accuracy", "the share of targets whose class has the highest score", .higher_is_better = true,
	 .is_field = true, .needs = NEEDS_CLASSES, .of_loss = accuracy_of_loss, .of_sums = value_accuracy},
	{"top", "topN, as top5: the share of targets whose class is among the N highest scores", .higher_is_better = true,
	 .takes_number = true, .needs = NEEDS_CLASSES | NEEDS_SCORES, .of_sums = value_top},
	{"precision", "of the targets predicted as a class, the share that is of the class; the mean over classes", .higher_is_better = true,
	 .needs = NEEDS_CLASSES, .of_sums = value_precision},
	{"recall", "of the targets of a class, the share that is predicted as the class; the mean over classes", .higher_is_better = true,
	 .needs = NEEDS_CLASSES, .of_sums = value_recall},
	{"f1", "the harmonic mean of a class's precision and recall; the mean over classes", .higher_is_better = true,
	 .needs = NEEDS_CLASSES, .of_sums = value_f1},
	{"auc", "the area under the ROC curve; with several classes, of each class against the others, and their mean", .higher_is_better = true,
	 .needs = NEEDS_CLASSES | NEEDS_ONE_LABEL, .of_sums = value_auc},
	{"perplexity", "exp of the loss", .is_field = true, .needs = NEEDS_LIKELIHOOD, .of_loss = perplexity},
	{"bits_per_byte", "the loss in bits per byte of the text", .needs = NEEDS_LIKELIHOOD | NEEDS_TEXT, .of_loss = bits_per_byte},
	{"r2", "1 - (squared error / variance of the labels); the mean over columns", .higher_is_better = true,
	 .needs = NEEDS_NUMBERS, .of_sums = value_r2},
	{"mae", "the mean absolute error", .needs = NEEDS_NUMBERS, .of_sums = value_mae},
	{"rmse", "the root of the mean squared error; the mean over columns", .needs = NEEDS_NUMBERS, .of_sums = value_rmse},
	{0},
};
/* clang-format on */

Metric
metric_find(const char *name)
{
	for (const MetricRow *row = metric_table; row->name; row++) {
		size_t n = strlen(row->name);
		Metric m = {row, name, 0};

		if (row->takes_number ? strncmp(name, row->name, n) == 0 &&
		                                parse_int(name + n, &m.number) && m.number > 0
		                      : strcmp(name, row->name) == 0)
			return m;
	}
	return (Metric){.name = name};
}

const char *
metric_refusal(Arena *arena, const Metric *m, const MetricTask *t)
{
	unsigned needs = m->row->needs;
	bool classes = t->kind == TARGETS_CLASSES || t->kind == TARGETS_BINARY;

	if (needs && t->kind == TARGETS_UNKNOWN)
		return "the model computes its own loss, so no output and labels are compared";
	if (needs & (NEEDS_CLASSES | NEEDS_LIKELIHOOD) && !classes)
		return "the labels are numbers, not classes";
	if (needs & NEEDS_NUMBERS && classes)
		return "the labels are classes, not numbers";
	if (needs & (NEEDS_SCORES | NEEDS_LIKELIHOOD) && t->kind == TARGETS_BINARY)
		return "each label is 0 or 1";
	if (needs & NEEDS_ONE_LABEL && t->kind == TARGETS_CLASSES && t->per_row > 1)
		return "a row has several labels";
	if (needs & NEEDS_LIKELIHOOD && t->per_row == 1)
		return "the labels are not tokens of a sequence";
	if (needs & NEEDS_TEXT && !t->is_text)
		return "the tokens are not the bytes of a text: --eval-text gives them";
	if (m->row->takes_number && m->number >= t->classes)
		return arena_printf(arena, "there are %lld classes", (long long)t->classes);
	return NULL;
}

int
metric_list(const MetricTask *task, Metric *out, int most)
{
	Arena *arena = arena_new();
	int n = 0;

	for (const MetricRow *row = metric_table; row->name && n < most; row++) {
		Metric m = row->takes_number ? metric_find("top5") : (Metric){row, row->name, 0};
		if (!metric_refusal(arena, &m, task))
			out[n++] = m;
	}
	arena_free(arena);
	return n;
}

/* "loss, accuracy, topN": the metrics that have a meaning. */
static const char *
names_text(Arena *arena, const MetricTask *task)
{
	const char *text = "";

	for (const MetricRow *row = metric_table; row->name; row++) {
		Metric m = {row, row->name, 1};
		if (!metric_refusal(arena, &m, task))
			text = arena_printf(arena, "%s%s%s%s", text, *text ? ", " : "", row->name,
			                    row->takes_number ? "N" : "");
	}
	return text;
}

Status
metric_check(Arena *arena, const char *name, const MetricTask *task, Metric *out)
{
	*out = metric_find(name);
	const char *why = out->row ? metric_refusal(arena, out, task) : NULL;

	if (!out->row)
		return status_error(EXIT_USAGE, "--metric=%s: no such metric; this model has %s",
		                    name, names_text(arena, task));
	if (why)
		return status_error(EXIT_USAGE,
		                    "--metric=%s: has no meaning for this model: %s; it has %s",
		                    name, why, names_text(arena, task));
	return NULL;
}

bool
metric_needs_outputs(const Metric *m, const MetricTask *t)
{
	if (!m->row->of_loss)
		return true;
	/* the program of role eval counts the correct targets of classes; a mean over class weights is no accuracy */
	return m->row->of_sums && (t->kind != TARGETS_CLASSES || t->weighted);
}
