/* base/: memory, containers, text, messages. */

#include "base/base.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- arena.c ---- */

static void
test_arena(void **state)
{
	static const size_t sizes[] = {0, 1, 16, 17, 4000, 5000, 1 << 16, 3 << 20};
	Arena *arena = arena_new();
	unsigned char *seen[200];

	for (int i = 0; i < COUNT(seen); i++) {
		size_t n = sizes[i % COUNT(sizes)];
		seen[i] = arena_alloc(arena, n);
		assert_int_equal((uintptr_t)seen[i] % 16, 0);
		for (size_t k = 0; k < n; k++)
			assert_int_equal(seen[i][k], 0);
		memset(seen[i], i + 1, n);
		for (int j = 0; j < i; j++)
			assert_ptr_not_equal(seen[i], seen[j]);
	}
	for (int i = 0; i < COUNT(seen); i++)
		for (size_t k = 0; k < sizes[i % COUNT(sizes)]; k++)
			assert_int_equal(seen[i][k], i + 1);
	assert_true(arena_bytes(arena) > (25 * 3) << 20);
	assert_string_equal(arena_printf(arena, "%d-%s", 7, "x"), "7-x");
	assert_string_equal(arena_strndup(arena, "abc", 2), "ab");
	arena_free(arena);
	arena_free(NULL);
}

static void
test_vec(void **state)
{
	Arena *arena = arena_new();
	VEC(int) v = {0};

	for (int i = 0; i < 1000; i++)
		vec_push(arena, &v, i * i);
	assert_int_equal(v.n, 1000);
	for (int i = 0; i < v.n; i++)
		assert_int_equal(v.at[i], i * i);
	arena_free(arena);
}

/* ---- map.c ---- */

static void
test_maps(void **state)
{
	Arena *arena = arena_new();
	StrMap *names = strmap_new(arena);
	IntMap *numbers = intmap_new(arena);
	uint64_t value;

	for (int i = 0; i < 10000; i++) {
		strmap_put(names, arena_printf(arena, "key%d", i), arena_printf(arena, "%d", i));
		intmap_put(numbers, (uint64_t)i << 40, (uint64_t)i);
	}
	strmap_put(names, "key5", arena_strdup(arena, "five"));
	intmap_put(numbers, 0, UINT64_MAX);
	assert_string_equal(strmap_get(names, "key5"), "five");
	assert_string_equal(strmap_get(names, "key9999"), "9999");
	assert_null(strmap_get(names, "key10000"));
	assert_null(strmap_get(names, ""));
	for (int i = 1; i < 10000; i++) {
		assert_true(intmap_get(numbers, (uint64_t)i << 40, &value));
		assert_int_equal(value, i);
	}
	assert_true(intmap_get(numbers, 0, &value));
	assert_true(value == UINT64_MAX);
	assert_false(intmap_get(numbers, 1, NULL));
	arena_free(arena);
}

/* Hashes from the reference implementation of XXH64. */
static void
test_hash(void **state)
{
	const char *text = "Nobody inspects the spammish repetition";

	assert_true(hash_bytes("", 0, 0) == 0xEF46DB3751D8E999u);
	assert_true(hash_bytes("a", 1, 0) == 0xD24EC4F1A98C6E5Bu);
	assert_true(hash_bytes("abc", 3, 0) == 0x44BC2CF5AD770999u);
	assert_true(hash_bytes(text, strlen(text), 0) == 0xFBCEA83C8A378BF1u);
	assert_true(hash_bytes("a", 1, 1) != hash_bytes("a", 1, 0));
	assert_true(hash_mix(1, 2) != hash_mix(2, 1));
}

/* ---- text.c ---- */

static void
assert_quoted(Arena *arena, const char *s, const char *quoted)
{
	Text text = {0};
	const char *at;

	text_add_quoted(&text, s);
	if (quoted)
		assert_string_equal(text.at, quoted);
	assert_true(utf8_valid(text.at, text.n));
	text_add(&text, "rest");
	at = text.at;
	assert_string_equal(text_unquote(arena, &at), s);
	assert_string_equal(at, "rest");
	text_free(&text);
}

