/* Imports Adam, Adagrad and Momentum of ai.onnx.preview.training. Each operator computes one update
 * of an optimizer. https://onnx.ai/onnx/operators/onnx_aionnxpreviewtraining_Adam.html Inputs: rate
 * R, number T of earlier updates, then the tensors X1, X2 ..., their gradients, and each kind of
 * moment. Outputs: the new tensors and moments. */
#include "frontend/import/import.h"

#include <string.h>

#define TRAINING "ai.onnx.preview.training"

enum { MAX_MOMENTS = 2 };
typedef struct {
	Value *rate, *count;         /* scalars, of x's type */
	Value *x, *g;                /* g: gradient with regularization */
	Value *moments[MAX_MOMENTS]; /* old moments, then the new ones */
	Value *updated;
} Update;
typedef void UpdateRule(OnnxNode *n, Update *u);

static Value *
scaled(OnnxNode *n, Value *x, double by)
{
	return e_with(n, OP_mul, x, by);
}

/* a x + b y */
static Value *
mixed(OnnxNode *n, double a, Value *x, double b, Value *y)
{
	return e_binary(n, OP_add, scaled(n, x, a), scaled(n, y, b));
}

static Value *
square(OnnxNode *n, Value *x)
{
	return e_binary(n, OP_mul, x, x);
}

/* 1 - base^t; t > 0 */
static Value *
one_minus_power(OnnxNode *n, double base, Value *t)
{
	return e_with(n, OP_add, e_unary(n, OP_neg, e_binary(n, OP_pow, e_number(n, t, base), t)),
	              1);
}

static Value *
is_positive(OnnxNode *n, Value *t)
{
	return e_with(n, OP_gt, t, 0);
}

/* x - rate * step */
static Value *
stepped(OnnxNode *n, const Update *u, Value *rate, Value *step)
{
	return e_binary(n, OP_sub, u->x, e_binary(n, OP_mul, rate, step));
}

/* V' = alpha V + (1 - alpha) G, H' = beta H + (1 - beta) G^2, X' = (1 - post) (X - r V' / (sqrt(H') + epsilon)),
 * r = R sqrt(1 - beta^T) / (1 - alpha^T) where T > 0, else R */
static void
adam(OnnxNode *n, Update *u)
{
	double alpha = want_float(n, "alpha", (double)0.9f),
	       beta = want_float(n, "beta", (double)0.999f);
	Value *later = is_positive(n, u->count);
	Value *t = e_select(n, later, u->count, e_number(n, u->count, 1));
	Value *r = e_binary(n, OP_mul, u->rate, e_unary(n, OP_sqrt, one_minus_power(n, beta, t)));

	r = e_select(n, later, e_binary(n, OP_div, r, one_minus_power(n, alpha, t)), u->rate);
	Value *v = mixed(n, alpha, u->moments[0], 1 - alpha, u->g);
	Value *h = mixed(n, beta, u->moments[1], 1 - beta, square(n, u->g));
	Value *root = e_with(n, OP_add, e_unary(n, OP_sqrt, h),
	                     want_float(n, "epsilon", (double)1e-6f));
	u->updated = scaled(n, stepped(n, u, r, e_binary(n, OP_div, v, root)),
	                    1 - want_float(n, "norm_coefficient_post", 0));
	u->moments[0] = v;
	u->moments[1] = h;
}

/* H' = H + G^2, X' = X - R / (1 + T decay) * G / (sqrt(H') + epsilon) */
static void
adagrad(OnnxNode *n, Update *u)
{
	Value *decay = e_with(n, OP_add, scaled(n, u->count, want_float(n, "decay_factor", 0)), 1);
	Value *h = e_binary(n, OP_add, u->moments[0], square(n, u->g));
	Value *root = e_with(n, OP_add, e_unary(n, OP_sqrt, h),
	                     want_float(n, "epsilon", (double)1e-6f));

	u->updated = stepped(n, u, e_binary(n, OP_div, u->rate, decay),
	                     e_binary(n, OP_div, u->g, root));
	u->moments[0] = h;
}

