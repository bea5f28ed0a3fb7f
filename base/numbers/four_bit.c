/* bitsandbytes' 4-bit numbers (Dettmers et al. 2023, arXiv:2305.14314; bitsandbytes/functional.py, quantize_4bit). An element is
 * one of 16 values times the absmax of its block of 64 elements, i.e. the block's largest magnitude. The absmax values, minus
 * their mean, may themselves be stored as 8-bit codes in blocks of 256. */
#include "base/numbers/numbers.h"

#include <math.h>

const char *const four_bit_names[] = {"nf4", "fp4", NULL};

/* NF4: quantiles of a normal distribution. FP4: 1 bit of sign, 2 of exponent and 1 of mantissa, divided by 12. */
const float four_bit_values[N_FOUR_BIT][FOUR_BIT_CODES] = {
	[FOUR_BIT_NF4] = {-1, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f,
                          -0.28444138169288635f, -0.18477343022823334f, -0.09105003625154495f, 0,
                          0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f,
                          0.33791524171829224f, 0.44070982933044434f, 0.5626170039176941f,
                          0.7229568362236023f, 1},
	[FOUR_BIT_FP4] = {0, 5.208333333e-03f, 0.66666667f, 1, 0.33333333f, 0.5f, 0.16666667f,
                          0.25f, 0, -5.208333333e-03f, -0.66666667f, -1, -0.33333333f, -0.5f,
                          -0.16666667f, -0.25f},
};
/* The codes in ascending order of their values; for FP4's two zeros code 0 comes before code 8. */
static const uint8_t by_value[N_FOUR_BIT][FOUR_BIT_CODES] = {
	[FOUR_BIT_NF4] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
	[FOUR_BIT_FP4] = {11, 10, 13, 12, 15, 14, 9, 0, 8, 1, 6, 7, 4, 5, 2, 3},
};

int64_t
four_bit_blocks(int64_t n)
{
	return (n + FOUR_BIT_BLOCK - 1) / FOUR_BIT_BLOCK;
}

int64_t
absmax_blocks(int64_t n)
{
	return (n + ABSMAX_BLOCK - 1) / ABSMAX_BLOCK;
}

/* A block's absmax and the scaling of its elements. As in bitsandbytes, whole blocks are multiplied by the reciprocal of absmax;
 * the last block, if shorter, is divided by absmax. */
typedef struct {
	float absmax, factor, divisor;
} Scaling;

static Scaling
scaling_of(const float *x, int64_t n, bool is_whole)
{
	const float least = 1e-38f; /* smallest divisor */
	float largest = 0;

	for (int64_t i = 0; i < n; i++)
		largest = fmaxf(largest, fabsf(x[i]));
	float divisor = fmaxf(largest, least);
	return (Scaling){is_whole ? largest : divisor, is_whole ? 1.0f / divisor : 1,
	                 is_whole ? 1 : divisor};
}

static float
scaled(const Scaling *s, float x)
{
	return fminf(fmaxf(x * s->factor / s->divisor, -1), 1);
}

/* The index of the nearest of n ascending numbers; in a tie the lower index. */
static int
nearest(const float *ascending, int n, float x)
{
	int at = 0;

	for (int step = n / 2; step; step /= 2)
		if (x > (ascending[at + step - 1] + ascending[at + step]) / 2)
			at += step;
	return at;
}

static void
put_code(uint8_t *codes, int64_t i, int code)
{
	codes[i / 2] = (uint8_t)(i % 2 ? codes[i / 2] | code : code << 4);
}

void
four_bit_quantize(FourBit kind, const float *x, int64_t n, uint8_t *codes, float *absmax)
{
	const uint8_t *order = by_value[kind];
	float ascending[FOUR_BIT_CODES];

	for (int i = 0; i < FOUR_BIT_CODES; i++)
		ascending[i] = four_bit_values[kind][order[i]];
	for (int64_t at = 0; at < n; at += FOUR_BIT_BLOCK) {
		int64_t last = at + FOUR_BIT_BLOCK < n ? at + FOUR_BIT_BLOCK : n;
		Scaling s = scaling_of(x + at, last - at, last - at == FOUR_BIT_BLOCK);
		absmax[at / FOUR_BIT_BLOCK] = s.absmax;
		for (int64_t i = at; i < last; i++)
			put_code(codes, i,
			         order[nearest(ascending, FOUR_BIT_CODES, scaled(&s, x[i]))]);
	}
	if (n % 2)
		put_code(codes, n, order[nearest(ascending, FOUR_BIT_CODES, 0)]);
}

int64_t
four_bit_place(int64_t i, int64_t outputs, int64_t outer, int64_t inner)
{
	int64_t o = i / inner % outputs;

	return (o * outer + i / inner / outputs) * inner + i % inner;
}

float
four_bit_number(FourBit kind, const uint8_t *codes, const float *absmax, int64_t i)
{
	int code = codes[i / 2] >> (i % 2 ? 0 : 4) & 15;

	return four_bit_values[kind][code] * absmax[i / FOUR_BIT_BLOCK];
}

/* ---- absmax values as codes */
void
absmax_quantize(float *absmax, int64_t n, uint8_t *codes, float *nested, float *offset)
{
	float map[DYNAMIC_MAP];
	double sum = 0;

	dynamic_map(true, map);
	for (int64_t i = 0; i < n; i++)
		sum += absmax[i];
	*offset = n ? (float)(sum / (double)n) : 0;
	for (int64_t i = 0; i < n; i++)
		absmax[i] -= *offset;
	for (int64_t at = 0; at < n; at += ABSMAX_BLOCK) {
		int64_t last = at + ABSMAX_BLOCK < n ? at + ABSMAX_BLOCK : n;
		Scaling s = scaling_of(absmax + at, last - at, last - at == ABSMAX_BLOCK);
		nested[at / ABSMAX_BLOCK] = s.absmax;
		for (int64_t i = at; i < last; i++)
			codes[i] = (uint8_t)nearest(map, DYNAMIC_MAP, scaled(&s, absmax[i]));
	}
}

void
absmax_numbers(const uint8_t *codes, const float *nested, float offset, int64_t n, float *absmax)
{
	float map[DYNAMIC_MAP];

	dynamic_map(true, map);
	for (int64_t i = 0; i < n; i++) {
		volatile float size = map[codes[i]] *
		                      nested[i / ABSMAX_BLOCK]; /* volatile: no fma */
		absmax[i] = size + offset;
	}
}
