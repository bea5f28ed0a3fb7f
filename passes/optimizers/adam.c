/* Adam and AdamW as torch.optim: Kingma and Ba, arXiv:1412.6980; Loshchilov and Hutter,
 * arXiv:1711.05101. With t from 1 and bias corrections c1 = 1 - beta1^t, c2 = 1 - beta2^t:
 *   AdamW: p = p (1 - lr wd);   Adam: g = g + wd p
 *   m = m + (1 - beta1)(g - m);  v = beta2 v + (1 - beta2) g^2
 *   p = p - lr/c1 * m / (sqrt(v)/sqrt(c2) + eps) */
#include "passes/pass.h"

static Value *
one(Update *u)
{
	return b_splat(u->b, type_scalar(u->b->m, F64), 1);
}

static void
adam_step(Update *u, Value *p, Value *g)
{
	Builder *b = u->b;
	Value *beta1 = update_scalar(u, SCALAR_BETA1), *beta2 = update_scalar(u, SCALAR_BETA2);
	Value *m = u->moment[0], *v = u->moment[1];
	Value *lerp = b_binary(b, OP_mul, update_spread(u, b_binary(b, OP_sub, one(u), beta1)),
	                       b_binary(b, OP_sub, g, m));

	m = b_binary(b, OP_add, m, lerp);
	Value *g2 = b_binary(b, OP_mul, update_spread(u, b_binary(b, OP_sub, one(u), beta2)),
	                     b_binary(b, OP_mul, g, g));
	v = b_binary(b, OP_add, b_binary(b, OP_mul, v, update_spread(u, beta2)), g2);
	Value *root = b_unary(b, OP_sqrt, update_bias_correction(u, SCALAR_BETA2));
	Value *denominator = b_binary(b, OP_div, b_unary(b, OP_sqrt, v), update_spread(u, root));
	denominator = b_binary(b, OP_add, denominator,
	                       update_spread(u, update_scalar(u, SCALAR_EPS)));
	Value *step = b_binary(b, OP_div, u->lr, update_bias_correction(u, SCALAR_BETA1));
	Value *change = b_binary(b, OP_mul, update_spread(u, step),
	                         b_binary(b, OP_div, m, denominator));
	u->new_param = b_binary(b, OP_sub, p, change);
	u->new_moment[0] = m;
	u->new_moment[1] = v;
}

static void
adamw_update(Update *u)
{
	Builder *b = u->b;
	Value *keep = b_binary(b, OP_sub, one(u), b_binary(b, OP_mul, u->lr, u->decay));

	adam_step(u, b_binary(b, OP_mul, u->param, update_spread(u, keep)), u->grad);
}

static void
adam_update(Update *u)
{
	Builder *b = u->b;
	Value *pull = b_binary(b, OP_mul, u->param, update_spread(u, u->decay));

	adam_step(u, u->param, b_binary(b, OP_add, u->grad, pull));
}

const OptimizerRow optimizer_adamw = {
	.name = "adamw",
	.doc = "Adam with decoupled weight decay",
	.defaults = "lr=0.001 beta1=0.9 beta2=0.999 eps=1e-08 weight_decay=0.01",
	.moments = {"exp_avg", "exp_avg_sq"},
	.update = adamw_update};
const OptimizerRow optimizer_adam = {
	.name = "adam",
	.doc = "Adam, weight decay in the gradient",
	.defaults = "lr=0.001 beta1=0.9 beta2=0.999 eps=1e-08 weight_decay=0",
	.moments = {"exp_avg", "exp_avg_sq"},
	.update = adam_update};