/* V' = alpha V + b G, b = beta where T > 0, else 1; X' = X - R V', or X - R (G + alpha V') of Nesterov's */
static void
momentum(OnnxNode *n, Update *u)
{
	double alpha = want_float(n, "alpha", 0);
	bool nesterov = strcmp(want_word(n, "mode", "standard nesterov"), "nesterov") == 0;
	Value *beta = e_select(n, is_positive(n, u->count),
	                       e_number(n, u->count, want_float(n, "beta", 1)),
	                       e_number(n, u->count, 1));
	Value *v = e_binary(n, OP_add, scaled(n, u->moments[0], alpha),
	                    e_binary(n, OP_mul, beta, u->g));

	u->updated = stepped(n, u, u->rate,
	                     nesterov ? e_binary(n, OP_add, u->g, scaled(n, v, alpha)) : v);
	u->moments[0] = v;
}

/* An input of one element, as a scalar. */
static Value *
want_scalar(OnnxNode *n, int i)
{
	Value *v = want_input(n, i);

	if (v && v->type->n != 1) {
		report_invalid(n, "input %d has %lld elements, needs one", i,
		               (long long)v->type->n);
		return NULL;
	}
	return v ? e_reshape(n, v, (Ints){0}) : NULL;
}

/* An input of x's type. */
static Value *
want_like(OnnxNode *n, int i, const Value *x)
{
	Value *v = want_input(n, i);

	if (v && x && v->type != x->type) {
		report_invalid(n, "input %d has another type or shape than the tensor to update",
		               i);
		return NULL;
	}
	return v;
}

static void
update_one(OnnxNode *n, UpdateRule *rule, int k, int count, int n_moments, Value *r, Value *t)
{
	Update u = {.x = want_float_input(n, 2 + k)};
	Value *g = want_like(n, 2 + count + k, u.x);

	for (int i = 0; i < n_moments; i++)
		u.moments[i] = want_like(n, 2 + (2 + i) * count + k, u.x);
	if (!u.x || n->failed)
		return;
	u.rate = e_cast(n, r, u.x->type->dtype);
	u.count = e_cast(n, t, u.x->type->dtype);
	u.g = mixed(n, want_float(n, "norm_coefficient", 0), u.x, 1, g);
	rule(n, &u);
	set_output(n, k, u.updated);
	for (int i = 0; i < n_moments; i++)
		set_output(n, (1 + i) * count + k, u.moments[i]);
}

static void
update(OnnxNode *n, UpdateRule *rule, int n_moments)
{
	int each = 2 + n_moments, count = (n_inputs(n) - 2) / each;
	Value *r = want_scalar(n, 0), *t = want_scalar(n, 1);

	if (count < 1 || n_inputs(n) != 2 + each * count ||
	    n_outputs(n) != (1 + n_moments) * count) {
		report_invalid(n,
		               "%d inputs and %d outputs, needs 2 and %d, and %d, for each tensor",
		               n_inputs(n), n_outputs(n), each, 1 + n_moments);
		return;
	}
	if (!r || !t)
		return;
	if (!is_float(r) || t->type->dtype != S64) {
		report_invalid(n, "R is %s and T is %s, needs a float and s64",
		               dtype_info[r->type->dtype].name, dtype_info[t->type->dtype].name);
		return;
	}
	for (int k = 0; k < count; k++)
		update_one(n, rule, k, count, n_moments, r, t);
}

static void
import_adam(OnnxNode *n)
{
	update(n, adam, 2);
}

static void
import_adagrad(OnnxNode *n)
{
	update(n, adagrad, 1);
}

static void
import_momentum(OnnxNode *n)
{
	update(n, momentum, 1);
}

const ImportRow import_optimizer_rows[] = {
	/* name     from  to  importer  extra  domain */
	{"Adam", 1, 0, import_adam, {0}, TRAINING},
	{"Adagrad", 1, 0, import_adagrad, {0}, TRAINING},
	{"Momentum", 1, 0, import_momentum, {0}, TRAINING},
	{0},
};
