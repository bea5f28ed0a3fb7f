/* Writes self-contained HTML pages, such as the page of `gradc dump --format=html`. The data is JSON inside a script
 * element that the browser does not run. The page's script shows strings as text only, so names from a model are
 * harmless. This file makes sure that no string ends the script element. */

#include "base/base.h"

#include <jansson.h>
#include <string.h>

extern const char html_frame[]; /* base/frame.html */

json_t *
json_uint(uint64_t x)
{
	char digits[24];

	if (x <= INT64_MAX)
		return json_integer((json_int_t)x);
	snprintf(digits, sizeof(digits), "%llu", (unsigned long long)x);
	return json_string(digits);
}

json_t *
json_name(const char *text)
{
	Text plain = {0};

	if (utf8_valid(text, strlen(text)))
		return json_string(text);
	text_add_plain(&plain, text);
	json_t *json = json_string(plain.at);
	text_free(&plain);
	return json;
}

/* Adds what `page` has between <TAG> and its last </TAG>. */
static void
add_part(Text *out, const char *page, const char *tag)
{
	char open[16], close[16];
	const char *end = NULL;

	snprintf(open, sizeof(open), "<%s>", tag);
	snprintf(close, sizeof(close), "</%s>", tag);
	const char *at = strstr(page, open) + strlen(open);
	for (const char *next = at; (next = strstr(next, close)); next++)
		end = next;
	at += *at == '\n';
	text_add_bytes(out, at, (size_t)(end - at));
}

static void
add_data(Text *out, const char *json)
{
	for (; *json; json++)
		if (*json == '<') /* occurs in JSON inside strings only */
			text_add(out, "\\u003c");
		else
			text_add_bytes(out, json, 1);
}

void
html_page(Text *out, const char *page, const char *json)
{
	/* The marks of base/frame.html in their order; NULL: the data. */
	static const struct {
		const char *mark, *tag;
	} parts[] = {{"@TITLE@", "title"}, {"@STYLE@", "style"},   {"@DATA@", NULL},
	             {"@BODY@", "body"},   {"@SCRIPT@", "script"}, {0}};
	const char *at = html_frame;

	for (int i = 0; parts[i].mark; i++) {
		const char *mark = strstr(at, parts[i].mark);
		text_add_bytes(out, at, (size_t)(mark - at));
		if (parts[i].tag)
			add_part(out, page, parts[i].tag);
		else
			add_data(out, json);
		at = mark + strlen(parts[i].mark);
	}
	text_add(out, at);
}
