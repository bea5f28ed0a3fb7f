/* Operators that draw random numbers: https://onnx.ai/onnx/operators/onnx__Dropout.html,
 * RandomUniform, RandomNormal and their Like forms, Bernoulli, Multinomial. The numbers follow from
 * the run's seed, the step, and the node's own stream: a hash of its name, its output and its
 * `seed`. */
#include "frontend/import/import.h"

#include <string.h>

/* The node's k-th stream. */
static int64_t
stream_of(const OnnxNode *n, int k)
{
	const AttributeProto *seed = node_attribute(n->proto, "seed");
	const char *name = node_location(n->proto), *output = n->proto->output[0];
	uint64_t h = hash_bytes(name, strlen(name), (uint64_t)k);

	h = hash_bytes(output, strlen(output), h);
	if (n->im->repetition)
		h = hash_bytes(&n->im->repetition, sizeof(n->im->repetition), h);
	return (int64_t)(seed ? hash_bytes(&seed->f, sizeof(seed->f), h) : h);
}

/* Uniform numbers in [0, 1). The numbers have the batch axis of `rows_of`; NULL: no batch axis. */
static Value *
uniform(OnnxNode *n, DType dtype, Ints shape, Value *rows_of, int k)
{
	Importer *im = n->im;
	Function *f = n->b->f;

	if (!outside_of_bodies(n, "random numbers"))
		return NULL;
	RandomAttr a = {.dtype = dtype, .shape = shape, .counter.stream = stream_of(n, k)};
	Value *operands[] = {function_hyperparameter(f, SCALAR_SEED),
	                     function_hyperparameter(f, SCALAR_STEP),
	                     function_hyperparameter(f, SCALAR_OFFSET)};

	if (!shape_fits(n, shape))
		return NULL;
	Value *u = e_op(n, OP_random, COUNT(operands), operands, &a);
	PendingRandom pending = {u, rows_of};
	if (u && rows_of)
		vec_push(im->arena, &im->pending_randoms, pending);
	return u;
}

/* Types narrower than f32 are drawn in f32. */
static DType
drawn_dtype(DType d)
{
	return d == F64 ? F64 : F32;
}

/* ---- Dropout */
static void
dropout_identity(OnnxNode *n, Value *x)
{
	set_output(n, 0, x);
	set_output(n, 1, e_splat(n, n->opset < 10 ? x->type->dtype : BOOL, shape_of(x), 1));
}

/* x / (1 - ratio) where a uniform number is at least the ratio, else 0. */
static void
dropout_scaled(OnnxNode *n, Value *x, double ratio)
{
	Value *u = uniform(n, drawn_dtype(x->type->dtype), shape_of(x), x, 0);
	Value *kept = u ? e_binary(n, OP_ge, u, e_number(n, u, ratio)) : NULL;
	Value *scaled = e_with(n, OP_mul, x, 1 / (1 - ratio));

	set_output(n, 0, e_select(n, kept, scaled, e_number(n, x, 0)));
	set_output(n, 1, n->opset < 10 ? e_cast(n, kept, x->type->dtype) : kept);
	n->im->differs = true;
}

static void
import_dropout(OnnxNode *n)
{
	Value *x = want_float_input(n, 0);
	double ratio = n->extra->input ? 0.5 : want_float(n, "ratio", 0.5), training = 0;

	if (!x)
		return;
	if (n->extra->input && has_input(n, 1) && !want_constant_float(n, 1, &ratio))
		return;
	if (n->extra->input && has_input(n, 2) && !want_constant_float(n, 2, &training))
		return;
	if (!(ratio >= 0) || ratio >= 1) {
		report_invalid(n, "a ratio of %g, needs one from 0 to below 1", ratio);
		return;
	}
	if (training && ratio > 0)
		importer_in_training_form(n, "dropout", true);
	if (!training && ratio > 0 && n->im->options->restore_train_mode &&
	    repair_enabled(n->im->options, "dropout")) {
		training = 1;
		n->im->restored = true;
		if (!n->im->inference && n->im->repairs)
			repairs_note(n->im->repairs, "dropout", "training form of %s, ratio %g",
			             quoted(n->im->model, n->proto->output[0]), ratio);
	}
	if (training && ratio > 0 && !n->im->inference)
		dropout_scaled(n, x, ratio);
	else
		dropout_identity(n, x);
}

/* ---- RandomUniform, RandomNormal and their Like forms */
static bool
want_shape_and_dtype(OnnxNode *n, Ints *shape, DType *dtype, Value **like)
{
	bool given = has_attribute(n, "dtype");
	int64_t onnx = want_int(n, "dtype", 1);

	*like = NULL;
	if (n->extra->flag) {
		*like = want_input(n, 0);
		if (!*like)
			return false;
		*shape = shape_of(*like);
		*dtype = (*like)->type->dtype;
	} else if (!want_ints(n, "shape", shape)) {
		return false;
	}
	if ((!n->extra->flag || given) && !want_dtype(n, onnx, dtype))
		return false;
	if (!dtype_is_float(*dtype))
		report_invalid(n, "random numbers of type %s, need a float type",
		               dtype_info[*dtype].name);
	return dtype_is_float(*dtype);
}

