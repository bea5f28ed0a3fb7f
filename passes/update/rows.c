/* Helpers with which rows of optimizers build their updates. */
#include "passes/update/update.h"

Value *
update_scalar(Update *u, ScalarIndex index)
{
	return u->fixed ? number(u->b, u->fixed[index]) : function_hyperparameter(u->b->f, index);
}

Value *
update_spread(Update *u, Value *scalar)
{
	return spread(u->b, scalar, u->param->type);
}

Value *
update_number(Update *u, double x)
{
	return number(u->b, x);
}

Value *
update_times(Update *u, Value *x, Value *v)
{
	return b_binary(u->b, OP_mul, v, update_spread(u, x));
}

Value *
update_scaled(Update *u, double x, Value *v)
{
	return update_times(u, update_number(u, x), v);
}

Value *
update_decayed(Update *u)
{
	return b_binary(u->b, OP_add, u->grad, update_times(u, u->decay, u->param));
}

Value *
update_shrunk(Update *u)
{
	Value *less = b_binary(u->b, OP_mul, u->lr, u->decay);

	return update_times(u, b_binary(u->b, OP_sub, update_number(u, 1), less), u->param);
}

Value *
update_lerp(Update *u, Value *beta, Value *m, Value *x)
{
	Value *rest = b_binary(u->b, OP_sub, update_number(u, 1), beta);

	return b_binary(u->b, OP_add, m, update_times(u, rest, b_binary(u->b, OP_sub, x, m)));
}

Value *
update_average(Update *u, Value *beta, Value *m, Value *x)
{
	Value *rest = b_binary(u->b, OP_sub, update_number(u, 1), beta);

	return b_binary(u->b, OP_add, update_times(u, beta, m), update_times(u, rest, x));
}

/* 1 - beta^t, computed as -expm1(t log beta): for beta near 1, the subtraction would lose digits. */
Value *
update_bias_correction(Update *u, ScalarIndex beta)
{
	Builder *b = u->b;
	Value *power = b_binary(b, OP_mul, u->t, b_unary(b, OP_log, update_scalar(u, beta)));

	return b_unary(b, OP_neg, b_unary(b, OP_expm1, power));
}
