/* base/numbers/dtype.c: conversions over every bit pattern. */
#include "base/numbers/numbers.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <string.h>

#include <cmocka.h>

static const DType small_floats[] = {
	F16, BF16, F8E4M3, F8E5M2, F8E4M3FNUZ, F8E5M2FNUZ, F4E2M1, E8M0,
};

static double
decode(DType t, unsigned bits)
{
	uint16_t word = (uint16_t)bits;

	return dtype_load_float(t, &word, 0);
}

static unsigned
encode(DType t, double value)
{
	uint16_t word = 0;

	dtype_store_float(t, &word, 0, value);
	return word;
}

static unsigned
patterns(DType t)
{
	return 1u << dtype_info[t].bits;
}

/* Every pattern except NaN survives load and store, and values grow with the pattern. */
static void
test_float_round_trip(void **state)
{
	for (int k = 0; k < COUNT(small_floats); k++) {
		DType t = small_floats[k];
		unsigned half = t == E8M0 ? patterns(t) : patterns(t) / 2;
		for (unsigned bits = 0; bits < patterns(t); bits++) {
			double value = decode(t, bits);
			if (isnan(value)) {
				assert_true(isnan(dtype_round(t, value)));
				continue;
			}
			assert_int_equal(encode(t, value), bits);
			if (bits % half && !isnan(decode(t, bits - 1)))
				assert_true(bits < half ? value > decode(t, bits - 1)
				                        : value < decode(t, bits - 1));
		}
	}
}

/* Between two neighbours the nearer one wins; in the middle, the even one. */
static void
test_float_rounding(void **state)
{
	for (int k = 0; k < COUNT(small_floats); k++) {
		DType t = small_floats[k];
		unsigned half = t == E8M0 ? patterns(t) : patterns(t) / 2;
		for (unsigned bits = 0; bits + 1 < half; bits++) {
			double low = decode(t, bits), high = decode(t, bits + 1);
			double middle = low + (high - low) / 2;
			/* e8m0 has no last bit: of 1 and 2, 1.5 rounds to 2 */
			unsigned even = t == E8M0 ? bits + 1 : bits + bits % 2;
			if (!isfinite(low) || !isfinite(high))
				continue;
			assert_int_equal(encode(t, nextafter(middle, 0)), bits);
			assert_int_equal(encode(t, middle), even);
			assert_int_equal(encode(t, nextafter(middle, INFINITY)), bits + 1);
			if (t != E8M0)
				assert_true(dtype_round(t, -middle) == -decode(t, even));
		}
	}
}

/* Examples from the specifications: OCP 8-bit floats and MX formats, ONNX Cast, IEEE 754. */
static void
test_float_values(void **state)
{
	/* clang-format off */
	static const struct { DType t; unsigned bits; double value; } known[] = {
		{F16, 0x3C00, 1}, {F16, 0x7BFF, 65504}, {F16, 0x0001, 0x1p-24}, {F16, 0x0400, 0x1p-14},
		{F16, 0xFC00, -INFINITY}, {F16, 0x3555, 0x1.554p-2}, {F16, 0x8000, -0.0},
		{BF16, 0x3F80, 1}, {BF16, 0x7F7F, 0x1.FEp127}, {BF16, 0x0001, 0x1p-133},
		{BF16, 0x7F80, INFINITY}, {BF16, 0xC049, -3.140625},
		{F8E4M3, 0x7E, 448}, {F8E4M3, 0x01, 0x1p-9}, {F8E4M3, 0x08, 0x1p-6},
		{F8E4M3, 0x38, 1}, {F8E5M2, 0x7B, 57344}, {F8E5M2, 0x01, 0x1p-16},
		{F8E5M2, 0x3C, 1}, {F8E5M2, 0x04, 0x1p-14},
		{F8E4M3FNUZ, 0x7F, 240}, {F8E4M3FNUZ, 0x01, 0x1p-10}, {F8E4M3FNUZ, 0x40, 1},
		{F8E5M2FNUZ, 0x7F, 57344}, {F8E5M2FNUZ, 0x01, 0x1p-17}, {F8E5M2FNUZ, 0x40, 1},
		{F4E2M1, 0x1, 0.5}, {F4E2M1, 0x2, 1}, {F4E2M1, 0x3, 1.5}, {F4E2M1, 0x4, 2},
		{F4E2M1, 0x5, 3}, {F4E2M1, 0x6, 4}, {F4E2M1, 0x7, 6}, {F4E2M1, 0xF, -6},
		{E8M0, 0x00, 0x1p-127}, {E8M0, 0x7F, 1}, {E8M0, 0xFE, 0x1p127},
	};
	static const struct { DType t; unsigned bits; } nans[] = {
		{F16, 0x7C01}, {F16, 0xFFFF}, {BF16, 0x7F81}, {F8E4M3, 0x7F}, {F8E4M3, 0xFF},
		{F8E5M2, 0x7D}, {F8E5M2, 0x7F}, {F8E4M3FNUZ, 0x80}, {F8E5M2FNUZ, 0x80}, {E8M0, 0xFF},
	};
	/* clang-format on */

	for (int i = 0; i < COUNT(known); i++) {
		assert_true(decode(known[i].t, known[i].bits) == known[i].value);
		assert_int_equal(encode(known[i].t, known[i].value), known[i].bits);
	}
	for (int i = 0; i < COUNT(nans); i++)
		assert_true(isnan(decode(nans[i].t, nans[i].bits)));
}

