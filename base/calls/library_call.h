/* A library call: an operation that a library may run in place of a kernel's loops, on the same buffers. The operation
 * is a strided matrix product, a convolution, or an adjoint of a convolution. Kernels in the compiler (loop IR) and the
 * tables of an executable hold library calls as the same record. One table of fields prints, reads and checks this
 * record. Its text form:
 *
 *   dot {x = f32[32,64] at x0, y = f32[64,128] at x1 by [1,64], z = f32[32,128] at y0, epilogue = bias,
 *        bias = f32[128] at x2+64}
 */
#ifndef GRADC_BASE_LIBRARY_CALL_H
#define GRADC_BASE_LIBRARY_CALL_H

#include "base/base.h"

typedef enum {
	LIBRARY_DOT, /* z[batch.., m, n] = beta * c + sum over k of x[batch.., m, k] * y[batch.., k, n] */
	/* A convolution of dense tensors, as in ir/ops/conv.c; x and y may both lie in memory as
	 * [batch, spatial.., channels]: y[batch, groups*out, spatial..] from
	 * x[batch, groups*in, spatial..] and w[groups*out, in, window..]. Its adjoints: dx from dy and w, dw from x and dy. */
	LIBRARY_CONV,
	LIBRARY_CONV_GRAD_INPUT,
	LIBRARY_CONV_GRAD_WEIGHT,
	N_LIBRARY_KINDS,
} LibraryKind;
extern const char *const library_kind_names[]; /* the names of the corresponding ops */

/* An operation on the result before it is stored, named as in cuBLASLt. A bias is a dense vector with one number per column of
 * a dot, or per channel of a conv. Only a dot may have an epilogue other than a bias. GELU is the tanh approximation, as in op
 * `gelu`. Below, r is the result without the epilogue. */
typedef enum {
	EPILOGUE_NONE,
	EPILOGUE_BIAS,
	EPILOGUE_GELU,
	EPILOGUE_GELU_BIAS,     /* z = gelu(r + bias) */
	EPILOGUE_GELU_AUX,      /* aux = r, z = gelu(r) */
	EPILOGUE_GELU_AUX_BIAS, /* aux = r + bias, z = gelu(r + bias) */
	EPILOGUE_DGELU,         /* z = r * gelu'(aux) */
	EPILOGUE_BGRAD,         /* z = r, bias[n] = the sum over k of y[k, n]; no batch axes */
	N_EPILOGUES
} LibraryEpilogue;
extern const char *const epilogue_names[];

/* Every call has the operands listed before LIBRARY_BIAS; the operands from LIBRARY_BIAS on are optional. */
enum {
	LIBRARY_FIRST,
	LIBRARY_SECOND,
	LIBRARY_RESULT,
	LIBRARY_BIAS,
	LIBRARY_ADDED, /* c, if beta is 1; may be the result's old value */
	/* auxiliary value of the epilogue, with the result's type, shape and strides */
	LIBRARY_AUX,
	N_LIBRARY_OPERANDS
};
enum { MAX_LIBRARY_BATCH_AXES = 3, MAX_LIBRARY_RANK = MAX_LIBRARY_BATCH_AXES + 2 };
enum { MAX_LIBRARY_SPATIAL = MAX_LIBRARY_RANK - 2 };

/* The next records are stored as bytes in the tables of an executable: they have fixed sizes and no padding, and unused
 * fields are zero. */
typedef struct {
	uint32_t dtype, rank;
	int64_t buffer; /* number of the kernel's argument */
	int64_t offset; /* place of the first element in the buffer, in elements like the strides */
	int64_t dims[MAX_LIBRARY_RANK], strides[MAX_LIBRARY_RANK];
} LibraryOperand;
typedef struct {
	uint32_t kind;     /* LibraryKind */
	uint32_t epilogue; /* LibraryEpilogue */
	int64_t beta;      /* dot: 1 adds c, 0 does not */
	int64_t groups;    /* conv: number of groups */
	/* conv: one number per spatial axis; low is the padding before x. */
	int64_t stride[MAX_LIBRARY_SPATIAL], dilation[MAX_LIBRARY_SPATIAL],
		low[MAX_LIBRARY_SPATIAL];
	LibraryOperand operands[N_LIBRARY_OPERANDS];
} LibraryCall;

/* ---- the fields of each kind, in the order of the text */
typedef enum {
	LIBRARY_OPERAND,
	LIBRARY_NUMBER,   /* int64_t */
	LIBRARY_AXES,     /* int64_t for each spatial axis */
	LIBRARY_EPILOGUE, /* a word of epilogue_names */
} LibraryFieldType;
typedef struct {
	const char *name;
	LibraryFieldType type;
	unsigned kinds;      /* bit i: calls of kind i have the field */
	size_t offset;       /* offset in LibraryCall */
	int64_t least, most; /* limits of numbers */
	int64_t otherwise; /* value if the text leaves the field out; -1: the text must have the field */
} LibraryField;
extern const LibraryField library_fields[]; /* ends with a row without a name */
/* Does a call of this kind and epilogue have the field? */
bool library_has_field(const LibraryCall *c, const LibraryField *f);
int library_kind_find(const char *name); /* -1: unknown */
/* Starts a call of this kind with default values, for a reader of the text to fill. */
void library_call_begin(LibraryCall *c, LibraryKind kind);

