/* Loop IR: what a kernel is before a printer writes it. Loops, scalar operations, loads and
 * stores with affine places; docs/loop-ir.md is the reference. Free of targets and of tensors.
 *
 * A kernel is a list of statements over numbered scalars. Every scalar is assigned once (loop
 * accumulators aside), has one of the compute types f32 f64 s32 s64 u32 u64 bool, and is visible
 * until the end of its block. */
#ifndef GRADC_IR_LOOP_H
#define GRADC_IR_LOOP_H

#include "base/calls/library_call.h"
#include "ir/ir.h"

/* Places are affine: constant + sum of coefficient * scalar (s64: loop variables or computed). Terms are never changed, so that
 * places may share them. */
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
	const char *c; /* how C writes it: an operator or a builtin; "": by a scalar function */
	LoopResult result;
} LoopOpInfo;
extern const LoopOpInfo loop_ops[N_LOOP_OPS];

typedef enum {
	LOOP_STATEMENT_OP,     /* result = op operands */
	LOOP_STATEMENT_CONST,  /* result = a literal */
	LOOP_STATEMENT_CAST,   /* result = operand 0 through the storage type `i`, as `how` says */
	LOOP_STATEMENT_AFFINE, /* result = the place as s64 */
	LOOP_STATEMENT_SCALAR, /* result = number `buffer` of the scalar block, in its dtype */
	LOOP_STATEMENT_LOAD, /* result = buffer[place], widened to the compute type; 0 where operand 0 is false */
	LOOP_STATEMENT_STORE, /* buffer[place] = operand 0, rounded to the buffer's dtype */
	LOOP_STATEMENT_LOCAL, /* declares an array of the kernel: `buffer`, `extent` elements */
	LOOP_STATEMENT_FOR,   /* result = variable from 0 to extent; body follows up to its END */
	LOOP_STATEMENT_ACCUMULATE, /* accumulator (operand 1) of the loop around takes operand 0 */
	LOOP_STATEMENT_IF,         /* body runs when operand 0 is true; no result leaves it */
	LOOP_STATEMENT_BARRIER,    /* of the team whose loop would stand here */
	/* What a team does together, and copies that run beside other work: docs/loop-ir.md. */
	LOOP_STATEMENT_EACH, /* result, column = an element's row and column in tile `buffer`; body up to its END */
	LOOP_STATEMENT_MMA, /* tile `buffer` += windows[0] times windows[1], `extent` products an element */
	LOOP_STATEMENT_COPY, /* buffer[place] .. = windows[0], `extent` elements; zeros where operand 0 is false */
	LOOP_STATEMENT_COMMIT, /* the copies since the last one are a group */
	LOOP_STATEMENT_WAIT,   /* until at most `i` groups are outstanding */
	LOOP_STATEMENT_END,
	N_LOOP_STATEMENTS,
} LoopStatementKind;

typedef enum { LOOP_PLAIN, LOOP_PARALLEL, LOOP_VECTOR, LOOP_UNROLL, LOOP_TEAM } LoopMode;
/* Iterations of an unrolled loop, and of unrolled loops within each other. */
enum { MAX_UNROLL = 64, MAX_UNROLL_NEST = 1024 };
typedef enum { ACC_ADD, ACC_MUL, ACC_MAX, ACC_MIN } AccumulateKind;
LoopOp accumulate_op(AccumulateKind kind);

/* Who holds an accumulator's partials: nobody (values are taken in order), the lanes of a vector loop, the members of a
 * team, the columns of a tile's row. */
typedef enum { ACC_IN_ORDER, ACC_LANES, ACC_TEAM, ACC_ROW } AccumulateLevel;

/* A loop's accumulator: readable behind the loop under `scalar`. It has `number` partials, a power of two, which start at
 * the identity of its kind: iteration j goes to partial j mod number, in order. In the end they are combined in a fixed
 * tree: l with l + n/2, l < n/2, until one is left. max and min pass NaN on. That of a tile's rows is one for each row, and
 * goes to a tile of row values instead. */
typedef struct {
	LoopValue scalar;
	AccumulateKind kind;
	DType type;
	AccumulateLevel level;
	int number; /* 1 in order */
	int tile;   /* ROW: a buffer; else 0 */
} Accumulator;
enum { MAX_PARTIALS = 1024 };
#define LOOP_LANES 16 /* of a vector loop; its accumulators have so many partials, or a divisor */

/* What mma and copy read. Element (i, j) of a matrix in a local array is at place + i * row + j * column. */
typedef struct {
	int buffer;
	const Affine *place; /* NULL: a tile */
	int64_t row, column;
} LoopWindow;

