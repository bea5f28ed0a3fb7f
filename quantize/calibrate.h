/* The range of an activation from its values over real data, as onnxruntime's calibrators find it
 * (onnxruntime/python/tools/quantization/calibrate.py), and scale and zero point from a range. */
#ifndef GRADC_CALIBRATE_H
#define GRADC_CALIBRATE_H

#include "base/numbers/numbers.h"

typedef struct Calibration Calibration; /* of one tensor */
typedef struct {
	const char *name, *doc;
	bool counts;   /* needs the values a second time, when their range is known */
	bool absolute; /* counts their sizes */
	int bins;
	bool (*range)(const Calibration *c, float *low, float *high);
} CalibrationMethod;
extern const CalibrationMethod calibration_methods[]; /* ends with a zero row */

struct Calibration {
	const CalibrationMethod *method;
	DType type;        /* of the codes, for mse */
	double percentile; /* of values that are inside, from 0 to 100 */
	float low, high;   /* of all values */
	float sums[2];     /* of each batch's lowest and highest */
	int64_t n_batches, n_values, n_bad;
	float smallest;     /* of all sizes */
	float *edges;       /* bins + 1 */
	int64_t *histogram; /* bins; NULL before values are counted */
};
/* "minmax", "percentile:99.99"; false after reporting. */
bool calibration_parse(const char *text, Calibration *out, Diag *diag);
/* The first time: what the range of a batch is. */
void calibration_see(Calibration *c, const float *x, int64_t n);
/* The second time: how often values are. */
void calibration_count(Calibration *c, Arena *arena, const float *x, int64_t n);
/* 0 to 0 where no values were seen. */
void calibration_range(const Calibration *c, float *low, float *high);

#endif
