/* All inputs of a program, bound to files: picks the binding whose shapes the files have, checks
 * that they agree on the number of rows, and moves the rows of a micro-batch into the io region. */
#include "runtime/runtime_impl.h"

#include <stdlib.h>
#include <string.h>

static bool
is_input(const Format *f, Role role, const char *name)
{
	for (int i = 0; i < f->n[SECTION_PROGRAMS]; i++) {
		const ProgramRecord *p = &f->programs[i];

		for (uint32_t k = 0; k < p->n_inputs && p->role == role; k++) {
			const PortRecord *port = &f->ports[p->first_input + k];
			if (port->kind != PORT_WEIGHT &&
			    strcmp(format_text(f, port->name), name) == 0)
				return true;
		}
	}
	return false;
}

static Status
check_names(Gradc *run, Role role, const DataOptions *o)
{
	const struct {
		const GradcPairs *pairs;
		const char *option;
	} lists[] = {{o->data, o->option},
	             {o->fill, "--fill"},
	             {o->scale, "--scale"},
	             {o->mean_std, "--mean-std"}};
	Status fault = NULL;

	for (int l = 0; l < COUNT(lists); l++)
		for (int i = 0; i < lists[l].pairs->n; i++) {
			const char *name = lists[l].pairs->at[i].name;
			if (!is_input(&run->format, role, name))
				fault = fault_join(
					run->diag, fault,
					status_error(EXIT_USAGE,
				                     "%s %s: the model has no input of this "
				                     "name; --info lists them",
				                     lists[l].option, name));
		}
	return fault;
}

static Status
open_files(Gradc *run, Dataset *d, Files *files)
{
	const DataOptions *o = files->options;
	Status fault = NULL;

	d->n_sets = o->data->n + 1;
	d->sets = files->data = NEW_ARRAY(run->arena, FileSet, d->n_sets);
	for (int i = 0; i < o->data->n; i++) {
		const char *name = o->data->at[i].name;
		bool again = false;

		for (int k = 0; k < i; k++)
			again = again || strcmp(o->data->at[k].name, name) == 0;
		if (!again)
			fault = fault_join(run->diag, fault,
			                   files_open(run->arena, o->data, name, &d->sets[i]));
	}
	const char *stream = o->tokens ? o->tokens : o->text;
	if (stream)
		fault = fault_join(
			run->diag, fault,
			tokens_open(run->arena, stream, !o->tokens, &d->sets[o->data->n]));
	files->tokens = d->sets[o->data->n];
	return fault;
}

/* The matching binding with the longest token rows, then the most rows. */
static Status
pick_binding(Gradc *run, Role role, Files *files, Dataset *d)
{
	const Format *f = &run->format;
	int64_t best = -1;
	const char *all = "";
	int n = 0;

	for (int b = 0; b < f->n[SECTION_BINDINGS]; b++) {
		const ProgramRecord *p = format_program(f, role, b);
		if (!p)
			continue;
		n++;
		all = arena_printf(run->arena, "%s%s\"%s\"", all, *all ? ", " : "",
		                   format_text(f, f->bindings[b].text));
		const PortRecord *tokens = bind_token_port(files, p);
		int64_t score = tokens ? format_elements(f, tokens->first_dim, tokens->rank)
		                       : f->bindings[b].rows;
		if (!d->program || (bind_matches(files, p) && score > best)) {
			d->program = p;
			d->binding = b;
			best = bind_matches(files, p) ? score : -1;
		}
	}
	if (n == 0)
		return status_error(EXIT_UNSUPPORTED,
		                    "this executable has no %s program: it was compiled "
		                    "without a loss",
		                    role_names[role]);
	if (n > 1 && best < 0)
		return status_error(EXIT_DATA,
		                    "the files have the shapes of none of the bindings %s", all);
	return NULL;
}

static Status
count_rows(Dataset *d, bool whole)
{
	const Source *first = NULL;

	for (int i = 0; i < d->n_sources; i++) {
		const Source *s = &d->sources[i];

		if (s->rows < 0)
			continue;
		if (first && first->rows != s->rows)
			return status_error(EXIT_DATA, "%s has %lld samples, %s has %lld",
			                    first->set.files[0].path, (long long)first->rows,
			                    s->set.files[0].path, (long long)s->rows);
		first = first ? first : s;
	}
	if (!first && whole)
		return NULL;
	if (!first)
		return status_error(EXIT_USAGE,
		                    "no input has samples: nothing says how long an epoch is");
	d->rows = first->rows;
	if (d->rows == 0)
		return status_error(EXIT_DATA, "%s: no samples", first->set.files[0].path);
	return NULL;
}

