/* The conversion of a number to a small float format, by a search in a sorted table of all numbers of the format, which is
 * built from its definition. It shares only the names of types and rounding modes with base/numbers/dtype.c. */
#ifndef GRADC_TESTS_CONVERSION_ORACLE_H
#define GRADC_TESTS_CONVERSION_ORACLE_H

#include "base/numbers/numbers.h"

#include <math.h>

/* ---- the formats as their specifications define them */
typedef struct {
	DType type;
	int exponent, mantissa, bias; /* numbers of bits, and the bias */
	bool is_signed;
	enum { IEEE, ONE_NAN, FNUZ, NO_NAN, POWERS } kind;
} Definition;
static const Definition definitions[] = {
	{F16, 5, 10, 15, true, IEEE},      {BF16, 8, 7, 127, true, IEEE},
	{F8E4M3, 4, 3, 7, true, ONE_NAN},  {F8E5M2, 5, 2, 15, true, IEEE},
	{F8E4M3FNUZ, 4, 3, 8, true, FNUZ}, {F8E5M2FNUZ, 5, 2, 16, true, FNUZ},
	{F4E2M1, 2, 1, 1, true, NO_NAN},   {E8M0, 8, 0, 127, false, POWERS},
};

/* The finite magnitudes in ascending order: number i has code i. One more number follows, as if exponents went on. */
typedef struct {
	const Definition *d;
	int n;
	double at[1 << 15];
} Table;

static int
sign_bit(const Definition *d)
{
	return d->is_signed ? 1 << (d->exponent + d->mantissa) : 0;
}

static void
table_fill(Table *t, const Definition *d)
{
	int codes = 1 << (d->exponent + d->mantissa), fields = 1 << d->mantissa;

	t->d = d;
	t->n = codes;
	if (d->kind == IEEE)
		t->n = codes - fields;
	else if (d->kind == ONE_NAN || d->kind == POWERS)
		t->n = codes - 1;
	for (int code = 0; code <= t->n; code++) {
		int e = code / fields, m = code % fields;
		bool subnormal = e == 0 && d->kind != POWERS;
		t->at[code] = ldexp(subnormal ? m : fields + m,
		                    (subnormal ? 1 : e) - d->bias - d->mantissa);
	}
}

static Table tables[COUNT(definitions)];

static const Table *
table_of(DType type)
{
	for (int i = 0; i < COUNT(definitions); i++)
		if (definitions[i].type == type)
			return &tables[i];
	return NULL;
}

enum { NAN_CODE = -1 };

/* A code in canonical form: all NaNs become one code. */
static int
canonical(const Table *t, int pattern)
{
	const Definition *d = t->d;
	int sign = sign_bit(d), code = d->is_signed ? pattern & (sign - 1) : pattern;

	if (d->kind == FNUZ)
		return pattern == sign ? NAN_CODE : pattern;
	if (d->kind == IEEE && code == t->n)
		return pattern; /* infinity */
	return code >= t->n ? NAN_CODE : pattern;
}

/* ---- the oracle */
static int
infinity_or_nan(const Table *t)
{
	return t->d->kind == IEEE ? t->n : t->d->kind == NO_NAN ? t->n - 1 : NAN_CODE;
}

/* The code for a number that is too large. */
static int
overflowed(const Table *t, Conversion how, bool infinite)
{
	int special = infinity_or_nan(t);

	if (!infinite && how.round == ROUND_TOWARD_ZERO)
		return t->n - 1;
	if (how.overflow == OVERFLOW_SATURATE)
		return t->n - 1;
	if (how.overflow == OVERFLOW_SPECIAL)
		return special;
	bool keeps = t->d->kind == IEEE && (infinite || t->d->type != F8E5M2);
	return keeps ? special : t->n - 1;
}

/* Does x round to low + 1 rather than to low? */
static bool
takes_upper(const Table *t, Conversion how, long double x, int low, uint32_t random)
{
	long double a = t->at[low], b = t->at[low + 1], middle = a + (b - a) / 2;

	switch (how.round) {
	case ROUND_TOWARD_ZERO: return false;
	case ROUND_AWAY: return x > a;
	case ROUND_STOCHASTIC: return (long double)random < floorl((x - a) / (b - a) * 0x1p32L);
	default:
		if (x == middle)
			return t->d->kind == POWERS || low % 2 == 1;
		return x > middle;
	}
}

static int
expected(const Table *t, Conversion how, long double x, uint32_t random)
{
	bool negative = signbit(x);
	int low = 0, high = t->n, code;

	if (isnan(x) || (!t->d->is_signed && x < 0))
		return t->d->kind == NO_NAN ? sign_bit(t->d) : NAN_CODE;
	x = fabsl(x);
	while (high - low > 1) {
		int middle = (low + high) / 2;
		*(t->at[middle] <= x ? &low : &high) = middle;
	}
	if (x < t->at[0])
		code = 0; /* e8m0 has no 0 */
	else if (isinf(x))
		code = overflowed(t, how, true);
	else
		code = x >= t->at[t->n] ? t->n : low + takes_upper(t, how, x, low, random);
	if (!isinf(x) && code == t->n)
		code = overflowed(t, how, false);
	if (code == NAN_CODE || (t->d->kind == FNUZ && code == 0))
		return code;
	return negative && t->d->is_signed ? code | sign_bit(t->d) : code;
}

static void
tables_fill(void)
{
	for (int i = 0; i < COUNT(definitions); i++)
		table_fill(&tables[i], &definitions[i]);
}

#endif
