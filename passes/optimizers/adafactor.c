/* Adafactor as torch.optim.Adafactor: Shazeer and Stern, arXiv:1804.04235. The second moment of a
 * matrix is stored as the means of its rows (R) and of its columns (C). With step t from 1, b =
 * t^beta2_decay, rms(x) = sqrt(mean x^2), and e1 the eps of the update's type (torch: of the
 * weight's type):
 *
 *	a = max(eps, rms(p)) min(lr, 1/sqrt(t))
 *	p = p (1 - lr wd)
 *	matrices (the last two axes):
 *	    R = R + b (mean of g^2 over columns - R)
 *	    C = C + b (mean of g^2 over rows - C)
 *	    v = R C / max(mean of R, e1)
 *	other parameters:
 *	    v = v + b (g^2 - v)
 *	u = g / sqrt(max(v, e1^2))
 *	p = p - a u / max(1, rms(u)/d) */
#include "passes/pass.h"

#include <float.h>
#include <math.h>

typedef struct {
	double beta2_decay, d;
} AdafactorSettings;

enum { ROWS, COLUMNS, VARIANCE };

static const PassOption options[] = {
	{"beta2_decay", "new squares have weight t^beta2_decay, t the update's number",
         OPTION_DOUBLE, offsetof(AdafactorSettings, beta2_decay), -1e9, 0},
	{"d", "largest root mean square of an update before it is multiplied by the learning rate",
         OPTION_DOUBLE, offsetof(AdafactorSettings, d), 1e-9, 1e9},
	{0}};

/* [.., rows, 1] and [.., 1, columns] of a matrix */
static Type
moment_type(Module *m, const void *settings, Type param, int moment)
{
	Ints dims = ints_of_type(param);

	(void)settings;
	if (param->rank < 2 || moment == VARIANCE)
		return param->rank < 2 && moment == VARIANCE ? param : NULL;
	dims.at[dims.n - (moment == ROWS ? 1 : 2)] = 1;
	return type_new(m, param->dtype, dims.n, dims.at);
}

static Value *
splat(Update *u, Value *like, Value *scalar)
{
	return b_broadcast(u->b, b_cast(u->b, scalar, like->type->dtype), ints_of_type(like->type),
	                   (Ints){0});
}

/* The mean over one axis, which stays with length 1. */
static Value *
mean(Update *u, Value *x, int axis)
{
	Builder *b = u->b;
	Ints kept = ints_of_type(x->type);
	double n = (double)kept.at[axis];

	kept.at[axis] = 1;
	Value *sum = b_reshape(b, b_reduce(b, REDUCE_SUM, x, (Ints){.n = 1, .at = {axis}}), kept);
	return b_binary(b, OP_div, sum, splat(u, sum, update_number(u, n)));
}

/* sqrt(mean x^2), f64[] */
static Value *
rms(Update *u, Value *x)
{
	Builder *b = u->b;
	Ints axes = {.n = x->type->rank};

	for (int i = 0; i < axes.n; i++)
		axes.at[i] = i;
	Value *sum = b_reduce(b, REDUCE_SUM, b_binary(b, OP_mul, x, x), axes);
	return b_unary(
		b, OP_sqrt,
		b_binary(b, OP_div, b_cast(b, sum, F64), update_number(u, (double)x->type->n)));
}

/* m + by (x - m) */
static Value *
moved(Update *u, Value *m, Value *x, Value *by)
{
	Builder *b = u->b;

	return b_binary(b, OP_add, m,
	                b_binary(b, OP_mul, splat(u, m, by), b_binary(b, OP_sub, x, m)));
}

static double
smallest(const Update *u)
{
	return u->param->type->dtype == F64 ? DBL_EPSILON : FLT_EPSILON;
}

static Value *
factored(Update *u, Value *squares, Value *by)
{
	Builder *b = u->b;
	int last = u->param->type->rank - 1;
	Ints shape = ints_of_type(u->param->type);
	Value *rows = moved(u, u->moment[ROWS], mean(u, squares, last), by);
	Value *columns = moved(u, u->moment[COLUMNS], mean(u, squares, last - 1), by);
	Value *whole = mean(u, rows, last - 1);

	u->new_moment[ROWS] = rows;
	u->new_moment[COLUMNS] = columns;
	whole = b_binary(b, OP_max, whole, splat(u, whole, update_number(u, smallest(u))));
	Value *product = b_binary(b, OP_mul, b_broadcast_to(b, rows, shape),
	                          b_broadcast_to(b, columns, shape));
	return b_binary(b, OP_div, product, b_broadcast_to(b, whole, shape));
}

static void
adafactor_update(Update *u)
{
	Builder *b = u->b;
	const AdafactorSettings *s = u->settings;
	Value *one = update_number(u, 1), *e = update_number(u, smallest(u) * smallest(u));
	Value *log_t = b_unary(b, OP_log, u->t);
	Value *by = b_unary(b, OP_exp,
	                    b_binary(b, OP_mul, log_t, update_number(u, s->beta2_decay)));
	Value *squares = b_binary(b, OP_mul, u->grad, u->grad), *v;
	Value *rho = b_binary(b, OP_min, u->lr,
	                      b_binary(b, OP_div, one, b_unary(b, OP_sqrt, u->t)));
	Value *size = b_binary(b, OP_max, update_scalar(u, SCALAR_EPS), rms(u, u->param));

	if (u->moment[VARIANCE])
		v = u->new_moment[VARIANCE] = moved(u, u->moment[VARIANCE], squares, by);
	else
		v = factored(u, squares, by);
	v = b_binary(b, OP_max, v, splat(u, v, e));
	Value *step = b_binary(b, OP_div, u->grad, b_unary(b, OP_sqrt, v));
	Value *over = b_binary(b, OP_div, rms(u, step), update_number(u, s->d));
	Value *rate = b_binary(b, OP_div, b_binary(b, OP_mul, size, rho),
	                       b_binary(b, OP_max, one, over));
	u->new_param = b_binary(b, OP_sub, update_shrunk(u), update_times(u, rate, step));
}

static const AdafactorSettings settings = {.beta2_decay = -0.8, .d = 1};
const OptimizerRow optimizer_adafactor = {.name = "adafactor",
                                          .doc = "second moments of matrices by rows and columns",
                                          .defaults = "lr=0.01 eps=0.001 weight_decay=0",
                                          .moments = {"row_var", "col_var", "variance"},
                                          .moment_type = moment_type,
                                          .whole = true,
                                          .update = adafactor_update,
                                          .options = options,
                                          .options_size = sizeof(AdafactorSettings),
                                          .settings = &settings};
