/* RAdam as torch.optim.RAdam: Liu et al., arXiv:1908.03265. With step t from 1, c1 = 1 - beta1^t,
 * c2 = 1 - beta2^t, R = 2/(1 - beta2) - 1 and r = R - 2 t beta2^t / c2:
 *
 *	g = g + wd p
 *	m = m + (1 - beta1)(g - m)
 *	v = beta2 v + (1 - beta2) g^2
 *	r > 5:      p = p - lr m/c1 sqrt(c2) / (sqrt(v) + eps) sqrt((r-4)(r-2)R / ((R-4)(R-2)r))
 *	otherwise:  p = p - lr m/c1
 *
 * With the option `decoupled`, p = p (1 - lr wd) takes the place of the first line. */
#include "passes/pass.h"

typedef struct {
	bool decoupled;
} RadamSettings;

static const PassOption options[] = {
	{"decoupled", "weight decay as AdamW's", OPTION_BOOL, offsetof(RadamSettings, decoupled)},
	{0}};

/* (x - 4)(x - 2) y */
static Value *
length(Update *u, Value *x, Value *y)
{
	Builder *b = u->b;
	Value *four = b_binary(b, OP_sub, x, update_number(u, 4));
	Value *two = b_binary(b, OP_sub, x, update_number(u, 2));

	return b_binary(b, OP_mul, b_binary(b, OP_mul, four, two), y);
}

/* f64[]: sqrt(c2) times the rectification. *applies: bool[], is the step rectified? */
static Value *
rectification(Update *u, Value **applies)
{
	Builder *b = u->b;
	Value *one = update_number(u, 1), *two = update_number(u, 2), *five = update_number(u, 5);
	Value *beta2 = update_scalar(u, SCALAR_BETA2),
	      *c2 = update_bias_correction(u, SCALAR_BETA2);
	Value *most = b_binary(b, OP_sub, b_binary(b, OP_div, two, b_binary(b, OP_sub, one, beta2)),
	                       one);
	Value *power = b_binary(b, OP_sub, one, c2);
	Value *less = b_binary(b, OP_div,
	                       b_binary(b, OP_mul, b_binary(b, OP_mul, two, u->t), power), c2);
	Value *r = b_binary(b, OP_sub, most, less);

	*applies = b_binary(b, OP_gt, r, five);
	r = b_select(b, *applies, r, five);
	Value *ratio = b_binary(b, OP_div, length(u, r, most), length(u, most, r));
	return b_unary(b, OP_sqrt, b_binary(b, OP_mul, ratio, c2));
}

static void
radam_update(Update *u)
{
	Builder *b = u->b;
	bool decoupled = ((const RadamSettings *)u->settings)->decoupled;
	Value *beta1 = update_scalar(u, SCALAR_BETA1), *applies;
	Value *p = decoupled ? update_shrunk(u) : u->param;
	Value *g = decoupled ? u->grad : update_decayed(u);
	Value *m = update_lerp(u, beta1, u->moment[0], g);
	Value *v = update_average(u, update_scalar(u, SCALAR_BETA2), u->moment[1],
	                          b_binary(b, OP_mul, g, g));
	Value *rectified = rectification(u, &applies);
	Value *step = b_binary(b, OP_div, u->lr, update_bias_correction(u, SCALAR_BETA1));
	Value *root = b_binary(b, OP_add, b_unary(b, OP_sqrt, v),
	                       update_spread(u, update_scalar(u, SCALAR_EPS)));
	Value *adaptive = update_times(u, b_binary(b, OP_mul, step, rectified),
	                               b_binary(b, OP_div, m, root));
	Value *mask = b_broadcast(b, applies, ints_of_type(p->type), (Ints){0});

	u->new_param = b_binary(b, OP_sub, p,
	                        b_select(b, mask, adaptive, update_times(u, step, m)));
	u->new_moment[0] = m;
	u->new_moment[1] = v;
}

static const RadamSettings settings = {0};
const OptimizerRow optimizer_radam = {
	.name = "radam",
	.doc = "Adam that begins like SGD",
	.defaults = "lr=0.001 beta1=0.9 beta2=0.999 eps=1e-08 weight_decay=0",
	.moments = {"exp_avg", "exp_avg_sq"},
	.update = radam_update,
	.options = options,
	.options_size = sizeof(RadamSettings),
	.settings = &settings};
