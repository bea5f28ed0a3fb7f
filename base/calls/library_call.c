/* Prints, reads and checks library calls (library_call.h), by a table of their fields. */
#include "base/calls/library_call.h"
#include "base/numbers/numbers.h"

#include <string.h>

_Static_assert(sizeof(LibraryOperand) == 2 * 4 + (2 + 2 * MAX_LIBRARY_RANK) * 8 &&
                       sizeof(LibraryCall) == 2 * 4 + (2 + 3 * MAX_LIBRARY_SPATIAL) * 8 +
                                                      N_LIBRARY_OPERANDS * sizeof(LibraryOperand),
               "calls are hashed and compared as bytes: nothing lies between their fields");

const char *const library_kind_names[] = {"dot", "conv", "conv_grad_input", "conv_grad_weight",
                                          NULL};
const char *const epilogue_names[] = {"none",          "bias",  "gelu",  "gelu_bias", "gelu_aux",
                                      "gelu_aux_bias", "dgelu", "bgrad", NULL};

/* One row per epilogue: the operands that it has and the operands that it writes (bit i: operand i); its FLOPs per
 * element of the result and per element of the second operand. A GELU has the FLOPs of op `gelu`. */
typedef struct {
	unsigned has, writes;
	int flops, flops_second;
} LibraryEpilogueRow;
#define HAS_BIAS (1u << LIBRARY_BIAS)
#define HAS_AUX (1u << LIBRARY_AUX)
static const LibraryEpilogueRow epilogues[N_EPILOGUES] = {
	[EPILOGUE_BIAS] = {HAS_BIAS, 0, 1, 0},
	[EPILOGUE_GELU] = {0, 0, 8, 0},
	[EPILOGUE_GELU_BIAS] = {HAS_BIAS, 0, 9, 0},
	[EPILOGUE_GELU_AUX] = {HAS_AUX, HAS_AUX, 8, 0},
	[EPILOGUE_GELU_AUX_BIAS] = {HAS_BIAS | HAS_AUX, HAS_AUX, 9, 0},
	[EPILOGUE_DGELU] = {HAS_AUX, 0, 16, 0},
	[EPILOGUE_BGRAD] = {HAS_BIAS, HAS_BIAS, 0, 1},
};

const ConvTensor library_conv_operands[N_LIBRARY_KINDS][3] = {
	[LIBRARY_CONV] = {CONV_X, CONV_W, CONV_Y},
	[LIBRARY_CONV_GRAD_INPUT] = {CONV_Y, CONV_W, CONV_X},
	[LIBRARY_CONV_GRAD_WEIGHT] = {CONV_X, CONV_Y, CONV_W},
};

/* ---- the fields */
#define DOT (1u << LIBRARY_DOT)
#define CONV (1u << LIBRARY_CONV)
#define GRAD_INPUT (1u << LIBRARY_CONV_GRAD_INPUT)
#define GRAD_WEIGHT (1u << LIBRARY_CONV_GRAD_WEIGHT)
#define CONVOLUTIONS (CONV | GRAD_INPUT | GRAD_WEIGHT)
#define OPERAND(name, kinds, number)                                                            \
	{                                                                                       \
		name, LIBRARY_OPERAND, kinds, offsetof(LibraryCall, operands[number]), 0, 0, -1 \
	}
#define FIELD(type, field, kinds, least, most, otherwise)                                 \
	{                                                                                 \
#field, type, kinds, offsetof(LibraryCall, field), least, most, otherwise \
	}

enum { MOST_SIZE_BITS = 40, MOST_STEP = INT32_MAX };
#define MOST_SIZE (INT64_C(1) << MOST_SIZE_BITS)

