/* cuDNN 9, NVIDIA's library of convolutions: how it is opened, and how a convolution becomes a plan. The compiler makes plans from the
 * description of a GPU, and the runtime makes them ready, or makes its own. Nothing of CUDA is needed to build gradc: the declarations
 * are our own, of the library's backend interface as cudnn_graph.h describes it. There everything is a descriptor with attributes: tensors,
 * an operation on them, a graph of operations, the configurations that a heuristic thinks are fast for it, a plan. */
#ifndef GRADC_CUDNN_H
#define GRADC_CUDNN_H

#include "base/calls/library_call.h"

/* Of cudnnStatus_t, cudnnDataType_t, cudnnConvolutionMode_t and the cudnnBackend enums: those that are used. */
enum {
	CUDNN_OK = 0,

	CUDNN_F32 = 0,
	CUDNN_F16 = 2,
	CUDNN_BF16 = 9,

	CUDNN_CROSS_CORRELATES = 1, /* the window is not turned round */

	CUDNN_HEURISTIC_FALLBACK = 2, /* what works, slow or not */
	CUDNN_HEURISTIC_A = 3,        /* the fastest first */
};
/* Of cudnnBackendDescriptorType_t. */
enum {
	CUDNN_CONVOLUTION_DESCRIPTOR = 1,
	CUDNN_ENGINE_DESCRIPTOR = 2,
	CUDNN_CONFIG_DESCRIPTOR = 3,
	CUDNN_HEURISTIC_DESCRIPTOR = 4,
	CUDNN_PLAN_DESCRIPTOR = 5,
	CUDNN_FORWARD_DESCRIPTOR = 10,
	CUDNN_GRAD_WEIGHT_DESCRIPTOR = 11,
	CUDNN_GRAD_INPUT_DESCRIPTOR = 12,
	CUDNN_GRAPH_DESCRIPTOR = 15,
	CUDNN_BUFFERS_DESCRIPTOR = 16,
	CUDNN_TENSOR_DESCRIPTOR = 17,
	CUDNN_GPU_DESCRIPTOR = 38, /* from 9.8 on */
};
/* Of cudnnBackendAttributeType_t: what an attribute's elements are. */
enum {
	CUDNN_HANDLES = 0,      /* void * */
	CUDNN_DATA_TYPES = 1,   /* int */
	CUDNN_INT64S = 3,       /* int64_t */
	CUDNN_FLOATS = 4,       /* float */
	CUDNN_POINTERS = 6,     /* void * */
	CUDNN_MODES = 7,        /* int */
	CUDNN_HEURISTICS = 8,   /* int */
	CUDNN_NOTES = 11,       /* int */
	CUDNN_DESCRIPTORS = 15, /* void * */
	CUDNN_CHARACTERS = 24,  /* char */
};
/* Of cudnnBackendAttributeName_t. */
enum {
	CUDNN_CONVOLUTION_SUM_TYPE = 100,
	CUDNN_CONVOLUTION_MODE = 101,
	CUDNN_CONVOLUTION_DILATIONS = 102,
	CUDNN_CONVOLUTION_STRIDES = 103,
	CUDNN_CONVOLUTION_HIGH = 104, /* the padding behind x */
	CUDNN_CONVOLUTION_LOW = 105,
	CUDNN_CONVOLUTION_AXES = 106,

	CUDNN_HEURISTIC_MODE = 200,
	CUDNN_HEURISTIC_GRAPH = 201,
	CUDNN_HEURISTIC_CONFIGS = 202,
	CUDNN_HEURISTIC_GPU = 204,

	CUDNN_CONFIG_ENGINE = 300,

	CUDNN_PLAN_HANDLE = 400,
	CUDNN_PLAN_CONFIG = 401,
	CUDNN_PLAN_WORKSPACE = 402, /* bytes */
	CUDNN_PLAN_JSON = 405,
	CUDNN_PLAN_GPU = 407,

	CUDNN_FORWARD_ALPHA = 700,
	CUDNN_FORWARD_BETA = 701,
	CUDNN_FORWARD_CONVOLUTION = 702,
	CUDNN_FORWARD_W = 703,
	CUDNN_FORWARD_X = 704,
	CUDNN_FORWARD_Y = 705,
	CUDNN_GRAD_INPUT_ALPHA = 706,
	CUDNN_GRAD_INPUT_BETA = 707,
	CUDNN_GRAD_INPUT_CONVOLUTION = 708,
	CUDNN_GRAD_INPUT_W = 709,
	CUDNN_GRAD_INPUT_DX = 710,
	CUDNN_GRAD_INPUT_DY = 711,
	CUDNN_GRAD_WEIGHT_ALPHA = 712,
	CUDNN_GRAD_WEIGHT_BETA = 713,
	CUDNN_GRAD_WEIGHT_CONVOLUTION = 714,
	CUDNN_GRAD_WEIGHT_DW = 715,
	CUDNN_GRAD_WEIGHT_X = 716,
	CUDNN_GRAD_WEIGHT_DY = 717,

	CUDNN_GRAPH_HANDLE = 800,
	CUDNN_GRAPH_OPERATIONS = 801,

	CUDNN_TENSOR_ALIGNMENT = 900, /* bytes */
	CUDNN_TENSOR_TYPE = 901,
	CUDNN_TENSOR_DIMS = 902,
	CUDNN_TENSOR_STRIDES = 903,
	CUDNN_TENSOR_NUMBER = 906, /* a name for it in the buffers */

