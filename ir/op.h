/* The op table has a row for each op (add, dot, conv ...). A row holds all facts and functions
 * of the op: type inference, evaluation, gradient, code. ir/ops/ has one file per family of ops;
 * each file ends with the family's rows. Included by ir/ir.h. */
#ifndef GRADC_IR_OP_H
#define GRADC_IR_OP_H

#include "base/numbers/numbers.h"

#define MAX_OPERANDS 6 /* operands with names; the last one may be variadic */

typedef enum { OPERAND_REQUIRED, OPERAND_OPTIONAL, OPERAND_VARIADIC } OperandKind;
typedef struct {
	const char *name;
	OperandKind kind;
} OperandRow;

/* infer: a pure function. It reads attributes and operand types, fills in result types, and reports faults. */
typedef struct {
	Module *m;
	const void *attr;
	int n_operands;
	const Type *operand; /* NULL: the operand was left out */
	int n_results;
	Type *result;
	Arena *arena;
	const char *fault; /* the first fault; NULL: no fault so far */
} Infer;
void infer_error(Infer *in, const char *fmt, ...) PRINTF(2, 3);
/* Infers the result types of an op. Returns the text of a fault, or NULL. row_infer does the same for a given row. */
const char *op_infer(Module *m, Arena *arena, OpKind op, const void *attr, int n_operands,
                     const Type *operands, int *n_results, Type *results, int max_results);
const char *row_infer(Module *m, Arena *arena, const OpRow *row, const void *attr, int n_operands,
                      const Type *operands, int *n_results, Type *results, int max_results);

/* eval: simple loops over elements of 8 bytes, whose correctness is easy to see. Results are
 * already allocated. Unless the interpreter runs in exact arithmetic (`real`), the caller rounds
 * the results. */
typedef struct {
	Interp *interp;
	Arena *arena;
	const Node *node;
	const void *attr;
	const EvalTensor *operand;
	EvalTensor *result;
} Eval;

/* grad: builds the gradients of the operands from the gradients of the results. */
typedef struct {
	Builder *b;
	Node *node;
	Value **dresult;   /* gradients of the results; NULL: no gradient flows there */
	const bool *needs; /* per operand: is its gradient wanted? */
	Value **doperand;  /* gradients of the operands, summed by grad_add */
	const char *fault; /* set by grad_none; becomes an error of the user */
} Grad;
/* Adds dx to the gradient of operand i; does nothing if that gradient is not wanted. */
void grad_add(Grad *g, int i, Value *dx);
void grad_zero(Grad *g); /* for a piecewise constant op: the gradient is zero */
void grad_none(Grad *g); /* the op has no gradient: an error */

/* How `fuse` and `lower` may treat an op. For each class, another column of the row makes the
 * code. */
typedef enum {
	/* element i of the result is computed from the elements i of the operands: column
	 * `scalar`; or column `element`, if the code also needs the index i */
	FUSE_ELEMENTWISE,
	FUSE_VIEW, /* element i of the result is element map(i) of the operand: column `map` */
	/* element i of the result is computed from i alone, or from operand elements at computed
	 * places: column `element` */
	FUSE_INDEX,
	FUSE_REDUCE,  /* has ReduceAttr */
	FUSE_ROOT,    /* writes its result part by part: column `parts` (concat, pad) */
	FUSE_OPAQUE,  /* has a kernel of its own: codegen/kernels/ */
	FUSE_CONTROL, /* runs functions of the module, whose nodes become kernels: loop, cond */
	FUSE_NONE,    /* makes no code: store, return, call */
} FuseClass;

typedef struct BatchFlow BatchFlow; /* below */
typedef struct Lower Lower;         /* codegen's view of one kernel: ir/loop/loop.h */
typedef struct Index Index;         /* ir/loop/loop.h */
typedef struct LoopBuilder LoopBuilder;
typedef int LoopValue;

