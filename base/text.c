/* Builds text in a growing buffer, converts numbers to text and back, and makes text from outside safe to print. */
#include "base/base.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

void
text_free(Text *text)
{
	memory_free(text->at);
	*text = (Text){0};
}

/* Makes room for n more bytes and the NUL. */
static void
text_reserve(Text *text, size_t n)
{
	size_t cap = text->cap ? text->cap : 64;

	if (text->cap - text->n > n)
		return;
	while (cap - text->n <= n)
		cap *= 2;
	text->at = memory_resize(text->at, cap);
	text->cap = cap;
}

void
text_add_bytes(Text *text, const void *bytes, size_t n)
{
	text_reserve(text, n);
	if (n)
		memcpy(text->at + text->n, bytes, n);
	text->n += n;
	text->at[text->n] = '\0';
}

void
text_add(Text *text, const char *s)
{
	text_add_bytes(text, s, strlen(s));
}

void
text_vprintf(Text *text, const char *fmt, va_list args)
{
	va_list again;
	int n;

	va_copy(again, args);
	n = vsnprintf(NULL, 0, fmt, args);
	if (n > 0) {
		text_reserve(text, (size_t)n);
		vsnprintf(text->at + text->n, (size_t)n + 1, fmt, again);
		text->n += (size_t)n;
	} else {
		text_add_bytes(text, "", 0);
	}
	va_end(again);
}

void
text_printf(Text *text, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	text_vprintf(text, fmt, args);
	va_end(args);
}

/* From the first byte of a UTF-8 sequence: its length, and the smallest code point allowed for this length. */
static int
utf8_lead(unsigned char byte, uint32_t *bits, uint32_t *smallest)
{
	static const struct {
		uint8_t mask, lead;
		uint32_t smallest;
	} leads[] = {
		{0x80, 0x00, 0},
		{0xE0, 0xC0, 0x80},
		{0xF0, 0xE0, 0x800},
		{0xF8, 0xF0, 0x10000},
	};

	for (int i = 0; i < COUNT(leads); i++) {
		if ((byte & leads[i].mask) != leads[i].lead)
			continue;
		*bits = byte & (uint8_t)~leads[i].mask;
		*smallest = leads[i].smallest;
		return i + 1;
	}
	return 0;
}

/* Length of the UTF-8 sequence at s; 0 if it is invalid. Overlong forms, surrogates and code points above U+10FFFF are
 * invalid. */
static size_t
utf8_length(const char *s, size_t n, uint32_t *code)
{
	uint32_t smallest;
	int length = n ? utf8_lead((unsigned char)s[0], code, &smallest) : 0;

	if (!length || (size_t)length > n)
		return 0;
	for (int i = 1; i < length; i++) {
		if (((unsigned char)s[i] & 0xC0) != 0x80)
			return 0;
		*code = *code << 6 | ((unsigned char)s[i] & 0x3F);
	}
	if (*code < smallest || *code > 0x10FFFF || (*code >= 0xD800 && *code <= 0xDFFF))
		return 0;
	return (size_t)length;
}

bool
utf8_valid(const char *s, size_t n)
{
	uint32_t code;

	for (size_t i = 0, length; i < n; i += length)
		if (!(length = utf8_length(s + i, n - i, &code)))
			return false;
	return true;
}

/* Control characters, including the marks that reorder text on a terminal. */
static bool
is_control(uint32_t code)
{
	return code < 0x20 || (code >= 0x7F && code < 0xA0) || (code >= 0x202A && code <= 0x202E) ||
	       (code >= 0x2066 && code <= 0x2069);
}

void
text_add_escaped(Text *text, const char *s, size_t n, const char *also)
{
	for (size_t i = 0; i < n;) {
		uint32_t code = 0;
		size_t length = utf8_length(s + i, n - i, &code);
		bool plain = length && !is_control(code) && !(code < 0x80 && strchr(also, s[i]));

		if (!length)
			length = 1;
		if (plain)
			text_add_bytes(text, s + i, length);
		else
			for (size_t k = 0; k < length; k++)
				text_printf(text, "\\x%02X", (unsigned char)s[i + k]);
		i += length;
	}
}

void
text_add_plain(Text *text, const char *s)
{
	text_add_escaped(text, s, strlen(s), "");
}

char *
plain_text(Arena *arena, const char *s)
{
	Text t = {0};

	text_add_plain(&t, s);
	char *copy = arena_strdup(arena, t.n ? t.at : "");
	text_free(&t);
	return copy;
}

static bool
has_control_bytes(const char *s)
{
	for (; *s; s++)
		if ((unsigned char)*s < ' ' || *s == 0x7F)
			return true;
	return false;
}

