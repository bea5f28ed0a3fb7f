/* SGD, SGD with momentum and with Nesterov's momentum, as torch.optim.SGD:
 *
 *	g = g + wd p
 *	buf = momentum buf + (1 - dampening) g; in the first step buf = g
 *	sgd:       p = p - lr g
 *	momentum:  p = p - lr buf
 *	nesterov:  p = p - lr (g + momentum buf)
 *
 * Without dampening, a buffer that begins with zeros gives the right first step by itself. */
#include "passes/pass.h"

typedef struct {
	double dampening;
} SgdSettings;

static const PassOption options[] = {{"dampening",
                                      "share of a gradient that does not enter the buffer",
                                      OPTION_DOUBLE, offsetof(SgdSettings, dampening), 0, 1},
                                     {0}};

static void
step(Update *u, Value *direction)
{
	u->new_param = b_binary(u->b, OP_sub, u->param, update_times(u, u->lr, direction));
}

static Value *
buffer(Update *u, Value *g)
{
	Builder *b = u->b;
	double dampening = ((const SgdSettings *)u->settings)->dampening;
	Value *old = update_times(u, update_scalar(u, SCALAR_MOMENTUM), u->moment[0]);

	if (dampening) {
		Value *first = b_binary(b, OP_le, u->t, update_number(u, 1));
		g = update_times(
			u, b_select(b, first, update_number(u, 1), update_number(u, 1 - dampening)),
			g);
	}
	return u->new_moment[0] = b_binary(b, OP_add, old, g);
}

static void
sgd_update(Update *u)
{
	step(u, update_decayed(u));
}

static void
momentum_update(Update *u)
{
	step(u, buffer(u, update_decayed(u)));
}

static void
nesterov_update(Update *u)
{
	Value *g = update_decayed(u), *buf = buffer(u, g);

	step(u, b_binary(u->b, OP_add, g, update_times(u, update_scalar(u, SCALAR_MOMENTUM), buf)));
}

static const SgdSettings undamped = {0};
const OptimizerRow optimizer_sgd = {.name = "sgd",
                                    .doc = "gradient descent",
                                    .defaults = "lr=0.001 weight_decay=0",
                                    .update = sgd_update};
const OptimizerRow optimizer_momentum = {.name = "momentum",
                                         .doc = "SGD with momentum",
                                         .defaults = "lr=0.001 momentum=0.9 weight_decay=0",
                                         .moments = {"momentum_buffer"},
                                         .update = momentum_update,
                                         .options = options,
                                         .options_size = sizeof(SgdSettings),
                                         .settings = &undamped};
const OptimizerRow optimizer_nesterov = {.name = "nesterov",
                                         .doc = "SGD with Nesterov momentum",
                                         .defaults = "lr=0.001 momentum=0.9 weight_decay=0",
                                         .moments = {"momentum_buffer"},
                                         .update = nesterov_update,
                                         .options_size = sizeof(SgdSettings),
                                         .settings = &undamped};