typedef struct {
	const char *attrs; /* as text: "{kind = max, axes = [1]}"; "" for no attributes */
	/* types, and what values: "f64[2,3], s64[4] in 3"; see docs/extending.md */
	const char *operands;
} Sample;

/* ---- facts that passes read. Tests prove them over the samples (tests/unit/format/facts_test.c, partition_test.c,
 * cost_test.c). */

/* What a mixed-precision pass may do with a node's floats. Every row must have one. */
typedef enum {
	/* operands may be f16, bf16 or smaller, if sums are kept in f32: products */
	PRECISION_LOW = 1,
	PRECISION_HIGH, /* needs f32 or more: sums, and functions that enlarge a relative error */
	/* computes in the widest type of its operands: ops that move elements, and cheap
	 * functions that do not enlarge errors */
	PRECISION_FOLLOW,
	PRECISION_FIXED, /* its types are part of its meaning, or it has no floats: cast, iota, logic, control */
	N_PRECISIONS,
} Precision;
extern const char *const precision_names[N_PRECISIONS];

#define OPERAND(i) (1u << (i)) /* one operand, in a set of operands */
/* Is operand i in the set? Operands from number 32 on are in no set. */
static inline bool
operand_in(unsigned set, int i)
{
	return i < 32 && (set & OPERAND(i));
}
#define EVERY_OPERAND (~0u) /* of an op with any number of operands */

/* What an op does to a product, for libraries that can do it as they store the product. A set of
 * bits in Target.epilogues. */
typedef enum {
	JOINS_NOTHING = 0,
	JOINS_SUM = 1,       /* adds another value of the same shape */
	JOINS_GELU = 2,      /* applies GELU; only to 16-bit products */
	JOINS_GELU_GRAD = 4, /* multiplies by the derivative of GELU; only 16-bit products */
} Joins;

/* How a node can be computed in parts, similar to the sharding rules of GSPMD and Shardy. A
 * factor is a loop of the node that can be divided into parts. dot x[i,k], y[k,j] has three
 * factors, i, j and k, one for each of its loops. The results of parts along i or j are joined;
 * the results of parts along k are added. An axis of an operand or result has at most one
 * factor.
 *
 * To cut a node along a factor is to cut every axis that has the factor into as many equal
 * pieces as there are parts, in order. All parts are the same node with smaller types. An axis
 * without a factor cannot be cut: a part would need elements of another part (a halo). */
typedef enum { COMBINE_JOIN, COMBINE_SUM, COMBINE_PROD, COMBINE_MAX, COMBINE_MIN } Combine;
extern const char *const combine_names[];
typedef enum {
	SHARE_WHOLE, /* every part has the whole operand; every part computes the whole result */
	/* every part has a piece of `axis`. If the axis is larger than the factor, the factor is
	 * the outer loop over the axis */
	SHARE_CUT,
	/* the elements are themselves numbers of places along the factor's axis, such as gather's
	 * indices. A part counts places from its own first place. So a part's operand is the
	 * whole operand minus the part's first place; a part's result plus the part's first place
	 * is a piece of the whole result along `axis` */
	SHARE_SHIFTED,
	SHARE_FIRST, /* part 0 has the whole operand; the other parts have the neutral element: 0 for a sum, 1 for a product */
} ShareKind;
typedef struct {
	ShareKind kind;
	int axis; /* of SHARE_CUT, and of SHARE_SHIFTED results */
} Share;
typedef struct {
	int64_t size; /* iterations of the loop; each divisor is a possible number of parts */
	Combine combine;
	Share *operand, *result; /* one Share per operand, one per result */
} Factor;
typedef struct {
	const Node *node;
	Arena *arena;
	VEC(Factor *) factors;
} Partition;
/* One part of a node along a factor. */
typedef struct {
	const Node *node;
	const Factor *factor;
	int64_t size;                 /* iterations of the factor in the part */
	const Type *operand, *result; /* types of one part; NULL: the operand was left out */
	void *attr;                   /* attributes of one part */
} Cut;
typedef struct {
	void (*factors)(Partition *p); /* adds the factors of p->node */
	void (*attrs)(Module *m,
	              /* sets the attributes in cut->attr that depend on sizes; NULL: no attribute
		 * depends on sizes */
	              Cut *cut);
	const char *doc; /* which axes have factors, and why the other axes have none */
} PartitionRule;

