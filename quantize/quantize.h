/* What the files of `gradc quantize` share. */
#ifndef GRADC_QUANTIZE_QUANTIZE_H
#define GRADC_QUANTIZE_QUANTIZE_H

#include "driver/driver.h"
#include "quantize/calibrate.h"
#include "quantize/gptq.h"

typedef struct {
	Session s;
	Options *o;
	Arena *arena;
	Diag *diag;
	QuantizeOptions how;
	QuantizedTensors tensors;
	Calibration *calibrations; /* by tensor */
	InputSums *
		inputs; /* likewise, with n > 0 of weights whose products' inputs are summed up; NULL: of none */
	struct BiasMean *biases; /* likewise, with --bias-correction; NULL: none is corrected */
	double *snr;             /* likewise, in decibels; NAN: not known */
	double *gain; /* likewise, of the results' when it stays a float; NULL: not asked for */
	double output_snr; /* of the results; with `gain` */
	NamedTensor *data; /* of --data, a copy of the files */
	int n_data;
	int64_t rows, batch; /* of the data, and of a run */
	const char *folder;  /* for executables and their inputs */
	const char *results; /* a folder for what they write */
	const char *exe;
} Quantize;

/* The value whose numbers tell how t is to be quantized; NULL: none does. */
const char *quantize_observes(const Quantize *q, int i);

/* ---- data.c: false after reporting */
bool quantize_read_data(Quantize *q);
/* Asks the importer for the ranks that rows with scales of their own need and the file does not declare. */
bool quantize_settle_rows(Quantize *q);
/* Compiles the model with what is observed as results. */
bool quantize_compile(Quantize *q);
/* The first rows as the files of --input. */
bool quantize_write_first(Quantize *q);
typedef bool (*QuantizeVisitor)(Quantize *q, int i, const float *x, const NpyInfo *info);
/* Runs it on the first rows, or on all whole batches, and shows the visitor the values for each tensor i. */
bool quantize_visit_first(Quantize *q, QuantizeVisitor visit);
bool quantize_visit_all(Quantize *q, QuantizeVisitor visit);

/* ---- scales.c: false after reporting */
/* The ranges of what is observed. */
bool quantize_calibrate(Quantize *q);
/* Scale and zero point of each tensor, and what is left of weights. */
bool quantize_choose_scales(Quantize *q);
/* A visitor: what is left of activations. */
bool quantize_measure(Quantize *q, int i, const float *x, const NpyInfo *info);

/* ---- scale_inputs.c: edits the model; false after reporting */
bool quantize_scale_inputs(Quantize *q);

/* ---- bias.c: --bias-correction, of the tensors' products */
/* The bias of a weight's product and the mean of what the product reads. */
typedef struct BiasMean {
	ProductBias bias;
	const float *exact; /* the weight's numbers before rounding */
	double *sums;       /* of x, by channel */
	int64_t n_values;   /* of each channel */
	const float *corrected;
} BiasMean;
/* false after reporting: there are no weights. */
bool quantize_find_biases(Quantize *q);
void quantize_see_mean(Quantize *q, int i, const float *x, const NpyInfo *info);
/* By the codes and scales of weights; false after reporting. */
bool quantize_correct_biases(Quantize *q);
/* The biases of the file for the products of one weight, NULL: of all; the corrected ones for the others. */
void quantize_restore_biases(Quantize *q, const QuantizedTensor *of);
void quantize_put_corrected(Quantize *q);

/* ---- sensitivity.c: false after reporting */
bool quantize_sensitivity(Quantize *q);

/* ---- report.c */
/* Types of codes by ONNX's names: "s8", "f8e4m3fn"; false: no such type. */
const char *codes_name(DType t);
bool codes_parse(const char *name, DType *out);
/* What is quantized how; snr, gain: decibels for each, NULL: not known; ranges: likewise. */
void quantized_print(Arena *arena, const QuantizedTensors *list, const double *snr,
                     const double *gain);
struct Calibration;
struct json_t *quantized_json(const QuantizedTensors *list, const struct Calibration *ranges,
                              const double *snr, const double *gain);
void quantize_print_json(const Quantize *q);
extern const char quantize_page[]; /* report.html */
bool quantize_write_page(const Quantize *q);

#endif
