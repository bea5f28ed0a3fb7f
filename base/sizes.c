/* Checked arithmetic on sizes that come from outside. */
#include "base/base.h"

bool
size_mul(int64_t a, int64_t b, int64_t *out)
{
	return !__builtin_mul_overflow(a, b, out);
}

bool
size_add(int64_t a, int64_t b, int64_t *out)
{
	return !__builtin_add_overflow(a, b, out);
}

int64_t
greatest_common_divisor(int64_t a, int64_t b)
{
	return b == 0 ? a : greatest_common_divisor(b, a % b);
}