typedef struct {
	unsigned operands; /* set of the operands whose channels are moved */
	bool result;       /* the channels of the result are moved, too */
	/* Builds the result of n from moved operands. NULL: not possible for this node */
	Value *(*build)(Builder *b, const Node *n, Value *const *operands);
} ChannelsLast;

/* Arithmetic operations on elements. +, -, *, /, maximum, minimum, roots, rounding and functions count 1; a fused
 * multiply-add counts 2. Comparisons, choices, logic, conversions and arithmetic on indices count 0. */
typedef int64_t (*FlopsFn)(const Node *n);

struct OpRow {
	const char *name, *doc;
	OperandRow operands[MAX_OPERANDS];
	const char *results[3]; /* names of the results; the last may be "..." */
	const Field *fields;    /* NULL: no attributes */
	size_t attr_size;
	void (*infer)(Infer *in);
	void (*eval)(Eval *ev);
	void (*grad)(Grad *g);
	FuseClass fuse;
	/* FUSE_ELEMENTWISE: builds the result's scalar from the operands' scalars x. */
	LoopValue (*scalar)(LoopBuilder *lb, const Node *n, const LoopValue *x);
	/* FUSE_VIEW: builds the index into operand 0 from the index into the result. */
	void (*map)(LoopBuilder *lb, const Node *n, const Index *result, Index *operand);
	/* FUSE_INDEX, and FUSE_ELEMENTWISE without `scalar`: builds the result's element at index `at`. */
	LoopValue (*element)(Lower *lw, const Node *n, const Index *at);
	/* FUSE_ROOT: calls lower_part for each part, between lower_open_parts and lower_close_parts. */
	void (*parts)(Lower *lw, const Node *n);
	/* FUSE_OPAQUE: the vector that `reader` adds to n's result, if n's kernel, and the
	 * library call that may replace the kernel, can store the sum instead of the result.
	 * Nothing else may read the result. NULL: `reader` adds no such vector. */
	Value *(*bias)(const Node *n, const Node *reader);
	/* Products: the attribute that lets a target round operands of f32 to 11 bits (tf32). NULL: the op has no such
	 * attribute. */
	bool *(*allow_tf32)(void *attr);
	/* FUSE_INDEX with operands: the result is never stored; each kernel that reads it computes it. */
	bool computed_by_readers;
	/* A node with an effect may be neither dropped nor merged: store, return, random without key, ... */
	bool effect;
	/* The op has two operands, and exchanging them changes no bits of the result, except the
	 * payload of a NaN. */
	bool commutative;
	/* Set of the operands that may be given as floats whose values are integers: the op then computes the
	 * same numbers as with the integers. passes/straight_through.c replaces codes by such floats. */
	unsigned as_floats;
	/* With integers in the operands of `as_floats`, results may leave the range of their type;
	 * floats do not wrap around there. */
	bool leaves_range;
	/* The function of one or two numbers that an elementwise op of floats computes; NULL: the op is not elementwise in so
	 * many operands. */
	double (*of_one)(double x);
	double (*of_two)(double x, double y);
	/* The function is smooth. passes/idioms.c recognizes GELU in chains of such ops. */
	bool smooth;
	/* The library that computes a product can do this to the product as it stores it. */
	Joins joins;
	int weight; /* time of one element relative to an addition; 0 counts as 1 */
	FlopsFn flops;
	Precision precision;
	unsigned quantizes; /* set of the operands that may be stored in few bits with scales */
	/* For operand i of `quantizes`: the axis along which each index may have a scale of its
	 * own. It must be an axis for which multiplying the result by the scales, repeated for each group, is
	 * the same as multiplying the operand. -1: there is one scale for the whole operand. */
	int (*channel)(const Node *n, int i);
	/* For operand i of `quantizes`: the axis along which the op adds products, so that blocks of the operand, each
	 * with a scale, lie along it. -1: it adds along no axis or along several. */
	int (*sums)(const Node *n, int i);
	unsigned
		/* set of the operands that may get an adapter (a low-rank product added to them),
		 * if they are parameters */
		adapts;
	PartitionRule partition;
	/* How the op computes tensors whose channels are the last axis instead of axis 1. NULL in `build`: an elementwise op,
	 * which needs no rule, or an op that wants channels as axis 1. */
	ChannelsLast channels_last;
	/* Which axes of the results count rows, given the row axes of the operands. NULL: the factors of
	 * `partition` tell. */
	void (*batch)(BatchFlow *fl);
	/* Rewrites n to simpler nodes before it. Returns the replacement of result 0; NULL: no change. */
	Value *(*simplify)(Builder *b, Node *n);
	const Sample *samples; /* ends with a zero row */
};

