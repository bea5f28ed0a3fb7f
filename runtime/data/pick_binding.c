/* Picks the binding for the data. A binding is a compiled choice of the model's free dimensions, such as batch=32. The samples
 * of the binding must have the files' shapes. If several bindings fit, as with --dim batch=2,3,5, each rule below removes
 * bindings, unless it would remove all of them. Of the remaining bindings the one with the longest token rows wins, then the
 * one with the most rows. */
#include "runtime/data/sources.h"

typedef struct {
	const Files *files;
	const ProgramRecord *program;
	int64_t rows; /* rows of a micro-batch */
} Candidate;

/* Number of samples that the data have with this binding; -1 if no file decides it. */
static int64_t
samples_of(const Candidate *c)
{
	const Format *f = &c->files->run->format;
	const PortRecord *tokens = bind_token_port(c->files, c->program);

	for (uint32_t i = 0; i < c->program->n_inputs; i++) {
		const PortRecord *port = &f->ports[c->program->first_input + i];
		const FileSet *set = bind_set(c->files, format_text(f, port->name));
		if (set && port->sample_axis >= 0)
			return set->files[set->n_files - 1].first_row +
			       set->files[set->n_files - 1].rows;
	}
	if (!tokens || !c->files->tokens.n_files)
		return -1;
	int64_t each = format_elements(f, tokens->first_dim, tokens->rank) / c->rows;
	return each > 0 ? (c->files->tokens.files[0].info.n_elements - 1) / each : -1;
}

static bool
has_rows_asked_for(const Candidate *c)
{
	int64_t asked = c->files->run->options.micro_batch;

	return c->files->options->whole || asked == 0 || asked == c->rows;
}

/* Rule for a run on whole inputs (--once): the binding has exactly as many rows as the inputs. */
static bool
has_rows_of_whole(const Candidate *c)
{
	return !c->files->options->whole || samples_of(c) == c->rows;
}

/* Rule: --global-batch is a multiple of the micro-batch's rows times the number of ranks; with --accumulate, exactly that
 * product times --accumulate. */
static bool
divides_step(const Candidate *c)
{
	const GradcOptions *o = &c->files->run->options;
	int64_t rows = c->rows * gradc_ranks(c->files->run);

	return o->global_batch == 0 || (o->accumulate > 0 ? o->global_batch == rows * o->accumulate
	                                                  : o->global_batch % rows == 0);
}

/* Rule: a step needs at most as many rows as the data have. */
static bool
has_data_for_step(const Candidate *c)
{
	const GradcOptions *o = &c->files->run->options;
	int64_t samples = samples_of(c);
	int64_t parts = c->program->role == ROLE_ACCUMULATE
	                        ? gradc_ranks(c->files->run) *
	                                  (o->accumulate > 0 ? o->accumulate : 1)
	                        : 1;

	return samples < 0 || c->rows * parts <= samples;
}

static bool (*const rules[])(const Candidate *c) = {has_rows_asked_for, has_rows_of_whole,
                                                    divides_step, has_data_for_step};

static int64_t
score(const Candidate *c)
{
	const Format *f = &c->files->run->format;
	const PortRecord *tokens = bind_token_port(c->files, c->program);

	return tokens ? format_elements(f, tokens->first_dim, tokens->rank) : c->rows;
}

static void
keep_fitting(Candidate *all, int *n, bool (*fits)(const Candidate *c))
{
	int left = 0;

	for (int i = 0; i < *n; i++)
		left += fits(&all[i]);
	if (left == 0)
		return;
	left = 0;
	for (int i = 0; i < *n; i++)
		if (fits(&all[i]))
			all[left++] = all[i];
	*n = left;
}

/* Lists the bindings whose sample shapes fit the files. *names: the names of all bindings with a program. */
static int
list_candidates(const Files *files, Role role, Candidate *out, int *n_programs, const char **names)
{
	const Gradc *run = files->run;
	const Format *f = &run->format;
	int n = 0;

	*n_programs = 0;
	*names = "";
	for (int b = 0; b < f->n[SECTION_BINDINGS]; b++) {
		const ProgramRecord *p = program_find(run, role, b);
		if (!p || (files->options->like && files->options->like->binding != b))
			continue;
		*names = arena_printf(run->arena, "%s%s\"%s\"", *names, *n_programs ? ", " : "",
		                      format_text(f, f->bindings[b].text));
		out[n] = (Candidate){files, p, f->bindings[b].rows};
		n += bind_matches(files, p);
		++*n_programs;
	}
	/* the only binding is taken even if it does not fit: binding its inputs gives a better message */
	return n == 0 && *n_programs == 1 ? 1 : n;
}

Status
binding_pick(Gradc *run, Role role, const Files *files, Dataset *d)
{
	Candidate *all = NEW_ARRAY(run->arena, Candidate, run->format.n[SECTION_BINDINGS] + 1);
	const Candidate *best = all;
	const char *names;
	int n_programs, n = list_candidates(files, role, all, &n_programs, &names);

	if (n_programs == 0)
		return status_error(EXIT_UNSUPPORTED,
		                    "this executable has no %s program: it was compiled "
		                    "without a loss",
		                    role_names[role]);
	for (int i = 0; i < COUNT(rules); i++)
		keep_fitting(all, &n, rules[i]);
	if (n == 0 || (n_programs > 1 && !has_rows_of_whole(best)))
		return status_error(EXIT_DATA,
		                    "no binding has the shapes of the files: there are %s", names);
	for (int i = 1; i < n; i++)
		if (score(&all[i]) > score(best))
			best = &all[i];
	d->program = best->program;
	d->binding = (int)best->program->binding;
	return NULL;
}