/* low + (high - low) u; rounding may give `high` itself, as in NumPy and PyTorch. */
static void
import_uniform(OnnxNode *n)
{
	double low = want_float(n, "low", 0), high = want_float(n, "high", 1);
	Value *like, *u;
	Ints shape = {0};
	DType dtype;

	if (!want_shape_and_dtype(n, &shape, &dtype, &like))
		return;
	u = uniform(n, drawn_dtype(dtype), shape, like, 0);
	u = u ? e_with(n, OP_add, e_with(n, OP_mul, u, high - low), low) : NULL;
	set_output(n, 0, e_cast(n, u, dtype));
}

/* Box and Muller, "A note on the generation of random normal deviates", 1958: sqrt(-2 log(1 - u)) cos(2 pi v) */
static void
import_normal(OnnxNode *n)
{
	double mean = want_float(n, "mean", 0), scale = want_float(n, "scale", 1);
	Value *like, *u, *v;
	Ints shape = {0};
	DType dtype;

	if (!want_shape_and_dtype(n, &shape, &dtype, &like))
		return;
	u = uniform(n, drawn_dtype(dtype), shape, like, 0);
	v = uniform(n, drawn_dtype(dtype), shape, like, 1);
	if (!u || !v)
		return;
	Value *radius = e_unary(n, OP_sqrt,
	                        e_with(n, OP_mul, e_unary(n, OP_log1p, e_unary(n, OP_neg, u)), -2));
	Value *angle = e_unary(n, OP_cos, e_with(n, OP_mul, v, 2 * 3.14159265358979323846));
	Value *z = e_with(n, OP_mul, e_binary(n, OP_mul, radius, angle), scale);
	set_output(n, 0, e_cast(n, e_with(n, OP_add, z, mean), dtype));
}

/* ---- Bernoulli, Multinomial */
static void
import_bernoulli(OnnxNode *n)
{
	Value *p = want_float_input(n, 0), *u;
	DType dtype = p ? p->type->dtype : F32;

	if (!p || (has_attribute(n, "dtype") && !want_dtype(n, want_int(n, "dtype", 1), &dtype)))
		return;
	u = uniform(n, drawn_dtype(p->type->dtype), shape_of(p), p, 0);
	Value *one = u ? e_binary(n, OP_lt, u, e_cast(n, p, u->type->dtype)) : NULL;
	set_output(n, 0, e_cast(n, one, dtype));
}

/* input: f[rows, classes], unnormalized logarithms of probabilities; output: [rows, samples]. Takes
 * the class c with the largest log p[c] - log e[c], with e exponential (Gumbel-max): this draws
 * class c with probability p[c]. */
static void
import_multinomial(OnnxNode *n)
{
	Value *x = want_float_input(n, 0);
	int64_t samples = want_int(n, "sample_size", 1), onnx = want_int(n, "dtype", 6);
	DType dtype;

	if (!x || !want_dtype(n, onnx, &dtype))
		return;
	if (x->type->rank != 2 || x->type->dims[1] < 1) {
		report_invalid(n, "input of rank %d, needs [rows, classes]", x->type->rank);
		return;
	}
	if (samples < 1 || (dtype != S32 && dtype != S64)) {
		report_invalid(n, "%lld samples of type %s, need 1 or more of s32 or s64",
		               (long long)samples, dtype_info[dtype].name);
		return;
	}
	Ints shape = {.n = 3, .at = {x->type->dims[0], samples, x->type->dims[1]}};
	Value *u = uniform(n, drawn_dtype(x->type->dtype), shape, x, 0);
	if (!u)
		return;
	Value *e = e_unary(n, OP_neg, e_unary(n, OP_log1p, e_unary(n, OP_neg, u)));
	Ints one = {.n = 3, .at = {shape.at[0], 1, shape.at[2]}};
	Value *logits = e_reshape(n, e_cast(n, x, u->type->dtype), one);
	Value *race = e_binary(n, OP_sub, logits, e_unary(n, OP_log, e));
	set_output(n, 0, e_cast(n, e_op(n, OP_argmax, 1, &race, &(AxisAttr){2}), dtype));
}

const ImportRow import_random_rows[] = {
	/* name             from  to  importer            extra */
	{"Dropout", 6, 11, import_dropout, .facts = {.steering = INPUT(1)}},
	{"Dropout", 12, 0, import_dropout, {.input = true}, NULL},
	{"RandomUniform", 1, 0, import_uniform, .facts = {.no_gradient = true}},
	{"RandomUniformLike", 1, 0, import_uniform, {.flag = true}, .facts = {.no_gradient = true}},
	{"RandomNormal", 1, 0, import_normal, .facts = {.no_gradient = true}},
	{"RandomNormalLike", 1, 0, import_normal, {.flag = true}, .facts = {.no_gradient = true}},
	{"Bernoulli", 15, 0, import_bernoulli, .facts = {.no_gradient = true}},
	{"Multinomial", 7, 0, import_multinomial, .facts = {.no_gradient = true}},
	{0},
};
