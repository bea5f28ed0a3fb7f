/* bitsandbytes' bytes for 4-bit weights, as stored by tests/references/four_bit.py. */
#include "base/files/files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

typedef struct {
	void *at;
	int64_t n;
} Array;

static Array
stored(Arena *arena, const char *name)
{
	const char *path = arena_printf(arena, "tests/references/four_bit/%s.npy", name);
	NpyInfo info;
	Array a;

	Status status = npy_read(arena, path, &info, &a.at);
	if (status)
		fail_msg("%s", status->message);
	a.n = info.n_elements;
	return a;
}

static void
assert_same(const char *name, const void *got, Array want, int64_t bytes)
{
	for (int64_t i = 0; i < want.n; i++)
		if (memcmp((const char *)got + i * bytes, (char *)want.at + i * bytes,
		           (size_t)bytes) != 0)
			fail_msg("%s: element %lld of %lld", name, (long long)i, (long long)want.n);
}

static void
check_kind(Arena *arena, FourBit kind)
{
	const char *name = four_bit_names[kind];
	Array x = stored(arena, "x");
	uint8_t *codes = NEW_ARRAY(arena, uint8_t, (x.n + 1) / 2);
	float *absmax = NEW_ARRAY(arena, float, four_bit_blocks(x.n));
	float *numbers = NEW_ARRAY(arena, float, x.n);

	four_bit_quantize(kind, x.at, x.n, codes, absmax);
	Array want = stored(arena, arena_printf(arena, "%s_codes", name));
	assert_int_equal(want.n, (x.n + 1) / 2);
	assert_same("codes", codes, want, 1);
	want = stored(arena, arena_printf(arena, "%s_absmax", name));
	assert_int_equal(want.n, four_bit_blocks(x.n));
	assert_same("absmax", absmax, want, 4);
	for (int64_t i = 0; i < x.n; i++)
		numbers[i] = four_bit_number(kind, codes, absmax, i);
	assert_same("numbers", numbers, stored(arena, arena_printf(arena, "%s_numbers", name)), 4);
}

static void
test_bytes(void **state)
{
	Arena *arena = arena_new();

	(void)state;
	check_kind(arena, FOUR_BIT_NF4);
	check_kind(arena, FOUR_BIT_FP4);
	arena_free(arena);
}

static void
test_absmax(void **state)
{
	Arena *arena = arena_new();
	Array absmax = stored(arena, "fp4_absmax");
	int64_t n = absmax.n;
	uint8_t *codes = NEW_ARRAY(arena, uint8_t, n);
	float *nested = NEW_ARRAY(arena, float, absmax_blocks(n)), offset;

	(void)state;
	absmax_quantize(absmax.at, n, codes, nested, &offset);
	assert_same("codes", codes, stored(arena, "absmax_codes"), 1);
	assert_same("sizes", nested, stored(arena, "absmax_nested"), 4);
	assert_same("offset", &offset, stored(arena, "absmax_offset"), 4);
	absmax_numbers(codes, nested, offset, n, absmax.at);
	assert_same("numbers", absmax.at, stored(arena, "absmax_numbers"), 4);
	arena_free(arena);
}

/* Bits per weight, with double quantization. */
static void
test_bits_a_weight(void **state)
{
	int64_t n = 1 << 24, blocks = four_bit_blocks(n);
	double bits = 8.0 * (double)(n / 2 + blocks + 4 * absmax_blocks(blocks) + 4) / (double)n;

	(void)state;
	assert_true(bits > 4.126 && bits < 4.128);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_bytes),
	                                   cmocka_unit_test(test_absmax),
	                                   cmocka_unit_test(test_bits_a_weight)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
