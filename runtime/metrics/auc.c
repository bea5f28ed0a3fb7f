/* The area under the ROC curve: the share of the pairs (a target of the class, a target of others) in which the first has the
 * higher score; equal scores count half. Pairs are counted in whole numbers. */
#include "runtime/metrics/values.h"

#include <math.h>
#include <stdlib.h>

typedef struct {
	double score;
	bool is_class;
} Scored;

static int
by_score(const void *a, const void *b)
{
	double x = ((const Scored *)a)->score, y = ((const Scored *)b)->score;

	return (x > y) - (x < y);
}

/* NaN if all targets are of the class, or none is. */
static double
area(Scored *list, int64_t n)
{
	uint64_t twice = 0, others = 0, own = 0; /* others, own: with a lower score */

	qsort(list, (size_t)n, sizeof(*list), by_score);
	for (int64_t i = 0, end; i < n; i = end) {
		uint64_t equal_own = 0;
		for (end = i; end < n && list[end].score == list[i].score; end++)
			equal_own += list[end].is_class;
		uint64_t equal_others = (uint64_t)(end - i) - equal_own;
		if (end == i) /* the score is NaN */
			return NAN;
		twice += equal_own * (2 * others + equal_others);
		others += equal_others;
		own += equal_own;
	}
	return own && others ? (double)twice / 2 / (double)own / (double)others : NAN;
}

/* Column of scores for which targets belong to the class: with one score per target, the label 1. */
static double
area_of(const ScoreList *l, int64_t column, Scored *list)
{
	for (int64_t i = 0; i < l->n; i++) {
		int32_t label = l->labels[i * l->labels_each + (l->labels_each > 1 ? column : 0)];
		bool is_class = l->labels_each > 1 || l->width == 1 ? label == 1 : label == column;
		list[i] = (Scored){l->scores[i * l->width + column], is_class};
	}
	return area(list, l->n);
}

/* Classes that all targets have, or that no target has, are left out of the mean. */
double
value_auc(const MetricSums *s, const Metric *m)
{
	const ScoreList *l = &s->list;
	double sum = 0;
	int64_t n = 0;

	(void)m;
	if (s->is_soft || l->n == 0)
		return NAN;
	Scored *list = memory_get(sizeof(*list) * (size_t)l->n);
	for (int64_t c = 0; c < l->width; c++) {
		double one = area_of(l, c, list);
		sum += isnan(one) ? 0 : one;
		n += !isnan(one);
	}
	memory_free(list);
	return n ? sum / (double)n : NAN;
}
