/* Writes bytes and counts as people read them: "1.5 KiB", "1.2M". */

#include "base/base.h"

#include <stdio.h>

const char *
bytes_text(char to[32], double bytes)
{
	static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
	int u = 0;

	for (; bytes >= 1024 && u + 1 < COUNT(units); u++)
		bytes /= 1024;
	snprintf(to, 32, u ? "%.1f %s" : "%.0f %s", bytes, units[u]);
	return to;
}

const char *
count_text(char to[32], double n)
{
	static const char *const units[] = {"", "k", "M", "G", "T", "P"};
	int u = 0;

	for (; n >= 10000 && u + 1 < COUNT(units); u++)
		n /= 1000;
	snprintf(to, 32, u ? "%.1f%s" : "%.0f%s", n, units[u]);
	return to;
}
