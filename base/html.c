/* Writes self-contained HTML pages, such as the page of `gradc dump --format=html`. The data is JSON inside a script
 * element that the browser does not run. The page's script shows strings as text only, so names from a model are
 * harmless. This file makes sure that no string ends the script element. */

#include "base/base.h"

#include <jansson.h>
#include <string.h>

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

void
html_page(Text *out, const char *page, const char *json)
{
	static const char mark[] = "@DATA@";
	const char *at = strstr(page, mark);

	text_add_bytes(out, page, (size_t)(at - page));
	for (; *json; json++)
		if (*json == '<') /* occurs in JSON inside strings only */
			text_add(out, "\\u003c");
		else
			text_add_bytes(out, json, 1);
	text_add(out, at + sizeof(mark) - 1);
}