typedef struct {
	LoopStatementKind kind;
	LoopOp op;
	DType type;       /* of the result */
	LoopValue result; /* -1: none */
	int n_operands;
	LoopValue operands[3];
	int buffer; /* LOAD, STORE, LOCAL, EACH, MMA, COPY; SCALAR: its number */
	const Affine
		*place; /* LOAD, STORE, COPY, AFFINE; FOR: iterations below it only; else NULL */
	double f;       /* CONST of floats */
	Conversion
		how; /* CAST to a float below f32; stochastic: by operand 1, random bits in u32 */
	int64_t i;   /* CONST of integers and bool; CAST: the storage type; WAIT */
	int64_t extent;            /* FOR, LOCAL, MMA, COPY */
	LoopMode mode;             /* FOR */
	LoopValue column;          /* EACH; -1: of a tile with one axis */
	const LoopWindow *windows; /* MMA: 2, COPY: 1; else NULL */
	bool tf32;                 /* MMA of f32: operands may be rounded to tf32 */
	int n_accumulators;
	Accumulator *accumulators;
	int line;  /* in the module's file; 0: made by `lower` */
	int match; /* FOR, IF, EACH: statement number of END; END: of its opener */
} LoopStatement;

/* Parameters, and arrays that a run of the kernel has: local ones are the team's, private ones a member's own,
 * tiles are spread over the team as its matrix unit likes it. */
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
	/* LOCAL, for memory with banks: so many elements behind each row of the last axis; rows are permuted. Places don't
	 * change. */
	int64_t pad;
	bool swizzle;
} LoopBuffer;
static inline bool
buffer_is_param(const LoopBuffer *b)
{
	return b->kind < BUFFER_LOCAL;
}

/* A kernel that is a copy between memories. */
typedef enum { MOVES_NOT, MOVES_TO_HOST, MOVES_TO_DEVICE } KernelMoves;

enum { MAX_TEAM = 2 };
struct Kernel {
	const char *name;
	Loc loc;
	VEC(LoopBuffer) buffers; /* parameters first: inputs, then outputs; then locals */
	int n_inputs, n_outputs;
	VEC(LoopStatement) body;
	int n_scalars;
	int64_t iterations; /* of the parallel loops, their product; 1 without */
	int n_team;         /* levels of the team; 0: one member */
	int team[MAX_TEAM]; /* members by level, outermost first: powers of two, MAX_PARTIALS together */
	int64_t flops;
	const LibraryCall *library; /* what a library may do in place of the loops; NULL: nothing */
	const Kernel *
		serves; /* the kernel whose loops read what this one makes: where a library runs that, this does not
	                       * run; NULL: none */
	bool sums; /* adds what ranks sent: launched on any number of its iterations, for a part of the elements */
	KernelMoves moves; /* a copy, from the device's memory to the host's or back */
	bool all_reduces;  /* ranks add up what it makes, its only result, where that lies */
	uint64_t hash;     /* of everything but name and loc */
};

/* How many parallel loops begin at statement `at`, each directly inside of the one before: part p of the kernel is iteration
 * p of their product, the last loop's variable changing fastest. */
int parallel_depth(const Kernel *k, int at);
/* The places of a statement, its own and those of its windows; how many there are. */
enum { MAX_PLACES = 3 };
int statement_places(const LoopStatement *s, const Affine **out);
/* Of a statement that opens a block. */
static inline bool
statement_opens(const LoopStatement *s)
{
	return s->kind == LOOP_STATEMENT_FOR || s->kind == LOOP_STATEMENT_IF ||
	       s->kind == LOOP_STATEMENT_EACH;
}
/* Has it what only printers with matrix units print: tiles, mma, copies? */
bool kernel_has_tiles(const Kernel *k);
/* The types of k's scalars, as its statements give them. */
void kernel_scalar_types(const Kernel *k, DType *types);

/* ---- loop/kernel.c */
uint64_t statement_hash(const LoopStatement *s);
/* But for what they define, and for loops, which differ in more. */
bool statement_equal(const LoopStatement *a, const LoopStatement *b);
Kernel *kernel_new(Arena *arena, const char *name, Loc loc);
/* Equal but for name, location and buffer names. */
bool kernel_equal(const Kernel *a, const Kernel *b);
/* A copy in the module, under that name and in its list. */
Kernel *kernel_add(Module *m, const Kernel *k, const char *name);
/* Closes the kernel: iterations, hash; `op` and `type` of every ACCUMULATE from its accumulator. */
void kernel_finish(Kernel *k);

