/* RMSprop as torch.optim.RMSprop: Hinton's lecture 6e; centered: Graves, arXiv:1308.0850.
 *
 *	g = g + wd p
 *	v = alpha v + (1 - alpha) g^2
 *	d = g / (sqrt(v) + eps)
 *	p = p - lr d
 *
 * centered: a = a + (1 - alpha)(g - a), and v - a^2 takes the place of v in d. momentum: buf =
 * momentum buf + d, and buf takes the place of d in the last line. */
#include "passes/pass.h"

typedef struct {
	double alpha, momentum; /* momentum 0: no buffer */
	bool centered;
} RmspropSettings;

enum { SQUARE, MEAN, BUFFER };

static const PassOption options[] = {{"alpha", "decay of the average of squares", OPTION_DOUBLE,
                                      offsetof(RmspropSettings, alpha), 0, 1},
                                     {"momentum", "share of the earlier steps that stays",
                                      OPTION_DOUBLE, offsetof(RmspropSettings, momentum), 0, 1e9},
                                     {"centered", "divides by the standard deviation", OPTION_BOOL,
                                      offsetof(RmspropSettings, centered)},
                                     {0}};

static unsigned
without(const void *settings)
{
	const RmspropSettings *s = settings;

	return (s->centered ? 0 : 1u << MEAN) | (s->momentum != 0 ? 0 : 1u << BUFFER);
}

static void
rmsprop_update(Update *u)
{
	Builder *b = u->b;
	const RmspropSettings *s = u->settings;
	Value *g = update_decayed(u), *alpha = update_number(u, s->alpha);
	Value *square = update_average(u, alpha, u->moment[SQUARE], b_binary(b, OP_mul, g, g));
	Value *deviation = square;

	if (s->centered) {
		Value *mean = update_lerp(u, alpha, u->moment[MEAN], g);
		deviation = b_binary(b, OP_sub, square, b_binary(b, OP_mul, mean, mean));
		u->new_moment[MEAN] = mean;
	}
	Value *root = b_binary(b, OP_add, b_unary(b, OP_sqrt, deviation),
	                       update_spread(u, update_scalar(u, SCALAR_EPS)));
	Value *step = b_binary(b, OP_div, g, root);
	if (s->momentum != 0)
		u->new_moment[BUFFER] = step = b_binary(
			b, OP_add, update_scaled(u, s->momentum, u->moment[BUFFER]), step);
	u->new_param = b_binary(b, OP_sub, u->param, update_times(u, u->lr, step));
	u->new_moment[SQUARE] = square;
}

static const RmspropSettings settings = {.alpha = 0.99};
const OptimizerRow optimizer_rmsprop = {
	.name = "rmsprop",
	.doc = "steps divided by the root of averaged squared gradients",
	.defaults = "lr=0.01 eps=1e-08 weight_decay=0",
	.moments = {"square_avg", "grad_avg", "momentum_buffer"},
	.without = without,
	.update = rmsprop_update,
	.options = options,
	.options_size = sizeof(RmspropSettings),
	.settings = &settings};
