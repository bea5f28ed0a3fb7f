/* Makes the values of finished descriptors. */
#include "tests/cuda/programs/fake_cudnn.h"

#include <stdlib.h>
#include <string.h>

/* ---- reading attributes */
static int64_t
number_of(const FakeDescriptor *d, int number)
{
	return *(const int64_t *)(const void *)fake_attribute(d, number)->bytes;
}

static int
int_of(const FakeDescriptor *d, int number)
{
	return *(const int *)(const void *)fake_attribute(d, number)->bytes;
}

static const FakeValue *
inner_of(const FakeDescriptor *d, int number)
{
	return (const void *)fake_attribute(d, number)->bytes;
}

/* NULL: the attribute is not set. */
static void *
handle_of(const FakeDescriptor *d, int number)
{
	const FakeAttribute *a = fake_attribute(d, number);

	return a ? *(void *const *)(const void *)a->bytes : NULL;
}

/* false: the attribute has another number of elements. */
static bool
take(const FakeDescriptor *d, int number, int64_t n, void *to)
{
	const FakeAttribute *a = fake_attribute(d, number);

	if (a->n != n)
		return false;
	memcpy(to, a->bytes, (size_t)n * fake_bytes(a->type));
	return true;
}

/* ---- tensors and windows */
static int
finish_tensor(const FakeDescriptor *d, FakeTensor *t)
{
	t->type = int_of(d, CUDNN_TENSOR_TYPE);
	t->number = number_of(d, CUDNN_TENSOR_NUMBER);
	t->alignment = number_of(d, CUDNN_TENSOR_ALIGNMENT);
	t->rank = fake_attribute(d, CUDNN_TENSOR_DIMS)->n;
	take(d, CUDNN_TENSOR_DIMS, t->rank, t->dims);
	return take(d, CUDNN_TENSOR_STRIDES, t->rank, t->strides) ? CUDNN_OK : BAD_VALUE;
}

static int
finish_windows(const FakeDescriptor *d, FakeWindows *w)
{
	w->n = number_of(d, CUDNN_CONVOLUTION_AXES);
	if (int_of(d, CUDNN_CONVOLUTION_SUM_TYPE) != CUDNN_F32 ||
	    int_of(d, CUDNN_CONVOLUTION_MODE) != CUDNN_CROSS_CORRELATES)
		return NOT_SUPPORTED;
	return take(d, CUDNN_CONVOLUTION_STRIDES, w->n, w->strides) &&
	                       take(d, CUDNN_CONVOLUTION_DILATIONS, w->n, w->dilations) &&
	                       take(d, CUDNN_CONVOLUTION_LOW, w->n, w->low) &&
	                       take(d, CUDNN_CONVOLUTION_HIGH, w->n, w->high)
	               ? CUDNN_OK
	               : BAD_VALUE;
}

/* ---- operations */
typedef struct {
	int type, tensors[N_FAKE_TENSORS], windows, alpha, beta;
} OperationRow;
static const OperationRow operations[] = {
	{CUDNN_FORWARD_DESCRIPTOR,
         {CUDNN_FORWARD_X, CUDNN_FORWARD_W, CUDNN_FORWARD_Y},
         CUDNN_FORWARD_CONVOLUTION,
         CUDNN_FORWARD_ALPHA,
         CUDNN_FORWARD_BETA},
	{CUDNN_GRAD_INPUT_DESCRIPTOR,
         {CUDNN_GRAD_INPUT_DX, CUDNN_GRAD_INPUT_W, CUDNN_GRAD_INPUT_DY},
         CUDNN_GRAD_INPUT_CONVOLUTION,
         CUDNN_GRAD_INPUT_ALPHA,
         CUDNN_GRAD_INPUT_BETA},
	{CUDNN_GRAD_WEIGHT_DESCRIPTOR,
         {CUDNN_GRAD_WEIGHT_X, CUDNN_GRAD_WEIGHT_DW, CUDNN_GRAD_WEIGHT_DY},
         CUDNN_GRAD_WEIGHT_CONVOLUTION,
         CUDNN_GRAD_WEIGHT_ALPHA,
         CUDNN_GRAD_WEIGHT_BETA},
};

static int
finish_operation(const FakeDescriptor *d, FakeOperation *o)
{
	const OperationRow *row = operations;
	float alpha, beta;

	while (row->type != d->type)
		row++;
	o->type = d->type;
	for (int i = 0; i < N_FAKE_TENSORS; i++)
		o->tensors[i] = inner_of(d, row->tensors[i])->tensor;
	o->windows = inner_of(d, row->windows)->windows;
	take(d, row->alpha, 1, &alpha);
	take(d, row->beta, 1, &beta);
	return alpha == 1 && beta == 0 ? fake_check_operation(o) : NOT_SUPPORTED;
}