const LibraryField library_fields[] = {
	OPERAND("x", DOT | CONV | GRAD_WEIGHT, LIBRARY_FIRST),
	OPERAND("dy", GRAD_INPUT, LIBRARY_FIRST),
	OPERAND("y", DOT, LIBRARY_SECOND),
	OPERAND("w", CONV | GRAD_INPUT, LIBRARY_SECOND),
	OPERAND("dy", GRAD_WEIGHT, LIBRARY_SECOND),
	OPERAND("z", DOT, LIBRARY_RESULT),
	OPERAND("y", CONV, LIBRARY_RESULT),
	OPERAND("dx", GRAD_INPUT, LIBRARY_RESULT),
	OPERAND("dw", GRAD_WEIGHT, LIBRARY_RESULT),
	FIELD(LIBRARY_NUMBER, beta, DOT, 0, 1, 0),
	FIELD(LIBRARY_NUMBER, groups, CONVOLUTIONS, 1, MOST_SIZE, 1),
	FIELD(LIBRARY_AXES, stride, CONVOLUTIONS, 1, MOST_STEP, 1),
	FIELD(LIBRARY_AXES, dilation, CONVOLUTIONS, 1, MOST_STEP, 1),
	FIELD(LIBRARY_AXES, low, CONVOLUTIONS, 0, MOST_STEP, 0),
	FIELD(LIBRARY_EPILOGUE, epilogue, DOT | CONV, EPILOGUE_NONE, N_EPILOGUES - 1,
              EPILOGUE_NONE),
	OPERAND("bias", DOT | CONV, LIBRARY_BIAS),
	OPERAND("c", DOT, LIBRARY_ADDED),
	OPERAND("aux", DOT, LIBRARY_AUX),
	{0},
};

bool
library_has_operand(const LibraryCall *c, int i)
{
	bool dot = c->kind == LIBRARY_DOT;

	return i < LIBRARY_BIAS || (i == LIBRARY_ADDED && dot && c->beta != 0) ||
	       ((dot || i == LIBRARY_BIAS) && epilogues[c->epilogue].has >> i & 1);
}

bool
library_writes(const LibraryCall *c, int i)
{
	return i == LIBRARY_RESULT || epilogues[c->epilogue].writes >> i & 1;
}

bool
library_has_field(const LibraryCall *c, const LibraryField *f)
{
	size_t first = offsetof(LibraryCall, operands);
	bool there = f->type != LIBRARY_OPERAND ||
	             library_has_operand(c, (int)((f->offset - first) / sizeof(LibraryOperand)));

	return f->kinds >> c->kind & 1 && there;
}

int
library_kind_find(const char *name)
{
	for (int i = 0; library_kind_names[i]; i++)
		if (strcmp(library_kind_names[i], name) == 0)
			return i;
	return -1;
}

void
library_call_begin(LibraryCall *c, LibraryKind kind)
{
	memset(c, 0, sizeof(*c));
	c->kind = kind;
	for (const LibraryField *f = library_fields; f->name; f++) {
		int n = f->type == LIBRARY_AXES ? MAX_LIBRARY_SPATIAL : f->type == LIBRARY_NUMBER;
		for (int i = 0; i < n && library_has_field(c, f); i++)
			((int64_t *)((char *)c + f->offset))[i] = f->otherwise;
	}
}

/* ---- operands */
static void
dense_strides(const LibraryOperand *o, int64_t *strides)
{
	int64_t stride = 1;

	for (uint32_t i = o->rank; i-- > 0;) {
		strides[i] = stride;
		if (!size_mul(stride, o->dims[i], &stride))
			stride = INT64_MAX;
	}
}

void
library_dense(LibraryOperand *o)
{
	dense_strides(o, o->strides);
}

bool
library_is_dense(const LibraryOperand *o)
{
	int64_t strides[MAX_LIBRARY_RANK];

	dense_strides(o, strides);
	return memcmp(strides, o->strides, sizeof(*strides) * o->rank) == 0;
}

static void
channels_last_strides(const LibraryOperand *o, int64_t *strides)
{
	int64_t stride = o->dims[1];

	strides[1] = 1;
	for (uint32_t i = o->rank - 1; i > 1; i--) {
		strides[i] = stride;
		if (!size_mul(stride, o->dims[i], &stride))
			stride = INT64_MAX;
	}
	strides[0] = stride;
}

