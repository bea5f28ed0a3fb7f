/* cuDNN 9, NVIDIA's library of convolutions: how it is opened, and how a convolution becomes a plan, which says exactly how
 * cuDNN computes the convolution on a GPU. The compiler makes plans from the description of a GPU; the runtime loads these
 * plans or makes its own. Nothing of CUDA is needed to build gradc. The declarations here are gradc's own, for the library's
 * backend interface, which NVIDIA's cudnn_graph.h describes. Everything in this interface is a descriptor with attributes:
 * tensors, an operation on tensors, a graph of operations, the configurations that a heuristic suggests for the graph, a plan.
 * A configuration picks an engine: one of cuDNN's ways to compute a graph. */
#ifndef GRADC_CUDNN_CUDNN_H
#define GRADC_CUDNN_CUDNN_H

#include "base/calls/library_call.h"

/* gradc uses these values of cudnnStatus_t, cudnnDataType_t, cudnnConvolutionMode_t and the cudnnBackend enums. */
enum {
	CUDNN_OK = 0,

	CUDNN_F32 = 0,
	CUDNN_F16 = 2,
	CUDNN_BF16 = 9,

	CUDNN_CROSS_CORRELATES = 1, /* the window is not flipped */

	CUDNN_HEURISTIC_FALLBACK = 2, /* everything that works, fast or slow */
	CUDNN_HEURISTIC_A = 3,        /* fastest first */
};
/* Values of cudnnBackendDescriptorType_t. */
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
	CUDNN_GPU_DESCRIPTOR = 38, /* since 9.8 */
};
/* Values of cudnnBackendAttributeType_t: types of an attribute's elements. */
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
/* Values of cudnnBackendAttributeName_t. */
enum {
	CUDNN_CONVOLUTION_SUM_TYPE = 100,
	CUDNN_CONVOLUTION_MODE = 101,
	CUDNN_CONVOLUTION_DILATIONS = 102,
	CUDNN_CONVOLUTION_STRIDES = 103,
	CUDNN_CONVOLUTION_HIGH = 104, /* padding after x */
	CUDNN_CONVOLUTION_LOW = 105,
	CUDNN_CONVOLUTION_AXES = 106,

	CUDNN_HEURISTIC_MODE = 200,
	CUDNN_HEURISTIC_GRAPH = 201,
	CUDNN_HEURISTIC_CONFIGS = 202,
	CUDNN_HEURISTIC_GPU = 204,

	CUDNN_CONFIG_ENGINE = 300,

	CUDNN_PLAN_HANDLE = 400,
	CUDNN_PLAN_CONFIG = 401,
	CUDNN_PLAN_WORKSPACE = 402, /* in bytes */
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

	CUDNN_TENSOR_ALIGNMENT = 900, /* in bytes */
	CUDNN_TENSOR_TYPE = 901,
	CUDNN_TENSOR_DIMS = 902,
	CUDNN_TENSOR_STRIDES = 903,
	CUDNN_TENSOR_NUMBER = 906, /* identifies the tensor among the buffers */

	CUDNN_BUFFERS_NUMBERS = 1000,
	CUDNN_BUFFERS_AT = 1001,
	CUDNN_BUFFERS_WORKSPACE = 1003,

	CUDNN_ENGINE_NUMBER = 1301,
	CUDNN_ENGINE_NOTES = 1303,

	CUDNN_GPU_JSON = 2702,
};
/* Values of cudnnBackendNumericalNote_t: what an engine does to results. */
enum {
	CUDNN_NOTE_TENSOR_CORE = 0,
	CUDNN_NOTE_ROUNDS_OPERANDS = 1,
	CUDNN_NOTE_ROUNDS_SUMS = 2,
	CUDNN_NOTE_FFT = 3,
	CUDNN_NOTE_ANY_ORDER = 4, /* two runs may give different bits */
	CUDNN_NOTE_WINOGRAD = 5,
	CUDNN_NOTE_WINOGRAD_6 = 7,  /* tiles of 6 x 6 */
	CUDNN_NOTE_WINOGRAD_13 = 8, /* tiles of 13 x 13 */
	MOST_CUDNN_NOTES = 16,
};

/* ---- load.c */
typedef struct {
	void *library;
#define CUDNN_SYMBOL(name, type, parameters) type(*name) parameters;
#include "cudnn/symbols.def"
#undef CUDNN_SYMBOL
} Cudnn;
/* EXIT_SYSTEM if the library is not found. The library stays loaded. */
Status cudnn_load(Cudnn *out);
/* Turns the library's result code into a Status; NULL for CUDNN_OK. what: what was being done, for the message. */
Status cudnn_status(const Cudnn *dnn, int code, const char *what);
enum { MOST_CUDNN_VERSION = 32 };
void cudnn_version(const Cudnn *dnn, char out[MOST_CUDNN_VERSION]); /* such as "cuDNN 9.28.1" */