bool library_has_operand(const LibraryCall *c, int i);
/* Does the call write operand i? It reads every operand that it does not write. */
bool library_writes(const LibraryCall *c, int i);
/* Is the operand c the old value of the result? */
bool library_adds_in_place(const LibraryCall *c);
/* Does each buffer that the call writes hold only the written operand? The operand c may be the result's old value in
 * the same buffer. */
bool library_writes_apart(const LibraryCall *c);
/* Sets row-major strides without gaps. */
void library_dense(LibraryOperand *o);
bool library_is_dense(const LibraryOperand *o);
/* Sets the strides of a dense tensor [batch, spatial.., channels] whose axes are batch, channels, spatial... */
void library_channels_last(LibraryOperand *o);
bool library_is_channels_last(const LibraryOperand *o);
/* Bytes from the buffer's start to the end of the last element of a checked operand. */
int64_t library_reach(const LibraryOperand *o);

/* ---- the axes of a dot z[m,n] = x[m,k] y[k,n] */
typedef enum { PRODUCT_ROWS, PRODUCT_COLUMNS, PRODUCT_INNER, N_PRODUCT_AXES } ProductAxis;
/* The dimension of operand i that is the axis; -1: the call has no such operand, or the operand does not have the axis. */
int library_axis_dim(const LibraryCall *c, int i, ProductAxis axis);
/* The axis's size, rounded up to a multiple of `alignment` bytes in each operand in which the axis is contiguous. */
int64_t library_axis_padded(const LibraryCall *c, ProductAxis axis, int64_t alignment);
int64_t library_axis_size(const LibraryCall *c, ProductAxis axis);

/* The call's operations (a multiplication and an addition are two) and the bytes of its operands. The kernel's loops may have
 * other numbers, if they add up another kernel's partial results. */
double library_flops(const LibraryCall *c);
double library_bytes(const LibraryCall *c);
double library_operand_bytes(const LibraryOperand *o);

/* Is the call valid? If not, adds the reason to *why. The other functions here expect a valid call. */
bool library_call_check(const LibraryCall *c, Text *why);
/* Prints the text form shown at the top. name: gives a buffer's name; NULL: buffers are printed as numbers. */
void library_call_print(Text *out, const LibraryCall *c,
                        const char *(*name)(const void *ctx, int64_t buffer), const void *ctx);

/* ---- the sizes of a convolution */
typedef enum { CONV_X, CONV_W, CONV_Y } ConvTensor;
typedef struct {
	int64_t x, window, y, stride, dilation, low;
} ConvAxis;
typedef struct {
	int spatial;
	int64_t batch, groups, in, out; /* in, out: channels per group */
	ConvAxis axes[MAX_LIBRARY_SPATIAL];
} ConvSizes;
/* The convolution's tensors that are a call's first operand, second operand and result, by kind. */
extern const ConvTensor library_conv_operands[N_LIBRARY_KINDS][3];
ConvSizes library_conv_sizes(const LibraryCall *c);

/* ---- conv_as_dot.c */
/* Writes a convolution with windows of one element as a dot; false if the convolution is no product. order[i]: the convolution's operand that is
 * operand i (first, second, result) of the dot. */
bool library_conv_as_dot(const LibraryCall *c, LibraryCall *dot, int order[3]);

/* ---- tunings.c: which engine of a library runs a call, as text: it is kept in checkpoints and in the file of --tune, and given to other ranks.
 * Engines are algorithms of cuBLASLt or configurations of cuDNN; runtime/library/ times them. One line each: the key, a tab, and
 * the engine; for an engine that must not be used also a tab and words that say why:
 *
 *	NVIDIA H100 80GB HBM3, cuBLASLt 13.1.0, cuDNN 9.28.1, tf32, at most 67108864 bytes, dot {x = ...}	cuBLASLt 0700...00
 *
 * The key says everything on which the choice depends. */
typedef enum {
	ENGINE_IDLE,  /* no call of this run has the key */
	ENGINE_KNOWN, /* taken because an earlier run chose it */
	ENGINE_TRIED, /* the fastest in this run's trials */
	ENGINE_FIRST, /* the library's own first choice */
} EngineUse;
typedef struct {
	char *key, *engine;
	char *fault; /* why the engine is not used: "fails", "hangs", ..; NULL: it is the choice */
	EngineUse use;
} TunedEngine;
typedef struct Tunings {
	TunedEngine *at; /* owned */
	int n;
	int n_lost; /* choices of earlier runs that a library did not offer: others took their places */
	double seconds; /* that this run's trials took */
} Tunings;
void tunings_free(Tunings *t);
/* Adds the lines of a text of n bytes. Skips lines in another form, and choices whose key has a choice already. */
void tunings_parse(Tunings *t, const char *text, size_t n);
/* The line, without a line break. */
void tunings_print(const TunedEngine *e, Text *out);
bool tunings_knows(const Tunings *t, const char *key); /* a choice or a fault */
/* Like tunings_knows; says that this run needs the key's faults, so that its checkpoints keep them. */
bool tunings_ask(Tunings *t, const char *key);
const char *tunings_choice(const Tunings *t, const char *key);                    /* NULL: none */
const char *tunings_fault(const Tunings *t, const char *key, const char *engine); /* NULL: none */
void tunings_add(Tunings *t, const TunedEngine *e);                               /* copies it */
/* Says how this run came to the key's choice, unless it has said so already. */
void tunings_use(Tunings *t, const char *key, EngineUse use);
/* Takes another engine in place of the key's choice, which is lost. */
void tunings_replace(Tunings *t, const TunedEngine *e);

#endif
