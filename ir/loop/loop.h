/* Loop IR: the form of a kernel before a printer turns it into code. It has loops, scalar
 * operations, and loads and stores with affine places. It knows neither targets nor tensors.
 * docs/loop-ir.md is the reference.
 *
 * A kernel is a list of statements over numbered scalars. Every scalar is assigned once (except
 * the accumulators of loops), has one of the compute types f32 f64 s32 s64 u32 u64 bool, and is
 * visible until the end of its block. */
#ifndef GRADC_IR_LOOP_H
#define GRADC_IR_LOOP_H

#include "base/calls/library_call.h"
#include "ir/ir.h"

/* A place is the number of an element in a buffer, as an affine form: constant + sum of
 * coefficient * scalar. The scalars are of type s64: loop variables or computed scalars. Terms
 * are never changed, so places may share terms. */
typedef struct {
	int64_t coefficient;
	LoopValue scalar;
} AffineTerm;
typedef struct {
	int64_t constant;
	int n;
	const AffineTerm *terms;
} Affine;

typedef enum {
#define LOOP_OP(name, arity, c, result) LOOP_##name,
#include "ir/loop/ops.def"
#undef LOOP_OP
	N_LOOP_OPS,
} LoopOp;
typedef enum { RESULT_SAME, RESULT_TRUTH, RESULT_OWN } LoopResult;
typedef struct {
	const char *name;
	int arity;
	/* text in C: an operator or a builtin; "": a scalar function implements the op */
	const char *c;
	LoopResult result;
} LoopOpInfo;
extern const LoopOpInfo loop_ops[N_LOOP_OPS];

typedef enum {
	LOOP_STATEMENT_OP,    /* result = op operands */
	LOOP_STATEMENT_CONST, /* result = a literal */
	LOOP_STATEMENT_CAST, /* result = operand 0 converted through the storage type `i`, rounded as `how` says */
	LOOP_STATEMENT_AFFINE, /* result = the place as a number, s64 */
	LOOP_STATEMENT_SCALAR, /* result = number `buffer` of the scalar block, in its dtype */
	LOOP_STATEMENT_LOAD, /* result = buffer[place], widened to the compute type; 0 if the mask, operand 0, is false */
	LOOP_STATEMENT_STORE, /* buffer[place] = operand 0, rounded to the buffer's dtype */
	LOOP_STATEMENT_LOCAL, /* declares an array of the kernel: `buffer`, `extent` elements */
	LOOP_STATEMENT_FOR, /* result = variable that counts from 0 to extent; the body goes up to its END */
	LOOP_STATEMENT_ACCUMULATE, /* combines operand 0 into the accumulator, operand 1, of a loop around */
	LOOP_STATEMENT_IF, /* the body runs if operand 0 is true; no scalar leaves it */
	/* the members of a team wait for each other: all members, or inside an outer member's
	 * iteration only its inner members */
	LOOP_STATEMENT_BARRIER,
	/* Statements that all members of a team (threads that run a part together) execute
	 * together, and copies in the background: docs/loop-ir.md. */
	LOOP_STATEMENT_EACH, /* result, column = row and column of an element of tile `buffer`; the body goes up to its END */
	LOOP_STATEMENT_MMA, /* tile `buffer` += windows[0] times windows[1]; `extent` products per element */
	LOOP_STATEMENT_COPY, /* buffer[place] .. = windows[0], `extent` elements; zeros if the mask, operand 0, is false */
	LOOP_STATEMENT_COMMIT, /* makes a group of the copies since the last commit */
	LOOP_STATEMENT_WAIT,   /* waits until at most `i` groups are outstanding */
	LOOP_STATEMENT_END,
	N_LOOP_STATEMENTS,
} LoopStatementKind;

typedef enum { LOOP_PLAIN, LOOP_PARALLEL, LOOP_VECTOR, LOOP_UNROLL, LOOP_TEAM } LoopMode;
/* The most iterations of one unrolled loop; the most copies of a body in nested unrolled loops. */
enum { MAX_UNROLL = 64, MAX_UNROLL_NEST = 1024 };
typedef enum { ACC_ADD, ACC_MUL, ACC_MAX, ACC_MIN } AccumulateKind;
LoopOp accumulate_op(AccumulateKind kind);

