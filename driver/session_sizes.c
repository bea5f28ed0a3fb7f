/* Finds sizes for open dimensions that nothing binds, for commands that only need the graph's form.
 * A dimension gets size 1; if a node refuses 1, the smallest size that all nodes accept. To find
 * it, the model is imported with one size after another. First all dimensions get the same size,
 * with or without the batch axes; then each dimension is made as small as possible. */
#include "driver/session.h"

#include <stdlib.h>
#include <string.h>

enum {
	MAX_DIMS = 32,
	/* At most MAX_TRIALS imports are tried. All imports together may take MAX_STEPS steps
	 * (model_import_steps), about four seconds at 4 microseconds per step; but MIN_TRIALS
	 * imports are always allowed. A limit in seconds would find other sizes on another
	 * machine. */
	MAX_TRIALS = 600,
	MAX_STEPS = 1000000,
	MIN_TRIALS = 5,
	MOST_IN_ORDER = 64, /* up to this size every size is tried */
	/* if the fault stays the same for so many sizes, it is taken not to depend on sizes */
	LAST_TO_TELL = 3,
};

/* Powers of two and multiples of usual patch and window sizes of images and sound. */
static const int64_t sizes[] = {2,   3,    4,    5,    6,    7,    8,    9,     10,   12,  14,
                                16,  20,   24,   28,   32,   40,   48,   56,    64,   80,  96,
                                112, 128,  160,  192,  224,  256,  320,  384,   448,  512, 640,
                                768, 1024, 1280, 1536, 2048, 4096, 8192, 16000, 32000};

typedef struct {
	const char *name;
	bool leading;
	int64_t size;
} FreeDim;
/* The messages of one trial import, which are not shown yet. */
typedef struct {
	int errors, exit_code;
	char *lines;
} Report;
typedef struct {
	Session *s;
	const ImportOptions *io;
	FreeDim dims[MAX_DIMS];
	int n, trials, most_trials;
	Report last;
	bool refused; /* the fault depends on sizes, but no sizes work */
} Search;

static void
add_dim(void *ctx, const char *input, int axis, const char *name, bool rows)
{
	Search *x = ctx;
	const Binding *b = &x->io->bindings[0];

	for (int i = 0; i < b->n_dims; i++)
		if (!strcmp(b->dims[i].name, name))
			return;
	for (int i = 0; i < x->n; i++)
		if (!strcmp(x->dims[i].name, name))
			return;
	if (x->n < MAX_DIMS && !(rows && x->io->batch))
		x->dims[x->n++] = (FreeDim){arena_strdup(x->s->arena, name), rows, 1};
}

static bool
may_go_on(const Search *x)
{
	return x->trials < x->most_trials;
}

static void
drop_report(Report *r)
{
	free(r->lines);
	*r = (Report){0};
}

static const char *
lines_of(const Report *r)
{
	return r->lines ? r->lines : "";
}

/* Imports with the current sizes; messages go to x->last. NULL: refused. */
static Module *
try_sizes(Search *x)
{
	ImportOptions io = *x->io;
	Binding binding = io.bindings[0];
	DimBinding *dims = NEW_ARRAY(x->s->arena, DimBinding, binding.n_dims + x->n);
	size_t n_said = 0;

	memcpy(dims, binding.dims, sizeof(*dims) * (size_t)binding.n_dims);
	for (int i = 0; i < x->n; i++)
		dims[binding.n_dims++] = (DimBinding){x->dims[i].name, x->dims[i].size};
	binding.dims = dims;
	io.bindings = &binding;
	drop_report(&x->last);
	FILE *stream = open_memstream(&x->last.lines, &n_said);
	if (!stream) {
		x->last = (Report){1, EXIT_SYSTEM, NULL};
		return NULL;
	}
	Diag *diag = diag_new("gradc", stream);
	Module *m = model_import(x->s->model, &io, diag);
	x->last.errors = diag_errors(diag);
	x->last.exit_code = diag_exit_code(diag);
	diag_free(diag);
	fclose(stream);
	x->trials++;
	return m;
}

static bool
works(Search *x)
{
	Module *m = try_sizes(x);

	if (m)
		module_free(m);
	return m;
}

/* Tries one size after another for all dimensions, with or without the batch axes. Sets *changes if
 * a trial has other messages than `first`. false: no size works, or the first trials all have the
 * messages `first`. */
static bool
find_common_size(Search *x, bool rows_too, const char *first, bool *changes)
{
	for (int k = 0; k < COUNT(sizes) && may_go_on(x); k++) {
		for (int i = 0; i < x->n; i++)
			x->dims[i].size = x->dims[i].leading && !rows_too ? 1 : sizes[k];
		if (works(x))
			return true;
		*changes |= strcmp(lines_of(&x->last), first) != 0;
		if (k >= LAST_TO_TELL && !*changes)
			return false;
	}
	return false;
}

