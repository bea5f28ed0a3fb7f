/* Schedule-free AdamW: Defazio et al., arXiv:2405.15682;
 * github.com/facebookresearch/schedule_free, AdamWScheduleFree. There are three points: z, which
 * the optimizer moves; x, an average of all z so far; and y between the two, at which gradients
 * are taken. x is the parameter: it is evaluated, saved and exported. With step t from 1, c2 = 1
 * - beta2^t, L the largest learning rate so far, w = t^r L^weight_lr_power, and W the sum of all
 * w so far:
 *
 *	v = beta2 v + (1 - beta2) g^2
 *	d = g / (sqrt(v/c2) + eps) + wd y
 *	z = z - lr d
 *	x = x + w/W (z - x)
 *	y = beta1 x + (1 - beta1) z
 *
 * y is computed as in that implementation:
 *
 *	y = y + w/W (z_old - y) + lr (beta1 (1 - w/W) - 1) d */
#include "passes/pass.h"

typedef struct {
	double r, weight_lr_power;
} ScheduleFreeSettings;

enum { STEPS, SQUARES, POINT };  /* moments: z, v, y */
enum { WEIGHT_SUM, LARGEST_LR }; /* numbers: W, L */

static const PassOption options[] = {
	{"r", "power of the update's number in the average's weights", OPTION_DOUBLE,
         offsetof(ScheduleFreeSettings, r), 0, 10},
	{"weight_lr_power", "power of the largest learning rate in these weights", OPTION_DOUBLE,
         offsetof(ScheduleFreeSettings, weight_lr_power), 0, 10},
	{0}};

/* x^power, for x >= 0 */
static Value *
to_power(Update *u, Value *x, double power)
{
	Builder *b = u->b;

	if (power == 0)
		return update_number(u, 1);
	if (power == 2)
		return b_binary(b, OP_mul, x, x);
	return b_unary(b, OP_exp,
	               b_binary(b, OP_mul, b_unary(b, OP_log, x), update_number(u, power)));
}

/* w/W; 0 if no learning rate was above 0 so far */
static Value *
share(Update *u)
{
	Builder *b = u->b;
	const ScheduleFreeSettings *s = u->settings;
	Value *zero = update_number(u, 0), *one = update_number(u, 1);
	Value *largest = b_binary(b, OP_max, u->numbers[LARGEST_LR], u->group_lr);
	Value *w = b_binary(b, OP_mul, to_power(u, u->t, s->r),
	                    to_power(u, largest, s->weight_lr_power));
	Value *sum = b_binary(b, OP_add, u->numbers[WEIGHT_SUM], w);
	Value *some = b_binary(b, OP_gt, sum, zero);

	u->new_numbers[WEIGHT_SUM] = sum;
	u->new_numbers[LARGEST_LR] = largest;
	return b_select(b, some, b_binary(b, OP_div, w, b_select(b, some, sum, one)), zero);
}

static void
schedule_free_update(Update *u)
{
	Builder *b = u->b;
	Value *one = update_number(u, 1), *c = share(u), *beta1 = update_scalar(u, SCALAR_BETA1);
	Value *v = update_average(u, update_scalar(u, SCALAR_BETA2), u->moment[SQUARES],
	                          b_binary(b, OP_mul, u->grad, u->grad));
	Value *corrected = b_binary(b, OP_div, v,
	                            update_spread(u, update_bias_correction(u, SCALAR_BETA2)));
	Value *root = b_binary(b, OP_add, b_unary(b, OP_sqrt, corrected),
	                       update_spread(u, update_scalar(u, SCALAR_EPS)));
	Value *d = b_binary(b, OP_add, b_binary(b, OP_div, u->grad, root),
	                    update_times(u, u->decay, u->moment[POINT]));
	Value *z = b_binary(b, OP_sub, u->moment[STEPS], update_times(u, u->lr, d));
	Value *rest = b_binary(b, OP_sub, one, c);
	Value *along = b_binary(b, OP_sub, b_binary(b, OP_mul, beta1, rest), one);
	Value *y = update_lerp(u, rest, u->moment[POINT], u->moment[STEPS]);

	u->new_moment[POINT] = b_binary(b, OP_add, y,
	                                update_times(u, b_binary(b, OP_mul, u->lr, along), d));
	u->new_moment[STEPS] = z;
	u->new_moment[SQUARES] = v;
	u->new_param = update_lerp(u, rest, u->param, z);
}

static const ScheduleFreeSettings settings = {.r = 0, .weight_lr_power = 2};
const OptimizerRow optimizer_schedule_free = {
	.name = "schedule-free",
	.doc = "AdamW whose average of all steps needs no schedule",
	.defaults = "lr=0.0025 beta1=0.9 beta2=0.999 eps=1e-08 weight_decay=0",
	.moments = {"z", "exp_avg_sq", "y"},
	.starts_as_parameter = 1u << STEPS | 1u << POINT,
	.gradient_at = 1u << POINT,
	.numbers = {{"weight_sum", 0}, {"lr_max", 0}},
	.update = schedule_free_update,
	.options = options,
	.options_size = sizeof(ScheduleFreeSettings),
	.settings = &settings};
