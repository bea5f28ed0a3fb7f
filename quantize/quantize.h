/* Interface of quantize/, the parts of `gradc quantize`: it runs a model on sample data, finds
 * ranges of activations, and chooses scales and codes. Sections are named after the .c file. */
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
	Calibration *calibrations; /* one per tensor */
	/* one per tensor; n > 0: sums over the inputs of the weight's product; NULL: no sums */
	InputSums *inputs;
	struct BiasMean *biases; /* one per tensor, with --bias-correction; NULL: off */
	double *snr;             /* per tensor: signal to noise in decibels; NAN: unknown */
	/* per tensor: how much the signal-to-noise ratio (SNR) of the results rises if the tensor
	 * stays floats; NULL: not computed */
	double *gain;
	double output_snr; /* SNR of the results; set with `gain` */
	NamedTensor *data; /* inputs of --data, copied from the files */
	int n_data;
	int64_t rows, batch; /* rows of the data, rows of a run */
	const char *folder;  /* folder for executables and their inputs */
	const char *results; /* folder for the executables' results */
	const char *exe;
} Quantize;

/* ---- quantize.c: functions return false after reporting */
/* Sets q->how as the options say. */
bool quantize_options(Quantize *q);
/* Quantizes the model and writes the file. Data are read, and the folders exist. */
bool quantize_model(Quantize *q);

/* ---- data.c: functions return false after reporting */
bool quantize_read_data(Quantize *q);
/* Finds the ranks of tensors whose rank the file does not declare, by importing the model. A tensor
 * that gets a scale per row may turn out to be a vector, which has one scale. */
bool quantize_settle_rows(Quantize *q);
typedef bool (*QuantizeVisitor)(Quantize *q, int i, const float *x, const NpyInfo *info);
/* Runs the model on the first rows, or on all whole batches, and calls the visitor with the values
 * of each tensor i. */
bool quantize_visit_first(Quantize *q, QuantizeVisitor visit);

/* ---- scales.c: functions return false after reporting */
/* Runs the model on the data and computes the ranges of the values that need them. */
bool quantize_calibrate(Quantize *q);
/* Computes scale and zero point of each tensor, and the signal-to-noise ratio (SNR) of weights. */
bool quantize_choose_scales(Quantize *q);
/* A visitor that computes the SNR of activations. */
bool quantize_measure(Quantize *q, int i, const float *x, const NpyInfo *info);

/* ---- scale_inputs.c: edits the model; false after reporting */
bool quantize_scale_inputs(Quantize *q);

/* ---- bias.c: --bias-correction */
/* The bias of a weight's product, and the mean of the product's input. */
typedef struct BiasMean {
	ProductBias bias;
	const float *exact; /* the weight's numbers before rounding */
	double *sums;       /* sums of x per channel */
	int64_t n_values;   /* number of values per channel */
	const float *corrected;
} BiasMean;
/* false after reporting that there are no weights. */
bool quantize_find_biases(Quantize *q);

/* ---- sensitivity.c: false after reporting */
bool quantize_sensitivity(Quantize *q);

/* ---- report.c */
bool codes_parse(const char *name, DType *out);
/* Prints the quantized tensors with their SNR and gain in decibels (NULL: unknown). */
void quantized_print(Arena *arena, const QuantizedTensors *list, const double *snr,
                     const double *gain);
struct Calibration;
struct json_t *quantized_json(const QuantizedTensors *list, const struct Calibration *ranges,
                              const double *snr, const double *gain);
void quantize_print_json(const Quantize *q);
bool quantize_write_page(const Quantize *q);

#endif
