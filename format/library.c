/* What libraries do, read from the tables' numbers and checked. */
#include "format/format_impl.h"

const char *const library_kind_names[] = {"dot", NULL};

enum { DOT_X, DOT_Y, DOT_Z };

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

static void
set_dims(LibraryDot *d, int i, int n_batch, const int64_t *sizes, int row, int column)
{
	for (int b = 0; b < n_batch; b++)
		d->dims[i][b] = sizes[b];
	d->dims[i][n_batch] = sizes[n_batch + row];
	d->dims[i][n_batch + 1] = sizes[n_batch + column];
}

static bool
read_dot(const int64_t *at, int n, LibraryDot *d)
{
	int64_t n_batch, buffer, sizes[MAX_LIBRARY_RANK + 1];

	if (n < 1 || !take(&at, 1, 0, &n_batch) || n_batch > MAX_LIBRARY_BATCH_AXES ||
	    n != 14 + 4 * n_batch)
		return false;
	d->rank = (int)n_batch + 2;
	d->buffer[DOT_Z] = -1;
	for (int i = DOT_X; i <= DOT_Y; i++) {
		if (!take(&at, 1, 0, &buffer) || buffer > UINT16_MAX ||
		    !take(&at, 1, 0, &d->offset[i]))
			return false;
		d->buffer[i] = (int)buffer;
	}
	if (!take(&at, d->rank + 1, 1, sizes))
		return false;
	set_dims(d, DOT_X, (int)n_batch, sizes, 0, 2);
	set_dims(d, DOT_Y, (int)n_batch, sizes, 2, 1);
	set_dims(d, DOT_Z, (int)n_batch, sizes, 0, 1);
	for (int i = DOT_X; i <= DOT_Z; i++)
		if (!take(&at, d->rank, 1, d->strides[i]))
			return false;
	return true;
}

int64_t
format_dot_reach(const LibraryDot *d, int i)
{
	int64_t last = d->offset[i];

	for (int k = 0; k < d->rank; k++) {
		int64_t most;
		if (!size_mul(d->dims[i][k] - 1, d->strides[i][k], &most) ||
		    !size_add(last, most, &last))
			return INT64_MAX;
	}
	return last > INT64_MAX / 16 ? INT64_MAX : dtype_bytes(d->dtype, last + 1);
}

Status
format_library_dot(const Format *f, uint32_t record, LibraryDot *out)
{
	const LibraryRecord *r = &f->library[record];

	*out = (LibraryDot){.dtype = (DType)r->dtype};
	if ((r->dtype != F32 && r->dtype != BF16) ||
	    !in_range(r->first, r->n, f->n[SECTION_DIMS]) ||
	    !read_dot(f->dims + r->first, (int)r->n, out))
		return FAULT("library call %u: no product of f32 or bf16 in %u numbers at %u",
		             record, r->n, r->first);
	return NULL;
}

/* Runs of the kernel with these slots: what the library touches lies inside them. */
Status
format_check_library(const Format *f, const KernelRecord *k, const Instruction *n)
{
	LibraryDot d;

	RETURN_IF_ERROR(format_library_dot(f, k->library - 1, &d));
	for (int i = DOT_X; i <= DOT_Z; i++) {
		int buffer = d.buffer[i] < 0 ? n->n_args - 1 : d.buffer[i];
		if (buffer < 0 || buffer >= n->n_args)
			return FAULT("library call %u: buffer %d of %u", k->library - 1, buffer,
			             n->n_args);
		int64_t reach = format_dot_reach(&d, i);
		int64_t bytes = f->slots[f->arguments[n->args + (uint32_t)buffer].slot].bytes;
		if (reach > bytes)
			return FAULT("library call %u: %lld bytes of a slot of %lld",
			             k->library - 1, (long long)reach, (long long)bytes);
	}
	return NULL;
}

static void
print_list(Text *out, int n, const int64_t *at)
{
	for (int i = 0; i < n; i++)
		text_printf(out, "%s%lld", i ? "," : "[", (long long)at[i]);
	text_add(out, "]");
}

void
format_print_library(Text *out, const Format *f, uint32_t record)
{
	static const char *const names[] = {"x", "y", "z"};
	LibraryDot d;
	Status status = format_library_dot(f, record, &d);

	if (status) {
		status_free(status);
		return;
	}
	text_printf(out, "dot %s", dtype_info[d.dtype].name);
	for (int i = DOT_X; i <= DOT_Z; i++) {
		text_printf(out, " %s", names[i]);
		print_list(out, d.rank, d.dims[i]);
		text_add(out, " by ");
		print_list(out, d.rank, d.strides[i]);
	}
}
