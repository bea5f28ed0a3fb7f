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

/* No training that runs writes one of them. */
static bool
are_free(const PathUses *uses, Arena *arena, Diag *diag)
{
	PathLocks locks = {0};
	Status status = paths_lock(arena, uses, &locks, diag);

	paths_unlock(&locks);
	return !diag_status(diag, status);
}

bool
outputs_prepare(const Options *o, Model *model, Arena *arena, Diag *diag)
{
	PathUses uses = {0};
	Visit v = {arena, &uses};

	paths_add(arena, &uses, PATH_INPUT, model ? "the model" : "the input", o->input);
	if (model)
		model_external_files(model, add_external, &v);
	else if (o->input)
		paths_add(arena, &uses, PATH_INPUT, "the input's data",
		          text_data_path(arena, o->input));
	paths_add(arena, &uses, PATH_INPUT, "--class-weight", o->class_weight);
	if (o->quantize && strchr(o->quantize, '.'))
		paths_add(arena, &uses, PATH_INPUT, "--quantize", o->quantize);
	for (int i = 0; i < o->configs.n; i++)
		paths_add(arena, &uses, PATH_INPUT, "--config", o->configs.at[i]);
	if (o->loss && strncmp(o->loss, "onnx:", 5) == 0)
		paths_add(arena, &uses, PATH_INPUT, "--loss",
		          arena_strndup(arena, o->loss + 5, strcspn(o->loss + 5, ",")));
	add_pairs(arena, &uses, "--input", &o->inputs);
	add_pairs(arena, &uses, "--data", &o->data);
	paths_add(arena, &uses, PATH_INPUT, "--log", o->log);
	paths_add(arena, &uses, PATH_INPUT, "gradc", "/proc/self/exe");
	paths_add(arena, &uses, PATH_OUTPUT, "-o", o->output);
	paths_add(arena, &uses, PATH_OUTPUT, "--report", o->report);
	if (!model && o->output)
		paths_add(arena, &uses, PATH_OUTPUT, "-o's data", text_data_path(arena, o->output));
	if (o->weights && strcmp(o->weights, "embed") != 0)
		paths_add(arena, &uses, PATH_OUTPUT, "--weights", o->weights);
	paths_add(arena, &uses, PATH_FOLDER, "--output-dir", o->output_dir);
	paths_add(arena, &uses, PATH_FOLDER, "--dump-dir", o->dump_dir);
	paths_add(arena, &uses, PATH_FOLDER, "--keep-sources", o->keep_sources);
	paths_protect(&uses);
	return paths_check(arena, &uses, diag) && !diag_status(diag, paths_try(arena, &uses)) &&
	       are_free(&uses, arena, diag);
}
