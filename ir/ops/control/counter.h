/* Selects the random number of each element of a result: a 32-bit word of the generator
 * philox4x32-10 with key seed ^ stream and counter (index, step). The index is the element's
 * place in the global tensor after its batch axis was moved to the front: (row, position in the
 * row). So an element gets the same number however the batch is divided into micro-batches or
 * among ranks, and also when it is computed again.
 *
 * An op that draws numbers has the operands seed, step and offset, each u64[], in this order. */
#ifndef GRADC_IR_OPS_COUNTER_H
#define GRADC_IR_OPS_COUNTER_H

#include "ir/ops/family.h"

enum { COUNTER_SEED, COUNTER_STEP, COUNTER_OFFSET, N_COUNTER_OPERANDS };

/* Fields of a RandomCounter that is a member of the attributes Attr. */
#define COUNTER_FIELDS(Attr, stream_is_optional)                                         \
	{"stream", FIELD_INT, offsetof(Attr, counter.stream), NULL, stream_is_optional}, \
		{"axis", FIELD_INT, offsetof(Attr, counter.axis), NULL, true},           \
	{                                                                                \
		"rows", FIELD_INT, offsetof(Attr, counter.rows), NULL, true              \
	}

/* Reports an error if an operand from number `first` on is not u64[], or if `rows` does not
 * divide the batch axis of `shape`. */
void infer_counter(Infer *in, int first, const RandomCounter *c, const Ints *shape);

/* What the interpreter prepares for one evaluation, so that the random words of any element of
 * the result can be computed from its index. */
typedef struct {
	uint64_t key, step, start;
	int rank;
	int64_t strides[MAX_RANK];
} Draws;
Draws eval_draws(const Eval *ev, int first, const RandomCounter *c, const Ints *shape);
Philox draw(const Draws *d, const int64_t *at);

/* The words that element `at` of n's result draws, as a u64: word 0 is the lower half, word 1 the upper half. */
LoopValue lower_draw(Lower *lw, const Node *n, int first, const RandomCounter *c, const Index *at);

#endif
