/* Checks all files that a command will read and write, before it writes any: no output may
 * overwrite an input. The files are those that options name, and files that belong to these, such
 * as a model's external data. */
#include "driver/session.h"

#include <string.h>

const char *
text_data_path(Arena *arena, const char *path)
{
	const char *slash = strrchr(path, '/'), *dot = strrchr(slash ? slash : path, '.');

	return arena_printf(arena, "%.*s.safetensors", dot ? (int)(dot - path) : (int)strlen(path),
	                    path);
}

/* ---- functions `paths` of rows in options.c */

/* onnx:FILE[,count=NAME]. The external data of FILE are known only after FILE was read. */
void
reads_loss(const OptionUse *u, PathUses *uses)
{
	const char *file = u->value + 5;

	if (strncmp(u->value, "onnx:", 5) == 0)
		option_add_path(u, uses, PATH_INPUT,
		                arena_strndup(u->arena, file, strcspn(file, ",")));
}

/* w8a8, or a file of settings. */
void
reads_settings(const OptionUse *u, PathUses *uses)
{
	if (strchr(u->value, '.'))
		option_add_path(u, uses, PATH_INPUT, u->value);
}

/* NAME=DIR */
void
reads_named_adapter(const OptionUse *u, PathUses *uses)
{
	const char *equal = strrchr(u->value, '=');

	for (int i = 0; equal && i < COUNT(adapter_files); i++)
		option_add_path(u, uses, PATH_INPUT,
		                path_join(u->arena, equal + 1, adapter_files[i]));
}

/* embed, or FILE */
void
writes_weights(const OptionUse *u, PathUses *uses)
{
	if (strcmp(u->value, "embed") != 0)
		option_add_path(u, uses, PATH_OUTPUT, u->value);
}

/* ---- all files of the command */
typedef struct {
	Arena *arena;
	PathUses *uses;
	const char *of;
} Visit;

static void
add_external(void *ctx, const char *path)
{
	Visit *v = ctx;

	paths_add(v->arena, v->uses, PATH_INPUT, v->of, arena_strdup(v->arena, path));
}

static void
add_data(Arena *arena, PathUses *uses, const Model *model, const char *of)
{
	Visit v = {arena, uses, of};

	if (model)
		model_external_files(model, add_external, &v);
}

/* Is every output free, that is, not being written by a running training? */
static bool
are_free(const PathUses *uses, Arena *arena, Diag *diag)
{
	PathLocks locks = {0};
	Status status = paths_lock(arena, uses, &locks, diag);

	paths_unlock(&locks);
	return !diag_status(diag, status);
}

bool
outputs_prepare(const Options *o, const Model *model, const Model *loss, Arena *arena, Diag *diag)
{
	PathUses uses = {0};

	for (int i = 0; i < o->paths.n; i++)
		vec_push(arena, &uses, o->paths.at[i]);
	paths_add(arena, &uses, PATH_INPUT, model ? "the model" : "the input", o->input);
	add_data(arena, &uses, model, "the model's data");
	add_data(arena, &uses, loss, "the loss's data");
	if (!model && o->input)
		paths_add(arena, &uses, PATH_INPUT, "the input's data",
		          text_data_path(arena, o->input));
	paths_add(arena, &uses, PATH_INPUT, "gradc", "/proc/self/exe");
	if (o->writes_text && o->output)
		paths_add(arena, &uses, PATH_OUTPUT, "-o's data", text_data_path(arena, o->output));
	paths_guard(&uses);
	return paths_check(arena, &uses, diag) && !diag_status(diag, paths_try(arena, &uses)) &&
	       are_free(&uses, arena, diag);
}
