/* Sums over targets: calls the family of the task, classes.c or numbers.c. */
#include "runtime/metrics/values.h"

#include <string.h>

static const struct {
	void (*open)(MetricSums *s);
	int64_t (*record_bytes)(const MetricSums *s);
	void (*record)(MetricSums *s, const Batch *output, const Batch *labels, int64_t rows,
	               void *to);
	void (*add)(MetricSums *s, const void *record);
} families[] = {
	[TARGETS_CLASSES] = {classes_open, classes_record_bytes, classes_record, classes_add},
	[TARGETS_BINARY] = {classes_open, classes_record_bytes, classes_record, classes_add},
	[TARGETS_NUMBERS] = {numbers_open, numbers_record_bytes, numbers_record, numbers_add},
};

MetricSums *
sums_new(Arena *arena, const MetricTask *task, int64_t micro_rows, bool scores)
{
	MetricSums *s = NEW(arena, MetricSums);

	*s = (MetricSums){.arena = arena,
	                  .task = *task,
	                  .micro_rows = micro_rows,
	                  .keeps_scores = scores && task->kind != TARGETS_NUMBERS};
	families[task->kind].open(s);
	return s;
}

/* Whole numbers of 8 bytes, so that records may follow each other. */
int64_t
sums_record_bytes(const MetricSums *s)
{
	return (families[s->task.kind].record_bytes(s) + 7) / 8 * 8;
}

void
sums_record(MetricSums *s, const Batch *output, const Batch *labels, int64_t rows, void *record)
{
	families[s->task.kind].record(s, output, labels, rows, record);
}

void
sums_add(MetricSums *s, const void *record)
{
	families[s->task.kind].add(s, record);
}

enum { MOST_SCORES = 1 << 26 }; /* 512 MiB */

Status
sums_check_scores(const MetricTask *t, int64_t rows)
{
	int64_t scores;

	if (size_mul(t->per_row * (t->kind == TARGETS_CLASSES && t->classes > 2 ? t->classes : 1),
	             rows, &scores) &&
	    scores <= MOST_SCORES)
		return NULL;
	return status_error(EXIT_USAGE,
	                    "auc keeps every score: %lld rows have more than %d scores; evaluate "
	                    "fewer rows",
	                    (long long)rows, MOST_SCORES);
}
