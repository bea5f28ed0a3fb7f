/* From ranges to scales and zero points. */
#include "base/base.h"

#include <float.h>
#include <math.h>

void
quantization_of(DType type, bool symmetric, float low, float high, float *scale, int32_t *zero)
{
	double least, most;

	dtype_range(type, &least, &most);
	if (symmetric && least < 0 && dtype_info[type].bits >= 8)
		least = -most;
	low = fminf(low, 0);
	high = fmaxf(high, 0);
	if (symmetric) {
		high = fmaxf(-low, high);
		low = -high;
	}
	volatile float range = high - low; /* onnxruntime's, in f32 */
	double step = (isinf(range) ? (double)high - low : range) / (most - least);
	*zero = 0;
	if (step < FLT_MIN) {
		*scale = 1;
		return;
	}
	*zero = (int32_t)(symmetric ? nearbyint((least + most) / 2)
	                            : nearbyint(least - low / step));
	*scale = (float)step;
}

void
quantization_of_groups(DType type, const Groups *g, DType dtype, const void *data, Arena *scratch,
                       float *scale, int32_t *zero)
{
	int64_t n_groups = groups_count(g), n = 1;
	float *low = NEW_ARRAY(scratch, float, n_groups),
	      *high = NEW_ARRAY(scratch, float, n_groups);

	for (int i = 0; i < g->rank; i++)
		n *= g->dims[i];
	for (GroupWalk w = group_walk(g); w.i < n; group_next(&w)) {
		float x = (float)dtype_load_float(dtype, data, w.i);
		low[w.group] = fminf(low[w.group], x);
		high[w.group] = fmaxf(high[w.group], x);
	}
	for (int64_t k = 0; k < n_groups; k++)
		quantization_of(type, dtype_info[type].class == CLASS_SIGNED, low[k], high[k],
		                &scale[k], &zero[k]);
}
