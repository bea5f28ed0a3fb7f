/* The attributes that each descriptor has, with their types and counts. */
#include "tests/cuda/programs/fake_cudnn.h"

#define ONE(number, type)             \
	{                             \
		number, type, 1, true \
	}
#define SOME(number, type, most)         \
	{                                \
		number, type, most, true \
	}
#define OPTIONAL(number, type)         \
	{                              \
		number, type, 1, false \
	}
#define INNER(number, inner)                              \
	{                                                 \
		number, CUDNN_DESCRIPTORS, 1, true, inner \
	}
#define GPU(number)                                                       \
	{                                                                 \
		number, CUDNN_DESCRIPTORS, 1, false, CUDNN_GPU_DESCRIPTOR \
	}
#define OPERATION(convolution, alpha, beta, first, second, third)                                \
	INNER(convolution, CUDNN_CONVOLUTION_DESCRIPTOR), INNER(first, CUDNN_TENSOR_DESCRIPTOR), \
		INNER(second, CUDNN_TENSOR_DESCRIPTOR), INNER(third, CUDNN_TENSOR_DESCRIPTOR),   \
		ONE(alpha, CUDNN_FLOATS), ONE(beta, CUDNN_FLOATS)

enum { MOST_TYPES = 39, MOST_CHARACTERS = 1 << 20 };

static const AttributeRow rows[MOST_TYPES][MOST_ATTRIBUTES + 1] = {
	[CUDNN_TENSOR_DESCRIPTOR] = {ONE(CUDNN_TENSOR_TYPE, CUDNN_DATA_TYPES),
                                     SOME(CUDNN_TENSOR_DIMS, CUDNN_INT64S, MOST_AXES),
                                     SOME(CUDNN_TENSOR_STRIDES, CUDNN_INT64S, MOST_AXES),
                                     ONE(CUDNN_TENSOR_NUMBER, CUDNN_INT64S),
                                     ONE(CUDNN_TENSOR_ALIGNMENT, CUDNN_INT64S)},
	[CUDNN_CONVOLUTION_DESCRIPTOR] = {ONE(CUDNN_CONVOLUTION_SUM_TYPE, CUDNN_DATA_TYPES),
                                          ONE(CUDNN_CONVOLUTION_MODE, CUDNN_MODES),
                                          ONE(CUDNN_CONVOLUTION_AXES, CUDNN_INT64S),
                                          SOME(CUDNN_CONVOLUTION_STRIDES, CUDNN_INT64S,
                                               MOST_SPATIAL),
                                          SOME(CUDNN_CONVOLUTION_DILATIONS, CUDNN_INT64S,
                                               MOST_SPATIAL),
                                          SOME(CUDNN_CONVOLUTION_LOW, CUDNN_INT64S, MOST_SPATIAL),
                                          SOME(CUDNN_CONVOLUTION_HIGH, CUDNN_INT64S, MOST_SPATIAL)},
	[CUDNN_FORWARD_DESCRIPTOR] = {OPERATION(CUDNN_FORWARD_CONVOLUTION, CUDNN_FORWARD_ALPHA,
                                                CUDNN_FORWARD_BETA, CUDNN_FORWARD_X,
                                                CUDNN_FORWARD_W, CUDNN_FORWARD_Y)},
	[CUDNN_GRAD_INPUT_DESCRIPTOR] = {OPERATION(
		CUDNN_GRAD_INPUT_CONVOLUTION, CUDNN_GRAD_INPUT_ALPHA, CUDNN_GRAD_INPUT_BETA,
		CUDNN_GRAD_INPUT_DX, CUDNN_GRAD_INPUT_W, CUDNN_GRAD_INPUT_DY)},
	[CUDNN_GRAD_WEIGHT_DESCRIPTOR] = {OPERATION(
		CUDNN_GRAD_WEIGHT_CONVOLUTION, CUDNN_GRAD_WEIGHT_ALPHA, CUDNN_GRAD_WEIGHT_BETA,
		CUDNN_GRAD_WEIGHT_X, CUDNN_GRAD_WEIGHT_DW, CUDNN_GRAD_WEIGHT_DY)},
	[CUDNN_GRAPH_DESCRIPTOR] = {OPTIONAL(CUDNN_GRAPH_HANDLE, CUDNN_HANDLES),
                                    INNER(CUDNN_GRAPH_OPERATIONS, ANY_OPERATION)},
	[CUDNN_HEURISTIC_DESCRIPTOR] = {INNER(CUDNN_HEURISTIC_GRAPH, CUDNN_GRAPH_DESCRIPTOR),
                                        ONE(CUDNN_HEURISTIC_MODE, CUDNN_HEURISTICS),
                                        GPU(CUDNN_HEURISTIC_GPU)},
	[CUDNN_CONFIG_DESCRIPTOR] = {INNER(CUDNN_CONFIG_ENGINE, CUDNN_ENGINE_DESCRIPTOR)},
	[CUDNN_ENGINE_DESCRIPTOR] = {ONE(CUDNN_ENGINE_NUMBER, CUDNN_INT64S)},
	[CUDNN_PLAN_DESCRIPTOR] = {OPTIONAL(CUDNN_PLAN_HANDLE, CUDNN_HANDLES),
                                   {CUDNN_PLAN_CONFIG, CUDNN_DESCRIPTORS, 1, false,
                                    CUDNN_CONFIG_DESCRIPTOR},
                                   {CUDNN_PLAN_JSON, CUDNN_CHARACTERS, MOST_CHARACTERS, false},
                                   GPU(CUDNN_PLAN_GPU)},
	[CUDNN_BUFFERS_DESCRIPTOR] = {SOME(CUDNN_BUFFERS_NUMBERS, CUDNN_INT64S, MOST_BUFFERS),
                                      SOME(CUDNN_BUFFERS_AT, CUDNN_POINTERS, MOST_BUFFERS),
                                      ONE(CUDNN_BUFFERS_WORKSPACE, CUDNN_POINTERS)},
	[CUDNN_GPU_DESCRIPTOR] = {SOME(CUDNN_GPU_JSON, CUDNN_CHARACTERS, MOST_CHARACTERS)},
};

const AttributeRow *
fake_rows(int descriptor_type)
{
	return descriptor_type > 0 && descriptor_type < MOST_TYPES &&
	                       rows[descriptor_type][0].number
	               ? rows[descriptor_type]
	               : NULL;
}

size_t
fake_bytes(int type)
{
	static const size_t bytes[] = {
		[CUDNN_HANDLES] = sizeof(void *),        [CUDNN_DATA_TYPES] = sizeof(int),
		[CUDNN_INT64S] = sizeof(int64_t),        [CUDNN_FLOATS] = sizeof(float),
		[CUDNN_POINTERS] = sizeof(void *),       [CUDNN_MODES] = sizeof(int),
		[CUDNN_HEURISTICS] = sizeof(int),        [CUDNN_NOTES] = sizeof(int),
		[CUDNN_DESCRIPTORS] = sizeof(FakeValue), [CUDNN_CHARACTERS] = 1,
	};

	return bytes[type];
}

const FakeAttribute *
fake_attribute(const FakeDescriptor *d, int number)
{
	const AttributeRow *row = fake_rows(d->type);

	for (int i = 0; row[i].number; i++)
		if (row[i].number == number)
			return d->at[i].bytes ? &d->at[i] : NULL;
	return NULL;
}
