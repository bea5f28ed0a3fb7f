/* Describes a convolution, or one of its gradients, to cuDNN: as a graph with one operation. Tensors have the axes
 * [batch, channels, spatial..]; strides say whether channels are next to each other in memory. The number of groups follows from the channels of x and w. */
#include "base/numbers/numbers.h"
#include "cudnn/cudnn.h"

#include <assert.h>

enum { LEAST_SPATIAL = 2, SLOT_ALIGNMENT = 16 /* in bytes; a larger alignment brings nothing */ };

int
cudnn_type(uint32_t dtype)
{
	return dtype == F32    ? CUDNN_F32
	       : dtype == BF16 ? CUDNN_BF16
	       : dtype == F16  ? CUDNN_F16
	                       : -1;
}

/* ---- descriptors */
void *
cudnn_new(CudnnDescriptors *d, int type)
{
	void *descriptor = NULL;

	assert(d->n < MOST_CUDNN_DESCRIPTORS);
	if (!d->code)
		d->code = d->dnn->BackendCreateDescriptor(type, &descriptor);
	if (d->code)
		return NULL;
	d->at[d->n++] = descriptor;
	return descriptor;
}

void
cudnn_set(CudnnDescriptors *d, void *descriptor, int attribute, int type, int64_t n,
          const void *values)
{
	if (!d->code)
		d->code = d->dnn->BackendSetAttribute(descriptor, attribute, type, n, values);
}

void
cudnn_finish(CudnnDescriptors *d, void *descriptor)
{
	if (!d->code)
		d->code = d->dnn->BackendFinalize(descriptor);
}

/* Destroys the descriptors in reverse order, because a descriptor may use descriptors that were made earlier. */
void
cudnn_destroy(CudnnDescriptors *d)
{
	while (d->n > 0)
		d->dnn->BackendDestroyDescriptor(d->at[--d->n]);
}

static void
set_int(CudnnDescriptors *d, void *descriptor, int attribute, int type, int value)
{
	cudnn_set(d, descriptor, attribute, type, 1, &value);
}

/* ---- tensors */
/* The library's convolutions have two or three spatial axes. If there is only one, an axis of size 1 is put before it. */
static LibraryOperand
add_axis(const LibraryOperand *o)
{
	LibraryOperand out = *o;
	int missing = LEAST_SPATIAL + 2 - (int)o->rank;

	for (; missing > 0; missing--) {
		for (uint32_t i = out.rank++; i > 2; i--) {
			out.dims[i] = out.dims[i - 1];
			out.strides[i] = out.strides[i - 1];
		}
		out.dims[2] = 1;
		out.strides[2] = out.dims[3] * out.strides[3];
	}
	return out;
}

/* Alignment of the first element, in bytes. */
static int64_t
alignment_of(const LibraryOperand *o)
{
	int64_t alignment = SLOT_ALIGNMENT;

	while (dtype_bytes((DType)o->dtype, o->offset) % alignment)
		alignment /= 2;
	return alignment;
}

static void *
add_tensor(CudnnDescriptors *d, const LibraryCall *call, int i)
{
	const LibraryOperand o = add_axis(&call->operands[i]);
	int64_t number = cudnn_number(i), alignment = alignment_of(&o);
	void *t = cudnn_new(d, CUDNN_TENSOR_DESCRIPTOR);

	set_int(d, t, CUDNN_TENSOR_TYPE, CUDNN_DATA_TYPES, cudnn_type(o.dtype));
	cudnn_set(d, t, CUDNN_TENSOR_DIMS, CUDNN_INT64S, o.rank, o.dims);
	cudnn_set(d, t, CUDNN_TENSOR_STRIDES, CUDNN_INT64S, o.rank, o.strides);
	cudnn_set(d, t, CUDNN_TENSOR_NUMBER, CUDNN_INT64S, 1, &number);
	cudnn_set(d, t, CUDNN_TENSOR_ALIGNMENT, CUDNN_INT64S, 1, &alignment);
	cudnn_finish(d, t);
	return t;
}

/* ---- windows */
/* The padding after x. Most engines want the same padding after x as before x. So both paddings are the same if this gives the
 * right number of outputs. Otherwise the padding after x is what the last window needs. */
static int64_t
high_of(const ConvAxis *a)
{
	int64_t window = (a->window - 1) * a->dilation + 1;
	int64_t needed = (a->y - 1) * a->stride + window - a->low - a->x;
	int64_t same = a->x + 2 * a->low - window;

	return same >= 0 && same / a->stride + 1 == a->y ? a->low : needed > 0 ? needed : 0;
}