/* Which partial values an accumulator (a sum or maximum) has. IN_ORDER: none; values are
 * combined one after the other. LANES: one for each lane of a vector loop. TEAM: one for each
 * member of a team. ROW: one for each of the `number` groups of columns of a tile's row. */
typedef enum { ACC_IN_ORDER, ACC_LANES, ACC_TEAM, ACC_ROW } AccumulateLevel;

/* An accumulator of a loop: after the loop, `scalar` has its value. It has `number` partial
 * values (partials), a power of two, which start at the identity of its kind (0 for a sum).
 * Iteration j goes to partial j mod number, in order. At the end the partials are combined in a
 * fixed tree: partial l with l + n/2 for l < n/2, until one partial is left. max and min of a
 * NaN are NaN. With ACC_ROW each row of the tile has its own accumulator, whose value goes to a
 * tile of row values instead of `scalar`. */
typedef struct {
	LoopValue scalar;
	AccumulateKind kind;
	DType type;
	AccumulateLevel level;
	int number; /* 1 for ACC_IN_ORDER */
	int tile;   /* of ACC_ROW: buffer of the row values; else 0 */
} Accumulator;
enum { MAX_PARTIALS = 1024 };
/* Lanes of a vector loop; the number of partials of its accumulators divides this number. */
#define LOOP_LANES 16

/* An operand of mma or copy. Element (i, j) of a matrix in a local array lies at place + i * row + j * column. */
typedef struct {
	int buffer;
	const Affine *place; /* NULL: the whole tile */
	int64_t row, column;
} LoopWindow;

typedef struct {
	LoopStatementKind kind;
	LoopOp op;
	DType type;       /* of the result */
	LoopValue result; /* -1: no result */
	int n_operands;
	LoopValue operands[3];
	int buffer; /* LOAD, STORE, LOCAL, EACH, MMA, COPY: number of the buffer; SCALAR: ScalarIndex */
	/* LOAD, STORE, COPY, AFFINE; FOR: only iterations below the place run, NULL: all
	 * iterations run; other statements: NULL */
	const Affine *place;
	double f; /* CONST: a float */
	/* CAST to a float below f32. Stochastic rounding takes its random bits from operand 1, u32 */
	Conversion how;
	int64_t i; /* CONST: an integer or bool; CAST: the storage type; WAIT: number of groups */
	int64_t extent;            /* FOR, LOCAL, MMA, COPY */
	LoopMode mode;             /* FOR */
	LoopValue column;          /* EACH: scalar of the column; -1: the tile has one axis */
	const LoopWindow *windows; /* MMA: 2, COPY: 1; else NULL */
	bool tf32;                 /* MMA of f32: operands may be rounded to tf32 */
	int n_accumulators;
	Accumulator *accumulators;
	int line; /* line in the module's file; 0: made by `lower` */
	int match; /* FOR, IF, EACH: statement number of the END; END: statement number of its opener */
} LoopStatement;

/* Parameters (IN, OUT, INOUT), and arrays that exist while the kernel runs. A team shares a
 * LOCAL array. Each member has its own PRIVATE array. A TILE is a block of a matrix, spread over
 * the members of the team in the layout of the machine's matrix unit. */
typedef enum {
	BUFFER_IN,
	BUFFER_OUT,
	BUFFER_INOUT,
	BUFFER_LOCAL,
	BUFFER_PRIVATE,
	BUFFER_TILE,
} BufferKind;
typedef struct {
	const char *name;
	BufferKind kind;
	Type type;
	/* Of LOCAL arrays, so that accesses hit different banks of memory. pad: unused elements
	 * after each row of the last axis. swizzle: the elements of each row are permuted. Places
	 * count elements as if there were neither `pad` nor `swizzle`. */
	int64_t pad;
	bool swizzle;
	/* Of an INOUT parameter: 1 + number of the input that the parameter begins as. The kernel itself does not access the
	 * input: either both lie in one place, or the input is copied before the kernel runs. 0: no input */
	int from;
	/* Of an OUT or INOUT parameter: the kernel writes only a part of it; other kernels write the rest. */
	bool part;
} LoopBuffer;
static inline bool
buffer_is_param(const LoopBuffer *b)
{
	return b->kind < BUFFER_LOCAL;
}

/* Is a kernel a copy between memories, and in which direction? */
typedef enum { MOVES_NOT, MOVES_TO_HOST, MOVES_TO_DEVICE } KernelMoves;

