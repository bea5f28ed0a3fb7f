/* Imports arithmetic operators of ai.onnx.ml, such as LinearRegressor:
 * https://onnx.ai/onnx/operators/index.html#ai-onnx-ml. Where the text leaves cases open, results
 * are those of onnxruntime's CPU kernels: inputs are cast to f32, a vector is one row, and a single
 * score is not transformed. Coefficients are attributes, so they do not train. */
#include "frontend/import/import.h"

#include <string.h>

/* ---- attributes that are lists of numbers */
static Value *
floats_of(OnnxNode *n, const AttributeProto *a, Ints shape)
{
	Module *m = n->b->m;

	return b_constant(n->b, tensor_borrow(m, type_new(m, F32, shape.n, shape.at), a->floats));
}

static Ints
vector_of(size_t count)
{
	return (Ints){.n = 1, .at = {(int64_t)count}};
}

/* The numbers in the node's attribute WHAT_int64s, WHAT_floats or WHAT_tensor; NULL: no such
 * attribute, or strings (reported). */
static Value *
number_list(OnnxNode *n, const char *what)
{
	Arena *arena = n->im->arena;
	Module *m = n->b->m;
	const AttributeProto *ints = node_attribute(n->proto,
	                                            arena_printf(arena, "%s_int64s", what));
	const AttributeProto *floats = node_attribute(n->proto,
	                                              arena_printf(arena, "%s_floats", what));
	const AttributeProto *tensor = node_attribute(n->proto,
	                                              arena_printf(arena, "%s_tensor", what));
	TensorData d;

	if (ints && ints->n_ints)
		return e_constant_ints(n, (int)ints->n_ints, ints->ints);
	if (floats && floats->n_floats)
		return floats_of(n, floats, vector_of(floats->n_floats));
	if (!tensor || !tensor->t)
		return NULL;
	if (tensor->t->data_type == ONNX__TENSOR_PROTO__DATA_TYPE__STRING) {
		report_unsupported(n, "strings");
		return NULL;
	}
	if (!tensor_load(n->im->model, tensor->t, false, &d, n->im->diag)) {
		n->failed = true;
		return NULL;
	}
	Type type = type_new(m, d.dtype, 1, &d.n);
	return b_constant(n->b, tensor_borrow(m, type, d.data));
}

/* X in f32, as rows of features: a vector is one row. */
static Value *
want_rows(OnnxNode *n)
{
	Value *x = want_input(n, 0);

	if (!x)
		return NULL;
	if (x->type->rank == 0) {
		report_invalid(n, "input 0 is a scalar");
		return NULL;
	}
	int64_t features = x->type->rank == 1 ? x->type->dims[0] : x->type->dims[1];
	Ints rows = {.n = 2, .at = {features ? x->type->n / features : 0, features}};
	return e_cast(n, e_reshape(n, x, rows), F32);
}

/* (x - offset) scale, with one number per feature or one for all */
static void
import_scaler(OnnxNode *n)
{
	const AttributeProto *scale = node_attribute(n->proto, "scale");
	const AttributeProto *offset = node_attribute(n->proto, "offset");
	Value *x = want_rows(n);

	if (!x)
		return;
	size_t count = scale ? scale->n_floats : 0;
	if (!offset || offset->n_floats != count ||
	    (count != 1 && (int64_t)count != x->type->dims[1])) {
		report_invalid(n,
		               "%zu scales and %zu offsets: need one of each, or %lld of each, "
		               "the number of features",
		               count, offset ? offset->n_floats : 0, (long long)x->type->dims[1]);
		return;
	}
	x = e_binary(n, OP_sub, x, floats_of(n, offset, vector_of(count)));
	x = e_binary(n, OP_mul, x, floats_of(n, scale, vector_of(count)));
	set_output(n, 0, e_reshape(n, x, shape_of(want_input(n, 0))));
}

/* Divides each row by its largest number (not the largest magnitude), by its sum of magnitudes, or
 * by its length. A row whose divisor would be 0 stays unchanged. */
static void
import_normalizer(OnnxNode *n)
{
	const char *norm = want_word(n, "norm", "MAX L1 L2");
	Value *x = want_rows(n), *size;
	Ints last = {.n = 1, .at = {1}};

	if (n->failed || !x)
		return;
	if (strcmp(norm, "MAX") == 0)
		size = e_reduce(n, REDUCE_MAX, x, last, true);
	else if (strcmp(norm, "L1") == 0)
		size = e_reduce(n, REDUCE_SUM, e_unary(n, OP_abs, x), last, true);
	else
		size = e_reduce(n, REDUCE_SUM, e_binary(n, OP_mul, x, x), last, true);
	Value *none = e_with(n, OP_eq, size, 0), *one = e_number(n, size, 1);
	size = e_select(n, none, one, size); /* before the root, whose slope at 0 is infinite */
	if (strcmp(norm, "L2") == 0)
		size = e_unary(n, OP_sqrt, size);
	set_output(n, 0, e_reshape(n, e_binary(n, OP_div, x, size), shape_of(want_input(n, 0))));
}

