/* Runs a pipeline of passes. For each pass: checks the module's stage, measures time, runs the
 * pass, verifies the module, and dumps it as text. A pass that fails leaves a reproducer: a file
 * that repeats the failure. */
#include "ir/ir.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *const stage_names[] = {"any",   "import",  "forward",  "train",  "rematerialized",
                                   "fused", "lowered", "schedule", "memory", "instructions",
                                   "shard", "sums",    "streams",  "events", NULL};

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

/* ---- text of a pipeline: a,b{x=1,y="with , and }"} */
static char *
take_word(Arena *arena, const char **at, const char *stops)
{
	size_t n = strcspn(*at, stops);
	char *word = arena_strndup(arena, *at, n);

	*at += n;
	return word;
}

static bool
parse_bool(const char *text, bool *out)
{
	*out = strcmp(text, "true") == 0 || strcmp(text, "on") == 0;
	return *out || strcmp(text, "false") == 0 || strcmp(text, "off") == 0;
}

/* Is the number within the option's bounds? NaN is not. */
static bool
is_in_range(const PassOption *o, double x)
{
	return o->high == 0 ||
	       ((o->above ? x > o->low : x >= o->low) && (o->below ? x < o->high : x <= o->high));
}

bool
option_read(const PassOption *o, const char *text, void *at, Arena *arena)
{
	switch (o->kind) {
	case OPTION_STRING: *(const char **)at = arena_strdup(arena, text); return true;
	case OPTION_INT: return parse_int(text, at) && is_in_range(o, (double)*(int64_t *)at);
	case OPTION_BYTES:
		return parse_bytes(text, at) && *(int64_t *)at > 0 &&
		       *(int64_t *)at <= INT64_MAX >> 10;
	case OPTION_DOUBLE: return parse_double(text, at) && is_in_range(o, *(double *)at);
	case OPTION_BOOL: return parse_bool(text, at);
	case OPTION_PARSED: break;
	}
	return false;
}

const char *
option_needs(const PassOption *o, Arena *arena)
{
	if (o->kind == OPTION_BOOL)
		return "true or false";
	if (o->kind == OPTION_BYTES)
		return "a number of bytes, as 32M";
	if (o->high == 0)
		return "a number";
	if (o->above && o->below)
		return arena_printf(arena, "a number between %g and %g", o->low, o->high);
	return arena_printf(arena,
	                    o->above   ? "a number above %g, up to %g"
	                    : o->below ? "a number from %g to below %g"
	                               : "a number from %g to %g",
	                    o->low, o->high);
}

bool
option_set(const PassOption *table, const char *owner, void *options, Arena *arena,
           const OptionText *text, Diag *diag)
{
	for (const PassOption *o = table; o && o->name; o++) {
		if (strcmp(o->name, text->name) != 0)
			continue;
		char *at = (char *)options + o->offset;
		if (o->kind == OPTION_PARSED)
			return o->parser->parse(text->value, at, arena, diag);
		/* The present value may lie outside of the bounds: a default that turns the pass off. Replays give it. */
		double number, present = o->kind == OPTION_DOUBLE ? *(double *)at : 0;
		if (o->kind == OPTION_DOUBLE && parse_double(text->value, &number) &&
		    number == present)
			return true;
		if (option_read(o, text->value, at, arena))
			return true;
		diag_error(diag, EXIT_USAGE, "%s: %s=%s is not %s", owner, text->name, text->value,
		           option_needs(o, arena));
		return false;
	}
	WordGuess guess = guess_open(text->name);
	for (const PassOption *o = table; o && o->name; o++)
		guess_offer(&guess, o->name);
	diag_error(diag, EXIT_USAGE, "%s has no option %s", owner, text->name);
	hint_guess(diag, &guess, "", NULL);
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
	while (**at != '}') {
		char *name = take_word(arena, at, "=,}");
		char *value = "true";
		if (**at == '=') {
			(*at)++;
			value = **at == '"' ? text_unquote(arena, at) : take_word(arena, at, ",}");
		}
		if (!value) {
			diag_error(diag, EXIT_USAGE, "pass %s: %s has a malformed string",
			           call->row->name, name);
			return false;
		}
		if (!pass_set(call, arena, &(OptionText){name, value}, diag))
			return false;
		if (**at != ',' && **at != '}') {
			diag_error(diag, EXIT_USAGE, "pass %s: no `}` after option %s",
			           call->row->name, name);
			return false;
		}
		*at += **at == ',';
	}
	(*at)++;
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
			WordGuess guess = guess_open(name);
			for (int i = 0; i < n_rows; i++)
				guess_offer(&guess, rows[i]->name);
			diag_error(diag, EXIT_USAGE, "unknown pass `%s`", name);
			hint_guess(diag, &guess, "", "`gradc passes` lists them");
			return false;
		}
		PassCall call = pass_call(arena, row);
		if (!parse_options(&call, arena, &text, diag))
			return false;
		vec_push(arena, out, call);
		if (*text && *text != ',') {
			diag_error(diag, EXIT_USAGE, "passes: `%s` where a comma must be", text);
			return false;
		}
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