void
library_channels_last(LibraryOperand *o)
{
	channels_last_strides(o, o->strides);
}

bool
library_is_channels_last(const LibraryOperand *o)
{
	int64_t strides[MAX_LIBRARY_RANK];

	channels_last_strides(o, strides);
	return memcmp(strides, o->strides, sizeof(*strides) * o->rank) == 0;
}

/* The index of the operand's last element in the buffer. false: the index overflows. */
static bool
find_last(const LibraryOperand *o, int64_t *last)
{
	int64_t n = 1, step;

	*last = o->offset;
	for (uint32_t i = 0; i < o->rank; i++)
		if (!size_mul(n, o->dims[i], &n) ||
		    !size_mul(o->dims[i] - 1, o->strides[i], &step) || !size_add(*last, step, last))
			return false;
	return n <= INT64_MAX / 16 && *last < INT64_MAX / 16;
}

int64_t
library_reach(const LibraryOperand *o)
{
	int64_t last;

	return find_last(o, &last) ? dtype_bytes((DType)o->dtype, last + 1) : INT64_MAX;
}

/* ---- the axes of a dot */
/* For each axis and operand: the dimension, counted from the last; 0 if the operand does not have the axis. */
static const int from_last[N_PRODUCT_AXES][N_LIBRARY_OPERANDS] = {
	[PRODUCT_ROWS] =
		{[LIBRARY_FIRST] = 2, [LIBRARY_RESULT] = 2, [LIBRARY_ADDED] = 2, [LIBRARY_AUX] = 2},
	[PRODUCT_COLUMNS] = {[LIBRARY_SECOND] = 1,
                             [LIBRARY_RESULT] = 1,
                             [LIBRARY_BIAS] = 1,
                             [LIBRARY_ADDED] = 1,
                             [LIBRARY_AUX] = 1},
	[PRODUCT_INNER] = {[LIBRARY_FIRST] = 1, [LIBRARY_SECOND] = 2},
};

int
library_axis_dim(const LibraryCall *c, int i, ProductAxis axis)
{
	bool has = library_has_operand(c, i) && from_last[axis][i];

	return has ? (int)c->operands[i].rank - from_last[axis][i] : -1;
}

int64_t
library_axis_size(const LibraryCall *c, ProductAxis axis)
{
	int with = axis == PRODUCT_COLUMNS ? LIBRARY_SECOND : LIBRARY_FIRST;

	return c->operands[with].dims[library_axis_dim(c, with, axis)];
}

int64_t
library_axis_padded(const LibraryCall *c, ProductAxis axis, int64_t alignment)
{
	int64_t multiple = 1;

	for (int i = 0; i < N_LIBRARY_OPERANDS; i++) {
		const LibraryOperand *o = &c->operands[i];
		int dim = library_axis_dim(c, i, axis);
		int64_t elements = alignment * 8 / dtype_info[o->dtype].bits;
		if (dim >= 0 && o->strides[dim] == 1 && elements > multiple)
			multiple = elements;
	}
	return (library_axis_size(c, axis) + multiple - 1) / multiple * multiple;
}

/* ---- validity of a call */
static bool
is_size(int64_t x, int64_t least)
{
	return x >= least && x <= MOST_SIZE;
}

static bool
check_operand(const LibraryOperand *o, const char *name, Text *why)
{
	int64_t last;

	if (o->dtype >= N_DTYPES || !dtype_is_float((DType)o->dtype) ||
	    dtype_info[o->dtype].bits < 8) {
		text_printf(why, "%s has dtype %u", name, o->dtype);
		return false;
	}
	if (o->rank < 1 || o->rank > MAX_LIBRARY_RANK || o->buffer < 0 || !is_size(o->offset, 0)) {
		text_printf(why, "%s has rank %u, buffer %lld, offset %lld", name, o->rank,
		            (long long)o->buffer, (long long)o->offset);
		return false;
	}
	for (uint32_t i = 0; i < o->rank; i++)
		if (!is_size(o->dims[i], 1) || !is_size(o->strides[i], 1)) {
			text_printf(why, "axis %u of %s has size %lld, stride %lld", i, name,
			            (long long)o->dims[i], (long long)o->strides[i]);
			return false;
		}
	if (!find_last(o, &last)) {
		text_printf(why, "%s has too many elements", name);
		return false;
	}
	return true;
}

