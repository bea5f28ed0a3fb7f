/* Binds open dimensions to numbers: by --dim and --batch, and for `run` and `grad` by the shapes of
 * input files. */
#include "driver/session.h"

#include <string.h>
#include <unistd.h>

enum { MAX_BINDINGS = 64 };

/* An open dimension of an input. */
typedef struct {
	const char *input;
	int axis;
	const char *name; /* its symbol; INPUT[AXIS] if it has no symbol */
	bool rows;        /* --batch binds it */
} OpenDim;
typedef VEC(OpenDim) OpenDimList;
typedef struct {
	const char *text; /* text of --dim */
	const char *name;
	VEC(int64_t) values;
} DimValues;
typedef struct {
	Session *s;
	OpenDimList open;
	VEC(DimValues) given;
} Dims;

static void
collect_open(void *ctx, const char *input, int axis, const char *name, bool rows)
{
	Dims *d = ctx;
	OpenDim dim = {input, axis, arena_strdup(d->s->arena, name), rows};

	vec_push(d->s->arena, &d->open, dim);
}

/* ---- --batch-axis */
static bool
read_batch_axes(Session *s, ImportOptions *io)
{
	const StringList *list = &s->o->batch_axes;
	BatchAxisOption *axes = NEW_ARRAY(s->arena, BatchAxisOption, list->n + 1);
	const char *value;
	int64_t axis = -1;

	for (int i = 0; i < list->n; i++) {
		if (!split_pair(s, "batch-axis", list->at[i], &axes[i].input, &value))
			return false;
		bool none = strcmp(value, "none") == 0;
		if (!none && (!parse_int(value, &axis) || axis < 0 || axis >= MAX_RANK)) {
			diag_error(s->diag, EXIT_USAGE,
			           "--batch-axis %s: need INPUT=AXIS or INPUT=none", list->at[i]);
			return false;
		}
		axes[i].axis = none ? -1 : (int)axis;
	}
	io->batch_axes = axes;
	io->n_batch_axes = list->n;
	return true;
}

/* ---- --dim */
static bool
read_values(Session *s, const char *values, DimValues *out)
{
	char *rest = arena_strdup(s->arena, values);
	int64_t value;

	for (char *word; (word = strsep(&rest, ","));) {
		if (!parse_int(word, &value) || value < 0) {
			diag_error(s->diag, EXIT_USAGE, "--dim %s: need NAME=N or NAME=N,N...",
			           out->text);
			return false;
		}
		for (int i = 0; i < out->values.n; i++)
			if (out->values.at[i] == value) {
				diag_error(s->diag, EXIT_USAGE, "--dim %s: %lld is given twice",
				           out->text, (long long)value);
				return false;
			}
		vec_push(s->arena, &out->values, value);
	}
	return true;
}

/* The name of a dimension, given by its symbol or as INPUT[AXIS]; NULL: no input has it. */
static const char *
known_name(const Dims *d, const char *name)
{
	for (int i = 0; i < d->open.n; i++) {
		const OpenDim *o = &d->open.at[i];
		if (strcmp(o->name, name) == 0 ||
		    strcmp(arena_printf(d->s->arena, "%s[%d]", o->input, o->axis), name) == 0)
			return o->name;
	}
	return NULL;
}

static void
refuse_name(const Dims *d, const char *text)
{
	Text all = {0};

	for (int i = 0; i < d->open.n; i++) {
		bool first = true;
		for (int k = 0; k < i && first; k++)
			first = strcmp(d->open.at[k].name, d->open.at[i].name) != 0;
		if (first)
			text_printf(&all, "%s%s", all.n ? ", " : "", d->open.at[i].name);
	}
	diag_error(d->s->diag, EXIT_USAGE, "--dim %s: no input of %s has a dimension of that name",
	           text, d->s->o->input);
	diag_hint(d->s->diag, "its open dimensions: %s", all.n ? all.at : "none");
	text_free(&all);
}

/* Reads every --dim; no two may bind the same dimension. */
static bool
read_given(Dims *d)
{
	const StringList *list = &d->s->o->dims;
	const char *values;
	bool ok = true;

	for (int i = 0; i < list->n; i++) {
		DimValues row = {.text = list->at[i]};
		if (!split_pair(d->s, "dim", row.text, &row.name, &values) ||
		    !read_values(d->s, values, &row))
			return false;
		row.name = known_name(d, row.name);
		if (!row.name) {
			refuse_name(d, row.text);
			ok = false;
			continue;
		}
		for (int k = 0; k < d->given.n; k++)
			if (strcmp(d->given.at[k].name, row.name) == 0) {
				diag_error(d->s->diag, EXIT_USAGE,
				           "--dim %s and --dim %s: both bind %s",
				           d->given.at[k].text, row.text, row.name);
				ok = false;
			}
		vec_push(d->s->arena, &d->given, row);
	}
	return ok;
}