static void
test_float_special(void **state)
{
	/* clang-format off */
	static const struct { DType t; unsigned above, below, nan, minus_zero; } table[] = {
		{F16, 0x7C00, 0xFC00, 0x7E00, 0x8000},  {BF16, 0x7F80, 0xFF80, 0x7FC0, 0x8000},
		{F8E4M3, 0x7E, 0xFE, 0x7F, 0x80},       {F8E5M2, 0x7C, 0xFC, 0x7E, 0x80},
		{F8E4M3FNUZ, 0x7F, 0xFF, 0x80, 0x00},   {F8E5M2FNUZ, 0x7F, 0xFF, 0x80, 0x00},
		{F4E2M1, 0x7, 0xF, 0x8, 0x8},           {E8M0, 0xFE, 0xFF, 0xFF, 0x00},
	};
	/* clang-format on */
	static const double large[] = {INFINITY, DBL_MAX, 0x1.FFp127, 0x1p200};

	for (int i = 0; i < COUNT(table); i++) {
		for (int k = 0; k < COUNT(large); k++) {
			/* e5m2 keeps infinity and saturates finite values */
			bool finite = table[i].t == F8E5M2 && k > 0;
			assert_int_equal(encode(table[i].t, large[k]), table[i].above - finite);
			assert_int_equal(encode(table[i].t, -large[k]), table[i].below - finite);
		}
		assert_int_equal(encode(table[i].t, (double)NAN), table[i].nan);
		assert_int_equal(encode(table[i].t, -0.0), table[i].minus_zero);
		assert_int_equal(encode(table[i].t, 5e-324), 0);
	}
	assert_int_equal(encode(F16, 65519.999), 0x7BFF);
	assert_int_equal(encode(F16, 65520), 0x7C00);
	assert_int_equal(encode(F8E4M3, 1000), 0x7E);
	assert_int_equal(encode(F8E5M2, 1e6), 0x7B);
}

/* An independent oracle for bf16: the upper half of an f32, as the compiler converts it. */
static void
test_bf16_against_f32(void **state)
{
	uint64_t seed = 1;

	for (int i = 0; i < 200000; i++) {
		uint32_t bits = (uint32_t)(seed = hash_mix(seed, 2)), expected;
		float value;
		memcpy(&value, &bits, sizeof(value));
		if (isnan(value))
			continue;
		expected = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
		assert_int_equal(encode(BF16, value), expected);
	}
	assert_true(dtype_round(F32, 0.1) == 0.1f);
	assert_true(dtype_round(F64, 0.1) == 0.1);
}

static int64_t
convert_int(DType to, DType from, int64_t value)
{
	int64_t source = 0, target = 0;

	dtype_store_int(from, &source, 0, value);
	dtype_convert(to, &target, from, &source, 1);
	return dtype_load_int(to, &target, 0);
}

static int64_t
convert_from_double(DType to, double value)
{
	int64_t target = 0;

	dtype_convert(to, &target, F64, &value, 1);
	return dtype_load_int(to, &target, 0);
}