static bool
check_numbers(const LibraryField *f, int n, const int64_t *at, Text *why)
{
	for (int i = 0; i < n; i++)
		if (at[i] < f->least || at[i] > f->most) {
			text_printf(why, "%s is %lld", f->name, (long long)at[i]);
			return false;
		}
	return true;
}

static int
spatial_axes(const LibraryCall *c)
{
	return (int)c->operands[LIBRARY_FIRST].rank - 2;
}

static bool
check_field(const LibraryCall *c, const LibraryField *f, Text *why)
{
	const void *at = (const char *)c + f->offset;

	switch (f->type) {
	case LIBRARY_OPERAND: return check_operand(at, f->name, why);
	case LIBRARY_NUMBER: return check_numbers(f, 1, at, why);
	case LIBRARY_AXES: return check_numbers(f, spatial_axes(c), at, why);
	default: return true; /* the epilogue was checked before the other fields */
	}
}

static bool
is_bias_of(const LibraryCall *c, int64_t n)
{
	const LibraryOperand *b = &c->operands[LIBRARY_BIAS];

	return !library_has_operand(c, LIBRARY_BIAS) ||
	       (b->rank == 1 && b->dims[0] == n && b->strides[0] == 1);
}

/* Do both operands have the same type, dimensions and strides? */
static bool
is_like(const LibraryOperand *a, const LibraryOperand *b)
{
	return a->dtype == b->dtype && a->rank == b->rank &&
	       memcmp(a->dims, b->dims, sizeof(*a->dims) * a->rank) == 0 &&
	       memcmp(a->strides, b->strides, sizeof(*a->strides) * a->rank) == 0;
}

bool
library_adds_in_place(const LibraryCall *c)
{
	const LibraryOperand *a = &c->operands[LIBRARY_ADDED], *z = &c->operands[LIBRARY_RESULT];

	return c->beta && a->buffer == z->buffer && a->offset == z->offset;
}

bool
library_writes_apart(const LibraryCall *c)
{
	for (int i = 0; i < N_LIBRARY_OPERANDS; i++)
		for (int j = 0; j < N_LIBRARY_OPERANDS; j++) {
			bool in_place = i == LIBRARY_RESULT && j == LIBRARY_ADDED &&
			                library_adds_in_place(c);
			if (i != j && !in_place && library_has_operand(c, i) &&
			    library_has_operand(c, j) && library_writes(c, i) &&
			    c->operands[i].buffer == c->operands[j].buffer)
				return false;
		}
	return true;
}

/* Are the operands x[batch.., m, k], y[batch.., k, n] and z[batch.., m, n]? */
static bool
dot_agrees(const LibraryCall *c)
{
	const LibraryOperand *x = &c->operands[LIBRARY_FIRST], *y = &c->operands[LIBRARY_SECOND];
	const LibraryOperand *z = &c->operands[LIBRARY_RESULT];
	uint32_t row = z->rank - 2, column = z->rank - 1;

	if (z->rank < 2 || x->rank != z->rank || y->rank != z->rank)
		return false;
	for (uint32_t i = 0; i < row; i++)
		if (x->dims[i] != z->dims[i] || y->dims[i] != z->dims[i])
			return false;
	return x->dims[row] == z->dims[row] && y->dims[column] == z->dims[column] &&
	       x->dims[column] == y->dims[row] && is_bias_of(c, z->dims[column]) &&
	       (!c->beta || is_like(&c->operands[LIBRARY_ADDED], z)) &&
	       (!library_has_operand(c, LIBRARY_AUX) || is_like(&c->operands[LIBRARY_AUX], z)) &&
	       (c->epilogue != EPILOGUE_BGRAD || z->rank == 2);
}

