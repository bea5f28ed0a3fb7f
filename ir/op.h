/* The row of an op: all that anyone may ask about it. ir/ops/ has one file per family; a file
 * ends in its rows. Included by ir/ir.h. */
#ifndef GRADC_IR_OP_H
#define GRADC_IR_OP_H

#define MAX_OPERANDS 6 /* named ones; the last may be variadic */

typedef enum { OPERAND_REQUIRED, OPERAND_OPTIONAL, OPERAND_VARIADIC } OperandKind;
typedef struct {
	const char *name;
	OperandKind kind;
} OperandRow;

/* infer: pure. Reads attr and operand types, fills result types, reports faults. */
typedef struct {
	Module *m;
	const void *attr;
	int n_operands;
	const Type *operand; /* NULL entries: left out */
	int n_results;
	Type *result;
	Arena *arena;
	const char *fault; /* the first one; NULL while fine */
} Infer;
void infer_error(Infer *in, const char *fmt, ...) PRINTF(2, 3);
/* Result types of an op; fault text or NULL. */
const char *op_infer(Module *m, Arena *arena, OpKind op, const void *attr, int n_operands,
                     const Type *operands, int *n_results, Type *results, int max_results);

/* eval: naive loops over 8-byte elements, obvious on sight. Results are allocated; the caller
 * rounds them in typed mode. */
typedef struct {
	Interp *interp;
	Arena *arena;
	const Node *node;
	const void *attr;
	const EvalTensor *operand;
	EvalTensor *result;
} Eval;

/* grad: builds the cotangents of the operands from those of the results. */
typedef struct {
	Builder *b;
	Node *node;
	Value **dresult;   /* NULL entries: no gradient flows there */
	const bool *needs; /* per operand: is a gradient wanted */
	Value **doperand;  /* accumulated by grad_add */
	const char *fault; /* set by grad_none: what asked for it is a user error */
} Grad;
/* Adds dx to the cotangent of operand i; ignored when it needs none. */
void grad_add(Grad *g, int i, Value *dx);
void grad_zero(Grad *g); /* piecewise constant: nothing flows */
void grad_none(Grad *g); /* no gradient is defined: an error */

/* How `fuse` and `lower` may treat an op. */
typedef enum {
	FUSE_ELEMENTWISE, /* result element i from operand elements i: `scalar`, or `element` where i itself counts */
	FUSE_VIEW,   /* result element i is operand element map(i): `map` */
	FUSE_INDEX,  /* result element i from i alone, or a load at computed places: `element` */
	FUSE_REDUCE, /* ReduceAttr */
	FUSE_ROOT,   /* writes parts of its result: `parts` (concat, pad) */
	FUSE_OPAQUE, /* a kernel of its own: `kernel` */
	FUSE_NONE,   /* no code: store, return, call */
} FuseClass;

/* How often a kernel reads an element, and so what a chain of views before it may be: anything, where each is read
 * once or few times; in memory with a stride for each of some axes, or without gaps. */
typedef enum { READ_ONCE, READ_STRIDED, READ_DENSE } Reading;

typedef struct LibraryCall LibraryCall; /* ir/loop.h */
typedef struct Lower Lower;             /* codegen's view of one kernel, ir/loop.h */
typedef struct Index Index;             /* ir/loop.h */
typedef struct LoopBuilder LoopBuilder;
typedef int LoopValue;

typedef struct {
	const char *attrs;    /* in text form: "{kind = max, axes = [1]}"; "" for none */
	const char *operands; /* "f64[2,3], s64[4] in 3": what values: see docs/extending.md */
} Sample;

/* FLOPs of one node, for reports; elementwise ops count 1 an element. */
typedef int64_t (*CostFn)(const Node *n);

