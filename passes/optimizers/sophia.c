/* Sophia-G: Liu et al., arXiv:2305.14342; github.com/Liuhong99/Sophia, sophia.py. h estimates the
 * diagonal of the Hessian (Gauss, Newton, Bartlett). For this, every `every` steps, gradients e
 * are computed with labels that are drawn from the model's own softmax. n is the number of
 * targets in the batch:
 *
 *	p = p (1 - lr wd)
 *	m = beta1 m + (1 - beta1) g
 *	p = p - lr sign(m) min(|m| / (rho n h + 1e-15), 1)
 *	after every `every` steps:  h = beta2 h + (1 - beta2) e^2 */
#include "passes/pass.h"

typedef struct {
	double rho;
	int64_t every;
} SophiaSettings;

enum { FIRST, CURVATURE };
enum { TARGETS };

static const PassOption options[] = {{"rho", "factor of the estimate that clips the step",
                                      OPTION_DOUBLE, offsetof(SophiaSettings, rho), 1e-30, 1e9},
                                     {"every", "steps from one estimate to the next", OPTION_INT,
                                      offsetof(SophiaSettings, every), 1, 1e9},
                                     {0}};

static int64_t
every(const void *settings)
{
	return ((const SophiaSettings *)settings)->every;
}

static void
sophia_update(Update *u)
{
	Builder *b = u->b;
	double rho = ((const SophiaSettings *)u->settings)->rho;
	Value *m = update_average(u, update_scalar(u, SCALAR_BETA1), u->moment[FIRST], u->grad);
	Value *factor = b_binary(b, OP_mul, u->numbers[TARGETS], update_number(u, rho));
	Value *curvature = b_binary(b, OP_add, update_times(u, factor, u->moment[CURVATURE]),
	                            update_spread(u, update_number(u, 1e-15)));
	Value *size = b_binary(b, OP_min, b_binary(b, OP_div, b_unary(b, OP_abs, m), curvature),
	                       update_spread(u, update_number(u, 1)));
	Value *step = b_binary(b, OP_mul, b_unary(b, OP_sign, m), size);

	u->new_param = b_binary(b, OP_sub, update_shrunk(u), update_times(u, u->lr, step));
	u->new_moment[FIRST] = m;
	u->new_moment[CURVATURE] = u->moment[CURVATURE];
	u->new_numbers[TARGETS] = u->numbers[TARGETS];
}

static void
sophia_refresh(Update *u)
{
	u->new_moment[CURVATURE] = update_average(u, update_scalar(u, SCALAR_BETA2),
	                                          u->moment[CURVATURE],
	                                          b_binary(u->b, OP_mul, u->grad, u->grad));
	u->new_numbers[TARGETS] = u->count;
}

static const SophiaSettings settings = {.rho = 0.04, .every = 10};
const OptimizerRow optimizer_sophia = {
	.name = "sophia",
	.doc = "steps clipped by an estimate of the Hessian's diagonal",
	.defaults = "lr=0.0001 beta1=0.965 beta2=0.99 weight_decay=0.1",
	.moments = {"exp_avg", "hessian"},
	.numbers = {{"targets", 1}},
	.update = sophia_update,
	.every = every,
	.refresh = sophia_refresh,
	.options = options,
	.options_size = sizeof(SophiaSettings),
	.settings = &settings};
