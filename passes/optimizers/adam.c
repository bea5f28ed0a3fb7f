/* Adam and AdamW as torch.optim: Kingma and Ba, arXiv:1412.6980; Loshchilov and Hutter,
 * arXiv:1711.05101. With step t from 1 and bias corrections c1 = 1 - beta1^t, c2 = 1 - beta2^t:
 *
 *	AdamW:  p = p (1 - lr wd)
 *	Adam:   g = g + wd p
 *	m = m + (1 - beta1)(g - m)
 *	v = beta2 v + (1 - beta2) g^2
 *	p = p - lr/c1 * m / (sqrt(v)/sqrt(c2) + eps)
 *
 * With amsgrad (Reddi et al., arXiv:1904.09237), the largest v so far takes the place of v in the
 * last line. */
#include "passes/pass.h"

enum { FIRST, SECOND, LARGEST }; /* moments */

typedef struct {
	bool amsgrad;
} AdamSettings;

static const PassOption options[] = {{"amsgrad", "divides by the largest second moment so far",
                                      OPTION_BOOL, offsetof(AdamSettings, amsgrad)},
                                     {0}};

static unsigned
without(const void *settings)
{
	return ((const AdamSettings *)settings)->amsgrad ? 0 : 1u << LARGEST;
}

static void
adam_step(Update *u, Value *p, Value *g)
{
	Builder *b = u->b;
	const AdamSettings *settings = u->settings;
	Value *beta1 = update_scalar(u, SCALAR_BETA1), *beta2 = update_scalar(u, SCALAR_BETA2);
	Value *m = update_lerp(u, beta1, u->moment[FIRST], g);
	Value *rest = b_binary(b, OP_sub, update_number(u, 1), beta2);
	Value *g2 = update_times(u, rest, b_binary(b, OP_mul, g, g));
	Value *v = b_binary(b, OP_add, update_times(u, beta2, u->moment[SECOND]), g2), *largest = v;
	if (settings->amsgrad)
		u->new_moment[LARGEST] = largest = b_binary(b, OP_max, u->moment[LARGEST], v);
	Value *root = b_unary(b, OP_sqrt, update_bias_correction(u, SCALAR_BETA2));
	Value *denominator = b_binary(b, OP_div, b_unary(b, OP_sqrt, largest),
	                              update_spread(u, root));
	denominator = b_binary(b, OP_add, denominator,
	                       update_spread(u, update_scalar(u, SCALAR_EPS)));
	Value *step = b_binary(b, OP_div, u->lr, update_bias_correction(u, SCALAR_BETA1));
	Value *change = update_times(u, step, b_binary(b, OP_div, m, denominator));
	u->new_param = b_binary(b, OP_sub, p, change);
	u->new_moment[FIRST] = m;
	u->new_moment[SECOND] = v;
}

static void
adamw_update(Update *u)
{
	adam_step(u, update_shrunk(u), u->grad);
}

static void
adam_update(Update *u)
{
	adam_step(u, u->param, update_decayed(u));
}

#define ADAM                                                                        \
	.moments = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}, .without = without, \
	.options = options, .options_size = sizeof(AdamSettings)
const OptimizerRow optimizer_adamw = {
	.name = "adamw",
	.doc = "Adam with decoupled weight decay",
	.defaults = "lr=0.001 beta1=0.9 beta2=0.999 eps=1e-08 weight_decay=0.01",
	.update = adamw_update,
	ADAM};
const OptimizerRow optimizer_adam = {
	.name = "adam",
	.doc = "Adam, weight decay in the gradient",
	.defaults = "lr=0.001 beta1=0.9 beta2=0.999 eps=1e-08 weight_decay=0",
	.update = adam_update,
	ADAM};
