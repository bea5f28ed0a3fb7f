/* DeepSpeed reads its configuration as Hjson (https://hjson.github.io/syntax.html), an extension of JSON. People use
 * two of its additions: comments (`#`, `//`, slash and star) and a comma after the last member. This file replaces
 * comments and such commas by spaces, so that the JSON parser can read the text and its line numbers stay true. */
#include "config/deepspeed.h"

#include <string.h>

/* The index after the end of the string that begins at i. */
static size_t
string_end(const char *text, size_t n, size_t i)
{
	for (i++; i < n && text[i] != '"' && text[i] != '\n'; i++)
		if (text[i] == '\\')
			i++;
	return i < n ? i + 1 : n;
}

/* The index after the end of the comment that begins at i; i itself if no comment begins at i. An unclosed comment goes
 * to the end of the text. */
static size_t
comment_end(const char *text, size_t n, size_t i)
{
	bool block = i + 1 < n && text[i] == '/' && text[i + 1] == '*';
	bool line = text[i] == '#' || (i + 1 < n && text[i] == '/' && text[i + 1] == '/');

	if (!block && !line)
		return i;
	const char *end = block ? memmem(text + i + 2, n - i - 2, "*/", 2)
	                        : memchr(text + i, '\n', n - i);
	return end ? (size_t)(end - text) + (block ? 2 : 0) : n;
}

char *
deepspeed_without_comments(Arena *arena, const char *text, size_t n)
{
	char *out = arena_alloc(arena, n + 1);
	size_t comma =
		/* index of the last comma after a member, if only spaces and comments followed so far; n: no such
		 * comma */
		n;
	char before = 0; /* last character that is not a space */

	memcpy(out, text, n);
	for (size_t i = 0; i < n;) {
		size_t end = comment_end(text, n, i);
		for (; i < end; i++)
			if (text[i] != '\n')
				out[i] = ' ';
		if (i == n || comment_end(text, n, i) != i)
			continue;
		if ((text[i] == '}' || text[i] == ']') && comma < n)
			out[comma] = ' ';
		if (!strchr(" \t\r\n", text[i])) {
			comma = text[i] == ',' && before && !strchr("{[,", before) ? i : n;
			before = text[i];
		}
		i = text[i] == '"' ? string_end(text, n, i) : i + 1;
	}
	return out;
}
