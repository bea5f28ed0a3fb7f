/* Traces values to their sources and to their uses, as hints at the kind of a tensor. */
#include "frontend/weights/judge.h"
#include "frontend/weights/roles.h"
#include "frontend/weights/values.h"

#include <string.h>

enum { MAX_STEPS = 16, MAX_PREPARATIONS = 6 };

static bool
node_is_any(const FlatNode *n, const char *const *ops, int n_ops)
{
	for (int k = 0; k < n_ops; k++)
		if (is_op(n->proto, ops[k]))
			return true;
	return false;
}

/* A search from one tensor along its readers. It visits each value only once, because the number of
 * paths can be exponential. */
typedef struct {
	const Repairs *r;
	/* values whose readers all pass: before and after a product with positions */
	StrMap *followed[2];
	StrMap *positions; /* values that are positions */
	Trigonometry *out;
} Trace;

static bool is_position(Trace *t, const char *name, int depth);

static bool
is_made_of_positions(Trace *t, const FlatNode *n, int depth)
{
	if (is_op(n->proto, "Shape") || is_op(n->proto, "Size") || is_op(n->proto, "Constant"))
		return true;
	for (size_t i = 0; i < n->proto->n_input; i++)
		if (!is_position(t, n->proto->input[i], depth))
			return false;
	return true;
}

/* Is the value made of integers, shapes and scalars only? Such values are positions. */
static bool
is_position(Trace *t, const char *name, int depth)
{
	const Repairs *r = t->r;
	const TensorProto *tensor = strmap_get(r->model->initializers, name);
	const Weight *w = repairs_weight(r, name);
	const ValueInfoProto *input = strmap_get(r->inputs, name);
	const FlatNode *n = strmap_get(r->producers, name);

	if (!*name || strmap_get(t->positions, name))
		return true;
	if (w)
		return w->data.n <= 1;
	if (tensor)
		return !is_float_type(tensor->data_type);
	if (input)
		return input->type &&
		       input->type->value_case == ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE &&
		       !is_float_type(input->type->tensor_type->elem_type);
	if (!n || depth == 0 || !is_made_of_positions(t, n, depth - 1))
		return false;
	strmap_put(t->positions, name, t);
	return true;
}

static bool
is_prepared(const Repairs *r, const char *name, int depth)
{
	static const char *const ways[] = {"Cast",      "Transpose", "Reshape", "Identity",
	                                   "Unsqueeze", "Squeeze",   "Sub",     "Div",
	                                   "Mul",       "Log"};
	const FlatNode *n = strmap_get(r->producers, name);

	if (strmap_get(r->inputs, name))
		return true;
	return n && depth && node_is_any(n, ways, COUNT(ways)) &&
	       is_prepared(r, n->proto->input[0], depth - 1);
}

bool
is_prepared_input(const Repairs *r, const char *name)
{
	return is_prepared(r, name, MAX_PREPARATIONS);
}

/* Does the node combine the value only with positions, or with an input by Mul? A MatMul with an
 * input may be a layer whose activation is a sine. */
static bool
meets_positions(Trace *t, const FlatNode *n, const char *name)
{
	for (size_t k = 0; k < n->proto->n_input; k++) {
		const char *other = n->proto->input[k];

		if (strcmp(other, name) && !is_position(t, other, MAX_STEPS) &&
		    !(is_op(n->proto, "Mul") && is_prepared_input(t->r, other)))
			return false;
	}
	return true;
}

/* Do all readers of a value lead to Sin or Cos? After a product with positions, the value may be
 * joined with other such products. */
static bool
follow(Trace *t, const char *name, bool met, int depth)
{
	static const char *const products[] = {"Mul", "MatMul", "Einsum", "Div"};
	static const char *const views[] = {"Concat",    "Identity", "Transpose", "Reshape",
	                                    "Unsqueeze", "Squeeze",  "Expand",    "Cast",
	                                    "Slice",     "Tile",     "Flatten",   "CastLike"};
	Readers list = readers_of(t->r, name);

	if (strmap_get(t->followed[met], name))
		return true;
	strmap_put(t->followed[met], name, t); /* if a reader fails, the whole search fails */
	for (int i = 0; i < list.n; i++) {
		const FlatNode *n = list.at[i].node;
		if (i > 0 && n == list.at[i - 1].node)
			continue;
		bool product = node_is_any(n, products, COUNT(products));
		bool sine = is_op(n->proto, "Sin"), cosine = is_op(n->proto, "Cos");
		t->out->sine |= sine;
		t->out->cosine |= cosine;
		if (sine || cosine)
			continue;
		if (depth == 0 || n->proto->n_output != 1 ||
		    (!product && !node_is_any(n, views, COUNT(views))) ||
		    (!met && !meets_positions(t, n, name)))
			return false;
		if (!follow(t, n->proto->output[0], met || product, depth - 1))
			return false;
	}
	return list.n > 0;
}

bool
leads_to_trigonometry(const Case *c, Trigonometry *out)
{
	Arena *arena = arena_new();
	Trace t = {.r = c->r,
	           .followed = {strmap_new(arena), strmap_new(arena)},
	           .positions = strmap_new(arena),
	           .out = out};

	*out = (Trigonometry){0};
	bool leads = follow(&t, c->w->name, false, MAX_STEPS);
	arena_free(arena);
	return leads;
}

