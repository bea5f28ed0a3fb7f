/* Imports MatMul and Gemm as one dot. The dot reads a weight in its own layout, without a transpose
 * or broadcast before it. */
#include "frontend/import/import.h"

#include <string.h>

/* Batch axes of x and y (all but the last two), broadcast to their common shape. */
static bool
match_batches(OnnxNode *n, Value **x, Value **y, Ints *batch)
{
	Ints xs = shape_of(*x), ys = shape_of(*y), other;
	int rx = xs.n, ry = ys.n;

	*batch = (Ints){.n = rx - 2};
	other = (Ints){.n = ry - 2};
	for (int i = 0; i < batch->n; i++)
		batch->at[i] = xs.at[i];
	for (int i = 0; i < other.n; i++)
		other.at[i] = ys.at[i];
	if (!broadcast_shapes(n, batch, other))
		return false;
	Ints xb = *batch, yb = *batch;
	for (int i = 0; i < 2; i++) {
		xb.at[xb.n++] = xs.at[rx - 2 + i];
		yb.at[yb.n++] = ys.at[ry - 2 + i];
	}
	*x = e_broadcast(n, *x, xb);
	*y = e_broadcast(n, *y, yb);
	return *x && *y;
}

/* x: [M,K], y: [..., K, N]. Computes the product [M, ..., N] and moves M after the batch axes. */
static Value *
matrix_by_batch(OnnxNode *n, Value *x, Value *y)
{
	int b = y->type->rank - 2;
	DotAttr a = {.x_contract = {.n = 1, .at = {1}}, .y_contract = {.n = 1, .at = {b}}};
	Ints order = {.n = b + 2};

	for (int i = 0; i < b; i++)
		order.at[i] = i + 1;
	order.at[b] = 0;
	order.at[b + 1] = b + 1;
	return e_transpose(n, e_dot(n, x, y, &a), order);
}

Value *
e_matmul(OnnxNode *n, Value *x, Value *y)
{
	if (!x || !y)
		return NULL;
	int rx = x->type->rank, ry = y->type->rank;
	int64_t k = ry ? y->type->dims[ry == 1 ? 0 : ry - 2] : 0;

	if (rx == 0 || ry == 0) {
		report_invalid(n, "a product needs rank 1 or more, operands have rank %d and %d",
		               rx, ry);
		return NULL;
	}
	if (x->type->dims[rx - 1] != k) {
		report_invalid(n, "inner dimensions differ: %lld and %lld",
		               (long long)x->type->dims[rx - 1], (long long)k);
		return NULL;
	}
	DotAttr a = {.x_contract = {.n = 1, .at = {rx - 1}}, .y_contract = {.n = 1}};
	if (ry <= 2)
		return e_dot(n, x, y, &a);
	if (rx == 1) {
		a.y_contract.at[0] = ry - 2;
		return e_dot(n, x, y, &a);
	}
	if (rx == 2)
		return matrix_by_batch(n, x, y);
	if (!match_batches(n, &x, &y, &a.x_batch))
		return NULL;
	int b = a.x_batch.n;
	a.x_batch = a.y_batch = ints_range(0, b);
	a.x_contract.at[0] = b + 1;
	a.y_contract.at[0] = b;
	return e_dot(n, x, y, &a);
}

static void
import_matmul(OnnxNode *n)
{
	Value *x = want_input(n, 0), *y = want_input(n, 1);

	set_output(n, 0, e_matmul(n, x, y));
}

/* alpha A' B' + beta C */
static Value *
gemm(OnnxNode *n)
{
	Value *x = want_input(n, 0), *y = want_input(n, 1);
	Value *c = has_input(n, 2) ? want_input(n, 2) : NULL;
	double alpha = want_float(n, "alpha", 1), beta = want_float(n, "beta", 1);
	int tx = want_int(n, "transA", 0) != 0, ty = want_int(n, "transB", 0) != 0;

	if (!x || !y)
		return NULL;
	if (x->type->rank != 2 || y->type->rank != 2) {
		report_invalid(n, "operands of rank %d and %d, need 2", x->type->rank,
		               y->type->rank);
		return NULL;
	}
	if (x->type->dims[!tx] != y->type->dims[ty]) {
		report_invalid(n, "inner dimensions differ: %lld and %lld",
		               (long long)x->type->dims[!tx], (long long)y->type->dims[ty]);
		return NULL;
	}
	DotAttr a = {.x_contract = {.n = 1, .at = {!tx}}, .y_contract = {.n = 1, .at = {ty}}};
	Value *z = e_dot(n, x, y, &a);
	if (alpha != 1)
		z = e_with(n, OP_mul, z, alpha);
	if (!z || !has_input(n, 2) || beta == 0)
		return z;
	if (beta != 1)
		c = e_with(n, OP_mul, c, beta);
	return e_binary(n, OP_add, z, e_broadcast(n, c, shape_of(z)));
}

