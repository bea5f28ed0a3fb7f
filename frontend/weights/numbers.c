/* Tensors of one element: decides which are learned (a logit scale) and which come from the model's
 * code (an epsilon). */
#include "frontend/weights/judge.h"
#include "frontend/weights/roles.h"

#include <math.h>

double
number(const Case *c)
{
	return c->w->data.data && c->w->data.n == 1
	               ? dtype_load_float(c->w->data.dtype, c->w->data.data, 0)
	               : 0;
}

/* Is x, or 1 / x, the root of a whole number? Attention and embeddings scale by such roots. Beyond
 * the usual number of channels f32 cannot tell whole numbers apart. */
bool
is_root_of_size(double x)
{
	double size = fabs(x) > 1 ? x * x : 1 / (x * x);

	return size > 1.5 && size < 1 << 16 && fabs(size - round(size)) < 1e-6 * size;
}

/* Is it a usual number of code: at most four digits (0.5, 1e-6), one over a small whole number (1 /
 * 6), or a constant of a usual formula? */
bool
is_number_of_code(double x)
{
	static const double known[] = {0.044715,          0.7978845608028654, 3.141592653589793,
	                               6.283185307179586, 0.6931471805599453, 1.4426950408889634};
	double size = fabs(x);

	if (size == 0 || is_root_of_size(x))
		return true;
	for (int i = 0; i < COUNT(known); i++)
		if (fabs(size - known[i]) < 1e-6 * size)
			return true;
	double digits = size * pow(10, 3 - floor(log10(size))), over = 1 / size;
	return fabs(digits - round(digits)) < 1e-6 * digits ||
	       (over < 1000 && fabs(over - round(over)) < 1e-6 * over);
}

/* Is the number added to a product, as the bias of one channel? */
static bool
is_bias(const Case *c)
{
	for (int i = 0; i < c->n; i++) {
		const NodeProto *p = c->readers[i].node->proto;
		if (!is_op(c->readers[i].node->proto, "Add") || p->n_input != 2)
			continue;
		const FlatNode *other = strmap_get(c->r->producers, p->input[!c->readers[i].input]);
		if (other && is_op(other->proto, "MatMul"))
			return true;
	}
	return false;
}

/* A tensor without elements; in a weight's place it may belong to a layer without channels. */
bool
rule_empty(Case *c)
{
	return c->w->data.n == 0 && !any_in(c, WEIGHT_PLACE);
}

/* A tensor of one element that is neither in a weight's place nor named like a learned number. */
bool
rule_scalar(Case *c)
{
	const Weight *w = c->w;

	if (w->data.n != 1)
		return false;
	if (w->data.rank > 0 && !name_is_private(w->name) &&
	    (any_in(c, WEIGHT_PLACE) || is_bias(c)))
		return false;
	return w->constant || w->origin || !name_is_learned_number(w->name) ||
	       (name_is_scale(w->name) && is_root_of_size(number(c)));
}
