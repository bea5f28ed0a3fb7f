/* Numbers in the text form: every bit pattern of the float types of at most 16 bits reads back unchanged, and is written as
 * short as its type allows. */
#include "ir/ir.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { PART = 16 }; /* number of elements of a constant in the text */

/* The module `func @f` with a constant of the 16 codes from `first` on. */
static Module *
module_of_codes(DType d, int first)
{
	Module *m = module_new("numbers");
	int64_t n = PART;
	Type t = type_new(m, d, 1, &n);
	uint16_t wide[PART];
	uint8_t bytes[PART] = {0};
	Builder b = {.m = m, .f = function_new(m, "f")};

	for (int i = 0; i < PART; i++) {
		wide[i] = (uint16_t)(first + i);
		if (dtype_info[d].bits == 4)
			bytes[i / 2] |= (uint8_t)((first + i) << (i % 2 * 4));
		else
			bytes[i] = (uint8_t)(first + i);
	}
	Value *v = b_constant(
		&b, tensor_new(m, t, dtype_info[d].bits == 16 ? (void *)wide : (void *)bytes));
	b_return(&b, 1, &v);
	return m;
}

static const Tensor *
constant_of(const Module *m)
{
	return value_constant(function_result(module_function(m, "f"), 0));
}

/* The same bits, except that any NaN equals any other. */
static void
assert_same_numbers(DType d, const Tensor *a, const Tensor *b, const char *text)
{
	for (int i = 0; i < PART; i++) {
		double x = tensor_float(a, i), y = tensor_float(b, i);
		if (memcmp(&x, &y, sizeof(x)) != 0 && !(x != x && y != y))
			fail_msg("%s: %.17g read back as %.17g from %s", dtype_info[d].name, x, y,
			         text);
	}
}

static void
check_codes(DType d, Diag *diag)
{
	for (int first = 0; first < 1 << dtype_info[d].bits; first += PART) {
		Module *m = module_of_codes(d, first);
		Text text = {0}, again = {0};
		module_print(&text, m, NULL);
		Module *read = module_parse(text.at, "numbers", NULL, diag);
		assert_non_null(read);
		assert_same_numbers(d, constant_of(m), constant_of(read), text.at);
		module_print(&again, read, NULL);
		assert_string_equal(text.at, again.at);
		text_free(&text);
		text_free(&again);
		module_free(read);
		module_free(m);
	}
}

static void
test_all_codes(void **state)
{
	Diag *diag = diag_new("t", stderr);

	(void)state;
	for (int d = 0; d < N_DTYPES; d++)
		if (dtype_is_float((DType)d) && dtype_info[d].bits <= 16)
			check_codes((DType)d, diag);
	diag_free(diag);
}

static void
test_shortest(void **state)
{
	static const struct {
		DType d;
		double value;
		const char *text;
	} cases[] = {
		{F16, 0.1, "0.1"},         {F16, 1.0 / 3, "0.3333"},     {F16, 65504, "65504.0"},
		{F16, 0x1p-24, "6e-08"},   {F16, -0.0, "-0.0"},          {F16, 1e9, "inf"},
		{BF16, 1.0 / 3, "0.334"},  {BF16, 3.14159, "3.14"},      {BF16, 1e38, "1e+38"},
		{F8E4M3, 448, "448.0"},    {F8E4M3, 0.1, "0.1"},         {F8E5M2, 0.3, "0.3"},
		{F8E4M3FNUZ, 0.3, "0.3"},  {F8E5M2FNUZ, -7, "-7.0"},     {F4E2M1, 1.5, "1.5"},
		{E8M0, 0x1p-127, "6e-39"}, {F32, 1.0 / 3, "0.33333334"}, {F64, 0.1, "0.1"},
	};
	Module *m = module_new("numbers");

	(void)state;
	for (int i = 0; i < COUNT(cases); i++) {
		Function *f = function_new(m, module_fresh_name(m, "f"));
		Builder b = {.m = m, .f = f};
		Text line = {0};
		char want[80];
		Tensor *t = tensor_splat(m, type_scalar(m, cases[i].d), cases[i].value);
		node_print(&line, b_constant(&b, t)->node, NULL);
		snprintf(want, sizeof(want), "[%s]", cases[i].text);
		if (!strstr(line.at, want))
			fail_msg("want %s in %s", want, line.at);
		text_free(&line);
	}
	module_free(m);
}

/* An attribute's number that does not fit into the operand's integer type. */
static void
test_splat_saturates(void **state)
{
	static const struct {
		DType d;
		double value;
		int64_t want;
	} cases[] = {
		{S64, 1e30, INT64_MAX},
		{S8, 1e30, 127},
		{S32, -1e10, INT32_MIN},
		{U8, -1, 0},
		{S4, 9, 7},
		{S32, NAN, 0},
	};
	Module *m = module_new("numbers");

	(void)state;
	for (int i = 0; i < COUNT(cases); i++) {
		int64_t dims[] = {3};
		const Tensor *t = tensor_splat(m, type_new(m, cases[i].d, 1, dims), cases[i].value);
		for (int k = 0; k < 3; k++)
			assert_int_equal(tensor_int(t, k), cases[i].want);
	}
	module_free(m);
}

/* If the bits of a u64 were read as s64, this number would become -1, and a splat of -1 differs. */
static void
test_no_splat_above_s64(void **state)
{
	uint64_t all[] = {UINT64_MAX, UINT64_MAX, UINT64_MAX};
	Module *m = module_new("numbers");
	int64_t dims[] = {3};
	double value;

	(void)state;
	assert_false(tensor_is_splat(tensor_new(m, type_new(m, U64, 1, dims), all), &value));
	assert_true(tensor_is_splat(tensor_new(m, type_new(m, S64, 1, dims), all), &value));
	assert_true(value == -1);
	module_free(m);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_all_codes),
		cmocka_unit_test(test_shortest),
		cmocka_unit_test(test_splat_saturates),
		cmocka_unit_test(test_no_splat_above_s64),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