static int
finish_graph(const FakeDescriptor *d, FakeGraph *g)
{
	g->operation = inner_of(d, CUDNN_GRAPH_OPERATIONS)->operation;
	g->handle = handle_of(d, CUDNN_GRAPH_HANDLE);
	return CUDNN_OK;
}

/* ---- plans */
/* The device of the GPU descriptor, else the handle's. */
static int64_t
device_of(const FakeDescriptor *d, int gpu)
{
	const char *own = getenv("FAKE_CUDNN_DEVICE");

	return fake_attribute(d, gpu) ? inner_of(d, gpu)->gpu.device : own ? atoi(own) : 900;
}

static int
finish_heuristic(const FakeDescriptor *d, FakeHeuristic *h)
{
	const FakeGraph *graph = &inner_of(d, CUDNN_HEURISTIC_GRAPH)->graph;

	h->operation = graph->operation;
	h->mode = int_of(d, CUDNN_HEURISTIC_MODE);
	h->device = device_of(d, CUDNN_HEURISTIC_GPU);
	if (h->mode != CUDNN_HEURISTIC_A && h->mode != CUDNN_HEURISTIC_FALLBACK)
		return NOT_SUPPORTED;
	return graph->handle || fake_attribute(d, CUDNN_HEURISTIC_GPU) ? CUDNN_OK : BAD_VALUE;
}

static int
finish_plan(const FakeDescriptor *d, FakePlan *p)
{
	const FakeAttribute *text = fake_attribute(d, CUDNN_PLAN_JSON);
	bool has_config = fake_attribute(d, CUDNN_PLAN_CONFIG);

	p->handle = handle_of(d, CUDNN_PLAN_HANDLE);
	if ((!p->handle && !fake_attribute(d, CUDNN_PLAN_GPU)) || has_config == (text != NULL))
		return BAD_VALUE;
	if (text)
		return fake_plan_from_text(text->bytes, text->n, device_of(d, CUDNN_PLAN_GPU),
		                           &p->engine);
	p->engine = inner_of(d, CUDNN_PLAN_CONFIG)->engine;
	return CUDNN_OK;
}

static int
finish_buffers(const FakeDescriptor *d, FakeBuffers *b)
{
	b->n = fake_attribute(d, CUDNN_BUFFERS_NUMBERS)->n;
	take(d, CUDNN_BUFFERS_NUMBERS, b->n, b->numbers);
	take(d, CUDNN_BUFFERS_WORKSPACE, 1, &b->workspace);
	return take(d, CUDNN_BUFFERS_AT, b->n, b->at) ? CUDNN_OK : BAD_VALUE;
}

/* Finishes a descriptor that describes a GPU. */
static int
finish_gpu(const FakeDescriptor *d, FakeGpu *g)
{
	const FakeAttribute *a = fake_attribute(d, CUDNN_GPU_JSON);
	char text[4096] = "";

	if (a->n >= (int64_t)sizeof(text))
		return BAD_VALUE;
	memcpy(text, a->bytes, (size_t)a->n);
	const char *device = strstr(text, "\"deviceVer\":");
	if (text[0] != '{' || text[strlen(text) - 1] != '}' || !device ||
	    !strstr(text, "\"multiProcessorCount\":"))
		return BAD_VALUE;
	g->device = atoi(strchr(device, ':') + 1);
	return CUDNN_OK;
}

int
fake_finish(FakeDescriptor *d)
{
	switch (d->type) {
	case CUDNN_TENSOR_DESCRIPTOR: return finish_tensor(d, &d->value.tensor);
	case CUDNN_CONVOLUTION_DESCRIPTOR: return finish_windows(d, &d->value.windows);
	case CUDNN_FORWARD_DESCRIPTOR:
	case CUDNN_GRAD_INPUT_DESCRIPTOR:
	case CUDNN_GRAD_WEIGHT_DESCRIPTOR: return finish_operation(d, &d->value.operation);
	case CUDNN_GRAPH_DESCRIPTOR: return finish_graph(d, &d->value.graph);
	case CUDNN_HEURISTIC_DESCRIPTOR: return finish_heuristic(d, &d->value.heuristic);
	case CUDNN_PLAN_DESCRIPTOR: return finish_plan(d, &d->value.plan);
	case CUDNN_BUFFERS_DESCRIPTOR: return finish_buffers(d, &d->value.buffers);
	case CUDNN_GPU_DESCRIPTOR: return finish_gpu(d, &d->value.gpu);
	default: return NOT_SUPPORTED; /* the heuristic makes engines and configurations */
	}
}
