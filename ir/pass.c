/* The pass driver: for each pass check, time, run, verify, dump. A failing pass leaves a reproducer. */
#include "ir/ir.h"

#include <stdlib.h>
#include <string.h>

const char *const stage_names[] = {"any",   "import",  "forward",  "train",
                                   "fused", "lowered", "schedule", "memory"};

const char *const pass_when_names[] = {"always", "with a loss", "with an optimizer",
                                       "when asked for"};

PassCall
pass_call(Arena *arena, const PassRow *row)
{
	PassCall call = {row, arena_alloc(arena, row->options_size + 1)};

	if (row->defaults)
		memcpy(call.options, row->defaults, row->options_size);
	return call;
}

/* ---- text: a,b{x=1,y=2} */
static char *
take_word(Arena *arena, const char **at, const char *stops)
{
	size_t n = strcspn(*at, stops);
	char *word = arena_strndup(arena, *at, n);

	*at += n;
	return word;
}

bool
option_set(const PassOption *table, const char *owner, void *options, Arena *arena,
           const OptionText *text, Diag *diag)
{
	for (const PassOption *o = table; o && o->name; o++) {
		char *at = (char *)options + o->offset;
		const char *value = text->value;
		bool ok = true;
		if (strcmp(o->name, text->name) != 0)
			continue;
		if (o->kind == OPTION_STRING)
			*(const char **)at = arena_strdup(arena, value);
		else if (o->kind == OPTION_INT)
			ok = parse_int(value, (int64_t *)at);
		else if (o->kind == OPTION_DOUBLE)
			ok = parse_double(value, (double *)at);
		else
			*(bool *)at = strcmp(value, "false") != 0 && strcmp(value, "off") != 0;
		if (!ok)
			diag_error(diag, EXIT_USAGE, "%s: %s=%s is no number", owner, text->name,
			           value);
		return ok;
	}
	diag_error(diag, EXIT_USAGE, "%s has no option %s", owner, text->name);
	return false;
}

bool
pass_set(PassCall *call, Arena *arena, const OptionText *text, Diag *diag)
{
	return option_set(call->row->options, arena_printf(arena, "pass %s", call->row->name),
	                  call->options, arena, text, diag);
}

static bool
parse_options(PassCall *call, Arena *arena, const char **at, Diag *diag)
{
	if (**at != '{')
		return true;
	(*at)++;
	while (**at && **at != '}') {
		char *name = take_word(arena, at, "=,}");
		char *value = "true";
		if (**at == '=') {
			(*at)++;
			value = take_word(arena, at, ",}");
		}
		if (!pass_set(call, arena, &(OptionText){name, value}, diag))
			return false;
		*at += **at == ',';
	}
	*at += **at == '}';
	return true;
}

bool
pipeline_parse(Pipeline *out, Arena *arena, const char *text, const PassRow *const *rows,
               int n_rows, Diag *diag)
{
	while (*text) {
		char *name = take_word(arena, &text, ",{");
		const PassRow *row = NULL;
		for (int i = 0; i < n_rows; i++)
			if (strcmp(rows[i]->name, name) == 0)
				row = rows[i];
		if (!row) {
			diag_error(diag, EXIT_USAGE, "unknown pass `%s`", name);
			diag_hint(diag, "`gradc passes` lists them");
			return false;
		}
		PassCall call = pass_call(arena, row);
		if (!parse_options(&call, arena, &text, diag))
			return false;
		vec_push(arena, out, call);
		text += *text == ',';
	}
	return true;
}

/* ---- running */
static bool
in_list(const char *const *list, const char *name)
{
	for (; list && *list; list++)
		if (strcmp(*list, name) == 0)
			return true;
	return false;
}

/* NN-pass.gir and its data in the dump folder, or the text on stderr. */
static void
dump(const Module *m, const PassManagerOptions *o, const char *name, int number, Diag *diag)
{
	Text text = {0};
	Arena *arena = arena_new();

	if (!o->dump_dir)
		text_printf(&text, "; after %s\n", name);
	module_print(&text, m, NULL);
	if (!o->dump_dir) {
		fwrite(text.at, 1, text.n, stderr);
	} else {
		char *stem = arena_printf(arena, "%02d-%s", number, name);
		char *path = path_join(arena, o->dump_dir, arena_printf(arena, "%s.gir", stem));
		if (!diag_status(diag, folder_make(o->dump_dir)) &&
		    !diag_status(diag, file_write(path, text.at, (int64_t)text.n)))
			diag_status(diag, module_write_data(
						  m, path_join(arena, o->dump_dir,
			                                       arena_printf(arena, "%s.safetensors",
			                                                    stem))));
	}
	text_free(&text);
	arena_free(arena);
}

