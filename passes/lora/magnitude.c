/* The learned magnitudes of DoRA (Liu et al. 2024, arXiv:2402.09353). A weight W with its adapter is V = W + s B A.
 * Each row of V is multiplied by magnitude / |V|, the learned magnitude over the row's norm. No gradient goes through
 * |V| (section 4.3 of the paper). V itself is never computed:
 *
 *	|V|^2 = |W|^2 + 2 s B . (W A') + s^2 B . (B A A')        row by row
 *
 * |W| is a constant, computed in f64 by the compiler. The magnitudes begin as |W|. While B is 0, |V| is sqrt(|W|^2),
 * which is exactly |W|, so the factor is exactly 1. */
#include "passes/lora/lora.h"

#include <math.h>

const Tensor *
lora_norms(Module *m, const Tensor *weight, int axis)
{
	Type t = weight->type;
	int64_t outputs = t->dims[axis], inner = 1;
	double *sum = NEW_ARRAY(m->arena, double, outputs);
	void *data = arena_alloc(m->arena, (size_t)dtype_bytes(t->dtype, outputs) + 1);

	for (int i = axis + 1; i < t->rank; i++)
		inner *= t->dims[i];
	for (int64_t i = 0; i < t->n; i++) {
		double x = tensor_float(weight, i);
		sum[i / inner % outputs] += x * x;
	}
	for (int64_t o = 0; o < outputs; o++)
		dtype_store_float(t->dtype, data, o, sqrt(sum[o]));
	return tensor_borrow(m, type_new(m, t->dtype, 1, &outputs), data);
}

static Value *
times(Builder *b, Value *x, double factor)
{
	return b_binary(b, OP_mul, x, b_splat(b, x->type, factor));
}

/* For each output, the dot product of its row in one matrix with its row in the other. */
static Value *
row_products(Builder *b, Value *x, Value *y)
{
	return b_reduce(b, REDUCE_SUM, b_binary(b, OP_mul, x, y), (Ints){.n = 1, .at = {1}});
}

Value *
lora_factor(Builder *b, const Adapter *a, const LoraUse *u)
{
	const Ints none = {0}, rank = {.n = 1, .at = {1}}, first = {.n = 1};
	Ints inputs = {0};
	double s = adapter_scale(a);

	for (int i = 0; i < u->weight->type->rank; i++)
		if (i != u->outputs)
			inputs.at[inputs.n++] = i;
	Value *across = b_dot(b, u->weight, u->down, none, none, inputs, inputs);
	Value *square = b_dot(b, u->down, u->down, none, none, inputs, inputs);
	Value *own = b_dot(b, u->up, square, none, none, rank, first);
	Value *norms = b_constant(b, a->magnitude->data);
	Value *sum = b_binary(b, OP_mul, norms, norms);
	sum = b_binary(b, OP_add, sum, times(b, row_products(b, across, u->up), 2 * s));
	sum = b_binary(b, OP_add, sum, times(b, row_products(b, own, u->up), s * s));
	sum = b_binary(b, OP_max, sum, b_splat(b, sum->type, LEAST_NORM_SQUARE));
	Value *norm = b_unary(b, OP_stop_gradient, b_unary(b, OP_sqrt, sum));
	return b_binary(b, OP_div, function_state(b->f, a->magnitude), norm);
}
