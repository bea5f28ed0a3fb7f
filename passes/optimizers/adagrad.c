/* Adagrad as torch.optim.Adagrad: Duchi, Hazan and Singer 2011. With step t from 1:
 *
 *	g = g + wd p
 *	sum = sum + g^2
 *	p = p - lr/(1 + (t - 1) lr_decay) g / (sqrt(sum) + eps) */
#include "passes/pass.h"

typedef struct {
	double lr_decay;
} AdagradSettings;

static const PassOption options[] = {{"lr_decay",
                                      "lr is divided by 1 + lr_decay * (number of earlier updates)",
                                      OPTION_DOUBLE, offsetof(AdagradSettings, lr_decay), 0, 1e9},
                                     {0}};

static void
adagrad_update(Update *u)
{
	Builder *b = u->b;
	double decay = ((const AdagradSettings *)u->settings)->lr_decay;
	Value *g = update_decayed(u), *one = update_number(u, 1);
	Value *done = b_binary(b, OP_sub, u->t, one);
	Value *slower = b_binary(b, OP_add, one,
	                         b_binary(b, OP_mul, done, update_number(u, decay)));
	Value *sum = b_binary(b, OP_add, u->moment[0], b_binary(b, OP_mul, g, g));
	Value *root = b_binary(b, OP_add, b_unary(b, OP_sqrt, sum),
	                       update_spread(u, update_scalar(u, SCALAR_EPS)));
	Value *change = update_times(u, b_binary(b, OP_div, u->lr, slower),
	                             b_binary(b, OP_div, g, root));

	u->new_param = b_binary(b, OP_sub, u->param, change);
	u->new_moment[0] = sum;
}

static const AdagradSettings settings = {0};
const OptimizerRow optimizer_adagrad = {
	.name = "adagrad",
	.doc = "steps divided by the root of summed squared gradients",
	.defaults = "lr=0.01 eps=1e-10 weight_decay=0",
	.moments = {"sum"},
	.update = adagrad_update,
	.options = options,
	.options_size = sizeof(AdagradSettings),
	.settings = &settings};
