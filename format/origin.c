/* Finds the ONNX nodes that an instruction computes, from its origin, a text that the compiler wrote. The nodes of
 * fused("/a", grad("/b")) are /a and /b. */
#include "format/format.h"

#include <string.h>

static void
add_once(Arena *arena, StringList *names, const char *name)
{
	for (int i = 0; i < names->n; i++)
		if (strcmp(names->at[i], name) == 0)
			return;
	vec_push(arena, names, name);
}

StringList
origin_names(Arena *arena, const Format *f, const Instruction *n)
{
	const char *origin = format_text(f, n->origin);
	StringList names = {0};

	for (const char *at = strchr(origin, '"'); at && *at; at = strchr(at, '"')) {
		const char *name = text_unquote(arena, &at);

		if (!name)
			break;
		add_once(arena, &names, name);
	}
	if (names.n == 0)
		vec_push(arena, &names,
		         *origin ? arena_strdup(arena, origin) : instruction_names[n->kind]);
	return names;
}

OriginNodes
origin_nodes(Arena *arena, const Format *f, const Instruction *n)
{
	static const char grad[] = "grad(";
	OriginNodes nodes = {0};
	int depth = 0,
	    backward =
		    0; /* depth: open parentheses here; backward: open parentheses inside the outermost grad, 0 outside grad */

	for (const char *at = format_text(f, n->origin); *at;) {
		if (*at == '"') {
			const char *name = text_unquote(arena, &at);
			if (!name)
				break;
			add_once(arena, backward ? &nodes.gradients : &nodes.forward, name);
			continue;
		}
		if (!backward && strncmp(at, grad, strlen(grad)) == 0)
			backward = depth + 1;
		depth += *at == '(';
		if (*at == ')' && depth-- == backward)
			backward = 0;
		at++;
	}
	return nodes;
}

const char *
origin_title(Arena *arena, const Format *f, const Instruction *n)
{
	StringList names = origin_names(arena, f, n);

	return names.n == 1 ? names.at[0]
	                    : arena_printf(arena, "%s + %d", names.at[0], names.n - 1);
}
