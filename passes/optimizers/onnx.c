/* The optimizers of ONNX's domain ai.onnx.preview.training, as its operators Adam, Adagrad and
 * Momentum define them (onnx/reference/ops). T is the number of updates before this one, from 0.
 * gradc's hyperparameter weight_decay is ONNX's norm_coefficient. All three begin with
 *
 *	g = g + weight_decay p
 *
 *	Adam:      V = beta1 V + (1 - beta1) g
 *	           H = beta2 H + (1 - beta2) g^2
 *	           R = lr in the first update, then lr sqrt(1 - beta2^T) / (1 - beta1^T)
 *	           p = (1 - norm_coefficient_post) (p - R V / (sqrt(H) + eps))
 *
 *	Adagrad:   H = H + g^2
 *	           p = p - lr / (1 + T decay_factor) g / (sqrt(H) + eps)
 *
 *	Momentum:  V = alpha V + beta g; in the first update V = alpha V + g
 *	           p = p - lr V; with nesterov p = p - lr (g + alpha V) */
#include "passes/pass.h"

typedef struct {
	double norm_coefficient_post, decay_factor, beta;
	bool nesterov;
} OnnxSettings;

static Value *
done(Update *u)
{
	return b_binary(u->b, OP_sub, u->t, update_number(u, 1));
}

/* 1 - beta^T; 1 in the first update. */
static Value *
correction(Update *u, ScalarIndex beta)
{
	Builder *b = u->b;
	Value *power = b_binary(b, OP_mul, done(u), b_unary(b, OP_log, update_scalar(u, beta)));
	Value *c = b_unary(b, OP_neg, b_unary(b, OP_expm1, power));
	Value *any = b_binary(b, OP_gt, done(u), update_number(u, 0));

	return b_select(b, any, c, update_number(u, 1));
}

/* sqrt(x) + eps */
static Value *
root(Update *u, Value *x)
{
	return b_binary(u->b, OP_add, b_unary(u->b, OP_sqrt, x),
	                update_spread(u, update_scalar(u, SCALAR_EPS)));
}

static void
adam_update(Update *u)
{
	Builder *b = u->b;
	double post = ((const OnnxSettings *)u->settings)->norm_coefficient_post;
	Value *g = update_decayed(u);
	Value *v = update_average(u, update_scalar(u, SCALAR_BETA1), u->moment[0], g);
	Value *h = update_average(u, update_scalar(u, SCALAR_BETA2), u->moment[1],
	                          b_binary(b, OP_mul, g, g));
	Value *rate = b_binary(b, OP_mul, u->lr, b_unary(b, OP_sqrt, correction(u, SCALAR_BETA2)));
	rate = b_binary(b, OP_div, rate, correction(u, SCALAR_BETA1));
	Value *p = b_binary(b, OP_sub, u->param,
	                    update_times(u, rate, b_binary(b, OP_div, v, root(u, h))));

	u->new_param = post ? update_scaled(u, 1 - post, p) : p;
	u->new_moment[0] = v;
	u->new_moment[1] = h;
}

static void
adagrad_update(Update *u)
{
	Builder *b = u->b;
	double factor = ((const OnnxSettings *)u->settings)->decay_factor;
	Value *g = update_decayed(u);
	Value *h = b_binary(b, OP_add, u->moment[0], b_binary(b, OP_mul, g, g));
	Value *slower = b_binary(b, OP_add, update_number(u, 1),
	                         b_binary(b, OP_mul, done(u), update_number(u, factor)));
	Value *change = update_times(u, b_binary(b, OP_div, u->lr, slower),
	                             b_binary(b, OP_div, g, root(u, h)));

	u->new_param = b_binary(b, OP_sub, u->param, change);
	u->new_moment[0] = h;
}

static void
momentum_update(Update *u)
{
	Builder *b = u->b;
	const OnnxSettings *s = u->settings;
	Value *alpha = update_scalar(u, SCALAR_MOMENTUM), *g = update_decayed(u);
	Value *any = b_binary(b, OP_gt, done(u), update_number(u, 0));
	Value *beta = b_select(b, any, update_number(u, s->beta), update_number(u, 1));
	Value *v = b_binary(b, OP_add, update_times(u, alpha, u->moment[0]),
	                    update_times(u, beta, g));
	Value *ahead = s->nesterov ? b_binary(b, OP_add, g, update_times(u, alpha, v)) : v;

	u->new_param = b_binary(b, OP_sub, u->param, update_times(u, u->lr, ahead));
	u->new_moment[0] = v;
}

static const OnnxSettings settings = {.beta = 1};
#define SETTINGS(table) \
	.options = table, .options_size = sizeof(OnnxSettings), .settings = &settings
static const PassOption of_adam[] = {{"norm_coefficient_post",
                                      "decay of the parameter after the update", OPTION_DOUBLE,
                                      offsetof(OnnxSettings, norm_coefficient_post), 0, 1},
                                     {0}};
static const PassOption of_adagrad[] = {
	{"decay_factor", "lr is divided by 1 + decay_factor * (number of earlier updates)",
         OPTION_DOUBLE, offsetof(OnnxSettings, decay_factor), 0, 1e9},
	{0}};
static const PassOption of_momentum[] = {
	{"beta", "factor of the gradient after the first update", OPTION_DOUBLE,
         offsetof(OnnxSettings, beta), 0, 1e9},
	{"nesterov", "Nesterov momentum", OPTION_BOOL, offsetof(OnnxSettings, nesterov)},
	{0}};
const OptimizerRow optimizer_onnx_adam = {
	.name = "onnx-adam",
	.doc = "ONNX's operator Adam",
	.defaults = "lr=0.001 beta1=0.9 beta2=0.999 eps=1e-06 weight_decay=0",
	.moments = {"V", "H"},
	.update = adam_update,
	SETTINGS(of_adam)};
const OptimizerRow optimizer_onnx_adagrad = {.name = "onnx-adagrad",
                                             .doc = "ONNX's operator Adagrad",
                                             .defaults = "lr=0.01 eps=1e-06 weight_decay=0",
                                             .moments = {"H"},
                                             .update = adagrad_update,
                                             SETTINGS(of_adagrad)};
const OptimizerRow optimizer_onnx_momentum = {.name = "onnx-momentum",
                                              .doc = "ONNX's operator Momentum",
                                              .defaults = "lr=0.001 momentum=0.9 weight_decay=0",
                                              .moments = {"V"},
                                              .update = momentum_update,
                                              SETTINGS(of_momentum)};