/* Tries one dimension with a larger size and all other dimensions with 1, for models that need a
 * certain sum of dimensions. */
static bool
find_odd_size(Search *x)
{
	static const int64_t odd[] = {0, 2, 3, 4};

	for (int k = 0; k < x->n; k++)
		for (int j = 0; j < COUNT(odd) && may_go_on(x); j++) {
			for (int i = 0; i < x->n; i++)
				x->dims[i].size = i == k ? odd[j] : 1;
			if (works(x))
				return true;
		}
	return false;
}

static bool
works_with(Search *x, FreeDim *dim, int64_t size)
{
	dim->size = size;
	return works(x);
}

/* Bisects for the smallest size that works. `low` does not work and `high` does; sizes above the
 * smallest one are assumed to work. */
static void
bisect(Search *x, FreeDim *dim, int64_t low, int64_t high)
{
	while (high - low > 1 && may_go_on(x)) {
		int64_t middle = low + (high - low) / 2;
		if (works_with(x, dim, middle))
			high = middle;
		else
			low = middle;
	}
	dim->size = high;
}

static void
shrink(Search *x, FreeDim *dim)
{
	int64_t found = dim->size, low = 0;

	while (low < MOST_IN_ORDER && low + 1 < found && may_go_on(x))
		if (works_with(x, dim, ++low))
			return;
	for (int k = 0; k < COUNT(sizes) && sizes[k] < found && may_go_on(x); k++) {
		if (sizes[k] <= low)
			continue;
		if (works_with(x, dim, sizes[k])) {
			found = sizes[k];
			break;
		}
		low = sizes[k];
	}
	if (found > MOST_IN_ORDER)
		bisect(x, dim, low, found);
	else
		dim->size = found;
}

static char *
list_sizes(const Search *x, bool all)
{
	Text t = {0};

	for (int i = 0; i < x->n; i++)
		if (all)
			text_printf(&t, "%s%s", t.n ? ", " : "", x->dims[i].name);
		else if (x->dims[i].size != 1)
			text_printf(&t, "%s%s=%lld", t.n ? " " : "", x->dims[i].name,
			            (long long)x->dims[i].size);
	char *list = arena_strdup(x->s->arena, t.n ? t.at : "");
	text_free(&t);
	return list;
}

/* Adds an error that names the dimensions, after the messages for size 1. */
static void
refuse_sizes(Search *x)
{
	diag_error(x->s->diag, EXIT_USAGE,
	           "%s: its open dimensions cannot all be 1, and no other sizes were found "
	           "to work: %s",
	           x->s->o->input, list_sizes(x, true));
	diag_hint(x->s->diag, "--dim NAME=N binds them: a size that the model was made for");
}

/* Searches for sizes after the first import was refused. If no sizes work, returns NULL, and
 * x->last has the first import's messages again. */
static Module *
search_sizes(Search *x)
{
	Report first = x->last;
	bool changes = false, rows_change = false;
	int64_t most = MAX_STEPS / model_import_steps(x->s->model);

	x->most_trials = most < MIN_TRIALS   ? MIN_TRIALS
	                 : most < MAX_TRIALS ? (int)most
	                                     : MAX_TRIALS;
	x->last = (Report){0};
	bool found = find_common_size(x, false, lines_of(&first), &changes) ||
	             find_common_size(x, true, lines_of(&first), &rows_change);
	changes |= rows_change;
	found = found || (x->n > 1 && changes && find_odd_size(x));
	for (int i = 0; found && i < x->n; i++)
		shrink(x, &x->dims[i]);
	Module *m = found ? try_sizes(x) : NULL;
	if (m) {
		x->s->sizes = list_sizes(x, false);
		drop_report(&first);
		return m;
	}
	drop_report(&x->last);
	x->last = first;
	x->refused = changes;
	return NULL;
}

/* Can the fault of an import depend on the sizes? */
static bool
hangs_on_sizes(const Report *r)
{
	return r->exit_code == EXIT_INVALID || r->exit_code == EXIT_UNSUPPORTED;
}

Module *
session_import_open(Session *s, const ImportOptions *io)
{
	Search x = {.s = s, .io = io};

	if (io->open_dims != OPEN_ONE || io->n_bindings != 1)
		return model_import(s->model, io, s->diag);
	model_open_dims(s->model, io, add_dim, &x);
	if (x.n == 0)
		return model_import(s->model, io, s->diag);
	Module *m = try_sizes(&x);
	if (!m && hangs_on_sizes(&x.last))
		m = search_sizes(&x);
	diag_take_over(s->diag, x.last.errors, x.last.exit_code, lines_of(&x.last));
	if (x.refused)
		refuse_sizes(&x);
	drop_report(&x.last);
	return m;
}