static void
test_integers(void **state)
{
	assert_int_equal(convert_int(S8, S16, 200), -56);
	assert_int_equal(convert_int(U4, S32, -1), 15);
	assert_int_equal(convert_int(S4, S32, 8), -8);
	assert_int_equal(convert_int(S2, U2, 3), -1);
	assert_int_equal(convert_int(S64, U32, UINT32_MAX), UINT32_MAX);
	assert_int_equal(convert_int(BOOL, S32, 256), 1);
	assert_int_equal(convert_int(U8, BOOL, 2), 1);
	assert_int_equal(convert_from_double(S8, 1e9), 127);
	assert_int_equal(convert_from_double(S8, 128), 127);
	assert_int_equal(convert_from_double(S8, -128.9), -128);
	assert_int_equal(convert_from_double(U8, -1), 0);
	assert_int_equal(convert_from_double(U8, 255.9), 255);
	assert_int_equal(convert_from_double(S4, 7.9), 7);
	assert_int_equal(convert_from_double(S64, 1e30), INT64_MAX);
	assert_int_equal(convert_from_double(S64, 0x1p63), INT64_MAX);
	assert_int_equal(convert_from_double(S64, -1e30), INT64_MIN);
	assert_true((uint64_t)convert_from_double(U64, 1e30) == UINT64_MAX);
	assert_true((uint64_t)convert_from_double(U64, 0x1p63) == UINT64_C(1) << 63);
	assert_int_equal(convert_from_double(S32, (double)NAN), 0);
	assert_int_equal(convert_from_double(BOOL, 0.25), 1);
	assert_int_equal(convert_from_double(BOOL, -0.0), 0);
}

/* 64-bit integers convert to f32 in one rounding, as in the compiler. */
static void
test_integer_to_float(void **state)
{
	uint64_t seed = 3;
	float single;
	double wide;

	for (int i = 0; i < 200000; i++) {
		uint64_t bits = seed = hash_mix(seed, 4);
		int64_t value;
		/* near the middle between two floats, where double rounding would go wrong */
		bits = i % 2 ? bits : (bits | 0x7FFFFFFFFF) + (uint64_t)(i % 7) - 3;
		bits >>= seed % 24;
		value = (int64_t)bits;
		dtype_convert(F32, &single, S64, &value, 1);
		assert_true(single == (float)value);
		dtype_convert(F32, &single, U64, &bits, 1);
		assert_true(single == (float)bits);
		dtype_convert(F64, &wide, U64, &bits, 1);
		assert_true(wide == (double)bits);
	}
}

static void
test_packed(void **state)
{
	uint8_t bytes[3] = {0}, expected[3] = {0x21, 0x43, 0x05};

	for (int i = 0; i < 5; i++)
		dtype_store_int(U4, bytes, i, i + 1);
	assert_memory_equal(bytes, expected, 3);
	dtype_store_int(S4, bytes, 1, -1);
	assert_int_equal(bytes[0], 0xF1);
	assert_int_equal(dtype_load_int(S4, bytes, 1), -1);
	for (int i = 0; i < 6; i++)
		dtype_store_int(S2, bytes, i, i % 4 - 2);
	assert_int_equal(bytes[0], 0x4E);
	assert_int_equal(dtype_bytes(U4, 5), 3);
	assert_int_equal(dtype_bytes(S2, 5), 2);
	assert_int_equal(dtype_bytes(S2, 0), 0);
	assert_int_equal(dtype_bytes(F64, INT64_MAX), INT64_MAX);
}

static void
test_dtype_names(void **state)
{
	DType t;

	for (int i = 0; i < N_DTYPES; i++) {
		assert_true(dtype_parse(dtype_info[i].name, &t));
		assert_int_equal(t, i);
		assert_non_null(dtype_info[i].npy_bits);
	}
	assert_false(dtype_parse("float", &t));
}

/* clang-format off */
static const struct CMUnitTest tests[] = {
	cmocka_unit_test(test_float_round_trip),
	cmocka_unit_test(test_float_rounding),
	cmocka_unit_test(test_float_values),
	cmocka_unit_test(test_float_special),
	cmocka_unit_test(test_bf16_against_f32),
	cmocka_unit_test(test_integers),
	cmocka_unit_test(test_integer_to_float),
	cmocka_unit_test(test_packed),
	cmocka_unit_test(test_dtype_names),
};
/* clang-format on */

int
main(void)
{
	return cmocka_run_group_tests_name("base_dtype", tests, NULL, NULL);
}