static void *
add_convolution(CudnnDescriptors *d, const LibraryCall *call)
{
	ConvSizes c = library_conv_sizes(call);
	int64_t stride[MAX_LIBRARY_SPATIAL] = {1}, dilation[MAX_LIBRARY_SPATIAL] = {1};
	int64_t low[MAX_LIBRARY_SPATIAL] = {0}, high[MAX_LIBRARY_SPATIAL] = {0};
	int64_t n = c.spatial < LEAST_SPATIAL ? LEAST_SPATIAL : c.spatial, first = n - c.spatial;
	void *t = cudnn_new(d, CUDNN_CONVOLUTION_DESCRIPTOR);

	for (int i = 0; i < c.spatial; i++) {
		stride[first + i] = c.axes[i].stride;
		dilation[first + i] = c.axes[i].dilation;
		low[first + i] = c.axes[i].low;
		high[first + i] = high_of(&c.axes[i]);
	}
	set_int(d, t, CUDNN_CONVOLUTION_SUM_TYPE, CUDNN_DATA_TYPES, CUDNN_F32);
	set_int(d, t, CUDNN_CONVOLUTION_MODE, CUDNN_MODES, CUDNN_CROSS_CORRELATES);
	cudnn_set(d, t, CUDNN_CONVOLUTION_AXES, CUDNN_INT64S, 1, &n);
	cudnn_set(d, t, CUDNN_CONVOLUTION_STRIDES, CUDNN_INT64S, n, stride);
	cudnn_set(d, t, CUDNN_CONVOLUTION_DILATIONS, CUDNN_INT64S, n, dilation);
	cudnn_set(d, t, CUDNN_CONVOLUTION_LOW, CUDNN_INT64S, n, low);
	cudnn_set(d, t, CUDNN_CONVOLUTION_HIGH, CUDNN_INT64S, n, high);
	cudnn_finish(d, t);
	return t;
}

/* ---- the operation */
typedef struct {
	int type, convolution, alpha, beta; /* names of attributes */
	int operands[LIBRARY_BIAS];
} OperationRow;
static const OperationRow operations[N_LIBRARY_KINDS] = {
	[LIBRARY_CONV] = {CUDNN_FORWARD_DESCRIPTOR,
                          CUDNN_FORWARD_CONVOLUTION,
                          CUDNN_FORWARD_ALPHA,
                          CUDNN_FORWARD_BETA,
                          {CUDNN_FORWARD_X, CUDNN_FORWARD_W, CUDNN_FORWARD_Y}},
	[LIBRARY_CONV_GRAD_INPUT] = {CUDNN_GRAD_INPUT_DESCRIPTOR,
                                     CUDNN_GRAD_INPUT_CONVOLUTION,
                                     CUDNN_GRAD_INPUT_ALPHA,
                                     CUDNN_GRAD_INPUT_BETA,
                                     {CUDNN_GRAD_INPUT_DY, CUDNN_GRAD_INPUT_W,
                                      CUDNN_GRAD_INPUT_DX}},
	[LIBRARY_CONV_GRAD_WEIGHT] = {CUDNN_GRAD_WEIGHT_DESCRIPTOR,
                                      CUDNN_GRAD_WEIGHT_CONVOLUTION,
                                      CUDNN_GRAD_WEIGHT_ALPHA,
                                      CUDNN_GRAD_WEIGHT_BETA,
                                      {CUDNN_GRAD_WEIGHT_X, CUDNN_GRAD_WEIGHT_DY,
                                       CUDNN_GRAD_WEIGHT_DW}},
};

static void *
add_operation(CudnnDescriptors *d, const LibraryCall *call)
{
	const OperationRow *row = &operations[call->kind];
	const float alpha = 1, beta = 0;
	void *parts[LIBRARY_BIAS + 1];

	for (int i = 0; i < LIBRARY_BIAS; i++)
		parts[i] = add_tensor(d, call, i);
	parts[LIBRARY_BIAS] = add_convolution(d, call);
	void *t = cudnn_new(d, row->type);
	for (int i = 0; i < LIBRARY_BIAS; i++)
		cudnn_set(d, t, row->operands[i], CUDNN_DESCRIPTORS, 1, &parts[i]);
	cudnn_set(d, t, row->convolution, CUDNN_DESCRIPTORS, 1, &parts[LIBRARY_BIAS]);
	cudnn_set(d, t, row->alpha, CUDNN_FLOATS, 1, &alpha);
	cudnn_set(d, t, row->beta, CUDNN_FLOATS, 1, &beta);
	cudnn_finish(d, t);
	return t;
}

static Status
check_call(const LibraryCall *c)
{
	if (!operations[c->kind].type || c->epilogue != EPILOGUE_NONE)
		return status_error(EXIT_UNSUPPORTED, "cuDNN: no %s%s", library_kind_names[c->kind],
		                    c->epilogue != EPILOGUE_NONE ? " with a bias" : "");
	for (int i = 0; i < LIBRARY_BIAS; i++)
		if (cudnn_type(c->operands[i].dtype) < 0)
			return status_error(EXIT_UNSUPPORTED, "cuDNN: convolutions of %s are loops",
			                    dtype_info[c->operands[i].dtype].name);
	return NULL;
}

Status
cudnn_graph(CudnnDescriptors *d, const LibraryCall *call, void *handle, void **graph)
{
	*graph = NULL;
	RETURN_IF_ERROR(check_call(call));
	void *operation = add_operation(d, call);
	void *g = cudnn_new(d, CUDNN_GRAPH_DESCRIPTOR);
	cudnn_set(d, g, CUDNN_GRAPH_OPERATIONS, CUDNN_DESCRIPTORS, 1, &operation);
	if (handle)
		cudnn_set(d, g, CUDNN_GRAPH_HANDLE, CUDNN_HANDLES, 1, &handle);
	cudnn_finish(d, g);
	RETURN_IF_ERROR(cudnn_status(d->dnn, d->code, "no such convolution"));
	*graph = g;
	return NULL;
}