static void
import_gemm(OnnxNode *n)
{
	set_output(n, 0, gemm(n));
}

/* ---- https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.FusedGemm */
static void
import_fused_gemm(OnnxNode *n)
{
	static const char *const names[] = {"activation_alpha", "activation_beta"};
	const char *activation = want_string(n, "activation", "");
	double numbers[2];
	int count = 0;

	while (count < 2 && has_attribute(n, names[count])) {
		numbers[count] = want_float(n, names[count], 0);
		count++;
	}
	if (!strcmp(activation, "Selu") && has_attribute(n, "activation_gamma")) {
		numbers[1] = want_float(n, "activation_gamma", 0);
		count += count == 1;
	}
	Value *y = gemm(n);
	set_output(n, 0, *activation ? e_curve(n, y, activation, count, numbers) : y);
}

/* transBatch: moves the first axis after the other batch axes. trans: swaps the last two axes. */
static Value *
arranged(OnnxNode *n, Value *x, bool batch, bool trans)
{
	Ints order = {0};
	int rank = x ? x->type->rank : 0;

	if (rank < 2)
		return x;
	for (int i = 0; i < rank; i++)
		order.at[order.n++] = batch && i < rank - 2 ? i + 1 : i;
	if (batch)
		order.at[rank - 2] = 0;
	if (trans) {
		int64_t last = order.at[rank - 1];
		order.at[rank - 1] = order.at[rank - 2];
		order.at[rank - 2] = last;
	}
	return e_transpose(n, x, order);
}

/* https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.FusedMatMul: alpha A' B' */
static void
import_fused_matmul(OnnxNode *n)
{
	double alpha = want_float(n, "alpha", 1);
	Value *x = want_input(n, 0), *y = want_input(n, 1), *z;

	x = arranged(n, x, want_int(n, "transBatchA", 0), want_int(n, "transA", 0));
	y = arranged(n, y, want_int(n, "transBatchB", 0), want_int(n, "transB", 0));
	z = e_matmul(n, x, y);
	set_output(n, 0, alpha == 1 ? z : e_with(n, OP_mul, z, alpha));
}

/* clang-format off */
const ImportRow import_matmul_rows[] = {
	/* name   from  to  importer  extra */
	{"MatMul", 1, 0, import_matmul,
	 .facts = {.weights = INPUTS(0, 1), .layer_inputs = INPUT(0),
	           .products = {{.weight = 1, .outputs = -1, .inputs = -2, .x_inputs = -1,
	                         .result = -1},
	                        {.weight = 0, .outputs = -2, .inputs = -1, .x_inputs = -2,
	                         .result = -2}}}},
	{"Gemm", 6, 0, import_gemm,
	 .facts = {.weights = INPUTS(0, 2), .layer_inputs = INPUT(0), .channels = INPUT(2),
	           .bias = 2,
	           .products = {{.weight = 1, .outputs = 1, .inputs = 0, .swapped_by = "transB",
	                         .x_inputs = -1, .result = -1},
	                        {.weight = 0, .outputs = 0, .inputs = 1, .swapped_by = "transA",
	                         .x_inputs = -2, .result = -2}}}},
	{"FusedGemm", 1, 0, import_fused_gemm, {0}, "com.microsoft",
	 .facts = {.weights = INPUTS(0, 2), .layer_inputs = INPUT(0)}},
	{"FusedMatMul", 1, 0, import_fused_matmul, {0}, "com.microsoft",
	 .facts = {.weights = INPUTS(0, 1), .layer_inputs = INPUT(0)}},
	{"TransposeMatMul", 1, 0, import_fused_matmul, {0}, "com.microsoft",
	 .facts = {.weights = INPUTS(0, 1)}},
	{0},
};
/* clang-format on */
