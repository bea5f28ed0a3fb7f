/* What GPTQ and AWQ know of the data. */
#ifndef GRADC_INPUT_SUMS_H
#define GRADC_INPUT_SUMS_H

#include "frontend/frontend.h"

/* What the data say of a product's inputs: sums over the rows of it, of products of each two. */
typedef struct {
	int64_t n;     /* inputs; 0: none are summed up */
	double *sums;  /* [n,n] */
	double *sizes; /* [n], of |x|; NULL: not asked for */
	int64_t rows;
} InputSums;
/* Adds rows of n inputs. */
void input_sums_add(InputSums *g, const float *x, int64_t rows);

#endif
