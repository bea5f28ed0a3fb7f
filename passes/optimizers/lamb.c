/* LAMB: You et al., arXiv:1904.00962, algorithm 2, without a limit on the norms (phi is the
 * identity). With Adam's moments and bias corrections c1 = 1 - beta1^t, c2 = 1 - beta2^t:
 *
 *	m = beta1 m + (1 - beta1) g
 *	v = beta2 v + (1 - beta2) g^2
 *	r = (m/c1) / (sqrt(v/c2) + eps) + wd p
 *	p = p - lr |p|/|r| r    if both norms are above 0
 *	p = p - lr r            otherwise
 *
 * As in timm and in BERT's reference, parameters without weight decay (biases, scales of norms)
 * always use the last line, unless always_adapt is set. */
#include "passes/pass.h"

typedef struct {
	bool always_adapt;
} LambSettings;

static const PassOption options[] = {
	{"always_adapt", "parameters without weight decay have the ratio of norms, too",
         OPTION_BOOL, offsetof(LambSettings, always_adapt)},
	{0}};

/* sqrt(sum x^2), f64[] */
static Value *
norm(Builder *b, Value *x)
{
	Value *sum = b_reduce(b, REDUCE_SUM, b_binary(b, OP_mul, x, x), (Ints){.n = 1, .at = {0}});

	return b_unary(b, OP_sqrt, b_cast(b, sum, F64));
}

/* |p|/|r|; 1 if one of the norms is 0 */
static Value *
ratio(Update *u, Value *r)
{
	Builder *b = u->b;
	Value *zero = update_number(u, 0), *one = update_number(u, 1);
	Value *of_p = norm(b, u->param), *of_r = norm(b, r);
	Value *both = b_binary(b, OP_and, b_binary(b, OP_gt, of_p, zero),
	                       b_binary(b, OP_gt, of_r, zero));

	return b_select(b, both, b_binary(b, OP_div, of_p, b_select(b, both, of_r, one)), one);
}

static void
lamb_update(Update *u)
{
	Builder *b = u->b;
	const LambSettings *s = u->settings;
	Value *m = update_average(u, update_scalar(u, SCALAR_BETA1), u->moment[0], u->grad);
	Value *v = update_average(u, update_scalar(u, SCALAR_BETA2), u->moment[1],
	                          b_binary(b, OP_mul, u->grad, u->grad));
	Value *first = b_binary(b, OP_div, m,
	                        update_spread(u, update_bias_correction(u, SCALAR_BETA1)));
	Value *second = b_binary(b, OP_div, v,
	                         update_spread(u, update_bias_correction(u, SCALAR_BETA2)));
	Value *root = b_binary(b, OP_add, b_unary(b, OP_sqrt, second),
	                       update_spread(u, update_scalar(u, SCALAR_EPS)));
	Value *r = b_binary(b, OP_add, b_binary(b, OP_div, first, root),
	                    update_times(u, u->decay, u->param));
	Value *rate = u->decays || s->always_adapt ? b_binary(b, OP_mul, u->lr, ratio(u, r))
	                                           : u->lr;

	u->new_param = b_binary(b, OP_sub, u->param, update_times(u, rate, r));
	u->new_moment[0] = m;
	u->new_moment[1] = v;
}

const OptimizerRow optimizer_lamb = {
	.name = "lamb",
	.doc = "Adam, with steps as long as the parameter",
	.defaults = "lr=0.001 beta1=0.9 beta2=0.999 eps=1e-06 weight_decay=0.01",
	.moments = {"exp_avg", "exp_avg_sq"},
	.update = lamb_update,
	.options = options,
	.options_size = sizeof(LambSettings)};