void
text_add_shell_word(Text *text, const char *s)
{
	static const char plain[] =
		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:=+,@%";
	bool control = has_control_bytes(s);

	if (*s && !s[strspn(s, plain)]) {
		text_add(text, s);
		return;
	}
	text_add(text, control ? "$'" : "'");
	for (; *s; s++) {
		if (control && ((unsigned char)*s < ' ' || *s == 0x7F || *s == '\'' || *s == '\\'))
			text_printf(text, "\\x%02x", (unsigned char)*s);
		else if (*s == '\'')
			text_add(text, "'\\''");
		else
			text_add_bytes(text, s, 1);
	}
	text_add(text, "'");
}

void
text_add_quoted(Text *text, const char *s)
{
	text_add(text, "\"");
	text_add_escaped(text, s, strlen(s), "\"\\");
	text_add(text, "\"");
}

static int
hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Returns the byte that the escape at *at (after the backslash) stands for, and moves *at past the
 * escape. Returns 0 if the escape is malformed or stands for a NUL byte; *at then does not move. It
 * points to no quote, so the caller does not take this character for the end of the text. */
static int
unescape(const char **at)
{
	const char *s = *at;
	int high, low;

	if (*s == '"' || *s == '\\') {
		*at = s + 1;
		return *s;
	}
	if (*s != 'x' || (high = hex_digit(s[1])) < 0 || (low = hex_digit(s[2])) < 0)
		return 0;
	if (high || low) /* not a NUL byte, which would end the text early */
		*at = s + 3;
	return high << 4 | low;
}

char *
text_unquote(Arena *arena, const char **at)
{
	const char *s = *at;
	Text text = {0};
	char *result = NULL;

	if (*s++ != '"')
		return NULL;
	text_add(&text, "");
	while (*s && *s != '"') {
		int byte = (unsigned char)*s++;
		char c;
		if (byte == '\\' && !(byte = unescape(&s)))
			break;
		c = (char)byte;
		text_add_bytes(&text, &c, 1);
	}
	if (*s == '"') {
		result = arena_copy(arena, text.at, text.n + 1);
		*at = s + 1;
	}
	text_free(&text);
	return result;
}

/* Appends ".0" if the text that begins at `start` is an integer, so that it reads as a float
 * literal. */
static void
text_finish_float(Text *text, size_t start)
{
	if (!strpbrk(text->at + start, ".einf"))
		text_add(text, ".0");
}

void
text_add_double(Text *text, double value)
{
	size_t start = text->n;
	/* If a normal double was read from a text of up to 15 digits, %.15g prints these digits again. Subnormal
	 * doubles hold fewer digits. */
	int digits = isnormal(value) ? 15 : 1;
	char buffer[40];

	if (isnan(value)) {
		text_add(text, "nan");
		return;
	}
	do
		snprintf(buffer, sizeof(buffer), "%.*g", digits, value);
	while (strtod(buffer, NULL) != value && digits++ < 17);
	text_add(text, buffer);
	text_finish_float(text, start);
}

void
text_add_float(Text *text, float value)
{
	size_t start = text->n;
	int digits = isnormal(value) ? 6 : 1;
	char buffer[40];

	if (isnan(value)) {
		text_add(text, "nan");
		return;
	}
	do
		snprintf(buffer, sizeof(buffer), "%.*g", digits, (double)value);
	while (strtof(buffer, NULL) != value && digits++ < 9);
	text_add(text, buffer);
	text_finish_float(text, start);
}

/* After a mismatch, the last * of the pattern so far matches one byte more. So there are at most
 * strlen(pattern) * strlen(name) steps. */
bool
glob_match(const char *pattern, const char *name)
{
	const char *star = NULL, *resume = NULL;

	while (*name) {
		if (*pattern == '*') {
			star = pattern++;
			resume = name;
		} else if (*pattern == '?' || *pattern == *name) {
			pattern++;
			name++;
		} else if (star) {
			pattern = star + 1;
			name = ++resume;
		} else {
			return false;
		}
	}
	while (*pattern == '*')
		pattern++;
	return *pattern == '\0';
}

char *
glob_replace(Arena *arena, const char *pattern, const char *name, const char *replacement)
{
	const char *begin[MOST_STARS], *end[MOST_STARS], *after = NULL;
	int n = 0;
	Text out = {0};

	while (*name) {
		if (*pattern == '*' && n < MOST_STARS) {
			begin[n] = end[n] = name;
			n++;
			after = ++pattern;
		} else if (*pattern == '?' || *pattern == *name) {
			pattern++;
			name++;
		} else if (after) { /* the last star takes one byte more */
			pattern = after;
			name = ++end[n - 1];
		} else {
			return NULL;
		}
	}
	for (; *pattern == '*' && n < MOST_STARS; pattern++, n++)
		begin[n] = end[n] = name;
	if (*pattern)
		return NULL;
	text_add(&out, "");
	for (int i = 0; *replacement; replacement++) {
		if (*replacement == '*' && i < n) {
			text_add_bytes(&out, begin[i], (size_t)(end[i] - begin[i]));
			i++;
		} else {
			text_add_bytes(&out, replacement, 1);
		}
	}
	char *copy = arena_strdup(arena, out.at);
	text_free(&out);
	return copy;
}

