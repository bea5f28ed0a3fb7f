/* Det: https://onnx.ai/onnx/operators/onnx__Det.html, by elimination with complete pivoting. Let p
 * be the largest element of A, at row i and column j. Subtract multiples of row i from the other
 * rows so that column j becomes 0, and leave out row i and column j. The smaller matrix S = A' -
 * column row / p remains. Here A' is A without row i and column j, and `column` and `row` are column
 * j and row i without p. Then det A = (-1)^(i + j) p det S. A pivot is 0 only if all elements are 0.
 * So the gradient is right wherever the determinant is, even for singular matrices. */
#include "frontend/import/import.h"

enum { LARGEST = 256 };

/* Matrices [batch, size, size], with the position of each matrix's pivot. */
typedef struct {
	int64_t batch, size;
	Value *flat;         /* all elements as a vector */
	Value *row, *column; /* s64[batch] */
} Matrices;

/* The indices 0 .. size - 1 without left_out[b] for each batch, along an axis of [1, size - 1, size
 * - 1], or [1, size - 1]. */
static Value *
others(OnnxNode *n, const Matrices *m, Value *left_out, int axis, int rank)
{
	Ints shape = {.n = rank};

	for (int i = 0; i < rank; i++)
		shape.at[i] = i == axis ? m->size - 1 : 1;
	Value *at = e_iota(n, S64, shape, axis);
	Value *beyond = e_binary(n, OP_ge, at, e_column(n, left_out, rank));
	return e_binary(n, OP_add, at, e_cast(n, beyond, S64));
}

/* The elements at these rows and columns of each matrix. The indices are s64 [batch, ..] and
 * broadcast. */
static Value *
elements(OnnxNode *n, const Matrices *m, Value *row, Value *column)
{
	Value *at = e_binary(n, OP_add, e_with(n, OP_mul, row, (double)m->size), column);

	if (!at)
		return NULL;
	Ints first = {.n = at->type->rank};
	for (int i = 0; i < first.n; i++)
		first.at[i] = i == 0 ? m->batch : 1;
	Value *base = e_with(n, OP_mul, e_iota(n, S64, first, 0), (double)(m->size * m->size));
	return e_gather(n, m->flat, e_binary(n, OP_add, base, at), 0);
}

static Matrices
with_pivots(OnnxNode *n, Value *x)
{
	Matrices m = {.batch = x->type->dims[0], .size = x->type->dims[1]};
	Ints rows = {.n = 2, .at = {m.batch, m.size * m.size}};
	Value *size = e_unary(n, OP_stop_gradient, e_unary(n, OP_abs, e_reshape(n, x, rows)));
	Value *at = e_op(n, OP_argmax, 1, &size, &(AxisAttr){1});

	at = e_cast(n, at, S64);
	m.flat = e_flat(n, x);
	m.row = e_with(n, OP_div, at, (double)m.size);
	m.column = e_with(n, OP_rem, at, (double)m.size);
	return m;
}

/* S of each matrix; *pivot: [batch], with the sign. */
static Value *
eliminated(OnnxNode *n, const Matrices *m, Value **pivot)
{
	Value *p = elements(n, m, m->row, m->column), *zero = e_with(n, OP_eq, p, 0);
	Value *odd = e_with(n, OP_ne, e_with(n, OP_rem, e_binary(n, OP_add, m->row, m->column), 2),
	                    0);

	*pivot = p ? e_select(n, odd, e_unary(n, OP_neg, p), p) : NULL;
	if (m->size == 1 || !p)
		return NULL;
	Value *rest = elements(n, m, others(n, m, m->row, 1, 3), others(n, m, m->column, 2, 3));
	Value *column = elements(n, m, others(n, m, m->row, 1, 2), e_column(n, m->column, 2));
	Value *row = elements(n, m, e_column(n, m->row, 2), others(n, m, m->column, 1, 2));
	Value *divisor = e_column(n, e_select(n, zero, e_number(n, p, 1), p), 2);
	Ints tall = {.n = 3, .at = {m->batch, m->size - 1, 1}},
	     flat = {.n = 3, .at = {m->batch, 1, m->size - 1}};
	Value *factor = e_reshape(n, e_binary(n, OP_div, column, divisor), tall);
	return e_binary(n, OP_sub, rest, e_binary(n, OP_mul, factor, e_reshape(n, row, flat)));
}

static void
import_det(OnnxNode *n)
{
	Value *x = want_float_input(n, 0), *product = NULL, *pivot;

	if (!x)
		return;
	int rank = x->type->rank;
	Ints outer = shape_of(x);
	if (rank < 2 || outer.at[rank - 1] != outer.at[rank - 2]) {
		report_invalid(n, "needs square matrices, the input has rank %d%s", rank,
		               rank < 2 ? "" : " and is not square");
		return;
	}
	int64_t size = outer.at[rank - 1];
	if (size > LARGEST) {
		report_unsupported(n, "matrices of %lld rows, at most %d are supported",
		                   (long long)size, LARGEST);
		return;
	}
	outer.at[rank - 1] = outer.at[rank - 2] = 0;
	outer.n = rank - 2;
	int64_t batch = 1;
	for (int i = 0; i < outer.n; i++)
		batch *= outer.at[i];
	if (size == 0 || batch == 0) {
		set_output(n, 0, e_splat(n, x->type->dtype, outer, 1));
		return;
	}
	x = e_reshape(n, x, (Ints){.n = 3, .at = {batch, size, size}});
	while (x) {
		Matrices m = with_pivots(n, x);
		x = eliminated(n, &m, &pivot);
		product = product ? e_binary(n, OP_mul, product, pivot) : pivot;
	}
	set_output(n, 0, e_reshape(n, product, outer));
}

const ImportRow import_det_rows[] = {
	{"Det", 11, 0, import_det, {0}, NULL},
	{0},
};
