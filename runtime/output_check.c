/* What a training reads and writes, before it opens anything. */
#include "runtime/cli.h"
#include "runtime/peft.h"

#include <dirent.h>
#include <glob.h>
#include <string.h>
#include <unistd.h>

/* Data are globs. */
static void
add_glob(Arena *arena, PathUses *uses, const char *option, const char *pattern)
{
	glob_t found = {0};

	paths_add(arena, uses, PATH_INPUT, option, pattern);
	if (pattern && glob(pattern, 0, NULL, &found) == 0)
		for (size_t i = 0; i < found.gl_pathc; i++)
			paths_add(arena, uses, PATH_INPUT, option,
			          arena_strdup(arena, found.gl_pathv[i]));
	globfree(&found);
}

static void
add_pairs(Arena *arena, PathUses *uses, const char *option, const GradcPairs *pairs)
{
	for (int i = 0; i < pairs->n; i++)
		add_glob(arena, uses, option, pairs->at[i].value);
}

/* The files of a checkpoint, or of the checkpoints of a folder, which a run may go on from. What else lies in such a folder,
 * as a log may, is not meant. */
static void
add_checkpoints(Arena *arena, PathUses *uses, const char *option, const char *path, bool inside)
{
	DIR *dir = path ? opendir(path) : NULL;
	bool is_one = dir && access(path_join(arena, path, MANIFEST_FILE), F_OK) == 0;

	for (struct dirent *e; dir && (e = readdir(dir));) {
		const char *file = path_join(arena, path, e->d_name);
		if (is_one && *e->d_name != '.')
			paths_add(arena, uses, PATH_INPUT, option, file);
		else if (!inside && strncmp(e->d_name, "step-", 5) == 0)
			add_checkpoints(arena, uses, option, file, true);
	}
	if (dir)
		closedir(dir);
}

/* The model that was compiled and its data: they are never written over. */
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
	status_free(status); /* whoever opens the model reports it */
}

/* Names of checkpoints are for checkpoints, also those that are still to come. */
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

/* A file of a folder that an option names; NULL: it names none. */
static const char *
in_folder(Arena *arena, const char *folder, const char *name)
{
	return folder ? path_join(arena, folder, name) : NULL;
}

bool
outputs_prepare(const CliOptions *o, const GradcModel *model, Arena *arena, PathUses *uses,
                Diag *diag)
{
	const GradcOptions *run = &o->run;
	const struct {
		PathKind kind;
		const char *option, *path;
	} files[] = {
		{PATH_INPUT, "the executable", o->program},
		{PATH_INPUT, "--tokens", run->tokens},
		{PATH_INPUT, "--text", run->text},
		{PATH_INPUT, "--eval-tokens", run->eval_tokens},
		{PATH_INPUT, "--eval-text", run->eval_text},
		{PATH_INPUT, "--load", run->load},
		{PATH_INPUT, "--weights", run->weights},
		{PATH_OUTPUT, "--export", o->export},
		{PATH_OUTPUT, "--export-merged", o->export_merged},
		{PATH_STREAM, "--log", o->log},
		{PATH_OUTPUT, "--report", o->report},
		{PATH_OUTPUT, "--trace", run->trace},
		{PATH_OUTPUT, "--export's data",
	         o->export ? arena_printf(arena, "%s.data", path_target(arena, o->export)) : NULL},
		{PATH_OUTPUT, "--export-merged's data",
	         o->export_merged
	                 ? arena_printf(arena, "%s.data", path_target(arena, o->export_merged))
	                 : NULL},
		{PATH_INPUT, "--load-adapter's settings",
	         in_folder(arena, run->load_adapter, PEFT_CONFIG)},
		{PATH_INPUT, "--load-adapter's tensors",
	         in_folder(arena, run->load_adapter, PEFT_TENSORS)},
		{PATH_OUTPUT, "--export-adapter's settings",
	         in_folder(arena, o->export_adapter, PEFT_CONFIG)},
		{PATH_OUTPUT, "--export-adapter's tensors",
	         in_folder(arena, o->export_adapter, PEFT_TENSORS)},
		{PATH_FOLDER, "--export-adapter", o->export_adapter},
		{PATH_FOLDER, "--save", run->save},
		{PATH_FOLDER, "--tensorboard", o->tensorboard},
		{PATH_FOLDER, "--dump-gradients", o->dump_gradients},
		{PATH_FOLDER, "--output-dir", o->output_dir},
	};

	for (int i = 0; i < COUNT(files); i++)
		paths_add(arena, uses, files[i].kind, files[i].option, files[i].path);
	add_pairs(arena, uses, "--data", &run->data);
	add_pairs(arena, uses, "--eval-data", &run->eval_data);
	add_pairs(arena, uses, "--mean-std", &run->mean_std);
	add_pairs(arena, uses, "--input", &o->inputs);
	for (int i = 0; i < o->configs.n; i++)
		paths_add(arena, uses, PATH_INPUT, "--config", o->configs.at[i]);
	add_model(arena, uses, model);
	add_checkpoints(arena, uses, "--resume", run->resume, false);
	add_checkpoints(arena, uses, "--save", run->save, false);
	paths_protect(uses);
	bool ok = paths_check(arena, uses, diag);
	for (int i = 0; i < uses->n && run->save; i++)
		ok &= check_against_saves(&uses->at[i], run->save, arena, diag);
	return ok;
}