static char *
options_text(Arena *arena, const PassCall *call)
{
	Text t = {0};

	for (const PassOption *o = call->row->options; o && o->name; o++) {
		const char *at = (const char *)call->options + o->offset;
		text_add(&t, t.n ? "," : "{");
		text_printf(&t, "%s=", o->name);
		if (o->kind == OPTION_STRING)
			text_add(&t, *(const char *const *)at ? *(const char *const *)at : "");
		else if (o->kind == OPTION_INT)
			text_printf(&t, "%lld", (long long)*(const int64_t *)at);
		else if (o->kind == OPTION_DOUBLE)
			text_add_double(&t, *(const double *)at);
		else
			text_add(&t, *(const bool *)at ? "true" : "false");
	}
	if (t.n)
		text_add(&t, "}");
	char *copy = arena_strdup(arena, t.n ? t.at : "");
	text_free(&t);
	return copy;
}

/* The module before the failing pass, as text, and the command that replays it. */
static void
leave_reproducer(const PassCall *call, const Text *before, const PassManagerOptions *o, Diag *diag)
{
	Arena *arena = arena_new();
	char *path = path_join(arena, o->reproducer_dir ? o->reproducer_dir : ".",
	                       arena_printf(arena, "gradc-%s.gir", call->row->name));
	Status status = file_write(path, before->at, (int64_t)before->n);

	if (!diag_status(diag, status))
		diag_note(diag, "replay with: gradc opt %s --passes='%s%s'", path, call->row->name,
		          options_text(arena, call));
	arena_free(arena);
}

static bool
run_one(const PassCall *call, Module *m, const PassManagerOptions *o, double *seconds,
        bool *changed, Diag *diag)
{
	Pass p = {.row = call->row, .options = call->options, .scratch = arena_new(), .diag = diag};
	Text before = {0};
	bool keep = o->reproducer_dir != NULL || o->verify_each;
	int errors = diag_errors(diag);

	if (keep)
		module_print(&before, m, NULL);
	double start = seconds_now();
	bool ok = call->row->run(&p, m);
	*seconds = seconds_now() - start;
	*changed = p.changed;
	arena_free(p.scratch);
	bool user_fault = !ok;
	if (ok && o->verify_each)
		ok = module_verify(m, diag);
	if (!ok && keep && (!user_fault || diag_errors(diag) == errors))
		leave_reproducer(call, &before, o, diag);
	text_free(&before);
	return ok;
}

static void
report_times(const Pipeline *pipeline, const double *seconds)
{
	double total = 0;

	for (int i = 0; i < pipeline->n; i++)
		total += seconds[i];
	fprintf(stderr, "%-16s %10s %6s\n", "pass", "ms", "%");
	for (int i = 0; i < pipeline->n; i++)
		fprintf(stderr, "%-16s %10.2f %6.1f\n", pipeline->at[i].row->name, 1e3 * seconds[i],
		        total > 0 ? 100 * seconds[i] / total : 0);
	fprintf(stderr, "%-16s %10.2f\n", "all", 1e3 * total);
}

static bool
stage_fits(const PassCall *call, Stage stage, Diag *diag)
{
	Stage takes = call->row->takes;

	/* Up to STAGE_TRAIN a later stage only has more functions: earlier modules fit too. */
	if (takes == STAGE_ANY || takes == stage || (takes <= STAGE_TRAIN && stage < takes))
		return true;
	diag_error(diag, EXIT_USAGE, "pass %s takes a module at stage %s; this one is at %s",
	           call->row->name, stage_names[takes], stage_names[stage]);
	return false;
}

bool
pipeline_run(const Pipeline *pipeline, Module *m, Stage *stage, const PassManagerOptions *o,
             Diag *diag)
{
	double *seconds = calloc((size_t)pipeline->n + 1, sizeof(double));
	bool ok = true;

	for (int i = 0; ok && i < pipeline->n; i++) {
		const PassCall *call = &pipeline->at[i];
		const char *name = call->row->name;
		bool changed = false;
		if (in_list(o->disable, name))
			continue;
		ok = stage_fits(call, *stage, diag) &&
		     run_one(call, m, o, &seconds[i], &changed, diag);
		if (ok && call->row->leaves != STAGE_ANY)
			*stage = call->row->leaves;
		bool wanted = o->dump_after && (strcmp(o->dump_after, "all") == 0 ||
		                                strcmp(o->dump_after, name) == 0);
		if (ok && (wanted || (o->dump_changed && changed)))
			dump(m, o, name, i, diag);
		if (o->stop_after && strcmp(o->stop_after, name) == 0)
			break;
	}
	if (o->time_passes)
		report_times(pipeline, seconds);
	free(seconds);
	return ok;
}
