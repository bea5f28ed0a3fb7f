/* What a library may do in place of a kernel's loops, on the same buffers: a product in strides, a convolution or one of
 * its adjoints. The same record stands in a kernel of the loop IR and in the tables of an executable, and one table of
 * fields prints, reads and checks it:
 *
 *   dot {x = f32[32,64] at x0, y = f32[64,128] at x1 by [1,64], z = f32[32,128] at y0, epilogue = bias,
 *        bias = f32[128] at x2+64}
 */
#ifndef GRADC_BASE_LIBRARY_CALL_H
#define GRADC_BASE_LIBRARY_CALL_H

#include "base/base.h"

typedef enum {
	LIBRARY_DOT, /* z[batch.., m, n] = beta * c + sum over k of x[batch.., m, k] * y[batch.., k, n] */
	/* A convolution of dense tensors, as ir/ops/conv.c has it: y[batch, groups*out, places..] of
	 * x[batch, groups*in, places..] and w[groups*out, in, window..]; and its adjoints, dx of dy and w, dw of x
	 * and dy. */
	LIBRARY_CONV,
	LIBRARY_CONV_GRAD_INPUT,
	LIBRARY_CONV_GRAD_WEIGHT,
	N_LIBRARY_KINDS,
} LibraryKind;
extern const char *const library_kind_names[]; /* of the ops that they are */

/* What is done to a result before it is stored, by cuBLASLt's names. A bias is a dense vector: a number for each column of a
 * dot, for each channel of a conv. A dot alone has the others. GELU is the one with tanh, as in op `gelu`; r is what would be
 * stored without it. */
typedef enum {
	EPILOGUE_NONE,
	EPILOGUE_BIAS,
	EPILOGUE_GELU,
	EPILOGUE_GELU_BIAS,     /* the bias is added before */
	EPILOGUE_GELU_AUX,      /* aux = r, z = gelu(r) */
	EPILOGUE_GELU_AUX_BIAS, /* likewise, r with the bias */
	EPILOGUE_DGELU,         /* z = r * gelu'(aux) */
	EPILOGUE_BGRAD, /* z = r, and bias[n] = the sum over k of y[k, n]; without a batch */
	N_EPILOGUES
} LibraryEpilogue;
extern const char *const epilogue_names[];

/* Every call has the operands before LIBRARY_BIAS. */
enum {
	LIBRARY_FIRST,
	LIBRARY_SECOND,
	LIBRARY_RESULT,
	LIBRARY_BIAS,
	LIBRARY_ADDED, /* c: where beta is 1. It may be the result itself, as it was */
	LIBRARY_AUX,   /* like the result */
	N_LIBRARY_OPERANDS
};
enum { MAX_LIBRARY_BATCH_AXES = 3, MAX_LIBRARY_RANK = MAX_LIBRARY_BATCH_AXES + 2 };
enum { MAX_LIBRARY_SPATIAL = MAX_LIBRARY_RANK - 2 };

/* Records are bytes of the tables: fixed sizes, no padding, zero where nothing is said. */
typedef struct {
	uint32_t dtype, rank;
	int64_t buffer; /* which argument of the kernel */
	int64_t offset; /* of the first element in it, in elements, as strides are */
	int64_t dims[MAX_LIBRARY_RANK], strides[MAX_LIBRARY_RANK];
} LibraryOperand;
typedef struct {
	uint32_t kind;     /* LibraryKind */
	uint32_t epilogue; /* LibraryEpilogue */
	int64_t beta;      /* of a dot: 1 adds c, 0 does not */
	int64_t groups; /* of a conv, as what follows for each spatial axis; low: the padding before x */
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
	unsigned kinds;      /* that have it, as bits */
	size_t offset;       /* in LibraryCall */
	int64_t least, most; /* of numbers */
	int64_t otherwise;   /* what it is where the text does not say; -1: the text says it */
} LibraryField;
extern const LibraryField library_fields[]; /* ends with a row without a name */
/* Do its kind and epilogue have the field? */
bool library_has_field(const LibraryCall *c, const LibraryField *f);
int library_kind_find(const char *name); /* -1: unknown */
/* The call with what goes without saying, for a reader to fill. */
void library_call_begin(LibraryCall *c, LibraryKind kind);

bool library_has_operand(const LibraryCall *c, int i);
/* It reads all others. */
bool library_writes(const LibraryCall *c, int i);
/* Is c the result as it was? */
bool library_adds_in_place(const LibraryCall *c);
/* Does nothing else lie in the buffers that the call writes, but such a c? */
bool library_writes_apart(const LibraryCall *c);
/* Strides without gaps. */
void library_dense(LibraryOperand *o);
bool library_is_dense(const LibraryOperand *o);
/* Bytes from the buffer's start to the end of the last element of a checked operand. */
int64_t library_reach(const LibraryOperand *o);

/* Operations, a multiplication and an addition being two, and bytes of the operands. The
 * kernel's own are others where its loops add up what another kernel made. */
double library_flops(const LibraryCall *c);
double library_bytes(const LibraryCall *c);

/* Does it make sense? Adds the reason to *why where not. All else here may be asked of a call that does. */
bool library_call_check(const LibraryCall *c, Text *why);
/* The text above. name: how a buffer is called; NULL: by its number. */
void library_call_print(Text *out, const LibraryCall *c,
                        const char *(*name)(const void *ctx, int64_t buffer), const void *ctx);

/* ---- the sizes of a convolution */
typedef enum { CONV_X, CONV_W, CONV_Y } ConvTensor;
typedef struct {
	int64_t x, window, y, stride, dilation, low;
} ConvAxis;
typedef struct {
	int spatial;
	int64_t batch, groups, in, out; /* channels of a group */
	ConvAxis axes[MAX_LIBRARY_SPATIAL];
} ConvSizes;
/* What the tensors of a convolution are to a call: of its two operands and its result, by kind. */
extern const ConvTensor library_conv_operands[N_LIBRARY_KINDS][3];
ConvSizes library_conv_sizes(const LibraryCall *c);

#endif
