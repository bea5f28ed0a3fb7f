/* Lion: Chen et al., arXiv:2302.06675, algorithm 2.
 *
 *	p = p (1 - lr wd) - lr sign(beta1 m + (1 - beta1) g)
 *	m = beta2 m + (1 - beta2) g */
#include "passes/pass.h"

static void
lion_update(Update *u)
{
	Builder *b = u->b;
	Value *beta1 = update_scalar(u, SCALAR_BETA1), *beta2 = update_scalar(u, SCALAR_BETA2);
	Value *direction = b_unary(b, OP_sign, update_average(u, beta1, u->moment[0], u->grad));

	u->new_param = b_binary(b, OP_sub, update_shrunk(u), update_times(u, u->lr, direction));
	u->new_moment[0] = update_average(u, beta2, u->moment[0], u->grad);
}

const OptimizerRow optimizer_lion = {.name = "lion",
                                     .doc = "signs of an average of gradients",
                                     .defaults = "lr=0.0001 beta1=0.9 beta2=0.99 weight_decay=0",
                                     .moments = {"exp_avg"},
                                     .update = lion_update};