/* Refuses a --dim of a batch axis whose value differs from --batch. */
static bool
check_batch(const Dims *d)
{
	int64_t batch = d->s->o->batch;

	for (int i = 0; batch && i < d->open.n; i++)
		for (int k = 0; d->open.at[i].rows && k < d->given.n; k++) {
			const DimValues *g = &d->given.at[k];
			if (strcmp(g->name, d->open.at[i].name) != 0 ||
			    (g->values.n == 1 && g->values.at[0] == batch))
				continue;
			diag_error(d->s->diag, EXIT_USAGE,
			           "--dim %s and --batch %lld: both bind the rows of input \"%s\"",
			           g->text, (long long)batch, d->open.at[i].input);
			return false;
		}
	return true;
}

/* ---- bindings: every combination of the values of --dim */
/* The value of the last name changes fastest. */
static Binding
nth_binding(const Dims *d, int nth)
{
	Arena *arena = d->s->arena;
	int64_t batch = d->s->o->batch;
	DimBinding *dims = NEW_ARRAY(arena, DimBinding, d->given.n + d->open.n);
	Text t = {0};

	for (int i = d->given.n - 1; i >= 0; i--) {
		const DimValues *row = &d->given.at[i];
		dims[i] = (DimBinding){row->name, row->values.at[nth % row->values.n]};
		nth /= row->values.n;
	}
	for (int i = 0; i < d->given.n; i++)
		text_printf(&t, "%s%s=%lld", i ? " " : "", dims[i].name, (long long)dims[i].value);
	if (batch)
		text_printf(&t, "%sbatch=%lld", t.n ? " " : "", (long long)batch);
	Binding b = {arena_strdup(arena, t.n ? t.at : ""), dims, d->given.n};
	text_free(&t);
	return b;
}

static bool
make_bindings(const Dims *d, ImportOptions *io)
{
	int n = 1;

	for (int i = 0; i < d->given.n; i++) {
		n *= d->given.at[i].values.n;
		if (n > MAX_BINDINGS) {
			diag_error(d->s->diag, EXIT_USAGE, "--dim: more than %d combinations",
			           MAX_BINDINGS);
			return false;
		}
	}
	Binding *bindings = NEW_ARRAY(d->s->arena, Binding, n);
	for (int i = 0; i < n; i++)
		bindings[i] = nth_binding(d, i);
	io->bindings = bindings;
	io->n_bindings = n;
	io->batch = d->s->o->batch;
	return true;
}

/* ---- dimensions from input files */
/* Reads the shape of an input's file, .npy or .pb. false: the file cannot be read; this is reported
 * when its values are needed. */
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
bind_from_file(Dims *d, ImportOptions *io, const OpenDim *open)
{
	Session *s = d->s;
	Binding *binding = (Binding *)io->bindings;
	DimBinding *list = (DimBinding *)binding->dims;
	size_t n = strlen(open->input);
	int64_t dims[MAX_RANK];
	int rank, axis = open->axis;

	for (int i = 0; i < binding->n_dims; i++)
		if (strcmp(list[i].name, open->name) == 0)
			return;
	for (int i = 0; i < s->o->inputs.n; i++) {
		const char *text = s->o->inputs.at[i];
		if (strncmp(text, open->input, n) != 0 || text[n] != '=' ||
		    !file_shape(s, text + n + 1, &rank, dims) || axis >= rank)
			continue;
		if (open->rows && s->o->batch && dims[axis] != s->o->batch) {
			diag_error(s->diag, EXIT_USAGE,
			           "--input %s has %lld rows, but --batch is %lld", text,
			           (long long)dims[axis], (long long)s->o->batch);
			return;
		}
		list[binding->n_dims++] = (DimBinding){open->name, dims[axis]};
		if (open->rows && !io->batch) /* for inputs without a file */
			io->batch = dims[axis];
		return;
	}
}

static bool
bind_from_files(Dims *d, ImportOptions *io)
{
	if (io->n_bindings > 1) {
		diag_error(d->s->diag, EXIT_USAGE,
		           "--dim: one value each, because there is only one set of inputs");
		diag_hint(d->s->diag, "without --dim the inputs' files bind open dimensions");
		return false;
	}
	for (int i = 0; i < d->open.n; i++)
		bind_from_file(d, io, &d->open.at[i]);
	return diag_errors(d->s->diag) == 0;
}

bool
session_bind(Session *s, OpenDims open, ImportOptions *io)
{
	Dims d = {.s = s};

	io->open_dims = open == OPEN_DIMS_REFUSE ? OPEN_ERROR : OPEN_ONE;
	if (!read_batch_axes(s, io))
		return false;
	model_open_dims(s->model, io, collect_open, &d);
	return read_given(&d) && check_batch(&d) && make_bindings(&d, io) &&
	       (open != OPEN_DIMS_FROM_INPUTS || bind_from_files(&d, io));
}