bool
followed_by_scale(const Repairs *r, const NodeProto *norm)
{
	const Reader *readers;
	int n = all_readers(r, norm->output[0], &readers);

	for (int i = 0; i < n; i++) {
		const NodeProto *p = readers[i].node->proto;
		for (size_t k = 0; is_op(readers[i].node->proto, "Mul") && k < p->n_input; k++)
			if (repairs_weight(r, p->input[k]))
				return true;
	}
	return false;
}

/* The weight that the value is, or is a view of; NULL: no such weight. */
static const Weight *
weight_behind(const Repairs *r, const char *name, int depth)
{
	static const char *const views[] = {"Transpose", "Identity", "Reshape", "Cast"};
	const Weight *w = repairs_weight(r, name);
	const FlatNode *n = strmap_get(r->producers, name);

	if (w || !n || depth == 0 || !node_is_any(n, views, COUNT(views)))
		return w;
	return weight_behind(r, n->proto->input[0], depth - 1);
}

bool
is_input_of_layers(const Case *c)
{
	for (int i = 0; i < c->n; i++) {
		const NodeProto *p = c->readers[i].node->proto;
		if (!in_place(c->r, &c->readers[i], LAYER_PLACE) || p->n_input < 2)
			return false;
		const Weight *other = weight_behind(c->r, p->input[1], MAX_STEPS);
		if (!other || other->constant)
			return false;
	}
	return c->n > 0;
}

/* The weight of the layer that computes the value; the value may also be a view of the layer's
 * output. NULL: no such layer. */
static const Weight *
weight_of_product(const Repairs *r, const char *name, int depth)
{
	static const char *const views[] = {"Transpose", "Identity",  "Reshape",
	                                    "Cast",      "Unsqueeze", "Squeeze"};
	const FlatNode *n = strmap_get(r->producers, name);

	if (!n || depth == 0 || n->proto->n_input == 0)
		return NULL;
	if (node_is_any(n, views, COUNT(views)))
		return weight_of_product(r, n->proto->input[0], depth - 1);
	if (!node_product(r->model, n->proto, 1) || n->proto->n_input < 2)
		return NULL;
	return weight_behind(r, n->proto->input[1], MAX_STEPS);
}

bool
is_bias_of_layer(const Case *c)
{
	const TensorData *bias = &c->w->data;

	for (int i = 0; i < c->n && !values_are_wide(bias); i++) {
		const NodeProto *p = c->readers[i].node->proto;
		if (!is_op(c->readers[i].node->proto, "Add") || c->readers[i].input < 0)
			continue;
		const Weight *w = weight_of_product(c->r, p->input[!c->readers[i].input],
		                                    MAX_STEPS);
		for (int k = 0; w && w != c->w && k < w->data.rank; k++)
			if (w->data.rank > 1 && w->data.dims[k] == bias->n)
				return true;
	}
	return false;
}

bool
is_in_weights_place(const Case *c)
{
	return any_in(c, WEIGHT_PLACE) || is_bias_of_layer(c);
}

/* Has the tensor integers of at most 16 bits? Positions and indices have more. */
static bool
is_code_type(int onnx_type)
{
	DType d;

	return !is_float_type(onnx_type) && tensor_dtype(onnx_type, &d) && d != BOOL &&
	       dtype_info[d].bits <= 16;
}

/* The name of the integer matrix in the file that the value was cast from, also after moves or a
 * subtracted zero point; NULL: no such matrix. */
static const char *
cast_codes(const Repairs *r, const char *name, int depth)
{
	static const char *const ways[] = {"Sub",      "Add",       "Reshape",  "Transpose",
	                                   "Identity", "Unsqueeze", "Squeeze",  "Gather",
	                                   "Slice",    "Flatten",   "CastLike", "Cast"};
	const FlatNode *n = strmap_get(r->producers, name);
	const TensorProto *t = strmap_get(r->model->initializers, name);
	int64_t count = 1;

	if (n && is_op(n->proto, "Constant"))
		t = constant_tensor(r, n);
	for (size_t i = 0; t && i < t->n_dims; i++)
		count *= t->dims[i];
	if (t)
		return is_code_type(t->data_type) && t->n_dims > 1 && count > 1 ? name : NULL;
	return n && depth && n->proto->n_input && node_is_any(n, ways, COUNT(ways))
	               ? cast_codes(r, n->proto->input[0], depth - 1)
	               : NULL;
}

const char *
codes_beside(const Case *c)
{
	static const char *const ops[] = {"Mul", "Div", "Sub", "Add"};
	const char *codes = NULL;

	for (int i = 0; i < c->n; i++) {
		const NodeProto *p = c->readers[i].node->proto;
		int other = c->readers[i].input == 0;
		bool joins = c->readers[i].input >= 0 && p->n_input == 2 &&
		             node_is_any(c->readers[i].node, ops, COUNT(ops));
		codes = joins ? cast_codes(c->r, p->input[other], MAX_STEPS) : NULL;
		if (!codes)
			return NULL;
	}
	return codes;
}