enum { MAX_TEAM = 2 };
struct Kernel {
	int id; /* its number in Module.kernels; 0 before the module has it */
	const char *name;
	Loc loc;
	VEC(LoopBuffer) buffers; /* parameters first (inputs, then outputs), then arrays */
	int n_inputs, n_outputs;
	VEC(LoopStatement) body;
	int n_scalars;
	int64_t iterations; /* product of the extents of the parallel loops; 1 without parallel loops */
	int n_team;         /* levels of the team; 0: no team, one member */
	int team[MAX_TEAM]; /* members by level, outermost first: powers of two, at most MAX_PARTIALS in total */
	int64_t flops;
	const LibraryCall
		*library; /* library call that may replace the loops; NULL: no such call */
	/* the kernel that reads this kernel's result. If a library's call takes the place of
	 * kernel `serves`, that call does this kernel's work, too, and this kernel does not run.
	 * NULL: no such kernel */
	const Kernel *serves;
	/* the kernel adds up values that ranks sent; it may be launched on any range of its
	 * iterations, for a part of the elements */
	bool sums;
	/* whether the kernel copies between the device's memory and the host's memory */
	KernelMoves moves;
	bool all_reduces; /* ranks sum the kernel's only result in place */
	uint64_t hash;    /* hash of everything but id, name and loc */
};

/* The number of parallel loops that begin at statement `at`, each directly inside the one
 * before. Part p of the kernel is iteration p of all these loops counted together; the last
 * loop's variable changes fastest. */
int parallel_depth(const Kernel *k, int at);
/* Collects the places of a statement: the statement's own place, and the places in its windows.
 * Returns their number. */
enum { MAX_PLACES = 3 };
int statement_places(const LoopStatement *s, const Affine **out);
int statement_windows(const LoopStatement *s); /* number of windows */
/* Does the statement open a block? */
static inline bool
statement_opens(const LoopStatement *s)
{
	return s->kind == LOOP_STATEMENT_FOR || s->kind == LOOP_STATEMENT_IF ||
	       s->kind == LOOP_STATEMENT_EACH;
}
/* Does the kernel contain tiles, mma or copies? Then only a printer for machines with matrix units
 * can print it. */
bool kernel_has_tiles(const Kernel *k);
/* Fills `types`, by scalar, from k's statements. */
void kernel_scalar_types(const Kernel *k, DType *types);

/* ---- loop/kernel.c */
uint64_t statement_hash(const LoopStatement *s);
/* Are the statements equal? The comparison ignores results, and the extent, mode and accumulators
 * of loops. */
bool statement_equal(const LoopStatement *a, const LoopStatement *b);
Kernel *kernel_new(Arena *arena, const char *name, Loc loc);
/* Are the kernels equal, apart from name, location and names of buffers? */
bool kernel_equal(const Kernel *a, const Kernel *b);
/* Adds a copy of k with that name to the module. */
Kernel *kernel_add(Module *m, const Kernel *k, const char *name);
/* Sets `match` of all openers and ENDs, after statements were added or removed. */
void kernel_match_blocks(Kernel *k, Arena *scratch);
/* Removes scalars that no statement uses. */
void kernel_drop_unused(Kernel *k, Arena *scratch);

/* Gives buffer b the number to[b] wherever the kernel names it. The list of buffers itself is left to the caller. */
void kernel_renumber_buffers(Kernel *k, Arena *arena, const int *to);

/* ---- loop/pitch.c */
/* RowMove of `row` elements that move to rows of `pitch` elements: an old row begins at element `offset` of the new row. */
typedef struct {
	int64_t row, pitch, offset;
} RowMove;
/* Can the elements of the buffer move from rows of `row` elements to longer rows? */
bool places_can_move(Arena *arena, const Kernel *k, int buffer, int64_t row);
/* Moves the elements of the buffer. The caller changes the buffer's type. */
void places_move(Arena *arena, Kernel *k, int buffer, const RowMove *to);
/* Makes the kernel write zeros into the padding of an output of type `from` whose places were moved to type `to`. */
void places_write_zeros(Arena *arena, Kernel *k, int buffer, Type from, Type to);