/* ---- loop/build.c */
struct LoopBuilder {
	Module *m;
	Kernel *k;
	Arena *scratch;
	VEC(int) open;        /* openers of the blocks around, outermost first */
	VEC(bool) block_open; /* by block number */
	VEC(int) blocks;      /* numbers of the open blocks */
	IntMap *memo;         /* hash -> 1 + scalar of a pure statement */
	VEC(int64_t) extents; /* by scalar: extent of a loop variable; 0 for any other */
	VEC(const Affine *)
	bounds;               /* by scalar: of a loop variable that stays below it; else NULL */
	VEC(DType) types;     /* by scalar */
	VEC(int) definitions; /* by scalar: its statement */
	VEC(int) scopes;      /* by scalar: its block */
};
/* Builds into k, whose parts and everything else the builder needs live in `scratch`. */
LoopBuilder *loop_builder(Kernel *k, Module *m, Arena *scratch);
int lb_buffer(LoopBuilder *lb, const char *name, BufferKind kind, Type type);
int lb_local(LoopBuilder *lb, DType dtype, int64_t extent);
int lb_private(LoopBuilder *lb, DType dtype, int64_t extent);
/* A local array with so many elements behind each row of its last axis, where memory has banks. */
int lb_padded(LoopBuilder *lb, const char *name, Type type, int64_t pad);
/* The kernel's team: members by level. */
void lb_team(LoopBuilder *lb, int n_levels, const int *members);
void lb_barrier(LoopBuilder *lb); /* nothing where there is no team */
/* What a team does together, outside of its loops: a tile with two axes, a loop over its elements, which lb_end closes, and
 * products that are added to it. */
typedef struct {
	LoopValue row, column;
	Affine place; /* of the element, in tiles of this shape */
} TileElement;
int lb_tile(LoopBuilder *lb, const char *name, DType dtype, int64_t rows, int64_t columns);
TileElement lb_each(LoopBuilder *lb, int tile);
void lb_mma(LoopBuilder *lb, int tile, const LoopWindow windows[2], int64_t k);
/* n elements, by a member; zeros where `inside` is false. inside < 0: it lies inside. */
void lb_copy(LoopBuilder *lb, int array, Affine place, int from, Affine source, int64_t n,
             LoopValue inside);
void lb_commit(LoopBuilder *lb);
void lb_wait(LoopBuilder *lb, int64_t groups);
LoopValue lb_param(LoopBuilder *lb, DType type); /* of a scalar function */
/* The scalar type a storage type computes in: f16, bf16 and f8 in f32; s8..s32 in s32, bool in bool. */
DType compute_type(DType storage);
LoopValue lb_op(LoopBuilder *lb, LoopOp op, DType type, const LoopValue *x);
LoopValue lb_unary(LoopBuilder *lb, LoopOp op, LoopValue x);
LoopValue lb_binary(LoopBuilder *lb, LoopOp op, LoopValue x, LoopValue y);
LoopValue lb_compare(LoopBuilder *lb, LoopOp op, LoopValue x, LoopValue y); /* bool */
LoopValue lb_select(LoopBuilder *lb, LoopValue cond, LoopValue x, LoopValue y);
LoopValue lb_float(LoopBuilder *lb, DType type, double value);
LoopValue lb_int(LoopBuilder *lb, DType type, int64_t value);
/* A number of whatever compute type. */
LoopValue lb_number(LoopBuilder *lb, DType type, double value);
/* What an accumulation of that kind over numbers of a storage type starts at. */
LoopValue lb_identity(LoopBuilder *lb, AccumulateKind kind, DType storage);
LoopValue lb_cast(LoopBuilder *lb, DType type, LoopValue x);
/* To a float below f32; random: 32 bits for stochastic rounding, else -1. */
LoopValue lb_cast_as(LoopBuilder *lb, DType type, Conversion how, LoopValue x, LoopValue random);
/* The bits that x has as a `from`, read as a `to`: a number of compute_type(to). scalar/formats.c */
LoopValue lb_bitcast(LoopBuilder *lb, DType from, DType to, LoopValue x);
/* x, a scalar of compute_type(type), as memory of that type would hold it; x itself where it is known to be so. */
LoopValue lb_narrow(LoopBuilder *lb, DType type, LoopValue x);
LoopValue lb_scalar(LoopBuilder *lb, ScalarIndex index);
LoopValue lb_load(LoopBuilder *lb, int buffer, Affine place);
/* 0, and no memory is touched, where `inside` is false: the place may lie outside there. */
LoopValue lb_load_if(LoopBuilder *lb, int buffer, Affine place, LoopValue inside);
void lb_store(LoopBuilder *lb, int buffer, Affine place, LoopValue x);
LoopValue lb_affine(LoopBuilder *lb, Affine place);
/* Is 0 <= place < size? and_inside: and *inside, too, which is -1 where nothing was asked so far. */
LoopValue lb_inside(LoopBuilder *lb, Affine place, int64_t size);
void lb_and_inside(LoopBuilder *lb, Affine place, int64_t size, LoopValue *inside);
/* Says that a computed scalar lies in [0, extent), so that places with it split without division. */
void lb_within(LoopBuilder *lb, LoopValue x, int64_t extent);
LoopValue lb_for(LoopBuilder *lb, LoopMode mode, int64_t extent); /* the loop variable */
/* The same, of the iterations below `bound` only: those of the last block, or of a segment. Not LOOP_PARALLEL. */
LoopValue lb_for_below(LoopBuilder *lb, LoopMode mode, int64_t extent, Affine bound);
/* Declares an accumulator of the innermost open loop; its scalar is readable after lb_end. */
LoopValue lb_accumulator(LoopBuilder *lb, AccumulateKind kind, DType type);
void lb_accumulate(LoopBuilder *lb, LoopValue accumulator, LoopValue x);
void lb_if(LoopBuilder *lb, LoopValue cond);
void lb_end(LoopBuilder *lb);
/* Takes back all statements from number `first` on, whose blocks are closed: what they were made for is known. */
void lb_forget(LoopBuilder *lb, int first);
/* kernel_finish, once pure statements without readers are gone. */
void kernel_close(LoopBuilder *lb);

