/* The operator schemas of the ONNX package, as a sorted table. */
#include "frontend/file/reading.h"

#include <stdio.h>
#include <string.h>

static const SchemaRow rows[] = {
#define SCHEMA(name, since, min_in, max_in, min_out, max_out, required, attributes) \
	{name, since, min_in, max_in, min_out, max_out, required, attributes},
#include "frontend/file/schema_list.def"
#undef SCHEMA
};

const SchemaRow *
schema_find(const char *name, int opset)
{
	int lo = 0, hi = COUNT(rows);

	while (lo < hi) { /* finds the name's first row */
		int mid = (lo + hi) / 2;
		if (strcmp(rows[mid].name, name) < 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	for (; lo < COUNT(rows) && !strcmp(rows[lo].name, name); lo++)
		if (rows[lo].since <= opset)
			return &rows[lo];
	return NULL;
}

const SchemaRow *
schema_of(const char *domain, const char *name, int opset)
{
	char key[128];

	if (!*domain_of(domain))
		return schema_find(name, opset);
	if (snprintf(key, sizeof(key), "%s.%s", domain, name) >= (int)sizeof(key))
		return NULL;
	return schema_find(key, opset);
}

char
schema_attribute(const SchemaRow *row, const char *name)
{
	size_t n = strlen(name);

	for (const char *p = row->attributes; *p; p += strcspn(p, " "), p += *p == ' ')
		if (!strncmp(p, name, n) && p[n] == ':')
			return p[n + 1];
	return 0;
}
