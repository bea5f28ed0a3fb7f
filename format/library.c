/* What libraries do, read from the tables' numbers and checked. */
#include "format/format_impl.h"

const char *const library_kind_names[] = {"dot", "conv", "conv_grad_input", "conv_grad_weight",
                                          NULL};

const ConvTensor library_conv_operands[N_LIBRARY_KINDS][3] = {
	[LIBRARY_CONV] = {CONV_X, CONV_W, CONV_Y},
	[LIBRARY_CONV_GRAD_INPUT] = {CONV_Y, CONV_W, CONV_X},
	[LIBRARY_CONV_GRAD_WEIGHT] = {CONV_X, CONV_Y, CONV_W},
};

/* The next n numbers, each from `least` to where sizes of tensors end. */
static bool
take(const int64_t **at, int n, int64_t least, int64_t *out)
{
	for (int i = 0; i < n; i++, (*at)++) {
		if (**at < least || **at > INT64_C(1) << 40)
			return false;
		out[i] = **at;
	}
	return true;
}

enum { N_OPERAND_NUMBERS = 6 };

static bool
take_operands(const int64_t **at, LibraryWork *w)
{
	static const int operands[] = {LIBRARY_FIRST, LIBRARY_SECOND, LIBRARY_BIAS};
	int64_t buffer;

	w->buffer[LIBRARY_RESULT] = -1;
	for (int i = 0; i < COUNT(operands); i++) {
		if (!take(at, 1, 0, &buffer) || buffer > UINT16_MAX ||
		    !take(at, 1, 0, &w->offset[operands[i]]))
			return false;
		w->buffer[operands[i]] = (int)buffer;
	}
	w->bias = w->buffer[LIBRARY_BIAS]-- > 0;
	return !w->bias || w->kind == LIBRARY_DOT || w->kind == LIBRARY_CONV;
}

/* ---- dot */
static void
set_dims(LibraryDot *d, int i, int n_batch, const int64_t *sizes, int row, int column)
{
	for (int b = 0; b < n_batch; b++)
		d->dims[i][b] = sizes[b];
	d->dims[i][n_batch] = sizes[n_batch + row];
	d->dims[i][n_batch + 1] = sizes[n_batch + column];
}

static bool
read_dot(const int64_t *at, int n, LibraryWork *w)
{
	LibraryDot *d = &w->dot;
	int64_t n_batch, sizes[MAX_LIBRARY_RANK + 1];

	if (n < 1 || !take(&at, 1, 0, &n_batch) || n_batch > MAX_LIBRARY_BATCH_AXES ||
	    n != 10 + 4 * n_batch)
		return false;
	d->rank = (int)n_batch + 2;
	if (!take(&at, d->rank + 1, 1, sizes))
		return false;
	set_dims(d, LIBRARY_FIRST, (int)n_batch, sizes, 0, 2);
	set_dims(d, LIBRARY_SECOND, (int)n_batch, sizes, 2, 1);
	set_dims(d, LIBRARY_RESULT, (int)n_batch, sizes, 0, 1);
	for (int i = LIBRARY_FIRST; i <= LIBRARY_RESULT; i++)
		if (!take(&at, d->rank, 1, d->strides[i]))
			return false;
	return true;
}

static int64_t
dot_last(const LibraryWork *w, int i)
{
	const LibraryDot *d = &w->dot;
	int64_t last = 0, most;

	for (int k = 0; k < d->rank; k++)
		if (!size_mul(d->dims[i][k] - 1, d->strides[i][k], &most) ||
		    !size_add(last, most, &last))
			return INT64_MAX;
	return last;
}

static void
print_list(Text *out, int n, const int64_t *at)
{
	for (int i = 0; i < n; i++)
		text_printf(out, "%s%lld", i ? "," : "[", (long long)at[i]);
	text_add(out, "]");
}

static void
print_dot(Text *out, const LibraryWork *w)
{
	static const char *const names[] = {"x", "y", "z"};

	for (int i = LIBRARY_FIRST; i <= LIBRARY_RESULT; i++) {
		text_printf(out, " %s", names[i]);
		print_list(out, w->dot.rank, w->dot.dims[i]);
		text_add(out, " by ");
		print_list(out, w->dot.rank, w->dot.strides[i]);
	}
}

/* ---- convolutions */
enum { N_WINDOW_NUMBERS = 6 };

static bool
read_conv(const int64_t *at, int n, LibraryWork *w)
{
	LibraryConv *c = &w->conv;
	int64_t sizes[4], numbers[N_WINDOW_NUMBERS];

	c->spatial = (n - (int)COUNT(sizes)) / N_WINDOW_NUMBERS;
	if (c->spatial < 1 || c->spatial > MAX_LIBRARY_SPATIAL ||
	    n != (int)COUNT(sizes) + c->spatial * N_WINDOW_NUMBERS ||
	    !take(&at, COUNT(sizes), 1, sizes))
		return false;
	c->batch = sizes[0];
	c->groups = sizes[1];
	c->in = sizes[2];
	c->out = sizes[3];
	if (!size_mul(c->groups, c->in, &sizes[0]) || !size_mul(c->groups, c->out, &sizes[0]))
		return false;
	for (int i = 0; i < c->spatial; i++) {
		if (!take(&at, N_WINDOW_NUMBERS - 1, 1, numbers) ||
		    !take(&at, 1, 0, numbers + N_WINDOW_NUMBERS - 1))
			return false;
		c->axes[i] = (LibraryWindow){numbers[0], numbers[1], numbers[2],
		                             numbers[3], numbers[4], numbers[5]};
	}
	return true;
}