	CUDNN_BUFFERS_NUMBERS = 1000,
	CUDNN_BUFFERS_AT = 1001,
	CUDNN_BUFFERS_WORKSPACE = 1003,

	CUDNN_ENGINE_NUMBER = 1301,
	CUDNN_ENGINE_NOTES = 1303,

	CUDNN_GPU_JSON = 2702,
};
/* Of cudnnBackendNumericalNote_t: what an engine's results may suffer from. */
enum {
	CUDNN_NOTE_TENSOR_CORE = 0,
	CUDNN_NOTE_ROUNDS_OPERANDS = 1,
	CUDNN_NOTE_ROUNDS_SUMS = 2,
	CUDNN_NOTE_FFT = 3,
	CUDNN_NOTE_ANY_ORDER = 4, /* no two runs need have the same bits */
	CUDNN_NOTE_WINOGRAD = 5,
	CUDNN_NOTE_WINOGRAD_6 = 7,  /* by tiles of 6 x 6 */
	CUDNN_NOTE_WINOGRAD_13 = 8, /* by tiles of 13 x 13 */
	MOST_CUDNN_NOTES = 16,
};

/* ---- load.c */
typedef struct {
	void *library;
#define CUDNN_SYMBOL(name, type, parameters) type(*name) parameters;
#include "cudnn/symbols.def"
#undef CUDNN_SYMBOL
} Cudnn;
/* EXIT_SYSTEM where there is none. It stays loaded. */
Status cudnn_load(Cudnn *out);
/* NULL for CUDNN_OK. what: what was being done. */
Status cudnn_status(const Cudnn *dnn, int code, const char *what);
enum { MOST_CUDNN_VERSION = 32 };
void cudnn_version(const Cudnn *dnn, char out[MOST_CUDNN_VERSION]); /* "cuDNN 9.28.1" */

/* ---- graph.c */
/* Descriptors that are destroyed together. The first call that fails is kept; behind it nothing is called. */
enum { MOST_CUDNN_DESCRIPTORS = 16 };
typedef struct {
	const Cudnn *dnn;
	int code; /* cudnnStatus_t */
	int n;
	void *at[MOST_CUDNN_DESCRIPTORS];
} CudnnDescriptors;
void *cudnn_new(CudnnDescriptors *d, int type); /* NULL: the code says why */
void cudnn_set(CudnnDescriptors *d, void *descriptor, int attribute, int type, int64_t n,
               const void *values);
void cudnn_finish(CudnnDescriptors *d, void *descriptor); /* no attribute is set after it */
void cudnn_destroy(CudnnDescriptors *d);
/* -1: it has none */
int cudnn_type(uint32_t dtype);
/* What the tensor that operand i of a convolution is has as its number in the buffers. */
static inline int64_t
cudnn_number(int i)
{
	return i + 1;
}
/* The graph of the call. handle: NULL: plans are for a GPU that is described. An error says what the library does not take. */
Status cudnn_graph(CudnnDescriptors *d, const LibraryCall *call, void *handle, void **graph);

/* ---- gpus.c: one row for each architecture that plans are made for */
typedef struct {
	const char *name; /* as its driver says it; NULL ends the table */
	int capability;   /* compute capability: 90 is 9.0 */
	int processors;
	int pci;                 /* the device's number */
	int most_shared;         /* bytes that a block may ask for */
	int cache;               /* bytes of the second one */
	int64_t memory;          /* bytes */
	int clock, memory_clock; /* kHz */
	int bus;                 /* bits of its memory's */
} DescribedGpu;
extern const DescribedGpu described_gpus[];
const DescribedGpu *described_gpu_find(const char *architecture); /* "sm_90a"; NULL: none */
void described_gpu_print(Text *out, const DescribedGpu *g); /* as JSON, in the library's words */
/* The finished descriptor, of d; cuDNN from 9.8 on has it. */
Status described_gpu_open(CudnnDescriptors *d, const DescribedGpu *g, void **out);

/* ---- plan.c */
/* For whom plans are: the GPU of a handle, or one that is described. */
typedef struct {
	void *handle; /* NULL: none is at hand */
	void *gpu;    /* a finished descriptor; NULL: the handle's */
	bool tf32;    /* operands of f32 may be rounded to it */
} CudnnTarget;
typedef struct {
	CudnnDescriptors graph, plan;
	void *plan_at; /* of plan */
	int64_t workspace, engine;
} CudnnPlan;
/* Also what it has where there is an error is to be closed. */
Status cudnn_plan_open(const Cudnn *dnn, const CudnnTarget *target, const LibraryCall *call,
                       int64_t scratch_limit, CudnnPlan *out);
/* Appends it in the library's words: JSON, which says all of it, the GPU too. */
Status cudnn_plan_print(Text *out, const CudnnPlan *p);
/* From such words of the same version for the same call: the library believes what they say of sizes. It refuses those for another
 * GPU. An error like that of cudnn_plan_open where its engine is none that this target takes. */
Status cudnn_plan_read(const Cudnn *dnn, const CudnnTarget *target, const LibraryCall *call,
                       const char *text, int64_t scratch_limit, CudnnPlan *out);
void cudnn_plan_close(CudnnPlan *p);

#endif
