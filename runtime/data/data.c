/* All inputs of a program, bound to files. A binding is a compiled choice of the model's free dimensions, such as batch=32.
 * Picks the binding that fits the files' shapes, checks that all files have the same number of rows, and copies the rows of a
 * micro-batch to their places in the io region (the memory of inputs and outputs). */
#include "runtime/data/sources.h"

#include <stdlib.h>
#include <string.h>

enum { CHUNK_BYTES = 1 << 20 }; /* a chunk: bytes of a file that are read and decoded together */
/* largest micro-batch, in bytes, that is read without the prefetch thread: reading it takes no longer than waking the thread */
enum { AT_HAND = 1 << 17 };
/* smallest input of a micro-batch, in bytes on the device, that the device converts: launching the look-up takes about as long
 * as copying so many bytes */
enum { LEAST_RAW = 1 << 18 };

/* any: an input of any program counts. */
static bool
is_input(const Format *f, Role role, const char *name, bool any)
{
	for (int i = 0; i < f->n[SECTION_PROGRAMS]; i++) {
		const ProgramRecord *p = &f->programs[i];

		for (uint32_t k = 0; k < p->n_inputs && (any || p->role == role); k++) {
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
			if (!is_input(&run->format, role, name, o->spare))
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
check_fills(Gradc *run, const DataOptions *o)
{
	Status fault = NULL;

	for (int i = 0; i < o->data->n; i++) {
		const char *name = o->data->at[i].name, *fill = pairs_get(o->fill, name);
		if (fill)
			fault = fault_join(
				run->diag, fault,
				status_error(EXIT_USAGE, "%s %s=%s and --fill %s=%s: one of them",
			                     o->option, name, o->data->at[i].value, name, fill));
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

static Status
count_rows(Dataset *d, bool whole)
{
	const Source *first = NULL;

	for (int i = 0; i < d->n_sources; i++) {
		const Source *s = &d->sources[i];

		if (s->rows < 0)
			continue;
		if (first && first->rows != s->rows)
			return status_error(EXIT_DATA, "%s has %lld samples, but %s has %lld",
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

static int64_t
outer_elements(const Source *s)
{
	int64_t outer = 1;

	for (int32_t i = 0; i < s->port->sample_axis; i++)
		outer *= s->format->dims[s->port->first_dim + (uint32_t)i];
	return outer;
}

static bool
reads_rows(const Source *s)
{
	return source_is_sampled(s) && s->port->kind != PORT_WEIGHT;
}

static Status
keep_data(Gradc *run, Dataset *d)
{
	int64_t left = run->options.keep_data, bytes = 0;

	d->at_hand = true;
	for (int i = 0; i < d->n_sources; i++) {
		Source *s = &d->sources[i];

		if (!reads_rows(s))
			continue;
		RETURN_IF_ERROR(source_keep(run->arena, s, &left));
		bytes += d->micro_rows * dtype_bytes(s->set.files[0].info.dtype, s->elements);
		d->at_hand = d->at_hand && s->set.files[0].kept && bytes <= AT_HAND;
	}
	return NULL;
}

static void
allocate(Gradc *run, Dataset *d)
{
	int64_t most = 1, raw_bytes = 1;
	int readers = readers_wanted(&run->executor);

	d->micro_rows = run->format.bindings[d->binding].rows;
	d->picked = NEW_ARRAY(run->arena, int64_t, d->micro_rows);
	for (int i = 0; i < d->n_sources; i++) {
		Source *s = &d->sources[i];

		if (!reads_rows(s))
			continue;
		int64_t raw = dtype_bytes(s->set.files[0].info.dtype, s->elements);
		int64_t bytes = dtype_bytes((DType)s->port->dtype, s->elements);

		s->chunk = raw > 0 && raw < CHUNK_BYTES ? CHUNK_BYTES / raw : 1;
		s->chunk = s->chunk < d->micro_rows ? s->chunk : d->micro_rows;
		raw_bytes = s->chunk * raw > raw_bytes ? s->chunk * raw : raw_bytes;
		most = outer_elements(s) > 1 && s->chunk * bytes > most ? s->chunk * bytes : most;
	}
	for (int i = 0; i < readers; i++) {
		d->buffers[i].raw = arena_alloc(run->arena, (size_t)raw_bytes);
		d->buffers[i].sample = arena_alloc(run->arena, (size_t)most);
	}
}

static int64_t
port_bytes(const Source *s)
{
	const PortRecord *p = s->port;

	return dtype_bytes((DType)p->dtype, format_elements(s->format, p->first_dim, p->rank));
}

/* Can the device look the input's bytes up, and does that pay? A sample's elements must lie side by side, because an
 * element's channel follows from its place. Tables must be finite, so that --find-nan need not look at the bytes. */
static bool
is_raw(const Executor *x, const Source *s, const RawInput *raw)
{
	return reads_rows(s) && s->bytes && outer_elements(s) == 1 && raw->bytes >= LEAST_RAW &&
	       raw->look_up.n * raw->look_up.bytes == raw->bytes && decode_is_finite(s) &&
	       raw_input_fits(x, raw->offset, &raw->look_up);
}

/* Leaves the inputs for which this pays to the device. */
static Status
choose_raw(Gradc *run, Dataset *d)
{
	for (int i = 0; i < d->n_sources; i++) {
		Source *s = &d->sources[i];
		RawInput raw = {.offset = run->format.slots[s->port->slot].offset,
		                .bytes = port_bytes(s)};

		if (s->bytes)
			raw.look_up = decode_look_up(s, d->micro_rows * s->elements);
		if (!is_raw(&run->executor, s, &raw))
			continue;
		RETURN_IF_ERROR(raw_input_place_tables(&run->executor, &raw.look_up));
		s->raw = true;
		vec_push(run->arena, &d->raw, raw);
	}
	return NULL;
}

/* The thread that reads ahead must not write to a region that grows. Rows that were read ahead are read again. */
static Status
make_room(Gradc *run, const ProgramRecord *p)
{
	bool reads_ahead = run->prefetch != NULL;

	if (executor_has_room(&run->executor, p))
		return NULL;
	prefetch_close(run->prefetch);
	run->prefetch = NULL;
	Status status = executor_make_room(&run->executor, p);
	Status again = reads_ahead ? prefetch_open(run->arena, &run->executor, run->observer.trace,
	                                           &run->orphans, &run->prefetch)
	                           : NULL;
	return fault_join(run->diag, status, again);
}

Status
dataset_open(Gradc *run, Role role, const DataOptions *options, Dataset **out)
{
	Dataset *d = *out = NEW(run->arena, Dataset);
	Files files = {.run = run, .options = options};

	if (options->tokens && options->text)
		return status_error(EXIT_USAGE, "tokens and text together: one stream only");
	Status fault = fault_join(run->diag, check_names(run, role, options),
	                          check_fills(run, options));
	fault = fault_join(run->diag, fault, open_files(run, d, &files));
	RETURN_IF_ERROR(fault);
	RETURN_IF_ERROR(binding_pick(run, role, &files, d));
	RETURN_IF_ERROR(make_room(run, d->program));
	if (files.tokens.n_files && !bind_token_port(&files, d->program))
		return status_error(EXIT_USAGE,
		                    "a token stream feeds the one integer input that nothing else "
		                    "fills, but there is none or more than one");
	RETURN_IF_ERROR(bind_sources(&files, d));
	RETURN_IF_ERROR(count_rows(d, options->whole));
	allocate(run, d);
	if (options->whole)
		return NULL;
	RETURN_IF_ERROR(choose_raw(run, d));
	return keep_data(run, d);
}

void
dataset_close(Dataset *d)
{
	for (int i = 0; d && i < d->n_sets; i++)
		files_close(&d->sets[i]);
}

/* Layout of an input whose rows lie along axis sample_axis. A row consists of `outer` blocks; this says where block `o` of row
 * i begins. */
typedef struct {
	int64_t outer, inner; /* blocks per sample; bytes per block */
	int64_t rows;
	char *at;
} Layout;

static char *
block(const Layout *l, int64_t o, int64_t row)
{
	return l->at + (o * l->rows + row) * l->inner;
}

static void
spread(const Layout *l, int64_t first, int64_t n, const char *samples)
{
	for (int64_t r = 0; r < n; r++)
		for (int64_t o = 0; o < l->outer; o++)
			memcpy(block(l, o, first + r), samples + (r * l->outer + o) * l->inner,
			       (size_t)l->inner);
}

/* Copies rows [row, row+n) of the files to rows [first, first+n) of the input; at most a chunk. */
static Status
read_run(const Dataset *d, int reader, const Source *s, const Layout *l, int64_t first, int64_t row,
         int64_t n)
{
	char *to = l->outer == 1 ? block(l, 0, first) : d->buffers[reader].sample;

	RETURN_IF_ERROR(source_read(s, row, n, to, d->buffers[reader].raw));
	if (l->outer > 1)
		spread(l, first, n, to);
	return NULL;
}

/* What the tasks of a micro-batch share. */
typedef struct {
	const Dataset *d;
	char *image;
	int64_t n; /* rows that are no padding */
} Reading;

static Layout
layout_of(const Reading *r, const Source *s)
{
	int64_t bytes = source_sample_bytes(s), outer = outer_elements(s);

	return (Layout){outer, bytes / outer, r->d->micro_rows,
	                r->image + s->format->slots[s->port->slot].offset};
}

/* A task reads a chunk of rows of one input: row 0 of the files, where all rows are padding. */
static int
tasks_of(const Reading *r, const Source *s)
{
	return reads_rows(s) ? (int)((r->n + s->chunk - 1) / s->chunk + (r->n == 0)) : 0;
}

/* Reads rows [from, end) of a micro-batch, consecutive rows of the files together. */
static Status
read_chunk(const Reading *r, int reader, const Source *s, int64_t from, int64_t end)
{
	const Layout l = layout_of(r, s);
	const int64_t *rows = r->d->picked;

	for (int64_t i = from, run; i < end; i += run) {
		for (run = 1; i + run < end && rows[i + run] == rows[i] + run;)
			run++;
		RETURN_IF_ERROR(read_run(r->d, reader, s, &l, i, rows[i], run));
	}
	return NULL;
}

static Status
read_task(void *reading, int reader, int number)
{
	const Reading *r = reading;
	const Source *s = r->d->sources;

	for (int tasks; number >= (tasks = tasks_of(r, s)); s++)
		number -= tasks;
	if (r->n == 0) {
		const Layout l = layout_of(r, s);
		return read_run(r->d, reader, s, &l, 0, 0, 1);
	}
	int64_t from = number * s->chunk, end = from + s->chunk;
	return read_chunk(r, reader, s, from, end < r->n ? end : r->n);
}

/* Padding repeats the last row. */
static void
pad(const Reading *r, const Source *s)
{
	const Layout l = layout_of(r, s);

	for (int64_t i = r->n > 0 ? r->n : 1; i < l.rows; i++)
		for (int64_t o = 0; o < l.outer; o++)
			memcpy(block(&l, o, i), block(&l, o, i - 1), (size_t)l.inner);
}

/* What needs no file: constants, weights of rows, padding. */
static void
fill_source(const Reading *r, const Source *s)
{
	char *to = r->image + s->format->slots[s->port->slot].offset;

	if (s->constant)
		memcpy(to, s->constant, (size_t)port_bytes(s));
	else if (s->port->kind == PORT_WEIGHT)
		for (int64_t i = 0; i < r->d->micro_rows; i++)
			dtype_store_float((DType)s->port->dtype, to, i, i < r->n ? 1 : 0);
	else
		pad(r, s);
}

/* The number in the files of the row at this position of the epoch. */
static int64_t
row_at(const Dataset *d, const Order *order, int64_t position)
{
	int64_t index = order_at(order, position);

	return d->split ? split_row(d->split, d->held_out, index) : index;
}

Status
dataset_read(const MicroRows *rows, char *image, Readers *readers)
{
	Dataset *d = rows->dataset;
	Order order = order_new(d->rows, d->shuffle, d->seed, rows->epoch);
	Reading reading = {d, image, rows->end > rows->first ? rows->end - rows->first : 0};
	int tasks = 0;

	for (int64_t i = 0; i < reading.n; i++)
		d->picked[i] = row_at(d, &order, rows->first + i);
	for (int i = 0; i < d->n_sources; i++) {
		RETURN_IF_ERROR(source_check_kept(&d->sources[i]));
		tasks += tasks_of(&reading, &d->sources[i]);
	}
	RETURN_IF_ERROR(readers_run(readers, tasks, read_task, &reading));
	for (int i = 0; i < d->n_sources; i++)
		fill_source(&reading, &d->sources[i]);
	return NULL;
}

void
dataset_write(const Dataset *d, Executor *x, const char *image)
{
	executor_take_image(x, x->turns[TURN_MICRO], NULL);
	for (int i = 0; i < d->n_sources; i++) {
		const Source *s = &d->sources[i];

		memcpy(executor_host(x, s->port->slot),
		       image + s->format->slots[s->port->slot].offset, (size_t)port_bytes(s));
	}
}