/* Writes NN-pass.gir and its data into the dump folder, or the text to stderr. */
static bool
dump(const Module *m, const PassManagerOptions *o, const char *name, int number, Diag *diag)
{
	int errors = diag_errors(diag);
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
	return diag_errors(diag) == errors;
}

/* Prints a quoted string that may also stand inside single quotes of a shell. */
static void
add_option_string(Text *t, const char *s)
{
	if (*s && !s[strcspn(s, ",}\"' \t\n\\")]) {
		text_add(t, s);
		return;
	}
	text_add(t, "\"");
	for (; *s; s++) {
		if (*s == '\'' || *s == '"' || *s == '\\' || (unsigned char)*s < ' ')
			text_printf(t, "\\x%02X", (unsigned char)*s);
		else
			text_add_bytes(t, s, 1);
	}
	text_add(t, "\"");
}

const char *
option_text(const PassOption *o, const void *at, Arena *arena)
{
	Text t = {0};

	switch (o->kind) {
	case OPTION_STRING: return *(const char *const *)at;
	case OPTION_PARSED: return o->parser->text(at, arena);
	case OPTION_INT:
	case OPTION_BYTES: text_printf(&t, "%lld", (long long)*(const int64_t *)at); break;
	case OPTION_DOUBLE: text_add_double(&t, *(const double *)at); break;
	case OPTION_BOOL: text_add(&t, *(const bool *)at ? "true" : "false"); break;
	}
	const char *copy = arena_strdup(arena, t.n ? t.at : "");
	text_free(&t);
	return copy;
}

static char *
options_text(Arena *arena, const PassCall *call)
{
	Text t = {0};

	for (const PassOption *o = call->row->options; o && o->name; o++) {
		const char *value = option_text(o, (const char *)call->options + o->offset, arena);
		if (!value)
			continue;
		text_add(&t, t.n ? "," : "{");
		text_printf(&t, "%s=", o->name);
		add_option_string(&t, value);
	}
	if (t.n)
		text_add(&t, "}");
	char *copy = arena_strdup(arena, t.n ? t.at : "");
	text_free(&t);
	return copy;
}

/* ---- reproducers: files with the module before a pass and with its tensors. The first line is
 * the command that replays the pass. The files are written before the pass runs, so that a crash
 * leaves them, and are removed after the pass. */
typedef struct {
	Arena *arena;
	const PassManagerOptions *options;
	char *text, *data; /* files of the running pass; NULL: not written */
	uint64_t tensors;  /* hash of the tensors in `data` */
} Reproducer;

static char *
replay_command(Arena *arena, const char *path, const PassCall *call)
{
	Stage takes = call->row->takes;
	/* the text of a module with programs says its stage */
	const char *stage = takes == STAGE_ANY || takes > STAGE_MEMORY
	                            ? ""
	                            : arena_printf(arena, " --stage=%s", stage_names[takes]);
	Text word = {0};

	text_add_shell_word(&word, path);
	char *command = arena_printf(arena, "gradc opt %s%s --passes='%s%s'", word.at, stage,
	                             call->row->name, options_text(arena, call));
	text_free(&word);
	return command;
}