/* ---- linear models */
/* x W^T + b, [rows, classes]; W and b are attributes. */
static Value *
linear_scores(OnnxNode *n, int64_t *classes)
{
	const AttributeProto *w = node_attribute(n->proto, "coefficients");
	const AttributeProto *b = node_attribute(n->proto, "intercepts");
	Value *x = want_rows(n);

	if (!x)
		return NULL;
	int64_t features = x->type->dims[1], count = w ? (int64_t)w->n_floats : 0;
	*classes = *classes           ? *classes
	           : b && b->n_floats ? (int64_t)b->n_floats
	           : features         ? count / features
	                              : 0;
	if (*classes < 1 || count != *classes * features ||
	    (b && b->n_floats && (int64_t)b->n_floats != *classes)) {
		report_invalid(
			n,
			"%lld coefficients and %zu intercepts do not fit %lld features and "
			"%lld scores: need a coefficient for each pair, and an intercept for "
			"each score or none",
			(long long)count, b ? b->n_floats : 0, (long long)features,
			(long long)*classes);
		return NULL;
	}
	DotAttr a = {.x_contract = {.n = 1, .at = {1}}, .y_contract = {.n = 1, .at = {1}}};
	Value *y = e_dot(n, x, floats_of(n, w, (Ints){.n = 2, .at = {*classes, features}}), &a);
	return b && b->n_floats ? e_binary(n, OP_add, y, floats_of(n, b, vector_of(b->n_floats)))
	                        : y;
}

/* Softmax over the nonzero elements; zeros stay 0. */
static Value *
softmax_of_others(OnnxNode *n, Value *x)
{
	Ints last = {.n = 1, .at = {1}};
	Value *high = e_reduce(n, REDUCE_MAX, x, last, true);
	Value *zero = e_with(n, OP_le, e_unary(n, OP_abs, x), 1e-7);
	Value *small = e_binary(n, OP_mul, x, e_unary(n, OP_exp, e_unary(n, OP_neg, high)));
	Value *e = e_select(n, zero, small, e_unary(n, OP_exp, e_binary(n, OP_sub, x, high)));

	return e_binary(n, OP_div, e, e_reduce(n, REDUCE_SUM, e, last, true));
}

static Value *
transformed(OnnxNode *n, Value *scores, const char *how)
{
	if (!scores || scores->type->dims[1] == 1 || strcmp(how, "NONE") == 0)
		return scores;
	if (strcmp(how, "LOGISTIC") == 0)
		return e_unary(n, OP_sigmoid, scores);
	return strcmp(how, "SOFTMAX") == 0 ? e_softmax(n, scores, (Ints){.n = 1, .at = {1}}, false)
	                                   : softmax_of_others(n, scores);
}

static const char *
want_transform(OnnxNode *n)
{
	const char *how = want_word(n, "post_transform",
	                            "NONE SOFTMAX LOGISTIC SOFTMAX_ZERO PROBIT");

	if (!n->failed && strcmp(how, "PROBIT") == 0)
		report_unsupported(n, "post_transform PROBIT");
	return how;
}

static void
import_linear_regressor(OnnxNode *n)
{
	int64_t targets = want_int(n, "targets", 1);
	const char *how = want_transform(n);

	if (n->failed)
		return;
	if (targets < 1) {
		report_invalid(n, "targets is %lld, needs 1 or more", (long long)targets);
		return;
	}
	set_output(n, 0, transformed(n, linear_scores(n, &targets), how));
}

/* A binary classifier with a single score gives the score of the second class. Prepends the score of
 * the first class. */
static Value *
both_scores(OnnxNode *n, Value *score, const char *how)
{
	bool logistic = strcmp(how, "LOGISTIC") == 0;
	Value *other = logistic ? e_unary(n, OP_sigmoid, e_unary(n, OP_neg, score))
	                        : e_binary(n, OP_sub, e_number(n, score, 1), score);
	Value *own = logistic ? e_unary(n, OP_sigmoid, score) : score;

	return e_concat(n, 2, (Value *[]){other, own}, 1);
}

