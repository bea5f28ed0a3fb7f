/* Private header: finds the range of an activation from its values over real data, as onnxruntime's
 * calibrators do (onnxruntime/python/tools/quantization/calibrate.py). */
#ifndef GRADC_QUANTIZE_CALIBRATE_H
#define GRADC_QUANTIZE_CALIBRATE_H

#include "base/numbers/numbers.h"

typedef struct Calibration Calibration; /* state for one tensor */
typedef struct {
	const char *name, *doc;
	bool counts;   /* counts the values in a second pass, when their range is known */
	bool absolute; /* counts magnitudes */
	int bins;
	bool (*range)(const Calibration *c, float *low, float *high);
} CalibrationMethod;
extern const CalibrationMethod calibration_methods[]; /* ends with a zero row */

struct Calibration {
	const CalibrationMethod *method;
	DType type;        /* type of the codes, for mse */
	double percentile; /* percentage of the values inside the range */
	float low, high;   /* range of all values */
	float sums[2];     /* sums of the batches' minima and maxima */
	int64_t n_batches, n_values, n_bad;
	float smallest;     /* smallest magnitude */
	float *edges;       /* bins + 1 edges */
	int64_t *histogram; /* one per bin; NULL before the second pass */
};
/* "minmax", "percentile:99.99"; false after reporting. */
bool calibration_parse(const char *text, Calibration *out, Diag *diag);
/* First pass: updates the range with a batch. */
void calibration_see(Calibration *c, const float *x, int64_t n);
/* Second pass: counts a batch's values. */
void calibration_count(Calibration *c, Arena *arena, const float *x, int64_t n);
/* The range by the chosen method; low and high become 0 if there were no values. */
void calibration_range(const Calibration *c, float *low, float *high);

#endif