/* ---- loop/some_results.c */
/* A new kernel of the module that computes only those results of k for which keep[result] is true, at least one. inputs: room for
 * k's inputs; gets the number in k of each input of the new kernel. NULL if k's results cannot be computed apart. */
Kernel *kernel_some_results(Module *m, Arena *scratch, const Kernel *k, const bool *keep,
                            int *inputs);

/* Completes the kernel: sets iterations and hash, and `op` and `type` of each ACCUMULATE from its accumulator. */
void kernel_finish(Kernel *k);

/* ---- loop/build.c */
struct LoopBuilder {
	Module *m;
	Kernel *k;
	Arena *scratch;
	VEC(int) open;        /* statements that opened the current blocks, outermost first */
	VEC(bool) block_open; /* by block number: is it still open? */
	VEC(int) blocks;      /* numbers of the open blocks */
	IntMap *memo;         /* hash of a pure statement -> 1 + its scalar */
	VEC(int64_t) extents; /* by scalar: extent of a loop variable; 0 for any other scalar */
	VEC(const Affine *)
	bounds; /* by scalar: the place that a loop variable stays below; NULL: no such place */
	VEC(DType) types;     /* by scalar */
	VEC(int) definitions; /* by scalar: number of the statement that computes it */
	VEC(int) scopes;      /* by scalar: number of the block in which it is visible */
	/* exp and tanh of f32 become exp_fast and tanh_fast: what is computed from them is rounded to 16
	 * bits */
	bool fast;
};
/* A builder that appends to k. The builder and all parts of k live in `scratch`. */
LoopBuilder *loop_builder(Kernel *k, Module *m, Arena *scratch);
int lb_buffer(LoopBuilder *lb, const char *name, BufferKind kind, Type type);
/* An INOUT parameter that begins as this input. */
int lb_buffer_from(LoopBuilder *lb, const char *name, int input);
int lb_local(LoopBuilder *lb, DType dtype, int64_t extent);
int lb_private(LoopBuilder *lb, DType dtype, int64_t extent);
/* A local array with `pad` unused elements after each row of its last axis, for memory with banks. */
int lb_padded(LoopBuilder *lb, const char *name, Type type, int64_t pad);
/* Sets the kernel's team: members by level. */
void lb_team(LoopBuilder *lb, int n_levels, const int *members);
void lb_barrier(LoopBuilder *lb); /* adds nothing if there is no team */
/* Work that a team does together, outside of the team's loops: declares a tile with two axes;
 * opens a loop over the tile's elements, which lb_end closes; adds products to the tile. */
typedef struct {
	LoopValue row, column; /* column is -1 in a tile with one axis */
	Affine place;          /* place of the element in any tile of this shape */
} TileElement;
int lb_tile(LoopBuilder *lb, const char *name, DType dtype, int64_t rows, int64_t columns);
int lb_row_tile(LoopBuilder *lb, const char *name, DType dtype, int64_t rows); /* one axis */
TileElement lb_each(LoopBuilder *lb, int tile);
/* tf32: operands of f32 may be rounded to tf32. */
void lb_mma(LoopBuilder *lb, int tile, const LoopWindow windows[2], int64_t k, bool tf32);
/* One member copies n elements, or stores n zeros if the mask `inside` is false. inside < 0: no
 * mask. */
void lb_copy(LoopBuilder *lb, int array, Affine place, int from, Affine source, int64_t n,
             LoopValue inside);
void lb_commit(LoopBuilder *lb);
void lb_wait(LoopBuilder *lb, int64_t groups);
LoopValue lb_param(LoopBuilder *lb, DType type); /* parameter of a scalar function */
/* The compute type of a storage type: f32 for f16, bf16 and f8; s32 for s8..s32; bool for bool. */
DType compute_type(DType storage);
LoopValue lb_op(LoopBuilder *lb, LoopOp op, DType type, const LoopValue *x);
LoopValue lb_unary(LoopBuilder *lb, LoopOp op, LoopValue x);
LoopValue lb_binary(LoopBuilder *lb, LoopOp op, LoopValue x, LoopValue y);
LoopValue lb_compare(LoopBuilder *lb, LoopOp op, LoopValue x, LoopValue y); /* bool */
LoopValue lb_select(LoopBuilder *lb, LoopValue cond, LoopValue x, LoopValue y);
LoopValue lb_float(LoopBuilder *lb, DType type, double value);
LoopValue lb_int(LoopBuilder *lb, DType type, int64_t value);
/* A constant of any compute type. */
LoopValue lb_number(LoopBuilder *lb, DType type, double value);
/* rounding.c: the start value of an accumulation of that kind over numbers of a storage type, such
 * as 0 for a sum. */
