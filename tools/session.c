/* From a file to a module: import. session_loss.c reads the loss, pipeline.c runs the passes. */
#include "tools/tools.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_FILE_DIMS = 64, MAX_BINDINGS = 64 };

/* ---- option texts */
/* At the last `=`: names may have one, the values here have none. */
static bool
split_pair(Session *s, const char *option, const char *text, const char **name, const char **value)
{
	const char *equal = strrchr(text, '=');

	if (!equal || equal == text) {
		diag_error(s->diag, EXIT_USAGE, "--%s %s: need NAME=VALUE", option, text);
		return false;
	}
	*name = arena_strndup(s->arena, text, (size_t)(equal - text));
	*value = equal + 1;
	return true;
}

/* ---- bindings: every combination of the values of --dim */
typedef struct {
	const char *name;
	VEC(int64_t) values;
} DimValues;
typedef VEC(DimValues) DimTable;

static bool
read_values(Session *s, const char *text, const char *values, DimValues *out)
{
	char *copy = arena_strdup(s->arena, values), *save = NULL;
	int64_t value;

	for (char *word = strtok_r(copy, ",", &save); word; word = strtok_r(NULL, ",", &save)) {
		if (!parse_int(word, &value) || value < 0) {
			diag_error(s->diag, EXIT_USAGE, "--dim %s: need NAME=N or NAME=N,N...",
			           text);
			return false;
		}
		for (int i = 0; i < out->values.n; i++)
			if (out->values.at[i] == value) {
				diag_error(s->diag, EXIT_USAGE, "--dim %s: %lld stands there twice",
				           text, (long long)value);
				return false;
			}
		vec_push(s->arena, &out->values, value);
	}
	if (out->values.n == 0)
		diag_error(s->diag, EXIT_USAGE, "--dim %s: no number", text);
	return out->values.n > 0;
}

static bool
read_dim_table(Session *s, DimTable *table)
{
	const StringList *list = &s->o->dims;
	const char *values;

	for (int i = 0; i < list->n; i++) {
		DimValues row = {0};
		if (!split_pair(s, "dim", list->at[i], &row.name, &values) ||
		    !read_values(s, list->at[i], values, &row))
			return false;
		vec_push(s->arena, table, row);
	}
	return true;
}

/* The last name's value changes fastest. */
static Binding
nth_binding(Session *s, const DimTable *table, int nth)
{
	DimBinding *dims = NEW_ARRAY(s->arena, DimBinding, table->n + MAX_FILE_DIMS);
	Text t = {0};

	for (int i = table->n - 1; i >= 0; i--) {
		const DimValues *row = &table->at[i];
		dims[i] = (DimBinding){row->name, row->values.at[nth % row->values.n]};
		nth /= row->values.n;
	}
	for (int i = 0; i < table->n; i++)
		text_printf(&t, "%s%s=%lld", i ? " " : "", dims[i].name, (long long)dims[i].value);
	if (s->o->batch)
		text_printf(&t, "%sbatch=%lld", t.n ? " " : "", (long long)s->o->batch);
	Binding b = {arena_strdup(s->arena, t.n ? t.at : ""), dims, table->n};
	text_free(&t);
	return b;
}

static bool
read_dims(Session *s, ImportOptions *io)
{
	DimTable table = {0};
	int n = 1;

	if (!read_dim_table(s, &table))
		return false;
	for (int i = 0; i < table.n; i++) {
		n *= table.at[i].values.n;
		if (n > MAX_BINDINGS) {
			diag_error(s->diag, EXIT_USAGE, "--dim: more than %d combinations",
			           MAX_BINDINGS);
			return false;
		}
	}
	Binding *bindings = NEW_ARRAY(s->arena, Binding, n);
	for (int i = 0; i < n; i++)
		bindings[i] = nth_binding(s, &table, i);
	io->bindings = bindings;
	io->n_bindings = n;
	io->batch = s->o->batch;
	return true;
}

static bool
read_fills(Session *s, ImportOptions *io)
{
	const StringList *list = &s->o->fills;
	Fill *fills = NEW_ARRAY(s->arena, Fill, list->n);
	const char *value;

	for (int i = 0; i < list->n; i++) {
		if (!split_pair(s, "fill", list->at[i], &fills[i].name, &value))
			return false;
		if (strcmp(value, "ones") == 0)
			fills[i].kind = FILL_ONES;
		else if (strcmp(value, "zeros") == 0)
			fills[i].kind = FILL_ZEROS;
		else if (strcmp(value, "iota") == 0)
			fills[i].kind = FILL_IOTA;
		else if (parse_double(value, &fills[i].value))
			fills[i].kind = FILL_VALUE;
		else {
			diag_error(s->diag, EXIT_USAGE,
			           "--fill %s: need ones, zeros, iota or a number", list->at[i]);
			return false;
		}
	}
	io->fills = fills;
	io->n_fills = list->n;
	return true;
}

