/* --split X[,SEED]: holds rows of the training data out for evaluation. Which rows depends on X, SEED, the number of rows and
 * their classes, so a resumed run and every rank hold out the same rows.
 *
 * Example: 10 rows with the classes 0 0 0 0 0 0 0 0 1 1 and X = 0.2 hold out two rows. Each class gives its share, rounded so
 * that the shares add up: here two rows of class 0 (1.6) and none of class 1 (0.4). A class keeps one row for training if another class can give
 * a row instead. */
#include "runtime/data/data.h"
#include "runtime/data/sources.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

Status
split_parse(const char *text, double *share, uint64_t *seed)
{
	char number[32];
	const char *comma = strchr(text, ',');
	size_t n = comma ? (size_t)(comma - text) : strlen(text);

	*seed = 0;
	snprintf(number, sizeof(number), "%.*s", (int)(n < 31 ? n : 0), text);
	if (!parse_double(number, share) || !(*share > 0 && *share < 1) ||
	    (comma && !parse_uint(comma + 1, seed)))
		return status_error(EXIT_USAGE,
		                    "--split=%s: need a share between 0 and 1, and perhaps a seed, "
		                    "as 0.2 or 0.2,7",
		                    text);
	return NULL;
}

/* ---- shares of the classes */
typedef struct {
	int64_t rows, held; /* rows of the class; how many of them are held out */
	double rest;        /* what rounding down left out of its share */
	int64_t number;     /* of the class, in the order of its first row */
} Class;

static int
by_rest(const void *a, const void *b)
{
	const Class *x = a, *y = b;

	if (x->rest != y->rest)
		return x->rest < y->rest ? 1 : -1;
	return (x->number > y->number) - (x->number < y->number);
}

static int
by_number(const void *a, const void *b)
{
	const Class *x = a, *y = b;

	return (x->number > y->number) - (x->number < y->number);
}

/* Divides `held` rows among the classes by the largest remainder. */
static void
share_among_classes(Class *classes, int64_t n, int64_t rows, int64_t held)
{
	int64_t left = held;

	for (int64_t i = 0; i < n; i++) {
		double share = (double)classes[i].rows * (double)held / (double)rows;
		classes[i].held = (int64_t)share;
		classes[i].rest = share - (double)classes[i].held;
		left -= classes[i].held;
	}
	qsort(classes, (size_t)n, sizeof(*classes), by_rest);
	for (int least = 1; least >= 0; least--)
		for (bool gave = true; left > 0 && gave;) {
			gave = false;
			for (int64_t i = 0; i < n && left > 0; i++)
				if (classes[i].rows - classes[i].held > least) {
					classes[i].held++;
					left--;
					gave = true;
				}
		}
	qsort(classes, (size_t)n, sizeof(*classes), by_number);
}

/* ---- which rows */
/* The number of each row's class, in the order of the classes' first rows; *n: number of classes. */
static int32_t *
number_classes(Arena *arena, const int64_t *labels, int64_t rows, int64_t *n)
{
	int32_t *of = NEW_ARRAY(arena, int32_t, rows);
	IntMap *numbers = intmap_new(arena);

	*n = labels ? 0 : 1;
	for (int64_t i = 0; labels && i < rows; i++) {
		uint64_t found;
		if (!intmap_get(numbers, (uint64_t)labels[i], &found))
			intmap_put(numbers, (uint64_t)labels[i], found = (uint64_t)(*n)++);
		of[i] = (int32_t)found;
	}
	return of;
}

