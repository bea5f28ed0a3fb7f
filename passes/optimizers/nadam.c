/* NAdam as torch.optim.NAdam: Dozat 2016. With step t from 1, c2 = 1 - beta2^t, u(t) = beta1 (1 -
 * 0.96^(t momentum_decay) / 2), and M the product u(1) u(2) ... u(t):
 *
 *	g = g + wd p
 *	m = m + (1 - beta1)(g - m)
 *	v = beta2 v + (1 - beta2) g^2
 *	d = sqrt(v/c2) + eps
 *	p = p - lr (1 - u(t)) / (1 - M) g/d - lr u(t+1) / (1 - M u(t+1)) m/d
 *
 * With the option `decoupled`, p = p (1 - lr wd) takes the place of the first line. */
#include "passes/pass.h"

#include <math.h>

typedef struct {
	double momentum_decay;
	bool decoupled;
} NadamSettings;

static const PassOption options[] = {
	{"momentum_decay", "how fast the momentum gets to beta1", OPTION_DOUBLE,
         offsetof(NadamSettings, momentum_decay), 0, 1e9},
	{"decoupled", "weight decay as AdamW's", OPTION_BOOL, offsetof(NadamSettings, decoupled)},
	{0}};

/* u(t) */
static Value *
momentum_at(Update *u, Value *t)
{
	Builder *b = u->b;
	double rate = log(0.96) * ((const NadamSettings *)u->settings)->momentum_decay;
	Value *power = b_unary(b, OP_exp, b_binary(b, OP_mul, t, update_number(u, rate)));
	Value *part = b_binary(b, OP_mul, power, update_number(u, 0.5));

	return b_binary(b, OP_mul, update_scalar(u, SCALAR_BETA1),
	                b_binary(b, OP_sub, update_number(u, 1), part));
}

/* lr x / (1 - product) */
static Value *
rate(Update *u, Value *x, Value *product)
{
	Builder *b = u->b;
	Value *rest = b_binary(b, OP_sub, update_number(u, 1), product);

	return b_binary(b, OP_div, b_binary(b, OP_mul, u->lr, x), rest);
}

static void
nadam_update(Update *u)
{
	Builder *b = u->b;
	bool decoupled = ((const NadamSettings *)u->settings)->decoupled;
	Value *one = update_number(u, 1), *beta1 = update_scalar(u, SCALAR_BETA1);
	Value *p = decoupled ? update_shrunk(u) : u->param;
	Value *g = decoupled ? u->grad : update_decayed(u);
	Value *here = momentum_at(u, u->t), *next = momentum_at(u, b_binary(b, OP_add, u->t, one));
	Value *product = b_binary(b, OP_mul, u->numbers[0], here);
	Value *m = update_lerp(u, beta1, u->moment[0], g);
	Value *v = update_average(u, update_scalar(u, SCALAR_BETA2), u->moment[1],
	                          b_binary(b, OP_mul, g, g));
	Value *corrected = b_binary(b, OP_div, v,
	                            update_spread(u, update_bias_correction(u, SCALAR_BETA2)));
	Value *d = b_binary(b, OP_add, b_unary(b, OP_sqrt, corrected),
	                    update_spread(u, update_scalar(u, SCALAR_EPS)));
	Value *of_g = rate(u, b_binary(b, OP_sub, one, here), product);
	Value *of_m = rate(u, next, b_binary(b, OP_mul, product, next));

	p = b_binary(b, OP_sub, p, update_times(u, of_g, b_binary(b, OP_div, g, d)));
	u->new_param = b_binary(b, OP_sub, p, update_times(u, of_m, b_binary(b, OP_div, m, d)));
	u->new_moment[0] = m;
	u->new_moment[1] = v;
	u->new_numbers[0] = product;
}

static const NadamSettings settings = {.momentum_decay = 0.004};
const OptimizerRow optimizer_nadam = {
	.name = "nadam",
	.doc = "Adam with Nesterov momentum",
	.defaults = "lr=0.002 beta1=0.9 beta2=0.999 eps=1e-08 weight_decay=0",
	.moments = {"exp_avg", "exp_avg_sq"},
	.numbers = {{"mu_product", 1}},
	.update = nadam_update,
	.options = options,
	.options_size = sizeof(NadamSettings),
	.settings = &settings};