static void
allocate(Gradc *run, Dataset *d)
{
	int64_t sample = 1, whole = 1;

	d->micro_rows = run->format.bindings[d->binding].rows;
	for (int i = 0; i < d->n_sources; i++) {
		Source *s = &d->sources[i];
		int64_t bytes = run->format.slots[s->port->slot].bytes;

		whole = bytes > whole ? bytes : whole;
		if (!source_is_sampled(s) || s->port->kind == PORT_WEIGHT)
			continue;
		int64_t n = d->micro_rows * s->elements;
		s->raw = arena_alloc(run->arena,
		                     (size_t)dtype_bytes(s->set.files[0].info.dtype, n));
		bytes = dtype_bytes((DType)s->port->dtype, n);
		sample = bytes > sample ? bytes : sample;
	}
	d->sample = arena_alloc(run->arena, (size_t)sample);
	d->staging = arena_alloc(run->arena, (size_t)whole);
}

Status
dataset_open(Gradc *run, Role role, const DataOptions *options, Dataset **out)
{
	Dataset *d = *out = NEW(run->arena, Dataset);
	Files files = {.run = run, .options = options};

	if (options->tokens && options->text)
		return status_error(EXIT_USAGE, "tokens and text together: one stream only");
	Status fault = check_names(run, role, options);
	fault = fault_join(run->diag, fault, open_files(run, d, &files));
	RETURN_IF_ERROR(fault);
	RETURN_IF_ERROR(pick_binding(run, role, &files, d));
	if (files.tokens.n_files && !bind_token_port(&files, d->program))
		return status_error(EXIT_USAGE,
		                    "a token stream feeds the one integer input that nothing else "
		                    "fills, but there is none or more than one");
	RETURN_IF_ERROR(bind_sources(&files, d));
	RETURN_IF_ERROR(count_rows(d, options->whole));
	allocate(run, d);
	return NULL;
}

void
dataset_close(Dataset *d)
{
	for (int i = 0; d && i < d->n_sets; i++)
		files_close(&d->sets[i]);
}

/* Samples one behind the other -> the port's layout, where rows are axis `sample_axis`. */
static const char *
spread(const Dataset *d, const Source *s)
{
	const PortRecord *p = s->port;
	int64_t size = dtype_bytes((DType)p->dtype, 1), outer = 1, rows = d->micro_rows;

	for (int32_t i = 0; i < p->sample_axis; i++)
		outer *= s->format->dims[p->first_dim + (uint32_t)i];
	if (outer == 1)
		return d->sample;
	int64_t inner = s->elements / outer * size;
	for (int64_t r = 0; r < rows; r++)
		for (int64_t o = 0; o < outer; o++)
			memcpy(d->staging + (o * rows + r) * inner,
			       d->sample + (r * outer + o) * inner, (size_t)inner);
	return d->staging;
}

/* Consecutive rows are read at once; padding repeats the last row. */
static Status
read_rows(Dataset *d, Source *s, const int64_t *rows, int64_t n)
{
	int64_t bytes = dtype_bytes((DType)s->port->dtype, s->elements);

	for (int64_t i = 0, run; i < n; i += run) {
		for (run = 1; i + run < n && rows[i + run] == rows[i] + run;)
			run++;
		RETURN_IF_ERROR(s->read(s, rows[i], run, d->sample + i * bytes));
	}
	if (n == 0)
		RETURN_IF_ERROR(s->read(s, 0, 1, d->sample));
	for (int64_t i = n > 0 ? n : 1; i < d->micro_rows; i++)
		memcpy(d->sample + i * bytes, d->sample + (i - 1) * bytes, (size_t)bytes);
	return NULL;
}

static const char *
weight_rows(Dataset *d, const Source *s, int64_t n)
{
	for (int64_t i = 0; i < d->micro_rows; i++)
		dtype_store_float((DType)s->port->dtype, d->staging, i, i < n ? 1 : 0);
	return d->staging;
}

static Status
load_source(Dataset *d, Source *s, const int64_t *rows, int64_t n, const char **out)
{
	if (s->port->kind == PORT_WEIGHT) {
		*out = weight_rows(d, s, n);
		return NULL;
	}
	*out = s->constant;
	if (s->constant)
		return NULL;
	RETURN_IF_ERROR(read_rows(d, s, rows, n));
	*out = spread(d, s);
	return NULL;
}

Status
dataset_load(Dataset *d, Executor *x, const int64_t *rows, int64_t n)
{
	for (int i = 0; i < d->n_sources; i++) {
		Source *s = &d->sources[i];
		const PortRecord *p = s->port;
		Span to = executor_slot(x, p->slot);
		const char *from = NULL;

		RETURN_IF_ERROR(load_source(d, s, rows, n, &from));
		to.bytes = dtype_bytes((DType)p->dtype,
		                       format_elements(s->format, p->first_dim, p->rank));
		RETURN_IF_ERROR(executor_write(x, to, from));
	}
	return NULL;
}
