/* What gradc's commands read and write, before they write. */
#include "tools/tools.h"

#include <string.h>

typedef struct {
	Arena *arena;
	PathUses *uses;
} Visit;

static void
add_external(void *ctx, const char *path)
{
	Visit *v = ctx;

	paths_add(v->arena, v->uses, PATH_INPUT, "the model's data", arena_strdup(v->arena, path));
}

/* NAME=FILE; names may hold an `=`: every ending that is a file counts. */
static void
add_pairs(Arena *arena, PathUses *uses, const char *option, const StringList *pairs)
{
	for (int i = 0; i < pairs->n; i++)
		for (const char *at = strchr(pairs->at[i], '='); at; at = strchr(at + 1, '='))
			paths_add(arena, uses, PATH_INPUT, option, at + 1);
}

bool
session_check_outputs(const Session *s)
{
	const Options *o = s->o;
	PathUses uses = {0};
	Visit v = {s->arena, &uses};

	paths_add(s->arena, &uses, PATH_INPUT, "the model", o->input);
	if (s->model)
		model_external_files(s->model, add_external, &v);
	paths_add(s->arena, &uses, PATH_INPUT, "--class-weight", o->class_weight);
	if (o->loss && strncmp(o->loss, "onnx:", 5) == 0)
		paths_add(s->arena, &uses, PATH_INPUT, "--loss",
		          arena_strndup(s->arena, o->loss + 5, strcspn(o->loss + 5, ",")));
	add_pairs(s->arena, &uses, "--input", &o->inputs);
	paths_add(s->arena, &uses, PATH_INPUT, "gradc", "/proc/self/exe");
	paths_add(s->arena, &uses, PATH_OUTPUT, "-o", o->output);
	if (o->weights && strcmp(o->weights, "embed") != 0)
		paths_add(s->arena, &uses, PATH_OUTPUT, "--weights", o->weights);
	return paths_check(s->arena, &uses, s->diag);
}