/* ---- checks of table rows, for the op table and for other tables. Each message names table,
 * row and column: `op "cube": column eval is missing`. */
typedef struct {
	const char *table, *name;
	Diag *diag;
	bool sound; /* no fault reported so far */
} RowCheck;
void row_error(RowCheck *c, const char *column, const char *fmt, ...) PRINTF(3, 4);
/* Reports "is missing" unless `there` */
void row_needs(RowCheck *c, const char *column, bool there);

/* ---- op_check.c: reports every column that a row lacks, and every column that must be empty in
 * this row: `op "cube": column precision is missing`. Returns true if there is no fault. */
bool op_row_check(const OpRow *row, Diag *diag);
bool op_table_check(Diag *diag);

/* ---- cost.c */
typedef struct {
	int64_t flops;
	int64_t bytes; /* bytes of each distinct operand and of each result, as stored in memory */
} Cost;
Cost node_cost(const Node *n);
int64_t function_flops(const Function *f);
/* FLOPs of a step's first micro-batch, forward and backward; 0 without a function of role accumulate. */
int64_t first_micro_batch_flops(const Module *m);
/* For the column `flops`: */
int64_t flops_none(const Node *n); /* 0: moves, comparisons, choices */
int64_t flops_one(const Node *n);  /* 1 per element of result 0 */
int64_t flops_two(const Node *n);
int64_t flops_per_operand(const Node *n); /* 1 per element of operand 0 */

/* ---- partition.c */
Partition node_partition(Arena *arena, const Node *n);
/* The factor of this operand axis; NULL: the axis cannot be cut. */
const Factor *partition_of_operand(const Partition *p, int operand, int axis);
const Factor *partition_of_result(const Partition *p, int result, int axis);
bool factor_divides(const Factor *f, int64_t parts);
/* Types and attributes of a part with `size` iterations of the factor, from 1 to f->size. */
Cut node_cut(Module *m, Arena *arena, const Node *n, const Factor *f, int64_t size);

/* ---- axis_cut.c: one axis, followed through all nodes of a function, so that parts of the function along the axis
 * can be computed one after the other. */
typedef struct {
	bool known; /* false: the axis does not reach the value, so each part has the whole value */
	int axis; /* each part has a piece of this axis; -1: each part has the whole value, or a value of its own */
	Combine combine; /* how values that each part has of its own make the whole value; COMBINE_JOIN: they are equal */
} ValueCut;
typedef struct {
	Arena *arena;
	ValueCut *of;          /* by value id */
	const Factor **factor; /* by node id; NULL: each part computes the whole node */
	int64_t units; /* most parts; a part has one or more units of every axis that is cut */
} AxisCut;
/* Follows axis `axis` of the result v of a node of f. False: a node cannot be computed in parts along the axis. f may not read
 * states. */
