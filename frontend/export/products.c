/* Writes products and convolutions in ONNX. A product is an Einsum. The gradients of a convolution
 * are a ConvTranspose and a Conv over other axes. */
#include "frontend/export/writer.h"

#include <string.h>

/* The operand in the type of n's result: a product in ONNX has one type. */
static const char *
operand_of_product(GraphWriter *w, const Node *n, int i)
{
	DType d = node_result(n, 0)->type->dtype;
	const char *x = writer_operand(w, n, i);

	return type_of(n, i)->dtype == d ? x : writer_cast(w, x, d);
}

/* ---- dot */
/* The equation of Einsum. Each axis of x, y and z has a letter: batch axes, contracted axes, other
 * axes of x, other axes of y. */
static const char *
equation(GraphWriter *w, const DotAttr *a, int x_rank, int y_rank)
{
	char x[MAX_RANK + 1] = {0}, y[MAX_RANK + 1] = {0}, z[2 * MAX_RANK + 1] = {0},
			  ordered[2 * MAX_RANK + 1] = {0};
	char next = 'a';
	int n = 0;

	for (int i = 0; i < a->x_batch.n; i++)
		x[a->x_batch.at[i]] = y[a->y_batch.at[i]] = z[n++] = next++;
	for (int i = 0; i < a->x_contract.n; i++)
		x[a->x_contract.at[i]] = y[a->y_contract.at[i]] = next++;
	for (int i = 0; i < x_rank; i++)
		if (!x[i])
			x[i] = z[n++] = next++;
	for (int i = 0; i < y_rank; i++)
		if (!y[i])
			y[i] = z[n++] = next++;
	for (int i = 0; i < n; i++)
		ordered[i] = a->order.n ? z[a->order.at[i]] : z[i];
	return arena_printf(w->arena, "%.*s,%.*s->%s", x_rank, x, y_rank, y, ordered);
}

static bool
write_dot(GraphWriter *w, const Node *n)
{
	const DotAttr *a = n->attr;
	const WrittenAttribute e[] = {
		{.name = "equation",
	         .kind = WRITE_TEXT,
	         .text = equation(w, a, type_of(n, 0)->rank, type_of(n, 1)->rank)},
		{0}};
	const char *x[] = {operand_of_product(w, n, 0), operand_of_product(w, n, 1)};

	writer_set(w, n, 0, writer_node(w, "Einsum", e, 2, x));
	return true;
}

/* ---- convolutions */
static Ints
pads_of(const ConvAttr *a)
{
	Ints pads = {0};

	for (int i = 0; i < a->low.n; i++)
		pads.at[pads.n++] = a->low.at[i];
	for (int i = 0; i < a->high.n; i++)
		pads.at[pads.n++] = a->high.at[i];
	return pads;
}

static Ints
spatial_of(Type t)
{
	Ints s = {0};

	for (int i = 2; i < t->rank; i++)
		s.at[s.n++] = t->dims[i];
	return s;
}

static const char *
convolution(GraphWriter *w, const char *op, const char *x, const char *k, const ConvAttr *a,
            Ints kernel, Ints *output_padding)
{
	const WrittenAttribute attributes[] = {
		{.name = "kernel_shape", .kind = WRITE_INTS, .ints = kernel},
		{.name = "strides", .kind = WRITE_INTS, .ints = a->stride},
		{.name = "pads", .kind = WRITE_INTS, .ints = pads_of(a)},
		{.name = "dilations", .kind = WRITE_INTS, .ints = a->dilation},
		{.name = "group", .kind = WRITE_INT, .i = a->groups},
		{.name = output_padding ? "output_padding" : NULL,
	         .kind = WRITE_INTS,
	         .ints = output_padding ? *output_padding : (Ints){0}},
		{0}};

	return writer_node(w, op, attributes, 2, (const char *[]){x, k});
}

/* Can the convolution be written? ONNX's convolutions accept neither negative pads, nor integers, nor channels as the last
 * axis, which only kernels of GPUs have. */
static bool
fits(const Node *n)
{
	const ConvAttr *a = n->attr;

	if (a->channels_last || !dtype_is_float(node_result(n, 0)->type->dtype))
		return false;
	for (int i = 0; i < a->low.n; i++)
		if (a->low.at[i] < 0 || a->high.at[i] < 0)
			return false;
	return 2 * a->low.n <= MAX_RANK;
}