/* ---- graph.c */
/* Descriptors that are destroyed together. After the first failure, `code` keeps its value and the library is not called any
 * more. */
enum { MOST_CUDNN_DESCRIPTORS = 16 };
typedef struct {
	const Cudnn *dnn;
	int code; /* a cudnnStatus_t */
	int n;
	void *at[MOST_CUDNN_DESCRIPTORS];
} CudnnDescriptors;
void *cudnn_new(CudnnDescriptors *d, int type); /* NULL after a failure; `code` says why */
void cudnn_set(CudnnDescriptors *d, void *descriptor, int attribute, int type, int64_t n,
               const void *values);
void cudnn_finish(CudnnDescriptors *d, void *descriptor); /* afterwards no attribute may be set */
void cudnn_destroy(CudnnDescriptors *d);
/* -1 if the library does not have the type */
int cudnn_type(uint32_t dtype);
/* The number by which the library identifies operand i's tensor among the buffers. */
static inline int64_t
cudnn_number(int i)
{
	return i + 1;
}
/* Makes the graph of a call. handle: the library's handle for a real GPU; NULL: plans are for a described GPU. An error says
 * why the library cannot run the call. */
Status cudnn_graph(CudnnDescriptors *d, const LibraryCall *call, void *handle, void **graph);

/* ---- gpus.c: descriptions of GPUs, one row per architecture for which the compiler makes plans */
typedef struct {
	const char *name; /* the driver's name for the GPU; NULL ends the table */
	int capability;   /* compute capability: 90 for 9.0 */
	int processors;
	int pci;                 /* PCI number of the device */
	int most_shared;         /* most bytes of shared memory in a block */
	int cache;               /* bytes of the second-level cache */
	int64_t memory;          /* in bytes */
	int clock, memory_clock; /* in kHz */
	int bus;                 /* bits of the memory's bus */
} DescribedGpu;
extern const DescribedGpu described_gpus[];
/* Finds the row for an architecture such as "sm_90a"; NULL if no row has that architecture. */
const DescribedGpu *described_gpu_find(const char *architecture);
void described_gpu_print(Text *out, const DescribedGpu *g); /* as JSON in the library's form */
/* Makes the library's descriptor of the GPU, which d owns. Needs cuDNN 9.8 or newer. */
Status described_gpu_open(CudnnDescriptors *d, const DescribedGpu *g, void **out);

/* ---- plan.c */
/* The GPU for which plans are made: the real GPU of a handle, or a described GPU. */
typedef struct {
	void *handle; /* NULL for a described GPU */
	void *gpu;    /* finished descriptor of a described GPU; NULL: the handle's GPU */
	bool tf32;    /* f32 operands may be rounded to tf32 */
} CudnnTarget;
/* A graph, which lives as long as the plans that were made of it. */
typedef struct {
	CudnnDescriptors descriptors;
	void *at; /* the graph's descriptor */
	int users;
} CudnnGraph;
typedef struct {
	CudnnGraph *graph; /* NULL: the plan was read from text */
	CudnnDescriptors plan;
	void *plan_at; /* the plan's descriptor, in `plan` */
	int64_t workspace, engine;
} CudnnPlan;
/* Makes up to `most` plans for a call, the one that cuDNN expects to be the fastest first. The caller closes all *n. An error, and
 * no plan, if cuDNN has none that may be used. */
Status cudnn_plans_open(const Cudnn *dnn, const CudnnTarget *target, const LibraryCall *call,
                        int64_t scratch_limit, int most, CudnnPlan *out, int *n);
/* Appends the plan as JSON, as the library writes it. The text describes the plan and its GPU fully. */
Status cudnn_plan_print(Text *out, const CudnnPlan *p);
/* Reads a plan's text. The text must be from the same version of cuDNN and for the same call, because the library trusts the
 * sizes in the text. The library refuses plans for another GPU. If the target does not allow the plan's engine, that is an
 * error. *out must be closed even after an error. */
Status cudnn_plan_read(const Cudnn *dnn, const CudnnTarget *target, const LibraryCall *call,
                       const char *text, int64_t scratch_limit, CudnnPlan *out);
void cudnn_plan_close(CudnnPlan *p);

#endif