LoopValue lb_identity(LoopBuilder *lb, AccumulateKind kind, DType storage);
LoopValue lb_cast(LoopBuilder *lb, DType type, LoopValue x);
/* Converts to a float below f32. random: 32 bits for stochastic rounding; otherwise -1. */
LoopValue lb_cast_as(LoopBuilder *lb, DType type, Conversion how, LoopValue x, LoopValue random);
/* ir/scalar/formats.c: reads the bits of x, stored as `from`, as a number of type `to`. The result is a compute_type(to). */
LoopValue lb_bitcast(LoopBuilder *lb, DType from, DType to, LoopValue x);
/* rounding.c: x, a scalar of compute_type(type), rounded as memory of that type would hold it. x itself if x is known to fit. */
LoopValue lb_narrow(LoopBuilder *lb, DType type, LoopValue x);
LoopValue lb_scalar(LoopBuilder *lb, ScalarIndex index);
LoopValue lb_load(LoopBuilder *lb, int buffer, Affine place);
/* A load with a mask: where `inside` is false the result is 0, and no memory is touched. So the
 * place may then lie outside of the buffer. */
LoopValue lb_load_if(LoopBuilder *lb, int buffer, Affine place, LoopValue inside);
void lb_store(LoopBuilder *lb, int buffer, Affine place, LoopValue x);
LoopValue lb_affine(LoopBuilder *lb, Affine place);
/* lb_inside: the condition 0 <= place < size. lb_and_inside: replaces the mask *inside by (*inside
 * and this condition); *inside < 0: there is no mask so far. */
LoopValue lb_inside(LoopBuilder *lb, Affine place, int64_t size);
void lb_and_inside(LoopBuilder *lb, Affine place, int64_t size, LoopValue *inside);
/* The caller promises that the computed scalar x lies in [0, extent). So index_split needs no
 * division for places that contain x. */
void lb_within(LoopBuilder *lb, LoopValue x, int64_t extent);
LoopValue lb_for(LoopBuilder *lb, LoopMode mode, int64_t extent); /* returns the loop variable */
/* A loop that runs only the iterations below `bound`, for example because the last block of an
 * array is shorter. Not for LOOP_PARALLEL. */
LoopValue lb_for_below(LoopBuilder *lb, LoopMode mode, int64_t extent, Affine bound);
/* Opens a loop that runs once if `place` is below `end`. Returns the place, of which the loop's bound says
 * that it is below. */
Affine lb_open_below(LoopBuilder *lb, Affine place, int64_t end);
/* Declares an accumulator of the innermost open loop. Its scalar is readable after lb_end. */
LoopValue lb_accumulator(LoopBuilder *lb, AccumulateKind kind, DType type);
/* Declares an accumulator of the rows of the innermost open EACH; its values go to `tile`, which
 * has one axis. Column j goes to partial j mod ROW_PARTIALS. */
enum { ROW_PARTIALS = 8 };
LoopValue lb_row_accumulator(LoopBuilder *lb, AccumulateKind kind, int tile);
void lb_accumulate(LoopBuilder *lb, LoopValue accumulator, LoopValue x);
void lb_if(LoopBuilder *lb, LoopValue cond);
void lb_end(LoopBuilder *lb);
/* Drops all statements from number `first` on, whose blocks must be closed. Used for code that
 * was emitted only to inspect it. */
void lb_forget(LoopBuilder *lb, int first);
/* Drops statements without side effects whose results are not read, then calls kernel_finish. */
void kernel_close(LoopBuilder *lb);

/* ---- loop/work.c: what one run of a kernel asks of a machine, estimated from its loops */
typedef struct {
	double bytes; /* of arguments, each element counted once for loading and once for storing */
	double instructions; /* issue slots of scalar code, of all members of all teams */
	double matrix_flops; /* of MMA statements */
	bool chained; /* do they multiply tiles that the kernel has computed, as attention's weights? */
	double steps; /* team loops that a part runs one after the other, and that may wait for memory */
} KernelWork;
KernelWork kernel_work(const Kernel *k);