static bool
is_digit(char c)
{
	return c >= '0' && c <= '9';
}

bool
parse_int(const char *text, int64_t *out)
{
	char *end;
	long long value;

	*out = 0;
	if (!is_digit(text[text[0] == '-' || text[0] == '+']))
		return false;
	errno = 0;
	value = strtoll(text, &end, 10);
	if (errno || *end)
		return false;
	*out = value;
	return true;
}

bool
parse_uint(const char *text, uint64_t *out)
{
	char *end;
	unsigned long long value;

	*out = 0;
	if (!is_digit(text[0]))
		return false;
	errno = 0;
	value = strtoull(text, &end, 10);
	if (errno || *end)
		return false;
	*out = value;
	return true;
}

bool
parse_bytes(const char *text, int64_t *out)
{
	static const char units[] = "KMG";
	int64_t value = 0, digit_or_unit;
	const char *unit;

	*out = 0;
	if (!is_digit(*text))
		return false;
	for (; is_digit(*text); text++) {
		digit_or_unit = *text - '0';
		if (!size_mul(value, 10, &value) || !size_add(value, digit_or_unit, &value))
			return false;
	}
	if (*text) {
		unit = strchr(units, *text);
		if (!unit || text[1])
			return false;
		digit_or_unit = (int64_t)1 << 10 * (unit - units + 1);
		if (!size_mul(value, digit_or_unit, &value))
			return false;
	}
	*out = value;
	return true;
}

/* A number below the normal numbers is rounded, but underflow to 0 is an error. So is overflow:
 * only "inf" means infinity. */
bool
parse_double(const char *text, double *out)
{
	char *end;
	double value;

	*out = 0;
	if (!*text || strchr(" \t\n\v\f\r", *text))
		return false;
	errno = 0;
	value = strtod(text, &end);
	if (end == text || *end || (errno == ERANGE && (isinf(value) || value == 0)))
		return false;
	*out = value;
	return true;
}

char *
file_name_of(Arena *arena, const char *tensor_name)
{
	enum {
		LONGEST = 200
	}; /* a file name has 255 bytes; the rest is for prefixes and endings */
	char *name = arena_strndup(arena, tensor_name, strnlen(tensor_name, LONGEST));

	for (char *c = name; *c; c++) {
		bool letter = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z');
		if (!letter && !is_digit(*c) && !strchr("._-", *c))
			*c = '_';
	}
	return name;
}

const char *
text_key_twice(const char *settings, size_t *n)
{
	for (const char *a = settings; a; a = strchr(a, ',')) {
		a += *a == ',';
		*n = strcspn(a, "=,");
		for (const char *b = strchr(a, ','); b; b = strchr(b + 1, ','))
			if (*n && strcspn(b + 1, "=,") == *n && strncmp(a, b + 1, *n) == 0)
				return a;
	}
	return NULL;
}

int
text_distance(const char *part, const char *whole)
{
	enum { LONGEST = 255 };
	int row[LONGEST + 1] = {0}, n = (int)strnlen(whole, LONGEST), best;

	for (int i = 1; i <= LONGEST && part[i - 1]; i++) {
		int diagonal = row[0];
		row[0] = i;
		for (int k = 1; k <= n; k++) {
			int replaced = diagonal + (part[i - 1] != whole[k - 1]);
			int shorter = (row[k] < row[k - 1] ? row[k] : row[k - 1]) + 1;
			diagonal = row[k];
			row[k] = replaced < shorter ? replaced : shorter;
		}
	}
	best = row[0];
	for (int k = 1; k <= n; k++)
		best = row[k] < best ? row[k] : best;
	return best;
}

bool
text_ends_with(const char *text, const char *ending)
{
	size_t n = strlen(text), k = strlen(ending);

	return n > k && strcmp(text + n - k, ending) == 0;
}

char *
text_before_ending(Arena *arena, const char *text, const char *ending)
{
	size_t n = text ? strlen(text) : 0, end = strlen(ending);

	return n > end && strcmp(text + n - end, ending) == 0 ? arena_strndup(arena, text, n - end)
	                                                      : NULL;
}

const char *
shape_text(Arena *arena, int rank, const int64_t *dims)
{
	const char *text = "[";

	for (int i = 0; i < rank; i++)
		text = arena_printf(arena, "%s%s%lld", text, i ? "," : "", (long long)dims[i]);
	return arena_printf(arena, "%s]", text);
}
