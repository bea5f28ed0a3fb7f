/* The dynamic map of bitsandbytes (Dettmers et al., arXiv:2110.02861; functional.py, create_dynamic_map): 256 numbers of [-1, 1],
 * or of [0, 1] without a sign, in ascending order. There are seven decades, with the scales 10^-6, 10^-5 ... 1. A decade splits
 * [0.1, 1] evenly and takes the midpoints of the intervals, multiplied by its scale: 1, 2, 4 ... 64 midpoints per sign, twice
 * as many without a sign. 0 and 1 are added. */
#include "base/numbers/numbers.h"

#include <math.h>
#include <stdlib.h>

enum { DECADES = 7 };

static int
by_size(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;

	return (x > y) - (x < y);
}

/* Point i of n + 1 points that split [0.1, 1] evenly, with the bits of torch.linspace in f32: computed from the nearer end and
 * rounded once. */
static float
split(int i, int n)
{
	float step = (1.0f - 0.1f) / (float)n;

	return i < (n + 1) / 2 ? (float)(0.1f + (double)step * i)
	                       : (float)(1 - (double)step * (n - i));
}

void
dynamic_map(bool is_signed, float out[DYNAMIC_MAP])
{
	int at = 0;

	for (int decade = 0; decade < DECADES; decade++) {
		int n = 1 << (decade + !is_signed);
		float scale = (float)pow(10, decade - (DECADES - 1));
		for (int i = 0; i < n; i++) {
			float middle = (split(i, n) + split(i + 1, n)) / 2;
			out[at++] = scale * middle;
			if (is_signed)
				out[at++] = -(scale * middle);
		}
	}
	out[at++] = 1;
	while (at < DYNAMIC_MAP)
		out[at++] = 0;
	qsort(out, DYNAMIC_MAP, sizeof(*out), by_size);
}
