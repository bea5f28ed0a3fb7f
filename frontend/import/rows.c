/* Finds the batch axis of each input and output: the axis that counts the rows of a micro-batch. An
 * input's batch axis is the axis given by --batch-axis; else an axis that is called batch, as
 * torch's exporters write it from dynamic_axes; else the leading axis. An output's batch axis
 * follows from the graph. */
#include "frontend/import/walk.h"

#include <string.h>
#include <strings.h>

static bool
is_one_of(const char *name, const char *const *list)
{
	for (int i = 0; list[i]; i++)
		if (strcasecmp(name, list[i]) == 0)
			return true;
	return false;
}

/* "batch", "batch_size", "decoder_batch", "bsz" */
static bool
is_called_batch(const char *symbol)
{
	static const char *const names[] = {"bs", "bsz", "nbatch", "minibatch", NULL};

	return is_one_of(symbol, names) || strcasestr(symbol, "batch");
}

/* Is it the symbol of a time axis? After a time axis the symbols N and B mean batch; elsewhere N
 * and B may mean anything. */
static bool
is_called_time(const char *symbol)
{
	static const char *const names[] = {"t",      "s",         "l",       "time",   "seq",
	                                    "frames", "sequence",  "seq_len", "seqlen", "length",
	                                    "steps",  "timesteps", NULL};

	return is_one_of(symbol, names) || strcasestr(symbol, "time") || strcasestr(symbol, "seq");
}

static bool
counts_rows(const char *symbol, const char *leading)
{
	static const char *const letters[] = {"n", "b", NULL};

	return symbol && (is_called_batch(symbol) ||
	                  (leading && is_called_time(leading) && is_one_of(symbol, letters)));
}

int
rows_axis_of(const ValueInfoProto *v, const BatchAxisOption *options, int n)
{
	const Onnx__TypeProto__Tensor *t = tensor_type(v);
	int found = 0, named = 0;

	for (int i = 0; i < n; i++)
		if (strcmp(options[i].input, v->name) == 0)
			return options[i].axis;
	if (!t || !t->shape || t->shape->n_dim == 0)
		return 0;
	const char *leading = dim_symbol(t->shape->dim[0]);
	if (leading && is_called_batch(leading))
		return 0;
	for (int i = 1; i < (int)t->shape->n_dim; i++)
		if (counts_rows(dim_symbol(t->shape->dim[i]), leading)) {
			found = i;
			named++;
		}
	return named == 1 ? found : 0;
}

bool
rows_axis_is_known(const ValueInfoProto *v, const BatchAxisOption *options, int n)
{
	const Onnx__TypeProto__Tensor *t = tensor_type(v);
	int axis = rows_axis_of(v, options, n);

	for (int i = 0; i < n; i++)
		if (strcmp(options[i].input, v->name) == 0)
			return true;
	if (!t || !t->shape || axis < 0 || axis >= (int)t->shape->n_dim)
		return false;
	const char *symbol = dim_symbol(t->shape->dim[axis]);
	return axis > 0 || (symbol && is_called_batch(symbol));
}

static bool
has_option(const Importer *im, const ImportPort *p)
{
	for (int i = 0; i < im->options->n_batch_axes; i++)
		if (strcmp(im->options->batch_axes[i].input, p->name) == 0)
			return true;
	return false;
}

/* How likely this input's batch axis gives the number of rows; 0: it has no batch axis. */
static int
likelihood(const Importer *im, const ImportPort *p)
{
	if (p->rank == 0 || p->batch_axis < 0)
		return 0;
	if (has_option(im, p))
		return 5;
	if (p->open_batch && p->batch_axis == 0)
		return 4;
	if (p->open_batch)
		return p->symbols[0] ? 3 : 2;
	return 1;
}

/* The first input of the highest likelihood. NULL: all inputs are scalars. */
static const ImportPort *
rows_input(const Importer *im, const ImportBinding *b)
{
	const ImportPort *found = NULL;
	int most = 0;

	for (int i = 0; i < b->inputs.n; i++) {
		int now = likelihood(im, &b->inputs.at[i]);
		if (now > most) {
			found = &b->inputs.at[i];
			most = now;
		}
	}
	return found;
}

