/* Moves factors between an activation and the matrices that read it: x W = (x / s) (s W), with a
 * factor s for each channel of x. A channel with large activations gets a large factor, which
 * enlarges the weights that multiply this channel, so that rounding keeps more of their digits (Lin
 * et al. 2023, arXiv:2306.00978). x / s costs nothing if the maker of x has constants of the file
 * that can be divided instead:
 *   LayerNormalization(h, scale, bias)         scale / s, bias / s
 *   Mul(h, scale)                              scale / s                RMSNorm in parts
 *   Mul(gate, MatMul(h, V))                    V / s along V's outputs  a gated layer
 *   Add(MatMul(h, V), bias)                    V / s, bias / s
 * Else a Mul by 1 / s is put before the products. */
#include "frontend/file/file.h"

#include <math.h>
#include <string.h>

enum { MOST_STEPS = 16 };

/* An initializer that is divided by the factors along an axis. */
typedef struct {
	const char *name;
	TensorData data;
	int axis;
} Divided;
typedef struct {
	Model *model;
	Diag *diag;
	Arena *scratch;
	Neighbours all;
	const QuantizedTensors *list;
	const float *s;
	int64_t n;
	VEC(Divided) divided;
} Scaling;

static bool
load(const Scaling *e, const char *name, TensorData *out)
{
	const TensorProto *t = strmap_get(e->model->initializers, name);

	return t && t->data_type == ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT &&
	       tensor_load(e->model, t, false, out, e->diag);
}

/* The numbers multiplied or divided by the factors along an axis. */
static float *
scaled(const Scaling *e, const TensorData *d, int axis, bool divides)
{
	float *out = arena_copy(e->scratch, d->data, sizeof(float) * (size_t)d->n);
	int64_t inner = 1;

	for (int i = axis + 1; i < d->rank; i++)
		inner *= d->dims[i];
	for (int64_t i = 0; i < d->n; i++) {
		float s = e->s[i / inner % e->n];
		out[i] = divides ? out[i] / s : out[i] * s;
	}
	return out;
}

/* Notes an initializer to be divided. The initializer must have no other readers and as many
 * elements along the axis as there are factors, and the quotients must be finite. */
static bool
divide(Scaling *e, const char *name, int axis)
{
	Divided d = {.name = name, .axis = axis};

	if (count_readers(&e->all, name) != 1 || !load(e, name, &d.data) || axis >= d.data.rank ||
	    d.data.dims[axis] != e->n)
		return false;
	const float *by = scaled(e, &d.data, axis, true);
	for (int64_t i = 0; i < d.data.n; i++)
		if (!isfinite(by[i]))
			return false;
	vec_push(e->scratch, &e->divided, d);
	return true;
}

/* Notes a vector to be divided along its last axis. */
static bool
divide_vector(Scaling *e, const char *name)
{
	const TensorProto *t = strmap_get(e->model->initializers, name);

	if (!t || t->n_dims < 1)
		return false;
	for (size_t i = 0; i + 1 < t->n_dims; i++)
		if (t->dims[i] != 1)
			return false;
	return divide(e, name, (int)t->n_dims - 1);
}

/* ---- by operator: divides the e->n elements along the last axis of the node's result. false: not
 * possible */
static bool divide_value(Scaling *e, const char *name, int readers, int steps);

static bool
through(Scaling *e, const NodeProto *p, int steps)
{
	return divide_value(e, p->input[0], 1, steps);
}

/* Possible if the reshape keeps the size of the last axis. */
static bool
through_reshape(Scaling *e, const NodeProto *p, int steps)
{
	const TensorProto *t = p->n_input > 1 ? strmap_get(e->model->initializers, p->input[1])
	                                      : NULL;
	TensorData shape;

	return t && t->data_type == ONNX__TENSOR_PROTO__DATA_TYPE__INT64 &&
	       tensor_load(e->model, t, false, &shape, e->diag) && shape.n > 0 &&
	       ((const int64_t *)shape.data)[shape.n - 1] == e->n &&
	       divide_value(e, p->input[0], 1, steps);
}

/* Divides scale and, if present, bias. */
static bool
at_norm(Scaling *e, const NodeProto *p, int steps)
{
	(void)steps;
	return p->n_input > 1 && divide_vector(e, p->input[1]) &&
	       (p->n_input < 3 || !*p->input[2] || divide_vector(e, p->input[2]));
}

/* Divides one of the two factors. */
static bool
at_mul(Scaling *e, const NodeProto *p, int steps)
{
	int n = e->divided.n;

	for (size_t i = 0; i < p->n_input; i++)
		if (divide_vector(e, p->input[i]))
			return true;
	for (size_t i = 0; i < p->n_input; i++) {
		e->divided.n = n;
		if (divide_value(e, p->input[i], 1, steps))
			return true;
	}
	return false;
}

