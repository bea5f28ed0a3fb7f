/* --lora GLOB,init=pissa: an adapter begins as the largest part of its weight, and the weight keeps the rest (Meng et
 * al. 2024, arXiv:2404.02948; peft/tuners/lora/layer.py, pissa_init). Let W = U diag(S) V', as [outputs, inputs], be
 * the singular value decomposition of the weight, r the adapter's rank, U_r, S_r and V_r the parts for the r largest
 * singular values, and s the product's factor. Then
 *
 *	B = U_r sqrt(S_r / s),  A = sqrt(S_r / s) V_r',  W becomes W - s B A
 *
 * Weight and adapter together are W as before, up to rounding. */
#include "passes/lora/lora.h"

#include <math.h>

static const Tensor *
tensor_of(Module *m, Type like, Ints shape, const double *numbers)
{
	Type t = type_new(m, like->dtype, shape.n, shape.at);
	void *data = arena_alloc(m->arena, (size_t)dtype_bytes(t->dtype, t->n) + 1);

	dtype_convert(t->dtype, data, F64, numbers, t->n);
	return tensor_borrow(m, t, data);
}

Status
lora_pissa(Module *m, const Tensor *weight, const LoraPlace *at, LoraParts *out)
{
	Type t = weight->type;
	Arena *scratch = arena_new();
	int64_t inputs = at->outputs ? t->n / at->outputs : 0, rank = at->rank;
	double *matrix = NEW_ARRAY(scratch, double, t->n), *rest = NEW_ARRAY(scratch, double, t->n);
	double *a = NEW_ARRAY(scratch, double, rank *inputs);
	double *b = NEW_ARRAY(scratch, double, at->outputs *rank);
	Ints shape = ints_of_type(t), second = {.n = 2, .at = {at->outputs, rank}};
	LoraPlace part = {at->axis, rank, at->outer, at->inner, rank, at->scale};
	Svd d;

	for (int64_t i = 0; i < t->n; i++)
		matrix[lora_place(at, i)] = tensor_float(weight, i);
	Status status = svd(scratch, at->outputs, inputs, matrix, &d);
	for (int64_t r = 0; !status && r < rank; r++) {
		double root = sqrt(d.s[r] / at->scale);
		for (int64_t i = 0; i < inputs; i++)
			a[r * inputs + i] = root * d.vt[r * inputs + i];
		for (int64_t o = 0; o < at->outputs; o++)
			b[o * rank + r] = root * d.u[o * d.n + r];
	}
	for (int64_t i = 0; !status && i < t->n; i++) {
		int64_t place = lora_place(at, i), o = place / inputs, k = place % inputs;
		rest[i] = tensor_float(weight, i);
		for (int64_t r = 0; r < rank; r++)
			rest[i] -= at->scale * b[o * rank + r] * a[r * inputs + k];
	}
	if (!status) {
		double *turned = NEW_ARRAY(scratch, double, rank *inputs);
		for (int64_t i = 0; i < rank * inputs; i++)
			turned[i] = a[lora_place(&part, i)];
		out->weight = tensor_of(m, t, shape, rest);
		shape.at[at->axis] = rank;
		out->a = tensor_of(m, t, shape, turned);
		out->b = tensor_of(m, t, second, b);
	}
	arena_free(scratch);
	return status;
}
