/* The ONNX nodes that an instruction computes, out of its location: those of fused("/a", grad("/b")) are /a and /b. */
#include "format/format.h"

#include <string.h>

StringList
origin_names(Arena *arena, const Format *f, const Instruction *n)
{
	const char *origin = format_text(f, n->origin);
	StringList names = {0};

	for (const char *at = strchr(origin, '"'); at && *at; at = strchr(at, '"')) {
		const char *name = text_unquote(arena, &at);
		bool seen = !name;

		if (!name)
			break;
		for (int i = 0; i < names.n; i++)
			seen |= strcmp(names.at[i], name) == 0;
		if (!seen)
			vec_push(arena, &names, name);
	}
	if (names.n == 0)
		vec_push(arena, &names,
		         *origin ? arena_strdup(arena, origin) : instruction_names[n->kind]);
	return names;
}

const char *
origin_title(Arena *arena, const Format *f, const Instruction *n)
{
	StringList names = origin_names(arena, f, n);

	return names.n == 1 ? names.at[0]
	                    : arena_printf(arena, "%s + %d", names.at[0], names.n - 1);
}
