/* The row of an op: the answers to every question about it. ir/ops/ has one file per family; a file ends in its rows.
 * Included by ir/ir.h. */
#ifndef GRADC_IR_OP_H
#define GRADC_IR_OP_H

#include "base/numbers/numbers.h"

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
const char *row_infer(Module *m, Arena *arena, const OpRow *row, const void *attr, int n_operands,
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
	FUSE_OPAQUE, /* a kernel of its own: codegen/kernels/ */
	FUSE_CONTROL, /* runs functions of the module, whose nodes become kernels on their own: loop, cond */
	FUSE_NONE, /* no code: store, return, call */
} FuseClass;

typedef struct BatchFlow BatchFlow; /* below */
typedef struct Lower Lower;         /* codegen's view of one kernel, ir/loop/loop.h */
typedef struct Index Index;         /* ir/loop/loop.h */
typedef struct LoopBuilder LoopBuilder;
typedef int LoopValue;

typedef struct {
	const char *attrs;    /* in text form: "{kind = max, axes = [1]}"; "" for none */
	const char *operands; /* "f64[2,3], s64[4] in 3": what values: see docs/extending.md */
} Sample;

/* ---- facts: data that passes read, proven by tests over the samples (tests/unit/format/facts_test.c, partition_test.c,
 * cost_test.c) */

/* What a mixed-precision pass may do with the floats of a node. A row without one is a hole. */
typedef enum {
	PRECISION_LOW =
		1, /* f16, bf16 or less will do for the operands; sums are kept in f32: products */
	PRECISION_HIGH, /* f32 or more: sums, and functions that enlarge a relative error */
	PRECISION_FOLLOW, /* the widest of its operands' types: moves, and what is cheap and well-conditioned */
	PRECISION_FIXED, /* its types are its meaning, or it has no floats: cast, iota, logic, control */
	N_PRECISIONS,
} Precision;
extern const char *const precision_names[N_PRECISIONS];

#define OPERAND(i) (1u << (i)) /* in a set of operands */

/* A node computed in parts, as by sharding rules of GSPMD and Shardy. Its loops are factors; an axis of an operand
 * or a result has at most one. To cut a node along a factor is to cut every axis that has it, into as many equal
 * pieces as there are parts, in order; all parts are the same node of smaller types. dot x[i,k], y[k,j] has the
 * factors i and j, whose parts' results are joined, and k, whose parts' results are added.
 * An axis without a factor cannot be cut: a part of it would need what another part has (a halo). */
typedef enum { COMBINE_JOIN, COMBINE_SUM, COMBINE_PROD, COMBINE_MAX, COMBINE_MIN } Combine;
extern const char *const combine_names[];
typedef enum {
	SHARE_WHOLE, /* every part has all of it; of a result: every part computes all of it */
	SHARE_CUT, /* a piece of `axis`. An axis may be a multiple of the factor, whose loop is then its outer one */
	SHARE_SHIFTED, /* numbers of places along the factor, counted from the part's first. An operand: whole, less
	                * the number of that place. A result: a piece of `axis`, plus that number */
	SHARE_FIRST, /* all of it in part 0; in others what changes nothing: 0 of a sum, 1 of a product */
} ShareKind;
typedef struct {
	ShareKind kind;
	int axis; /* SHARE_CUT, and SHARE_SHIFTED of a result */
} Share;
typedef struct {
	int64_t size; /* any divisor is a number of parts */
	Combine combine;
	Share *operand, *result; /* one each */
} Factor;
typedef struct {
	const Node *node;
	Arena *arena;
	VEC(Factor *) factors;
} Partition;
/* One of the parts of a node along a factor. */
typedef struct {
	const Node *node;
	const Factor *factor;
	int64_t parts;
	const Type *operand, *result; /* of one part; NULL where an operand is left out */
	void *attr;                   /* of one part */
} Cut;
typedef struct {
	void (*factors)(Partition *p); /* adds the factors of p->node */
	void (*attrs)(Module *m,
	              Cut *cut); /* sets what sizes depend on in cut->attr; NULL: nothing does */
	const char *doc;         /* which axes, and why not the others */
} PartitionRule;