static bool
write_conv(GraphWriter *w, const Node *n)
{
	if (!fits(n))
		return false;
	writer_set(w, n, 0,
	           convolution(w, "Conv", operand_of_product(w, n, 0), operand_of_product(w, n, 1),
	                       n->attr, spatial_of(type_of(n, 1)), NULL));
	return true;
}

/* (dy, w) -> dx. If the stride did not reach the last elements of x, output padding adds them to
 * dx. */
static bool
write_conv_grad_input(GraphWriter *w, const Node *n)
{
	const ConvAttr *a = n->attr;
	Type dy = type_of(n, 0), k = type_of(n, 1), dx = node_result(n, 0)->type;
	Ints left = {.n = a->stride.n};

	if (!fits(n))
		return false;
	for (int i = 0; i < left.n; i++) {
		int64_t reach = (dy->dims[2 + i] - 1) * a->stride.at[i] +
		                (k->dims[2 + i] - 1) * a->dilation.at[i] + 1;
		left.at[i] = dx->dims[2 + i] - (reach - a->low.at[i] - a->high.at[i]);
		if (left.at[i] < 0)
			return false;
	}
	writer_set(w, n, 0,
	           convolution(w, "ConvTranspose", operand_of_product(w, n, 0),
	                       operand_of_product(w, n, 1), a, spatial_of(k), &left));
	return true;
}

/* [a, groups b, ...] -> [b, groups a, ...]: swaps a and b in each group. groups_first: -> [groups b,
 * a, ...]. */
static const char *
swap_in_groups(GraphWriter *w, const char *x, int64_t first, int64_t groups, int64_t second,
               Ints spatial, bool groups_first)
{
	Ints split = {.n = 3, .at = {first, groups, second}}, order = {.n = 3, .at = {2, 1, 0}},
	     joined = {.n = 2};

	if (groups_first)
		order = (Ints){.n = 3, .at = {1, 2, 0}};
	joined.at[0] = groups_first ? groups * second : second;
	joined.at[1] = groups_first ? first : groups * first;
	for (int i = 0; i < spatial.n; i++) {
		split.at[split.n++] = spatial.at[i];
		order.at[order.n++] = 3 + i;
		joined.at[joined.n++] = spatial.at[i];
	}
	return writer_reshape(w, writer_transpose(w, writer_reshape(w, x, split), order), joined);
}

/* (dy, x) -> dw: a convolution of x by dy with the batch as channels; stride and dilation are
 * swapped. */
static bool
write_conv_grad_weight(GraphWriter *w, const Node *n)
{
	ConvAttr a = *(const ConvAttr *)n->attr;
	Type x = type_of(n, 0), dy = type_of(n, 1), dw = node_result(n, 0)->type;
	int64_t batch = x->dims[0], groups = a.groups, in = dw->dims[1], out = dw->dims[0] / groups;
	Ints stride = a.stride, kernel = spatial_of(dy), size = spatial_of(dw),
	     start = {.n = dw->rank}, stop, step = {.n = dw->rank};

	if (!fits(n) || dw->rank + 1 > MAX_RANK)
		return false;
	a.stride = a.dilation;
	a.dilation = stride;
	const char *image = swap_in_groups(w, operand_of_product(w, n, 0), batch, groups, in,
	                                   spatial_of(x), false);
	const char *filter = swap_in_groups(w, operand_of_product(w, n, 1), batch, groups, out,
	                                    kernel, true);
	const char *y = convolution(
		w, "Conv", image, filter, &a, kernel,
		/* [in, groups out, sizes], perhaps with more elements than dw */
		NULL);
	stop = (Ints){.n = 2, .at = {in, groups * out}};
	for (int i = 0; i < size.n; i++)
		stop.at[stop.n++] = size.at[i];
	for (int i = 0; i < step.n; i++)
		step.at[i] = 1;
	y = writer_slice(w, y, start, stop, step);
	writer_set(w, n, 0, swap_in_groups(w, y, in, groups, out, size, true));
	return true;
}

const WriteRow write_product_rows[] = {
	{"dot", write_dot, NULL},
	{"conv", write_conv, NULL},
	{"conv_grad_input", write_conv_grad_input, NULL},
	{"conv_grad_weight", write_conv_grad_weight, NULL},
	{0},
};
