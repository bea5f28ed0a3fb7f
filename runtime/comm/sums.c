/* Sums and maxima of the ranks' values, computed on the host in the order of the ranks. */
#include "runtime/comm/comm.h"

#include <string.h>

/* The maximum is NaN if a term is NaN. */
#define SUM(name, T)                                                        \
	static void name(const CommSum *s)                                  \
	{                                                                   \
		T *z = s->to;                                               \
                                                                            \
		memmove(z, s->terms, sizeof(T) * (size_t)s->n);             \
		for (int r = 1; r < s->n_terms; r++) {                      \
			const T *x = (const T *)s->terms + r * s->stride;   \
			if (s->reduction == COMM_SUM)                       \
				for (int64_t i = 0; i < s->n; i++)          \
					z[i] = z[i] + x[i];                 \
			else                                                \
				for (int64_t i = 0; i < s->n; i++)          \
					z[i] = x[i] <= z[i]  ? z[i]         \
					       : x[i] > z[i] ? x[i]         \
					                     : x[i] + z[i]; \
		}                                                           \
	}
SUM(sum_f64, double)
SUM(sum_f32, float)
SUM(sum_s64, int64_t)
SUM(sum_s32, int32_t)
#undef SUM

/* For f16 and bf16: adds block by block in f32 and rounds each sum once. */
static void
sum_narrow(const CommSum *s)
{
	enum { BLOCK = 1024 };
	float terms[2][BLOCK]; /* the sum so far; the next term */
	int64_t size = dtype_bytes(s->dtype, 1);

	for (int64_t at = 0; at < s->n; at += BLOCK) {
		int64_t n = s->n - at < BLOCK ? s->n - at : BLOCK;
		CommSum add = {F32, s->reduction, terms[0], terms[0], n, BLOCK, 2};

		for (int r = 0; r < s->n_terms; r++) {
			const char *term = (const char *)s->terms + (r * s->stride + at) * size;
			dtype_convert(F32, terms[r > 0], s->dtype, term, n);
			if (r > 0)
				sum_f32(&add);
		}
		dtype_convert(s->dtype, (char *)s->to + at * size, F32, terms[0], n);
	}
}

typedef void (*Sum)(const CommSum *s);
static const Sum sums[N_DTYPES] = {
	[F64] = sum_f64, [F32] = sum_f32,     [S64] = sum_s64,
	[S32] = sum_s32, [BF16] = sum_narrow, [F16] = sum_narrow,
};

bool
comm_sum_has(DType dtype)
{
	return sums[dtype] != NULL;
}

void
comm_sum(const CommSum *s)
{
	if (s->n > 0)
		sums[s->dtype](s);
}