/* Divides both terms. */
static bool
at_add(Scaling *e, const NodeProto *p, int steps)
{
	for (int i = 0; i < 2 && p->n_input == 2; i++)
		if (divide_vector(e, p->input[i]))
			return divide_value(e, p->input[!i], 1, steps);
	return false;
}

/* Divides the output channels of a matrix that becomes codes, and Gemm's bias. */
static bool
at_product(Scaling *e, const NodeProto *p, int steps)
{
	(void)steps;
	for (int i = 0; i < e->list->n; i++) {
		const QuantizedTensor *t = e->list->at[i];
		if (t->product == p && t->shape.n == 2)
			return divide(e, t->name, t->channel_axis) &&
			       (p->n_input < 3 || !*p->input[2] || divide_vector(e, p->input[2]));
	}
	return false;
}

static const struct {
	const char *op;
	bool (*divide)(Scaling *e, const NodeProto *p, int steps);
} makers[] = {{"Identity", through},
              {"Reshape", through_reshape},
              {"LayerNormalization", at_norm},
              {"RMSNormalization", at_norm},
              {"Mul", at_mul},
              {"Add", at_add},
              {"MatMul", at_product},
              {"Gemm", at_product}};

static bool
divide_value(Scaling *e, const char *name, int readers, int steps)
{
	const NodeProto *p = maker_of(&e->all, name);

	if (!p || steps == MOST_STEPS || p->n_input < 1 || strcmp(p->output[0], name) != 0 ||
	    count_readers(&e->all, name) != readers)
		return false;
	for (int i = 0; i < COUNT(makers); i++)
		if (is_op(p, makers[i].op))
			return makers[i].divide(e, p, steps + 1);
	return false;
}

/* ---- the edits */
/* Replaces the numbers of an initializer, and of the matrices in e->list that are read from this
 * initializer. */
static void
put(const Scaling *e, const char *name, const TensorData *like, const float *data)
{
	Ints shape = {.n = like->rank};
	TensorData now;

	memcpy(shape.at, like->dims, sizeof(*shape.at) * (size_t)like->rank);
	edit_set_initializer(e->model, name, F32, &shape, data);
	for (int i = 0; i < e->list->n && load(e, name, &now); i++)
		if (!strcmp(e->list->at[i]->name, name))
			e->list->at[i]->numbers = now.data;
}

/* Multiplies the matrix by the factors. If the matrix has other readers, a copy under another name
 * is multiplied instead. */
static void
multiply_weight(const Scaling *e, const QuantizedTensor *t)
{
	NodeProto *reader = t->readers.at[0].node;
	TensorData d;

	if (!load(e, t->name, &d))
		return;
	const float *numbers = scaled(e, &d, t->input_axis, false);
	if (count_readers(&e->all, t->name) == 1) {
		put(e, t->name, &d, numbers);
		return;
	}
	Ints shape = t->shape;
	edit_node(e->model, reader);
	reader->input[t->readers.at[0].input] = (char *)(uintptr_t)edit_add_initializer(
		e->model, t->name, "_scaled", F32, &shape, numbers);
}

static void
insert_mul(const Scaling *e, const QuantizedTensors *readers)
{
	float *by = NEW_ARRAY(e->scratch, float, e->n);
	const char *value = readers->at[0]->product_input;

	for (int64_t i = 0; i < e->n; i++)
		by[i] = 1 / e->s[i];
	const char *factor = edit_add_initializer(e->model, value, "_factor", F32,
	                                          &(Ints){.n = 1, .at = {e->n}}, by);
	const char *made = edit_insert_node(e->model, readers->at[0]->product, "Mul", value,
	                                    factor);
	for (int i = 0; i < readers->n; i++) {
		NodeProto *p = readers->at[i]->product;
		edit_node(e->model, p);
		p->input[0] = (char *)(uintptr_t)made;
	}
}

void
model_scale_inputs(Model *model, const QuantizedTensors *readers, const QuantizedTensors *list,
                   const float *s, Diag *diag)
{
	const QuantizedTensor *first = readers->at[0];
	Arena *scratch = arena_new();
	Scaling e = {.model = model,
	             .diag = diag,
	             .scratch = scratch,
	             .all = neighbours_of(model->proto->graph, scratch),
	             .list = list,
	             .s = s,
	             .n = first->shape.at[first->input_axis]};

	bool folds = divide_value(&e, first->product_input, readers->n, 0);
	for (int i = 0; i < e.divided.n && folds; i++) {
		const Divided *d = &e.divided.at[i];
		put(&e, d->name, &d->data, scaled(&e, &d->data, d->axis, true));
	}
	for (int i = 0; i < readers->n; i++)
		multiply_weight(&e, readers->at[i]);
	if (!folds)
		insert_mul(&e, readers);
	arena_free(scratch);
}