bool axis_cut(Arena *arena, const Function *f, Value *v, int axis, AxisCut *out);
/* A new function, which computes a part of f with that many units of the cut. */
Function *function_part(const Function *f, const AxisCut *cut, int64_t units);
/* ---- batch.c: how a value depends on the rows of a micro-batch. */
typedef struct {
	/* the axis that, cut into equal blocks, gives the rows; -1: the axis is not known, or the
	 * value depends on no row */
	int axis;
	/* how many times the axis goes through all rows: [6,4,7] with 4 rows along axis 1,
	 * reshaped to [24,7], has 6 repeats along axis 0 */
	int64_t repeats;
	bool mixed; /* an element may depend on several rows */
} BatchAxis;
extern const BatchAxis batch_none; /* the value depends on no row */
extern const BatchAxis
	batch_lost; /* no axis counts rows, and elements may depend on several rows */
typedef struct {
	int64_t rows; /* number of rows; 0: no parameter has rows */
	uint32_t n;
	BatchAxis *of; /* by value id */
} BatchAxes;
/* Computes the row axes of all values of f, beginning with the parameters that have rows. */
BatchAxes batch_of(Arena *arena, const Function *f);
/* The axis of v that, cut into equal blocks, gives the rows in order; -1: v has no such axis. */
int batch_blocks(const BatchAxes *b, const Value *v);
/* Does a value that f stores depend on rows? */
bool batch_stores_mix(const BatchAxes *b, const Function *f);

/* For the column `batch`: */
typedef struct BatchWalks
	/* the results of earlier walks over functions: the row axes of a function's results, for
	 * given row axes of its parameters (batch.c) */
	BatchWalks;
struct BatchFlow {
	Arena *arena;
	const Node *node;
	int64_t rows;
	BatchWalks *walks;
	const BatchAxis *operand; /* one per operand */
	BatchAxis *result;
};
/* Number of parts into which the axis of a can be cut */
int64_t batch_parts(const BatchFlow *fl, const BatchAxis *a);
void batch_by_factors(BatchFlow *fl);
bool batch_same(const BatchAxis *a, const BatchAxis *b);
/* The row axis of a value that comes either from a value with row axis a or from one with row
 * axis b, such as the result of a branch. */
BatchAxis batch_join(BatchAxis a, BatchAxis b);
void batch_of_callee(const BatchFlow *fl, const Function *f, const BatchAxis *params,
                     BatchAxis *results);

/* ---- partition.c */
/* For the column `factors`: adds a factor of this size that cuts no operand or result yet. */
Factor *partition_add(Partition *p, int64_t size, Combine combine);
void factor_cut_operand(Factor *f, int operand, int axis);
void factor_cut_result(Factor *f, int result, int axis);
/* Adds one factor per axis: factor i cuts axis i of every operand and result. Axes in `except` get no factor. */
void partition_alike(Partition *p, const Ints *except);
void partition_elements(Partition *p); /* partition_alike without exceptions */
void partition_none(Partition *p);

extern const OpRow *const op_table[N_OPS];
static inline const OpRow *
op_row(const Node *n)
{
	return op_table[n->op];
}

/* ---- op.c */
bool op_find(const char *name, OpKind *out);
/* The operand of the view that makes v; NULL: no view makes v. */
Value *value_viewed(const Value *v);
/* Is n a reshape or a transpose, which only move elements? NULL: no. */
bool is_move(const Node *n);
Value *behind_views(Value *v); /* the value that a chain of views starts from */

