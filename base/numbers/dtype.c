/* The element types (f32, bf16, s8 ...) and the conversions between them. Every float type smaller than f64 converts
 * through double, which holds all of its values exactly. A value is rounded once, to nearest even, by exact
 * arithmetic. */
#include "base/numbers/numbers.h"

#include <math.h>
#include <string.h>

const DTypeInfo dtype_info[N_DTYPES] = {
#define DTYPE(NAME, name, bits, class, npy, npy_bits, safetensors, onnx) \
	{#name, bits, class, npy, npy_bits, safetensors, onnx},
#include "base/numbers/dtype_list.def"
#undef DTYPE
};
const char *const dtype_names[] = {
#define DTYPE(NAME, name, bits, class, npy, npy_bits, safetensors, onnx) #name,
#include "base/numbers/dtype_list.def"
#undef DTYPE
	NULL,
};

static const FloatFormat float_formats[N_DTYPES] = {
	[F16] = {16, 10, 15, 0x8000, 0x7BFF, 0x7C00, 0x7C00, 0x7E00, false, false},
	[BF16] = {16, 7, 127, 0x8000, 0x7F7F, 0x7F80, 0x7F80, 0x7FC0, false, false},
	[F8E4M3] = {8, 3, 7, 0x80, 0x7E, 0x7E, 0, 0x7F, false, false},
	[F8E5M2] = {8, 2, 15, 0x80, 0x7B, 0x7B, 0x7C, 0x7E, false, false},
	[F8E4M3FNUZ] = {8, 3, 8, 0x80, 0x7F, 0x7F, 0, 0x80, true, false},
	[F8E5M2FNUZ] = {8, 2, 16, 0x80, 0x7F, 0x7F, 0, 0x80, true, false},
	[F4E2M1] = {4, 1, 1, 0x8, 0x7, 0x7, 0, 0x8, false, false},
	[E8M0] = {8, 0, 127, 0, 0xFE, 0xFE, 0, 0xFF, false, true},
};

const char *const rounding_names[] = {"nearest", "toward_zero", "away", "stochastic", NULL};
const char *const overflow_names[] = {"default", "saturate", "special", NULL};

const FloatFormat *
float_format(DType t)
{
	return float_formats[t].bits ? &float_formats[t] : NULL;
}

OverflowCodes
float_overflow(const FloatFormat *f, Overflow overflow)
{
	bool has_nan = f->nan != f->sign || f->unsigned_zero;
	uint16_t special = f->infinity ? f->infinity : has_nan ? f->nan : f->largest;

	if (overflow == OVERFLOW_SATURATE)
		return (OverflowCodes){f->largest, f->largest};
	if (overflow == OVERFLOW_SPECIAL)
		return (OverflowCodes){special, special};
	return (OverflowCodes){f->overflow, f->infinity ? f->infinity : f->overflow};
}

#define DOUBLE_MANTISSA 52
#define DOUBLE_BIAS 1023

static uint64_t
bits_of(double value)
{
	uint64_t bits;

	memcpy(&bits, &value, sizeof(bits));
	return bits;
}

static double
double_of(uint64_t bits)
{
	double value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

/* 2^k for -1022 <= k <= 1023 */
static double
power_of_two(int k)
{
	return double_of((uint64_t)(k + DOUBLE_BIAS) << DOUBLE_MANTISSA);
}

static double
float_decode(const FloatFormat *f, uint32_t bits)
{
	bool negative = f->sign && (bits & f->sign);
	uint32_t code = f->sign ? bits & (uint32_t)(f->sign - 1) : bits;
	int exponent = (int)(code >> f->mantissa);
	uint32_t fraction = code & ((1u << f->mantissa) - 1);
	double value;

	if (code > f->largest || (f->unsigned_zero && bits == f->nan))
		value = double_of(f->infinity && code == f->infinity ? 0x7FF0000000000000u
		                                                     : 0x7FF8000000000000u);
	else if (exponent == 0 && !f->only_normal)
		value = fraction * power_of_two(1 - f->bias - f->mantissa);
	else
		value = (fraction + (1u << f->mantissa)) *
		        power_of_two(exponent - f->bias - f->mantissa);
	return negative ? -value : value;
}

/* Does n + fraction, a magnitude in units of the last place, round up to n + 1? */
static bool
rounds_up(Rounding round, uint32_t n, double fraction, uint32_t random)
{
	switch (round) {
	case ROUND_TOWARD_ZERO: return false;
	case ROUND_AWAY: return fraction > 0;
	case ROUND_STOCHASTIC: return random < (uint32_t)(fraction * 0x1p32);
	default: return fraction > 0.5 || (fraction == 0.5 && n % 2 == 1);
	}
}

/* |value| as a code. The value is divided by the unit in the last place at its exponent and rounded to an integer. Adding this
 * integer to the shifted exponent carries a rounding overflow into the exponent. */
static uint32_t
float_encode_magnitude(const FloatFormat *f, Conversion how, double value, uint32_t random)
{
	OverflowCodes over = float_overflow(f, how.overflow);
	int smallest = f->only_normal ? -f->bias : 1 - f->bias;
	int exponent = (int)(bits_of(value) >> DOUBLE_MANTISSA) - DOUBLE_BIAS;
	double scaled;
	uint32_t n, code;

	if (exponent > DOUBLE_BIAS)
		return over.infinite;
	if (how.round == ROUND_TOWARD_ZERO)
		over.finite = f->largest;
	if (exponent > DOUBLE_BIAS / 2)
		return over.finite;
	if (exponent < smallest)
		exponent = smallest;
	scaled = value * power_of_two(f->mantissa - exponent);
	n = (uint32_t)scaled;
	n += rounds_up(how.round, n, scaled - n, random);
	code = ((uint32_t)(exponent - smallest) << f->mantissa) + n;
	if (f->only_normal && code > 0)
		code--;
	return code > f->largest ? over.finite : code;
}

static uint32_t
float_encode(const FloatFormat *f, Conversion how, double value, uint32_t random)
{
	uint64_t bits = bits_of(value);
	bool negative = bits >> 63;
	uint32_t code;

	if (value != value)
		return f->nan;
	if (negative && !f->sign)
		return value == 0 ? 0 : f->nan;
	code = float_encode_magnitude(f, how, double_of(bits & ~(UINT64_C(1) << 63)), random);
	return negative && !(code == 0 && f->unsigned_zero) ? code | f->sign : code;
}

bool
dtype_parse(const char *name, DType *out)
{
	*out = F64;
	for (int t = 0; t < N_DTYPES; t++) {
		if (strcmp(dtype_info[t].name, name) == 0) {
			*out = (DType)t;
			return true;
		}
	}
	return false;
}

int64_t
dtype_bytes(DType t, int64_t n)
{
	int bits = dtype_info[t].bits;
	int64_t bytes;

	if (bits < 8)
		return n / (8 / bits) + (n % (8 / bits) != 0);
	return size_mul(n, bits / 8, &bytes) ? bytes : INT64_MAX;
}

/* The raw bits of element i; in packed types the first element is in the lowest bits. */
static uint64_t
load_bits(int bits, const void *at, int64_t i)
{
	const uint8_t *bytes = at;
	uint16_t half;
	uint32_t word;
	uint64_t full;

	switch (bits) {
	case 64: memcpy(&full, bytes + 8 * i, 8); return full;
	case 32: memcpy(&word, bytes + 4 * i, 4); return word;
	case 16: memcpy(&half, bytes + 2 * i, 2); return half;
	case 8: return bytes[i];
	default: return bytes[i / (8 / bits)] >> i % (8 / bits) * bits & ((1u << bits) - 1);
	}
}

static void
store_packed(int bits, uint8_t *bytes, int64_t i, uint64_t value)
{
	int shift = (int)(i % (8 / bits)) * bits;
	unsigned mask = (1u << bits) - 1;
	uint8_t *byte = &bytes[i / (8 / bits)];

	*byte = (uint8_t)((*byte & ~(mask << shift)) | ((unsigned)value & mask) << shift);
}

static void
store_bits(int bits, void *at, int64_t i, uint64_t value)
{
	uint8_t *bytes = at;
	uint16_t half = (uint16_t)value;
	uint32_t word = (uint32_t)value;

	switch (bits) {
	case 64: memcpy(bytes + 8 * i, &value, 8); break;
	case 32: memcpy(bytes + 4 * i, &word, 4); break;
	case 16: memcpy(bytes + 2 * i, &half, 2); break;
	case 8: bytes[i] = (uint8_t)value; break;
	default: store_packed(bits, bytes, i, value);
	}
}

/* Truncates value toward zero, then clamps it to the integer type t. */
static int64_t
saturate(DType t, double value)
{
	int bits = dtype_info[t].bits;
	DTypeClass class = dtype_info[t].class;
	double above = power_of_two(class == CLASS_SIGNED ? bits - 1 : bits);
	double lowest = class == CLASS_SIGNED ? -above : 0;

	if (class == CLASS_BOOL)
		return value != 0;
	if (value != value)
		return 0;
	if (value >= above)
		return class == CLASS_SIGNED ? (int64_t)(UINT64_MAX >> (65 - bits))
		                             : (int64_t)(UINT64_MAX >> (64 - bits));
	if (value <= lowest)
		return (int64_t)lowest;
	return class == CLASS_SIGNED ? (int64_t)value : (int64_t)(uint64_t)value;
}

double
dtype_load_float(DType t, const void *at, int64_t i)
{
	uint64_t bits = load_bits(dtype_info[t].bits, at, i);
	uint32_t word = (uint32_t)bits;
	float single;

	if (t == F64)
		return double_of(bits);
	if (t == F32) {
		memcpy(&single, &word, sizeof(single));
		return single;
	}
	if (dtype_is_float(t))
		return float_decode(&float_formats[t], word);
	return t == U64 ? (double)bits : (double)dtype_load_int(t, at, i);
}

void
dtype_store_float(DType t, void *at, int64_t i, double value)
{
	float single = (float)value;
	uint32_t word;

	if (t == F64) {
		store_bits(64, at, i, bits_of(value));
	} else if (t == F32) {
		memcpy(&word, &single, sizeof(word));
		store_bits(32, at, i, word);
	} else if (dtype_is_float(t)) {
		store_bits(dtype_info[t].bits, at, i,
		           float_encode(&float_formats[t], (Conversion){0}, value, 0));
	} else {
		dtype_store_int(t, at, i, saturate(t, value));
	}
}

int64_t
dtype_load_int(DType t, const void *at, int64_t i)
{
	int bits = dtype_info[t].bits;
	uint64_t value, sign;

	if (dtype_is_float(t))
		return saturate(S64, dtype_load_float(t, at, i));
	value = load_bits(bits, at, i);
	if (dtype_info[t].class == CLASS_BOOL)
		return value != 0;
	if (dtype_info[t].class == CLASS_UNSIGNED)
		return (int64_t)value;
	sign = UINT64_C(1) << (bits - 1);
	return (int64_t)((value ^ sign) - sign);
}

void
dtype_store_int(DType t, void *at, int64_t i, int64_t value)
{
	if (dtype_is_float(t))
		dtype_store_float(t, at, i, (double)value);
	else
		store_bits(dtype_info[t].bits, at, i,
		           t == BOOL ? (uint64_t)(value != 0) : (uint64_t)value);
}

double
dtype_round(DType t, double value)
{
	if (t == F32)
		return (float)value;
	if (t == F64 || !dtype_is_float(t))
		return value;
	return dtype_round_as(t, (Conversion){0}, value, 0);
}

double
dtype_round_as(DType t, Conversion how, double value, uint32_t random)
{
	const FloatFormat *f = &float_formats[t];

	return float_decode(f, float_encode(f, how, value, random));
}

/* If double cannot hold the integer, any lost bits set the double's last bit (round to odd). */
double
dtype_int_for_rounding(uint64_t bits, bool is_signed)
{
	bool negative = is_signed && bits >> 63;
	uint64_t magnitude = negative ? 0 - bits : bits, lost;
	double value;

	lost = magnitude & 0x7FF;
	if (magnitude >> (DOUBLE_MANTISSA + 1))
		magnitude = (magnitude - lost) | (lost ? 0x800 : 0);
	value = (double)magnitude;
	return negative ? -value : value;
}

static void
convert_one(DType to, void *dst, DType from, const void *src, int64_t i)
{
	int64_t value;

	if (dtype_is_float(from)) {
		dtype_store_float(to, dst, i, dtype_load_float(from, src, i));
		return;
	}
	value = dtype_load_int(from, src, i);
	if (!dtype_is_float(to))
		dtype_store_int(to, dst, i, value);
	else if (to == F64)
		dtype_store_float(to, dst, i, dtype_load_float(from, src, i));
	else
		dtype_store_float(to, dst, i, dtype_int_for_rounding((uint64_t)value, from != U64));
}

/* Fast conversions of integers to the two integer types of models, for tokens and labels. */
typedef void (*ConvertAll)(void *dst, const void *src, int64_t n);
#define CONVERT(From, To)                                                 \
	static void From##_to_##To(void *dst, const void *src, int64_t n) \
	{                                                                 \
		for (int64_t i = 0; i < n; i++)                           \
			((To *)dst)[i] = (To)((const From *)src)[i];      \
	}
#define CONVERT_BOTH(From) CONVERT(From, int64_t) CONVERT(From, int32_t)
CONVERT_BOTH(uint8_t)
CONVERT_BOTH(uint16_t)
CONVERT_BOTH(uint32_t)
CONVERT(int32_t, int64_t)
CONVERT(int64_t, int32_t)
#undef CONVERT_BOTH
#undef CONVERT

static const ConvertAll convert_all[N_DTYPES][N_DTYPES] = {
	[U8] = {[S64] = uint8_t_to_int64_t, [S32] = uint8_t_to_int32_t},
	[U16] = {[S64] = uint16_t_to_int64_t, [S32] = uint16_t_to_int32_t},
	[U32] = {[S64] = uint32_t_to_int64_t, [S32] = uint32_t_to_int32_t},
	[S32] = {[S64] = int32_t_to_int64_t},
	[S64] = {[S32] = int64_t_to_int32_t},
};

void
dtype_range(DType t, double *low, double *high)
{
	int bits = dtype_info[t].bits;
	bool is_signed = dtype_info[t].class == CLASS_SIGNED;

	if (dtype_is_float(t)) {
		*high = float_decode(&float_formats[t], float_formats[t].largest);
		*low = float_formats[t].sign ? -*high : 0;
		return;
	}
	*low = is_signed ? -ldexp(1, bits - 1) : 0;
	*high = ldexp(1, is_signed ? bits - 1 : bits) - 1;
}

int64_t
dtype_quantize(DType t, DType arithmetic, bool reciprocal, double x, double scale, double zero)
{
	double low, high, ratio = reciprocal ? x * dtype_round(arithmetic, 1 / scale) : x / scale;
	double code = dtype_round(arithmetic, nearbyint(dtype_round(arithmetic, ratio)) + zero);

	dtype_range(t, &low, &high);
	return isnan(code) ? 0 : (int64_t)(code < low ? low : code > high ? high : code);
}

void
dtype_convert(DType to, void *dst, DType from, const void *src, int64_t n)
{
	const float *f = src;
	const double *d = src;

	if (n <= 0)
		return;
	if (to == from && to != BOOL)
		memcpy(dst, src, (size_t)dtype_bytes(to, n));
	else if (to == F64 && from == F32)
		for (int64_t i = 0; i < n; i++)
			((double *)dst)[i] = f[i];
	else if (to == F32 && from == F64)
		for (int64_t i = 0; i < n; i++)
			((float *)dst)[i] = (float)d[i];
	else if (convert_all[from][to])
		convert_all[from][to](dst, src, n);
	else
		for (int64_t i = 0; i < n; i++)
			convert_one(to, dst, from, src, i);
}

uint64_t
hash_numbers(DType dtype, const void *data, int64_t n)
{
	uint64_t hash = 1;

	for (int64_t i = 0; i < n; i++) {
		double x = dtype_load_float(dtype, data, i);
		hash = hash_bytes(&x, sizeof(x), hash);
	}
	return hash;
}
