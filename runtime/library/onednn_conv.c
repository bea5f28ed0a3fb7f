/* Describes convolutions and their gradients to oneDNN. The library has fast code for layouts with blocks of channels; copying
 * to these layouts and back takes a twentieth of the time that the fast code saves. */
#if GRADC_ONEDNN
#include "runtime/library/onednn.h"

enum { TILE_OUTPUTS = 32, TILE_GROUPS = 16, MAX_DIMS = MAX_LIBRARY_SPATIAL + 3 };

/* Axes along which work is split into tiles: results x and y along the batch axis, w along the output channels or groups. */
enum { AXIS_BATCH, AXIS_OUT, AXIS_GROUPS };

static int64_t
places(const ConvSizes *c, ConvTensor tensor)
{
	int64_t n = 1;

	for (int i = 0; i < c->spatial; i++)
		n *= tensor == CONV_X   ? c->axes[i].x
		     : tensor == CONV_W ? c->axes[i].window
		                        : c->axes[i].y;
	return n;
}

static int64_t
least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

/* Elements from one step of the axis to the next; 0 if the tensor does not have the axis. */
static int64_t
axis_stride(const ConvSizes *c, ConvTensor tensor, int axis)
{
	int64_t n = places(c, tensor);

	if (tensor == CONV_W)
		return axis == AXIS_OUT ? n * c->in : axis == AXIS_GROUPS ? n * c->in * c->out : 0;
	int64_t channels = tensor == CONV_X ? c->in : c->out;
	if (axis == AXIS_OUT)
		return tensor == CONV_X ? 0 : n;
	return axis == AXIS_GROUPS ? n * channels : n * channels * c->groups;
}

static Tiling
tiling_of(const LibraryCall *call, int tiles, int axis, int64_t extent, int64_t step)
{
	ConvSizes c = library_conv_sizes(call);
	Tiling t = {
		.axis = axis, .extent = extent, .step = tiles > 1 ? least(step, extent) : extent};

	for (int i = 0; i < LIBRARY_BIAS && tiles > 1; i++)
		t.move[i] = axis_stride(&c, library_conv_operands[call->kind][i], axis);
	return t;
}

static Tiling
image_tiling(const LibraryCall *call, int tiles)
{
	return tiling_of(call, tiles, AXIS_BATCH, library_conv_sizes(call).batch, 1);
}

static Tiling
weight_tiling(const LibraryCall *call, int tiles)
{
	ConvSizes c = library_conv_sizes(call);

	return c.groups == 1 ? tiling_of(call, tiles, AXIS_OUT, c.out, TILE_OUTPUTS)
	                     : tiling_of(call, tiles, AXIS_GROUPS, c.groups, TILE_GROUPS);
}

/* [batch, channels, spatial..], or [outputs, inputs, window..] with an axis of groups in front if there are groups. */
static Layout
conv_layout(const LibraryCall *call, const Tiling *t, int64_t steps, int i)
{
	ConvSizes all = library_conv_sizes(call), c = all;
	Layout l = {0};

	if (i == LIBRARY_BIAS)
		return (Layout){.rank = 1, .dims = {all.groups * all.out}, .strides = {1}};
	ConvTensor tensor = library_conv_operands[call->kind][i];
	*(t->axis == AXIS_BATCH ? &c.batch : t->axis == AXIS_OUT ? &c.out : &c.groups) = steps;
	if (tensor == CONV_W && all.groups > 1) {
		l.strides[l.rank] = axis_stride(&all, tensor, AXIS_GROUPS);
		l.dims[l.rank++] = c.groups;
	}
	l.strides[l.rank] = axis_stride(&all, tensor, tensor == CONV_W ? AXIS_OUT : AXIS_BATCH);
	l.dims[l.rank++] = tensor == CONV_W ? c.out : c.batch;
	l.strides[l.rank] = places(&all, tensor);
	l.dims[l.rank++] = tensor == CONV_W ? c.in : c.groups * (tensor == CONV_X ? c.in : c.out);
	int64_t stride = places(&all, tensor);
	for (int k = 0; k < c.spatial; k++) {
		const ConvAxis *a = &c.axes[k];
		int64_t size = tensor == CONV_X ? a->x : tensor == CONV_W ? a->window : a->y;
		stride /= size;
		l.strides[l.rank] = stride;
		l.dims[l.rank++] = size;
	}
	return l;
}

typedef struct {
	dnnl_dims_t stride, dilation, low, high;
} Window;

/* The convolution's window in the library's terms: dilation is counted from 0. If input is left over after the last window, the
 * padding at the end is 0. */
static Window
window_of(const ConvSizes *c)
{
	Window w = {0};

	for (int i = 0; i < c->spatial; i++) {
		const ConvAxis *a = &c->axes[i];
		int64_t end = (a->y - 1) * a->stride + (a->window - 1) * a->dilation + 1 - a->low;
		w.stride[i] = a->stride;
		w.dilation[i] = a->dilation - 1;
		w.low[i] = a->low;
		w.high[i] = end > a->x ? end - a->x : 0;
	}
	return w;
}

/* Sorts operands into x, w, y. */
static void
by_tensor(const LibraryCall *call, ConstMemoryDesc m[N_OPERANDS], ConstMemoryDesc out[CONV_Y + 1])
{
	for (int i = 0; i < LIBRARY_BIAS; i++)
		out[library_conv_operands[call->kind][i]] = m[i];
}