struct OpRow {
	const char *name, *doc;
	OperandRow operands[MAX_OPERANDS];
	const char *results[3]; /* names; the last may be "..." */
	const Field *fields;    /* NULL without attributes */
	size_t attr_size;
	void (*infer)(Infer *in);
	void (*eval)(Eval *ev);
	void (*grad)(Grad *g);
	FuseClass fuse;
	/* FUSE_ELEMENTWISE: operand scalars to the result's. */
	LoopValue (*scalar)(LoopBuilder *lb, const Node *n, const LoopValue *x);
	/* FUSE_VIEW: index of the result to index of operand 0. */
	void (*map)(LoopBuilder *lb, const Node *n, const Index *result, Index *operand);
	/* FUSE_INDEX, and FUSE_ELEMENTWISE without `scalar`: the element at that index. */
	LoopValue (*element)(Lower *lw, const Node *n, const Index *at);
	/* FUSE_ROOT: calls lower_part for each part, between lower_open_parts and lower_close_parts. */
	void (*parts)(Lower *lw, const Node *n);
	/* FUSE_OPAQUE: emits the whole kernel body. */
	void (*kernel)(Lower *lw, const Node *n);
	/* FUSE_OPAQUE: the vector that `reader` adds to n's result, if n's kernel and library may store that sum
	 * instead of the result, which nobody else reads; NULL: reader does something else. */
	Value *(*bias)(const Node *n, const Node *reader);
	/* FUSE_OPAQUE: what a library can do instead, where that pays; false: nothing. NULL: never. */
	bool (*library)(Lower *lw, const Node *n, LibraryCall *out);
	/* FUSE_OPAQUE: how the kernel reads operand i, along which axes. NULL: as READ_ONCE. */
	Reading (*reads)(const Node *n, int i, Ints *axes);
	/* FUSE_OPAQUE: does n's kernel add to what it has stored? Of a float type below f32 it would round each sum:
	 * `legalize` makes it f32. NULL: no. */
	bool (*sums_in_memory)(const Node *n);
	/* No result may be dropped or merged: store, return, random without key, ... */
	bool effect;
	/* Of two operands: either order gives the same bits (NaN payloads aside). */
	bool commutative;
	int weight;  /* of one element, relative to an addition; 0 counts as 1 */
	CostFn cost; /* NULL: an op an element of the result */
	/* Rewrites n to something simpler before it; returns the replacement of result 0, or NULL. */
	Value *(*simplify)(Builder *b, Node *n);
	const Sample *samples; /* ends with a zero row */
};

extern const OpRow *const op_table[N_OPS];
static inline const OpRow *
op_row(const Node *n)
{
	return op_table[n->op];
}
bool op_find(const char *name, OpKind *out);
/* The vector that n adds to an opaque node's result, if that node's kernel may store the sum (column `bias`) and
 * somebody reads the sum from memory: a kernel of loops would add the vector itself, for nothing. Else NULL. */
Value *bias_of(const Node *n);
Value *behind_views(Value *v); /* the value that a chain of views starts from */

/* clang-format off */
/* Attribute structs that several readers share (importers, autograd, codegen). */
typedef struct { Ints shape, axes; } BroadcastAttr;
typedef struct { Ints shape; } ReshapeAttr;
typedef struct { Ints order; } TransposeAttr;
typedef struct { Ints start, stop, step; } SliceAttr;
typedef struct { Ints low, high, interior; double value; } PadAttr;
typedef struct { int64_t axis; } AxisAttr;
typedef struct { Ints axes; } ReverseAttr;
typedef struct { DType dtype; Ints shape; int64_t axis; } IotaAttr;
typedef struct { int kind; Ints axes; } ReduceAttr;
typedef struct { const Tensor *value; } ConstantAttr;
typedef struct {
	DType to;
	int round, overflow; /* Rounding, Overflow: of floats below f32 */
	int64_t stream;      /* of random bits */
} CastAttr;
typedef struct { int kind; int64_t axis; } ScatterAttr;
typedef struct { int64_t axis; bool descending; } SortAttr;
typedef struct { int kind; int64_t axis; bool reverse, exclusive; } CumulateAttr; /* ReduceKind */
typedef struct {
	Ints x_batch, y_batch, x_contract, y_contract, order;
	int dtype; /* of the result: 1 + DType; 0: as the operands */
	bool allow_tf32;
} DotAttr;
/* x is [batch, channel, spatial...], w is [out, in, spatial...]. */
typedef struct {
	Ints stride, low, high, dilation; /* per spatial axis */
	int64_t groups;
	Ints size; /* of the result's spatial axes (conv_grad_input) or the window's (.._weight) */
	int dtype; /* as DotAttr's */
	bool allow_tf32;
} ConvAttr;
typedef enum { POOL_MAX, POOL_SUM } PoolKind;
typedef struct { int kind; Ints window, stride, low, high, dilation; Ints size; } PoolAttr;
typedef struct { State *state; } StoreAttr;
typedef struct { Function *callee, *gradient; } CallAttr;
typedef struct { Function *body; int64_t bound, carried, sliced; } LoopAttr;
typedef struct { Function *then_branch, *else_branch; } CondAttr;
typedef struct { Kernel *kernel; } LaunchAttr;
/* clang-format on */

#endif