static void
test_quote(void **state)
{
	static const char *const malformed[] = {
		"",        "x",        "\"",        "\"abc",      "\"\\",      "\"\\q\"",
		"\"\\x\"", "\"\\x4\"", "\"\\x00\"", "\"a\\x00\"", "\"\\x4g\"",
	};
	Arena *arena = arena_new();
	char bytes[4];

	assert_quoted(arena, "", "\"\"");
	assert_quoted(arena, "/fc1/MatMul", "\"/fc1/MatMul\"");
	assert_quoted(arena, "a\"b\\c\n\x1b[31m", "\"a\\x22b\\x5Cc\\x0A\\x1B[31m\"");
	assert_quoted(arena, "Größe 数 😀", "\"Größe 数 😀\"");
	assert_quoted(arena, "\xC3(\xED\xA0\x80", "\"\\xC3(\\xED\\xA0\\x80\"");
	assert_quoted(arena,
	              "\xC2\x9B"
	              "x\xE2\x80\xAE",
	              "\"\\xC2\\x9Bx\\xE2\\x80\\xAE\"");
	for (int i = 0; i < 1 << 24; i += 131) {
		bytes[0] = (char)(i >> 16 ? i >> 16 : 1);
		bytes[1] = (char)(i >> 8 & 0xFF ? i >> 8 : 1);
		bytes[2] = (char)(i & 0xFF ? i : 1);
		bytes[3] = '\0';
		assert_quoted(arena, bytes, NULL);
	}
	for (int i = 0; i < COUNT(malformed); i++) {
		const char *at = malformed[i];
		assert_null(text_unquote(arena, &at));
		assert_ptr_equal(at, malformed[i]);
	}
	arena_free(arena);
}

static void
assert_double_text(double value, const char *expected)
{
	Text text = {0};

	text_add_double(&text, value);
	if (expected)
		assert_string_equal(text.at, expected);
	assert_true(strtod(text.at, NULL) == value);
	assert_non_null(strpbrk(text.at, ".einf"));
	text_free(&text);
}

static void
assert_float_text(float value, const char *expected)
{
	Text text = {0};

	text_add_float(&text, value);
	if (expected)
		assert_string_equal(text.at, expected);
	assert_true(strtof(text.at, NULL) == value);
	text_free(&text);
}

static void
test_numbers(void **state)
{
	uint64_t bits = 1;
	double value;

	assert_double_text(0, "0.0");
	assert_double_text(-0.0, "-0.0");
	assert_double_text(3, "3.0");
	assert_double_text(0.1, "0.1");
	assert_double_text(1e300, "1e+300");
	assert_double_text(5e-324, "5e-324");
	assert_double_text(1.0 / 3, "0.3333333333333333");
	assert_double_text(INFINITY, "inf");
	assert_double_text(-INFINITY, "-inf");
	assert_float_text(0.1f, "0.1");
	assert_float_text(16777216.0f, "16777216.0");
	assert_float_text(FLT_TRUE_MIN, "1e-45");
	for (int i = 0; i < 100000; i++) {
		bits = hash_mix(bits, 1);
		memcpy(&value, &bits, sizeof(value));
		if (isnan(value))
			continue;
		assert_double_text(value, NULL);
		assert_float_text((float)value, NULL);
	}
}

