/* Computes which random number each element of a result gets (counter.h), once for the
 * interpreter and once as loop IR. */
#include "ir/ops/control/counter.h"

void
infer_counter(Infer *in, int first, const RandomCounter *c, const Ints *shape)
{
	for (int i = first; i < first + N_COUNTER_OPERANDS; i++)
		if (!in->operand[i] || in->operand[i] != type_scalar(in->m, U64))
			infer_error(in, "seed, step and offset are u64[]");
	if (c->rows < 0 || (c->rows == 0 && c->axis != 0))
		infer_error(in,
		            "%lld rows along axis %lld: rows must be positive, or 0 with "
		            "axis 0",
		            (long long)c->rows, (long long)c->axis);
	if (c->rows > 0 && infer_axis(in, c->axis, shape->n) && shape->at[c->axis] % c->rows != 0)
		infer_error(in, "%lld rows do not divide an axis of %lld", (long long)c->rows,
		            (long long)shape->at[c->axis]);
}

/* strides[i]: by how much the counter of random numbers grows when the result's index along axis
 * i grows by 1. Returns by how much it grows from one row of the batch to the next; 0: no batch
 * axis. */
static int64_t
counter_strides(const RandomCounter *c, const Ints *shape, int64_t strides[MAX_RANK])
{
	int64_t stride = 1;

	for (int i = shape->n - 1; i >= 0; i--) {
		if (c->rows && i == c->axis)
			continue;
		strides[i] = stride;
		stride *= shape->at[i];
	}
	if (!c->rows)
		return 0;
	strides[c->axis] = stride;
	return shape->at[c->axis] / c->rows * stride;
}

Draws
eval_draws(const Eval *ev, int first, const RandomCounter *c, const Ints *shape)
{
	const EvalTensor *x = &ev->operand[first];
	Draws d = {.key = (uint64_t)x[COUNTER_SEED].i[0] ^ (uint64_t)c->stream,
	           .step = (uint64_t)x[COUNTER_STEP].i[0],
	           .rank = shape->n};

	d.start = (uint64_t)x[COUNTER_OFFSET].i[0] * (uint64_t)counter_strides(c, shape, d.strides);
	return d;
}

Philox
draw(const Draws *d, const int64_t *at)
{
	return philox_at(d->key, d->start + (uint64_t)flat_of(at, d->strides, d->rank), d->step);
}

LoopValue
lower_draw(Lower *lw, const Node *n, int first, const RandomCounter *c, const Index *at)
{
	LoopBuilder *lb = lw->lb;
	Ints shape = ints_of_type(node_result(n, 0)->type);
	Index none = {0};
	Affine place = affine_constant(0);
	LoopValue x[N_COUNTER_OPERANDS];
	int64_t strides[MAX_RANK], row = counter_strides(c, &shape, strides);

	for (int i = 0; i < N_COUNTER_OPERANDS; i++)
		x[i] = lower_element(lw, node_operand(n, first + i), &none);
	for (int i = 0; i < shape.n; i++)
		place = affine_add_scaled(lb, place, at->at[i], strides[i]);
	LoopValue start = lb_binary(lb, LOOP_mul, x[COUNTER_OFFSET], lb_int(lb, U64, row));
	LoopValue index = lb_binary(lb, LOOP_add, lb_cast(lb, U64, lb_affine(lb, place)), start);
	LoopValue key = lb_binary(lb, LOOP_xor, x[COUNTER_SEED], lb_int(lb, U64, c->stream));
	return lb_op(lb, LOOP_philox, U64, (LoopValue[]){key, index, x[COUNTER_STEP]});
}