static bool
read_ties(Session *s, ImportOptions *io)
{
	const Options *o = s->o;
	TieOption *ties = NEW_ARRAY(s->arena, TieOption, o->ties.n + o->no_ties.n);
	int n = 0;

	for (int i = 0; i < o->ties.n; i++)
		if (!split_pair(s, "tie", o->ties.at[i], &ties[n].a, &ties[n].b))
			return false;
		else
			n++;
	for (int i = 0; i < o->no_ties.n; i++)
		ties[n++] = (TieOption){.a = o->no_ties.at[i], .untie = true};
	io->ties = ties;
	io->n_ties = n;
	return true;
}

/* ---- dimensions from input files */
typedef struct {
	Session *s;
	ImportOptions *io;
	int n; /* bound from files */
} DimVisit;

/* The shape of an input's file, .npy or .pb; false where it cannot be read, which is reported when its values
 * are wanted. */
static bool
file_shape(Session *s, const char *path, int *rank, int64_t dims[MAX_RANK])
{
	NpyInfo info;
	DType dtype;
	void *data;
	int fd;
	Status status = npy_open(path, &info, &fd);

	if (!status) {
		close(fd);
		*rank = info.rank;
		memcpy(dims, info.dims, sizeof(info.dims));
		return true;
	}
	status_free(status);
	status = tensor_proto_read(s->arena, path, &dtype, rank, dims, &data);
	if (status)
		status_free(status);
	return !status;
}

static void
bind_from_file(void *ctx, const char *input, int axis, const char *name)
{
	DimVisit *v = ctx;
	Binding *binding = (Binding *)v->io->bindings;
	DimBinding *list = (DimBinding *)binding->dims;
	size_t n = strlen(input);
	int64_t dims[MAX_RANK];
	int rank;

	for (int i = 0; i < binding->n_dims; i++)
		if (strcmp(list[i].name, name) == 0)
			return;
	for (int i = 0; i < v->s->o->inputs.n && v->n < MAX_FILE_DIMS; i++) {
		const char *text = v->s->o->inputs.at[i];
		if (strncmp(text, input, n) != 0 || text[n] != '=' ||
		    !file_shape(v->s, text + n + 1, &rank, dims) || axis >= rank)
			continue;
		if (axis == 0 && v->s->o->batch && dims[0] != v->s->o->batch) {
			diag_error(v->s->diag, EXIT_USAGE,
			           "--input %s has %lld rows, and --batch is %lld", text,
			           (long long)dims[0], (long long)v->s->o->batch);
			return;
		}
		list[binding->n_dims++] = (DimBinding){arena_strdup(v->s->arena, name), dims[axis]};
		v->n++;
		if (axis == 0 && !v->io->batch) /* of inputs that have no file */
			v->io->batch = dims[0];
		return;
	}
}

static bool
bind_from_files(Session *s, ImportOptions *io)
{
	if (io->n_bindings > 1) {
		diag_error(s->diag, EXIT_USAGE,
		           "--dim: one value each: there is one set of inputs");
		diag_hint(s->diag, "without --dim the inputs' files bind open dimensions");
		return false;
	}
	model_open_dims(s->model, bind_from_file, &(DimVisit){s, io, 0});
	return diag_errors(s->diag) == 0;
}

static bool
list_has(const StringList *list, const char *text)
{
	for (int i = 0; i < list->n; i++)
		if (strcmp(list->at[i], text) == 0)
			return true;
	return false;
}

typedef struct {
	Arena *arena;
	StringList names;
} DimNames;

static void
collect_dim(void *ctx, const char *input, int axis, const char *name)
{
	DimNames *d = ctx;

	(void)input;
	(void)axis;
	if (!list_has(&d->names, name))
		vec_push(d->arena, &d->names, arena_strdup(d->arena, name));
}

typedef struct {
	Session *s;
	bool ok;
} BatchVisit;

