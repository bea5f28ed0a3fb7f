/* What a training reads and writes, before it opens anything. */
#include "runtime/cli.h"

#include <glob.h>

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

bool
outputs_check(const CliOptions *o, Arena *arena, PathUses *uses, Diag *diag)
{
	const GradcOptions *run = &o->run;
	const struct {
		PathKind kind;
		const char *option, *path;
	} files[] = {
		{PATH_INPUT, "the executable", "/proc/self/exe"},
		{PATH_INPUT, "--tokens", run->tokens},
		{PATH_INPUT, "--text", run->text},
		{PATH_INPUT, "--eval-tokens", run->eval_tokens},
		{PATH_INPUT, "--eval-text", run->eval_text},
		{PATH_INPUT, "--load", run->load},
		{PATH_INPUT, "--weights", run->weights},
		{PATH_OUTPUT, "--export", o->export},
		{PATH_STREAM, "--log", o->log},
		{PATH_OUTPUT, "--report", o->report},
		{PATH_OUTPUT, "--trace", run->trace},
		{PATH_OUTPUT, "--export's data",
	         o->export ? arena_printf(arena, "%s.data", o->export) : NULL},
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
	paths_protect(uses);
	return paths_check(arena, uses, diag);
}
