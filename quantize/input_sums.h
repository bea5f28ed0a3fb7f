/* Private header: statistics of a product's inputs over the data, for GPTQ and AWQ. */
#ifndef GRADC_QUANTIZE_INPUT_SUMS_H
#define GRADC_QUANTIZE_INPUT_SUMS_H

#include "frontend/frontend.h"

/* Sums over all rows x of the data: of the products x[i] x[j] of each two inputs, and of
 * magnitudes. */
typedef struct {
	int64_t n;     /* number of inputs; 0: no sums */
	double *sums;  /* [n,n]: sums of x[i] x[j] */
	double *sizes; /* [n]: sums of |x|; NULL: not needed */
	int64_t rows;
} InputSums;
/* Adds rows of n inputs. */
void input_sums_add(InputSums *g, const float *x, int64_t rows);

#endif