/* Arithmetic operations on elements: +, -, *, /, maximum, minimum, roots, rounding and functions count 1, a fused
 * multiply-add 2; comparisons, choices, logic, conversions and arithmetic on places count nothing. */
typedef int64_t (*FlopsFn)(const Node *n);

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
	/* FUSE_OPAQUE: the vector that `reader` adds to n's result, if n's kernel and library may store that sum
	 * instead of the result, which nobody else reads; NULL: reader does something else. */
	Value *(*bias)(const Node *n, const Node *reader);
	/* FUSE_INDEX with operands: its result is never stored, each kernel that reads it computes it. */
	bool computed_by_readers;
	/* No result may be dropped or merged: store, return, random without key, ... */
	bool effect;
	/* Of two operands: either order gives the same bits (NaN payloads aside). */
	bool commutative;
	int weight; /* time of one element, relative to an addition; 0 counts as 1 */
	FlopsFn flops;
	Precision precision;
	unsigned quantizes; /* operands that may be stored in few bits with scales */
	/* Of operand i of these: the axis along which every element may have a scale of its own, since scales along it are
	 * factors of the result; -1: one scale for all. */
	int (*channel)(const Node *n, int i);
	unsigned
		adapts; /* operands that, where they are a parameter, a low-rank product may be added to */
	PartitionRule partition;
	/* Which axes of the results count rows, given those of the operands; NULL: the partition's factors tell. */
	void (*batch)(BatchFlow *fl);
	/* Rewrites n to something simpler before it; returns the replacement of result 0, or NULL. */
	Value *(*simplify)(Builder *b, Node *n);
	const Sample *samples; /* ends with a zero row */
};

/* ---- rows with holes, of any table. Each message names table, row and column: `op "cube": column eval is missing`. */
typedef struct {
	const char *table, *name;
	Diag *diag;
	bool sound; /* nothing reported yet */
} RowCheck;
void row_error(RowCheck *c, const char *column, const char *fmt, ...) PRINTF(3, 4);
void row_needs(RowCheck *c, const char *column, bool there); /* "is missing" */

/* ---- op_check.c: names every column that a row lacks, or has where it makes no sense: `op "cube": column
 * precision is missing`. True when there are none. */
bool op_row_check(const OpRow *row, Diag *diag);
bool op_table_check(Diag *diag);

/* ---- cost.c */
typedef struct {
	int64_t flops;
	int64_t bytes; /* each operand and result once, where they are in memory */
} Cost;
Cost node_cost(const Node *n);
int64_t function_flops(const Function *f);
/* For rows' columns. */
int64_t flops_none(const Node *n); /* moves, comparisons, choices */
int64_t flops_one(const Node *n);  /* an element of result 0 */
int64_t flops_two(const Node *n);
int64_t flops_per_operand(const Node *n); /* one an element of operand 0 */

/* ---- partition.c */
Partition node_partition(Arena *arena, const Node *n);
/* NULL: that axis cannot be cut. */
const Factor *partition_of_operand(const Partition *p, int operand, int axis);
const Factor *partition_of_result(const Partition *p, int result, int axis);
bool factor_divides(const Factor *f, int64_t parts);
/* The types and attributes of each part; factor_divides(f, parts) holds. */
Cut node_cut(Module *m, Arena *arena, const Node *n, const Factor *f, int64_t parts);
/* ---- batch.c: what a value has of the rows of a micro-batch. */
typedef struct {
	int axis; /* whose blocks are the rows; -1: no axis that can be told, or the value depends on no row */
	int64_t repeats; /* equal parts of the axis, each of which has all rows: 6 of [6,4,7] reshaped to [24,7], with 4 rows */
	bool mixed;      /* an element may depend on several rows */
} BatchAxis;
extern const BatchAxis batch_none; /* it depends on no row */
extern const BatchAxis batch_lost; /* no axis counts rows, and elements depend on several */
typedef struct {
	int64_t rows; /* how many; 0: no parameter has rows */
	uint32_t n;
	BatchAxis *of; /* by value id */
} BatchAxes;
/* From the parameters with rows. */
BatchAxes batch_of(Arena *arena, const Function *f);
/* The axis whose equal blocks are the rows, in order; -1: v has none. */
int batch_blocks(const BatchAxes *b, const Value *v);
bool batch_stores_mix(const BatchAxes *b, const Function *f); /* what f stores depends on rows */

