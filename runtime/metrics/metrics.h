/* Metrics of an evaluation, such as accuracy. A metric is computed either from the sums that the program of role eval makes (the
 * loss), or from the model's output and the labels of every row. One table lists all metrics. Sections are named after the .c
 * files.
 *
 * Words: a row is a sample of the data. A target is what the loss compares with one label: a row has one target (a class per
 * image) or several (a class per token). A column is one of a row's numbers, for losses of numbers. */
#ifndef GRADC_RUNTIME_METRICS_METRICS_H
#define GRADC_RUNTIME_METRICS_METRICS_H

#include "format/format.h"

/* ---- task.c: what the loss compares, from the executable's tables */
typedef enum {
	TARGETS_UNKNOWN, /* the model computes its own loss, so nothing tells outputs from labels */
	TARGETS_CLASSES, /* labels are indices of classes; the output has a score per class */
	TARGETS_BINARY,  /* labels are 0 or 1; the output has a logit for each label */
	TARGETS_NUMBERS, /* labels are numbers like the output's */
} TargetKind;
typedef enum { SCORES_PLAIN, SCORES_LOGITS, SCORES_LOG_PROBABILITIES } ScoreForm;
typedef struct {
	TargetKind kind;
	ScoreForm form;
	int output; /* number of the output that the loss takes, among the outputs of the program of role forward */
	/* CLASSES: number of classes. BINARY: number of labels of a row if is_multilabel, otherwise 2. */
	int64_t classes;
	int64_t per_row; /* labels of a row */
	/* CLASSES: in a row of the output [outer, classes, inner], labels are [outer, inner]; otherwise 1. */
	int64_t outer, inner;
	int64_t columns; /* NUMBERS: columns of which metrics are averaged; 1: all numbers are alike */
	/* BINARY: the labels of a row are independent answers (multi-label); false: each label is one of two classes */
	bool is_multilabel;
	bool is_text;  /* targets are the bytes of a text */
	bool weighted; /* classes have weights, so sums of the loss do not give the accuracy */
} MetricTask;
/* forward: a program of role forward. */
MetricTask metric_task(const Format *f, const ProgramRecord *forward);
int64_t task_classes(const MetricTask *t); /* number of classes that may have names; 0: none */

/* ---- metrics.c: the table */
typedef struct MetricRow MetricRow;
typedef struct MetricSums MetricSums;
/* A metric that was asked for: "top5" is the row "top" with number 5. */
typedef struct {
	const MetricRow *row; /* NULL: unknown name */
	const char *name;     /* as it was asked for */
	int64_t number;
} Metric;
/* What a metric needs of a task, as bits. */
enum {
	NEEDS_CLASSES = 1,   /* classes, or labels that are 0 or 1 */
	NEEDS_ONE_LABEL = 2, /* one label per row, or labels that are 0 or 1 */
	NEEDS_SCORES = 4,    /* a score per class */
	NEEDS_NUMBERS = 8,
	NEEDS_LIKELIHOOD = 16, /* a loss that is the mean of -log(probability) over classes */
	NEEDS_TEXT = 32,
};
/* The loss of an evaluation, from the program's sums. */
typedef struct {
	double loss, correct, count; /* correct: NaN if the program does not count it */
} LossSums;
struct MetricRow {
	const char *name, *help;
	bool higher_is_better;
	bool takes_number; /* a number follows the name: top5 */
	bool is_field;     /* GradcEval has a field of this name */
	unsigned needs;    /* NEEDS_... */
	/* The value from the loss's sums alone; NULL, or NaN: outputs are needed. */
	double (*of_loss)(const LossSums *loss);
	/* The value from the sums over all targets; NaN if it has none, for example without rows. */
	double (*of_sums)(const MetricSums *sums, const Metric *metric);
};
extern const MetricRow metric_table[]; /* ends with a row without a name */
Metric metric_find(const char *name);
/* Why the metric has no meaning for the task; NULL if it has one. In the arena, or static. */
const char *metric_refusal(Arena *arena, const Metric *metric, const MetricTask *task);
/* EXIT_USAGE if the metric is unknown or has no meaning for the task; the message names the metrics that have one. */
Status metric_check(Arena *arena, const char *name, const MetricTask *task, Metric *out);
/* Must the program of role forward run for this metric? */
bool metric_needs_outputs(const Metric *metric, const MetricTask *task);
/* The metrics that have a meaning for the task, in the order of the table; top5 if there are more than 5 classes. Returns their
 * number, at most `most`. */
int metric_list(const MetricTask *task, Metric *out, int most);

/* ---- sums.c: what metrics need of all targets. Targets are added in the order of the rows, a micro-batch at a time; so results
 * have the same bits however many ranks share the work. */
/* An output or the labels of a micro-batch: the row axis is in the middle, [before, rows, after]. */
typedef struct {
	const void *at;
	DType dtype;
	int64_t before, rows, after;
} Batch;
/* scores: also keep all scores, which the metric auc needs. */
MetricSums *sums_new(Arena *arena, const MetricTask *task, int64_t micro_rows, bool scores);
/* Bytes of a record: what sums need of a micro-batch. */
int64_t sums_record_bytes(const MetricSums *s);
/* Makes the record of a micro-batch's first `rows` rows. May be called for other rows than those added next. */
void sums_record(MetricSums *s, const Batch *output, const Batch *labels, int64_t rows,
                 void *record);
void sums_add(MetricSums *s, const void *record);
/* EXIT_USAGE, naming the limit, if the scores of so many rows are too many to keep. */
Status sums_check_scores(const MetricTask *task, int64_t rows);

/* Results by class; arrays have an element per class. */
typedef struct {
	int64_t classes;
	const double *precision, *recall, *f1;
	const int64_t *support; /* labels of the class */
	/* [classes][classes]: labels of class i (row) for which class j was predicted; NULL if there are too many classes, or if rows
	 * have several labels that are 0 or 1 */
	const int64_t *confusion;
} ByClass;
/* In the arena. false: the task has no classes. */
bool sums_by_class(Arena *arena, const MetricSums *s, ByClass *out);

/* ---- probabilities.c: the probabilities of a target's classes, from the output */
/* The scores of an output: the scores of one target are `stride` elements apart. */
typedef struct {
	const void *at;
	DType dtype;
	int64_t stride, classes;
} Scores;
/* to: `classes` numbers; first: the element with the target's first score. */
void scores_load(double *to, const Scores *from, int64_t first);
/* Turns the n scores of a target of classes, or any n scores of labels that are 0 or 1, into probabilities. */
void scores_to_probabilities(double *scores, int64_t n, const MetricTask *task);
/* Turns them into numbers that are ordered as the probabilities are, and stay apart where probabilities round to 0 or 1. */
void scores_to_order(double *scores, int64_t n, const MetricTask *task);

#endif