/* --dim of a leading dimension and another --batch. */
static void
check_batch(void *ctx, const char *input, int axis, const char *name)
{
	BatchVisit *v = ctx;
	const Options *o = v->s->o;
	size_t n = strlen(name);

	for (int i = 0; axis == 0 && v->ok && i < o->dims.n; i++) {
		const char *text = o->dims.at[i];
		int64_t value;
		if (strncmp(text, name, n) != 0 || text[n] != '=' ||
		    (parse_int(text + n + 1, &value) && value == o->batch))
			continue;
		diag_error(v->s->diag, EXIT_USAGE,
		           "--dim %s and --batch %lld: both bind the rows of input \"%s\"", text,
		           (long long)o->batch, input);
		v->ok = false;
	}
}

static bool
check_batches(Session *s)
{
	BatchVisit v = {s, true};

	if (s->o->batch)
		model_open_dims(s->model, check_batch, &v);
	return v.ok;
}

/* A name that no input has is a slip of the pen. */
static bool
check_dim_names(Session *s)
{
	DimNames known = {.arena = s->arena};
	Text all = {0};
	bool ok = true;

	model_open_dims(s->model, collect_dim, &known);
	for (int i = 0; i < known.names.n; i++)
		text_printf(&all, "%s%s", i ? ", " : "", known.names.at[i]);
	for (int i = 0; i < s->o->dims.n; i++) {
		const char *text = s->o->dims.at[i];
		const char *name = arena_strndup(s->arena, text,
		                                 (size_t)(strrchr(text, '=') - text));
		if (list_has(&known.names, name))
			continue;
		diag_error(s->diag, EXIT_USAGE,
		           "--dim %s: no input of %s has a dimension of that name", text,
		           s->o->input);
		diag_hint(s->diag, "its open dimensions: %s", all.n ? all.at : "none");
		ok = false;
	}
	text_free(&all);
	return ok;
}

/* ---- opening */
static bool
import_options(Session *s, OpenDims open, ImportOptions *io)
{
	const Options *o = s->o;

	for (int i = 0; i < o->repairs.n; i++)
		if (list_has(&o->no_repairs, o->repairs.at[i])) {
			diag_error(s->diag, EXIT_USAGE,
			           "--repair=%s and --no-repair=%s: one of them", o->repairs.at[i],
			           o->repairs.at[i]);
			return false;
		}
	if (!read_dims(s, io) || !read_fills(s, io) || !read_ties(s, io))
		return false;
	io->repairs = terminated(s->arena, &o->repairs);
	io->no_repairs = terminated(s->arena, &o->no_repairs);
	io->rules = terminated(s->arena, &o->rules);
	io->update_statistics = o->statistics && strcmp(o->statistics, "update") == 0;
	io->restore_train_mode = o->train_mode && strcmp(o->train_mode, "restore") == 0;
	io->keep_metadata = o->keep_metadata;
	io->shapes_only = o->init_random;
	io->open_dims = open == OPEN_DIMS_REFUSE ? OPEN_ERROR : OPEN_ONE;
	return true;
}

bool
session_open(Session *s, const Options *o, OpenDims open, Arena *arena, Diag *diag)
{
	ImportOptions io = {0};

	*s = (Session){.o = o, .arena = arena, .diag = diag, .stage = STAGE_IMPORT};
	if (!o->input) {
		diag_error(diag, EXIT_USAGE, "no model given");
		return false;
	}
	if (!import_options(s, open, &io))
		return false;
	s->model = model_open(o->input, diag);
	if (!s->model)
		return false;
	if (!check_dim_names(s) || !check_batches(s) ||
	    (open == OPEN_DIMS_FROM_INPUTS && !bind_from_files(s, &io)))
		return false;
	s->m = model_import(s->model, &io, diag);
	if (!s->m)
		return false;
	s->import = s->m->import;
	if (!outputs_check(o, s->model, arena, diag))
		return false;
	if (s->m->name != o->input)
		s->m->name = arena_strdup(s->m->arena, o->input);
	const ImportBinding *first = &s->import->bindings.at[0];
	for (int i = 0; i < first->outputs.n; i++)
		vec_push(arena, &s->outputs, first->outputs.at[i].name);
	for (int b = 0; o->eval_mode && strcmp(o->eval_mode, "as-exported") == 0 &&
	                module_program(s->m, FUNCTION_INFERENCE, b);
	     b++)
		function_remove(module_program(s->m, FUNCTION_INFERENCE, b));
	return !o->loss || session_parse_loss(s, o->loss);
}

void
session_close(Session *s)
{
	module_free(s->m);
	model_close(s->model);
}
