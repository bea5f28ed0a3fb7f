/* Finds the biases that are added to products whose weights become codes (small integers with a
 * scale). If quantization changes a weight by dW, the mean of channel o of the result shifts by
 *   sum over c of dW[c, o] E[x[c]]
 * Subtracting this shift from the bias corrects it (Nagel et al. 2019, arXiv:1906.04721, 4.2). The
 * bias is an input of Conv, ConvTranspose and Gemm, or the initializer that an Add adds to a
 * MatMul, as PyTorch writes Linear. */
#include "frontend/file/file.h"

#include <math.h>
#include <string.h>

typedef struct {
	Model *model;
	Diag *diag;
	Neighbours all;
} Find;

/* The other input of an Add that is the only reader of a MatMul's result. */
static const char *
bias_behind(const Find *f, const char *result)
{
	const NodeProto *add = only_reader_of(&f->all, result);

	return is_op(add, "Add") && add->n_input == 2 ? add->input[!strcmp(add->input[0], result)]
	                                              : NULL;
}

/* Loads a bias: f32 numbers without other readers, one per channel along their last axis. */
static bool
load_bias(Find *f, const char *name, ProductBias *out)
{
	const TensorProto *t = name ? strmap_get(f->model->initializers, name) : NULL;
	TensorData d;

	if (!t || t->data_type != ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT ||
	    count_readers(&f->all, name) != 1 || !tensor_load(f->model, t, false, &d, f->diag) ||
	    d.n != out->n || d.rank < 1 || d.dims[d.rank - 1] != out->n)
		return false;
	out->shape = (Ints){.n = d.rank};
	memcpy(out->shape.at, d.dims, sizeof(*d.dims) * (size_t)d.rank);
	out->floats = d.data;
	out->name = name;
	return true;
}

static double
node_factor(const NodeProto *p, const char *name)
{
	const AttributeProto *a = node_attribute(p, name);

	return a ? (double)a->f : 1;
}

/* ---- by operator: fills all of *out but the numbers; returns the bias's name; NULL: no bias */
static const char *
bias_input(const Find *f, const NodeProto *p)
{
	int bias = node_bias(f->model, p);

	return bias < (int)p->n_input && *p->input[bias] ? p->input[bias] : NULL;
}

/* The number of groups of a convolution; 0: the number does not divide the weight's axis. */
static int64_t
conv_groups(const NodeProto *p, const QuantizedTensor *w, int axis)
{
	int64_t group = node_int(p, "group", 1);

	return group > 0 && w->shape.at[axis] % group == 0 ? group : 0;
}

static const char *
bias_of_conv(Find *f, const NodeProto *p, const QuantizedTensor *w, ProductBias *out)
{
	out->group = conv_groups(p, w, w->channel_axis);
	out->x_channels *= out->group;
	return bias_input(f, p);
}

/* ConvTranspose. Each input element is multiplied by every position of the kernel, and the result
 * has as many times the positions of the input as the product of the strides. So the mean shift is
 * divided by this product. */
static const char *
bias_of_transposed(Find *f, const NodeProto *p, const QuantizedTensor *w, ProductBias *out)
{
	const AttributeProto *strides = node_attribute(p, "strides");

	out->is_transposed = true;
	out->group = conv_groups(p, w, w->input_axis);
	out->n *= out->group;
	for (size_t i = 0; strides && i < strides->n_ints; i++)
		out->factor /= (double)strides->ints[i];
	return bias_input(f, p);
}

/* alpha x W + beta bias */
static const char *
bias_of_gemm(Find *f, const NodeProto *p, const QuantizedTensor *w, ProductBias *out)
{
	(void)w;
	out->x_axis = node_int(p, "transA", 0) ? -2 : out->x_axis;
	out->factor = node_factor(p, "alpha") / node_factor(p, "beta");
	return bias_input(f, p);
}

static const char *
bias_of_matmul(Find *f, const NodeProto *p, const QuantizedTensor *w, ProductBias *out)
{
	return w->shape.n == 2 ? bias_behind(f, p->output[0]) : NULL;
}

static const struct {
	const char *op;
	const char *(*bias)(Find *f, const NodeProto *p, const QuantizedTensor *w,
	                    ProductBias *out);
} rows[] = {{"Conv", bias_of_conv},
            {"ConvTranspose", bias_of_transposed},
            {"Gemm", bias_of_gemm},
            {"MatMul", bias_of_matmul}};

static bool
find_bias(Find *f, const QuantizedTensor *w, ProductBias *out)
{
	const NodeProto *p = w->product;
	const Product *product = p ? node_product(f->model, p, 1) : NULL;
	const char *name = NULL;

	if (!product || p->n_output < 1)
		return false;
	*out = (ProductBias){.n = w->shape.at[w->channel_axis],
	                     .x = p->input[0],
	                     .x_axis = product->x_inputs,
	                     .x_channels = w->shape.at[w->input_axis],
	                     .group = 1,
	                     .factor = 1};
	for (int i = 0; i < COUNT(rows); i++)
		if (is_op(p, rows[i].op))
			name = rows[i].bias(f, p, w, out);
	return out->group > 0 && isfinite(out->factor) && load_bias(f, name, out);
}

/* The bias if it becomes codes; NULL: it stays in floats. */
static QuantizedTensor *
bias_in_codes(const QuantizedTensors *list, const char *name)
{
	for (int i = 0; i < list->n; i++)
		if (list->at[i]->kind == QUANTIZED_BIAS && !strcmp(list->at[i]->name, name))
			return list->at[i];
	return NULL;
}

int
model_find_biases(Model *model, const QuantizedTensors *list, ProductBias *out, Diag *diag)
{
	Arena *scratch = arena_new();
	Find f = {.model = model, .diag = diag, .all = neighbours_of(model->proto->graph, scratch)};
	int n_left = 0;

	for (int i = 0; i < list->n; i++) {
		const QuantizedTensor *w = list->at[i];
		if (w->kind != QUANTIZED_WEIGHT)
			continue;
		if (find_bias(&f, w, &out[i])) {
			out[i].codes = bias_in_codes(list, out[i].name);
		} else {
			out[i] = (ProductBias){0};
			n_left++;
		}
	}
	arena_free(scratch);
	return n_left;
}

void
model_set_bias(Model *model, const ProductBias *bias, const float *numbers)
{
	edit_set_initializer(model, bias->name, F32, &bias->shape, numbers);
	if (bias->codes)
		bias->codes->numbers = numbers;
}
