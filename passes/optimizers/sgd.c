/* SGD, with momentum and with Nesterov's, as torch.optim.SGD without dampening:
 *   g = g + wd p;  buf = momentum buf + g
 *   sgd: p - lr g;  momentum: p - lr buf;  nesterov: p - lr (g + momentum buf)
 * A zero buffer at the start gives torch's first step, where buf = g. */
#include "passes/pass.h"

static Value *
decayed(Update *u)
{
	return b_binary(u->b, OP_add, u->grad,
	                b_binary(u->b, OP_mul, u->param, update_spread(u, u->decay)));
}

static void
step(Update *u, Value *direction)
{
	u->new_param = b_binary(u->b, OP_sub, u->param,
	                        b_binary(u->b, OP_mul, update_spread(u, u->lr), direction));
}

static Value *
buffer(Update *u, Value *g)
{
	Value *old = b_binary(u->b, OP_mul, u->moment[0],
	                      update_spread(u, update_scalar(u, SCALAR_MOMENTUM)));

	return u->new_moment[0] = b_binary(u->b, OP_add, old, g);
}

static void
sgd_update(Update *u)
{
	step(u, decayed(u));
}

static void
momentum_update(Update *u)
{
	step(u, buffer(u, decayed(u)));
}

static void
nesterov_update(Update *u)
{
	Value *g = decayed(u), *buf = buffer(u, g);
	Value *ahead = b_binary(u->b, OP_mul, buf,
	                        update_spread(u, update_scalar(u, SCALAR_MOMENTUM)));

	step(u, b_binary(u->b, OP_add, g, ahead));
}

const OptimizerRow optimizer_sgd = {.name = "sgd",
                                    .doc = "gradient descent",
                                    .defaults = "lr=0.001 weight_decay=0",
                                    .update = sgd_update};
const OptimizerRow optimizer_momentum = {.name = "momentum",
                                         .doc = "SGD with momentum",
                                         .defaults = "lr=0.001 momentum=0.9 weight_decay=0",
                                         .moments = {"momentum_buffer"},
                                         .update = momentum_update};
const OptimizerRow optimizer_nesterov = {.name = "nesterov",
                                         .doc = "SGD with Nesterov momentum",
                                         .defaults = "lr=0.001 momentum=0.9 weight_decay=0",
                                         .moments = {"momentum_buffer"},
                                         .update = nesterov_update};
