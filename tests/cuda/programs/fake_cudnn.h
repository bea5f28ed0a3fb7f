/* A pretended libcudnn.so.9. A descriptor is a map of attributes; a table lists the allowed ones (fake_cudnn_attributes.c).
 * Finishing a descriptor checks the attributes and makes a value of the descriptor's type (fake_cudnn_values.c). A
 * descriptor copies the values of the descriptors that it refers to. */
#ifndef GRADC_TESTS_CUDA_FAKE_CUDNN_H
#define GRADC_TESTS_CUDA_FAKE_CUDNN_H

#include "cudnn/cudnn.h"

/* Values of cudnnStatus_t. */
enum {
	NOT_STARTED = 1001,
	OTHER_VERSION = 1003,
	BAD_VALUE = 2000,
	BAD_POINTER = 2002,
	MISALIGNED = 2003,
	NOT_FINISHED = 2004,
	BAD_COUNT = 2005,
	BAD_SHAPE = 2008,
	BAD_TYPE = 2010,
	BAD_DESCRIPTOR = 2012,
	NOT_SUPPORTED = 3000,
	OTHER_GPU = 3007,
	FAILED = 5000,
};
enum { MOST_AXES = 8, MOST_SPATIAL = 3, MOST_BUFFERS = 8, WORKSPACE_ALIGNMENT = 256 };
enum { FAKE_VERSION = 92801 };

/* ---- values of finished descriptors. They consist of numbers only, so that a plan's text is a list of numbers. */
typedef struct {
	int64_t number, alignment, type, rank; /* type: cudnnDataType_t */
	int64_t dims[MOST_AXES], strides[MOST_AXES];
} FakeTensor;
typedef struct {
	int64_t n;
	int64_t strides[MOST_SPATIAL], dilations[MOST_SPATIAL], low[MOST_SPATIAL],
		high[MOST_SPATIAL];
} FakeWindows;
enum { FAKE_X, FAKE_W, FAKE_Y, N_FAKE_TENSORS };
typedef struct {
	int64_t type; /* cudnnBackendDescriptorType_t */
	FakeTensor tensors[N_FAKE_TENSORS];
	FakeWindows windows;
} FakeOperation;
typedef struct {
	int64_t number, workspace, notes; /* notes as bits */
	int64_t device;                   /* compute capability: 900 is 9.0 */
	FakeOperation operation;
} FakeEngine; /* also the value of an engine configuration, which has no further fields */

typedef struct {
	FakeOperation operation;
	void *handle; /* NULL: for a GPU given by a descriptor */
} FakeGraph;
typedef struct {
	int64_t device;
} FakeGpu;
typedef struct {
	FakeOperation operation;
	int mode;
	int64_t device;
} FakeHeuristic;
typedef struct {
	FakeEngine engine;
	void *handle;
} FakePlan;
typedef struct {
	int64_t n, numbers[MOST_BUFFERS];
	void *at[MOST_BUFFERS], *workspace;
} FakeBuffers;
typedef union {
	FakeTensor tensor;
	FakeWindows windows;
	FakeOperation operation;
	FakeGraph graph;
	FakeGpu gpu;
	FakeEngine engine;
	FakeHeuristic heuristic;
	FakePlan plan;
	FakeBuffers buffers;
} FakeValue;

/* ---- fake_cudnn_attributes.c */
typedef struct {
	int type;
	int64_t n;
	char *bytes; /* NULL: not set */
} FakeAttribute;
enum { MOST_ATTRIBUTES = 7 };
typedef struct {
	int number, type; /* cudnnBackendAttributeName_t, cudnnBackendAttributeType_t */
	int64_t most;     /* largest number of elements; the smallest is 1 */
	bool needed;
	int inner; /* descriptors as elements: their type, or ANY_OPERATION */
} AttributeRow;
enum { ANY_OPERATION = -1 };
/* The attribute rows of a descriptor type; the last row has no number. NULL: unknown type. */
const AttributeRow *fake_rows(int descriptor_type);
size_t fake_bytes(int type);

typedef struct {
	uint32_t magic;
	int type;
	bool finished;
	FakeAttribute at[MOST_ATTRIBUTES]; /* in the order of the rows */
	FakeValue value;                   /* set when the descriptor is finished */
} FakeDescriptor;
/* NULL: the attribute is not set. */
const FakeAttribute *fake_attribute(const FakeDescriptor *d, int number);

/* ---- fake_cudnn_values.c */
/* Makes the value from the attributes, which must be complete; gives an error code. */
int fake_finish(FakeDescriptor *d);

/* ---- fake_cudnn_engines.c */
/* Reads numbers of a finished descriptor: *n gets how many there are, out gets at most `most`. Gives an error code. */
int fake_read(const FakeDescriptor *d, int number, int type, int64_t most, int64_t *n, void *out);
int fake_plan_from_text(const char *text, int64_t n, int64_t device, FakeEngine *out);

/* ---- fake_cudnn_convolve.c */
/* Do the operation's tensors and windows fit together? Gives an error code. */
int fake_check_operation(const FakeOperation *o);
/* Queues the convolution in the stream; gives an error code. */
int fake_convolve(const FakePlan *plan, const FakeBuffers *buffers, void *stream);

#endif