/* ---- loop/hoist.c: moves loads that are the same in each iteration, and what is made of them, out of loops. Of a kernel that is
 * closed. */
void kernel_hoist(Kernel *k, Arena *scratch);
static inline DType
lb_type(const LoopBuilder *lb, LoopValue x)
{
	return lb->types.at[x];
}

/* ---- scalar/functions.c: exp and its like, integer division, saturating casts, small formats, random bits: what no
 * machine has as an instruction, as loop IR of what it has. Printers and the interpreter print an OP or
 * CAST themselves only where there is no function for it. */
enum { MAX_FUNCTION_PARAMS = 3 };
typedef struct {
	const char *name; /* "exp_f32", "f64_to_s8", "load_bf16", "store_f16" */
	int n_params;     /* scalars 0 .. n_params - 1 of the body */
	DType params[MAX_FUNCTION_PARAMS], type;
	const Kernel *body; /* OP, CONST and CAST statements only; these call further functions */
	LoopValue result;
} ScalarFunction;
typedef struct ScalarFunctions ScalarFunctions; /* those made so far, in an arena */
ScalarFunctions *scalar_functions_new(Arena *arena);
const ScalarFunction *scalar_function(ScalarFunctions *fs, const char *name); /* NULL: unknown */
/* What an OP or CAST statement's function goes by: the type of its last operand, of what is cast. */
static inline DType
function_operand(const LoopStatement *s, const DType *types)
{
	return types[s->operands[s->kind == LOOP_STATEMENT_CAST ? 0 : s->n_operands - 1]];
}
/* Of an OP or CAST statement; NULL: the machine has it. */
const ScalarFunction *scalar_function_of(ScalarFunctions *fs, const LoopStatement *s,
                                         DType operand);

/* ---- loop/place.c */
/* With terms of its own in the arena. */
Affine affine_copy(Arena *arena, const Affine *a);
Affine affine_constant(int64_t c);
Affine affine_plus(Affine a, int64_t constant);
/* New terms live as long as the builder. */
Affine affine_scalar(LoopBuilder *lb, LoopValue s);
Affine affine_add(LoopBuilder *lb, Affine a, Affine b);
Affine affine_scale(LoopBuilder *lb, Affine a, int64_t by);
Affine affine_add_scaled(LoopBuilder *lb, Affine a, Affine b, int64_t by); /* a + by * b */
bool affine_equal(const Affine *a, const Affine *b);                       /* NULL: no place */
/* Is it a multiple of n whatever its scalars are, but for the term of one of them? -1: of all. */
bool affine_is_multiple(const Affine *a, LoopValue except, int64_t n);
/* The same terms, in whatever order. */
bool affine_same(const Affine *a, const Affine *b);
/* The least and the greatest value. By scalar: extents of loop variables, 0 of others; bounds that a loop variable
 * stays below (FOR's place), or NULL. false: a scalar is no loop variable. Takes memory for bounded variables only. */
