/* The steps of quantization. Sections are named after the .c file. */
#ifndef GRADC_QUANTIZE_STEPS_H
#define GRADC_QUANTIZE_STEPS_H

#include "quantize/quantize.h"

/* The value whose numbers are needed to quantize tensor i; NULL: none needed. */
const char *quantize_observes(const Quantize *q, int i);

/* ---- data.c: functions return false after reporting */
/* Compiles the model with the needed values as results. */
bool quantize_compile(Quantize *q);
/* Writes the first rows as files of --input. */
bool quantize_write_first(Quantize *q);
bool quantize_visit_all(Quantize *q, QuantizeVisitor visit);

/* ---- bias.c: --bias-correction */
void quantize_see_mean(Quantize *q, int i, const float *x, const NpyInfo *info);
/* Corrects biases by the codes and scales of weights; false after reporting. */
bool quantize_correct_biases(Quantize *q);
/* Restores the file's biases for the products of the weight `of`, and keeps all other biases
 * corrected. of NULL: restores all biases. */
void quantize_restore_biases(Quantize *q, const QuantizedTensor *of);
void quantize_put_corrected(Quantize *q);

/* ---- report.c */
/* Types of codes by ONNX's names: "s8", "f8e4m3fn"; false: no such type. */
const char *codes_name(DType t);
extern const char quantize_page[]; /* the text of report.html */

#endif
