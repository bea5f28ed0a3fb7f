/* Adadelta as torch.optim.Adadelta: Zeiler, arXiv:1212.5701. p: the parameter; g: its gradient;
 * wd: weight decay; v and a: moments that begin at 0.
 *
 *	g = g + wd p
 *	v = rho v + (1 - rho) g^2
 *	d = sqrt(a + eps) / sqrt(v + eps) g
 *	a = rho a + (1 - rho) d^2
 *	p = p - lr d */
#include "passes/pass.h"

typedef struct {
	double rho;
} AdadeltaSettings;

static const PassOption options[] = {{"rho", "decay of the averages of squares", OPTION_DOUBLE,
                                      offsetof(AdadeltaSettings, rho), 0, 1},
                                     {0}};

static Value *
root(Update *u, Value *x)
{
	Value *eps = update_spread(u, update_scalar(u, SCALAR_EPS));

	return b_unary(u->b, OP_sqrt, b_binary(u->b, OP_add, x, eps));
}

static void
adadelta_update(Update *u)
{
	Builder *b = u->b;
	Value *rho = update_number(u, ((const AdadeltaSettings *)u->settings)->rho);
	Value *g = update_decayed(u);
	Value *v = update_average(u, rho, u->moment[0], b_binary(b, OP_mul, g, g));
	Value *ratio = b_binary(b, OP_div, root(u, u->moment[1]), root(u, v));
	Value *delta = b_binary(b, OP_mul, ratio, g);

	u->new_param = b_binary(b, OP_sub, u->param, update_times(u, u->lr, delta));
	u->new_moment[0] = v;
	u->new_moment[1] = update_average(u, rho, u->moment[1], b_binary(b, OP_mul, delta, delta));
}

static const AdadeltaSettings settings = {.rho = 0.9};
const OptimizerRow optimizer_adadelta = {.name = "adadelta",
                                         .doc = "steps as large as the earlier steps",
                                         .defaults = "lr=1 eps=1e-06 weight_decay=0",
                                         .moments = {"square_avg", "acc_delta"},
                                         .update = adadelta_update,
                                         .options = options,
                                         .options_size = sizeof(AdadeltaSettings),
                                         .settings = &settings};