static uint64_t
tensors_hash(const Module *m)
{
	uint64_t h = 0;

	for (int i = 0; i < m->states.n; i++)
		if (m->states.at[i]->data)
			h = hash_mix(h, m->states.at[i]->data->hash);
	for_each_function(m, f)
		for_each_node(f, n)
			if (n->n_results && value_constant(node_result(n, 0)))
				h = hash_mix(h, value_constant(node_result(n, 0))->hash);
	return h;
}

/* A name FOLDER/gradc-PASS that no file has. If there is such a file already (of another run or
 * of the user), the name gets a number at its end. */
static char *
free_stem(Arena *arena, const char *folder, const char *pass)
{
	char *stem = arena_printf(arena, "%s%sgradc-%s", folder, *folder ? "/" : "", pass), *free;

	for (int i = 0;; i++) {
		free = i ? arena_printf(arena, "%s-%d", stem, i) : stem;
		if (access(arena_printf(arena, "%s.gir", free), F_OK) != 0 &&
		    access(arena_printf(arena, "%s.safetensors", free), F_OK) != 0)
			return free;
	}
}

/* Writes the reproducer's files. If they cannot be written, there is no reproducer, and the pass
 * runs nevertheless. */
static void
write_reproducer(Reproducer *r, const PassCall *call, const Module *m)
{
	const char *folder = r->options->reproducer_dir;
	char *stem = free_stem(r->arena, folder, call->row->name);
	char *old = r->data;
	Text t = {0};

	r->text = arena_printf(r->arena, "%s.gir", stem);
	r->data = arena_printf(r->arena, "%s.safetensors", stem);
	text_printf(&t, "; replay with: %s\n", replay_command(r->arena, r->text, call));
	module_print(&t, m, NULL);
	Status status = folder_make(folder);
	if (!status)
		status = file_write(r->text, t.at, (int64_t)t.n);
	if (status)
		r->text = NULL;
	uint64_t tensors = tensors_hash(m);
	bool moved = old && tensors == r->tensors && rename(old, r->data) == 0;
	if (old && !moved)
		remove(old);
	if (!status && !moved)
		status = module_write_data(m, r->data);
	if (status && !moved)
		r->data = NULL;
	r->tensors = tensors;
	status_free(status);
	text_free(&t);
}

static void
remove_text(Reproducer *r)
{
	if (r->text)
		remove(r->text);
	r->text = NULL;
}

static void
remove_reproducer(Reproducer *r)
{
	remove_text(r);
	if (r->data)
		remove(r->data);
}

/* The text and data of the module before a pass. Kept in memory if there is no folder for
 * reproducers, and written as a reproducer if the pass fails. */
typedef struct {
	Text text;
	ModuleData data;
} Before;

static void
leave_reproducer(const PassCall *call, const Before *before, Diag *diag)
{
	Arena *arena = arena_new();
	char *stem = free_stem(arena, "", call->row->name);
	char *path = arena_printf(arena, "%s.gir", stem);
	char *data = arena_printf(arena, "%s.safetensors", stem);

	if (!diag_status(diag, file_write(path, before->text.at, (int64_t)before->text.n)) &&
	    !diag_status(diag, module_data_write(&before->data, data)))
		diag_note(diag, "replay with: %s", replay_command(arena, path, call));
	arena_free(arena);
}

/* Runs the pass and verifies the module after it. Returns false with errors reported. *bug: the fault is a bug of
 * gradc, not an error of the user. */
static bool
run_and_verify(const PassCall *call, Module *m, Pass *p, const PassManagerOptions *o,
               double *seconds, bool *bug)
{
	const char *name = call->row->name;
	int errors = diag_errors(p->diag);

	if (o->abort_in && strcmp(o->abort_in, name) == 0)
		abort();
	double start = seconds_now();
	bool ok = call->row->run(p, m);
	if (call->row->leaves > STAGE_MEMORY)
		m->stage = call->row->leaves;
	*seconds = seconds_now() - start;
	if (o->fail_in && strcmp(o->fail_in, name) == 0)
		ok = false;
	*bug = ok || diag_errors(p->diag) == errors;
	if (!ok && *bug)
		diag_error(p->diag, EXIT_INVALID, "pass %s failed and did not say why", name);
	return ok && (!o->verify_each || module_verify(m, p->diag));
}

