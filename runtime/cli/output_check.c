/* Collects the files that a training reads and writes, and checks before any of them is opened that no output would overwrite
 * an input or another output. */
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/cli/cli.h"
#include "runtime/model/model.h"

#include <dirent.h>
#include <string.h>
#include <unistd.h>

/* ---- `paths` of options */

/* The files that an export writes: the ONNX file, and its data file in the same folder. If the path is a link, the folder of
 * the link's target. */
void
writes_model(const OptionUse *u, PathUses *uses)
{
	Arena *arena = u->arena;

	option_add_path(u, uses, PATH_OUTPUT, u->value);
	if (!export_is_weights(u->value))
		paths_add(arena, uses, PATH_OUTPUT,
		          arena_printf(arena, "%s's data", option_title(u)),
		          arena_printf(arena, "%s.data", path_target(arena, u->value)));
}

static void
add_adapter_files(const OptionUse *u, PathUses *uses, PathKind kind)
{
	Arena *arena = u->arena;

	paths_add(arena, uses, kind, arena_printf(arena, "%s's settings", option_title(u)),
	          path_join(arena, u->value, PEFT_CONFIG));
	paths_add(arena, uses, kind, arena_printf(arena, "%s's tensors", option_title(u)),
	          path_join(arena, u->value, PEFT_TENSORS));
}

void
reads_adapter(const OptionUse *u, PathUses *uses)
{
	add_adapter_files(u, uses, PATH_INPUT);
}

void
writes_adapter(const OptionUse *u, PathUses *uses)
{
	add_adapter_files(u, uses, PATH_OUTPUT);
	option_add_path(u, uses, PATH_FOLDER, u->value);
}

/* Adds the files of a checkpoint, or of all checkpoints in a folder. Other files in the folder, such as a log, are not
 * added. */
static void
add_checkpoints(const OptionUse *u, PathUses *uses, const char *path, bool inside)
{
	DIR *dir = opendir(path);
	bool is_one = dir && access(path_join(u->arena, path, MANIFEST_FILE), F_OK) == 0;

	for (struct dirent *e; dir && (e = readdir(dir));) {
		const char *file = path_join(u->arena, path, e->d_name);
		if (is_one && *e->d_name != '.')
			option_add_path(u, uses, PATH_INPUT, file);
		else if (!inside && strncmp(e->d_name, "step-", 5) == 0)
			add_checkpoints(u, uses, file, true);
	}
	if (dir)
		closedir(dir);
}

void
reads_checkpoints(const OptionUse *u, PathUses *uses)
{
	add_checkpoints(u, uses, u->value, false);
}

void
writes_checkpoints(const OptionUse *u, PathUses *uses)
{
	option_add_path(u, uses, PATH_FOLDER, u->value);
	add_checkpoints(u, uses, u->value, false);
}

/* ---- files that no option names */

/* The compiled model and its data, which are never overwritten. */
static void
add_model(Arena *arena, PathUses *uses, const GradcModel *model)
{
	Format f;
	Status status = format_read(model->blob, model->bytes, &f);

	for (int i = 0; !status && i < f.n[SECTION_INFO]; i++) {
		const char *key = format_text(&f, f.info[i].key);
		if (strcmp(key, "model") == 0 || strcmp(key, "external") == 0)
			paths_add(arena, uses, PATH_INPUT, "the model that was compiled",
			          arena_strdup(arena, format_text(&f, f.info[i].value)));
	}
	status_free(status); /* opening the model reports the fault */
}

/* No output may have the name of a checkpoint, even of a future one. */
static bool
check_against_saves(const PathUse *use, const char *save, Arena *arena, Diag *diag)
{
	char *path = arena_strdup(arena, path_target(arena, use->path)), *slash;
	int64_t step;
	int digits;

	if (use->kind == PATH_INPUT)
		return true;
	do {
		slash = strrchr(path, '/');
		const char *folder = !slash ? "."
		                     : slash == path
		                             ? "/"
		                             : arena_strndup(arena, path, (size_t)(slash - path));
		if (checkpoint_name_parse(slash ? slash + 1 : path, &step, &digits) &&
		    path_is_same(arena, folder, save)) {
			diag_error(diag, EXIT_USAGE,
			           "%s %s has the name of a checkpoint of --save %s: it would be "
			           "written over",
			           use->option, use->path, save);
			return false;
		}
		if (slash)
			*slash = '\0';
	} while (slash && slash != path);
	return true;
}

/* The ending of an export's path says what is written; a path without an ending gets the model. */
static bool
check_ending(const char *option, const char *path, Diag *diag)
{
	const char *slash = path ? strrchr(path, '/') : NULL, *name = slash ? slash + 1 : path;

	if (!path || !strrchr(name, '.') || text_ends_with(name, ".onnx") ||
	    export_is_weights(name))
		return true;
	diag_error(diag, EXIT_USAGE, "%s=%s: need FILE.onnx or FILE.safetensors", option, path);
	diag_hint(diag, ".onnx is the model, .safetensors its weights by name");
	return false;
}

/* Weights alone would lack the adapters. */
static bool
check_adapters(const char *path, const GradcModel *model, Diag *diag)
{
	Format f;

	if (!path || !export_is_weights(path))
		return true;
	Status status = format_read(model->blob, model->bytes, &f);
	bool adapters = !status && f.n[SECTION_ADAPTERS] > 0;
	status_free(status); /* opening the model reports the fault */
	if (!adapters)
		return true;
	diag_error(diag, EXIT_USAGE, "--export=%s: the weights alone would lack the adapters",
	           path);
	diag_hint(diag, "--export-adapter DIR writes the adapters, --export-merged "
	                "FILE.safetensors the weights with them added");
	return false;
}

bool
outputs_prepare(const CliOptions *o, const GradcModel *model, Arena *arena, PathUses *uses,
                Diag *diag)
{
	const char *save = o->run.save;

	for (int i = 0; i < o->paths.n; i++)
		vec_push(arena, uses, o->paths.at[i]);
	paths_add(arena, uses, PATH_INPUT, "the executable", o->program);
	add_model(arena, uses, model);
	paths_add(arena, uses, PATH_OUTPUT, "GRADC_RENDEZVOUS", comm_rendezvous_file());
	paths_guard(uses);
	bool ok = paths_check(arena, uses, diag);
	for (int i = 0; i < uses->n && save; i++)
		ok &= check_against_saves(&uses->at[i], save, arena, diag);
	return ok && check_ending("--export", o->export, diag) &&
	       check_ending("--export-merged", o->export_merged, diag) &&
	       check_adapters(o->export, model, diag);
}