/* Does --batch bind the input's batch axis? --batch binds every batch axis that --dim does not
 * bind. */
static bool
is_batch(const Importer *im, const ImportPort *p)
{
	return im->options->batch && !find_dim(im, p->symbols[p->batch_axis]);
}

/* p and `of` have open batch axes of equal size. Do the two axes stand for the same dimension? */
static bool
same_symbol(const Importer *im, const ImportPort *p, const ImportPort *of)
{
	const char *a = p->symbols[p->batch_axis], *b = of->symbols[of->batch_axis];

	return !*a || !*b || !strcmp(a, b) || (is_batch(im, p) && is_batch(im, of));
}

/* Is p's batch axis the same dimension as the batch axis of `of`? An x [time,batch,features] has
 * rows, but a state [layers,batch,hidden] is one array for every step; both have an axis called
 * batch after another axis. The axes before the batch axis decide: an open time axis is accepted,
 * and fixed axes must equal those of `of`. */
static bool
may_follow(const ImportPort *p, const ImportPort *of)
{
	if (p->batch_axis == 0 || p->symbols[0])
		return true;
	return p->batch_axis == of->batch_axis &&
	       memcmp(p->dims, of->dims, sizeof(int64_t) * (size_t)p->batch_axis) == 0;
}

static bool
input_has_rows(const Importer *im, const ImportPort *p, const ImportPort *of, int64_t rows)
{
	if (p->rank == 0 || p->batch_axis < 0 || p->dims[p->batch_axis] != rows)
		return false;
	if (has_option(im, p))
		return true;
	return p->open_batch == of->open_batch && may_follow(p, of) &&
	       (!of->open_batch || same_symbol(im, p, of));
}

static void
check_options(const Importer *im, const ImportBinding *b)
{
	const ImportOptions *o = im->options;

	for (int i = 0; i < o->n_batch_axes; i++) {
		const ImportPort *p = NULL;
		int axis = o->batch_axes[i].axis;
		for (int k = 0; k < b->inputs.n && !p; k++)
			if (strcmp(b->inputs.at[k].name, o->batch_axes[i].input) == 0)
				p = &b->inputs.at[k];
		if (!p)
			model_error(im->model, im->diag, EXIT_USAGE,
			            "--batch-axis %s: no such input", o->batch_axes[i].input);
		else if (axis >= p->rank)
			model_error(im->model, im->diag, EXIT_USAGE,
			            "--batch-axis %s=%d: the input has rank %d", p->name, axis,
			            p->rank);
		else if (axis >= 0 && p->dims[axis] != b->rows && b->rows > 0)
			model_error(
				im->model, im->diag, EXIT_USAGE,
				"--batch-axis %s=%d: the axis has %lld elements, but other inputs have "
				"%lld rows",
				p->name, axis, (long long)p->dims[axis], (long long)b->rows);
	}
}

/* An empty batch counts as one row; then no input has rows. */
void
rows_find_inputs(const Importer *im, ImportBinding *b)
{
	const ImportPort *of = rows_input(im, b);
	bool empty = of && of->dims[of->batch_axis] == 0;

	b->rows = of && !empty ? of->dims[of->batch_axis] : 1;
	if (!im->inference)
		check_options(im, b);
	for (int i = 0; of && i < b->inputs.n; i++) {
		ImportPort *p = &b->inputs.at[i];
		p->has_rows = !empty && input_has_rows(im, p, of, b->rows);
	}
}

/* An output's batch axis is the axis that the graph determines. If the graph determines none, the
 * leading axis counts if its size is the number of rows and its elements depend on several rows. */
void
rows_find_outputs(const Importer *im, ImportBinding *b)
{
	const Function *f = im->b.f;
	BatchAxes batch = batch_of(im->arena, f);

	for (int i = 0; i < b->outputs.n && batch.rows; i++) {
		ImportPort *p = &b->outputs.at[i];
		const BatchAxis *a = &batch.of[function_result(f, i)->id];
		p->batch_axis = a->axis < 0 ? 0 : a->axis;
		p->has_rows = p->rank && p->dims[p->batch_axis] == batch.rows &&
		              (a->axis >= 0 || a->mixed);
	}
}