static void
test_glob(void **state)
{
	assert_true(glob_match("*", ""));
	assert_true(glob_match("", ""));
	assert_true(glob_match("h.*.weight", "h.0.attn.weight"));
	assert_true(glob_match("h.?.*", "h.3.bias"));
	assert_true(glob_match("*a*b*c", "xxaxxbxxbc"));
	assert_true(glob_match("[a]", "[a]"));
	assert_false(glob_match("h.?.w", "h.10.w"));
	assert_false(glob_match("*.bias", "bias"));
	assert_false(glob_match("a", ""));
	assert_false(glob_match("", "a"));
	assert_false(glob_match("*a*a*a*a*a*a*a*a*b", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"));
	Arena *arena = arena_new();
	const char *const cases[][4] = {
		{"onnx::MatMul_*", "onnx::MatMul_7", "base.layers.*.q_proj",
	         "base.layers.7.q_proj"},
		{"h.*.attn.*.w", "h.3.attn.q.w", "l.*.*_proj", "l.3.q_proj"},
		{"*", "", "a*b", "ab"},
		{"*.*", "a.b.c", "*-*", "a-b.c"},
		{"*?b", "xaab", "<*>", "<xa>"},
		{"a*", "a1", "x", "x"},
		{"*ab*ab", "abxabab", "*|*", "|xab"},
		{"a*", "b1", "x", NULL},
		{"**", "ab", "*-*", "-ab"},
	};
	for (int k = 0; k < COUNT(cases); k++) {
		char *got = glob_replace(arena, cases[k][0], cases[k][1], cases[k][2]);
		if (cases[k][3])
			assert_string_equal(got, cases[k][3]);
		else
			assert_null(got);
	}
	arena_free(arena);
}

static void
test_parse(void **state)
{
	int64_t n;
	double d;

	assert_true(parse_bytes("12K", &n) && n == 12288);
	assert_true(parse_bytes("0", &n) && n == 0);
	assert_true(parse_bytes("1G", &n) && n == 1 << 30);
	assert_true(parse_bytes("9223372036854775807", &n) && n == INT64_MAX);
	assert_false(parse_bytes("9223372036854775808", &n));
	assert_false(parse_bytes("9007199254740992K", &n));
	assert_false(parse_bytes("-1", &n) || parse_bytes("", &n) || parse_bytes("K", &n));
	assert_false(parse_bytes("1KB", &n) || parse_bytes("1 K", &n) || parse_bytes("1T", &n));
	assert_true(parse_int("-9223372036854775808", &n) && n == INT64_MIN);
	assert_true(parse_int("+7", &n) && n == 7);
	assert_false(parse_int("9223372036854775808", &n) || parse_int("1x", &n));
	assert_false(parse_int("", &n) || parse_int("-", &n) || parse_int(" 1", &n));
	assert_true(parse_double("1e-3", &d) && d == 1e-3);
	assert_true(parse_double("-inf", &d) && isinf(d));
	assert_true(parse_double("5e-324", &d) && d == 5e-324);
	assert_false(parse_double("1e999", &d) || parse_double("", &d) || parse_double(" 1", &d));
	assert_false(parse_double("1.5x", &d));
}

static void
test_utf8_and_names(void **state)
{
	Arena *arena = arena_new();

	assert_true(utf8_valid("\xF4\x8F\xBF\xBF", 4));
	assert_false(utf8_valid("\xF4\x90\x80\x80", 4));
	assert_false(utf8_valid("\xC0\x80", 2));
	assert_false(utf8_valid("\xE2\x82", 2));
	assert_false(utf8_valid("\x80", 1));
	assert_string_equal(file_name_of(arena, "/h.0/fc-1:ö"), "_h.0_fc-1___");
	arena_free(arena);
}

/* ---- diag.c ---- */

static void
test_diag(void **state)
{
	const char *said = "a.c:1: no\n \tx = \x1b;\n\nend";
	Status status;
	char *out = NULL;
	size_t n;
	FILE *stream = open_memstream(&out, &n);
	Diag *diag = diag_new("gradc", stream);

	assert_int_equal(diag_exit_code(diag), EXIT_OK);
	assert_false(diag_status(diag, NULL));
	diag_error(diag, EXIT_UNSUPPORTED, "m.onnx: node \"%s\"", "a\n\x1b[2J");
	diag_hint(diag, "look at %d", 7);
	diag_warning(diag, "fine");
	assert_true(diag_status(
		diag, status_annotate(status_error(EXIT_INVALID, "bad %d", 1), "file %s", "x")));
	status = status_output(status_error(EXIT_SYSTEM, "cc failed"), said, strlen(said));
	assert_true(diag_status(diag, status_annotate(status, "x")));
	fflush(stream);
	assert_string_equal(out, "gradc: error: m.onnx: node \"a\\x0A\\x1B[2J\"\n"
	                         "\thint: look at 7\n"
	                         "gradc: warning: fine\n"
	                         "gradc: error: file x: bad 1\n"
	                         "gradc: error: x: cc failed\n"
	                         "\ta.c:1: no\n\t \tx = \\x1B;\n\t\n\tend\n");
	assert_int_equal(diag_exit_code(diag), EXIT_INVALID);
	for (int i = 0; i < 150; i++) {
		diag_error(diag, EXIT_SYSTEM, "again");
		diag_note(diag, "noted");
	}
	assert_int_equal(diag_errors(diag), 153);
	diag_free(diag);
	fclose(stream);
	assert_non_null(strstr(out, "gradc: error: 53 more errors, not shown\n"));
	assert_int_equal(n, strlen(out));
	assert_null(status_annotate(NULL, "x"));
	free(out);
}

/* Of two faults the first is kept and the second is freed; the leak checker would see it. */
static void
test_status_first(void **state)
{
	static const int codes[][3] = {{0, 0, 0}, {3, 0, 3}, {0, 4, 4}, {3, 4, 3}};

	for (int i = 0; i < COUNT(codes); i++) {
		Status a = codes[i][0] ? status_error(codes[i][0], "first") : NULL;
		Status b = codes[i][1] ? status_error(codes[i][1], "second") : NULL;
		Status first = status_first(a, b);

		assert_int_equal(first ? first->exit_code : 0, codes[i][2]);
		status_free(first);
	}
}

/* clang-format off */
static const struct CMUnitTest tests[] = {
	cmocka_unit_test(test_arena),
	cmocka_unit_test(test_vec),
	cmocka_unit_test(test_maps),
	cmocka_unit_test(test_hash),
	cmocka_unit_test(test_quote),
	cmocka_unit_test(test_numbers),
	cmocka_unit_test(test_glob),
	cmocka_unit_test(test_parse),
	cmocka_unit_test(test_utf8_and_names),
	cmocka_unit_test(test_diag),
	cmocka_unit_test(test_status_first),
};
/* clang-format on */

int
main(void)
{
	return cmocka_run_group_tests_name("base", tests, NULL, NULL);
}