static bool
run_one(const PassCall *call, Module *m, Reproducer *r, double *seconds, bool *changed, Diag *diag)
{
	const PassManagerOptions *o = r->options;
	Pass p = {.row = call->row, .options = call->options, .scratch = arena_new(), .diag = diag};
	Before before = {0};
	bool bug;

	if (o->reproducer_dir) {
		write_reproducer(r, call, m);
	} else if (o->verify_each) {
		module_print(&before.text, m, NULL);
		before.data = module_data(m, r->arena);
	}
	bool ok = run_and_verify(call, m, &p, o, seconds, &bug);
	*changed = p.changed;
	arena_free(p.scratch);
	bool leave = !ok && bug;
	if (leave && r->text)
		diag_note(diag, "replay with: %s", replay_command(r->arena, r->text, call));
	else if (leave && !o->reproducer_dir && o->verify_each)
		leave_reproducer(call, &before, diag);
	if (!leave)
		remove_text(r);
	text_free(&before.text);
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

Stage
module_stage(const Module *m)
{
	if (m->stage)
		return m->stage;
	if (m->kernels.n)
		return m->state_bytes || m->workspace_bytes ? STAGE_MEMORY : STAGE_LOWERED;
	for (int i = 0; i < m->functions.n; i++)
		if (m->functions.at[i]->kind == FUNCTION_FUSED)
			return STAGE_FUSED;
	return STAGE_IMPORT;
}

static bool
stage_fits(const PassCall *call, Stage stage, Diag *diag)
{
	Stage takes = call->row->takes, until = call->row->until;

	if (until != STAGE_ANY && stage > until) {
		diag_error(diag, EXIT_USAGE,
		           "pass %s takes a module up to stage %s; this one is at %s",
		           call->row->name, stage_names[until], stage_names[stage]);
		return false;
	}
	/* Up to STAGE_REMATERIALIZED, a later stage only means more functions and copies. So a
	 * pass that takes such a stage also takes modules of earlier stages. */
	if (takes == STAGE_ANY || takes == stage ||
	    (takes <= STAGE_REMATERIALIZED && stage < takes))
		return true;
	diag_error(diag, EXIT_USAGE, "pass %s takes a module at stage %s; this one is at %s",
	           call->row->name, stage_names[takes], stage_names[stage]);
	return false;
}

bool
pipeline_run(const Pipeline *pipeline, Module *m, Stage *stage, const PassManagerOptions *o,
             Diag *diag)
{
	double *seconds = memory_zeroed((size_t)pipeline->n + 1, sizeof(double));
	Reproducer reproducer = {.arena = arena_new(), .options = o};
	bool ok = true;

	for (int i = 0; ok && i < pipeline->n; i++) {
		const PassCall *call = &pipeline->at[i];
		const char *name = call->row->name;
		bool changed = false;
		if (in_list(o->disable, name))
			continue;
		ok = stage_fits(call, *stage, diag) &&
		     run_one(call, m, &reproducer, &seconds[i], &changed, diag);
		if (ok && call->row->leaves != STAGE_ANY)
			*stage = call->row->leaves;
		bool wanted = o->dump_after && (strcmp(o->dump_after, "all") == 0 ||
		                                strcmp(o->dump_after, name) == 0);
		if (ok && (wanted || (o->dump_changed && changed)))
			ok = dump(m, o, name, i, diag);
		if (o->stop_after && strcmp(o->stop_after, name) == 0)
			break;
	}
	if (!reproducer.text)
		remove_reproducer(&reproducer);
	if (o->time_passes)
		report_times(pipeline, seconds);
	arena_free(reproducer.arena);
	memory_free(seconds);
	return ok;
}
