#include "quantize/input_sums.h"

#include <math.h>

void
input_sums_add(InputSums *g, const float *x, int64_t rows)
{
	int64_t n = g->n;

	for (int64_t r = 0; r < rows; r++, x += n)
		for (int64_t i = 0; i < n; i++) {
			for (int64_t j = 0; j <= i; j++)
				g->sums[i * n + j] += (double)x[i] * x[j];
			if (g->sizes)
				g->sizes[i] += fabs((double)x[i]);
		}
	g->rows += rows;
}