/* The operands as x, w and y of the convolution. */
static void
by_tensor(const LibraryCall *c, const LibraryOperand *out[CONV_Y + 1])
{
	for (int i = LIBRARY_FIRST; i <= LIBRARY_RESULT; i++)
		out[library_conv_operands[c->kind][i]] = &c->operands[i];
}

static bool
conv_agrees(const LibraryCall *c)
{
	const LibraryOperand *t[CONV_Y + 1];
	int64_t in;

	by_tensor(c, t);
	for (int i = CONV_X; i <= CONV_Y; i++)
		if (t[i]->rank != t[CONV_X]->rank || t[i]->rank < 3)
			return false;
	if (!library_is_dense(t[CONV_W]) ||
	    !((library_is_dense(t[CONV_X]) && library_is_dense(t[CONV_Y])) ||
	      (library_is_channels_last(t[CONV_X]) && library_is_channels_last(t[CONV_Y]))))
		return false;
	return t[CONV_X]->dims[0] == t[CONV_Y]->dims[0] &&
	       t[CONV_W]->dims[0] == t[CONV_Y]->dims[1] &&
	       size_mul(c->groups, t[CONV_W]->dims[1], &in) && in == t[CONV_X]->dims[1] &&
	       t[CONV_W]->dims[0] % c->groups == 0 && is_bias_of(c, t[CONV_Y]->dims[1]);
}

/* Do the places where windows begin and end fit into int64? */
static bool
windows_fit(const LibraryCall *c)
{
	const LibraryOperand *t[CONV_Y + 1];
	int64_t first, last;

	by_tensor(c, t);
	for (int i = 0; i < spatial_axes(c); i++)
		if (!size_mul(t[CONV_Y]->dims[i + 2] - 1, c->stride[i], &first) ||
		    !size_mul(t[CONV_W]->dims[i + 2] - 1, c->dilation[i], &last) ||
		    !size_add(first, last, &last) || last == INT64_MAX)
			return false;
	return true;
}

bool
library_call_check(const LibraryCall *c, Text *why)
{
	if (c->kind >= N_LIBRARY_KINDS || c->epilogue >= N_EPILOGUES ||
	    (c->epilogue && c->kind != LIBRARY_DOT &&
	     (c->kind != LIBRARY_CONV || c->epilogue != EPILOGUE_BIAS))) {
		text_printf(why, "kind %u, epilogue %u", c->kind, c->epilogue);
		return false;
	}
	if (c->kind != LIBRARY_DOT && c->beta) {
		text_printf(why, "kind %u, beta %lld", c->kind, (long long)c->beta);
		return false;
	}
	if (c->operands[LIBRARY_FIRST].rank < 2) {
		text_printf(why, "rank %u", c->operands[LIBRARY_FIRST].rank);
		return false;
	}
	for (const LibraryField *f = library_fields; f->name; f++)
		if (library_has_field(c, f) && !check_field(c, f, why))
			return false;
	if (c->kind == LIBRARY_DOT ? dot_agrees(c) : conv_agrees(c) && windows_fit(c))
		return true;
	text_add(why, "its shapes are not those of a ");
	text_add(why, library_kind_names[c->kind]);
	return false;
}

/* ---- text */
static void
print_list(Text *out, int n, const int64_t *at)
{
	for (int i = 0; i < n; i++)
		text_printf(out, "%s%lld", i ? "," : "[", (long long)at[i]);
	text_add(out, "]");
}

