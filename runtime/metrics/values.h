/* Private to runtime/metrics: sums over targets, and the values of metrics. Sections are named after the .c files. */
#ifndef GRADC_RUNTIME_METRICS_VALUES_H
#define GRADC_RUNTIME_METRICS_VALUES_H

#include "runtime/metrics/metrics.h"

/* Largest number of classes with a confusion matrix. */
enum { MOST_CONFUSED = 1024 };

/* Classes, and labels that are 0 or 1. */
typedef struct {
	int64_t targets, correct;
	/* by class: targets with this label; predicted as the class; both */
	int64_t *actual, *predicted, *both;
	int64_t *confusion; /* [classes][classes]; NULL: not counted */
	/* by r: targets before whose label r classes stand in the order of the scores */
	int64_t *before;
} ClassSums;

/* One column of numbers. The mean and the squared deviations are updated value by value (Welford 1962). */
typedef struct {
	int64_t n;
	double mean, deviations; /* of the labels: their mean; the sum of (label - mean)^2 */
	double squares, errors;  /* sums of (label - output)^2 and |label - output| */
} NumberSums;

/* All scores, for the area under the ROC curve. */
typedef struct {
	/* Scores and labels of an entry. A score per class, or the score of the label 1; one label, or in multi-label tasks as
	 * many as scores. */
	int64_t width, labels_each;
	double *scores;
	int32_t *labels;
	int64_t n, room; /* entries */
} ScoreList;

struct MetricSums {
	Arena *arena;
	MetricTask task;
	int64_t micro_rows;
	bool keeps_scores;
	/* A label that should be 0 or 1 is another number: metrics of classes have no value. */
	bool is_soft;
	double *row; /* scores of a target */
	ClassSums classes;
	NumberSums *columns;
	ScoreList list;
};

/* ---- classes.c */
void classes_open(MetricSums *s);
int64_t classes_record_bytes(const MetricSums *s);
void classes_record(MetricSums *s, const Batch *output, const Batch *labels, int64_t rows,
                    void *record);
void classes_add(MetricSums *s, const void *record);
double value_accuracy(const MetricSums *s, const Metric *m);
double value_top(const MetricSums *s, const Metric *m);
double value_precision(const MetricSums *s, const Metric *m);
double value_recall(const MetricSums *s, const Metric *m);
double value_f1(const MetricSums *s, const Metric *m);

/* ---- auc.c */
double value_auc(const MetricSums *s, const Metric *m);

/* ---- numbers.c */
void numbers_open(MetricSums *s);
int64_t numbers_record_bytes(const MetricSums *s);
void numbers_record(MetricSums *s, const Batch *output, const Batch *labels, int64_t rows,
                    void *record);
void numbers_add(MetricSums *s, const void *record);
double value_r2(const MetricSums *s, const Metric *m);
double value_mae(const MetricSums *s, const Metric *m);
double value_rmse(const MetricSums *s, const Metric *m);

#endif