/* ---- loop/hoist.c: moves loads that are the same in each iteration, and values computed from
 * such loads, out of loops. The kernel must be complete. */
void kernel_hoist(Kernel *k, Arena *scratch);
static inline DType
lb_type(const LoopBuilder *lb, LoopValue x)
{
	return lb->types.at[x];
}

/* ---- scalar/functions.c: functions that no machine has as an instruction: exp and similar
 * functions, integer division, saturating casts, small formats, random bits. They are written as
 * loop IR of operations that machines have. Printers and the interpreter run an OP or CAST directly
 * only if it has no function. */
enum { MAX_FUNCTION_PARAMS = 3 };
typedef struct {
	const char *name; /* "exp_f32", "f64_to_s8", "load_bf16", "store_f16" */
	int n_params;     /* scalars 0 .. n_params - 1 of the body */
	DType params[MAX_FUNCTION_PARAMS], type;
	const Kernel
		*body; /* only OP, CONST and CAST statements, which may call further functions */
	LoopValue result;
} ScalarFunction;
typedef struct ScalarFunctions ScalarFunctions; /* the functions made so far, in an arena */
ScalarFunctions *scalar_functions_new(Arena *arena);
/* NULL: no function of that name */
const ScalarFunction *scalar_function(ScalarFunctions *fs, const char *name);
/* The type that selects the function of an OP or CAST statement: the type of an OP's last
 * operand, or of a CAST's first operand. */
static inline DType
function_operand(const LoopStatement *s, const DType *types)
{
	return types[s->operands[s->kind == LOOP_STATEMENT_CAST ? 0 : s->n_operands - 1]];
}
/* The function of an OP or CAST statement; NULL: the machine has an instruction. */
const ScalarFunction *scalar_function_of(ScalarFunctions *fs, const LoopStatement *s,
                                         DType operand);

/* ---- loop/place.c */
/* A copy whose terms live in the arena. */
Affine affine_copy(Arena *arena, const Affine *a);
Affine affine_constant(int64_t c);
Affine affine_plus(Affine a, int64_t constant);
/* The terms of a new place live as long as the builder. */
Affine affine_scalar(LoopBuilder *lb, LoopValue s);
Affine affine_add(LoopBuilder *lb, Affine a, Affine b);
Affine affine_scale(LoopBuilder *lb, Affine a, int64_t by);
Affine affine_add_scaled(LoopBuilder *lb, Affine a, Affine b, int64_t by); /* a + by * b */
/* kernel.c. NULL stands for no place, and is equal only to NULL */
bool affine_equal(const Affine *a, const Affine *b);
/* Is the place a multiple of n for all values of its scalars? The term with the scalar `except`
 * is ignored; except = -1: all terms count. */
bool affine_is_multiple(const Affine *a, LoopValue except, int64_t n);
/* Do the places have the same constant and terms, in whatever order? */
bool affine_same(const Affine *a, const Affine *b);
/* Sets *low and *high to the least and the greatest value of a place. extents, by scalar: the
 * extent of a loop variable; 0 for other scalars. bounds, by scalar: the place that a loop
 * variable stays below (place of its FOR); NULL: no bound. False: the place contains a scalar
 * that is not a loop variable. Allocates memory only if there are bounds. */
bool affine_range(Arena *scratch, const Affine *a, const int64_t *extents,
                  const Affine *const *bounds, int64_t *low, int64_t *high);

/* An index into a tensor, one affine form per axis. An index that was computed from a flat
 * element number keeps this number, so that the same element of a value with an equal shape
 * needs no arithmetic. */
struct Index {
	int rank;
	Affine at[MAX_RANK];
	Type of; /* shape in which `flat` counts; NULL: the flat number is not known */
	Affine flat;
};
/* The flat element number of an index into shape t. */
Affine index_flat(LoopBuilder *lb, Type t, const Index *at);
/* Splits flat element number f into an index into shape t. No division is needed if each term of
 * f belongs to one axis of t, as the loops' extents show; otherwise div and rem are computed. */
void index_split(LoopBuilder *lb, Type t, Affine f, Index *out);

/* ---- lower.c: functions that the columns of op rows call while their kernel is emitted. The
 * emitter (codegen/lower) implements these functions. */