/* For rows' columns. */
typedef struct BatchWalks
	BatchWalks; /* batch.c: what functions made of the axes of their parameters */
struct BatchFlow {
	Arena *arena;
	const Node *node;
	int64_t rows;
	BatchWalks *walks;
	const BatchAxis *operand; /* one each */
	BatchAxis *result;
};
int64_t batch_parts(const BatchFlow *fl, const BatchAxis *a); /* into which its axis can be cut */
void batch_by_factors(BatchFlow *fl);
bool batch_same(const BatchAxis *a, const BatchAxis *b);
BatchAxis batch_join(BatchAxis a, BatchAxis b); /* of a value that is one or the other */
void batch_of_callee(const BatchFlow *fl, const Function *f, const BatchAxis *params,
                     BatchAxis *results);

/* For rows' columns: a factor of that size, with every operand and result whole. */
Factor *partition_add(Partition *p, int64_t size, Combine combine);
void factor_cut_operand(Factor *f, int operand, int axis);
void factor_cut_result(Factor *f, int result, int axis);
/* Axis i of every operand and result is factor i, but those of `except`. */
void partition_alike(Partition *p, const Ints *except);
void partition_elements(Partition *p); /* without exceptions */
void partition_none(Partition *p);

extern const OpRow *const op_table[N_OPS];
static inline const OpRow *
op_row(const Node *n)
{
	return op_table[n->op];
}
bool op_find(const char *name, OpKind *out);
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
/* Which random numbers: those of a stream, counted from the step's first row. rows > 0: `axis` has that many rows. */
typedef struct { int64_t stream, axis, rows; } RandomCounter;
typedef struct { DType dtype; Ints shape; RandomCounter counter; } RandomAttr;
typedef struct { int kind; Ints axes; } ReduceAttr;
typedef struct { const Tensor *value; } ConstantAttr;
typedef struct {
	DType to;
	int round, overflow;   /* Rounding, Overflow: of floats below f32 */
	RandomCounter counter; /* of ROUND_STOCHASTIC */
} CastAttr;
typedef struct { int from, to; DType as; } BitcastAttr; /* DType: enums, which no widening changes */
#define LEAST_SCALE 0x1p-23 /* what a learned scale is read as, where it is less: as PyTorch's */
typedef enum { DIVISION_EXACT, DIVISION_RECIPROCAL } Division;
typedef enum { CLIP_ROUNDED, CLIP_REAL } Clip;
typedef struct { DType to; int division, clip; double scale_grad; } QuantizeAttr; /* the last two: of fake_quantize */
typedef struct { int codes; int64_t block; DType dtype; Ints shape; } DequantizeAttr; /* FourBit */
typedef struct { int kind; int64_t axis; } ScatterAttr;
typedef struct { int64_t axis; bool descending; } SortAttr;
typedef struct { int64_t axis, from, to; bool descending; } SortRunsAttr;
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
typedef struct { Function *body; int64_t bound, carried, sliced; bool always, reverse; } LoopAttr;
/* What operand i of a loop is; its body's parameter i + 1 has that, or a row of it. */
typedef enum { LOOP_CARRIED, LOOP_SLICED, LOOP_INVARIANT } LoopPart;
LoopPart loop_part(const Node *n, int i);
typedef struct { Function *then_branch, *else_branch; } CondAttr;
typedef struct { Kernel *kernel; } LaunchAttr;
/* clang-format on */

#endif