static void
print_operand(Text *out, const LibraryOperand *o, const char *(*name)(const void *, int64_t),
              const void *ctx)
{
	text_add(out, dtype_info[o->dtype].name);
	print_list(out, (int)o->rank, o->dims);
	if (name)
		text_printf(out, " at %s", name(ctx, o->buffer));
	else
		text_printf(out, " at %lld", (long long)o->buffer);
	if (o->offset)
		text_printf(out, "+%lld", (long long)o->offset);
	if (!library_is_dense(o)) {
		text_add(out, " by ");
		print_list(out, (int)o->rank, o->strides);
	}
}

/* Does the field have its default value, which the text leaves out? */
static bool
is_usual(const LibraryField *f, int n, const int64_t *at)
{
	for (int i = 0; i < n; i++)
		if (at[i] != f->otherwise)
			return false;
	return true;
}

void
library_call_print(Text *out, const LibraryCall *c,
                   const char *(*name)(const void *ctx, int64_t buffer), const void *ctx)
{
	const char *before = " {";

	text_add(out, library_kind_names[c->kind]);
	for (const LibraryField *f = library_fields; f->name; f++) {
		const void *at = (const char *)c + f->offset;
		int n = f->type == LIBRARY_AXES ? spatial_axes(c) : f->type == LIBRARY_NUMBER;
		if (!library_has_field(c, f) || (n > 0 && is_usual(f, n, at)) ||
		    (f->type == LIBRARY_EPILOGUE && c->epilogue == EPILOGUE_NONE))
			continue;
		text_printf(out, "%s%s = ", before, f->name);
		before = ", ";
		if (f->type == LIBRARY_OPERAND)
			print_operand(out, at, name, ctx);
		else if (f->type == LIBRARY_EPILOGUE)
			text_add(out, epilogue_names[c->epilogue]);
		else if (f->type == LIBRARY_AXES)
			print_list(out, n, at);
		else
			text_printf(out, "%lld", (long long)*(const int64_t *)at);
	}
	text_add(out, "}");
}

/* ---- convolutions */
ConvSizes
library_conv_sizes(const LibraryCall *c)
{
	const LibraryOperand *t[CONV_Y + 1];
	ConvSizes s = {.spatial = spatial_axes(c), .groups = c->groups};

	by_tensor(c, t);
	s.batch = t[CONV_X]->dims[0];
	s.in = t[CONV_W]->dims[1];
	s.out = t[CONV_W]->dims[0] / c->groups;
	for (int i = 0; i < s.spatial; i++)
		s.axes[i] = (ConvAxis){t[CONV_X]->dims[i + 2], t[CONV_W]->dims[i + 2],
		                       t[CONV_Y]->dims[i + 2], c->stride[i],
		                       c->dilation[i],         c->low[i]};
	return s;
}

/* ---- FLOPs and bytes */
static double
count_elements(const LibraryOperand *o)
{
	double n = 1;

	for (uint32_t i = 0; i < o->rank; i++)
		n *= (double)o->dims[i];
	return n;
}

double
library_flops(const LibraryCall *c)
{
	const LibraryOperand *x = &c->operands[LIBRARY_FIRST], *t[CONV_Y + 1];
	double results = count_elements(&c->operands[LIBRARY_RESULT]);
	const LibraryEpilogueRow *e = &epilogues[c->epilogue];
	double added = e->flops + (c->beta != 0);

	if (c->kind == LIBRARY_DOT)
		return results * (2 * (double)x->dims[x->rank - 1] + added) +
		       e->flops_second * count_elements(&c->operands[LIBRARY_SECOND]);
	by_tensor(c, t);
	return 2 * count_elements(t[CONV_Y]) * count_elements(t[CONV_W]) /
	               (double)t[CONV_W]->dims[0] +
	       results * added;
}

double
library_operand_bytes(const LibraryOperand *o)
{
	return count_elements(o) * dtype_info[o->dtype].bits / 8;
}

double
library_bytes(const LibraryCall *c)
{
	double bytes = 0;

	for (int i = 0; i < N_LIBRARY_OPERANDS; i++) {
		const LibraryOperand *o = &c->operands[i];
		if (library_has_operand(c, i))
			bytes += library_operand_bytes(o);
	}
	return bytes;
}