bool affine_range(Arena *scratch, const Affine *a, const int64_t *extents,
                  const Affine *const *bounds, int64_t *low, int64_t *high);

/* A place in a tensor, an affine form per axis. One that came from a flat element number remembers it, so
 * that the same element of an equal shape needs no arithmetic. */
struct Index {
	int rank;
	Affine at[MAX_RANK];
	Type of; /* the shape that `flat` numbers; NULL: not known */
	Affine flat;
};
/* The flat element number of an index into shape t. */
Affine index_flat(LoopBuilder *lb, Type t, const Index *at);
/* The index into shape t of flat element number f. Exact without division where the terms of f
 * split at t's strides (loop extents bound them); else by computed div and rem. */
void index_split(LoopBuilder *lb, Type t, Affine f, Index *out);

/* ---- lower.c: what a row's columns may call while its kernel is emitted. Who emits kernels lends the calls. */
typedef LoopValue (*PartElement)(Lower *lw, const Node *n, const Index *at, const void *ctx);
typedef void (*PartPlace)(Lower *lw, const Node *n, const Index *at, Index *out, const void *ctx);
/* Each is the function of this name below. */
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
	const Function *f; /* the fused function; NULL for an opaque node alone */
	const Node *node;
	const struct Target
		*target; /* codegen/target/target.h: who runs the loops. Rows do not read it */
	int64_t parts;   /* wanted of a kernel's parallel loops */
	struct LowerState *state;
	bool masked; /* elements are loaded under the mask `inside` (lower_element.c) */
	LoopValue inside;
};
/* The element of a value at an index, as scalar of its compute type. */
LoopValue lower_element(Lower *lw, const Value *v, const Index *at);
/* The same at an index that may lie outside of v: 0, and nothing is loaded, where `inside` is false. inside < 0: it lies
 * inside. */
LoopValue lower_element_inside(Lower *lw, const Value *v, const Index *at, LoopValue inside);
/* FUSE_ROOT: its parts stand between open and close. The first `axes` axes of every part are those of n's result,
 * whole: loops over them are parallel. apart: no two parts have an element in common, so that they may be made in any
 * order. */
void lower_open_parts(Lower *lw, const Node *n, int axes, bool apart);
void lower_close_parts(Lower *lw);
/* For every element i of `shape`, stores element(i) at result place map(i). */
void lower_part(Lower *lw, const Node *n, Type shape, PartElement element, PartPlace place,
                const void *ctx);

/* ---- loop/print.c, loop/parse.c: part of .gir; see docs/loop-ir.md */
void kernel_print(Text *out, const Kernel *k, const PrintOptions *options);
/* One line without its end. */
void loop_print_statement(Text *out, const Kernel *k, const LoopStatement *s);

/* ---- loop/library.c: does a checked call touch only what the kernel's buffers have? Adds the reason to *why where not. */
bool library_stays_inside(const Kernel *k, const LibraryCall *c, Text *why);

/* ---- loop/check.c: faults in a kernel of m: types, scopes, places outside their buffers. Each names
 * the place, the kernel, the statement and the kernel's location; true when there are none. */
bool kernel_verify(const Module *m, const Kernel *k, Diag *diag);

/* ---- loop/team_check.c: what teams ask of a kernel whose scalars and places are in order. */
typedef struct {
	int statement;
	const char *text;
} KernelFault;
typedef VEC(KernelFault) KernelFaults;
void kernel_team_faults(const Kernel *k, Arena *arena, KernelFaults *out);

/* ---- loop/byte_check.c: the first store, by its statement, into elements smaller than a byte where two parts of k might
 * change one byte; -1: none. */
int kernel_shared_byte(const Kernel *k);

/* ---- loop/interp.c: runs iterations [begin, end); buffers in their dtypes. */
void kernel_interpret(const Kernel *k, void *const *buffers, const Scalar *scalars, int64_t begin,
                      int64_t end);
/* What it did. */
typedef struct {
	int64_t flops; /* arithmetic operations on floats, as a row's `flops` counts them */
	int64_t touched_bits; /* of elements of its arguments, once for each part that loads or stores them */
} KernelCounts;
/* The same; adds to *counts, and does not look for races in arguments. NULL: as above. */
void kernel_interpret_counted(const Kernel *k, void *const *buffers, const Scalar *scalars,
                              int64_t begin, int64_t end, KernelCounts *counts);

#endif