static void
import_linear_classifier(OnnxNode *n)
{
	const AttributeProto *labels = node_attribute(n->proto, "classlabels_ints");
	const char *how = want_transform(n);
	int64_t classes = 0, count = labels ? (int64_t)labels->n_ints : 0;

	if (has_attribute(n, "classlabels_strings") && !count)
		report_unsupported(n, "labels that are strings");
	Value *scores = n->failed ? NULL : linear_scores(n, &classes);
	if (!scores)
		return;
	if (classes > 1 && count != classes) {
		report_invalid(n, "%lld labels, needs one for each of %lld scores",
		               (long long)count, (long long)classes);
		return;
	}
	int64_t plain[] = {0, 1};
	Ints rows = {.n = 1, .at = {scores->type->dims[0]}};
	Value *table = count == 2 || classes > 1 ? e_constant_ints(n, (int)count, labels->ints)
	                                         : e_constant_ints(n, 2, plain);
	Value *best = classes > 1 ? e_op(n, OP_argmax, 1, &scores, &(AxisAttr){1})
	                          : e_cast(n, e_with(n, OP_gt, scores, 0), S64);
	set_output(n, 0, e_gather(n, table, e_reshape(n, e_cast(n, best, S64), rows), 0));
	set_output(n, 1,
	           classes == 1 && count == 2 ? both_scores(n, scores, how)
	                                      : transformed(n, scores, how));
}

/* ---- LabelEncoder of numbers */
static Value *
default_label(OnnxNode *n, DType d)
{
	const AttributeProto *tensor = node_attribute(n->proto, "default_tensor");

	if (tensor)
		return e_cast(n, e_reshape(n, number_list(n, "default"), (Ints){0}), d);
	if (dtype_is_float(d))
		return e_scalar(n, d, want_float(n, "default_float", -0.0));
	int64_t number = want_int(n, "default_int64", -1);
	return e_cast(n, e_reshape(n, e_constant_ints(n, 1, &number), (Ints){0}), d);
}

/* Maps x [.., 1] to the value of the equal key in keys [k]. Of equal keys the first counts; NaN
 * equals NaN. */
static void
import_label_encoder(OnnxNode *n)
{
	static const char *const strings[] = {"classes_strings", "keys_strings", "values_strings"};

	for (int i = 0; i < COUNT(strings); i++)
		if (has_attribute(n, strings[i])) {
			report_unsupported(n, "labels that are strings");
			return;
		}
	Value *x = want_input(n, 0), *keys = number_list(n, "keys"), *to = number_list(n, "values");
	if (n->failed || !x)
		return;
	if (!keys || !to || keys->type->n != to->type->n || keys->type->dtype != x->type->dtype) {
		report_invalid(n, "needs as many keys as values, keys of the type of input 0, %s",
		               dtype_info[x->type->dtype].name);
		return;
	}
	Ints shape = shape_of(x), column = {.n = 2, .at = {x->type->n, 1}};
	Value *flat = e_reshape(n, x, column);
	Value *same = e_binary(n, OP_eq, flat, keys);
	if (is_float(x))
		same = e_binary(n, OP_or, same,
		                e_binary(n, OP_and, e_unary(n, OP_is_nan, flat),
		                         e_unary(n, OP_is_nan, keys)));
	Value *hits = e_cast(n, same, S32);
	Value *at = e_op(n, OP_argmax, 1, &hits, &(AxisAttr){1});
	Value *any = e_with(n, OP_gt,
	                    e_reduce(n, REDUCE_MAX, hits, (Ints){.n = 1, .at = {1}}, false), 0);
	Value *found = e_gather(
		n, to, e_reshape(n, e_cast(n, at, S64), (Ints){.n = 1, .at = {x->type->n}}), 0);
	set_output(n, 0,
	           e_reshape(n, e_select(n, any, found, default_label(n, to->type->dtype)), shape));
}

/* Picks columns of x by number; a vector is one row. */
static void
import_array_feature_extractor(OnnxNode *n)
{
	Value *x = want_input(n, 0), *y = want_input(n, 1);

	if (!x || !y)
		return;
	if (x->type->rank == 0) {
		report_invalid(n, "input 0 is a scalar");
		return;
	}
	Ints row = {.n = 2, .at = {1, x->type->dims[0]}};
	x = x->type->rank == 1 ? e_reshape(n, x, row) : x;
	int last = x->type->rank - 1;
	set_output(n, 0,
	           e_gather(n, x, e_indices(n, e_flat(n, y), x->type->dims[last], false), last));
}

#define ML "ai.onnx.ml"
const ImportRow import_ml_rows[] = {
	/* name     from  to  importer  extra  domain */
	{"ArrayFeatureExtractor", 1, 0, import_array_feature_extractor, {0}, ML},
	{"LabelEncoder", 1, 0, import_label_encoder, {0}, ML, .facts = {.no_gradient = true}},
	{"LinearClassifier", 1, 0, import_linear_classifier, {0}, ML},
	{"LinearRegressor", 1, 0, import_linear_regressor, {0}, ML},
	{"Normalizer", 1, 0, import_normalizer, {0}, ML},
	{"Scaler", 1, 0, import_scaler, {0}, ML},
	{0},
};
