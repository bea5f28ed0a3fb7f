/* Private to the word predict: writes the outputs of rows in a format. Sections are named after the .c files. */
#ifndef GRADC_RUNTIME_CLI_PREDICT_H
#define GRADC_RUNTIME_CLI_PREDICT_H

#include "runtime/cli/cli.h"
#include "runtime/metrics/metrics.h"

/* ---- predict.c */
typedef struct PredictFormat PredictFormat;
typedef struct {
	Arena *arena;
	const CliOptions *o;
	const PredictFormat *format;
	GradcPredictions of;
	MetricTask task;
	const char *const *names; /* of classes, or NULL */
	int first, n;             /* outputs that are written: first, first + 1 ... */
	int64_t row;              /* number of the next row */
	/* rows with a NaN among the written outputs: their number, and the first */
	int64_t n_nan, first_nan;
	double *scores; /* probabilities of a target */
	/* Where rows go: files that appear when complete, one per written output, or a stream. */
	FileWriter **files;
	const char **paths;
	FileAppender *stream; /* a device or a pipe that --output names */
	Text text;            /* rows that are not written yet */
} Writer;
struct PredictFormat {
	const char *ending; /* of FILE */
	/* EXIT_USAGE if the outputs cannot be written in this format. */
	Status (*check)(Writer *p);
	void (*begin)(Writer *p); /* adds what stands before the rows to p->text */
	void (*add)(Writer *p, int64_t rows, const void *const *outputs);
};

/* ---- predict_text.c: formats of text: class and probabilities if the loss compares an output with classes, otherwise the
 * numbers of all outputs */
extern const PredictFormat predict_csv, predict_jsonl;

#endif