static dnnl_status_t
describe_forward(const Library *lib, const LibraryCall *call, ConstMemoryDesc m[N_OPERANDS],
                 dnnl_primitive_desc_t *out)
{
	ConvSizes c = library_conv_sizes(call);
	Window s = window_of(&c);
	ConstMemoryDesc t[CONV_Y + 1];

	by_tensor(call, m, t);
#if DNNL_VERSION_MAJOR == 3
	return lib->convolution_forward_primitive_desc_create(
		out, lib->engine, dnnl_forward_training, dnnl_convolution_direct, t[CONV_X],
		t[CONV_W], m[LIBRARY_BIAS], t[CONV_Y], s.stride, s.dilation, s.low, s.high,
		lib->attributes);
#else
	dnnl_convolution_desc_t d;
	dnnl_status_t status = lib->dilated_convolution_forward_desc_init(
		&d, dnnl_forward_training, dnnl_convolution_direct, t[CONV_X], t[CONV_W],
		m[LIBRARY_BIAS], t[CONV_Y], s.stride, s.dilation, s.low, s.high);

	return status == dnnl_success
	               ? lib->primitive_desc_create(out, &d, lib->attributes, lib->engine, NULL)
	               : status;
#endif
}

/* Describes a gradient, with the convolution that it belongs to. */
static dnnl_status_t
describe_adjoint(const Library *lib, const LibraryCall *call, ConstMemoryDesc m[N_OPERANDS],
                 dnnl_primitive_desc_t forward, dnnl_primitive_desc_t *out)
{
	ConvSizes c = library_conv_sizes(call);
	Window s = window_of(&c);
	ConstMemoryDesc t[CONV_Y + 1];
	bool input = call->kind == LIBRARY_CONV_GRAD_INPUT;

	by_tensor(call, m, t);
#if DNNL_VERSION_MAJOR == 3
	return input ? lib->convolution_backward_data_primitive_desc_create(
			       out, lib->engine, dnnl_convolution_direct, t[CONV_X], t[CONV_W],
			       t[CONV_Y], s.stride, s.dilation, s.low, s.high, forward,
			       lib->attributes)
	             : lib->convolution_backward_weights_primitive_desc_create(
			       out, lib->engine, dnnl_convolution_direct, t[CONV_X], t[CONV_W],
			       NULL, t[CONV_Y], s.stride, s.dilation, s.low, s.high, forward,
			       lib->attributes);
#else
	dnnl_convolution_desc_t d;
	dnnl_status_t status = input ? lib->dilated_convolution_backward_data_desc_init(
					       &d, dnnl_convolution_direct, t[CONV_X], t[CONV_W],
					       t[CONV_Y], s.stride, s.dilation, s.low, s.high)
	                             : lib->dilated_convolution_backward_weights_desc_init(
					       &d, dnnl_convolution_direct, t[CONV_X], t[CONV_W],
					       NULL, t[CONV_Y], s.stride, s.dilation, s.low,
					       s.high);

	return status == dnnl_success
	               ? lib->primitive_desc_create(out, &d, lib->attributes, lib->engine, forward)
	               : status;
#endif
}

/* A tensor description with the same sizes and another type. */
static dnnl_status_t
describe_as(const Library *lib, ConstMemoryDesc m, dnnl_data_type_t type, MemoryDesc *out)
{
#if DNNL_VERSION_MAJOR == 3
	int rank;
	const dnnl_dims_t *dims;
	dnnl_status_t status = lib->memory_desc_query(m, dnnl_query_ndims_s32, &rank);

	if (status == dnnl_success)
		status = lib->memory_desc_query(m, dnnl_query_dims, &dims);
	return status == dnnl_success ? lib->memory_desc_create_with_tag(out, rank, *dims, type,
	                                                                 dnnl_format_tag_any)
	                              : status;
#else
	(void)lib;
	*out = *m;
	out->data_type = type;
	return dnnl_success;
#endif
}

/* A gradient is described with its convolution, whose operands must all have one type. Only the gradient's result has a type of
 * its own. */
static dnnl_status_t
describe_backward(const Library *lib, const LibraryCall *call, ConstMemoryDesc m[N_OPERANDS],
                  dnnl_primitive_desc_t *out)
{
	dnnl_primitive_desc_t forward = NULL;
	MemoryDesc result = {0};
	ConstMemoryDesc of_forward[N_OPERANDS] = {m[LIBRARY_FIRST], m[LIBRARY_SECOND]};
	dnnl_status_t status = describe_as(
		lib, m[LIBRARY_RESULT], onednn_type(call->operands[LIBRARY_FIRST].dtype), &result);

	of_forward[LIBRARY_RESULT] = DESC(result);
	if (status == dnnl_success)
		status = describe_forward(lib, call, of_forward, &forward);
	if (status == dnnl_success)
		status = describe_adjoint(lib, call, m, forward, out);
	if (forward)
		lib->primitive_desc_destroy(forward);
	onednn_forget_memory(lib, &result);
	return status;
}

const WorkKind onednn_conv = {
	.names = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_BIAS},
	.any = true,
	.tiling = image_tiling,
	.layout = conv_layout,
	.describe = describe_forward,
};
const WorkKind onednn_conv_grad_input = {
	.names = {DNNL_ARG_DIFF_DST, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_SRC},
	.any = true,
	.tiling = image_tiling,
	.layout = conv_layout,
	.describe = describe_backward,
};
const WorkKind onednn_conv_grad_weight = {
	.names = {DNNL_ARG_SRC, DNNL_ARG_DIFF_DST, DNNL_ARG_DIFF_WEIGHTS},
	.any = true,
	.tiling = weight_tiling,
	.layout = conv_layout,
	.describe = describe_backward,
};
#endif