/* The sizes of one of the three tensors. */
static int
conv_dims(const LibraryConv *c, ConvTensor tensor, int64_t dims[MAX_LIBRARY_SPATIAL + 2])
{
	dims[0] = tensor == CONV_W ? c->groups * c->out : c->batch;
	dims[1] = tensor == CONV_W   ? c->in
	          : tensor == CONV_X ? c->groups * c->in
	                             : c->groups * c->out;
	for (int i = 0; i < c->spatial; i++)
		dims[i + 2] = tensor == CONV_X   ? c->axes[i].x
		              : tensor == CONV_W ? c->axes[i].window
		                                 : c->axes[i].y;
	return c->spatial + 2;
}

int64_t
library_conv_elements(const LibraryConv *c, ConvTensor tensor)
{
	int64_t dims[MAX_LIBRARY_SPATIAL + 2], n = 1;
	int rank = conv_dims(c, tensor, dims);

	for (int i = 0; i < rank; i++)
		if (!size_mul(n, dims[i], &n))
			return INT64_MAX;
	return n;
}

static int64_t
conv_last(const LibraryWork *w, int i)
{
	int64_t n = library_conv_elements(&w->conv, library_conv_operands[w->kind][i]);

	return n == INT64_MAX ? n : n - 1;
}

static void
print_conv(Text *out, const LibraryWork *w)
{
	static const char *const names[] = {"x", "w", "y"};
	const LibraryConv *c = &w->conv;

	for (int t = CONV_X; t <= CONV_Y; t++) {
		int64_t dims[MAX_LIBRARY_SPATIAL + 2];
		text_printf(out, " %s", names[t]);
		print_list(out, conv_dims(c, (ConvTensor)t, dims), dims);
	}
	for (int i = 0; i < c->spatial; i++)
		text_printf(out, "%s%lld", i ? "," : " stride [", (long long)c->axes[i].stride);
	for (int i = 0; i < c->spatial; i++)
		text_printf(out, "%s%lld", i ? "," : "] dilation [",
		            (long long)c->axes[i].dilation);
	for (int i = 0; i < c->spatial; i++)
		text_printf(out, "%s%lld", i ? "," : "] low [", (long long)c->axes[i].low);
	text_printf(out, "] groups %lld", (long long)c->groups);
}

/* ---- all kinds */
static const struct {
	bool (*read)(const int64_t *at, int n, LibraryWork *w);
	int64_t (*last)(const LibraryWork *w,
	                int i); /* element of operand i, counted from its first */
	void (*print)(Text *out, const LibraryWork *w);
} kinds[N_LIBRARY_KINDS] = {
	[LIBRARY_DOT] = {read_dot, dot_last, print_dot},
	[LIBRARY_CONV] = {read_conv, conv_last, print_conv},
	[LIBRARY_CONV_GRAD_INPUT] = {read_conv, conv_last, print_conv},
	[LIBRARY_CONV_GRAD_WEIGHT] = {read_conv, conv_last, print_conv},
};

/* How many numbers a bias has. */
static int64_t
bias_elements(const LibraryWork *w)
{
	return w->kind == LIBRARY_DOT ? w->dot.dims[LIBRARY_RESULT][w->dot.rank - 1]
	                              : w->conv.groups * w->conv.out;
}

int64_t
format_library_reach(const LibraryWork *w, int i)
{
	int64_t end = i == LIBRARY_BIAS ? bias_elements(w) - 1 : kinds[w->kind].last(w, i);

	if (end == INT64_MAX || !size_add(end, w->offset[i] + 1, &end) || end > INT64_MAX / 16)
		return INT64_MAX;
	return dtype_bytes(w->dtype, end);
}

Status
format_library_work(const Format *f, uint32_t record, LibraryWork *out)
{
	const LibraryRecord *r = &f->library[record];

	*out = (LibraryWork){.kind = (LibraryKind)r->kind, .dtype = (DType)r->dtype};
	if (r->kind < N_LIBRARY_KINDS && (r->dtype == F32 || r->dtype == BF16) &&
	    r->n > N_OPERAND_NUMBERS && in_range(r->first, r->n, f->n[SECTION_DIMS])) {
		const int64_t *at = f->dims + r->first;
		if (take_operands(&at, out) &&
		    kinds[r->kind].read(at, (int)r->n - N_OPERAND_NUMBERS, out))
			return NULL;
	}
	return FAULT("library call %u: no work of kind %u in %u numbers at %u", record, r->kind,
	             r->n, r->first);
}

/* Runs of the kernel with these slots: what the library touches lies inside them. */
Status
format_check_library(const Format *f, const KernelRecord *k, const Instruction *n)
{
	LibraryWork w;

	RETURN_IF_ERROR(format_library_work(f, k->library - 1, &w));
	for (int i = 0; i < library_operands(&w); i++) {
		int buffer = w.buffer[i] < 0 ? n->n_args - 1 : w.buffer[i];
		if (buffer < 0 || buffer >= n->n_args)
			return FAULT("library call %u: buffer %d of %u", k->library - 1, buffer,
			             n->n_args);
		int64_t reach = format_library_reach(&w, i);
		int64_t bytes = f->slots[f->arguments[n->args + (uint32_t)buffer].slot].bytes;
		if (reach > bytes)
			return FAULT("library call %u: %lld bytes of a slot of %lld",
			             k->library - 1, (long long)reach, (long long)bytes);
	}
	return NULL;
}

void
format_print_library(Text *out, const Format *f, uint32_t record)
{
	LibraryWork w;
	Status status = format_library_work(f, record, &w);

	if (status) {
		status_free(status);
		return;
	}
	text_printf(out, "%s %s", library_kind_names[w.kind], dtype_info[w.dtype].name);
	kinds[w.kind].print(out, &w);
	if (w.bias)
		text_printf(out, " bias [%lld]", (long long)bias_elements(&w));
}