Split *
split_choose(Arena *arena, const int64_t *labels, int64_t rows, double share, uint64_t seed)
{
	enum { SPLIT_EPOCH = -1 }; /* an order that no epoch of training has */
	Arena *scratch = arena_new();
	int64_t held = llround(share * (double)rows), n_classes;
	Split *s = NEW(arena, Split);

	held = held < 1 ? 1 : held > rows - 1 ? rows - 1 : held;
	int32_t *of = number_classes(scratch, labels, rows, &n_classes);
	Class *classes = NEW_ARRAY(scratch, Class, n_classes);
	char *is_held = arena_alloc(scratch, (size_t)rows);
	for (int64_t i = 0; i < n_classes; i++)
		classes[i].number = i;
	for (int64_t i = 0; i < rows; i++)
		classes[of[i]].rows++;
	share_among_classes(classes, n_classes, rows, held);
	memset(is_held, 0, (size_t)rows);
	const Order order = order_new(rows, true, seed, SPLIT_EPOCH);
	for (int64_t i = 0; i < rows; i++) {
		int64_t row = order_at(&order, i);
		if (classes[of[row]].held > 0) {
			classes[of[row]].held--;
			is_held[row] = 1;
		}
	}
	int64_t *list = NEW_ARRAY(arena, int64_t, held);
	*s = (Split){.held = list, .rows = rows};
	for (int64_t i = 0; i < rows; i++)
		if (is_held[i])
			list[s->n++] = i;
	arena_free(scratch);
	return s;
}

int64_t
split_row(const Split *s, bool held_out, int64_t index)
{
	int64_t low = 0, high = s->n;

	if (held_out)
		return s->held[index];
	/* j held-out rows lie before the row: the smallest j with held[j] - j > index */
	while (low < high) {
		int64_t middle = low + (high - low) / 2;
		if (s->held[middle] - middle > index)
			high = middle;
		else
			low = middle + 1;
	}
	return index + low;
}

/* ---- datasets */
/* The labels, if each row has one in files: a class index, or a number that may be 0 or 1; otherwise NULL. */
static Source *
class_source(Dataset *d)
{
	for (int i = 0; i < d->n_sources; i++) {
		Source *s = &d->sources[i];
		if (s->port->kind == PORT_LABELS && source_is_sampled(s) && s->elements == 1 &&
		    s->shift == 0)
			return s;
	}
	return NULL;
}

/* The class of a label; false: the label is a number other than 0 and 1, so the labels are no classes. */
static bool
class_of(DType dtype, const char *labels, int64_t i, int64_t *out)
{
	if (!dtype_is_float(dtype)) {
		*out = dtype_load_int(dtype, labels, i);
		return true;
	}
	double label = dtype_load_float(dtype, labels, i);
	*out = label == 1;
	return label == 0 || label == 1;
}

/* *out: NULL if the labels are no classes. */
static Status
read_classes(const Dataset *d, const Source *s, Arena *arena, int64_t **out)
{
	DType dtype = (DType)s->port->dtype;
	char *chunk = arena_alloc(arena, (size_t)dtype_bytes(dtype, s->chunk) + 1);
	int64_t rows = d->rows;
	int64_t *labels = NEW_ARRAY(arena, int64_t, rows);

	*out = NULL;
	for (int64_t row = 0, n; row < rows; row += n) {
		n = rows - row < s->chunk ? rows - row : s->chunk;
		RETURN_IF_ERROR(source_read(s, row, n, chunk, d->buffers[0].raw));
		for (int64_t i = 0; i < n; i++)
			if (!class_of(dtype, chunk, i, &labels[row + i]))
				return NULL;
	}
	*out = labels;
	return NULL;
}

static void
use_rows(Dataset *d, const Split *s, bool held_out)
{
	d->split = s;
	d->held_out = held_out;
	d->rows = held_out ? s->n : s->rows - s->n;
}

Status
split_datasets(Gradc *run, Dataset *train, Dataset *eval)
{
	const char *option = run->options.split;
	Source *classes = class_source(train);
	Arena *scratch = arena_new();
	int64_t *labels = NULL;
	uint64_t seed;
	double share;

	Status status = split_parse(option, &share, &seed);
	if (!status && train->rows < 2)
		status = status_error(EXIT_DATA,
		                      "--split=%s: the data have %lld row, and both training and "
		                      "evaluation need one",
		                      option, (long long)train->rows);
	if (!status && classes)
		status = read_classes(train, classes, scratch, &labels);
	if (!status) {
		const Split *s = split_choose(run->arena, labels, train->rows, share, seed);
		use_rows(train, s, false);
		use_rows(eval, s, true);
	}
	arena_free(scratch);
	return status;
}
