/* Cuts long names to the width of a table's column. */
#include "base/base.h"

/* Points to character n of a UTF-8 text; to the text's end if the text is shorter. */
static const char *
character_at(const char *text, int n)
{
	while (*text && n-- > 0)
		for (text++; (*text & 0xC0) == 0x80; text++)
			;
	return text;
}

static int
count_characters(const char *text)
{
	int n = 0;

	for (; *text; text = character_at(text, 1))
		n++;
	return n;
}

/* Layers of one model have the same beginning and differ behind it, so three quarters of the width are for the end. */
int
text_add_cut(Text *text, const char *s, int width)
{
	int n = count_characters(s), head = (width - 1) / 4;

	if (n <= width) {
		text_add(text, s);
		return n;
	}
	text_add_bytes(text, s, (size_t)(character_at(s, head) - s));
	text_add(text, "…");
	text_add(text, character_at(s, n - (width - head - 1)));
	return width;
}
