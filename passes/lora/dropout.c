/* Dropout of the inputs of an adapter (PEFT's lora_dropout), in training only. */
#include "passes/lora/lora.h"

#include <string.h>

/* Works as ONNX's Dropout (frontend/operators/nn/random.c): an element is kept if a uniform number is at least the
 * probability. */
Value *
lora_dropped(Builder *b, Value *x, double probability, const char *name, int axis, int64_t rows)
{
	Ints shape = ints_of_type(x->type);
	RandomAttr draw = {.dtype = x->type->dtype,
	                   .shape = shape,
	                   .counter.stream = (int64_t)hash_bytes(name, strlen(name), 0)};
	Value *operands[] = {function_hyperparameter(b->f, SCALAR_SEED),
	                     function_hyperparameter(b->f, SCALAR_STEP),
	                     function_hyperparameter(b->f, SCALAR_OFFSET)};

	if (axis >= 0 && shape.at[axis] % rows == 0) {
		draw.counter.axis = axis;
		draw.counter.rows = rows;
	}
	Value *u = build(b, OP_random, COUNT(operands), operands, &draw);
	Value *kept = b_binary(b, OP_ge, u, b_splat(b, u->type, probability));
	Value *scaled = b_binary(b, OP_mul, x, b_splat(b, x->type, 1 / (1 - probability)));
	return b_select(b, kept, scaled, b_splat(b, x->type, 0));
}