/* clang-format off */
/* Structs of attributes that several readers share (importers, autograd, codegen). */
typedef struct { Ints shape, axes; } BroadcastAttr;
typedef struct { Ints shape; } ReshapeAttr;
typedef struct { Ints order; } TransposeAttr;
typedef struct { Ints start, stop, step; } SliceAttr;
typedef struct { Ints low, high, interior; double value; } PadAttr;
typedef struct { int64_t axis; } AxisAttr;
typedef struct { Ints axes; } ReverseAttr;
typedef struct { DType dtype; Ints shape; int64_t axis; } IotaAttr;
/* Which random numbers an op draws: those of stream `stream`. rows > 0: `axis` is the batch axis
 * and has that many rows of the step. rows = 0: there is no batch axis. */
typedef struct { int64_t stream, axis, rows; } RandomCounter;
typedef struct { DType dtype; Ints shape; RandomCounter counter; } RandomAttr;
typedef struct { int kind; Ints axes; } ReduceAttr;
typedef struct { const Tensor *value; } ConstantAttr;
typedef struct {
	DType to;
	int round, overflow;   /* Rounding and Overflow, for floats below f32 */
	RandomCounter counter; /* for ROUND_STOCHASTIC */
} CastAttr;
/* DType values, stored as FIELD_ENUM so that passes that widen dtypes do not change them */
typedef struct { int from, to; DType as; } BitcastAttr;
/* a learned scale smaller than this is replaced by this number, as in PyTorch */
#define LEAST_SCALE 0x1p-23
typedef enum { DIVISION_EXACT, DIVISION_RECIPROCAL } Division;
typedef enum { CLIP_ROUNDED, CLIP_REAL } Clip;
typedef struct { DType to; int division, clip; double scale_grad; } QuantizeAttr; /* the last two are for fake_quantize */
typedef struct { int codes; int64_t block; DType dtype; Ints shape; } DequantizeAttr; /* codes: FourBit */
typedef struct { int kind; int64_t axis; } ScatterAttr;
typedef struct { int64_t axis, size; } ScatterElementsAttr;
typedef struct { int64_t axis; bool descending; } SortAttr;
typedef struct { int64_t axis, from, to; bool descending; } SortRunsAttr;
typedef struct { int kind; int64_t axis; bool reverse, exclusive; } CumulateAttr; /* kind: ReduceKind */
typedef struct {
	Ints x_batch, y_batch, x_contract, y_contract, order;
	int dtype; /* of the result: 1 + DType; 0: the operands' dtype */
	bool allow_tf32;
} DotAttr;
/* x is [batch, channel, spatial...], w is [out, in, spatial...]. */
typedef struct {
	Ints stride, low, high, dilation; /* one per spatial axis */
	int64_t groups;
	Ints size; /* sizes of the result's spatial axes (conv_grad_input), or of the window's (conv_grad_weight) */
	int dtype; /* as in DotAttr */
	bool allow_tf32;
	bool channels_last; /* x and y are [batch, spatial.., channels] */
} ConvAttr;
typedef enum { POOL_MAX, POOL_SUM } PoolKind;
typedef struct { int kind; Ints window, stride, low, high, dilation; Ints size; } PoolAttr;
typedef struct { State *state; } StoreAttr;
typedef struct { Function *callee, *gradient; } CallAttr;
typedef struct { Function *body; int64_t bound, carried, sliced; bool always, reverse; } LoopAttr;
/* The kind of operand i of a loop. Parameter i + 1 of the body stands for operand i, or for one
 * row of operand i (LOOP_SLICED). */
typedef enum { LOOP_CARRIED, LOOP_SLICED, LOOP_INVARIANT } LoopPart;

/* ---- ops/control/loop.c */
LoopPart loop_part(const Node *n, int i);
typedef struct { Function *then_branch, *else_branch; } CondAttr;
typedef struct { Kernel *kernel; } LaunchAttr;
/* The attribute of a node of that op; NULL: n is a node of another op (ir/ops/control/control.c). */
State *stored_state(const Node *n);      /* store */
Function *called_function(const Node *n); /* call */
Kernel *launched_kernel(const Node *n);  /* launch */
/* clang-format on */

#endif