typedef LoopValue (*PartElement)(Lower *lw, const Node *n, const Index *at, const void *ctx);
typedef void (*PartPlace)(Lower *lw, const Node *n, const Index *at, Index *out, const void *ctx);
/* Each pointer implements the function below with the same name, e.g. `element` is lower_element. */
typedef struct {
	LoopValue (*element)(Lower *lw, const Value *v, const Index *at);
	LoopValue (*element_inside)(Lower *lw, const Value *v, const Index *at, LoopValue inside);
	void (*open_parts)(Lower *lw, const Node *n, int axes, bool apart);
	void (*close_parts)(Lower *lw);
	void (*part)(Lower *lw, const Node *n, Type shape, PartElement element, PartPlace place,
	             const void *ctx);
} LowerCalls;
struct Lower {
	const LowerCalls *calls;
	LoopBuilder *lb;
	Module *m;
	const Function *f; /* the fused function; NULL: a single opaque node */
	const Node *node;
	/* codegen/target/target.h: the target of the loops. Op rows do not read it */
	const struct Target *target;
	int64_t parts; /* how many parts the kernel's parallel loops should have */
	struct LowerState *state;
	bool masked; /* loads of elements use the mask `inside` (codegen/lower/element.c) */
	LoopValue inside;
};
/* The element of a value at an index, as a scalar of its compute type. */
LoopValue lower_element(Lower *lw, const Value *v, const Index *at);
/* Like lower_element, at an index that may lie outside of v: where `inside` is false the result
 * is 0, and nothing is loaded. inside < 0: the index is never outside. */
LoopValue lower_element_inside(Lower *lw, const Value *v, const Index *at, LoopValue inside);
/* For FUSE_ROOT: parts are emitted between open and close. The first `axes` axes of every part are whole axes of n's
 * result; loops over them are parallel. apart: no two parts share an element, so they may run in any order. */
void lower_open_parts(Lower *lw, const Node *n, int axes, bool apart);
void lower_close_parts(Lower *lw);
/* For every element i of `shape`: stores element(i) at place map(i) of the result. */
void lower_part(Lower *lw, const Node *n, Type shape, PartElement element, PartPlace place,
                const void *ctx);

/* ---- loop/print.c, loop/parse.c: part of .gir; see docs/loop-ir.md */
void kernel_print(Text *out, const Kernel *k, const PrintOptions *options);
/* Prints one line without its end. */
void loop_print_statement(Text *out, const Kernel *k, const LoopStatement *s);

/* ---- loop/library.c: does a checked call stay inside the kernel's buffers? If not, adds the reason to *why. */
bool library_stays_inside(const Kernel *k, const LibraryCall *c, Text *why);

/* ---- loop/check.c: reports faults in a kernel of m: types, scopes, places outside of their buffers. Each report
 * names the place, the kernel, the statement and the kernel's location. Returns true if there is no fault. */
bool kernel_verify(const Module *m, const Kernel *k, Diag *diag);

/* ---- loop/team_check.c: finds faults in the use of teams. The kernel's scalars and places must be correct
 * already. */
typedef struct {
	int statement;
	const char *text;
} KernelFault;
typedef VEC(KernelFault) KernelFaults;
void kernel_team_faults(const Kernel *k, Arena *arena, KernelFaults *out);

/* ---- loop/byte_check.c: finds the first store, by statement number, into elements smaller than
 * a byte where two parts (parallel iterations) of k might change the same byte; -1: there is no
 * such store. */
int kernel_shared_byte(const Kernel *k);

/* ---- loop/interp.c: runs iterations [begin, end) of the kernel; `buffers` are in their dtypes. */
void kernel_interpret(const Kernel *k, void *const *buffers, const Scalar *scalars, int64_t begin,
                      int64_t end);
/* Counts of a run: */
typedef struct {
	int64_t flops; /* arithmetic operations on floats, as the column `flops` of op rows counts them */
	int64_t touched_bits; /* bits of the arguments' elements; an element counts once per part that loads or stores it */
} KernelCounts;
/* Runs the kernel, adds to *counts, and does not look for races in arguments. counts NULL: the same as
 * kernel_interpret. */
void kernel_interpret_counted(const Kernel *k, void *const *buffers, const Scalar *scalars,
                              int64_t begin, int64_t end, KernelCounts *counts);

#endif
